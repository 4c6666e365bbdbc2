//! What share of what is executed a jump more would be: what saves bytes by jumps must not cost time.
//!
//! **Problem.** A jump that is taken takes one to two cycles, as long as three to six other instructions, and leads to code that may not be in the cache: measured on `perl`, 1.8 % more
//! instructions, all of them such jumps, took 6 % more time, on `bash` 1.2 % took 10 %. Without a profile nothing tells which functions run all the time. But if in each function the jumps
//! are a small share of what it executes, then they are in the program.
//!
//! **Method.** The share of a block is how often it runs each time that its function is entered, of all the instructions that this entry executes, as guessed ([`super::frequency`]). In a
//! short loop, and in a short function, it is large; on a way that is seldom taken, and in long straight code, it is small. A jump is worth it if it saves the more bytes, the larger its share
//! is. What is called on seldom ways alone may cost more, since it is entered seldom; what many functions call may cost less, since it is likelier to be what the program does all the time: of `bash`'s code that with eight callers or more, a
//! fourteenth, executes half of all instructions, and the three quarters with less than four execute a quarter. With a profile the share of what ran is more than any saving is worth, and that of the rest is nothing.

use lifter::entity::{Block, EntityId, SecondaryMap};
use lifter::ir::Program;
use profiles::Weights;

use super::frequency::{CALLERS_UNSEEN, Frequencies};
use crate::encode::WORTH_PER_BYTE;

/// Where blocks are cut, at most: what comes of a cut is decided by what it saves.
const CUT_MAX: f32 = 1.0 / 20.0;
/// Of a branch that goes by way of another jump, at most: it saves four bytes.
const RELAY_MAX: f32 = 1.0 / 3200.0;
/// What is called seldom counts as if it were entered so often at least: a guess of few callers is often wrong where it matters (`bash`'s arithmetic).
const ENTERED_MIN: f32 = 0.3;
/// How much likelier than others functions are to be what runs all the time: by their callers, as a power of these over those of a function that is as likely as any, from and to.
const LIKELIER_POWER: f32 = 0.4;
const LIKELIER: (f32, f32) = (0.5, 4.0);
/// Bytes that a jump inside of its function has to save if it were all that is executed.
const NEAR_BYTES: f32 = 1000.0;
/// The same of a jump to another function, to a line of the cache that is not at hand.
const FAR_BYTES: f32 = 12000.0;
/// The same of the jump from arguments to the function that they are for.
const OUTLINE_BYTES: f32 = 4000.0;
/// The same of a call of instructions that many places have, and of the return.
const SUBROUTINE_BYTES: f32 = 12000.0;
/// Bytes that may be spent to keep a branch off the end of a decode window if it were all that is executed, once in each entry of its function.
const WINDOW_BYTES: f32 = 300.0;
/// The least of such worth that counts, in sixteenths of a byte.
const WINDOW_WORTH_MIN: f32 = 4.0;

/// How far a jump leads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Inside of a function.
    Function,
    Program,
}

#[derive(Clone, Debug)]
pub struct Shares {
    /// By block, from 0 to 1 where the function is as likely as any; infinite for what ran by a profile.
    of_block: SecondaryMap<Block, f32>,
    /// By block, what it is guessed to be worth to keep a branch of it off the end of a decode window ([`crate::encode::WindowBranch`]); nothing is guessed where a profile has counts.
    windows: SecondaryMap<Block, u16>,
}

impl Shares {
    pub fn of(program: &Program, weights: &Weights) -> Self {
        let num_blocks = program.blocks.len();
        let mut shares = Self { of_block: SecondaryMap::new(num_blocks, 0.0), windows: SecondaryMap::new(num_blocks, 0) };
        if weights.has_counts() {
            shares.count(program, weights);
        } else {
            shares.guess(program);
        }
        shares
    }

    fn count(&mut self, program: &Program, weights: &Weights) {
        let has_run = weights.blocks.iter().enumerate().filter(|(_, count)| **count > 0);
        has_run.for_each(|(block, _)| self.of_block[Block::new(block)] = f32::INFINITY);
        // Of these functions nothing is known but that they run.
        let entered = weights.entered.iter().flat_map(|&(func, _)| program.funcs[func].blocks.as_usize());
        entered.for_each(|block| self.of_block[Block::new(block)] = f32::INFINITY);
    }

    fn guess(&mut self, program: &Program) {
        let guessed = Frequencies::guess(program);
        for (block, data) in program.blocks.iter() {
            let entered = guessed.entered[data.func].max(ENTERED_MIN);
            let share =
                likelier(guessed.callers[data.func]) * entered * guessed.of_block[block] / guessed.work[data.func].max(1.0);
            self.of_block[block] = share;
            // What loops runs more often than the share of its function says.
            let worth = share * guessed.of_block[block].sqrt() * WINDOW_BYTES * f32::from(WORTH_PER_BYTE);
            self.windows[block] = if worth < WINDOW_WORTH_MIN { 0 } else { worth as u16 };
        }
    }

    /// Whether a block is worth being cut, so that its end may be shared.
    pub(crate) fn allows_cut(&self, block: Block) -> bool {
        self.of_block[block] <= CUT_MAX
    }
    pub(crate) fn allows_relay(&self, block: Block) -> bool {
        self.of_block[block] <= RELAY_MAX
    }

    /// Whether so many bytes are worth a jump to where they stand too, in place of the block.
    pub(crate) fn allows_jump(&self, block: Block, reach: Reach, bytes: u32) -> bool {
        let of_all = match reach {
            Reach::Function => NEAR_BYTES,
            Reach::Program => FAR_BYTES,
        };
        self.of_block[block] * of_all <= bytes as f32
    }

    /// How many bytes the arguments of a call in the block have to be, at least, to be worth a jump; the largest number if they never are.
    pub(crate) fn outlining_min(&self, block: Block) -> u32 {
        (self.of_block[block] * OUTLINE_BYTES).ceil() as u32
    }

    /// How many bytes a call of instructions that stand elsewhere has to save in the block to be worth it; the largest number if none are.
    pub(crate) fn subroutine_min(&self, block: Block) -> u32 {
        (self.of_block[block] * SUBROUTINE_BYTES).ceil() as u32
    }

    /// By block, in sixteenths of a byte.
    pub(crate) fn window_worths(&self) -> &SecondaryMap<Block, u16> {
        &self.windows
    }
}

fn likelier(callers: f32) -> f32 {
    (callers / CALLERS_UNSEEN).powf(LIKELIER_POWER).clamp(LIKELIER.0, LIKELIER.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{End::*, ProgramBuilder, TestBlock};

    #[test]
    fn a_jump_is_dear_in_what_is_short_and_cheap_in_what_is_long_or_seldom_runs() {
        // Four bytes an instruction.
        let short = vec![TestBlock::new(40, Return)];
        let long = vec![TestBlock::new(4000, Fallthrough), TestBlock::new(40, Return)];
        let looping = vec![TestBlock::new(4000, Fallthrough), TestBlock::new(40, Branch(1)), TestBlock::new(40, Return)];
        let program = ProgramBuilder::default().func(short).func(long).func(looping).build();
        let shares = Shares::of(&program, &Weights::default());
        let allows: Vec<bool> = program.blocks.keys().map(|block| shares.allows_jump(block, Reach::Program, 12)).collect();
        assert_eq!(allows, [false, true, true, true, true, true]);
        let allows: Vec<bool> = program.blocks.keys().map(|block| shares.outlining_min(block) <= 16).collect();
        assert_eq!(allows, [false, true, true, true, true, true]);
    }

    #[test]
    fn a_profile_knows_better() {
        let program =
            ProgramBuilder::default().func(vec![TestBlock::new(40, Return)]).func(vec![TestBlock::new(4000, Return)]).build();
        let allows = |weights: Weights| {
            let shares = Shares::of(&program, &weights);
            program.blocks.keys().map(|block| shares.allows_jump(block, Reach::Program, 1)).collect::<Vec<bool>>()
        };
        assert_eq!(allows(Weights { blocks: vec![0, 1], ..Weights::default() }), [true, false]);
        let entered = vec![(program.func_of(Block::new(0)), 3)];
        assert_eq!(allows(Weights { blocks: vec![0, 1], entered, ..Weights::default() }), [false, false]);
    }
}
