//! `relift shrink` cuts a segment in two where pages in its middle are not needed, and the checker sees a cut that is wrong.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{End, RELOCATED, SUCCESS, installed, relift, relift_succeeds, run, size, skipped};

fn build(flags: &[&str], folder: &Path) -> PathBuf {
    support::compile_text(
        RELOCATED,
        &[&["-O1", "-w", "-fPIE", "-pie", "-Wl,-z,noseparate-code"], flags].concat(),
        folder,
        "input",
    )
}

fn shrink(input: &Path, options: &[&str], name: &str, folder: &Path) -> (PathBuf, serde_json::Value) {
    support::shrink(input, &[&["--relr", "on"], options].concat(), name, folder)
}

/// Offsets in the file of the headers of loaded segments.
fn loads(bytes: &[u8]) -> Vec<usize> {
    let count = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
    (0..count).map(|index| 64 + 56 * index).filter(|&at| bytes[at..at + 4] == [1, 0, 0, 0]).collect()
}

#[test]
fn pages_freed_in_the_middle_of_a_segment_leave_the_file() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-s"], folder.path());
    let expected = run(&mut Command::new(&input), folder.path());
    assert_eq!(expected.end, End::Exit(SUCCESS));
    let (cut, report) = shrink(&input, &[], "cut", folder.path());
    let (whole, without) = shrink(&input, &["--skip", "cuts"], "whole", folder.path());
    assert!(report["cuts"].as_u64() >= Some(1) && without["cuts"] == 0, "{report:#}");
    assert!(size(&cut) + 40_000 < size(&whole), "{} and {}", size(&cut), size(&whole));
    assert_eq!(report["cut_bytes"].as_u64(), Some(size(&whole) - size(&cut)));
    for output in [&cut, &whole] {
        assert_eq!(run(&mut Command::new(output), folder.path()), expected);
        assert_eq!(run(Command::new(output).env("LD_BIND_NOW", "1"), folder.path()), expected);
    }
    let (before, after) = (fs::read(&input).expect("it was built"), fs::read(&cut).expect("it was written"));
    assert_eq!(loads(&after).len() as u64, loads(&before).len() as u64 + report["cuts"].as_u64().unwrap_or(0));
}

#[test]
fn a_cut_file_can_be_shrunk_optimized_and_stripped() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-g"], folder.path());
    let expected = run(&mut Command::new(&input), folder.path());
    let (cut, report) = shrink(&input, &[], "cut", folder.path());
    assert!(report["cuts"].as_u64() >= Some(1), "{report:#}");
    let (again, _) = shrink(&cut, &[], "again", folder.path());
    assert!(size(&again) <= size(&cut));
    let optimized = folder.path().join("optimized");
    relift_succeeds(relift().args(["optimize", "--verify"]).arg(&cut).arg("-o").arg(&optimized), folder.path());
    let (unnamed, _) = shrink(&input, &["--strip"], "unnamed", folder.path());
    for output in [&again, &optimized, &unnamed] {
        assert_eq!(run(&mut Command::new(output), folder.path()), expected, "{}", output.display());
    }
    for tool in
        [&["readelf", "-a", "-W"][..], &["objdump", "-d"], &["ldd"], &["strip", "-o", "stripped"], &["eu-elflint", "--gnu-ld"]]
    {
        if !installed(tool[0]) {
            skipped(&format!("{}: it is not installed", tool[0]));
            continue;
        }
        let found = run(Command::new(tool[0]).args(&tool[1..]).arg(&cut).current_dir(folder.path()), folder.path());
        assert!(tool[0] == "eu-elflint" || found.end == End::Exit(0), "{tool:?}: {found:?}");
        assert!(!found.stderr_text().to_lowercase().contains("warning"), "{tool:?}: {found:?}");
    }
    let stripped = folder.path().join("stripped");
    if stripped.is_file() {
        assert_eq!(run(&mut Command::new(&stripped), folder.path()), expected);
    }
}

#[test]
fn a_segment_that_is_cut_too_short_or_shifted_is_seen() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(&["-s"], folder.path());
    let (cut, report) = shrink(&input, &[], "cut", folder.path());
    let whole = fs::read(&cut).expect("it was written");
    let wrong = folder.path().join("wrong");
    let headers = loads(&whole);
    let last_read_only = headers.len() - 1;
    assert!(report["cuts"].as_u64() >= Some(1) && last_read_only >= 2, "{report:#}");
    // Of each part in turn: its place in the file, its address, its size, its rights.
    for &at in &headers[..last_read_only] {
        for (field, change) in [(8, 0x1000u64), (16, 0x1000), (32, u64::MAX - 15), (40, u64::MAX - 15), (4, 2)] {
            let mut bytes = whole.clone();
            let word = u64::from_le_bytes(bytes[at + field..at + field + 8].try_into().expect("eight bytes"));
            bytes[at + field..at + field + 8].copy_from_slice(&word.wrapping_add(change).to_le_bytes());
            fs::write(&wrong, &bytes).expect("the scratch folder can be written");
            let found = run(relift().arg("check").arg(&input).arg(&wrong), folder.path());
            assert_eq!(found.end, End::Exit(1), "field {field} of the header at {at:#x}: {found:?}");
        }
    }
}

/// Two entries of one table, of which the first leads to nothing but a jump to the second.
const ADJACENT: &str = r#"
#include <stdio.h>
int pick(unsigned);
__asm__(".text\n.globl pick\n.type pick,@function\npick:\n.cfi_startproc\n cmpl $3, %edi\n ja 9f\n lea 7f(%rip), %rax\n mov %edi, %edi\n"
    " movslq (%rax,%rdi,4), %rcx\n add %rax, %rcx\n jmp *%rcx\n"
    "1: jmp 2f\n2: mov $42, %eax\n ret\n3: mov $3, %eax\n ret\n9: xor %eax, %eax\n ret\n.cfi_endproc\n.size pick,.-pick\n"
    ".section .rodata\n.p2align 2\n7: .long 1b-7b, 2b-7b, 3b-7b, 1b-7b\n.text\n");
int main(void) { printf("%d %d %d\n", pick(0), pick(1), pick(2)); return pick(3) == 42 ? 42 : 1; }
"#;

#[test]
fn entries_of_a_table_stay_apart_where_one_is_a_jump_to_the_other() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = support::compile_text(ADJACENT, &["-O1", "-w", "-fPIE", "-pie"], folder.path(), "input");
    let expected = run(&mut Command::new(&input), folder.path());
    let (output, report) = shrink(&input, &[], "output", folder.path());
    let warnings = report["warnings"].as_array().expect("a list");
    assert!(!warnings.iter().any(|warning| warning.as_str().is_some_and(|text| text.contains("code stays"))), "{report:#}");
    assert_eq!(run(&mut Command::new(&output), folder.path()), expected);
    assert_eq!(expected.end, End::Exit(SUCCESS));
}

/// Pointers enough that packing them pays for moving the dynamic section, and functions with room between them.
const LLD: &str = r#"
#include <stdio.h>
#ifdef ALIGNED
__attribute__((used, aligned(4096))) static const char page[5000] = "page";
#endif
static int sum;
#define F(n) __attribute__((noinline, aligned(64))) static int f##n(int x) { for (int i = 0; i < x; i++) sum += i * n; return sum + n; }
FUNCTIONS
int main(void) {
    int all = 0;
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) all += table[i](i & 3);
    printf("%d\n", all);
    return 42;
}
"#;

fn lld_program(flags: &[&str], folder: &Path) -> Option<PathBuf> {
    lld_program_with(0, flags, folder)
}

/// With so many constants more that the loader relocates.
fn lld_program_with(num_more: usize, flags: &[&str], folder: &Path) -> Option<PathBuf> {
    if !installed("ld.lld") {
        skipped("files of lld: it is not installed");
        return None;
    }
    let functions = (0..150).map(|n| format!("F({n})\n")).collect::<String>();
    let names = (0..450).map(|n| format!("f{}, ", n % 150)).collect::<String>();
    let text = LLD.replace("FUNCTIONS\n", &format!("{functions}\nstatic int (*volatile table[])(int) = {{ {names} }};\n"));
    let more = vec!["main"; num_more].join(", ");
    let text = format!("int main(void);\n__attribute__((used)) static int (*const more[])(void) = {{ {more} }};\n{text}");
    let all = [&["-O1", "-w", "-fPIE", "-pie", "-fuse-ld=lld"], flags].concat();
    Some(support::compile_text(&text, &all, folder, "by-lld"))
}

#[test]
fn files_of_lld_lose_the_front_of_their_code_and_pack_relocations_into_a_moved_dynamic_section() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for flags in [&["-s"][..], &["-Wl,--hash-style=both"], &["-Wl,--emit-relocs"], &["-Wl,-z,now", "-Wl,--gc-sections,--icf=all"]]
    {
        let Some(input) = lld_program(flags, folder.path()) else { return };
        let expected = run(&mut Command::new(&input), folder.path());
        assert_eq!(expected.end, End::Exit(SUCCESS));
        let (output, report) = shrink(&input, &[], "output", folder.path());
        let techniques = report["techniques"].as_array().expect("a list");
        let packed = techniques.iter().find(|t| t["technique"] == "relr").map(|t| t["count"].as_u64());
        assert!(packed.flatten() >= Some(400), "{flags:?}: {report:#}");
        assert_eq!(run(&mut Command::new(&output), folder.path()), expected, "{flags:?}");
        assert_eq!(run(Command::new(&output).env("LD_BIND_NOW", "1"), folder.path()), expected, "{flags:?}");
        let code = |path: &Path| {
            let bytes = fs::read(path).expect("it was written");
            let executable = loads(&bytes).into_iter().find(|&at| bytes[at + 4] & 1 != 0).expect("there is code");
            u64::from_le_bytes(bytes[executable + 16..executable + 24].try_into().expect("eight bytes"))
        };
        assert!(code(&input) < code(&output), "{flags:?}: the segment starts later");
        // Again, with entries to spare now.
        let (again, _) = shrink(&output, &[], "again", folder.path());
        assert_eq!(run(&mut Command::new(&again), folder.path()), expected, "{flags:?}");
    }
}

#[test]
fn packed_relocations_leave_the_file_where_the_constants_behind_them_are_aligned_to_pages() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(input) = lld_program_with(2000, &["-DALIGNED", "-s"], folder.path()) else { return };
    let expected = run(&mut Command::new(&input), folder.path());
    assert_eq!(expected.end, End::Exit(SUCCESS));
    let (output, report) = shrink(&input, &["--only", "relr,cuts,holes"], "output", folder.path());
    assert_eq!(run(&mut Command::new(&output), folder.path()), expected);
    // 24 bytes each, of which some are needed still.
    let spared = support::size(&input) - support::size(&output);
    assert!(spared > 23 * 2000, "{spared}: {report:#}");
}

/// Bytes between the last one in the file of the first segment that is written and the end of its page.
fn room_behind(path: &Path) -> u64 {
    let bytes = fs::read(path).expect("it was written");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let written = loads(&bytes).into_iter().find(|&at| bytes[at + 4] & 2 != 0).expect("there is data");
    (word(written + 16) + word(written + 32)).wrapping_neg() % 4096
}

#[test]
fn a_dynamic_section_with_no_room_behind_its_segment_moves_before_it() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for flags in [&["-s"][..], &["-Wl,-z,now"], &["-Wl,--emit-relocs"]] {
        let Some(first) = lld_program(flags, folder.path()) else { return };
        // Each takes a word and a relocation, both before that place.
        let num_more = room_behind(&first).saturating_sub(128) as usize / (8 + 24);
        let Some(input) = lld_program_with(num_more, flags, folder.path()) else { return };
        assert!(room_behind(&input) < 400, "{flags:?}: the section is longer than {}", room_behind(&input));
        let expected = run(&mut Command::new(&input), folder.path());
        let (output, report) = shrink(&input, &[], "output", folder.path());
        let techniques = report["techniques"].as_array().expect("a list");
        let packed = techniques.iter().find(|t| t["technique"] == "relr").map(|t| t["count"].as_u64());
        assert!(packed.flatten() >= Some(400), "{flags:?}: {report:#}");
        for variable in [("LD_BIND_NOW", "1"), ("LD_BIND_NOW", "")] {
            assert_eq!(run(Command::new(&output).env(variable.0, variable.1), folder.path()), expected, "{flags:?}");
        }
        let (again, _) = shrink(&output, &[], "again", folder.path());
        assert_eq!(run(&mut Command::new(&again), folder.path()), expected, "{flags:?}");
    }
}

#[test]
fn a_cut_file_may_go_without_section_headers() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(input) = lld_program(&["-s"], folder.path()) else { return };
    let expected = run(&mut Command::new(&input), folder.path());
    let (output, report) = shrink(&input, &["--strip"], "output", folder.path());
    assert!(report["cuts"].as_u64() >= Some(1) && report["warnings"] == serde_json::json!([]), "{report:#}");
    let mut bytes = fs::read(&output).expect("it was written");
    assert_eq!(bytes[60..62], [0, 0], "no section headers are announced");
    assert_eq!(run(&mut Command::new(&output), folder.path()), expected);
    // Without section headers, program headers alone say where the interpreter's name and the notes are now.
    let headers = |bytes: &[u8]| -> Vec<usize> {
        (0..usize::from(bytes[56])).map(|index| 64 + 56 * index).filter(|&at| [3, 4].contains(&bytes[at])).collect()
    };
    for at in headers(&bytes) {
        let place = u64::from_le_bytes(bytes[at + 8..at + 16].try_into().expect("eight bytes")) as usize;
        // In the third word of a note is its kind.
        bytes[place + 8] ^= 1;
        let wrong = folder.path().join("wrong");
        fs::write(&wrong, &bytes).expect("the scratch folder can be written");
        let found = run(relift().arg("check").arg(&input).arg(&wrong), folder.path());
        assert_eq!(found.end, End::Exit(1), "the header at {at:#x}: {found:?}");
        bytes[place + 8] ^= 1;
    }
}
