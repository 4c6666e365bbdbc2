//! Words of data that hold code addresses: what the loader relocates and, in a file at a fixed address, what the linker relocated.

use object::elf;

use crate::address::Va;
use crate::discover::names::dynamic_code_slots;
use crate::discover::units::{Units, unit_at};
use crate::elf::Image;
use crate::elf::image::original_name;
use crate::ir::{Evidence, Program, SlotData, SlotKind};

/// Sections whose contents other parts of relift read and write anew.
pub(crate) fn is_rebuilt(name: &str) -> bool {
    let name = original_name(name);
    [".eh_frame", ".eh_frame_hdr", ".gcc_except_table"].contains(&name) || name.starts_with(".gcc_except_table.")
}

/// The words of the global offset table. The linker makes them itself, for relocations of code, so no relocation is kept for them; in a
/// static file the loader has none either.
fn offset_table_words(image: &Image<'_>) -> impl Iterator<Item = Va> + use<> {
    const NAME: &str = ".got";
    let section = image.section_named(NAME).map(|id| &image.sections[id]).filter(|s| s.is_alloc() && s.has_bytes());
    let (start, end) = section.map_or((0, 0), |s| (s.sh_addr.align_up(8).0, s.end().0));
    (start..end).step_by(8).map(Va)
}

/// `(word, target, kind)` of every data word of a file at a fixed address that a static relocation says holds a code address, or that
/// holds nothing else.
pub(crate) fn static_code_slots<'i>(
    image: &'i Image<'_>,
    units: &'i Units,
) -> impl Iterator<Item = (Va, Va, SlotKind)> + use<'i> {
    static_words(image).filter(|&(_, target, _)| unit_at(units, target).is_some())
}

/// The same for words that hold any address.
pub(crate) fn static_words<'i>(image: &'i Image<'_>) -> impl Iterator<Item = (Va, Va, SlotKind)> + use<'i> {
    let data_sections = image.sections.values().filter(|s| s.is_alloc() && !s.is_executable() && !is_rebuilt(s.name));
    let relocs = data_sections.flat_map(|s| image.static_relocs_in(s.sh_addr, s.end()));
    let relocated = relocs.filter_map(|reloc| {
        let (kind, target) = match reloc.r_type {
            elf::R_X86_64_64 => (SlotKind::Abs64, image.read_u64(reloc.at)?),
            elf::R_X86_64_32 => (SlotKind::Abs32, u64::from(image.read_u32(reloc.at)?)),
            elf::R_X86_64_32S => (SlotKind::Abs32, image.read_u32(reloc.at)? as i32 as i64 as u64),
            _ => return None,
        };
        Some((reloc.at, Va(target), kind))
    });
    let made = offset_table_words(image).filter_map(|at| Some((at, Va(image.read_u64(at)?), SlotKind::Abs64)));
    relocated.chain(made)
}

/// `(word, places)` of every pc-relative word of data, of 32 or 64 bits, that a static relocation says names code: `places` are where it may
/// point, counted from itself and from the start of the run of such words that it is in.
pub(crate) fn relative_words(image: &Image<'_>, is_claimed: impl Fn(Va) -> bool) -> Vec<[Va; 2]> {
    let mut places = Vec::new();
    for section in image.sections.values().filter(|s| s.is_alloc() && !s.is_executable() && !is_rebuilt(s.name)) {
        let mut run_start = Va(0);
        let mut previous = Va(0);
        for reloc in image.static_relocs_in(section.sh_addr, section.end()) {
            let (width, delta) = match reloc.r_type {
                elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => (4, image.read_u32(reloc.at).map(|word| i64::from(word as i32))),
                elf::R_X86_64_PC64 => (8, image.read_u64(reloc.at).map(|word| word as i64)),
                _ => continue,
            };
            if is_claimed(reloc.at) {
                continue;
            }
            if previous + width != reloc.at {
                run_start = reloc.at;
            }
            previous = reloc.at;
            let Some(delta) = delta else { continue };
            places.push([reloc.at.offset(delta), run_start.offset(delta)]);
        }
    }
    places
}

/// All slots, ascending by address.
pub(crate) fn collect(image: &Image<'_>, units: &Units, program: &Program, use_static_relocs: bool) -> Vec<SlotData> {
    let mut slots = Vec::new();
    let mut push = |at: Va, target: Va, kind: SlotKind| {
        if let Some(target) = program.block_at(target) {
            slots.push(SlotData { at, kind, target, evidence: Evidence::Exact });
        }
    };
    for (index, target) in dynamic_code_slots(image, units) {
        push(image.dynamic_relocs[index].slot, target, SlotKind::Dynamic(index as u32));
    }
    if use_static_relocs && !image.kind.is_position_independent() {
        for (at, target, kind) in static_code_slots(image, units) {
            push(at, target, kind);
        }
    }
    slots.sort_by_key(|s| s.at);
    // The loader's word is the linker's word too; the dynamic relocation was pushed first and the sort is stable.
    slots.dedup_by_key(|s| s.at);
    slots
}
