//! Zero-filled memory for an instrumentation's counters, behind everything else that is loaded.
//!
//! **Method.** Where the last segment is writable it grows: no program header is needed, and the heap begins behind it. Where
//! it is not (an output of relift's ends in code), the memory gets a segment of its own behind the overflow.

use lifter::Image;
use lifter::address::Va;
use lifter::elf::image::Segment;

use crate::error::{Error, Result};
use crate::relink::addresses::Addresses;
use crate::relink::space::{Overflow, PAGE};
use crate::relink::{BuiltPayload, Payload};

#[derive(Copy, Clone, Debug)]
pub(crate) struct Reserved {
    pub(crate) at: Va,
    pub(crate) size: u64,
    /// Whether the last segment grows.
    pub(crate) is_growth: bool,
}

impl Reserved {
    /// `at` is settled for a segment that grows, and by `build` for one of its own.
    pub(crate) fn of(image: &Image<'_>, size: u64) -> Option<Self> {
        let is_growth = image.loads().max_by_key(|s| s.p_vaddr).is_some_and(Segment::is_writable);
        (size > 0).then(|| Self { at: image.high().align_up(PAGE), size, is_growth })
    }

    pub(crate) fn end(&self) -> Va {
        self.at + self.size
    }

    /// By how much the last segment grows.
    pub(crate) fn growth(&self, image: &Image<'_>) -> u64 {
        if self.is_growth { self.end() - image.high() } else { 0 }
    }

    /// Has a payload built at the overflow's end, and settles where the memory is.
    pub(crate) fn build<'p>(
        &mut self,
        payload: &'p mut dyn Payload,
        overflow: &mut Overflow,
        addresses: &Addresses<'_>,
    ) -> Result<(Va, BuiltPayload, &'p dyn Payload)> {
        let at = overflow.take(0, 64);
        let mut built = payload.build(at, self.at, addresses)?;
        overflow.take(built.bytes.len() as u64, 1);
        if !self.is_growth {
            // Its size does not depend on where the memory is.
            self.at = overflow.end.align_up(PAGE);
            let size = built.bytes.len();
            built = payload.build(at, self.at, addresses)?;
            if built.bytes.len() != size {
                return Err(Error::Inconsistent("the payload's size depends on its place".into()));
            }
        }
        Ok((at, built, &*payload))
    }
}
