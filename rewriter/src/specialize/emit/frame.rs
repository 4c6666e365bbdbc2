//! Which functions can keep a state in their frame, and what their copies have for it.
//!
//! Beside what `Tracked` asks for: `r11`, in which the state comes, holds nothing that anyone reads at the entry or, where the function leaves it alone, behind its calls
//! (gcc's `-fipa-ra` keeps values there); and the unwind rows can be told for a deeper stack.

use analysis::FlagLiveness;
use analysis::constants::{Leaving, Place, Tracked, Unfit};
use analysis::engine::Summaries;
use analysis::liveness::{RegisterLiveness, Registers, Saves};
use analysis::procedures::Procedure;
use lifter::entity::Block;
use lifter::ir::{CodeTarget, Program, RefData, RefTarget};
use rustc_hash::FxHashMap;

use super::code::{self, KEPT};
use crate::edit::NewCode;
use crate::relink::eh_frame::can_be_deeper;
use crate::transform::Context;

const R11: u8 = 11;

/// What is known of functions' frames, found when it is first asked for.
pub(super) struct Frames<'x, 'c> {
    context: &'x Context<'c>,
    summaries: &'x Summaries<'x>,
    live: Option<(RegisterLiveness, FlagLiveness)>,
    known: FxHashMap<Procedure, Result<Tracked, &'static str>>,
}

impl<'x, 'c> Frames<'x, 'c> {
    pub(super) fn new(context: &'x Context<'c>, summaries: &'x Summaries<'x>) -> Self {
        Frames { context, summaries, live: None, known: FxHashMap::default() }
    }

    /// The copy's frame, or why there can be none.
    pub(super) fn of(&mut self, procedure: Procedure, blocks: &[Block]) -> Result<&Tracked, &'static str> {
        if !self.known.contains_key(&procedure) {
            let found = self.find(procedure, blocks);
            self.known.insert(procedure, found);
        }
        self.known[&procedure].as_ref().map_err(|&why| why)
    }

    fn find(&mut self, procedure: Procedure, blocks: &[Block]) -> Result<Tracked, &'static str> {
        let tracked = Tracked::of(self.summaries, procedure).map_err(Unfit::name)?;
        let program = self.context.program;
        let entry = self.summaries.around.procedures.all[procedure].entry;
        if self.is_live(entry, R11) {
            return Err("r11 is in use");
        }
        let is_described = |&block: &Block| {
            let fde = program.ranges[program.blocks[block].range as usize].fde;
            fde.is_some_and(|fde| can_be_deeper(&program.unwind, fde, KEPT))
        };
        blocks.iter().all(is_described).then_some(tracked).ok_or("unwind rows")
    }

    fn live(&mut self) -> &(RegisterLiveness, FlagLiveness) {
        let Context { image, program, .. } = *self.context;
        self.live.get_or_insert_with(|| RegisterLiveness::with_flags(image, program, Saves::Read))
    }

    pub(super) fn registers(&mut self) -> &RegisterLiveness {
        &self.live().0
    }

    fn is_live(&mut self, entry: Block, register: u8) -> bool {
        let program = self.context.program;
        self.live().0.at_start(program, entry).meets(Registers::general(register))
    }

    /// Whether flags may be changed where a function is called.
    pub(super) fn flags_are_free(&mut self, callee: Block) -> bool {
        !self.live().1.any_live_at_block_start(callee)
    }

    /// Whether a state may be passed to what stands for a function, or its place computed in `r11`.
    pub(super) fn state_is_free(&mut self, callee: Block) -> bool {
        !self.is_live(callee, R11)
    }
}

/// A way out of a copy that keeps a state, as it stands in the function.
pub(super) fn way_out(context: &Context<'_>, place: Place, leaving: Leaving) -> Option<NewCode> {
    let program = context.program;
    match leaving {
        Leaving::Jump(CodeTarget::Block(target)) => Some(code::leave_to(RefTarget::Block(target))),
        Leaving::Jump(CodeTarget::Fixed(at)) => Some(code::leave_to(RefTarget::Fixed(at))),
        Leaving::Return | Leaving::Indirect => {
            let start = program.blocks[place.block].start + u64::from(place.offset);
            let bytes = context.image.read(start, place.len as usize)?;
            Some(code::leave(bytes, &refs_of(program, place)))
        }
    }
}

/// The references of an instruction, counted from its start.
fn refs_of(program: &Program, place: Place) -> Vec<RefData> {
    let within = |r: &&RefData| (place.offset..place.offset + place.len).contains(&r.offset);
    let refs = program.block_refs(place.block).iter().filter(within);
    refs.map(|r| RefData { offset: r.offset - place.offset, ..*r }).collect()
}
