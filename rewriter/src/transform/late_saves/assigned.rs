//! Which saved registers the original has written where a region is left.
//!
//! Where it has, a late frame has to be followed by a copy of what the region kept elsewhere; where it has not, the register still holds the caller's value, and a copy would put
//! something else there. Where both may be, there is no such region.
//!
//! **Terminates**: what may be written only grows and what surely is only shrinks, in 16 bits.

use iced_x86::InstructionInfoFactory;
use lifter::entity::Block;
use lifter::ir::Program;

use super::frame::{Part, used};
use super::names::{Name, Names};
use super::region::{Region, inside};

/// What has been written on some way, and on all.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Written {
    may: u16,
    must: u16,
}

const UNREACHED: Written = Written { may: 0, must: u16::MAX };

/// By way out: the saved registers with another name that have been written there; `None` where that depends on the way.
pub(super) fn at_exits(region: &Region, program: &Program, names: &Names) -> Option<Vec<(Block, u16)>> {
    let others: u16 =
        (0..16).filter(|&register| matches!(names.of(register), Name::Other(_))).map(|register| 1 << register).sum();
    let mut factory = InstructionInfoFactory::new();
    let mut writes_of = |index: usize| {
        let working = region.members[index].body.iter().filter(|(_, part)| matches!(part, Part::Free | Part::Leave));
        working.fold(0, |all, (instruction, _)| all | used(instruction, &mut factory).writes) & others
    };
    let writes: Vec<u16> = (0..region.members.len()).map(&mut writes_of).collect();
    let mut starts = vec![UNREACHED; region.members.len()];
    if let Some(first) = starts.first_mut() {
        *first = Written { may: 0, must: 0 };
    }
    let ends = |starts: &[Written], index: usize| Written {
        may: starts[index].may | writes[index],
        must: starts[index].must | writes[index],
    };
    loop {
        let before = starts.clone();
        for (index, member) in region.members.iter().enumerate().filter(|(_, member)| !member.is_frameless) {
            let end = ends(&starts, index);
            for next in inside(program, member.block).into_iter().filter_map(|target| region.find(target)) {
                starts[next] = Written { may: starts[next].may | end.may, must: starts[next].must & end.must };
            }
        }
        if starts == before {
            break;
        }
    }
    let mut exits: Vec<(Block, Written)> = region.exits(program).into_iter().map(|exit| (exit, UNREACHED)).collect();
    for (index, member) in region.members.iter().enumerate().filter(|(_, member)| !member.is_frameless) {
        let end = ends(&starts, index);
        for target in inside(program, member.block) {
            if let Some((_, written)) = exits.iter_mut().find(|(exit, _)| *exit == target) {
                *written = Written { may: written.may | end.may, must: written.must & end.must };
            }
        }
    }
    exits.into_iter().map(|(exit, written)| (written.may == written.must & others).then_some((exit, written.may))).collect()
}
