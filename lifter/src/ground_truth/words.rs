//! Relocated words of data against slots and jump tables.
//!
//! A complete word is a slot where the loader relocates it; at a fixed address it may be an entry of a table too, told by the
//! lifted table that claims to start before it.

use object::elf;

use crate::address::Va;
use crate::elf::image::{SectionData, StaticReloc};
use crate::entity::{EntityId, Table};
use crate::ground_truth::{Comparison, GroundTruth};
use crate::ir::{SlotKind, TableBase, TableBound, TableData};

impl Comparison<'_> {
    pub(super) fn compare_words(&self, truth: &mut GroundTruth) {
        for section in self.oracle.data_sections() {
            self.compare_slots(section, truth);
            for (at, table) in self.oracle.differences(section) {
                self.compare_entry(at, table, truth);
            }
        }
        self.compare_lifted_slots(truth);
        for (table, data) in self.program.tables.iter() {
            self.compare_table(table, data, truth);
        }
        truth.missed_entries.sort();
        truth.missed_entries.dedup();
    }

    fn compare_slots(&self, section: &SectionData<'_>, truth: &mut GroundTruth) {
        for reloc in self.oracle.image.static_relocs_in(section.sh_addr, section.end()) {
            if reloc.r_type != elf::R_X86_64_64 || !self.oracle.names_code(reloc) {
                continue;
            }
            // A word that the loader fills holds nothing in the file; then the addend says it.
            let stored = self.oracle.image.read_u64(reloc.at).map(Va).filter(|t| t.0 != 0);
            let Some(target) = stored.or_else(|| self.value(reloc)) else { continue };
            truth.num_slots += 1;
            let is_slot = self.program.slots.binary_search_by_key(&reloc.at, |s| s.at).is_ok();
            let is_left = self.is_kept(target) || self.is_filled_by_symbol(reloc.at) || self.is_claimed(reloc.at, target);
            if !is_slot && !is_left {
                truth.missed_slots.push(reloc.at);
            }
        }
    }

    /// *Guard* mode: whether a word is read by nothing but jumps that use a copy of the table it is in.
    fn is_claimed(&self, at: Va, target: Va) -> bool {
        let tables = self.program.tables.as_slice();
        let after = tables.partition_point(|t| t.at <= at);
        // Tables of one function may overlap, but no more than a few do.
        let around = (0..after).rev().take(8).filter(|&i| tables[i].entry_size == 8 && at < tables[i].at + tables[i].byte_len());
        self.is_guard() && around.map(EntityId::new).any(|table| self.lifted_entry(table, at) == Some(target))
    }

    fn is_slot_to(&self, at: Va, target: Option<Va>) -> bool {
        let slot = self.program.slots.binary_search_by_key(&at, |s| s.at).ok().map(|index| &self.program.slots[index]);
        slot.is_some_and(|slot| Some(self.program.blocks[slot.target].start) == target)
    }

    fn is_filled_by_symbol(&self, at: Va) -> bool {
        let dynamic = &self.oracle.image.dynamic_relocs;
        let first = dynamic.partition_point(|r| r.slot < at);
        dynamic.get(first).is_some_and(|r| r.slot == at && r.symbol != 0)
    }

    fn compare_entry(&self, at: Va, table: Va, truth: &mut GroundTruth) {
        truth.num_entries += 1;
        let stored = self.oracle.image.read_u32(at).map(|v| i64::from(v as i32));
        let target = stored.map(|stored| table.offset(stored));
        let lifted = self.table_at(table, 4).map(|t| (t, self.lifted_entry(t, at)));
        match lifted {
            Some((_, entry)) if entry.is_some() && entry == target => truth.num_lifted_entries += 1,
            Some((_, Some(entry))) if self.is_unreachable(target, entry) => truth.num_unreachable_entries += 1,
            Some((table, _)) if self.is_changed(table) && self.is_behind_proven_end(table, at) => {
                truth.idle_entries.push((at, 4))
            }
            Some((table, _)) if self.is_changed(table) => truth.missed_entries.push(at),
            _ if target.is_some_and(|va| self.is_movable(va)) => truth.missed_entries.push(at),
            _ => truth.num_pinned_entries += 1,
        }
    }

    /// The lifted table that starts at an address.
    fn table_at(&self, at: Va, entry_size: u8) -> Option<Table> {
        let tables = self.program.tables.as_slice();
        let first = tables.partition_point(|t| t.at < at);
        let same = tables[first..].iter().take_while(|t| t.at == at);
        let found = same.enumerate().find(|(_, t)| t.entry_size == entry_size).map(|(index, _)| first + index);
        found.map(EntityId::new)
    }

    /// What a lifted table says that its word at an address leads to.
    fn lifted_entry(&self, table: Table, at: Va) -> Option<Va> {
        let data = &self.program.tables[table];
        let index = (at - data.at) / u64::from(data.entry_size);
        let target = *self.program.targets_of(table).get(index as usize)?;
        let is_aligned = (at - data.at).is_multiple_of(u64::from(data.entry_size));
        is_aligned.then(|| self.program.blocks[target].start)
    }

    fn is_behind_proven_end(&self, table: Table, at: Va) -> bool {
        let data = &self.program.tables[table];
        data.bound == TableBound::Proven && at >= data.at + data.byte_len()
    }

    /// Whether jumps will read other words than they did: the table leads to something that may move.
    fn is_changed(&self, table: Table) -> bool {
        self.program.targets_of(table).iter().any(|&b| self.program.funcs[self.program.func_of(b)].is_movable())
    }

    /// A lifted table's words beyond those of the true one, and, at a fixed address, the true ones.
    fn compare_table(&self, table: Table, data: &TableData, truth: &mut GroundTruth) {
        let true_len = self.oracle.true_len(data.at, data.entry_size);
        let len = data.targets.len();
        if len > true_len {
            truth.num_extra_entries += len - true_len;
            let extra = (true_len as u64..len as u64).map(|index| data.at + index * u64::from(data.entry_size));
            // It may run on into the next one, whose words are written in the same way.
            truth.invented_entries.extend(extra.filter(|_| data.is_exclusive).find(|&at| !self.is_entry_of_another(table, at)));
        }
        if data.base != TableBase::Absolute {
            return;
        }
        truth.num_entries += true_len;
        for index in 0..true_len as u64 {
            let at = data.at + index * u64::from(data.entry_size);
            let entry = self.lifted_entry(table, at);
            let target = self.oracle.image.read_u64(at).map(Va);
            // Where the words themselves are followed, a table that was not read to its end is none the worse.
            if entry.is_some() && entry == target || self.is_slot_to(at, target) {
                truth.num_lifted_entries += 1;
            } else if entry.is_some_and(|entry| self.is_unreachable(target, entry)) {
                truth.num_unreachable_entries += 1;
            } else if !self.is_changed(table) && target.is_none_or(|va| self.is_kept(va)) {
                truth.num_pinned_entries += 1;
            } else if self.is_behind_proven_end(table, at) {
                truth.idle_entries.push((at, 8));
            } else {
                truth.missed_entries.push(at);
            }
        }
    }

    /// Whether a word that a table of addresses is lifted with is one that the linker knows as the address that is read there.
    fn is_entry_of_another(&self, table: Table, at: Va) -> bool {
        let relocs = self.oracle.image.static_relocs_in(at, at + 1);
        let is_address = relocs.iter().any(|reloc| reloc.r_type == elf::R_X86_64_64 && self.oracle.names_code(reloc));
        let target = self.oracle.image.read_u64(at).map(Va);
        is_address && self.program.tables[table].entry_size == 8 && target == self.lifted_entry(table, at)
    }

    /// Whether an entry is a case that the compiler knows not to occur: it leads one past the end of the function that another one leads into. Lifting
    /// lets it lead anywhere.
    fn is_unreachable(&self, target: Option<Va>, other: Va) -> bool {
        target.is_some_and(|target| self.oracle.is_behind_function(target, other))
    }

    /// The linker makes the words of the global offset table itself and keeps no relocation of them; they hold addresses and nothing else.
    fn is_in_offset_table(&self, at: Va) -> bool {
        let image = self.oracle.image;
        image.section_named(".got").map(|id| &image.sections[id]).is_some_and(|s| s.sh_addr <= at && at < s.end())
    }

    fn compare_lifted_slots(&self, truth: &mut GroundTruth) {
        for slot in self.program.slots.iter().filter(|s| !matches!(s.kind, SlotKind::Dynamic(_))) {
            if !self.oracle.is_relocated(slot.at) && !self.is_in_offset_table(slot.at) {
                truth.invented_slots.push(slot.at);
            }
        }
    }

    fn value(&self, reloc: &StaticReloc) -> Option<Va> {
        let symbol = self.oracle.image.symbols.get(reloc.symbol)?;
        Some(Va(symbol.st_value).offset(reloc.addend))
    }
}
