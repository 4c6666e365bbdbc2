//! What stands before calls of the same function, put once where all of these calls lead: arguments that are alike.
//!
//! **Problem.** `lea message(%rip), %rdi; xor %eax, %eax; call report` stands in a program a hundred times over. Blocks that go on alike share a copy
//! ([`crate::fold::blocks`]); these go on each in a way of their own.
//!
//! **Method.** Each direct call has the instructions before it in its block, up to one that can't come along, as a path in a tree: calls of one function are together at the
//! root, those with the same last instruction before them together below that, and so on. A node of the tree may become a *body*: its instructions, and a jump to the function called. Each of its calls is then a call
//! of the body alone. From the leaves up, for each node, it is decided what saves the most bytes: the bodies of what is below, one for all, or both.
//!
//! **Safety.** A body runs with the state that the instructions had, but for the stack pointer, which is lower by the return address that the call has pushed already. An
//! instruction that addresses the frame by it has a displacement that is so much larger in the body ([`lower`]); no other use of it comes along. The jump makes the state that the call made, and what is called returns to where it returned to: so
//! nothing on the stack differs for it, nor for who unwinds, nor for a shadow stack. For an unwinder a body is as a function at its entry: the instructions had one row, that of the call, and where one of them may fault,
//! the call's handlers. Callee-saved registers are left alone, so that who looks at a body as at a function finds that it keeps them.
//! The word in which the call leaves its return address is written earlier; a function that calls keeps nothing there.
//!
//! **Speed.** A jump more for each call, so none where that is much of what is executed ([`crate::fold::shares`]), and where a profile has counts, nothing that ran.
//!
//! **Termination.** Each node is looked at once from below and once from above.

use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};
use lifter::Image;
use lifter::address::Va;
use lifter::elf::lsda::CallSite;
use lifter::entity::{Block, Func, SecondaryMap};
use lifter::ir::{BlockFlags, Evidence, Program, RefData, RefKind, RefRole, RefTarget, StopKind, Terminator};
use lifter::x86;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64;

use crate::clones::{CloneData, CloneId};
use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement};
use crate::fold::blocks::hashes::push_reference;
use crate::fold::shares::Shares;
use crate::fold::{FUNCS_AT_ONCE, Folding};
use crate::materialize::block_bytes;
use crate::plan::{FragmentPlan, LayoutPlan, PlannedBlock, Temperature, Times};
use crate::relink::eh_frame::FrameRows;
use crate::transform::direct_calls::{self, DirectCall};
use crate::transform::entry_row::has_entry_row;

mod lower;
mod tree;

use lower::{has_other_use, lowered};
use tree::{Lens, Tree};

/// Bytes of a direct call, and of a jump.
const CALL_LEN: u32 = 5;
/// Instructions before a call that are looked at.
const DEPTH_MAX: usize = 16;

/// What came of it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlined {
    pub num_bodies: u64,
    pub num_calls: u64,
    /// Bytes of code less, as far as is known before layout.
    pub bytes: u64,
}

/// A direct call, and what may come along before it.
struct Site {
    block: Block,
    /// Of the call, from the block's start.
    call: u32,
    /// What calls it in a body.
    reference: RefData,
    /// Bytes of the call.
    call_len: u32,
    /// What may come along: of the pieces of all sites, or of those of a function.
    pieces: Range<u32>,
}

/// An instruction before a call, with all behind it.
#[derive(Copy, Clone)]
struct Piece {
    /// Offset of the instruction, from the block's start.
    start: u32,
    /// Bytes that all of it takes in a body.
    len: u32,
    /// Of all of it up to the function called.
    hash: u64,
}

/// Calls, and the pieces before each, the shortest first: few vectors, since each site's own would take more room than what they hold.
#[derive(Default)]
struct Sites {
    sites: Vec<Site>,
    pieces: Vec<Piece>,
}

impl Sites {
    fn append(&mut self, next: Sites) {
        let before = self.pieces.len() as u32;
        let moved = |site: Site| Site { pieces: site.pieces.start + before..site.pieces.end + before, ..site };
        self.sites.extend(next.sites.into_iter().map(moved));
        self.pieces.extend(next.pieces);
    }

    fn pieces_of(&self, site: &Site) -> &[Piece] {
        &self.pieces[site.pieces.start as usize..site.pieces.end as usize]
    }
}

/// What decides where arguments move.
#[derive(Copy, Clone, Debug)]
pub struct Asked<'a> {
    /// What a jump more would be in each block.
    pub shares: &'a Shares,
    /// The blocks that something leads to.
    pub is_open: &'a SecondaryMap<Block, bool>,
    /// Calls through memory that go to one function, ascending.
    pub calls: &'a [DirectCall],
}

/// Puts bodies behind all code of the plan, and calls of them in its blocks.
pub fn plan(image: &Image<'_>, program: &Program, asked: Asked<'_>, plan: &mut LayoutPlan, edits: &mut EditPlan) -> Outlined {
    let Asked { shares, is_open, calls } = asked;
    let Some(host) = host(program, plan) else { return Outlined::default() };
    let is_wanted = |block: Block| {
        is_open[block]
            && shares.allows_outlining(block)
            && !program.blocks[block].flags.intersects(BlockFlags::KNOWN_BY_FAULT | BlockFlags::THUNK)
    };
    let mut funcs: Vec<(Func, Vec<Block>)> = Vec::new();
    let placed = plan.fragments.iter().flat_map(|fragment| fragment.blocks.iter().map(|planned| (fragment.func, planned)));
    let mut blocks: Vec<(Func, Block)> = placed
        .filter(|(_, planned)| planned.copy.is_none() && is_wanted(planned.block))
        .map(|(func, p)| (func, p.block))
        .collect();
    blocks.sort_unstable();
    for same in blocks.chunk_by(|a, b| a.0 == b.0) {
        funcs.push((same[0].0, same.iter().map(|&(_, block)| block).collect()));
    }
    let finder = Finder { image, program, folded: &plan.folded, calls };
    let mut all = Sites::default();
    for funcs in funcs.chunks(FUNCS_AT_ONCE) {
        let found: Vec<Sites> = funcs.par_iter().map(|(_, blocks)| finder.sites_of(blocks)).collect();
        found.into_iter().for_each(|found| all.append(found));
    }
    drop(funcs);
    let tree = Tree::of(all.sites.iter().map(|site| pieces_for_tree(site, all.pieces_of(site))));
    let mut outlined = Outlined::default();
    let mut clones: Vec<Option<CloneId>> = vec![None; tree.len()];
    let mut calls_of: FxHashMap<(CloneId, u32), NewCodeId> = FxHashMap::default();
    for (index, site) in all.sites.iter().enumerate() {
        let Some((node, depth)) = tree.body_for(index) else { continue };
        let pieces = &all.pieces_of(site)[..=depth];
        let start = pieces[depth].start;
        let clone = match clones[node] {
            Some(clone) => clone,
            None => {
                let Some(body) = body_of(image, program, (site, pieces), host) else { continue };
                outlined.num_bodies += 1;
                outlined.bytes = outlined.bytes.saturating_sub(body.bytes.len() as u64);
                *clones[node].insert(push_clone(program, host, body, edits))
            }
        };
        outlined.num_calls += 1;
        outlined.bytes += u64::from(site.call + site.call_len - CALL_LEN - start);
        // Calls of one body are alike.
        let code =
            *calls_of.entry((clone, site.call_len)).or_insert_with(|| edits.codes.push(call_of(host, clone, site.call_len)));
        let len = site.call + site.call_len - start;
        edits.replacements.push(Replacement { block: site.block, offset: start, len, code, change: Change::Outline });
    }
    edits.settle();
    plan.fragments.extend(clones.into_iter().flatten().map(|clone| {
        let planned = PlannedBlock { block: host, align: 1, copy: Some(Times::new(0)) };
        let (func, temperature) = (program.func_of(host), Temperature::Cold);
        FragmentPlan { func, temperature, align: 1, blocks: vec![planned], clone: Some(clone) }
    }));
    outlined
}

/// A block that bodies can say they are copies of: a function's first, for whose start the unwind tables say what they say of every entry, and behind which nothing is run into.
fn host(program: &Program, plan: &LayoutPlan) -> Option<Block> {
    let is_fit = |block: &Block| {
        let data = &program.blocks[*block];
        let Some(fde) = program.ranges[data.range as usize].fde else { return false };
        let described = &program.unwind.fdes[fde];
        let has_handlers = described.lsda.is_some() || program.unwind.cies[described.cie as usize].personality.is_some();
        let is_start = described.start == data.start && program.funcs[data.func].entry == *block;
        let ends = !matches!(data.terminator, Terminator::Fallthrough { .. } | Terminator::Stop(StopKind::TableJump(_)));
        let names_table = || program.block_refs(*block).iter().any(|r| matches!(r.target, RefTarget::Table(_)));
        is_start && ends && !has_handlers && !names_table() && has_entry_row(program, *block, data.start + 1)
    };
    plan.fragments.iter().filter(|fragment| fragment.clone.is_none()).map(|fragment| fragment.blocks[0].block).find(is_fit)
}

/// Hashes, and bytes before the call and in a body, by how many instructions come along.
fn pieces_for_tree(site: &Site, pieces: &[Piece]) -> impl Iterator<Item = (u64, Lens)> {
    pieces.iter().map(|piece| (piece.hash, Lens { call: site.call - piece.start, body: piece.len }))
}

fn push_clone(program: &Program, host: Block, body: NewCode, edits: &mut EditPlan) -> CloneId {
    let code = edits.codes.push(body);
    let data = &program.blocks[host];
    let replacement = Replacement { block: host, offset: 0, len: data.len, code, change: Change::Outline };
    edits.clones.push(CloneData {
        func: data.func,
        entry: host,
        blocks: vec![host],
        replacements: vec![replacement],
        decided: Vec::new(),
        count: 0,
        deeper: 0,
        dropped: Vec::new(),
        bound: Vec::new(),
    })
}

/// The last of these pieces, and a jump to what is called.
fn body_of(image: &Image<'_>, program: &Program, (site, pieces): (&Site, &[Piece]), host: Block) -> Option<NewCode> {
    let block = block_bytes(image, program, site.block).ok()?;
    let (mut bytes, mut refs) = (Vec::new(), Vec::new());
    let all = program.block_refs(site.block);
    let mut copy = |range: Range<u32>, own: &[u8]| {
        let inside = all.iter().filter(|reference| range.contains(&reference.offset));
        let moved = |reference: &RefData| RefData { offset: reference.offset - range.start + bytes.len() as u32, ..*reference };
        refs.extend(inside.map(moved));
        bytes.extend_from_slice(own);
    };
    for (index, &Piece { start, .. }) in pieces.iter().enumerate().rev() {
        let end = index.checked_sub(1).map_or(site.call, |next| pieces[next].start);
        let own = block.get(start as usize..end as usize)?;
        copy(start..end, &lowered(own)?);
    }
    refs.push(RefData { offset: bytes.len() as u32 + 1, role: RefRole::Branch, ..site.reference });
    bytes.extend([0xe9, 0, 0, 0, 0]);
    Some(NewCode { bytes, refs, stands: vec![(0, program.blocks[host].start)], ..NewCode::default() })
}

/// A call of a body, which unwinders take for the call that it stands for, of so many bytes.
fn call_of(host: Block, clone: CloneId, call_len: u32) -> NewCode {
    let reference = RefData {
        offset: 1,
        to_end: 4,
        kind: RefKind::Rel32,
        role: RefRole::Call,
        evidence: Evidence::Derived,
        target: RefTarget::Block(host),
    };
    NewCode {
        bytes: vec![0xe8, 0, 0, 0, 0],
        refs: vec![reference],
        enters: vec![(1, clone)],
        stands_before_end: call_len,
        ..NewCode::default()
    }
}

/// Looks for calls.
struct Finder<'a> {
    image: &'a Image<'a>,
    program: &'a Program,
    folded: &'a Folding,
    calls: &'a [DirectCall],
}

/// A call of one function, in a block.
#[derive(Copy, Clone)]
struct Call {
    offset: u32,
    len: u32,
    /// As if it were a direct call at that offset.
    reference: RefData,
}

impl Finder<'_> {
    /// In blocks of one function, ascending.
    fn sites_of(&self, blocks: &[Block]) -> Sites {
        let mut sites = Sites::default();
        let mut infos = InstructionInfoFactory::new();
        let mut instructions = Vec::new();
        let mut described: Option<(u32, Option<Described<'_>>)> = None;
        for &block in blocks {
            let calls = self.calls_in(block);
            if calls.is_empty() {
                continue;
            }
            let range = self.program.blocks[block].range;
            if described.as_ref().is_none_or(|(known, _)| *known != range) {
                described = Some((range, Described::of(self.program, range)));
            }
            let Some((_, Some(described))) = &described else { continue };
            x86::decode_block_into(self.image, self.program, block, &mut instructions);
            for call in calls {
                let first = sites.pieces.len();
                if self.pieces(block, &instructions, call, described, &mut infos, &mut sites.pieces).is_none() {
                    sites.pieces.truncate(first);
                }
                if sites.pieces.len() > first {
                    let Call { offset: call, len: call_len, reference } = call;
                    let pieces = first as u32..sites.pieces.len() as u32;
                    sites.sites.push(Site { block, call, reference, call_len, pieces });
                }
            }
        }
        sites
    }

    /// Ascending.
    fn calls_in(&self, block: Block) -> Vec<Call> {
        let direct = self.program.block_refs(block).iter().filter(|r| r.role == RefRole::Call && self.is_callee(r.target));
        let direct = direct.filter_map(|r| Some(Call { offset: r.offset.checked_sub(1)?, len: CALL_LEN, reference: *r }));
        let through = direct_calls::of_block(self.calls, block).iter();
        let through = through.filter(|call| self.is_callee(RefTarget::Block(call.callee))).map(|call| {
            let reference = direct_calls::reference_to(call.callee, RefRole::Call);
            let offset = call.offset;
            Call { offset, len: direct_calls::LEN, reference: RefData { offset: offset + reference.offset, ..reference } }
        });
        let mut calls: Vec<Call> = direct.chain(through).collect();
        calls.sort_unstable_by_key(|call| call.offset);
        calls
    }

    fn is_callee(&self, target: RefTarget) -> bool {
        match target {
            RefTarget::Block(callee) => {
                let func = &self.program.funcs[self.program.func_of(callee)];
                func.entry == callee && !self.program.blocks[callee].flags.contains(BlockFlags::THUNK)
            }
            RefTarget::Fixed(_) => true,
            RefTarget::Table(_) | RefTarget::UnwindTable(_) => false,
        }
    }

    /// Appends what may come along before a call; `None` where that is not known.
    fn pieces(
        &self,
        block: Block,
        instructions: &[Instruction],
        call: Call,
        described: &Described<'_>,
        infos: &mut InstructionInfoFactory,
        pieces: &mut Vec<Piece>,
    ) -> Option<()> {
        let start = self.program.blocks[block].start;
        let Call { offset: call, len: call_len, reference } = call;
        let at = start + u64::from(call);
        let index = instructions.binary_search_by_key(&at.0, Instruction::ip).ok()?;
        let is_call = matches!(instructions[index].code(), Code::Call_rel32_64 | Code::Call_rm64);
        if !is_call || instructions[index].len() != call_len as usize {
            return None;
        }
        // `__morestack` finds a function's body behind the return behind its call, and who relinks the file knows that call by the instructions before it.
        if instructions.get(index + 1).is_some_and(|next| next.flow_control() == FlowControl::Return) {
            return None;
        }
        let bytes = block_bytes(self.image, self.program, block).ok()?;
        let mut refs = self.program.block_refs(block);
        let mut words = Vec::new();
        push_reference(self.program, self.folded, &reference, call, &mut [0; CALL_LEN as usize], &mut words)?;
        let mut hash = xxh3_64(&bytes_of(&words));
        let mut len = 0;
        refs = &refs[..refs.partition_point(|r| r.offset < call)];
        let mut end = at.0;
        for instruction in instructions[..index].iter().rev().take(DEPTH_MAX) {
            let (offset, next) = ((instruction.ip() - start.0) as u32, (instruction.next_ip() - start.0) as u32);
            if instruction.next_ip() != end
                || !may_come_along(instruction, infos)
                || !described.is_as_at((Va(instruction.ip()), instruction), at)
            {
                break;
            }
            let (before, inside) = refs.split_at(refs.partition_point(|r| r.offset < offset));
            if inside.iter().any(|r| matches!(r.target, RefTarget::Table(_) | RefTarget::UnwindTable(_))) {
                break;
            }
            let mut own = bytes.get(offset as usize..next as usize)?.to_vec();
            let Some(lowered) = lowered(&own).filter(|lowered| inside.is_empty() || lowered.len() == own.len()) else { break };
            len += lowered.len() as u32;
            words.clear();
            for reference in inside {
                push_reference(self.program, self.folded, reference, offset, &mut own, &mut words)?;
            }
            own.extend(bytes_of(&words));
            own.extend(hash.to_le_bytes());
            hash = xxh3_64(&own);
            pieces.push(Piece { start: offset, len, hash });
            (refs, end) = (before, instruction.ip());
        }
        Some(())
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Whether an instruction can do the same with a return address more on the stack, and leaves what callers count on.
fn may_come_along(instruction: &Instruction, infos: &mut InstructionInfoFactory) -> bool {
    let is_plain = instruction.flow_control() == FlowControl::Next
        && !instruction.is_stack_instruction()
        && !instruction.is_privileged()
        && !has_other_use(instruction)
        && !matches!(instruction.code(), Code::Endbr64 | Code::Endbr32 | Code::INVALID)
        // The shadow stack has a return address more too.
        && !matches!(instruction.code(), Code::Rdsspd_r32 | Code::Rdsspq_r64 | Code::Incsspd_r32 | Code::Incsspq_r64)
        && instruction.mnemonic() != iced_x86::Mnemonic::Nop;
    if !is_plain {
        return false;
    }
    let info = infos.info(instruction);
    let is_kept = |register: Register| {
        let kept = [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
        kept.contains(&register)
    };
    let is_free = |register: Register, access: OpAccess| {
        let writes = !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
        let full = register.full_register();
        !(writes && (full == Register::RSP || is_kept(full)))
    };
    info.used_registers().iter().all(|used| is_free(used.register(), used.access()))
}

/// Whether an instruction reads or writes memory, or may stop otherwise.
fn may_fault(instruction: &Instruction) -> bool {
    let is_lea = instruction.mnemonic() == iced_x86::Mnemonic::Lea;
    let divides = matches!(instruction.mnemonic(), iced_x86::Mnemonic::Div | iced_x86::Mnemonic::Idiv);
    let is_memory = |operand| {
        !matches!(
            instruction.op_kind(operand),
            OpKind::Register
                | OpKind::Immediate8
                | OpKind::Immediate8_2nd
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate64
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
        )
    };
    divides || !is_lea && (0..instruction.op_count()).any(is_memory)
}

/// What unwinders find in a range of code.
struct Described<'a> {
    rows: FrameRows<'a>,
    sites: &'a [CallSite],
}

impl<'a> Described<'a> {
    /// `None` where it is not understood, or nothing is said.
    fn of(program: &'a Program, range: u32) -> Option<Self> {
        let fde = program.unwind.fdes.get(program.ranges[range as usize].fde?)?;
        if fde.opaque_lsda.is_some() {
            return None;
        }
        let rows = FrameRows::evaluate(program.unwind.cies.get(fde.cie as usize)?, fde)?;
        let sites = match fde.lsda {
            Some(lsda) => &program.unwind.lsdas.get(lsda as usize)?.call_sites[..],
            None => &[],
        };
        Some(Self { rows, sites })
    }

    /// Whether who unwinds from an instruction finds what is found at the call behind it.
    fn is_as_at(&self, (at, instruction): (Va, &Instruction), call: Va) -> bool {
        let handlers = |va: Va| {
            let site = self.sites.iter().rfind(|site| site.start <= va).filter(|site| va < site.end);
            site.map(|site| (site.landing_pad, site.action))
        };
        self.rows.at(at) == self.rows.at(call) && (!may_fault(instruction) || handlers(at) == handlers(call))
    }
}
