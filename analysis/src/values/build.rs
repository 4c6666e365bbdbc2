//! A procedure of the program, decoded and translated.
//!
//! **What is not understood.** A procedure is opaque if some of its bytes are no instructions, if a jump's targets are not known, or if the lifter pinned it
//! for a reason that says that control may arrive where it can't be seen. Nothing is claimed of it.
//!
//! **Where control arrives.** The entry; arrivals (see `procedures`), where nothing is known of any register, `rsp` included; landing pads, where an
//! exception of one of the calls arrives.

use lifter::Image;
use lifter::Va;
use lifter::entity::Block;
use lifter::ir::{BlockFlags, CodeTarget, PinReason, Program, StopKind, Terminator};
use lifter::x86::decode_block;

use super::code::{Call, Callee, CodeBlock, Effect, Exit, Instruction, ProcedureCode};
use super::translate::Translator;
use crate::domain::base::MAX_DEFINITIONS;
use crate::library::Library;
use crate::procedures::{Procedure, Procedures, has_unwind_entry, targets};

/// What translation asks about the rest of the program.
#[derive(Debug)]
pub struct Surroundings<'a> {
    pub image: &'a Image<'a>,
    pub program: &'a Program,
    pub library: Library,
    pub procedures: Procedures,
}

impl<'a> Surroundings<'a> {
    pub fn new(image: &'a Image<'a>, program: &'a Program) -> Self {
        Surroundings { image, program, library: Library::find(image), procedures: Procedures::find(image, program) }
    }

    /// Whom a direct call or jump to an address reaches.
    fn callee_at(&self, target: Va) -> Callee {
        if let Some(known) = self.library.at(target) {
            return Callee::Library(known);
        }
        if self.library.is_stub(target) {
            return Callee::Boundary;
        }
        match self.program.block_containing(target) {
            Some(block) => self.callee_of(block, target),
            // Outside everything lifted: code that is not understood has blocks too.
            None => Callee::Boundary,
        }
    }

    fn callee_of(&self, block: Block, target: Va) -> Callee {
        let data = &self.program.blocks[block];
        let is_start = data.start == target && !data.flags.contains(BlockFlags::THUNK);
        self.procedures.at(block).filter(|_| is_start).map_or(Callee::Inside, Callee::Local)
    }

    fn callee_of_target(&self, target: CodeTarget) -> Callee {
        match target {
            CodeTarget::Block(block) => self.callee_of(block, self.program.blocks[block].start),
            CodeTarget::Fixed(va) => self.callee_at(va),
        }
    }

    fn callee_of_call(&self, instruction: &iced_x86::Instruction) -> Callee {
        if instruction.is_call_near() {
            return self.callee_at(Va(instruction.near_branch_target()));
        }
        let slot = instruction.is_ip_rel_memory_operand().then(|| Va(instruction.ip_rel_memory_address()));
        slot.and_then(|slot| self.library.at(slot)).map_or(Callee::Boundary, Callee::Library)
    }
}

/// Whether a pin says that control may arrive in a function, or that its bytes may be, what can't be seen.
fn makes_opaque(reason: PinReason, has_unwind_entry: bool) -> bool {
    match reason {
        PinReason::LinkerSection
        | PinReason::ShortReach
        | PinReason::UnprovenPointers
        | PinReason::NotWorthMoving
        | PinReason::TableAddressUsed
        | PinReason::AddressArithmetic => false,
        // It may be that only a gap between procedures is without one.
        PinReason::NoBounds => !has_unwind_entry,
        PinReason::Undecodable
        | PinReason::DataInText
        | PinReason::UnresolvedJump
        | PinReason::MayBeTableTarget
        | PinReason::MidInstructionTarget
        | PinReason::SignalTrampoline
        | PinReason::UnknownMetadata
        | PinReason::UnwindNotUnderstood
        // What the loader writes there is not in the file.
        | PinReason::TextRelocation
        // Who looks the frame up may change what is in it.
        | PinReason::ReturnAddressNamed
        // Who finds the program interrupted there may do so too.
        | PinReason::PlaceNamed => true,
    }
}

/// Decodes and translates a procedure.
pub fn build(around: &Surroundings<'_>, procedure: Procedure) -> ProcedureCode {
    let program = around.program;
    let data = around.procedures.all[procedure];
    let blocks = around.procedures.reach(program, procedure);
    let mut builder = CodeBuilder {
        around,
        translator: Translator::new(around.image.kind.is_position_independent()),
        entry: data.entry,
        code: ProcedureCode {
            procedure,
            blocks: Vec::with_capacity(blocks.len()),
            entry: number_of(&blocks, data.entry).unwrap_or(0),
            instructions: Vec::new(),
            references: Vec::new(),
            calls: Vec::new(),
            order: Vec::new(),
            is_opaque: {
                let has_unwind_entry = has_unwind_entry(program, data.entry);
                program.funcs[data.func].pin.is_some_and(|reason| makes_opaque(reason, has_unwind_entry))
                    || program.blocks[data.entry].flags.contains(BlockFlags::KNOWN_BY_FAULT)
            },
            has_unknown_landings: false,
        },
    };
    for &block in &blocks {
        builder.push_block(block, &blocks);
    }
    let mut code = builder.code;
    code.is_opaque |= code.instructions.len() > MAX_DEFINITIONS || code.blocks.len() > MAX_DEFINITIONS;
    if code.blocks.iter().any(|b| b.is_landing_pad) {
        code.has_unknown_landings = has_unknown_landings(program, &code);
    }
    code.order = reverse_postorder(&code);
    code
}

fn number_of(blocks: &[Block], block: Block) -> Option<u32> {
    blocks.binary_search(&block).ok().map(|n| n as u32)
}

struct CodeBuilder<'a> {
    around: &'a Surroundings<'a>,
    translator: Translator,
    entry: Block,
    code: ProcedureCode,
}

impl CodeBuilder<'_> {
    /// Whether going to a block stays in the procedure.
    fn stays(&self, from: Block, to: Block) -> bool {
        let program = self.around.program;
        program.func_of(to) == program.func_of(from) && (to == self.entry || self.around.procedures.at(to).is_none())
    }

    fn push_block(&mut self, block: Block, blocks: &[Block]) {
        let program = self.around.program;
        let data = &program.blocks[block];
        let first = self.code.instructions.len() as u32;
        let mut end = data.start;
        for instruction in decode_block(self.around.image, program, block) {
            end = Va(instruction.next_ip());
            self.push_instruction(&instruction);
        }
        self.code.is_opaque |= end != data.end() || data.terminator == Terminator::Stop(StopKind::Unknown);
        let targets = program.block_edges(block).iter().map(|e| e.target);
        let (own, others): (Vec<Block>, Vec<Block>) = targets.partition(|&target| self.stays(block, target));
        let mut successors: Vec<u32> = own.into_iter().filter_map(|target| number_of(blocks, target)).collect();
        successors.sort_unstable();
        successors.dedup();
        let exits = self.exits(block, others);
        self.code.blocks.push(CodeBlock {
            block,
            instructions: (first, self.code.instructions.len() as u32),
            successors,
            exits,
            is_arrival: self.around.procedures.is_arrival(block),
            is_landing_pad: data.flags.contains(BlockFlags::LANDING_PAD),
        });
    }

    fn push_instruction(&mut self, instruction: &iced_x86::Instruction) {
        let number = self.code.instructions.len() as u32;
        let first = self.code.references.len() as u32;
        let translated = self.translator.translate(instruction, number, &mut self.code.references);
        // Where a transaction that fails comes out is no edge.
        self.code.is_opaque |= instruction.mnemonic() == iced_x86::Mnemonic::Xbegin;
        let is_call = instruction.is_call_near() || instruction.is_call_near_indirect();
        let effect = match is_call {
            true => Effect::Call(self.push_call(self.around.callee_of_call(instruction), instruction.next_ip())),
            // Far calls, software interrupts and their kin: nothing is known of what comes back.
            false if is_strange(instruction) => Effect::Call(self.push_call(Callee::Inside, instruction.next_ip())),
            false => translated,
        };
        let references = (first, self.code.references.len() as u32);
        self.code.instructions.push(Instruction { at: instruction.ip(), references, effect });
    }

    fn push_call(&mut self, callee: Callee, at: u64) -> u32 {
        self.code.calls.push(Call { callee, at });
        (self.code.calls.len() - 1) as u32
    }

    /// The ways out of a block; `others` are the procedures of the same function that edges lead to.
    fn exits(&mut self, block: Block, others: Vec<Block>) -> Vec<Exit> {
        let program = self.around.program;
        let data = &program.blocks[block];
        let at = self.code.instructions.last().map_or(data.start.0, |i| i.at);
        let mut leaving: Vec<Callee> = others.into_iter().map(|b| self.around.callee_of_target(CodeTarget::Block(b))).collect();
        match data.terminator {
            Terminator::Stop(StopKind::Return) => {
                let bytes = self.around.image.read(Va(at), (data.end().0 - at) as usize).unwrap_or(&[]);
                return vec![Exit::Return { extra: popped_by_return(bytes) }];
            }
            Terminator::Stop(StopKind::IndirectTailCall) => leaving.push(Callee::Boundary),
            Terminator::Jump { target: CodeTarget::Fixed(va) } | Terminator::Branch { taken: CodeTarget::Fixed(va), .. } => {
                leaving.push(self.around.callee_at(va));
            }
            _ => {}
        }
        // Edges don't leave the function.
        let beyond = targets(&data.terminator, program).into_iter().filter(|&b| program.func_of(b) != data.func);
        leaving.extend(beyond.map(|b| self.around.callee_of_target(CodeTarget::Block(b))));
        let mut exits: Vec<Exit> = Vec::with_capacity(leaving.len());
        for callee in leaving {
            let call = self.push_call(callee, data.end().0);
            exits.push(Exit::Tail(call));
        }
        exits
    }
}

/// The operand of `ret imm16`.
fn popped_by_return(bytes: &[u8]) -> i64 {
    let at = bytes.iter().position(|b| matches!(b, 0xc2 | 0xc3)).unwrap_or(0);
    match bytes.get(at..) {
        Some([0xc2, low, high, ..]) => i64::from(u16::from_le_bytes([*low, *high])),
        _ => 0,
    }
}

/// Control leaves and comes back in ways that are no calls, or the stack is not what it was.
fn is_strange(instruction: &iced_x86::Instruction) -> bool {
    use iced_x86::Mnemonic::*;
    let is_call = matches!(instruction.flow_control(), iced_x86::FlowControl::Call | iced_x86::FlowControl::IndirectCall);
    is_call && instruction.mnemonic() != Syscall || matches!(instruction.mnemonic(), Int | Int1 | Sysenter | Iretq | Iretd)
}

fn has_unknown_landings(program: &Program, code: &ProcedureCode) -> bool {
    /// `DW_CFA_GNU_args_size`: the unwinder moves the stack pointer.
    const ARGS_SIZE: u8 = 0x2e;
    let mut calls: Vec<u64> = code.calls.iter().map(|c| c.at).collect();
    calls.sort_unstable();
    let mut pads: Vec<Va> = Vec::new();
    let mut ranges: Vec<u32> = code.blocks.iter().map(|b| program.blocks[b.block].range).collect();
    ranges.sort_unstable();
    ranges.dedup();
    for range in ranges {
        let Some(fde) = program.ranges[range as usize].fde.map(|fde| &program.unwind.fdes[fde]) else { continue };
        if fde.ops.iter().any(|op| op.bytes.first() == Some(&ARGS_SIZE)) || fde.opaque_lsda.is_some() {
            return true;
        }
        let sites = fde.lsda.and_then(|l| program.unwind.lsdas.get(l as usize)).map_or(&[][..], |l| &l.call_sites);
        for site in sites.iter().filter(|s| s.landing_pad.is_some()) {
            let after = calls.partition_point(|&at| at <= site.start.0);
            if calls.get(after).is_none_or(|&at| at > site.end.0) {
                return true;
            }
            pads.extend(site.landing_pad);
        }
    }
    pads.sort_unstable();
    // One that the tables of this function don't name belongs to another's.
    let is_own = |b: &CodeBlock| pads.binary_search(&program.blocks[b.block].start).is_ok();
    !code.blocks.iter().filter(|b| b.is_landing_pad).all(is_own)
}

fn reverse_postorder(code: &ProcedureCode) -> Vec<u32> {
    let count = code.blocks.len();
    let mut is_seen = vec![false; count];
    let mut postorder = Vec::with_capacity(count);
    let roots = std::iter::once(code.entry).chain((0..count as u32).filter(|&b| b != code.entry));
    // Roots that come first have to be last in postorder: the entry is walked after all others that it does not reach.
    let mut trees: Vec<Vec<u32>> = Vec::new();
    for root in roots {
        if std::mem::replace(&mut is_seen[root as usize], true) {
            continue;
        }
        let mut tree = Vec::new();
        let mut stack = vec![(root, 0usize)];
        while let Some((block, next)) = stack.pop() {
            match code.blocks[block as usize].successors.get(next) {
                Some(&successor) => {
                    stack.push((block, next + 1));
                    if !std::mem::replace(&mut is_seen[successor as usize], true) {
                        stack.push((successor, 0));
                    }
                }
                None => tree.push(block),
            }
        }
        trees.push(tree);
    }
    for tree in trees.into_iter().rev() {
        postorder.extend(tree);
    }
    postorder.reverse();
    postorder
}
