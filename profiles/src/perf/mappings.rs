//! Who mapped the program where, and when.
//!
//! Each process has a list of mappings with times, a parent with the time of the fork, and the time of its last `exec`. An address at a time is looked
//! up in the latest mapping of the process that holds it; a process that has not executed anything since its fork shares its
//! parent's. Chains of parents are followed a bounded number of steps: a damaged file could make a circle.

use lifter::Image;
use rustc_hash::FxHashMap;

use super::records::{self, Record, text};
use super::{FORMAT, fail};
use crate::error::{Error, Result};

const PARENTS_MAX: usize = 64;

/// How the program is told from other files.
#[derive(Debug)]
pub(super) struct Names {
    file_name: String,
    build_id: Vec<u8>,
    /// By path.
    build_ids: FxHashMap<String, Vec<u8>>,
}

impl Names {
    pub(super) fn new(image: &Image<'_>, file_name: &str) -> Self {
        let place = image.build_id.and_then(|(offset, len)| {
            let start = usize::try_from(offset.0).ok()?;
            image.bytes.get(start..start.checked_add(len)?)
        });
        let build_id = place.unwrap_or(&[]).to_vec();
        Names { file_name: file_name.to_owned(), build_id, build_ids: FxHashMap::default() }
    }
    pub(super) fn add_build_id(&mut self, path: &str, build_id: &[u8]) {
        self.build_ids.insert(path.to_owned(), build_id.to_vec());
    }
    fn has_name(&self, path: &str) -> bool {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        path.rsplit('/').next() == Some(&self.file_name)
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Match {
    /// The build-ids are equal.
    Certain,
    /// The names are equal and a build-id is missing on either side.
    Likely,
    /// The names are equal and the build-ids are not.
    OtherBuild,
    No,
}

#[derive(Copy, Clone, Debug)]
struct Mapping {
    time: u64,
    start: u64,
    end: u64,
    file_offset: u64,
    /// Into `Mappings::files`.
    file: u32,
}

#[derive(Clone, Debug, Default)]
struct Process {
    /// By time once all are known.
    mappings: Vec<Mapping>,
    parent: Option<(u32, u64)>,
    /// Times of `exec`, ascending once all are known.
    executed: Vec<u64>,
}

/// Everything that was mapped.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    processes: FxHashMap<u32, Process>,
    /// Path and build-id.
    files: Vec<(String, Option<Vec<u8>>)>,
    numbers: FxHashMap<(String, Option<Vec<u8>>), u32>,
    is_program: Vec<bool>,
}

impl Mappings {
    pub(super) fn learn(&mut self, record: &Record<'_>, time: u64) -> Result<()> {
        let pid = record.u32_at(0).ok_or_else(|| record.short())?;
        match record.kind {
            records::FORK => {
                let parent = record.u32_at(4).ok_or_else(|| record.short())?;
                let time = record.u64_at(16).unwrap_or(time);
                if parent != pid {
                    self.processes.entry(pid).or_default().parent = Some((parent, time));
                }
            }
            records::COMM => {
                const EXECUTED: u16 = 1 << 13;
                if record.misc & EXECUTED != 0 {
                    self.processes.entry(pid).or_default().executed.push(time);
                }
            }
            _ => self.map(record, pid, time)?,
        }
        Ok(())
    }

    fn map(&mut self, record: &Record<'_>, pid: u32, time: u64) -> Result<()> {
        const HAS_BUILD_ID: u16 = 1 << 14;
        let field = |at: usize| record.u64_at(at).ok_or_else(|| record.short());
        let (start, len, file_offset) = (field(8)?, field(16)?, field(24)?);
        let name_at = if record.kind == records::MMAP2 { 64 } else { 32 };
        let path = text(record.body.get(name_at..).ok_or_else(|| record.short())?);
        let build_id = (record.kind == records::MMAP2 && record.misc & HAS_BUILD_ID != 0).then(|| {
            let len = usize::from(record.body[32]).min(20);
            record.body[36..36 + len].to_vec()
        });
        let end = start.checked_add(len).ok_or_else(|| fail(record.offset, "a mapping beyond the address space"))?;
        let key = (path, build_id);
        let file = match self.numbers.get(&key) {
            Some(&number) => number,
            None => {
                let number = self.files.len() as u32;
                self.files.push(key.clone());
                self.numbers.insert(key, number);
                number
            }
        };
        let process = self.processes.entry(pid).or_default();
        process.mappings.push(Mapping { time, start, end, file_offset, file });
        Ok(())
    }

    /// Decides which files are the program, once all build-ids are known. Names decide only where no build-id does.
    pub(super) fn finish(&mut self, names: &Names) -> Result<()> {
        let matches: Vec<Match> =
            self.files.iter().map(|(path, build_id)| match_file(names, path, build_id.as_deref())).collect();
        let best = if matches.contains(&Match::Certain) { Match::Certain } else { Match::Likely };
        if !matches.contains(&best) {
            let why = match matches.iter().position(|&m| m == Match::OtherBuild) {
                Some(file) => format!("recorded from another build of {}: the build-ids differ", self.files[file].0),
                None => format!("no process ran {}", names.file_name),
            };
            return Err(Error::malformed(FORMAT, why));
        }
        self.is_program = matches.into_iter().map(|m| m == best).collect();
        for process in self.processes.values_mut() {
            process.mappings.sort_by_key(|m| m.time);
            process.executed.sort_unstable();
        }
        Ok(())
    }

    pub(super) fn num_processes(&self) -> usize {
        let runs = |process: &&Process| process.mappings.iter().any(|m| self.is_program[m.file as usize]);
        self.processes.values().filter(runs).count()
    }

    /// An address of a process as an offset in the program's file.
    pub(super) fn file_offset(&self, pid: u32, time: u64, address: u64) -> Option<u64> {
        let (mut pid, mut time) = (pid, time);
        for _ in 0..PARENTS_MAX {
            let process = self.processes.get(&pid)?;
            let executed = process.executed.iter().rev().find(|&&t| t <= time).copied();
            let holds = |m: &&Mapping| m.start <= address && address < m.end;
            // A sample without a time, or one that was stamped before its mapping, takes the latest mapping there is.
            let current = process.mappings.iter().rev().filter(holds);
            let mut of_this_program = current.clone().filter(|m| m.time <= time && executed.is_none_or(|t| t <= m.time));
            let found = of_this_program.next().or_else(|| if time == 0 { current.clone().next() } else { None });
            if let Some(mapping) = found {
                let is_program = self.is_program[mapping.file as usize];
                return is_program.then(|| address - mapping.start + mapping.file_offset);
            }
            let (parent, forked) = process.parent.filter(|_| executed.is_none())?;
            (pid, time) = (parent, time.min(forked));
        }
        None
    }
}

fn match_file(names: &Names, path: &str, build_id: Option<&[u8]>) -> Match {
    let build_id = build_id.or_else(|| names.build_ids.get(path).map(Vec::as_slice)).filter(|id| !id.is_empty());
    let has_name = names.has_name(path);
    match build_id.filter(|_| !names.build_id.is_empty()) {
        // A build-id may be recorded with zeros up to its full length.
        Some(id)
            if id == names.build_id
                || id.strip_prefix(names.build_id.as_slice()).is_some_and(|rest| rest.iter().all(|&b| b == 0)) =>
        {
            Match::Certain
        }
        Some(_) if has_name => Match::OtherBuild,
        None if has_name => Match::Likely,
        _ => Match::No,
    }
}
