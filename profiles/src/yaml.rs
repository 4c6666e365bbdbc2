//! BOLT's YAML profiles.
//!
//! A function is a name, a hash, how often it was entered (`exec`) and a list of blocks; a block is its number in BOLT's own
//! control-flow graph (`bid`), its hash, and how often it went where: `succ` names blocks, `calls` names functions by their `fid`.
//!
//! **Blocks to addresses.** A file has no addresses, but the lowest 16 bits of a block's hash are the block's offset in its function,
//! by which BOLT itself matches stale profiles. Blocks of a function ascend by offset, so an offset that is lower than the last
//! one has passed a multiple of 65,536. A block whose offset is not in the function is lost, and so is a file without hashes.
//!
//! Only the subset of YAML that BOLT writes is read: mappings and sequences by indentation, flow mappings on one line, scalars plain or in single
//! quotes. Each line is looked at once.

mod export;
mod parse;
#[cfg(test)]
mod tests;

use lifter::Va;
use lifter::ir::{EdgeKind, Program};
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::samples::{Collector, Samples};
use crate::symbols::SymbolIndex;

pub use export::export;
pub use parse::parse;

pub(crate) const FORMAT: &str = "YAML profile";

/// A block's successor.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Successor {
    pub bid: u32,
    pub count: u64,
    pub mispredicted: u64,
}

#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Of the instruction, from the block's start.
    pub offset: u32,
    pub fid: u32,
    pub count: u64,
    pub mispredicted: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct YamlBlock {
    pub bid: u32,
    pub instructions: u32,
    pub hash: u64,
    pub exec: u64,
    pub events: u64,
    pub calls: Vec<Call>,
    pub successors: Vec<Successor>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct YamlFunction {
    pub name: String,
    pub fid: u32,
    pub hash: u64,
    pub exec: u64,
    pub num_blocks: u32,
    pub blocks: Vec<YamlBlock>,
}

/// The contents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Yaml {
    pub version: u64,
    pub flags: String,
    pub events: String,
    pub is_depth_first: bool,
    pub functions: Vec<YamlFunction>,
}

/// The same by address.
pub fn resolve(yaml: &Yaml, program: &Program, symbols: &SymbolIndex) -> Result<Samples> {
    let has_blocks = yaml.functions.iter().any(|f| !f.blocks.is_empty());
    if has_blocks && yaml.functions.iter().flat_map(|f| &f.blocks).all(|b| b.hash == 0) {
        return Err(Error::malformed("YAML profile", "its blocks have no hashes, so nothing says where they lie"));
    }
    let starts: FxHashMap<u32, Va> = yaml.functions.iter().filter_map(|f| Some((f.fid, symbols.resolve(&f.name, 0)?))).collect();
    let mut collector = Collector::default();
    for function in &yaml.functions {
        let Some(&start) = starts.get(&function.fid) else {
            collector.note(counted(function), false);
            continue;
        };
        resolve_function(function, start, program, symbols, &starts, &mut collector);
    }
    Ok(collector.finish())
}

fn counted(function: &YamlFunction) -> u64 {
    let of_block = |b: &YamlBlock| b.successors.iter().fold(b.events, |sum, s| sum.saturating_add(s.count));
    function.blocks.iter().fold(function.exec, |sum, b| sum.saturating_add(of_block(b)))
}

fn resolve_function(
    function: &YamlFunction,
    start: Va,
    program: &Program,
    symbols: &SymbolIndex,
    starts: &FxHashMap<u32, Va>,
    collector: &mut Collector,
) {
    let size = symbols.bounds(start).map_or(0, |(_, end)| end - start);
    let mut by_bid: FxHashMap<u32, Va> = FxHashMap::default();
    let (mut high, mut last) = (0u64, 0u64);
    for block in &function.blocks {
        let offset = block.hash & 0xffff;
        if high + offset < last {
            high += 0x1_0000;
        }
        last = high + offset;
        if last < size && program.block_at(start + last).is_some() {
            by_bid.insert(block.bid, start + last);
        }
    }
    let mut entered = function.exec;
    for block in &function.blocks {
        let Some(&at) = by_bid.get(&block.bid) else {
            collector.note(block.successors.iter().fold(block.events, |sum, s| sum.saturating_add(s.count)), false);
            continue;
        };
        if block.events != 0 {
            collector.note(block.events, true);
            collector.address(at, block.events);
        }
        for successor in block.successors.iter().filter(|s| s.count != 0) {
            let target = by_bid.get(&successor.bid).copied();
            collector.note(successor.count, target.is_some());
            if let Some(target) = target {
                let from = source_of(program, at, target);
                collector.branch(Some(from), Some(target), successor.count, successor.mispredicted);
                // What comes back to the entry did not come from outside.
                entered = entered.saturating_sub(if target == start { successor.count } else { 0 });
            }
        }
        for call in &block.calls {
            if let Some(&callee) = starts.get(&call.fid).filter(|_| call.fid != 0) {
                collector.note(call.count, true);
                collector.branch(Some(at + u64::from(call.offset)), Some(callee), call.count, call.mispredicted);
            }
        }
    }
    if entered != 0 {
        collector.note(entered, true);
        collector.branch(None, Some(start), entered, 0);
    }
}

/// The place from which a block of BOLT's at `at` goes on to `target`. A block of BOLT's may be several that fall through to each other.
fn source_of(program: &Program, at: Va, target: Va) -> Va {
    const RUN_MAX: usize = 64;
    let Some(mut block) = program.block_at(at) else { return at };
    for _ in 0..RUN_MAX {
        let edges = program.block_edges(block);
        if edges.iter().any(|e| program.blocks[e.target].start == target) {
            return program.blocks[block].start;
        }
        match edges {
            [only] if only.kind == EdgeKind::Fallthrough => block = only.target,
            _ => break,
        }
    }
    at
}
