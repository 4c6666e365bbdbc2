//! Places that the kernel tells or asks for: what stands behind a system call or a breakpoint, and restartable sequences.

mod support;

use std::fs;
use std::path::Path;

use support::{compile, compile_text, every_form_does_the_same, installed, relift, relift_succeeds, run, skipped};

const FORMS: [&[&str]; 5] = [
    &["-pie", "-fPIE"],
    &["-no-pie", "-fno-pie"],
    &["-pie", "-fPIE", "-Wl,--emit-relocs"],
    &["-no-pie", "-fno-pie", "-Wl,--emit-relocs"],
    &["-static-pie", "-fPIE"],
];

/// That a program says this in all forms of linking, and after each form of rewriting.
fn says_in_every_form(text: &str, expected: &str) {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for flags in FORMS {
        let program = compile_text(text, &[&["-O1"], flags].concat(), folder, "program");
        let said = run(&mut std::process::Command::new(&program), folder).stdout_text();
        assert_eq!(said, expected, "{flags:?}");
        every_form_does_the_same(&program, &["1", "2", "3", "4"], folder);
    }
}

/// The kernel leaves in `rcx` where it returned to. As in Chromium's sandbox, one function says where that is, by code and by a word of data. The other has a branch to the label,
/// so that something else may be laid between.
const CALLS: &str = r#"
#include <stdio.h>
long by_code(long number), by_word(long number, long is_skipped);
extern const long behind;
__asm__(".text\n.globl by_code\n.type by_code, @function\nby_code:\n.cfi_startproc\n"
    "test %rdi, %rdi\njge 1f\nlea 2f(%rip), %rax\nret\n1: mov %rdi, %rax\nxor %ecx, %ecx\nsyscall\n2: mov %rcx, %rax\nret\n.cfi_endproc\n.size by_code, . - by_code\n"
    ".globl by_word\n.type by_word, @function\nby_word:\n.cfi_startproc\n"
    "xor %ecx, %ecx\ntest %rsi, %rsi\njne 3f\nmov %rdi, %rax\nsyscall\n3: mov %rcx, %rax\nret\n.cfi_endproc\n.size by_word, . - by_word\n"
    ".section .data.rel.ro, \"aw\"\n.balign 8\n.globl behind\nbehind: .quad 3b\n.text\n");
int main(void) {
    int right = 0;
    for (int i = 0; i < 10; i++) right += (by_code(39) == by_code(-1)) + (by_word(39, 0) == behind) + (by_word(39, 1) == 0);
    printf("%d of 30\n", right);
    return 0;
}
"#;

#[test]
fn a_label_behind_a_system_call_is_where_the_kernel_returns_to_in_every_form() {
    says_in_every_form(CALLS, "30 of 30\n");
}

/// The same of breakpoints, by what the handler is told.
const BREAKPOINTS: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>
static volatile long place;
static volatile int right, wrong;
static void trapped(int signal, siginfo_t *info, void *context) {
    if (((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] == place) right++;
    else wrong++;
}
long step(long number);
__asm__(".text\n.globl step\n.type step, @function\nstep:\n.cfi_startproc\n"
    "test %rdi, %rdi\njns 1f\nlea 2f(%rip), %rax\nret\n1: test $1, %dil\njne 2f\nint3\n2: lea 5(%rdi), %rax\nret\n.cfi_endproc\n.size step, . - step\n");
int main(void) {
    sigaction(SIGTRAP, &(struct sigaction){.sa_sigaction = trapped, .sa_flags = SA_SIGINFO}, 0);
    place = step(-1);
    long sum = 0;
    for (int i = 0; i < 10; i++) sum += step(i);
    printf("%ld, known %d, unknown %d\n", sum, right, wrong);
    return 0;
}
"#;

#[test]
fn a_label_behind_a_breakpoint_is_what_its_handler_is_told_in_every_form() {
    says_in_every_form(BREAKPOINTS, "95, known 5, unknown 0\n");
}

/// Sequences that a timer interrupts, with `@SECTION@` for where descriptors are, and `@HANDLER@`.
const SEQUENCES: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/time.h>
#include <unistd.h>
struct area { uint32_t cpu_id_start, cpu_id; uint64_t descriptor; uint32_t flags, rest[11]; };
static __thread struct area own __attribute__((aligned(64)));
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));
static struct area *area;
static void ring(int signal) { (void)signal; }
/* Goes round until a signal comes. */
__attribute__((noinline)) static int spin(volatile long *count) {
    __asm__ volatile goto(
        ".pushsection @SECTION@\n.balign 32\n3: .long 0, 0\n.quad 1f, 2f - 1f, 4f\n.popsection\n"
        "lea 3b(%%rip), %%rax\nmov %%rax, 8(%0)\n"
        "1: incq (%1)\ncmpq $0, (%1)\nje 5f\njmp 1b\n5: movq $77, (%1)\n2:\n"
        "@HANDLER@"
        :: "r"(area), "r"(count) : "rax", "memory", "cc" : aborted);
    return 0;
aborted:
    return 1;
}
__attribute__((noinline)) static int add(long *value, unsigned cpu) {
    __asm__ volatile goto(
        ".pushsection @SECTION@\n.balign 32\n3: .long 0, 0\n.quad 1f, 2f - 1f, 4f\n.popsection\n"
        "lea 3b(%%rip), %%rax\nmov %%rax, 8(%0)\n"
        "1: cmpl %2, 4(%0)\njnz 4f\nincq (%1)\n2:\n"
        "@HANDLER@"
        :: "r"(area), "r"(value), "r"(cpu) : "rax", "memory", "cc" : aborted);
    return 0;
aborted:
    return 1;
}
static __attribute__((noinline)) int other(int x) { return x % 3 ? x * 5 + 1 : x / 3; }
int main(void) {
    if (&__rseq_size && __rseq_size) area = (struct area *)((char *)__builtin_thread_pointer() + __rseq_offset);
    else if (syscall(334, area = &own, 32, 0, 0x53053053)) return puts("no sequences here"), 0;
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = ring}, 0);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 10000}, {0, 10000}}, 0);
    int taken_back = 0;
    for (int i = 0; i < 3; i++) {
        volatile long count = 1;
        taken_back += spin(&count);
    }
    long value = 0;
    int rest = 1;
    for (int i = 0; i < 1000; i++) {
        rest = other(rest) & 0xffff;
        for (int tries = 0; add(&value, area->cpu_id); tries++) if (tries == 1000000) return 1;
    }
    printf("%d taken back, sum %ld, rest %d\n", taken_back, value, rest);
    return 0;
}
"#;

/// Librseq's, behind an instruction that faults; tcmalloc's, in one that does nothing; and in the function itself, where the signature stands alone, or is a field of an instruction.
const HANDLERS: [&str; 4] = [
    r#".pushsection .text.fail, \"ax\"\n.byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n4: jmp %l[aborted]\n.popsection\n"#,
    r#".pushsection .text.fail, \"ax\"\n.byte 0x0f, 0x1f, 0x05\n.long 0x53053053\n4: jmp %l[aborted]\n.popsection\n"#,
    r#"jmp 6f\n.long 0x53053053\n4: jmp %l[aborted]\n6:\n"#,
    r#"jmp 6f\n.byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n4: jmp %l[aborted]\n6:\n"#,
];

fn sequences_in(section: &str, handler: &str) -> String {
    SEQUENCES.replace("@SECTION@", &section.replace('"', "\\\"")).replace("@HANDLER@", handler)
}

/// Builds a program, and holds that all forms of it do the same.
fn holds_for_sequences(text: &str, flags: &[&str], folder: &Path) -> std::path::PathBuf {
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    fs::write(&source, text).expect("the source can be written");
    compile("gcc", &[&["-O2"], flags].concat(), &[&source], &program).unwrap_or_else(|error| panic!("{error}"));
    every_form_does_the_same(&program, &["1", "2", "3"], folder);
    program
}

#[test]
fn restartable_sequences_are_taken_back_in_every_form_wherever_their_descriptors_are() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for flags in FORMS {
        for handler in HANDLERS {
            holds_for_sequences(&sequences_in(".data", handler), flags, folder);
        }
    }
}

#[test]
fn a_section_of_descriptors_keeps_nothing_but_what_they_name() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for flags in FORMS {
        let program = holds_for_sequences(&sequences_in("__rseq_cs, \"aw\"", HANDLERS[3]), flags, folder);
        let told = relift_succeeds(relift().arg("inspect").arg(&program), folder).stdout_text();
        assert!(told.contains("pinned: place-named") && !told.contains("unknown-metadata"), "{flags:?}: {told}");
    }
    // What is no descriptor is not understood.
    let text = sequences_in("__rseq_cs, \"aw\"", HANDLERS[3]).replace(".long 0, 0\\n", ".long 1, 0\\n");
    let program = compile_text(&text, &["-O2"], folder, "program");
    let told = relift_succeeds(relift().arg("inspect").arg(&program), folder).stdout_text();
    assert!(told.contains("unknown-metadata"), "{told}");
}

#[test]
fn restartable_sequences_are_taken_back_in_every_form_where_code_makes_their_descriptors() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let in_data = r#"".pushsection @SECTION@\n.balign 32\n3: .long 0, 0\n.quad 1f, 2f - 1f, 4f\n.popsection\n"
        "lea 3b(%%rip), %%rax\nmov %%rax, 8(%0)\n""#;
    let by_code = r#""lea 1f(%%rip), %%rax\nmov %%rax, 8+made(%%rip)\nmovq $2f - 1f, 16+made(%%rip)\nlea 4f(%%rip), %%rax\nmov %%rax, 24+made(%%rip)\n"
        "lea made(%%rip), %%rax\nmov %%rax, 8(%0)\n""#;
    let object = "static uint64_t made[4] __attribute__((aligned(32), used));\nstatic struct area *area;";
    assert!(SEQUENCES.contains(in_data));
    for handler in HANDLERS {
        let text = SEQUENCES.replace(in_data, by_code).replace("static struct area *area;", object);
        for flags in FORMS {
            holds_for_sequences(&text.replace("@HANDLER@", handler), flags, folder);
        }
    }
}
