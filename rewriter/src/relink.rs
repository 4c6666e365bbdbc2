//! Code and image to the output file. The only module that lays out output bytes.
//!
//! **Method.** Place the code, then its jump tables, then what describes it (unwind tables), then what an instrumentation adds; from then
//! on no address changes. Write everything into a copy of the loaded part of the input, whose data keeps its addresses; then append what
//! no loader reads. See `space` for where there is room, `headers` for the one program header that may be needed more.
//!
//! **Invariants.** No data section moves. Every byte outside what this module places, patches by name or fills is the input's.

pub mod addresses;
pub(crate) mod debug_file;
pub mod eh_frame;
pub(crate) mod head;
pub(crate) mod headers;
pub mod lsda;
mod patch;
mod place;
mod reserved;
mod room;
mod sections;
pub(crate) mod space;
mod symbols;
pub(crate) mod unwind;
mod windows;

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::original_name;
use lifter::entity::{Block, EntityId, Section};
use lifter::ir::{BlockData, Program};
use object::elf;
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128_with_seed;

pub use addresses::Addresses;
pub use debug_file::{NewDebugFile, settle};
pub use place::Fitted;
pub(crate) use sections::LINK;

use crate::clones::CloneId;
use crate::debug::map::CodeMap;
use crate::debug::{self, Outcome};
use crate::edit::Snippet;
use crate::encode::{self, FragmentCode, FragmentShape, Shapes};
use crate::error::{Error, Result};
use crate::instrument::Start;
use crate::materialize::{Out, OutFragment, OutProgram};
use crate::plan::Unwinds;
use headers::HeaderChanges;
use patch::OutBytes;
use place::Placement;
use reserved::Reserved;
use room::Rooms;
use sections::{ContentPlace, OutSection, SectionTable};
use space::{Overflow, PAGE};

/// What an instrumentation adds to the file.
pub trait Payload: Sync {
    /// Bytes of zero-filled memory behind the image's data; a multiple of the page size.
    fn reserved(&self) -> u64;
    /// Its code and data for the place `at`, when everything else is placed; `reserved_at` is the zero-filled memory.
    fn build(&mut self, at: Va, reserved_at: Va, addresses: &Addresses<'_>) -> Result<BuiltPayload>;
    /// The bytes of a snippet at `at`; after `build`, and as long as the plan said.
    fn snippet(&self, snippet: Snippet, at: Va) -> Result<Vec<u8>>;
}

#[derive(Clone, Debug)]
pub struct BuiltPayload {
    pub bytes: Vec<u8>,
    /// What runs first.
    pub entry: Va,
    /// In place of what.
    pub start: Start,
}

/// The output and what is worth telling of it.
#[derive(Debug)]
pub struct Relinked {
    pub bytes: Vec<u8>,
    /// By block, if these are asked for: where it went and how many bytes its body and terminator take; the old place for what stayed.
    pub blocks: Vec<(Va, u32)>,
    /// Sections that the move made false.
    pub dropped_sections: Vec<String>,
    /// Bytes behind the image that nothing inside had room for.
    pub overflow_bytes: u64,
    /// *Guard* mode: old addresses that a jump keeps good.
    pub num_anchors: usize,
    /// Loaded bytes that nothing needs: from, and up to. Ascending, apart from each other.
    pub free: Vec<(Va, Va)>,
    /// Where the code of clones went: starts and ends.
    pub clones: Vec<(CloneId, Va, Va)>,
    /// Bytes of the three unwind sections, before and after.
    pub unwind_bytes: (u64, u64),
    /// Branches that go by way of a jump to the same place, and bytes of code that this saves.
    pub relayed: (u64, u64),
    pub fitted: Fitted,
    /// No program header tells any more where the build-id is: its entry was needed.
    pub gives_up_build_id: bool,
    pub debug: Outcome,
    /// The new separate debug file, where one is wanted.
    pub debug_file: Option<NewDebugFile>,
}

/// What is to be known of an output.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Reported {
    /// No more than of the file as a whole.
    File,
    /// Where each block went, too.
    Blocks,
}

/// Relinks. `shapes` are the measured fragments of `out`; `wanted` says what becomes of debug information.
pub fn relink(
    image: &Image<'_>,
    program: &Program,
    out: &OutProgram<'_>,
    mut shapes: Shapes,
    payload: Option<&mut dyn Payload>,
    wanted: debug::Wanted<'_>,
    reported: Reported,
) -> Result<Relinked> {
    let mut reserved = payload.as_ref().and_then(|p| Reserved::of(image, p.reserved()));
    let growth = reserved.map_or(0, |r| r.growth(image));
    let relayed = shapes.relayed();

    // Addresses.
    let mut placement = place::place(image, program, out, &shapes, Overflow::behind(image, growth));
    let fitted = placement.fitted;
    let mut addresses = Addresses::new(program, out, &shapes, &placement);
    // It may take more bytes than before, for which a payload leaves no room.
    let may_grow = payload_behind(image).is_none();
    let moves_code = !out.fragments.is_empty();
    let updates = wanted.mode == debug::Mode::Update && may_grow && moves_code && debug::is_in(image.all_sections());
    let has_map = updates || moves_code && wanted.separate.is_some();
    let stretches = has_map.then(|| debug::map::all_stretches(out, &shapes, &placement.fragments));
    let covered = unwind::covered(image, program, out, &shapes, &placement);
    let pad = |clone, va: Va| unwind::landing_pad(program, &addresses, clone, va);
    let joined_max = unwind::joined_max(image, &program.unwind, out.throws);
    let is_sparse = out.unwinds == Unwinds::FromStops || program.unwind.is_sparse();
    let choices = eh_frame::Choices { joined_max: &joined_max, image: Some(image), is_sparse };
    let mut tables = eh_frame::UnwindLayout::plan(&program.unwind, &covered, choices, pad)?;
    drop(covered);
    shapes.forget_runs();
    // A table without entries is but a terminator, which no one needs where there was none.
    let sizes = match program.unwind.fdes.is_empty() && image.section_named(unwind::SECTIONS[1]).is_none() {
        // mold makes a search table of nothing.
        true => [image.section_named(unwind::SECTIONS[0]).map_or(0, |_| tables.eh_frame_hdr_len), 0, 0],
        false => [tables.eh_frame_hdr_len, tables.eh_frame_len, tables.except_table_len],
    };
    let sizes =
        unwind::Sizes { sections: sizes, common_entries: tables.common_entries_len, longest_entry: tables.longest_entry_len()? };
    let mut places = unwind::place(
        image,
        &sizes,
        &unwind::named(image, program, !out.clone_entries.is_empty()),
        tables.keeps_tables(),
        &mut placement.space,
    )?;
    places.begin_entries(&mut tables)?;
    // Functions that nothing reaches are matched by their content, and by that no table is found where another one was. So only where they are gone.
    let drops_functions = program.funcs.values().any(|data| data.is_movable() && out.placed[data.entry].is_none());
    if drops_functions {
        drop(addresses);
        place::recall_copies(image, program, &mut placement, &mut places);
        addresses = Addresses::new(program, out, &shapes, &placement);
    }
    if let Some(at) = places.registered() {
        addresses.move_unwind_table(at);
    }
    let mut overflow = placement.space.overflow;
    let adds_code = overflow.extends.is_none() && (payload.is_some() || !overflow.is_empty());
    let adds_memory = reserved.is_some_and(|r| !r.is_growth);
    let slots = headers::find_slots(image, usize::from(adds_code) + usize::from(adds_memory))?;
    let gives_up_build_id = slots.gives_up_build_id;
    let moved = head::make_room(image, &slots, &mut places, &mut overflow);
    let built = match (payload, &mut reserved) {
        (Some(payload), Some(reserved)) => Some(reserved.build(payload, &mut overflow, &addresses)?),
        _ => None,
    };
    // Beyond this line no address changes.

    let mut file = OutBytes::new(image, overflow);
    let vacated = if moves_code { space::free_text(image, program) } else { space::replaced_text(image, program) };
    for free in &vacated {
        file.slice_mut(free.start, free.len() as usize)?.fill(0xcc);
    }
    let snippets = built.as_ref().map(|(_, _, payload)| &**payload as &dyn Payload);
    write_code(image, program, (out, &shapes), &placement.fragments, &addresses, snippets, &mut file)?;
    patch::patch_pinned(program, &addresses, &mut file)?;
    patch::patch_slots(image, program, &addresses, &mut file)?;
    let num_anchors = patch::write_anchors(program, image.has_ibt, &addresses, &mut file)?;
    write_unwind(image, &tables, &places, &mut file)?;
    // Behind what clears the unwind tables' old place, where copies may be.
    patch::write_tables(program, &placement, &addresses, &mut file)?;
    if let Some((at, built, _)) = &built {
        file.write(*at, &built.bytes)?;
    }
    head::write(image, &moved, &mut file)?;

    // What describes the file.
    let changes = HeaderChanges {
        overflow: (!overflow.is_empty()).then_some(overflow),
        zero_filled: reserved.filter(|r| !r.is_growth).map(|r| (r.at, r.size)),
        slots,
        moved: moved.clone(),
        eh_frame_hdr: places.sections[0],
        zero_filled_end: reserved.filter(|r| r.is_growth).map(|r| r.end()),
        grown: places.grown.clone(),
    };
    let segments = headers::build(image, &changes, &|va| file.offset_of(va));
    let moved_address = |va: Va| head::address(&moved, va);
    let mut added = overflow_sections(
        image,
        program,
        (&placement, &places),
        &shapes,
        built.as_ref().map(|(at, b, _)| (*at, b.bytes.len() as u64)),
        reserved.as_ref(),
        &file,
    );
    added.extend(wanted.separate.map(|separate| debug_file::link(separate.name)));
    let map = stretches.map(|all| CodeMap::new(image, program, &addresses, all));
    let updated = map.as_ref().filter(|_| updates).map(|map| debug::update(image.all_sections(), map));
    let (updated, debug) = match updated {
        None => (None, Outcome::Nothing),
        Some(Err(error)) => (None, Outcome::NotUnderstood(error)),
        Some(Ok(updated)) => {
            let outcome = Outcome::Updated { partial: updated.partial };
            (Some(updated), outcome)
        }
    };
    let mut table = SectionTable::new(image, moves_code, added, updated, |id, section| {
        edit_section(image, id, section, &places, &moved_address, reserved.as_ref(), &file);
    });
    let placed = symbols::Placed { program, out, shapes: &shapes, placement: &placement, addresses: &addresses };
    let names = symbols::Names { sections: image.all_sections(), symbols: &image.symbols };
    symbols::rewrite(image, names, placed, &mut table, &moved_address);
    rewrite_probes(image, &addresses, &mut table);
    let remap_definition = |shndx, address| table.remap_definition(shndx, address);
    patch::patch_dynamic(image, placed, &|va| table.section_of(va), &remap_definition, &moved_address, &mut file)?;
    let mut entry = program.block_at(image.e_entry).map_or(image.e_entry, |block| addresses.identity(block));
    match built.as_ref().map(|(_, built, _)| (built.start, built.entry)) {
        Some((Start::Entry, stub)) => entry = stub,
        Some((start, stub)) => patch::redirect_start(image, program, start, stub, &mut file)?,
        None => {}
    }
    let dropped_sections = table.dropped.clone();
    let clones = clone_places(out, &shapes, &placement.fragments);
    let blocks = match reported {
        Reported::Blocks => block_places(program, out, &shapes, &addresses),
        Reported::File => Vec::new(),
    };
    let build_id = image.build_id.map(|(offset, len)| (build_id_offset(image, offset, &moved_address, &file), len));
    let output =
        debug_file::Output { image, sections: &table.sections, bytes: &file.bytes, segments: &segments, entry, build_id };
    let separate = wanted.separate.map(|separate| debug_file::build(separate, map.as_ref(), placed, &moved_address, output));
    let mut debug_file = separate.transpose()?;
    drop(map);
    // What is not needed any more are many small pieces: they are given back meanwhile.
    let finish = || finish(image, file.bytes, &segments, table, entry);
    let (finished, ()) = rayon::join(finish, || drop((shapes, tables)));
    let (mut bytes, link) = finished?;
    match (&mut debug_file, wanted.separate, link) {
        (Some(debug_file), Some(separate), Some(link)) => {
            debug_file::seal(&mut bytes, build_id, (link, separate.name), debug_file)?;
        }
        _ => build_id.into_iter().for_each(|(offset, len)| renew_build_id(&mut bytes, offset, len)),
    }
    let mut free = if moves_code { placement.space.rest() } else { vacated };
    free.extend(places.free.iter().copied());
    let old = unwind::SECTIONS.iter().filter_map(|name| image.section_named(name)).map(|id| image.sections[id].sh_size).sum();
    let new = places.sections.iter().flatten().map(|&(_, size)| size).sum();
    Ok(Relinked {
        bytes,
        blocks,
        dropped_sections,
        overflow_bytes: overflow.len(),
        num_anchors,
        free: space::joined(free.into_iter().map(|interval| (interval.start, interval.end)).collect()),
        clones,
        unwind_bytes: (old, new),
        relayed,
        fitted,
        gives_up_build_id,
        debug,
        debug_file,
    })
}

/// Bytes behind everything that the headers describe are someone's payload (a self-extracting archive, say). The program may find them by
/// a number of its own, by counting from the end of the file or from the end of the section headers, so all of these have to stay.
pub(crate) fn payload_behind<'a>(image: &Image<'a>) -> Option<(u64, &'a [u8])> {
    let sections = image.sections.values().filter(|s| s.has_bytes()).map(|s| s.sh_offset.0 + s.sh_size);
    let headers = section_headers(image).map_or(0, |(_, end)| end);
    let end = sections.chain([headers, space::loaded_file_end(image)]).max().unwrap_or(0);
    let rest = image.bytes.get(end as usize..).unwrap_or(&[]);
    rest.iter().any(|&b| b != 0).then_some((end, rest))
}

/// Where in the file the section headers are: start and end.
fn section_headers(image: &Image<'_>) -> Option<(u64, u64)> {
    let e_shoff = image.bytes.get(40..48).filter(|_| image.has_section_headers)?;
    let start = u64::from_le_bytes(e_shoff.try_into().ok()?);
    Some((start, start.saturating_add(64 * image.sections.len() as u64)))
}

/// Encodes the fragments and writes them where they are placed.
fn write_code(
    image: &Image<'_>,
    program: &Program,
    (out, shapes): (&OutProgram<'_>, &Shapes),
    places: &[Va],
    addresses: &Addresses<'_>,
    payload: Option<&dyn Payload>,
    file: &mut OutBytes,
) -> Result<()> {
    /// So many that threads have enough to do, and their bytes are few beside the file's.
    const FRAGMENTS_AT_ONCE: usize = 1024;
    for first in (0..shapes.count()).step_by(FRAGMENTS_AT_ONCE) {
        let some = first..shapes.count().min(first + FRAGMENTS_AT_ONCE);
        let code = |index: usize| {
            let mut code = encode::write(image, program, out, (&out.fragments[index], shapes.of(index)))?;
            patch::resolve_fixups(&mut code, places[index], addresses)?;
            if let Some(payload) = payload {
                write_snippets(&mut code, places[index], payload)?;
            }
            Ok(code.bytes)
        };
        let codes: Vec<Vec<u8>> = some.clone().into_par_iter().map(code).collect::<Result<_>>()?;
        for (bytes, &at) in codes.iter().zip(&places[some]) {
            file.write(at, bytes)?;
        }
    }
    Ok(())
}

fn write_snippets(code: &mut FragmentCode, at: Va, payload: &dyn Payload) -> Result<()> {
    for late in &code.lates {
        let bytes = payload.snippet(late.snippet, at + u64::from(late.offset))?;
        if bytes.len() != late.len as usize {
            return Err(Error::Inconsistent(format!("a snippet has {} bytes, not {}", bytes.len(), late.len)));
        }
        let start = late.offset as usize;
        code.bytes[start..start + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(())
}

fn write_unwind(
    image: &Image<'_>,
    tables: &eh_frame::UnwindLayout<'_>,
    places: &unwind::Places,
    file: &mut OutBytes,
) -> Result<()> {
    for (index, name) in unwind::SECTIONS.into_iter().enumerate() {
        if places.renews(index)
            && let Some(section) = image.section_named(name).map(|id| &image.sections[id])
            && section.has_bytes()
        {
            file.slice_mut(section.sh_addr, section.sh_size as usize)?.fill(0);
        }
    }
    let at = |index: usize| places.sections[index].map_or(Va(0), |(va, _)| va);
    let bytes = tables.write(at(2), at(1), at(0))?;
    for (index, content) in [&bytes.eh_frame_hdr, &bytes.eh_frame, &bytes.except_table].into_iter().enumerate() {
        if let Some((va, _)) = places.sections[index] {
            file.write(va, content)?;
        }
    }
    Ok(())
}

/// Section headers for what lies in the overflow, unwind sections and moved notes aside: those keep their own.
fn overflow_sections(
    image: &Image<'_>,
    program: &Program,
    (placement, places): (&Placement, &unwind::Places),
    shapes: &Shapes,
    payload: Option<(Va, u64)>,
    reserved: Option<&Reserved>,
    file: &OutBytes,
) -> Vec<OutSection<'static>> {
    let overflow = placement.space.overflow;
    let section = |name: &str, start: Va, end: Va| OutSection {
        source: None,
        name: name.to_owned(),
        sh_type: elf::SHT_PROGBITS,
        sh_flags: u64::from(elf::SHF_ALLOC | elf::SHF_EXECINSTR),
        sh_addr: start,
        sh_size: end - start,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 16,
        sh_entsize: 0,
        place: ContentPlace::Loaded(file.offset_of(start)),
    };
    let mut sections = Vec::new();
    let code_ends = shapes.iter().zip(&placement.fragments).map(|(code, &at)| at + u64::from(code.len));
    let table_ends = program.tables.iter().filter_map(|(table, data)| match placement.tables[table] {
        place::TablePlace::CopiedTo(_) if placement.copies.is_some() => None,
        place::TablePlace::CopiedTo(va) => Some(va + data.byte_len()),
        place::TablePlace::Untouched | place::TablePlace::InPlace => None,
    });
    let of_clones = placement.clone_tables.iter().filter(|_| placement.copies.is_none());
    let clone_table_ends = of_clones.map(|(&(_, table), &at)| at + program.tables[table].byte_len());
    let end = code_ends.chain(table_ends).chain(clone_table_ends).filter(|&end| end > overflow.start).max();
    if let Some(end) = end.filter(|_| image.has_section_headers) {
        sections.push(section(".text.relift", overflow.start, end));
    }
    if let Some((start, end)) = placement.copies.filter(|_| image.has_section_headers) {
        let sh_flags = u64::from(elf::SHF_ALLOC);
        sections.push(OutSection { sh_flags, ..section(".rodata.relift", start, end) });
    }
    let new_tables = places.sections[unwind::EXCEPTION_TABLES].filter(|(_, size)| places.keeps_tables && *size > 0);
    if let Some((at, len)) = new_tables.filter(|_| image.has_section_headers) {
        let sh_flags = u64::from(elf::SHF_ALLOC);
        sections.push(OutSection { sh_flags, ..section(unwind::SECTIONS[unwind::EXCEPTION_TABLES], at, at + len) });
    }
    // Sections of their own, by which all who change the file later know that they are needed.
    for &at in places.terminators.iter().filter(|_| image.has_section_headers) {
        let sh_flags = u64::from(elf::SHF_ALLOC);
        let end = at + unwind::TERMINATOR;
        sections.push(OutSection { sh_flags, sh_addralign: 4, ..section(".unwind_end.relift", at, end) });
    }
    if let Some((at, len)) = payload {
        sections.push(section(".runtime.relift", at, at + len));
    }
    if let Some(memory) = reserved.filter(|r| !r.is_growth) {
        let counters = section(".counters.relift", memory.at, memory.end());
        let sh_flags = u64::from(elf::SHF_ALLOC | elf::SHF_WRITE);
        let place = ContentPlace::Loaded(FileOffset(0));
        sections.push(OutSection { sh_type: elf::SHT_NOBITS, sh_flags, place, ..counters });
    }
    sections
}

/// What the section is called that BOLT calls the old one: what is there is not what BOLT has left.
const REWRITTEN_TEXT: &str = ".text.org";

/// What changes in a section's header.
fn edit_section(
    image: &Image<'_>,
    id: Section,
    section: &mut OutSection<'_>,
    places: &unwind::Places,
    moved_address: &dyn Fn(Va) -> Option<Va>,
    reserved: Option<&Reserved>,
    file: &OutBytes,
) {
    let input = &image.sections[id];
    let move_to = |va: Va, size: u64, section: &mut OutSection<'_>| {
        section.sh_addr = va;
        section.sh_size = size;
        section.place = ContentPlace::Loaded(file.offset_of(va));
    };
    if image.is_movable_code_section(id) && original_name(input.name) != input.name {
        section.name = REWRITTEN_TEXT.to_owned();
    }
    let index = unwind::index_of(&section.name, section.sh_type).filter(|&index| places.renews(index));
    if let Some((va, size)) = index.and_then(|index| places.sections[index]) {
        move_to(va, size, section);
        // Hand-written entries may say that they are writable, and stand with data.
        if image.segment_at(va).is_none_or(|segment| segment.p_flags & elf::PF_W == 0) {
            section.sh_flags &= !u64::from(elf::SHF_WRITE);
        }
    } else if input.is_alloc()
        && let Some(va) = moved_address(input.sh_addr)
    {
        move_to(va, input.sh_size, section);
    } else if image.is_movable_code_section(id)
        && let Some(end) = places.text_end.filter(|&end| input.sh_addr <= end && end < input.end())
    {
        section.sh_size = end - input.sh_addr;
    } else if let Some(memory) = reserved.filter(|r| r.is_growth)
        && input.sh_type == elf::SHT_NOBITS
        && !input.is_tls_bss()
        && input.end().align_up(PAGE) == memory.at
    {
        section.sh_size = memory.end() - input.sh_addr;
    }
}

/// `.note.stapsdt`: where the addresses of probes in code are (SystemTap's note format: location, base, semaphore, then strings).
fn probe_fields(image: &Image<'_>) -> Option<(Section, Vec<usize>)> {
    let (id, _) = image.sections.iter().find(|(_, s)| s.name == ".note.stapsdt" && !s.is_alloc())?;
    let bytes = image.section_bytes(id);
    let (mut fields, mut at) = (Vec::new(), 0usize);
    while let Some(header) = bytes.get(at..at + 12) {
        let word = |i: usize| u32::from_le_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]) as usize;
        let desc = at + 12 + word(0).next_multiple_of(4);
        if bytes.get(desc..desc + 8).is_some() {
            fields.push(desc);
        }
        at = desc.saturating_add(word(4).next_multiple_of(4));
    }
    Some((id, fields))
}

/// The addresses of probes.
pub(crate) fn probes(image: &Image<'_>) -> Vec<Va> {
    let Some((id, fields)) = probe_fields(image) else { return Vec::new() };
    let bytes = image.section_bytes(id);
    let address = |at: usize| bytes[at..at + 8].try_into().map_or(Va(0), |word| Va(u64::from_le_bytes(word)));
    fields.into_iter().map(address).collect()
}

fn rewrite_probes(image: &Image<'_>, addresses: &Addresses<'_>, table: &mut SectionTable<'_>) {
    let Some((id, fields)) = probe_fields(image) else { return };
    let mut bytes = image.section_bytes(id).to_vec();
    for (at, old) in fields.into_iter().zip(probes(image)) {
        if let Some(new) = addresses.translate(old) {
            bytes[at..at + 8].copy_from_slice(&new.0.to_le_bytes());
        }
    }
    table.set_content(id, bytes, None);
}

fn block_places(program: &Program, out: &OutProgram<'_>, shapes: &Shapes, addresses: &Addresses<'_>) -> Vec<(Va, u32)> {
    // Blocks are asked for in the input's order: a search through the fragments for each would find none of them near the last.
    let sizes = out.fragments.iter().zip(0..).map(|(fragment, number)| (fragment.blocks.len(), number));
    let fragment_of: Vec<u32> = sizes.flat_map(|(size, number)| std::iter::repeat_n(number, size)).collect();
    let len = |id: Out| {
        let fragment = fragment_of[id.index()] as usize;
        let (code, within) = (shapes.of(fragment), id.index() - out.fragments[fragment].blocks.start as usize);
        code.offsets.get(within + 1).map_or(code.len, |&next| next) - code.offsets[within]
    };
    // Of a block and its copies, the place is the block's own.
    let place = |(index, data): (usize, &BlockData)| match out.placed[Block::new(index)] {
        Some(id) => (addresses.out(id), len(id)),
        None => (data.start, data.len),
    };
    program.blocks.as_slice().par_iter().enumerate().map(place).collect()
}

fn clone_places(out: &OutProgram<'_>, shapes: &Shapes, fragments: &[Va]) -> Vec<(CloneId, Va, Va)> {
    let placed = out.fragments.iter().zip(shapes.iter()).zip(fragments);
    let range =
        |((fragment, code), &at): ((&OutFragment, FragmentShape<'_>), &Va)| Some((fragment.clone?, at, at + u64::from(code.len)));
    placed.filter_map(range).collect()
}

fn build_id_offset(
    image: &Image<'_>,
    offset: FileOffset,
    moved_address: &dyn Fn(Va) -> Option<Va>,
    file: &OutBytes,
) -> FileOffset {
    let va = image
        .loads()
        .find(|s| s.p_offset <= offset && offset.0 < s.p_offset.0 + s.p_filesz)
        .map(|s| s.p_vaddr + (offset.0 - s.p_offset.0));
    va.and_then(moved_address).map_or(offset, |va| file.offset_of(va))
}

/// Writes headers and what no loader reads; gives the file, and where it links to a debug file.
fn finish(
    image: &Image<'_>,
    mut bytes: Vec<u8>,
    segments: &[lifter::elf::image::Segment],
    table: SectionTable<'_>,
    entry: Va,
) -> Result<(Vec<u8>, Option<u64>)> {
    let headers = headers::encode(segments);
    let start = image.e_phoff.0 as usize;
    bytes
        .get_mut(start..start + headers.len())
        .ok_or_else(|| Error::Inconsistent("the program headers are not in the loaded part of the file".into()))?
        .copy_from_slice(&headers);
    let payload = payload_behind(image);
    let rooms = Rooms::of(image, segments, bytes.len() as u64);
    let written = table.write(&mut bytes, rooms, payload.map(|(at, _)| at));
    if let Some((at, payload)) = payload {
        if bytes.len() as u64 > at {
            return Err(Error::TrailingPayload { at, excess: bytes.len() as u64 - at });
        }
        bytes.resize(at as usize, 0);
        bytes.extend_from_slice(payload);
    }
    bytes[24..32].copy_from_slice(&entry.0.to_le_bytes());
    bytes[40..48].copy_from_slice(&written.e_shoff.to_le_bytes());
    bytes[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
    bytes[60..62].copy_from_slice(&written.e_shnum.to_le_bytes());
    bytes[62..64].copy_from_slice(&written.e_shstrndx.to_le_bytes());
    Ok((bytes, written.link))
}

/// A build-id names the contents of a file, so new contents get a new one, of the same length: a hash of the output.
fn renew_build_id(bytes: &mut [u8], offset: FileOffset, len: usize) {
    let range = offset.0 as usize..offset.0 as usize + len;
    if bytes.len() < range.end {
        return;
    }
    bytes[range.clone()].fill(0);
    let mut id = Vec::with_capacity(len + 16);
    while id.len() < len {
        id.extend_from_slice(&xxh3_128_with_seed(bytes, id.len() as u64).to_be_bytes());
    }
    bytes[range].copy_from_slice(&id[..len]);
}
