//! Unwind entries that stand for several functions.
//!
//! **Problem.** Compilers write an entry for each function, and parts of functions have their own. relift writes one for neighbors that move as one, so that its outputs would be few large functions when they
//! are relinked.
//!
//! **Method.** A function begins in the middle of an entry where code of another entry calls it, or a symbol for a function stands there, if nothing runs into it and unwinding there is as at any entry
//! ([`Levels`]); where code of the same entry calls it, if the entry also goes back to its first row there. The entry is cut there. In such an entry a place is taken for a function's beginning too if its address is known, unless it may be a label: something jumps to where a register says, and the entry does not
//! go back to its first row there.
//!
//! **Why nothing goes wrong** where a place is none: what runs or jumps from one part into the other joins them again ([`super::clusters`]).
//!
//! **Terminates**: each round but the last cuts an entry, at the start of an instruction.

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use object::elf;
use rayon::prelude::*;

use crate::address::Va;
use crate::discover::names::relocated_addresses;
use crate::discover::survey::{How, Survey};
use crate::discover::units::{Unit, Units, unit_at};
use crate::elf::eh_frame::Levels;
use crate::elf::image::SymbolData;
use crate::elf::{Image, Unwind};
use crate::entity::EntityId;
use crate::x86::{Flow, MAX_INSTRUCTION_LEN, flow_of, is_nop};

/// How many bytes of padding may stand before a function.
const PADDING_MAX: u64 = 256;

/// What is looked at.
#[derive(Copy, Clone)]
pub(crate) struct SharedEntries<'i> {
    pub(crate) image: &'i Image<'i>,
    pub(crate) unwind: &'i Unwind,
    pub(crate) units: &'i Units,
    pub(crate) surveys: &'i [Survey],
}

/// A unit that calls a place in the middle of one.
#[derive(Copy, Clone)]
struct CallInside {
    from: Unit,
    to: (Unit, Va),
}

impl SharedEntries<'_> {
    /// Where functions begin in the middle of unwind entries. Ascending.
    pub(crate) fn beginnings(&self) -> Vec<Va> {
        let called = self.called();
        let of_others = called.iter().filter(|call| call.from != call.to.0).map(|call| call.to).chain(self.symbols());
        let mut found = self.in_units(of_others.collect(), |_| true);
        found.extend(self.in_units(called.iter().filter(|call| call.from == call.to.0).map(|call| call.to).collect(), |_| false));
        if found.is_empty() {
            return Vec::new();
        }
        let mut shared: Vec<Unit> = found.iter().map(|place| place.0).collect();
        shared.sort_unstable();
        shared.dedup();
        let has_labels = |unit: Unit| self.surveys[unit.index()].has_indirect_jumps;
        found.extend(self.in_units(self.taken(&shared), |unit| !has_labels(unit)));
        let mut beginnings: Vec<Va> = found.into_iter().map(|place| place.1).collect();
        beginnings.sort_unstable();
        beginnings.dedup();
        beginnings
    }

    /// A place in the middle of an unwind entry.
    fn inside(&self, place: Va) -> Option<(Unit, Va)> {
        let unit = unit_at(self.units, place)?;
        let data = &self.units[unit];
        (data.fde().is_some() && data.start != place).then_some((unit, place))
    }

    /// Calls into the middle of unwind entries.
    fn called(&self) -> Vec<CallInside> {
        let calling = self.surveys.par_iter().enumerate().filter(|(_, survey)| survey.calls_inside);
        let called = calling.flat_map_iter(|(from, survey)| {
            let calls = survey.names.iter().filter(|name| name.how == How::Call);
            calls.filter_map(|name| self.inside(name.target)).map(move |to| CallInside { from: Unit::new(from), to })
        });
        called.collect()
    }

    fn symbols(&self) -> impl Iterator<Item = (Unit, Va)> {
        let is_function = |symbol: &&SymbolData<'_>| {
            symbol.has_address()
                && [elf::STT_FUNC, elf::STT_GNU_IFUNC].contains(&symbol.st_type())
                && !symbol.name.contains(".cold")
        };
        let all = self.image.dynamic_symbols.iter().chain(self.image.symbols.values()).filter(is_function);
        all.filter_map(|symbol| self.inside(Va(symbol.st_value)))
    }

    /// Places in some units, which ascend, whose addresses are known.
    fn taken(&self, shared: &[Unit]) -> Vec<(Unit, Va)> {
        let in_shared = |place: Va| self.inside(place).filter(|(unit, _)| shared.binary_search(unit).is_ok());
        let addresses =
            self.surveys.par_iter().flat_map_iter(|survey| survey.names.iter().filter(|name| name.how == How::Address));
        let by_code = addresses.filter_map(|name| in_shared(name.target));
        let mut all: Vec<(Unit, Va)> = by_code.collect();
        all.extend(relocated_addresses(self.image).filter_map(|(_, address)| in_shared(address)));
        all
    }

    /// Those places where a function may begin; of some units they are functions.
    fn in_units(&self, mut places: Vec<(Unit, Va)>, are_functions: impl Fn(Unit) -> bool + Sync) -> Vec<(Unit, Va)> {
        places.par_sort_unstable();
        places.dedup();
        places.par_chunk_by(|a, b| a.0 == b.0).flat_map_iter(|same| self.in_unit(same, are_functions(same[0].0))).collect()
    }

    /// Those places of one unit where a function may begin, by what its unwind entry says; if they are no functions for certain, the entry has to say that one does.
    fn in_unit(&self, places: &[(Unit, Va)], are_functions: bool) -> Vec<(Unit, Va)> {
        let unit = places[0].0;
        let fde = self.units[unit].fde().map(|fde| &self.unwind.fdes[fde]);
        let cie = fde.and_then(|fde| self.unwind.cies.get(fde.cie as usize));
        let Some(levels) = cie.zip(fde).and_then(|(cie, fde)| Levels::of(cie, fde)) else { return Vec::new() };
        let may_begin = |place: Va| if are_functions { levels.may_begin(place) } else { levels.begins_anew(place) };
        let is_beginning = |&&(_, place): &&(Unit, Va)| may_begin(place) && !self.is_run_into(unit, place);
        places.iter().filter(is_beginning).copied().collect()
    }

    /// Whether execution may run into a place of a unit from what stands before it, or no instruction begins there.
    fn is_run_into(&self, unit: Unit, place: Va) -> bool {
        let (start, survey) = (self.units[unit].start, &self.surveys[unit.index()]);
        if !survey.is_start(place - start) {
            return true;
        }
        let offsets =
            (1..=(place - start).min(PADDING_MAX)).map(|back| place.0 - back).filter(|&at| survey.is_start(at - start.0));
        for at in offsets {
            let Some(bytes) = self.image.read(Va(at), (place.0 - at).min(MAX_INSTRUCTION_LEN as u64) as usize) else {
                return true;
            };
            let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
            if is_nop(&instruction) || instruction.mnemonic() == Mnemonic::Int3 {
                continue;
            }
            return !matches!(flow_of(&instruction), Flow::Jump(_) | Flow::IndirectJump | Flow::Return | Flow::Trap);
        }
        true
    }
}
