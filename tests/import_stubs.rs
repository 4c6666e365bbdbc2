//! Stubs of imported functions are told apart by what they do, not by how long section headers say that they are.

mod support;

use support::{compile_text, installed, shuffled_does_the_same, skipped};

/// Stubs of 8 bytes in a section without a size of entries, as old linkers leave it: two to each 16 bytes, of which the second does not return.
const PROGRAM: &str = r#"
int main(int count, char **texts);
__asm__(
    ".section .plt.sec, \"ax\", @progbits\n.balign 16\n"
    "length: jmp *strlen@GOTPCREL(%rip)\nxchg %ax, %ax\n"
    "die: jmp *abort@GOTPCREL(%rip)\nxchg %ax, %ax\n"
    ".text\n.globl main\n.type main, @function\nmain:\n.cfi_startproc\npush %rbx\n.cfi_adjust_cfa_offset 8\nmov (%rsi), %rdi\n"
    "test %edi, %edi\nje 3f\n"
    "1: call length\njmp 4f\n"
    "2: call die\n"
    "3: cmp $7, %eax\nje 2b\nmov $1, %eax\njmp 5f\n"
    "4: cmp $1, %rax\njb 3b\nmov $42, %eax\n"
    "5: pop %rbx\n.cfi_adjust_cfa_offset -8\nret\n.cfi_endproc\n.size main, . - main\n");
"#;

#[test]
fn a_stub_of_eight_bytes_is_not_its_neighbor_that_does_not_return() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let program = compile_text(PROGRAM, &["-fPIE", "-pie"], scratch.path(), "program");
    shuffled_does_the_same(&program, &["1", "2", "3", "4", "5", "6"], scratch.path());
}
