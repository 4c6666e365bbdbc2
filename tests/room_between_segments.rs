//! Files with a segment behind symbols and strings, as tools make that enlarge a file.

mod support;

use std::path::Path;

use object::elf::{PT_GNU_STACK, PT_LOAD};
use object::{Object, ObjectSection, ObjectSymbol};
use support::{compile_text, relift, relift_succeeds, rewritten_does_the_same, shuffled_does_the_same, size};

const PROGRAM: &str = r#"
#include <stdio.h>
__attribute__((noinline)) int first(int x) { __asm__ volatile(""); return x * 7 + 1; }
__attribute__((noinline)) int second(int x) { __asm__ volatile(""); return x % 5 ? first(x) : x; }
int main(int count, char **words) {
    for (int i = 0; i < 9; i++) printf("%d %s\n", second(i), words[count - 1] ? "is" : "is not");
    return 0;
}
"#;

const PROGRAM_HEADER: usize = 56;

/// Adds a segment of one page behind all that is there; its header takes the place of the stack's.
fn add_segment(program: &Path) {
    let mut bytes = std::fs::read(program).expect("it was compiled");
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let kind = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let count = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
    let headers: Vec<usize> = (0..count).map(|index| word(&bytes, 32) as usize + index * PROGRAM_HEADER).collect();
    let loads = headers.iter().filter(|&&at| kind(&bytes, at) == PT_LOAD);
    let end = loads.map(|&at| word(&bytes, at + 16) + word(&bytes, at + 40)).max().expect("something is loaded");
    let stack = *headers.iter().find(|&&at| kind(&bytes, at) == PT_GNU_STACK).expect("the linker tells of the stack");
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    let (offset, address) = (bytes.len() as u64, end.next_multiple_of(4096) + 4096);
    bytes.extend_from_slice(&[0x5a; 4096]);
    let header = [u64::from(PT_LOAD) | 4 << 32, offset, address, address, 4096, 4096, 4096];
    let header: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes[stack..stack + PROGRAM_HEADER].copy_from_slice(&header);
    std::fs::write(program, bytes).expect("it can be written");
}

#[test]
fn symbols_take_the_room_of_the_old_ones_where_a_segment_lies_behind_them() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let names: String = (0..600).map(|i| format!("int a_long_name_for_what_nothing_reads_{i};\n")).collect();
    let program = compile_text(&format!("{PROGRAM}{names}"), &["-O2", "-pie", "-fPIE"], folder.path(), "program");
    add_segment(&program);
    let output = folder.path().join("output");
    relift_succeeds(relift().arg("optimize").arg(&program).arg("-o").arg(&output), folder.path());
    let [before, after] = [size(&program), size(&output)];
    assert!(after < before + 4096, "{before} bytes became {after}");
    let bytes = std::fs::read(&output).expect("it was written");
    let file = object::File::parse(&*bytes).expect("it is a program");
    assert!(file.symbols().any(|symbol| symbol.name() == Ok("second")));
    let names = file.section_by_name(".strtab").and_then(|section| section.file_range()).expect("names of symbols are left");
    assert!(names.0 + names.1 <= before - 4096, "{names:?}");
    rewritten_does_the_same(&program, &["optimize"], folder.path());
    rewritten_does_the_same(&program, &["shrink"], folder.path());
    shuffled_does_the_same(&program, &["1", "2", "3"], folder.path());
}
