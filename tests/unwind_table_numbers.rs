//! Numbers in code that look like the address of an unwind table, in part.

mod support;

use support::{compile_text, every_form_does_the_same, installed, skipped};

/// The lower half of a mask is where the unwind entries of the file begin.
const PROGRAM: &str = r#"
#include <stdio.h>
__asm__(".section .eh_frame,\"a\",@progbits\nframes:\n.previous\n"
    ".globl masked\n.type masked, @function\nmasked: .cfi_startproc\nmovabs $frames + 0xe00000000, %rdx\nmov %edi, %ecx\nmov $1, %eax\nshl %cl, %rax\n"
    "and %rdx, %rax\nret\n.cfi_endproc\n.size masked, . - masked\n");
long masked(int bit);
int main(void) {
    for (int bit = 32; bit < 40; bit++) printf("%lx\n", masked(bit));
    return 0;
}
"#;

#[test]
fn a_wide_number_is_no_address_for_its_lower_half() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    for flags in [&["-O1", "-no-pie", "-fno-pie"][..], &["-O1", "-no-pie", "-fno-pie", "-Wl,--emit-relocs"]] {
        let program = compile_text(PROGRAM, flags, scratch.path(), "program");
        every_form_does_the_same(&program, &["1", "2"], scratch.path());
    }
}
