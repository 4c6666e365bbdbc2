//! The code that runs inside an instrumented program: what maps the profile file at start-up, what records the targets of
//! indirect calls, and what is put at each counter and call.
//!
//! It uses no libc, no stack of its own, no relocations and no register that it does not restore; everything it names is
//! rip-relative, so it is the same in a fixed and a position-independent image. Lengths do not depend on addresses, so it can be
//! laid out before anything is placed.
//!
//! **The file is the memory.** The counters lie in a zero-filled, writable segment of the image. The start-up stub maps the
//! profile file over it (`MAP_SHARED`), so that the kernel keeps every increment whatever becomes of the process, and processes
//! add up. Where anything fails, the segment stays what it was, and the program runs as if it were not instrumented.
//!
//! **Registers.** Compilers let values live in caller-saved registers across calls whose callee they know (gcc's `-fipa-ra`), so
//! no register is free anywhere. Counters are `lock inc` on memory; the other code saves what it uses.
//!
//! **The red zone.** The 128 bytes below the stack pointer belong to a leaf function (psABI §3.2.2). At a call they are dead
//! down from the return address, but at a jump that is a tail call they need not be, and where flags are saved they are not; so
//! whatever pushes first moves the stack pointer below them, by `lea`, which writes no flags.

mod assemble;
mod record;
mod snippets;
mod startup;

#[cfg(test)]
mod tests;

use lifter::Va;

use crate::error::{Error, Result};
use crate::format::{Header, PAGE_BYTES};

pub(crate) use snippets::is_recordable;
pub use snippets::{COUNTER_LEN, COUNTER_WITH_FLAGS_LEN, call_site_depths, call_site_snippet, counter_depths, counter_snippet};

/// Where things lie in the instrumented image.
#[derive(Copy, Clone, Debug)]
pub struct RuntimeLayout {
    /// Of the runtime: the new entry point, 16-byte aligned. The segment is executable and need not be writable.
    pub at: Va,
    /// Of `Descriptor::encode`'s bytes, in any loaded segment.
    pub header_blob_at: Va,
    /// Of the first counter; a page boundary, in a zero-filled writable segment of `Header::counters_len` bytes that holds
    /// nothing else.
    pub counters_at: Va,
    /// The lowest and one past the highest address of the instrumented image, as `Descriptor::set_entries` has it.
    pub image_low: Va,
    pub image_high: Va,
    pub original_entry: Va,
}

impl RuntimeLayout {
    /// What call sites call.
    pub fn record_at(&self) -> Va {
        self.at + u64::from(startup::LEN_MAX)
    }
    /// A counter by its number.
    pub fn counter_at(&self, counter: u32) -> Va {
        self.counters_at + 8 * u64::from(counter)
    }
    fn path_at(&self) -> Va {
        self.record_at() + u64::from(record::LEN_MAX)
    }
}

/// The length of `build_runtime`'s code for a path of this length.
pub fn runtime_len(path_len: usize) -> usize {
    (startup::LEN_MAX + record::LEN_MAX) as usize + path_len + 1
}

/// The start-up stub, the recording routine behind it, and the path of the profile file. `path` should be absolute (the program
/// may be started anywhere) and has no NUL in it; what is behind one is not used.
pub fn build_runtime(layout: &RuntimeLayout, header: &Header, path: &[u8]) -> Result<Vec<u8>> {
    if !layout.counters_at.0.is_multiple_of(PAGE_BYTES) {
        return Err(Error::NotPageAligned { what: "the counters' segment", at: layout.counters_at });
    }
    let mut bytes = startup::build(layout, header)?;
    assemble::pad_to(&mut bytes, startup::LEN_MAX, layout.at)?;
    bytes.extend(record::build(layout, header)?);
    assemble::pad_to(&mut bytes, startup::LEN_MAX + record::LEN_MAX, layout.at)?;
    bytes.extend_from_slice(path);
    bytes.push(0);
    Ok(bytes)
}
