//! One segment: both programs from a pair of addresses to the next transfer of control, and what must hold of it.
//!
//! Both programs are run on values ([`super::machine`]), the input first. Each goes through direct jumps, and through branches that what is known decides, where the
//! other has no branch. Then
//! * the accesses that others see are the same, in number, place, size, value and order, but that a load may stand before a store that it stood
//!   behind if the two cannot overlap;
//! * where control leaves, what the next code can read is the same: all registers at calls, returns, and indirect jumps, the condition at a branch,
//!   everything at an instruction that is not looked into;
//! * the rules of the frame change in the same order, and say where the tracked stack pointer is; or both programs' rules lead an unwinder to the same values, at each
//!   instruction ([`unwound`]).
//!
//! A segment may also end before an address of the frame goes elsewhere ([`alone`]), and at a tail call ([`tail`]).
//!
//! **Terminates**: a side runs at most [`STEPS_MAX`] instructions.

mod alone;
mod compare;
mod given;
mod leave;
mod local;
mod raceless;
mod switch;
mod tail;
mod unwound;
mod words;

pub(super) use leave::KEPT;
pub(crate) use local::Local;
use local::Mark;
pub(super) use tail::Ends;

use std::rc::Rc;

use rustc_hash::FxHashSet;

use super::class::Class;
use super::decoded::{Decoded, Operand};
use super::entry::Called;
use super::expr::{Id, Pool};
use super::facts::Facts;
use super::machine::{BASE, Machine, Privacy, STACK, Trouble};
use super::semantics::{Context, Place};
use super::{Key, Prover};
use crate::decode::{Inst, Kind};
use crate::report::{Stats, Violation, ViolationKind};
use crate::tables::TableReference;
use crate::walk::{Pair, Reference, Side, Walk};

/// More than any straight piece has.
const STEPS_MAX: usize = 20_000;
/// Values of a segment for which room is kept for the next one.
const VALUES_KEPT_MAX: usize = 4_096;
/// Classes that are made on the way, apart from those of the facts.
const FRESH: u32 = 1 << 30;

/// What a proof asks of the rest of the walk.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Effect {
    /// The output's instruction stands for the input's.
    Record {
        input: u64,
        output: u64,
        within: Option<u64>,
    },
    /// Another pair must correspond.
    Walk(Pair),
    /// It may.
    Try(Pair),
    /// The output never goes here from a branch that what is known decides.
    Never(u64),
    Reference {
        reference: Reference,
        input: u64,
        output: u64,
    },
    /// A table of which all entries are followed with what is known at the jumps through it.
    Followed(TableReference),
    /// A call, whose handlers and rules must be the same.
    CallSite {
        input: u64,
        output: u64,
    },
    /// A call of the input that the output makes otherwise, or not.
    Rewritten {
        input: u64,
        output: u64,
    },
}

/// Why a segment is not proven.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: ViolationKind,
    pub(super) address: u64,
    pub(super) message: String,
    /// The frame is not as private as was taken for granted.
    pub(super) is_escape: bool,
}

impl Failure {
    pub(super) fn new(address: u64, message: &str) -> Self {
        Self { kind: ViolationKind::InstructionMismatch, address, message: message.into(), is_escape: false }
    }

    pub(super) fn escape(address: u64) -> Self {
        Self { is_escape: true, ..Self::new(address, "an address of the frame goes elsewhere") }
    }

    pub(super) fn into_violation(self) -> Violation {
        Violation::new(self.kind, self.address, self.message)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Segment {
    pub(super) effects: Vec<Effect>,
    /// Instructions, jumps and padding that were passed.
    pub(super) input: Vec<(u64, u8)>,
    pub(super) output: Vec<(u64, u8)>,
    pub(super) successors: Vec<(Key, Rc<Facts>)>,
    /// The direct call that ends it.
    pub(super) call: Option<Called>,
    /// Registers that are others than in the input where it returns.
    pub(super) leaves: u16,
    /// Some are where it returns, and nobody reads them there.
    pub(super) needs_return: bool,
    /// It ends right before an address of the frame goes elsewhere: of what comes then, nothing but saves is private.
    pub(super) is_let_out: bool,
    /// It ends with a jump through this table of the input.
    pub(super) table: Option<u64>,
    /// The address of a jump table may go where it is not followed, or a jump by address inside of the function goes through no such table.
    pub(super) jumps_elsewhere: bool,
    /// It ends with branches of both programs that what is known decides: these need not be the same.
    is_decided: bool,
    pub(super) stats: Stats,
}

/// One side on its way.
struct Cursor {
    at: u64,
    machine: Machine,
    passed: Vec<(u64, u8)>,
    /// Instructions, jumps and padding, those in the place of a call among them.
    steps: usize,
    /// Instructions, without jumps and padding.
    instructions: Vec<(u64, Inst)>,
    seen: FxHashSet<u64>,
    /// Rules and kind of frame, as they change.
    rows: Vec<(u32, u32)>,
    /// Who handles exceptions where one can come from, as it changes.
    handling: Vec<u32>,
    /// What an unwinder finds; followed only where the rules are others.
    unwound: unwound::Unwound,
    within: Option<u64>,
    /// In place of which call the first instruction is.
    first_within: Option<u64>,
    /// It went into a callee alone, or out of one.
    went_alone: bool,
    /// It is right before an instruction by which an address of the frame goes elsewhere.
    lets_out: bool,
    /// It is right before a tail call, which leads there.
    tail_call: Option<u64>,
    /// It stops where the other may make a tail call.
    seeks_tail_call: bool,
    /// Where it stopped for that last.
    asked: Option<u64>,
    /// Before each instruction in the place of a call.
    marks: Vec<Mark>,
    decided: u64,
}

impl Cursor {
    fn new(at: u64, machine: Machine, within: Option<u64>) -> Self {
        Self {
            at,
            machine,
            passed: Vec::new(),
            steps: 0,
            instructions: Vec::new(),
            seen: FxHashSet::default(),
            rows: Vec::new(),
            handling: Vec::new(),
            unwound: unwound::Unwound::default(),
            within,
            first_within: within,
            went_alone: false,
            lets_out: false,
            tail_call: None,
            seeks_tail_call: false,
            asked: None,
            marks: Vec::new(),
            decided: 0,
        }
    }

    /// Notes that the code here is passed. What is in the place of a call is not passed in its own right.
    fn pass(&mut self, len: u8) {
        self.steps += 1;
        if self.within.is_none() {
            self.passed.push((self.at, len));
        }
    }
}

pub(super) struct Run<'r, 'w, 'a> {
    pub(super) prover: &'r mut Prover,
    pub(super) walk: &'r Walk<'w, 'a>,
    pub(super) privacy: &'r Privacy,
    pub(super) pool: Pool,
    /// Where the proof began in the input.
    root: u64,
    /// The rules of the frame may be others, if they come to the same.
    unwinds: bool,
    ends: Ends,
    segment: Segment,
    /// Addresses of code that the input has where the segment begins.
    code_at_start: Vec<u64>,
    /// Instructions of the input whose reference one of the output has taken.
    taken: FxHashSet<u64>,
    fresh: u32,
}

type Step<T> = Result<T, Failure>;

impl<'r, 'w, 'a> Run<'r, 'w, 'a> {
    pub(super) fn new(prover: &'r mut Prover, walk: &'r Walk<'w, 'a>, privacy: &'r Privacy, root: u64) -> Self {
        let segment = Segment::default();
        let pool = std::mem::take(&mut prover.pool).emptied(walk.input.image.extent());
        Self {
            prover,
            walk,
            privacy,
            pool,
            root,
            unwinds: false,
            ends: Ends::default(),
            segment,
            code_at_start: Vec::new(),
            taken: FxHashSet::default(),
            fresh: FRESH,
        }
    }

    /// The same, where the rules of the frame need not be the same but say the same.
    pub(super) fn unwinding(self) -> Self {
        Self { unwinds: true, ..self }
    }

    /// The same, up to certain places.
    pub(super) fn up_to(self, ends: Ends) -> Self {
        Self { ends, ..self }
    }

    fn is_fixed(&self) -> bool {
        self.walk.input.image.is_position_dependent()
    }

    fn fail<T>(&self, address: u64, message: impl Into<String>) -> Step<T> {
        Err(Failure { kind: ViolationKind::InstructionMismatch, address, message: message.into(), is_escape: false })
    }

    fn trouble(address: u64, trouble: Trouble) -> Failure {
        let (message, is_escape) = match trouble {
            Trouble::Escape => ("an address of the frame goes elsewhere".into(), true),
            Trouble::Other(message) => (message, false),
        };
        Failure { kind: ViolationKind::InstructionMismatch, address, message, is_escape }
    }

    /// Follows both programs from a pair to where control leaves.
    pub(super) fn follow(mut self, key: Key, facts: &Facts) -> Step<Segment> {
        let outcome = self.follow_both(key, facts);
        let segment = self.leave_room();
        outcome.map(|()| segment)
    }

    /// Ends, and leaves the room of its values to the next one.
    fn leave_room(self) -> Segment {
        if self.pool.len() <= VALUES_KEPT_MAX {
            self.prover.pool = self.pool;
        }
        self.segment
    }

    fn follow_both(&mut self, key: Key, facts: &Facts) -> Step<()> {
        let is_fixed = self.is_fixed();
        let (mut input, mut output) = facts.start(&mut self.pool, is_fixed);
        self.code_at_start = self.addresses_of_code(&input);
        let no_races = self.walk.assumptions.no_races;
        (input.no_races, output.no_races) = (no_races, no_races);
        let mut input = Cursor::new(key.input, input, key.within);
        let mut output = Cursor::new(key.output, output, None);
        self.run_both(&mut input, &mut output)?;
        self.compare_rows(&input, &output)?;
        self.compare_marks(&input, &output)?;
        self.note_tables_given_away(&input);
        self.record(key, &input, &output);
        self.count(&input, &output);
        self.segment.input = input.passed;
        self.segment.output = output.passed;
        Ok(())
    }

    /// Runs both to where control leaves the segment.
    fn run_both(&mut self, input: &mut Cursor, output: &mut Cursor) -> Step<()> {
        self.advance_input(input)?;
        output.seeks_tail_call = input.tail_call.is_some();
        self.advance_output(output, input)?;
        loop {
            let (Some(a), Some(b)) = (self.walk.input.inst(input.at), self.walk.output.inst(output.at)) else {
                return self.fail(output.at, format!("does not decode, here or at the input's {:#x}", input.at));
            };
            if let Some(target) = input.tail_call {
                if self.leave_by_tail_call(input, a, target, output)? {
                    return Ok(());
                }
                continue;
            }
            if self.leave_by_call(input, output, b)? {
                return Ok(());
            }
            if input.lets_out || output.lets_out {
                return self.let_out(input, output);
            }
            let is_alone = a.kind != b.kind && self.jump_alone(input, a)?;
            if is_alone || self.step_alone(input, a, output, b)? || self.decide(input, a, output, b)? {
                continue;
            }
            if self.lets_out_by_call(input, a, output) {
                (input.lets_out, output.lets_out) = (true, true);
                return self.let_out(input, output);
            }
            self.leave(input, a, output, b)?;
            return Ok(());
        }
    }

    fn advance_input(&mut self, cursor: &mut Cursor) -> Step<()> {
        while self.step_input(cursor)? {}
        Ok(())
    }

    fn advance_output(&mut self, cursor: &mut Cursor, input: &Cursor) -> Step<()> {
        while self.step_output(cursor, input)? {}
        Ok(())
    }

    /// Runs an instruction of the input, if it does not transfer control and is looked into.
    fn step_input(&mut self, cursor: &mut Cursor) -> Step<bool> {
        if cursor.lets_out {
            return Ok(false);
        }
        let Some(inst) = self.pass(true, cursor)? else {
            // A stub of the callee's last call begins with a jump.
            let jumps = self.walk.input.inst(cursor.at).is_some_and(|inst| inst.kind == Kind::IndirectJump);
            if cursor.within.is_some() && jumps && cursor.marks.last().is_none_or(|mark| mark.at != cursor.at) {
                cursor.marks.push(Mark::of(cursor));
            }
            return Ok(false);
        };
        let decoded = match self.prover.decode(true, self.walk.input, cursor.at, inst) {
            Some(decoded) if decoded.class() != Class::Opaque => decoded,
            _ => return Ok(false),
        };
        if let Some(call) = cursor.within {
            cursor.marks.push(Mark::of(cursor));
            if self.check_within(call, cursor.at, inst).is_err() {
                return Ok(false);
            }
        }
        let place = (inst.disp != 0).then(|| self.named_by(cursor.at, inst));
        self.run(true, cursor, &decoded, inst, place)?;
        Ok(!cursor.lets_out)
    }

    /// The same for the output.
    fn step_output(&mut self, cursor: &mut Cursor, input: &Cursor) -> Step<bool> {
        if cursor.lets_out {
            return Ok(false);
        }
        let Some(inst) = self.pass(false, cursor)? else { return Ok(false) };
        let decoded = match self.prover.decode(false, self.walk.output, cursor.at, inst) {
            Some(decoded) if decoded.class() != Class::Opaque => decoded,
            _ => return Ok(false),
        };
        let place = self.place_of(cursor.at, inst, &decoded, input)?;
        self.run(false, cursor, &decoded, inst, place)?;
        Ok(!cursor.lets_out)
    }

    /// Goes over jumps and padding; gives an instruction that does not transfer control.
    fn pass(&mut self, is_input: bool, cursor: &mut Cursor) -> Step<Option<Inst>> {
        let side: &Side<'_> = if is_input { self.walk.input } else { self.walk.output };
        loop {
            let Some(inst) = side.inst(cursor.at) else {
                return self.fail(cursor.at, "does not decode");
            };
            if cursor.seeks_tail_call && self.may_be_at_tail_call(cursor, inst) {
                return Ok(None);
            }
            if is_input && inst.kind == Kind::Jump {
                let tail_call = self.tail_call(cursor, inst);
                self.prover.meets_tail_calls |= tail_call.is_some();
                cursor.tail_call = tail_call.filter(|_| self.ends.at_tail_call);
                if cursor.tail_call.is_some() {
                    return Ok(None);
                }
            }
            let is_idle = side.is_idle(inst);
            match inst.kind {
                _ if is_idle || inst.kind == Kind::Jump => {
                    if inst.kind == Kind::Jump && !cursor.seen.insert(cursor.at) && cursor.decided == 0 {
                        return self.fail(cursor.at, "a loop without a branch");
                    }
                    if cursor.steps > STEPS_MAX {
                        return self.fail(cursor.at, "too long a piece without a branch");
                    }
                    cursor.pass(inst.len);
                    cursor.at = if is_idle { cursor.at + u64::from(inst.len) } else { side.target(cursor.at, inst) };
                }
                Kind::Plain | Kind::Lea | Kind::EndBranch => return Ok(Some(inst)),
                _ => return Ok(None),
            }
        }
    }

    fn run(&mut self, is_input: bool, cursor: &mut Cursor, decoded: &Decoded, inst: Inst, place: Option<Place>) -> Step<()> {
        self.note_row(is_input, cursor)?;
        let mut context = Context {
            pool: &mut self.pool,
            privacy: self.privacy,
            image: &self.walk.input.image,
            keys: &mut self.prover.keys,
            at: cursor.at,
            place,
        };
        let before = self.ends.at_escape.then(|| cursor.machine.clone());
        match (cursor.machine.step(&mut context, decoded), before) {
            (Err(Trouble::Escape), Some(before)) => {
                cursor.machine = before;
                cursor.lets_out = true;
                return Ok(());
            }
            (outcome, _) => outcome.map_err(|trouble| Self::trouble(cursor.at, trouble))?,
        }
        cursor.pass(inst.len);
        cursor.instructions.push((cursor.at, inst));
        cursor.at += u64::from(inst.len);
        if cursor.steps > STEPS_MAX {
            return self.fail(cursor.at, "too long a piece without a branch");
        }
        Ok(())
    }

    /// What an instruction of the input must be that stands in the place of a call.
    fn check_within(&self, call: u64, at: u64, inst: Inst) -> Step<()> {
        let is_plain = matches!(inst.kind, Kind::Plain | Kind::Lea | Kind::Branch);
        let is_free = || self.walk.is_free_of_stack(at, inst);
        if is_plain && is_free() && self.walk.input.is_as_at_entry(at) && !self.walk.is_known_by_fault(at, inst) {
            return Ok(());
        }
        self.fail(at, format!("the input's instruction cannot stand in the place of the call at {call:#x}"))
    }

    /// Notes the rules at an instruction; they must say where the frame is.
    fn note_row(&mut self, is_input: bool, cursor: &mut Cursor) -> Step<()> {
        let side: &Side<'_> = if is_input { self.walk.input } else { self.walk.output };
        // In the place of a call, who unwinds is to find what the call has.
        let at = cursor.within.filter(|_| is_input).unwrap_or(cursor.at);
        let located = side.unwind.locate(at);
        if self.walk.assumptions.no_async_unwind && !side.unwind.is_of_signal(&located) && !side.can_stop_at(at) {
            return Ok(());
        }
        let rules = (located.row, side.bare_frame(&located));
        if cursor.rows.last() != Some(&rules) {
            cursor.rows.push(rules);
        }
        if side.can_raise_at(cursor.at) {
            let frame = side.frame_at(&located, at);
            if cursor.handling.last() != Some(&frame) {
                cursor.handling.push(frame);
            }
        }
        let rule = self.walk.rows.and_then(|rows| rows.frame_of(located.row)).and_then(|frame| frame.address);
        let known = match rule {
            Some((7, offset)) => self.pool.as_frame(cursor.machine.general[STACK]).map(|at| at + offset),
            Some((6, offset)) => self.pool.as_frame(cursor.machine.general[BASE]).map(|at| at + offset),
            _ => None,
        };
        if known.is_some_and(|distance| distance != 0) {
            let message = "the frame description does not say where the frame is".to_string();
            return Err(Failure { kind: ViolationKind::UnwindRow, address: cursor.at, message, is_escape: false });
        }
        if self.unwinds {
            self.unwind(cursor, located.row, known.is_some());
        }
        Ok(())
    }

    /// The place of the input for which the operand of an instruction of the output stands.
    fn place_of(&mut self, at: u64, inst: Inst, decoded: &Decoded, input: &Cursor) -> Step<Option<Place>> {
        if inst.disp == 0 {
            return self.check_numbers(at, inst, decoded, input).map(|()| None);
        }
        let place = self.walk.output.operand(at, inst);
        let mut best: Option<(u32, u64, Reference)> = None;
        for &(from, other) in input.instructions.iter().filter(|&&(_, other)| other.disp != 0 && other.kind == inst.kind) {
            if self.taken.contains(&from) {
                continue;
            }
            let there = self.walk.input.operand(from, other);
            match self.walk.compare(from, other, at, inst) {
                Ok(None) => {
                    self.taken.insert(from);
                    return Ok(Some(Place::At(place)));
                }
                Ok(Some(reference)) => {
                    let is_known = there == place || self.walk.stands_for(place, there);
                    let rank = u32::from(!is_known);
                    if best.as_ref().is_none_or(|best| rank < best.0) {
                        best = Some((rank, from, reference));
                    }
                }
                Err(_) => {}
            }
        }
        if let Some((_, from, reference)) = best {
            self.taken.insert(from);
            self.note_table(reference, from, at);
            self.segment.effects.push(Effect::Reference { reference, input: from, output: at });
            let Some(other) = self.walk.input.inst(from) else { return Ok(Some(Place::At(place))) };
            return Ok(Some(self.named_by(from, other)));
        }
        self.new_place(at, inst, place, input)
    }

    /// The same for an instruction that the input does not have.
    fn new_place(&mut self, at: u64, inst: Inst, place: u64, input: &Cursor) -> Step<Option<Place>> {
        if !self.walk.output.image.in_code(place) && !self.walk.input.image.in_code(place) {
            if inst.kind == Kind::Lea {
                let reference = Reference::Table { input: place, output: place, width: 4 };
                self.note_table(reference, input.at, at);
                self.segment.effects.push(Effect::Reference { reference, input: input.at, output: at });
                return Ok(Some(self.table_or_place(place, input.at)));
            }
            return Ok(Some(Place::At(place)));
        }
        if inst.kind != Kind::Lea {
            return self.fail(at, format!("reads {place:#x}, in the code"));
        }
        // The address of code, which the input has from a place that always holds it.
        let mut code = self.addresses_of_code(&input.machine);
        code.extend(&self.code_at_start);
        let known = code.iter().copied().find(|&there| self.walk.stands_for(place, there)).or_else(|| code.first().copied());
        let Some(there) = known else { return self.fail(at, format!("names {place:#x}, which the input does not")) };
        let reference = Reference::Code(there, place);
        self.segment.effects.push(Effect::Reference { reference, input: input.at, output: at });
        Ok(Some(Place::At(there)))
    }

    fn addresses_of_code(&self, machine: &Machine) -> Vec<u64> {
        let ids = machine.general.iter().copied().chain(machine.slots.values().map(|&(_, id)| id));
        let stored = machine.stores.iter().filter_map(|store| store.value);
        let addresses = ids.chain(stored).filter_map(|id| self.pool.as_image(id));
        addresses.filter(|&address| self.walk.input.image.in_code(address)).collect()
    }

    /// In a file at a fixed address any number may be an address: an instruction with one that may be must be the input's too.
    fn check_numbers(&mut self, at: u64, inst: Inst, decoded: &Decoded, input: &Cursor) -> Step<()> {
        if !self.is_fixed() {
            return Ok(());
        }
        let is_image = |value: u64| self.walk.input.image.tail(value).is_some() || self.walk.output.image.tail(value).is_some();
        let may_name = decoded.operands.iter().any(|&(operand, _)| match operand {
            Operand::Immediate(value) => is_image(value & 0xffff_ffff),
            Operand::Memory(memory) => is_image(memory.displacement),
            Operand::Reg(_) => false,
        });
        if !may_name {
            return Ok(());
        }
        let same = |&&(from, other): &&(u64, Inst)| {
            self.walk.input.code.bytes(from, other) == self.walk.output.code.bytes(at, inst) && !self.taken.contains(&from)
        };
        let Some(&(from, other)) = input.instructions.iter().find(same) else {
            return self.fail(at, "a number that may be an address, and that the input does not have");
        };
        self.taken.insert(from);
        match self.walk.compare(from, other, at, inst) {
            Ok(Some(reference)) => self.segment.effects.push(Effect::Reference { reference, input: from, output: at }),
            Ok(None) => {}
            Err(difference) => return self.fail(at, self.walk.tell(difference, (from, other), (at, inst)).message),
        }
        Ok(())
    }

    fn condition_of(&mut self, side: &Side<'_>, cursor: &Cursor, inst: Inst) -> Id {
        let number = crate::walk::condition(side.code.bytes(cursor.at, inst));
        cursor.machine.condition(&mut self.pool, number)
    }

    /// The rules of the frame change in the same way, or say the same all the way.
    fn compare_rows(&self, input: &Cursor, output: &Cursor) -> Step<()> {
        let has_same_rows = || input.rows == output.rows || self.unwinds && unwound::are_same(input, output);
        // An access may have gone.
        let is_unasked = input.handling.is_empty() || output.handling.is_empty();
        if (is_unasked || input.handling == output.handling) && has_same_rows() {
            return Ok(());
        }
        let message = format!("other rules for the frame or its registers than from the input's {:#x} on", input.at);
        Err(Failure { kind: ViolationKind::UnwindRow, address: output.at, message, is_escape: false })
    }

    /// Where an indirect branch may come to one, it may come to the other.
    fn compare_marks(&self, input: &Cursor, output: &Cursor) -> Step<()> {
        let marks = |cursor: &Cursor| {
            let is_mark = |&&(_, inst): &&(u64, Inst)| inst.kind == Kind::EndBranch;
            let begins = cursor.instructions.first().filter(is_mark).is_some();
            (begins, cursor.instructions.iter().filter(is_mark).count())
        };
        let ((begins, count), found) = (marks(input), marks(output));
        let mark = input.instructions.first().filter(|_| begins);
        let may_lose = mark.is_some_and(|&(at, _)| self.walk.input.unwind.starts_at(at));
        if (begins, count) == found || may_lose && (false, count - 1) == found {
            return Ok(());
        }
        self.fail(output.at, format!("other endbr64 than before the input's {:#x}", input.at))
    }

    /// Which instructions stand for which: all, if nothing differs; otherwise those that begin and end the piece.
    fn record(&mut self, key: Key, input: &Cursor, output: &Cursor) {
        let within = key.within;
        let first = |cursor: &Cursor| cursor.instructions.first().map_or(cursor.at, |&(at, _)| at);
        let is_same = |(&(i, a), &(o, b)): (&(u64, Inst), &(u64, Inst))| self.walk.compare(i, a, o, b).is_ok();
        let is_whole = input.within == within
            && !input.went_alone
            && input.decided + output.decided == 0
            && input.instructions.len() == output.instructions.len()
            && input.instructions.iter().zip(&output.instructions).all(is_same);
        let mut pairs = Vec::new();
        if is_whole {
            let each = input.instructions.iter().zip(&output.instructions);
            pairs.extend(each.map(|(&(input, _), &(output, _))| (input, output)));
        } else {
            self.segment.stats.changed_pieces += 1;
            let firsts = (first(input), first(output));
            pairs.push(firsts);
            // What ends both pieces alike does the same, and code that nothing reaches may lead there. What begins that of the output stands for what begins the other alone.
            let each = input.instructions.iter().rev().zip(output.instructions.iter().rev());
            let tail = each.take_while(|&pair| input.within == within && !input.went_alone && is_same(pair));
            let tail = tail.map(|(&(input, _), &(output, _))| (input, output));
            pairs.extend(tail.filter(|&(_, output)| output != firsts.1));
        }
        if self.segment.is_decided {
            pairs.truncate(1);
        }
        let within = input.first_within;
        let each = pairs.into_iter().map(|(input, output)| Effect::Record { input, output, within });
        self.segment.effects.extend(each);
        // Behind a tail call another walk begins.
        if input.tail_call.is_none() && !self.segment.is_decided {
            self.segment.effects.push(Effect::Record { input: input.at, output: output.at, within: input.within });
        }
        self.segment.stats.instructions += input.instructions.len() as u64 + 1;
    }

    fn count(&mut self, input: &Cursor, output: &Cursor) {
        let (x, y) = (&input.machine, &output.machine);
        let stats = &mut self.segment.stats;
        stats.slot_loads_less += u64::from(x.slot_loads.saturating_sub(y.slot_loads));
        stats.slot_stores_less += u64::from(x.slot_stores.saturating_sub(y.slot_stores));
        stats.fixed_loads_less += u64::from(x.fixed_loads.saturating_sub(y.fixed_loads));
        stats.loads_moved += x.loads.iter().zip(&y.loads).filter(|(a, b)| a.others_before != b.others_before).count() as u64;
        stats.branches_decided += input.decided;
    }
}
