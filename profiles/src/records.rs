//! A profile of a lifted program as branch records by address: what the text formats are written from.
//!
//! Each edge with a count is one record from the last instruction of its source, whether it is taken or falls through; each direct
//! call and tail call is one to the callee's entry, each recorded target of an indirect one likewise. What a function's entry runs
//! more often than its records explain comes from outside. One pass over blocks that ran; only these are decoded.

use lifter::entity::{Block, EntityId};
use lifter::ir::{CodeTarget, EdgeKind, Program, RefRole, RefTarget, Terminator};
use lifter::x86::decode_block;
use lifter::{Image, Va};
use rayon::prelude::*;

use crate::weights::Weights;

/// How control goes from one place to another.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowKind {
    Fallthrough,
    Taken,
    Call,
    /// From outside the program.
    Entry,
}

/// One record. `source` and `target` are blocks, `from` is the instruction in `source` that leads to the start of `target`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowRecord {
    pub source: Block,
    pub from: Va,
    pub target: Block,
    pub kind: FlowKind,
    pub count: u64,
}

/// All records, ascending by source; entries last.
pub fn flow_records(image: &Image<'_>, program: &Program, weights: &Weights) -> Vec<FlowRecord> {
    let blocks: Vec<Block> = program.blocks.keys().filter(|b| weights.blocks[b.index()] != 0).collect();
    let parts: Vec<Vec<FlowRecord>> = blocks.par_iter().map(|&block| records_of(image, program, weights, block)).collect();
    let mut records: Vec<FlowRecord> = parts.into_iter().flatten().collect();
    let mut explained = vec![0u64; program.blocks.len()];
    for record in &records {
        let sum = &mut explained[record.target.index()];
        *sum = sum.saturating_add(record.count);
    }
    for func in program.funcs.values() {
        let (entry, ran) = (func.entry, weights.blocks[func.entry.index()]);
        let count = ran.saturating_sub(explained[entry.index()]);
        if count != 0 {
            records.push(FlowRecord { source: entry, from: Va(0), target: entry, kind: FlowKind::Entry, count });
        }
    }
    records
}

fn records_of(image: &Image<'_>, program: &Program, weights: &Weights, source: Block) -> Vec<FlowRecord> {
    let data = &program.blocks[source];
    let ran = weights.blocks[source.index()];
    let instructions = decode_block(image, program, source);
    let last = instructions.last().map_or(data.start, |i| Va(i.ip()));
    let mut records = Vec::new();
    let mut left = ran;
    for index in data.edges.as_usize() {
        let (edge, count) = (program.edges[index], weights.edges[index]);
        left = left.saturating_sub(count);
        if count != 0 {
            let kind = if edge.kind == EdgeKind::Fallthrough { FlowKind::Fallthrough } else { FlowKind::Taken };
            records.push(FlowRecord { source, from: last, target: edge.target, kind, count });
        }
    }
    let tail_call = match data.terminator {
        Terminator::Jump { target: CodeTarget::Block(target) } => Some(target),
        Terminator::Branch { taken: CodeTarget::Block(target), .. } => Some(target),
        _ => None,
    };
    if let Some(target) = tail_call.filter(|&t| left != 0 && program.func_of(t) != data.func) {
        records.push(FlowRecord { source, from: last, target, kind: FlowKind::Call, count: left });
    }
    for reference in program.block_refs(source).iter().filter(|r| r.role == RefRole::Call) {
        let RefTarget::Block(target) = reference.target else { continue };
        let field = data.start + u64::from(reference.offset);
        let at = instructions.iter().rev().map(|i| Va(i.ip())).find(|&ip| ip < field).unwrap_or(data.start);
        records.push(FlowRecord { source, from: at, target, kind: FlowKind::Call, count: ran });
    }
    let first = weights.indirect.partition_point(|site| site.block < source);
    for site in weights.indirect[first..].iter().take_while(|site| site.block == source) {
        let end = data.start + u64::from(site.return_offset);
        let Some(call) = instructions.iter().find(|i| Va(i.next_ip()) == end) else { continue };
        for &(func, count) in site.targets.iter().filter(|target| target.1 != 0) {
            let target = program.funcs[func].entry;
            records.push(FlowRecord { source, from: Va(call.ip()), target, kind: FlowKind::Call, count });
        }
    }
    records
}
