//! What BOLT has left under other names beside what it wrote: tables of the unwinder, and the old bodies of functions.
//!
//! **Rule.** A function of the old text that the walk does not reach and that has no symbol, though others have, is the old body of one that BOLT has written elsewhere, for it gives symbols to the new body. Such a function may be missing, whatever
//! other old bodies lead to it.
//! As for the tables: neither loader nor unwinder is led to them, so an output may use their room for something else, if nothing of it holds an address in them: no instruction, no word that the loader writes, no symbol that
//! it looks up. Exception tables are reached from frame descriptions too, and compared with them.

use goblin::elf::Sym;

use crate::image::{Image, Section, Slot};
use crate::leftover::each_instruction;
use crate::report::{Violation, ViolationKind};
use crate::unwind::Fde;
use crate::walk::{Side, Walk, joined};

const NAMES: [&str; 3] = [".bolt.org.eh_frame", ".bolt.org.eh_frame_hdr", ".bolt.org.gcc_except_table"];

/// Whether a section is such a table.
pub(crate) fn is_left_behind(section: &Section<'_>) -> bool {
    section.is_alloc() && !section.is_code() && NAMES.contains(&section.name)
}

const OLD_TEXT: &str = ".bolt.org.text";
/// What the old text is called in an output.
const REWRITTEN_TEXT: &str = ".text.org";

/// Whether a section of the output is what one of the input was.
pub(crate) fn is_same_section(input: &str, output: &str) -> bool {
    input == output || input == OLD_TEXT && output == REWRITTEN_TEXT
}

/// How the names of what is at the old place of a function go on.
const OLD_NAME: &str = ".org.";

/// The frame descriptions of the old text, by number, whose code no symbol covers.
pub(crate) fn unnamed(side: &Side<'_>) -> Vec<u32> {
    let image = &side.image;
    let Some(text) = image.section(OLD_TEXT).filter(|_| !image.elf.syms.is_empty()) else { return Vec::new() };
    let symbols = image.elf.syms.iter().filter(|symbol| symbol.st_shndx != 0 && symbol.st_size > 0);
    let is_old = |symbol: &Sym| image.elf.strtab.get_at(symbol.st_name).is_some_and(|name| name.contains(OLD_NAME));
    let named = joined(symbols.filter(|symbol| !is_old(symbol)).map(|symbol| (symbol.st_value, symbol.st_size)).collect());
    let is_named = |fde: &Fde| {
        let before = named.partition_point(|range| range.0 < fde.end);
        named[..before].last().is_some_and(|range| fde.start < range.1)
    };
    let old = side.unwind.fdes.iter().zip(0..).filter(|(fde, _)| text.address <= fde.start && fde.end <= text.end());
    old.filter(|(fde, _)| !is_named(fde)).map(|(_, number)| number).collect()
}

/// The old bodies in the input, as starts and ends, ascending. Asked when the walk is over.
pub(crate) fn old_bodies(walk: &Walk<'_, '_>) -> Vec<(u64, u64)> {
    let input = walk.input;
    let is_reached = |fde: &Fde| {
        let mut indexes = (fde.start..fde.end).map_while(|address| input.code.index(address));
        indexes.any(|index| walk.relation.seen.contains(index))
    };
    let unnamed = unnamed(input).into_iter().map(|number| &input.unwind.fdes[number as usize]);
    unnamed.filter(|fde| !is_reached(fde)).map(|fde| (fde.start, fde.end)).collect()
}

pub(crate) fn check(input: &Image<'_>, output: &Side<'_>, violations: &mut Vec<Violation>) {
    let is_gone = |section: &&Section<'_>| {
        let bytes = input.section_bytes(section);
        is_left_behind(section) && output.image.at(section.address, bytes.len()) != Some(bytes)
    };
    let gone: Vec<&Section<'_>> = input.sections.iter().filter(is_gone).collect();
    if gone.is_empty() {
        return;
    }
    let mut note = |place: u64, address: u64, what: &str| {
        if let Some(section) = gone.iter().find(|section| (section.address..section.end()).contains(&address)) {
            let message = format!("{what} names {address:#x} in {}, which is gone", section.name);
            violations.push(Violation::new(ViolationKind::DataChanged, place, message));
        }
    };
    each_instruction(output, |place, inst| {
        if inst.disp > 0 {
            note(place, output.operand(place, inst), "an instruction");
        }
    });
    for &(place, slot) in &output.image.slots {
        if let Slot::Relative(address) = slot {
            note(place, address, "a relocated word");
        }
    }
    for symbol in output.image.elf.dynsyms.iter().filter(|symbol| symbol.st_shndx != 0) {
        note(symbol.st_value, symbol.st_value, "an exported symbol");
    }
}
