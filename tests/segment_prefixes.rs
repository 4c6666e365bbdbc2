//! Prefixes for segments that begin at 0 do nothing to memory: `notrack`, and what assemblers pad with. One of branches, `bnd`, did something once.

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{End, SUCCESS, compile_text, installed, relift, relift_succeeds, run, shuffled_does_the_same, skipped};

/// Two switches: the target of one waits in a slot while something is called, the other jumps through its table of addresses.
const PROGRAM: &str = r#"
#include <stdint.h>
int called;
__attribute__((noinline)) void work(void) { called++; }
int choose(uint64_t which);
__asm__(
    ".section .rodata\n.balign 4\nlabels: .long 1f - labels, 2f - labels, 3f - labels, 4f - labels\n.text\n"
    ".type choose, @function\nchoose:\n.cfi_startproc\nsub $24, %rsp\n.cfi_adjust_cfa_offset 24\n"
    "cmp $3, %rdi\nja 5f\nlea labels(%rip), %rdx\nmovslq (%rdx,%rdi,4), %rcx\nadd %rdx, %rcx\nmov %rcx, 8(%rsp)\n"
    "call work\nxor %eax, %eax\nnotrack jmp *8(%rsp)\n"
    "1: add $10, %eax\njmp 6f\n2: add $20, %eax\njmp 6f\n3: add $30, %eax\njmp 6f\n4: add $40, %eax\njmp 6f\n5: xor %eax, %eax\n"
    "6: add $24, %rsp\n.cfi_adjust_cfa_offset -24\nret\n.cfi_endproc\n.size choose, . - choose\n");
#ifdef FIXED
int select_one(uint64_t which);
__asm__(
    ".section .rodata\n.balign 8\nplaces: .quad 1f, 2f, 3f, 4f\n.text\n"
    ".type select_one, @function\nselect_one:\n.cfi_startproc\n"
    "xor %eax, %eax\ncmp $3, %rdi\nja 5f\nnotrack jmp *places(,%rdi,8)\n"
    "1: add $10, %eax\nret\n2: add $20, %eax\nret\n3: add $30, %eax\nret\n4: add $40, %eax\n5: ret\n.cfi_endproc\n.size select_one, . - select_one\n");
#else
#define select_one choose
#endif
int main(void) {
    int sum = 0;
    for (uint64_t which = 0; which < 6; which++) sum += choose(which) + select_one(which);
    return sum == 200 && called >= 4 ? 42 : 1;
}
"#;

/// How many tables of jumps are known, after the program has done what it did under some layouts.
fn num_tables(options: &[&str], folder: &Path) -> u64 {
    let program = compile_text(PROGRAM, options, folder, "program");
    assert_eq!(run(&mut Command::new(&program), folder).end, End::Exit(SUCCESS));
    for seed in ["1", "2", "3"] {
        let output = folder.join("shuffled");
        relift_succeeds(relift().args(["optimize", "--shuffle", seed]).arg(&program).arg("-o").arg(&output), folder);
        assert_eq!(run(&mut Command::new(&output), folder).end, End::Exit(SUCCESS), "{options:?}, seed {seed}");
    }
    let said = relift_succeeds(relift().args(["inspect", "--json"]).arg(&program), folder);
    let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    report["tables"].as_u64().expect("it counts them")
}

#[test]
fn a_switch_that_jumps_through_memory_with_notrack_is_a_switch() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    assert_eq!(num_tables(&["-O2", "-fPIE", "-pie"], scratch.path()), 1);
    assert_eq!(num_tables(&["-O2", "-fno-pie", "-no-pie", "-DFIXED"], scratch.path()), 2);
}

/// As in the loader of C libraries that know of bounds registers.
const BOUNDED: &str = r#"
int sign(long x);
__asm__(
    ".text\n.p2align 4\n.type sign, @function\nsign:\n.cfi_startproc\n"
    "test %rdi, %rdi\nbnd jns 1f\nmov $1, %eax\nbnd ret\n1: mov $2, %eax\nbnd ret\n.cfi_endproc\n.size sign, . - sign\n");
int main(void) { return sign(-5) == 1 && sign(5) == 2 ? 42 : 1; }
"#;

#[test]
fn a_function_with_a_conditional_branch_that_keeps_the_bounds_registers_stays() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let program = compile_text(BOUNDED, &["-O1", "-fPIE", "-pie"], scratch.path(), "program");
    shuffled_does_the_same(&program, &["1", "2", "3", "4"], scratch.path());
}
