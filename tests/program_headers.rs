//! Room for one program header more, where linkers leave none.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use object::elf::PT_NOTE;
use object::read::elf::{ElfFile64, ProgramHeader};
use support::{End, SUCCESS, compile, compile_text, installed, relift, relift_succeeds, run, shuffled_does_the_same, skipped};

/// Code right behind the program headers and the build-id, and all that may move elsewhere.
const SCRIPT: &str = r#"
PHDRS {
    text PT_LOAD FILEHDR PHDRS FLAGS(5);
    constants PT_LOAD FLAGS(4);
    data PT_LOAD FLAGS(6);
    note PT_NOTE FLAGS(4);
    dynamic PT_DYNAMIC FLAGS(6);
    unwind PT_GNU_EH_FRAME FLAGS(4);
    stack PT_GNU_STACK FLAGS(6);
}
SECTIONS {
    . = SIZEOF_HEADERS;
    .note.gnu.build-id : { *(.note.gnu.build-id) } :text :note
    .init : { KEEP(*(.init)) } :text
    .plt : { *(.plt) } :text
    .plt.got : { *(.plt.got) } :text
    .plt.sec : { *(.plt.sec) } :text
    .text : { *(.text .text.*) } :text
    .fini : { KEEP(*(.fini)) } :text
    . = ALIGN(0x1000);
    .hash : { *(.hash .gnu.hash) } :constants
    .dynsym : { *(.dynsym) } :constants
    .dynstr : { *(.dynstr) } :constants
    .gnu.version : { *(.gnu.version) } :constants
    .gnu.version_r : { *(.gnu.version_r) } :constants
    .rela.dyn : { *(.rela.data* .rela.got .rela.init* .rela.fini* .rela.bss) } :constants
    .rela.plt : { *(.rela.plt) } :constants
    .rodata : { *(.rodata .rodata.*) } :constants
    .gcc_except_table : { *(.gcc_except_table .gcc_except_table.*) } :constants
    .eh_frame_hdr : { *(.eh_frame_hdr) } :constants :unwind
    .eh_frame : { KEEP(*(.eh_frame)) } :constants
    . = ALIGN(0x1000);
    .init_array : { KEEP(*(.init_array .init_array.*)) } :data
    .fini_array : { KEEP(*(.fini_array .fini_array.*)) } :data
    .data.rel.ro : { *(.data.rel.ro .data.rel.ro.*) } :data
    .dynamic : { *(.dynamic) } :data :dynamic
    .got : { *(.got) } :data
    .got.plt : { *(.got.plt) } :data
    .data : { *(.data .data.*) } :data
    .bss : { *(.bss .bss.*) } :data
    /DISCARD/ : { *(.note.gnu.property .note.ABI-tag .note.GNU-stack) *(.comment) }
}
"#;

const LIBRARY: &str = r#"
#include <stdexcept>
#include <string>
static __attribute__((noinline)) int checked(int x) { if (x % 7 == 6) throw std::runtime_error("six"); return x * 3; }
extern "C" int choose(int x) {
    switch (x % 9) {
    case 0: return checked(x + 1);
    case 1: return checked(x * 2);
    case 2: return checked(x - 1) ^ 5;
    case 3: return x << 2;
    case 4: return checked(x + 4) - x;
    case 5: return std::to_string(x).size();
    case 6: return checked(x);
    default: return x;
    }
}
"#;

/// Catches what the library throws, which the unwinder finds by the program headers that the loader gives out.
const PROGRAM: &str = r#"
#include <cstdio>
#include <stdexcept>
extern "C" int choose(int x);
int main() {
    int sum = 0, caught = 0;
    for (int i = 0; i < 200; i++) {
        try { sum += choose(i); } catch (const std::runtime_error &) { caught++; }
    }
    std::printf("%d %d\n", sum, caught);
    return 42;
}
"#;

/// How many program headers there are, and how many of them are notes.
fn headers(library: &Path) -> (usize, usize) {
    let bytes = std::fs::read(library).expect("it was written");
    let file: ElfFile64<'_> = ElfFile64::parse(&*bytes).expect("it is a library");
    let all = file.elf_program_headers();
    (all.len(), all.iter().filter(|header| header.p_type(file.endian()) == PT_NOTE).count())
}

fn build(script: &str, folder: &Path) -> (PathBuf, PathBuf) {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("the folder can be written");
        path
    };
    let (script, source, main) = (write("script", script), write("library.cc", LIBRARY), write("main.cc", PROGRAM));
    let (library, program) = (folder.join("libchoose.so"), folder.join("program"));
    let linked =
        [format!("-Wl,-T,{}", script.display()), format!("-L{}", folder.display()), format!("-Wl,-rpath,{}", folder.display())];
    compile("g++", &["-O2", "-fPIC", "-shared", &linked[0], "-Wl,-z,norelro"], &[&source], &library).expect("it links");
    compile("g++", &["-O2", &linked[1], &linked[2]], &[&main, &library], &program).expect("it links");
    (library, program)
}

#[test]
fn a_library_whose_code_follows_the_program_headers_gives_up_that_of_its_build_id_and_does_the_same_in_every_form() {
    if !installed("g++") {
        return skipped("there is no g++");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let (library, program) = build(SCRIPT, folder);
    let original = folder.join("original.so");
    std::fs::copy(&library, &original).expect("it can be copied");
    let run_it = || run(&mut Command::new(&program), folder);
    let expected = run_it();
    assert_eq!(headers(&original).1, 1);
    assert_eq!(expected.end, End::Exit(SUCCESS), "{expected:?}");
    let rewrite = |form: &[&str], input: &Path| {
        let output = folder.join("output.so");
        relift_succeeds(relift().args(form).arg(input).arg("-o").arg(&output), folder);
        std::fs::rename(&output, &library).expect("it can be put there");
        assert_eq!(run_it(), expected, "{form:?}");
    };
    for seed in ["1", "2", "3"] {
        rewrite(&["optimize", "--shuffle", seed], &original);
        assert_eq!(headers(&library), (headers(&original).0, 0), "seed {seed}");
    }
    if installed("strip") {
        assert!(Command::new("strip").arg(&library).status().expect("strip starts").success());
        assert_eq!(run_it(), expected, "stripped");
    }
    let once = folder.join("once.so");
    std::fs::copy(&library, &once).expect("it can be copied");
    rewrite(&["optimize", "--shuffle", "4"], &once);
    rewrite(&["shrink"], &once);
    let profile = folder.join("profile").display().to_string();
    rewrite(&["instrument", "--profile", &profile], &original);
    rewrite(&["optimize", "-p", &profile], &original);
}

/// As Zig's linker lays out: the first segment holds the program headers and ends with them.
#[test]
fn the_segment_of_the_program_headers_grows_with_them() {
    if !installed("g++") {
        return skipped("there is no g++");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let own = "table PT_PHDR PHDRS FLAGS(4);\n    headers PT_LOAD FILEHDR PHDRS FLAGS(4);\n    text PT_LOAD FLAGS(5);";
    let script = SCRIPT.replace("text PT_LOAD FILEHDR PHDRS FLAGS(5);", own).replace(". = SIZEOF_HEADERS;", ". = 0x1000;");
    let (library, program) = build(&script, folder);
    let original = folder.join("original.so");
    std::fs::copy(&library, &original).expect("it can be copied");
    let expected = run(&mut Command::new(&program), folder);
    assert_eq!(expected.end, End::Exit(SUCCESS), "{expected:?}");
    for form in [&["optimize", "--shuffle", "1"][..], &["optimize", "--shuffle", "2"], &["shrink"], &["shrink", "--strip"]] {
        let output = folder.join("output.so");
        relift_succeeds(relift().args(form).arg(&original).arg("-o").arg(&output), folder);
        std::fs::rename(&output, &library).expect("it can be put there");
        assert_eq!(run(&mut Command::new(&program), folder), expected, "{form:?}");
    }
}

#[test]
fn a_note_of_properties_alone_gives_its_entry_to_a_new_segment() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let text = "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 7); return 42; }";
    let flags = ["-O2", "-fPIE", "-pie", "-fcf-protection=full", "-Wl,--build-id=none"];
    let program = compile_text(text, &flags, folder, "program");
    shuffled_does_the_same(&program, &["1", "2"], folder);
}
