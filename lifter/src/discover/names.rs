//! Every code address that anything names, with what names it: the list behind leaders, entries and address-taken blocks.

use object::elf;
use rayon::prelude::*;

use crate::address::Va;
use crate::address_index::AddressIndex;
use crate::discover::survey::{How, Survey};
use crate::discover::units::{Units, unit_at};
use crate::elf::image::SymbolData;
use crate::elf::{Image, Unwind};

bitflags::bitflags! {
    /// Who names a code address.
    #[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
    pub(crate) struct NamedBy: u16 {
        const CALL = 1;
        /// A branch from another unit.
        const BRANCH = 1 << 1;
        /// `lea` or an immediate.
        const ADDRESS = 1 << 2;
        /// A relocated word of data.
        const SLOT = 1 << 3;
        /// An exported symbol.
        const EXPORT = 1 << 4;
        /// `e_entry`, `DT_INIT`, `DT_FINI`, a personality.
        const ROOT = 1 << 5;
        /// A symbol of `.symtab` for a function.
        const FUNCTION_SYMBOL = 1 << 6;
        /// Any other symbol, a probe.
        const LABEL = 1 << 7;
        const UNWIND = 1 << 8;
        const LANDING_PAD = 1 << 9;
        const TABLE = 1 << 10;
        /// Its unit reads or writes itself, or another does.
        const MEMORY = 1 << 11;
        /// An opaque unit perhaps names it.
        const PERHAPS = 1 << 12;
        /// *Guard* mode: a word of data or a field of an instruction may hold it.
        const UNSEEN = 1 << 13;
        /// *Guard* mode: an aligned word of data, 64 bits wide, holds it, as those of a table of return addresses do.
        const WORD = 1 << 14;

        /// Execution comes from outside the unit and its cluster, or may.
        const ENTRY = Self::CALL.bits() | Self::ADDRESS.bits() | Self::SLOT.bits() | Self::EXPORT.bits() | Self::ROOT.bits()
            | Self::PERHAPS.bits() | Self::UNSEEN.bits();
        /// The address itself is known somewhere.
        const TAKEN = Self::ADDRESS.bits() | Self::SLOT.bits() | Self::EXPORT.bits() | Self::ROOT.bits() | Self::PERHAPS.bits()
            | Self::UNSEEN.bits();
    }
}

/// Named code addresses, ascending, each once, with the index by which one is found.
#[derive(Debug, Default)]
pub(crate) struct Names {
    list: Vec<(Va, NamedBy)>,
    index: AddressIndex,
}

impl Names {
    fn from_sorted(list: Vec<(Va, NamedBy)>) -> Self {
        let index = AddressIndex::new(list.iter().map(|name| name.0));
        Self { list, index }
    }
    /// Adds names; the result does not depend on their order.
    pub(crate) fn extended(self, more: impl IntoIterator<Item = (Va, NamedBy)>) -> Self {
        let more = sorted(more.into_iter().collect());
        if more.is_empty() {
            return self;
        }
        let mut list = Vec::with_capacity(self.list.len() + more.len());
        let mut known = self.list.into_iter().peekable();
        for (va, by) in more {
            list.extend(std::iter::from_fn(|| known.next_if(|name| name.0 < va)));
            let is_known = known.next_if(|name| name.0 == va);
            list.push((va, is_known.map_or(by, |name| name.1 | by)));
        }
        list.extend(known);
        Self::from_sorted(list)
    }
    pub(crate) fn at(&self, va: Va) -> NamedBy {
        let last = self.num_up_to(va).checked_sub(1).map(|last| self.list[last]);
        last.filter(|name| name.0 == va).map_or(NamedBy::default(), |name| name.1)
    }
    /// The names in `start..end`.
    pub(crate) fn within(&self, start: Va, end: Va) -> &[(Va, NamedBy)] {
        let num_below = |va: Va| va.0.checked_sub(1).map_or(0, |last| self.num_up_to(Va(last)));
        let first = num_below(start);
        &self.list[first..num_below(end).max(first)]
    }
    fn num_up_to(&self, va: Va) -> usize {
        self.index.count_up_to(va, self.list.len(), |at| self.list[at].0)
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Va, NamedBy)> {
        self.list.iter().copied()
    }
}

/// The code addresses that relocated words hold, as `(slot, target)` with the index of the dynamic relocation.
pub(crate) fn dynamic_code_slots<'i>(image: &'i Image<'_>, units: &'i Units) -> impl Iterator<Item = (usize, Va)> + use<'i> {
    relocated_addresses(image).filter(|&(_, target)| unit_at(units, target).is_some())
}

/// The addresses that relocated words hold, with the index of the dynamic relocation.
pub(crate) fn relocated_addresses<'i>(image: &'i Image<'_>) -> impl Iterator<Item = (usize, Va)> + use<'i> {
    image.dynamic_relocs.iter().enumerate().filter_map(|(index, reloc)| Some((index, reloc.own_address()?)))
}

/// All names but those of jump tables.
pub(crate) fn collect(image: &Image<'_>, unwind: &Unwind, units: &Units, surveys: &[Survey]) -> Names {
    let by_code = surveys.par_iter().flat_map_iter(|survey| survey.names.iter().map(|name| (name.target, by(name.how))));
    let mut list: Vec<(Va, NamedBy)> = by_code.collect();
    list.extend(dynamic_code_slots(image, units).map(|(_, target)| (target, NamedBy::SLOT)));
    for fde in unwind.fdes.values() {
        list.push((fde.start, NamedBy::UNWIND));
        let lsda = fde.lsda.and_then(|index| unwind.lsdas.get(index as usize));
        let pads = lsda.into_iter().flat_map(|l| &l.call_sites).filter_map(|site| site.landing_pad);
        list.extend(pads.map(|pad| (pad, NamedBy::LANDING_PAD)));
    }
    // A personality that is named through a slot is named by that slot's relocation; the slot itself is no code.
    list.extend(unwind.cies.iter().filter_map(|cie| cie.personality).map(|(_, at)| (at, NamedBy::ROOT)));
    collect_symbols(image, &mut list);
    list.push((image.e_entry, NamedBy::ROOT));
    for tag in [elf::DT_INIT, elf::DT_FINI] {
        list.extend(image.dynamic_value(tag).map(|va| (Va(va), NamedBy::ROOT)));
    }
    list.extend(probe_addresses(image).into_iter().map(|va| (va, NamedBy::LABEL)));
    let mut list = sorted(list);
    list.retain(|(va, _)| unit_at(units, *va).is_some());
    Names::from_sorted(list)
}

/// Ascending, each address once with all that name it.
fn sorted(mut list: Vec<(Va, NamedBy)>) -> Vec<(Va, NamedBy)> {
    list.par_sort_unstable_by_key(|n| n.0);
    list.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 |= next.1;
        }
        is_same
    });
    list
}

/// Who an instruction makes the name of its target.
fn by(how: How) -> NamedBy {
    match how {
        How::Call => NamedBy::CALL,
        How::Jump | How::Branch | How::Loop => NamedBy::BRANCH,
        How::Address => NamedBy::ADDRESS,
        How::Memory => NamedBy::MEMORY,
        How::Perhaps => NamedBy::PERHAPS,
    }
}

fn collect_symbols(image: &Image<'_>, list: &mut Vec<(Va, NamedBy)>) {
    let is_code = |s: &&SymbolData<'_>| s.has_address() && image.is_executable(Va(s.st_value));
    list.extend(image.dynamic_symbols.iter().filter(is_code).map(|s| (Va(s.st_value), NamedBy::EXPORT)));
    for symbol in image.symbols.values().filter(is_code) {
        // A part of a function that the compiler moved away has a symbol too, but nothing arrives there but its own function.
        let is_function = [elf::STT_FUNC, elf::STT_GNU_IFUNC].contains(&symbol.st_type()) && !symbol.name.contains(".cold");
        list.push((Va(symbol.st_value), if is_function { NamedBy::FUNCTION_SYMBOL } else { NamedBy::LABEL }));
    }
}

/// The program counters of SystemTap probes (`.note.stapsdt`: three words, then strings).
pub(crate) fn probe_addresses(image: &Image<'_>) -> Vec<Va> {
    let Some(section) = image.section_named(".note.stapsdt") else { return Vec::new() };
    let bytes = image.section_bytes(section);
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?) as usize);
    let mut probes = Vec::new();
    let mut at = 0usize;
    while let (Some(name_size), Some(desc_size)) = (word(at), word(at + 4)) {
        let desc = at.saturating_add(12).saturating_add(name_size.saturating_add(3) & !3);
        let Some(pc) = bytes.get(desc..desc.saturating_add(8)) else { break };
        probes.push(Va(u64::from_le_bytes(pc.try_into().unwrap_or_default())));
        at = desc.saturating_add(desc_size.saturating_add(3) & !3);
    }
    probes
}
