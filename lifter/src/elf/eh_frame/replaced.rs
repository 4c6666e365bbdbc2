//! Functions that an optimizer has written elsewhere, with the old entries still in the table.
//!
//! **Problem.** BOLT leaves the old text in the file. Where something that it does not change may lead to the old place of a function (it leaves functions
//! without a profile as they are), it writes a jump there, and for that jump a new unwind entry. The old entry stays in the table, though not in the search table: two entries cover the
//! jump, and what is behind it in the old body is code of which the unwinder finds no entry.
//!
//! **Method.** Of entries that overlap, those count that the search table lists, since that is what unwinders go by. Where these are but jumps away, the rest of the old
//! entry's code is *replaced*: nothing in the file runs into it, and nobody described it for being run.
//!
//! **What it is not**: a proof that nothing leads there. Whoever takes the room still asks what names it.

use rustc_hash::FxHashSet;

use super::FdeData;
use super::parse::RawFde;
use crate::address::Va;
use crate::elf::image::Image;

/// `jmp` with a displacement of 32 bits.
const JUMP: u8 = 0xe9;
const JUMP_LEN: usize = 5;

/// Drops the entries (ascending by start) that the search table leaves out in favor of others for the same code, and gives the code, ascending, that was theirs alone and is
/// replaced. `listed` are starts of code with the addresses of their entries.
pub(super) fn drop_shadowed(image: &Image<'_>, fdes: &mut Vec<RawFde>, listed: &[(Va, Va)]) -> Vec<(Va, Va)> {
    if fdes.windows(2).all(|w| w[0].data.end <= w[1].data.start) {
        return Vec::new();
    }
    let places: FxHashSet<Va> = listed.iter().map(|l| l.1).collect();
    let in_force: Vec<(Va, Va)> = fdes.iter().filter(|f| places.contains(&f.at)).map(|f| (f.data.start, f.data.end)).collect();
    let mut replaced = Vec::new();
    fdes.retain(|fde| {
        let others = shadows(&in_force, &fde.data);
        let is_kept = places.contains(&fde.at) || others.is_empty();
        let begins_with_jump = others.first().is_some_and(|first| first.0 == fde.data.start);
        if !is_kept && begins_with_jump && others.iter().all(|&jump| is_jump(image, jump)) {
            let ends = others[1..].iter().map(|other| other.0).chain([fde.data.end]);
            replaced.extend(others.iter().map(|other| other.1).zip(ends).filter(|(start, end)| start < end));
        }
        is_kept
    });
    replaced
}

/// The entries, of those in force, that overlap one.
fn shadows<'f>(in_force: &'f [(Va, Va)], data: &FdeData) -> &'f [(Va, Va)] {
    let first = in_force.partition_point(|&(_, end)| end <= data.start);
    let count = in_force[first..].partition_point(|&(start, _)| start < data.end);
    &in_force[first..first + count]
}

fn is_jump(image: &Image<'_>, (start, end): (Va, Va)) -> bool {
    (end - start) as usize == JUMP_LEN && image.read(start, JUMP_LEN).is_some_and(|bytes| bytes[0] == JUMP)
}
