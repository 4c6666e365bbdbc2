//! Instructions that stand in many places, put once, with a return behind them, where calls from these places lead: procedural abstraction (Cooper and McIntosh, *Enhanced code compression for embedded RISC processors*, 1999).
//!
//! **Problem.** Compilers write the same few instructions again and again, in the middle of blocks that otherwise have nothing in common: two fields are loaded, an index is scaled and added, a structure is filled in.
//! [`crate::fold`] shares code that goes on alike, [`super::outline`] what stands before a call. These go on in different ways.
//!
//! **Method.** The instructions of all blocks that may stand elsewhere are pieces, in runs that nothing interrupts ([`pieces`]). Which sequences of them are worth a body, and at which places, is decided from the one that saves the most on ([`repeats`]).
//! A body that another one ends with is entered in the middle of that. Bodies stand in front of the function that they were found in first, or the next one that may have something before it, as arguments of its calls do.
//!
//! **Safety.** A body runs with the state that the instructions had, but for the stack pointer, which is lower by the return address. An instruction that addresses the frame by it has a displacement that is so much larger there
//! ([`super::outline::lower`]); no other use of it comes along. No branch, call or stack instruction does. The return brings everything back, flags too: `call` and `ret` change none.
//! The call overwrites the word below the stack pointer, so nothing may be kept there ([`super::below`]), in the block itself and in those that it stands for.
//! For an unwinder a body is as a function at its entry, and the place that called it has one row, and one set of handlers, for all the instructions that were there. Registers that functions keep may be written: an unwinder finds
//! them as it would have found them behind the same instruction.
//! What stands right before a return, and would be a call before it, is left alone: `__morestack` is known by that.
//!
//! **Speed.** A place executes two instructions more, both of which jump: none where that is much of what is executed ([`crate::fold::shares`]), and where a profile has counts, nothing that ran.
//!
//! **Termination.** Each sequence that is looked at again saves less than before.

use lifter::Image;
use lifter::entity::{Block, Func, SecondaryMap};
use lifter::ir::Program;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::outline::entries::Entries;
use super::outline::{self, CALL_LEN, Place};
use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement};
use crate::fold::FUNCS_AT_ONCE;
use crate::fold::shares::Shares;
use crate::plan::LayoutPlan;

mod pieces;
mod repeats;

use pieces::{Finder, Pieces, Span};
use repeats::Repeat;

/// `ret`
const RETURN: u8 = 0xc3;

/// What came of it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Subroutines {
    pub num_bodies: u64,
    pub num_calls: u64,
    /// Bytes of code less, as far as is known before layout.
    pub bytes: u64,
}

/// What decides where calls may stand.
#[derive(Copy, Clone, Debug)]
pub struct Asked<'a> {
    /// What a jump more would be in each block.
    pub shares: &'a Shares,
    /// The blocks that something leads to.
    pub is_open: &'a SecondaryMap<Block, bool>,
    /// The blocks of which [`unfit_stand_ins`](super::unfit_stand_ins) tells.
    pub unfit: &'a [Block],
}

/// Puts bodies before functions of the plan, and calls of them in its blocks, but where other edits are.
pub fn plan(image: &Image<'_>, program: &Program, asked: Asked<'_>, plan: &LayoutPlan, edits: &mut EditPlan) -> Subroutines {
    if !image.kind.is_position_independent() {
        return Subroutines::default();
    }
    // Where other edits are is looked up.
    edits.settle();
    let mut hosts = Entries::of(image, program, plan).blocks;
    hosts.sort_unstable();
    if hosts.is_empty() {
        return Subroutines::default();
    }
    let pieces = pieces(image, program, asked, plan, edits);
    let repeats = repeats::choose(&pieces);
    let mut writer = Writer { image, program, pieces: &pieces, hosts: &hosts, edits, subroutines: Subroutines::default() };
    writer.write(&repeats);
    let Writer { subroutines, .. } = writer;
    edits.settle();
    subroutines
}

fn pieces(
    image: &Image<'_>,
    program: &Program,
    Asked { shares, is_open, unfit }: Asked<'_>,
    plan: &LayoutPlan,
    edits: &EditPlan,
) -> Pieces {
    let mut blocks = super::changeable(program, plan, is_open);
    blocks.retain(|&(_, block)| !plan.folded_blocks.goes(block) && unfit.binary_search(&block).is_err());
    let funcs: Vec<&[(Func, Block)]> = blocks.chunk_by(|a, b| a.0 == b.0).collect();
    let finder = Finder { image, program, folded: &plan.folded, shares, edits };
    let mut all = Pieces::default();
    for funcs in funcs.chunks(FUNCS_AT_ONCE) {
        let found: Vec<Pieces> = funcs.par_iter().map(|blocks| finder.pieces_of(blocks)).collect();
        found.into_iter().for_each(|found| all.append(found));
    }
    all
}

/// Makes bodies and what leads to them.
struct Writer<'a> {
    image: &'a Image<'a>,
    program: &'a Program,
    pieces: &'a Pieces,
    /// Functions before which bodies may stand, by their first blocks, ascending.
    hosts: &'a [Block],
    edits: &'a mut EditPlan,
    subroutines: Subroutines,
}

/// What stands before a function.
struct Before {
    /// What runs into it, or is for it.
    lead: Option<NewCodeId>,
    /// In front of that, the one next to it first.
    bodies: Vec<NewCode>,
    /// Bytes of all.
    len: u32,
}

impl Before {
    /// Where a body begins that is put in front of the others, in bytes before the function.
    fn push(&mut self, body: NewCode) -> u32 {
        self.len += body.bytes.len() as u32;
        self.bodies.push(body);
        self.len
    }
}

impl Writer<'_> {
    fn write(&mut self, repeats: &[Repeat]) {
        let mut before: Vec<(Block, Before)> = Vec::new();
        let mut number_of: FxHashMap<Block, usize> = FxHashMap::default();
        // Of those that end alike the longest comes last, so it has a place when the others are looked at.
        let mut placed: Option<(Span, Block, u32)> = None;
        for repeat in repeats.iter().rev() {
            let body = self.pieces.span(repeat.places[0], repeat.count);
            let within = placed.as_ref().filter(|(longer, ..)| self.pieces.ends_with(longer, &body));
            let (host, start) = match within {
                Some((longer, host, start)) => (*host, *start - (longer.body_len - body.body_len)),
                None => {
                    let Some(code) = self.body(&body) else { continue };
                    let host = self.host(body.block);
                    let number = *number_of.entry(host).or_insert_with(|| {
                        before.push((host, self.stands_before(host)));
                        before.len() - 1
                    });
                    let start = before[number].1.push(code);
                    self.subroutines.num_bodies += 1;
                    placed = Some((body, host, start));
                    (host, start)
                }
            };
            self.call(repeat, host, start);
        }
        for (host, before) in before {
            self.put_before(host, before);
        }
        self.edits.leads.sort_unstable_by_key(|lead| lead.0);
    }

    /// What is put before a function already. Leads ascend until bodies are.
    fn stands_before(&self, host: Block) -> Before {
        let leads = &self.edits.leads;
        let lead = leads.binary_search_by_key(&host, |lead| lead.0).ok().map(|index| leads[index].1);
        Before { lead, len: lead.map_or(0, |lead| self.edits.codes[lead].bytes.len() as u32), bodies: Vec::new() }
    }

    /// The function itself that a block is of, or the next one.
    fn host(&self, block: Block) -> Block {
        let entry = self.program.funcs[self.program.func_of(block)].entry;
        let next = self.hosts.partition_point(|&host| host < entry);
        self.hosts.get(next).or(self.hosts.last()).copied().unwrap_or(entry)
    }

    fn body(&mut self, span: &Span) -> Option<NewCode> {
        let mut end = span.start;
        let pieces = self.pieces.lens[span.pieces.clone()].iter().map(|piece| {
            let start = end;
            end += u32::from(piece.len);
            start..end
        });
        let mut code = outline::lowered_copy(self.image, self.program, span.block, pieces)?;
        code.bytes.push(RETURN);
        self.subroutines.bytes = self.subroutines.bytes.saturating_sub(code.bytes.len() as u64);
        Some(code)
    }

    /// Calls of what begins so many bytes before a function, at all places of a sequence.
    fn call(&mut self, repeat: &Repeat, host: Block, start: u32) {
        // It stands where the first of the instructions did.
        let code = self.edits.codes.push(outline::call_of(host, Place::Before { entry: host, bytes: start }, 0));
        for &place in &repeat.places {
            let Span { block, start: offset, len, .. } = self.pieces.span(place, repeat.count);
            self.subroutines.num_calls += 1;
            self.subroutines.bytes += u64::from(len - CALL_LEN);
            self.edits.replacements.push(Replacement { block, offset, len, code, change: Change::Subroutine });
        }
    }

    /// Makes one piece of code of it, bodies first.
    fn put_before(&mut self, host: Block, before: Before) {
        let last = before.lead.map(|lead| std::mem::take(&mut self.edits.codes[lead]));
        let mut code = NewCode::default();
        for part in before.bodies.into_iter().rev().chain(last) {
            code.append(part);
        }
        match before.lead {
            Some(lead) => self.edits.codes[lead] = code,
            None => {
                let code = self.edits.codes.push(code);
                self.edits.leads.push((host, code));
            }
        }
    }
}
