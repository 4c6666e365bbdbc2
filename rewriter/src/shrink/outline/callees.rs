//! What calls lead to, past what does nothing but jump.
//!
//! **Problem.** rustc's `__rust_dealloc` is `jmp *free(%rip)`, and compilers leave many functions of which nothing is left but `jmp other`. A call of such a function executes a jump before anything happens.
//!
//! **Method.** A call leads to where these jumps end. So a body before it, which ends in the last of them, executes no jump more than the call did, and all that leads to the same is called alike.
//!
//! **Safety.** A direct jump changes nothing but where the program is. One through a word reads it later than a body's other instructions, as before; nothing runs between.
//!
//! **Termination.** So many jumps are passed at most.

use lifter::Image;
use lifter::address::Va;
use lifter::entity::Block;
use lifter::ir::{BlockFlags, CodeTarget, Program, RefData, RefTarget, Terminator};

use crate::terminator::LONG_JUMP;
use crate::transform::plt_calls;

/// Jumps that are passed one after the other.
const PASSED_MAX: usize = 4;

/// What is called.
#[derive(Copy, Clone, Debug)]
pub(super) enum Callee {
    /// By this, if it is no branch.
    Direct(RefData),
    /// What this word leads to, by a stub or a call that goes through it.
    Through(Va),
}

impl Callee {
    /// Bytes of a jump there.
    pub(super) fn jump_len(self) -> u32 {
        match self {
            Callee::Direct(_) => LONG_JUMP,
            Callee::Through(_) => plt_calls::JUMP_LEN as u32,
        }
    }
}

/// Where calls lead.
#[derive(Copy, Clone)]
pub(super) struct Callees<'a> {
    pub(super) image: &'a Image<'a>,
    pub(super) program: &'a Program,
}

impl Callees<'_> {
    /// Where a direct call leads, and whether jumps are passed on the way; `None` if it calls no function.
    pub(super) fn of(self, call: RefData) -> Option<(Callee, bool)> {
        let mut last = Some((call.target, false)).filter(|_| self.is_callee(call.target))?;
        let mut target = call.target;
        for _ in 0..=PASSED_MAX {
            if let Some(slot) = self.slot_behind(target) {
                return Some((Callee::Through(slot), true));
            }
            let Some(next) = self.behind_jump(target) else { break };
            target = next;
            // What is no function's start is passed, but not called.
            last = if self.is_callee(next) { (next, true) } else { last };
        }
        let (target, passes_jump) = last;
        Some((Callee::Direct(RefData { target, ..call }), passes_jump))
    }

    fn is_callee(self, target: RefTarget) -> bool {
        match target {
            RefTarget::Block(callee) => {
                let func = &self.program.funcs[self.program.func_of(callee)];
                func.entry == callee && !self.program.blocks[callee].flags.contains(BlockFlags::THUNK)
            }
            RefTarget::Fixed(_) => true,
            RefTarget::Table(_) | RefTarget::UnwindTable(_) => false,
        }
    }

    fn slot_behind(self, target: RefTarget) -> Option<Va> {
        let stub = match target {
            RefTarget::Fixed(stub) => stub,
            RefTarget::Block(block) => self.program.blocks[self.plain(block)?].start,
            RefTarget::Table(_) | RefTarget::UnwindTable(_) => return None,
        };
        plt_calls::slot_of_stub(self.image, stub)
    }

    /// Where a function jumps that begins with that.
    fn behind_jump(self, target: RefTarget) -> Option<RefTarget> {
        let RefTarget::Block(block) = target else { return None };
        let data = &self.program.blocks[self.plain(block)?];
        match data.terminator {
            Terminator::Jump { target } if data.body_len == 0 => Some(match target {
                CodeTarget::Block(block) => RefTarget::Block(block),
                CodeTarget::Fixed(va) => RefTarget::Fixed(va),
            }),
            _ => None,
        }
    }

    /// The block, if no handler knows what faults in it, and what it jumps to returns to who called.
    fn plain(self, block: Block) -> Option<Block> {
        let flags = self.program.blocks[block].flags;
        (!flags.intersects(BlockFlags::KNOWN_BY_FAULT | BlockFlags::THUNK)).then_some(block)
    }
}

#[cfg(test)]
mod tests {
    use lifter::entity::EntityId;
    use lifter::ir::RefRole;

    use super::*;
    use crate::testing::{End, ProgramBuilder, TestBlock, image_of};
    use crate::transform::direct_calls;

    /// Where a call of a function leads, by number.
    fn led(program: &Program, func: usize) -> Option<(usize, bool)> {
        let image = image_of(&[0xcc; 256]);
        let entry = program.funcs.values().nth(func)?.entry;
        let callee = Callees { image: &image, program }.of(direct_calls::reference_to(entry, RefRole::Call))?;
        match callee {
            (Callee::Direct(RefData { target: RefTarget::Block(block), .. }), passes_jump) => {
                Some((program.func_of(block).index(), passes_jump))
            }
            _ => None,
        }
    }

    #[test]
    fn calls_lead_past_functions_that_only_jump_but_not_into_the_middle_of_one() {
        let jump_to = |func: usize| vec![TestBlock::new(5, End::TailCall(func))];
        let program = ProgramBuilder::default()
            .func(vec![TestBlock::new(8, End::Return)])
            .func(jump_to(0))
            .func(jump_to(1))
            .func(vec![TestBlock::new(8, End::TailCall(0))])
            .func(vec![TestBlock::new(2, End::Jump(1)), TestBlock::new(4, End::Return)])
            .build();
        let found: Vec<_> = (0..5).map(|func| led(&program, func)).collect();
        let own = |func| Some((func, false));
        assert_eq!(found, [own(0), Some((0, true)), Some((0, true)), own(3), own(4)]);
    }

    #[test]
    fn jumps_in_a_circle_come_to_an_end() {
        let jump_to = |func: usize| vec![TestBlock::new(5, End::TailCall(func))];
        let program = ProgramBuilder::default().func(jump_to(1)).func(jump_to(0)).build();
        assert!(led(&program, 0).is_some_and(|(_, passes_jump)| passes_jump));
    }

    #[test]
    fn a_function_of_another_file_is_called_through_a_word() {
        // `jmp *1000(%rip)`
        let mut bytes = [0xcc; 256];
        bytes[..6].copy_from_slice(&[0xff, 0x25, 0xe8, 0x03, 0, 0]);
        let program = ProgramBuilder::default().func(vec![TestBlock::new(6, End::Return)]).build();
        let (image, entry) = (image_of(&bytes), program.funcs[program.funcs.keys().next().expect("there is one")].entry);
        let callee = Callees { image: &image, program: &program }.of(direct_calls::reference_to(entry, RefRole::Call));
        let slot = program.blocks[entry].start + 1006;
        assert!(matches!(callee, Some((Callee::Through(through), true)) if through == slot), "{callee:?}");
    }
}
