//! Old bodies of functions that BOLT has written elsewhere, with nothing at their old place to say so.
//!
//! **Problem.** BOLT leaves the old text in the file. Functions without a profile run there; the others were moved, all that leads to them was changed, and their old bodies stay as they were, with their unwind entries. Such a body is
//! like any function that nothing calls, but there are as many as there are functions that run: where a switch in one of them is not understood, what it may lead to is taken for reached, and by that most of the old text.
//!
//! **Method.** Reachability over what units name, from all code that is not in the old text, and from all of the old text that has a symbol: BOLT gives a function's symbols to its new body. Words that the loader relocates,
//! exported symbols, probes and landing pads lead on too, and tables of distances that an instruction of the old text names, if one of their entries leads into the same unit. What is not reached is *replaced*: it is no code any more,
//! and has no unwind entry. Whatever names it all the same is found later like what names padding, and then it stays.
//!
//! **What it rests on.** That words of data which happen to be the distance to a function without a symbol were written for that function's old body, if for anything. Files without symbols are not asked.
//!
//! **Terminates**: each unit is visited once.

use object::elf;
use rayon::prelude::*;

use crate::address::Va;
use crate::discover::names::{probe_addresses, relocated_addresses};
use crate::discover::survey::Survey;
use crate::discover::units::{Unit, Units, joined, unit_at};
use crate::elf::image::{SymbolData, original_name};
use crate::elf::{Image, Unwind};
use crate::entity::{EntityId, PrimaryMap};

/// Entries of a table that are looked at: more than any switch has.
const ENTRIES_MAX: usize = 1 << 16;
/// How BOLT marks the names of what is at the old place of a function.
const OLD_NAME: &str = ".org.";

/// The unwind information without what is replaced; `None` where nothing is.
pub(crate) fn without_replaced(image: &Image<'_>, unwind: &Unwind, units: &Units, surveys: &[Survey]) -> Option<Unwind> {
    let is_old = |unit: Unit| {
        let name = image.sections[units[unit].section].name;
        original_name(name) != name
    };
    if image.has_static_relocs() || image.symbols.is_empty() || !units.keys().any(is_old) {
        return None;
    }
    let mut named: Vec<Va> = surveys.par_iter().flat_map_iter(|survey| survey.data_names.iter().map(|name| name.0)).collect();
    named.par_sort_unstable();
    let (is_live, queue) = (vec![false; units.len()], Vec::new());
    let mut search = Search { image, unwind, units, surveys, named, is_live, queue };
    for unit in units.keys().filter(|&unit| !is_old(unit) || units[unit].fde().is_none()) {
        search.reach(unit);
    }
    search.roots();
    while let Some(unit) = search.queue.pop() {
        search.visit(unit, is_old(unit));
    }
    let is_live = search.is_live;
    let is_gone = |va: Va| unit_at(units, va).is_some_and(|unit| !is_live[unit.index()] && units[unit].fde().is_some());
    let (gone, kept): (Vec<_>, Vec<_>) = unwind.fdes.values().partition(|fde| fde.start < fde.end && is_gone(fde.start));
    if gone.is_empty() {
        return None;
    }
    let ranges = gone.iter().map(|fde| (fde.start, fde.end)).chain(unwind.replaced.iter().copied());
    let replaced = joined(ranges.collect());
    Some(Unwind { fdes: PrimaryMap::from_items(kept.into_iter().cloned().collect()), replaced, ..unwind.clone() })
}

struct Search<'i> {
    image: &'i Image<'i>,
    unwind: &'i Unwind,
    units: &'i Units,
    surveys: &'i [Survey],
    /// Addresses of data that code names, ascending.
    named: Vec<Va>,
    is_live: Vec<bool>,
    queue: Vec<Unit>,
}

impl Search<'_> {
    fn reach(&mut self, unit: Unit) {
        if !std::mem::replace(&mut self.is_live[unit.index()], true) {
            self.queue.push(unit);
        }
    }

    /// What is at an address, or behind the padding there: functions that end with a call which never comes back are jumped to at their end.
    fn reach_at(&mut self, va: Va) {
        let next = || {
            let all = self.units.as_slice();
            let index = all.partition_point(|unit| unit.start < va);
            self.image.is_executable(va).then(|| Unit::new(index)).filter(|_| index < all.len())
        };
        if let Some(unit) = unit_at(self.units, va).or_else(next) {
            self.reach(unit);
        }
    }

    fn roots(&mut self) {
        let image = self.image;
        let is_of_code = |symbol: &&SymbolData<'_>| {
            let is_function = symbol.st_type() != elf::STT_NOTYPE || symbol.st_size > 0;
            is_function && !symbol.name.contains(OLD_NAME)
        };
        let named = image.symbols.values().filter(is_of_code).chain(&image.dynamic_symbols);
        for symbol in named.filter(|symbol| symbol.has_address()) {
            let mut va = Va(symbol.st_value);
            self.reach_at(va);
            // One may stand for parts with an entry each.
            while let Some(unit) =
                unit_at(self.units, va).filter(|&unit| self.units[unit].end.0 < symbol.st_value + symbol.st_size)
            {
                va = self.units[unit].end;
                self.reach_at(va);
            }
        }
        relocated_addresses(image).for_each(|(_, target)| self.reach_at(target));
        probe_addresses(image).into_iter().for_each(|va| self.reach_at(va));
        let routines = self.unwind.cies.iter().filter_map(|cie| cie.personality);
        routines.for_each(|(_, routine)| self.reach_at(routine));
        self.reach_at(image.e_entry);
        for tag in [elf::DT_INIT, elf::DT_FINI] {
            image.dynamic_value(tag).into_iter().for_each(|va| self.reach_at(Va(va)));
        }
    }

    fn visit(&mut self, unit: Unit, is_old: bool) {
        let (units, surveys) = (self.units, self.surveys);
        let (data, survey) = (&units[unit], &surveys[unit.index()]);
        survey.places().for_each(|va| self.reach_at(va));
        survey.absolutes.iter().for_each(|absolute| self.reach_at(absolute.value));
        if survey.falls_out || survey.is_opaque() {
            self.reach_at(data.end);
        }
        let lsda = data.fde().and_then(|fde| self.unwind.lsdas.get(self.unwind.fdes[fde].lsda? as usize));
        lsda.into_iter().flat_map(|lsda| &lsda.call_sites).filter_map(|site| site.landing_pad).for_each(|pad| self.reach_at(pad));
        if is_old && survey.has_indirect_jumps {
            survey.data_names.iter().for_each(|&(table, _)| self.follow_table(unit, table));
        }
    }

    /// Reaches what the words behind an address lead to, counted from there, if one of them leads into the unit that names it.
    fn follow_table(&mut self, unit: Unit, table: Va) {
        let word = |index: usize| self.image.read_u32(table + 4 * index as u64).map(|word| table.offset(i64::from(word as i32)));
        // Where something else is named another table begins.
        let next = self.named.get(self.named.partition_point(|&va| va <= table)).map_or(u64::MAX, |&next| next - table);
        let num_max = ENTRIES_MAX.min((next / 4) as usize);
        let entries = (0..num_max).map_while(|index| unit_at(self.units, word(index)?));
        let entries: Vec<Unit> = entries.collect();
        if entries.contains(&unit) {
            entries.into_iter().for_each(|target| self.reach(target));
        }
    }
}
