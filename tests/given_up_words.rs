//! A word that was taken off the stack is still there where the stack pointer is lowered to it again, as OCaml's `caml_c_call` and other functions in assembly count on.

mod support;

use std::process::Command;

use support::{End, SUCCESS, c_compilers, compile_text, run, shrink, skipped, technique};

/// A function that takes its return address off the stack and makes it the return address again, and one that reads what it had pushed.
const TEXT: &str = r#"
#include <stdio.h>
long last, bottom, count;
__asm__(
    ".text\n.globl through\n.type through, @function\nthrough:\n    .cfi_startproc\n"
    "    popq last(%rip)\n    .cfi_adjust_cfa_offset -8\n"
    "    movq %rsp, bottom(%rip)\n"
    "    subq $8, %rsp\n    .cfi_adjust_cfa_offset 8\n"
    "    addq $1, count(%rip)\n    jmp work\n    .cfi_endproc\n.size through, .-through\n"
    ".globl again\n.type again, @function\nagain:\n    .cfi_startproc\n"
    "    pushq %rdi\n    .cfi_adjust_cfa_offset 8\n"
    "    addq $8, %rsp\n    .cfi_adjust_cfa_offset -8\n"
    "    testl %edi, %edi\n    je 1f\n    incq count(%rip)\n1:\n"
    "    subq $8, %rsp\n    .cfi_adjust_cfa_offset 8\n"
    "    addq $1, count(%rip)\n    popq %rax\n    .cfi_adjust_cfa_offset -8\n    ret\n    .cfi_endproc\n.size again, .-again\n");
extern long through(long), again(long);
__attribute__((used, noipa)) long work(long x) { return x * 3 + count; }
__attribute__((noipa)) static long framed(long x) { return through(x) + again(x + 1); }
int main(int argc, char **argv) {
    printf("%ld %ld %d\n", framed(argc), count, bottom != 0 && last != 0);
    return 42;
}
"#;

/// Shrinks a program, which says the same then, by a check that passed; what relift reports.
fn shrunk(text: &str) -> Option<serde_json::Value> {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = folder.path();
    if c_compilers().is_empty() {
        skipped("given-up words: there is no C compiler");
        return None;
    }
    let input = compile_text(text, &["-O2", "-fPIE", "-pie", "-w"], folder, "input");
    let before = run(&mut Command::new(&input), folder);
    assert_eq!(before.end, End::Exit(SUCCESS), "{before:?}");
    let (output, told) = shrink(&input, &["--slower", "100"], "output", folder);
    assert!(!told["warnings"].to_string().contains("checker"), "{told:#}");
    assert_eq!(before, run(&mut Command::new(&output), folder));
    Some(told)
}

#[test]
fn what_was_taken_off_the_stack_is_there_when_it_is_lowered_again() {
    shrunk(TEXT);
}

/// Ends that are alike: in one function a word was taken off the stack before and counts where the stack pointer is lowered, in the others nothing was.
fn with_equal_ends() -> String {
    // The ends of short functions are not shared.
    let function = |name: &str, before: &str| {
        format!(
            r#"__asm__(".text\n.globl {name}\n.type {name}, @function\n{name}:\n    .cfi_startproc\n{before}"
    ".rept 400\n    incq {name}_count(%rip)\n.endr\n    testl %edi, %edi\n    je 1f\n    incq {name}_count(%rip)\n1:\n    movq %rdi, last(%rip)\n"
    "    subq $8, %rsp\n    .cfi_adjust_cfa_offset 8\n    addq $1, count(%rip)\n    addq $3, bottom(%rip)\n    addq %rdi, last(%rip)\n"
    "    popq %rax\n    .cfi_adjust_cfa_offset -8\n    ret\n    .cfi_endproc\n.size {name}, .-{name}\n");
long {name}_count;
extern long {name}(long);
"#
        )
    };
    let keeping = "    pushq %rdi\\n    .cfi_adjust_cfa_offset 8\\n    addq $8, %rsp\\n    .cfi_adjust_cfa_offset -8\\n";
    let functions = [function("first", ""), function("keeping", keeping), function("second", "")].concat();
    format!(
        "#include <stdio.h>\nlong last, bottom, count;\n{functions}
int main(int argc, char **argv) {{
    first(argc);
    long kept = keeping(argc + 6);
    second(argc);
    printf(\"%ld %ld %ld %ld\\n\", kept, count, bottom, last);
    return 42;
}}\n"
    )
}

#[test]
fn an_end_that_stands_for_one_where_a_word_is_kept_lowers_the_stack_as_that_did() {
    let Some(told) = shrunk(&with_equal_ends()) else { return };
    assert!(technique(&told, "tails").is_some_and(|saving| saving["count"].as_i64() > Some(0)), "{told:#}");
}
