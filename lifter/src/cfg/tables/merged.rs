//! The tables of all clusters together.

use crate::address::Va;
use crate::cfg::tables::{ClusterJumps, Dispatch, RawTable};
use crate::discover::units::Unit;
use crate::ir::TableBound;

/// All tables, ascending by address, each once. Where clusters read the same bytes in different ways, none is right for both: their jumps
/// become doubtful.
pub(crate) fn merge_tables(answers: &mut [(Unit, ClusterJumps)]) -> Vec<RawTable> {
    let mut tables: Vec<RawTable> = answers.iter().flat_map(|a| a.1.tables.iter().cloned()).collect();
    tables.sort_by_key(|t| t.at);
    let mut torn: Vec<Va> = Vec::new();
    tables.dedup_by(|next, kept| {
        let is_same = next.at == kept.at;
        if is_same {
            if (next.base, next.entry_size) != (kept.base, kept.entry_size) {
                torn.push(kept.at);
            }
            if next.bound == TableBound::Scanned {
                kept.bound = TableBound::Scanned;
            }
            kept.has_other_uses |= next.has_other_uses;
            if next.targets.len() > kept.targets.len() {
                std::mem::swap(&mut kept.targets, &mut next.targets);
                std::mem::swap(&mut kept.distinct, &mut next.distinct);
                std::mem::swap(&mut kept.behind, &mut next.behind);
            }
            kept.named_at.append(&mut next.named_at);
            kept.named_at.sort();
        }
        is_same
    });
    for (_, answer) in answers.iter_mut().filter(|_| !torn.is_empty()) {
        for dispatch in answer.dispatches.iter_mut() {
            if matches!(dispatch.1, Dispatch::Table(at) if torn.contains(&at)) {
                dispatch.1 = Dispatch::Doubtful;
            }
        }
    }
    tables.retain(|t| !torn.contains(&t.at));
    tables
}
