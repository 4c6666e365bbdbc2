//! Instructions in forms that take fewer bytes.
//!
//! | it was | it becomes | where |
//! | --- | --- | --- |
//! | `movdqa`, `movapd`, `movdqu`, `movupd`, `movlpd`, `movhpd`; `pxor` and `xorpd` of a register with itself; `punpcklqdq`, `unpcklpd` of two registers | the same without a prefix ([`vector`]) | |
//! | `sub $8, %rsp`; `add $8, %rsp` | `push`; `pop` ([`stack`]) | nobody needs the flags, nor what the register held |
//! | `mov $number, %reg`; `lea data(%rip), %reg` | `mov` or `lea` of a register that holds that, or nearly that ([`known`]) | the block has put it there a moment before |
//! | `mov $number, memory` | `mov %reg, memory` | a register holds the number |
//! | `mov $0, %reg` | `xor %reg, %reg` | nobody needs the flags |
//!
//! **Safety.** Each form leaves the same in all registers that are read again, in memory and in the flags, at the same instruction, so that nothing differs for who unwinds or handles a signal. What
//! registers hold is known in a block only, from one instruction on to another with no call between; that a register or the flags are not read again is seen in what surely comes next ([`ahead`]).
//! Accesses to memory stay as wide and as aligned as they were.
//!
//! **Profit.** A form is shorter, one instruction as before, and takes no longer: moves of vectors have no type in the processor, and a push is an addition to the stack pointer that the decoder does. It needs no profile.
//!
//! Instructions that a handler of faults knows by their place stay, and those of code that nothing leads to, which the checker compares by its content; and in a file at a fixed address all, where a number may be an address.

pub(super) mod ahead;
mod known;
mod stack;
mod vector;

use std::cell::OnceCell;

use iced_x86::Instruction;
use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, Func, SecondaryMap};
use lifter::ir::{Program, RefData, RefKind, RefTarget};
use lifter::x86::decode_block_into;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::below::Below;
use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement};
use crate::fold::FUNCS_AT_ONCE;
use crate::plan::LayoutPlan;
use ahead::Ahead;
use known::Known;

type Bytes = SmallVec<[u8; 16]>;

/// A shorter form.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Form {
    bytes: Bytes,
    /// Of a field in `bytes`.
    reference: Option<RefData>,
    /// The register in which it leaves something else than the instruction did, for nobody.
    spoils: Option<u8>,
    /// From which instruction of the block on is known what it counts on.
    since: Option<u32>,
}

impl Form {
    fn plain(bytes: Bytes) -> Self {
        Self { bytes, reference: None, spoils: None, since: None }
    }
}

/// Where a form stands.
struct Site {
    block: Block,
    offset: u32,
    len: u32,
    form: Form,
}

/// An instruction of a block, as it is.
#[derive(Copy, Clone)]
struct Here<'a> {
    instruction: &'a Instruction,
    bytes: &'a [u8],
    /// What a field of it names, with the field's offset from the instruction.
    reference: Option<RefData>,
}

impl Here<'_> {
    /// The address of data that its operand in memory names by its distance; `None` if it names something else.
    fn data(&self) -> Option<Va> {
        match self.reference? {
            RefData { kind: RefKind::Rel32, target: RefTarget::Fixed(at), .. } => Some(at),
            _ => None,
        }
    }

    /// Whether it names nothing, or data only.
    fn names_data_at_most(&self) -> bool {
        self.reference.is_none() || self.data().is_some()
    }
}

/// Plans shorter forms in blocks that the plan has and something leads to, but for what other edits have. `unfit` are the blocks of which [`unfit_stand_ins`](super::unfit_stand_ins) tells.
pub fn plan(
    image: &Image<'_>,
    program: &Program,
    (is_open, unfit): (&SecondaryMap<Block, bool>, &[Block]),
    plan: &LayoutPlan,
    edits: &mut EditPlan,
) {
    if !image.kind.is_position_independent() {
        return;
    }
    let blocks = super::changeable(program, plan, is_open);
    let funcs: Vec<&[(Func, Block)]> = blocks.chunk_by(|a, b| a.0 == b.0).collect();
    let called = edits.replacements.iter().filter(|r| r.change == Change::Subroutine);
    let called: Vec<(Block, u32)> = called.map(|r| (r.block, r.end())).collect();
    let mut known: FxHashMap<Bytes, NewCodeId> = FxHashMap::default();
    for funcs in funcs.chunks(FUNCS_AT_ONCE) {
        let sites_of = |known: &mut Known, blocks: &&[(Func, Block)]| {
            Finder::of(image, program, (blocks[0].0, &called, unfit), known).sites(blocks)
        };
        let found: Vec<Vec<Site>> = funcs.par_iter().map_init(Known::new, sites_of).collect();
        for Site { block, offset, len, form } in found.into_iter().flatten() {
            let new = |bytes: Bytes| NewCode { bytes: bytes.to_vec(), ..NewCode::default() };
            let code = match form.reference {
                Some(reference) => edits.codes.push(NewCode { refs: vec![reference], ..new(form.bytes) }),
                None => *known.entry(form.bytes).or_insert_with_key(|bytes| edits.codes.push(new(bytes.clone()))),
            };
            edits.replacements.push(Replacement { block, offset, len, code, change: Change::Form });
        }
    }
    edits.settle();
    // Nothing is planned behind this.
    edits.codes.shrink_to_fit();
    edits.replacements.shrink_to_fit();
}

/// Looks for forms in a function.
struct Finder<'k, 'a> {
    image: &'a Image<'a>,
    program: &'a Program,
    func: Func,
    /// Where calls of subroutines end, ascending: what stands there makes nothing known.
    called: &'k [(Block, u32)],
    /// Blocks that stand for some in which something may be kept below the stack pointer, ascending.
    unfit: &'k [Block],
    /// What the function may have left below the stack pointer; looked at when it first matters.
    below: OnceCell<Option<Below>>,
    instructions: Vec<Instruction>,
    known: &'k mut Known,
}

impl<'k, 'a> Finder<'k, 'a> {
    fn of(
        image: &'a Image<'a>,
        program: &'a Program,
        (func, called, unfit): (Func, &'k [(Block, u32)], &'k [Block]),
        known: &'k mut Known,
    ) -> Self {
        Self { image, program, func, called, unfit, below: OnceCell::new(), instructions: Vec::new(), known }
    }

    fn sites(&mut self, blocks: &[(Func, Block)]) -> Vec<Site> {
        let mut sites = Vec::new();
        blocks.iter().for_each(|&(_, block)| self.sites_in(block, &mut sites));
        sites
    }

    fn sites_in(&mut self, block: Block, sites: &mut Vec<Site>) {
        let (image, program) = (self.image, self.program);
        let mut instructions = std::mem::take(&mut self.instructions);
        decode_block_into(image, program, block, &mut instructions);
        let data = &program.blocks[block];
        let all = image.read(data.start, data.len as usize).unwrap_or(&[]);
        let mut refs = program.block_refs(block).iter().peekable();
        self.known.clear();
        let mut called = self.called[self.called.partition_point(|call| call.0 < block)..].iter().peekable();
        for (index, instruction) in instructions.iter().enumerate() {
            let offset = (instruction.ip() - data.start.0) as u32;
            let len = instruction.len() as u32;
            if offset >= data.body_len {
                break;
            }
            while called.next_if(|call| **call <= (block, offset)).is_some() {
                self.known.clear();
            }
            let reference = refs.next_if(|reference| reference.offset < offset + len);
            let more = refs.next_if(|reference| reference.offset < offset + len);
            let reference = reference.map(|reference| RefData { offset: reference.offset - offset, ..*reference });
            let here = Here { instruction, bytes: &all[offset as usize..][..len as usize], reference };
            let ahead = Ahead { image, program, block, rest: &instructions[index + 1..] };
            let form = self.form(here, ahead).filter(|form| more.is_none() && form.bytes.len() < here.bytes.len());
            self.known.pass(here, form.as_ref());
            sites.extend(form.map(|form| Site { block, offset, len, form }));
        }
        self.instructions = instructions;
    }

    fn form(&mut self, here: Here<'_>, ahead: Ahead<'_, '_>) -> Option<Form> {
        if !here.names_data_at_most() {
            return None;
        }
        let found = vector::form(here).or_else(|| self.known.form(self.image, here));
        found
            .or_else(|| known::zero(here, &ahead))
            .or_else(|| stack::lower(here, &ahead, || self.below(ahead.block)))
            .or_else(|| stack::raise(here, &ahead))
    }

    /// What may be left below the stack pointer in a block; `None` too if it stands for one in which something may be kept there.
    fn below(&self, block: Block) -> Option<&Below> {
        if self.unfit.binary_search(&block).is_ok() {
            return None;
        }
        self.below.get_or_init(|| Below::of(self.image, self.program, self.func)).as_ref()
    }
}
