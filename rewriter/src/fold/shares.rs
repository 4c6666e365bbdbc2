//! What a jump more costs where it is executed: what saves bytes by jumps must not cost time.
//!
//! **Problem.** A jump that is taken leads to code that may not be in the cache, by way of a prediction that may not be there. In programs with large working sets that takes some 15 cycles, measured on `ruff`; in small loops one to two. Without a profile nothing tells where programs
//! spend their time.
//!
//! **Method.** A jump is worth it if it saves the more bytes, the likelier the block runs ([`super::heat`]): so many in a block that runs as often as the average instruction, in inverse proportion to the time that the user will give for bytes ([`Slowdown`]). What is cold costs nothing. That way each
//! technique gives the same bytes for the last bit of time. With a profile what ran is worth more than any saving, and the rest nothing.
//!
//! **The numbers** are from `ruff`, `ty`, `perl`, `bash`, `mawk` and `git` with their own profiles, at ten settings, and from times of `ruff` at twenty (benches/records/2026-11-28-heat.md).

use lifter::entity::{Block, EntityId, SecondaryMap};
use lifter::ir::Program;
use profiles::Weights;

use super::heat::Heat;
use crate::encode::WORTH_PER_BYTE;

/// Bytes that a jump inside of its function has to save in a block that runs as often as the average, if one percent of time may be spent.
const NEAR_BYTES: f32 = 50.0;
/// The same of a jump to another function, to a line of the cache that is not at hand.
const FAR_BYTES: f32 = 150.0;
/// The same of the jump from arguments to the function that they are for.
const OUTLINE_BYTES: f32 = 75.0;
/// The same of a call of instructions that many places have, and of the return.
const SUBROUTINE_BYTES: f32 = 150.0;
/// What a branch saves that goes by way of another jump, in the same function.
const RELAY_SAVES: u32 = 4;
/// What may come of a cut, mostly: blocks are not cut where that would not do for a jump.
const CUT_SAVES: u32 = 20;
/// Bytes that may be spent to keep a branch of average heat off the end of a decode window, once in each entry of its function.
const WINDOW_BYTES: f32 = 3.0;
/// The least of such worth that counts, in sixteenths of a byte.
const WINDOW_WORTH_MIN: f32 = 4.0;

/// How far a jump leads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Inside of a function.
    Function,
    Program,
}

/// How much more time the program may take for bytes, where there is no profile: in percent, as guessed: at 2 `ruff` takes about that, `ty` twice as much, C programs mostly less.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Slowdown(f32);

impl Slowdown {
    /// As much as may be asked for.
    pub const PERCENT_MAX: f32 = 100.0;
    pub const PERCENT_DEFAULT: f32 = 2.0;
    /// What goes for none.
    const PERCENT_MIN: f32 = 0.01;

    pub fn from_percent(percent: f32) -> Self {
        Self(percent.clamp(Self::PERCENT_MIN, Self::PERCENT_MAX))
    }
}

impl Default for Slowdown {
    fn default() -> Self {
        Self(Self::PERCENT_DEFAULT)
    }
}

#[derive(Clone, Debug)]
pub struct Shares {
    slowdown: Slowdown,
    /// By block, how often it runs beside the average instruction; infinite for what ran by a profile.
    of_block: SecondaryMap<Block, f32>,
    /// By block, what it is guessed to be worth to keep a branch of it off the end of a decode window ([`crate::encode::WindowBranch`]); nothing is guessed where a profile has counts.
    windows: SecondaryMap<Block, u16>,
}

impl Shares {
    pub fn of(program: &Program, weights: &Weights, slowdown: Slowdown) -> Self {
        let num_blocks = program.blocks.len();
        let mut shares =
            Self { slowdown, of_block: SecondaryMap::new(num_blocks, 0.0), windows: SecondaryMap::new(num_blocks, 0) };
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
        let Heat { of_block, frequencies } = Heat::guess(program);
        for block in program.blocks.keys() {
            // What loops runs more often than heat says, which is for all programs on average.
            let worth = of_block[block] * frequencies[block].sqrt() * WINDOW_BYTES * f32::from(WORTH_PER_BYTE);
            self.windows[block] = if worth < WINDOW_WORTH_MIN { 0 } else { worth as u16 };
        }
        self.of_block = of_block;
    }

    /// Bytes that something has to save in the block which would have to save so many at average heat and one percent.
    fn least(&self, block: Block, bytes: f32) -> f32 {
        self.of_block[block] * bytes / self.slowdown.0
    }

    /// Whether a block is worth being cut, so that its end may be shared.
    pub(crate) fn allows_cut(&self, block: Block) -> bool {
        self.allows_jump(block, Reach::Function, CUT_SAVES)
    }
    pub(crate) fn allows_relay(&self, block: Block) -> bool {
        self.allows_jump(block, Reach::Function, RELAY_SAVES)
    }

    /// Whether so many bytes are worth a jump to where they stand too, in place of the block.
    pub(crate) fn allows_jump(&self, block: Block, reach: Reach, bytes: u32) -> bool {
        let at_average = match reach {
            Reach::Function => NEAR_BYTES,
            Reach::Program => FAR_BYTES,
        };
        self.least(block, at_average) <= bytes as f32
    }

    /// How many bytes the arguments of a call in the block have to be, at least, to be worth a jump; the largest number if they never are.
    pub(crate) fn outlining_min(&self, block: Block) -> u32 {
        self.least(block, OUTLINE_BYTES).ceil() as u32
    }

    /// How many bytes a call of instructions that stand elsewhere has to save in the block to be worth it; the largest number if none are.
    pub(crate) fn subroutine_min(&self, block: Block) -> u32 {
        self.least(block, SUBROUTINE_BYTES).ceil() as u32
    }

    /// By block, in sixteenths of a byte.
    pub(crate) fn window_worths(&self) -> &SecondaryMap<Block, u16> {
        &self.windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{End::*, ProgramBuilder, TestBlock};

    #[test]
    fn a_jump_is_dear_in_what_runs_often_and_free_in_what_is_cold() {
        // What is called from everywhere, what is called by one, and that with a way that comes to nothing.
        let callers = (0..30).map(|_| vec![TestBlock::new(40, Return).calling(0)]);
        let seldom = vec![TestBlock::new(40, Branch(2)), TestBlock::new(40, Return), TestBlock::new(40, Trap)];
        let funcs = [vec![TestBlock::new(40, Return)], seldom].into_iter().chain(callers);
        let program = funcs.fold(ProgramBuilder::default(), ProgramBuilder::func).build();
        let allowed = |percent: f32| {
            let shares = Shares::of(&program, &Weights::default(), Slowdown::from_percent(percent));
            let blocks: Vec<Block> = program.blocks.keys().take(4).collect();
            let allows: Vec<bool> = blocks.iter().map(|&block| shares.allows_jump(block, Reach::Program, 60)).collect();
            let outlines: Vec<bool> = blocks.iter().map(|&block| shares.outlining_min(block) <= 30).collect();
            assert_eq!(allows, outlines);
            allows
        };
        assert_eq!(allowed(0.0), [false, false, false, true]);
        assert_eq!(allowed(4.0), [false, true, true, true]);
        assert_eq!(allowed(100.0), [true; 4]);
    }

    #[test]
    fn a_profile_knows_better() {
        let program =
            ProgramBuilder::default().func(vec![TestBlock::new(40, Return)]).func(vec![TestBlock::new(4000, Return)]).build();
        let allows = |weights: Weights| {
            let shares = Shares::of(&program, &weights, Slowdown::default());
            program.blocks.keys().map(|block| shares.allows_jump(block, Reach::Program, 1)).collect::<Vec<bool>>()
        };
        assert_eq!(allows(Weights { blocks: vec![0, 1], ..Weights::default() }), [true, false]);
        let entered = vec![(program.func_of(Block::new(0)), 3)];
        assert_eq!(allows(Weights { blocks: vec![0, 1], entered, ..Weights::default() }), [false, false]);
    }
}
