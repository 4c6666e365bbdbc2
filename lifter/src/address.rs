//! Addresses by kind: a virtual address can't be used where a file offset is meant.

use std::fmt;
use std::ops::{Add, Sub};

/// A virtual address as linked (before a loader's bias). The range is all of `u64`; images are checked to lie in the low 2^47.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Va(pub u64);

/// A byte offset into the input or output file.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileOffset(pub u64);

impl Va {
    /// The distance `self - other` in bytes, as two's complement.
    pub fn distance(self, other: Va) -> i64 {
        self.0.wrapping_sub(other.0) as i64
    }
    /// The address `delta` bytes away; wraps, as the processor does.
    pub fn offset(self, delta: i64) -> Va {
        Va(self.0.wrapping_add(delta as u64))
    }
    /// The smallest multiple of `align` (a power of two) not below this address.
    pub fn align_up(self, align: u64) -> Va {
        debug_assert!(align.is_power_of_two());
        Va(self.0.wrapping_add(align - 1) & !(align - 1))
    }
}

impl Add<u64> for Va {
    type Output = Va;
    fn add(self, bytes: u64) -> Va {
        Va(self.0.wrapping_add(bytes))
    }
}
impl Sub<Va> for Va {
    type Output = u64;
    /// The size of `other..self`; `self` must not be below `other`.
    fn sub(self, other: Va) -> u64 {
        debug_assert!(self.0 >= other.0, "{self} - {other}");
        self.0.wrapping_sub(other.0)
    }
}

macro_rules! print_as_hex {
    ($($name:ty),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    )*};
}
print_as_hex!(Va, FileOffset);
