//! What a computed `goto` may lead to: labels of its table, or whatever a word holds that the program made.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection};
use support::{Run, compile, compile_text, installed, relift, relift_succeeds, repository, run, skipped};

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

/// An interpreter whose table has fewer entries than its index may say: nobody can prove where the table ends, so its words stay.
const INTERPRETER: &str = r#"
#include <stdio.h>
static const unsigned char code[] = { 0, 1, 2, 3, 4, 1, 3, 2, 0, 4, 1, 2, 5 };
__attribute__((noinline)) int run(const unsigned char *pc, int x) {
    static const void *const labels[] = { &&add, &&twice, &&xor, &&less, &&turn, &&stop };
#define NEXT goto *labels[*pc++ & 15]
    NEXT;
add: x += 3; NEXT;
twice: x *= 2; NEXT;
xor: x ^= 0x55; NEXT;
less: x -= x / 7; NEXT;
turn: x = (x << 3 | x >> 13) & 0xffff; NEXT;
stop: return x;
}
int main(void) {
    int x = 1;
    for (int i = 0; i < 20000; i++) x = run(code, x) & 0xffff;
    printf("%d\n", x);
    return 0;
}
"#;

/// Profiles and optimizes a program that is linked at a fixed address.
fn trained(source: &str, folder: &Path) -> (PathBuf, PathBuf) {
    let program = compile_text(source, &["-O2", "-fno-pie", "-no-pie"], folder, "program");
    support::split::strip(&program, folder);
    let output = folder.join("optimized");
    relift_succeeds(relift().arg("train").arg(&program).arg("-o").arg(&output).args(["--", "{}"]), folder);
    (program, output)
}

/// Trains a program, and lays it out at random: both outputs do what it does, which is the result.
fn does_the_same(source: &str, folder: &Path) -> Run {
    let (program, output) = trained(source, folder);
    let shuffled = folder.join("shuffled");
    relift_succeeds(relift().args(["optimize", "--shuffle", "3"]).arg(&program).arg("-o").arg(&shuffled), folder);
    let expected = run(&mut Command::new(&program), folder);
    assert_eq!(run(&mut Command::new(&output), folder), expected);
    assert_eq!(run(&mut Command::new(&shuffled), folder), expected);
    expected
}

#[test]
fn a_table_that_the_program_writes_has_no_copy() {
    if !installed("gcc") || !installed("strip") {
        return skipped("there is no gcc, or no strip");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let turns = "if (x & 64) { const void *one = labels[1]; labels[1] = labels[2]; labels[2] = one; }\n    NEXT;\nadd:";
    let source = INTERPRETER.replace("const void *const labels", "const void *volatile labels").replacen("NEXT;\nadd:", turns, 1);
    does_the_same(&source.replace("goto *", "goto *(void *)"), scratch.path());
}

/// Where the interpreter's tables are in a program: as many words of read-only data in a row lead into code.
fn tables_of(file: &object::File<'_>, num_words: usize) -> u64 {
    let section = |name: &str| file.section_by_name(name).unwrap_or_else(|| panic!("the program has {name}"));
    let (text, constants) = (section(".text"), section(".rodata"));
    let data = constants.data().expect("a section has its bytes");
    let words: Vec<u64> = data.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
    let is_code = |word: &u64| (text.address()..text.address() + text.size()).contains(word);
    let first = words.windows(num_words).position(|words| words.iter().all(is_code)).expect("the table is there");
    constants.address() + 8 * first as u64
}

/// Trains a program whose tables have so many words; of these, by their numbers, those that lead to where a jump is.
fn jumps_at_targets(source: &str, num_words: usize, folder: &Path) -> Vec<usize> {
    let (program, output) = trained(source, folder);
    assert_eq!(run(&mut Command::new(&output), folder), run(&mut Command::new(&program), folder));
    let files = [program, output].map(|path| std::fs::read(path).expect("the file can be read"));
    let [before, after] = files.each_ref().map(|bytes| object::File::parse(&**bytes).expect("it is an ELF file"));
    let bytes_at = |address: u64, size: u64| {
        let holds = |section: &object::Section<'_, '_>| section.data_range(address, size).ok().flatten().map(<[u8]>::to_vec);
        after.sections().find_map(|section| holds(&section)).unwrap_or_else(|| panic!("the output has {address:#x}"))
    };
    let tables = bytes_at(tables_of(&before, num_words), num_words as u64 * 8);
    let targets = tables.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    const JUMPS: [u8; 2] = [0xe9, 0xeb];
    let is_jump = |&(_, target): &(usize, u64)| JUMPS.contains(&bytes_at(target, 1)[0]);
    targets.enumerate().filter(is_jump).map(|(number, _)| number).collect()
}

#[test]
fn at_a_fixed_address_tables_whose_ends_nobody_proves_lead_to_the_new_code_and_not_by_old_addresses() {
    if !installed("gcc") || !installed("strip") {
        return skipped("there is no gcc, or no strip");
    }
    const NO_JUMPS: [usize; 0] = [];
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    assert_eq!(jumps_at_targets(INTERPRETER, 6, scratch.path()), NO_JUMPS);
    // The first of two may go on into the second, as far as anybody can tell.
    let others =
        "static const void *const others[] = { &&less, &&turn, &&twice, &&xor, &&add, &&less, &&add, &&stop };\n#define NEXT";
    let source = INTERPRETER.replacen("#define NEXT", others, 1).replacen("&&stop };", "&&stop, &&add, &&less };", 1);
    let source = source.replace("x ^= 0x55; NEXT;", "x ^= 0x55; goto *others[(*pc++ ^ 2) & 15];");
    assert!(source.matches("others[").count() == 2);
    assert_eq!(jumps_at_targets(&source, 16, scratch.path()), NO_JUMPS);
}

#[test]
fn what_compares_an_entry_with_a_label_finds_them_equal() {
    if !installed("gcc") || !installed("strip") {
        return skipped("there is no gcc, or no strip");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let next = "do { const void *label = labels[*pc++ & 15]; x += label == &&xor; goto *label; } while (0)";
    let source = INTERPRETER.replace("goto *labels[*pc++ & 15]", next).replace("&&stop };", "&&stop, &&add, &&less };");
    // With eight labels the second one has a proven end.
    for source in [source.clone(), source.replace("& 15", "& 7")] {
        does_the_same(&source, scratch.path());
    }
}

/// A table of labels, and right behind it a pointer to the function that is read by a biased address: nothing names it. Whoever reads it compares it with an address in code.
const POINTER_BEHIND: &str = r#"
#include <stdio.h>
__asm__(".text\n.p2align 4\n.globl choose\n.type choose, @function\nchoose:\n.cfi_startproc\n mov %edi, %eax\n and $15, %eax\n"
        " jmp *table(,%rax,8)\n.La: mov $11, %eax\n ret\n.Lb: lea 7(%rsi), %eax\n ret\n.Lc: imul $3, %esi, %eax\n ret\n"
        ".cfi_endproc\n.size choose, . - choose\n"
        ".p2align 4\n.globl pointer\n.type pointer, @function\npointer:\n.cfi_startproc\n mov table + 24 - 128(,%rdi,8), %rax\n ret\n.cfi_endproc\n.size pointer, . - pointer\n"
        ".section .rodata\n.p2align 3\ntable:\n .quad .La, .Lb, .Lc, choose\n.text\n");
int choose(int, int);
void *pointer(long);
int main(void) {
    int x = 0;
    for (int i = 0; i < 30000; i++) x = (x + choose(i % 3, x)) & 0xfff;
    printf("%d %d\n", x, pointer(16) == (void *)choose);
    return 0;
}
"#;

#[test]
fn what_is_behind_a_table_whose_end_nobody_proves_stays_what_it_was() {
    if !installed("gcc") || !installed("strip") {
        return skipped("there is no gcc, or no strip");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let done = does_the_same(POINTER_BEHIND, scratch.path());
    assert!(done.stdout_text().ends_with(" 1\n"), "{}", done.stdout_text());
}

/// Two functions, and the table of one right behind that of the other, which masks its index: nobody can tell where that one ends.
const TABLES_IN_A_ROW: &str = r#"
#include <stdio.h>
__asm__(".text\n.p2align 4\n.globl choose\n.type choose, @function\nchoose:\n.cfi_startproc\n mov %edi, %eax\n and $15, %eax\n"
        " jmp *table(,%rax,8)\n.La: mov $11, %eax\n ret\n.Lb: lea 7(%rsi), %eax\n ret\n.Lc: imul $3, %esi, %eax\n ret\n"
        ".cfi_endproc\n.size choose, . - choose\n"
        ".p2align 4\n.globl pick\n.type pick, @function\npick:\n.cfi_startproc\n cmp $4, %edi\n ja .Ld\n mov %edi, %eax\n"
        " jmp *second(,%rax,8)\n.Ld: imul $1009, %esi, %eax\n ret\n.Le: imul $1013, %esi, %eax\n ret\n.Lf: imul $1019, %esi, %eax\n ret\n"
        ".Lg: imul $1021, %esi, %eax\n ret\n.Lh: imul $1031, %esi, %eax\n ret\n.cfi_endproc\n.size pick, . - pick\n"
        ".section .rodata\n.p2align 3\ntable:\n .quad .La, .Lb, .Lc\nsecond:\n .quad .Ld, .Le, .Lf, .Lg, .Lh\n.text\n");
int choose(int, int);
int pick(int, int);
int main(void) {
    int x = 0;
    for (int i = 0; i < 30000; i++) x = pick(i % 5, choose(i % 3, x)) & 0xfff;
    printf("%d\n", x);
    return 0;
}
"#;

#[test]
fn a_table_whose_end_is_unknown_leaves_those_of_other_functions_alone() {
    if !installed("gcc") || !installed("strip") {
        return skipped("there is no gcc, or no strip");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    assert_eq!(jumps_at_targets(TABLES_IN_A_ROW, 8, scratch.path()), [0, 1, 2]);
}

#[test]
fn numbers_that_look_like_places_in_a_table_leave_it_alone() {
    if !installed("gcc") || !installed("strip") {
        return skipped("there is no gcc, or no strip");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let numbers = r#"__asm__(".data\n.p2align 3\n.globl number\nnumber: .quad second + 8\n.text\n");
extern const volatile unsigned long number;
int main(void) {
    __asm__ volatile("testl $second + 16, %0" : : "r"((int)number) : "cc");"#;
    let source = TABLES_IN_A_ROW.replacen("int main(void) {", numbers, 1);
    assert_eq!(jumps_at_targets(&source, 8, scratch.path()), [0, 1, 2]);
}

#[test]
fn a_pointer_into_a_table_that_a_jump_may_follow_keeps_its_words() {
    if !installed("gcc") || !installed("strip") {
        return skipped("there is no gcc, or no strip");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let from = "static const void *const *const volatile from = &labels[1];\n#define NEXT";
    let source = INTERPRETER.replacen("#define NEXT", from, 1);
    let source = source.replace("x ^= 0x55; NEXT;", "x ^= 0x55; goto *from[(*pc++ & 15) - 1];");
    assert_eq!(jumps_at_targets(&source, 6, scratch.path()), [0, 1, 2, 3, 4, 5]);
}
