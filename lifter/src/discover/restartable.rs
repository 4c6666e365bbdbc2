//! Restartable sequences: code that the kernel takes back where it was interrupted.
//!
//! **Problem.** A thread tells the kernel, by a word of memory, the descriptor of a short sequence of instructions. When the thread is preempted or gets a signal, the kernel compares the instruction
//! pointer with where the sequence starts and ends. If it is in between, the thread goes on at the abort handler instead, provided that the four bytes before that are the signature that the thread
//! registered. So the sequence has to stay in one piece and in order, nothing else may come to lie in it, no copy of it may run elsewhere, and the signature, to which no instruction leads, has to
//! stay right before the handler. No instruction shows any of that.
//!
//! **Method.** A descriptor has a shape of its own: 32 bytes, aligned to as many, a version of 0 and a few flags, the address of the start, the length, the address of the abort handler, which is outside of
//! the sequence and behind four bytes other than those that fill what is between functions. Every place of the data that looks like that is taken for one, whatever its section is called: what is so taken by mistake stays, and nothing else happens to it. Where addresses are
//! relocated, the two words are, and the others are not.
//!
//! A descriptor may also be made by code, of labels. There the signature gives it away, if it is the one that C libraries register ([`SIGNATURE`]).
//!
//! Source: Linux, `include/uapi/linux/rseq.h` and the checks of `rseq_get_rseq_cs` in `kernel/rseq.c`.

use crate::address::Va;
use crate::discover::survey::{How, NumberRole, Survey};
use crate::discover::unseen::data_sections;
use crate::elf::Image;
use crate::elf::image::DynReloc;

/// The section in which most programs keep descriptors, and nothing else.
pub(crate) const DESCRIPTORS: &str = "__rseq_cs";
/// Pointers to descriptors, for debuggers.
pub(crate) const POINTERS_TO_DESCRIPTORS: &str = "__rseq_cs_ptr_array";

/// Bytes of a descriptor, and what it is aligned to.
pub(crate) const DESCRIPTOR_LEN: u64 = 32;
const START: u64 = 8;
const LEN: u64 = 16;
const ABORT: u64 = 24;

/// There are three flags, all of them out of use.
const FLAGS_END: u64 = 8;

/// Bytes of the instructions that fill what is between functions: there is no signature of these alone.
const FILLERS: [u8; 11] = [0x00, 0x0f, 0x1f, 0x2e, 0x40, 0x44, 0x66, 0x80, 0x84, 0x90, 0xcc];

/// What glibc and the others register on x86, for all that run in the same process.
const SIGNATURE: u32 = 0x5305_3053;
pub(crate) const SIGNATURE_LEN: u64 = 4;

/// What a descriptor says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub(crate) descriptor: Va,
    pub(crate) start: Va,
    /// One past the last byte.
    pub(crate) end: Va,
    pub(crate) abort: Va,
}

impl Sequence {
    fn at(image: &Image<'_>, descriptor: Va, start: Va, abort: Va) -> Option<Self> {
        let head = image.read_u64(descriptor)?;
        let (version, flags) = (head as u32, head >> 32);
        let len = image.read_u64(descriptor + LEN)?;
        let section = image.section_at(start).map(|id| &image.sections[id]).filter(|section| section.is_executable())?;
        let end = Va(start.0.checked_add(len)?);
        let is_outside = abort < start || end <= abort;
        let is_one = version == 0 && flags < FLAGS_END && len > 0 && end <= section.end() && is_outside;
        let signature = || image.read(Va(abort.0.checked_sub(SIGNATURE_LEN)?), SIGNATURE_LEN as usize);
        let is_signed = || signature().is_some_and(|bytes| bytes.iter().any(|byte| !FILLERS.contains(byte)));
        (is_one && image.is_executable(abort) && is_signed()).then_some(Self { descriptor, start, end, abort })
    }
}

/// All that looks like a descriptor, ascending.
pub(crate) fn find_sequences(image: &Image<'_>) -> Vec<Sequence> {
    if image.kind.is_position_independent() { find_relocated(image) } else { find_in_words(image) }
}

fn find_relocated(image: &Image<'_>) -> Vec<Sequence> {
    let relocs = &image.dynamic_relocs;
    let address = |reloc: &DynReloc| {
        let va = if reloc.symbol == 0 { Va(reloc.addend as u64) } else { image.address_by_symbol(reloc)? };
        image.is_executable(va).then_some((reloc.slot, va))
    };
    let is_field = |reloc: &&DynReloc| [START, ABORT].contains(&(reloc.slot.0 % DESCRIPTOR_LEN));
    let fields: Vec<(Va, Va)> = relocs.iter().filter(is_field).filter_map(address).collect();
    let is_relocated = |slot: Va| relocs.binary_search_by_key(&slot, |reloc| reloc.slot).is_ok();
    let sequence = |pair: &[(Va, Va)]| {
        let [(at, start), (next, abort)] = [pair[0], pair[1]];
        let descriptor = Va(at.0 / DESCRIPTOR_LEN * DESCRIPTOR_LEN);
        let is_pair = at == descriptor + START && next == descriptor + ABORT;
        let is_plain = || !is_relocated(descriptor) && !is_relocated(descriptor + LEN);
        if is_pair && is_plain() { Sequence::at(image, descriptor, start, abort) } else { None }
    };
    fields.windows(2).filter_map(sequence).collect()
}

fn find_in_words(image: &Image<'_>) -> Vec<Sequence> {
    let mut found = Vec::new();
    for section in data_sections(image) {
        let first = section.sh_addr.align_up(DESCRIPTOR_LEN);
        let bytes = image.read(first, section.end().0.saturating_sub(first.0) as usize).unwrap_or(&[]);
        let (records, _) = bytes.as_chunks::<{ DESCRIPTOR_LEN as usize }>();
        for (record, index) in records.iter().zip(0..) {
            let word = |at: u64| record[at as usize..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            // Most of the work: two comparisons for a record of anything else.
            if word(0) as u32 == 0 && word(0) >> 32 < FLAGS_END && word(START) != 0 && word(ABORT) != 0 {
                found.extend(Sequence::at(image, first + DESCRIPTOR_LEN * index, Va(word(START)), Va(word(ABORT))));
            }
        }
    }
    found.sort_by_key(|sequence| sequence.descriptor);
    found
}

/// Whether the signature of C libraries stands before an address.
pub(crate) fn has_signature(image: &Image<'_>, abort: Va) -> bool {
    abort.0 >= SIGNATURE_LEN && image.read_u32(Va(abort.0 - SIGNATURE_LEN)) == Some(SIGNATURE)
}

/// Addresses that the code of a unit makes and before which that signature stands.
pub(crate) fn aborts_named_by<'i>(image: &'i Image<'_>, survey: &'i Survey) -> impl Iterator<Item = Va> + use<'i> {
    let computed = survey.names.iter().filter(|name| name.how == How::Address).map(|name| name.target);
    let numbers = survey.absolutes.iter().filter(|number| matches!(number.role, NumberRole::Value | NumberRole::Copied));
    computed.chain(numbers.map(|number| number.value)).filter(|&va| image.is_executable(va) && has_signature(image, va))
}

/// Where the signatures stand: nothing leads to them, and in some programs they are fields of what looks like padding.
pub(crate) fn signatures<'i>(
    image: &'i Image<'_>,
    sequences: &'i [Sequence],
    surveys: &'i [Survey],
) -> impl Iterator<Item = Va> + use<'i> {
    let made = surveys.iter().flat_map(|survey| aborts_named_by(image, survey));
    sequences.iter().map(|sequence| sequence.abort).chain(made).filter_map(|abort| abort.0.checked_sub(SIGNATURE_LEN).map(Va))
}
