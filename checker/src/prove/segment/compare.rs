//! What must be the same where both programs leave a segment.

use super::super::aligned;
use super::super::decoded::Decoded;
use super::super::entry::ARGUMENTS;
use super::super::expr::Id;
use super::super::facts;
use super::super::liveness::{FREE_VECTORS, KEPT, LOWS, VECTORS, has};
use super::super::machine::{STACK, are_apart};
use super::words::slot_name;
use super::{Cursor, Run, Step, raceless};
use crate::decode::Inst;

impl Run<'_, '_, '_> {
    pub(super) fn compare_flags(&self, input: &Cursor, output: &Cursor) -> Step<()> {
        if input.machine.flags == output.machine.flags {
            return Ok(());
        }
        self.fail(output.at, format!("the flags may differ from those at the input's {:#x}", input.at))
    }

    /// All registers that somebody may read after a return hold the same.
    pub(super) fn compare_returned(&mut self, input: &Cursor, output: &Cursor) -> Step<()> {
        self.compare_but(input, output, |run, register| {
            let is_dead = run.prover.is_dead_at_return(run.walk, run.root, register);
            if !is_dead && run.prover.may_leave && register < VECTORS && !has(KEPT, register) {
                run.segment.leaves |= 1 << register;
                return true;
            }
            run.segment.needs_return |= is_dead;
            run.note_dead(is_dead)
        })
    }

    /// The same at a call of what may be entered with registers that differ: gives those in which the programs differ and which nobody reads from there on.
    pub(super) fn compare_entered(&mut self, input: &Cursor, call: Inst, output: &Cursor) -> Step<u16> {
        let may_differ = self.prover.own_callee(self.walk, input.at, call).is_some();
        let mut unread = 0;
        self.compare_but(input, output, |run, register| {
            let is_unread = run.prover.is_unread_at_call(run.walk, input.at, call, register);
            unread |= u16::from(is_unread && register < VECTORS) << (register & 15);
            run.note_dead(is_unread) || may_differ && ARGUMENTS.contains(&usize::from(register))
        })?;
        Ok(unread)
    }

    /// All registers that somebody may read from a call on hold the same: gives those in which the programs differ.
    pub(super) fn compare_called(&mut self, input: &Cursor, call: Inst, output: &Cursor) -> Step<u16> {
        let mut unread = 0;
        self.compare_but(input, output, |run, register| {
            let is_dead = run.prover.is_unread_at_call(run.walk, input.at, call, register);
            unread |= u16::from(is_dead && register < VECTORS) << (register & 15);
            run.note_dead(is_dead)
        })?;
        Ok(unread)
    }

    /// All registers that somebody may read from an indirect jump on hold the same.
    pub(super) fn compare_jumped(&mut self, input: &Cursor, output: &Cursor) -> Step<()> {
        self.compare_but(input, output, |run, register| {
            let is_dead = run.prover.is_dead_at_jump(run.walk, input.at, register);
            run.note_dead(is_dead)
        })
    }

    /// All registers that an instruction which is not looked into may use hold the same.
    pub(super) fn compare_used(&mut self, input: &Cursor, inst: Inst, decoded: Option<&Decoded>, output: &Cursor) -> Step<()> {
        self.compare_but(input, output, |run, register| {
            let is_free = usize::from(register) != STACK || run.walk.is_free_of_stack(input.at, inst);
            is_free && decoded.is_some_and(|decoded| !decoded.may_use(register))
        })
    }

    /// All registers hold the same but those, asked for where they differ, in which nobody reads it: general ones, and vector ones of [`FREE_VECTORS`].
    pub(super) fn compare_but(
        &mut self,
        input: &Cursor,
        output: &Cursor,
        mut is_free: impl FnMut(&mut Self, u8) -> bool,
    ) -> Step<()> {
        let (all, mut same) = (facts::places(&input.machine), facts::places(&output.machine));
        for register in 0..VECTORS {
            let place = usize::from(register);
            if all[place] != same[place] && is_free(self, register) {
                same[place] = all[place];
            }
        }
        for register in FREE_VECTORS {
            let place = usize::from(register);
            let (x, y) = (all[place], same[place]);
            let above = |id| facts::replaced(&self.pool, id).map_or(id, |(above, _)| above);
            // What is above the low 128 bits may be seen to be the same.
            let asked = if above(x) == above(y) { register + (LOWS - VECTORS) } else { register };
            if x != y && is_free(self, asked) {
                same[place] = x;
            }
        }
        self.compare_places(&all, &same, (input.at, output.at))
    }

    pub(super) fn note_dead(&mut self, is_dead: bool) -> bool {
        self.segment.stats.dead_registers += u64::from(is_dead);
        is_dead
    }

    /// All registers hold the same.
    pub(super) fn compare_registers(&self, input: &Cursor, output: &Cursor) -> Step<()> {
        self.compare_places(&facts::places(&input.machine), &facts::places(&output.machine), (input.at, output.at))
    }

    /// The same of what they hold; flags are none of them.
    fn compare_places(&self, x: &[Id; 55], y: &[Id; 55], (i, o): (u64, u64)) -> Step<()> {
        for place in (0..48).chain([54]) {
            if x[place] != y[place] {
                let (name, x, y) = (facts::name_of(place), self.describe(x[place]), self.describe(y[place]));
                return self.fail(o, format!("{name} differs at the input's {i:#x}: input {x}, output {y}"));
            }
        }
        Ok(())
    }

    /// The private slots that somebody may read, those down to a distance below the stack pointer, hold the same.
    pub(super) fn compare_slots(&mut self, input: &Cursor, output: &Cursor, below: i64) -> Step<()> {
        if input.machine.slots == output.machine.slots {
            return Ok(());
        }
        let top = input.machine.stack_offset(&self.pool).map_or(i64::MIN, |top| top - below);
        let (mut x, mut y) = (input.machine.clone(), output.machine.clone());
        facts::drop_popped(&mut x, &mut y);
        for (at, end) in facts::common_pieces(&x, &y).into_iter().filter(|&(_, end)| end > top) {
            let size = ((end - at) * 8) as u16;
            let (x, y) = (x.read_slot(&mut self.pool, at, size), y.read_slot(&mut self.pool, at, size));
            if x != y {
                let (x, y) = (self.describe(x), self.describe(y));
                let message = format!("the slot {} differs at the input's {:#x}: input {x}, output {y}", slot_name(at), input.at);
                return self.fail(output.at, message);
            }
        }
        Ok(())
    }

    /// Others see the same accesses, and none faults that did not.
    pub(super) fn compare_events(&self, input: &Cursor, output: &Cursor) -> Step<()> {
        if self.walk.assumptions.no_races {
            self.compare_raceless(input, output)?;
        } else {
            self.compare_accesses(input, output)?;
        }
        self.compare_traps(input, output)
    }

    fn compare_accesses(&self, input: &Cursor, output: &Cursor) -> Step<()> {
        let (x, y) = (&input.machine, &output.machine);
        for (what, x, y) in [("load", &x.loads, &y.loads), ("store", &x.stores, &y.stores)] {
            for (a, b) in x.iter().zip(y) {
                let (at, here) = (a.at, b.at);
                if a.address != b.address || a.size != b.size {
                    let (a, b) = (self.describe(a.address), self.describe(b.address));
                    let message = format!("the {what} differs from that of the input's {at:#x}: input of {a}, output of {b}");
                    return self.fail(here, message);
                }
                if let (Some(a), Some(b)) = (a.value, b.value)
                    && a != b
                {
                    let (a, b) = (self.describe(a), self.describe(b));
                    return self.fail(here, format!("what is stored differs at the input's {at:#x}: input {a}, output {b}"));
                }
            }
            if x.len() != y.len() {
                let count = (x.len(), y.len());
                let (from, to) = (x.last().map_or(input.at, |event| event.at), y.last().map_or(output.at, |event| event.at));
                let message = format!("{} {what}s of memory that others see, the input has {} up to {from:#x}", count.1, count.0);
                return self.fail(to, message);
            }
        }
        for (a, b) in x.loads.iter().zip(&y.loads) {
            let (before, now) = (a.others_before as usize, b.others_before as usize);
            if now > before || x.stores[now..before].iter().any(|store| !are_apart(&self.pool, store, a)) {
                let message = format!("a load crosses a store that it may depend on; it is the input's {:#x}", a.at);
                return self.fail(b.at, message);
            }
        }
        Ok(())
    }

    fn compare_traps(&self, input: &Cursor, output: &Cursor) -> Step<()> {
        let trap = |&(id, _, stores): &(Id, u32, u32)| (id, stores);
        if !input.machine.traps.iter().map(trap).eq(output.machine.traps.iter().map(trap)) {
            return self.fail(output.at, format!("the divisions before the input's {:#x} differ", input.at));
        }
        if let Some(access) = aligned::first_new(&self.pool, &input.machine.aligned, &output.machine.aligned) {
            let message = format!("asks for an aligned address, which nothing up to the input's {:#x} does", input.at);
            return self.fail(access.at, message);
        }
        Ok(())
    }

    fn compare_raceless(&self, input: &Cursor, output: &Cursor) -> Step<()> {
        raceless::compare(&self.pool, &input.machine, &output.machine).or_else(|event| {
            let message = format!("the accesses differ from those up to the input's {:#x}, even without races", input.at);
            self.fail(event.map_or(output.at, |event| event.at), message)
        })
    }
}
