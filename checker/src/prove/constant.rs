//! Memory that never changes once the program runs: read-only segments, and the words of `.got` that the loader makes read-only after it has
//! relocated them (`PT_GNU_RELRO`).
//!
//! Other words of that part are left out: a static program and the C library write some of them before they are protected.

use goblin::elf::program_header::{PF_W, PT_GNU_RELRO, PT_LOAD};

use super::expr::{FromTable, Id, Node};
use super::semantics::Context;
use crate::image::{Image, Slot};

const PAGE: u64 = 4096;
/// The number of loads that get a certain entry of a jump table, of which it is no matter when they do.
pub(super) const ENTRY: u32 = u32::MAX;

/// What a load from an address gets, if that is always the same.
pub(super) fn load(context: &mut Context<'_, '_>, address: Id, size: u16) -> Option<Id> {
    let image = context.image;
    if let Some(FromTable { table, by, rest: None }) = context.pool.split_from_table(address) {
        // What the word says depends on where the table is.
        let is_constant = never_changes(image, table.wrapping_add(by), u64::from(size / 8));
        return is_constant.then(|| context.pool.make(Node::Load(ENTRY, address, size), size));
    }
    let is_fixed = image.is_position_dependent();
    let place = if is_fixed { context.pool.as_const(address) } else { context.pool.as_image(address) }?;
    let bytes = u64::from(size / 8);
    if !never_changes(image, place, bytes) {
        return None;
    }
    let after = image.slots.partition_point(|&(at, _)| at.saturating_add(8) <= place);
    match image.slots.get(after).filter(|&&(at, _)| at < place + bytes) {
        Some(&(at, Slot::Relative(target))) if at == place && size == 64 => Some(context.pool.image(target, is_fixed)),
        Some(_) => Some(context.pool.make(Node::Fixed(place, size), size)),
        None if size <= 64 => {
            let bytes = image.at(place, bytes as usize)?;
            let value = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
            Some(context.pool.constant(value, size))
        }
        None => Some(context.pool.make(Node::Fixed(place, size), size)),
    }
}

/// The place of the file whose address a word always holds.
pub(crate) fn address_in(image: &Image, place: u64) -> Option<u64> {
    if !never_changes(image, place, 8) {
        return None;
    }
    match image.slot(place) {
        Some(Slot::Relative(target)) => Some(target),
        _ => None,
    }
}

/// Whether the bytes at a place are what the file and the loader put there, for as long as the program runs.
pub(crate) fn never_changes(image: &Image<'_>, place: u64, bytes: u64) -> bool {
    let Some(end) = place.checked_add(bytes).filter(|_| !image.in_code(place)) else { return false };
    let within = |start: u64, size: u64| start <= place && end <= start.saturating_add(size);
    let headers = &image.elf.program_headers;
    let is_read_only = headers
        .iter()
        .any(|header| header.p_type == PT_LOAD && header.p_flags & PF_W == 0 && within(header.p_vaddr, header.p_filesz));
    let is_protected = || {
        let is_relro = |start: u64, size: u64| within(start, (start.saturating_add(size) & !(PAGE - 1)).saturating_sub(start));
        let is_table = image.section_at(place).is_some_and(|section| section.name == ".got" && end <= section.end());
        is_table && headers.iter().any(|header| header.p_type == PT_GNU_RELRO && is_relro(header.p_vaddr, header.p_memsz))
    };
    is_read_only || is_protected()
}
