//! Tables whose address an instruction makes that no jump was seen to use.
//!
//! **Problem.** Either the jump was missed, and with it a way through the graph, or something else is meant: what is empty, or ends, where the table begins has the same address.
//!
//! **Method.** An address that is nowhere any more behind the next call was something else's: what was passed to a function is no table of this one. Other uses are not told apart.

use iced_x86::{Instruction, Mnemonic};

use crate::address::Va;
use crate::cfg::body::{Body, CALLER_SAVED, RegisterMask, general};
use crate::cfg::tables::Table;
use crate::x86::{Flow, flow_of};

/// The tables of which that can't be told, each once.
pub(super) fn named_in_vain<'t>(body: &Body, tables: &'t [Table]) -> impl Iterator<Item = &'t Table> {
    let is_known = |table: &Table, ip: u64| table.raw.entry_size != 4 || table.raw.named_at.binary_search(&Va(ip)).is_ok();
    let in_vain = |index: usize| {
        let instruction = &body.instructions[index];
        let makes_address = instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand();
        let named = Va(instruction.ip_rel_memory_address());
        let table = tables.binary_search_by_key(&named, |table| table.raw.at).ok().filter(|_| makes_address)?;
        (!is_known(&tables[table], instruction.ip()) && !is_passed_only(body, index)).then_some(table)
    };
    let named = if tables.is_empty() { 0 } else { body.instructions.len() };
    let mut found: Vec<usize> = (0..named).filter_map(in_vain).collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().map(|table| &tables[table])
}

/// Whether what an instruction makes, and all that is made of it, is gone behind a call in straight line, and was not stored before.
fn is_passed_only(body: &Body, index: usize) -> bool {
    let register = |instruction: &Instruction| general(instruction.op0_register()).map_or(0, |number| 1 << number);
    let mut holding: RegisterMask = register(&body.instructions[index]);
    for at in index + 1..body.num_own {
        let instruction = &body.instructions[at];
        let is_straight = body.instructions[at - 1].next_ip() == instruction.ip();
        match flow_of(instruction) {
            Flow::Call(_) | Flow::IndirectCall => return is_straight && holding & !CALLER_SAVED == 0,
            Flow::Next if is_straight => {}
            _ => return false,
        }
        let is_compare = matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test);
        if body.reads[at] & holding == 0 {
            holding &= !body.writes[at];
        } else if !body.stores[at] && (body.writes[at] != 0 || is_compare) {
            holding |= body.writes[at];
        } else {
            return false;
        }
    }
    false
}
