//! What a computed `goto` may lead to: labels of its table, or whatever a word holds that the program made.

mod support;

use support::{compile, compile_text, installed, relift, relift_succeeds, repository, skipped};

/// Of the computed jumps in a function of a fixture, how many are led by a pointer, and how many are not.
fn computed_jumps(fixture: &str, function: &str) -> Option<[usize; 2]> {
    if !installed("gcc") {
        skipped("there is no gcc");
        return None;
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let source = repository(&format!("fixtures/programs/{fixture}/{fixture}.c"));
    let program = scratch.path().join(fixture);
    compile("gcc", &["-O2", "-pie", "-fPIE"], &[&source], &program).unwrap_or_else(|error| panic!("{error}"));
    let said = relift_succeeds(relift().args(["inspect", "--func", function]).arg(&program), scratch.path());
    let text = String::from_utf8_lossy(&said.stdout);
    let jumps: Vec<&str> = text.lines().filter(|line| line.contains("ComputedJump")).collect();
    let num_led = jumps.iter().filter(|line| line.contains("LED_BY_POINTER")).count();
    Some([num_led, jumps.len() - num_led])
}

#[test]
fn jumps_through_words_that_the_program_made_are_told_from_jumps_through_a_table_of_labels() {
    let Some([led, others]) = computed_jumps("threaded_labels", "run") else { return };
    assert!(led >= 10 && others == 0, "{led} led by pointers, {others} not");
    let Some([led, others]) = computed_jumps("label_holes", "run") else { return };
    assert!(led == 0 && others >= 5, "{led} led by pointers, {others} not");
}

/// Pieces that each end in a jump through a word that the piece made, as GHC's code goes on: more than any interpreter has.
const PIECES: &str = r#"
#include <stdio.h>
__asm__(".text\n.globl run\n.type run, @function\nrun:\n.cfi_startproc\nxor %eax, %eax\n"
    ".rept 17000\nlea 1f(%rip), %rdx\nmov %rdx, (%rdi)\njmp *(%rdi)\n1: inc %eax\n.endr\n"
    "ret\n.cfi_endproc\n.size run, . - run\n");
int run(void *place);
int main(void) {
    void *place;
    printf("%d\n", run(&place));
    return 0;
}
"#;

#[test]
fn code_with_more_computed_jumps_than_can_be_followed_stays_and_says_why() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let program = compile_text(PIECES, &["-O1"], scratch.path(), "program");
    let told = relift_succeeds(relift().args(["inspect", "--func", "run"]).arg(&program), scratch.path()).stdout_text();
    assert!(told.contains("unresolved-jump"), "{}", told.lines().take(3).collect::<Vec<&str>>().join("\n"));
}
