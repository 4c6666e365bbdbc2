//! Where code can't stop by itself, and so nobody asks for its callers, if a profiler's timer and its like don't ([`crate::Assumptions::no_async_unwind`]).
//!
//! Quiet is what only computes with registers, pushes them, pops them or returns: a list of opcodes. Anything else may call, jump, fault or trap.

use crate::decode::{Inst, Kind, Shape};
use crate::walk::Side;

/// Whether an instruction may be where code stops.
pub(crate) fn can_stop(bytes: &[u8], kind: Kind) -> bool {
    match kind {
        Kind::Nop | Kind::Lea | Kind::EndBranch | Kind::Return => false,
        Kind::Plain => !computes_in_registers(bytes),
        _ => true,
    }
}

fn computes_in_registers(bytes: &[u8]) -> bool {
    let shape = Shape::of(bytes);
    let opcode = bytes.get(shape.opcode).copied().unwrap_or(0);
    // Where both operands are registers, the number that may be part of the opcode.
    let number = bytes.get(shape.modrm).filter(|&&modrm| shape.modrm > 0 && modrm >> 6 == 3).map(|modrm| modrm >> 3 & 7);
    let is_of_registers = number.is_some();
    match (shape.vector, shape.map) {
        // `vzeroupper`.
        (true, 1) => opcode == 0x77 && shape.modrm == 0,
        (false, 0) => match opcode {
            0x00..=0x3f => matches!(opcode & 7, 4 | 5) || opcode & 7 < 4 && is_of_registers,
            0x50..=0x5f | 0x68 | 0x6a | 0x98 | 0x99 | 0xa8 | 0xa9 | 0xb0..=0xbf | 0xc9 => true,
            0x63 | 0x69 | 0x6b | 0x80 | 0x81 | 0x83..=0x85 | 0x88..=0x8b | 0xc0 | 0xc1 | 0xd0..=0xd3 => is_of_registers,
            0x8f | 0xc6 | 0xc7 => number == Some(0),
            // Not `div`.
            0xf6 | 0xf7 => number.is_some_and(|number| number < 6),
            0xfe => number.is_some_and(|number| number < 2),
            0xff => number.is_some_and(|number| number < 2 || number == 6),
            _ => false,
        },
        (false, 1) => {
            let moves = matches!(opcode, 0x10 | 0x11 | 0x28 | 0x29 | 0x57 | 0x6e | 0x6f | 0x7e | 0x7f | 0xd6 | 0xef);
            let computes = matches!(opcode, 0x40..=0x4f | 0x90..=0x9f | 0xaf | 0xb6 | 0xb7 | 0xbe | 0xbf);
            is_of_registers && (moves || computes)
        }
        _ => false,
    }
}

impl Side<'_> {
    /// Whether an exception could come from the instruction at an address: it calls, faults or traps. A jump to a number does none of that.
    pub(crate) fn can_raise_at(&self, address: u64) -> bool {
        let is_jump = |inst: Inst| matches!(inst.kind, Kind::Jump | Kind::Branch);
        self.inst(address).is_none_or(|inst| !is_jump(inst) && can_stop(self.code.bytes(address, inst), inst.kind))
    }

    /// The same of the instruction at an address; of none, that it may.
    pub(crate) fn can_stop_at(&self, address: u64) -> bool {
        self.inst(address).is_none_or(|inst| can_stop(self.code.bytes(address, inst), inst.kind))
    }

    /// Forgets the rules of a file that only says where code can stop what unwinders need, but for those that hold there, and where descriptions begin.
    pub(crate) fn forget_unasked_rules(&mut self) {
        if !self.unwind.is_sparse {
            return;
        }
        let mut quiet: Vec<(u64, u64)> = Vec::new();
        for fde in &self.unwind.fdes {
            let mut address = fde.start;
            while address < fde.end {
                let Some(inst) = self.inst(address) else { break };
                let end = address + u64::from(inst.len);
                if address != fde.start && !can_stop(self.code.bytes(address, inst), inst.kind) {
                    match quiet.last_mut().filter(|last| last.1 == address) {
                        Some(last) => last.1 = end,
                        None => quiet.push((address, end)),
                    }
                }
                address = end;
            }
        }
        self.unwind.forget_rules(&quiet);
    }

    /// How far the stack pointer of a sparse file's code moves from an address to where rules are known, and that place: on a straight way on which it is but pushed and popped.
    pub(crate) fn moves_to_known_rules(&self, mut address: u64) -> Option<(u64, i64)> {
        let mut moved = 0;
        while self.unwind.locate(address).row == crate::unwind::UNKNOWN {
            let inst = self.inst(address)?;
            moved += stack_move(self.code.bytes(address, inst), inst)?;
            address += u64::from(inst.len);
        }
        Some((address, moved))
    }
}

/// By how many bytes a quiet instruction that runs on raises the stack pointer; none if it may change it, or what frames count from, in another way.
fn stack_move(bytes: &[u8], inst: Inst) -> Option<i64> {
    const STACK: u8 = 4;
    const BASE: u8 = 5;
    let shape = Shape::of(bytes);
    let opcode = *bytes.get(shape.opcode)?;
    let (is_extended, is_wide) = (shape.rex() & 1 != 0, shape.rex() & 8 != 0);
    // Half a push.
    if bytes.first() == Some(&0x66) && shape.map == 0 && inst.kind == Kind::Plain {
        return None;
    }
    match (inst.kind, opcode) {
        (Kind::Nop | Kind::EndBranch, _) => return Some(0),
        (Kind::Plain | Kind::Lea, _) => {}
        _ => return None,
    }
    if shape.map == 0 && !shape.vector {
        match opcode {
            0x50..=0x57 | 0x68 | 0x6a => return Some(-8),
            0x58..=0x5f if is_extended || !matches!(opcode & 7, STACK | BASE) => return Some(8),
            0x58..=0x5f | 0xc9 => return None,
            _ => {}
        }
    }
    let modrm = bytes.get(shape.modrm).copied().filter(|_| shape.modrm > 0);
    let immediate = || match opcode {
        0x83 => bytes.get(shape.modrm + 1).map(|&byte| i64::from(byte.cast_signed())),
        0x81 => bytes.get(shape.modrm + 1..)?.first_chunk().map(|&word| i64::from(i32::from_le_bytes(word))),
        _ => None,
    };
    match modrm {
        Some(0xec) if shape.map == 0 && is_wide && !is_extended && opcode >> 4 == 8 => Some(-immediate()?),
        Some(0xc4) if shape.map == 0 && is_wide && !is_extended && opcode >> 4 == 8 => immediate(),
        Some(modrm) => {
            let is_frame = |field: u8| matches!(field & 7, STACK | BASE);
            (!is_frame(modrm >> 3) && (modrm >> 6 != 3 || !is_frame(modrm))).then_some(0)
        }
        // `mov` of a number to a register.
        None if shape.map == 0 && opcode >> 4 == 0xb && !is_extended && matches!(opcode & 7, STACK | BASE) => None,
        None => Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_neither_touches_memory_nor_jumps_nor_traps_is_quiet() {
        let quiet: [&[u8]; 10] = [
            &[0x41, 0x57],             // push %r15
            &[0x48, 0x83, 0xec, 0x18], // sub $24,%rsp
            &[0x48, 0x89, 0xe5],       // mov %rsp,%rbp
            &[0x31, 0xc0],             // xor %eax,%eax
            &[0xf7, 0xd8],             // neg %eax
            &[0x0f, 0x94, 0xc0],       // sete %al
            &[0x0f, 0xb6, 0xc0],       // movzbl %al,%eax
            &[0x48, 0x98],             // cltq
            &[0xc9],                   // leave
            &[0xc5, 0xf8, 0x77],       // vzeroupper
        ];
        let stopping: [&[u8]; 10] = [
            &[0x48, 0x8b, 0x44, 0x24, 0x08], // mov 8(%rsp),%rax
            &[0xff, 0x30],                   // push (%rax)
            &[0x0f, 0x94, 0x00],             // sete (%rax)
            &[0xa4],                         // movsb
            &[0x0f, 0x05],                   // syscall
            &[0x48, 0xf7, 0xf9],             // idiv %rcx
            &[0xf2, 0x0f, 0x5e, 0xc1],       // divsd %xmm1,%xmm0
            &[0x8e, 0xd8],                   // mov %eax,%ds
            &[0xc7, 0xf8, 0, 0, 0, 0],       // xbegin
            &[0xc5, 0xf8, 0x10, 0x07],       // vmovups (%rdi),%xmm0
        ];
        assert!(quiet.iter().all(|bytes| !can_stop(bytes, Kind::Plain)));
        assert!(stopping.iter().all(|bytes| can_stop(bytes, Kind::Plain)));
        assert!([Kind::Call, Kind::Jump, Kind::Branch, Kind::Trap, Kind::Stop].into_iter().all(|kind| can_stop(&[], kind)));
    }

    #[test]
    fn the_stack_pointer_is_followed_where_it_is_pushed_popped_and_counted() {
        let moved = |bytes: &[u8]| stack_move(bytes, Inst { len: bytes.len() as u8, kind: Kind::Plain, disp: 0 });
        assert_eq!(moved(&[0x41, 0x57]), Some(-8));
        assert_eq!(moved(&[0x5b]), Some(8));
        assert_eq!(moved(&[0x41, 0x5c]), Some(8)); // pop %r12
        assert_eq!(moved(&[0x48, 0x83, 0xec, 0x18]), Some(-24));
        assert_eq!(moved(&[0x48, 0x81, 0xc4, 0, 1, 0, 0]), Some(256));
        assert_eq!(moved(&[0x31, 0xc0]), Some(0));
        for other in
            [&[0x5d][..], &[0x5c], &[0xc9], &[0x48, 0x89, 0xe5], &[0x48, 0x83, 0xe4, 0xf0], &[0xbd, 1, 0, 0, 0], &[0x66, 0x50]]
        {
            assert_eq!(moved(other), None, "{other:x?}");
        }
    }
}
