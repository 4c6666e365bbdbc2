//! `.symtab` for moved code, so that `gdb`, `perf` and `nm` name it.
//!
//! **Method.** A symbol whose value is the start of a moved block gets the block's new address; a function symbol's size becomes what its
//! first fragment has from there on. Every further fragment of a named function gets a local symbol of its own, `name.cold` (or
//! `name.part.N` where it is not cold), before the first global one.

use lifter::Image;
use lifter::address::Va;
use lifter::entity::Section;
use lifter::ir::Program;
use object::elf;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::encode::FragmentCode;
use crate::materialize::OutProgram;
use crate::plan::Temperature;
use crate::relink::addresses::Addresses;
use crate::relink::place::Placement;
use crate::relink::sections::SectionTable;

/// Everything placed, as far as symbols care.
#[derive(Copy, Clone)]
pub(crate) struct Placed<'a> {
    pub(crate) program: &'a Program,
    pub(crate) out: &'a OutProgram,
    pub(crate) codes: &'a [FragmentCode],
    pub(crate) placement: &'a Placement,
    pub(crate) addresses: &'a Addresses<'a>,
}

#[derive(Copy, Clone)]
struct RawSymbol {
    st_name: u32,
    st_info: u8,
    st_other: u8,
    st_shndx: u16,
    st_value: u64,
    st_size: u64,
}

impl RawSymbol {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.st_name.to_le_bytes());
        bytes.extend_from_slice(&[self.st_info, self.st_other]);
        bytes.extend_from_slice(&self.st_shndx.to_le_bytes());
        bytes.extend_from_slice(&self.st_value.to_le_bytes());
        bytes.extend_from_slice(&self.st_size.to_le_bytes());
    }
}

/// Rewrites the symbol table and its strings. `moved_address` maps addresses of data that moved (notes behind the program headers).
pub(crate) fn rewrite(image: &Image<'_>, placed: Placed<'_>, table: &mut SectionTable, moved_address: &dyn Fn(Va) -> Option<Va>) {
    let Some((symtab, header)) = image.sections.iter().find(|(_, s)| s.sh_type == elf::SHT_SYMTAB) else { return };
    let strtab: Section = lifter::entity::EntityId::new(header.sh_link as usize);
    let num_locals = (header.sh_info as usize).min(image.symbols.len());
    let mut strings = image.section_bytes(strtab).to_vec();
    let mut bytes = Vec::with_capacity(24 * image.symbols.len());
    for (index, symbol) in image.symbols.values().enumerate() {
        if index == num_locals {
            write_fragment_symbols(image, placed, table, &mut strings, &mut bytes);
        }
        let mut raw = RawSymbol {
            st_name: symbol.st_name,
            st_info: symbol.st_info,
            st_other: symbol.st_other,
            st_shndx: table.remap(symbol.st_shndx),
            st_value: symbol.st_value,
            st_size: symbol.st_size,
        };
        if symbol.has_address() {
            relocate(placed, table, moved_address, &mut raw);
        }
        raw.write(&mut bytes);
    }
    if num_locals == image.symbols.len() {
        write_fragment_symbols(image, placed, table, &mut strings, &mut bytes);
    }
    let num_added = bytes.len() / 24 - image.symbols.len();
    table.set_content(symtab, bytes, Some((num_locals + num_added) as u32));
    table.set_content(strtab, strings, None);
}

fn relocate(placed: Placed<'_>, table: &SectionTable, moved_address: &dyn Fn(Va) -> Option<Va>, raw: &mut RawSymbol) {
    let old = Va(raw.st_value);
    let block = placed.program.block_at(old);
    let new = match block {
        Some(block) => placed.addresses.identity(block),
        None => moved_address(old).unwrap_or(old),
    };
    if new == old {
        return;
    }
    raw.st_value = new.0;
    raw.st_shndx = table.section_of(new).unwrap_or(raw.st_shndx);
    if raw.st_size != 0
        && let Some(end) = block.and_then(|b| placed.out.placed[b]).and_then(|out| fragment_end(placed, out))
    {
        raw.st_size = end - new;
    }
}

/// One past the fragment that holds an output block.
fn fragment_end(placed: Placed<'_>, out: crate::materialize::Out) -> Option<Va> {
    use lifter::entity::EntityId;
    let index = out.index() as u32;
    let fragment = placed.out.fragments.partition_point(|f| f.blocks.end <= index);
    let at = *placed.placement.fragments.get(fragment)?;
    Some(at + placed.codes[fragment].bytes.len() as u64)
}

fn write_fragment_symbols(
    image: &Image<'_>,
    placed: Placed<'_>,
    table: &SectionTable,
    strings: &mut Vec<u8>,
    bytes: &mut Vec<u8>,
) {
    // The compiler may have named a part of the function so itself.
    let is_suffixed = |name: &&str| name.contains(".cold") || name.contains(".part.");
    let mut taken: FxHashSet<String> = image.symbols.values().map(|s| s.name).filter(is_suffixed).map(str::to_owned).collect();
    let mut parts = FxHashMap::<lifter::entity::Func, u32>::default();
    for (index, fragment) in placed.out.fragments.iter().enumerate() {
        let func = &placed.program.funcs[fragment.func];
        let Some(name) = func.symbol.and_then(|s| image.symbols.get(s)).map(|s| s.name) else { continue };
        let at = placed.placement.fragments[index];
        // In *guard* mode the function's own symbol stays with the jump at the old entry, and what it jumps to is a part.
        // What stands before an entry in the middle of a fragment needs a name too.
        let holds_symbol = placed.addresses.identity(func.entry) == at;
        if holds_symbol || name.is_empty() {
            continue;
        }
        let part = parts.entry(fragment.func).or_default();
        let part_name = loop {
            let candidate = match (fragment.temperature, *part) {
                (Temperature::Cold, 0) => format!("{name}.cold"),
                (Temperature::Cold, n) => format!("{name}.cold.{n}"),
                (_, n) => format!("{name}.part.{n}"),
            };
            *part += 1;
            if taken.insert(candidate.clone()) {
                break candidate;
            }
        };
        let st_name = strings.len() as u32;
        strings.extend_from_slice(part_name.as_bytes());
        strings.push(0);
        RawSymbol {
            st_name,
            st_info: (elf::STB_LOCAL << 4) | elf::STT_FUNC,
            st_other: 0,
            st_shndx: table.section_of(at).unwrap_or(elf::SHN_ABS),
            st_value: at.0,
            st_size: placed.codes[index].bytes.len() as u64,
        }
        .write(bytes);
    }
}
