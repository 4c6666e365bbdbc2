//! Registers that calls keep, where they differ at a call.
//!
//! A callee has no use for `rbx`, `rbp` and `r12` to `r15` but to put them on the stack before it uses them itself and to take them back. Then it does no harm that they
//! hold other values in the output, if nothing reads them behind the call either, which facts tell. What the compiler could not see keeps to the psABI; code of this file is
//! followed: from its entry until it overwrites the register, and again from where it takes it from the stack. What straight code writes that it calls ([`super::followed`]) is its own.
//!
//! The other way round, registers that calls need not keep are kept by code of this file that writes them nowhere, nor does what it calls: compilers rely on that. What is known of them behind
//! a call is known only if that is so in both programs.
//!
//! An exception that lands in the function of the call brings these registers back, so the rule holds for functions without handlers alone.
//!
//! **Terminates**: each address is visited twice a question at most.

use rustc_hash::FxHashSet;

use super::Prover;
use super::class::Class;
use super::decoded::{Decoded, Operand, Reg};
use super::liveness::{KEPT, Use, has, use_of};
use crate::decode::{Inst, Kind};
use crate::walk::{Side, Walk};

const STACK: u8 = 4;
/// Instructions of a callee, and what it calls, that are looked through for what they write.
const CALLEE_STEPS_MAX: usize = 2_000;
/// Instructions that are followed for what they do with one register.
const STEPS_MAX: usize = 100_000;

impl Prover {
    /// Whether a register that differs at a call of the input does no harm there.
    pub(super) fn is_unread_at_call(&mut self, walk: &Walk<'_, '_>, place: u64, inst: Inst, register: u8) -> bool {
        if !has(KEPT, register) {
            return self.is_dead_at_call(walk, place, inst, register);
        }
        let has_handlers = walk.input.unwind.fde_at(place).is_none_or(|fde| walk.input.unwind.fdes[fde as usize].lsda.is_some());
        if register == STACK || has_handlers {
            return false;
        }
        let Some(target) = self.own_callee(walk, place, inst) else {
            return inst.kind == Kind::Call || !self.is_named(walk, place, inst, register);
        };
        if let Some(&known) = self.liveness.kept.get(&(target, register)) {
            return known;
        }
        let is_kept = self.is_kept_from(walk, target, register);
        self.liveness.kept.insert((target, register), is_kept);
        is_kept
    }

    /// Registers that a call in both programs may have written in one of them when it returns, as bits.
    pub(super) fn written_by_calls(&mut self, walk: &Walk<'_, '_>, input: u64, output: u64) -> u16 {
        self.written_by_call(walk, true, input) | self.written_by_call(walk, false, output)
    }

    fn written_by_call(&mut self, walk: &Walk<'_, '_>, is_input: bool, place: u64) -> u16 {
        let side = if is_input { walk.input } else { walk.output };
        let Some(target) = side.inst(place).and_then(|inst| own_callee_of(side, place, inst)) else { return !KEPT };
        if let Some(&known) = self.written.get(&(is_input, target)) {
            return known;
        }
        let written = self.written_from(walk, is_input, target).unwrap_or(!KEPT);
        self.written.insert((is_input, target), written);
        written
    }

    /// `None` if anything may be written.
    fn written_from(&mut self, walk: &Walk<'_, '_>, is_input: bool, target: u64) -> Option<u16> {
        let side = if is_input { walk.input } else { walk.output };
        if side.drops_return_address(target) {
            return None;
        }
        let mut seen: FxHashSet<u64> = FxHashSet::default();
        let mut work = vec![target];
        let mut written = 0;
        while let Some(at) = work.pop() {
            if !seen.insert(at) {
                continue;
            }
            let inst = side.inst(at).filter(|_| seen.len() < CALLEE_STEPS_MAX && written | KEPT != u16::MAX)?;
            let after = at + u64::from(inst.len);
            match inst.kind {
                Kind::Nop | Kind::EndBranch => work.push(after),
                Kind::Jump => work.push(side.target(at, inst)),
                Kind::Branch => work.extend([side.target(at, inst), after]),
                Kind::Return | Kind::Stop | Kind::Trap => {}
                Kind::Loop | Kind::IndirectCall => return None,
                Kind::IndirectJump if !is_input => return None,
                Kind::IndirectJump => {
                    work.extend(self.targets_of(walk, at).filter(|targets| !targets.places.is_empty())?.places);
                }
                Kind::Call => {
                    let callee = own_callee_of(side, at, inst).filter(|&callee| !side.drops_return_address(callee))?;
                    work.extend([callee, after]);
                }
                Kind::Plain | Kind::Lea => {
                    let decoded = self.decode(is_input, side, at, inst)?;
                    if decoded.is_special {
                        return None;
                    }
                    written |= (0..16).filter(|&number| may_write(&decoded, number)).fold(0, |all, number| all | 1 << number);
                    work.push(after);
                }
            }
        }
        Some(written & !KEPT)
    }

    /// Whether code only puts a register on the stack, overwrites it, and takes it back.
    fn is_kept_from(&mut self, walk: &Walk<'_, '_>, target: u64, register: u8) -> bool {
        let mut seen: FxHashSet<(u64, bool)> = FxHashSet::default();
        // Places, and whether the register holds there what it held at the call.
        let mut work = vec![(target, true)];
        while let Some((at, holds)) = work.pop() {
            if !seen.insert((at, holds)) {
                continue;
            }
            let Some(inst) = walk.input.inst(at).filter(|_| seen.len() < STEPS_MAX) else { return false };
            let after = at + u64::from(inst.len);
            match inst.kind {
                Kind::Nop | Kind::EndBranch => work.push((after, holds)),
                Kind::Jump => work.push((walk.input.target(at, inst), holds)),
                Kind::Branch | Kind::Loop => work.extend([(walk.input.target(at, inst), holds), (after, holds)]),
                Kind::Return | Kind::Stop | Kind::Trap => {}
                Kind::IndirectJump => {
                    let Some(targets) = self.targets_of(walk, at).filter(|_| !(holds && self.is_named(walk, at, inst, register)))
                    else {
                        return false;
                    };
                    work.extend(targets.places.into_iter().map(|target| (target, holds)));
                }
                Kind::Call | Kind::IndirectCall => {
                    let mut holds_behind = holds;
                    if let Some(followed) = self.followed(walk, true, at) {
                        for (_, decoded) in &followed.insts {
                            match holds_after(decoded, register, holds_behind) {
                                Some(holds) => holds_behind = holds,
                                None => return false,
                            }
                        }
                        if followed.returns {
                            work.push((after, holds_behind));
                            continue;
                        }
                    }
                    match self.own_callee(walk, at, inst) {
                        Some(target) => work.extend(holds.then_some((target, true))),
                        None if holds && inst.kind != Kind::Call && self.is_named(walk, at, inst, register) => return false,
                        None => {}
                    }
                    work.push((after, holds_behind));
                }
                Kind::Plain | Kind::Lea => {
                    let Some(decoded) = self.decode(true, walk.input, at, inst) else { return false };
                    match holds_after(&decoded, register, holds) {
                        Some(holds) => work.push((after, holds)),
                        None => return false,
                    }
                }
            }
        }
        true
    }
}

/// The code of a file that a call in it enters.
pub(super) fn own_callee_of(side: &Side<'_>, at: u64, inst: Inst) -> Option<u64> {
    let target = (inst.kind == Kind::Call).then(|| side.target(at, inst))?;
    side.slot_of_stub(target).is_none().then_some(target)
}

/// Instructions with one operand that write nothing else, flags and the stack pointer aside.
const ONLY_NAMED: [&str; 7] = ["inc", "dec", "neg", "not", "bswap", "pop", "push"];

/// Whether an instruction may write a register.
pub(super) fn may_write(decoded: &Decoded, register: u8) -> bool {
    let is_it = |found: Reg| matches!(found, Reg::General(number, ..) if number == register);
    let name = decoded.name.as_str();
    if decoded.writes.iter().any(|&found| is_it(found)) {
        return true;
    }
    // Implicit registers.
    let names_all = match decoded.operands.len() {
        0 => false,
        1 => ONLY_NAMED.contains(&name) || name.starts_with("set"),
        _ => !name.starts_with("cmpxchg"),
    };
    if matches!(register, 0 | 2) && !names_all {
        return true;
    }
    if decoded.class() == Class::Opaque || name.starts_with('x') || name == "mulx" {
        return decoded.may_use(register);
    }
    let is_read_only = matches!(name, "cmp" | "test" | "push" | "bt");
    !is_read_only && matches!(decoded.operands.first(), Some(&(Operand::Reg(found), _)) if is_it(found))
}

/// Whether a register holds what it held at the call behind an instruction; `None` if that is used.
fn holds_after(decoded: &Decoded, register: u8, holds: bool) -> Option<bool> {
    let is_it = |operand: &Operand| *operand == Operand::Reg(Reg::General(register, 64, false));
    let is_alone = matches!(&*decoded.operands, [(operand, _)] if is_it(operand));
    match decoded.name.as_str() {
        "pop" if is_alone => return Some(true),
        "leave" if register == 5 => return (!holds).then_some(true),
        "push" if is_alone => return Some(holds),
        _ if !holds => return Some(false),
        _ => {}
    }
    match use_of(decoded, register, false) {
        Use::Reads | Use::WritesLow => None,
        Use::Writes => Some(false),
        Use::Passes => Some(true),
    }
}
