//! The instructions that clones have and functions don't.
//!
//! **A state is passed** in `r11`: `mov r11d, state` before the call or jump that enters the copy. The copy begins with `push r11; push r11` (16 bytes, so that the stack stays aligned) and has
//! `lea rsp, [rsp+16]`, which touches no flag, before each return and each jump that leaves. So all through its body the state is at `[rsp + depth]`, where `depth` is how far
//! the function has moved the stack pointer by then.
//!
//! A copy's states are numbered from 0, by 1, or by [`WAY`] where some call of it goes out of line.
//!
//! **A call that depends on the state**, in line: a tree of `cmp dword [rsp+depth], state; jae`, whose leaves pass the next state, call, and jump behind the last leaf. Out of line:
//! `lea r11, [rip+ways]; add r11, [rsp+depth]; notrack call r11`, where `ways` has for each state `mov r11d, next` (if the target takes one) and `jmp target`, padded to 16 bytes. Where all
//! states lead to one copy and are but shifted, `mov r11d, [rsp+depth]; lea r11d, [r11+shift]` and the call.
//!
//! **A jump in place of a call** is the same with `lea rsp, [rsp+16]` before what leaves.

use lifter::entity::Block;
use lifter::ir::{Evidence, RefData, RefKind, RefRole, RefTarget};

use analysis::constants::Constant;

use crate::clones::CloneId;
use crate::edit::NewCode;

/// The bytes of a way out of line.
pub(super) const WAY: u32 = 16;
/// What a state takes on the stack.
pub(super) const KEPT: u8 = 16;

/// Where a call goes in one state.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Way {
    Original,
    Clone { clone: CloneId, state: Option<u32> },
}

/// A call, or a jump in place of one.
#[derive(Copy, Clone, Debug)]
pub(super) struct Calling {
    /// The entry of the function that the program calls.
    pub(super) callee: Block,
    pub(super) is_tail: bool,
    /// Whether the caller keeps a state, and how far the function has moved the stack pointer there.
    pub(super) depth: Option<u32>,
    /// From one of the caller's states to the next.
    pub(super) stride: u32,
}

/// `lea rsp, [rsp+16]`.
const DROP_STATE: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, KEPT];

/// What keeps the state: the first instructions of a copy.
pub(super) fn keep_state() -> NewCode {
    NewCode { bytes: vec![0x41, 0x53, 0x41, 0x53], deeper: vec![(0, 0), (2, 8)].into(), ..NewCode::default() }
}

/// An instruction that leaves, after the state is taken off the stack. `refs` count from the instruction.
pub(super) fn leave(instruction: &[u8], refs: &[RefData]) -> NewCode {
    let mut code =
        NewCode { bytes: DROP_STATE.to_vec(), deeper: vec![(DROP_STATE.len() as u32, 0)].into(), ..NewCode::default() };
    code.bytes.extend(instruction);
    code.refs = refs.iter().map(|r| RefData { offset: r.offset + DROP_STATE.len() as u32, ..*r }).collect();
    code
}

/// A jump to a place outside, after the state is taken off the stack.
pub(super) fn leave_to(target: RefTarget) -> NewCode {
    leave(&[0xe9, 0, 0, 0, 0], &[branch(1, RefRole::Branch, target)])
}

fn branch(offset: usize, role: RefRole, target: RefTarget) -> RefData {
    RefData { offset: offset as u32, to_end: 4, kind: RefKind::Rel32, role, evidence: Evidence::Derived, target }
}

impl Calling {
    /// The call where it always goes one way.
    pub(super) fn always(self, way: Way) -> NewCode {
        let mut code = NewCode::default();
        self.push_way(&mut code, way);
        code
    }

    /// The call by compares; a way and a weight for each state.
    pub(super) fn by_compares(self, ways: &[(Way, u64)]) -> NewCode {
        let mut runs: Vec<(u32, Way, u64)> = Vec::new();
        for (index, &(way, weight)) in (0u32..).zip(ways) {
            match runs.last_mut().filter(|run| run.1 == way) {
                Some(run) => run.2 = run.2.saturating_add(weight),
                None => runs.push((index * self.stride, way, weight)),
            }
        }
        self.tree(&runs, 0)
    }

    /// Where all states lead to one copy, to states as far from each other as they are: by how much they are shifted.
    pub(super) fn shift(self, ways: &[(Way, u64)]) -> Option<(CloneId, i32)> {
        let state_of = |way: Way| match way {
            Way::Clone { clone, state: Some(state) } => Some((clone, state)),
            _ => None,
        };
        let (clone, first) = state_of(ways.first()?.0)?;
        let is_so = |(index, &(way, _)): (u32, &(Way, u64))| state_of(way) == Some((clone, first + index * self.stride));
        ((0u32..).zip(ways).all(is_so)).then_some((clone, first as i32))
    }

    /// The call to a copy whose state is the caller's, shifted.
    pub(super) fn shifted(self, clone: CloneId, shift: i32) -> NewCode {
        let mut code = NewCode::default();
        self.push_load(&mut code);
        if shift != 0 {
            code.bytes.extend([0x45, 0x8d, 0x9b]);
            code.bytes.extend(shift.to_le_bytes());
        }
        self.push_way(&mut code, Way::Clone { clone, state: None });
        code
    }

    /// The call out of line; the ways are a clone of the callee.
    pub(super) fn by_table(self, ways: CloneId) -> NewCode {
        let mut code = NewCode::default();
        code.bytes.extend([0x4c, 0x8d, 0x1d]); // lea r11, [rip+ways]
        push_field(&mut code, RefRole::Address, self.callee, Way::Clone { clone: ways, state: None });
        push_slot(&mut code.bytes, &[0x4c, 0x03], 3, self.depth.unwrap_or(0)); // add r11, [rsp+depth]
        self.drop_state(&mut code);
        code.bytes.extend([0x3e, 0x41, 0xff, if self.is_tail { 0xe3 } else { 0xd3 }]); // notrack call r11
        code
    }

    /// `mov r11d, [rsp+depth]`.
    fn push_load(self, code: &mut NewCode) {
        push_slot(&mut code.bytes, &[0x44, 0x8b], 3, self.depth.unwrap_or(0));
    }

    /// Before a jump that leaves.
    fn drop_state(self, code: &mut NewCode) {
        if self.is_tail && self.depth.is_some() {
            code.deeper.push((code.bytes.len() as u32, KEPT));
            code.bytes.extend(DROP_STATE);
            code.deeper.push((code.bytes.len() as u32, 0));
        }
    }

    fn push_way(self, code: &mut NewCode, way: Way) {
        self.drop_state(code);
        if let Way::Clone { state: Some(state), .. } = way {
            code.bytes.extend([0x41, 0xbb]);
            code.bytes.extend(state.to_le_bytes());
        }
        let (opcode, role) = if self.is_tail { (0xe9, RefRole::Branch) } else { (0xe8, RefRole::Call) };
        code.bytes.push(opcode);
        push_field(code, role, self.callee, way);
    }

    /// Compares for some runs of states, with so many bytes behind them.
    fn tree(self, runs: &[(u32, Way, u64)], behind: usize) -> NewCode {
        let mut code = NewCode::default();
        if let [(_, way, _)] = *runs {
            self.push_way(&mut code, way);
            if behind > 0 && !self.is_tail {
                push_jump(&mut code.bytes, &[0xeb], &[0xe9], behind);
            }
            return code;
        }
        let middle = split(runs);
        let high = self.tree(&runs[middle..], behind);
        let low = self.tree(&runs[..middle], behind + high.bytes.len());
        let bound = runs[middle].0;
        match i8::try_from(bound) {
            Ok(short) => {
                push_slot(&mut code.bytes, &[0x83], 7, self.depth.unwrap_or(0));
                code.bytes.push(short.cast_unsigned());
            }
            Err(_) => {
                push_slot(&mut code.bytes, &[0x81], 7, self.depth.unwrap_or(0));
                code.bytes.extend(bound.to_le_bytes());
            }
        }
        push_jump(&mut code.bytes, &[0x73], &[0x0f, 0x83], low.bytes.len());
        append(&mut code, low);
        if self.is_tail && self.depth.is_some() {
            code.deeper.push((code.bytes.len() as u32, KEPT));
        }
        append(&mut code, high);
        code
    }
}

/// The ways of a call out of line, by state.
pub(super) fn table(callee: Block, ways: &[(Way, u64)]) -> NewCode {
    let mut code = NewCode::default();
    for &(way, _) in ways {
        let end = code.bytes.len() + WAY as usize;
        if let Way::Clone { state: Some(state), .. } = way {
            code.bytes.extend([0x41, 0xbb]);
            code.bytes.extend(state.to_le_bytes());
        }
        code.bytes.push(0xe9);
        push_field(&mut code, RefRole::Branch, callee, way);
        code.bytes.resize(end, 0xcc);
    }
    code
}

/// Compares that a call in some state makes by `by_compares`, on average; in 16ths.
pub(super) fn mean_compares(ways: &[(Way, u64)]) -> u64 {
    let mut runs: Vec<(u32, Way, u64)> = Vec::new();
    for (state, &(way, weight)) in (0u32..).zip(ways) {
        match runs.last_mut().filter(|run| run.1 == way) {
            Some(run) => run.2 = run.2.saturating_add(weight + 1),
            None => runs.push((state, way, weight + 1)),
        }
    }
    fn compares(runs: &[(u32, Way, u64)]) -> u128 {
        if runs.len() < 2 {
            return 0;
        }
        let middle = split(runs);
        let here: u128 = runs.iter().map(|run| u128::from(run.2)).sum();
        here + compares(&runs[..middle]) + compares(&runs[middle..])
    }
    let all: u128 = runs.iter().map(|run| u128::from(run.2)).sum();
    (compares(&runs) * 16 / all.max(1)) as u64
}

/// Where a tree of compares is best cut: so that both sides run about as often. At least one run is on each.
fn split(runs: &[(u32, Way, u64)]) -> usize {
    let weight = |run: &(u32, Way, u64)| u128::from(run.2) + 1;
    let all: u128 = runs.iter().map(weight).sum();
    let mut before = 0;
    let mut best = (u128::MAX, 1);
    for (index, run) in runs.iter().enumerate().take(runs.len() - 1) {
        before += weight(run);
        best = best.min((before.abs_diff(all - before), index + 1));
    }
    best.1
}

/// An instruction whose memory operand is `[rsp+depth]`; `field` is the middle of its ModRM byte.
fn push_slot(bytes: &mut Vec<u8>, opcode: &[u8], field: u8, depth: u32) {
    bytes.extend(opcode);
    match i8::try_from(depth) {
        Ok(short) => bytes.extend([0x44 | field << 3, 0x24, short.cast_unsigned()]),
        Err(_) => {
            bytes.extend([0x84 | field << 3, 0x24]);
            bytes.extend(depth.to_le_bytes());
        }
    }
}

/// A jump over so many bytes.
fn push_jump(bytes: &mut Vec<u8>, short: &[u8], long: &[u8], over: usize) {
    match i8::try_from(over) {
        Ok(over) => {
            bytes.extend(short);
            bytes.push(over.cast_unsigned());
        }
        Err(_) => {
            bytes.extend(long);
            bytes.extend((over as u32).to_le_bytes());
        }
    }
}

/// The distance to where a way goes.
fn push_field(code: &mut NewCode, role: RefRole, callee: Block, way: Way) {
    let offset = code.bytes.len();
    if let Way::Clone { clone, .. } = way {
        code.enters.push((offset as u32, clone));
    }
    code.refs.push(branch(offset, role, RefTarget::Block(callee)));
    code.bytes.extend([0; 4]);
}

fn append(code: &mut NewCode, more: NewCode) {
    let base = code.bytes.len() as u32;
    code.bytes.extend(more.bytes);
    code.refs.extend(more.refs.into_iter().map(|r| RefData { offset: r.offset + base, ..r }));
    code.enters.extend(more.enters.into_iter().map(|(offset, clone)| (offset + base, clone)));
    for (offset, deeper) in more.deeper {
        match code.deeper.last_mut().filter(|last| last.0 == offset + base) {
            Some(last) => last.1 = deeper,
            None => code.deeper.push((offset + base, deeper)),
        }
    }
}

/// The instruction that gives a register a constant and changes nothing else. `what_at` tells what an address names that moves.
pub(super) fn move_constant(register: u8, constant: Constant, what_at: impl Fn(lifter::Va) -> Option<RefTarget>) -> NewCode {
    let (low, high) = (register & 7, register >> 3);
    let mut bytes = Vec::with_capacity(10);
    let mut refs = Vec::new();
    match constant {
        Constant::Number(number) => {
            if let Ok(number) = u32::try_from(number) {
                bytes.extend((high != 0).then_some(0x41));
                bytes.push(0xb8 | low);
                bytes.extend(number.to_le_bytes());
            } else if let Ok(number) = i32::try_from(number.cast_signed()) {
                bytes.extend([0x48 | high, 0xc7, 0xc0 | low]);
                bytes.extend(number.to_le_bytes());
            } else {
                bytes.extend([0x48 | high, 0xb8 | low]);
                bytes.extend(number.to_le_bytes());
            }
        }
        Constant::Address(at) => {
            bytes.extend([0x48 | high << 2, 0x8d, 0x05 | low << 3, 0, 0, 0, 0]);
            let target = what_at(at).unwrap_or(RefTarget::Fixed(at));
            refs.push(branch(3, RefRole::Address, target));
        }
    }
    NewCode { bytes, refs, ..NewCode::default() }
}

#[cfg(test)]
mod tests;
