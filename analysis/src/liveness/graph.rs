//! The two fixpoints over blocks: up, what a block makes of what is live at its returns; down, what is live there.

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register};
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockFlags, CodeTarget, PinReason, Program, StopKind, Terminator};
use lifter::x86::decode_block_into;
use lifter::{Image, Va};
use rayon::prelude::*;
use smallvec::SmallVec;

use super::effects::{Callee, Step, step};
use super::{Passage, RegisterLiveness, Registers, Saves, needed_by_unseen};
use crate::dependents::Dependents;
use crate::values::code::CALLEE_SAVED;
use crate::values::state::is_save;

/// A block between its calls: what stands before each call, the calls, and what is behind the last.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    calls: SmallVec<[(Passage, Callee); 2]>,
    rest: Passage,
}

pub(super) struct Solver<'p> {
    program: &'p Program,
    pieces: Vec<Pieces>,
    pads: Vec<SmallVec<[Block; 1]>>,
    /// By block, where its terminator leads.
    successors: Dependents,
    passages: Vec<Passage>,
    calls: Vec<Passage>,
    /// By block: registers that a call of it hands back as it got them.
    handed_back: Vec<Registers>,
    dependents: Dependents,
    at_return: Vec<Registers>,
}

impl<'p> Solver<'p> {
    pub(super) fn new(program: &'p Program, pieces: Vec<Pieces>, saves: Saves<'_>) -> Self {
        let blocks: Vec<Block> = program.blocks.keys().collect();
        let mut handed_back = vec![Registers::NONE; blocks.len()];
        if let Saves::Passed(procedures, summaries) = saves {
            for (procedure, data) in procedures.all.iter() {
                if let Some(summary) = &summaries[procedure.index()] {
                    let is_same = |r: &u8| {
                        is_save(&summary.results[*r as usize]) && summary.results[*r as usize].base.entry_register() == Some(*r)
                    };
                    let set = (0..16u8).filter(is_same).map(Registers::general).fold(Registers::NONE, Registers::union);
                    handed_back[data.entry.index()] = set;
                }
            }
        }
        let pads: Vec<SmallVec<[Block; 1]>> = blocks.iter().map(|&block| landing_pads(program, block)).collect();
        let successors = Dependents::listed(blocks.iter().map(|&block| successors(program, block)));
        let dependents = dependents(program, &pieces, &pads, &successors);
        let by_unseen: Vec<Registers> = program.funcs.keys().map(|func| needed_by_unseen(program, func)).collect();
        // What is not understood may call anything; what compilers make is understood, so it keeps to the psABI.
        let has_unseen = by_unseen.contains(&Registers::ALL);
        let by_all = if has_unseen { Registers::RETURNED } else { Registers::NONE };
        let at_return = by_unseen.into_iter().map(|needed| needed.union(by_all));
        Solver {
            program,
            at_return: at_return.collect(),
            passages: vec![Passage::NONE; blocks.len()],
            calls: vec![Passage::NONE; blocks.len()],
            pieces,
            pads,
            successors,
            handed_back,
            dependents,
        }
    }

    pub(super) fn solve(mut self) -> RegisterLiveness {
        self.run_up();
        self.run_down();
        self.finish()
    }

    /// Sweeps over the blocks that have to be looked at, the last first: most edges lead forward.
    fn run_up(&mut self) {
        let count = self.program.blocks.len();
        let mut waiting: Vec<u64> = vec![u64::MAX; count.div_ceil(64)];
        if let Some(last) = waiting.last_mut().filter(|_| !count.is_multiple_of(64)) {
            *last = (1 << (count % 64)) - 1;
        }
        let mut is_changing = true;
        while std::mem::take(&mut is_changing) {
            for word in (0..waiting.len()).rev() {
                while let Some(bit) = waiting[word].checked_ilog2() {
                    waiting[word] &= !(1 << bit);
                    is_changing = true;
                    self.look_again(Block::new(word * 64 + bit as usize), &mut waiting);
                }
            }
        }
    }

    fn look_again(&mut self, block: Block, waiting: &mut [u64]) {
        let mut grown = self.passage(block).union(self.passages[block.index()]);
        if is_interrupted(self.program, block) {
            grown = grown.union(Passage::BOUNDARY);
        }
        if grown == self.passages[block.index()] {
            return;
        }
        self.passages[block.index()] = grown;
        let handed_back = self.handed_back[block.index()];
        self.calls[block.index()] = Passage { passes: grown.passes.union(handed_back), ..grown };
        for dependent in self.dependents.of(block) {
            waiting[dependent.index() / 64] |= 1 << (dependent.index() % 64);
        }
    }

    /// From the returns of a block's activation to its start.
    fn passage(&self, block: Block) -> Passage {
        let pads = self.pads[block.index()].iter().fold(Passage::NONE, |all, pad| all.union(self.passages[pad.index()]));
        let pieces = &self.pieces[block.index()];
        let mut passage = self.way_out(block).union(pads);
        passage = pieces.rest.before(passage).union(pads);
        for &(before, callee) in pieces.calls.iter().rev() {
            passage = before.before(passage_of_callee(callee, &self.calls).before(passage).union(pads)).union(pads);
        }
        passage
    }

    fn way_out(&self, block: Block) -> Passage {
        way_out_to(self.program, block, self.successors.of(block), &self.passages, &self.calls)
    }

    fn run_down(&mut self) {
        let program = self.program;
        // What is up is settled by now, so what comes behind a call does not change any more.
        let mut starts = vec![0usize];
        let mut ways: Vec<(Func, Passage)> = Vec::new();
        for data in program.funcs.values() {
            data.blocks.iter().for_each(|block| self.add_ways_in(block, &mut ways));
            let first = starts.last().copied().unwrap_or(0);
            ways[first..].sort_unstable_by_key(|&(into, Passage { reads, passes })| (into, reads.0, passes.0));
            let mut last = None;
            let mut kept = first;
            for index in first..ways.len() {
                if last.replace(ways[index]) != Some(ways[index]) {
                    ways[kept] = ways[index];
                    kept += 1;
                }
            }
            ways.truncate(kept);
            starts.push(kept);
        }
        let mut is_called = vec![false; program.funcs.len()];
        ways.iter().for_each(|(into, _)| is_called[into.index()] = true);
        for func in program.funcs.keys().filter(|f| !is_called[f.index()]) {
            self.at_return[func.index()] = self.at_return[func.index()].union(Registers::RETURNED);
        }
        let mut worklist: Vec<Func> = program.funcs.keys().collect();
        let mut is_queued = vec![true; worklist.len()];
        while let Some(func) = worklist.pop() {
            is_queued[func.index()] = false;
            let at_return = self.at_return[func.index()];
            for &(into, behind) in &ways[starts[func.index()]..starts[func.index() + 1]] {
                let grown = self.at_return[into.index()].union(behind.apply(at_return));
                if grown != self.at_return[into.index()] {
                    self.at_return[into.index()] = grown;
                    if !std::mem::replace(&mut is_queued[into.index()], true) {
                        worklist.push(into);
                    }
                }
            }
        }
    }

    /// The functions that a block calls, or goes to, each with what comes behind its return.
    fn add_ways_in(&self, block: Block, ways: &mut Vec<(Func, Passage)>) {
        let program = self.program;
        let own = program.func_of(block);
        let others = self.successors.of(block).iter().map(|&target| program.func_of(target)).filter(|&func| func != own);
        ways.extend(others.map(|func| (func, Passage::IDENTITY)));
        let pieces = &self.pieces[block.index()];
        if pieces.calls.is_empty() {
            return;
        }
        let pads = self.pads[block.index()].iter().fold(Passage::NONE, |all, pad| all.union(self.passages[pad.index()]));
        let mut passage = self.way_out(block).union(pads);
        passage = pieces.rest.before(passage).union(pads);
        for &(before, callee) in pieces.calls.iter().rev() {
            if let Callee::Entry(entry) = callee {
                ways.push((program.func_of(entry), passage));
            }
            passage = before.before(passage_of_callee(callee, &self.calls).before(passage).union(pads)).union(pads);
        }
    }

    fn finish(self) -> RegisterLiveness {
        let at_pads = self.program.blocks.keys().map(|block| {
            let at_return = self.at_return[self.program.func_of(block).index()];
            let pads = self.pads[block.index()].iter();
            pads.fold(Registers::NONE, |set, pad| set.union(self.passages[pad.index()].apply(at_return)))
        });
        RegisterLiveness { at_pads: at_pads.collect(), passages: self.passages, calls: self.calls, at_return: self.at_return }
    }
}

/// Whether a handler of signals may know that a block runs by its place, and go on elsewhere with what it was given.
fn is_interrupted(program: &Program, block: Block) -> bool {
    let data = &program.blocks[block];
    data.flags.contains(BlockFlags::KNOWN_BY_FAULT) || program.funcs[data.func].pin == Some(PinReason::PlaceNamed)
}

/// What an instruction does to liveness, its call included.
pub(super) fn passage_of(step: &Step, calls: &[Passage]) -> Passage {
    let own = Passage { reads: step.reads, passes: Registers::ALL.without(step.writes) };
    own.before(passage_of_callee(step.callee, calls))
}

fn passage_of_callee(callee: Callee, calls: &[Passage]) -> Passage {
    match callee {
        Callee::None => Passage::IDENTITY,
        Callee::Entry(entry) => calls[entry.index()],
        Callee::Boundary => Passage::BOUNDARY,
        // It may be a plain call too.
        Callee::Descriptor => Passage { reads: Registers::PASSED, passes: Registers::ALL },
        Callee::Anything => Passage::ANYTHING,
    }
}

/// From the returns of a block's activation to the block's end.
pub(super) fn way_out(program: &Program, block: Block, passages: &[Passage], calls: &[Passage]) -> Passage {
    way_out_to(program, block, &successors(program, block), passages, calls)
}

fn way_out_to(program: &Program, block: Block, successors: &[Block], passages: &[Passage], calls: &[Passage]) -> Passage {
    let func = program.func_of(block);
    let data = &program.blocks[block];
    let mut all = match data.terminator {
        Terminator::Stop(StopKind::Return) => Passage::IDENTITY,
        Terminator::Stop(StopKind::IndirectTailCall) => Passage::BOUNDARY,
        // It may come back by an exception: to whoever has a use for it.
        Terminator::Stop(StopKind::NoReturnCall) => Passage { reads: Registers::NONE, passes: Registers::KEPT },
        Terminator::Stop(StopKind::Trap) => Passage::IDENTITY,
        // Labels of its own function are successors. Those that no jump of their function explains make it a place that anything leads to; and a word that the program made may hold an address of
        // code that was made at run time as well, which reads what it likes.
        Terminator::Stop(StopKind::ComputedJump)
            if !program.block_edges(block).is_empty() && !data.flags.contains(BlockFlags::LED_BY_POINTER) =>
        {
            Passage::NONE
        }
        Terminator::Stop(StopKind::Unknown | StopKind::ComputedJump) => Passage::ANYTHING,
        Terminator::Jump { target: CodeTarget::Fixed(_) } | Terminator::Branch { taken: CodeTarget::Fixed(_), .. } => {
            Passage::BOUNDARY
        }
        _ => Passage::NONE,
    };
    for &target in successors {
        let way = if program.func_of(target) == func { passages[target.index()] } else { calls[target.index()] };
        all = all.union(way);
    }
    all
}

fn successors(program: &Program, block: Block) -> SmallVec<[Block; 4]> {
    let mut list: SmallVec<[Block; 4]> = program.block_edges(block).iter().map(|edge| edge.target).collect();
    crate::procedures::each_target(&program.blocks[block].terminator, program, |target| list.push(target));
    list.sort_unstable();
    list.dedup();
    list
}

/// The pieces of all blocks, and what else is asked of their instructions.
pub(super) fn all_pieces<T: Send>(
    image: &Image<'_>,
    program: &Program,
    saves: Saves<'_>,
    other: impl Fn(Block, &[Instruction]) -> T + Sync,
) -> (Vec<Pieces>, Vec<T>) {
    let blocks: Vec<Block> = program.blocks.keys().collect();
    let scratch = || (InstructionInfoFactory::new(), Vec::new());
    let of_block = |(factory, instructions): &mut (InstructionInfoFactory, Vec<Instruction>), &block: &Block| {
        decode_block_into(image, program, block, instructions);
        (pieces(program, block, saves, instructions, factory), other(block, instructions))
    };
    blocks.par_iter().with_min_len(64).map_init(scratch, of_block).unzip()
}

fn pieces(
    program: &Program,
    block: Block,
    saves: Saves<'_>,
    instructions: &[Instruction],
    factory: &mut InstructionInfoFactory,
) -> Pieces {
    let data = &program.blocks[block];
    let mut pieces = Pieces { calls: SmallVec::new(), rest: Passage::IDENTITY };
    let mut end = data.start;
    for instruction in instructions {
        end = Va(instruction.next_ip());
        let mut step = step(program, instruction, factory);
        if let (Saves::Passed(..), Some(register)) = (saves, step.pushes)
            && CALLEE_SAVED >> register & 1 != 0
        {
            step.reads = step.reads.without(Registers::general(register));
        }
        let own = Passage { reads: step.reads, passes: Registers::ALL.without(step.writes) };
        pieces.rest = pieces.rest.before(own);
        if step.callee != Callee::None {
            pieces.calls.push((std::mem::replace(&mut pieces.rest, Passage::IDENTITY), step.callee));
        }
    }
    let is_unknown = end != data.end() || data.terminator == Terminator::Stop(StopKind::Unknown);
    if is_unknown || data.terminator == Terminator::Stop(StopKind::Return) && !returns_to_caller(instructions, factory) {
        pieces.rest = pieces.rest.before(Passage::ANYTHING);
    }
    pieces
}

/// Whether the return address that a block ends with is none that the block itself has put there, as thunks for indirect branches do.
fn returns_to_caller(instructions: &[Instruction], factory: &mut InstructionInfoFactory) -> bool {
    // How far the stack pointer behind an instruction is below where it is at the return.
    let mut below = 0i64;
    // A call that has come back has moved nothing.
    let is_call = |i: &Instruction| matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
    for instruction in instructions.iter().rev().skip(1).filter(|i| !is_call(i)) {
        let moved = match instruction.stack_pointer_increment() {
            0 => stack_step(instruction),
            by => Some(i64::from(by)),
        };
        let info = factory.info(instruction);
        let writes_memory =
            |access: OpAccess| !matches!(access, OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead);
        for used in info.used_memory().iter().filter(|used| writes_memory(used.access()) && used.base() == Register::RSP) {
            // The operands of a push are told after it has moved the stack pointer; of all others, before.
            let is_push = instruction.is_stack_instruction();
            let at = if is_push { 0 } else { used.displacement() as i64 - moved.unwrap_or(0) };
            if used.index() != Register::None || at == below {
                return false;
            }
        }
        match moved {
            Some(by) => below += by,
            None => return true,
        }
    }
    true
}

/// How far an instruction that is no push or pop moves the stack pointer; `None` if that is not known.
fn stack_step(instruction: &Instruction) -> Option<i64> {
    use iced_x86::Mnemonic::{Add, Lea, Leave, Sub};
    if instruction.op_count() == 0 || instruction.op0_register() != Register::RSP {
        return (instruction.mnemonic() != Leave).then_some(0);
    }
    match instruction.mnemonic() {
        Lea if instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None => {
            Some(instruction.memory_displacement64() as i64)
        }
        Add if instruction.op1_register() == Register::None => Some(instruction.immediate(1) as i64),
        Sub if instruction.op1_register() == Register::None => Some((instruction.immediate(1) as i64).wrapping_neg()),
        iced_x86::Mnemonic::Cmp | iced_x86::Mnemonic::Test => Some(0),
        _ => None,
    }
}

/// The landing pads of the call sites that a block has instructions in.
fn landing_pads(program: &Program, block: Block) -> SmallVec<[Block; 1]> {
    let data = &program.blocks[block];
    let range = program.ranges.get(data.range as usize);
    let table = range.and_then(|range| program.unwind.fdes[range.fde?].lsda);
    let Some(table) = table.and_then(|table| program.unwind.lsdas.get(table as usize)) else { return SmallVec::new() };
    let first = table.call_sites.partition_point(|site| site.end <= data.start);
    let within = table.call_sites[first..].iter().take_while(|site| site.start < data.end());
    let mut pads: SmallVec<[Block; 1]> = within.filter_map(|site| program.block_at(site.landing_pad?)).collect();
    pads.retain(|pad| program.blocks[*pad].flags.contains(BlockFlags::LANDING_PAD));
    pads.sort_unstable();
    pads.dedup();
    pads
}

/// Who asks for what each block makes.
fn dependents(program: &Program, pieces: &[Pieces], pads: &[SmallVec<[Block; 1]>], successors: &Dependents) -> Dependents {
    let mut pairs: Vec<(Block, Block)> = Vec::with_capacity(program.edges.len() * 2);
    for block in program.blocks.keys() {
        pairs.extend(successors.of(block).iter().map(|&target| (target, block)));
        pairs.extend(pads[block.index()].iter().map(|&pad| (pad, block)));
        for &(_, callee) in &pieces[block.index()].calls {
            if let Callee::Entry(entry) = callee {
                pairs.push((entry, block));
            }
        }
    }
    Dependents::from_pairs(program.blocks.len(), &pairs)
}
