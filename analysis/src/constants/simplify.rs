//! What is left of a procedure where its case is known: which instructions go, and the rest's length.
//!
//! **Method.** In the blocks that are reached, backward: an instruction that does nothing but compute goes if nothing that stays reads a register or flag that it writes. What stays
//! reads less than it did: one whose result is a constant becomes a move of that constant, a branch that is decided goes. So what only led there goes too (strong liveness).
//!
//! **What is read at the ends.** At a return: `rax`, `rdx`, the stack pointer, what is callee-saved and what else some caller really reads; before a call whose code is not known: all arguments; before one
//! that is: what a register holds may pass through it, so all that is read behind it and the arguments that its code reads.
//!
//! **Memory.** A load goes only from constant memory or from the procedure's own frame at a known place: accesses to what may be shared keep their number and order.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::known::Constant;
use super::prepared::Prepared;
use super::solve::{Knowing, Setting, Solved, advance, is_own_frame, operand_value, ways};
use super::uses::EntryUses;
use crate::values::Effects;
use crate::values::code::{ARGUMENTS, CALLEE_SAVED, Callee, Effect, RAX, RDX, RSP, Register, RegisterSet};
use crate::values::memory::touch;

/// What becomes of an instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    Removed,
    /// A branch, or a jump through a table, goes one way: the target block, by its number in the procedure, or `None` for out of it.
    Decided(Option<u32>),
    /// Its register becomes a constant.
    Becomes(Register, Constant),
}

/// A procedure for one case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Simplified {
    /// By instruction, ascending, those that differ.
    pub fates: Vec<(u32, Fate)>,
    /// Blocks that are reached, by number, ascending.
    pub reached: Vec<u32>,
    /// Registers that are read before they are written.
    pub needed: RegisterSet,
}

impl Simplified {
    /// Instructions that are gone: removed and decided ones.
    pub fn gone(&self) -> impl Iterator<Item = u32> + '_ {
        let is_gone = |fate: &Fate| matches!(fate, Fate::Removed | Fate::Decided(_));
        self.fates.iter().filter(move |f| is_gone(&f.1)).map(|f| f.0)
    }

    /// The length of what is left, in bytes.
    pub(super) fn len(&self, prepared: &Prepared) -> u32 {
        let mut fates = self.fates.iter().peekable();
        let mut len = 0;
        for &block in &self.reached {
            for number in prepared.code.instructions_of(&prepared.code.blocks[block as usize]) {
                while fates.next_if(|f| (f.0 as usize) < number).is_some() {}
                let whole = prepared.instructions[number].len() as u32;
                len += match fates.next_if(|f| f.0 as usize == number) {
                    None => whole,
                    Some((_, Fate::Removed | Fate::Decided(_))) => 0,
                    Some((_, Fate::Becomes(register, constant))) => move_len(*register, *constant),
                };
            }
        }
        len
    }
}

/// The length of the instruction that gives a register a constant.
pub fn move_len(register: Register, constant: Constant) -> u32 {
    let high = u32::from(register >= 8);
    match constant {
        Constant::Number(number) if number <= u64::from(u32::MAX) => 5 + high,
        Constant::Number(number) if number.cast_signed() >= i64::from(i32::MIN) && number.cast_signed() < 0 => 7,
        Constant::Number(_) => 10,
        // `lea`, relative to itself.
        Constant::Address(_) => 7,
    }
}

/// What an instruction is, given what is known before it.
#[derive(Copy, Clone, Default)]
struct Form {
    /// Its only register becomes this.
    result: Option<(Register, Constant)>,
    can_go: bool,
    decided: Option<Option<u32>>,
}

/// Simplifies a procedure as far as a solution allows.
pub(super) fn simplify(setting: Setting<'_>, prepared: &Prepared, uses: &EntryUses, solved: &Solved) -> Simplified {
    let code = &prepared.code;
    let mut forms = vec![Form::default(); code.instructions.len()];
    let mut successors: Vec<Vec<u32>> = vec![Vec::new(); code.blocks.len()];
    let mut tails: Vec<Vec<u32>> = vec![Vec::new(); code.blocks.len()];
    for (block, start) in solved.at_start.iter().enumerate() {
        let Some(start) = start else { continue };
        let ways = forms_of(setting, prepared, block as u32, start, &mut forms);
        (successors[block], tails[block]) = ways;
    }
    let reached = |&block: &u32| solved.at_start[block as usize].is_some();
    let pads = (0..code.blocks.len() as u32).filter(|&b| reached(&b) && code.blocks[b as usize].is_landing_pad).collect();
    let (registers, flags) = uses.read_behind(code.procedure);
    let at_return = AT_RETURN | Live::from(registers) | if flags { flags_bits(u8::MAX) } else { 0 };
    let liveness = Liveness { prepared, uses, forms: &forms, successors: &successors, tails: &tails, pads, at_return };
    let live = liveness.solve(reached);
    let needed = live[code.entry as usize] as RegisterSet;
    let mut simplified =
        Simplified { fates: Vec::new(), reached: (0..code.blocks.len() as u32).filter(reached).collect(), needed };
    for &block in &simplified.reached {
        liveness.walk(block, &live, |number, kept| {
            let form = &forms[number];
            let fate = match (kept, form.decided, form.result) {
                (Kept::Gone, ..) => Fate::Removed,
                (_, Some(target), _) => Fate::Decided(target),
                (Kept::Move, _, Some((register, constant))) if !is_constant_move(&prepared.instructions[number]) => {
                    Fate::Becomes(register, constant)
                }
                _ => return,
            };
            simplified.fates.push((number as u32, fate));
        });
    }
    simplified.fates.sort_unstable();
    simplified
}

/// Whether it gives its register a constant whatever is known.
fn is_constant_move(instruction: &Instruction) -> bool {
    let is_immediate = |operand| !matches!(instruction.op_kind(operand), OpKind::Register | OpKind::Memory);
    match instruction.mnemonic() {
        Mnemonic::Mov => instruction.op0_kind() == OpKind::Register && is_immediate(1),
        Mnemonic::Lea => instruction.is_ip_rel_memory_operand(),
        Mnemonic::Xor | Mnemonic::Sub => {
            instruction.op_kind(1) == OpKind::Register && instruction.op0_register() == instruction.op1_register()
        }
        _ => false,
    }
}

/// The forms of a block's instructions, and the ways out of it.
fn forms_of(setting: Setting<'_>, prepared: &Prepared, block: u32, start: &Knowing, forms: &mut [Form]) -> (Vec<u32>, Vec<u32>) {
    let data = &prepared.code.blocks[block as usize];
    let mut knowing = start.clone();
    let mut before_last = None;
    let range = prepared.code.instructions_of(data);
    let last = range.clone().next_back();
    for number in range {
        let before = knowing.clone();
        let returns = advance(setting, prepared, &mut knowing, number as u32);
        forms[number] = form(setting, prepared, number, &before, &knowing);
        if Some(number) == last {
            before_last = Some(before);
        }
        if !returns {
            return (Vec::new(), Vec::new());
        }
    }
    let ways = ways(setting, prepared, block, before_last.as_ref());
    if let (true, Some(last)) = (ways.is_decided, last) {
        forms[last].decided = Some(ways.successors.first().copied());
    }
    (ways.successors, ways.tails)
}

fn form(setting: Setting<'_>, prepared: &Prepared, number: usize, before: &Knowing, after: &Knowing) -> Form {
    let action = &prepared.actions[number];
    let mut form = Form::default();
    if action.is_computation {
        form.can_go = loads_are_private(setting, prepared, number, before);
        if form.can_go && action.writes.count_ones() == 1 {
            let register = action.writes.trailing_zeros() as Register;
            form.result = Constant::of(&after.state.get(register)).map(|constant| (register, constant));
        }
    }
    form
}

/// Whether an instruction reads no memory but what is constant or the procedure's own.
fn loads_are_private(setting: Setting<'_>, prepared: &Prepared, number: usize, before: &Knowing) -> bool {
    let references = prepared.code.references_of(&prepared.code.instructions[number]);
    if references.is_empty() {
        return true;
    }
    let instruction = &prepared.instructions[number];
    let mut state = before.state.clone();
    let is_private = |reference| is_own_frame(&touch(&mut state, &mut Effects::default(), reference, false));
    references.iter().all(is_private)
        || (0..instruction.op_count())
            .filter(|&n| instruction.op_kind(n) == OpKind::Memory)
            .all(|n| operand_value(setting, instruction, &before.state, n).is_some())
}

/// Registers and, above them, the flags.
type Live = u32;

fn flags_bits(flags: u8) -> Live {
    Live::from(flags) << 16
}

const AT_RETURN: Live = (CALLEE_SAVED | 1 << RAX | 1 << RDX | 1 << RSP) as Live;

struct Liveness<'a> {
    prepared: &'a Prepared,
    uses: &'a EntryUses,
    forms: &'a [Form],
    successors: &'a [Vec<u32>],
    tails: &'a [Vec<u32>],
    /// Where an exception of any call may arrive.
    pads: Vec<u32>,
    /// Read where the procedure returns.
    at_return: Live,
}

/// What becomes of an instruction by what is read behind it.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Kept {
    Gone,
    /// Only its register is wanted, which is a constant.
    Move,
    Stays,
}

impl Liveness<'_> {
    /// What is read from the start of each block on.
    fn solve(&self, is_reached: impl Fn(&u32) -> bool) -> Vec<Live> {
        let code = &self.prepared.code;
        let mut live: Vec<Live> = vec![0; code.blocks.len()];
        let order: Vec<u32> = code.order.iter().rev().copied().filter(is_reached).collect();
        loop {
            let mut has_changed = false;
            for &block in &order {
                let at_start = self.walk(block, &live, |_, _| {});
                has_changed |= at_start != live[block as usize];
                live[block as usize] = at_start;
            }
            if !has_changed {
                return live;
            }
        }
    }

    /// From the end of a block to its start; tells of each instruction whether it goes.
    fn walk(&self, block: u32, at_start: &[Live], mut seen: impl FnMut(usize, Kept)) -> Live {
        let code = &self.prepared.code;
        let data = &code.blocks[block as usize];
        let mut live = self.successors[block as usize].iter().fold(0, |live, &s| live | at_start[s as usize]);
        for &call in &self.tails[block as usize] {
            live |= self.at_return | self.read_by(code.calls[call as usize].callee);
        }
        let is_left =
            data.successors.is_empty() || data.exits.iter().any(|e| matches!(e, crate::values::code::Exit::Return { .. }));
        if is_left {
            live |= self.at_return;
        }
        for number in code.instructions_of(data).rev() {
            let (form, action) = (&self.forms[number], &self.prepared.actions[number]);
            if let Effect::Call(call) = code.instructions[number].effect {
                live = live & 0xffff | self.read_by(code.calls[call as usize].callee);
                live |= self.pads.iter().fold(0, |live, &pad| live | at_start[pad as usize]);
            }
            let written = Live::from(action.writes) | flags_bits(action.writes_flags);
            // A move does not touch the flags: one that is put in the place of what wrote them must not be wanted for them.
            let kept = match form.result {
                _ if form.can_go && live & written == 0 => Kept::Gone,
                Some(_) if live & flags_bits(action.writes_flags) == 0 => Kept::Move,
                _ => Kept::Stays,
            };
            seen(number, kept);
            if kept == Kept::Gone {
                continue;
            }
            live &= !(Live::from(action.replaces) | flags_bits(action.writes_flags));
            if kept == Kept::Move {
                continue;
            }
            if form.decided.is_none() {
                live |= Live::from(action.reads) | flags_bits(action.reads_flags);
            }
        }
        live
    }

    fn read_by(&self, callee: Callee) -> Live {
        match callee {
            Callee::Local(procedure) => Live::from(self.uses.read_by(procedure) | 1 << RSP),
            // The number of vector registers comes in `rax`.
            Callee::Library(_) | Callee::Boundary => Live::from(ARGUMENTS | 1 << RAX | 1 << RSP),
            Callee::Inside => 0xffff,
        }
    }
}
