//! `.symtab` for moved code, so that `gdb`, `perf` and `nm` name it, and the sizes of `.dynsym`.
//!
//! **Method.** A symbol whose value is the start of a moved block gets the block's new address, a function symbol's size becomes what its
//! fragment has from there on. Every further fragment of a named function gets a local symbol of its own before the first global one, and
//! so does the jump that *guard* mode leaves at the old entry. All of these are `name.cold`, `name.cold.1` and so on, whatever their
//! temperature: that is how compilers call what is a part of a function and no function, and `gdb` and relift's own reader go by it. `gdb`
//! prints such a frame under the function's name and, unlike with `.part.0` or with the bare name, sets no second breakpoint there.
//!
//! Names that a program asks for by how they begin stay alone: Valgrind reads every symbol that begins with `_vg` as a request to itself (its `pub_tool_redir.h`), so that further fragments of such a function have no name.
//!
//! A clone is a function of its own: `name.relift.1` and so on, by the order of clones, and its further fragments are that name's parts.
//!
//! Exported symbols stay where pointers to them lead, the anchor in *guard* mode. Their sizes shrink to what is theirs there, or `dladdr`
//! and `gdb` would give their names to the code that took the rest of their old place.

use std::fmt::Write;

use lifter::Image;
use lifter::address::Va;
use lifter::address_index::AddressIndex;
use lifter::elf::image::{Sections, SymbolData};
use lifter::entity::{Block, EntityId, PrimaryMap, Section, Symbol};
use lifter::ir::{BlockFlags, Program};
use object::elf;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::clones::CloneId;
use crate::encode::Shapes;
use crate::materialize::{Out, OutFragment, OutProgram};
use crate::relink::addresses::Addresses;
use crate::relink::place::Placement;
use crate::relink::sections::SectionTable;
use crate::relink::unwind;

/// Everything placed, as far as symbols care.
#[derive(Copy, Clone)]
pub(crate) struct Placed<'a> {
    pub(crate) program: &'a Program,
    pub(crate) out: &'a OutProgram<'a>,
    pub(crate) shapes: &'a Shapes,
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

/// The names of a program: its own, or those in its debug file.
#[derive(Copy, Clone)]
pub(crate) struct Names<'s, 'a> {
    pub(crate) sections: Sections<'s, 'a>,
    pub(crate) symbols: &'s PrimaryMap<Symbol, SymbolData<'a>>,
}

/// Rewrites the symbol table and its strings. `moved_address` maps addresses of data that moved (notes behind the program headers).
pub(crate) fn rewrite(
    image: &Image<'_>,
    names: Names<'_, '_>,
    placed: Placed<'_>,
    table: &mut SectionTable<'_>,
    moved_address: &(dyn Fn(Va) -> Option<Va> + Sync),
) {
    let Some((symtab, header)) = names.sections.data.iter().find(|(_, s)| s.sh_type == elf::SHT_SYMTAB) else { return };
    let strtab: Section = EntityId::new(header.sh_link as usize);
    let num_locals = (header.sh_info as usize).min(names.symbols.len());
    let (strings, mut added) = (names.sections.bytes_of(strtab), Vec::new());
    let moved_address = |symbol: &SymbolData<'_>| {
        let va = Va(symbol.st_value);
        moved_address(va).or_else(|| in_unwind_tables(names.sections, table, symbol)).unwrap_or(va)
    };
    let rewritten = |symbol: &SymbolData<'_>| rewritten(placed, table, &moved_address, symbol);
    let symbols: Vec<Option<RawSymbol>> = names.symbols.as_slice().par_iter().map(rewritten).collect();
    let mut bytes = Vec::with_capacity(24 * symbols.len());
    symbols[..num_locals].iter().flatten().for_each(|symbol| symbol.write(&mut bytes));
    write_part_symbols((image, names), placed, table, (strings.len(), &mut added), &mut bytes);
    let num_locals_now = (bytes.len() / 24) as u32;
    symbols[num_locals..].iter().flatten().for_each(|symbol| symbol.write(&mut bytes));
    table.set_content(symtab, bytes, Some(num_locals_now));
    table.set_content(strtab, [strings, &added].concat(), None);
}

/// The new place of a name in the unwind tables: start-up code and linkers name where these begin and where they end.
fn in_unwind_tables(sections: Sections<'_, '_>, table: &SectionTable<'_>, symbol: &SymbolData<'_>) -> Option<Va> {
    let id: Section = EntityId::new(usize::from(symbol.st_shndx));
    let old = sections.data.get(id).filter(|section| unwind::SECTIONS[..2].contains(&section.name))?;
    let new = table.sections.iter().find(|section| section.source == Some(id))?;
    let end = old.end().0.checked_sub(symbol.st_value)?;
    match symbol.st_value == old.sh_addr.0 {
        true => Some(new.sh_addr),
        false => new.sh_size.checked_sub(end).filter(|_| end <= unwind::TERMINATOR).map(|distance| new.sh_addr + distance),
    }
}

/// A symbol of the input as it is in the output, if it is there.
fn rewritten(
    placed: Placed<'_>,
    table: &SectionTable<'_>,
    moved_address: &(dyn Fn(&SymbolData<'_>) -> Va + Sync),
    symbol: &SymbolData<'_>,
) -> Option<RawSymbol> {
    if symbol.has_address() && (is_dropped(placed, Va(symbol.st_value)) || is_inside(placed, symbol)) {
        return None;
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
        relocate(placed, table, || moved_address(symbol), &mut raw);
    }
    Some(raw)
}

/// Whether a name's code is not in the output.
fn is_dropped(placed: Placed<'_>, va: Va) -> bool {
    let Some(block) = placed.program.block_containing(va) else { return placed.program.unwind.is_replaced(va) };
    placed.out.placed[block].is_none() && placed.program.funcs[placed.program.func_of(block)].is_movable()
}

/// Whether a name of a split-off part would stand within its function, because both are one fragment now: what follows would bear that name.
fn is_inside(placed: Placed<'_>, symbol: &SymbolData<'_>) -> bool {
    if symbol.st_bind() != elf::STB_LOCAL || !symbol.name.contains(SUFFIX) {
        return false;
    }
    let Some(block) = placed.program.block_at(Va(symbol.st_value)) else { return false };
    let Some(out) = placed.out.placed[block] else { return false };
    let index = out.index() as u32;
    let fragment = &placed.out.fragments[placed.out.fragment_of(out)];
    let first = placed.out.origins[Out::new(fragment.blocks.start as usize)];
    let (first, data) = (&placed.program.blocks[first], &placed.program.blocks[block]);
    let is_entry = placed.program.funcs[first.func].entry == block || data.flags.contains(BlockFlags::ENTRY);
    index != fragment.blocks.start && !is_entry && first.range != data.range
}

/// A name in `.symtab` belongs to the code that runs, so unlike an exported one it leaves the anchor.
fn relocate(placed: Placed<'_>, table: &SectionTable<'_>, moved_address: impl Fn() -> Va, raw: &mut RawSymbol) {
    let old = Va(raw.st_value);
    let block = placed.program.block_at(old);
    let new = match block {
        Some(block) => placed.addresses.block(block),
        // What was laid out before may run into a function: then a name stands inside a block.
        None => placed.addresses.translate(old).unwrap_or_else(moved_address),
    };
    if new == old {
        return;
    }
    raw.st_value = new.0;
    raw.st_shndx = table.section_of(new).unwrap_or(raw.st_shndx);
    if raw.st_size != 0
        && let Some(end) = block.and_then(|block| placed.out.placed[block]).and_then(|out| fragment_end(placed, out))
    {
        raw.st_size = end - new;
    }
}

/// How many bytes from a moved block's identity on are its function's: the rest of its fragment, or the jump at an anchor.
pub(crate) fn size_at_identity(placed: Placed<'_>, block: Block, has_ibt: bool) -> Option<u64> {
    let end = fragment_end(placed, placed.out.placed[block]?)?;
    let data = &placed.program.blocks[block];
    Some(if data.flags.contains(BlockFlags::ANCHOR) { data.anchor_len(has_ibt) } else { end - placed.addresses.block(block) })
}

/// One past the fragment that holds an output block.
fn fragment_end(placed: Placed<'_>, out: Out) -> Option<Va> {
    let fragment = placed.out.fragment_of(out);
    let at = *placed.placement.fragments.get(fragment)?;
    Some(at + u64::from(placed.shapes.len_of(fragment)))
}

/// A place that needs a name: part of the function that a name stands for.
struct Part<'a> {
    of: &'a str,
    at: Va,
    size: u64,
    name: PartName,
}

/// What the name of a part is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum PartName {
    /// That of the function, with a suffix.
    Split,
    /// That of a clone, which this part has the entry of, or with a suffix.
    Clone { id: CloneId, is_entry: bool },
    /// Its own: it is no part of a function.
    Body { number: u32 },
}

impl PartName {
    fn is_whole(self) -> bool {
        matches!(self, PartName::Body { .. } | PartName::Clone { is_entry: true, .. })
    }
}

/// Appends the symbols of parts, and their names to strings before which there are `num_known` bytes.
fn write_part_symbols(
    (image, names): (&Image<'_>, Names<'_, '_>),
    placed: Placed<'_>,
    table: &SectionTable<'_>,
    (num_known, strings): (usize, &mut Vec<u8>),
    bytes: &mut Vec<u8>,
) {
    // The compiler may have named a part of the function so itself.
    let taken: FxHashSet<&str> =
        names.symbols.as_slice().par_iter().map(|s| s.name).filter(|name| name.contains(SUFFIX)).collect();
    let mut counts = FxHashMap::<&str, u32>::default();
    let mut name = String::new();
    let mut parts = parts((image, names), placed);
    parts.extend(anchors((image, names), placed));
    parts.extend(bodies(placed));
    parts.retain(|part| !part.of.starts_with(REQUEST));
    let clones = clone_names(&parts);
    for part in &parts {
        let of = match part.name {
            PartName::Clone { id, .. } => clones.get(&id).map_or(part.of, String::as_str),
            PartName::Split | PartName::Body { .. } => part.of,
        };
        let count = counts.entry(of).or_default();
        loop {
            name.clear();
            name.push_str(of);
            if let PartName::Body { number } = part.name {
                let _infallible = write!(name, ".relift.{number}");
            }
            if part.name.is_whole() {
                break;
            }
            name.push_str(SUFFIX);
            if *count > 0 {
                let _infallible = write!(name, ".{count}");
            }
            *count += 1;
            if !taken.contains(name.as_str()) {
                break;
            }
        }
        let st_name = (num_known + strings.len()) as u32;
        strings.extend_from_slice(name.as_bytes());
        strings.push(0);
        RawSymbol {
            st_name,
            st_info: (elf::STB_LOCAL << 4) | elf::STT_FUNC,
            st_other: 0,
            st_shndx: table.section_of(part.at).unwrap_or(elf::SHN_ABS),
            st_value: part.at.0,
            st_size: part.size,
        }
        .write(bytes);
    }
}

const SUFFIX: &str = ".cold";
/// What is no part of any function.
const BODIES: &str = "outlined";
/// How names begin by which files ask something of Valgrind.
const REQUEST: &str = "_vg";

/// Names of clones: those of one function are counted from 1.
fn clone_names<'a>(parts: &[Part<'a>]) -> FxHashMap<CloneId, String> {
    let entry = |part: &Part<'a>| match part.name {
        PartName::Clone { id, is_entry: true } => Some((id, part.of)),
        _ => None,
    };
    let mut entries: Vec<(CloneId, &str)> = parts.iter().filter_map(entry).collect();
    entries.sort_unstable();
    let mut counts = FxHashMap::<&str, u32>::default();
    let name = |(clone, of)| {
        let count = counts.entry(of).or_default();
        *count += 1;
        (clone, format!("{of}.relift.{count}"))
    };
    entries.into_iter().map(name).collect()
}

fn is_function(symbol: &&SymbolData<'_>) -> bool {
    symbol.has_address() && [elf::STT_FUNC, elf::STT_GNU_IFUNC].contains(&symbol.st_type()) && !symbol.name.is_empty()
}

/// Fragments that do not begin where a symbol is, each by the function whose symbol covers its first block: one function of the program
/// may be several that share code.
fn parts<'a>((image, names): (&'a Image<'_>, Names<'a, 'a>), placed: Placed<'a>) -> Vec<Part<'a>> {
    let mut functions: Vec<&SymbolData<'_>> = names.symbols.values().filter(is_function).collect();
    functions.par_sort_by_key(|s| s.st_value);
    // Apart from the symbols: a layout asks in an order of its own.
    let values: Vec<Va> = functions.iter().map(|s| Va(s.st_value)).collect();
    let by_value = AddressIndex::new(values.iter().copied());
    let part = |(index, fragment): (usize, &OutFragment)| {
        if fragment.clone.is_some_and(|clone| placed.out.is_body(clone)) {
            return None;
        }
        let lead_len = placed.out.lead_len(fragment);
        let at = placed.placement.fragments[index] + u64::from(lead_len);
        let first = placed.out.origins[Out::new(fragment.blocks.start as usize)];
        let start = placed.program.blocks[first].start;
        let func = &placed.program.funcs[fragment.func];
        let before = functions[..by_value.count_up_to(start, values.len(), |at| values[at])].last().copied();
        let covering = before.filter(|s| start.0 - s.st_value < s.st_size);
        let symbol = covering.or_else(|| func.symbol.and_then(|s| image.symbols.get(s)))?;
        let named = placed.program.block_at(Va(symbol.st_value)).map(|block| placed.addresses.block(block));
        let of = symbol.name.split(SUFFIX).next().unwrap_or(symbol.name);
        let size = u64::from(placed.shapes.len_of(index) - lead_len);
        let is_entry = |clone: CloneId| fragment.blocks.contains(&(placed.out.clone_entries[clone.index()].index() as u32));
        let name = fragment.clone.map_or(PartName::Split, |id| PartName::Clone { id, is_entry: is_entry(id) });
        (named != Some(at) && !of.is_empty()).then_some(Part { of, at, size, name })
    };
    placed.out.fragments.par_iter().enumerate().filter_map(part).collect()
}

/// What calls lead to that have arguments alike: one symbol for what lies side by side.
fn bodies(placed: Placed<'_>) -> Vec<Part<'static>> {
    let body = |(index, fragment): (usize, &OutFragment)| {
        let is_body = fragment.clone.is_some_and(|clone| placed.out.is_body(clone));
        let len = if is_body { placed.shapes.len_of(index) } else { placed.out.lead_len(fragment) };
        (len > 0).then_some((placed.placement.fragments[index], u64::from(len)))
    };
    let mut bodies: Vec<(Va, u64)> = placed.out.fragments.iter().enumerate().filter_map(body).collect();
    bodies.sort_unstable();
    bodies.dedup_by(|next, last| {
        let is_beside = last.0 + last.1 == next.0;
        last.1 += if is_beside { next.1 } else { 0 };
        is_beside
    });
    let part = |((at, size), number)| Part { of: BODIES, at, size, name: PartName::Body { number } };
    bodies.into_iter().zip(1..).map(part).collect()
}

/// The jumps at old entries that a symbol named.
fn anchors<'a>((image, names): (&'a Image<'_>, Names<'a, 'a>), placed: Placed<'a>) -> Vec<Part<'a>> {
    let anchor = |symbol: &'a SymbolData<'_>| {
        let block = placed.program.block_at(Va(symbol.st_value))?;
        let data = &placed.program.blocks[block];
        let is_anchor = data.flags.contains(BlockFlags::ANCHOR) && placed.addresses.moved(block).is_some();
        let of = symbol.name.split(SUFFIX).next().unwrap_or(symbol.name);
        is_anchor.then(|| Part { of, at: data.start, size: data.anchor_len(image.has_ibt), name: PartName::Split })
    };
    let mut anchors: Vec<Part<'a>> = names.symbols.as_slice().par_iter().filter(is_function).filter_map(anchor).collect();
    let mut seen = FxHashSet::default();
    anchors.retain(|anchor| seen.insert(anchor.at));
    anchors
}
