//! What the linker knew: fields that name places, entries of jump tables, functions.
//!
//! Nothing here looks at what was lifted. A pc-relative word of data that names code is an entry of a jump table: the linker stored `target - table`, and
//! the addend makes up for the entry's place in the table, so the table's start has to be found. It is a place that an instruction names, within the
//! unbroken run of such words, and the one by which the word leads into the function that the instruction is in.

use object::elf;

use crate::address::Va;
use crate::elf::Image;
use crate::elf::image::{SectionData, StaticReloc, SymbolData};
use crate::entity::{EntityId, Section};

/// A file with its relocations and symbols.
#[derive(Debug)]
pub(super) struct Oracle<'i> {
    pub(super) image: &'i Image<'i>,
    /// `(place, instruction)`: what relocated fields of instructions name outside code, ascending.
    named: Vec<(Va, Va)>,
    /// By their symbols, ascending.
    functions: Vec<Function<'i>>,
    /// `(end, start)` of the same, ascending.
    ends: Vec<(Va, Va)>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Function<'i> {
    start: Va,
    end: Va,
    /// What all parts of a function share.
    name: &'i str,
}

impl<'i> Oracle<'i> {
    pub(super) fn new(image: &'i Image<'i>) -> Self {
        let is_function = |s: &&SymbolData<'_>| s.has_address() && s.st_type() == elf::STT_FUNC && s.st_size > 0;
        let function = |s: &SymbolData<'i>| Function {
            start: Va(s.st_value),
            end: Va(s.st_value.saturating_add(s.st_size)),
            name: s.name.split(".cold").next().unwrap_or(s.name),
        };
        let mut functions: Vec<Function<'_>> = image.symbols.values().filter(is_function).map(function).collect();
        functions.sort();
        let mut ends: Vec<(Va, Va)> = functions.iter().map(|f| (f.end, f.start)).collect();
        ends.sort();
        let mut oracle = Self { image, named: Vec::new(), functions, ends };
        let mut named: Vec<(Va, Va)> = oracle
            .code_sections()
            .flat_map(|s| image.static_relocs_in(s.sh_addr, s.end()))
            .filter_map(|reloc| Some((place_of_field(image, reloc)?, reloc.at)))
            .filter(|(place, _)| !image.is_executable(*place))
            .collect();
        named.sort();
        oracle.named = named;
        oracle
    }

    pub(super) fn code_sections(&self) -> impl Iterator<Item = &SectionData<'i>> {
        self.image.sections.values().filter(|s| s.is_alloc() && s.is_executable())
    }

    /// Sections of data that are patched word by word; the unwind tables are written anew from what they say.
    pub(super) fn data_sections(&self) -> impl Iterator<Item = &SectionData<'i>> {
        let is_rebuilt = |name: &str| [".eh_frame", ".eh_frame_hdr"].contains(&name) || name.starts_with(".gcc_except_table");
        self.image.sections.values().filter(move |s| s.is_alloc() && !s.is_executable() && !is_rebuilt(s.name))
    }

    pub(super) fn is_relocated(&self, va: Va) -> bool {
        !self.image.static_relocs_in(va, va + 1).is_empty()
    }

    /// Whether an address is in code that the compiler made.
    pub(super) fn is_compiled(&self, va: Va) -> bool {
        self.image.section_at(va).is_some_and(|section| self.image.is_movable_code_section(section))
    }

    /// Whether the relocation's symbol lies in code that the compiler made.
    pub(super) fn names_code(&self, reloc: &StaticReloc) -> bool {
        let Some(symbol) = self.image.symbols.get(reloc.symbol) else { return false };
        let section = Section::new(usize::from(symbol.st_shndx));
        symbol.is_defined() && self.image.sections.get(section).is_some() && self.image.is_movable_code_section(section)
    }

    /// Addresses of function symbols in compiled code, ascending.
    pub(super) fn starts(&self) -> Vec<Va> {
        let is_function = |t: u8| [elf::STT_FUNC, elf::STT_GNU_IFUNC].contains(&t);
        let functions = self.image.symbols.values().filter(|s| s.has_address() && is_function(s.st_type()));
        let mut starts: Vec<Va> = functions.map(|s| Va(s.st_value)).filter(|&va| self.is_compiled(va)).collect();
        starts.sort();
        starts.dedup();
        starts
    }

    /// `(word, table)` of all pc-relative words of a section that name code.
    pub(super) fn differences(&self, section: &SectionData<'_>) -> Vec<(Va, Va)> {
        let mut found = Vec::new();
        let mut run_start = Va(0);
        let mut run_end = Va(0);
        for reloc in self.image.static_relocs_in(section.sh_addr, section.end()) {
            let is_relative = [elf::R_X86_64_PC32, elf::R_X86_64_PLT32].contains(&reloc.r_type);
            if !is_relative || !self.names_code(reloc) {
                continue;
            }
            if reloc.at != run_end {
                run_start = reloc.at;
            }
            run_end = reloc.at + 4;
            found.push((reloc.at, self.table_of(reloc.at, run_start)));
        }
        found
    }

    /// The start of the table that a word belongs to: the last place before it by which it leads into the function that names the place.
    fn table_of(&self, word: Va, run_start: Va) -> Va {
        let stored = self.image.read_u32(word).map_or(0, |v| i64::from(v as i32));
        let first = self.named.partition_point(|n| n.0 < run_start);
        let after = self.named.partition_point(|n| n.0 <= word);
        let before = self.named[first..after].iter().rev();
        let leads_home = |&&(table, at): &&(Va, Va)| {
            let target = table.offset(stored);
            self.is_same_function(at, target) || self.is_behind_function(target, at)
        };
        before.clone().find(leads_home).or(before.clone().next()).map_or(word, |n| n.0)
    }

    /// How many relocated words of the right kind lie behind each other from a table's start on, up to the next place that an instruction names and,
    /// where they are addresses, to the first that leads into another function.
    pub(super) fn true_len(&self, table: Va, entry_size: u8) -> usize {
        let wanted = if entry_size == 8 { elf::R_X86_64_64 } else { elf::R_X86_64_PC32 };
        let limit = self.named.get(self.named.partition_point(|n| n.0 <= table)).map(|n| n.0);
        let words = (0..).map(|index| table + index * u64::from(entry_size));
        let mut first = None;
        let is_entry = |word: &Va| {
            let relocs = self.image.static_relocs_in(*word, *word + 1);
            if limit.is_some_and(|limit| *word >= limit) || !relocs.iter().any(|r| r.r_type == wanted && self.names_code(r)) {
                return false;
            }
            let target = if entry_size == 8 { self.image.read_u64(*word).map(Va) } else { None };
            let Some(target) = target else { return true };
            let first = *first.get_or_insert(target);
            self.is_same_function(first, target) || self.is_behind_function(target, first)
        };
        words.take_while(is_entry).count()
    }

    fn function_at(&self, va: Va) -> Option<&Function<'i>> {
        let after = self.functions.partition_point(|f| f.start <= va);
        self.functions[..after].last().filter(|f| va < f.end)
    }

    /// Whether two addresses are in parts of one function.
    fn is_same_function(&self, a: Va, b: Va) -> bool {
        let (a, b) = (self.function_at(a), self.function_at(b));
        a.is_some_and(|a| b.is_some_and(|b| a.name == b.name || a.start == b.start))
    }

    /// Whether an address is one past the end of the function that another one is in, or of a part of it.
    pub(super) fn is_behind_function(&self, va: Va, inside: Va) -> bool {
        let after = self.ends.partition_point(|end| end.0 < va);
        let same = &mut self.ends[after..].iter().take_while(|end| end.0 == va);
        same.any(|&(_, start)| self.is_same_function(start, inside))
    }
}

/// What a relocated field of an instruction names, if the instruction ends behind it.
pub(super) fn place_of_field(image: &Image<'_>, reloc: &StaticReloc) -> Option<Va> {
    let stored = || image.read_u32(reloc.at);
    match reloc.r_type {
        elf::R_X86_64_64 => image.read_u64(reloc.at).map(Va),
        elf::R_X86_64_32 => stored().map(|v| Va(u64::from(v))),
        elf::R_X86_64_32S => stored().map(|v| Va(v as i32 as i64 as u64)),
        r_type if is_relative(r_type) => stored().map(|v| (reloc.at + 4).offset(i64::from(v as i32))),
        _ => None,
    }
}

/// Whether a relocation of this type stores an address or a distance (not an offset in thread-local storage, a size, or nothing).
pub(super) fn is_address(r_type: u32) -> bool {
    is_relative(r_type)
        || [elf::R_X86_64_64, elf::R_X86_64_32, elf::R_X86_64_32S].contains(&r_type)
        || [elf::R_X86_64_TLSGD, elf::R_X86_64_TLSLD, elf::R_X86_64_GOTPC32_TLSDESC, elf::R_X86_64_GOTTPOFF].contains(&r_type)
}

fn is_relative(r_type: u32) -> bool {
    let plain = [elf::R_X86_64_PC32, elf::R_X86_64_PLT32, elf::R_X86_64_PC8, elf::R_X86_64_GOTPC32];
    plain.contains(&r_type) || is_slot_access(r_type)
}

/// Whether the field names a word of the global offset table, or what became of that.
pub(super) fn is_slot_access(r_type: u32) -> bool {
    [elf::R_X86_64_GOTPCREL, elf::R_X86_64_GOTPCRELX, elf::R_X86_64_REX_GOTPCRELX].contains(&r_type)
}
