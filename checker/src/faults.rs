//! Functions that a handler of faults may know by their entry: the load with which they begin has no other place.
//!
//! A handler of `SIGSEGV` compares the place of the fault with the address of a function that is nothing but a load and a return (Java's machine). A copy of such a load where the function was
//! called faults elsewhere, and the handler does not know it. So no body may stand in the place of a call if its first instruction may fault and code names the entry: by an address that it
//! computes, by a word of `.got`, by an absolute address that the linker put into an instruction, or, where nobody says which numbers are addresses, by a number that something is compared with.

use rustc_hash::FxHashSet;

use crate::decode::{Inst, Kind, Shape};
use crate::image::Slot;
use crate::leftover::each_instruction;
use crate::walk::Side;

/// Addresses of code that code holds.
#[derive(Debug, Default)]
pub(crate) struct Held(FxHashSet<u64>);

impl Held {
    /// `absolute_fields` are the places where the linker put absolute addresses, if it says so.
    pub(crate) fn of(side: &Side<'_>, absolute_fields: &FxHashSet<u64>) -> Self {
        let mut held = FxHashSet::default();
        each_instruction(side, |address, inst| held.extend(held_by(side, absolute_fields, address, inst)));
        if let Some(got) = side.image.sections.iter().find(|section| section.name == ".got") {
            let slots = side.image.slots.iter().filter(|slot| got.address <= slot.0 && slot.0 < got.end());
            held.extend(slots.filter_map(|&(_, slot)| match slot {
                Slot::Relative(address) => Some(address),
                Slot::Symbol { symbol, addend, .. } => {
                    let symbol = side.image.elf.dynsyms.get(symbol)?;
                    Some(symbol.st_value.wrapping_add_signed(addend))
                }
                Slot::Resolver(_) => None,
            }));
            // At a fixed address the linker has filled them in.
            let words = side.image.at(got.address, got.size as usize).unwrap_or(&[]);
            held.extend(words.as_chunks::<8>().0.iter().map(|&word| u64::from_le_bytes(word)));
        }
        held.retain(|&address| side.image.in_code(address));
        Self(held)
    }

    /// Whether an instruction is the first at an address that code holds, a mark for indirect calls aside.
    pub(crate) fn has_first(&self, side: &Side<'_>, address: u64) -> bool {
        let marked = address.wrapping_sub(4);
        let is_marked = || side.inst(marked).is_some_and(|before| before.kind == Kind::EndBranch) && self.0.contains(&marked);
        self.0.contains(&address) || is_marked()
    }
}

/// The address that an instruction holds.
fn held_by(side: &Side<'_>, absolute_fields: &FxHashSet<u64>, address: u64, inst: Inst) -> Option<u64> {
    match inst.kind {
        Kind::Lea if inst.disp != 0 => Some(side.operand(address, inst)),
        Kind::Plain | Kind::Lea if side.image.is_position_dependent() => {
            let bytes = side.code.bytes(address, inst);
            let shape = Shape::of(bytes);
            let linked = (address..address + u64::from(inst.len)).find(|at| absolute_fields.contains(at));
            let field = match linked {
                Some(at) => bytes.get((at - address) as usize..)?.first_chunk::<4>().copied().map(u32::from_le_bytes),
                None => None,
            };
            let compared = shape.wide_immediate(bytes).filter(|_| is_compare(bytes, shape));
            field.map(u64::from).or(compared)
        }
        _ => None,
    }
}

/// `cmp` with a number of 32 bits.
fn is_compare(bytes: &[u8], shape: Shape) -> bool {
    let opcode = bytes.get(shape.opcode).copied().unwrap_or(0);
    let extension = bytes.get(shape.modrm).map_or(0, |modrm| modrm >> 3 & 7);
    shape.map == 0 && (opcode == 0x3d || opcode == 0x81 && shape.modrm > 0 && extension == 7)
}

/// Whether an instruction that does not name the stack pointer reads or writes memory, or divides.
pub(crate) fn may_fault(bytes: &[u8], kind: Kind) -> bool {
    let shape = Shape::of(bytes);
    let opcode = bytes.get(shape.opcode).copied().unwrap_or(0);
    let modrm = bytes.get(shape.modrm).copied().filter(|_| shape.modrm > 0);
    let has_memory = modrm.is_some_and(|modrm| modrm >> 6 != 3);
    let is_hidden = shape.map == 0 && !shape.vector && matches!(opcode, 0xa0..=0xa7 | 0xaa..=0xaf | 0xd7);
    let divides = shape.map == 0 && matches!(opcode, 0xf6 | 0xf7) && modrm.is_some_and(|modrm| modrm >> 4 & 3 == 3);
    kind == Kind::Plain && (has_memory || is_hidden || divides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_fault_is_told_from_what_does_not() {
        let may: [&[u8]; 7] = [
            &[0x8b, 0x07],
            &[0x48, 0x63, 0x07],
            &[0xa4],
            &[0xf3, 0xaa],
            &[0xf7, 0xff],
            &[0x0f, 0xb6, 0x07],
            &[0xc5, 0xfd, 0x6f, 0x07],
        ];
        let may_not: [&[u8]; 5] = [&[0x89, 0xf8], &[0xf7, 0xd8], &[0x0f, 0xaf, 0xc7], &[0xb8, 1, 0, 0, 0], &[0x31, 0xc0]];
        assert!(may.iter().all(|bytes| may_fault(bytes, Kind::Plain)));
        assert!(!may_not.iter().any(|bytes| may_fault(bytes, Kind::Plain)));
    }
}
