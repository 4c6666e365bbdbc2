//! The file around the code: headers, segments, sections, symbols, dynamic section, search table of the unwinder.
//!
//! What a kernel, a loader, `strip` or a debugger relies on (gABI chapters 4 and 5). Some real inputs break a rule themselves; a rule is
//! only held against the output if the input keeps it.

use goblin::elf::ProgramHeader;
use goblin::elf::dynamic::{DT_GNU_HASH, DT_HASH, DT_STRTAB, DT_SYMTAB};
use goblin::elf::program_header::{
    PF_W, PF_X, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_GNU_RELRO, PT_GNU_STACK, PT_INTERP, PT_LOAD, PT_NOTE, PT_NULL, PT_PHDR, PT_TLS,
};
use goblin::elf::section_header::{SHF_EXECINSTR, SHF_TLS, SHF_WRITE, SHT_NOBITS};
use goblin::elf::sym::STT_FUNC;

use crate::image::{BUILD_ID, Image, Section};
use crate::report::{Stats, Violation, ViolationKind};
use crate::unwind;
use crate::walk::Side;

const PAGE: u64 = 0x1000;
const PT_GNU_PROPERTY: u32 = 0x6474_e553;
/// `GNU_PROPERTY_X86_FEATURE_1_AND` and its bit for indirect branch tracking (x86-64 psABI, "Program Property").
const FEATURE_1_AND: u32 = 0xc000_0002;
const FEATURE_1_IBT: u32 = 1;

/// Compares the two files' structure.
pub(crate) fn check(input: &Side<'_>, output: &Side<'_>, violations: &mut Vec<Violation>) {
    let known = flaws(input);
    violations.extend(flaws(output).into_iter().filter(|flaw| !known.iter().any(|other| other.kind == flaw.kind)));
    let (a, b) = (&input.image, &output.image);
    compare_headers(a, b, violations);
    compare_segments(a, b, violations);
    compare_tables(a, b, violations);
    crate::dynamic::compare(input, output, violations);
    if property_note(a) != property_note(b) {
        violations.push(Violation::new(ViolationKind::Header, 0, "the note of the program's properties differs"));
    }
}

/// Rules that a file keeps or breaks by itself.
fn flaws(side: &Side<'_>) -> Vec<Violation> {
    let mut flaws = Vec::new();
    header_flaws(&side.image, &mut flaws);
    segment_flaws(&side.image, &mut flaws);
    section_flaws(&side.image, &mut flaws);
    symbol_flaws(&side.image, &mut flaws);
    unwind_flaws(side, &mut flaws);
    flaws
}

fn header_flaws(image: &Image<'_>, flaws: &mut Vec<Violation>) {
    let header = &image.elf.header;
    let mut flaw = |message: &str| flaws.push(Violation::new(ViolationKind::Header, 0, message));
    let table = |offset: u64, count: u16, size: u16| {
        offset.checked_add(u64::from(count) * u64::from(size)).is_some_and(|end| end <= image.bytes.len() as u64)
    };
    if header.e_phentsize != 56 || !table(header.e_phoff, header.e_phnum, header.e_phentsize) {
        flaw("the program header table is not in the file");
    }
    if header.e_shnum != 0 && (header.e_shentsize != 64 || !table(header.e_shoff, header.e_shnum, header.e_shentsize)) {
        flaw("the section header table is not in the file");
    }
    if header.e_shnum != 0 && header.e_shstrndx >= header.e_shnum {
        flaw("the section name table does not exist");
    }
    if usize::from(header.e_phnum) != image.elf.program_headers.len() {
        flaw("fewer program headers than announced");
    }
    if header.e_entry != 0 && !image.in_code(header.e_entry) {
        flaw("the entry point is not in code");
    }
}

fn segment_flaws(image: &Image<'_>, flaws: &mut Vec<Violation>) {
    let mut flaw = |header: &ProgramHeader, message: String| {
        flaws.push(Violation::new(ViolationKind::Segment, header.p_vaddr, message));
    };
    let mut end: Option<u64> = None;
    for header in &image.elf.program_headers {
        if header.p_type == PT_LOAD {
            let align = header.p_align.max(PAGE);
            if header.p_offset % PAGE != header.p_vaddr % PAGE || header.p_offset % align != header.p_vaddr % align {
                flaw(header, "file offset and address differ modulo the alignment".into());
            }
            if header.p_filesz > header.p_memsz {
                flaw(header, "more bytes in the file than in memory".into());
            }
            if end.is_some_and(|end| header.p_vaddr / PAGE * PAGE < end) {
                flaw(header, "loaded segments overlap or are out of order".into());
            }
            end = Some(header.p_vaddr.saturating_add(header.p_memsz).div_ceil(PAGE) * PAGE);
            if header.p_flags & PF_W != 0 && header.p_flags & PF_X != 0 {
                flaw(header, "writable and executable".into());
            }
        } else if header.p_type != PT_NULL && header.p_type != PT_GNU_STACK && header.p_filesz > 0 {
            let size = usize::try_from(header.p_filesz).unwrap_or(usize::MAX);
            let loaded = image.at(header.p_vaddr, size).map(<[u8]>::as_ptr);
            let in_file = usize::try_from(header.p_offset).ok().and_then(|offset| image.bytes.get(offset..)).map(<[u8]>::as_ptr);
            // RELRO may reach into memory that the file does not fill.
            if header.p_type != PT_GNU_RELRO && (loaded.is_none() || loaded != in_file) {
                flaw(header, format!("segment of type {:#x} is not loaded from its file offset", header.p_type));
            }
            if header.p_type == PT_PHDR && header.p_offset != image.elf.header.e_phoff {
                flaw(header, "PT_PHDR is not the program header table".into());
            }
        }
    }
    for (p_type, name) in [(PT_INTERP, ".interp"), (PT_DYNAMIC, ".dynamic"), (PT_GNU_EH_FRAME, ".eh_frame_hdr")] {
        let header = image.elf.program_headers.iter().find(|header| header.p_type == p_type);
        let (Some(header), Some(section)) = (header, image.section(name)) else { continue };
        if header.p_vaddr != section.address || header.p_filesz != section.size || header.p_offset != section.offset {
            flaw(header, format!("does not match section {name}"));
        }
    }
}

/// Symbols, their names and hash tables that the input has in its first segment stay as far from the file's beginning as from that: when it is asked for the name of a function, libunwind (1.8, of nongnu.org) looks for them
/// there in the file that the function is from, whatever the program headers say of offsets.
fn compare_tables(input: &Image<'_>, output: &Image<'_>, violations: &mut Vec<Violation>) {
    for tag in [DT_HASH, DT_GNU_HASH, DT_SYMTAB, DT_STRTAB] {
        let Some(at) =
            input.dynamic_value(tag).filter(|&at| distances(input, at).is_some_and(|(index, is_same)| index == 0 && is_same))
        else {
            continue;
        };
        // What program headers pushed out to a segment behind all others may lie anywhere in the file.
        let is_inside = |at: &u64| {
            input
                .elf
                .program_headers
                .iter()
                .any(|header| header.p_type == PT_LOAD && *at < header.p_vaddr.saturating_add(header.p_memsz))
        };
        let Some(now) = output.dynamic_value(tag).filter(is_inside) else { continue };
        if distances(output, now).is_some_and(|(_, is_same)| !is_same) {
            let message = format!(
                "the table with the tag {tag:#x} is not as far from the file's beginning as from the first segment's (the input's is, at {at:#x})"
            );
            violations.push(Violation::new(ViolationKind::Dynamic, now, message));
        }
    }
}

/// By an address, the index of its loaded segment, and whether it is as far from the file's beginning as from the first segment's.
fn distances(image: &Image<'_>, at: u64) -> Option<(usize, bool)> {
    let loads: Vec<&ProgramHeader> = image.elf.program_headers.iter().filter(|header| header.p_type == PT_LOAD).collect();
    let holds = |header: &&&ProgramHeader| at.checked_sub(header.p_vaddr).is_some_and(|distance| distance < header.p_filesz);
    let index = loads.iter().position(|header| holds(&header))?;
    let offset = loads[index].p_offset.wrapping_add(at - loads[index].p_vaddr);
    Some((index, offset.wrapping_sub(loads[0].p_offset) == at.wrapping_sub(loads[0].p_vaddr)))
}

fn section_flaws(image: &Image<'_>, flaws: &mut Vec<Violation>) {
    let mut flaw = |address: u64, message: String| flaws.push(Violation::new(ViolationKind::Section, address, message));
    let mut placed = Vec::new();
    for (index, (section, header)) in image.sections.iter().zip(&image.elf.section_headers).enumerate().skip(1) {
        if section.name.is_empty() {
            flaw(section.address, format!("section {index} has no name"));
        }
        if header.sh_link as usize >= image.sections.len() {
            flaw(section.address, format!("section {index} ({}) links to no section", section.name));
        }
        let in_file = section.offset.checked_add(section.size).is_some_and(|end| end <= image.bytes.len() as u64);
        if section.sh_type != SHT_NOBITS && !in_file {
            flaw(section.address, format!("section {index} ({}) is not in the file", section.name));
            continue;
        }
        let is_thread_template = section.sh_type == SHT_NOBITS && section.flags & u64::from(SHF_TLS) != 0;
        if !section.is_alloc() || section.size == 0 || is_thread_template {
            continue;
        }
        placed.push((section.address, section.end(), section.name));
        let segment = image.elf.program_headers.iter().find(|segment| {
            segment.p_type == PT_LOAD
                && segment.p_vaddr <= section.address
                && section.end() <= segment.p_vaddr.saturating_add(segment.p_memsz)
        });
        let Some(segment) = segment else {
            flaw(section.address, format!("section {} is in no loaded segment", section.name));
            continue;
        };
        let offset = section.address - segment.p_vaddr;
        if section.sh_type != SHT_NOBITS && segment.p_offset.wrapping_add(offset) != section.offset {
            flaw(section.address, format!("section {} is loaded from another file offset", section.name));
        }
        for (section_flag, segment_flag, word) in [(SHF_WRITE, PF_W, "writable"), (SHF_EXECINSTR, PF_X, "executable")] {
            if section.flags & u64::from(section_flag) != 0 && segment.p_flags & segment_flag == 0 {
                flaw(section.address, format!("section {} is {word}, its segment is not", section.name));
            }
        }
    }
    placed.sort_unstable();
    for pair in placed.windows(2) {
        if pair[0].1 > pair[1].0 {
            flaw(pair[1].0, format!("sections {} and {} overlap", pair[0].2, pair[1].2));
        }
    }
}

fn symbol_flaws(image: &Image<'_>, flaws: &mut Vec<Violation>) {
    let count = image.sections.len();
    if count == 0 {
        return;
    }
    for symbol in image.elf.syms.iter().chain(image.elf.dynsyms.iter()) {
        // 0 is undefined, 0xff00 and above are special.
        if symbol.st_shndx == 0 || symbol.st_shndx >= 0xff00 {
            continue;
        }
        let Some(section) = image.sections.get(symbol.st_shndx) else {
            let message = format!("a symbol is in section {}, which does not exist", symbol.st_shndx);
            flaws.push(Violation::new(ViolationKind::Symbol, symbol.st_value, message));
            continue;
        };
        let in_section = section.address <= symbol.st_value && symbol.st_value <= section.end();
        if symbol.st_type() == STT_FUNC && !in_section {
            let message = format!("a function symbol lies outside its section {}", section.name);
            flaws.push(Violation::new(ViolationKind::Symbol, symbol.st_value, message));
        }
    }
}

fn unwind_flaws(side: &Side<'_>, flaws: &mut Vec<Violation>) {
    let mut flaw = |address, message: &str| flaws.push(Violation::new(ViolationKind::UnwindTable, address, message));
    let fdes = &side.unwind.fdes;
    for pair in fdes.windows(2).filter(|pair| pair[1].start < pair[0].end) {
        flaw(pair[1].start, "frame descriptions overlap");
    }
    let has_header = side.image.elf.program_headers.iter().any(|header| header.p_type == PT_GNU_EH_FRAME);
    if !has_header {
        return;
    }
    let Some(entries) = unwind::search_table(&side.image) else {
        flaw(0, "the search table cannot be read");
        return;
    };
    for pair in entries.windows(2).filter(|pair| pair[1].0 < pair[0].0) {
        flaw(pair[1].0, "the search table is not sorted");
    }
    // Of the parts of one that stands for several functions, the first is where it begins.
    let by_place: rustc_hash::FxHashMap<u64, u64> = fdes.iter().rev().map(|fde| (fde.place, fde.start)).collect();
    for (start, place) in entries {
        if by_place.get(&place).is_some_and(|&found| found != start) {
            flaw(start, "an entry of the search table points to another function's description");
        }
    }
    for &start in &side.unwind.unlisted {
        if side.unwind.fde_at(start).is_none() {
            flaw(start, "a frame description is not in the search table");
        }
    }
    if let Some((from, _)) = side.unwind.table
        && side.image.section(".eh_frame").is_some_and(|section| section.address != from)
    {
        flaw(from, "the search table belongs to another table than .eh_frame");
    }
}

fn compare_headers(a: &Image<'_>, b: &Image<'_>, violations: &mut Vec<Violation>) {
    let (x, y) = (&a.elf.header, &b.elf.header);
    let fields = [
        ("e_type", u64::from(x.e_type), u64::from(y.e_type)),
        ("e_machine", u64::from(x.e_machine), u64::from(y.e_machine)),
        ("e_flags", u64::from(x.e_flags), u64::from(y.e_flags)),
        ("e_ehsize", u64::from(x.e_ehsize), u64::from(y.e_ehsize)),
        ("e_version", u64::from(x.e_version), u64::from(y.e_version)),
    ];
    for (name, from, to) in fields.into_iter().filter(|(_, from, to)| from != to) {
        violations.push(Violation::new(ViolationKind::Header, 0, format!("{name} is {to:#x}; the input has {from:#x}")));
    }
    // Not the padding: tools write there.
    if x.e_ident[..9] != y.e_ident[..9] {
        violations.push(Violation::new(ViolationKind::Header, 0, "e_ident differs"));
    }
}

fn compare_segments(a: &Image<'_>, b: &Image<'_>, violations: &mut Vec<Violation>) {
    let mut report = |address, message: String| violations.push(Violation::new(ViolationKind::Segment, address, message));
    let loads = |image: &Image<'_>| -> Vec<(u64, u64, u32)> {
        let headers = image.elf.program_headers.iter().filter(|header| header.p_type == PT_LOAD && header.p_memsz > 0);
        headers.map(|header| (header.p_vaddr, header.p_vaddr.saturating_add(header.p_memsz), header.p_flags)).collect()
    };
    let after = loads(b);
    for (start, end, flags) in loads(a) {
        // What is not written may shrink, code at its start too: of its sections, each that is no code is looked for by itself.
        let may_shrink = flags & PF_W == 0;
        let may_start_later = may_shrink && flags & PF_X != 0;
        let covers = |&(from, to, other): &(u64, u64, u32)| {
            let is_start = from <= start || may_start_later && from < end;
            is_start && (end <= to || may_shrink && start < to) && other == flags
        };
        if !after.iter().any(covers) {
            report(start, format!("nothing is loaded as the input's segment {start:#x}..{end:#x} with flags {flags}"));
        }
    }
    for header in a.elf.program_headers.iter().filter(|header| !matches!(header.p_type, PT_LOAD | PT_NULL)) {
        let same_type: Vec<_> = b.elf.program_headers.iter().filter(|other| other.p_type == header.p_type).collect();
        let is_fixed = matches!(header.p_type, PT_DYNAMIC | PT_TLS | PT_GNU_RELRO);
        let matches = |other: &&&ProgramHeader| {
            let is_there = other.p_vaddr == header.p_vaddr && other.p_memsz == header.p_memsz;
            let is_same = other.p_align == header.p_align && (is_there || is_moved_dynamic(a, b, other));
            other.p_flags == header.p_flags && (!is_fixed || is_same)
        };
        let is_needed = !is_told_twice((a, b), header) && !is_of_library(a, header);
        if !same_type.iter().any(|other| matches(&other)) && is_needed {
            report(header.p_vaddr, format!("the input's segment of type {:#x} is lost or changed", header.p_type));
        }
    }
    if a.elf.interpreter != b.elf.interpreter {
        report(0, format!("another interpreter: {:?}", b.elf.interpreter));
    }
}

/// A table that says less than the input's tells so: who rewrites the file again does not take it for more.
pub(crate) fn check_mark(output: &Side<'_>, stats: &Stats, flaws: &mut Vec<Violation>) {
    if stats.unasked_rows > 0 && !output.unwind.is_sparse {
        let at = output.unwind.table.map_or(0, |(start, _)| start);
        let message = "rules are left out, and no common entry says so".to_string();
        flaws.push(Violation::new(ViolationKind::UnwindTable, at, message));
    }
}

/// Whether a note is the file's properties, which `PT_GNU_PROPERTY` names too (loaders ask for that one, and it is compared by itself), or the build-id, of which no loader asks, and a section of the output tells it too.
fn is_told_twice((a, b): (&Image<'_>, &Image<'_>), note: &ProgramHeader) -> bool {
    let is_same = |header: &ProgramHeader| {
        header.p_type == PT_GNU_PROPERTY && (header.p_vaddr, header.p_filesz) == (note.p_vaddr, note.p_filesz)
    };
    let is_build_id = |image: &Image<'_>| {
        image.section(BUILD_ID).is_some_and(|section| section.address == note.p_vaddr && section.size == note.p_filesz)
    };
    note.p_type == PT_NOTE && (a.elf.program_headers.iter().any(is_same) || is_build_id(a) && is_build_id(b))
}

/// Whether it says where the table is, for which loaders ask of a program alone.
fn is_of_library(image: &Image<'_>, header: &ProgramHeader) -> bool {
    header.p_type == PT_PHDR && image.elf.interpreter.is_none() && image.elf.header.e_entry == 0
}

/// Whether it is a dynamic section in memory that is written, and that the input has for nothing. What it says is compared by itself.
fn is_moved_dynamic(a: &Image<'_>, b: &Image<'_>, header: &ProgramHeader) -> bool {
    let (start, end) = (header.p_vaddr, header.p_vaddr.saturating_add(header.p_memsz));
    let holds = |load: &ProgramHeader| {
        load.p_type == PT_LOAD
            && load.p_flags & PF_W != 0
            && load.p_vaddr <= start
            && end <= load.p_vaddr.saturating_add(load.p_filesz)
    };
    let is_used = |section: &Section<'_>| {
        let holds_nothing =
            section.sh_type == SHT_NOBITS && (section.name == ".relro_padding" || section.flags & u64::from(SHF_TLS) != 0);
        section.is_alloc() && !holds_nothing && section.address < end && start < section.end()
    };
    let is_dynamic = header.p_type == PT_DYNAMIC && !a.sections.is_empty();
    is_dynamic && b.elf.program_headers.iter().any(holds) && !a.sections.iter().any(is_used)
}

/// The note of the program's properties, by section or by segment.
fn property_note<'a>(image: &Image<'a>) -> Option<&'a [u8]> {
    if let Some(section) = image.section(".note.gnu.property") {
        return Some(image.section_bytes(section));
    }
    let header = image.elf.program_headers.iter().find(|header| header.p_type == PT_GNU_PROPERTY)?;
    // Where the note was cut out, what says where it is says nothing.
    image.at(header.p_vaddr, usize::try_from(header.p_filesz).ok()?).filter(|bytes| !bytes.is_empty())
}

/// Whether the file says that it runs with indirect branch tracking.
pub(crate) fn claims_ibt(image: &Image<'_>) -> bool {
    let Some(bytes) = property_note(image) else { return false };
    let word = |at: usize| bytes.get(at..at + 4).and_then(|field| field.try_into().ok()).map(u32::from_le_bytes);
    // One note: three words, "GNU\0", then properties of type, size and data padded to 8.
    let mut at = 16;
    while let (Some(kind), Some(size)) = (word(at), word(at + 4)) {
        if kind == FEATURE_1_AND {
            return word(at + 8).is_some_and(|bits| bits & FEATURE_1_IBT != 0);
        }
        at += 8 + (size as usize).next_multiple_of(8);
    }
    false
}
