//! The first look at a unit: decodes it once, linearly, and keeps what it names outside itself.
//!
//! **Method.** A clean unit yields the set of its instruction starts (one bit per byte), the code addresses that it names (branches
//! that stay inside it aside), the data addresses that it names, and how its end is reached. An opaque unit is decoded at *every*
//! byte, because where its instructions begin is not known: whatever any of those decodes may name is reported as possibly named.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use object::elf;

use crate::address::Va;
use crate::discover::code_model::CodeModel;
use crate::discover::reach::is_plausible;
use crate::discover::stubs::Stubs;
use crate::discover::units::{Bounds, UnitData, Units, unit_at};
use crate::elf::Image;
use crate::elf::image::StaticReloc;
use crate::ir::PinReason;
use crate::x86::{BREAKPOINT, Flow, MAX_INSTRUCTION_LEN, flow_of, is_nop, is_short_branch};

/// How an instruction names a code address.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum How {
    Call,
    Jump,
    Branch,
    /// `loop`, `jrcxz`: 8 bits only.
    Loop,
    /// `lea`, or an absolute immediate that a static relocation vouches for.
    Address,
    /// Code read or written as data.
    Memory,
    /// Decoded in an opaque unit: perhaps.
    Perhaps,
}

/// A code address that an instruction names.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CodeName {
    pub(crate) target: Va,
    pub(crate) at: Va,
    pub(crate) how: How,
    pub(crate) is_short: bool,
}

/// A field of 32 or 64 bits whose value is an address of the image, if it is an address at all.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Absolute {
    pub(crate) value: Va,
    pub(crate) at: Va,
    pub(crate) role: NumberRole,
}

/// What an instruction does with a number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum NumberRole {
    /// It reads or writes memory there.
    Memory,
    /// It masks, sets or flips bits: of an address nobody does that.
    Bits,
    /// It tests bits, or multiplies: no address comes of it.
    Tested,
    /// It may do with it what is done with addresses.
    Value,
    /// It copies it: to a register, to memory, on the stack.
    Copied,
}

/// What one pass over a unit finds.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// One bit per byte of the unit: an instruction starts there. Empty if the unit is opaque.
    starts: Vec<u64>,
    pub(crate) names: Vec<CodeName>,
    /// `(target, instruction)`: data addresses, in instruction order.
    pub(crate) data_names: Vec<(Va, Va)>,
    /// Fields that may hold absolute addresses, in instruction order; only where nothing says which of them do.
    pub(crate) absolutes: Vec<Absolute>,
    /// Callees that are no code as far as is known.
    pub(crate) stray_calls: Vec<Va>,
    /// Of an opaque unit: where branches lead that would name it if that were code.
    misses: Vec<Va>,
    /// It is opaque by what its bytes are, whatever other units say of it.
    is_opaque_by_itself: bool,
    pub(crate) problem: Option<PinReason>,
    /// Whether execution may run past the last instruction.
    pub(crate) falls_out: bool,
    /// Of a gap, where the last instruction that is no padding ends, as an offset into the unit.
    pub(crate) body_len: u64,
    /// The callee of a direct call that is the last instruction of an unwind entry: it did not come back here.
    pub(crate) last_call: Option<Va>,
    /// The last instruction is a call, and nothing but the unit's end tells that it does not come back.
    pub(crate) ends_with_call: bool,
    /// Contains an instruction that may go back to a caller: a return, or any indirect jump.
    pub(crate) may_return: bool,
    pub(crate) has_indirect_jumps: bool,
    pub(crate) has_indirect_calls: bool,
    /// Makes addresses of numbers of 64 bits, which no move could mend.
    pub(crate) is_large_model: bool,
    /// Calls through a register, and reads 32-bit words that it may add to an address, or takes an address of code.
    pub(crate) has_relative_calls: bool,
    /// Calls a place in another unwind entry behind its start.
    pub(crate) calls_inside: bool,
}

impl Survey {
    pub(crate) fn is_opaque(&self) -> bool {
        self.starts.is_empty()
    }
    /// The call that it ends with comes back.
    pub(crate) fn run_on(&mut self) {
        self.falls_out = true;
        self.last_call = None;
    }
    /// Whether it comes out the same as long as the unit does, and what is at its `places`.
    pub(crate) fn lasts(&self) -> bool {
        !self.is_opaque() || self.is_opaque_by_itself
    }
    /// All places that were looked up among the units.
    pub(crate) fn places(&self) -> impl Iterator<Item = Va> {
        let data = self.data_names.iter().map(|name| name.0);
        let elsewhere = self.stray_calls.iter().chain(&self.misses).copied();
        self.names.iter().map(|name| name.target).chain(data).chain(elsewhere)
    }
    /// Whether an instruction starts `offset` bytes into the unit.
    pub(crate) fn is_start(&self, offset: u64) -> bool {
        self.starts.get((offset / 64) as usize).is_some_and(|word| word >> (offset % 64) & 1 == 1)
    }
}

/// The context that all surveys share.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Surveyor<'i> {
    pub(crate) image: &'i Image<'i>,
    pub(crate) units: &'i Units,
    pub(crate) stubs: &'i Stubs,
    pub(crate) use_static_relocs: bool,
    /// Whether fields may hold absolute addresses that nothing vouches for.
    pub(crate) has_unseen_absolutes: bool,
    pub(crate) left_over: LeftOver,
}

/// What bytes that nothing reaches are taken for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeftOver {
    /// Code, if they resemble code.
    Code,
    /// Whatever they may name is named.
    Anything,
    /// They name nothing: for a search that is not over.
    Nothing,
}

impl Surveyor<'_> {
    pub(crate) fn survey(&self, unit: &UnitData) -> Survey {
        let bytes = self.image.read(unit.start, unit.len()).unwrap_or(&[]);
        if bytes.len() < unit.len() {
            return Survey { problem: Some(PinReason::Undecodable), may_return: true, ..Survey::default() };
        }
        let is_code = unit.bounds != Bounds::LeftOver || self.left_over == LeftOver::Code;
        let clean = if is_code { self.survey_clean(unit, bytes) } else { None };
        clean.unwrap_or_else(|| Survey {
            is_opaque_by_itself: self.left_over != LeftOver::Nothing || unit.bounds != Bounds::LeftOver,
            ..self.survey_opaque(unit, bytes)
        })
    }

    /// The survey of a unit whose bytes are not known to be code, whatever they decode to.
    pub(crate) fn survey_as_opaque(&self, unit: &UnitData) -> Survey {
        self.survey_opaque(unit, self.image.read(unit.start, unit.len()).unwrap_or(&[]))
    }

    fn survey_clean(&self, unit: &UnitData, bytes: &[u8]) -> Option<Survey> {
        // Where there are only no-ops, execution runs through them; it ends at breakpoints.
        let falls_out = bytes.first() != Some(&BREAKPOINT);
        let mut survey = Survey { starts: vec![0; bytes.len().div_ceil(64)], falls_out, ..Survey::default() };
        let mut relocs = self.static_relocs(unit).iter().peekable();
        let (mut reads_words, mut calls_registers) = (false, false);
        let mut code_model = CodeModel::default();
        let mut decoder = Decoder::with_ip(64, bytes, unit.start.0, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            let is_doubted =
                unit.bounds == Bounds::LeftOver && !is_plausible(&instruction, &bytes[decoder.position() - instruction.len()..]);
            if instruction.is_invalid() || is_doubted {
                return None;
            }
            let offset = instruction.ip() - unit.start.0;
            survey.starts[(offset / 64) as usize] |= 1 << (offset % 64);
            self.note_flow(unit, &instruction, &mut survey);
            if unit.bounds == Bounds::Gap && !is_nop(&instruction) && instruction.mnemonic() != Mnemonic::Int3 {
                survey.body_len = instruction.next_ip() - unit.start.0;
            }
            code_model.note(self.image, self.units, unit, &instruction);
            reads_words |= instruction.mnemonic() == Mnemonic::Movsxd && instruction.op1_kind() == OpKind::Memory;
            calls_registers |= flow_of(&instruction) == Flow::IndirectCall && instruction.op0_kind() == OpKind::Register;
            if instruction.is_ip_rel_memory_operand() {
                let how = if instruction.mnemonic() == Mnemonic::Lea { How::Address } else { How::Memory };
                self.note_place(unit, &instruction, Va(instruction.ip_rel_memory_address()), how, &mut survey);
            }
            if self.has_unseen_absolutes {
                self.note_absolutes(&instruction, &mut survey);
            }
            while let Some(reloc) = relocs.next_if(|r| r.at.0 < instruction.next_ip()) {
                if let Some(target) = self.absolute_target(reloc) {
                    self.note_place(unit, &instruction, target, How::Address, &mut survey);
                }
            }
        }
        // In-unit branches into the middle of an instruction show only now.
        let is_torn = survey.names.iter().any(|name| {
            let is_inside = unit.start <= name.target && name.target < unit.end;
            is_inside && name.how <= How::Loop && !survey.is_start(name.target - unit.start)
        });
        survey.names.retain(|n| {
            let is_inside = unit.start <= n.target && n.target < unit.end;
            !is_inside || !matches!(n.how, How::Jump | How::Branch | How::Loop)
        });
        survey.is_large_model = code_model.is_large;
        let takes_address = || survey.names.iter().any(|name| name.how == How::Address);
        survey.has_relative_calls = calls_registers && (reads_words || takes_address());
        survey.problem = is_torn.then_some(PinReason::MidInstructionTarget);
        Some(survey)
    }

    fn note_flow(&self, unit: &UnitData, instruction: &Instruction, survey: &mut Survey) {
        let mut note = |target: Va, how: How| {
            let is_short = is_short_branch(instruction);
            survey.names.push(CodeName { target, at: Va(instruction.ip()), how, is_short });
        };
        let is_last = self.units.ends_behind_call(unit, Va(instruction.next_ip()));
        survey.falls_out = match flow_of(instruction) {
            Flow::Jump(target) => {
                note(target, How::Jump);
                false
            }
            Flow::Branch(_, target) => {
                note(target, How::Branch);
                true
            }
            // The address goes to the processor, which comes back to it from anywhere.
            Flow::Begin(target) => {
                note(target, How::Address);
                true
            }
            Flow::Loop(target) => {
                note(target, How::Loop);
                true
            }
            Flow::Call(target) => {
                if let Some(callee) = unit_at(self.units, target).map(|callee| &self.units[callee]) {
                    note(target, How::Call);
                    survey.calls_inside |= callee.start != target && callee.fde().is_some();
                } else {
                    survey.stray_calls.push(target);
                }
                if is_last && unit.fde().is_some() {
                    survey.last_call = Some(target);
                }
                // The end of an unwind entry is the witness that the call does not come back.
                let is_no_return = self.stubs.is_no_return(target);
                survey.ends_with_call = is_last && !is_no_return;
                !is_last && !is_no_return
            }
            Flow::IndirectCall => {
                survey.has_indirect_calls = true;
                survey.ends_with_call = is_last;
                !is_last
            }
            Flow::IndirectJump => {
                survey.has_indirect_jumps |= !instruction.is_ip_rel_memory_operand();
                survey.may_return = true;
                false
            }
            Flow::Return => {
                survey.may_return = true;
                false
            }
            Flow::Trap => false,
            Flow::Next if is_nop(instruction) || instruction.mnemonic() == Mnemonic::Int3 => survey.falls_out,
            Flow::Next => true,
        };
    }

    fn note_place(&self, unit: &UnitData, instruction: &Instruction, target: Va, how: How, survey: &mut Survey) {
        let at = Va(instruction.ip());
        let is_own = unit.start <= target && target < unit.end;
        if is_own || unit_at(self.units, target).is_some() {
            survey.names.push(CodeName { target, at, how, is_short: false });
        } else {
            survey.data_names.push((target, at));
        }
    }

    fn note_absolutes(&self, instruction: &Instruction, survey: &mut Survey) {
        let is_address = |number: &(Va, NumberRole)| self.image.low() <= number.0 && number.0 < self.image.high();
        let absolutes = numbers(instruction).filter(is_address);
        survey.absolutes.extend(absolutes.map(|(value, role)| Absolute { value, at: Va(instruction.ip()), role }));
    }

    /// The static relocations of a unit of a file at a fixed address; in others the instructions themselves say it all.
    fn static_relocs(&self, unit: &UnitData) -> &[StaticReloc] {
        if !self.use_static_relocs || self.image.kind.is_position_independent() {
            return &[];
        }
        self.image.static_relocs_in(unit.start, unit.end)
    }

    fn absolute_target(&self, reloc: &StaticReloc) -> Option<Va> {
        match reloc.r_type {
            elf::R_X86_64_32 => self.image.read_u32(reloc.at).map(|v| Va(u64::from(v))),
            elf::R_X86_64_32S => self.image.read_u32(reloc.at).map(|v| Va(v as i32 as i64 as u64)),
            elf::R_X86_64_64 => self.image.read_u64(reloc.at).map(Va),
            _ => None,
        }
    }

    fn survey_opaque(&self, unit: &UnitData, bytes: &[u8]) -> Survey {
        let mut survey = Survey { problem: Some(PinReason::Undecodable), falls_out: true, may_return: true, ..Survey::default() };
        // An instruction may begin in the unit and end behind it: where units end is not sure here.
        if unit.bounds == Bounds::LeftOver && self.left_over == LeftOver::Nothing {
            return survey;
        }
        let behind = (1..MAX_INSTRUCTION_LEN).rev().find_map(|more| self.image.read(unit.start, bytes.len() + more));
        let window = behind.unwrap_or(bytes);
        let loaded = self.image.low()..self.image.high();
        let mut decoder = Decoder::with_ip(64, window, unit.start.0, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        for offset in 0..bytes.len() {
            let start = unit.start + offset as u64;
            decoder.set_ip(start.0);
            if decoder.set_position(offset).is_err() {
                break;
            }
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                continue;
            }
            let names = &mut survey.names;
            let mut perhaps = |target: Va| {
                let is_named = unit_at(self.units, target).is_some();
                if is_named && !(unit.start <= target && target < unit.end) {
                    names.push(CodeName { target, at: start, how: How::Perhaps, is_short: false });
                }
                is_named
            };
            let target = match flow_of(&instruction) {
                Flow::Call(t) | Flow::Jump(t) | Flow::Branch(_, t) | Flow::Loop(t) | Flow::Begin(t) => Some(t),
                _ => None,
            };
            survey.misses.extend(target.filter(|target| !perhaps(*target) && loaded.contains(target)));
            if instruction.is_ip_rel_memory_operand() {
                let target = Va(instruction.ip_rel_memory_address());
                perhaps(target);
                survey.data_names.push((target, start));
            }
        }
        survey
    }
}

/// The fields of 32 or 64 bits of an instruction that may be absolute addresses.
pub(crate) fn numbers(instruction: &Instruction) -> impl Iterator<Item = (Va, NumberRole)> + use<'_> {
    (0..instruction.op_count()).filter_map(move |operand| match instruction.op_kind(operand) {
        OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64 => {
            let role = match instruction.mnemonic() {
                Mnemonic::Mov | Mnemonic::Push => NumberRole::Copied,
                Mnemonic::And | Mnemonic::Or | Mnemonic::Xor => NumberRole::Bits,
                Mnemonic::Test | Mnemonic::Imul => NumberRole::Tested,
                _ => NumberRole::Value,
            };
            Some((Va(instruction.immediate(operand)), role))
        }
        OpKind::Memory if !instruction.is_ip_rel_memory_operand() && instruction.memory_displ_size() >= 4 => {
            let is_address_only = matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
            let role = if is_address_only { NumberRole::Value } else { NumberRole::Memory };
            Some((Va(instruction.memory_displacement64()), role))
        }
        _ => None,
    })
}
