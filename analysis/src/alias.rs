//! The oracle: whether two memory references of a region can, must, or can't touch the same bytes.
//!
//! **Regions.** A path of blocks that one execution runs through in order: a block, or a chain of blocks in which each is entered from the one before only. Within one execution of it
//! every instruction is executed once, so that a base names the same number wherever in it it is used.
//!
//! **Two views of an address.** Its *value* is what the analysis of values says, across the whole procedure and its callers. Its *form* is a sum of symbols: what
//! registers held at the region's start and what was defined in it since, each with a factor. Forms cancel what both addresses share, whether anything is known of it or not; values bound
//! what does not cancel. Both views of the difference have to allow an overlap.
//!
//! **Why a pair can't overlap** is one of `Apart`. *Distance*, *bounds* and *residues* are arithmetic: two accesses overlap if and only if their distance is within their
//! sizes, modulo 2^64, hence modulo 64. The others are about objects: what an address that no pointer can be made of yet, or that was there before the frame was, can't be in.

mod form;
mod region;
#[cfg(test)]
mod tests;

use lifter::Va;
use smallvec::SmallVec;

use crate::domain::{Base, Interval, Residues, Value};

pub use form::{Form, Symbols};
pub use region::{LocalKind, Reference, Region, regions_of};

/// What the oracle says of two references.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    NoAlias(Apart),
    /// They start at the same address.
    MustAlias,
    MayAlias(Doubt),
}

/// Why two references can't overlap.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Apart {
    /// They are so many bytes apart.
    Distance(i64),
    /// Their distance lies within bounds that leave no overlap.
    Bounds,
    /// No distance modulo 64 that is possible lets them overlap.
    Residues,
    /// One is in the procedure's own frame, the other came from before the frame was made.
    OlderThanFrame,
    /// One is in the frame, whose address no one else can have yet.
    FrameNotEscaped,
    /// One is in the stack, the other in the image or in the thread's own block.
    DifferentMemory,
}

/// Why two references may overlap.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// They do overlap, at this distance.
    Overlap(i64),
    /// They count from the same base, and the distances allow an overlap.
    SameBase,
    /// They count from bases of which nothing is known.
    DifferentBases,
    /// The size of one is not known.
    UnknownSize,
}

impl Verdict {
    pub fn is_no_alias(self) -> bool {
        matches!(self, Verdict::NoAlias(_))
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::NoAlias(Apart::Distance(bytes)) => write!(f, "no alias: always {bytes} bytes apart"),
            Verdict::NoAlias(Apart::Bounds) => f.write_str("no alias: the bounds of their distance leave no overlap"),
            Verdict::NoAlias(Apart::Residues) => f.write_str("no alias: no possible distance modulo 64 lets them overlap"),
            Verdict::NoAlias(Apart::OlderThanFrame) => {
                f.write_str("no alias: one is in the own frame, the other is an address from before it was made")
            }
            Verdict::NoAlias(Apart::FrameNotEscaped) => {
                f.write_str("no alias: one is in the frame, whose address nothing else can hold here")
            }
            Verdict::NoAlias(Apart::DifferentMemory) => {
                f.write_str("no alias: stack, image and thread storage are different memory")
            }
            Verdict::MustAlias => f.write_str("must alias: the same address"),
            Verdict::MayAlias(Doubt::Overlap(bytes)) => write!(f, "may alias: they overlap, {bytes} bytes apart"),
            Verdict::MayAlias(Doubt::SameBase) => f.write_str("may alias: the distances from their base allow it"),
            Verdict::MayAlias(Doubt::DifferentBases) => f.write_str("may alias: nothing relates their bases"),
            Verdict::MayAlias(Doubt::UnknownSize) => f.write_str("may alias: the size of one is not known"),
        }
    }
}

/// Judges two references of one region.
pub fn judge(symbols: &Symbols, a: &Reference, b: &Reference) -> Verdict {
    let by_object = || apart_by_object(a, b).or_else(|| apart_by_object(b, a)).map(Verdict::NoAlias);
    if let Some(distance) = a.form.distance(&b.form) {
        return judge_distance(distance, a.size, b.size).or_else(by_object).unwrap_or(Verdict::MayAlias(Doubt::UnknownSize));
    }
    if let Some(verdict) = judge_values(a, b) {
        return verdict;
    }
    if a.size == 0 || b.size == 0 {
        return by_object().unwrap_or(Verdict::MayAlias(Doubt::UnknownSize));
    }
    let (residues, bounds) = a.form.difference_bounds(&b.form, symbols);
    if let Some(apart) = apart_by_bounds(residues, bounds, a.size, b.size) {
        return Verdict::NoAlias(apart);
    }
    by_object().unwrap_or_else(|| {
        let is_same = a.value.base == b.value.base && a.value.base != Base::UNKNOWN;
        Verdict::MayAlias(if is_same { Doubt::SameBase } else { Doubt::DifferentBases })
    })
}

/// What an exact distance says; nothing where a size that matters is not known.
fn judge_distance(distance: i64, a_size: u32, b_size: u32) -> Option<Verdict> {
    if distance == 0 {
        return Some(Verdict::MustAlias);
    }
    if a_size == 0 || b_size == 0 {
        return None;
    }
    let overlaps = -i64::from(a_size) < distance && distance < i64::from(b_size);
    Some(if overlaps { Verdict::MayAlias(Doubt::Overlap(distance)) } else { Verdict::NoAlias(Apart::Distance(distance)) })
}

/// What the values say that count from the same base.
fn judge_values(a: &Reference, b: &Reference) -> Option<Verdict> {
    let difference = a.value.subtract(b.value).filter(|_| a.value.base == b.value.base)?;
    if let Some(distance) = difference.offset() {
        return judge_distance(distance, a.size, b.size);
    }
    if a.size == 0 || b.size == 0 {
        return None;
    }
    apart_by_bounds(difference.residues, difference.offsets, a.size, b.size).map(Verdict::NoAlias)
}

/// Two accesses at a distance `d` overlap if `-a_size < d < b_size`.
fn apart_by_bounds(residues: Residues, bounds: Interval, a_size: u32, b_size: u32) -> Option<Apart> {
    let (low, high) = (1 - i64::from(a_size), i64::from(b_size) - 1);
    if bounds.low > high || bounds.high < low {
        return Some(Apart::Bounds);
    }
    residues.is_disjoint(Residues::of_range(low, high)).then_some(Apart::Residues)
}

/// What is known of the objects that two addresses are in; asked both ways round.
fn apart_by_object(a: &Reference, b: &Reference) -> Option<Apart> {
    let (frame, other) = (&a.value, &b.value);
    let in_stack = frame.base == Base::FRAME;
    let elsewhere = matches!(other.base, Base::IMAGE | Base::THREAD) && other.is_pure || b.is_in_image;
    if in_stack && elsewhere && frame.is_pure {
        return Some(Apart::DifferentMemory);
    }
    if frame.base == Base::THREAD && frame.is_pure && b.is_in_image {
        return Some(Apart::DifferentMemory);
    }
    if !in_stack || other.base == Base::FRAME {
        return None;
    }
    let is_own = frame.is_pure && !frame.offsets.is_full() && frame.offsets.high.saturating_add(i64::from(a.size)) <= 8;
    let is_sized = a.size != 0;
    let is_older = other.base.entry_register().is_some() && other.is_pure;
    if is_own && is_sized && is_older && b.size != 0 {
        return Some(Apart::OlderThanFrame);
    }
    let is_hidden = !a.has_escaped && !b.has_escaped;
    // Above the frame are the caller's things, which others may know.
    let is_frames = frame.offsets.is_full() || is_own && is_sized;
    (is_hidden && is_frames && b.size != 0).then_some(Apart::FrameNotEscaped)
}

/// A reference as it is shown.
#[derive(Clone, Debug)]
pub struct Shown {
    pub at: Va,
    pub text: String,
}

/// Pairs of references in a region that a transform may ask about: at least one writes, and no call lies between them.
pub fn pairs(references: &[Reference]) -> impl Iterator<Item = (usize, usize)> + '_ {
    /// References further apart are not asked about; a block may have thousands.
    const REACH: usize = 64;
    let is_asked =
        |a: &Reference, b: &Reference| (a.writes || b.writes) && a.stretch == b.stretch && a.instruction != b.instruction;
    (0..references.len()).flat_map(move |i| {
        let after = i + 1..references.len().min(i + 1 + REACH);
        after.filter(move |&j| is_asked(&references[i], &references[j])).map(move |j| (i, j))
    })
}

/// What is known of a value: for printing.
pub fn describe(value: &Value) -> String {
    format!("{value:?}")
}

/// Symbols with factors.
type Terms = SmallVec<[(u32, i64); 3]>;
