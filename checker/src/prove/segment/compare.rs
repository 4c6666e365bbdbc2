//! What must be the same where both programs leave a segment.

use super::super::expr::{Id, Pool};
use super::super::facts;
use super::super::machine::Event;
use super::words::slot_name;
use super::{Cursor, Run, Step};
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
        let mut same = output.machine.clone();
        for place in 0..16 {
            let is_other = input.machine.general[place] != same.general[place];
            if is_other && self.prover.is_dead_at_return(self.walk, self.root, place as u8) {
                same.general[place] = input.machine.general[place];
                self.segment.stats.dead_registers += 1;
            }
        }
        let output = Cursor::new(output.at, same, None);
        self.compare_registers(input, &output)
    }

    /// All registers that somebody may read from a call on hold the same.
    pub(super) fn compare_called(&mut self, input: &Cursor, call: Inst, output: &Cursor) -> Step<()> {
        let mut same = output.machine.clone();
        for place in 0..16 {
            let is_other = input.machine.general[place] != same.general[place];
            if is_other && self.prover.is_unread_at_call(self.walk, input.at, call, place as u8) {
                same.general[place] = input.machine.general[place];
                self.segment.stats.dead_registers += 1;
            }
        }
        let output = Cursor::new(output.at, same, None);
        self.compare_registers(input, &output)
    }

    /// All registers hold the same.
    pub(super) fn compare_registers(&self, input: &Cursor, output: &Cursor) -> Step<()> {
        let (x, y) = (facts::places(&input.machine), facts::places(&output.machine));
        for place in (0..48).chain([54]) {
            if x[place] != y[place] {
                let (name, x, y) = (facts::name_of(place), self.describe(x[place]), self.describe(y[place]));
                let message = format!("{name} differs at the input's {:#x}: input {x}, output {y}", input.at);
                return self.fail(output.at, message);
            }
        }
        Ok(())
    }

    /// The private slots that somebody may read, those down to a distance below the stack pointer, hold the same.
    pub(super) fn compare_slots(&mut self, input: &Cursor, output: &Cursor, below: i64) -> Step<()> {
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

    /// Others see the same accesses.
    pub(super) fn compare_events(&self, input: &Cursor, output: &Cursor) -> Step<()> {
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
        let trap = |&(id, _, stores): &(Id, u32, u32)| (id, stores);
        if !x.traps.iter().map(trap).eq(y.traps.iter().map(trap)) {
            return self.fail(output.at, format!("the divisions before the input's {:#x} differ", input.at));
        }
        Ok(())
    }
}

/// Whether two accesses cannot overlap.
fn are_apart(pool: &Pool, x: &Event, y: &Event) -> bool {
    let ((a, of_a), (b, of_b)) = (pool.split(x.address), pool.split(y.address));
    let (size_of_a, size_of_b) = (u64::from(x.size / 8), u64::from(y.size / 8));
    let is_frame = |id: Id| pool.as_frame(id).is_some();
    let is_image = |id: Id| pool.as_image(id).or(pool.as_const(id)).is_some();
    if of_a == of_b {
        let distance = b.wrapping_sub(a);
        return distance >= size_of_a && distance.wrapping_neg() >= size_of_b;
    }
    (is_frame(x.address) && is_image(y.address)) || (is_image(x.address) && is_frame(y.address))
}
