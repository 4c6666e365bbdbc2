//! Accesses that fault unless their address is a multiple of their size (Intel SDM vol. 1, 4.1.1, and the exception types of vol. 2, 2.4).
//!
//! In the older encoding of vector instructions those are all of a whole register but the moves that are named for being unaligned; in the newer one only the moves that are named for being aligned. What is not looked into
//! is the same in both programs.
//!
//! **The rule.** Where the output makes such an access in a segment, the input makes one in that segment too, which is no less strict, at an address that differs by a multiple of the size; or the address is one of the
//! image and is such a multiple by itself, since pages are loaded at multiples of pages; or it is one of the frame, and its distance from the frame address is such a multiple, up to 16, since the ABI
//! has the stack so at calls (psABI 3.2.2): a store to a private slot may be made later, on the ways that need it. So the output does not fault where the input goes on. As for all faults, it is not compared which accesses come before.

use super::decoded::{Decoded, Memory, Operand, Reg};
use super::expr::{Id, Pool};

/// The names of moves that are not aligned in the older encoding.
const UNALIGNED: [&str; 4] = ["movups", "movupd", "movdqu", "lddqu"];
/// The names of moves that are aligned in the newer one.
const ALIGNED_NEW: [&str; 3] = ["vmovaps", "vmovapd", "vmovdqa"];
/// The size from which on the older encoding asks for it, in bits.
const WHOLE: u16 = 128;

/// What the frame address is a multiple of, in bytes.
const FRAME_ALIGN: u64 = 16;

/// An access that faults unless its address is a multiple of its size.
#[derive(Clone, Debug)]
pub(super) struct Aligned {
    pub(super) address: Id,
    /// Bytes.
    pub(super) size: u64,
    /// The instruction.
    pub(super) at: u64,
}

impl Decoded {
    /// The operand in memory, and its bits, if it has to be aligned.
    pub(super) fn aligned_operand(&self) -> Option<(Memory, u16)> {
        let (memory, size) = self.memory()?;
        let name = self.name.as_str();
        let has_vector = self.operands.iter().any(|(operand, _)| matches!(operand, Operand::Reg(Reg::Vector(..))));
        let is_aligned = match self.shape.vector {
            true => ALIGNED_NEW.contains(&name),
            false => has_vector && size >= WHOLE && !UNALIGNED.contains(&name),
        };
        is_aligned.then_some((memory, size))
    }
}

impl Aligned {
    /// Whether this is aligned if another one is.
    fn follows_from(&self, pool: &Pool, other: &Self) -> bool {
        let ((here, of_here), (there, of_there)) = (pool.split(self.address), pool.split(other.address));
        other.size >= self.size && of_here == of_there && here.wrapping_sub(there).is_multiple_of(self.size)
    }

    /// Whether this is aligned wherever the file is loaded and whoever calls.
    fn is_surely(&self, pool: &Pool) -> bool {
        let in_frame = pool.as_frame(self.address).filter(|_| self.size <= FRAME_ALIGN).map(i64::cast_unsigned);
        let fixed = pool.as_image(self.address).or(pool.as_const(self.address));
        fixed.or(in_frame).is_some_and(|address| address.is_multiple_of(self.size))
    }
}

/// The first access of the output that may fault where the input goes on.
pub(super) fn first_new<'o>(pool: &Pool, input: &[Aligned], output: &'o [Aligned]) -> Option<&'o Aligned> {
    let is_old = |access: &Aligned| access.is_surely(pool) || input.iter().any(|other| access.follows_from(pool, other));
    output.iter().find(|access| !is_old(access))
}
