//! `relift shrink` on programs that have no loader: what they hold of one is code like any other, and has to do the same.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{End, SUCCESS, compile_text, installed, relift, run, shrink, size, skipped, technique};

/// Much of a C library, and an error that it handles.
const PROGRAM: &str = r#"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *work(void *number) { char text[32]; snprintf(text, sizeof text, "t%ld", (long)number); return strdup(text); }
static int order(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
int main(void) {
    pthread_t threads[4];
    void *texts[4];
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, (void *)(4 - i));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], &texts[i]);
    qsort(texts, 4, sizeof *texts, order);
    for (int i = 0; i < 4; i++) puts(texts[i]);
    printf("%f %s %d\n", strtod("1.5e3", 0), strerror(ENOENT), fopen("/nonexistent/file", "r") == 0);
    return 42;
}
"#;

/// By which a self-relocating glibc is known to read packed relocations.
const ASSERTION: &[u8] = b"info[DT_RELRENT]->d_un.d_val == sizeof (ElfW(Relr))";

fn count(report: &serde_json::Value, name: &str) -> u64 {
    technique(report, name).map_or(0, |saving| saving["count"].as_u64().expect("a number"))
}

#[test]
fn a_program_that_relocates_itself_packs_its_relocations_and_has_one_hole_cut_out() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = compile_text(PROGRAM, &["-O2", "-static-pie", "-s"], folder.path(), "input");
    let expected = run(&mut Command::new(&input), folder.path());
    assert_eq!(expected.end, End::Exit(SUCCESS));
    let (output, report) = shrink(&input, &[], "output", folder.path());
    assert!(size(&output) * 100 < size(&input) * 90, "{report:#}");
    let knows_them = memchr::memmem::find(&fs::read(&input).expect("it was written"), ASSERTION).is_some();
    assert_eq!(count(&report, "relr") >= 500, knows_them, "{report:#}");
    // Without room from packed relocations, the header comes from the note that says what another one says.
    let (unpacked, without) = shrink(&input, &["--relr", "off"], "unpacked", folder.path());
    assert_eq!((count(&without, "relr"), without["cuts"].as_u64()), (0, Some(1)), "{without:#}");
    let (whole, without) = shrink(&input, &["--skip", "cuts"], "whole", folder.path());
    assert_eq!(without["cuts"], 0, "{without:#}");
    assert!(size(&output) < size(&unpacked) && size(&output) + 20_000 < size(&whole));
    let (again, _) = shrink(&output, &[], "again", folder.path());
    for file in [&output, &unpacked, &whole, &again] {
        assert_eq!(run(&mut Command::new(file), folder.path()), expected, "{}", file.display());
    }
    for tool in [&["readelf", "-a", "-W"][..], &["objdump", "-d"], &["strip", "-o", "stripped"]] {
        if !installed(tool[0]) {
            skipped(&format!("{}: it is not installed", tool[0]));
            continue;
        }
        for file in [&output, &unpacked] {
            let found = run(Command::new(tool[0]).args(&tool[1..]).arg(file).current_dir(folder.path()), folder.path());
            assert_eq!(found.end, End::Exit(0), "{tool:?}: {found:?}");
            assert!(!found.stderr_text().to_lowercase().contains("warning"), "{tool:?}: {found:?}");
        }
    }
    let stripped = folder.path().join("stripped");
    if stripped.is_file() {
        assert_eq!(run(&mut Command::new(&stripped), folder.path()), expected);
    }
}

/// As rustc links static programs by default.
#[test]
fn where_the_dynamic_section_is_full_what_says_nothing_makes_room_for_packed_relocations() {
    if !installed("ld.lld") {
        return skipped("files of lld: it is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let flags = ["-O2", "-static-pie", "-s", "-fuse-ld=lld", "-Wl,-z,now"];
    let input = compile_text(PROGRAM, &flags, folder.path(), "input");
    let expected = run(&mut Command::new(&input), folder.path());
    let (output, report) = shrink(&input, &[], "output", folder.path());
    if memchr::memmem::find(&fs::read(&input).expect("it was written"), ASSERTION).is_none() {
        return skipped("packed relocations: the static C library does not read them");
    }
    assert!(count(&report, "relr") >= 500 && report["cuts"].as_u64() >= Some(1), "{report:#}");
    assert!(size(&output) * 100 < size(&input) * 87, "{report:#}");
    let (again, _) = shrink(&output, &[], "again", folder.path());
    for file in [&output, &again] {
        assert_eq!(run(&mut Command::new(file), folder.path()), expected, "{}", file.display());
    }
    // What is left out says nothing to this program, but much to another one.
    let said = run(relift().arg("check").arg(&input).arg(&output), folder.path());
    assert_eq!(said.end, End::Exit(0), "{said:?}");
    let mut bytes = fs::read(&input).expect("it was written");
    let at = memchr::memmem::find(&bytes, ASSERTION).expect("it is known by this");
    bytes[at] = b'I';
    let other = folder.path().join("other");
    fs::write(&other, bytes).expect("the scratch folder can be written");
    let said = run(relift().arg("check").arg(&other).arg(&output), folder.path());
    assert_eq!(said.end, End::Exit(1), "{said:?}");
    assert!(said.stdout_text().contains("0x6ffffef5 is lost"), "{said:?}");
}

/// As musl's start-up code; whether it reads packed relocations is tried.
#[test]
fn relocations_are_packed_for_start_up_code_that_is_seen_to_apply_them() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kinds/relocates_itself.c");
    let flags =
        ["-O1", "-ffreestanding", "-fno-stack-protector", "-fno-tree-loop-distribute-patterns", "-nostdlib", "-static-pie"];
    for (reads_them, num_packed) in [("-DPACKED", 64), ("-UPACKED", 0)] {
        let input = folder.path().join("input");
        let mut compiler = Command::new("gcc");
        compiler.args(flags).args([reads_them, "-s"]).arg(&source).arg("-o").arg(&input);
        assert_eq!(run(&mut compiler, folder.path()).end, End::Exit(0));
        let expected = run(&mut Command::new(&input), folder.path());
        let (output, report) = shrink(&input, &[], "output", folder.path());
        assert_eq!(count(&report, "relr"), num_packed, "{report:#}");
        assert_eq!(run(&mut Command::new(&output), folder.path()), expected);
    }
}

/// Functions that stay, since nobody sees where their jumps lead, between large ones of which one is enough, and as many relocations as fill more than a page.
const PARTED: &str = r#"
#include <stdio.h>
#define SAME(name) __attribute__((noinline)) static int name(int x) { __asm__(".rept 40000\nimul $3, %0, %0\n.endr" : "+r"(x)); return x; }
#define STAYS(name) __attribute__((noinline)) int name(long by) { \
    int result = 0; \
    __asm__ volatile("lea 1f(%%rip), %%rdx\nlea (%%rdx,%1,2), %%rdx\njmp *%%rdx\n1: inc %0\ninc %0\ninc %0" : "+r"(result) : "r"(by) : "rdx"); \
    return result; \
}
STAYS(first)
SAME(behind_first)
STAYS(second)
SAME(behind_second)
STAYS(third)
SAME(behind_third)
STAYS(fourth)
SAME(behind_fourth)
__attribute__((noinline)) int twice(int x) { return 2 * x; }
__attribute__((noinline)) int thrice(int x) { return 3 * x; }
#define FOUR(n) {twice, n}, {thrice, n}, {twice, n + 1}, {thrice, n + 1},
#define MANY(n) FOUR(n) FOUR(n + 2) FOUR(n + 4) FOUR(n + 6)
static const struct { int (*apply)(int); int number; } all[] = {
    MANY(0) MANY(1) MANY(2) MANY(3) MANY(4) MANY(5) MANY(6) MANY(7) MANY(8) MANY(9) MANY(10) MANY(11) MANY(12) MANY(13)
};
int main(void) {
    int sum = first(2) + second(1) + third(0) + fourth(1) + behind_first(1) + behind_second(2) + behind_third(3) + behind_fourth(4);
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) sum += all[i].apply(all[i].number);
    printf("%d\n", sum);
    return 42;
}
"#;

#[test]
fn what_stands_behind_the_program_headers_goes_where_holes_are_so_that_these_leave_the_file() {
    if !installed("ld.lld") {
        return skipped("files of lld: it is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    // Notes and small tables are enough for one cut; the relocations have to go for several.
    for (text, flags, num_cuts) in [(PROGRAM, &[][..], 1), (PARTED, &[], 3), (PARTED, &["-Wl,-z,now"], 3)] {
        let flags = [&["-O2", "-fno-toplevel-reorder", "-fno-ipa-icf", "-static-pie", "-s", "-fuse-ld=lld"], flags].concat();
        let input = compile_text(text, &flags, folder.path(), "input");
        let expected = run(&mut Command::new(&input), folder.path());
        assert_eq!(expected.end, End::Exit(SUCCESS));
        let (output, report) = shrink(&input, &["--relr", "off"], "output", folder.path());
        assert!(report["cuts"].as_u64() >= Some(num_cuts), "{report:#}");
        assert!(size(&output) * 100 < size(&input) * 90, "{report:#}");
        let (again, _) = shrink(&output, &[], "again", folder.path());
        for file in [&output, &again] {
            assert_eq!(run(&mut Command::new(file), folder.path()), expected, "{}", file.display());
        }
        if installed("readelf") {
            let found = run(Command::new("readelf").args(["-a", "-W"]).arg(&output), folder.path());
            assert!(found.stderr.is_empty() && found.stdout_text().contains("NT_GNU_ABI_TAG"), "{}", found.stderr_text());
        }
    }
}

#[test]
fn what_is_freed_leaves_a_static_program_though_code_is_placed_by_windows() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = compile_text("int main(void) { return 42; }", &["-O2", "-static-pie", "-s"], folder.path(), "input");
    let (output, report) = shrink(&input, &[], "output", folder.path());
    // But for little between what is pinned.
    let holes = technique(&report, "holes").and_then(|saving| saving["bytes"].as_i64());
    assert!(holes > Some(-(size(&input) as i64 / 20)), "{report:#}");
    assert_eq!(run(&mut Command::new(&output), folder.path()).end, End::Exit(SUCCESS));
}

#[test]
fn a_program_of_which_it_is_not_known_that_it_reads_packed_relocations_may_not_have_them() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = compile_text(PROGRAM, &["-O2", "-static-pie", "-s"], folder.path(), "input");
    let (output, report) = shrink(&input, &[], "output", folder.path());
    if count(&report, "relr") == 0 {
        return skipped("packed relocations: the static C library does not read them");
    }
    let forget = |path: &Path| {
        let mut bytes = fs::read(path).expect("it was written");
        let at = memchr::memmem::find(&bytes, ASSERTION).expect("it is known by this");
        bytes[at] = b'I';
        let changed = path.with_extension("changed");
        fs::write(&changed, bytes).expect("the scratch folder can be written");
        changed
    };
    let (input, output) = (forget(&input), forget(&output));
    let found = run(relift().arg("check").arg(&input).arg(&output), folder.path());
    assert_eq!(found.end, End::Exit(1), "{found:?}");
    let (_, report) = shrink(&input, &["--relr", "on"], "other", folder.path());
    assert_eq!(count(&report, "relr"), 0, "{report:#}");
}

#[test]
fn exceptions_pass_through_static_programs_that_were_cut() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kinds/throws.cc");
    let input = folder.path().join("throws");
    let mut compiler = Command::new("g++");
    compiler.args(["-O2", "-static-pie"]).arg(&source).arg("-o").arg(&input);
    assert_eq!(run(&mut compiler, folder.path()).end, End::Exit(0));
    let expected = run(&mut Command::new(&input), folder.path());
    let (output, report) = shrink(&input, &[], "output", folder.path());
    assert!(report["cuts"].as_u64() >= Some(1), "{report:#}");
    assert_eq!(run(&mut Command::new(&output), folder.path()), expected);
}

/// Start-up code registers the unwind entries from its own on: what comes before is lost to an unwinder, before and after.
#[test]
fn a_static_program_at_a_fixed_address_loses_its_holes() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = compile_text(PROGRAM, &["-O2", "-static", "-s"], folder.path(), "input");
    let expected = run(&mut Command::new(&input), folder.path());
    let (output, _) = shrink(&input, &[], "output", folder.path());
    assert!(size(&output) < size(&input));
    assert_eq!(run(&mut Command::new(&output), folder.path()), expected);
}

#[test]
fn a_debugger_finds_its_way_in_a_static_program_that_was_cut() {
    if !installed("gdb") {
        return skipped("a debugger: gdb is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = compile_text(PROGRAM, &["-O1", "-static-pie", "-fno-inline"], folder.path(), "input");
    let (output, report) = shrink(&input, &[], "output", folder.path());
    assert!(report["cuts"].as_u64() >= Some(1), "{report:#}");
    let mut debugger = Command::new("gdb");
    debugger.args(["-batch", "-nx", "-ex", "break order", "-ex", "run", "-ex", "backtrace"]).arg(&output);
    let said = run(&mut debugger, folder.path()).stdout_text();
    let frames: Vec<&str> = said.lines().filter(|line| line.starts_with('#')).collect();
    assert!(frames.first().is_some_and(|frame| frame.contains("order")), "{said}");
    assert!(frames.iter().any(|frame| frame.contains(" main ")), "{said}");
}
