//! `perf.data`: what `perf record` wrote, read without `perf`.
//!
//! The file is a header, the attributes of the recorded events, a stream of records, and sections of features behind it; in *pipe mode*
//! a header of 16 bytes and a stream in which attributes and build-ids are records too. The layout is that of the kernel's
//! `include/uapi/linux/perf_event.h` and `tools/perf/Documentation/perf.data-file-format.txt`.
//!
//! **Method.** Records of several processors are not in the order of time, so two passes over the mapped file are made: the first learns who
//! mapped what, forked and executed what, and when ([`mappings`]); the second reads samples and looks up each address in the
//! mappings of its process at its time. The program is told by its build-id, or by its file name where no build-id is known.
//! Addresses become file offsets by the mapping, and addresses of the file by its segments: load addresses cancel out.
//!
//! **Samples.** Where a sample has a branch stack, its entries are taken branches and what lies between two of them ran straight;
//! otherwise its address counts, if it was taken in user mode and its event is one of time or instructions.
//!
//! Every length is checked against the bytes that are there; a file that was cut short is read up to the cut, which is reported. What was
//! recorded compressed is unpacked as it is read, in each pass ([`compressed`]).

mod attributes;
mod compressed;
mod header;
mod mappings;
mod records;
#[cfg(test)]
mod tests;

use lifter::{Image, Va};

use crate::error::{Error, Result};
use crate::samples::{Collector, Samples};
use crate::watch::{SILENT, Watch, Watched};
use attributes::{Attribute, Attributes, SampleRecord};
use mappings::{Mappings, Names};
use records::{Record, Records};

pub(crate) const FORMAT: &str = "perf.data";

pub(crate) fn fail(offset: u64, why: impl ToString) -> Error {
    Error::Byte { format: FORMAT, offset, why: why.to_string() }
}

/// What a file says of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfSamples {
    pub samples: Samples,
    /// Sample records of any process.
    pub num_samples: u64,
    pub num_branch_stacks: u64,
    /// Processes that mapped the program.
    pub num_processes: usize,
    /// Samples in the kernel, which no program's layout changes.
    pub in_kernel: u64,
    /// Samples of events that say nothing of how often code runs, such as cache misses or page faults.
    pub of_other_events: u64,
    /// Where the file ends in the middle of a record.
    pub cut_at: Option<u64>,
    /// Records that the recorder says it lost.
    pub lost: u64,
}

/// Reads the samples of a program; `file_name` is the name that it ran under.
pub fn read(bytes: &[u8], image: &Image<'_>, file_name: &str) -> Result<PerfSamples> {
    read_watched(bytes, image, file_name, SILENT)
}

/// The same; `watch` is told how far it is: each of the two passes is half of the file.
pub fn read_watched(bytes: &[u8], image: &Image<'_>, file_name: &str, watch: Watch<'_>) -> Result<PerfSamples> {
    let layout = header::read(bytes)?;
    let mut attributes = layout.attributes;
    let mut names = Names::new(image, file_name);
    for (build_id, path) in &layout.build_ids {
        names.add_build_id(path, build_id);
    }
    let mut found = PerfSamples::default();
    let mut mappings = Mappings::default();
    let mut stream = Records::new(bytes, layout.data.clone());
    let mut watched = Watched::new(watch);
    while let Some(record) = stream.next()? {
        watched.at(record.offset / 2);
        learn(&record, &mut attributes, &mut names, &mut mappings, &mut found)?;
    }
    found.cut_at = stream.cut_at();
    mappings.finish(&names)?;
    found.num_processes = mappings.num_processes();
    let mut reader = Reader { image, mappings: &mappings, collector: Collector::default(), found };
    let mut stream = Records::new(bytes, layout.data);
    while let Some(record) = stream.next()? {
        watched.at((bytes.len() as u64 + record.offset) / 2);
        if record.kind == records::SAMPLE {
            let sample = attributes.sample(&record)?;
            reader.sample(&record, &sample);
        }
    }
    reader.found.samples = reader.collector.finish();
    Ok(reader.found)
}

/// The first pass: everything but samples.
fn learn(
    record: &Record<'_>,
    attributes: &mut Attributes,
    names: &mut Names,
    mappings: &mut Mappings,
    found: &mut PerfSamples,
) -> Result<()> {
    match record.kind {
        records::MMAP | records::MMAP2 | records::FORK | records::COMM => {
            let time = attributes.time_of(record);
            mappings.learn(record, time)?;
        }
        records::LOST => found.lost += record.u64_at(8).unwrap_or(1),
        records::HEADER_ATTR => {
            let (attribute, len) = Attribute::read(record.body, record.body_offset())?;
            let ids = record.body.get(len..).unwrap_or(&[]);
            attributes.push(attribute, ids.chunks_exact(8).map(records::word).collect());
        }
        records::HEADER_BUILD_ID => {
            if let Some((build_id, path)) = header::read_build_id(record.body, record.misc) {
                names.add_build_id(&path, &build_id);
            }
        }
        _ => {}
    }
    Ok(())
}

struct Reader<'a> {
    image: &'a Image<'a>,
    mappings: &'a Mappings,
    collector: Collector,
    found: PerfSamples,
}

impl Reader<'_> {
    fn sample(&mut self, record: &Record<'_>, sample: &SampleRecord<'_>) {
        self.found.num_samples += 1;
        if !sample.branches.is_empty() {
            self.found.num_branch_stacks += 1;
            self.branch_stack(sample);
            return;
        }
        if !sample.is_of_time {
            self.found.of_other_events += 1;
            return;
        }
        const CPU_MODE: u16 = 7;
        const USER: u16 = 2;
        if record.misc & CPU_MODE != USER {
            self.found.in_kernel += 1;
            return;
        }
        let Some(ip) = sample.ip else { return };
        let at = self.address(sample, ip);
        self.collector.note(1, at.is_some());
        if let Some(at) = at {
            self.collector.address(at, 1);
        }
    }

    /// Entries are newest first: what ran between two is from the older one's target to the newer one's source.
    fn branch_stack(&mut self, sample: &SampleRecord<'_>) {
        let mut newer: Option<Option<Va>> = None;
        for entry in sample.branches.chunks_exact(24) {
            let (from, to) = (records::word(entry), records::word(&entry[8..]));
            let flags = records::word(&entry[16..]);
            let (from, to) = (self.address(sample, from), self.address(sample, to));
            self.collector.note(1, from.is_some() || to.is_some());
            self.collector.branch(from, to, 1, flags & 1);
            if let (Some(first), Some(Some(last))) = (to, newer)
                && first <= last
            {
                self.collector.trace(first, last, 1);
            }
            newer = Some(from);
        }
    }

    /// An address of a process as one of the file.
    fn address(&self, sample: &SampleRecord<'_>, address: u64) -> Option<Va> {
        let offset = self.mappings.file_offset(sample.pid, sample.time, address)?;
        let mut segments = self.image.loads().filter(|s| s.is_executable());
        let segment = segments.find(|s| s.p_offset.0 <= offset && offset - s.p_offset.0 < s.p_filesz)?;
        Some(segment.p_vaddr + (offset - segment.p_offset.0))
    }
}
