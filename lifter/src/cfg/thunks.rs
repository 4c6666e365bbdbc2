//! Thunks that jump through a register: what `-mindirect-branch=thunk` and `-mretpoline` make of indirect calls and jumps.
//!
//! A thunk puts the register over its own return address and returns: `call 1f; 2: pause; lfence; jmp 2b; 1: mov %rax, (%rsp); ret`. A call of
//! or a jump to it looks direct, but goes where the register says. It is found by its last two instructions, and by the call that begins it.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};
use rustc_hash::FxHashMap;

use crate::address::Va;
use crate::discover::units::{Units, unit_at};
use crate::elf::Image;
use crate::x86::{Flow, flow_of};

/// The addresses whose call is a call through a register.
#[derive(Debug, Default)]
pub(crate) struct Thunks {
    by_address: FxHashMap<Va, Register>,
}

impl Thunks {
    pub(crate) fn find(image: &Image<'_>, units: &Units) -> Self {
        let mut by_address = FxHashMap::default();
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
        }
        let inner: Vec<(Va, Register)> = by_address.iter().map(|(&va, &register)| (va, register)).collect();
        for (va, register) in inner {
            let Some(unit) = unit_at(units, va) else { continue };
            let start = units[unit].start;
            let bytes = image.read(start, units[unit].len()).unwrap_or(&[]);
            let first = Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE).decode();
            if matches!(flow_of(&first), Flow::Call(target) if target == va) {
                by_address.insert(start, register);
            }
        }
        Self { by_address }
    }

    pub(crate) fn register_of(&self, target: Va) -> Option<Register> {
        self.by_address.get(&target).copied()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }
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
