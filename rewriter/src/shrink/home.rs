//! The program headers back where linkers put them, behind the header of the file.
//!
//! **Problem.** BOLT needs a header more for its segment, and writes the table anew at the start of that. Kernels before 5.18 take the address of the table for what it would be
//! if the first segment went on so far: while it is in a later one, no offset can change. GNU's `strip` can't take such a file either.
//!
//! **Method.** Where the table was is room, up to the first section. Entries that say nothing go if it takes that: empty ones, the property note, which linkers write twice, and in a
//! library the entry that says where the table is, which only a program's loader asks for. In a program it may be the one for which there is no room; then what stands behind the table makes some ([`evict`]).
//! The old place of the table is free then, with the zeros behind it.
//!
//! **Why it is right.** Loaders find the table by the file's header, and programs theirs by what the kernel tells them. Nothing is where it goes: no section, no other segment, nothing that code or a
//! relocated word names.
//!
//! Source: gABI chapter 5 (program header).

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::Segment;
use object::elf;

use super::evict;
use super::remains::holds;
use crate::relink::headers;

/// Bytes of an `Elf64_Ehdr`, behind which the table goes.
const FILE_HEADER: u64 = 64;

/// A file with its program headers in front.
#[derive(Clone, Debug)]
pub struct Home {
    pub bytes: Vec<u8>,
    /// What was free, and is yet, and where the table was, with the zeros behind it. Ascending.
    pub free: Vec<(Va, Va)>,
}

/// Brings the table home. `named` are the addresses that something holds, `free` what nothing needs, both ascending. `None` where it is there, or has no room.
pub fn bring_home(bytes: &[u8], named: &[Va], free: &[(Va, Va)]) -> Option<Home> {
    // Nearly every file's is, and need not be parsed for that.
    if bytes.get(32..40)? == FILE_HEADER.to_le_bytes() {
        return None;
    }
    let image = Image::parse(bytes).ok().filter(|image| image.has_section_headers)?;
    let first = image.loads().min_by_key(|segment| segment.p_vaddr).filter(|first| first.p_offset.0 == 0)?;
    let end = headers::table_end(&image)?;
    let old = (Va(end.0 - headers::ENTRY * image.segments.len() as u64), zeros_end(&image, end));
    let at = first.p_vaddr + FILE_HEADER;
    let room = room_end(&image, first, at) - at;
    if holds(named, old) || holds(named, (at, at + room)) {
        return None;
    }
    let mut free = free.to_vec();
    free.push(old);
    free.sort_unstable();
    let cleared = cleared(bytes, &image)?;
    let num_max = (room / headers::ENTRY) as usize;
    let (own, others): (Vec<Segment>, Vec<Segment>) = image.segments.iter().partition(|s| s.p_type == elf::PT_PHDR);
    if let Some(segments) = fitting(&image, num_max) {
        return Some(Home { bytes: with_table(cleared, at, &segments)?, free });
    }
    let (&[own], true) = (own.as_slice(), others.len() <= num_max) else { return None };
    let evicted = evict::for_cuts(&with_table(cleared, at, &others)?, named, &free, &[1])?;
    let mut segments = vec![own];
    segments.extend(&Image::parse(&evicted.bytes).ok()?.segments);
    Some(Home { bytes: with_table(evicted.bytes, at, &segments)?, free: evicted.free })
}

/// The file without the table where it is.
fn cleared(bytes: &[u8], image: &Image<'_>) -> Option<Vec<u8>> {
    let at = image.e_phoff.0 as usize;
    let mut out = bytes.to_vec();
    out.get_mut(at..at + headers::ENTRY as usize * image.segments.len())?.fill(0);
    Some(out)
}

/// The file with this table behind its header, which is at an address.
fn with_table(mut bytes: Vec<u8>, at: Va, segments: &[Segment]) -> Option<Vec<u8>> {
    let size = headers::ENTRY * segments.len() as u64;
    let place = |segment: &Segment| match segment.p_type {
        elf::PT_PHDR => Segment { p_offset: FileOffset(FILE_HEADER), p_vaddr: at, p_filesz: size, p_memsz: size, ..*segment },
        _ => *segment,
    };
    let table = headers::encode(&segments.iter().map(place).collect::<Vec<_>>());
    bytes.get_mut(FILE_HEADER as usize..)?.get_mut(..table.len())?.copy_from_slice(&table);
    bytes[32..40].copy_from_slice(&FILE_HEADER.to_le_bytes());
    bytes[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
    Some(bytes)
}

/// The entries, if no more than so many say something.
fn fitting(image: &Image<'_>, num_max: usize) -> Option<Vec<Segment>> {
    let is_library = image.segments.iter().all(|segment| segment.p_type != elf::PT_INTERP) && image.e_entry.0 == 0;
    let of_table = image.segments.iter().position(|segment| segment.p_type == elf::PT_PHDR).filter(|_| is_library);
    let num_more = image.segments.len().saturating_sub(num_max);
    let dropped: Vec<usize> = headers::idle(image).chain(of_table).take(num_more).collect();
    let kept = image.segments.iter().enumerate().filter(|(index, _)| !dropped.contains(index)).map(|(_, segment)| *segment);
    (dropped.len() == num_more).then(|| kept.collect())
}

/// Where something begins behind an address of the first segment, or that ends.
fn room_end(image: &Image<'_>, first: &Segment, at: Va) -> Va {
    let sections = image.sections.values().filter(|s| s.is_alloc() && s.sh_size > 0).map(|s| s.sh_addr);
    let others = image.segments.iter().filter(|s| !s.is_load() && s.p_memsz > 0).map(|s| s.p_vaddr);
    let end = first.p_vaddr + first.p_filesz;
    sections.chain(others).filter(|&start| start >= at).min().map_or(end, |start| start.min(end))
}

/// One past the zeros from an address on, in its segment, that no section has.
fn zeros_end(image: &Image<'_>, from: Va) -> Va {
    let Some(segment) = image.loads().find(|s| s.p_vaddr < from && from <= s.p_vaddr + s.p_filesz) else { return from };
    let end = room_end(image, segment, from);
    let bytes = image.read(from, (end - from) as usize).unwrap_or(&[]);
    from + bytes.iter().take_while(|&&byte| byte == 0).count() as u64
}
