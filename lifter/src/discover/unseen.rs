//! What pointers that nobody vouches for may name, in a file at a fixed address without the linker's relocations.
//!
//! **Problem.** There a code address is a plain number, in data or in an instruction, and nothing tells it from other numbers. Data can't be
//! changed, so whatever such a number may name has to stay good under its old address. What is left of the old code once its new copy is
//! elsewhere is a jump at each such address, an *anchor*; all other bytes are free.
//!
//! **Method.** Every number that may be a code address counts as one:
//! * every 32-bit word at every byte of the data, if an instruction starts at its value. A 64-bit word is one, its upper half aside;
//! * every aligned 64-bit word of the data that points into code, wherever it points: into an instruction, it pins (a tagged pointer);
//! * every 32- and 64-bit immediate and displacement of an instruction, and every window of 32 bits in code that is not decoded;
//! * every address that the loader writes into data.
//!
//! **Why that is all.** Two halves that a program puts together are two numbers of which the lower one is a 32-bit word or immediate with
//! the address (code at fixed addresses lies below 4 GiB). Addresses computed by rip-relative instructions are seen and follow.
//! Offsets from a base are the closed set of [`crate::symbolize::pins`]: tables of them are resolved, or what they may reach is pinned;
//! arithmetic on an address that an instruction holds pins what it names.
//!
//! **Tables of addresses** are the one exception: the words of a resolved table name nothing if every instruction that holds an
//! address in the table is known to use it as that table (then all of them use its copy), no word of data holds such an address, and no
//! table of addresses that begins before it is left unresolved (a base may be biased below its table).

use object::elf;
use rayon::prelude::*;

use crate::address::Va;
use crate::cfg::tables::RawTable;
use crate::discover::names::dynamic_code_slots;
use crate::discover::survey::{Absolute, Survey};
use crate::discover::units::{UnitData, Units, unit_at};
use crate::elf::Image;
use crate::elf::image::SectionData;

/// What unseen pointers may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unseen {
    /// Starts of instructions: each keeps a jump. Ascending, each once.
    pub(crate) anchors: Vec<Va>,
    /// Places inside instructions. Ascending.
    pub(crate) torn: Vec<Va>,
    /// Places that instructions read or write by an absolute address. Ascending.
    pub(crate) memory: Vec<Va>,
}

/// What is looked through.
#[derive(Copy, Clone)]
pub(crate) struct Search<'i> {
    pub(crate) image: &'i Image<'i>,
    pub(crate) units: &'i Units,
    pub(crate) surveys: &'i [Survey],
    /// Ascending by address.
    pub(crate) tables: &'i [RawTable],
    /// Addresses from which indirect jumps read whole addresses, without an answer. Ascending.
    pub(crate) open_tables: &'i [Va],
}

/// A number that points into code.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Found {
    /// Where the number is.
    at: Va,
    target: Va,
    is_start: bool,
}

/// Bytes of an anchor: a jump, and the mark of an indirect branch's target where the processor may ask for it.
pub(crate) fn anchor_len(image: &Image<'_>, va: Va) -> u64 {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    if image.has_ibt && image.read(va, 4) == Some(&ENDBR64) { ENDBR64.len() as u64 + JUMP_LEN } else { JUMP_LEN }
}

/// `jmp` with a 32-bit displacement.
const JUMP_LEN: u64 = 5;
/// How far above a biased base its table may begin.
const BIAS_BYTES_MAX: u64 = 8 * 4096;
const CHUNK: usize = 1 << 18;

impl Search<'_> {
    pub(crate) fn run(&self) -> Unseen {
        let claimed = self.claimed_tables();
        let mut unseen = Unseen::default();
        let words = self.data_sections().flat_map(|s| self.scan(s.sh_addr, s.end()).into_iter());
        for found in words.filter(|f| !is_in(&claimed, f.at)) {
            if found.is_start { &mut unseen.anchors } else { &mut unseen.torn }.push(found.target);
        }
        let raw = self.units.as_slice().iter().enumerate().filter(|(index, unit)| self.is_raw(*index, unit));
        let raw = raw.flat_map(|(_, unit)| self.scan(unit.start, unit.end));
        unseen.anchors.extend(raw.filter(|f| f.is_start).map(|f| f.target));
        for absolute in self.surveys.iter().flat_map(|s| &s.absolutes) {
            match self.start_at(absolute.value) {
                Some(_) if absolute.is_memory => unseen.memory.push(absolute.value),
                Some(true) => unseen.anchors.push(absolute.value),
                _ => {}
            }
        }
        unseen.anchors.extend(dynamic_code_slots(self.image, self.units).map(|(_, target)| target));
        for list in [&mut unseen.anchors, &mut unseen.torn, &mut unseen.memory] {
            list.sort();
            list.dedup();
        }
        unseen
    }

    /// Code whose instructions are not known for certain: its bytes may be data.
    fn is_raw(&self, index: usize, unit: &UnitData) -> bool {
        unit.fde().is_none() || self.surveys[index].is_opaque()
    }

    /// What the program itself may read, tables of the loader and the unwinder aside.
    fn data_sections(&self) -> impl Iterator<Item = &SectionData<'_>> {
        let holds_data =
            [elf::SHT_PROGBITS, elf::SHT_INIT_ARRAY, elf::SHT_FINI_ARRAY, elf::SHT_PREINIT_ARRAY].map(|t| t as usize);
        let is_unwind = |name: &str| name.starts_with(".eh_frame") || name.starts_with(".gcc_except_table");
        self.image.sections.values().filter(move |s| {
            s.is_alloc()
                && !s.is_executable()
                && s.has_bytes()
                && holds_data.contains(&(s.sh_type as usize))
                && !is_unwind(s.name)
        })
    }

    /// Whether an instruction starts at an address of decoded code; `None` outside of it.
    fn start_at(&self, va: Va) -> Option<bool> {
        let unit = unit_at(self.units, va)?;
        let survey = &self.surveys[crate::entity::EntityId::index(unit)];
        (!survey.is_opaque()).then(|| survey.is_start(va - self.units[unit].start))
    }

    /// All numbers in `start..end` that point into code.
    fn scan(&self, start: Va, end: Va) -> Vec<Found> {
        let bytes = self.image.read(start, (end - start) as usize).unwrap_or(&[]);
        let (Some(low), Some(high)) = (self.units.as_slice().first(), self.units.as_slice().last()) else { return Vec::new() };
        let (low, high) = (low.start.0, high.end.0);
        let chunk = |first: usize| {
            let last = (first + CHUNK).min(bytes.len().saturating_sub(3));
            (first..last).filter_map(move |at| {
                let value = u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default()));
                if value < low || value >= high {
                    return None;
                }
                let place = start + at as u64;
                let is_word = place.0.is_multiple_of(8) && bytes.get(at + 4..at + 8) == Some(&[0; 4]);
                let is_start = self.start_at(Va(value))?;
                (is_start || is_word).then_some(Found { at: place, target: Va(value), is_start })
            })
        };
        (0..bytes.len().div_ceil(CHUNK)).into_par_iter().flat_map_iter(|index| chunk(index * CHUNK)).collect()
    }

    /// The bytes of the tables whose words name nothing, ascending.
    fn claimed_tables(&self) -> Vec<(Va, Va)> {
        let tables: Vec<(&RawTable, Va)> =
            self.tables.iter().filter(|t| t.entry_size == 8).map(|t| (t, t.at + 8 * t.targets.len() as u64)).collect();
        let mut is_doubted = vec![false; tables.len()];
        let mut doubt = |value: Va, is_known: &dyn Fn(&RawTable) -> bool| {
            // Tables of one cluster may overlap, but no more than a few do.
            let after = tables.partition_point(|t| t.0.at <= value);
            for index in (0..after).rev().take(8).filter(|&i| value < tables[i].1) {
                is_doubted[index] |= !is_known(tables[index].0);
            }
        };
        for survey in self.surveys {
            for &Absolute { value, at, .. } in &survey.absolutes {
                doubt(value, &|table| table.named_at.binary_search(&at).is_ok());
            }
            for &(value, at) in &survey.data_names {
                doubt(value, &|table| table.named_at.binary_search(&at).is_ok());
            }
        }
        for section in self.data_sections() {
            let first = section.sh_addr.align_up(8);
            let words = (first.0..section.end().0.saturating_sub(7)).step_by(8).filter_map(|at| self.image.read_u64(Va(at)));
            words.for_each(|word| doubt(Va(word), &|_| false));
        }
        let is_open = |at: Va, end: Va| {
            let below = self.open_tables.partition_point(|&open| open < end);
            below > 0 && self.open_tables[below - 1] + BIAS_BYTES_MAX > at
        };
        let claimed = tables.iter().zip(&is_doubted).filter(|(table, is_doubted)| !**is_doubted && !is_open(table.0.at, table.1));
        claimed.map(|(table, _)| (table.0.at, table.1)).collect()
    }
}

fn is_in(ranges: &[(Va, Va)], at: Va) -> bool {
    let after = ranges.partition_point(|r| r.0 <= at);
    // Overlapping ranges are of one cluster's tables; each word of the later one is in it.
    ranges[..after].iter().rev().take(8).any(|r| at < r.1)
}
