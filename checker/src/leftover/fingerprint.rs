//! A hash of what code does, the same wherever a layout puts it.
//!
//! **Method.** The instructions from an address on, along jumps, both ways at a branch (the way of the even condition first, since a
//! layout may invert it), up to [`INSTRUCTIONS_MAX`]. Fields that may move are left out, unless it is known already what they name. Where a
//! way meets an instruction again, its number stands for it. Blocks that a layout splits or joins change nothing.
//!
//! **Terminates**: each instruction is hashed once, and [`JUMPS_MAX`] bounds the jumps between two.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use crate::decode::{self, Inst, Kind};
use crate::walk::{Side, Walk};

const INSTRUCTIONS_MAX: usize = 48;
const JUMPS_MAX: usize = 16;

/// Whose code is hashed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Input,
    Output,
}

/// Whether it counts what is known of callees, and where data is. A function that stands twice has two names and may have a copied
/// table, so copies are looked for without.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    Full,
    Shape,
}

/// `None` where nothing can be decoded.
pub(super) fn fingerprint(walk: &Walk<'_, '_>, of: Of, detail: Detail, start: u64) -> Option<u64> {
    let side = if of == Of::Input { walk.input } else { walk.output };
    let mut hasher = FxHasher::default();
    let mut numbers: FxHashMap<u64, usize> = FxHashMap::default();
    let mut ways = vec![start];
    while let Some(way) = ways.pop() {
        let mut address = way;
        while let Some((at, inst)) = skip_jumps(side, address) {
            if let Some(number) = numbers.get(&at) {
                number.hash(&mut hasher);
                break;
            }
            if numbers.len() == INSTRUCTIONS_MAX {
                return Some(hasher.finish());
            }
            numbers.insert(at, numbers.len());
            hash_inst(side, at, inst, &mut hasher);
            if detail == Detail::Full && inst.disp != 0 && !side.image.in_code(side.operand(at, inst)) {
                side.operand(at, inst).hash(&mut hasher);
            }
            let after = at + u64::from(inst.len);
            match inst.kind {
                Kind::Branch => {
                    let target = side.target(at, inst);
                    let is_odd = condition(side.code.bytes(at, inst)) & 1 == 1;
                    ways.push(if is_odd { target } else { after });
                    address = if is_odd { after } else { target };
                    continue;
                }
                Kind::Loop => ways.push(side.target(at, inst)),
                Kind::Call if detail == Detail::Shape => break,
                Kind::Call | Kind::IndirectCall if !goes_on(walk, of, at, inst, &mut hasher) => break,
                Kind::Trap => break,
                _ if inst.ends_flow() => break,
                _ => {}
            }
            address = after;
        }
    }
    (!numbers.is_empty()).then(|| hasher.finish())
}

/// The first instruction that is neither a jump nor padding.
fn skip_jumps(side: &Side<'_>, mut address: u64) -> Option<(u64, Inst)> {
    let mut jumps = 0;
    loop {
        let inst = side.inst(address)?;
        match inst.kind {
            Kind::Nop => address += u64::from(inst.len),
            Kind::Jump if jumps < JUMPS_MAX => {
                jumps += 1;
                address = side.target(address, inst);
            }
            Kind::Jump => return None,
            _ => return Some((address, inst)),
        }
    }
}

fn condition(bytes: &[u8]) -> u8 {
    bytes.get(decode::Shape::of(bytes).opcode).map_or(0, |opcode| opcode & 15)
}

/// Whether both sides know what follows a call; hashes what they know of the callee.
fn goes_on(walk: &Walk<'_, '_>, of: Of, address: u64, inst: Inst, hasher: &mut FxHasher) -> bool {
    if inst.kind == Kind::IndirectCall {
        return !walk.is_noreturn_cell(of == Of::Input, address, inst) && inst.disp != 0;
    }
    let callee = walk.known_callee(of == Of::Input, address, inst);
    callee.hash(hasher);
    callee.is_some_and(|callee| !walk.is_noreturn(callee))
}

fn hash_inst(side: &Side<'_>, address: u64, inst: Inst, hasher: &mut FxHasher) {
    let bytes = side.code.bytes(address, inst);
    (inst.kind as u8).hash(hasher);
    match inst.kind {
        Kind::Branch => (condition(bytes) & 14).hash(hasher),
        Kind::Call | Kind::Loop => {}
        _ if inst.disp != 0 => bytes[..usize::from(inst.disp).min(bytes.len())].hash(hasher),
        // The field of an absolute address, which only a file at a fixed address has, may name a copied table.
        _ if side.image.is_position_dependent() => {
            let field = decode::Shape::of(bytes).wide_displacement(bytes).unwrap_or(bytes.len());
            let size = if bytes.len() > 4 { field.min(bytes.len() - 4) } else { field };
            bytes[..size.min(bytes.len())].hash(hasher);
        }
        _ => bytes.hash(hasher),
    }
}
