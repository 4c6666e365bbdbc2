//! Which branches had better not lie on the end of a decode window.
//!
//! **Problem.** Processors of Intel's Skylake family keep no window of 32 bytes in the cache of decoded instructions in which a jump, a call or a return, with the comparison that is fused to it, crosses the
//! window's end or is the last that it has (Intel, *Mitigations for Jump Conditional Code Erratum*, 2019). Such code is decoded each time: in `perl`, one branch of the loop that runs everything took 4 % of all time.
//! Where a function starts decides it, and code that is packed starts anywhere.
//!
//! **Method.** Edits of a block are followed from one instruction to the next; of new code that they put in, nothing is listed. Of blocks of which the plan says what that is worth, each branch is listed, with the bytes that it spans. Placing then begins the fragment where few that are worth something lie so.

use iced_x86::{FlowControl, Instruction, Mnemonic};
use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, SecondaryMap};
use lifter::ir::Program;
use lifter::x86;

use super::Shapes;
use super::relax::{self, Relaxed, Shape};
use crate::materialize::{Edit, Out, OutBlock, OutProgram, block_bytes};

/// What processors keep together of what they have decoded, in bytes.
pub(crate) const WINDOW: u64 = 32;
/// What a byte left out before a fragment costs, in what it is worth to keep branches off the ends.
pub(crate) const WORTH_PER_BYTE: u16 = 16;

/// A branch in a fragment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct WindowBranch {
    /// In the fragment, of the comparison that is fused to it, if there is one.
    pub start: u32,
    pub len: u16,
    /// What it is worth that it does not lie so, in sixteenths of a byte.
    pub worth: u16,
}

impl WindowBranch {
    /// Whether it crosses the end of a window, or ends there, if its fragment is at `at`.
    pub(crate) fn is_exposed(&self, at: u64) -> bool {
        let start = at + u64::from(self.start);
        start / WINDOW != (start + u64::from(self.len)) / WINDOW
    }
}

/// Adds those of a fragment.
pub(super) fn push(
    (image, program): (&Image<'_>, &Program),
    out: &OutProgram<'_>,
    worths: &SecondaryMap<Block, u16>,
    (blocks, shapes): (&[(Out, OutBlock)], &[Shape]),
    layout: &Relaxed,
    all: &mut Shapes,
) {
    let mut instructions = Vec::new();
    for (index, &(id, block)) in blocks.iter().enumerate() {
        let worth = worths[block.origin];
        if worth == 0 {
            continue;
        }
        let start = layout.offsets[index];
        let mut push =
            |from: u32, to: u32| all.window_branches.push(WindowBranch { start: from, len: (to - from) as u16, worth });
        let body_end = start + shapes[index].body_len;
        let mut fused = body_end;
        if let (true, Ok(bytes)) = (block.copies_body, block_bytes(image, program, block.origin)) {
            let body = bytes.get(..program.blocks[block.origin].body_len as usize).unwrap_or(bytes);
            instructions.clear();
            x86::decode_bytes(body, Va(0), &mut instructions);
            fused = body_branches(&instructions, out.edits_of(id), start, &mut push).unwrap_or(body_end);
        }
        let (taken, jump) = relax::sizes(&shapes[index], layout.is_long[index]);
        if taken > 0 {
            push(fused, body_end + taken);
        }
        if jump > 0 {
            push(body_end + taken, body_end + taken + jump);
        }
    }
}

/// Finds what branches in a body, decoded at 0, that comes to `start`; where its last instruction begins, if a conditional branch is fused to that.
fn body_branches(body: &[Instruction], edits: &[Edit], start: u32, push: &mut impl FnMut(u32, u32)) -> Option<u32> {
    let (mut edits, mut shift, mut fused) = (edits.iter().peekable(), 0u32, None);
    for instruction in body {
        let offset = instruction.ip() as u32;
        while let Some(edit) = edits.next_if(|edit| edit.offset + edit.replaced <= offset) {
            shift = shift.wrapping_add(edit.len).wrapping_sub(edit.replaced);
        }
        fused = None;
        if edits.peek().is_some_and(|edit| edit.offset <= offset) {
            continue;
        }
        let from = start.wrapping_add(offset).wrapping_add(shift);
        if instruction.flow_control() != FlowControl::Next {
            push(from, from + instruction.len() as u32);
        } else if is_fusible(instruction) {
            fused = Some(from);
        }
    }
    fused.filter(|_| edits.next().is_none())
}

/// Whether a conditional branch behind it is decoded together with it (Intel, *Optimization Reference Manual*, "Macro-fusion").
fn is_fusible(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::And | Mnemonic::Add | Mnemonic::Sub | Mnemonic::Inc | Mnemonic::Dec
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifter::entity::EntityId;

    use crate::edit::NewCodeId;
    use crate::materialize::Content;

    /// `call .+5; nop; test %eax, %eax`.
    const BODY: [u8; 8] = [0xe8, 0, 0, 0, 0, 0x90, 0x85, 0xc0];

    fn found(edits: &[Edit]) -> (Vec<(u32, u32)>, Option<u32>) {
        let (mut branches, mut body) = (Vec::new(), Vec::new());
        x86::decode_bytes(&BODY, Va(0), &mut body);
        let fused = body_branches(&body, edits, 100, &mut |from, to| branches.push((from, to)));
        (branches, fused)
    }

    fn edit(offset: u32, replaced: u32, len: u32) -> Edit {
        Edit { offset, replaced, len, content: Content::Code(NewCodeId::new(0)) }
    }

    #[test]
    fn calls_and_comparisons_are_found_where_edits_leave_them() {
        assert_eq!(found(&[]), (vec![(100, 105)], Some(106)));
        assert_eq!(found(&[edit(0, 0, 7)]), (vec![(107, 112)], Some(113)), "something is put in before the call");
        assert_eq!(found(&[edit(5, 1, 0)]), (vec![(100, 105)], Some(105)), "the no-op goes");
        assert_eq!(found(&[edit(0, 5, 6)]), (vec![], Some(107)), "the call is another one now");
        assert_eq!(found(&[edit(8, 0, 3)]), (vec![(100, 105)], None), "something is between the comparison and the branch");
    }

    #[test]
    fn a_branch_lies_badly_if_it_crosses_the_end_of_a_window_or_ends_there() {
        let branch = WindowBranch { start: 10, len: 4, worth: 1 };
        let exposed: Vec<u64> = (0..64).filter(|&at| branch.is_exposed(at)).collect();
        assert_eq!(exposed, [18, 19, 20, 21, 50, 51, 52, 53]);
    }
}
