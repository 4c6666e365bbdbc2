//! Addresses in `.eh_frame` that code holds, and which of them start-up code registers.
//!
//! **Problem.** Without a search table, GCC's start-up code tells the unwinder where the entries are: it gives `__register_frame_info`, and later
//! `__deregister_frame_info`, the address from which on its part of `.eh_frame` goes. At a fixed address that is a number like any other, and the functions may have lost their
//! names. Where the table can't begin at that place any more, the operands have to follow it, and nothing else may be taken for one.
//!
//! **Method.** An operand *registers* if
//! * it puts the address of an entry, which is no terminator, into the register of the first argument (`mov $table, %edi`, or `lea table(%rip), %rdi`), and
//! * the way from there on is known, instruction by instruction: it leads into a function, and the first thing that looks at the argument reads four bytes there and asks whether they are zero. That is the length of an
//!   entry, and zero is a table without any ([`Way`]).
//!
//! A number that happens to look so is excluded by the read: what is read at is an address, and in `.eh_frame` lies nothing but unwind entries.
//!
//! The operands may follow the table if they all register the same address and nothing else holds it: no other instruction, no field of code that is not decoded, no word of data. Then all that the
//! program can do with it is to read entries there and to compare it with itself.
//!
//! **Ends** because a way has at most [`WAY_MAX`] instructions.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use object::elf;

use crate::address::Va;
use crate::discover::survey::Survey;
use crate::discover::units::{Units, unit_at};
use crate::elf::Image;
use crate::elf::eh_frame::entry_starts;
use crate::entity::EntityId;
use crate::x86::{Flow, MAX_INSTRUCTION_LEN, flow_of};

/// Instructions between an operand and what reads there.
const WAY_MAX: usize = 32;

/// What holds addresses in `.eh_frame`.
#[derive(Debug, Default)]
pub(crate) struct NamesInUnwind {
    /// The addresses. Ascending. Without a search table, entries that words of data may name are among them.
    pub(crate) all: Vec<Va>,
    /// The one of them that only operands hold that register it, and those, ascending.
    pub(crate) registered: Option<(Va, Vec<Va>)>,
}

impl NamesInUnwind {
    /// What an instruction registers.
    pub(crate) fn registered_at(&self, instruction: Va) -> Option<Va> {
        let (table, operands) = self.registered.as_ref()?;
        operands.binary_search(&instruction).is_ok().then_some(*table)
    }

    pub(crate) fn find(image: &Image<'_>, units: &Units, surveys: &[Survey]) -> Self {
        let begins = entry_starts(image);
        let mut holders = holders(image, units, surveys);
        if !image.has_search_table() {
            holders.extend(entries_in_data(image, &begins).map(|va| (va, None)));
        }
        holders.sort();
        holders.dedup();
        let mut all: Vec<Va> = holders.iter().map(|holder| holder.0).collect();
        all.dedup();
        let code = Decoded { image, units, surveys };
        let is_entry = |va: Va| begins.binary_search(&va).is_ok() && image.read_u32(va).is_some_and(|length| length != 0);
        // Others are numbers, or do not matter to an unwinder.
        let mut of_entries = holders.into_iter().filter(|holder| is_entry(holder.0)).peekable();
        let table = of_entries.peek().map(|holder| holder.0);
        let operands: Option<Vec<Va>> =
            of_entries.map(|(va, at)| at.filter(|&at| Some(va) == table && code.registers(at, va))).collect();
        let registered = table.zip(operands).filter(|(table, _)| !is_in_data(image, *table));
        NamesInUnwind { all, registered }
    }
}

/// Addresses in `.eh_frame` that code names, or may name where it is not decoded, and the instruction where that is known.
fn holders(image: &Image<'_>, units: &Units, surveys: &[Survey]) -> Vec<(Va, Option<Va>)> {
    let Some(section) = image.section_named(".eh_frame").map(|id| &image.sections[id]) else { return Vec::new() };
    let is_within = |holder: &(Va, Option<Va>)| section.sh_addr <= holder.0 && holder.0 < section.end();
    let named = |s: &Survey| -> Vec<(Va, Option<Va>)> {
        let absolutes = s.absolutes.iter().map(|a| (a.value, Some(a.at)));
        let relative = s.data_names.iter().map(|&(target, at)| (target, Some(at).filter(|_| !s.is_opaque())));
        absolutes.chain(relative).filter(is_within).collect()
    };
    // In `mov $table, %edi` the field follows an opcode of one byte.
    let relocated = image.static_relocs.iter().filter(|r| image.is_executable(r.at)).filter_map(|r| match r.r_type {
        elf::R_X86_64_32 | elf::R_X86_64_32S => image.read_u32(r.at).map(|value| (Va(u64::from(value)), Some(r.at.offset(-1)))),
        elf::R_X86_64_64 => image.read_u64(r.at).map(|value| (Va(value), None)),
        _ => None,
    });
    // Start-up code that is not decoded is short.
    const RAW_BYTES_MAX: usize = 4096;
    let is_fixed = !image.kind.is_position_independent();
    let raw = units.values().zip(surveys).filter(|(unit, s)| is_fixed && s.is_opaque() && unit.len() <= RAW_BYTES_MAX);
    let raw = raw.flat_map(|(unit, _)| image.read(unit.start, unit.len()).unwrap_or(&[]).windows(4));
    let raw = raw.filter_map(|word| word.try_into().ok().map(|word| (Va(u64::from(u32::from_le_bytes(word))), None)));
    surveys.iter().flat_map(named).chain(relocated.chain(raw).filter(is_within)).collect()
}

/// Whether a word of data may hold an address, at any byte, or the loader writes it into one.
fn is_in_data(image: &Image<'_>, va: Va) -> bool {
    let word = va.0.to_le_bytes();
    let finder = memchr::memmem::Finder::new(&word);
    data(image).any(|bytes| finder.find(bytes).is_some()) || relocated(image).any(|target| target == va)
}

/// Entries whose addresses words of data may hold, at any byte, or the loader writes into one. `begins` are ascending.
fn entries_in_data<'i>(image: &'i Image<'_>, begins: &'i [Va]) -> impl Iterator<Item = Va> + use<'i> {
    let (first, last) = (begins.first().copied(), begins.last().copied());
    let words = data(image).flat_map(|bytes| bytes.windows(8)).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes));
    let is_near = move |va: &Va| Some(*va) >= first && Some(*va) <= last;
    words.map(Va).chain(relocated(image)).filter(is_near).filter(|va| begins.binary_search(va).is_ok())
}

/// The bytes of data. The unwind tables are no part of it: they are made anew.
fn data<'i>(image: &'i Image<'_>) -> impl Iterator<Item = &'i [u8]> + use<'i> {
    let is_data = |name: &str| ![".eh_frame", ".eh_frame_hdr"].contains(&name);
    let sections =
        image.sections.iter().filter(move |(_, s)| s.is_alloc() && s.has_bytes() && !s.is_executable() && is_data(s.name));
    sections.map(|(id, _)| image.section_bytes(id))
}

/// The addresses that the loader writes, without symbols.
fn relocated(image: &Image<'_>) -> impl Iterator<Item = Va> {
    image.dynamic_relocs.iter().filter(|reloc| reloc.symbol == 0).map(|reloc| Va(reloc.addend as u64))
}

/// Where an argument is on the way to who reads it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Way {
    /// In the function that holds the address.
    Before,
    /// In one that it was given to.
    Within,
    /// What is read there is in this register.
    Read(Register),
}

/// The code as far as it is decoded.
struct Decoded<'i> {
    image: &'i Image<'i>,
    units: &'i Units,
    surveys: &'i [Survey],
}

impl Decoded<'_> {
    fn instruction_at(&self, va: Va) -> Option<Instruction> {
        let unit = unit_at(self.units, va)?;
        let (data, survey) = (&self.units[unit], &self.surveys[unit.index()]);
        let is_decoded = !survey.is_opaque() && survey.is_start(va - data.start);
        let bytes = self.image.read(va, ((data.end - va) as usize).min(MAX_INSTRUCTION_LEN)).filter(|_| is_decoded)?;
        let instruction = Decoder::with_ip(64, bytes, va.0, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// Whether an instruction puts an entry's address where the unwinder's functions take it from.
    fn registers(&self, at: Va, table: Va) -> bool {
        let Some(first) = self.instruction_at(at).filter(|first| is_operand(first, table)) else { return false };
        let mut way = Way::Before;
        let mut last = first;
        let mut next = Va(first.next_ip());
        for _ in 0..WAY_MAX {
            let Some(instruction) = self.instruction_at(next) else { return false };
            next = Va(instruction.next_ip());
            match (flow_of(&instruction), way) {
                (Flow::Call(target), Way::Before) => (way, next) = (Way::Within, target),
                (Flow::Jump(target), _) => {
                    let is_start = unit_at(self.units, target).is_some_and(|unit| self.units[unit].start == target);
                    (way, next) = (if is_start && way == Way::Before { Way::Within } else { way }, target);
                    continue;
                }
                // The address is not zero.
                (Flow::Branch(condition, _), Way::Within) if condition.0 == EQUAL && tests(&last, Register::RDI) => {}
                (Flow::Branch(condition, target), Way::Within) if condition.0 == EQUAL ^ 1 && tests(&last, Register::RDI) => {
                    next = target
                }
                (Flow::Next, Way::Within) if reads_length(&instruction).is_some() => {
                    way = Way::Read(reads_length(&instruction).unwrap_or(Register::None));
                }
                (Flow::Next, Way::Read(length)) if tests(&instruction, length) => return true,
                (Flow::Next, Way::Read(length)) if is_harmless(&instruction, length) => {}
                (Flow::Next, Way::Before | Way::Within) if is_harmless(&instruction, Register::RDI) => {}
                _ => return false,
            }
            last = instruction;
        }
        false
    }
}

/// The condition of `je`.
const EQUAL: u8 = 4;

/// `mov $table, %edi`, or `lea table(%rip), %rdi`.
fn is_operand(instruction: &Instruction, table: Va) -> bool {
    match instruction.code() {
        Code::Mov_r32_imm32 => {
            instruction.op0_register() == Register::EDI
                && instruction.len() == 5
                && u64::from(instruction.immediate32()) == table.0
        }
        Code::Lea_r64_m => {
            let is_there = instruction.is_ip_rel_memory_operand() && instruction.ip_rel_memory_address() == table.0;
            is_there && instruction.op0_register() == Register::RDI
        }
        _ => false,
    }
}

/// `test register, register`.
fn tests(instruction: &Instruction, register: Register) -> bool {
    let is_register = |operand| instruction.op_kind(operand) == OpKind::Register && instruction.op_register(operand) == register;
    instruction.mnemonic() == Mnemonic::Test && is_register(0) && is_register(1)
}

/// The register into which four bytes are read from where the first argument points to.
fn reads_length(instruction: &Instruction) -> Option<Register> {
    let is_plain = instruction.code() == Code::Mov_r32_rm32
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_base() == Register::RDI
        && instruction.memory_index() == Register::None
        && instruction.memory_displacement64() == 0
        && instruction.segment_prefix() == Register::None;
    is_plain.then(|| instruction.op0_register()).filter(|register| register.full_register() != Register::RDI)
}

/// Whether an instruction only saves registers, makes room on the stack, or puts something into a register other than this one.
fn is_harmless(instruction: &Instruction, kept: Register) -> bool {
    let is_known = match instruction.mnemonic() {
        Mnemonic::Endbr64 | Mnemonic::Nop | Mnemonic::Push | Mnemonic::Test => true,
        Mnemonic::Mov => (0..2).all(|operand| instruction.op_kind(operand) != OpKind::Memory),
        Mnemonic::Xor => instruction.op1_kind() == OpKind::Register && instruction.op0_register() == instruction.op1_register(),
        Mnemonic::Lea => instruction.is_ip_rel_memory_operand(),
        Mnemonic::Sub => instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::RSP,
        _ => false,
    };
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_registers();
    let is_kept = used.iter().all(|used| {
        let is_read_only = matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
        is_read_only || used.register().full_register() != kept.full_register()
    });
    is_known && is_kept
}
