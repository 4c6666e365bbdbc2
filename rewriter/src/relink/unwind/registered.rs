//! The address by which a static program registers its own unwind table.
//!
//! **Problem.** The start-up code that GCC links into static programs (`crtbeginT.o`, `frame_dummy`) gives the table to
//! `__register_frame_info` by the address where its own part of `.eh_frame` begins. That is behind what `crt1.o` and `crti.o` contribute: inside
//! the section, where after a relink an entry may have its middle. Unwinders then read garbage.
//!
//! **Method.** The address is known by three things: code holds it as a number (`mov` or `push` with an immediate) or as an operand, it
//! lies in the section, and an entry or the terminator begins there. Numbers in code are looked for at every byte, since the start-up code has no
//! unwind entry and so may be no part of any block. Of several addresses the lowest counts: it is the one with the whole table behind it.
//!
//! **What a wrong find costs**: the table goes to that address, or eight bytes of free space there stay zero.

use lifter::Image;
use lifter::address::Va;
use lifter::elf::image::SectionData;
use lifter::ir::{Program, RefTarget};

/// The lowest address inside `.eh_frame`, other than its start, that code names and at which an entry begins.
pub(super) fn address(image: &Image<'_>, program: &Program, section: &SectionData<'_>) -> Option<Va> {
    let is_inside = |va: Va| section.sh_addr < va && va < section.end();
    let operands = program.refs.iter().filter_map(|r| match r.target {
        RefTarget::Fixed(va) if is_inside(va) => Some(va),
        _ => None,
    });
    let mut named: Vec<Va> = operands.collect();
    if !image.kind.is_position_independent() {
        for code in image.sections.values().filter(|s| s.is_alloc() && s.is_executable() && s.has_bytes()) {
            let bytes = image.read(code.sh_addr, code.sh_size as usize).unwrap_or(&[]);
            named.extend(immediates(bytes).filter(|&va| is_inside(va)));
        }
    }
    named.sort_unstable();
    let bytes = image.read(section.sh_addr, section.sh_size as usize)?;
    let mut entries = entries(bytes).map(|offset| section.sh_addr + offset as u64).peekable();
    named.into_iter().find(|&va| {
        while entries.next_if(|&entry| entry < va).is_some() {}
        entries.peek() == Some(&va)
    })
}

/// What `mov r32, imm32`, `mov r64, imm32`, `mov r64, imm64` and `push imm32` may hold.
fn immediates(bytes: &[u8]) -> impl Iterator<Item = Va> {
    let is_move = |window: &[u8]| matches!(window, [_, _, 0xb8..=0xbf | 0x68, ..] | [0x48 | 0x49, 0xc7, 0xc0..=0xc7, ..]);
    bytes.windows(7).filter(move |window| is_move(window)).map(|window| {
        let value = window[3..].iter().rev().fold(0u32, |value, &byte| value << 8 | u32::from(byte));
        Va(u64::from(value))
    })
}

/// Where the entries begin, the terminator included.
fn entries(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let mut next = Some(0usize);
    std::iter::from_fn(move || {
        let at = next?;
        let length = u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
        next = match length {
            0 => None,
            u32::MAX => {
                let long = u64::from_le_bytes(bytes.get(at + 4..at + 12)?.try_into().ok()?);
                usize::try_from(long).ok().and_then(|long| long.checked_add(at + 12))
            }
            _ => (at + 4).checked_add(length as usize),
        };
        Some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_begin_behind_each_other_up_to_the_terminator() {
        let table = [&[4, 0, 0, 0, 1, 1, 1, 1, 8, 0, 0, 0][..], &[2; 8], &[0; 4], &[9; 8]].concat();
        assert_eq!(entries(&table).collect::<Vec<_>>(), [0, 8, 20]);
        assert_eq!(entries(&[0xff; 11]).collect::<Vec<_>>(), [] as [usize; 0]);
        let endless = [&[0xff; 12][..], &[1; 8]].concat();
        assert_eq!(entries(&endless).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn numbers_of_moves_and_pushes_are_found_at_any_byte() {
        let code = [0x90, 0x90, 0xbf, 0xe8, 0x62, 0x57, 0, 0x48, 0xc7, 0xc7, 1, 2, 3, 0, 0x90, 0x68, 4, 5, 6, 0, 0xc3];
        let found: Vec<Va> = immediates(&code).collect();
        assert_eq!(found, [Va(0x57_62e8), Va(0x3_0201), Va(0x6_0504)]);
    }
}
