//! Both programs leave a segment: by a branch, a call, a return, an indirect jump, or at an instruction that is not looked into.

use std::rc::Rc;

use super::super::Key;
use super::super::decoded::{Decoded, Operand, Reg};
use super::super::entry::{ARGUMENTS, Called, Entry};
use super::super::expr::{Id, Node, Pool};
use super::super::facts::Facts;
use super::super::followed::Broken;
use super::super::liveness::VECTORS;
use super::super::machine::{BASE, Machine, Privacy, RED_ZONE, STACK};
use super::super::semantics::{Context, Place};
use super::local::Mark;
use super::{Cursor, Effect, Failure, Run, Step};
use crate::decode::{Inst, Kind};
use crate::report::ViolationKind;
use crate::walk::{Pair, Reach, Side};

/// Registers that a call keeps: `rbx`, `rsp`, `rbp`, `r12` to `r15`.
pub(in super::super) const KEPT: [usize; 7] = [3, 4, 5, 12, 13, 14, 15];

/// The place of the adjust flag among the flags.
const ADJUST: usize = 2;

impl Run<'_, '_, '_> {
    /// In the place of a call, the output may call the rest of what the input called, which begins where the input's state was what the output's is.
    pub(super) fn leave_by_call(&mut self, input: &mut Cursor, output: &mut Cursor, b: Inst) -> Step<bool> {
        let (Some(call), o) = (input.within, output.at) else { return Ok(false) };
        if b.kind != Kind::Call || self.walk.output.code.bytes(o, b).len() != 5 {
            return Ok(false);
        }
        // Where registers may differ, more than one place may do: that is it in which the fewest do, those that nobody reads coming last.
        let mut best: Option<((u32, u32), usize, u16)> = None;
        for index in 0..input.marks.len() {
            let Some((unread, count)) = self.is_here(&input.marks[index], output) else { continue };
            let count = (count, unread.count_ones());
            if best.is_none_or(|best| count < best.0) {
                best = Some((count, index, unread));
            }
        }
        let Some((_, mark, unread)) = best else { return Ok(false) };
        let mark = input.marks.swap_remove(mark);
        input.instructions.truncate(mark.instructions);
        (input.at, input.machine) = (mark.at, mark.machine);
        self.note_row(true, input)?;
        self.note_row(false, output)?;
        self.compare_events(input, output)?;
        output.pass(b.len);
        // Both have called what comes next.
        let at = (input.at, self.walk.output.target(o, b));
        self.note_called(input, output, at, call, unread);
        self.return_from(input, output, call, unread)?;
        if self.is_entry_of(call, input.at) {
            // The output has only come to the same call later, by branches that are decided.
            (input.at, input.within) = (call, None);
            if input.instructions.is_empty() {
                input.first_within = None;
            }
        }
        Ok(true)
    }

    /// Whether the input comes to an address first when it goes into a call.
    fn is_entry_of(&self, call: u64, at: u64) -> bool {
        let side = self.walk.input;
        let Some(target) = side.inst(call).map(|inst| side.target(call, inst)) else { return false };
        let skipped = side.inst(target).filter(|inst| inst.kind == Kind::EndBranch).map_or(0, |inst| u64::from(inst.len));
        at == target || at == target + skipped
    }

    /// The output calls through what the input jumps through in the place of a call.
    fn leave_through(&mut self, input: &Cursor, a: Inst, output: &Cursor, b: Inst, call: u64) -> Step<()> {
        let (i, o) = (input.at, output.at);
        let (x, y) = (self.walk.input.code.bytes(i, a), self.walk.output.code.bytes(o, b));
        if !self.walk.is_call_for_jump((i, a, x), (o, b, y)) || !self.walk.input.is_as_at_entry(i) {
            return self.fail(o, format!("is not the input's jump at {i:#x}, in place of the call at {call:#x}"));
        }
        self.compare_events(input, output)?;
        self.compare_flags(input, output)?;
        self.compare_jumped(input, output)?;
        self.return_from(input, output, call, 0)
    }

    /// Whether what comes next can't tell the two programs apart but by registers that bring arguments: gives those that differ and are not read, and how many others do.
    pub(super) fn is_here(&mut self, mark: &Mark, output: &Cursor) -> Option<(u16, u32)> {
        let input = Cursor::new(mark.at, mark.machine.clone(), None);
        // What is called through a slot reads no flags.
        let reads_flags = self.walk.input.slot_of_stub(mark.at).is_none();
        if !mark.has_same_events(&output.machine) || reads_flags && !self.has_same_flags(&input, output) {
            return None;
        }
        let (mut unread, mut count) = (0, 0);
        let is_here = self.compare_but(&input, output, |run, register| {
            let is_unread = run.prover.is_dead_at_jump(run.walk, input.at, register);
            unread |= u16::from(is_unread && register < VECTORS) << (register & 15);
            count += u32::from(!is_unread);
            run.note_dead(is_unread) || ARGUMENTS.contains(&usize::from(register))
        });
        is_here.is_ok().then_some((unread, count))
    }

    /// The flags are the same, but for the adjust flag where nobody reads it.
    fn has_same_flags(&mut self, input: &Cursor, output: &Cursor) -> bool {
        let (mut x, y) = (input.machine.flags, output.machine.flags);
        if x[ADJUST] != y[ADJUST] && self.prover.adjust_flag_is_free(self.walk, input.at) {
            x[ADJUST] = y[ADJUST];
        }
        x == y
    }

    /// Both go on where a call of the input returns to, from something else than that call.
    fn return_from(&mut self, input: &Cursor, output: &Cursor, call: u64, unread: u16) -> Step<()> {
        let (Some(site), Some(other)) = (self.walk.input.inst(call), self.walk.output.inst(output.at)) else {
            return self.fail(output.at, format!("does not decode, here or at the input's {call:#x}"));
        };
        self.compare_slots(input, output, 0)?;
        let at_call = Cursor::new(call, input.machine.clone(), None);
        self.called(&at_call, site, output, (call + u64::from(site.len), output.at + u64::from(other.len)), unread)
    }

    /// Both leave the segment.
    pub(super) fn leave(&mut self, input: &mut Cursor, a: Inst, output: &mut Cursor, b: Inst) -> Step<()> {
        self.note_row(true, input)?;
        self.note_row(false, output)?;
        let (i, o) = (input.at, output.at);
        input.pass(a.len);
        output.pass(b.len);
        let (after_i, after_o) = (i + u64::from(a.len), o + u64::from(b.len));
        if let (Some(call), true) = (input.within, (a.kind, b.kind) == (Kind::IndirectJump, Kind::IndirectCall)) {
            return self.leave_through(input, a, output, b, call);
        }
        if input.within.is_some() && a.kind != Kind::Branch {
            return self.fail(o, format!("the body of a call is left at the input's {i:#x}"));
        }
        match (a.kind, b.kind) {
            (Kind::Branch, Kind::Branch) => {
                if let Some(call) = input.within {
                    self.check_within(call, i, a)?;
                }
                self.compare_events(input, output)?;
                self.branch(input, a, output, b)
            }
            (Kind::Call, Kind::Call) => {
                let (x, y) = (self.walk.input.target(i, a), self.walk.output.target(o, b));
                self.compare_events(input, output)?;
                let unread = self.compare_entered(input, a, output)?;
                self.compare_slots(input, output, 0)?;
                self.note_called(input, output, (x, y), i, unread);
                self.called(input, a, output, (after_i, after_o), unread)
            }
            (Kind::Call, Kind::IndirectCall) if self.walk.is_call_past_stub(i, a, o, b) => {
                self.compare_events(input, output)?;
                self.segment.effects.push(Effect::Rewritten { input: i, output: o });
                self.call(input, a, output, (after_i, after_o))
            }
            (Kind::IndirectCall, Kind::Call) if self.walk.constant_target(i, a).is_some() => {
                let (x, y) = (self.walk.constant_target(i, a).unwrap_or(0), self.walk.output.target(o, b));
                self.compare_events(input, output)?;
                self.segment.effects.push(Effect::Walk(Pair::new(x, y, o, Reach::Name)));
                self.segment.effects.push(Effect::Rewritten { input: i, output: o });
                self.call(input, a, output, (after_i, after_o))
            }
            (Kind::IndirectCall, Kind::IndirectCall) => {
                let target = self.compare_targets(input, a, output, b)?;
                self.note_target(target);
                self.compare_events(input, output)?;
                self.call(input, a, output, (after_i, after_o))
            }
            (Kind::IndirectJump, Kind::IndirectJump) => {
                let target = self.compare_targets(input, a, output, b)?;
                self.compare_events(input, output)?;
                if self.switch(input, output, target)? {
                    return Ok(());
                }
                self.note_target(target);
                self.note_jump(i, a);
                self.compare_jumped(input, output)?;
                self.compare_slots(input, output, RED_ZONE)
            }
            (Kind::Return, Kind::Return) => {
                self.compare_bytes(i, a, o, b)?;
                self.compare_events(input, output)?;
                // Where it leads to is on top of the stack, which may be what the function put there.
                if input.machine.stack_offset(&self.pool).is_some() {
                    self.compare_slots(input, output, 0)?;
                }
                if self.walk.goes_on_behind_return(i) {
                    self.compare_registers(input, output)?;
                    self.segment.effects.push(Effect::Walk(Pair::new(after_i, after_o, o, Reach::Name)));
                }
                self.compare_returned(input, output)
            }
            (Kind::Stop, Kind::Stop) => {
                self.compare_bytes(i, a, o, b)?;
                self.compare_events(input, output)?;
                if self.walk.is_stepped_over(i, a) {
                    let facts = Rc::new(Facts::end(&mut self.pool, &input.machine, &output.machine));
                    let next = Key { input: after_i, output: after_o, within: input.within };
                    self.segment.successors.push((next, facts));
                }
                Ok(())
            }
            (Kind::Trap, Kind::Trap) => {
                self.compare_bytes(i, a, o, b)?;
                self.compare_events(input, output)?;
                self.compare_registers(input, output)?;
                self.segment.effects.push(Effect::Try(Pair::new(after_i, after_o, o, Reach::Flow)));
                Ok(())
            }
            (Kind::Loop, Kind::Loop) => self.counted_branch(input, a, output, b),
            (x, y) if x == y => self.opaque(input, a, output, b),
            _ => self.fail(o, format!("another instruction than the input's {i:#x} ends the piece")),
        }
    }

    fn compare_bytes(&mut self, i: u64, a: Inst, o: u64, b: Inst) -> Step<()> {
        match self.walk.compare(i, a, o, b) {
            Ok(None) => Ok(()),
            Ok(Some(reference)) => {
                self.segment.effects.push(Effect::Reference { reference, input: i, output: o });
                Ok(())
            }
            Err(difference) => {
                let violation = self.walk.tell(difference, (i, a), (o, b));
                Err(Failure { kind: violation.kind, address: o, message: violation.message, is_escape: false })
            }
        }
    }

    fn branch(&mut self, input: &Cursor, a: Inst, output: &Cursor, b: Inst) -> Step<()> {
        let (i, o) = (input.at, output.at);
        let x = self.condition_of(self.walk.input, input, a);
        let y = self.condition_of(self.walk.output, output, b);
        let facts = Rc::new(Facts::end(&mut self.pool, &input.machine, &output.machine));
        let (taken, next) = (self.walk.output.target(o, b), o + u64::from(b.len));
        let decided = self.pool.as_const(x).zip(self.pool.as_const(y)).filter(|_| self.prover.decides_first);
        if let Some((x, y)) = decided {
            let (to, never) = if y == 0 { (next, taken) } else { (taken, next) };
            let from = if x == 0 { i + u64::from(a.len) } else { self.walk.input.target(i, a) };
            self.segment.effects.push(Effect::Never(never));
            self.segment.is_decided = true;
            self.segment.successors.push((Key { input: from, output: to, within: input.within }, facts));
            return Ok(());
        }
        let is_same = x == y;
        if !is_same && self.pool.negate(x) != y {
            let (x, y) = (self.describe(x), self.describe(y));
            let message = format!("the condition differs from that of the input's {i:#x}: input {x}, output {y}");
            return Err(Failure { kind: ViolationKind::ConditionMismatch, address: o, message, is_escape: false });
        }
        let prefixes = |side: &Side<'_>, at, inst| crate::walk::prefixes(side.code.bytes(at, inst)).copied().collect::<Vec<u8>>();
        if prefixes(self.walk.input, i, a) != prefixes(self.walk.output, o, b) {
            return self.fail(o, format!("other prefixes than the branch at the input's {i:#x}"));
        }
        let (with_taken, with_next) = if is_same { (taken, next) } else { (next, taken) };
        let key = |at, output| Key { input: at, output, within: input.within };
        self.segment.successors.push((key(self.walk.input.target(i, a), with_taken), Rc::clone(&facts)));
        self.segment.successors.push((key(i + u64::from(a.len), with_next), facts));
        Ok(())
    }

    /// What is called or jumped to by its address is the same.
    fn compare_targets(&mut self, input: &mut Cursor, a: Inst, output: &mut Cursor, b: Inst) -> Step<Id> {
        let (i, o) = (input.at, output.at);
        let (Some(x), Some(y)) =
            (self.prover.decode(true, self.walk.input, i, a), self.prover.decode(false, self.walk.output, o, b))
        else {
            return self.fail(o, "is not known");
        };
        let prefixes = |decoded: &Decoded| {
            decoded.bytes[..decoded.shape.opcode].iter().copied().filter(|byte| byte & 0xf0 != 0x40).collect::<Vec<u8>>()
        };
        if prefixes(&x) != prefixes(&y) {
            return self.fail(o, format!("other prefixes than the input's {i:#x}"));
        }
        let mut place_of_output = (b.disp != 0).then(|| Place::At(self.walk.output.operand(o, b)));
        if a.disp != 0 && b.disp != 0 {
            self.compare_bytes(i, a, o, b)?;
            place_of_output = Some(Place::At(self.walk.input.operand(i, a)));
        } else if a.disp == 0 && x.bytes == y.bytes {
            self.compare_bytes(i, a, o, b)?;
        }
        let place_of_input = (a.disp != 0).then(|| Place::At(self.walk.input.operand(i, a)));
        let mut targets = [0; 2];
        for (target, (cursor, decoded, place)) in
            targets.iter_mut().zip([(&mut *input, &x, place_of_input), (&mut *output, &y, place_of_output)])
        {
            *target = self.target_of(&mut cursor.machine, decoded, (cursor.at, place))?;
        }
        if targets[0] != targets[1] {
            let (x, y) = (self.describe(targets[0]), self.describe(targets[1]));
            return self.fail(o, format!("the target differs from that of the input's {i:#x}: input {x}, output {y}"));
        }
        Ok(targets[0])
    }

    /// Where a call or jump by address goes.
    pub(super) fn target_of(&mut self, machine: &mut Machine, decoded: &Decoded, (at, place): (u64, Option<Place>)) -> Step<Id> {
        let mut context = Context {
            pool: &mut self.pool,
            privacy: self.privacy,
            image: &self.walk.input.image,
            keys: &mut self.prover.keys,
            at,
            place,
        };
        machine.target(&mut context, decoded).map_err(|trouble| Self::trouble(at, trouble))
    }

    /// Notes a direct call, and what is known there; `unread` are registers that nobody of the input reads from there on.
    fn note_called(&mut self, input: &Cursor, output: &Cursor, at: (u64, u64), site: u64, unread: u16) {
        self.segment.effects.push(Effect::Walk(Pair::new(at.0, at.1, output.at, Reach::Call)));
        let entry = Entry::of(&self.pool, &input.machine, &output.machine, unread);
        let told = self.walk.told(at, &entry);
        let left = told.map_or(0, |told| self.prover.left(told));
        self.segment.call = Some(Called { at, entry, site, left });
    }

    fn call(&mut self, input: &Cursor, a: Inst, output: &Cursor, after: (u64, u64)) -> Step<()> {
        let unread = self.compare_called(input, a, output)?;
        self.compare_slots(input, output, 0)?;
        self.called(input, a, output, after, unread)
    }

    /// What is known behind a call.
    ///
    /// A register that differs and is `unread` from the call on counts as the same behind it. Either somebody has written it by then, the same in both, or the input writes it before it
    /// reads it, on each way: so no value of the input's comes from it that one of the output's could be taken for.
    ///
    /// What straight code writes that is a part of its caller ([`super::super::followed`]) is the same in both too: all that it reads is the same at the call, the slots of the frame as well.
    fn called(&mut self, input: &Cursor, a: Inst, output: &Cursor, after: (u64, u64), unread: u16) -> Step<()> {
        let broken = self.broken_by_calls(input, output);
        if broken.is_let_out && *self.privacy == Privacy::Frame {
            return Err(Failure::escape(output.at));
        }
        self.segment.effects.push(Effect::CallSite { input: input.at, output: output.at });
        if self.walk.call_never_returns(input.at, a) {
            self.segment.effects.push(Effect::Try(Pair::new(after.0, after.1, output.at, Reach::Flow)));
            return Ok(());
        }
        let returns_twice = self.prover.returns_twice(self.walk, input.at, a);
        let (mut x, mut y) = (input.machine.clone(), output.machine.clone());
        // What is known is lost only in registers that the callee may write.
        let is_known = |pool: &Pool, id: Id| pool.as_const(id).or(pool.as_image(id)).is_some();
        let matters = !returns_twice && [0, 1, 2, 6, 7, 8, 9, 10, 11].iter().any(|&place| is_known(&self.pool, x.general[place]));
        let written = if matters { self.prover.written_by_calls(self.walk, input.at, output.at) } else { u16::MAX };
        let left = self.segment.call.map_or(0, |called| called.left);
        for place in 0..16 {
            // What differed before the call may differ behind it, and in the output be anything.
            let was_same = x.general[place] == y.general[place];
            let is_same = (was_same || unread >> place & 1 == 1) && left >> place & 1 == 0;
            let is_broken = broken.registers >> place & 1 == 1;
            let is_lost = is_broken || !KEPT.contains(&place) && (written >> place & 1 == 1 || !was_same || !is_same);
            if is_lost || (returns_twice && place != STACK) {
                let fresh = self.fresh(64);
                let other = if is_same { fresh } else { self.fresh(64) };
                (x.general[place], y.general[place]) = (fresh, other);
            }
        }
        for place in 0..32 {
            let fresh = self.fresh(512);
            (x.vectors[place], y.vectors[place]) = (fresh, fresh);
        }
        for place in 0..6 {
            (x.flags[place], y.flags[place]) = (self.fresh(1), self.fresh(1));
        }
        let rest = self.fresh(64);
        (x.rest, y.rest) = (rest, rest);
        let top = x.stack_offset(&self.pool).filter(|_| !returns_twice && !broken.frame);
        for machine in [&mut x, &mut y] {
            machine.slots.retain(|&at, _| top.is_some_and(|top| at >= top));
        }
        let facts = Rc::new(Facts::end(&mut self.pool, &x, &y));
        self.segment.successors.push((Key { input: after.0, output: after.1, within: None }, facts));
        Ok(())
    }

    /// What of calls of both programs is not as the psABI has it.
    pub(super) fn broken_by_calls(&mut self, input: &Cursor, output: &Cursor) -> Broken {
        let each = [(true, input), (false, output)].map(|(is_input, cursor)| {
            let has_base = self.pool.is_of_frame(cursor.machine.general[BASE]);
            self.prover.broken_by_call(self.walk, is_input, cursor.at, has_base)
        });
        each[0].union(each[1])
    }

    fn fresh(&mut self, width: u16) -> Id {
        self.fresh += 1;
        self.pool.make(Node::Class(self.fresh), width)
    }

    /// `loop`, `jrcxz` and their like.
    fn counted_branch(&mut self, input: &Cursor, a: Inst, output: &Cursor, b: Inst) -> Step<()> {
        let (i, o) = (input.at, output.at);
        self.compare_bytes(i, a, o, b)?;
        self.compare_events(input, output)?;
        self.compare_registers(input, output)?;
        self.compare_flags(input, output)?;
        let (mut x, mut y) = (input.machine.clone(), output.machine.clone());
        for place in [0, 1] {
            let fresh = self.fresh(64);
            (x.general[place], y.general[place]) = (fresh, fresh);
        }
        let facts = Rc::new(Facts::end(&mut self.pool, &x, &y));
        let pairs = [(self.walk.input.target(i, a), self.walk.output.target(o, b)), (i + u64::from(a.len), o + u64::from(b.len))];
        for (input, output) in pairs {
            self.segment.successors.push((Key { input, output, within: None }, Rc::clone(&facts)));
        }
        Ok(())
    }

    /// An instruction that is not looked into: the same in both, with the same state.
    fn opaque(&mut self, input: &Cursor, a: Inst, output: &Cursor, b: Inst) -> Step<()> {
        let (i, o) = (input.at, output.at);
        self.compare_bytes(i, a, o, b)?;
        self.compare_events(input, output)?;
        let decoded = self.prover.decode(true, self.walk.input, i, a);
        let decoded = decoded.as_deref();
        self.compare_used(input, a, decoded, output)?;
        let (mut x, mut y) = (input.machine.clone(), output.machine.clone());
        if decoded.is_none_or(reads_flags) {
            self.compare_flags(input, output)?;
        }
        let memory = decoded.and_then(Decoded::memory);
        // Without a memory operand, or with one that does not say so, it reaches no private slot but below the stack pointer.
        let is_stack = !self.walk.is_free_of_stack(i, a);
        if is_stack && !memory.is_some_and(|(memory, _)| matches!(memory.base, Some(Reg::General(4, 64, false)))) {
            return self.fail(o, format!("uses the stack pointer in a way that is not followed, like the input's {i:#x}"));
        }
        let is_of_frame = memory.is_some_and(|(memory, _)| {
            [memory.base, memory.index].into_iter().flatten().any(|register| match register {
                Reg::General(number, ..) => self.pool.is_of_frame(x.general[usize::from(number & 15)]),
                // What is named by its distance from the instruction lies in the image.
                Reg::Pointer => false,
                _ => true,
            })
        });
        let names_stack =
            |decoded: &Decoded| decoded.operands.iter().any(|(operand, _)| matches!(operand, Operand::Reg(Reg::General(4, ..))));
        if decoded.is_none_or(names_stack) {
            return self.fail(o, format!("uses the stack pointer in a way that is not followed, like the input's {i:#x}"));
        }
        if is_of_frame {
            self.compare_slots(input, output, RED_ZONE)?;
            x.slots.clear();
            y.slots.clear();
        }
        for place in (0..16).filter(|&place| place != STACK && decoded.is_none_or(|decoded| may_write(decoded, place))) {
            let fresh = self.fresh(64);
            (x.general[place], y.general[place]) = (fresh, fresh);
        }
        for place in 0..32 {
            let is_same = x.vectors[place] == y.vectors[place];
            if !is_same && place < 16 && decoded.is_some_and(|decoded| !decoded.may_use(VECTORS + place as u8)) {
                continue;
            }
            let fresh = self.fresh(512);
            let other = if is_same { fresh } else { self.fresh(512) };
            (x.vectors[place], y.vectors[place]) = (fresh, other);
        }
        for place in 0..6 {
            let fresh = self.fresh(1);
            let is_same = x.flags[place] == y.flags[place] || decoded.is_some_and(writes_all_flags);
            let other = if is_same { fresh } else { self.fresh(1) };
            (x.flags[place], y.flags[place]) = (fresh, other);
        }
        let rest = self.fresh(64);
        (x.rest, y.rest) = (rest, rest);
        let facts = Rc::new(Facts::end(&mut self.pool, &x, &y));
        let key = Key { input: i + u64::from(a.len), output: o + u64::from(b.len), within: None };
        self.segment.successors.push((key, facts));
        Ok(())
    }
}

/// Whether an instruction that is not looked into may read the arithmetic flags.
fn reads_flags(decoded: &Decoded) -> bool {
    if moves_strings(decoded) {
        return false;
    }
    let beginnings = ["pushf", "lahf", "fcmov", "cmc", "set", "cmov", "salc"];
    decoded.reads.contains(&Reg::Flags) || beginnings.iter().any(|beginning| decoded.name.starts_with(beginning))
}

/// Whether an instruction is `movs`, `stos` or `lods`. Of the flags these read the direction alone, which is part of the rest of the state (SDM, volume 2, `REP`, `MOVS`, `STOS`, `LODS`).
fn moves_strings(decoded: &Decoded) -> bool {
    let opcode = decoded.bytes.get(decoded.shape.opcode);
    decoded.shape.map == 0 && !decoded.shape.vector && matches!(opcode, Some(0xa4 | 0xa5 | 0xaa..=0xad))
}

/// Whether an instruction that is not looked into makes all flags anew (SDM, volume 2: comparisons of floating-point numbers, locked arithmetic).
fn writes_all_flags(decoded: &Decoded) -> bool {
    if let Some(name) = decoded.name.strip_prefix("lock ") {
        return ["add", "cmpxchg", "neg", "sub", "xadd"].contains(&name);
    }
    let name = decoded.name.strip_prefix('v').unwrap_or(&decoded.name);
    ["comis", "ucomis", "fcomi", "fucomi", "ptest"].iter().any(|beginning| name.starts_with(beginning))
}

/// Whether an instruction that is not looked into may write a general register.
fn may_write(decoded: &Decoded, place: usize) -> bool {
    let is_it = |register: Reg| matches!(register, Reg::General(number, ..) if usize::from(number) == place);
    let is_named = decoded.operands.iter().any(|&(operand, _)| match operand {
        Operand::Reg(register) => is_it(register),
        Operand::Memory(_) | Operand::Immediate(_) => false,
    });
    let is_hidden = matches!(place, 0..=3 | 11) && decoded.may_use(place as u8);
    is_named || is_hidden || decoded.reads.iter().chain(&decoded.writes).any(|&register| is_it(register))
}
