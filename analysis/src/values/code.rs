//! A procedure as the value analysis sees it: what each instruction does to registers and which memory it touches.
//!
//! Decoded and translated once a turn and dropped after it. An effect that is not among those with a rule is `Generic`: what it writes starts a new base,
//! and what it reads may be kept anywhere.

use lifter::entity::Block;

use crate::procedures::Procedure;

/// A general register by its encoding.
pub type Register = u8;

pub const RAX: Register = 0;
pub const RCX: Register = 1;
pub const RDX: Register = 2;
pub const RSP: Register = 4;
pub const RBP: Register = 5;

/// A set of general registers, bit by encoding.
pub type RegisterSet = u16;

/// `rbx`, `rbp`, `r12` to `r15`: what a function keeps by the psABI (x86-64, §3.2.1), `rsp` aside.
pub const CALLEE_SAVED: RegisterSet = 1 << 3 | 1 << 5 | 0xf000;

/// `rdi`, `rsi`, `rdx`, `rcx`, `r8`, `r9`, and the static chain `r10`.
pub const ARGUMENTS: RegisterSet = 1 << 7 | 1 << 6 | 1 << 2 | 1 << 1 | 1 << 8 | 1 << 9 | 1 << 10;

/// A sum of registers and a constant.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Sum {
    pub base: Option<Register>,
    pub index: Option<Register>,
    /// Of the index; may be any factor.
    pub scale: i64,
    pub constant: i64,
    /// The constant is an address in the file.
    pub is_image: bool,
}

/// Memory that an instruction touches.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MemoryReference {
    /// The instruction, by its number in the function.
    pub instruction: u32,
    pub address: Place,
    /// In bytes; 0 if it is not known, and then it may be before or behind the address.
    pub size: u32,
    pub reads: bool,
    pub writes: bool,
    /// Part of what a call or return does by itself.
    pub is_implicit: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Sum(Sum),
    /// The same, counted from where the thread's own block lies (`fs`).
    Thread(Sum),
    /// Not described by a sum: a gather, a 32-bit address, a bit string.
    Unknown,
}

/// What an instruction does to general registers; its memory comes first.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    None,
    /// `to` becomes a sum, cut to 32 bits or not.
    Linear {
        to: Register,
        sum: Sum,
        is_32: bool,
    },
    Subtract {
        to: Register,
        from: Register,
        what: Register,
        is_32: bool,
    },
    And {
        to: Register,
        mask: i64,
        is_32: bool,
    },
    Extend {
        to: Register,
        from: Register,
        bits: u8,
        is_signed: bool,
        is_32: bool,
    },
    /// `to` becomes a number within bounds that came out of no address.
    Bounded {
        to: Register,
        low: i64,
        high: i64,
    },
    /// `to` becomes the 64 bits that the only reference reads.
    Load {
        to: Register,
    },
    /// The only reference becomes 64 bits of a register.
    Store {
        from: Register,
    },
    /// `rsp` goes down by 8 and what it then points to becomes a register's value, or something else.
    Push {
        from: Option<Register>,
    },
    Pop {
        to: Register,
    },
    Leave,
    Exchange {
        a: Register,
        b: Register,
    },
    /// `to` becomes `from` or stays.
    Select {
        to: Register,
        from: Register,
    },
    /// Anything else. `writes` start a new base, numbers below 2^32 where `is_32`.
    Generic {
        reads: RegisterSet,
        writes: RegisterSet,
        is_32: bool,
    },
    /// Index into the function's calls.
    Call(u32),
    /// Into the kernel: `rax`, `rcx`, `r11` are written.
    SystemCall,
}

/// Whom a call reaches.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Callee {
    /// A procedure of the program.
    Local(Procedure),
    /// A place inside one, a thunk that goes where a register says, or anything else that is not known.
    Inside,
    /// A function that a name stands for: index into the table of `library`.
    Library(u32),
    /// Through a pointer or a stub: what the compiler could not see through.
    Boundary,
}

/// A call, or a jump out of the function.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub callee: Callee,
    /// The address behind it; for a jump the end of its block.
    pub at: u64,
}

#[derive(Copy, Clone, Debug)]
pub struct Instruction {
    pub at: u64,
    /// Into `ProcedureCode::references`.
    pub references: (u32, u32),
    pub effect: Effect,
}

/// How control leaves a block for another function, or for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// `ret`, with what it pops beyond the return address.
    Return { extra: i64 },
    /// A jump or a fall into other code, as a call in its place that returns for this function; an index into the function's calls.
    Tail(u32),
}

#[derive(Clone, Debug)]
pub struct CodeBlock {
    pub block: Block,
    pub instructions: (u32, u32),
    /// By number in the function, duplicates removed.
    pub successors: Vec<u32>,
    pub exits: Vec<Exit>,
    /// Control may arrive from outside; nothing is known at its start then.
    pub is_arrival: bool,
    pub is_landing_pad: bool,
}

/// A procedure, translated.
#[derive(Clone, Debug)]
pub struct ProcedureCode {
    pub procedure: Procedure,
    pub blocks: Vec<CodeBlock>,
    /// The block of the entry.
    pub entry: u32,
    pub instructions: Vec<Instruction>,
    pub references: Vec<MemoryReference>,
    pub calls: Vec<Call>,
    /// Block numbers in reverse postorder, every block once.
    pub order: Vec<u32>,
    /// Some of it is not understood: nothing may be said of it.
    pub is_opaque: bool,
    /// Control may leave by an exception from other places than calls, or the stack pointer at a landing pad is not that of the call.
    pub has_unknown_landings: bool,
}

impl ProcedureCode {
    pub fn instructions_of(&self, block: &CodeBlock) -> std::ops::Range<usize> {
        block.instructions.0 as usize..block.instructions.1 as usize
    }
    /// The blocks that call something, or jump to it in place of a call.
    pub fn blocks_with_calls(&self) -> impl Iterator<Item = u32> + '_ {
        let calls = |block: &CodeBlock| {
            self.instructions[self.instructions_of(block)].iter().any(|i| matches!(i.effect, Effect::Call(_)))
                || block.exits.iter().any(|exit| matches!(exit, Exit::Tail(_)))
        };
        (0u32..).zip(&self.blocks).filter(move |(_, block)| calls(block)).map(|(number, _)| number)
    }
    pub fn references_of(&self, instruction: &Instruction) -> &[MemoryReference] {
        &self.references[instruction.references.0 as usize..instruction.references.1 as usize]
    }
}
