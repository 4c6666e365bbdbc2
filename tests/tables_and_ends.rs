//! A table of jumps that begins where an array ends: its address is also the array's end.

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{End, SUCCESS, compile_text, installed, relift, relift_succeeds, run, skipped};

/// A function with a switch, which also names the end of the array before the table: `END` does something with that.
const PROGRAM: &str = r#"
#include <stdint.h>
const char *seen;
__attribute__((noinline)) int length(const char *from, const char *to) { seen = from; return (int)(to - from); }
int choose(uint64_t which);
__asm__(
    ".section .rodata\n.balign 4\nletters: .ascii \"abcdef12\"\nlabels: .long 1f - labels, 2f - labels, 3f - labels, 4f - labels\n.text\n"
    ".type choose, @function\nchoose:\n.cfi_startproc\npush %rbx\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %rbx, 0\nmov %rdi, %rbx\n" END
    "cmp $3, %rbx\nja 5f\nlea labels(%rip), %rdx\nmovslq (%rdx,%rbx,4), %rcx\nadd %rdx, %rcx\njmp *%rcx\n"
    "1: add $10, %eax\njmp 5f\n2: add $20, %eax\njmp 5f\n3: add $30, %eax\njmp 5f\n4: add $40, %eax\n"
    "5: pop %rbx\n.cfi_adjust_cfa_offset -8\nret\n.cfi_endproc\n.size choose, . - choose\n");
int main(void) {
    int sum = 0;
    for (uint64_t which = 0; which < 6; which++) sum += choose(which);
    return sum == 100 + 6 * 8 && *seen == 'a' ? 42 : 1;
}
"#;

const PASSED: &str = r#""lea labels(%rip), %rsi\nlea -8(%rsi), %rdi\ncall length\n""#;
/// It is kept, and might be what the jump counts from.
const KEPT: &str = r#""push %r12\nlea labels(%rip), %r12\nmov %r12, %rsi\nlea -8(%r12), %rdi\ncall length\npop %r12\n""#;

/// Whether `choose` stays, and that the program does what it did under some layouts.
fn stays(end: &str, folder: &Path) -> bool {
    let end = format!("-DEND={end}");
    let program = compile_text(PROGRAM, &["-O2", "-fPIE", "-pie", &end], folder, "program");
    assert_eq!(run(&mut Command::new(&program), folder).end, End::Exit(SUCCESS));
    for seed in ["1", "2", "3"] {
        let output = folder.join("shuffled");
        relift_succeeds(relift().args(["optimize", "--shuffle", seed]).arg(&program).arg("-o").arg(&output), folder);
        assert_eq!(run(&mut Command::new(&output), folder).end, End::Exit(SUCCESS), "{end}, seed {seed}");
    }
    let said = relift_succeeds(relift().args(["inspect", "--json", "-v"]).arg(&program), folder);
    let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    report["pinned_functions"].as_array().expect("-v names them").iter().any(|function| function["name"] == "choose")
}

#[test]
fn a_function_that_passes_the_end_of_an_array_on_where_its_table_begins_moves_and_one_that_keeps_it_stays() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    assert!(!stays(PASSED, scratch.path()));
    assert!(stays(KEPT, scratch.path()));
}
