//! Functions that tell others a label behind a call, for what the callee returns to: gccgo's thunks of deferred functions, which may recover if their return address is close before it.

mod support;

use std::fs;

use support::{compile_text, every_form_does_the_same, installed, relift, relift_succeeds, skipped};

/// Four thunks that differ in nothing but their labels, as by gccgo, and four with something between the call and the label, as without optimization.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdio.h>
static uintptr_t told;
static int num_recovered;
__attribute__((noinline, used)) static int tell(uintptr_t label) { told = label; return 0; }
__attribute__((noinline, used)) static void deferred(const char *text, int code, int line, int more) {
    uintptr_t returns_to = (uintptr_t)__builtin_return_address(0);
    int may_recover = returns_to <= told && told <= returns_to + 16;
    num_recovered += may_recover;
    printf("%s %d %d %d: %d\n", text, code, line, more, may_recover);
}
#define THUNK(name, between) \
    __asm__(".text\n.type " name ", @function\n" name ":\n.cfi_startproc\npush %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset rbx, -16\n" \
            "lea 1f(%rip), %rdi\ncall tell\ntest %eax, %eax\njne 1f\n" \
            "lea text(%rip), %rdi\nmov $0x1092, %esi\nmov $7, %edx\nmov $3, %ecx\ncall deferred\n" between \
            "1: xor %eax, %eax\npop %rbx\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size " name ", . - " name "\n"); \
    extern int __attribute__((visibility("hidden")))
__asm__(".section .rodata\ntext: .string \"deferred\"\n");
THUNK("one", "") one(void);
THUNK("two", "") two(void);
THUNK("three", "") three(void);
THUNK("four", "") four(void);
THUNK("five", "jmp 1f\nnop\n") five(void);
THUNK("six", "jmp 1f\nnop\n") six(void);
THUNK("seven", "jmp 1f\nnop\n") seven(void);
THUNK("eight", "jmp 1f\nnop\n") eight(void);
int main(void) {
    one(), two(), three(), four(), five(), six(), seven(), eight();
    return num_recovered;
}
"#;

#[test]
fn a_call_stays_before_the_label_that_is_told_for_it_in_every_form() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    for (index, flags) in
        [&["-O2", "-fPIE", "-pie"][..], &["-O2", "-static-pie"], &["-O2", "-no-pie", "-Wl,-q"]].iter().enumerate()
    {
        let folder = scratch.path().join(index.to_string());
        fs::create_dir(&folder).expect("the scratch folder can be written");
        let program = compile_text(PROGRAM, flags, &folder, "program");
        every_form_does_the_same(&program, &["1", "2", "3"], &folder);
        let said = relift_succeeds(relift().args(["inspect", "-v"]).arg(&program), &folder);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains("8 functions pinned: return-address-named"), "{said}");
    }
}
