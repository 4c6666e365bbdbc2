//! The copy of a region as bytes: its blocks without the frame, and for each way out of it the frame made late.
//!
//! **Method.** Blocks follow each other as they mostly run, the ways out come last. Branches inside begin short and grow where they don't reach.
//!
//! **Invariant.** Each piece says at which instruction of the input it stands: the copy where the region begins, each step of a late frame where that step stood, what is behind it
//! where control goes then.
//!
//! **Terminates**: branches only grow.

use iced_x86::{Encoder, Instruction, InstructionInfoFactory};
use lifter::address::Va;
use lifter::entity::Block;
use lifter::ir::{BlockFlags, CodeTarget, Condition, Evidence, RefData, RefKind, RefRole, RefTarget, Terminator};

use super::assigned::{self, Exit};
use super::frame::{Made, Part};
use super::names::{Name, Names, copy, load, put_aside};
use super::region::{Region, ways};
use crate::edit::NewCode;
use crate::materialize::block_bytes;
use crate::transform::Context;

/// A place in the copy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Label {
    Member(usize),
    Exit(Block),
}

#[derive(Clone, Debug)]
enum Item {
    Place(Label),
    Code {
        bytes: Vec<u8>,
        refs: Vec<RefData>,
        stands: Option<Va>,
        share: u64,
        /// By offset, the instructions whose work it does; if there are none, it does that of where it stands.
        works: Vec<(u32, Va)>,
    },
    /// `share` is how often it jumps, `at` where the input does.
    Jump {
        at: Va,
        condition: Option<Condition>,
        to: Label,
        is_long: bool,
        share: u64,
    },
}

pub(super) fn write(context: &Context<'_>, region: &Region, names: &Names) -> Option<NewCode> {
    let stores = assigned::stores(region, context.program, names)?;
    let mut writer = Writer { context, region, names, items: Vec::new(), factory: InstructionInfoFactory::new() };
    let exits = assigned::exits(region, context.program, names, &stores)?;
    let order = writer.order();
    for (position, &label) in order.iter().enumerate() {
        match label {
            Label::Member(index) => writer.member(index, order.get(position + 1).copied())?,
            Label::Exit(block) => writer.exit(*exits.iter().find(|exit| exit.block == block)?, &stores)?,
        }
    }
    let mut code = assemble(writer.items);
    // The first block runs as often as before, here; by its count the executions of the copy are vouched for.
    code.instead_of = vec![(region.members.first()?.block, 0)].into();
    let others = region.members.iter().skip(1);
    let others: Vec<(Block, u32)> =
        others.map(|member| Some((member.block, u32::try_from(member.share).ok()?))).collect::<Option<_>>()?;
    code.instead_of.extend(others);
    Some(code)
}

struct Writer<'a> {
    context: &'a Context<'a>,
    region: &'a Region,
    names: &'a Names,
    items: Vec<Item>,
    factory: InstructionInfoFactory,
}

impl Writer<'_> {
    /// Members and ways out as they mostly follow each other.
    fn order(&self) -> Vec<Label> {
        let mut order: Vec<Label> = Vec::new();
        let mut open = vec![Label::Member(0)];
        while let Some(label) = open.pop() {
            if order.contains(&label) {
                continue;
            }
            order.push(label);
            if let Label::Member(index) = label {
                // What comes off last is rarer.
                open.extend(self.ways(index).into_iter().map(|(label, _)| label));
            }
        }
        order
    }

    /// Where a member leads, rare ways first, each with how often.
    fn ways(&self, index: usize) -> Vec<(Label, u64)> {
        let member = &self.region.members[index];
        if member.is_frameless {
            return Vec::new();
        }
        let ways = ways(self.context, member.block, member.share);
        ways.into_iter().map(|(target, share)| (self.label(target), share)).collect()
    }

    fn label(&self, target: Block) -> Label {
        self.region.find(target).map_or(Label::Exit(target), Label::Member)
    }

    fn member(&mut self, index: usize, following: Option<Label>) -> Option<()> {
        let (context, region) = (self.context, self.region);
        let member = &region.members[index];
        let program = context.program;
        let data = &program.blocks[member.block];
        self.items.push(Item::Place(Label::Member(index)));
        let (mut bytes, mut refs, mut works) = (Vec::new(), Vec::new(), Vec::new());
        let input = block_bytes(context.image, program, member.block).ok()?;
        let is_marked = data.flags.contains(BlockFlags::ENDBR);
        let early = if index == 0 { self.names.early } else { 0 };
        let mut stands = self.stands();
        for (at, (instruction, part)) in member.body.iter().enumerate() {
            works.push((bytes.len() as u32, Va(instruction.ip())));
            if index == 0 && at == usize::from(is_marked) {
                if early > 0 {
                    let code = (std::mem::take(&mut bytes), std::mem::take(&mut refs), std::mem::take(&mut works));
                    self.push_code(code, None, member.share);
                    works.push((0, Va(instruction.ip())));
                    self.steps(0..early, member.share, None);
                }
                for (register, vector) in self.names.aside() {
                    bytes.extend_from_slice(&encoded(&put_aside(register, vector, false)?)?);
                }
            }
            if *part == Part::Leave {
                for (register, vector) in self.names.aside_at_return() {
                    bytes.extend_from_slice(&encoded(&put_aside(register, vector, true)?)?);
                }
            }
            if *part == Part::Leave && self.names.early > 0 {
                let code = (std::mem::take(&mut bytes), std::mem::take(&mut refs), std::mem::take(&mut works));
                self.push_code(code, stands, member.share);
                works.push((0, Va(instruction.ip())));
                self.undo(Va(instruction.ip()), member.share);
                stands = self.region.steps.first().map(|step| step.at);
            }
            if at == 0 && is_marked && context.loses_mark(member.block) {
                continue;
            }
            match part {
                Part::Store if self.names.slots.has(instruction) => {
                    self.kept(self.names.slots.stored(instruction)?, &mut bytes)?;
                    continue;
                }
                Part::Load => {
                    self.kept(self.names.slots.loaded(instruction)?, &mut bytes)?;
                    continue;
                }
                Part::Make(_) | Part::Undo(_) | Part::Store => continue,
                Part::Free | Part::Leave if at == 0 && is_marked => {}
                Part::Free | Part::Leave => match self.names.apply(instruction, &mut self.factory)? {
                    None => continue,
                    Some(renamed) if renamed != *instruction => {
                        self.renamed(member.block, instruction, &renamed, &mut bytes, &mut refs)?;
                        continue;
                    }
                    Some(_) => {}
                },
                Part::Unfit => return None,
            }
            let start = (instruction.ip() - data.start.0) as u32;
            let end = start + instruction.len() as u32;
            let base = bytes.len() as u32;
            bytes.extend_from_slice(input.get(start as usize..end as usize)?);
            let own = program.block_refs(member.block).iter().filter(|r| start <= r.offset && r.offset < end);
            refs.extend(own.map(|r| RefData { offset: base + r.offset - start, ..*r }));
        }
        self.push_code((bytes, refs, works), stands, member.share);
        self.end(index, following)
    }

    fn push_code(&mut self, (bytes, refs, works): (Vec<u8>, Vec<RefData>, Vec<(u32, Va)>), stands: Option<Va>, share: u64) {
        self.items.push(Item::Code { bytes, refs, stands, share, works });
    }

    /// A copy to or from a register that holds a slot of the frame.
    fn kept(&mut self, copied: Instruction, bytes: &mut Vec<u8>) -> Option<()> {
        let renamed = self.names.apply(&copied, &mut self.factory)??;
        bytes.extend_from_slice(&encoded(&renamed)?);
        Some(())
    }

    fn end(&mut self, index: usize, following: Option<Label>) -> Option<()> {
        let member = &self.region.members[index];
        let ways = self.ways(index);
        let data = &self.context.program.blocks[member.block];
        let at = data.start + u64::from(data.body_len);
        let mut jump = |condition, to| {
            let share = ways.iter().filter(|way| way.0 == to).map(|way| way.1).sum();
            self.items.push(Item::Jump { at, condition, to, is_long: false, share });
        };
        let label = |target| self.region.find(target).map_or(Label::Exit(target), Label::Member);
        match data.terminator {
            Terminator::Stop(_) => {}
            Terminator::Fallthrough { next } | Terminator::Jump { target: CodeTarget::Block(next) } => {
                if following != Some(label(next)) {
                    jump(None, label(next));
                }
            }
            Terminator::Branch { condition, taken: CodeTarget::Block(taken), next } => {
                let (taken, next) = (label(taken), label(next));
                if following == Some(taken) {
                    jump(Some(condition.inverted()), next);
                } else {
                    jump(Some(condition), taken);
                    if following != Some(next) {
                        jump(None, next);
                    }
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// An instruction with other registers, and its reference, if it has one.
    fn renamed(
        &self,
        block: Block,
        old: &Instruction,
        new: &Instruction,
        bytes: &mut Vec<u8>,
        refs: &mut Vec<RefData>,
    ) -> Option<()> {
        let program = self.context.program;
        let start = (old.ip() - program.blocks[block].start.0) as u32;
        let within = |r: &&RefData| start <= r.offset && r.offset < start + old.len() as u32;
        let mut own = program.block_refs(block).iter().filter(within);
        let reference = own.next();
        let mut encoder = Encoder::new(64);
        let len = encoder.encode(new, old.ip()).ok()? as u32;
        if let Some(reference) = reference {
            let constants = encoder.get_constant_offsets();
            let is_operand = reference.kind == RefKind::Rel32 && old.is_ip_rel_memory_operand();
            if !is_operand || constants.displacement_size() != 4 || own.next().is_some() {
                return None;
            }
            let at = constants.displacement_offset() as u32;
            let offset = bytes.len() as u32 + at;
            refs.push(RefData { offset, to_end: u8::try_from(len - at).ok()?, ..*reference });
        } else if old.is_ip_rel_memory_operand() {
            return None;
        }
        bytes.extend_from_slice(&encoder.take_buffer());
        Some(())
    }

    /// Where the copy stands while what is made early of the frame is there.
    fn stands(&self) -> Option<Va> {
        self.region.steps.get(self.names.early).map(|step| step.at)
    }

    /// Steps of the frame, each standing where the original makes it. Made late they are part of what comes behind them.
    fn steps(&mut self, steps: std::ops::Range<usize>, share: u64, behind: Option<Va>) {
        for step in &self.region.steps[steps] {
            let bytes = match step.made {
                Made::Save(register) => pushed(0x50, register),
                Made::Room(by) => room(by),
            };
            let works = behind.map(|behind| (0, behind)).into_iter().collect();
            self.items.push(Item::Code { bytes, refs: Vec::new(), works, stands: Some(step.at), share });
        }
    }

    /// What was made early is taken down, and the return that comes next, at `before`, stands where nothing is made.
    fn undo(&mut self, before: Va, share: u64) {
        for index in (0..self.names.early).rev() {
            if let Made::Save(register) = self.region.steps[index].made {
                let stands = self.region.steps.get(index + 1).map(|step| step.at);
                let works = vec![(0, before)];
                self.items.push(Item::Code { bytes: pushed(0x58, register), refs: Vec::new(), works, stands, share });
            }
        }
    }

    /// The frame, made late, and what the original's registers and stores have put where by then.
    fn exit(&mut self, exit: Exit, stores: &[(usize, Instruction)]) -> Option<()> {
        self.items.push(Item::Place(Label::Exit(exit.block)));
        let share = self.region.share_of_exit(self.context, exit.block);
        let start = self.context.program.blocks[exit.block].start;
        self.steps(self.names.early..self.region.steps.len(), share, Some(start));
        let mut last: Vec<Instruction> = Vec::new();
        for register in 0..16u8 {
            match self.names.of(register) {
                Name::Own => {}
                Name::Other(_) if !exit.has_written(register) => {}
                Name::Other(from) => last.push(copy(register, from, false)?),
                Name::Copy { from, is_half, .. } => last.push(copy(register, from, is_half)?),
            }
        }
        for (_, (_, store)) in stores.iter().enumerate().filter(|&(at, _)| exit.has_stored(at)) {
            last.push(self.names.slots.late(store)?);
        }
        for (register, vector) in self.names.aside() {
            last.push(put_aside(register, vector, true)?);
        }
        let mut below: i64 = self.region.steps.iter().map(|step| step.made.size()).sum();
        for (index, step) in self.region.steps.iter().enumerate() {
            below -= step.made.size();
            if let Made::Save(register) = step.made
                && index < self.names.early
                && self.names.lent >> register & 1 == 1
            {
                last.push(load(register, below)?);
            }
        }
        for instruction in last {
            let bytes = encoded(&instruction)?;
            self.items.push(Item::Code { bytes, refs: Vec::new(), works: Vec::new(), stands: Some(start), share });
        }
        self.items.push(far_jump(RefTarget::Block(exit.block), start, share));
        Some(())
    }
}

fn encoded(instruction: &Instruction) -> Option<Vec<u8>> {
    let mut encoder = Encoder::new(64);
    encoder.encode(instruction, 0).ok()?;
    Some(encoder.take_buffer())
}

/// `push` or `pop` of a register.
fn pushed(opcode: u8, register: u8) -> Vec<u8> {
    if register < 8 { vec![opcode | register] } else { vec![0x41, opcode | register & 7] }
}

/// `lea rsp, [rsp - by]`: flags stay.
fn room(by: i32) -> Vec<u8> {
    match i8::try_from(-by) {
        Ok(short) => vec![0x48, 0x8d, 0x64, 0x24, short.cast_unsigned()],
        Err(_) => [&[0x48, 0x8d, 0xa4, 0x24][..], &(-by).to_le_bytes()].concat(),
    }
}

fn far_jump(target: RefTarget, stands: Va, share: u64) -> Item {
    let evidence = Evidence::Derived;
    let reference = RefData { offset: 1, to_end: 4, kind: RefKind::Rel32, role: RefRole::Branch, evidence, target };
    Item::Code { bytes: vec![0xe9, 0, 0, 0, 0], refs: vec![reference], works: Vec::new(), stands: Some(stands), share }
}

fn size_of(item: &Item) -> u32 {
    match item {
        Item::Place(_) => 0,
        Item::Code { bytes, .. } => bytes.len() as u32,
        Item::Jump { is_long: false, .. } => 2,
        Item::Jump { condition, .. } => 5 + u32::from(condition.is_some()),
    }
}

/// Gives branches their lengths and all of it its bytes.
fn assemble(mut items: Vec<Item>) -> NewCode {
    loop {
        let (starts, places) = lay_out(&items);
        let mut has_grown = false;
        for (item, start) in items.iter_mut().zip(&starts) {
            if let Item::Jump { to, is_long: is_long @ false, .. } = item {
                let distance = i64::from(place_of(&places, *to)) - i64::from(start + 2);
                *is_long = i8::try_from(distance).is_err();
                has_grown |= *is_long;
            }
        }
        if !has_grown {
            return emit(items, &places);
        }
    }
}

fn lay_out(items: &[Item]) -> (Vec<u32>, Vec<(Label, u32)>) {
    let (mut starts, mut places, mut at) = (Vec::with_capacity(items.len()), Vec::new(), 0);
    for item in items {
        starts.push(at);
        if let Item::Place(label) = item {
            places.push((*label, at));
        }
        at += size_of(item);
    }
    (starts, places)
}

fn place_of(places: &[(Label, u32)], label: Label) -> u32 {
    places.iter().find(|(known, _)| *known == label).map_or(0, |&(_, at)| at)
}

fn emit(items: Vec<Item>, places: &[(Label, u32)]) -> NewCode {
    let mut code = NewCode::default();
    for item in items {
        let base = code.bytes.len() as u32;
        match item {
            Item::Place(_) => {}
            Item::Code { bytes, refs, stands, share: runs, works } => {
                let own = stands.filter(|_| works.is_empty()).map(|at| (0, at));
                code.works.extend(works.into_iter().chain(own).map(|(offset, at)| (base + offset, at)));
                if stands.is_some() && code.stands.last().map(|s| Some(s.1)) != Some(stands) {
                    code.stands.extend(stands.map(|at| (base, at)));
                }
                let share = u32::try_from(runs).unwrap_or(u32::MAX);
                code.shares.push((base, share));
                code.taken.extend(refs.iter().filter(|r| r.role == RefRole::Branch).map(|_| (base, share)));
                code.refs.extend(refs.into_iter().map(|r| RefData { offset: base + r.offset, ..r }));
                code.bytes.extend_from_slice(&bytes);
            }
            Item::Jump { at, condition, to, is_long, share } => {
                let len = size_of(&Item::Jump { at, condition, to, is_long, share });
                code.works.push((base, at));
                code.taken.push((base, u32::try_from(share).unwrap_or(u32::MAX)));
                let distance = place_of(places, to) as i32 - (base + len) as i32;
                match (condition, is_long) {
                    (Some(condition), false) => code.bytes.push(0x70 | condition.0),
                    (None, false) => code.bytes.push(0xeb),
                    (Some(condition), true) => code.bytes.extend([0x0f, 0x80 | condition.0]),
                    (None, true) => code.bytes.push(0xe9),
                }
                match is_long {
                    false => code.bytes.push(distance as i8 as u8),
                    true => code.bytes.extend(distance.to_le_bytes()),
                }
            }
        }
    }
    code
}
