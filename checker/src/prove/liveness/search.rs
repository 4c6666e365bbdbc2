//! The search for readers of registers.
//!
//! **Method.** Code is followed from a place on, for a set of registers at once: each is dropped from the set where it is written, and where it is found to be read, for all of the search. A place is
//! followed again only for registers with which nothing came there before. So many registers cost about as much as one, and share what is remembered of places.
//!
//! Code is visited by *context*: in a function that was entered by a call on the way, a return leads behind that call alone; else behind all calls of the function. Behind a call of such a
//! function go those registers that some way through it passes on, as soon as that is known.
//!
//! What was followed to the end and found no reader is remembered for later searches ([`Free`]): for a register that is read somewhere, nothing is.
//!
//! **Invariant.** Only places to which control comes from elsewhere, by a jump, a branch or a return, are remembered, each with the registers that were followed from there. Between them code is straight.
//!
//! **Terminates**: a place is followed at most once for each register and context, and the steps are limited; what is left then counts as read.

use rustc_hash::FxHashMap;

use super::super::Prover;
use super::bodies::Bodies;
use super::{ARGUMENTS, COUNTER, RETURNED, Use, is_profiled, may_name, use_of};
use crate::decode::{Inst, Kind, Shape};
use crate::walk::Walk;

/// Instructions that one search looks at.
const STEPS_MAX: usize = 8_000_000;
/// The place of the first general register of which the low byte was written: that may be read then.
const LOW_WRITTEN: u8 = 48;
const GENERAL: Registers = Registers(0xffff);
/// What calls by the psABI read, and what callers read behind them.
const PASSED: Registers = Registers(ARGUMENTS as u64);
const HANDED_BACK: Registers = Registers(RETURNED as u64);

/// A set of registers by their places, and apart from these of general ones of which the low byte was written.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Registers(u64);

impl Registers {
    pub(super) fn of(register: u8) -> Self {
        Self(1 << register)
    }

    pub(super) fn has(self, register: u8) -> bool {
        self.0 >> register & 1 == 1
    }

    #[must_use]
    pub(super) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Without some registers, whether their low byte was written or not.
    fn except(self, registers: Self) -> Self {
        self.without(registers.union(Self((registers.0 & GENERAL.0) << LOW_WRITTEN)))
    }

    /// The registers, and no word of low bytes.
    fn whole(self) -> Self {
        Self((self.0 | self.0 >> LOW_WRITTEN) & ((1 << LOW_WRITTEN) - 1))
    }

    /// Each register, and whether its low byte was written.
    fn each(self) -> impl Iterator<Item = (u8, bool)> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let first = (left != 0).then(|| left.trailing_zeros() as u8)?;
            left &= left - 1;
            Some(if first < LOW_WRITTEN { (first, false) } else { (first - LOW_WRITTEN, true) })
        })
    }

    fn filter(self, mut is_in: impl FnMut(u8) -> bool) -> Self {
        let each = self.each().filter(|&(register, _)| is_in(register));
        each.fold(Self::default(), |all, (register, _)| all.union(Self::of(register)))
    }
}

/// Whose return is next.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Context {
    /// That of a body, to anyone that calls it.
    Open(u32),
    /// That of a function that was called on the way, by its entry.
    Called(u64),
}

/// Where registers are asked for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    context: Context,
    at: u64,
}

impl Place {
    pub(super) fn open(body: u32, at: u64) -> Self {
        Self { context: Context::Open(body), at }
    }

    pub(super) fn entry(at: u64) -> Self {
        Self { context: Context::Called(at), at }
    }

    /// In half of the memory; `None` where there is no code, or too much of it.
    fn key(self, walk: &Walk<'_, '_>) -> Option<(u32, u32)> {
        let index = |at: u64| walk.input.code.index(at).and_then(|index| u32::try_from(index).ok());
        let context = match self.context {
            Context::Open(body) => body.checked_mul(2)?,
            Context::Called(entry) => index(entry)?.checked_mul(2)? + 1,
        };
        Some((context, index(self.at)?))
    }
}

type ByPlace = FxHashMap<(u32, u32), Registers>;

/// Code from which on nobody reads registers.
#[derive(Default)]
pub(super) struct Free {
    places: ByPlace,
    /// Those that functions pass on, by their entries.
    passing: FxHashMap<u64, Registers>,
}

impl Free {
    fn at(&self, walk: &Walk<'_, '_>, place: Place) -> Registers {
        place.key(walk).and_then(|key| self.places.get(&key).copied()).unwrap_or_default()
    }

    /// Remembers what a search has followed, but of registers that it found to be read.
    fn add(&mut self, search: Search) {
        let read = search.read;
        for (key, followed) in search.seen {
            let free = followed.except(read);
            if !free.is_empty() {
                let known = self.places.entry(key).or_default();
                *known = known.union(free);
            }
        }
        for (entry, passing) in search.passing {
            let known = self.passing.entry(entry).or_default();
            *known = known.union(passing.except(read));
        }
    }
}

/// What a search has come to.
#[derive(Default)]
pub(super) struct Search {
    seen: ByPlace,
    work: Vec<(Place, Registers)>,
    /// Registers that functions pass on, by their entries.
    passing: FxHashMap<u64, Registers>,
    /// What is behind calls of functions of which that is not known yet, by their entries.
    waiting: FxHashMap<u64, Vec<(Place, Registers)>>,
    /// Bodies whose returns were followed.
    returned: FxHashMap<u32, Registers>,
    read: Registers,
    steps: usize,
}

impl Search {
    pub(super) fn from(place: Place, asked: Registers) -> Self {
        Self { work: vec![(place, asked)], ..Self::default() }
    }

    /// Goes into a function, and behind the call of it where it passes registers on.
    pub(super) fn call(&mut self, walk: &Walk<'_, '_>, target: u64, behind: Option<Place>, asked: Registers, free: &Free) {
        let asked = asked.whole();
        let entry = Place::entry(target);
        if let Some(place) = behind {
            let known = free.at(walk, entry);
            let passing = |all: &FxHashMap<u64, Registers>| all.get(&target).copied().unwrap_or_default();
            let passes = passing(&self.passing).union(passing(&free.passing).intersection(known));
            let (now, later) = (asked.intersection(passes), asked.without(passes.union(known)));
            if !now.is_empty() {
                self.work.push((place, now));
            }
            if !later.is_empty() {
                self.waiting.entry(target).or_default().push((place, later));
            }
        }
        self.work.push((entry, asked));
    }

    /// Goes on behind all calls that a return from a body may return to. Where they are not known, all is read there, and by the psABI some registers.
    pub(super) fn leave(&mut self, walk: &Walk<'_, '_>, bodies: &Bodies, body: u32, asked: Registers) {
        let mut open = vec![(body, asked.whole())];
        while let Some((number, asked)) = open.pop() {
            let known = self.returned.entry(number).or_default();
            let new = asked.without(known.union(self.read));
            if new.is_empty() {
                continue;
            }
            *known = known.union(new);
            let Some(body) = bodies.body(number).filter(|body| !body.is_unclear) else {
                self.read(new);
                continue;
            };
            if body.is_named {
                self.read(new.intersection(HANDED_BACK));
            }
            for &at in &body.behind_calls {
                match bodies.at(walk, at) {
                    Some(caller) => self.work.push((Place::open(caller, at), new)),
                    None => self.read(new),
                }
            }
            open.extend(body.entered_from.iter().map(|&from| (from, new)));
        }
    }

    /// A return from a function that was called on the way.
    fn pass(&mut self, entry: u64, asked: Registers) {
        let asked = asked.whole();
        let known = self.passing.entry(entry).or_default();
        let new = asked.without(*known);
        *known = known.union(new);
        for &(place, waiting) in self.waiting.get(&entry).into_iter().flatten() {
            let now = waiting.intersection(new);
            if !now.is_empty() {
                self.work.push((place, now));
            }
        }
    }

    /// Comes to a place: gives the registers that are to be followed from there.
    fn come(&mut self, walk: &Walk<'_, '_>, place: Place, asked: Registers, free: &Free) -> Registers {
        let Some(key) = place.key(walk) else {
            self.read(asked);
            return Registers::default();
        };
        let asked = asked.without(free.places.get(&key).copied().unwrap_or_default());
        if asked.is_empty() {
            return asked;
        }
        let known = self.seen.entry(key).or_default();
        let new = asked.without(*known);
        *known = known.union(new);
        new
    }

    /// Somebody may read these.
    fn read(&mut self, registers: Registers) {
        self.read = self.read.union(registers.whole());
    }
}

impl Prover {
    /// Which of the registers that are asked for somebody may read.
    pub(super) fn read_from(&mut self, walk: &Walk<'_, '_>, asked: Registers, mut search: Search) -> Registers {
        if *self.liveness.is_profiled.get_or_insert_with(|| is_profiled(walk)) {
            return asked;
        }
        let free = std::mem::take(&mut self.liveness.free);
        while let Some((place, registers)) = search.work.pop() {
            if asked.except(search.read).is_empty() {
                break;
            }
            self.follow_uses(walk, place, registers, &free, &mut search);
        }
        self.liveness.free = free;
        let read = search.read;
        self.liveness.free.add(search);
        read
    }

    /// Follows code as long as it passes some of the registers on.
    fn follow_uses(&mut self, walk: &Walk<'_, '_>, from: Place, mut asked: Registers, free: &Free, search: &mut Search) {
        let Place { context, mut at } = from;
        let mut is_led_to = true;
        loop {
            asked = asked.except(search.read);
            if std::mem::take(&mut is_led_to) {
                asked = search.come(walk, Place { context, at }, asked, free);
            }
            if asked.is_empty() {
                return;
            }
            search.steps += 1;
            let Some(inst) = walk.input.inst(at).filter(|_| search.steps < STEPS_MAX) else { return search.read(asked) };
            let after = at + u64::from(inst.len);
            match inst.kind {
                Kind::Nop | Kind::EndBranch => at = after,
                Kind::Jump => {
                    let target = walk.input.target(at, inst);
                    if walk.input.slot_of_stub(target).is_some() {
                        return search.read(asked.whole().intersection(PASSED));
                    }
                    (at, is_led_to) = (target, true);
                }
                Kind::Branch | Kind::Loop => {
                    if inst.kind == Kind::Loop {
                        search.read(asked.whole().intersection(Registers::of(COUNTER)));
                    }
                    search.work.push((Place { context, at: walk.input.target(at, inst) }, asked));
                    (at, is_led_to) = (after, true);
                }
                Kind::Stop | Kind::Trap => return,
                Kind::Return => match context {
                    Context::Open(body) => {
                        let bodies = self.bodies(walk);
                        return search.leave(walk, &bodies, body, asked);
                    }
                    Context::Called(entry) => return search.pass(entry, asked),
                },
                Kind::IndirectJump => return self.follow_jump(walk, Place { context, at }, inst, asked, search),
                Kind::IndirectCall if self.may_keep_all(walk, at, inst) => {
                    // It may be any other call, which reads arguments.
                    search.read(asked.whole().intersection(PASSED));
                    at = after;
                }
                Kind::Call | Kind::IndirectCall => {
                    let Some(target) = self.own_callee(walk, at, inst) else {
                        return search.read(asked.filter(|register| !self.is_free_for_others(walk, at, inst, register)));
                    };
                    if walk.input.drops_return_address(target) {
                        return search.read(asked);
                    }
                    let behind = (!walk.call_never_returns(at, inst)).then_some(Place { context, at: after });
                    return search.call(walk, target, behind, asked, free);
                }
                Kind::Plain | Kind::Lea => {
                    asked = self.follow_use(walk, at, inst, asked, search);
                    at = after;
                }
            }
        }
    }

    /// An indirect jump: through a stub, a jump table, or to anything.
    fn follow_jump(&mut self, walk: &Walk<'_, '_>, from: Place, inst: Inst, asked: Registers, search: &mut Search) {
        let Place { context, at } = from;
        if walk.input.slot_of_stub(at).is_some() {
            return search.read(asked.whole().intersection(PASSED));
        }
        let Some(targets) = self.targets_of(walk, at) else { return search.read(asked) };
        search.work.extend(targets.places.into_iter().map(|at| (Place { context, at }, asked)));
        let is_read = |register| match targets.is_table {
            true => self.is_named(walk, at, inst, register),
            false => !self.is_free_for_others(walk, at, inst, register),
        };
        search.read(asked.filter(is_read));
    }

    /// An instruction that does not transfer control: gives what it passes on.
    fn follow_use(&mut self, walk: &Walk<'_, '_>, at: u64, inst: Inst, asked: Registers, search: &mut Search) -> Registers {
        let bytes = walk.input.code.bytes(at, inst);
        let shape = Shape::of(bytes);
        if asked.whole().filter(|register| may_name(bytes, shape, register)).is_empty() {
            return asked;
        }
        let decoded = self.decode(true, walk.input, at, inst);
        let mut passed = Registers::default();
        for (register, has_low) in asked.each() {
            let place = if has_low { register + LOW_WRITTEN } else { register };
            if !may_name(bytes, shape, register) {
                passed = passed.union(Registers::of(place));
                continue;
            }
            match decoded.as_ref().map_or(Use::Reads, |decoded| use_of(decoded, register, has_low)) {
                Use::Reads => search.read(Registers::of(register)),
                Use::Writes => {}
                Use::WritesLow => passed = passed.union(Registers::of(register + LOW_WRITTEN)),
                Use::Passes => passed = passed.union(Registers::of(place)),
            }
        }
        passed
    }
}
