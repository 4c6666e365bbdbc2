//! A profile of a lifted program in BOLT's YAML.
//!
//! BOLT's hashes are of its own opcode numbers, which nobody else has; what is written in their place holds the block's offset where
//! BOLT's holds it, and nothing else. So BOLT must be told `-profile-ignore-hash`; it then matches by name and number of blocks.
//! Blocks that fall through to one that nothing else leads to are one block to BOLT, a call that does not return ends none, and padding behind a
//! jump is a block of its own; blocks are numbered so.

use std::fmt::Write;

use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockFlags, EdgeKind, Program, StopKind, Terminator};
use lifter::{Image, Va};
use rustc_hash::FxHashMap;

use crate::records::{FlowKind, FlowRecord, flow_records};
use crate::symbols::SymbolIndex;
use crate::weights::Weights;

/// A function as BOLT sees it: what lies behind one symbol.
struct Piece {
    name: String,
    start: Va,
    /// First blocks of what BOLT takes for one block, ascending by address; padding is `None`.
    heads: Vec<Option<Block>>,
}

/// BOLT's view of the program: which blocks are one to it, and their numbers.
struct Numbering<'p> {
    program: &'p Program,
    pieces: Vec<Piece>,
    piece_of_start: FxHashMap<Va, usize>,
    /// By block, the first block of what BOLT takes for one.
    head_of: Vec<Block>,
    /// By block, whether a branch or table leads to it.
    is_target: Vec<bool>,
    /// By head, its piece and its number there.
    place: Vec<Option<(u32, u32)>>,
}

impl<'p> Numbering<'p> {
    fn build(program: &'p Program, symbols: &SymbolIndex) -> Self {
        let mut is_target = vec![false; program.blocks.len()];
        for edge in program.edges.iter().filter(|e| e.kind != EdgeKind::Fallthrough) {
            is_target[edge.target.index()] = true;
        }
        let mut numbering = Numbering {
            program,
            pieces: Vec::new(),
            piece_of_start: FxHashMap::default(),
            head_of: program.blocks.keys().collect(),
            is_target,
            place: vec![None; program.blocks.len()],
        };
        for func in program.funcs.keys() {
            numbering.add(func, symbols);
        }
        for (number, piece) in numbering.pieces.iter().enumerate() {
            for (bid, head) in piece.heads.iter().enumerate() {
                if let Some(head) = head {
                    numbering.place[head.index()] = Some((number as u32, bid as u32));
                }
            }
        }
        numbering
    }

    fn add(&mut self, func: Func, symbols: &SymbolIndex) {
        let program = self.program;
        let mut last: Option<Block> = None;
        for block in program.funcs[func].blocks.iter() {
            let data = &program.blocks[block];
            let Some((start, _)) = symbols.bounds(data.start) else { continue };
            let pieces = &mut self.pieces;
            let piece = *self.piece_of_start.entry(start).or_insert_with(|| {
                let name = symbols.locate(start).map_or("", |(name, _)| name).to_owned();
                pieces.push(Piece { name, start, heads: Vec::new() });
                pieces.len() - 1
            });
            let named = BlockFlags::TABLE_TARGET | BlockFlags::LANDING_PAD | BlockFlags::ADDRESS_TAKEN | BlockFlags::ENTRY;
            let is_own = data.flags.intersects(named) || data.start == start || self.is_target[block.index()];
            let before = last.filter(|_| data.start != start).map(|last| (last, &program.blocks[last]));
            let runs_on = before.filter(|(_, before)| match before.terminator {
                Terminator::Fallthrough { next } => next == block,
                Terminator::Stop(StopKind::NoReturnCall) => true,
                _ => false,
            });
            match runs_on.filter(|_| !is_own) {
                Some((before, _)) => self.head_of[block.index()] = self.head_of[before.index()],
                None => {
                    if runs_on.is_none() && before.is_some_and(|(_, before)| before.end() < data.start) {
                        pieces[piece].heads.push(None);
                    }
                    pieces[piece].heads.push(Some(block));
                }
            }
            last = Some(block);
        }
    }

    fn write(&self, text: &mut String, number: u32, weights: &Weights, by_head: &[Vec<&FlowRecord>]) {
        let piece = &self.pieces[number as usize];
        let weight = |block: Block| weights.blocks[block.index()];
        let exec = piece.heads.first().copied().flatten().map_or(0, weight);
        let name = piece.name.replace('\'', "''");
        let _ = writeln!(text, "  - name:            '{name}'\n    fid:             {}", number + 1);
        let _ =
            writeln!(text, "    hash:            0x0\n    exec:            {exec}\n    nblocks:         {}", piece.heads.len());
        text.push_str("    blocks:\n");
        let mut before: &[&FlowRecord] = &[];
        for (bid, head) in piece.heads.iter().enumerate() {
            let Some(head) = *head else {
                write_padding(text, bid, before);
                continue;
            };
            before = &by_head[head.index()];
            if weight(head) == 0 {
                continue;
            }
            let data = &self.program.blocks[head];
            let _ = writeln!(text, "      - bid:             {bid}\n        insns:           {}", data.num_insts);
            let _ = writeln!(text, "        hash:            {:#x}", placeholder(data.start - piece.start));
            let _ = writeln!(text, "        exec:            {}", weight(head));
            self.write_flow(text, number, head, bid, before);
        }
    }

    fn write_flow(&self, text: &mut String, number: u32, head: Block, own: usize, records: &[&FlowRecord]) {
        let (mut calls, mut successors) = (Vec::new(), Vec::new());
        let heads = &self.pieces[number as usize].heads;
        for record in records {
            let target = self.head_of[record.target.index()];
            let Some((callee, bid)) = self.place[target.index()] else { continue };
            if record.kind == FlowKind::Call || callee != number {
                let at = record.from - self.program.blocks[head].start;
                calls.push(format!("{{ off: {at:#x}, fid: {}, cnt: {} }}", callee + 1, record.count));
            } else if record.kind == FlowKind::Taken {
                successors.push(format!("{{ bid: {bid}, cnt: {} }}", record.count));
            } else if target != head {
                let is_over_padding = heads.get(own + 1).is_some_and(Option::is_none);
                let bid = if is_over_padding { own as u32 + 1 } else { bid };
                successors.push(format!("{{ bid: {bid}, cnt: {} }}", record.count));
            }
        }
        for (key, entries) in [("calls:          ", calls), ("succ:           ", successors)] {
            if !entries.is_empty() {
                let _ = writeln!(text, "        {key} [ {} ]", entries.join(", "));
            }
        }
    }
}

/// In the place of a hash: the offset, and the one bit above it that tells an offset of zero from a hash that is missing.
fn placeholder(offset: u64) -> u64 {
    0x1_0000 | (offset & 0xffff)
}

/// Padding that a conditional jump falls through.
fn write_padding(text: &mut String, bid: usize, before: &[&FlowRecord]) {
    let Some(record) = before.iter().find(|r| r.kind == FlowKind::Fallthrough) else { return };
    let count = record.count;
    let _ = writeln!(text, "      - bid:             {bid}\n        insns:           0\n        hash:            0x0");
    let _ = writeln!(text, "        exec:            {count}\n        succ:            [ {{ bid: {}, cnt: {count} }} ]", bid + 1);
}

/// The whole file.
pub fn export(image: &Image<'_>, program: &Program, weights: &Weights, symbols: &SymbolIndex) -> String {
    let records = flow_records(image, program, weights);
    let numbering = Numbering::build(program, symbols);
    let mut by_head: Vec<Vec<&FlowRecord>> = vec![Vec::new(); program.blocks.len()];
    for record in records.iter().filter(|r| r.kind != FlowKind::Entry) {
        by_head[numbering.head_of[record.source.index()].index()].push(record);
    }
    let mut text = String::from("---\nheader:\n  profile-version: 1\n  binary-name:     ''\n  binary-build-id: ''\n");
    text.push_str("  profile-flags:   [ lbr ]\n  profile-origin:  relift\n  profile-events:  ''\n  dfs-order:       false\n");
    text.push_str("  hash-func:       xxh3\nfunctions:\n");
    for (number, piece) in numbering.pieces.iter().enumerate() {
        if piece.heads.iter().flatten().any(|b| weights.blocks[b.index()] != 0) {
            numbering.write(&mut text, number as u32, weights, &by_head);
        }
    }
    text.push_str("...\n");
    text
}
