//! Cases of a switch that lead where its function ends and another one begins.

mod support;

use std::process::Command;

use support::{End, SUCCESS, compile_text, every_form_does_the_same, installed, run, skipped};

/// Two of four cases of `choose` are the function behind it, which others call too. Compilers let cases that do not occur lead there; these do occur.
const PROGRAM: &str = r#"
int choose(unsigned which), behind(unsigned which);
__asm__(LABELS "\n.text\n"
    ".balign 16\n.globl choose, behind\n.type choose, @function\n.type behind, @function\nchoose:\n.cfi_startproc\nmovzwl %di, %eax\n" LESS "\n"
    JUMP "\n"
    "1: mov $100, %eax\nret\n2: mov $200, %eax\nret\n3: xor %eax, %eax\nret\n.cfi_endproc\n.size choose, . - choose\n"
    "behind:\n.cfi_startproc\nlea 300(%rdi), %eax\nret\n.cfi_endproc\n.size behind, . - behind\n");
int main(void) {
    unsigned sum = 0;
    for (unsigned which = 9; which < 16; which++) sum += choose(which);
    return sum == 100 + 311 + 200 + 313 && behind(1) == 301 ? 42 : 1;
}
"#;

/// The case, counted after a constant was taken from it.
const LESS: [&str; 2] =
    [r#"-DLESS="sub $10, %eax\ncmp $3, %eax\nja 3f""#, r#"-DLESS="cmp $100, %eax\nja 3f\nadd $-10, %eax\ncmp $3, %eax\nja 3f""#];

/// Distances between places, and addresses.
const TABLES: [[&str; 2]; 2] = [
    [
        r#"-DLABELS=".section .rodata\n.balign 4\nlabels: .long 1f - labels, behind - labels, 2f - labels, behind - labels""#,
        r#"-DJUMP="lea labels(%rip), %rdx\nmovslq (%rdx,%rax,4), %rcx\nadd %rdx, %rcx\njmp *%rcx""#,
    ],
    [
        r#"-DLABELS=".data\n.balign 8\nlabels: .quad 1f, behind, 2f, behind""#,
        r#"-DJUMP="lea labels(%rip), %rdx\njmp *(%rdx,%rax,8)""#,
    ],
];

#[test]
fn cases_that_are_counted_lead_into_the_function_behind() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    for less in LESS {
        for [labels, jump] in TABLES {
            let program = compile_text(PROGRAM, &["-O2", "-fPIE", "-pie", less, labels, jump], scratch.path(), "program");
            assert_eq!(run(&mut Command::new(&program), scratch.path()).end, End::Exit(SUCCESS));
            every_form_does_the_same(&program, &["1", "2", "3"], scratch.path());
        }
    }
}
