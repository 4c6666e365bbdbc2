//! Files that BOLT wrote: its program headers, its gaps, and what it leaves of the old code and tables.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use object::elf::{PF_R, PF_X, PT_LOAD, PT_NOTE, PT_PHDR};
use object::{Object, ObjectSection, ObjectSymbol};
use support::{built, installed, relift, relift_succeeds, run, said, shrink, size, skipped};

/// What is in `.newtext` was moved there; of the rest `old_step` is the old body of `step`, and `seldom` was never moved.
const PROGRAM: &str = r#"
#include <stdio.h>
#define NEW __attribute__((noinline, section(".newtext")))
#define CASES(x) \
    switch ((unsigned)x % 9) { \
    case 0: return helper(x) + 1; case 1: return x * 3; case 2: return helper(x ^ 0x55); case 3: return x - 7; \
    case 4: return helper(x) * 5; case 5: return x / 3; case 6: return x << 2; case 7: return helper(x + 9); default: return x; }
__attribute__((noinline)) int seldom(int x) { return printf("seldom %d\n", x); }
__attribute__((noinline)) static int old_helper(int x) { return x > 1000 ? x % 1000 : x + 1; }
#define helper old_helper
__attribute__((noinline, used)) int old_step(int x) { CASES(x) }
#undef helper
NEW int helper(int x) { return x > 1000 ? x % 1000 : x + 1; }
NEW int step(int x) { CASES(x) }
NEW int main(int argc, char **argv) {
    int sum = argc;
    for (int i = 0; i < 3000; i++) sum = step(sum + i) & 0xffff;
    seldom(sum);
    return 42;
}
"#;

/// Where pages of 2 MB begin.
const LARGE_PAGE: usize = 0x20_0000;
const HEADER: usize = 56;

/// Makes of a linked file what BOLT makes of one: the program headers in a segment of their own, on a large page, with one more of them, and one for the table itself where there is none (there notes have none).
fn with_late_headers(bytes: &[u8]) -> Vec<u8> {
    let field = |at: usize, size: usize| bytes[at..at + size].iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte));
    let (at, count) = (field(32, 8), field(56, 2));
    let place = (bytes.len().max(LARGE_PAGE)).next_multiple_of(LARGE_PAGE);
    let is_a = |header: &[u8], p_type: u32| header[..4] == p_type.to_le_bytes();
    let mut headers: Vec<&[u8]> = bytes[at..at + HEADER * count].chunks(HEADER).collect();
    let has_own = headers.iter().any(|header| is_a(header, PT_PHDR));
    headers.retain(|header| has_own || !is_a(header, PT_NOTE));
    let num_after = headers.len() + 1 + usize::from(!has_own);
    let size = HEADER * num_after;
    let entry = |p_type: u32, p_flags: u32, align: u64| {
        let words = [place as u64, place as u64, place as u64, size as u64, size as u64, align];
        [&p_type.to_le_bytes()[..], &p_flags.to_le_bytes(), &words.map(u64::to_le_bytes).concat()].concat()
    };
    let mut table = if has_own { Vec::new() } else { entry(PT_PHDR, PF_R, 8) };
    for header in headers {
        table.extend(if is_a(header, PT_PHDR) { entry(PT_PHDR, PF_R, 8) } else { header.to_vec() });
    }
    table.extend(entry(PT_LOAD, PF_R | PF_X, LARGE_PAGE as u64));
    let mut out = bytes.to_vec();
    out.resize(place, 0);
    out.extend(table);
    out[32..40].copy_from_slice(&(place as u64).to_le_bytes());
    out[56..58].copy_from_slice(&(num_after as u16).to_le_bytes());
    out
}

/// A program as BOLT leaves it, and the linked one that it was made of.
fn as_bolt_leaves_it(text: &str, strip: &[&str], folder: &Path) -> (PathBuf, PathBuf) {
    linked_as_bolt_leaves_it(built(text, ("gcc", "c"), &["-Wl,--build-id=none"], folder), strip, folder)
}

fn linked_as_bolt_leaves_it(linked: PathBuf, strip: &[&str], folder: &Path) -> (PathBuf, PathBuf) {
    let (named, bolted) = (folder.join("named"), folder.join("bolted"));
    let mut objcopy = Command::new("objcopy");
    objcopy.args(["--rename-section", ".text=.bolt.org.text", "--rename-section", ".newtext=.text"]);
    objcopy.args(strip.iter().flat_map(|symbol| ["--strip-symbol", symbol])).arg(&linked).arg(&named);
    assert!(objcopy.status().expect("binutils are there").success());
    let bytes = with_late_headers(&std::fs::read(&named).expect("it was written"));
    std::fs::write(&bolted, bytes).expect("the folder can be written");
    std::fs::set_permissions(&bolted, std::fs::metadata(&named).expect("it is there").permissions()).expect("they can be set");
    (bolted, linked)
}

fn bytes_of(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("the file was written")
}

fn header_offset(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[32..40].try_into().expect("eight bytes"))
}

#[test]
fn program_headers_come_home_and_the_pages_around_them_go() {
    if !installed("objcopy") {
        return skipped("there is no objcopy");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let (bolted, linked) = as_bolt_leaves_it(PROGRAM, &["old_step", "old_helper"], folder);
    assert!(size(&bolted) > 2 * 1024 * 1024);
    let (output, _) = shrink(&bolted, &[], "output", folder);
    assert_eq!(header_offset(&bytes_of(&output)), 64);
    assert!(size(&output) < size(&linked) + 4096, "{} bytes of {}", size(&output), size(&linked));
    let (before, after) = (run(&mut Command::new(&bolted), folder), run(&mut Command::new(&output), folder));
    assert_eq!(before, after);
    assert!(before.stdout_text().starts_with("seldom"), "{before:?}");
    // What BOLT wrote binutils can't take.
    let stripped = folder.join("stripped");
    assert!(Command::new("strip").arg("-o").arg(&stripped).arg(&output).status().expect("binutils are there").success());
    assert_eq!(run(&mut Command::new(&stripped), folder), before);
}

const LIBRARY: &str = "int step(int x) { return x > 1000 ? x % 1000 : x + 1; }";
const LOADER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW);
    int (*step)(int) = library ? (int (*)(int))dlsym(library, "step") : 0;
    printf("%d\n", step ? step(2345) : -1);
    return 0;
}
"#;

/// A library whose thread-local variable is in the old text, if one believes its symbol: BOLT leaves other numbers there than sections have by then.
const COUNTING: &str = r#"
__thread int count = 1;
int step(int x) { return x + count++; }
__attribute__((section(".newtext"))) int twice(int x) { return 2 * step(x); }
"#;

#[test]
fn a_symbol_without_an_address_stays_in_the_section_that_it_says_by_whatever_name() {
    if !installed("objcopy") {
        return skipped("there is no objcopy");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let linked = built(COUNTING, ("gcc", "c"), &["-shared", "-fPIC"], folder);
    let (bolted, _) = linked_as_bolt_leaves_it(linked, &[], folder);
    let mut bytes = bytes_of(&bolted);
    let file = object::File::parse(&*bytes).expect("it is a library");
    let old_text = file.section_by_name(".bolt.org.text").expect("it was renamed").index().0 as u16;
    let (table, _) = file.section_by_name(".dynsym").and_then(|s| s.file_range()).expect("it exports something");
    let number = file.dynamic_symbols().find(|symbol| symbol.name() == Ok("count")).expect("it is exported").index().0;
    let at = table as usize + 24 * number + 6;
    bytes[at..at + 2].copy_from_slice(&old_text.to_le_bytes());
    std::fs::write(&bolted, &bytes).expect("the folder can be written");
    let (output, _) = shrink(&bolted, &[], "output.so", folder);
    let shrunk = bytes_of(&output);
    let file = object::File::parse(&*shrunk).expect("it is a library");
    let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok("count")).expect("it is exported");
    let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok()).expect("it is in a section");
    assert_eq!(section.name(), Ok(".text.org"));
}

#[test]
fn a_library_goes_without_the_entry_for_its_program_headers_where_there_is_no_room_for_it() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let loader = built(LOADER, ("gcc", "c"), &["-ldl"], folder);
    let loader = std::fs::rename(&loader, folder.join("loader")).map(|()| folder.join("loader")).expect("it was built");
    let linked = built(LIBRARY, ("gcc", "c"), &["-shared", "-fPIC", "-Wl,--build-id=sha1"], folder);
    let bolted = folder.join("bolted.so");
    std::fs::write(&bolted, with_late_headers(&bytes_of(&linked))).expect("the folder can be written");
    let (output, _) = shrink(&bolted, &[], "output.so", folder);
    assert_eq!(header_offset(&bytes_of(&output)), 64);
    let file = bytes_of(&output);
    let count = usize::from(u16::from_le_bytes(file[56..58].try_into().expect("two bytes")));
    let is_own = |header: &[u8]| header[..4] == PT_PHDR.to_le_bytes();
    assert!(!file[64..][..HEADER * count].chunks(HEADER).any(is_own));
    for library in [&bolted, &output] {
        assert_eq!(run(Command::new(&loader).arg(library), folder).stdout_text(), "345\n");
    }
}

/// How many bytes of code there are where compilers' code may be.
fn code_bytes(output: &Path) -> usize {
    let bytes = bytes_of(output);
    let file = object::File::parse(&*bytes).expect("it is a program");
    assert!(file.section_by_name(".text.org").is_some(), "the old text has another name now");
    let texts = file.sections().filter(|section| section.name().is_ok_and(|name| name.starts_with(".text")));
    texts.map(|text| text.data().expect("it is in the file").iter().filter(|&&byte| byte != 0xcc).count()).sum()
}

#[test]
fn an_old_body_without_a_symbol_goes_with_what_it_alone_calls_and_one_with_a_symbol_counts_as_any_other() {
    if !installed("objcopy") {
        return skipped("there is no objcopy");
    }
    let sizes = [&["old_step", "old_helper"][..], &[]].map(|stripped| {
        let scratch = tempfile::tempdir().expect("a scratch folder can be made");
        let (bolted, _) = as_bolt_leaves_it(PROGRAM, stripped, scratch.path());
        // Without the technique that takes what nothing leads to: a symbol says that a function was left where it was.
        let (output, _) = shrink(&bolted, &["--only", "padding,holes"], "output", scratch.path());
        assert_eq!(run(&mut Command::new(&bolted), scratch.path()), run(&mut Command::new(&output), scratch.path()));
        code_bytes(&output)
    });
    assert!(sizes[0] + 100 < sizes[1], "{sizes:?}");
}

/// Reads what stands under the name of an old table.
const READER: &str = r#"
#include <stdio.h>
#define NEW __attribute__((noinline, section(".newtext")))
__attribute__((section(".bolt.org.eh_frame"), used)) const unsigned old_table[64] = { 1, 2, 3, 5, 8, 13, 21 };
__attribute__((section(".bolt.org.gcc_except_table"), used)) static const unsigned unused_table[64] = { 77, 78, 79 };
NEW int main(int argc, char **argv) {
    unsigned sum = 0;
    for (int i = 0; i < 64; i++) sum += old_table[i] * (i + argc);
    printf("%u\n", sum);
    return 42;
}
"#;

#[test]
fn an_old_table_that_code_names_stays_and_the_checker_misses_it_where_it_does_not() {
    if !installed("objcopy") {
        return skipped("there is no objcopy");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let (bolted, _) = as_bolt_leaves_it(READER, &[], folder);
    let (output, _) = shrink(&bolted, &[], "output", folder);
    assert_eq!(said(&bolted, &output, folder), format!("{}\n", expected_sum()));
    let bytes = bytes_of(&output);
    let file = object::File::parse(&*bytes).expect("it is a program");
    let size_of = |name: &str| file.section_by_name(name).expect("its header stays").size();
    assert_eq!((size_of(".bolt.org.eh_frame"), size_of(".bolt.org.gcc_except_table")), (256, 0));
    let (start, len) = file.section_by_name(".bolt.org.eh_frame").and_then(|s| s.file_range()).expect("it is in the file");
    let mut lost = bytes.clone();
    lost[start as usize..(start + len) as usize].fill(0);
    let damaged = folder.join("damaged");
    std::fs::write(&damaged, lost).expect("the folder can be written");
    let checked = run(relift().arg("check").arg(&bolted).arg(&damaged), folder);
    assert!(checked.stdout_text().contains("in .bolt.org.eh_frame, which is gone"), "{checked:?}");
}

fn expected_sum() -> u32 {
    [1, 2, 3, 5, 8, 13, 21].iter().zip(1..).map(|(value, factor)| value * factor).sum()
}

#[test]
fn what_bolt_writes_itself_is_shrunk_and_does_the_same_in_any_order() {
    let Some(bolt) = ["llvm-bolt", "llvm-bolt-22"].into_iter().find(|name| installed(name)) else {
        return skipped("there is no BOLT");
    };
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let linked = built(PROGRAM, ("gcc", "c"), &["-Wl,--emit-relocs", "-Wl,--build-id=none"], folder);
    let (profile, bolted) = (folder.join("fdata"), folder.join("bolted"));
    let bolted_path = bolted.to_str().expect("scratch folders have plain names");
    std::fs::write(&profile, "1 main 0 1 step 0 0 3000\n1 step 0 1 helper 0 0 1000\n").expect("the folder can be written");
    let mut command = Command::new(bolt);
    command
        .arg(&linked)
        .args(["-o", bolted_path, "-reorder-blocks=ext-tsp", "-reorder-functions=cdsort"])
        .arg("-data")
        .arg(&profile);
    assert!(command.output().expect("it starts").status.success());
    let (output, _) = shrink(&bolted, &[], "output", folder);
    assert!(size(&bolted) > 4_000_000 && size(&output) < 30_000, "{} bytes of {}", size(&output), size(&bolted));
    assert_eq!(run(&mut Command::new(&linked), folder), run(&mut Command::new(&output), folder));
    let shuffled = folder.join("shuffled");
    relift_succeeds(relift().args(["optimize", "--shuffle", "3"]).arg(&bolted).arg("-o").arg(&shuffled), folder);
    assert_eq!(run(&mut Command::new(&linked), folder), run(&mut Command::new(&shuffled), folder));
}
