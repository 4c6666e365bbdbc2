//! Thunks that jump through a register: what `-mindirect-branch=thunk` and `-mretpoline` make of indirect calls and jumps.
//!
//! A thunk puts the register over its own return address and returns: `call 1f; 2: pause; lfence; jmp 2b; 1: mov %rax, (%rsp); ret`. A call of
//! or a jump to it looks direct, but goes where the register says. It is found by its last two instructions, and by the call that begins it.
//! A thunk for returns drops its own return address instead: `lea 8(%rsp), %rsp; ret`.
//! Where no unwind entry holds the parts together, as clang leaves them, each may be a unit, and the first looks as if it never came back.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::address::Va;
use crate::discover::units::{Units, unit_at};
use crate::elf::Image;
use crate::x86::{Flow, MAX_INSTRUCTION_LEN, flow_of};

/// The last part of a thunk for returns: `lea 8(%rsp), %rsp; ret`.
const DROP_AND_RETURN: [u8; 6] = [0x48, 0x8d, 0x64, 0x24, 0x08, 0xc3];

/// Thunks, and their last parts.
#[derive(Debug, Default)]
pub(crate) struct Thunks {
    /// The addresses whose call is a call through a register.
    by_address: FxHashMap<Va, Register>,
    /// Those that return from who called or jumped to them.
    returning: FxHashSet<Va>,
}

impl Thunks {
    pub(crate) fn find(image: &Image<'_>, units: &Units) -> Self {
        let (mut by_address, mut returning) = (FxHashMap::default(), FxHashSet::default());
        let sections = image.sections.iter().filter(|(_, s)| s.is_alloc() && s.is_executable() && s.has_bytes());
        for (id, section) in sections {
            let bytes = image.section_bytes(id);
            // `mov %r, (%rsp)` ends in its SIB byte, 24; `ret` is c3.
            for at in memchr::memmem::find_iter(bytes, &[0x24, 0xc3]).filter_map(|at| at.checked_sub(3)) {
                let start = section.sh_addr + at as u64;
                if let Some(register) = stored_register(&bytes[at..at + 5], start) {
                    by_address.insert(start, register);
                }
            }
            for at in memchr::memmem::find_iter(bytes, &DROP_AND_RETURN) {
                let start = section.sh_addr + at as u64;
                returning.extend(calls_before(image, start).chain([start]));
            }
        }
        let inner: Vec<(Va, Register)> = by_address.iter().map(|(&va, &register)| (va, register)).collect();
        for (va, register) in inner {
            let Some(unit) = unit_at(units, va) else { continue };
            let start = units[unit].start;
            if calls(image, start, va) {
                by_address.insert(start, register);
            }
            by_address.extend(calls_before(image, va).map(|call| (call, register)));
        }
        Self { by_address, returning }
    }

    /// Whether what is called or jumped to there goes on elsewhere than behind the call that its code was entered by.
    pub(crate) fn contains(&self, start: Va) -> bool {
        self.by_address.contains_key(&start) || self.returning.contains(&start)
    }

    pub(crate) fn register_of(&self, target: Va) -> Option<Register> {
        self.by_address.get(&target).copied()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }
}

/// How far behind its first instruction a thunk's last part may begin: clang aligns that to 16 bytes.
const REACH: u64 = 32;
/// Bytes of a call with a displacement of 32 bits.
const CALL: u64 = 5;

/// Whether a direct call of `target` stands at a place.
fn calls(image: &Image<'_>, place: Va, target: Va) -> bool {
    let first = image.read(place, CALL as usize).map(|bytes| Decoder::with_ip(64, bytes, place.0, DecoderOptions::NONE).decode());
    first.is_some_and(|first| flow_of(&first) == Flow::Call(target))
}

/// The calls that lead over a little to what is behind them. What only looks like one, nobody calls.
fn calls_before(image: &Image<'_>, target: Va) -> impl Iterator<Item = Va> {
    (CALL..=REACH).filter_map(move |back| target.0.checked_sub(back).map(Va)).filter(move |&place| calls(image, place, target))
}

/// Whether code begins by dropping or overwriting the return address of who calls it: what it returns to is not behind the call.
pub(crate) fn drops_its_return_address(image: &Image<'_>, start: Va) -> bool {
    let bytes = (1..=MAX_INSTRUCTION_LEN).rev().find_map(|size| image.read(start, size));
    bytes.is_some_and(|bytes| begins_without_return_address(bytes, start))
}

/// The same of code with these bytes.
pub(crate) fn begins_without_return_address(bytes: &[u8], start: Va) -> bool {
    let first = Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE).decode();
    let is_stack = |register: Register| register == Register::RSP;
    let moves_up = match first.mnemonic() {
        Mnemonic::Lea => {
            is_stack(first.op0_register()) && is_stack(first.memory_base()) && first.memory_displacement64() as i64 > 0
        }
        Mnemonic::Add => is_stack(first.op0_register()) && first.op1_kind() != OpKind::Register,
        Mnemonic::Pop => true,
        _ => false,
    };
    moves_up || stored_register(bytes, start).is_some()
}

/// The register that the four bytes `mov %r, (%rsp)` store.
fn stored_register(bytes: &[u8], start: Va) -> Option<Register> {
    let instruction = Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE).decode();
    let is_store = instruction.mnemonic() == Mnemonic::Mov
        && instruction.len() == 4
        && instruction.op0_kind() == OpKind::Memory
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
        && instruction.memory_displacement64() == 0
        && instruction.op1_kind() == OpKind::Register
        && instruction.op1_register().size() == 8;
    is_store.then(|| instruction.op1_register())
}
