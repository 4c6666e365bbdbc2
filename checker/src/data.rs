//! Data: where the walk starts, and what must be the same byte for byte.
//!
//! Starting pairs are what the kernel, the dynamic loader and other modules take addresses from: the entry point, the dynamic
//! section's functions, relocated slots, dynamic symbols, and in a file at a fixed address the words that the linker's own
//! relocations name. All data stays where it is, so everything else must be equal.

use goblin::elf::dynamic::{DT_FINI, DT_INIT, DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_STRSZ, DT_STRTAB};
use goblin::elf::program_header::{PT_INTERP, PT_NOTE};
use goblin::elf::reloc::{R_X86_64_32, R_X86_64_32S, R_X86_64_64};
use goblin::elf::section_header::{
    SHF_ALLOC, SHN_ABS, SHN_LORESERVE, SHT_FINI_ARRAY, SHT_INIT_ARRAY, SHT_NOBITS, SHT_PREINIT_ARRAY, SHT_PROGBITS, SHT_RELA,
};
use goblin::elf::sym::{STT_FUNC, STT_GNU_IFUNC, STT_TLS};
use goblin::elf::{Dynamic, ProgramHeader, Sym};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::image::{BUILD_ID, DT_RELR, DT_RELRSZ, Image, Section, Slot};
use crate::remains::{is_left_behind, is_same_section};
use crate::report::{Violation, ViolationKind};
use crate::walk::{Pair, Reach, Side, Walk, joined};

/// Sections whose content is compared by what it means, not by its bytes.
const BY_MEANING: &[&str] = &[
    ".eh_frame",
    ".eh_frame_hdr",
    ".gcc_except_table",
    ".dynamic",
    ".dynstr",
    ".dynsym",
    ".gnu.version",
    ".gnu.version_d",
    ".gnu.version_r",
    ".hash",
    ".gnu.hash",
    BUILD_ID,
    ".rela.dyn",
    ".rela.plt",
    ".relr.dyn",
];

/// Linkers that don't join tables of relocations (`-z nocombreloc`) name each by the section that it is for. The dynamic section leads to all of them as to one.
pub(crate) fn is_by_meaning(image: &Image<'_>, section: &Section<'_>) -> bool {
    let of_loader = || {
        let tables = [(DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)].into_iter();
        let mut tables = tables.filter_map(|(start, size)| Some((image.dynamic_value(start)?, image.dynamic_value(size)?)));
        tables.any(|(start, size)| start <= section.address && section.end() <= start.saturating_add(size))
    };
    let is_known = BY_MEANING.contains(&section.name) || is_left_behind(section);
    is_known || section.sh_type == SHT_RELA && section.is_alloc() && of_loader()
}

/// Asks for the pairs that the loader knows.
pub(crate) fn seed(walk: &mut Walk<'_, '_>) {
    let (input, output) = (walk.input, walk.output);
    let (from, to) = (input.image.elf.entry, output.image.elf.entry);
    if from != 0 || to != 0 {
        walk.seed(from, to, to);
    }
    for tag in [DT_INIT, DT_FINI] {
        let value = |dynamic: &Option<Dynamic>| {
            dynamic.as_ref().and_then(|dynamic| dynamic.dyns.iter().find(|entry| entry.d_tag == tag)).map(|entry| entry.d_val)
        };
        if let (Some(from), Some(to)) = (value(&input.image.elf.dynamic), value(&output.image.elf.dynamic)) {
            walk.seed(from, to, to);
        }
    }
    seed_slots(walk);
    seed_dynamic_symbols(walk);
    if input.image.is_position_dependent() {
        seed_arrays(walk);
        seed_linker_relocations(walk);
    }
    if has_numbers(&input.image) {
        seed_numbers(walk);
    }
}

/// Whether code addresses in a file are plain numbers: nothing marks them.
pub(crate) fn has_numbers(image: &Image<'_>) -> bool {
    let is_of_linker = |index: &usize| {
        let header = image.elf.section_headers.get(*index);
        header.is_some_and(|header| header.sh_type == SHT_RELA && header.sh_flags & u64::from(SHF_ALLOC) == 0)
    };
    image.is_position_dependent() && !image.elf.shdr_relocs.iter().any(|(index, _)| is_of_linker(index))
}

/// Aligned words of data that are the address of a function or of an instruction in one, and that the output did not change: the address has to stay good. Among megabytes of constants
/// some words look like that by chance; what they look like is kept as well.
fn seed_numbers(walk: &mut Walk<'_, '_>) {
    let (input, output) = (walk.input, walk.output);
    for (place, value) in words(&input.image).filter(|&(place, value)| output.image.u64_at(place) == Some(value)) {
        let is_label = || input.code.index(value).is_some_and(|index| walk.survey.is_boundary(index));
        if input.unwind.starts_at(value) || is_label() || input.starts_undescribed(value) {
            walk.seed_address(value, value, place);
        } else if let Some((from, to)) = walk.past_entry(value) {
            walk.seed_address(from, to, place);
        } else if let Some(start) = walk.named_below(value) {
            walk.seed_address(start, start, place);
        }
    }
}

/// The aligned words of data that are read as such, with their places.
pub(crate) fn words<'i>(image: &'i Image<'_>) -> impl Iterator<Item = (u64, u64)> + use<'i> {
    let places = image.sections.iter().filter(|section| is_read(section)).flat_map(|section| words_of(image, section));
    places.filter_map(|place| Some((place, image.u64_at(place)?)))
}

/// The words at every byte of the same data whose value is wanted, with their places.
pub(crate) fn unaligned_words(image: &Image<'_>, is_wanted: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for section in image.sections.iter().filter(|section| is_read(section)) {
        let bytes = image.at(section.address, section.size as usize).unwrap_or(&[]);
        let words = bytes
            .windows(8)
            .zip(section.address..)
            .filter_map(|(bytes, place)| Some((place, u64::from_le_bytes(bytes.try_into().ok()?))));
        found.extend(words.filter(|&(_, value)| is_wanted(value)));
    }
    found
}

/// Whether a section has words that are read as such.
fn is_read(section: &Section<'_>) -> bool {
    let is_content = matches!(section.sh_type, SHT_PROGBITS | SHT_INIT_ARRAY | SHT_FINI_ARRAY | SHT_PREINIT_ARRAY);
    section.is_alloc() && !section.is_code() && is_content && !BY_MEANING.contains(&section.name)
}

fn seed_slots(walk: &mut Walk<'_, '_>) {
    let (input, output) = (walk.input, walk.output);
    note_offset_table(walk);
    for &(place, slot) in &input.image.slots {
        let other = output.image.slot(place);
        let lost = || format!("{other:?} instead of the input's {slot:?}");
        match (slot, other) {
            (Slot::Relative(from), Some(Slot::Relative(to))) | (Slot::Resolver(from), Some(Slot::Resolver(to))) => {
                if input.image.in_code(from) {
                    walk.note_tagged(from, place);
                    walk.seed_pointer(from, to, place);
                } else if from != to {
                    walk.report(ViolationKind::Relocation, place, lost());
                } else {
                    walk.note_marked_above(from, place);
                }
            }
            (slot, Some(other)) if slot == other => {}
            _ => walk.report(ViolationKind::Relocation, place, lost()),
        }
    }
    for &(place, slot) in &output.image.slots {
        if input.image.slot(place).is_none() {
            walk.report(ViolationKind::Relocation, place, format!("{slot:?} is new"));
        }
    }
}

/// Notes what the global offset table names of this file: by relocations, or at a fixed address as the linker filled it in.
fn note_offset_table(walk: &mut Walk<'_, '_>) {
    let image = &walk.input.image;
    let Some(table) = image.section(".got") else { return };
    for place in words_of(image, table) {
        let address = match image.slot(place) {
            Some(Slot::Relative(address) | Slot::Resolver(address)) => Some(address),
            Some(Slot::Symbol { symbol, addend, .. }) => {
                let symbol = image.elf.dynsyms.get(symbol).filter(|symbol| names_code(image, symbol));
                symbol.map(|symbol| symbol.st_value.wrapping_add_signed(addend))
            }
            None => image.u64_at(place),
        };
        if let Some(address) = address {
            walk.note_named_through(address, place);
        }
    }
}

fn seed_dynamic_symbols(walk: &mut Walk<'_, '_>) {
    let (a, b) = (&walk.input.image, &walk.output.image);
    if a.elf.dynsyms.len() != b.elf.dynsyms.len() {
        let message = format!("{} dynamic symbols; the input has {}", b.elf.dynsyms.len(), a.elf.dynsyms.len());
        walk.report(ViolationKind::Symbol, 0, message);
    }
    for (index, (from, to)) in a.elf.dynsyms.iter().zip(b.elf.dynsyms.iter()).enumerate() {
        let (name, other_name) = (a.dynamic_symbol_name(index), b.dynamic_symbol_name(index));
        let same = name == other_name && from.st_info == to.st_info && from.st_other == to.st_other;
        let same_place = (from.st_shndx == 0) == (to.st_shndx == 0);
        let is_code = names_code(a, &from);
        // A copy relocation takes the object's size from here.
        let same_object = is_code || from.st_value == to.st_value && from.st_size == to.st_size;
        let same_section = is_code && !is_special(&to) || is_where_it_was(a, b, &from, &to);
        if !same || !same_place || !same_object || !same_section {
            let message = format!("dynamic symbol {index} ({other_name}) differs from the input's ({name})");
            walk.report(ViolationKind::Symbol, to.st_value, message);
        } else if is_code {
            walk.seed_pointer(from.st_value, to.st_value, to.st_value);
        }
    }
}

/// Whether a symbol's section is a number that stands for none: a loader adds no base to an absolute symbol.
fn is_special(symbol: &Sym) -> bool {
    symbol.st_shndx >= SHN_LORESERVE as usize
}

/// Whether a dynamic symbol is in the section that it was in. `strip` renumbers sections, but not in what is loaded: a number may stand for none, or for one that is not loaded and names another thing than the
/// linker meant. No loader reads which section it is, only whether it is undefined or special; so where that one is gone, the symbol has to be in another that is there and not loaded. Without section headers no number means anything.
fn is_where_it_was(a: &Image<'_>, b: &Image<'_>, from: &Sym, to: &Sym) -> bool {
    if is_special(from) || is_special(to) {
        return from.st_shndx == to.st_shndx;
    }
    let (Some(section), false) = (a.sections.get(from.st_shndx), b.sections.is_empty()) else { return true };
    let Some(other) = b.sections.get(to.st_shndx) else { return false };
    is_same_section(section.name, other.name) || !section.is_alloc() && !other.is_alloc() && b.section(section.name).is_none()
}

/// Whether a dynamic symbol's value is an address of code: neither an offset of thread-local data nor a number.
pub(crate) fn names_code(image: &Image<'_>, symbol: &Sym) -> bool {
    let is_address = symbol.st_shndx != 0 && symbol.st_shndx != SHN_ABS as usize && symbol.st_type() != STT_TLS;
    is_address && image.in_code(symbol.st_value)
}

fn seed_arrays(walk: &mut Walk<'_, '_>) {
    let (input, output) = (walk.input, walk.output);
    for section in &input.image.sections {
        // Each word of the global offset table is an address; in a static file no relocation is left to say so.
        let is_array = matches!(section.sh_type, SHT_INIT_ARRAY | SHT_FINI_ARRAY | SHT_PREINIT_ARRAY);
        if !is_array && section.name != ".got" {
            continue;
        }
        for place in words_of(&input.image, section) {
            seed_word(walk, input, output, place, 8);
        }
    }
}

/// The places of the aligned words of a section. A size that the file has no bytes for says nothing.
fn words_of(image: &Image<'_>, section: &Section<'_>) -> impl Iterator<Item = u64> + use<> {
    let there = image.tail(section.address).map_or(0, |tail| tail.len() as u64);
    let end = section.end().min(section.address.saturating_add(there));
    let start = section.address.checked_next_multiple_of(8).unwrap_or(end);
    (start..end).step_by(8)
}

/// A word of data that is known to hold an address.
fn seed_word(walk: &mut Walk<'_, '_>, input: &Side<'_>, output: &Side<'_>, place: u64, size: u64) {
    let read = |image: &Image<'_>| if size == 8 { image.u64_at(place) } else { image.u32_at(place).map(u64::from) };
    if let (Some(from), Some(to)) = (read(&input.image), read(&output.image))
        && input.image.in_code(from)
    {
        walk.seed_pointer(from, to, place);
        walk.explained.push((place, size));
    }
}

/// Where `--emit-relocs` says that code holds an absolute address.
pub(crate) fn absolute_fields(image: &Image<'_>) -> FxHashSet<u64> {
    let mut fields = FxHashSet::default();
    for (index, relocations) in &image.elf.shdr_relocs {
        let Some(header) = image.elf.section_headers.get(*index) else { continue };
        let is_code = image.sections.get(header.sh_info as usize).is_some_and(Section::is_code);
        if header.sh_type == SHT_RELA && header.sh_flags & u64::from(SHF_ALLOC) == 0 && is_code {
            let absolute =
                relocations.iter().filter(|relocation| matches!(relocation.r_type, R_X86_64_64 | R_X86_64_32 | R_X86_64_32S));
            fields.extend(absolute.map(|relocation| relocation.r_offset));
        }
    }
    fields
}

/// Places of a file where the linker put an absolute address, as `--emit-relocs` says, and the address.
pub(crate) fn linked_addresses(image: &Image<'_>) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for (index, relocations) in &image.elf.shdr_relocs {
        let Some(header) = image.elf.section_headers.get(*index) else { continue };
        let section = image.sections.get(header.sh_info as usize);
        let is_loaded = section.is_some_and(|section| section.is_alloc() && !BY_MEANING.contains(&section.name));
        if header.sh_type != SHT_RELA || header.sh_flags & u64::from(SHF_ALLOC) != 0 || !is_loaded {
            continue;
        }
        found.extend(relocations.iter().filter_map(|relocation| {
            let place = relocation.r_offset;
            let address = match relocation.r_type {
                R_X86_64_64 => image.u64_at(place),
                R_X86_64_32 | R_X86_64_32S => image.u32_at(place).map(u64::from),
                _ => None,
            };
            Some((place, address?))
        }));
    }
    found
}

/// What `--emit-relocs` left in the input.
fn seed_linker_relocations(walk: &mut Walk<'_, '_>) {
    let (input, output) = (walk.input, walk.output);
    for (index, relocations) in &input.image.elf.shdr_relocs {
        let Some(header) = input.image.elf.section_headers.get(*index) else { continue };
        let applies_to = input.image.sections.get(header.sh_info as usize);
        let is_data =
            applies_to.is_some_and(|section| section.is_alloc() && !section.is_code() && !BY_MEANING.contains(&section.name));
        if header.sh_type != SHT_RELA || header.sh_flags & u64::from(SHF_ALLOC) != 0 || !is_data {
            continue;
        }
        for relocation in relocations.iter() {
            match relocation.r_type {
                R_X86_64_64 => seed_word(walk, input, output, relocation.r_offset, 8),
                R_X86_64_32 | R_X86_64_32S => seed_word(walk, input, output, relocation.r_offset, 4),
                _ => {}
            }
        }
    }
}

/// Asks for the pairs that same-named functions of the symbol tables give. A name that occurs several times gives guesses.
pub(crate) fn seed_symbols(walk: &mut Walk<'_, '_>) {
    let (from, to) = (functions(walk.input), functions(walk.output));
    let mut names: Vec<&str> = from.keys().copied().filter(|name| to.contains_key(name)).collect();
    names.sort_unstable();
    let is_certain = |name: &str| from[name].count == 1 && to[name].count == 1;
    for name in names.iter().filter(|name| is_certain(name)) {
        if let ([input], [output]) = (from[name].entries.as_slice(), to[name].entries.as_slice()) {
            walk.seed_name(*input, *output, *output);
        }
    }
    // Guesses come when all that is certain is known.
    walk.settle();
    for name in names.iter().filter(|name| !is_certain(name)) {
        let (a, b) = (&from[name].entries, &to[name].entries);
        if a.len() == b.len() {
            for (&input, &output) in a.iter().zip(b) {
                walk.attempt(Pair::new(input, output, output, Reach::Name));
                walk.settle();
            }
        }
    }
}

/// The functions of one name.
#[derive(Default)]
struct Named {
    count: usize,
    /// Of those that begin with a frame description.
    entries: Vec<u64>,
}

fn functions<'a>(side: &Side<'a>) -> FxHashMap<&'a str, Named> {
    let image = &side.image;
    let mut functions: FxHashMap<&'a str, Named> = FxHashMap::default();
    let is_function = |symbol: &Sym| matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC) && symbol.st_shndx != 0;
    for symbol in image.elf.syms.iter().filter(is_function) {
        if let Some(name) = image.elf.strtab.get_at(symbol.st_name).filter(|name| !name.is_empty()) {
            let named = functions.entry(name).or_default();
            named.count += 1;
            named.entries.extend(Some(symbol.st_value).filter(|&address| side.unwind.starts_at(address)));
        }
    }
    functions
}

/// Compares all loaded data.
pub(crate) fn compare(input: &Side<'_>, output: &Side<'_>, explained: &[(u64, u64)], violations: &mut Vec<Violation>) {
    let (a, b) = (&input.image, &output.image);
    for section in a.sections.iter().filter(|section| section.is_alloc() && !section.is_code()) {
        if is_by_meaning(a, section) || section.sh_type == SHT_NOBITS || section.size == 0 {
            continue;
        }
        let place = b.section(section.name).filter(|other| other.size == section.size && is_movable(section));
        let by_header = if is_movable(section) { place_by_header(a, b, section) } else { None };
        let address = place.map(|other| other.address).or(by_header).unwrap_or(section.address);
        compare_bytes(a, b, section, address, explained, violations);
    }
    if a.sections.is_empty() {
        compare_segments(input, output, explained, violations);
    }
    explain_new_sections(a, b, explained, violations);
}

/// Data that the input does not have: copies of jump tables, or nothing.
fn explain_new_sections(a: &Image<'_>, b: &Image<'_>, explained: &[(u64, u64)], violations: &mut Vec<Violation>) {
    for section in b.sections.iter().filter(|section| section.is_alloc() && !section.is_code()) {
        let is_new = a.section_at(section.address).is_none() && a.section(section.name).is_none_or(|_| !is_movable(section));
        if !is_new || section.sh_type == SHT_NOBITS || is_by_meaning(b, section) {
            continue;
        }
        let is_explained = |place: u64| {
            let after = explained.partition_point(|&(start, _)| start <= place);
            explained[..after].last().is_some_and(|&(start, size)| place < start + size)
        };
        let bytes = b.section_bytes(section);
        let strange = bytes
            .iter()
            .zip(section.address..=u64::MAX)
            .find(|&(&byte, place)| !matches!(byte, 0 | 0xcc) && !is_explained(place));
        if let Some((_, place)) = strange {
            let message = format!("{} is new, and nothing in the input corresponds to its content", section.name);
            violations.push(Violation::new(ViolationKind::Unexplained, place, message));
        }
    }
}

/// Sections that nothing refers to by address but a program header or the dynamic section.
fn is_movable(section: &Section<'_>) -> bool {
    section.name == ".interp" || section.name.starts_with(".note")
}

/// Where a program header leads to the same bytes, in an output that has no section headers.
fn place_by_header(a: &Image<'_>, b: &Image<'_>, section: &Section<'_>) -> Option<u64> {
    let bytes = a.section_bytes(section);
    let covers = |header: &&ProgramHeader| {
        let end = header.p_vaddr.saturating_add(header.p_memsz);
        [PT_INTERP, PT_NOTE].contains(&header.p_type) && header.p_vaddr <= section.address && section.end() <= end
    };
    let of_input = a.elf.program_headers.iter().find(covers).filter(|_| b.sections.is_empty())?;
    let is_same = |header: &&ProgramHeader| header.p_type == of_input.p_type && header.p_memsz == of_input.p_memsz;
    let places = b.elf.program_headers.iter().filter(is_same).map(|header| header.p_vaddr);
    let mut places = places.filter_map(|start| start.checked_add(section.address - of_input.p_vaddr));
    places.find(|&place| b.at(place, bytes.len()) == Some(bytes))
}

fn compare_bytes(
    a: &Image<'_>,
    b: &Image<'_>,
    section: &Section<'_>,
    address: u64,
    explained: &[(u64, u64)],
    violations: &mut Vec<Violation>,
) {
    let from = a.section_bytes(section);
    let Some(to) = b.at(address, from.len()) else {
        let message = format!("{} of the input is not loaded there", section.name);
        violations.push(Violation::new(ViolationKind::DataChanged, address, message));
        return;
    };
    report_differences(a, (from, to, address), section.name, explained, violations);
}

/// Without section headers: the segments that hold no code, less what is compared by meaning.
fn compare_segments(input: &Side<'_>, output: &Side<'_>, explained: &[(u64, u64)], violations: &mut Vec<Violation>) {
    let (a, b) = (&input.image, &output.image);
    let by_meaning = by_meaning(input, output);
    for area in a.loads.iter().filter(|area| !a.in_code(area.start)) {
        let first = by_meaning.partition_point(|&(_, end)| end <= area.start);
        // The segment may end earlier by what became shorter.
        let last = by_meaning[first..].iter().find(|&&(start, end)| start < area.end() && area.end() <= end);
        let area_end = last.map_or(area.end(), |&(start, _)| start.max(area.start));
        let Some(to) = b.at(area.start, (area_end - area.start) as usize) else {
            let message = "a data segment of the input is not loaded there";
            violations.push(Violation::new(ViolationKind::DataChanged, area.start, message));
            continue;
        };
        let mut at = area.start;
        for &(start, end) in by_meaning[first..].iter().chain([&(area_end, area_end)]) {
            let stop = start.clamp(at, area_end);
            let piece = (at - area.start) as usize..(stop - area.start) as usize;
            report_differences(a, (&area.bytes[piece.clone()], &to[piece], at), "a data segment", explained, violations);
            at = end.clamp(stop, area_end);
        }
    }
}

/// What a program header or the dynamic section names, as starts and ends, and the file's own headers.
pub(crate) fn by_meaning(side: &Side<'_>, output: &Side<'_>) -> Vec<(u64, u64)> {
    let image = &side.image;
    let mut places: Vec<(u64, u64)> = side.metadata().into_iter().map(|(start, end)| (start, end - start)).collect();
    // The output may have one program header more.
    let header = &output.image.elf.header;
    let in_file = [(0, 64), (header.e_phoff, u64::from(header.e_phnum) * 56)];
    for load in image.elf.program_headers.iter().filter(|header| header.p_type == goblin::elf::program_header::PT_LOAD) {
        let loaded = in_file.iter().filter(|(at, _)| (load.p_offset..load.p_offset.saturating_add(load.p_filesz)).contains(at));
        places.extend(loaded.map(|&(at, size)| (load.p_vaddr.wrapping_add(at - load.p_offset), size)));
    }
    let value = |tag| image.dynamic_value(tag);
    let strings = (value(DT_STRTAB), value(DT_STRSZ));
    let tables =
        [strings, (value(DT_RELA), value(DT_RELASZ)), (value(DT_JMPREL), value(DT_PLTRELSZ)), (value(DT_RELR), value(DT_RELRSZ))];
    places.extend(tables.into_iter().filter_map(|(at, size)| at.zip(size)));
    let mut ranges = joined(places);
    // Zeros that only align one of them are free.
    ranges.dedup_by(|next, kept| {
        let gap = next.0 - kept.1;
        let is_alignment = gap < 16 && image.at(kept.1, gap as usize).is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0));
        if is_alignment {
            kept.1 = next.1;
        }
        is_alignment
    });
    ranges
}

/// Reports each run of differing bytes that neither a slot nor a table explains.
fn report_differences(
    a: &Image<'_>,
    (from, to, address): (&[u8], &[u8], u64),
    name: &str,
    explained: &[(u64, u64)],
    violations: &mut Vec<Violation>,
) {
    if from == to {
        return;
    }
    let in_dynamic = |place: u64| {
        let dynamic = a.elf.program_headers.iter().find(|header| header.p_type == goblin::elf::program_header::PT_DYNAMIC);
        dynamic.is_some_and(|header| header.p_vaddr <= place && place < header.p_vaddr.saturating_add(header.p_memsz))
    };
    let build_id = a.build_id().unwrap_or_default();
    let is_explained = |place: u64| {
        let after = explained.partition_point(|&(start, _)| start <= place);
        if build_id.contains(&place) {
            return true;
        }
        let by_table = explained[..after].last().is_some_and(|&(start, size)| place < start + size);
        let after = a.slots.partition_point(|&(start, _)| start <= place);
        by_table || a.slots[..after].last().is_some_and(|&(start, _)| place < start + 8) || in_dynamic(place)
    };
    let mut last = None;
    for offset in (0..from.len()).filter(|&offset| from[offset] != to[offset]) {
        let place = address + offset as u64;
        if last.is_some_and(|last| place <= last + 8) {
            last = last.max(Some(place));
            continue;
        }
        if !is_explained(place) {
            let message = format!("byte {:#04x} of {name} was {:#04x}", to[offset], from[offset]);
            violations.push(Violation::new(ViolationKind::DataChanged, place, message));
            last = Some(place);
        }
    }
}
