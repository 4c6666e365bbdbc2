//! Where tables of addresses end.
//!
//! **Problem.** At a fixed address without the linker's relocations nothing says where a table ends: the tables of a function follow each other, and each is read up to the end of the last. In a
//! function with thousands of tables (emulators of processors) these are a hundred million ways that don't exist, and they keep bounds of other tables from being proven.
//!
//! **Method.** An end that is proven over all ways that were read, true ones and others, holds for the true ones. The table is read up to there in the next round, in which more may be proven.
//!
//! **Terminates**: each table has an end once; one that is taken back, since calls were found to return and there are more ways, stays so.

use super::{ClusterJumps, Dispatch, Learned, RawTable, Table, TableContext};

/// Whether a bound of a table lies within what was read of it.
pub(super) fn is_bounded(table: &Table, count: &Option<u64>) -> bool {
    count.is_some_and(|count| count <= table.raw.targets.len() as u64 && count > 0)
}

impl TableContext<'_> {
    /// Takes note of where tables of addresses end, where that is proven and more was read: without the ways that don't exist, others may be proven in the next round. An end that no longer holds, since calls were
    /// found to return, is taken back for good.
    pub(super) fn has_new_ends(
        &self,
        tables: &[Table],
        bounds: &[Option<u64>],
        result: &ClusterJumps,
        learned: &mut Learned,
    ) -> bool {
        let is_complete = self.is_complete(tables, bounds, result);
        let mut is_any = false;
        for (table, count) in tables.iter().zip(bounds).filter(|(table, _)| table.raw.entry_size == 8) {
            let RawTable { at, ref targets, .. } = table.raw;
            let is_within = count.is_some_and(|count| count <= targets.len() as u64);
            if learned.ends.contains_key(&at) {
                if !is_complete || !is_within {
                    learned.ends.remove(&at);
                    learned.without_end.insert(at);
                    is_any = true;
                }
            } else if let Some(count) = count.filter(|&count| count > 0 && count < targets.len() as u64)
                && is_complete
                && !self.use_static_relocs
                && !learned.without_end.contains(&at)
            {
                learned.ends.insert(at, count);
                is_any = true;
            }
        }
        is_any
    }

    /// Whether all ways through a cluster are known.
    pub(super) fn is_complete(&self, tables: &[Table], bounds: &[Option<u64>], result: &ClusterJumps) -> bool {
        let is_unresolved = |d: &Dispatch| matches!(d, Dispatch::Unresolved | Dispatch::Doubtful);
        let is_trusted =
            |(table, count): (&Table, &Option<u64>)| is_bounded(table, count) || !table.is_doubtful || self.is_by_word(table);
        !result.dispatches.iter().any(|d| is_unresolved(&d.1)) && tables.iter().zip(bounds).all(is_trusted)
    }

    /// Tables of addresses follow word by word where relocations name them.
    pub(super) fn is_by_word(&self, table: &Table) -> bool {
        table.raw.entry_size == 8 && self.use_static_relocs
    }
}
