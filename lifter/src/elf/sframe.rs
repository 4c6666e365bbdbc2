//! `.sframe`: which code has its frames described in GNU's simple form.
//!
//! **Problem.** The section says of functions, by their distance from it, where an unwinder that goes by it finds the return address at each offset. It is not rewritten, so what it describes
//! has to stay. Linkers describe their own stubs and little else unless the compiler was asked for more.
//!
//! **Method.** The header tells the version, how starts are counted, and where the entries are; an entry tells a start and a length. Version 2 for x86-64 is understood.
//!
//! Source: The SFrame format, version 2 (header and function descriptor entries).

use crate::address::Va;
use crate::elf::Image;

const SFRAME: &str = ".sframe";
/// The segment of the same, which is there without section headers too.
const PT_GNU_SFRAME: u32 = 0x6474_e554;

const MAGIC: u16 = 0xdee2;
const VERSION: u8 = 2;
/// Starts count from their own field, not from the section.
const FLAG_START_PCREL: u8 = 4;
/// x86-64.
const ABI_AMD64: u8 = 3;
const HEADER_LEN: u64 = 28;
const ENTRY_LEN: u64 = 20;

/// What is known of the code that such sections describe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Described {
    /// Starts and ends of functions.
    Known(Vec<(Va, Va)>),
    /// There is a section that is not understood.
    Unknown,
}

/// The code of which frames are described so.
pub(crate) fn described(image: &Image<'_>) -> Described {
    let sections = image.sections.values().filter(|section| section.is_alloc() && section.name == SFRAME);
    let sections = sections.map(|section| (section.sh_addr, section.end()));
    let segments = image.segments.iter().filter(|segment| segment.p_type == PT_GNU_SFRAME);
    let segments = segments.map(|segment| (segment.p_vaddr, segment.p_vaddr + segment.p_memsz));
    let mut all: Vec<(Va, Va)> = sections.chain(segments).collect();
    all.sort();
    all.dedup();
    let mut found = Vec::new();
    for (start, end) in all {
        match entries(image, start, end) {
            Some(entries) => found.extend(entries),
            None => return Described::Unknown,
        }
    }
    Described::Known(found)
}

fn entries(image: &Image<'_>, start: Va, end: Va) -> Option<Vec<(Va, Va)>> {
    let header = image.read(start, HEADER_LEN as usize)?;
    let number = |at: usize| Some(u64::from(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?)));
    let (&[magic_low, magic_high, version, flags, abi], &[.., auxiliary_len]) =
        (header.first_chunk()?, header.first_chunk::<8>()?);
    if u16::from_le_bytes([magic_low, magic_high]) != MAGIC || version != VERSION || abi != ABI_AMD64 {
        return None;
    }
    let (num_entries, first) = (number(8)?, HEADER_LEN + u64::from(auxiliary_len) + number(20)?);
    let is_within =
        first.checked_add(num_entries.checked_mul(ENTRY_LEN)?).is_some_and(|len| len <= end.0.saturating_sub(start.0));
    if !is_within {
        return None;
    }
    let entry = |index: u64| {
        let field = start + first + index * ENTRY_LEN;
        let base = if flags & FLAG_START_PCREL != 0 { field } else { start };
        let begin = base.offset(i64::from(image.read_u32(field)? as i32));
        let end = begin + u64::from(image.read_u32(field + 4)?);
        (begin <= end).then_some((begin, end))
    };
    (0..num_entries).map(entry).collect()
}
