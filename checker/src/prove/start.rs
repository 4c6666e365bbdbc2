//! Whether a program that relocates itself does so right: its start-up code is run.
//!
//! **Problem.** A static position-independent program applies its own relocations, by code that may be any C library's. If an output has them in another form than the input, it has to be known that this code reads that
//! form. No version says so, and musl's has no text by which it could be told ([`crate::own_loader`]).
//!
//! **Method.** The program is loaded at an address, and run from its entry as a kernel would start it, on numbers: each instruction is looked at with its operands and done. Only plain instructions are known, on general
//! registers and memory. The run ends at the first other one, or at a jump or a call by register: by then start-up code has to be done. Each word that a relocation is about must hold the address that it asks for, and no other
//! byte of the program may have changed.
//!
//! **Why this is enough.** Until it has relocated itself, such code knows nothing but where it is, what the kernel tells every program, and its dynamic section; so it does the same in every run, but for the address. No other
//! instruction names the dynamic section.
//!
//! **What is not shown** is that nobody applies packed relocations a second time, by a word that holds the section's address: musl has one, by which it tells later where it was loaded. That would be wrong of any program that has packed
//! relocations from its linker.
//!
//! **Terminates**: at most [`STEPS_MAX`] instructions are run.

use std::rc::Rc;

use goblin::elf::program_header::{PF_W, PT_DYNAMIC, PT_INTERP, PT_LOAD};
use rustc_hash::FxHashMap;

use super::decoded::{Decoded, Engine, Memory, Operand, Reg};
use crate::decode::Kind;
use crate::image::Slot;
use crate::leftover::each_instruction;
use crate::walk::Side;

/// A few for each bit of packed relocations of the largest programs.
const STEPS_MAX: usize = 50_000_000;
/// Where the program is loaded, and the end of its stack.
const LOADED_AT: u64 = 0x5555_5555_4000;
const STACK_END: u64 = 0x7ffd_1234_8000;
const STACK_SIZE: u64 = 1 << 16;
const WORD: u64 = 8;
const RSP: usize = 4;

/// Whether the program relocates itself when it starts, and does what its relocations ask for.
pub(crate) fn relocates_itself(side: &Side<'_>) -> bool {
    let header = |p_type: u32| side.image.elf.program_headers.iter().find(|header| header.p_type == p_type);
    let Some(dynamic) = header(PT_DYNAMIC).filter(|_| header(PT_INTERP).is_none()) else { return false };
    let mut run = Run::new(side);
    run.start();
    if !run.is_relocated() {
        return false;
    }
    let mut naming = Vec::new();
    each_instruction(side, |address, inst| {
        if inst.disp != 0 && side.operand(address, inst) == dynamic.p_vaddr {
            naming.push(address);
        }
    });
    matches!(*naming, [at] if run.decoded.contains_key(&at))
}

#[derive(Copy, Clone, Default)]
struct Flags {
    carry: bool,
    zero: bool,
    sign: bool,
    overflow: bool,
}

struct Run<'s, 'a> {
    side: &'s Side<'a>,
    engine: Engine,
    decoded: FxHashMap<u64, Option<Rc<Decoded>>>,
    general: [u64; 16],
    flags: Flags,
    /// Words that were written, by address.
    memory: FxHashMap<u64, u64>,
}

impl<'s, 'a> Run<'s, 'a> {
    fn new(side: &'s Side<'a>) -> Self {
        let general = [0; 16];
        Self {
            side,
            engine: Engine::new(),
            decoded: FxHashMap::default(),
            general,
            flags: Flags::default(),
            memory: FxHashMap::default(),
        }
    }

    /// Runs the program up to the first instruction that is not known.
    fn start(&mut self) {
        self.lay_stack();
        let mut at = self.side.image.elf.entry;
        for _ in 0..STEPS_MAX {
            match self.step(at) {
                Some(next) => at = next,
                None => return,
            }
        }
    }

    /// What a kernel puts there: one argument, no environment, and where the program is.
    fn lay_stack(&mut self) {
        let elf = &self.side.image.elf;
        let loads = || elf.program_headers.iter().filter(|header| header.p_type == PT_LOAD);
        let around =
            loads().find(|load| load.p_offset <= elf.header.e_phoff && elf.header.e_phoff - load.p_offset < load.p_filesz);
        let headers =
            around.map_or(0, |load| LOADED_AT.wrapping_add(load.p_vaddr).wrapping_add(elf.header.e_phoff - load.p_offset));
        let name = STACK_END - 64;
        let (phdr, phent, phnum, pagesz, base, entry) = (3, 4, 5, 6, 7, 9);
        let words = [
            [1, name, 0, 0].as_slice(),
            &[phdr, headers, phent, u64::from(elf.header.e_phentsize), phnum, u64::from(elf.header.e_phnum)],
            &[pagesz, 4096, base, 0, entry, LOADED_AT.wrapping_add(elf.entry), 0, 0],
        ]
        .concat();
        self.general[RSP] = STACK_END - 1024;
        for (word, at) in words.into_iter().zip((self.general[RSP]..).step_by(WORD as usize)) {
            self.memory.insert(at, word);
        }
    }

    /// Whether all that relocations ask for was done, and nothing else to what the program has in its file.
    fn is_relocated(&self) -> bool {
        let slots = &self.side.image.slots;
        let is_done = |&(place, slot): &(u64, Slot)| match slot {
            Slot::Relative(target) => self.read(LOADED_AT.wrapping_add(place), 8) == Some(LOADED_AT.wrapping_add(target)),
            _ => false,
        };
        let is_asked_for = |&at: &u64| {
            let place = at.wrapping_sub(LOADED_AT);
            self.initial(at) == self.memory.get(&at).copied() || self.side.image.slot(place).is_some() || !self.is_in_image(place)
        };
        !slots.is_empty() && slots.iter().all(is_done) && self.memory.keys().all(is_asked_for)
    }

    fn is_in_image(&self, place: u64) -> bool {
        let mut headers = self.side.image.elf.program_headers.iter().filter(|header| header.p_type == PT_LOAD);
        headers.any(|load| load.p_vaddr <= place && place - load.p_vaddr < load.p_memsz)
    }

    fn is_stack(at: u64) -> bool {
        (STACK_END - STACK_SIZE..STACK_END).contains(&at)
    }

    /// A word as it is when the program starts.
    fn initial(&self, at: u64) -> Option<u64> {
        if Self::is_stack(at) {
            return Some(0);
        }
        let place = at.wrapping_sub(LOADED_AT);
        let byte = |place: u64| self.side.image.at(place, 1).map_or(0, |byte| u64::from(byte[0]));
        match self.side.image.u64_at(place) {
            None if self.is_in_image(place) => {
                Some((0..WORD).rev().fold(0, |word, offset| word << 8 | byte(place.wrapping_add(offset))))
            }
            word => word,
        }
    }

    fn word(&self, at: u64) -> Option<u64> {
        self.memory.get(&at).copied().or_else(|| self.initial(at))
    }

    fn read(&self, at: u64, size: u64) -> Option<u64> {
        let (first, offset) = (at & !(WORD - 1), at % WORD);
        let low = self.word(first)? >> (8 * offset);
        let both = if offset + size > WORD { low | self.word(first.checked_add(WORD)?)? << (8 * (WORD - offset)) } else { low };
        Some(both & mask(8 * size as u16))
    }

    fn write(&mut self, at: u64, size: u64, value: u64) -> Option<()> {
        let place = at.wrapping_sub(LOADED_AT);
        let is_written = |load: &goblin::elf::ProgramHeader| load.p_type == PT_LOAD && load.p_flags & PF_W != 0;
        let mut headers = self.side.image.elf.program_headers.iter().filter(|load| is_written(load));
        let is_data = headers
            .any(|load| load.p_vaddr <= place && place.checked_add(size).is_some_and(|end| end <= load.p_vaddr + load.p_memsz));
        if !(is_data || Self::is_stack(at) && Self::is_stack(at + size - 1)) {
            return None;
        }
        let (first, offset) = (at & !(WORD - 1), at % WORD);
        let (value, written) =
            (u128::from(value & mask(8 * size as u16)) << (8 * offset), u128::from(mask(8 * size as u16)) << (8 * offset));
        for (word, shift) in [(first, 0), (first.wrapping_add(WORD), 64)] {
            let (value, written) = ((value >> shift) as u64, (written >> shift) as u64);
            if written != 0 {
                let known = self.word(word)?;
                self.memory.insert(word, known & !written | value);
            }
        }
        Some(())
    }

    fn address(&self, memory: &Memory) -> Option<u64> {
        if memory.segment != 0 {
            return None;
        }
        if let Some(place) = memory.place {
            return Some(LOADED_AT.wrapping_add(place));
        }
        let register = |found: Option<Reg>| match found {
            None => Some(0),
            Some(Reg::General(number, 64, _)) => Some(self.general[usize::from(number)]),
            _ => None,
        };
        Some(
            register(memory.base)?
                .wrapping_add(register(memory.index)?.wrapping_mul(memory.scale))
                .wrapping_add(memory.displacement),
        )
    }

    fn value(&self, (operand, bits): (Operand, u16)) -> Option<u64> {
        match operand {
            Operand::Memory(_) if !(8..=64).contains(&bits) => None,
            Operand::Reg(Reg::General(number, width, false)) => Some(self.general[usize::from(number)] & mask(width)),
            Operand::Immediate(value) => Some(value),
            Operand::Memory(memory) => self.read(self.address(&memory)?, u64::from(bits / 8)),
            Operand::Reg(_) => None,
        }
    }

    fn set(&mut self, (operand, bits): (Operand, u16), value: u64) -> Option<()> {
        match operand {
            Operand::Memory(_) if !(8..=64).contains(&bits) => None,
            Operand::Reg(Reg::General(number, width, false)) => {
                let register = &mut self.general[usize::from(number)];
                // 32 bits clear what is above, fewer leave it.
                *register = if width >= 32 { value & mask(width) } else { *register & !mask(width) | value & mask(width) };
                Some(())
            }
            Operand::Memory(memory) => self.write(self.address(&memory)?, u64::from(bits / 8), value),
            _ => None,
        }
    }

    /// Does one instruction; gives where control goes on, as linked. `None` if it is not known.
    fn step(&mut self, at: u64) -> Option<u64> {
        let inst = self.side.inst(at)?;
        let known = self.decoded.entry(at).or_insert_with(|| self.engine.decode(self.side, at, inst).map(Rc::new)).clone();
        let next = at + u64::from(inst.len);
        match inst.kind {
            Kind::Nop | Kind::EndBranch => Some(next),
            Kind::Jump => Some(self.side.target(at, inst)),
            Kind::Branch => Some(if self.holds(known?.condition())? { self.side.target(at, inst) } else { next }),
            Kind::Call => {
                self.push(LOADED_AT.wrapping_add(next))?;
                Some(self.side.target(at, inst))
            }
            Kind::Return if crate::followed::is_plain_return(self.side, at, inst) => Some(self.pop()?.wrapping_sub(LOADED_AT)),
            Kind::Plain | Kind::Lea => self.plain(known.as_deref()?).map(|()| next),
            _ => None,
        }
    }

    fn push(&mut self, value: u64) -> Option<()> {
        self.general[RSP] = self.general[RSP].wrapping_sub(WORD);
        self.write(self.general[RSP], WORD, value)
    }

    fn pop(&mut self) -> Option<u64> {
        let value = self.read(self.general[RSP], WORD)?;
        self.general[RSP] = self.general[RSP].wrapping_add(WORD);
        Some(value)
    }

    fn holds(&self, condition: u8) -> Option<bool> {
        let Flags { carry, zero, sign, overflow } = self.flags;
        let holds = match condition >> 1 & 7 {
            0 => overflow,
            1 => carry,
            2 => zero,
            3 => carry || zero,
            4 => sign,
            6 => sign != overflow,
            7 => zero || sign != overflow,
            _ => return None,
        };
        Some(holds != (condition & 1 == 1))
    }

    fn plain(&mut self, decoded: &Decoded) -> Option<()> {
        if decoded.is_locked_or_repeated() || decoded.is_special {
            return None;
        }
        match (decoded.name.as_str(), &*decoded.operands) {
            ("cdqe", _) => {
                self.general[0] = extend(self.general[0], 32);
                Some(())
            }
            ("mov" | "movabs" | "movzx", &[to, from]) => self.set(to, self.value(from)?),
            ("movsxd" | "movsx", &[to, from]) => self.set(to, extend(self.value(from)?, from.1)),
            ("lea", &[to, (Operand::Memory(memory), _)]) => self.set(to, self.address(&memory)?),
            ("push", &[from @ (_, 64)]) => self.push(self.value(from)?),
            ("pop", &[to @ (_, 64)]) => {
                let value = self.pop()?;
                self.set(to, value)
            }
            ("add" | "sub" | "cmp" | "and" | "or" | "xor" | "test", &[to, from]) => {
                let (one, other) = (self.value(to)?, self.value(from)? & mask(to.1));
                let result = self.compute(&decoded.name, (one, other), to.1);
                if matches!(decoded.name.as_str(), "cmp" | "test") { Some(()) } else { self.set(to, result) }
            }
            ("inc" | "dec", &[to]) => {
                let carry = self.flags.carry;
                let result = self.compute(if decoded.name == "inc" { "add" } else { "sub" }, (self.value(to)?, 1), to.1);
                self.flags.carry = carry;
                self.set(to, result)
            }
            ("shl" | "shr" | "sar", &[to, (Operand::Immediate(by), _)]) => self.shift(&decoded.name, to, by),
            ("shl" | "shr" | "sar", &[to]) => self.shift(&decoded.name, to, 1),
            _ => None,
        }
    }

    /// The result of an instruction that sets all flags.
    fn compute(&mut self, name: &str, (one, other): (u64, u64), bits: u16) -> u64 {
        let sign = |value: u64| value >> bits.saturating_sub(1) & 1 == 1;
        let result = mask(bits)
            & match name {
                "add" => one.wrapping_add(other),
                "sub" | "cmp" => one.wrapping_sub(other),
                "and" | "test" => one & other,
                "or" => one | other,
                _ => one ^ other,
            };
        let (carry, overflow) = match name {
            "add" => (result < one, sign(one) == sign(other) && sign(one) != sign(result)),
            "sub" | "cmp" => (one < other, sign(one) != sign(other) && sign(one) != sign(result)),
            _ => (false, false),
        };
        self.flags = Flags { carry, zero: result == 0, sign: sign(result), overflow };
        result
    }

    /// By a number that is known; what `overflow` is behind it only a shift by one defines.
    fn shift(&mut self, name: &str, to: (Operand, u16), by: u64) -> Option<()> {
        let (value, bits) = (self.value(to)?, to.1);
        let by = by & if bits == 64 { 63 } else { 31 };
        if !matches!(bits, 32 | 64) || by == 0 {
            return None;
        }
        let (result, last) = match name {
            "shl" => (value << by & mask(bits), value >> (u64::from(bits) - by)),
            "shr" => (value >> by, value >> (by - 1)),
            _ => ((extend(value, bits).cast_signed() >> by).cast_unsigned() & mask(bits), value >> (by - 1)),
        };
        let sign = result >> (bits - 1) & 1 == 1;
        self.flags = Flags { carry: last & 1 == 1, zero: result == 0, sign, overflow: false };
        self.set(to, result)
    }
}

fn mask(bits: u16) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// A number of fewer bits, by its sign.
fn extend(value: u64, bits: u16) -> u64 {
    let unused = 64 - u32::from(bits.clamp(1, 64));
    ((value << unused).cast_signed() >> unused).cast_unsigned()
}
