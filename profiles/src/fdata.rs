//! BOLT's `fdata`: one line a record, places by function name and offset.
//!
//! ```text
//! boltedcollection                                 first, where the profiled program was an output of BOLT (offsets are of its input)
//! no_lbr cycles:u:                                 where samples follow, not branches; the events that were sampled
//! 1 main 3fb 1 main 451 0 4                        branch: kind, name, offset (hexadecimal), the same of the target; mispredictions, count
//! 0 [unknown] 0 1 main 0 0 1                       kind 0: a place outside the program, 1: a function, 2: data
//! 1 main 3fb 12                                    sample, below `no_lbr`
//! ```
//!
//! Kinds 3 to 5 begin records of memory accesses, which are counted and left out. A space in a name has a backslash before it. The
//! fields are those of LLVM's documentation of `perf2bolt` and of the files that BOLT 22 writes. Straight-line flow is in the branch form too,
//! as records from a block's last instruction to the next block.
//!
//! Names are kept once each; records are added up as they are read, so memory is bounded by what differs, not by the length of the
//! file. Reading visits each byte a fixed number of times.

mod export;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::Write;

use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::samples::{Collector, Samples};
use crate::symbols::SymbolIndex;
use crate::text::{Line, Lines};
use crate::watch::{SILENT, Watch};

pub use export::export;

const FORMAT: &str = "fdata";

/// Which kind of thing a place's name is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PlaceKind {
    /// A shared object or `[unknown]`.
    Outside,
    Function,
    Data,
}

/// A place; the name is an index into `Fdata::names`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub kind: PlaceKind,
    pub name: u32,
    pub offset: u64,
}

/// The contents of an `fdata` file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fdata {
    pub names: Vec<String>,
    ids: FxHashMap<String, u32>,
    /// Mispredictions and count.
    pub branches: FxHashMap<(Place, Place), (u64, u64)>,
    pub samples: FxHashMap<Place, u64>,
    /// `Some` below a `no_lbr` line: the events.
    pub sampled_events: Option<String>,
    /// Made from a program that BOLT had already rewritten; offsets are those of its input.
    pub is_bolted: bool,
    pub memory_records: u64,
}

impl Fdata {
    pub fn read(bytes: &[u8]) -> Result<Self> {
        Fdata::read_watched(bytes, SILENT)
    }

    /// The same; `watch` is told how far it is.
    pub fn read_watched(bytes: &[u8], watch: Watch<'_>) -> Result<Self> {
        let mut fdata = Fdata::default();
        for mut line in Lines::watched(FORMAT, bytes, watch) {
            match line.text {
                b"boltedcollection" => fdata.is_bolted = true,
                text if text == b"no_lbr" || text.starts_with(b"no_lbr ") => {
                    fdata.sampled_events = Some(String::from_utf8_lossy(&text[6..]).trim().to_owned());
                }
                [b'3'..=b'5', b' ', ..] => fdata.memory_records += 1,
                _ => fdata.read_record(&mut line)?,
            }
        }
        if !fdata.samples.is_empty() && !fdata.branches.is_empty() {
            return Err(Error::malformed("fdata", "branch records and samples in one file"));
        }
        Ok(fdata)
    }

    fn read_record(&mut self, line: &mut Line<'_>) -> Result<()> {
        let from = self.read_place(line)?;
        if self.sampled_events.is_some() {
            let count = line.number("a number of samples", 10)?;
            line.finish()?;
            let sum = self.samples.entry(from).or_default();
            *sum = sum.saturating_add(count);
            return Ok(());
        }
        let to = self.read_place(line)?;
        let mispredicted = line.number("a number of mispredictions", 10)?;
        let count = line.number("a number of executions", 10)?;
        line.finish()?;
        self.add_branch(from, to, mispredicted, count);
        Ok(())
    }

    fn read_place(&mut self, line: &mut Line<'_>) -> Result<Place> {
        let kind = match line.field() {
            b"0" => PlaceKind::Outside,
            b"1" => PlaceKind::Function,
            b"2" => PlaceKind::Data,
            other => {
                let shown = String::from_utf8_lossy(&other[..other.len().min(40)]).into_owned();
                return Err(line.fail(format!("a place begins with 0, 1 or 2, not {shown:?}")));
            }
        };
        let name = line.field();
        if name.is_empty() {
            return Err(line.fail("a name is missing"));
        }
        let offset = line.number("an offset in hexadecimal digits", 16)?;
        let name = self.intern(&unescape(&String::from_utf8_lossy(name)));
        Ok(Place { kind, name, offset })
    }

    pub fn intern(&mut self, name: &str) -> u32 {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let id = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        id
    }
    pub fn name(&self, id: u32) -> &str {
        self.names.get(id as usize).map_or("", String::as_str)
    }
    pub fn add_branch(&mut self, from: Place, to: Place, mispredicted: u64, count: u64) {
        let sum = self.branches.entry((from, to)).or_default();
        sum.0 = sum.0.saturating_add(mispredicted);
        sum.1 = sum.1.saturating_add(count);
    }
    /// A place outside the program.
    pub fn outside(&mut self) -> Place {
        Place { kind: PlaceKind::Outside, name: self.intern("[unknown]"), offset: 0 }
    }

    /// Adds another file's records, each so many times.
    pub fn merge(&mut self, other: &Fdata, weight: u64) -> Result<()> {
        let is_empty = self.branches.is_empty() && self.samples.is_empty();
        if !is_empty && self.is_bolted != other.is_bolted {
            return Err(Error::malformed(
                "fdata",
                "a collection from a program that BOLT rewrote can't be added to one that is not",
            ));
        }
        if !is_empty && self.sampled_events.is_some() != other.sampled_events.is_some() {
            return Err(Error::malformed("fdata", "samples can't be added to branch records"));
        }
        self.is_bolted |= other.is_bolted;
        if let Some(events) = &other.sampled_events {
            let own = self.sampled_events.get_or_insert_default();
            for event in events.split(':').filter(|event| !event.is_empty()) {
                if !own.split(':').any(|known| known == event) {
                    own.push_str(event);
                    own.push(':');
                }
            }
        }
        self.memory_records += other.memory_records;
        let ids: Vec<u32> = other.names.iter().map(|name| self.intern(name)).collect();
        let own = |place: Place| Place { name: ids[place.name as usize], ..place };
        for (&(from, to), &(mispredicted, count)) in &other.branches {
            self.add_branch(own(from), own(to), mispredicted.saturating_mul(weight), count.saturating_mul(weight));
        }
        for (&place, &count) in &other.samples {
            let sum = self.samples.entry(own(place)).or_default();
            *sum = sum.saturating_add(count.saturating_mul(weight));
        }
        Ok(())
    }

    /// The file, records in the order of their places.
    pub fn write(&self) -> String {
        let mut text = String::new();
        if self.is_bolted {
            text.push_str("boltedcollection\n");
        }
        if let Some(events) = &self.sampled_events {
            let _ = writeln!(text, "no_lbr {events}");
        }
        // By name rather than by number, which depends on the order of reading.
        let key = |place: Place| (place.kind, self.name(place.name), place.offset);
        let show = |text: &mut String, place: Place| {
            let kind = place.kind as u8;
            let _ = write!(text, "{kind} {} {:x} ", escape(self.name(place.name)), place.offset);
        };
        let mut branches: Vec<_> = self.branches.iter().collect();
        branches.sort_unstable_by_key(|&(&(from, to), _)| (key(from), key(to)));
        for (&(from, to), (mispredicted, count)) in branches {
            show(&mut text, from);
            show(&mut text, to);
            let _ = writeln!(text, "{mispredicted} {count}");
        }
        let mut samples: Vec<_> = self.samples.iter().collect();
        samples.sort_unstable_by_key(|&(&place, _)| key(place));
        for (&place, count) in samples {
            show(&mut text, place);
            let _ = writeln!(text, "{count}");
        }
        text
    }

    /// The same by address.
    pub fn resolve(&self, symbols: &SymbolIndex) -> Samples {
        let mut collector = Collector::default();
        let resolve = |place: Place| match place.kind {
            PlaceKind::Function => symbols.resolve(self.name(place.name), place.offset),
            PlaceKind::Outside | PlaceKind::Data => None,
        };
        // A name that is known to be a function's and is not found is another program's or another build's; a stub's is not.
        let is_lost = |place: Place, at: Option<lifter::Va>| {
            place.kind == PlaceKind::Function && at.is_none() && !self.name(place.name).contains("@PLT")
        };
        for (&(from, to), &(mispredicted, count)) in &self.branches {
            let (at, target) = (resolve(from), resolve(to));
            let is_located = (at.is_some() || target.is_some()) && !is_lost(from, at) && !is_lost(to, target);
            collector.note(count, is_located);
            collector.branch(at, target, count, mispredicted);
        }
        for (&place, &count) in &self.samples {
            let at = resolve(place);
            collector.note(count, at.is_some());
            if let Some(at) = at {
                collector.address(at, count);
            }
        }
        collector.finish()
    }
}

fn unescape(name: &str) -> Cow<'_, str> {
    if !name.contains('\\') {
        return Cow::Borrowed(name);
    }
    let mut result = String::with_capacity(name.len());
    let mut is_escaped = false;
    for character in name.chars() {
        if character == '\\' && !is_escaped {
            is_escaped = true;
            continue;
        }
        is_escaped = false;
        result.push(character);
    }
    Cow::Owned(result)
}

fn escape(name: &str) -> String {
    name.replace('\\', "\\\\").replace(' ', "\\ ")
}
