//! Programs that throw, run on written tables: all code is cut into slivers, each with an entry and a table of its own, and the
//! system's unwinder and personality routines find their way.
//!
//! The programs reserve room for the new sections in a constant; `PT_GNU_EH_FRAME` is pointed there.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

use lifter::elf::Unwind;
use lifter::{Image, Va};

use super::{Choices, Random, UnwindFragment, UnwindLayout, identity};

const CPP: &str = r#"
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <cstdlib>
__attribute__((section(".reserve"), used)) extern const char reserve[1 << 21] = {1};
static int alive;
struct Guard {
    std::string name;
    Guard(const char *n) : name(n) { alive++; }
    ~Guard() { std::printf("~%s", name.c_str()); alive--; }
};
struct Base { virtual ~Base() {} };
struct Derived : Base { int value; Derived(int v) : value(v) {} };
__attribute__((noinline)) void leaf(int n) {
    Guard guard("leaf");
    switch (n % 5) {
    case 0: throw n;
    case 1: throw Derived(n);
    case 2: throw std::runtime_error("run" + std::to_string(n));
    case 3: throw "text";
    }
    std::printf("no throw\n");
}
__attribute__((noinline)) int middle(int n) {
    Guard a("a");
    try {
        Guard b("b");
        leaf(n);
    } catch (const Derived &d) {
        Guard c("c");
        try {
            leaf(d.value + 1);
        } catch (const std::exception &e) {
            std::printf(" inner %s", e.what());
            throw;
        }
    } catch (int v) {
        std::printf(" int %d", v);
        return v;
    }
    return -1;
}
__attribute__((noinline)) void silent(int n) noexcept { leaf(n); }
/* A specification: a negative filter, a list behind the type table. */
__attribute__((noinline)) void only_some(int n) throw(int, Derived) { leaf(n); }
int main(int argc, char **) {
    for (int n = 0; n < 10; n++) {
        try {
            std::printf(" = %d\n", middle(n));
        } catch (const std::runtime_error &e) {
            std::printf(" outer %s alive %d\n", e.what(), alive);
        } catch (...) {
            std::printf(" anything alive %d\n", alive);
        }
    }
    std::set_unexpected([] { std::printf(" unexpected"); throw 42; });
    for (int n = 0; n < 5; n++) {
        try {
            only_some(n);
        } catch (int v) {
            std::printf(" thrown %d\n", v);
        } catch (const Derived &d) {
            std::printf(" derived %d\n", d.value);
        }
    }
    std::set_terminate([] { std::printf("terminated\n"); std::fflush(stdout); std::_Exit(7); });
    silent(argc - 1);
    return 0;
}
"#;

const RUST: &str = r#"
#[used]
#[unsafe(link_section = ".reserve")]
static RESERVE: [u8; 1 << 24] = [1; 1 << 24];
struct Guard(&'static str);
impl Drop for Guard {
    fn drop(&mut self) {
        println!("drop {}", self.0);
    }
}
#[inline(never)]
fn fails(n: usize) -> usize {
    let _guard = Guard("leaf");
    let items = vec![1usize, 2, 3];
    items[n] + n
}
fn main() {
    std::panic::set_hook(Box::new(|_| println!("hook")));
    for n in 0..6 {
        let caught = std::panic::catch_unwind(|| {
            let _outer = Guard("outer");
            fails(n)
        });
        println!("{n}: {:?}", caught.ok());
    }
}
"#;

/// Cuts all code into slivers of random length and puts new tables for them into the reserve.
fn cut_to_slivers(path: &Path, seed: u64) {
    let input = std::fs::read(path).unwrap();
    let image = Image::parse(&input).unwrap();
    let unwind = Unwind::parse(&image).unwrap();
    assert!(unwind.fdes.values().all(|f| f.opaque_lsda.is_none()));
    let mut random = Random(seed);
    let mut fragments: Vec<UnwindFragment> = Vec::new();
    for fde in unwind.fdes.values() {
        let mut start = fde.start;
        while start < fde.end {
            let end = Va((start.0 + 4 + random.below(60)).min(fde.end.0));
            fragments.push(identity(start, end));
            start = end;
        }
    }
    let layout = UnwindLayout::plan(&unwind, &fragments, Choices::default(), |_, va| Some(va)).unwrap();
    let reserve = &image.sections[image.section_named(".reserve").unwrap()];
    let table_at = reserve.sh_addr.align_up(8);
    let frame_at = (table_at + layout.except_table_len).align_up(8);
    let hdr_at = (frame_at + layout.eh_frame_len).align_up(8);
    let end = hdr_at + layout.eh_frame_hdr_len;
    assert!(end <= reserve.end(), "the reserve is too small by {}", end.distance(reserve.end()));
    let written = layout.write(table_at, frame_at, hdr_at).unwrap();
    let mut output = input.clone();
    for (at, bytes) in [(table_at, &written.except_table), (frame_at, &written.eh_frame), (hdr_at, &written.eh_frame_hdr)] {
        let offset = image.file_offset(at).unwrap().0 as usize;
        output[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    // The old sections must not be what the program finds.
    for name in [".eh_frame", ".gcc_except_table", ".eh_frame_hdr"] {
        let section = &image.sections[image.section_named(name).unwrap()];
        output[section.sh_offset.0 as usize..][..section.sh_size as usize].fill(0xfe);
    }
    let index = image.segments.iter().position(|s| s.p_type == object::elf::PT_GNU_EH_FRAME).unwrap();
    let header = &mut output[image.e_phoff.0 as usize + index * 56..][..56];
    header[8..16].copy_from_slice(&image.file_offset(hdr_at).unwrap().0.to_le_bytes());
    for field in [16, 24] {
        header[field..field + 8].copy_from_slice(&hdr_at.0.to_le_bytes());
    }
    for field in [32, 40] {
        header[field..field + 8].copy_from_slice(&layout.eh_frame_hdr_len.to_le_bytes());
    }
    std::fs::write(path, output).unwrap();
}

fn run(path: &Path) -> Output {
    loop {
        match Command::new(path).output() {
            // It was open for writing when a neighboring test started a process, and is there until that begins its own program.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            result => return result.unwrap(),
        }
    }
}

/// Builds, runs, cuts, runs again; what both runs say must be equal. Gives the standard output, or `None` without the compiler.
fn check_variant(compiler: &str, arguments: &[&str], source: &str, extension: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let source_path = directory.path().join(format!("program.{extension}"));
    let program = directory.path().join("program");
    std::fs::write(&source_path, source).unwrap();
    let build = Command::new(compiler).args(arguments).arg(&source_path).arg("-o").arg(&program).output().ok()?;
    assert!(build.status.success(), "{compiler} {arguments:?}: {}", String::from_utf8_lossy(&build.stderr));
    let expected = run(&program);
    for seed in 0..3 {
        cut_to_slivers_of_copy(&program, seed, &expected, compiler, arguments);
    }
    Some(String::from_utf8(expected.stdout).unwrap())
}

fn cut_to_slivers_of_copy(program: &Path, seed: u64, expected: &Output, compiler: &str, arguments: &[&str]) {
    let copy = program.with_extension(seed.to_string());
    std::fs::copy(program, &copy).unwrap();
    cut_to_slivers(&copy, seed);
    let found = run(&copy);
    let told = |o: &Output| (o.status.code(), String::from_utf8_lossy(&o.stdout).into_owned());
    assert_eq!(told(expected), told(&found), "{compiler} {arguments:?} seed {seed}");
}

#[test]
fn exceptions_find_their_handlers_through_slivers_of_code() {
    let variants: [(&str, &[&str]); 5] = [
        ("g++", &["-O2", "-pie", "-fPIE"]),
        ("g++", &["-O2", "-no-pie", "-fno-pie", "-static-libgcc", "-static-libstdc++"]),
        ("g++", &["-O0", "-pie", "-fPIE"]),
        ("clang++", &["-O2", "-pie", "-fPIE"]),
        ("clang++", &["-O2", "-no-pie", "-fno-pie"]),
    ];
    for (compiler, arguments) in variants {
        let arguments = [arguments, &["-std=c++14", "-w"]].concat();
        if let Some(said) = check_variant(compiler, &arguments, CPP, "cc") {
            assert!(
                said.contains("outer run2") && said.contains("unexpected thrown 42") && said.ends_with("terminated\n"),
                "{said}"
            );
        }
    }
}

#[test]
fn rust_panics_unwind_through_slivers_of_code() {
    for arguments in [&["-Copt-level=2", "--edition=2024"][..], &["-Copt-level=0", "--edition=2024"]] {
        if let Some(said) = check_variant("rustc", arguments, RUST, "rs") {
            assert!(said.contains("drop outer") && said.ends_with("5: None\n"), "{said}");
        }
    }
}
