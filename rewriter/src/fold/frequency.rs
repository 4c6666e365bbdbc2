//! How often blocks run each time that their function is entered, guessed from the code alone.
//!
//! **Method.** The ways on from a block have odds, which several rules multiply (Ball and Larus, *Branch prediction for free*, 1993; Wu and Larus, *Static branch frequency and program profile
//! analysis*, 1994, where a product of odds is the way to combine what independent rules say): what can only end in a call that does not return, or in a trap, hardly ever
//! runs; loops go on rather than end; code that the compiler put out of the way is less likely than code that it let the branch run into; numbers are seldom negative. Frequencies then flow from the entry along the edges,
//! a few times around each loop. Each case of a switch counts as one of the few that a program favours. What only exceptions lead to hardly ever runs. Where nothing seen leads, something may enter as often as the entry.
//!
//! **The numbers** are from counts of `perl`, `bash` and `sqlite3`, 3,539 branches of blocks that ran 20 times or more: 0 of 128 ways to no return were taken, 27 % of those out of a loop, 33 % of those to code that nothing runs
//! into from above (20 % where that calls something and the other way doesn't), 16 % of those if negative, 31 % of those if above.
//!
//! **Termination.** Each round looks once at each block, and there is a number of rounds.

use analysis::graph::Components;
use lifter::entity::{Block, EntityId, Func, SecondaryMap};
use lifter::ir::{BlockFlags, CodeTarget, Condition, Program, RefRole, StopKind, Terminator};
use rayon::prelude::*;

/// What a call executes at least, in instructions: itself, one or two, and the return.
const CALL: u32 = 4;
/// Odds of what comes to nothing, and how often exceptions are thrown.
const NEVER: f32 = 0.002;
const LEAVES_LOOP: f32 = 0.37;
const OUT_OF_LINE: f32 = 0.55;
const CALL_OUT_OF_LINE: f32 = 0.26;
const NEGATIVE: f32 = 0.2;
const ABOVE: f32 = 0.5;
/// Cases that a switch goes to nearly always, of all that it has.
const FAVOURITES: f32 = 6.0;
/// How often frequencies flow around loops.
const ROUNDS: usize = 4;

/// What is guessed.
pub(super) struct Frequencies {
    /// Executions for each entry of the function, if the program favours the case that the block belongs to.
    pub(super) of_block: SecondaryMap<Block, f32>,
    /// Executions for each instruction that the function executes, of what is in a loop; 0 for the rest.
    pub(super) in_loop: SecondaryMap<Block, f32>,
    /// What no way leads to but by an exception, or to a call that does not return.
    pub(super) is_cold: SecondaryMap<Block, bool>,
}

/// The same of one block.
struct Guess {
    frequency: f32,
    in_loop: f32,
    is_cold: bool,
}

impl Frequencies {
    /// `is_entered` says where functions are entered from elsewhere.
    pub(super) fn guess(program: &Program, is_entered: &SecondaryMap<Block, bool>) -> Self {
        let funcs: Vec<Func> = program.funcs.keys().collect();
        let found: Vec<Vec<Guess>> = funcs.par_iter().map(|&func| Ways::of(program, func).guess(is_entered)).collect();
        let num_blocks = program.blocks.len();
        let mut all = Self {
            of_block: SecondaryMap::new(num_blocks, 0.0),
            in_loop: SecondaryMap::new(num_blocks, 0.0),
            is_cold: SecondaryMap::new(num_blocks, false),
        };
        for (func, found) in funcs.into_iter().zip(found) {
            for (block, guess) in program.funcs[func].blocks.iter().zip(found) {
                all.of_block[block] = guess.frequency;
                all.in_loop[block] = guess.in_loop;
                all.is_cold[block] = guess.is_cold;
            }
        }
        all
    }
}

fn num_calls(program: &Program, block: Block) -> u32 {
    let is_call = |role: RefRole| matches!(role, RefRole::Call | RefRole::IndirectThroughSlot);
    program.block_refs(block).iter().filter(|r| is_call(r.role)).count() as u32
}

/// A function's blocks by their numbers in it, and where they lead inside of it.
struct Ways<'p> {
    program: &'p Program,
    first: usize,
    /// Where the targets of each block end.
    ends: Vec<usize>,
    targets: Vec<u32>,
}

impl<'p> Ways<'p> {
    fn of(program: &'p Program, func: Func) -> Self {
        let blocks = program.funcs[func].blocks.as_usize();
        let (mut targets, mut ends): (Vec<u32>, Vec<usize>) = (Vec::new(), Vec::with_capacity(blocks.len()));
        for block in blocks.clone() {
            let edges = &program.edges[program.blocks[Block::new(block)].edges.as_usize()];
            let inside = edges.iter().map(|edge| edge.target.index()).filter(|target| blocks.contains(target));
            targets.extend(inside.map(|target| (target - blocks.start) as u32));
            ends.push(targets.len());
        }
        Self { program, first: blocks.start, ends, targets }
    }

    fn count(&self) -> usize {
        self.ends.len()
    }
    fn all(&self) -> std::ops::Range<u32> {
        0..self.count() as u32
    }
    fn block(&self, local: u32) -> Block {
        Block::new(self.first + local as usize)
    }
    fn terminator(&self, local: u32) -> Terminator {
        self.program.blocks[self.block(local)].terminator
    }

    fn range(&self, local: u32) -> std::ops::Range<usize> {
        let start = (local as usize).checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[local as usize]
    }

    fn targets(&self, local: u32) -> &[u32] {
        &self.targets[self.range(local)]
    }

    fn local(&self, target: CodeTarget) -> Option<u32> {
        match target {
            CodeTarget::Block(block) => {
                let local = block.index().checked_sub(self.first)?;
                (local < self.count()).then_some(local as u32)
            }
            CodeTarget::Fixed(_) => None,
        }
    }

    /// Ways out of the function, or to what is not known.
    fn leaves(&self, local: u32) -> bool {
        match self.terminator(local) {
            Terminator::Stop(StopKind::NoReturnCall | StopKind::Trap | StopKind::TableJump(_)) => false,
            Terminator::Stop(_) => true,
            Terminator::Jump { target } => self.local(target).is_none(),
            Terminator::Branch { taken, .. } => self.local(taken).is_none(),
            Terminator::Fallthrough { .. } | Terminator::Loop { .. } => false,
        }
    }

    /// By block, whether all ways from it come to nothing: a call that does not return, or a trap.
    fn hopeless(&self) -> Vec<bool> {
        // Where the sources of each block begin, and where they end.
        let mut starts = vec![0; self.count() + 1];
        self.targets.iter().for_each(|&target| starts[target as usize + 1] += 1);
        (0..self.count()).for_each(|block| starts[block + 1] += starts[block]);
        let mut ends = starts.clone();
        let mut sources = vec![0; self.targets.len()];
        let mut num_ways: Vec<u32> = Vec::with_capacity(self.count());
        for block in self.all() {
            for &target in self.targets(block) {
                sources[ends[target as usize]] = block;
                ends[target as usize] += 1;
            }
            num_ways.push(self.targets(block).len() as u32 + u32::from(self.leaves(block)));
        }
        let mut is_hopeless = vec![false; self.count()];
        let ends_badly =
            |&block: &u32| matches!(self.terminator(block), Terminator::Stop(StopKind::NoReturnCall | StopKind::Trap));
        let mut pending: Vec<u32> = self.all().filter(ends_badly).collect();
        while let Some(block) = pending.pop() {
            if std::mem::replace(&mut is_hopeless[block as usize], true) {
                continue;
            }
            for &source in &sources[starts[block as usize]..ends[block as usize]] {
                num_ways[source as usize] -= 1;
                if num_ways[source as usize] == 0 {
                    pending.push(source);
                }
            }
        }
        is_hopeless
    }

    /// Each block once, first what comes before it on the ways from the roots, loops aside.
    fn in_order(&self, roots: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.count());
        let mut is_seen = vec![false; self.count()];
        let mut walk: Vec<(u32, usize)> = Vec::new();
        for root in roots {
            if !std::mem::replace(&mut is_seen[root as usize], true) {
                walk.push((root, 0));
            }
            while let Some((block, next)) = walk.pop() {
                let Some(&target) = self.targets(block).get(next) else {
                    order.push(block);
                    continue;
                };
                walk.push((block, next + 1));
                if !std::mem::replace(&mut is_seen[target as usize], true) {
                    walk.push((target, 0));
                }
            }
        }
        order.reverse();
        order
    }

    fn guess(&self, is_entered: &SecondaryMap<Block, bool>) -> Vec<Guess> {
        let is_hopeless = self.hopeless();
        let roots = self.roots();
        let is_warm = self.warm(&is_hopeless, &roots, is_entered);
        let components = Components::find(self.count(), |block| self.targets(block));
        let (frequencies, work) = self.frequencies(&is_hopeless, &components, roots);
        let guess = |block: u32| {
            let frequency = frequencies[block as usize];
            let in_loop = if self.is_in_loop(block, &components) { frequency / work.max(1.0) } else { 0.0 };
            Guess { frequency, in_loop, is_cold: !is_warm[block as usize] }
        };
        self.all().map(guess).collect()
    }

    fn is_in_loop(&self, block: u32, components: &Components) -> bool {
        components.members(components.of[block as usize]).len() > 1 || self.targets(block).contains(&block)
    }

    /// Executions of each block for one of the function, and the instructions of all.
    fn frequencies(&self, is_hopeless: &[bool], components: &Components, roots: Vec<f32>) -> (Vec<f32>, f32) {
        let probabilities = self.probabilities(is_hopeless, components);
        // What is walked last comes first.
        let seeds = roots.iter().enumerate().filter(|(_, root)| **root > 0.0).map(|(block, _)| block as u32).rev();
        let order = self.in_order(seeds.chain(self.all()));
        let mut frequencies = roots.clone();
        let mut arriving = roots;
        for _ in 0..ROUNDS {
            for &block in &order {
                let own = std::mem::take(&mut arriving[block as usize]);
                for (&target, &probability) in self.targets(block).iter().zip(&probabilities[self.range(block)]) {
                    arriving[target as usize] += own * probability;
                    frequencies[target as usize] += own * probability;
                }
            }
        }
        let work = |block: u32| {
            let id = self.block(block);
            frequencies[block as usize] * (self.program.blocks[id].num_insts + CALL * num_calls(self.program, id)) as f32
        };
        let work = self.all().map(work).sum();
        self.favour_cases(&order, &probabilities, &mut frequencies);
        (frequencies, work)
    }

    /// By block, whether a way leads to it from where the function is entered that neither an exception takes nor comes to nothing.
    fn warm(&self, is_hopeless: &[bool], roots: &[f32], is_entered: &SecondaryMap<Block, bool>) -> Vec<bool> {
        let mut is_warm = vec![false; self.count()];
        let is_root = |block: u32| roots[block as usize] == 1.0 || is_entered[self.block(block)];
        let mut pending: Vec<u32> = self.all().filter(|&block| is_root(block)).collect();
        while let Some(block) = pending.pop() {
            if !std::mem::replace(&mut is_warm[block as usize], true) {
                let goes_on = |target: u32| !is_hopeless[target as usize] || is_hopeless[block as usize];
                pending.extend(self.targets(block).iter().copied().filter(|&target| goes_on(target)));
            }
        }
        is_warm
    }

    /// Of many cases a program has a few favourites, and nothing tells which: each case counts as one of them, though not all of them together.
    fn favour_cases(&self, order: &[u32], probabilities: &[f32], frequencies: &mut [f32]) {
        for &block in order {
            let is_choice = matches!(self.terminator(block), Terminator::Stop(StopKind::TableJump(_) | StopKind::ComputedJump));
            let least = if is_choice { 1.0 / FAVOURITES } else { 0.0 };
            for (&target, &probability) in self.targets(block).iter().zip(&probabilities[self.range(block)]) {
                let favoured = frequencies[block as usize] * probability.max(least);
                frequencies[target as usize] = favoured.max(frequencies[target as usize]);
            }
        }
    }

    /// How often blocks are entered from where no edge leads, for each entry of the function.
    fn roots(&self) -> Vec<f32> {
        let mut roots = vec![1.0; self.count()];
        for block in self.all() {
            self.targets(block).iter().filter(|&&target| target != block).for_each(|&target| roots[target as usize] = 0.0);
        }
        for block in self.all() {
            let (id, data) = (self.block(block), &self.program.blocks[self.block(block)]);
            if self.program.funcs[data.func].entry == id {
                roots[block as usize] = 1.0;
            } else if data.flags.contains(BlockFlags::LANDING_PAD) {
                roots[block as usize] = NEVER;
            }
        }
        roots
    }

    /// Of each way on, in the order of the targets.
    fn probabilities(&self, is_hopeless: &[bool], components: &Components) -> Vec<f32> {
        let mut probabilities = Vec::with_capacity(self.targets.len());
        for block in self.all() {
            let component = components.of[block as usize];
            let is_in_loop = self.is_in_loop(block, components);
            let odds_of = |&target: &u32| {
                let comes_to_nothing = is_hopeless[target as usize] && !is_hopeless[block as usize];
                let leaves_loop = is_in_loop && components.of[target as usize] != component;
                let rules = [(comes_to_nothing, NEVER), (leaves_loop, LEAVES_LOOP)];
                let odds: f32 = rules.into_iter().filter(|(holds, _)| *holds).map(|(_, odds)| odds).product();
                odds * self.odds_by_branch(block, target)
            };
            let start = probabilities.len();
            probabilities.extend(self.targets(block).iter().map(odds_of));
            let is_conditional = matches!(self.terminator(block), Terminator::Branch { .. });
            let outside = if is_conditional && self.leaves(block) { OUT_OF_LINE } else { 0.0 };
            let sum = probabilities[start..].iter().sum::<f32>() + outside;
            probabilities[start..].iter_mut().for_each(|odds| *odds /= sum);
        }
        probabilities
    }

    /// By what the branch asks, and by where the compiler put what it leads to.
    fn odds_by_branch(&self, block: u32, target: u32) -> f32 {
        let Terminator::Branch { condition, taken, next } = self.terminator(block) else { return 1.0 };
        let is_taken = self.local(taken) == Some(target);
        let by_condition = match (condition, is_taken) {
            (Condition(0x8), true) | (Condition(0x9), false) => NEGATIVE,
            (Condition(0x7), true) | (Condition(0x6), false) => ABOVE,
            _ => 1.0,
        };
        let is_out_of_line =
            is_taken && target > block && matches!(self.terminator(target - 1), Terminator::Jump { .. } | Terminator::Stop(_));
        let calls = |block: Block| self.program.blocks[block].flags.contains(BlockFlags::HAS_CALL);
        by_condition
            * match is_out_of_line {
                false => 1.0,
                true if calls(self.block(target)) && !calls(next) => CALL_OUT_OF_LINE,
                true => OUT_OF_LINE,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{End::*, ProgramBuilder, TestBlock};

    fn of(blocks: &[TestBlock]) -> Vec<f32> {
        let program = ProgramBuilder::default().func(blocks.to_vec()).build();
        let is_entered = SecondaryMap::new(program.blocks.len(), false);
        let frequencies = Frequencies::guess(&program, &is_entered).of_block;
        program.blocks.keys().map(|block| frequencies[block]).collect()
    }

    #[test]
    fn what_flows_in_flows_out() {
        // The entry has two ways, which meet again; nothing is out of line.
        let frequencies = of(&[TestBlock::new(4, Branch(2)), TestBlock::new(4, Fallthrough), TestBlock::new(4, Return)]);
        assert_eq!(frequencies, [1.0, 0.5, 1.0]);
    }

    #[test]
    fn a_loop_runs_more_often_than_what_is_around_it() {
        let frequencies = of(&[
            TestBlock::new(4, Fallthrough),
            TestBlock::new(4, Fallthrough),
            TestBlock::new(4, Branch(1)),
            TestBlock::new(4, Return),
        ]);
        assert_eq!(frequencies[0], 1.0);
        assert!(frequencies[1] > 2.0 && frequencies[2] > 2.0, "{frequencies:?}");
        assert!(frequencies[3] < 1.0 && frequencies[3] > 0.6, "{frequencies:?}");
    }

    #[test]
    fn a_loop_of_one_block_goes_on_as_others_do() {
        let frequencies = of(&[TestBlock::new(4, Fallthrough), TestBlock::new(4, Branch(1)), TestBlock::new(4, Return)]);
        assert!(frequencies[1] > 2.0 && frequencies[2] < 1.0, "{frequencies:?}");
    }

    #[test]
    fn what_is_in_a_short_loop_is_much_of_what_its_function_does() {
        let program = |len: u32| {
            let blocks = [TestBlock::new(8, Fallthrough), TestBlock::new(len, Branch(1)), TestBlock::new(8, Return)];
            ProgramBuilder::default().func(blocks.to_vec()).build()
        };
        let in_loop = |len: u32| {
            let program = program(len);
            let guessed = Frequencies::guess(&program, &SecondaryMap::new(program.blocks.len(), false)).in_loop;
            program.blocks.keys().map(|block| guessed[block]).collect::<Vec<f32>>()
        };
        let (short, long) = (in_loop(40), in_loop(4000));
        assert!(short[1] > 0.05 && long[1] < 0.002, "{short:?} {long:?}");
        assert_eq!([short[0], short[2], long[0], long[2]], [0.0; 4]);
    }

    #[test]
    fn what_comes_to_nothing_is_cold_unless_something_else_enters_there() {
        let blocks =
            [TestBlock::new(4, Branch(2)), TestBlock::new(4, Return), TestBlock::new(4, Fallthrough), TestBlock::new(4, Trap)];
        let program = ProgramBuilder::default().func(blocks.to_vec()).build();
        let mut is_entered = SecondaryMap::new(program.blocks.len(), false);
        let cold = |is_entered: &SecondaryMap<Block, bool>| {
            let guessed = Frequencies::guess(&program, is_entered).is_cold;
            program.blocks.keys().map(|block| guessed[block]).collect::<Vec<bool>>()
        };
        assert_eq!(cold(&is_entered), [false, false, true, true]);
        is_entered[Block::new(3)] = true;
        assert_eq!(cold(&is_entered), [false, false, true, false]);
    }

    #[test]
    fn what_stands_behind_a_return_is_less_likely_and_what_nothing_leads_to_is_entered() {
        let frequencies =
            of(&[TestBlock::new(4, Branch(2)), TestBlock::new(4, Return), TestBlock::new(4, Jump(1)), TestBlock::new(4, Return)]);
        assert!(frequencies[2] < 0.4 && frequencies[2] > 0.3, "{frequencies:?}");
        assert_eq!((frequencies[1], frequencies[3]), (1.0, 1.0));
    }
}
