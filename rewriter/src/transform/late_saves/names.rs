//! In which registers the copy keeps what the original keeps in those that it saves.
//!
//! **Method.** For each saved register that the region uses: if it is only ever a copy of another register, made in the first block, and that one is never written in the region,
//! the other one is read in its place and the copy is not made. Else a free register: one that no instruction of the region names, that holds
//! nothing at its start, and that nobody needs behind any way out of it. Where these are too few, one that may be needed behind the region is used: what it holds is put aside in a vector register
//! that is free, and back on each way out that needs it. (Most registers that seem to be needed are not: whoever calls what nobody sees may pass it arguments in all registers that the psABI has for
//! them.) Where these are too few too, the first saves of the frame are made first of all, as few as do: these registers may be used as they are, or in the place of others if the region does not use
//! them.

use analysis::liveness::{RegisterLiveness, Registers};
use iced_x86::{Code, Instruction, InstructionInfoFactory, MemoryOperand, OpKind, Register};
use lifter::entity::Block;
use lifter::ir::{CodeTarget, StopKind, Terminator};

use super::frame::{Made, Part, number, used};
use super::region::Region;
use super::slots::{self, Homes};
use crate::transform::{Context, entry_row};

/// Caller-saved registers, those that calls pass least first.
const CANDIDATES: [u8; 9] = [11, 10, 9, 8, 1, 6, 7, 2, 0];

/// Vector registers that bring no arguments and return nothing (psABI, figure 3.4), the least used first.
const VECTORS: [u8; 8] = [15, 14, 13, 12, 11, 10, 9, 8];

/// Where the value of a saved register is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// In its own register: the region does not touch it.
    Own,
    /// In another one, which the copy writes in its place.
    Other(u8),
    /// What another one holds since the region began, or its lower half. The instruction that copied it, by its address, is not needed.
    Copy { from: u8, is_half: bool, made_at: u64 },
}

/// By number of the register.
#[derive(Clone, Debug)]
pub(super) struct Names {
    of: [Name; 16],
    /// So many of the first steps of the frame are made where the region begins.
    pub(super) early: usize,
    /// Registers saved by these that hold what belongs into others.
    pub(super) lent: u16,
    /// By a register that holds what belongs into another, the vector register with what it held before.
    aside: [Option<u8>; 16],
    /// Of these, registers that returns need too.
    at_return: u16,
    /// What stays in registers of what the region stores to the frame.
    pub(super) slots: Homes,
}

impl Names {
    pub(super) fn of(&self, register: u8) -> Name {
        self.of[usize::from(register & 15)]
    }

    /// Registers that are put aside, each with the vector register.
    pub(super) fn aside(&self) -> impl Iterator<Item = (u8, u8)> + '_ {
        (0u8..).zip(&self.aside).filter_map(|(register, vector)| Some((register, (*vector)?)))
    }

    /// The same, of those that have to be put back where the region returns.
    pub(super) fn aside_at_return(&self) -> impl Iterator<Item = (u8, u8)> + '_ {
        self.aside().filter(|(register, _)| self.at_return >> register & 1 == 1)
    }

    /// The names that a region can have; `None` if it needs more registers than are free.
    pub(super) fn find(context: &Context<'_>, live: &RegisterLiveness, region: &Region) -> Option<Self> {
        let mut factory = InstructionInfoFactory::new();
        let (mut is_used, mut written) = (0u16, 0u16);
        for (instruction, _) in working(region) {
            let used = used(instruction, &mut factory);
            is_used |= used.any();
            written |= used.writes;
        }
        let named = is_used | stored(region);
        let wanted = Wanted::of(context, live, region);
        let mut names =
            Names { of: [Name::Own; 16], early: 0, lent: 0, aside: [None; 16], at_return: 0, slots: Homes::default() };
        let slots = slots::loaded(region);
        let mut homeless = Vec::new();
        for step in &region.steps {
            let Made::Save(register) = step.made else { continue };
            if is_used >> register & 1 != 0 {
                match copy_of(region, register, written, &mut factory) {
                    Some(copy) => names.of[usize::from(register)] = copy,
                    None => homeless.push(register),
                }
            }
        }
        let all = wanted.all();
        let is_unnamed = |&&c: &&u8| named >> c & 1 == 0;
        let needs = |wanted: Registers, &c: &u8| wanted.contains(Registers::general(c));
        let is_free = |c: &u8| !needs(all, c) && !needs(Registers::PASSED, c);
        let (free, mut aside): (Vec<u8>, Vec<u8>) = CANDIDATES.iter().filter(is_unnamed).copied().partition(is_free);
        let vectors = free_vectors(region, all, &mut factory);
        // Those that pass arguments are put aside even if nobody seems to need them: who proves the output may not see that as far as the liveness here does.
        aside.sort_by_key(|c| needs(wanted.at_returns, c));
        aside.truncate(vectors.len());
        let saves = region.first_saves();
        let count = region.steps.iter().filter(|step| matches!(step.made, Made::Save(_))).count();
        for early in 0..count.min(saves.len() + 1) {
            let is_early = |register: &u8| saves[..early].contains(register);
            let others: Vec<u8> = homeless.iter().copied().filter(|register| !is_early(register)).collect();
            let unused = saves[..early].iter().copied().filter(|&register| named >> register & 1 == 0);
            let homes: Vec<u8> = free.iter().chain(&aside).copied().chain(unused).collect();
            if others.len() + slots.len() > homes.len() || !is_described(context, region, &saves[..early]) {
                continue;
            }
            names.early = early;
            let mut vectors = vectors.iter();
            for &home in &homes[..others.len() + slots.len()] {
                names.lent |= if is_early(&home) { 1 << home } else { 0 };
                if aside.contains(&home) {
                    names.aside[usize::from(home)] = vectors.next().copied();
                    names.at_return |= if needs(wanted.at_returns, &home) { 1 << home } else { 0 };
                }
            }
            let mut homes = homes.into_iter();
            for (register, home) in others.into_iter().zip(&mut homes) {
                names.of[usize::from(register)] = Name::Other(home);
            }
            names.slots = Homes(slots.into_iter().zip(homes).collect());
            return Some(names);
        }
        None
    }

    /// An instruction as the copy has it; `None` in `Some` if it goes, `None` if it can't be written with these names.
    pub(super) fn apply(&self, instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Option<Option<Instruction>> {
        let mut renamed = *instruction;
        let mut gone = 0u16;
        for register in 0..16u8 {
            let (to, is_half) = match self.of(register) {
                Name::Own => continue,
                Name::Other(to) => (to, false),
                Name::Copy { made_at, .. } if made_at == instruction.ip() => return Some(None),
                Name::Copy { from, is_half, .. } => (from, is_half),
            };
            gone |= 1 << register;
            for operand in 0..instruction.op_count() {
                let named = instruction.op_register(operand);
                if instruction.op_kind(operand) == OpKind::Register && number(named) == Some(register) {
                    if is_half && named.size() == 8 {
                        return None;
                    }
                    renamed.set_op_register(operand, sized(to, named)?);
                }
            }
            for named in [instruction.memory_base(), instruction.memory_index()] {
                if number(named) == Some(register) && (is_half || named.size() != 8) {
                    return None;
                }
            }
            if number(instruction.memory_base()) == Some(register) {
                renamed.set_memory_base(sized(to, Register::RAX)?);
            }
            if number(instruction.memory_index()) == Some(register) {
                renamed.set_memory_index(sized(to, Register::RAX)?);
            }
        }
        // What is named without an operand can't be renamed.
        (used(&renamed, factory).any() & gone == 0).then_some(Some(renamed))
    }
}

/// The instructions that do the work, not the frame's.
fn working(region: &Region) -> impl Iterator<Item = &(Instruction, Part)> {
    let all = region.members.iter().flat_map(|member| &member.body);
    all.filter(|(_, part)| matches!(part, Part::Free | Part::Load | Part::Leave))
}

/// Whether unwinders know of the first saves where only these are made, and in between. Some compilers describe all saves behind the last.
fn is_described(context: &Context<'_>, region: &Region, early: &[u8]) -> bool {
    let Some(first) = region.members.first() else { return false };
    let has_row = |count: usize| {
        let at = region.steps.get(count).map(|step| step.at);
        at.is_some_and(|at| entry_row::has_pushed_row(context.program, first.block, at, &early[..count]))
    };
    (1..=early.len()).all(has_row)
}

/// Registers that are stored to the frame.
fn stored(region: &Region) -> u16 {
    let stores = region.members.iter().flat_map(|member| &member.body).filter(|(_, part)| *part == Part::Store);
    stores.filter_map(|(store, _)| number(store.op1_register())).fold(0, |all, register| all | 1 << register)
}

/// What may be needed.
struct Wanted {
    /// When the region begins, or where it is left for code that expects the frame.
    inside: Registers,
    /// Where it returns.
    at_returns: Registers,
}

impl Wanted {
    fn of(context: &Context<'_>, live: &RegisterLiveness, region: &Region) -> Self {
        let program = context.program;
        let at = |block: Block| live.at_start(program, block);
        let blocks = region.members.first().map(|member| member.block).into_iter().chain(region.exits(program));
        let mut wanted = Self { inside: blocks.map(at).fold(Registers::NONE, Registers::union), at_returns: Registers::NONE };
        for member in region.members.iter().filter(|member| member.is_frameless) {
            let mut want = |more: Registers| wanted.at_returns = wanted.at_returns.union(more);
            want(live.at_return(program.func_of(member.block)));
            match program.blocks[member.block].terminator {
                Terminator::Jump { target: CodeTarget::Block(target) } => want(at(target)),
                Terminator::Jump { target: CodeTarget::Fixed(_) } | Terminator::Stop(StopKind::IndirectTailCall) => {
                    want(Registers::PASSED);
                }
                _ => {}
            }
        }
        wanted
    }

    fn all(&self) -> Registers {
        self.inside.union(self.at_returns)
    }
}

/// Vector registers that no instruction of the region names and nobody needs.
fn free_vectors(region: &Region, wanted: Registers, factory: &mut InstructionInfoFactory) -> Vec<u8> {
    let mut named = 0u32;
    for (instruction, _) in region.members.iter().flat_map(|member| &member.body) {
        let registers = factory.info(instruction).used_registers().iter().map(|used| used.register());
        named |= registers.filter(|r| r.is_vector_register()).fold(0, |all, r| all | 1u32 << (r.number() & 31));
    }
    VECTORS.into_iter().filter(|&v| named >> v & 1 == 0 && !wanted.meets(Registers::vector(v))).collect()
}

/// Whether a register is only ever a copy of another one, and of which.
fn copy_of(region: &Region, register: u8, written: u16, factory: &mut InstructionInfoFactory) -> Option<Name> {
    let writes = |(instruction, _): &&(Instruction, Part)| used(instruction, factory).writes >> register & 1 != 0;
    let mut writers = working(region).filter(writes);
    let (copy, _) = writers.next()?;
    let is_only = writers.next().is_none();
    let is_first = region.members.first()?.body.iter().any(|(instruction, _)| instruction.ip() == copy.ip());
    let is_half = match copy.code() {
        Code::Mov_rm64_r64 | Code::Mov_r64_rm64 => false,
        Code::Mov_rm32_r32 | Code::Mov_r32_rm32 => true,
        _ => return None,
    };
    let between_registers = copy.op0_kind() == OpKind::Register && copy.op1_kind() == OpKind::Register;
    let from = number(copy.op1_register()).filter(|&from| from != 4 && written >> from & 1 == 0)?;
    // A saved register may itself have another name.
    let is_plain = !region.steps.iter().any(|step| step.made == Made::Save(from));
    (is_only && is_first && between_registers && is_plain).then_some(Name::Copy { from, is_half, made_at: copy.ip() })
}

/// The part of a register that another one is of its own.
fn sized(to: u8, like: Register) -> Option<Register> {
    use Register::{
        AH, AL, AX, BH, BL, BP, BPL, BX, CH, CL, CX, DH, DI, DIL, DL, DX, EAX, EBP, EBX, ECX, EDI, EDX, ESI, ESP, R8, R8D, R8L,
        R8W, R9, R9D, R9L, R9W, R10, R10D, R10L, R10W, R11, R11D, R11L, R11W, R12, R12D, R12L, R12W, R13, R13D, R13L, R13W, R14,
        R14D, R14L, R14W, R15, R15D, R15L, R15W, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP, SI, SIL, SP, SPL,
    };
    const BYTES: [Register; 16] = [AL, CL, DL, BL, SPL, BPL, SIL, DIL, R8L, R9L, R10L, R11L, R12L, R13L, R14L, R15L];
    const WORDS: [Register; 16] = [AX, CX, DX, BX, SP, BP, SI, DI, R8W, R9W, R10W, R11W, R12W, R13W, R14W, R15W];
    const HALVES: [Register; 16] = [EAX, ECX, EDX, EBX, ESP, EBP, ESI, EDI, R8D, R9D, R10D, R11D, R12D, R13D, R14D, R15D];
    const WHOLES: [Register; 16] = [RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15];
    let at = usize::from(to & 15);
    match like {
        AH | BH | CH | DH => None,
        _ => match like.size() {
            1 => Some(BYTES[at]),
            2 => Some(WORDS[at]),
            4 => Some(HALVES[at]),
            8 => Some(WHOLES[at]),
            _ => None,
        },
    }
}

/// The part of a register that has so many bytes, 4 or 8.
pub(super) fn sized_like(register: u8, bytes: u64) -> Option<Register> {
    sized(register, if bytes == 4 { Register::EAX } else { Register::RAX })
}

/// `mov to, [rsp + at]`.
pub(super) fn load(to: u8, at: i64) -> Option<Instruction> {
    Instruction::with2(Code::Mov_r64_rm64, sized(to, Register::RAX)?, MemoryOperand::with_base_displ(Register::RSP, at)).ok()
}

/// `mov to, from`, all of it or the lower half.
pub(super) fn copy(to: u8, from: u8, is_half: bool) -> Option<Instruction> {
    let like = if is_half { Register::EAX } else { Register::RAX };
    let code = if is_half { Code::Mov_r32_rm32 } else { Code::Mov_r64_rm64 };
    Instruction::with2(code, sized(to, like)?, sized(from, like)?).ok()
}

/// `movq vector, register`, or the other way round.
pub(super) fn put_aside(register: u8, vector: u8, is_back: bool) -> Option<Instruction> {
    const VECTOR: [Register; 8] = [
        Register::XMM8,
        Register::XMM9,
        Register::XMM10,
        Register::XMM11,
        Register::XMM12,
        Register::XMM13,
        Register::XMM14,
        Register::XMM15,
    ];
    let vector = *VECTOR.get(usize::from(vector.checked_sub(8)?))?;
    let register = sized(register, Register::RAX)?;
    match is_back {
        true => Instruction::with2(Code::Movq_rm64_xmm, register, vector).ok(),
        false => Instruction::with2(Code::Movq_xmm_rm64, vector, register).ok(),
    }
}
