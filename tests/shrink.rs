//! `relift shrink`: what nothing reaches goes, what anything may reach stays, and the file is one that tools take.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection};

use support::{End, SUCCESS, installed, only_line, relift, relift_succeeds, run, shrink, size, skipped};

/// A third of it is dead; of the rest, some is held by nothing but a pointer in data, and some by one that only a dead function names.
const MIXED: &str = r#"
#include <stdio.h>
#include <string.h>
#define LONG(n) volatile int sum = n; for (int i = 0; i < n; i++) { sum += i * n; printf("%s", sum == -1 ? "never\n" : ""); } return sum;
__attribute__((noinline, used)) static int dead_leaf(int n) { LONG(n) }
__attribute__((noinline, used)) static int dead_caller(int n) { if (n > 3) return dead_leaf(n) + dead_leaf(n + 1); LONG(n + 2) }
__attribute__((noinline, used)) static int dead_switch(int n) {
    switch (n) {
        case 0: return dead_leaf(1); case 1: return 12; case 2: return dead_caller(2); case 3: return 9; case 4: return 77;
        case 5: return dead_leaf(6); case 6: return 11; case 7: return 13; default: return 1;
    }
}
__attribute__((noinline)) static int held_by_data(int n) { return n * 3; }
__attribute__((noinline)) static int held_too(int n) { return n + 29; }
static int (*volatile table[2])(int) = { held_by_data, held_too };
int main(void) {
    const char *text = "text that a relocation names";
    static const char *const names[] = { "one", "two", "three", "four", "five", "six", "seven", "eight", "nine" };
    int sum = 0;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) sum += (int)strlen(names[i]);
    printf("%s %d\n", text, sum);
    return table[0](table[1](sum - 46)) == 57 ? 42 : 1;
}
"#;

/// Builds the program above with these flags.
fn build(flags: &[&str], folder: &Path) -> PathBuf {
    support::compile_text(MIXED, &[&["-O1", "-w"], flags].concat(), folder, "mixed")
}

fn saving(report: &serde_json::Value, technique: &str) -> (i64, i64) {
    let found = report["techniques"].as_array().into_iter().flatten().find(|saving| saving["technique"] == technique);
    found.map_or((0, 0), |saving| (saving["count"].as_i64().unwrap_or(0), saving["bytes"].as_i64().unwrap_or(0)))
}

#[test]
fn dead_functions_go_and_what_data_names_stays() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fPIE", "-pie", "-s"], folder.path());
    let (output, report) = shrink(&input, &[], "output", folder.path());
    assert_eq!(saving(&report, "dead-code").0, 3, "the three dead ones: {report:#}");
    assert!(size(&output) * 100 < size(&input) * 92, "{} of {}", size(&output), size(&input));
    let expected = run(&mut Command::new(&input), folder.path());
    assert_eq!(expected.end, End::Exit(SUCCESS));
    assert_eq!(run(&mut Command::new(&output), folder.path()), expected);
    assert_eq!(run(Command::new(&output).env("LD_BIND_NOW", "1"), folder.path()), expected);
    let sum: i64 = report["techniques"].as_array().expect("a list").iter().filter_map(|saving| saving["bytes"].as_i64()).sum();
    assert_eq!(sum as u64, size(&input) - size(&output), "what the techniques saved adds up");
}

#[test]
fn each_technique_can_be_left_out_and_done_alone() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fPIE", "-pie", "-s", "-Wl,--hash-style=both"], folder.path());
    let expected = run(&mut Command::new(&input), folder.path());
    let (_, everything) = shrink(&input, &["--relr", "on"], "all", folder.path());
    for technique in
        ["dead-code", "fold", "tails", "order", "padding", "unwind-entries", "relr", "hash", "spread", "cuts", "holes"]
    {
        let (output, report) = shrink(&input, &["--relr", "on", "--skip", technique], "without", folder.path());
        // Padding is what is free besides; what other techniques save is known to some bytes only.
        assert!(
            ["holes", "unwind-entries", "padding"].contains(&technique) || saving(&report, technique).0 == 0,
            "{technique}: {report:#}"
        );
        assert!(report["output_bytes"].as_u64() >= everything["output_bytes"].as_u64(), "{technique}");
        assert_eq!(run(&mut Command::new(&output), folder.path()), expected, "without {technique}");
        let only = format!("{technique},holes");
        let (output, _) = shrink(&input, &["--relr", "on", "--only", &only], "alone", folder.path());
        assert_eq!(run(&mut Command::new(&output), folder.path()), expected, "{technique} alone");
    }
}

#[test]
fn packed_relocations_ask_for_a_library_that_reads_them() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fPIE", "-pie"], folder.path());
    let (packed, report) = shrink(&input, &["--relr", "on"], "packed", folder.path());
    let (plain, _) = shrink(&input, &["--relr", "off"], "plain", folder.path());
    assert!(saving(&report, "relr").0 >= 9, "{report:#}");
    let asks = |path: &Path| fs::read(path).expect("it was written").windows(18).any(|text| text == b"GLIBC_ABI_DT_RELR\0");
    assert!(asks(&packed) && !asks(&plain));
}

#[test]
fn a_relocation_too_many_or_too_few_among_packed_ones_is_seen() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fPIE", "-pie", "-s"], folder.path());
    let (packed, _) = shrink(&input, &["--relr", "on"], "packed", folder.path());
    let whole = fs::read(&packed).expect("it was written");
    let word = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().expect("eight bytes"));
    let headers = (0..usize::from(u16::from_le_bytes([whole[60], whole[61]]))).map(|index| word(40) as usize + 64 * index);
    let table = headers.map(|at| (whole[at + 4], word(at + 24) as usize, word(at + 32) as usize)).find(|header| header.0 == 19);
    let (_, start, size) = table.expect("there is a section of packed relocations");
    let wrong = folder.path().join("wrong");
    for bit in 0..8 * size {
        let mut bytes = whole.clone();
        bytes[start + bit / 8] ^= 1 << (bit % 8);
        fs::write(&wrong, &bytes).expect("the scratch folder can be written");
        let found = run(relift().arg("check").arg(&input).arg(&wrong), folder.path());
        assert_eq!(found.end, End::Exit(1), "bit {bit} of {}: {found:?}", 8 * size);
    }
}

#[test]
fn code_shares_no_page_of_the_file_where_that_is_asked_for() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fPIE", "-pie", "-s", "-Wl,-z,separate-code"], folder.path());
    let (output, _) = shrink(&input, &["--pack", "safe"], "output", folder.path());
    let bytes = fs::read(&output).expect("the output was written");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let count = u16::from_le_bytes([bytes[56], bytes[57]]) as usize;
    let headers = (0..count).map(|index| word(32) as usize + 56 * index).filter(|&at| bytes[at] == 1 && bytes[at + 1] == 0);
    let pages: Vec<(u64, u64, bool)> =
        headers.map(|at| (word(at + 8) / 4096, (word(at + 8) + word(at + 32)).div_ceil(4096), bytes[at + 4] & 1 != 0)).collect();
    let overlap = |a: &(u64, u64, bool), b: &(u64, u64, bool)| a.2 != b.2 && a.0 < b.1 && b.0 < a.1;
    assert!(pages.iter().any(|page| page.2));
    assert!(!pages.iter().any(|a| pages.iter().any(|b| overlap(a, b))), "{pages:?}");
    assert_eq!(run(&mut Command::new(&output), folder.path()).end, End::Exit(SUCCESS));
}

#[test]
fn the_output_is_the_same_for_any_number_of_threads_and_can_be_shrunk_again() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fPIE", "-pie"], folder.path());
    let (first, _) = shrink(&input, &["--threads", "1"], "first", folder.path());
    let (second, _) = shrink(&input, &["--threads", "3"], "second", folder.path());
    assert_eq!(fs::read(&first).expect("it was written"), fs::read(&second).expect("it was written"));
    let (again, _) = shrink(&first, &[], "again", folder.path());
    assert!(size(&again) <= size(&first));
    assert_eq!(run(&mut Command::new(&again), folder.path()).end, End::Exit(SUCCESS));
}

/// Where the section that code lies in is, and its bytes.
fn section(path: &Path, name: &str) -> (u64, Vec<u8>) {
    let bytes = fs::read(path).expect("it was built");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let section = file.section_by_name(name).expect("it has this section");
    (section.address(), section.data().expect("it is in the file").to_vec())
}

#[test]
fn a_file_at_a_fixed_address_keeps_its_code_and_loses_holes_and_unwind_entries() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fno-pie", "-no-pie", "-g"], folder.path());
    let (output, report) = shrink(&input, &[], "output", folder.path());
    assert_eq!(saving(&report, "dead-code").0, 0);
    assert!(saving(&report, "unwind-entries").1 > 100, "{report:#}");
    assert_eq!(report["dropped_sections"].as_array().map(Vec::len), Some(0), "what describes the code still does: {report:#}");
    assert!(section(&output, ".text") == section(&input, ".text"), "code stays as it was, padding too");
    assert!(section(&output, ".debug_info") == section(&input, ".debug_info"));
    assert!(size(&output) < size(&input));
    assert_eq!(run(&mut Command::new(&output), folder.path()).end, End::Exit(SUCCESS));
    let (without, report) = shrink(&input, &["--skip", "unwind-entries"], "without", folder.path());
    assert_eq!(saving(&report, "unwind-entries"), (0, 0));
    assert!(size(&output) <= size(&without));
}

/// Shrinks a program of a thousand functions, each so many bytes longer than it has to be, in which numbers in code may be addresses from which entries are registered: they part the room of the
/// section in three. Gives what the entries gave, those numbers, and where entries are in the output.
fn shrink_with_named_entries(longer: usize) -> (i64, [u64; 2], std::ops::Range<u64>) {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let body = format!("__asm__ volatile(\".skip {longer}, 0x90\");");
    let functions: String = (0..1000)
        .map(|n| format!("__attribute__((noinline)) int f{n}(int n) {{ {body} return printf(\"\") + n + {n}; }}\n"))
        .collect();
    let calls: String = (0..1000).map(|n| format!("n = f{n}(n);\n")).collect();
    let with = |held: [u64; 2]| {
        let [first, second] = held.map(|number| format!("__asm__ volatile(\"mov ${number:#x}, %%ecx\" : : : \"ecx\");"));
        let main = format!("int main(void) {{ int n = 0; {first} {second} {calls} return n == 499500 ? {SUCCESS} : 1; }}");
        let text = format!("#include <stdio.h>\n{functions}{main}");
        support::compile_text(&text, &["-O1", "-fno-pie", "-no-pie"], folder.path(), "named")
    };
    let input = with([0x1234_5678; 2]);
    let (address, entries) = section(&input, ".eh_frame");
    let (room, _) = section(&input, ".eh_frame_hdr");
    let length = |offset: u64| u64::from(u32::from_le_bytes(entries[offset as usize..][..4].try_into().expect("four bytes"))) + 4;
    let starts = || std::iter::successors(Some(0), |&offset| Some(offset + length(offset)));
    let all = address + entries.len() as u64 - room;
    let held = [1, 2].map(|third| {
        address
            + starts().find(|&offset| address + offset > room + third * all / 3).expect("the first third is more than the table")
    });
    let input = with(held);
    assert_eq!(section(&input, ".eh_frame").0, address, "one number or another moves nothing");
    let (output, report) = shrink(&input, &[], "output", folder.path());
    assert_eq!(run(&mut Command::new(&output), folder.path()).end, End::Exit(SUCCESS));
    let (new_address, new_entries) = section(&output, ".eh_frame");
    (saving(&report, "unwind-entries").1, held, new_address..new_address + new_entries.len() as u64)
}

#[test]
fn terminators_that_numbers_in_code_may_name_stay_in_the_file() {
    let (saved, held, entries) = shrink_with_named_entries(0);
    assert!(saved > 10_000, "{saved}");
    assert!(!held.iter().any(|at| entries.contains(at)), "there is room between them: {held:x?} and {entries:x?}");
}

#[test]
fn unwind_entries_begin_where_numbers_in_code_may_name_them() {
    let (saved, held, entries) = shrink_with_named_entries(700);
    assert!(saved > 0, "{saved}");
    assert!(held.iter().any(|at| entries.contains(at)), "there is no room between them: {held:x?} and {entries:x?}");
}

#[test]
fn without_what_no_loader_reads_the_program_still_runs() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fPIE", "-pie"], folder.path());
    let (stripped, _) = shrink(&input, &["--strip"], "stripped", folder.path());
    assert!(size(&stripped) < size(&input));
    let bytes = fs::read(&stripped).expect("it was written");
    assert_eq!(bytes[60..62], [0, 0], "no section headers are announced");
    assert_eq!(run(&mut Command::new(&stripped), folder.path()).end, End::Exit(SUCCESS));
}

/// The names of what is exported take some bytes more than a page, or a few more with each function.
#[test]
fn a_file_is_no_longer_without_what_no_loader_reads() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for count in [80, 95, 110, 125, 140] {
        let functions =
            (0..count).map(|i| format!("int exported_{i}(int x) {{ return x * {} + (x >> {}); }}\n", i + 3, i % 13 + 1));
        let flags = ["-O1", "-fPIC", "-shared", "-s"];
        let library = support::compile_text(&functions.collect::<String>(), &flags, folder.path(), "library.so");
        let (whole, _) = shrink(&library, &[], "whole.so", folder.path());
        let (stripped, _) = shrink(&library, &["--strip"], "stripped.so", folder.path());
        assert!(size(&stripped) <= size(&whole), "{count}: {} and {}", size(&stripped), size(&whole));
    }
}

#[test]
fn tools_take_the_output() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fPIE", "-pie", "-g"], folder.path());
    let (output, _) = shrink(&input, &[], "output", folder.path());
    for tool in [&["readelf", "-a", "-W"][..], &["objdump", "-d"], &["nm"], &["ldd"], &["strip", "-o", "stripped"]] {
        if !installed(tool[0]) {
            skipped(&format!("{}: it is not installed", tool[0]));
            continue;
        }
        let found = run(Command::new(tool[0]).args(&tool[1..]).arg(&output).current_dir(folder.path()), folder.path());
        assert_eq!(found.end, End::Exit(0), "{tool:?}: {found:?}");
        assert!(!found.stderr_text().to_lowercase().contains("warning"), "{tool:?}: {found:?}");
    }
    let stripped = folder.path().join("stripped");
    if stripped.is_file() {
        assert_eq!(run(&mut Command::new(&stripped), folder.path()).end, End::Exit(SUCCESS));
    }
}

#[test]
fn damaged_files_are_refused_in_one_line_or_still_right() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fPIE", "-pie", "-s"], folder.path());
    let whole = fs::read(&input).expect("it was built");
    let damaged = folder.path().join("damaged");
    let mut random = 5u64;
    for round in 0..60usize {
        let mut bytes = whole.clone();
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // Headers and tables are where damage does most.
        let at = (random >> 33) as usize % [1024, 4096, bytes.len()][round % 3];
        match round % 4 {
            0 => bytes.truncate(at),
            _ => bytes[at] ^= 1 << (random >> 20 & 7),
        }
        fs::write(&damaged, &bytes).expect("the scratch folder can be written");
        let mut command = relift();
        command.args(["shrink", "--verify"]).arg(&damaged).arg("-o").arg(folder.path().join("output"));
        let found = run(&mut command, folder.path());
        match found.end {
            End::Exit(0) => {}
            End::Exit(1) => assert!(only_line(&found).starts_with("relift: "), "{found:?}"),
            _ => panic!("round {round}: {found:?}"),
        }
    }
}

#[test]
fn a_program_whose_relocations_were_stripped_shrinks_like_one_that_never_had_any() {
    if !installed("strip") {
        return skipped("stripped relocations: strip is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    // `strip` renumbers the sections, but not in the table of exported symbols.
    let flags = ["-fPIE", "-pie", "-rdynamic", "-Wl,--emit-relocs"];
    let input = build(&flags, folder.path());
    let stripped = folder.path().join("stripped");
    let strip = Command::new("strip").arg(&input).arg("-o").arg(&stripped).status().expect("strip can be started");
    assert!(strip.success());
    let plain = build(&["-fPIE", "-pie", "-rdynamic", "-s"], folder.path());
    let expected = run(&mut Command::new(&stripped), folder.path());
    let before = size(&plain);
    let (output, report) = shrink(&stripped, &[], "output", folder.path());
    assert_eq!(report["warnings"].as_array().map(Vec::len), Some(0), "{report:#}");
    assert_eq!(run(&mut Command::new(&output), folder.path()), expected);
    let (other, _) = shrink(&plain, &[], "other", folder.path());
    assert!(size(&output) <= size(&other) + size(&stripped) - before, "{} against {}", size(&output), size(&other));
    let laid_out = folder.path().join("laid-out");
    let mut command = relift();
    command.args(["optimize", "--shuffle", "1"]).arg(&stripped).arg("-o").arg(&laid_out);
    relift_succeeds(&mut command, folder.path());
    assert_eq!(run(&mut Command::new(&laid_out), folder.path()), expected);
}

#[test]
fn relocations_of_the_code_pin_nothing_that_moves_without_them() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fPIE", "-pie", "-Wl,--emit-relocs"], folder.path());
    let said = relift_succeeds(relift().args(["inspect", "--pinned"]).arg(&input), folder.path()).stdout_text();
    assert!(said.contains("100.0 % movable"), "{said}");
    let expected = run(&mut Command::new(&input), folder.path());
    let (output, _) = shrink(&input, &[], "output", folder.path());
    assert_eq!(run(&mut Command::new(&output), folder.path()), expected);
}

#[test]
fn bytes_behind_the_file_stay_the_last_ones_at_their_place() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-fPIE", "-pie", "-s", "-Wl,--hash-style=both"], folder.path());
    let mut bytes = fs::read(&input).expect("it was built");
    bytes.extend_from_slice(&b"an archive that the program finds by its end".repeat(40));
    fs::write(&input, &bytes).expect("the scratch folder can be written");
    for options in [&[][..], &["--strip"], &["--relr", "on"], &["--only", "relr,hash,holes"]] {
        let (output, _) = shrink(&input, options, "output", folder.path());
        let after = fs::read(&output).expect("it was written");
        let at = bytes.len() - 40 * 44;
        assert_eq!(after.len(), bytes.len(), "{options:?}");
        assert!(after[at..] == bytes[at..], "{options:?}");
    }
}
