//! Sections of dynamic symbols: `strip` renumbers sections, but not in what is loaded.

use super::layout::link;
use super::*;

const EXPORTING: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    mov word(%rip), %edi
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size _start, . - _start
    .data
    .globl word
    .type word, @object
word:
    .long 7
    .size word, 4
"#;

/// With a section that is not loaded.
const GONE: &str = "    .section .debug_gone, \"\"\n    .long 1\n";
const ABSOLUTE: u16 = 0xfff1;

fn section_index(file: &[u8], name: &str) -> u16 {
    Image::parse(file).unwrap().sections.iter().position(|section| section.name == name).unwrap() as u16
}

/// The program, of which the exported word is said to be in that section.
fn with_section(file: &[u8], section: u16) -> Vec<u8> {
    let image = Image::parse(file).unwrap();
    let index = (0..image.elf.dynsyms.len()).find(|&index| image.dynamic_symbol_name(index) == "word").unwrap();
    let at = image.section(".dynsym").unwrap().offset as usize + 24 * index + 6;
    let mut bytes = file.to_vec();
    bytes[at..at + 2].copy_from_slice(&section.to_le_bytes());
    bytes
}

fn verdict(input: &[u8], output: &[u8]) -> Vec<ViolationKind> {
    kinds(&check(input, output).unwrap())
}

#[test]
fn a_dynamic_symbol_of_a_section_that_is_gone_is_in_another_that_is_not_loaded() {
    let Some(whole) = link(&format!("{EXPORTING}{GONE}"), "-pie -Wl,-E") else { return };
    let output = link(EXPORTING, "-pie -Wl,-E").unwrap();
    let input = with_section(&whole, section_index(&whole, ".debug_gone"));
    let names = section_index(&output, ".shstrtab");
    assert_eq!(verdict(&input, &with_section(&output, names)), []);
    // Undefined, loaded, not there, and of a kind to which a loader adds no base.
    for wrong in [0, section_index(&output, ".text"), names + 1, ABSOLUTE] {
        assert_eq!(verdict(&input, &with_section(&output, wrong)), [ViolationKind::Symbol], "{wrong}");
    }
}

#[test]
fn a_dynamic_symbol_of_a_section_that_is_there_is_in_it() {
    let Some(input) = link(&format!("{EXPORTING}{GONE}"), "-pie -Wl,-E") else { return };
    let said = with_section(&input, section_index(&input, ".debug_gone"));
    assert_eq!(verdict(&said, &said), []);
    assert_eq!(verdict(&said, &with_section(&input, section_index(&input, ".shstrtab"))), [ViolationKind::Symbol]);
    assert_eq!(verdict(&input, &with_section(&input, ABSOLUTE)), [ViolationKind::Symbol]);
    // A number that stands for no section may be any, but for the special ones.
    let stale = with_section(&input, 0x100);
    assert_eq!(verdict(&stale, &stale), []);
    assert_eq!(verdict(&stale, &with_section(&input, ABSOLUTE)), [ViolationKind::Symbol]);
}
