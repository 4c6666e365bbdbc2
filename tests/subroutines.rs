//! Instructions that many places have alike, put where these call them: what the program does, what unwinders and handlers find there, and what becomes of it when it is relinked again.

mod support;

use std::path::{Path, PathBuf};

use support::{LONG_WAY, STEPPING, built, installed, relift, relift_succeeds, said, shrink, skipped};

/// Functions that fill in the same things in the middle of what is their own: by constants, through a pointer, in the frame, and in registers that are kept.
const FILLING: &str = r#"
static volatile long kind, level, where;
struct Item { volatile long kind, level, size, next; };
__attribute__((noipa, noinline)) static long sum(const volatile long *words, long count) { long all = noted; while (count-- > 0) all = all * 31 + words[count]; return all; }
#define FILL(item) kind = 170001; level = 230017; where = 290023; (item)->kind = 31007; (item)->level = 37013; (item)->size = 41011;
#define F(n) __attribute__((noipa, noinline)) static long f##n(long a, struct Item *item) { \
    volatile long words[6]; \
    unsigned long way = a; LONG_WAY(way) LONG_WAY(way) LONG_WAY(way) LONG_WAY(way) \
    long x = a * n + (way & 8); \
    if (x & 1) { FILL(item) x = x * 3 + n; } \
    words[1] = 530011; words[2] = 590021; words[3] = 610031; words[4] = x; \
    x ^= sum(words + 1, 4) << (n & 3); \
    if (x & 2) { FILL(item) x += item->size * n; } \
    words[1] = 530011; words[2] = 590021; words[3] = 610031; words[5] = x * n; \
    return x + sum(words + 1, 5) - item->level; }
F(3) F(5) F(7) F(11) F(13) F(17)
__attribute__((noinline)) static long traced(long i) { struct Item item = {i, i + 1, i + 2, i + 3}; \
    return f3(i, &item) + f5(i + 1, &item) + f7(i + 2, &item) + f11(i + 3, &item) + f13(i + 4, &item) + f17(i + 5, &item); }
"#;

const WALKED: &str = r#"
int main(int count, char **arguments) {
    LOOK_FOR_MAIN(count)
    raise(SIGTRAP);
    STEP_THROUGH(long sum = traced(1))
    STEP_THROUGH(sum += traced(4))
    printf("%ld %ld %ld %ld, lost %ld\n", sum, (long)kind, (long)level, (long)where, (long)num_lost);
    return num_steps > 300 ? 42 : 1;
}
"#;

fn stepping() -> String {
    format!("{STEPPING}{LONG_WAY}{FILLING}{WALKED}")
}

/// Loads in the middle of functions fault, inside and outside of what catches that.
const EXCEPTIONS: &str = r#"
#include <csignal>
#include <cstdio>
#include <stdexcept>
static volatile long noted, kind, level;
struct Item { volatile long kind, level, size, next; };
static Item here{1, 2, 3, 4};
static Item *volatile nowhere = nullptr, *volatile somewhere = &here;
struct Guard { long x; __attribute__((noinline)) ~Guard() { noted = noted * 31 + x; std::printf("~%ld ", x); } };
static void fault(int) { sigset_t set; sigemptyset(&set); sigaddset(&set, SIGSEGV); sigprocmask(SIG_UNBLOCK, &set, nullptr); throw std::runtime_error("nowhere"); }
__attribute__((noinline)) static long plain(long x) { return x * 77 >> 3; }
#define FILL(item) kind = 170001; (item)->kind = 31007; (item)->level = 37013; (item)->size = 41011; level = 230017;
#define F(n) __attribute__((noinline)) static long f##n(long a, Item *item) { \
    Guard guard{n}; unsigned long way = a; LONG_WAY(way) LONG_WAY(way) LONG_WAY(way) LONG_WAY(way) \
    long x = a * n + 1 + (way & 8) + plain(a); \
    try { if (x & 1) { FILL(item) x += n; } } catch (const std::runtime_error &error) { std::printf("caught %s ", error.what()); x ^= 5; } \
    if (x & 2) { FILL(item) x = x * n - item->size; } \
    try { Guard other{x & 7}; FILL(item) x ^= plain(x) << 1; } catch (const std::runtime_error &error) { std::printf("%s ", error.what()); x++; } \
    return x + n; }
F(2) F(7) F(11) F(13) F(17) F(19)
static long call(int which, long a, Item *at) { return which == 0 ? f2(a, at) : which == 1 ? f7(a, at) : which == 2 ? f11(a, at) : which == 3 ? f13(a, at) : which == 4 ? f17(a, at) : f19(a, at); }
int main() {
    std::signal(SIGSEGV, fault);
    long sum = 0;
    for (int i = 0; i < 96; i++) {
        try { sum += call(i % 6, i, i % 7 == 3 ? nowhere : somewhere); }
        catch (const std::exception &error) { std::printf("out: %s\n", error.what()); sum ^= i; }
    }
    std::printf("%ld %ld %ld %ld\n", sum, (long)noted, (long)kind, (long)level);
    return 42;
}
"#;

/// The program with so many calls of instructions elsewhere at least; tails would leave less to that.
fn shrunk(input: &Path, at_least: i64, folder: &Path) -> PathBuf {
    let (output, report) = shrink(input, &["--skip", "tails", "--slower", "100"], "output", folder);
    let warned = report["warnings"].to_string();
    assert!(!warned.contains("checker"), "{warned}");
    let technique = report["techniques"].as_array().into_iter().flatten().find(|saving| saving["technique"] == "subroutines");
    let count = technique.and_then(|saving| saving["count"].as_i64()).unwrap_or(0);
    assert!(count >= at_least, "{count} calls of instructions elsewhere");
    output
}

#[test]
fn main_is_found_from_every_instruction_of_a_subroutine() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for compiler in support::c_compilers() {
        let input = built(&stepping(), (compiler, "c"), &[], folder.path());
        let output = shrunk(&input, 12, folder.path());
        assert!(said(&input, &output, folder.path()).ends_with("lost 0\n"), "{compiler}");
        let text = String::from_utf8_lossy(&std::fs::read(&output).expect("it was written")).into_owned();
        assert!(text.contains("outlined.relift.1"), "it has a name of its own");
    }
}

#[test]
fn exceptions_out_of_subroutines_arrive_where_they_did() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    if !installed("g++") {
        return skipped("g++: it is not installed");
    }
    let input = built(&format!("{LONG_WAY}{EXCEPTIONS}"), ("g++", "cpp"), &["-fnon-call-exceptions"], folder.path());
    let output = shrunk(&input, 6, folder.path());
    let text = said(&input, &output, folder.path());
    for thrown in ["caught nowhere", "nowhere ~", "out: nowhere"] {
        assert!(text.contains(thrown), "{thrown} is among what is thrown: {text}");
    }
}

#[test]
fn subroutines_are_relinked_again() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let again = folder.path().join("again");
    let input = built(&stepping(), (support::c_compilers()[0], "c"), &[], folder.path());
    let output = shrunk(&input, 12, folder.path());
    for form in [&["shrink"][..], &["optimize"], &["optimize", "--shuffle", "1"], &["optimize", "--shuffle", "2"]] {
        let mut command = relift();
        relift_succeeds(command.args(form).arg(&output).arg("-o").arg(&again), folder.path());
        said(&input, &again, folder.path());
    }
}

/// Functions that call nothing keep words below the stack pointer across what they have alike.
const BELOW: &str = r#"
#include <stdio.h>
long kind, level, where;
#define F(n) \
    ".globl f" n "\n.type f" n ", @function\nf" n ":\n    .cfi_startproc\n" \
    "    movq %rdi, " BEFORE "\n    .rept 400\n    xorq $37, %rdi\n    addq $11, %rdi\n    .endr\n    imulq $" n ", %rdi\n    testl $1, %edi\n    je 1f\n    addq $" n "0, %rdi\n1:\n" \
    "    movq $170001, kind(%rip)\n    movq $230017, level(%rip)\n    movq $290023, where(%rip)\n" \
    "    xorq $" n ", %rdi\n    movq " BEFORE ", %rax\n    addq %rdi, %rax\n" AFTER "    ret\n    .cfi_endproc\n.size f" n ", .-f" n "\n"
__asm__(".text\n" F("3") F("5") F("7") F("11"));
extern long f3(long), f5(long), f7(long), f11(long);
int main(int count, char **arguments) {
    printf("%ld %ld %ld %ld %ld\n", f3(count), f5(count + 1), f7(count + 2), f11(count + 3), kind + level + where);
    return 42;
}
"#;

#[test]
fn what_is_kept_below_the_stack_pointer_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let forms = [(r#""-8(%rsp)""#, false), (r#""8+scratch(%rip)""#, true)];
    for (place, has_calls) in forms {
        let text = format!("#define BEFORE {place}\n#define AFTER \"\"\nlong scratch[2];\n{BELOW}");
        let input = built(&text, (support::c_compilers()[0], "c"), &[], folder.path());
        let (output, report) = shrink(&input, &["--skip", "tails"], "output", folder.path());
        let technique = report["techniques"].as_array().into_iter().flatten().find(|saving| saving["technique"] == "subroutines");
        let count = technique.and_then(|saving| saving["count"].as_i64());
        assert_eq!(count.map(|count| count > 0), Some(has_calls), "{place}: {report:#}");
        said(&input, &output, folder.path());
    }
}
