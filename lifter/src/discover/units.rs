//! Cuts executable sections into units by unwind entries, then by function symbols, then by what is left.
//!
//! Terminates because each section is walked once from its start to its end.

use std::ops::Deref;

use object::elf;
use rayon::prelude::*;

use crate::address::Va;
use crate::address_index::AddressIndex;
use crate::discover::reach::Reached;
use crate::elf::stubs::is_stub_section;
use crate::elf::{Image, Unwind};
use crate::entity::{EntityId, Fde, PrimaryMap, Section, Symbol};
use crate::x86::padding_len;

crate::define_id!(
    /// A contiguous piece of code whose bounds something vouches for, or a gap.
    Unit, "unit");

/// Neighboring stretches of which the gaps are looked at by one thread.
const STRETCHES_AT_ONCE: usize = 1 << 12;

/// What vouches for the bounds of a unit.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bounds {
    Unwind(Fde),
    Symbol(Symbol),
    /// Everything in it is reached from code that has bounds, and nothing else runs into it.
    Reached,
    /// Nothing: it is what lies between units, without leading padding.
    Gap,
    /// A gap between pieces that are reached: dead code or data.
    LeftOver,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnitData {
    pub(crate) start: Va,
    pub(crate) end: Va,
    pub(crate) section: Section,
    pub(crate) bounds: Bounds,
}

impl UnitData {
    pub(crate) fn fde(&self) -> Option<Fde> {
        match self.bounds {
            Bounds::Unwind(fde) => Some(fde),
            _ => None,
        }
    }
    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// All units, ascending by address, with the index by which one is found.
#[derive(Debug)]
pub(crate) struct Units {
    all: PrimaryMap<Unit, UnitData>,
    index: AddressIndex,
    /// Where units end with a call behind which code runs on. Ascending.
    run_on: Vec<Va>,
}

impl Units {
    fn new(all: PrimaryMap<Unit, UnitData>, run_on: Vec<Va>) -> Self {
        let index = AddressIndex::new(all.values().map(|unit| unit.start));
        Self { all, index, run_on }
    }

    /// Whether a call before an address is the last of its unit, which shows that it does not come back.
    pub(crate) fn ends_behind_call(&self, unit: &UnitData, after: Va) -> bool {
        after == unit.end && self.run_on.binary_search(&after).is_err()
    }

    /// Has code run on behind units that end with a call.
    pub(crate) fn note_running_on(&mut self, units: &[Unit]) {
        self.run_on.extend(units.iter().map(|&unit| self.all[unit].end));
        self.run_on.sort();
    }
}

impl Deref for Units {
    type Target = PrimaryMap<Unit, UnitData>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

/// The unit that contains an address.
pub(crate) fn unit_at(units: &Units, va: Va) -> Option<Unit> {
    let all = units.as_slice();
    let index = units.index.count_up_to(va, all.len(), |i| all[i].start).checked_sub(1)?;
    (va < all[index].end).then(|| Unit::new(index))
}

/// The unit that starts at an address.
pub(crate) fn unit_starting_at(units: &Units, va: Va) -> Option<Unit> {
    unit_at(units, va).filter(|&unit| units[unit].start == va)
}

/// All units of the image, ascending by address. `claimed` are addresses that instructions name, ascending: what looks like padding
/// from there on is data. `reached` is code without unwind entries that was found before.
pub(crate) fn find_units(image: &Image<'_>, unwind: &Unwind, claimed: &[Va], reached: &Reached) -> Units {
    let mut vouched = vouched_ranges(image, unwind, reached);
    // Of symbols at one place the longest counts: a short one may end within an instruction.
    vouched.sort_by_key(|&(start, end, bounds)| match bounds {
        Bounds::Symbol(_) => (start, true, u64::MAX - end.0),
        _ => (start, false, end.0),
    });
    let mut sections: Vec<Section> = image
        .sections
        .iter()
        .filter(|(_, s)| s.is_alloc() && s.is_executable() && s.has_bytes() && s.sh_size > 0 && !is_stub_section(s.name))
        .map(|(id, _)| id)
        .collect();
    sections.sort_by_key(|&s| image.sections[s].sh_addr);
    let mut stretches: Vec<UnitData> = Vec::with_capacity(2 * vouched.len());
    let mut next_free = Va(0);
    for section in sections {
        let data = &image.sections[section];
        let (start, end) = (data.sh_addr.max(next_free), data.end());
        let first = vouched.partition_point(|&(s, _, _)| s < start);
        // An unwind entry may go on from the section before: where code was packed, one describes neighbors.
        let goes_on = |&(_, range_end, bounds): &(Va, Va, Bounds)| matches!(bounds, Bounds::Unwind(_)) && start < range_end;
        let first = first - usize::from(vouched[..first].last().is_some_and(goes_on));
        let mut at = start;
        for &(range_start, range_end, bounds) in vouched[first..].iter().take_while(|r| r.0 < end) {
            // Of two that overlap, the first one counts; unwind entries were sorted before symbols.
            let (range_start, range_end) = (range_start.max(at), range_end.min(end));
            if range_start >= range_end {
                continue;
            }
            stretches.push(UnitData { start: at, end: range_start, section, bounds: Bounds::Gap });
            stretches.push(UnitData { start: range_start, end: range_end, section, bounds });
            at = range_end;
        }
        stretches.push(UnitData { start: at, end, section, bounds: Bounds::Gap });
        next_free = end.max(next_free);
    }
    let units = |stretches: &[UnitData]| {
        let mut units = Vec::new();
        for stretch in stretches {
            match stretch.bounds {
                Bounds::Gap => {
                    let parts = without_replaced(*stretch, &unwind.replaced, claimed);
                    parts.into_iter().for_each(|part| push_gap(image, &mut units, (claimed, reached), part));
                }
                _ => units.push(*stretch),
            }
        }
        units
    };
    let units: Vec<Vec<UnitData>> = stretches.par_chunks(STRETCHES_AT_ONCE).map(units).collect();
    Units::new(PrimaryMap::from_items(units.concat()), unwind.parted())
}

fn vouched_ranges(image: &Image<'_>, unwind: &Unwind, reached: &Reached) -> Vec<(Va, Va, Bounds)> {
    let mut ranges: Vec<(Va, Va, Bounds)> =
        unwind.fdes.iter().filter(|(_, f)| f.start < f.end).map(|(id, f)| (f.start, f.end, Bounds::Unwind(id))).collect();
    ranges.sort_by_key(|r| r.0);
    ranges.extend(reached.pieces.iter().map(|&(start, end)| (start, end, Bounds::Reached)));
    ranges.sort_by_key(|r| r.0);
    let by_unwind = ranges.len();
    for (id, symbol) in image.symbols.iter() {
        if !symbol.has_address() || symbol.st_type() != elf::STT_FUNC || symbol.st_size == 0 {
            continue;
        }
        let start = Va(symbol.st_value);
        let end = start + symbol.st_size;
        // A symbol whose range touches an unwind entry adds nothing, and would make two units of one.
        let after = ranges[..by_unwind].partition_point(|r| r.0 < end);
        let is_replaced = || is_in(&unwind.replaced, start);
        if end <= start || after > 0 && ranges[after - 1].1 > start || is_in(&reached.regions, start) || is_replaced() {
            continue;
        }
        ranges.push((start, end, Bounds::Symbol(id)));
    }
    ranges
}

/// What of a gap is not replaced; what is replaced and claimed all the same belongs to it too.
fn without_replaced(gap: UnitData, replaced: &[(Va, Va)], claimed: &[Va]) -> Vec<UnitData> {
    let first = replaced.partition_point(|&(_, end)| end <= gap.start);
    let is_unclaimed = |&&(start, end): &&(Va, Va)| !is_claimed(claimed, start, end);
    let mut parts = vec![gap];
    for &(start, end) in replaced[first..].iter().take_while(|&&(start, _)| start < gap.end).filter(is_unclaimed) {
        let rest = UnitData { start: end.min(gap.end), ..gap };
        if let Some(last) = parts.last_mut() {
            last.end = start.max(last.start);
        }
        parts.push(rest);
    }
    parts
}

fn is_claimed(claimed: &[Va], start: Va, end: Va) -> bool {
    claimed.get(claimed.partition_point(|&va| va < start)).is_some_and(|&va| va < end)
}

/// What lies in a gap, without leading padding.
fn push_gap(image: &Image<'_>, units: &mut Vec<UnitData>, (claimed, reached): (&[Va], &Reached), gap: UnitData) {
    let UnitData { start, end, .. } = gap;
    if start >= end {
        return;
    }
    let bytes = image.read(start, (end - start) as usize).unwrap_or(&[]);
    let claimed_here = claimed[claimed.partition_point(|&va| va < start)..].iter().take_while(|&&va| va < end);
    let first_claimed = claimed_here.clone().next();
    // Padding that is named has nothing to do with what stands before it, and runs into what follows.
    let is_padding = |va: Va| bytes.get((va - start) as usize..).is_some_and(|rest| padding_len(rest) == rest.len());
    if let Some(&named) = claimed_here.clone().find(|&&va| start < va && is_padding(va))
        && padding_len(bytes) < (named - start) as usize
    {
        push_gap(image, units, (claimed, reached), UnitData { end: named, ..gap });
        return push_gap(image, units, (claimed, reached), UnitData { start: named, ..gap });
    }
    let skipped = padding_len(bytes).min(first_claimed.map_or(bytes.len(), |&va| (va - start) as usize));
    if skipped < bytes.len() {
        let start = start + skipped as u64;
        // What something names is not left over, though no code leads there: it stays, with what it runs into.
        let is_left_over = first_claimed.is_none() && is_in(&reached.regions, start);
        let bounds = if is_left_over { Bounds::LeftOver } else { Bounds::Gap };
        units.push(UnitData { start, bounds, ..gap });
    }
}

/// Ranges as ascending and disjoint ones.
pub(crate) fn joined(mut ranges: Vec<(Va, Va)>) -> Vec<(Va, Va)> {
    ranges.sort();
    ranges.dedup_by(|next, kept| {
        let is_joined = next.0 <= kept.1;
        if is_joined {
            kept.1 = kept.1.max(next.1);
        }
        is_joined
    });
    ranges
}

/// Whether an address lies in one of these ranges, which are ascending and disjoint.
pub(crate) fn is_in(ranges: &[(Va, Va)], at: Va) -> bool {
    if ranges.last().is_none_or(|last| last.1 <= at) || at < ranges[0].0 {
        return false;
    }
    let after = ranges.partition_point(|r| r.0 <= at);
    after > 0 && at < ranges[after - 1].1
}
