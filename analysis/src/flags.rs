//! Where the arithmetic flags are live: before which blocks a flag may still be read that was written earlier.
//!
//! **Problem.** Code inserted between blocks may change flags only where nobody reads them afterward. The psABI has flags dead
//! at calls and returns, but calls inside one file need not follow it: gcc's `-fipa-ra` knows the callee's code, and
//! hand-written assembly returns conditions in CF and ZF. So liveness is computed from the code, across calls.
//!
//! **Method.** Backward data flow over sets of flags. Each block is decoded once, in parallel, into *segments* between its
//! calls: what a segment reads before it writes (gen) and what it surely writes (kill). Then one worklist over all blocks:
//! * before a direct call, what is live at the callee's entry;
//! * after a call, what the caller goes on to read is live at the callee's returns, and at those of whatever the callee ends in
//!   by a tail call;
//! * into a call that is not known (indirect, through the PLT) no compiler passes flags: it could not see through it. But what
//!   is read after one, nonetheless, is taken to be live before it, and at the returns of each function that has a block whose
//!   address is taken.
//!
//! **What counts as a write** is only what surely happens and is defined: shifts and rotates by CL and repeated string compares
//! leave flags alone at a count of zero, and a flag that is documented as undefined may in practice be kept. A block that can't
//! be decoded, or leaves to where nothing is known, reads everything.
//!
//! **Invariant**: sets only grow, so each block is looked at again at most six times for each thing that it depends on: linear
//! in edges and calls. The result is the least fixpoint, hence independent of the order and of the number of threads.

mod summary;

#[cfg(test)]
mod tests;

use iced_x86::Instruction;
use lifter::Image;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockFlags, CodeTarget, Program, StopKind, Terminator};
use lifter::x86::decode_block_into;
use rayon::prelude::*;

use crate::dependents::Dependents;
use summary::Callee;
pub(crate) use summary::{BlockSummary, summarize};

/// A set of flags, as `iced_x86::RflagsBits`.
pub(crate) type FlagSet = u8;

/// The flags that `lock inc` writes: OF, SF, ZF, AF, PF.
const INCREMENT_FLAGS: FlagSet = summary::OF | summary::SF | summary::ZF | summary::AF | summary::PF;

/// By block, the flags that are live at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagLiveness {
    live_in: Vec<FlagSet>,
    edge_targets: Vec<Block>,
    at_return: Vec<FlagSet>,
}

impl FlagLiveness {
    pub fn compute(image: &Image<'_>, program: &Program) -> Self {
        let blocks: Vec<Block> = program.blocks.keys().collect();
        let summary = |instructions: &mut Vec<Instruction>, &block: &Block| {
            decode_block_into(image, program, block, instructions);
            summarize(program, block, instructions)
        };
        let summaries: Vec<BlockSummary> = blocks.par_iter().with_min_len(64).map_init(Vec::new, summary).collect();
        Self::of_summaries(program, &summaries)
    }

    /// From what each block does.
    pub(crate) fn of_summaries(program: &Program, summaries: &[BlockSummary]) -> Self {
        let mut solver = Solver::new(program, summaries);
        solver.run();
        let edge_targets = program.edges.iter().map(|e| e.target).collect();
        FlagLiveness { live_in: solver.live_in, edge_targets, at_return: solver.at_return }
    }

    /// Whether a flag that `lock inc` would change may be read from here on.
    pub fn live_at_block_start(&self, block: Block) -> bool {
        self.live_in.get(block.index()).is_none_or(|live| live & INCREMENT_FLAGS != 0)
    }

    /// Whether any flag may be read from here on.
    pub fn any_live_at_block_start(&self, block: Block) -> bool {
        self.live_in.get(block.index()).is_none_or(|&live| live != 0)
    }

    /// Whether any flag may be read where a function returns to.
    pub fn live_at_return(&self, func: Func) -> bool {
        self.at_return.get(func.index()).is_none_or(|&live| live != 0)
    }

    /// The same for code on an edge, an index into `Program::edges`.
    pub fn live_on_edge(&self, edge: u32) -> bool {
        self.edge_targets.get(edge as usize).is_none_or(|&target| self.live_at_block_start(target))
    }

    /// Whether the carry flag may be read from here on; `add` and `sub` would change it too.
    pub fn carry_live_at_block_start(&self, block: Block) -> bool {
        self.live_in.get(block.index()).is_none_or(|live| live & summary::CF != 0)
    }
}

struct Solver<'p> {
    program: &'p Program,
    summaries: &'p [BlockSummary],
    live_in: Vec<FlagSet>,
    /// By function: live where it returns to.
    at_return: Vec<FlagSet>,
    /// Live at the start of some block, no function's entry, whose address is taken.
    at_taken: FlagSet,
    /// Live after some call that is not known.
    after_unknown: FlagSet,
    has_taken_block: Vec<bool>,
    /// By block: the blocks of other functions, and calls, that ask for what is live at its start.
    dependents: Dependents,
    /// Blocks that ask for `at_taken`.
    asks_taken: Vec<Block>,
    worklist: Vec<Block>,
    is_queued: Vec<bool>,
}

impl<'p> Solver<'p> {
    fn new(program: &'p Program, summaries: &'p [BlockSummary]) -> Self {
        let mut has_taken_block = vec![false; program.funcs.len()];
        for data in program.blocks.values().filter(|b| b.flags.contains(BlockFlags::ADDRESS_TAKEN)) {
            has_taken_block[data.func.index()] = true;
        }
        let asks_taken = |block: &Block| program.blocks[*block].terminator == Terminator::Stop(StopKind::ComputedJump);
        Solver {
            program,
            summaries,
            live_in: vec![0; program.blocks.len()],
            at_return: vec![0; program.funcs.len()],
            at_taken: 0,
            after_unknown: 0,
            has_taken_block,
            dependents: dependents(program, summaries),
            asks_taken: program.blocks.keys().filter(asks_taken).collect(),
            // The last block first comes off the stack last: most edges lead forward, so most blocks are looked at after their
            // successors.
            worklist: program.blocks.keys().collect(),
            is_queued: vec![true; program.blocks.len()],
        }
    }

    fn run(&mut self) {
        while let Some(block) = self.worklist.pop() {
            self.is_queued[block.index()] = false;
            let live_in = self.transfer(block);
            if live_in | self.live_in[block.index()] == self.live_in[block.index()] {
                continue;
            }
            self.live_in[block.index()] |= live_in;
            for index in 0..self.dependents.of(block).len() {
                self.enqueue(self.dependents.of(block)[index]);
            }
            if self.is_taken_label(block) && self.at_taken | live_in != self.at_taken {
                self.at_taken |= live_in;
                for index in 0..self.asks_taken.len() {
                    self.enqueue(self.asks_taken[index]);
                }
            }
        }
    }

    /// Whether a computed jump may go to a block, from its function or another.
    fn is_taken_label(&self, block: Block) -> bool {
        let data = &self.program.blocks[block];
        data.flags.contains(BlockFlags::ADDRESS_TAKEN) && self.program.funcs[data.func].entry != block
    }

    /// What is live at a block's start, given what is known so far; tells the functions that it calls what is live after them.
    fn transfer(&mut self, block: Block) -> FlagSet {
        let mut live = self.live_out(block);
        let summaries = self.summaries;
        let summary = &summaries[block.index()];
        for segment in summary.segments.iter().rev() {
            live = match segment.callee {
                Callee::None => live,
                Callee::Entry(entry) => {
                    self.raise_return(self.program.func_of(entry), live);
                    self.live_in[entry.index()]
                }
                Callee::Unknown => {
                    self.raise_unknown(live);
                    live
                }
            };
            live = segment.reads | (live & !segment.writes);
        }
        live
    }

    fn live_out(&mut self, block: Block) -> FlagSet {
        let func = self.program.func_of(block);
        match self.program.blocks[block].terminator {
            Terminator::Fallthrough { next } => self.live_at(func, CodeTarget::Block(next)),
            Terminator::Jump { target } => self.live_at(func, target),
            Terminator::Branch { taken, next, .. } => self.live_at(func, taken) | self.live_at(func, CodeTarget::Block(next)),
            Terminator::Loop { taken, next } => {
                self.live_at(func, CodeTarget::Block(taken)) | self.live_at(func, CodeTarget::Block(next))
            }
            Terminator::Stop(StopKind::Return) => self.at_return[func.index()],
            Terminator::Stop(StopKind::TableJump(table)) => {
                let program = self.program;
                program.targets_of(table).iter().fold(0, |live, &t| live | self.live_at(func, CodeTarget::Block(t)))
            }
            Terminator::Stop(StopKind::ComputedJump) => {
                let targets = self.program.block_edges(block).iter();
                targets.fold(self.at_taken, |live, edge| live | self.live_in[edge.target.index()])
            }
            Terminator::Stop(StopKind::IndirectTailCall) => {
                let after = self.at_return[func.index()];
                self.raise_unknown(after);
                after
            }
            Terminator::Stop(StopKind::NoReturnCall | StopKind::Trap) => 0,
            Terminator::Stop(StopKind::Unknown) => FlagSet::MAX,
        }
    }

    /// What is live where a jump goes. A jump to another function returns to this one's callers.
    fn live_at(&mut self, from: Func, target: CodeTarget) -> FlagSet {
        match target {
            CodeTarget::Block(block) => {
                let func = self.program.func_of(block);
                if func != from {
                    self.raise_return(func, self.at_return[from.index()]);
                }
                self.live_in[block.index()]
            }
            // Linker-made stubs leave flags alone, and what is behind them may.
            CodeTarget::Fixed(_) => self.at_return[from.index()],
        }
    }

    fn raise_return(&mut self, func: Func, live: FlagSet) {
        if self.at_return[func.index()] | live == self.at_return[func.index()] {
            return;
        }
        self.at_return[func.index()] |= live;
        let program = self.program;
        for block in program.funcs[func].blocks.iter() {
            let leaves = |target: CodeTarget| match target {
                CodeTarget::Block(b) => program.func_of(b) != func,
                CodeTarget::Fixed(_) => true,
            };
            let asks = match program.blocks[block].terminator {
                Terminator::Fallthrough { next } | Terminator::Loop { next, .. } => leaves(CodeTarget::Block(next)),
                Terminator::Jump { target } => leaves(target),
                Terminator::Branch { taken, next, .. } => leaves(taken) || leaves(CodeTarget::Block(next)),
                Terminator::Stop(kind) => {
                    matches!(kind, StopKind::Return | StopKind::IndirectTailCall | StopKind::TableJump(_))
                }
            };
            if asks {
                self.enqueue(block);
            }
        }
    }

    fn raise_unknown(&mut self, live: FlagSet) {
        if self.after_unknown | live == self.after_unknown {
            return;
        }
        self.after_unknown |= live;
        for index in 0..self.has_taken_block.len() {
            if self.has_taken_block[index] {
                self.raise_return(Func::new(index), live);
            }
        }
    }

    fn enqueue(&mut self, block: Block) {
        if !std::mem::replace(&mut self.is_queued[block.index()], true) {
            self.worklist.push(block);
        }
    }
}

/// Who asks for what is live at the start of each block.
fn dependents(program: &Program, summaries: &[BlockSummary]) -> Dependents {
    let mut pairs: Vec<(Block, Block)> = Vec::with_capacity(program.edges.len() * 2);
    for block in program.blocks.keys() {
        let mut push = |target: Block| pairs.push((target, block));
        let mut push_code = |target: CodeTarget| {
            if let CodeTarget::Block(target) = target {
                push(target);
            }
        };
        match program.blocks[block].terminator {
            Terminator::Fallthrough { next } => push(next),
            Terminator::Jump { target } => push_code(target),
            Terminator::Branch { taken, next, .. } => {
                push_code(taken);
                push(next);
            }
            Terminator::Loop { taken, next } => {
                push(taken);
                push(next);
            }
            Terminator::Stop(StopKind::TableJump(table)) => program.targets_of(table).iter().for_each(|&t| push(t)),
            Terminator::Stop(StopKind::ComputedJump) => {
                program.block_edges(block).iter().for_each(|edge| push(edge.target));
            }
            Terminator::Stop(_) => {}
        }
        for callee in summaries[block.index()].calls() {
            if let Callee::Entry(entry) = callee {
                pairs.push((entry, block));
            }
        }
    }
    Dependents::from_pairs(program.blocks.len(), &pairs)
}
