//! Unwinding through ways on which registers are not saved: from each single instruction, to what the caller kept in its registers.

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{End, SUCCESS, compile, compile_text, relift, relift_succeeds, repository, run, skipped};

/// Runs the fixture's `main` from code that keeps a number of its own in each register that calls keep. Each instruction raises a signal, whose handler unwinds to
/// that code and looks for the numbers.
const STEPS: &str = r#"
#define _GNU_SOURCE
#define main checks
#include FIXTURE
#undef main
#include <stdint.h>
#include <stdio.h>
#include <unwind.h>
extern char keeper[], keeper_end[];
int keeper_of(int (*)(void)) __asm__("keeper");
__asm__(".text\n.type keeper, @function\nkeeper: .cfi_startproc\n"
#define PUSH(r) "push %" #r "\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset " #r ", 0\n"
#define POP(r) "pop %" #r "\n.cfi_adjust_cfa_offset -8\n.cfi_restore " #r "\n"
PUSH(rbx) PUSH(rbp) PUSH(r12) PUSH(r13) PUSH(r14) PUSH(r15)
"sub $8, %rsp\n.cfi_adjust_cfa_offset 8\n"
"mov $0x1003, %ebx\nmov $0x1006, %ebp\nmov $0x100c, %r12d\nmov $0x100d, %r13d\nmov $0x100e, %r14d\nmov $0x100f, %r15d\n"
"pushfq\norq $256, (%rsp)\npopfq\n"
"call *%rdi\n"
"pushfq\nandq $-257, (%rsp)\npopfq\n"
"add $8, %rsp\n.cfi_adjust_cfa_offset -8\n"
POP(r15) POP(r14) POP(r13) POP(r12) POP(rbp) POP(rbx)
"ret\n.cfi_endproc\nkeeper_end:\n.size keeper, .-keeper\n");
static volatile long num_steps, num_lost, is_on;
static _Unwind_Reason_Code one(struct _Unwind_Context *context, void *found) {
    static const int kept[] = {3, 6, 12, 13, 14, 15};
    uintptr_t at = _Unwind_GetIP(context);
    if (at < (uintptr_t)keeper || at >= (uintptr_t)keeper_end) return _URC_NO_REASON;
    int is_right = 1;
    for (int i = 0; i < 6; i++) is_right &= _Unwind_GetGR(context, kept[i]) == 0x1000 + kept[i];
    *(int *)found = is_right;
    return _URC_END_OF_STACK;
}
static void trap(int signal) {
    int found = 0;
    (void)signal;
    if (!is_on) return;
    _Unwind_Backtrace(one, &found);
    num_steps++;
    num_lost += !found;
}
static int checks_here(void) { is_on = 1; int status = checks(); is_on = 0; return status; }
int main(void) {
    signal(SIGTRAP, trap);
    int status = keeper_of(checks_here);
    printf("%ld\n%ld\n", (long)num_steps, (long)num_lost);
    return status;
}
"#;

/// The steps that it took, of which none may lose its way.
fn steps(program: &Path, folder: &Path) -> u64 {
    let found = run(&mut Command::new(program), folder);
    assert_eq!(found.end, End::Exit(SUCCESS), "{}: {found:?}", program.display());
    let numbers: Vec<u64> = found.stdout_text().lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(numbers.get(1), Some(&0), "{}: all of {numbers:?} steps find the caller's registers", program.display());
    numbers[0]
}

#[test]
fn what_a_caller_keeps_is_found_from_every_instruction_of_a_way_without_saves() {
    if !support::installed("gcc") {
        return skipped("unwinding from every instruction: there is no gcc");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (source, input, output) = (folder.path().join("steps.c"), folder.path().join("input"), folder.path().join("output"));
    let fixture = format!("-DFIXTURE=\"{}\"", repository("fixtures/programs/early_saves/early_saves.c").display());
    std::fs::write(&source, STEPS).expect("the scratch folder can be written");
    for guarded in ["-fno-stack-protector", "-fstack-protector-all"] {
        // Bound at once: the steps are those of the program, not of the dynamic linker.
        let flags = ["-O2", "-fPIE", "-pie", "-w", "-fno-shrink-wrap", "-Wl,-z,now", "-DROUNDS=100", guarded, &fixture];
        compile("gcc", &flags, &[&source], &input).unwrap_or_else(|error| panic!("{error}"));
        let mut command = relift();
        command.args(["optimize", "--edit-everywhere", "--only", "late-saves", "--json"]).arg(&input).arg("-o").arg(&output);
        let said = relift_succeeds(&mut command, folder.path());
        let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
        assert!(report["transforms"]["late-saves"]["sites"].as_u64() >= Some(3), "{report:#}");
        let (before, after) = (steps(&input, folder.path()), steps(&output, folder.path()));
        assert!(before > 5_000 && after < before, "{guarded}: {before} steps, then {after}");
    }
}

/// `partly` writes the low byte of a register that it saves, and returns it with what the caller had above; `whole` clears what is above. Both call `other` on a way that seldom runs.
const PARTS: &str = r#"
__asm__(".text\n"
#define BOTH(name, clear, result) ".type " #name ", @function\n" #name ": .cfi_startproc\n" \
    "push %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset rbx, -16\n" clear "test %edi, %edi\nsetne %bl\ncmp $1000, %edi\nja 1f\n" result \
    "pop %rbx\n.cfi_def_cfa_offset 8\nret\n" \
    "1: .cfi_def_cfa_offset 16\ncall other\nadd %bl, %al\nmovzbl %al, %eax\npop %rbx\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size " #name ", . - " #name "\n"
BOTH(partly, "", "mov %ebx, %eax\n")
BOTH(whole, "xor %ebx, %ebx\n", "mov %ebx, %eax\n"));
int partly(int), whole(int);
__attribute__((noinline)) int other(int x) { __asm__ volatile("" ::: "memory"); return x + 1; }
int main(void) {
    unsigned sum = 0;
    for (int i = 0; i < 100; i++) sum += (partly(i * 11) & 255) + whole(i * 11);
    return sum & 127;
}
"#;

#[test]
fn no_copy_is_made_that_would_read_what_the_caller_had_in_a_register() {
    if !support::installed("gcc") {
        return skipped("registers of which only the low byte is written: there is no gcc");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (input, output) = (compile_text(PARTS, &["-O2", "-w"], folder.path(), "input"), folder.path().join("output"));
    let mut command = relift();
    command.args(["optimize", "--edit-everywhere", "--only", "late-saves", "--verbose"]).arg(&input).arg("-o").arg(&output);
    let said = relift_succeeds(&mut command, folder.path());
    let text = said.stderr_text();
    assert_eq!(text.matches("edit: late-saves").count(), 1, "{text}");
    assert!(!text.contains("left out"), "{text}");
    let ends = [&input, &output].map(|program| run(&mut Command::new(program), folder.path()).end);
    assert_eq!(ends[0], ends[1]);
}
