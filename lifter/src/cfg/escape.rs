//! What becomes of code addresses that instructions compute: whoever counts with one may name a place that nothing else names.
//!
//! **Problem.** `lea f(%rip), r` puts a code address into a register. Stored, passed on, compared or called it stays an address, and
//! follows `f` when `f` moves. Added to or used to read memory it is a base for something else: the distance between two places in code,
//! or bytes of code read as data.
//!
//! **Method.** A forward walk over the cluster's graph with one bit per register: does it hold such an address? Unknown uses count as
//! arithmetic. What leaves through memory or calls is not followed. Terminates because bits are only added to a block's entry state.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::address::Va;
use crate::cfg::body::{Body, CALLER_SAVED, RegisterMask, general};
use crate::cfg::tables::{ClusterJumps, TableContext};
use crate::discover::survey::{How, NumberRole};
use crate::discover::units::{Unit, unit_at};
use crate::entity::EntityId;
use crate::x86::{Flow, flow_of};

/// The code addresses that a cluster computes and misuses. `answer` holds its jump tables, if it has any.
pub(crate) fn misused_targets(context: &TableContext<'_>, members: &[Unit], answer: Option<&ClusterJumps>) -> Vec<Va> {
    let surveys = members.iter().map(|u| &context.surveys[u.index()]);
    let mut sources: Vec<(Va, Va)> =
        surveys.flat_map(|s| &s.names).filter(|n| n.how == How::Address).map(|n| (n.at, n.target)).collect();
    sources.extend(absolute_sources(context, members));
    if sources.is_empty() {
        return Vec::new();
    }
    sources.sort();
    let mut body = Body::decode(context.image, context.units, members, context.names, context.stubs);
    let edges = answer.map(ClusterJumps::edges).unwrap_or_default();
    let closed = answer.map(ClusterJumps::closed_jumps).unwrap_or_default();
    body.cut(&edges.iter().map(|e| e.1).collect::<Vec<_>>(), context.names);
    body.connect(context.stubs, context.unwind, &edges, &closed);
    // A comparison leaves its register as it is.
    let compares = |va: Va| body.index_of(va).is_some_and(|i| body.instructions[i].mnemonic() == Mnemonic::Cmp);
    sources.retain(|s| !compares(s.0));
    let places: Vec<Va> = sources.iter().map(|s| s.0).collect();
    let misused = misused(&body, &places);
    sources.iter().filter(|s| misused.binary_search(&s.0).is_ok()).map(|s| s.1).collect()
}

/// Immediates that may be code addresses, as `(instruction, address)`; what only looks like one pins a function for nothing. Round numbers happen to lead into large functions, so of other
/// functions only entries count: where a function names a place behind an entry and means it, it names another one too, and that alone pins ([`crate::symbolize`], `places`).
fn absolute_sources(context: &TableContext<'_>, members: &[Unit]) -> Vec<(Va, Va)> {
    let absolutes = members
        .iter()
        .flat_map(|u| &context.surveys[u.index()].absolutes)
        .filter(|a| matches!(a.role, NumberRole::Value | NumberRole::Copied));
    let own = members.first().map(|&member| context.clusters.find(member));
    let is_code = |va: Va| {
        unit_at(context.units, va).is_some_and(|unit| {
            let start = context.units[unit].start;
            va == start || own == Some(context.clusters.find(unit)) && context.surveys[unit.index()].is_start(va - start)
        })
    };
    absolutes.filter(|a| is_code(a.value)).map(|a| (a.at, a.value)).collect()
}

/// The instructions among `sources` (each a `lea` of code, or a move of its address) whose result takes part in arithmetic or in a memory operand.
fn misused(body: &Body, sources: &[Va]) -> Vec<Va> {
    let indices: Vec<usize> = sources.iter().filter_map(|&va| body.index_of(va)).collect();
    if !is_misused(body, &indices) {
        return Vec::new();
    }
    // Something is: find out which, one by one.
    indices.iter().filter(|&&i| is_misused(body, &[i])).map(|&i| Va(body.instructions[i].ip())).collect()
}

fn is_misused(body: &Body, sources: &[usize]) -> bool {
    let mut entry_state: Vec<RegisterMask> = vec![0; body.blocks.len()];
    let mut pending: Vec<usize> = sources.iter().map(|&i| body.block_of(i)).collect();
    pending.sort();
    pending.dedup();
    while let Some(block) = pending.pop() {
        let Some(state) = walk(body, block, entry_state[block], sources) else { return true };
        for &next in body.successors(block) {
            let next = next as usize;
            if entry_state[next] | state != entry_state[next] {
                entry_state[next] |= state;
                pending.push(next);
            }
        }
    }
    false
}

/// The state after a block, or `None` if an address is misused in it.
fn walk(body: &Body, block: usize, mut state: RegisterMask, sources: &[usize]) -> Option<RegisterMask> {
    let data = &body.blocks[block];
    for index in data.first as usize..data.end as usize {
        let instruction = &body.instructions[index];
        let writes = body.writes[index];
        if sources.binary_search(&index).is_ok() {
            state = state & !writes | general(instruction.op0_register()).map_or(0, |n| 1 << n);
            continue;
        }
        if state == 0 {
            continue;
        }
        if matches!(flow_of(instruction), Flow::Call(_) | Flow::IndirectCall) {
            state &= !CALLER_SAVED;
            continue;
        }
        let used = body.reads[index] & state;
        let mut copied = 0;
        if used != 0 {
            copied = match use_of(instruction, used) {
                Use::Misuse => return None,
                Use::Copy => general(instruction.op0_register()).map_or(0, |n| 1 << n),
                Use::Harmless => 0,
            };
        }
        let keeps = if is_conditional_move(instruction) { state } else { state & !writes };
        state = keeps | copied;
    }
    Some(state)
}

enum Use {
    Harmless,
    Copy,
    Misuse,
}

fn use_of(instruction: &Instruction, used: RegisterMask) -> Use {
    let holds = |register: Register| general(register).is_some_and(|n| used >> n & 1 == 1);
    let has_memory = (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory);
    if has_memory && (holds(instruction.memory_base()) || holds(instruction.memory_index())) {
        let is_copy = instruction.mnemonic() == Mnemonic::Lea
            && instruction.memory_index() == Register::None
            && instruction.memory_displacement64() == 0;
        return if is_copy { Use::Copy } else { Use::Misuse };
    }
    let is_to_register = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register;
    match instruction.mnemonic() {
        Mnemonic::Mov if is_to_register => Use::Copy,
        Mnemonic::Xchg | Mnemonic::Cmpxchg if is_to_register => Use::Copy,
        _ if is_conditional_move(instruction) => Use::Copy,
        Mnemonic::Mov | Mnemonic::Push | Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Jmp | Mnemonic::Xchg | Mnemonic::Cmpxchg => {
            Use::Harmless
        }
        Mnemonic::Movq | Mnemonic::Vmovq | Mnemonic::Pinsrq | Mnemonic::Vpinsrq | Mnemonic::Vpbroadcastq | Mnemonic::Movnti => {
            Use::Harmless
        }
        Mnemonic::Stosq | Mnemonic::Syscall | Mnemonic::Nop => Use::Harmless,
        // `xor r, r` and `sbb r, r` read their operand in name only.
        Mnemonic::Xor | Mnemonic::Sub | Mnemonic::Sbb
            if instruction.op1_kind() == OpKind::Register && instruction.op0_register() == instruction.op1_register() =>
        {
            Use::Harmless
        }
        _ => Use::Misuse,
    }
}

fn is_conditional_move(instruction: &Instruction) -> bool {
    crate::x86::is_conditional_move(instruction.mnemonic())
}
