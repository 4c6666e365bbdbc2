//! Where registers are live: before which instructions the value that a general or vector register holds may still be read.
//!
//! **Problem.** A free register, a value that nobody reads: the psABI alone does not tell. gcc's `-fipa-ra` keeps values in caller-saved registers across a call
//! whose callee is known not to touch them, and hand-written code passes what it likes. So liveness is computed from the code, across calls.
//!
//! **Method.** Backward data flow in two steps over all blocks at once.
//! * *Up*: for each block a function from what is live where its activation returns to what is live at the block's start. Such a function is `gen | (live & pass)`, and
//!   these compose. A direct call applies its callee's, so that two callers of one function don't mix (`passage`).
//! * *Down*: what is live where a function returns is what is live behind its calls, in all callers; a tail call hands on what is live at the returns of its caller.
//!
//! **What is not known reads everything.** A function that is named by anything but direct calls and jumps may return to code that nobody sees; that could not see
//! the function either, so it needs what the psABI says. Functions that are not understood may return to code that needs everything. A call through a pointer or a stub reads the registers of arguments and keeps what the psABI
//! says (§3.2.3), because who made it could not see through it either; but for two kinds that compilers know by other rules: the descriptors of thread-local storage
//! (`call *(%rax)`), which keep everything; and the profiling calls at the beginning of functions: of a file with these, nothing is claimed. An exception may
//! arrive at each landing pad of a block's call sites from anywhere in the block. Where a handler of signals may find the program by an address that code names, it may go on elsewhere, with what the function was given.
//!
//! **What counts as a write** is what surely replaces the whole register: 32 bits of a general one, and not less; all of a vector register's lower half, where the upper half
//! is a location of its own, because an SSE instruction leaves it.
//!
//! **Saves.** [`Saves::Read`] takes the `push` of a callee-saved register for what it is, a read: what is dead by this may be overwritten. With [`Saves::Passed`] a
//! procedure that hands a register back as it got it passes it, and saving it is no use of it: what is dead by this may hold anything *from here on*, but is no free
//! register, because the save would save what was put there.
//!
//! **Terminates**: sets only grow, by 64 bits at most; so each block is looked at again a bounded number of times for each thing that it depends on. The
//! result is the least fixpoint, hence independent of the order and of the number of threads.

mod effects;
mod graph;

#[cfg(test)]
mod tests;

use iced_x86::{Instruction, InstructionInfoFactory};
use lifter::Image;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockFlags, PinReason, Program};
use lifter::x86::decode_block;

use crate::flags::{FlagLiveness, summarize};
use crate::procedures::Procedures;
use crate::values::Summary;

pub use effects::{Callee, Step, step};
use graph::Solver;

/// A set of registers: general ones by their encoding, then lower halves of `xmm0` to `xmm15`, what is above them, and `zmm16` to `zmm31` whole.
#[derive(Copy, Clone, PartialEq, Eq, Default, Hash)]
pub struct Registers(pub u64);

impl Registers {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self(u64::MAX);
    /// `rbx`, `rbp`, `r12` to `r15`, and `rsp`.
    pub const KEPT: Self = Self(crate::values::code::CALLEE_SAVED as u64 | 1 << 4);
    /// What a call that keeps to the psABI may be given: arguments, the number of vector arguments, the static chain.
    pub const PASSED: Self = Self(crate::values::code::ARGUMENTS as u64 | 1 | 1 << 4 | 0xff << 16 | 0xff << 32);

    /// What a function that keeps to the psABI hands back: what it keeps, `rax`, `rdx`, and the first two vector registers.
    pub const RETURNED: Self = Self(Self::KEPT.0 | 1 | 1 << 2 | 3 << 16 | 3 << 32);

    pub fn general(register: u8) -> Self {
        Self(1 << (register & 15))
    }
    /// All of a vector register, by its number up to 15.
    pub fn vector(number: u8) -> Self {
        Self(1 << (16 + (number & 15)) | 1 << (32 + (number & 15)))
    }
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Debug for Registers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |bit: usize| match bit {
            0..16 => crate::domain::base::REGISTER_NAMES[bit].to_owned(),
            16..32 => format!("xmm{}", bit - 16),
            32..48 => format!("ymm{} above xmm", bit - 32),
            _ => format!("zmm{}", bit - 32),
        };
        f.debug_list().entries((0..64).filter(|bit| self.0 >> bit & 1 != 0).map(name)).finish()
    }
}

/// From what is live later to what is live now.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Passage {
    /// Live whatever is live later.
    pub reads: Registers,
    /// Live if live later.
    pub passes: Registers,
}

impl Passage {
    /// Of no way at all.
    const NONE: Self = Self { reads: Registers::NONE, passes: Registers::NONE };
    const IDENTITY: Self = Self { reads: Registers::NONE, passes: Registers::ALL };
    /// Of a call or jump that keeps to the psABI.
    const BOUNDARY: Self = Self { reads: Registers::PASSED, passes: Registers::KEPT };
    const ANYTHING: Self = Self { reads: Registers::ALL, passes: Registers::ALL };

    fn union(self, other: Self) -> Self {
        Self { reads: self.reads.union(other.reads), passes: self.passes.union(other.passes) }
    }
    /// This one first, in the order of execution.
    fn before(self, later: Self) -> Self {
        Self { reads: self.reads.union(later.reads.intersection(self.passes)), passes: self.passes.intersection(later.passes) }
    }
    pub fn apply(self, later: Registers) -> Registers {
        self.reads.union(later.intersection(self.passes))
    }
}

/// What a callee-saved register's save is.
#[derive(Copy, Clone, Debug)]
pub enum Saves<'a> {
    Read,
    /// By procedure, what is known of it.
    Passed(&'a Procedures, &'a [Option<Summary>]),
}

/// Liveness of a program's registers.
#[derive(Clone, Debug)]
pub struct RegisterLiveness {
    /// By block, from the returns of its activation to its start.
    passages: Vec<Passage>,
    /// By block, what a call of it does.
    calls: Vec<Passage>,
    /// By function, live where it returns to.
    at_return: Vec<Registers>,
    /// By block, live at its landing pads.
    at_pads: Vec<Registers>,
}

impl RegisterLiveness {
    pub fn compute(image: &Image<'_>, program: &Program, saves: Saves<'_>) -> Self {
        if is_profiled(image) {
            let all = vec![Registers::ALL; program.blocks.len()];
            let anything = vec![Passage::ANYTHING; program.blocks.len()];
            let at_return = vec![Registers::ALL; program.funcs.len()];
            return RegisterLiveness { passages: anything.clone(), calls: anything, at_return, at_pads: all };
        }
        Solver::new(program, graph::all_pieces(image, program, saves, |_, _| ()).0, saves).solve()
    }

    /// That of the flags too, with each block decoded once for both.
    pub fn with_flags(image: &Image<'_>, program: &Program, saves: Saves<'_>) -> (Self, FlagLiveness) {
        if is_profiled(image) {
            return (Self::compute(image, program, saves), FlagLiveness::compute(image, program));
        }
        let of_flags = |block: Block, instructions: &[Instruction]| summarize(program, block, instructions);
        let (pieces, summaries) = graph::all_pieces(image, program, saves, of_flags);
        let flags = FlagLiveness::of_summaries(program, &summaries);
        drop(summaries);
        (Solver::new(program, pieces, saves).solve(), flags)
    }

    /// Live where a function returns to, in any of its callers.
    pub fn at_return(&self, func: Func) -> Registers {
        self.at_return[func.index()]
    }

    /// Live at the start of a block.
    pub fn at_start(&self, program: &Program, block: Block) -> Registers {
        self.passages[block.index()].apply(self.at_return(program.func_of(block)))
    }

    /// Live at the end of a block, its terminator included: what any of the places that it goes to wants.
    fn at_end(&self, program: &Program, block: Block) -> Registers {
        graph::way_out(program, block, &self.passages, &self.calls).apply(self.at_return(program.func_of(block)))
    }

    /// For each instruction of a block, with its decoded form, what is live *behind* it.
    pub fn behind_each(&self, image: &Image<'_>, program: &Program, block: Block) -> Vec<(Instruction, Registers)> {
        let mut factory = InstructionInfoFactory::new();
        let mut live = self.at_end(program, block);
        let pads = self.at_pads[block.index()];
        let mut list: Vec<(Instruction, Registers)> = Vec::new();
        for instruction in decode_block(image, program, block).into_iter().rev() {
            live = live.union(pads);
            list.push((instruction, live));
            live = graph::passage_of(&step(program, &instruction, &mut factory), &self.calls).apply(live);
        }
        list.reverse();
        list
    }
}

/// Whether functions may begin with calls that compilers take for no calls at all.
fn is_profiled(image: &Image<'_>) -> bool {
    image.dynamic_symbols.iter().any(|symbol| matches!(symbol.name, "mcount" | "_mcount" | "__fentry__") && !symbol.is_defined())
}

/// What callers that nobody sees need of a function: what the psABI says that calls keep and return, since they could not see it either; of code that is not understood,
/// everything.
fn needed_by_unseen(program: &Program, func: Func) -> Registers {
    let data = &program.funcs[func];
    let is_named = |block: Block| program.blocks[block].flags.intersects(BlockFlags::ADDRESS_TAKEN | BlockFlags::ANCHOR);
    let is_plain = |reason: PinReason| {
        matches!(
            reason,
            PinReason::LinkerSection | PinReason::ShortReach | PinReason::UnprovenPointers | PinReason::NotWorthMoving
        )
    };
    match data.pin.is_some_and(|reason| !is_plain(reason)) {
        true => Registers::ALL,
        false if data.blocks.iter().any(is_named) => Registers::RETURNED,
        false => Registers::NONE,
    }
}
