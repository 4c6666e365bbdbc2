//! Constants beside a jump table that code reads by the table's address, as hand-written code does (dav1d's film grain): what names the table can't name a copy of it.

mod support;

use support::{
    compile_text, every_form_does_the_same, installed, relift, relift_succeeds, rewritten_does_the_same, shuffled_does_the_same,
    skipped,
};

/// `PLACE`: where the constants are, counted from the table. `CHECK`: a comparison that says how many entries there are. `EARLY`: the constants are read before the jump too. `SIZE`: the table has a
/// symbol, so that not only the jump may know it. `KEEP`: the address is kept in the frame meanwhile.
const PROGRAM: &str = r#"
#include <stdio.h>
#define STRING(x) #x
#define TEXT(x) STRING(x)
#ifdef CHECK
#define COMPARE "cmp $3, %edi\nja 5f\n"
#else
#define COMPARE ""
#endif
#ifdef EARLY
#define READ "mov " TEXT(PLACE) "(%r8), %eax\nmov " TEXT(PLACE) "+4(%r8), %edx\n"
#else
#define READ "mov $1, %eax\nmov $2, %edx\n"
#endif
#ifdef SIZE
#define SIZED ".type cases, @object\n.size cases, 16\n"
#else
#define SIZED ""
#endif
#ifdef KEEP
#define AWAY "mov %r8, -16(%rsp)\nxor %r8d, %r8d\nmov -16(%rsp), %r10\nmov %r10, %r8\n"
#else
#define AWAY ""
#endif
__asm__(".section .rodata\n.balign 64\n.long 11, 22, 33, 44\n" SIZED "cases: .long 1f-cases, 2f-cases, 3f-cases, 4f-cases\n.long 11, 22, 33, 44\n"
    ".text\n.globl choose\n.type choose, @function\n.balign 16\nchoose:\n.cfi_startproc\n"
    "lea cases(%rip), %r8\n" AWAY READ COMPARE "movslq %edi, %r9\nmovslq (%r8,%r9,4), %r9\n"
    "0: add %edx, %eax\ndec %esi\njg 0b\nadd %r8, %r9\njmp *%r9\n"
    "1: add " TEXT(PLACE) "+8(%r8), %eax\nret\n2: add " TEXT(PLACE) "+12(%r8), %eax\nret\n3: add $7, %eax\nret\n"
    "4: mov $5, %eax\nret\n5: mov $6, %eax\nret\n.cfi_endproc\n.size choose, . - choose\n");
int choose(int number, int rounds);
int main(int argc, char **argv) {
    for (int number = 0; number < 4; number++)
        for (int rounds = 1; rounds < 4; rounds++) printf("%d ", choose(number, rounds));
    puts("");
    return 0;
}
"#;

const VARIANTS: [&[&str]; 8] = [
    &["-DPLACE=-16", "-DEARLY"],
    &["-DPLACE=-16"],
    &["-DPLACE=16", "-DEARLY"],
    &["-DPLACE=16"],
    &["-DPLACE=-16", "-DEARLY", "-DCHECK"],
    &["-DPLACE=-16", "-DEARLY", "-DCHECK", "-DSIZE"],
    &["-DPLACE=-16", "-DKEEP"],
    &["-DPLACE=16", "-DKEEP", "-DCHECK", "-DSIZE"],
];

#[test]
fn constants_beside_a_table_are_found_by_its_address_in_every_form() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for variant in VARIANTS {
        let program = compile_text(PROGRAM, &[&["-O2"], variant].concat(), folder, "program");
        every_form_does_the_same(&program, &["1", "2", "3"], folder);
    }
}

#[test]
fn a_function_whose_table_only_a_copy_could_replace_is_pinned_for_that_reason() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let told = |variant: &[&str]| {
        let program = compile_text(PROGRAM, &[&["-O2"], variant].concat(), folder, "program");
        relift_succeeds(relift().arg("inspect").arg(&program), folder).stdout_text()
    };
    assert!(told(VARIANTS[0]).contains("pinned: table-address-used"));
    // Where the table may be changed in place, nothing has to stay.
    assert!(!told(VARIANTS[4]).contains("pinned: table-address-used"));
}

/// An interpreter whose table is named before the loop, with two switches whose index nobody checks. Where control comes back to the loop the first switch's table is still in a register by
/// which cases of the second read, but then it holds something else. `THREADED`: the loop's table has whole addresses.
const INTERPRETER: &str = r#"
#include <stdio.h>
#ifdef THREADED
#define OPERATIONS ".section .data.rel.ro, \"aw\"\n.balign 8\noperations: .quad 1f, 2f, 3f\n"
#define GO_ON "jmp *(%r11,%rcx,8)\n"
#else
#define OPERATIONS ".section .rodata\n.balign 64\noperations: .long 1f-operations, 2f-operations, 3f-operations\n"
#define GO_ON "movslq (%r11,%rcx,4), %rcx\nadd %r11, %rcx\njmp *%rcx\n"
#endif
__asm__(OPERATIONS ".section .rodata\n.balign 4\nfirst: .long 4f-first, 5f-first\n.long 0\nsecond: .long 6f-second, 7f-second\n.long 0\n"
    ".text\n.globl run\n.type run, @function\n.balign 16\nrun:\n.cfi_startproc\n"
    "lea operations(%rip), %r11\nxor %eax, %eax\n"
    "0: dec %esi\njs 8f\nmov (%rdi), %ecx\nadd $4, %rdi\n" GO_ON
    "1: inc %eax\njmp 0b\n"
    "2: mov (%rdi), %ecx\nadd $4, %rdi\nlea first(%rip), %r8\nmovslq (%r8,%rcx,4), %rcx\nadd %r8, %rcx\njmp *%rcx\n"
    "3: mov %rdx, %r8\nmov (%rdi), %ecx\nadd $4, %rdi\nlea second(%rip), %r9\nmovslq (%r9,%rcx,4), %rcx\nadd %r9, %rcx\njmp *%rcx\n"
    "4: add $10, %eax\njmp 0b\n5: add $20, %eax\njmp 0b\n6: add 4(%r8), %eax\njmp 0b\n7: add 8(%r8), %eax\njmp 0b\n"
    "8: ret\n.cfi_endproc\n.size run, . - run\n");
int run(const int *code, int steps, const int *data);
int main(void) {
    int code[] = {0, 1, 0, 0, 1, 1, 2, 0, 0, 2, 1, 1, 1}, data[] = {1, 200, 3000};
    for (int steps = 0; steps < 9; steps++) printf("%d ", run(code, steps, data));
    puts("");
    return 0;
}
"#;

#[test]
fn a_jump_by_a_table_that_was_named_long_before_leads_to_no_other_table_s_cases() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for variant in [&["-O2"][..], &["-O2", "-DTHREADED"]] {
        let program = compile_text(INTERPRETER, variant, folder, "program");
        let told = relift_succeeds(relift().arg("inspect").arg(&program), folder).stdout_text();
        assert!(!told.contains("pinned: table-address-used"));
        shuffled_does_the_same(&program, &["1", "2", "3"], folder);
    }
}

/// A switch one way to which knows its index: there, the entry is loaded by an address of its own.
const KNOWN_INDEX: &str = r#"
#include <stdio.h>
__asm__(".section .rodata\n.balign 4\ncases: .long 1f-cases, 2f-cases, 3f-cases\n"
    ".text\n.globl choose\n.type choose, @function\n.balign 16\nchoose:\n.cfi_startproc\n"
    "lea cases(%rip), %rdx\ntest %esi, %esi\njne 0f\nmov %edi, %edi\nmovslq (%rdx,%rdi,4), %rax\nadd %rdx, %rax\njmp *%rax\n"
    "0: movslq cases(%rip), %rax\nadd %rdx, %rax\njmp *%rax\n"
    "1: mov $1, %eax\ntest %esi, %esi\njs 4f\nret\n4: blsr %rax, %rdx\nandn %rax, %rdx, %rax\nret\n2: mov $10, %eax\nret\n3: mov $100, %eax\nret\n.cfi_endproc\n.size choose, . - choose\n");
int choose(int number, int is_first);
int main(void) {
    for (int number = 0; number < 3; number++) printf("%d %d ", choose(number, 0), choose(number, 1));
    puts("");
    return 0;
}
"#;

#[test]
fn an_entry_that_is_loaded_by_an_address_of_its_own_is_one_of_the_copy() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let program = compile_text(KNOWN_INDEX, &["-O2"], folder, "program");
    rewritten_does_the_same(&program, &["optimize"], folder);
    shuffled_does_the_same(&program, &["1", "2", "3"], folder);
}

/// An entry that a compiler knows the number of is read at its own address (LLVM's libraries, by gcc 14). Another jump goes through the same table, by a number that nothing bounds.
#[test]
fn an_entry_that_is_read_by_its_own_address_is_that_of_the_same_table() {
    const PROGRAM: &str = r#"
#include <stdio.h>
long choose(long number, int is_known);
__asm__(".text\n.globl choose\n.type choose, @function\nchoose: .cfi_startproc\n"
    "lea cases(%rip), %rax\nmovslq cases+8(%rip), %rdx\nadd %rax, %rdx\ntest %esi, %esi\njne 8f\n"
    "cmp $5, %edi\nja 9f\nmov %edi, %ecx\nmovslq (%rax,%rcx,4), %rcx\nadd %rax, %rcx\njmp *%rcx\n"
    "8: jmp *%rdx\n1: mov $1, %eax\nret\n2: mov $2, %eax\nret\n3: mov $3, %eax\nret\n4: mov $4, %eax\nret\n9: xor %eax, %eax\nret\n"
    ".cfi_endproc\n.size choose, . - choose\n"
    ".section .rodata\n.balign 4\ncases: .long 1b - cases, 2b - cases, 3b - cases, 4b - cases, 2b - cases, 1b - cases\n.text\n");
int main(void) {
    for (long i = 0; i < 7; i++) printf("%ld %ld\n", choose(i, 0), choose(i, 1));
    return 0;
}
"#;
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    for kind in [["-fPIE", "-pie"], ["-fno-pie", "-no-pie"]] {
        let program = compile_text(PROGRAM, &[&["-O2"], &kind[..]].concat(), scratch.path(), "program");
        every_form_does_the_same(&program, &["1", "2", "3"], scratch.path());
    }
}
