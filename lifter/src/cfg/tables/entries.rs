//! The words of one table: which of them are entries, and where they lead.
//!
//! **Method.** Words are read from the start of the table to the first that can't be an entry. All entries of a table that a compiler made lead
//! into code: to the start of an instruction of the same cluster, to a split-off part that nothing else names, or to the end of
//! a unit (an unreachable case, or the next part of the function). So a word that leads to no instruction at all is the end for sure, and so is the start of another
//! table. A word that leads to an instruction of another cluster leaves a doubt: it may be an entry that names a shared cold part. Where the number
//! of entries is proven, such a word is an entry, and the clusters are joined. So are they where a unit ends at the start of another one that the
//! cluster jumps to as well, or that nothing calls: whether the case occurs or not, the entry leads where it led.

use std::sync::Arc;

use object::elf;
use rustc_hash::FxHashMap;

use crate::address::Va;
use crate::cfg::tables::TableContext;
use crate::discover::names::NamedBy;
use crate::discover::survey::How;
use crate::discover::units::{Bounds, Unit, unit_at};
use crate::entity::EntityId;

/// What a word of the table is counted from, and how wide it is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) at: Va,
    /// 0 for a table of addresses.
    pub(crate) base: Va,
    /// 4: differences from `base`. 8: addresses.
    pub(crate) entry_size: u8,
}

/// A table as read.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    /// One per entry; an unreachable case repeats a reachable one.
    pub(super) targets: Arc<[Va]>,
    /// The same, ascending, each once.
    pub(super) distinct: Arc<[Va]>,
    /// Where entries of unreachable cases lead, ascending, each once.
    pub(super) behind: Arc<[Va]>,
    /// Units outside the cluster that entries reach.
    pub(super) joins: Vec<Unit>,
    /// The table may go on behind what was read.
    pub(super) is_doubtful: bool,
}

/// What a reading depends on besides the table's shape.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Given {
    proven: u64,
    end: Option<u64>,
    limit: Option<Va>,
    num_seen: usize,
}

/// Readings of one cluster's tables: most are asked for again in each round, and nothing about them has changed.
#[derive(Debug, Default)]
pub(super) struct Readings {
    known: FxHashMap<Shape, (Given, Reading)>,
    /// Where the cluster's branches and jumps lead to, ascending.
    jumped_to: Vec<Va>,
}

impl Readings {
    pub(super) fn of(context: &TableContext<'_>, members: &[Unit]) -> Self {
        let names = members.iter().flat_map(|unit| &context.surveys[unit.index()].names);
        let mut jumped_to: Vec<Va> =
            names.filter(|name| matches!(name.how, How::Jump | How::Branch)).map(|name| name.target).collect();
        jumped_to.sort_unstable();
        jumped_to.dedup();
        Self { known: FxHashMap::default(), jumped_to }
    }

    /// Reads a table of a cluster, unless that was done already. `proven` is a number of entries that are there for sure, `end` one of which no more can be read; `seen` are tables that
    /// the cluster has, and only grow.
    pub(super) fn read(
        &mut self,
        context: &TableContext<'_>,
        cluster: Unit,
        shape: Shape,
        (proven, end): (u64, Option<u64>),
        seen: &[Va],
    ) -> Reading {
        let given = Given { proven, end, limit: context.limit(shape, seen), num_seen: seen.len() };
        match self.known.get(&shape) {
            Some((known, reading)) if *known == given => reading.clone(),
            _ => {
                let reading = context.read(cluster, shape, (proven, end), seen, &self.jumped_to);
                self.known.insert(shape, (given, reading.clone()));
                reading
            }
        }
    }
}

#[derive(Copy, Clone, Debug)]
enum Entry {
    Inside(Va),
    Joined(Va, Unit),
    /// One past the end of a unit: a case that the compiler knows not to occur.
    Unreachable,
}

/// What a word leads to.
#[derive(Copy, Clone, Debug)]
enum Lead {
    Entry(Entry),
    /// An instruction of another cluster, which other things name too.
    Elsewhere(Va, Unit),
    Nothing,
}

impl TableContext<'_> {
    fn read(&self, cluster: Unit, shape: Shape, (proven, end): (u64, Option<u64>), seen: &[Va], jumped_to: &[Va]) -> Reading {
        let Some(limit) = self.limit(shape, seen) else { return Reading::default() };
        let limit = end.map_or(limit, |end| limit.min(shape.at + u64::from(shape.entry_size) * end));
        let mut reading = Reading::default();
        let (mut entries, mut behind) = (Vec::new(), Vec::new());
        let mut word = shape.at;
        while word + u64::from(shape.entry_size) <= limit {
            let is_proven = (entries.len() as u64) < proven;
            match self.lead(cluster, shape, word) {
                Lead::Entry(Entry::Unreachable) => {
                    entries.push(self.behind_unit(shape, word, jumped_to, is_proven));
                    behind.extend(self.target(shape, word));
                }
                Lead::Entry(entry) => entries.push(entry),
                Lead::Elsewhere(va, unit) if is_proven => entries.push(Entry::Joined(va, unit)),
                Lead::Elsewhere(..) => {
                    reading.is_doubtful = true;
                    break;
                }
                Lead::Nothing => break,
            }
            word = word + u64::from(shape.entry_size);
        }
        behind.sort_unstable();
        behind.dedup();
        reading.behind = behind.into();
        while matches!(entries.last(), Some(Entry::Unreachable)) && entries.len() as u64 > proven {
            entries.pop();
        }
        // An array of pointers to functions looks like a table, but has entries elsewhere, and holes: it is known word by word. So is an
        // array of labels that may go on behind a hole.
        let is_cut = proven == 0 || (entries.len() as u64) < proven;
        if shape.entry_size == 8
            && (!entries.iter().any(|entry| self.is_label(entry))
                || is_cut && self.goes_on_behind_hole(cluster, shape, word, limit, seen))
        {
            return Reading::default();
        }
        let stand_in = entries.iter().find_map(|e| match e {
            Entry::Inside(va) | Entry::Joined(va, _) => Some(*va),
            Entry::Unreachable => None,
        });
        let Some(stand_in) = stand_in else { return reading };
        let target = |entry: Entry| match entry {
            Entry::Inside(va) => va,
            Entry::Joined(va, unit) => {
                reading.joins.push(unit);
                va
            }
            Entry::Unreachable => stand_in,
        };
        let targets: Vec<Va> = entries.into_iter().map(target).collect();
        let mut distinct = targets.clone();
        distinct.sort_unstable();
        distinct.dedup();
        (reading.targets, reading.distinct) = (targets.into(), distinct.into());
        reading
    }

    /// Whether a word of read-only data is a difference between its own address and an instruction.
    pub(super) fn may_begin(&self, at: Va) -> bool {
        let shape = Shape { at, base: at, entry_size: 4 };
        self.limit(shape, &[]).is_some_and(|limit| at + 4 <= limit)
            && self
                .target(shape, at)
                .is_some_and(|va| unit_at(self.units, va).is_some() || unit_at(self.units, va.offset(-1)).is_some())
    }

    /// Whether all of the first words may be entries, of whatever cluster.
    pub(super) fn has_entries(&self, cluster: Unit, shape: Shape, count: u64, seen: &[Va]) -> bool {
        let Some(limit) = self.limit(shape, seen) else { return false };
        let size = u64::from(shape.entry_size);
        let fits = shape.at + count * size <= limit;
        fits && (0..count).all(|i| !matches!(self.lead(cluster, shape, shape.at + i * size), Lead::Nothing))
    }

    /// The units that a table's words lead to as long as they lead into code, whatever ends the table.
    pub(super) fn candidates(&self, shape: Shape) -> Vec<Unit> {
        let mut units = Vec::new();
        let Some(limit) = self.limit(shape, &[]) else { return units };
        let mut word = shape.at;
        while word + u64::from(shape.entry_size) <= limit {
            let Some(target) = self.target(shape, word) else { break };
            let inside = unit_at(self.units, target).filter(|&unit| {
                let survey = &self.surveys[unit.index()];
                survey.is_opaque() || survey.is_start(target - self.units[unit].start)
            });
            let Some(unit) = inside.or_else(|| unit_at(self.units, target.offset(-1)).filter(|&u| self.units[u].end == target))
            else {
                break;
            };
            units.push(unit);
            word = word + u64::from(shape.entry_size);
        }
        units.sort();
        units.dedup();
        units
    }

    /// Where a table ends at the latest; `None` if no table can be there.
    fn limit(&self, shape: Shape, seen: &[Va]) -> Option<Va> {
        let section = &self.image.sections[self.image.section_at(shape.at)?];
        if section.is_executable() || section.is_writable() && shape.entry_size == 4 || !section.has_bytes() {
            return None;
        }
        let after = |tables: &[Va]| tables.get(tables.partition_point(|&t| t <= shape.at)).copied().unwrap_or(section.end());
        // A biased base may lie inside another table of addresses; differences are never biased.
        Some(match shape.entry_size {
            4 => section.end().min(after(self.known_tables)).min(after(seen)),
            _ => section.end(),
        })
    }

    fn target(&self, shape: Shape, word: Va) -> Option<Va> {
        Some(match shape.entry_size {
            8 => Va(self.image.read_u64(word)?),
            _ => shape.base.offset(i64::from(self.image.read_u32(word)? as i32)),
        })
    }

    fn lead(&self, cluster: Unit, shape: Shape, word: Va) -> Lead {
        // Differences of labels in one section need no relocation; all other entries of a file that has them do.
        let is_relocated = shape.entry_size == 8 || shape.base == shape.at;
        if is_relocated && self.use_static_relocs && self.image.has_static_relocs() {
            let wanted = if shape.entry_size == 8 { elf::R_X86_64_64 } else { elf::R_X86_64_PC32 };
            if !self.image.static_relocs_in(word, word + 1).iter().any(|r| r.r_type == wanted) {
                return Lead::Nothing;
            }
        }
        let Some(target) = self.target(shape, word) else { return Lead::Nothing };
        let Some(unit) = unit_at(self.units, target) else {
            return if self.ends_unit_of(cluster, target) { Lead::Entry(Entry::Unreachable) } else { Lead::Nothing };
        };
        let survey = &self.surveys[unit.index()];
        let is_start = survey.is_start(target - self.units[unit].start);
        if is_start && self.clusters.find(unit) == cluster {
            return Lead::Entry(Entry::Inside(target));
        }
        // What nothing is known to reach may be a case that only this table leads to.
        if self.units[unit].bounds == Bounds::LeftOver {
            return Lead::Elsewhere(target, unit);
        }
        if self.ends_unit_of(cluster, target) {
            return Lead::Entry(Entry::Unreachable);
        }
        if !is_start && !survey.is_opaque() {
            return Lead::Nothing;
        }
        let by = self.names.at(self.units[unit].start);
        let is_known = by.intersects(NamedBy::ENTRY | NamedBy::FUNCTION_SYMBOL | NamedBy::BRANCH);
        let is_same_section = self.image.is_movable_code_section(self.units[unit].section);
        match is_start && !is_known && is_same_section && self.clusters.find(unit) == unit {
            true => Lead::Entry(Entry::Joined(target, unit)),
            false => Lead::Elsewhere(target, unit),
        }
    }

    /// What an entry is that leads to the end of a unit. What begins there may be the next part of the same function, unless it is called or its address is known; but an entry that is
    /// read for sure leads there whatever it is.
    fn behind_unit(&self, shape: Shape, word: Va, jumped_to: &[Va], is_proven: bool) -> Entry {
        let may_be_part =
            |&va: &Va| is_proven || jumped_to.binary_search(&va).is_ok() || !self.names.at(va).intersects(NamedBy::ENTRY);
        let target = self.target(shape, word).filter(may_be_part);
        let next = target.and_then(|va| unit_at(self.units, va).map(|unit| (va, unit)));
        match next.filter(|&(va, unit)| self.units[unit].start == va && self.surveys[unit.index()].is_start(0)) {
            Some((va, unit)) => Entry::Joined(va, unit),
            None => Entry::Unreachable,
        }
    }

    /// Whether an entry leads to the middle of a unit, where no pointer to a function does, or to what only this may lead to.
    fn is_label(&self, entry: &Entry) -> bool {
        match *entry {
            Entry::Inside(va) => unit_at(self.units, va).is_some_and(|u| self.units[u].start != va),
            Entry::Joined(_, unit) => self.units[unit].bounds == Bounds::LeftOver,
            Entry::Unreachable => false,
        }
    }

    /// Whether zeros stand at a word, and behind them a label of the cluster that does not begin another table.
    fn goes_on_behind_hole(&self, cluster: Unit, shape: Shape, word: Va, limit: Va, seen: &[Va]) -> bool {
        let is_zero = |&at: &Va| self.image.read_u64(at) == Some(0);
        let mut words = (word.0..limit.0.saturating_sub(7)).step_by(8).map(Va).skip_while(is_zero);
        let Some(behind) = words.next().filter(|&at| at > word) else { return false };
        let begins_table = |tables: &[Va]| tables.binary_search(&behind).is_ok();
        let is_label = matches!(self.lead(cluster, shape, behind), Lead::Entry(entry) if self.is_label(&entry));
        is_label && !begins_table(seen) && !begins_table(self.known_tables)
    }

    /// Whether a unit of the cluster ends at an address.
    fn ends_unit_of(&self, cluster: Unit, va: Va) -> bool {
        unit_at(self.units, va.offset(-1)).is_some_and(|u| self.units[u].end == va && self.clusters.find(u) == cluster)
    }
}
