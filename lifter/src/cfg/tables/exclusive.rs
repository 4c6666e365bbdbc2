//! Which tables may be overwritten where they are: those whose every byte nothing names but the jumps through them.
//!
//! The number of entries is proven, so the words belong to the table; what is left to show is that nothing else reads them. In a file whose data
//! does not move, data is reached by the address that an instruction holds, by a word that the loader relocates, or by a symbol, and from
//! there on. So nothing but the table's own jumps may name its start, and nothing at all may name a place inside.

use crate::address::Va;
use crate::cfg::tables::RawTable;
use crate::discover::survey::Survey;
use crate::elf::Image;
use crate::ir::TableBound;

/// Marks the tables, which are ascending.
pub(crate) fn mark_exclusive(image: &Image<'_>, surveys: &[Survey], tables: &mut [RawTable]) {
    let ranges: Vec<(Va, Va)> = tables.iter().map(|t| (t.at, t.end())).collect();
    let table_of = |va: Va| {
        let after = ranges.partition_point(|r| r.0 <= va);
        after.checked_sub(1).filter(|&index| va < ranges[index].1)
    };
    let mut is_shared: Vec<bool> = tables.iter().map(|t| t.bound != TableBound::Proven || t.entry_size != 4).collect();
    for (index, pair) in ranges.windows(2).enumerate() {
        if pair[0].1 > pair[1].0 {
            is_shared[index] = true;
            is_shared[index + 1] = true;
        }
    }
    for &(target, at) in surveys.iter().flat_map(|s| &s.data_names) {
        if let Some(index) = table_of(target) {
            let is_own = target == tables[index].at && tables[index].named_at.binary_search(&at).is_ok();
            is_shared[index] |= !is_own;
        }
    }
    let symbols = image.symbols.values().chain(&image.dynamic_symbols).filter(|s| s.has_address() && s.st_size > 0);
    let relocs = image.dynamic_relocs.iter().flat_map(|r| [r.slot, Va(r.addend as u64)]);
    for va in symbols.map(|s| Va(s.st_value)).chain(relocs) {
        if let Some(index) = table_of(va) {
            is_shared[index] = true;
        }
    }
    for (table, is_shared) in tables.iter_mut().zip(is_shared) {
        table.is_exclusive = !is_shared;
    }
}
