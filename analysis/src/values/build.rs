//! A function of the program, decoded and translated.
//!
//! **What is not understood.** A function is opaque if some of its bytes are no instructions, if a jump's targets are not known, or if the lifter pinned it
//! for a reason that says that control may arrive where it can't be seen. Nothing is claimed of it.
//!
//! **Where control arrives.** The entry; a *secondary entry*, where nothing is known of any register, `rsp` included: a block that another function
//! calls or jumps to, that an exported symbol names, or whose address is taken and that no jump of its own function through a table or a computed
//! address goes to; landing pads, where an exception of one of the calls arrives.

use lifter::Image;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockFlags, CodeTarget, PinReason, Program, StopKind, Terminator};
use lifter::x86::decode_block;
use lifter::{Va, ir::EdgeKind};

use super::code::{Call, Callee, CodeBlock, Effect, Exit, FunctionCode, Instruction};
use super::translate::Translator;
use crate::domain::base::MAX_DEFINITIONS;
use crate::library::Library;

/// What translation asks about the rest of the program.
#[derive(Debug)]
pub struct Surroundings<'a> {
    pub image: &'a Image<'a>,
    pub program: &'a Program,
    pub library: Library,
    /// Blocks, no function's entry, at which control may arrive from outside, ascending.
    secondary_entries: Vec<Block>,
}

impl<'a> Surroundings<'a> {
    pub fn new(image: &'a Image<'a>, program: &'a Program) -> Self {
        let mut secondary_entries = Vec::new();
        // An address that a jump of the same function goes to through a table or a computed address is taken for that.
        let mut is_label = vec![false; program.blocks.len()];
        for edge in program.edges.iter().filter(|e| matches!(e.kind, EdgeKind::Computed | EdgeKind::Table)) {
            is_label[edge.target.index()] = true;
        }
        let mut push = |target: Block, from: Option<Func>| {
            let func = program.func_of(target);
            if program.funcs[func].entry != target && from != Some(func) {
                secondary_entries.push(target);
            }
        };
        for (block, data) in program.blocks.iter() {
            for reference in program.block_refs(block) {
                if let (lifter::ir::RefRole::Call, lifter::ir::RefTarget::Block(target)) = (reference.role, reference.target) {
                    push(target, None);
                }
            }
            for target in targets(&data.terminator, program) {
                push(target, Some(data.func));
            }
            let is_taken = data.flags.contains(BlockFlags::ADDRESS_TAKEN) && !is_label[block.index()];
            if is_taken || data.flags.contains(BlockFlags::ANCHOR) {
                push(block, None);
            }
        }
        for symbol in image.dynamic_symbols.iter().filter(|s| s.has_address()) {
            if let Some(block) = program.block_at(Va(symbol.st_value)) {
                push(block, None);
            }
        }
        secondary_entries.sort_unstable();
        secondary_entries.dedup();
        Surroundings { image, program, library: Library::find(image), secondary_entries }
    }

    fn is_secondary_entry(&self, block: Block) -> bool {
        self.secondary_entries.binary_search(&block).is_ok()
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
        let func = self.program.func_of(block);
        let is_entry = self.program.funcs[func].entry == block && self.program.blocks[block].start == target;
        if is_entry { Callee::Local(func) } else { Callee::Inside }
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

    /// Whether control may come to a function from places that are not direct calls and jumps in understood code.
    pub fn has_unknown_callers(&self, func: Func) -> bool {
        let entry = &self.program.blocks[self.program.funcs[func].entry];
        entry.flags.intersects(BlockFlags::ADDRESS_TAKEN | BlockFlags::ANCHOR)
    }
}

/// The blocks that a terminator goes to directly.
pub(crate) fn targets(terminator: &Terminator, program: &Program) -> Vec<Block> {
    let mut list = Vec::new();
    let mut push = |target: CodeTarget| {
        if let CodeTarget::Block(block) = target {
            list.push(block);
        }
    };
    match *terminator {
        Terminator::Fallthrough { next } => push(CodeTarget::Block(next)),
        Terminator::Jump { target } => push(target),
        Terminator::Branch { taken, next, .. } => {
            push(taken);
            push(CodeTarget::Block(next));
        }
        Terminator::Loop { taken, next } => {
            push(CodeTarget::Block(taken));
            push(CodeTarget::Block(next));
        }
        Terminator::Stop(StopKind::TableJump(table)) => list.extend(program.targets_of(table)),
        Terminator::Stop(_) => {}
    }
    list
}

/// Whether a pin says that control may arrive in a function, or that its bytes may be, what can't be seen.
fn makes_opaque(reason: PinReason) -> bool {
    match reason {
        PinReason::LinkerSection | PinReason::ShortReach | PinReason::UnprovenPointers | PinReason::NotWorthMoving => false,
        PinReason::NoBounds
        | PinReason::Undecodable
        | PinReason::DataInText
        | PinReason::UnresolvedJump
        | PinReason::MayBeTableTarget
        | PinReason::MidInstructionTarget
        | PinReason::AddressArithmetic
        | PinReason::SignalTrampoline
        | PinReason::UnknownMetadata
        | PinReason::UnwindNotUnderstood => true,
    }
}

/// Decodes and translates a function.
pub fn build(around: &Surroundings<'_>, func: Func) -> FunctionCode {
    let program = around.program;
    let data = &program.funcs[func];
    let first = data.blocks.as_usize().start;
    let number = |block: Block| (block.index() - first) as u32;
    let mut builder = CodeBuilder {
        around,
        translator: Translator::new(around.image.kind.is_position_independent()),
        code: FunctionCode {
            func,
            blocks: Vec::with_capacity(data.blocks.len()),
            entry: number(data.entry),
            instructions: Vec::new(),
            references: Vec::new(),
            calls: Vec::new(),
            order: Vec::new(),
            is_opaque: data.pin.is_some_and(makes_opaque),
            has_unknown_landings: false,
        },
    };
    for block in data.blocks.iter() {
        builder.push_block(block, number);
    }
    let mut code = builder.code;
    code.is_opaque |= code.instructions.len() > MAX_DEFINITIONS || code.blocks.len() > MAX_DEFINITIONS;
    if code.blocks.iter().any(|b| b.is_landing_pad) {
        code.has_unknown_landings = has_unknown_landings(program, &code);
    }
    code.order = reverse_postorder(&code);
    code
}

struct CodeBuilder<'a> {
    around: &'a Surroundings<'a>,
    translator: Translator,
    code: FunctionCode,
}

impl CodeBuilder<'_> {
    fn push_block(&mut self, block: Block, number: impl Fn(Block) -> u32) {
        let program = self.around.program;
        let data = &program.blocks[block];
        let first = self.code.instructions.len() as u32;
        let mut end = data.start;
        for instruction in decode_block(self.around.image, program, block) {
            end = Va(instruction.next_ip());
            self.push_instruction(&instruction);
        }
        self.code.is_opaque |= end != data.end() || data.terminator == Terminator::Stop(StopKind::Unknown);
        let mut successors: Vec<u32> =
            program.block_edges(block).iter().filter(|e| program.func_of(e.target) == data.func).map(|e| number(e.target)).collect();
        successors.sort_unstable();
        successors.dedup();
        let exits = self.exits(block);
        self.code.blocks.push(CodeBlock {
            block,
            instructions: (first, self.code.instructions.len() as u32),
            successors,
            exits,
            terminator: data.terminator,
            is_secondary_entry: self.around.is_secondary_entry(block),
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

    fn exits(&mut self, block: Block) -> Vec<Exit> {
        let program = self.around.program;
        let data = &program.blocks[block];
        let at = self.code.instructions.last().map_or(data.start.0, |i| i.at);
        let mut leaving: Vec<Callee> = Vec::new();
        let mut leave = |target: CodeTarget| match target {
            CodeTarget::Block(b) if program.func_of(b) == data.func => {}
            target => leaving.push(self.around.callee_of_target(target)),
        };
        match data.terminator {
            Terminator::Stop(StopKind::Return) => {
                let bytes = self.around.image.read(Va(at), (data.end().0 - at) as usize).unwrap_or(&[]);
                return vec![Exit::Return { extra: popped_by_return(bytes) }];
            }
            Terminator::Stop(StopKind::IndirectTailCall) => leaving.push(Callee::Boundary),
            Terminator::Stop(StopKind::TableJump(table)) => {
                program.targets_of(table).iter().for_each(|&target| leave(CodeTarget::Block(target)));
            }
            Terminator::Stop(_) => {}
            Terminator::Fallthrough { next } => leave(CodeTarget::Block(next)),
            Terminator::Jump { target } => leave(target),
            Terminator::Branch { taken, next, .. } => {
                leave(taken);
                leave(CodeTarget::Block(next));
            }
            Terminator::Loop { taken, next } => {
                leave(CodeTarget::Block(taken));
                leave(CodeTarget::Block(next));
            }
        }
        leaving.into_iter().map(|callee| Exit::Tail(self.push_call(callee, data.end().0))).collect()
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

fn has_unknown_landings(program: &Program, code: &FunctionCode) -> bool {
    /// `DW_CFA_GNU_args_size`: the unwinder moves the stack pointer.
    const ARGS_SIZE: u8 = 0x2e;
    let mut calls: Vec<u64> = code.calls.iter().map(|c| c.at).collect();
    calls.sort_unstable();
    let mut pads: Vec<Va> = Vec::new();
    for range in program.func_ranges(code.func) {
        let Some(fde) = range.fde.map(|fde| &program.unwind.fdes[fde]) else { return true };
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

fn reverse_postorder(code: &FunctionCode) -> Vec<u32> {
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
