//! Cuts a cluster into blocks, with addresses still in place of ids.
//!
//! **Method.** Each unit is decoded once more. A block ends before every leader (an address that anything names) and
//! after every instruction that ends the flow. No-ops between a block and an aligned leader, or behind an instruction that never
//! falls through, are padding and belong to no block; a no-op that something names is never padding.
//!
//! **Instructions that fault by what they are** (`ud2`, `hlt`). A handler may step over them: who emulates them does, or asserts, reports and goes on. Nothing in the code tells that from
//! the end of what crashes, so execution goes on behind them where it may, by all that is known: in the same unit, where the frame is still the same by the unwind entry, and unless nothing leads to the instruction at all, as
//! behind a call that does not come back.

use iced_x86::{ConstantOffsets, Decoder, DecoderOptions, Instruction, Mnemonic};
use object::elf;
use xxhash_rust::xxh3::Xxh3;

use crate::address::Va;
use crate::cfg::tables::Dispatch;
use crate::discover::clusters::following;
use crate::discover::names::Names;
use crate::discover::registered::NamesInUnwind;
use crate::discover::split_stack::Growth;
use crate::discover::stubs::Stubs;
use crate::discover::survey::Survey;
use crate::discover::units::{Unit, UnitData, Units, unit_at};
use crate::elf::cfi;
use crate::elf::image::StaticReloc;
use crate::elf::{Image, Unwind};
use crate::entity::EntityId;
use crate::ir::{BlockFlags, Condition, Evidence, RefKind, RefRole, StopKind};
use crate::x86::{Flow, flow_of, is_nop};

/// How a block ends, by address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum DraftEnd {
    Fallthrough(Va),
    Jump(Va),
    Branch(Condition, Va, Va),
    Loop(Va, Va),
    /// Through the table at this address.
    Table(Va),
    Stop(StopKind),
}

#[derive(Clone, Debug)]
pub(crate) struct DraftBlock {
    pub(crate) start: Va,
    pub(crate) unit: Unit,
    pub(crate) body_len: u32,
    pub(crate) len: u32,
    pub(crate) num_insts: u32,
    pub(crate) flags: BlockFlags,
    pub(crate) end: DraftEnd,
    /// Its last instruction faults by what it is.
    pub(crate) faults: bool,
    /// Into the draft's `refs`.
    pub(crate) refs: std::ops::Range<u32>,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct DraftRef {
    pub(crate) offset: u32,
    pub(crate) to_end: u8,
    pub(crate) kind: RefKind,
    pub(crate) role: RefRole,
    pub(crate) evidence: Evidence,
    pub(crate) target: Va,
    /// The instruction.
    pub(crate) at: Va,
}

/// The blocks of a cluster, ascending by address.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) blocks: Vec<DraftBlock>,
    pub(crate) refs: Vec<DraftRef>,
    pub(crate) content_hash: u64,
    /// Execution runs past the end of the last unit of a section, or an instruction's fields are not understood.
    pub(crate) is_broken: bool,
}

#[derive(Copy, Clone)]
pub(crate) struct Builder<'i> {
    pub(crate) image: &'i Image<'i>,
    pub(crate) unwind: &'i Unwind,
    pub(crate) units: &'i Units,
    pub(crate) surveys: &'i [Survey],
    pub(crate) stubs: &'i Stubs,
    pub(crate) names: &'i Names,
    pub(crate) use_static_relocs: bool,
    /// `(instruction, table)`, ascending: fields that hold the address of a table.
    pub(crate) table_names: &'i [(Va, Va)],
    pub(crate) names_in_unwind: &'i NamesInUnwind,
    /// `(jump, where)`, ascending.
    pub(crate) dispatches: &'i [(Va, Dispatch)],
    /// Whether a jump of the closed set may go to an address-taken block inside this cluster.
    pub(crate) has_labels: bool,
}

/// A unit of so many bytes is decoded once, and its instructions are kept while it is cut.
const KEPT_BYTES_MAX: usize = 1 << 18;

fn each_instruction(bytes: &[u8], start: Va, mut visit: impl FnMut(Instruction, ConstantOffsets)) {
    let mut decoder = Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        visit(instruction, decoder.get_constant_offsets(&instruction));
    }
}

impl Builder<'_> {
    pub(crate) fn build(&self, members: &[Unit]) -> Draft {
        let (mut draft, mut decoded) = (Draft::default(), Vec::new());
        for &unit in members {
            if self.surveys[unit.index()].is_opaque() {
                self.push_opaque(unit, &mut draft);
            } else {
                self.cut_unit(unit, &mut decoded, &mut draft);
            }
        }
        draft.content_hash = self.hash(&draft);
        // All drafts wait for the last one.
        draft.blocks.shrink_to_fit();
        draft.refs.shrink_to_fit();
        draft
    }

    fn push_opaque(&self, unit: Unit, draft: &mut Draft) {
        let data = &self.units[unit];
        let at = draft.refs.len() as u32;
        draft.blocks.push(DraftBlock {
            start: data.start,
            unit,
            body_len: data.len() as u32,
            len: data.len() as u32,
            num_insts: 0,
            flags: BlockFlags::empty(),
            end: DraftEnd::Stop(StopKind::Unknown),
            faults: false,
            refs: at..at,
        });
    }

    /// `decoded` is room for the unit's instructions.
    fn cut_unit(&self, unit: Unit, decoded: &mut Vec<(Instruction, ConstantOffsets, Flow)>, draft: &mut Draft) {
        let data = &self.units[unit];
        let bytes = self.image.read(data.start, data.len()).unwrap_or(&[]);
        let is_kept = data.len() <= KEPT_BYTES_MAX;
        decoded.clear();
        let mut leaders = vec![data.start];
        leaders.extend(self.names.within(data.start, data.end).iter().map(|n| n.0));
        each_instruction(bytes, data.start, |instruction, offsets| {
            let flow = flow_of(&instruction);
            if let Flow::Jump(target) | Flow::Branch(_, target) | Flow::Loop(target) = flow
                && data.start <= target
                && target < data.end
            {
                leaders.push(target);
            }
            if is_kept {
                decoded.push((instruction, offsets, flow));
            }
        });
        leaders.sort_unstable();
        leaders.dedup();
        let relocs = if self.use_static_relocs { self.image.static_relocs_in(data.start, data.end) } else { &[] };
        let mut cutter = Cutter {
            builder: self,
            unit,
            data,
            relocs,
            open: None,
            trailing_nops: (0, 0),
            ends_in_breakpoint: false,
            growth: Growth::default(),
            draft,
        };
        let mut leaders = leaders.into_iter().peekable();
        let mut push = |instruction: &Instruction, offsets: &ConstantOffsets, flow: Flow| {
            let at = Va(instruction.ip());
            while leaders.next_if(|&leader| leader < at).is_some() {}
            if leaders.next_if_eq(&at).is_some() {
                cutter.close_before(at);
                cutter.open(at);
            }
            cutter.push(instruction, offsets, flow);
        };
        match is_kept {
            true => decoded.iter().for_each(|(instruction, offsets, flow)| push(instruction, offsets, *flow)),
            false => each_instruction(bytes, data.start, |instruction, offsets| {
                push(&instruction, &offsets, flow_of(&instruction));
            }),
        }
        cutter.close_at_end();
    }

    /// Whether the unwind entry has another frame from a place in `from..=to` on: then execution does not come there from right before.
    fn changes_frame(&self, unit: &UnitData, from: Va, to: Va) -> bool {
        let Some(fde) = unit.fde().map(|fde| &self.unwind.fdes[fde]) else { return false };
        let ops = &fde.ops[fde.ops.partition_point(|op| op.at < from)..];
        let data_alignment = self.unwind.cies[fde.cie as usize].data_alignment;
        let changes = |bytes| {
            use cfi::Instruction::{ArgsSize, Nop, RememberState};
            !matches!(cfi::Instruction::decode(bytes, data_alignment), Some((RememberState | ArgsSize(_) | Nop, _)))
        };
        ops.iter().take_while(|op| op.at <= to).any(|op| changes(&op.bytes))
    }

    fn stop_kind(&self, instruction: &Instruction) -> DraftEnd {
        if instruction.is_ip_rel_memory_operand() {
            return DraftEnd::Stop(StopKind::IndirectTailCall);
        }
        let at = Va(instruction.ip());
        let dispatch = self.dispatches.binary_search_by_key(&at, |d| d.0).map(|i| self.dispatches[i].1);
        match dispatch {
            Ok(Dispatch::Table(table)) => DraftEnd::Table(table),
            Ok(Dispatch::Closed | Dispatch::Pointer) if self.has_labels => DraftEnd::Stop(StopKind::ComputedJump),
            Ok(Dispatch::Closed | Dispatch::Pointer) => DraftEnd::Stop(StopKind::IndirectTailCall),
            _ => DraftEnd::Stop(StopKind::Unknown),
        }
    }

    /// Whether an indirect jump goes where a word says that was made when the program ran.
    fn is_led_by_pointer(&self, jump: Va) -> bool {
        self.dispatches.binary_search_by_key(&jump, |d| d.0).is_ok_and(|i| self.dispatches[i].1 == Dispatch::Pointer)
    }

    /// Bytes with references and branch displacements masked, then the shape of the control flow.
    fn hash(&self, draft: &Draft) -> u64 {
        let mut hasher = Xxh3::new();
        let mut bytes = Vec::new();
        let ordinal = |va: Va| draft.blocks.binary_search_by_key(&va, |b| b.start).map_or(u32::MAX, |i| i as u32);
        for block in &draft.blocks {
            bytes.clear();
            bytes.extend_from_slice(self.image.read(block.start, block.body_len as usize).unwrap_or(&[]));
            for reference in &draft.refs[block.refs.start as usize..block.refs.end as usize] {
                let width = if reference.kind == RefKind::Abs64 { 8 } else { 4 };
                let start = reference.offset as usize;
                if let Some(field) = bytes.get_mut(start..start + width) {
                    field.fill(0);
                }
            }
            hasher.update(&bytes);
            let shape: [u32; 4] = match block.end {
                DraftEnd::Fallthrough(next) => [0, 0, ordinal(next), 0],
                DraftEnd::Jump(target) => [1, 0, ordinal(target), 0],
                DraftEnd::Branch(condition, taken, next) => [2, u32::from(condition.0), ordinal(taken), ordinal(next)],
                DraftEnd::Loop(taken, next) => [3, block.len - block.body_len, ordinal(taken), ordinal(next)],
                DraftEnd::Table(_) => [4, 0, 0, 0],
                DraftEnd::Stop(_) => [5, 0, 0, 0],
            };
            for word in shape {
                hasher.update(&word.to_le_bytes());
            }
        }
        hasher.digest()
    }
}

/// The walk over one unit.
struct Cutter<'b, 'i> {
    builder: &'b Builder<'i>,
    unit: Unit,
    data: &'b UnitData,
    /// From the one of the last instruction on.
    relocs: &'b [StaticReloc],
    /// The block that is being filled.
    open: Option<DraftBlock>,
    /// No-ops at its end: instructions and bytes.
    trailing_nops: (u32, u32),
    /// Nothing but breakpoints and no-ops stand at its end, and at least one breakpoint.
    ends_in_breakpoint: bool,
    growth: Growth,
    draft: &'b mut Draft,
}

impl Cutter<'_, '_> {
    fn open(&mut self, at: Va) {
        self.fall_through_padding_to(at);
        let refs = self.draft.refs.len() as u32;
        self.trailing_nops = (0, 0);
        self.ends_in_breakpoint = false;
        self.open = Some(DraftBlock {
            start: at,
            unit: self.unit,
            body_len: 0,
            len: 0,
            num_insts: 0,
            flags: BlockFlags::empty(),
            end: DraftEnd::Stop(StopKind::Unknown),
            faults: false,
            refs: refs..refs,
        });
    }

    /// Whether the last block runs on behind its end.
    fn is_fallen_into(&self) -> bool {
        let last = self.draft.blocks.last().filter(|b| b.unit == self.unit);
        last.is_some_and(|b| matches!(b.end, DraftEnd::Branch(..) | DraftEnd::Loop(..) | DraftEnd::Fallthrough(_)))
    }

    /// No-ops between a conditional branch, or an instruction that faults, and what follows it are padding: it falls through to what follows them.
    fn fall_through_padding_to(&mut self, at: Va) {
        let Some(block) = self.draft.blocks.last_mut().filter(|b| b.unit == self.unit) else { return };
        match &mut block.end {
            DraftEnd::Branch(_, _, next) | DraftEnd::Loop(_, next) => *next = at,
            DraftEnd::Fallthrough(next) if block.faults => match self.builder.changes_frame(self.data, *next, at) {
                true => block.end = DraftEnd::Stop(StopKind::Trap),
                false => *next = at,
            },
            _ => {}
        }
    }

    fn push(&mut self, instruction: &Instruction, offsets: &ConstantOffsets, flow: Flow) {
        let goes_on = self.growth.goes_on_behind(instruction, flow);
        let is_padding = is_nop(instruction);
        let is_unreached = self.open.is_none() && !self.is_fallen_into();
        if self.open.is_none() {
            // Nothing names it: where nothing falls into it either, a breakpoint fills a gap as a no-op does.
            if is_padding || instruction.mnemonic() == Mnemonic::Int3 && is_unreached {
                return;
            }
            self.open(Va(instruction.ip()));
        }
        self.push_refs(instruction, offsets, flow);
        let Some(block) = &mut self.open else { return };
        let len = instruction.len() as u32;
        if block.num_insts == 0 && instruction.mnemonic() == Mnemonic::Endbr64 {
            block.flags |= BlockFlags::ENDBR;
        }
        block.num_insts += 1;
        block.len += len;
        if is_padding {
            self.trailing_nops = (self.trailing_nops.0 + 1, self.trailing_nops.1 + len);
        } else {
            self.trailing_nops = (0, 0);
            self.ends_in_breakpoint = instruction.mnemonic() == Mnemonic::Int3;
        }
        let next = Va(instruction.next_ip());
        let is_last = next == self.data.end;
        if matches!(flow, Flow::Call(_) | Flow::IndirectCall) {
            block.flags |= BlockFlags::HAS_CALL;
        }
        if flow == Flow::IndirectJump && self.builder.is_led_by_pointer(Va(instruction.ip())) {
            block.flags |= BlockFlags::LED_BY_POINTER;
        }
        let end = match flow {
            Flow::Jump(target) => (DraftEnd::Jump(target), len),
            Flow::Branch(condition, target) => {
                // One that is made anew has no prefix, and this one keeps the bounds registers (C libraries of 2016 to 2021, where the loader binds symbols).
                self.draft.is_broken |= instruction.has_repne_prefix();
                (DraftEnd::Branch(condition, target, next), len)
            }
            Flow::Loop(target) => {
                // Its 8 bits reach no place outside the program once it has moved.
                self.draft.is_broken |= unit_at(self.builder.units, target).is_none();
                (DraftEnd::Loop(target, next), len)
            }
            Flow::Return if goes_on && !is_last => return,
            Flow::Return => (DraftEnd::Stop(StopKind::Return), 0),
            Flow::Trap => {
                block.faults = true;
                let ends = is_last || is_unreached && block.num_insts == 1;
                (if ends { DraftEnd::Stop(StopKind::Trap) } else { DraftEnd::Fallthrough(next) }, 0)
            }
            Flow::IndirectJump => (self.builder.stop_kind(instruction), 0),
            Flow::Call(_) | Flow::IndirectCall
                if self.builder.units.ends_behind_call(self.data, next) || self.is_no_return(instruction, flow) =>
            {
                (DraftEnd::Stop(StopKind::NoReturnCall), 0)
            }
            // What a compiler ends a function with is not meant to be run past.
            _ if is_last && self.ends_in_breakpoint => (DraftEnd::Stop(StopKind::Trap), 0),
            _ => return,
        };
        let successor = match end.0 {
            DraftEnd::Branch(..) | DraftEnd::Loop(..) if is_last => self.after_unit(),
            _ => Some(next),
        };
        let end = match (end.0, successor) {
            (DraftEnd::Branch(condition, target, _), Some(next)) => (DraftEnd::Branch(condition, target, next), end.1),
            (DraftEnd::Loop(target, _), Some(next)) => (DraftEnd::Loop(target, next), end.1),
            (_, None) => {
                self.draft.is_broken = true;
                (DraftEnd::Stop(StopKind::Unknown), 0)
            }
            _ => end,
        };
        self.close(end.0, end.1);
    }

    fn is_no_return(&self, instruction: &Instruction, flow: Flow) -> bool {
        match flow {
            Flow::Call(target) => self.builder.stubs.is_no_return(target),
            _ => {
                instruction.is_ip_rel_memory_operand() && self.builder.stubs.is_no_return(Va(instruction.ip_rel_memory_address()))
            }
        }
    }

    /// Where execution goes that runs past the unit's end.
    fn after_unit(&self) -> Option<Va> {
        following(self.builder.units, self.unit).map(|next| self.builder.units[next].start)
    }

    fn close(&mut self, end: DraftEnd, terminator_len: u32) {
        let Some(mut block) = self.open.take() else { return };
        block.end = end;
        block.body_len = block.len - terminator_len;
        block.refs.end = self.draft.refs.len() as u32;
        self.draft.blocks.push(block);
    }

    /// A leader follows: the open block falls into it, padding aside.
    fn close_before(&mut self, leader: Va) {
        if leader.0.is_multiple_of(8) {
            self.trim();
        }
        self.close(DraftEnd::Fallthrough(leader), 0);
    }

    fn trim(&mut self) {
        let (count, bytes) = self.trailing_nops;
        if let Some(block) = &mut self.open
            && block.num_insts > count
        {
            block.num_insts -= count;
            block.len -= bytes;
            // A no-op may have an operand, which went with it.
            let first = block.refs.start as usize;
            let kept = self.draft.refs[first..].partition_point(|r| r.offset < block.len);
            self.draft.refs.truncate(first + kept);
        }
    }

    fn close_at_end(&mut self) {
        let falls_through = |b: &DraftBlock| matches!(b.end, DraftEnd::Branch(..) | DraftEnd::Loop(..));
        let is_open = self.open.is_some();
        if is_open && !self.builder.surveys[self.unit.index()].falls_out {
            // Behind the last instruction that ends the flow lie breakpoints only.
            return self.close(DraftEnd::Stop(StopKind::Trap), 0);
        }
        if let Some(last) = self.draft.blocks.last_mut().filter(|last| !is_open && last.faults) {
            last.end = DraftEnd::Stop(StopKind::Trap);
        }
        if !is_open && !self.draft.blocks.last().is_some_and(falls_through) {
            return;
        }
        match self.after_unit() {
            Some(next) if is_open => {
                self.trim();
                self.close(DraftEnd::Fallthrough(next), 0);
            }
            Some(next) => self.fall_through_padding_to(next),
            None => {
                self.draft.is_broken = true;
                self.close(DraftEnd::Stop(StopKind::Unknown), 0);
            }
        }
    }

    fn push_refs(&mut self, instruction: &Instruction, offsets: &ConstantOffsets, flow: Flow) {
        let Some(block) = &self.open else { return };
        let within = (instruction.ip() - block.start.0) as u32;
        let len = instruction.len();
        let at = Va(instruction.ip());
        while let Some((_, rest)) = self.relocs.split_first().filter(|(first, _)| first.at < at) {
            self.relocs = rest;
        }
        let count = self.relocs.iter().take_while(|r| r.at.0 < instruction.next_ip()).count();
        let relocs = &self.relocs[..count];
        let evidence = if relocs.is_empty() { Evidence::Derived } else { Evidence::Exact };
        let mut push = |offset: usize, kind: RefKind, role: RefRole, target: Va| {
            let to_end = (len - offset) as u8;
            self.draft.refs.push(DraftRef { offset: within + offset as u32, to_end, kind, role, evidence, target, at });
        };
        if let Flow::Call(target) | Flow::Begin(target) = flow {
            if offsets.immediate_size() != 4 {
                self.draft.is_broken = true;
                return;
            }
            let role = if matches!(flow, Flow::Call(_)) { RefRole::Call } else { RefRole::Branch };
            push(offsets.immediate_offset(), RefKind::Rel32, role, target);
        } else if instruction.is_ip_rel_memory_operand() {
            let target = Va(instruction.ip_rel_memory_address());
            push(offsets.displacement_offset(), RefKind::Rel32, role_of_operand(instruction, flow), target);
        }
        if self.builder.image.kind.is_position_independent() {
            return;
        }
        // Few instructions have a field that an address has room in.
        let has_room = offsets.displacement_size() >= 4 || offsets.immediate_size() >= 4;
        if has_room
            && !instruction.is_ip_rel_memory_operand()
            && let Ok(named) = self.builder.table_names.binary_search_by_key(&at, |n| n.0)
        {
            let table = self.builder.table_names[named].1;
            let is_operand = instruction.memory_displacement64() == table.0 && offsets.has_displacement();
            let (offset, size, role) = match is_operand {
                true => (offsets.displacement_offset(), offsets.displacement_size(), role_of_operand(instruction, flow)),
                false => (offsets.immediate_offset(), offsets.immediate_size(), RefRole::Address),
            };
            let kind = if size == 8 { RefKind::Abs64 } else { RefKind::Abs32S };
            push(offset, kind, role, table);
            return;
        }
        if let Some(table) = self.builder.names_in_unwind.registered_at(at).filter(|_| !instruction.is_ip_rel_memory_operand()) {
            return push(offsets.immediate_offset(), RefKind::Abs32, RefRole::Address, table);
        }
        for reloc in relocs {
            let (kind, target) = match reloc.r_type {
                elf::R_X86_64_32 => (RefKind::Abs32, self.builder.image.read_u32(reloc.at).map(u64::from)),
                elf::R_X86_64_32S => (RefKind::Abs32S, self.builder.image.read_u32(reloc.at).map(|v| v as i32 as i64 as u64)),
                elf::R_X86_64_64 => (RefKind::Abs64, self.builder.image.read_u64(reloc.at)),
                _ => continue,
            };
            let Some(target) = target.map(Va).filter(|&target| unit_at(self.builder.units, target).is_some()) else { continue };
            let offset = (reloc.at - at) as usize;
            let width = if kind == RefKind::Abs64 { 8 } else { 4 };
            // A branch has no room for an absolute field, and a field ends with its instruction at the latest.
            if matches!(flow, Flow::Jump(_) | Flow::Branch(..) | Flow::Loop(_)) || offset + width > len {
                self.draft.is_broken = true;
                return;
            }
            push(offset, kind, RefRole::Address, target);
        }
    }
}

/// What a reference in an instruction's memory operand does with the place.
fn role_of_operand(instruction: &Instruction, flow: Flow) -> RefRole {
    match flow {
        Flow::IndirectCall | Flow::IndirectJump => RefRole::IndirectThroughSlot,
        _ if instruction.mnemonic() == Mnemonic::Lea => RefRole::Address,
        _ => RefRole::Memory,
    }
}
