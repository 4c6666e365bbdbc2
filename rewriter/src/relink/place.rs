//! Where each fragment and each copied table goes.
//!
//! **Method.** Fragments take the old text's place in plan order, hot ones so that they span no more cache lines than they need; cold and unknown ones may fill holes. Tables that may not be overwritten are
//! copied into what is left.
//!
//! **When a table is copied.** Overwriting is allowed where the count is proven and nothing else names its bytes; otherwise the words
//! behind a wrong count would be someone's data. A copy that is too long harms nothing. Tables of addresses that a relocation names
//! word by word (`TableBase::Absolute` in *replace* mode) are slots, and follow as such.

use lifter::Image;
use lifter::address::Va;
use lifter::entity::{SecondaryMap, Table};
use lifter::ir::{Program, RefTarget, TableBase, TableBound};

use crate::encode::FragmentCode;
use crate::materialize::OutProgram;
use crate::plan::Temperature;
use crate::relink::space::{Overflow, Space, free_text};

/// What becomes of a table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum TablePlace {
    /// Nothing to do: its words are slots, or nothing that it names moves.
    Untouched,
    InPlace,
    CopiedTo(Va),
}

#[derive(Debug)]
pub(crate) struct Placement {
    /// Of each fragment's first byte.
    pub(crate) fragments: Vec<Va>,
    pub(crate) tables: SecondaryMap<Table, TablePlace>,
    pub(crate) space: Space,
}

/// Places all code, then all tables that are copied.
pub(crate) fn place(
    image: &Image<'_>,
    program: &Program,
    out: &OutProgram,
    codes: &[FragmentCode],
    overflow: Overflow,
) -> Placement {
    let mut space = Space::new(free_text(image, program), overflow);
    let mut fragments = Vec::with_capacity(out.fragments.len());
    for (fragment, code) in out.fragments.iter().zip(codes) {
        let (len, align) = (code.bytes.len() as u64, u64::from(fragment.align));
        let at = match fragment.temperature {
            Temperature::Hot => space.take_lines_in_order(len, align),
            Temperature::Unknown | Temperature::Cold => take_cold(&mut space, len, align),
        };
        fragments.push(at);
    }
    let mut tables = SecondaryMap::new(program.tables.len(), TablePlace::Untouched);
    let used = used_tables(program);
    for (table, data) in program.tables.iter() {
        if !used[table] {
            continue;
        }
        // Words with addresses are slots, or unseen pointers that anchors answer, unless all their readers are known.
        let is_words = data.base == TableBase::Absolute && (program.is_replaceable() || !data.is_exclusive);
        let names_moved = program.targets_of(table).iter().any(|&b| out.placed[b].is_some())
            || matches!(data.base, TableBase::Code(b) if out.placed[b].is_some());
        tables[table] = if is_words || !names_moved {
            TablePlace::Untouched
        } else if data.is_exclusive && data.bound == TableBound::Proven {
            TablePlace::InPlace
        } else {
            TablePlace::CopiedTo(space.take_anywhere(data.byte_len(), u64::from(data.entry_size)))
        };
    }
    Placement { fragments, tables, space }
}

/// Small fragments first fill holes; others keep their order.
fn take_cold(space: &mut Space, len: u64, align: u64) -> Va {
    const SMALL: u64 = 512;
    let hole = if len <= SMALL { space.take_hole(len, align) } else { None };
    hole.unwrap_or_else(|| space.take_in_order(len, align))
}

/// Tables that some code of the output still names: moved code, or pinned code that follows a copy.
fn used_tables(program: &Program) -> SecondaryMap<Table, bool> {
    let mut used = SecondaryMap::new(program.tables.len(), false);
    for r in &program.refs {
        if let RefTarget::Table(table) = r.target {
            used[table] = true;
        }
    }
    used
}
