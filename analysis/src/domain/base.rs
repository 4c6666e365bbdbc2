//! Bases: the unknown numbers that distances are counted from.
//!
//! Some name one number for all of a function's activation: the load address, the value of `rsp` at its entry, the values that the other
//! registers had there. The others name the number that an instruction, or the arrival at a block, gave to a location in its *latest* execution.
//!
//! **Two uses compare only where the same execution reaches both.** Within one state this always holds: before an instruction is executed for the
//! first time no location holds its value, and a state is the meet over all paths, that one included; so just before an instruction no location has its base,
//! and what an execution gives a name to can't be mixed up with what the one before did. Between two states it holds if one execution of a
//! straight piece of code reaches both, which is how the oracle is asked.

/// A base, packed into a word.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Base(u32);

const DEFINED: u32 = 1 << 31;
const ARRIVED: u32 = 1 << 30;
const FIRST_ENTRY: u32 = 8;

/// How many locations an instruction or an arrival can give names to; a power of two.
const LOCATIONS: u32 = 32;

/// The largest number of instructions, or blocks, of a function that bases can name.
pub const MAX_DEFINITIONS: usize = (ARRIVED / LOCATIONS) as usize - 1;

impl Base {
    /// Zero: the value is the distance.
    pub const NUMBER: Self = Self(0);
    /// Where the image lies: the difference between an address at run time and the one in the file; only in position-independent files.
    pub const IMAGE: Self = Self(1);
    /// The value of `rsp` at the function's entry, where the return address is.
    pub const FRAME: Self = Self(2);
    /// No name: as what a callee returns where nothing is known of it.
    pub const UNKNOWN: Self = Self(3);
    /// Where the thread's own block lies, that `fs` counts from.
    pub const THREAD: Self = Self(4);

    /// The value of a register at the function's entry.
    pub const fn entry(register: u8) -> Self {
        Self(FIRST_ENTRY + register as u32)
    }
    /// What the latest execution of an instruction, by its number in the function, gave to a register.
    pub const fn defined(instruction: u32, register: u8) -> Self {
        Self(DEFINED | (instruction * LOCATIONS) | register as u32)
    }
    /// What a register held at the latest arrival at a block, by its number in the function.
    pub const fn arrived(block: u32, register: u8) -> Self {
        Self(ARRIVED | (block * LOCATIONS) | register as u32)
    }
    pub fn entry_register(self) -> Option<u8> {
        (FIRST_ENTRY..FIRST_ENTRY + 16).contains(&self.0).then(|| (self.0 - FIRST_ENTRY) as u8)
    }
    /// The instruction that it is named after, by its number in the procedure.
    pub fn defining_instruction(self) -> Option<u32> {
        (self.0 & DEFINED != 0).then_some((self.0 & !DEFINED) / LOCATIONS)
    }
    /// Whether it means the same wherever in the program it is used.
    pub fn is_global(self) -> bool {
        self == Self::NUMBER || self == Self::IMAGE
    }
    /// Whether it means the same for all of an activation.
    pub fn is_stable(self) -> bool {
        self.0 < FIRST_ENTRY + 16 && self != Self::UNKNOWN
    }
}

/// Names of the registers, in the order of their encoding.
pub const REGISTER_NAMES: [&str; 16] =
    ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

impl std::fmt::Display for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let location = |bits: u32| REGISTER_NAMES.get((bits % LOCATIONS) as usize).copied().unwrap_or("slot");
        match *self {
            Self::NUMBER => f.write_str("0"),
            Self::IMAGE => f.write_str("image"),
            Self::FRAME => f.write_str("frame"),
            Self::UNKNOWN => f.write_str("unknown"),
            Self::THREAD => f.write_str("thread"),
            Self(bits) if bits & DEFINED != 0 => {
                write!(f, "{} of instruction {}", location(bits), (bits & !DEFINED) / LOCATIONS)
            }
            Self(bits) if bits & ARRIVED != 0 => write!(f, "{} at block {}", location(bits), (bits & !ARRIVED) / LOCATIONS),
            Self(bits) => write!(f, "{} at entry", location(bits - FIRST_ENTRY)),
        }
    }
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
