//! What pointers that nobody vouches for may name, in a file at a fixed address without the linker's relocations.
//!
//! **Problem.** There a code address is a plain number, in data or in an instruction, and nothing tells it from other numbers. Data can't be
//! changed, so whatever such a number may name has to stay good under its old address. What is left of the old code once its new copy is
//! elsewhere is a jump at each such address, an *anchor*; all other bytes are free.
//!
//! **Method.** Every number that may be a code address counts as one:
//! * every 64-bit word at every byte of the data, if an instruction starts at its value;
//! * every 32-bit word at every byte of the data, if a function starts at its value, and where several follow each other (a table of labels
//!   that someone wrote by hand), if instructions start at their values;
//! * every aligned 64-bit word that points a few bytes behind the start of a function, or into the padding a few bytes before: a tagged pointer, it pins;
//! * every 32- and 64-bit immediate and displacement of an instruction, and every window of 32 bits in code that is not decoded;
//! * every address that the loader writes into data;
//! * every 64-bit word at every byte of the data that leads into the padding between two functions: it keeps that padding, and what the padding runs
//!   into (`words_between`; an empty function of clang's is a function's start with nothing before the next).
//!
//! **Why that is all.** Two halves that a program puts together are two numbers of which the lower one is a 32-bit word or immediate with
//! the address (code at fixed addresses lies below 4 GiB). Addresses computed by rip-relative instructions are seen and follow.
//! Offsets from a base are the closed set of [`crate::symbolize::pins`]: tables of them are resolved, or what they may reach is pinned;
//! arithmetic on an address that an instruction holds pins what it names.
//!
//! **Tables of addresses** are the one exception: the words of a table whose length is proven, or all of whose words lead inside of
//! functions, name nothing if all that reads them is known, because then they are written anew. That is so if every instruction that holds an address in the table is known to use it as
//! that table, no word of data holds such an address, and no table of addresses that begins before it, and that a jump of the same function reads, is left unresolved (a base may be
//! biased below its table; inside of a function only its own jumps lead). All other tables of addresses stay as they are, and each of their entries keeps a jump.

use std::ops::Range;

use object::elf;
use rayon::prelude::*;

use crate::address::Va;
use crate::cfg::tables::RawTable;
use crate::discover::names::dynamic_code_slots;
use crate::discover::survey::{NumberRole, Survey};
use crate::discover::units::{Bounds, Unit, UnitData, Units, is_in, unit_at};
use crate::elf::Image;
use crate::elf::image::{SectionData, original_name};
use crate::ir::TableBound;

/// What unseen pointers may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unseen {
    /// Starts of instructions: each keeps a jump. Ascending, each once.
    pub(crate) anchors: Vec<Va>,
    /// Aligned words of data, 64 bits wide, and the starts of instructions that they hold. Ascending by place.
    pub(crate) words: Vec<(Va, Va)>,
    /// The same of words that are not aligned.
    pub(crate) unaligned_words: Vec<(Va, Va)>,
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
}

/// A number that points into code.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Found {
    /// Where the number is.
    at: Va,
    target: Va,
    /// An instruction starts there.
    is_start: bool,
    /// The number is 64 bits wide.
    is_wide: bool,
}

/// Tags of pointers take the bits that alignment leaves.
const TAG_MAX: u64 = 7;

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

/// What the program itself may read, tables of the loader and the unwinder aside.
pub(crate) fn data_sections<'i>(image: &'i Image<'_>) -> impl Iterator<Item = &'i SectionData<'i>> {
    // Tables of the loader hold offsets, names and hashes; `.dynamic` and `.dynsym` are written anew.
    let is_loaders = |sh_type: u32| {
        let tables = [elf::SHT_DYNAMIC, elf::SHT_DYNSYM, elf::SHT_HASH, elf::SHT_NOTE, elf::SHT_STRTAB, elf::SHT_SYMTAB];
        let of_gnu = [elf::SHT_GNU_HASH, elf::SHT_GNU_VERDEF, elf::SHT_GNU_VERNEED, elf::SHT_GNU_VERSYM];
        tables.contains(&sh_type) || of_gnu.contains(&sh_type)
    };
    let is_unwind = |name: &str| {
        let name = original_name(name);
        name.starts_with(".eh_frame") || name.starts_with(".gcc_except_table")
    };
    let sections = image.sections.values();
    sections.filter(move |s| s.is_alloc() && !s.is_executable() && s.has_bytes() && !is_loaders(s.sh_type) && !is_unwind(s.name))
}

/// The 64-bit words of data where an address would stand.
pub(crate) fn aligned_words<'i>(image: &'i Image<'_>) -> impl Iterator<Item = Va> + use<'i> {
    data_sections(image).flat_map(|section| {
        let start = section.sh_addr.align_up(8);
        let bytes = image.read(start, section.end().0.saturating_sub(start.0) as usize).unwrap_or(&[]);
        bytes.chunks_exact(8).filter_map(|word| Some(Va(u64::from_le_bytes(word.try_into().ok()?))))
    })
}

/// The 64-bit words at every byte of the data that hold an address that is wanted, of those in `low..high`.
pub(crate) fn words_between(image: &Image<'_>, low: Va, high: Va, is_wanted: impl Fn(&Va) -> bool + Sync) -> Vec<Va> {
    let mut found = Vec::new();
    for section in data_sections(image) {
        let bytes = image.read(section.sh_addr, (section.end() - section.sh_addr) as usize).unwrap_or(&[]);
        let chunk = |first: usize| {
            let windows = bytes[first..bytes.len().min(first + CHUNK + 7)].windows(8);
            let words = windows.filter_map(|window| window.try_into().ok().map(|bytes| Va(u64::from_le_bytes(bytes))));
            words.filter(|va| low <= *va && *va < high && is_wanted(va))
        };
        found.par_extend((0..bytes.len().div_ceil(CHUNK)).into_par_iter().flat_map_iter(|index| chunk(index * CHUNK)));
    }
    found
}

/// Tables that may overlap: each but the first begins before some table ends that is before it.
struct Group {
    start: Va,
    end: Va,
    tables: Range<usize>,
}

/// All tables, which ascend, in groups.
fn overlapping(tables: &[RawTable]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, table) in tables.iter().enumerate() {
        match groups.last_mut().filter(|group| table.at < group.end) {
            Some(group) => {
                group.end = group.end.max(table.end());
                group.tables.end = index + 1;
            }
            None => groups.push(Group { start: table.at, end: table.end(), tables: index..index + 1 }),
        }
    }
    groups
}

/// The group, of all that there are, in which an address is.
fn group_at(groups: &[Group], va: Va) -> Option<usize> {
    let index = groups.partition_point(|group| group.start <= va).checked_sub(1)?;
    (va < groups[index].end).then_some(index)
}

/// Jumps that may read other tables than those that are known.
pub(crate) struct OpenJumps<'c> {
    /// Tables of addresses of which it is not known which entries are read: where the operands of jumps say that they begin, and the clusters of the jumps, by their roots. Ascending.
    pub(crate) tables: Vec<(Va, Unit)>,
    /// The roots of the clusters in which some jump is not known to read a table. Ascending.
    pub(crate) clusters: Vec<Unit>,
    /// The root of the cluster of an address in code.
    pub(crate) cluster_at: &'c dyn Fn(Va) -> Option<Unit>,
}

impl OpenJumps<'_> {
    /// Whether all jumps of the clusters into which a table leads are known to read tables.
    fn are_known(&self, table: &RawTable) -> bool {
        let is_known = |cluster: Unit| self.clusters.binary_search(&cluster).is_err();
        table.distinct.iter().all(|&target| (self.cluster_at)(target).is_some_and(is_known))
    }

    /// Whether some of their jumps may read from the tables of a group: those of clusters into which these lead.
    fn may_go_on_into(&self, group: &Group, tables: &[RawTable]) -> bool {
        let first = self.tables.partition_point(|open| open.0 + BIAS_BYTES_MAX <= group.start);
        let near = self.tables[first..].iter().take_while(|open| open.0 < group.end);
        let mut near: Vec<Unit> = near.map(|open| open.1).collect();
        near.sort();
        near.dedup();
        let leads_into = |&target: &Va| (self.cluster_at)(target).is_none_or(|cluster| near.binary_search(&cluster).is_ok());
        !near.is_empty() && tables.iter().flat_map(|table| &*table.distinct).any(leads_into)
    }
}

impl Search<'_> {
    /// `tables` ascend.
    pub(crate) fn run(&self, tables: &[RawTable]) -> Unseen {
        let groups = overlapping(tables).into_iter();
        let claimed = groups.filter(|g| tables[g.tables.clone()].iter().all(|t| t.is_exclusive && t.entry_size == 8));
        let claimed: Vec<(Va, Va)> = claimed.map(|g| (g.start, g.end)).collect();
        let mut unseen = Unseen::default();
        let words = data_sections(self.image).flat_map(|s| self.scan(s.sh_addr, s.end()).into_iter());
        for found in words.filter(|f| !is_in(&claimed, f.at)) {
            if found.is_start { &mut unseen.anchors } else { &mut unseen.torn }.push(found.target);
            let words = if found.at.0.is_multiple_of(8) { &mut unseen.words } else { &mut unseen.unaligned_words };
            words.extend((found.is_start && found.is_wide).then_some((found.at, found.target)));
        }
        let raw = self.units.as_slice().iter().enumerate().filter(|(index, unit)| self.is_raw(*index, unit));
        let raw = raw.flat_map(|(_, unit)| self.scan(unit.start, unit.end));
        unseen.anchors.extend(raw.filter(|f| f.is_start).map(|f| f.target));
        for absolute in self.surveys.iter().flat_map(|s| &s.absolutes) {
            match self.start_at(absolute.value) {
                Some(_) if absolute.role == NumberRole::Memory => unseen.memory.push(absolute.value),
                Some(true) => unseen.anchors.push(absolute.value),
                _ => {}
            }
        }
        unseen.anchors.extend(dynamic_code_slots(self.image, self.units).map(|(_, target)| target));
        unseen.words.sort_unstable();
        for list in [&mut unseen.anchors, &mut unseen.torn, &mut unseen.memory] {
            list.sort();
            list.dedup();
        }
        unseen
    }

    /// Code whose instructions are not known for certain: its bytes may be data.
    fn is_raw(&self, index: usize, unit: &UnitData) -> bool {
        unit.fde().is_none() && unit.bounds != Bounds::Reached || self.surveys[index].is_opaque()
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
        // Most of the work: one comparison for each byte of the data.
        let in_code = move |word: &[u8]| match word.try_into().map(u32::from_le_bytes) {
            Ok(value) => Some(u64::from(value)).filter(|value| value.wrapping_sub(low) < high - low).map(Va),
            Err(_) => None,
        };
        let value_at = |at: usize| bytes.get(at..at.checked_add(4)?).and_then(in_code);
        let is_label = |at: Option<usize>| at.and_then(value_at).and_then(|v| self.start_at(v)) == Some(true);
        let chunk = |first: usize| {
            let words = bytes[first..bytes.len().min(first + CHUNK + 3)].windows(4).zip(first..);
            let targets = words.filter_map(move |(word, at)| Some((at, in_code(word)?)));
            targets.filter_map(move |(at, target)| {
                let place = start + at as u64;
                let is_wide = bytes.get(at + 4..at + 8) == Some(&[0; 4]);
                let is_word = is_wide && place.0.is_multiple_of(8);
                if !self.start_at(target)? {
                    let function = target - self.units[unit_at(self.units, target)?].start;
                    return (is_word && function <= TAG_MAX).then_some(Found { at: place, target, is_start: false, is_wide });
                }
                let is_function = unit_at(self.units, target).is_some_and(|u| self.units[u].start == target);
                let is_in_run = || place.0.is_multiple_of(4) && (is_label(Some(at + 4)) || is_label(at.checked_sub(4)));
                (is_wide || is_function || is_in_run()).then_some(Found { at: place, target, is_start: true, is_wide })
            })
        };
        (0..bytes.len().div_ceil(CHUNK)).into_par_iter().flat_map_iter(|index| chunk(index * CHUNK)).collect()
    }

    /// Marks the tables of which all readers are known: these may be overwritten, so that their words name nothing. `tables` ascend.
    /// Where a table may end behind the beginning of others, all of them may be or none.
    pub(crate) fn claim_tables(&self, tables: &mut [RawTable], jumps: &OpenJumps<'_>) {
        let groups = overlapping(tables);
        let mut is_shared = vec![false; groups.len()];
        self.doubted_by_code(tables, &groups).into_iter().for_each(|group| is_shared[group] = true);
        let mut is_pointed_to = vec![false; groups.len()];
        self.doubted_by_data(tables, &groups).into_iter().for_each(|group| is_pointed_to[group] = true);
        let mut is_held = vec![false; tables.len()];
        self.held(tables).into_iter().for_each(|table| is_held[table] = true);
        for ((group, is_shared), is_pointed_to) in groups.into_iter().zip(is_shared).zip(is_pointed_to) {
            let is_open = jumps.may_go_on_into(&group, &tables[group.tables.clone()]);
            let (all, is_held) = (&tables[group.tables.clone()], &is_held[group.tables.clone()]);
            let leads_inside = |(table, is_held): (&RawTable, &bool)| !is_held && self.leads_inside(table);
            let all_lead_inside = || all.iter().zip(is_held).all(leads_inside);
            let is_whole = match all {
                [table] if table.bound == TableBound::Proven => table.is_exclusive || table.entry_size == 8,
                _ => all_lead_inside(),
            };
            // Most words of data that may be addresses in a table are numbers; whoever follows a pointer into one has a jump of his own.
            let is_shared = is_shared || is_pointed_to && !(all_lead_inside() && all.iter().all(|table| jumps.are_known(table)));
            tables[group.tables].iter_mut().for_each(|table| table.is_exclusive = !is_shared && !is_open && is_whole);
        }
    }

    /// The groups in which instructions name something and are not known to read a table.
    fn doubted_by_code(&self, tables: &[RawTable], groups: &[Group]) -> Vec<usize> {
        let by_code = self.surveys.par_iter().flat_map_iter(|survey| {
            let absolutes = survey.absolutes.iter().filter(|number| number.role != NumberRole::Tested).map(|a| (a.value, a.at));
            let named = absolutes.chain(survey.data_names.iter().copied());
            let is_known = |(value, at): (Va, Va), group: &[RawTable]| {
                let table = group.binary_search_by_key(&value, |table| table.at);
                table.is_ok_and(|table| group[table].named_at.binary_search(&at).is_ok())
            };
            named.filter_map(move |name| {
                let group = group_at(groups, name.0)?;
                (!is_known(name, &tables[groups[group].tables.clone()])).then_some(group)
            })
        });
        by_code.collect()
    }

    /// The groups in which a word of data names an entry.
    fn doubted_by_data(&self, tables: &[RawTable], groups: &[Group]) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for section in data_sections(self.image) {
            let start = section.sh_addr.align_up(8);
            let bytes = self.image.read(start, section.end().0.saturating_sub(start.0) as usize).unwrap_or(&[]);
            let words = bytes.par_chunks_exact(8).filter_map(|word| Some(Va(u64::from_le_bytes(word.try_into().ok()?))));
            let is_between =
                |word: Va, table: &RawTable| !word.0.abs_diff(table.at.0).is_multiple_of(u64::from(table.entry_size));
            found.par_extend(words.filter_map(|word| {
                let group = group_at(groups, word)?;
                (!tables[groups[group].tables.clone()].iter().all(|table| is_between(word, table))).then_some(group)
            }));
        }
        found
    }

    /// The tables whose address an instruction puts into a register: an indexed operand reads an entry, and that is all.
    fn held(&self, tables: &[RawTable]) -> Vec<usize> {
        let by_code = self.surveys.par_iter().flat_map_iter(|survey| {
            let numbers = survey.absolutes.iter().filter(|number| number.role != NumberRole::Memory).map(|number| number.value);
            let named = numbers.chain(survey.data_names.iter().map(|&(value, _)| value));
            named.filter_map(|value| tables.binary_search_by_key(&value, |table| table.at).ok())
        });
        by_code.collect()
    }

    /// Whether all words up to where a table may end are addresses of instructions within functions, and its address is used for nothing else. Only a jump of the function goes there; so they are
    /// entries, of this table or of another one of the function that is named by a biased address.
    fn leads_inside(&self, table: &RawTable) -> bool {
        let is_all = table.entry_size == 8 && table.behind.is_empty() && !table.has_other_uses;
        is_all
            && table.targets.iter().all(|&target| {
                let unit = unit_at(self.units, target).map(|unit| &self.units[unit]);
                self.start_at(target) == Some(true)
                    && unit.is_some_and(|unit| unit.start < target && unit.bounds != Bounds::LeftOver)
            })
    }
}
