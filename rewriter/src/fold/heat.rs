//! How often blocks run beside others of the program, guessed from the code alone.
//!
//! **Problem.** What makes code smaller by jumps costs time where it runs. Without a profile nothing tells where that is.
//!
//! **Method.** The guess is a product of powers of three things that any program shows: how often the block runs for each entry of its function ([`super::frequency`]), how often calls lead
//! to the function, those of callers that are called often counted for more, and of how many blocks the function is made. What only exceptions and ways to calls that do not return lead to is cold, and so is
//! what an optimizer with a profile has put aside ([`BlockFlags::COLD`]).
//! That is right on average, but not for the few functions that are all that some program does, kernels of codecs and the like, which nothing but a pointer may lead to: what is in a short loop counts as hot wherever it is.
//!
//! **The numbers** are a fit (Poisson regression) to counts of all blocks of nine bytes and more of twelve programs: `ruff`, `ty`, `biome`, ripgrep and relift, written in Rust, `gdb` in C++, `bash`, CPython, `git`, `mawk`, `perl` and `sqlite3` in C. Fitted to eleven of them the
//! powers are the same to 0.05, and tell as much of the twelfth. The tenth of the code that is guessed to run most has 37 to 76 % of all executions of blocks (13 % in `git`); what is cold has 0.000 to 0.005 %, in Rust programs 10 % of the code. How much a function does, and whether all ways to
//! it are seldom gone, was tried and says nothing; what only pointers lead to seldom runs.
//!
//! **Termination.** Calls are followed a number of rounds.

use lifter::entity::{Block, Func, SecondaryMap};
use lifter::ir::{BlockFlags, CodeTarget, Program, RefRole, RefTarget, Terminator};

use super::frequency::Frequencies;

/// Powers of the three things.
const FREQUENCY_POWER: f32 = 0.37;
const CALLS_POWER: f32 = 0.54;
const BLOCKS_POWER: f32 = 0.14;
/// Frequencies and calls, and blocks, that are told apart.
const FREQUENCIES: (f32, f32) = (1e-3, 4.0);
const CALLS: (f32, f32) = (0.03, 500.0);
const BLOCKS_MAX: f32 = 2000.0;
/// What an address that is taken counts as, in calls.
const BY_ADDRESS: f32 = 0.03;
/// A caller's calls count with this power of how often it is called itself, and that is followed so far.
const CALLER_POWER: f32 = 0.5;
const ROUNDS: usize = 3;

/// What is in a loop is at least as hot, times its executions for each instruction of its function: 80 in a loop of one instruction.
const LOOP_HEAT: f32 = 80.0;

/// By block, how often it is guessed to run: on average over the instructions of the program 1, short loops aside, and 0 if it is cold.
pub(super) struct Heat {
    pub(super) of_block: SecondaryMap<Block, f32>,
    /// Executions for each entry of the function.
    pub(super) frequencies: SecondaryMap<Block, f32>,
}

impl Heat {
    pub(super) fn guess(program: &Program) -> Self {
        let Frequencies { of_block: frequencies, in_loop, is_cold } = Frequencies::guess(program, &entered(program));
        let num_calls = num_calls(program, &frequencies);
        let is_cold = |block: Block| is_cold[block] || program.blocks[block].flags.contains(BlockFlags::COLD);
        let mut heat = SecondaryMap::new(program.blocks.len(), 0.0);
        for (func, data) in program.funcs.iter() {
            let of_function = num_calls[func].clamp(CALLS.0, CALLS.1).powf(CALLS_POWER)
                * (data.blocks.as_usize().len() as f32).min(BLOCKS_MAX).powf(BLOCKS_POWER);
            for block in data.blocks.iter().filter(|&block| !is_cold(block)) {
                heat[block] = of_function * frequencies[block].clamp(FREQUENCIES.0, FREQUENCIES.1).powf(FREQUENCY_POWER);
            }
        }
        let average = average(program, &heat);
        for block in program.blocks.keys().filter(|&block| !is_cold(block)) {
            heat[block] = (heat[block] / average).max(in_loop[block] * LOOP_HEAT);
        }
        Self { of_block: heat, frequencies }
    }
}

/// Over all instructions; 1 if nothing is warm.
fn average(program: &Program, heat: &SecondaryMap<Block, f32>) -> f32 {
    let (mut sum, mut num_insts) = (0.0, 0.0);
    for (block, data) in program.blocks.iter() {
        sum += f64::from(heat[block]) * f64::from(data.num_insts);
        num_insts += f64::from(data.num_insts);
    }
    if sum > 0.0 { (sum / num_insts) as f32 } else { 1.0 }
}

/// Where something outside of the function may lead, unwinders aside.
fn entered(program: &Program) -> SecondaryMap<Block, bool> {
    let mut is_entered = SecondaryMap::new(program.blocks.len(), false);
    for (block, data) in program.blocks.iter() {
        is_entered[block] |= has_address(data.flags);
        let targets = program.edges[data.edges.as_usize()].iter().map(|edge| edge.target).chain(callees(program, block));
        targets.filter(|&target| program.func_of(target) != data.func).for_each(|target| is_entered[target] = true);
    }
    is_entered
}

fn has_address(flags: BlockFlags) -> bool {
    flags.contains(BlockFlags::ADDRESS_TAKEN) && !flags.contains(BlockFlags::LANDING_PAD)
}

/// What a block calls, or jumps to as its last act.
fn callees(program: &Program, block: Block) -> impl Iterator<Item = Block> {
    let called = program.block_refs(block).iter().filter(|r| r.role == RefRole::Call).filter_map(|r| match r.target {
        RefTarget::Block(callee) => Some(callee),
        _ => None,
    });
    let tail = match program.blocks[block].terminator {
        Terminator::Jump { target: CodeTarget::Block(target) } => Some(target),
        Terminator::Branch { taken: CodeTarget::Block(target), .. } => Some(target),
        _ => None,
    };
    called.chain(tail)
}

/// By function, how often calls lead to it.
fn num_calls(program: &Program, frequencies: &SecondaryMap<Block, f32>) -> SecondaryMap<Func, f32> {
    let calls = calls(program, frequencies);
    // What nothing is seen to call is found by its address, or begins the program.
    let mut unseen = SecondaryMap::new(program.funcs.len(), BY_ADDRESS);
    calls.iter().for_each(|call| unseen[call.callee] = 0.0);
    for data in program.blocks.values().filter(|data| has_address(data.flags)) {
        unseen[data.func] = BY_ADDRESS;
    }
    let mut num_calls = SecondaryMap::new(program.funcs.len(), 1.0);
    for _ in 0..ROUNDS {
        let mut next = unseen.clone();
        calls.iter().for_each(|call| next[call.callee] += call.often * f32::powf(num_calls[call.caller], CALLER_POWER));
        num_calls = next;
    }
    num_calls
}

/// A way from one function to another, and how often it is gone for each entry of the first, once at most.
struct Call {
    caller: Func,
    callee: Func,
    often: f32,
}

/// Ways from one function to another; of several the likeliest.
fn calls(program: &Program, frequencies: &SecondaryMap<Block, f32>) -> Vec<Call> {
    let mut calls = Vec::new();
    for (block, data) in program.blocks.iter() {
        let callees = callees(program, block).map(|target| program.func_of(target)).filter(|&callee| callee != data.func);
        calls.extend(callees.map(|callee| Call { caller: data.func, callee, often: frequencies[block].min(1.0) }));
    }
    calls.sort_unstable_by(|a: &Call, b| (a.caller, a.callee).cmp(&(b.caller, b.callee)).then(b.often.total_cmp(&a.often)));
    calls.dedup_by_key(|call| (call.caller, call.callee));
    calls
}

#[cfg(test)]
mod tests {
    use lifter::entity::EntityId;

    use super::*;
    use crate::testing::{End::*, ProgramBuilder, TestBlock};

    fn leaf() -> Vec<TestBlock> {
        vec![TestBlock::new(4, Return)]
    }
    fn calling(callee: usize) -> Vec<TestBlock> {
        vec![TestBlock::new(4, Return).calling(callee)]
    }
    fn heat_of(program: &Program) -> Vec<f32> {
        let heat = Heat::guess(program).of_block;
        program.blocks.keys().map(|block| heat[block]).collect()
    }

    #[test]
    fn what_is_called_by_many_is_hotter_and_more_so_if_they_are_called_by_many() {
        // 0 and 1 have two callers each, those of 1 are called by 6, 7 and 8; 9 has no caller.
        let funcs = [leaf(), leaf(), calling(0), calling(0), calling(1), calling(1), calling(4), calling(5), calling(4), leaf()];
        let program = funcs.into_iter().fold(ProgramBuilder::default(), ProgramBuilder::func).build();
        let heat = heat_of(&program);
        assert!(heat[1] > heat[0] && heat[0] > heat[9], "{heat:?}");
        assert_eq!(heat[2], heat[9], "nothing calls either");
    }

    #[test]
    fn calls_on_seldom_ways_count_for_less_and_several_of_a_caller_once() {
        let often = vec![TestBlock::new(4, Return).calling(1).calling(1)];
        let seldom = vec![TestBlock::new(4, Branch(2)), TestBlock::new(4, Return), TestBlock::new(4, Jump(1)).calling(3)];
        let program = [often, leaf(), seldom, leaf(), calling(5), leaf()]
            .into_iter()
            .fold(ProgramBuilder::default(), ProgramBuilder::func)
            .build();
        let heat = heat_of(&program);
        let of_entry = |func: usize| heat[program.funcs[Func::new(func)].entry.index()];
        assert_eq!(of_entry(1), of_entry(5));
        assert!(of_entry(3) < 0.9 * of_entry(1), "{heat:?}");
    }

    #[test]
    fn what_is_in_a_short_loop_is_hot_whoever_calls() {
        let looping = |len: u32| vec![TestBlock::new(8, Fallthrough), TestBlock::new(len, Branch(1)), TestBlock::new(8, Return)];
        let callers = (0..20).map(|_| calling(2));
        let program = [looping(40), looping(4000), leaf()]
            .into_iter()
            .chain(callers)
            .fold(ProgramBuilder::default(), ProgramBuilder::func)
            .build();
        let heat = heat_of(&program);
        assert!(heat[1] > 5.0 * heat[4] && heat[4] < 2.0 * heat[0], "{heat:?}");
    }

    #[test]
    fn that_an_address_is_taken_says_little() {
        let mut program =
            [leaf(), leaf(), calling(1), leaf()].into_iter().fold(ProgramBuilder::default(), ProgramBuilder::func).build();
        program.blocks[Block::new(0)].flags.insert(BlockFlags::ADDRESS_TAKEN);
        let heat = heat_of(&program);
        assert!(heat[1] > heat[0] && heat[0] == heat[3], "{heat:?}");
    }

    #[test]
    fn the_average_instruction_has_a_heat_of_one() {
        let blocks = vec![TestBlock::new(40, Branch(2)), TestBlock::new(4, Fallthrough), TestBlock::new(12, Return)];
        let program = ProgramBuilder::default().func(blocks).func(calling(0)).func(vec![TestBlock::new(8, Trap)]).build();
        let heat = heat_of(&program);
        let num_insts: Vec<f32> = program.blocks.values().map(|data| data.num_insts as f32).collect();
        let sum: f32 = heat.iter().zip(&num_insts).map(|(heat, count)| heat * count).sum();
        assert!((sum / num_insts.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{heat:?}");
        let program = ProgramBuilder::default().build();
        assert_eq!(heat_of(&program), [0.0; 0]);
    }
}
