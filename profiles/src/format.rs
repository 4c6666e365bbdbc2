//! The `.rlp` file: what an instrumented process maps and counts into, and what profiles are stored in. One layout for both.
//!
//! ```text
//! header      128 bytes: magic, version, sizes, what it was made from, hashes
//! descriptor  functions by name and content, the site of each counter, recorded calls, entry addresses
//!             and what each block of each function does, as hashes, with the edges and calls between them;
//!             where the parts of functions are in the program (from version 2 on)
//! counters    from a page boundary: one u64 for each counter
//! calls       for each recorded call: 4 times {target, count}, then the count of all other targets
//! ```
//!
//! All numbers are little-endian. The descriptor makes the file readable without the program, and lets it survive a rebuild:
//! functions go by name and content hash, places in them by their offset from the function's start. By address go only the same code
//! that is lifted otherwise, and recorded targets, by their entries in the instrumented image. The magic number is what a process
//! writes last when it creates the file, so a file without it is one that is being made.
//!
//! Reading checks every size and index against the bytes that are there; what is allocated is bounded by the file's length. The
//! file may be growing counts while it is read: each counter is then some value between those before and after.

mod descriptor;
mod header;
mod outline;
mod varint;

#[cfg(test)]
mod tests;

pub use descriptor::{CallDescriptor, Descriptor, FuncDescriptor, Site, identity};
pub(crate) use descriptor::{block_offsets, name_of, parts_of};
pub use header::{CALL_BYTES, HEADER_BYTES, Header, MAGIC, PAGE_BYTES, SLOTS_PER_CALL, VERSION};

use crate::error::{Error, Result};

/// The target value of a call that went outside the image.
pub const EXTERNAL_TARGET: u64 = u64::MAX;

/// Where a recorded call went.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// An address in the instrumented image, relative to its lowest.
    Image(u64),
    /// Outside the image.
    External,
}

/// What one recorded call saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Most frequent first.
    pub targets: Vec<(Target, u64)>,
    /// Calls whose target found no room.
    pub other: u64,
}

/// A profile as read from its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileFile {
    pub descriptor: Descriptor,
    /// By counter number.
    pub counters: Vec<u64>,
    /// By call number.
    pub calls: Vec<CallCounts>,
}

/// One function's line of `relift profile show`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuncSummary<'a> {
    pub name: &'a str,
    pub content_hash: u64,
    pub size: u64,
    /// The sum of its counters.
    pub counted: u64,
    /// How often its entry block ran, where that has a counter of its own.
    pub entered: Option<u64>,
    pub num_counters: usize,
    /// How many of its counters are not zero.
    pub num_nonzero: usize,
}

/// What a profile holds, without the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary<'a> {
    /// Those that ran, hottest first.
    pub functions: Vec<FuncSummary<'a>>,
    pub num_functions: usize,
    pub num_counters: usize,
    pub num_nonzero: usize,
    pub counted: u64,
    pub num_calls: usize,
    /// Executions of recorded calls.
    pub calls_counted: u64,
}

impl ProfileFile {
    /// A profile of nothing, as an instrumented program finds it before it has run.
    pub fn empty(descriptor: Descriptor) -> Self {
        let (num_counters, num_calls) = (descriptor.num_counters(), descriptor.num_calls());
        ProfileFile { descriptor, counters: vec![0; num_counters], calls: vec![CallCounts::default(); num_calls] }
    }

    pub fn read(bytes: &[u8]) -> Result<Self> {
        let header = Header::decode(bytes)?;
        let descriptor = Descriptor::decode(&header, bytes)?;
        let end = header.counters_offset + header.num_counters * 8;
        let counters = section(bytes, header.counters_offset, header.num_counters * 8, "counters")?;
        let calls = section(bytes, end, header.num_calls * CALL_BYTES, "recorded calls")?;
        Ok(ProfileFile {
            descriptor,
            counters: words(counters).collect(),
            calls: calls.chunks_exact(CALL_BYTES as usize).map(read_call).collect(),
        })
    }

    /// The whole file.
    pub fn write(&self) -> Vec<u8> {
        let (header, mut bytes) = self.descriptor.encode();
        bytes.resize(header.counters_offset as usize, 0);
        self.counters.iter().for_each(|counter| bytes.extend_from_slice(&counter.to_le_bytes()));
        self.calls.iter().for_each(|call| write_call(call, &mut bytes));
        bytes.resize(header.file_len() as usize, 0);
        bytes
    }

    /// The sum of profiles of one instrumented program.
    pub fn merge(files: &[ProfileFile]) -> Result<ProfileFile> {
        let (first, others) = files.split_first().ok_or(Error::NothingToMerge)?;
        let mut sum = first.clone();
        for (index, other) in others.iter().enumerate() {
            if other.descriptor != first.descriptor {
                return Err(Error::DifferentPlans { first: 0, other: index + 1 });
            }
            for (total, count) in sum.counters.iter_mut().zip(&other.counters) {
                *total = total.saturating_add(*count);
            }
            for (total, counts) in sum.calls.iter_mut().zip(&other.calls) {
                total.add(counts);
            }
        }
        sum.calls.iter_mut().for_each(CallCounts::fit);
        Ok(sum)
    }

    /// The same with every count so many times.
    pub fn scale(&mut self, weight: u64) {
        let scale = |count: &mut u64| *count = count.saturating_mul(weight);
        self.counters.iter_mut().for_each(scale);
        for call in &mut self.calls {
            call.targets.iter_mut().for_each(|target| scale(&mut target.1));
            scale(&mut call.other);
        }
    }

    pub fn summary(&self) -> Summary<'_> {
        let sum = |counts: &[u64]| counts.iter().fold(0u64, |total, &count| total.saturating_add(count));
        let nonzero = |counts: &[u64]| counts.iter().filter(|&&count| count != 0).count();
        let mut functions = Vec::new();
        let mut rest = self.counters.as_slice();
        for func in &self.descriptor.funcs {
            let (counters, behind) = rest.split_at(func.sites.len().min(rest.len()));
            rest = behind;
            functions.push(FuncSummary {
                name: &func.name,
                content_hash: func.content_hash,
                size: func.size,
                counted: sum(counters),
                entered: entry_site(func).and_then(|site| counters.get(site).copied()),
                num_counters: counters.len(),
                num_nonzero: nonzero(counters),
            });
        }
        functions.retain(|f| f.num_nonzero != 0);
        functions.sort_by_key(|f| std::cmp::Reverse(f.counted));
        let calls_of = |call: &CallCounts| call.targets.iter().fold(call.other, |sum, t| sum.saturating_add(t.1));
        Summary {
            functions,
            num_functions: self.descriptor.funcs.len(),
            num_counters: self.counters.len(),
            num_nonzero: nonzero(&self.counters),
            counted: sum(&self.counters),
            num_calls: self.calls.len(),
            calls_counted: self.calls.iter().fold(0, |sum, call| sum.saturating_add(calls_of(call))),
        }
    }
}

/// The number, among a function's counters, of the one at its entry.
fn entry_site(func: &FuncDescriptor) -> Option<usize> {
    func.sites.iter().position(|site| matches!(site, Site::Block { offset } if *offset == func.entry_offset))
}

impl CallCounts {
    fn add(&mut self, counts: &CallCounts) {
        for &(target, count) in &counts.targets {
            match self.targets.iter_mut().find(|(known, _)| *known == target) {
                Some((_, total)) => *total = total.saturating_add(count),
                None => self.targets.push((target, count)),
            }
        }
        self.other = self.other.saturating_add(counts.other);
        self.sort();
    }
    fn sort(&mut self) {
        self.targets.sort_by_key(|&(target, count)| (std::cmp::Reverse(count), target));
    }
    /// Keeps as many targets as the file has room for.
    fn fit(&mut self) {
        let room = self.targets.len().min(SLOTS_PER_CALL as usize);
        let spilled = self.targets.split_off(room);
        self.other = spilled.iter().fold(self.other, |sum, t| sum.saturating_add(t.1));
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
}

fn section<'a>(bytes: &'a [u8], offset: u64, len: u64, what: &'static str) -> Result<&'a [u8]> {
    let range = || Some(usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(len)?).ok()?);
    range().and_then(|range| bytes.get(range)).ok_or_else(|| Error::malformed(what, "reach past the end of the file"))
}

fn read_call(bytes: &[u8]) -> CallCounts {
    let values: Vec<u64> = words(bytes).collect();
    let mut call = CallCounts::default();
    for slot in values.chunks_exact(2) {
        // A slot is claimed before its first count, so a claimed slot may still read zero.
        match slot[0] {
            0 => {}
            EXTERNAL_TARGET => call.targets.push((Target::External, slot[1])),
            target => call.targets.push((Target::Image(target - 1), slot[1])),
        }
    }
    call.other = values.last().copied().unwrap_or(0);
    call.sort();
    call
}

fn write_call(call: &CallCounts, bytes: &mut Vec<u8>) {
    let mut fitting = call.clone();
    fitting.fit();
    fitting.targets.resize(SLOTS_PER_CALL as usize, (Target::Image(u64::MAX), 0));
    for (target, count) in fitting.targets {
        let target = match target {
            Target::External => EXTERNAL_TARGET,
            Target::Image(offset) => offset.wrapping_add(1),
        };
        bytes.extend_from_slice(&target.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
    }
    bytes.extend_from_slice(&fitting.other.to_le_bytes());
}
