//! What unwinders and the processor's tracking of indirect branches see at a pair: rules of frames, handlers of calls, marks.
//!
//! A jump that the output has besides, as at an old address that has to stay good, need not be described: nothing is thrown there. Nor need an `endbr64` right before one, without which no
//! indirect branch may come there.

use super::{Pair, Reach, Side, Walk};
use crate::decode::{Inst, Kind};
use crate::faults::may_fault;
use crate::report::{Violation, ViolationKind};
use crate::unwind::Located;

/// A frame address of `rsp` plus 8, in DWARF's numbers: nothing is there but the return address, as at a function's entry.
pub(crate) const AT_RETURN_ADDRESS: (u64, i64) = (7, 8);

impl Walk<'_, '_> {
    /// What the frame is counted from at an address, and how far, if its rules are that simple.
    pub(crate) fn frame_address(&self, side: &Side<'_>, address: u64) -> Option<(u64, i64)> {
        self.rows?.frame_of(side.unwind.locate(address).row)?.address
    }

    /// An indirect branch may come here: where the program runs with tracking, an `endbr64` must stand here itself, not behind a jump.
    ///
    /// The rest of it follows from the walk: elsewhere only the same one stands for an `endbr64`, but for [`Walk::may_lose_mark`], and the prefix `notrack` is a byte of its jump. Where the program does not run with
    /// tracking, it is filler ([`Side::is_idle`]).
    pub(crate) fn compare_marks(&self, input: u64, output: u64) -> Result<(), Violation> {
        if self.input.has_ibt && self.input.begins_with_mark(input) && !self.output.begins_with_mark(output) {
            let message = format!("no endbr64 at an address that is taken; the input has one at {input:#x}");
            return Err(Violation::new(ViolationKind::IndirectBranchTarget, output, message));
        }
        Ok(())
    }

    /// Whether the output may go on behind an `endbr64` of the input that it lacks: it begins a function, to which nothing led here that is tracked. Whoever comes by an address
    /// asks for the mark.
    pub(crate) fn may_lose_mark(&self, (i, a): (u64, Inst), b: Inst) -> bool {
        a.kind == Kind::EndBranch && b.kind != Kind::EndBranch && self.input.unwind.starts_at(i)
    }

    pub(super) fn compare_rows(&mut self, i: u64, o: u64) -> Result<(), Violation> {
        let is_known = self.input_row.covers(i) && self.output_row.covers(o);
        if !is_known {
            self.input_row = self.input.unwind.locate(i);
            self.output_row = self.output.unwind.locate(o);
            if self.touched.last() != Some(&self.input_row.fde) {
                self.touched.push(self.input_row.fde);
            }
        }
        self.stats.unwind_rows += 1;
        let (a, b) = (self.input_row, self.output_row);
        let personality =
            |side: &Side<'_>, located: &Located| side.unwind.fdes.get(located.fde as usize).and_then(|fde| fde.local_personality);
        if !is_known && let (Some(input), Some(output)) = (personality(self.input, &a), personality(self.output, &b)) {
            // The unwinder calls it by its address.
            if let Err(violation) = self.compare_marks(input, output) {
                self.violations.push(violation);
            }
            self.queue.push(Pair::new(input, output, o, Reach::Name));
        }
        let is_same_frame = a.frame == b.frame || self.input.frame_at(&a, i) == self.output.frame_at(&b, o);
        if a.row == b.row && is_same_frame {
            return Ok(());
        }
        if b.row == crate::unwind::NONE && self.is_mark_of_jump(o) {
            return Ok(());
        }
        let both_told = a.row != crate::unwind::NONE && b.row != crate::unwind::NONE;
        if is_same_frame && both_told && self.is_unasked(o, &b) {
            self.stats.unasked_rows += 1;
            return Ok(());
        }
        let what = match (a.row == crate::unwind::NONE, b.row == crate::unwind::NONE) {
            (true, false) => "has a frame description that the input lacks",
            (false, true) => "lacks a frame description",
            _ if !is_same_frame => "another personality, language-specific data or frame kind",
            _ => "other rules for the frame or its registers",
        };
        // One violation per place, but the walk goes on: what follows may still correspond.
        self.report(ViolationKind::UnwindRow, o, format!("{what}, unlike the input's {i:#x}"));
        Ok(())
    }

    /// Whether nobody asks for the rules at an address of the output.
    fn is_unasked(&self, address: u64, located: &Located) -> bool {
        self.assumptions.no_async_unwind && !self.output.unwind.is_of_signal(located) && !self.output.can_stop_at(address)
    }

    fn is_mark_of_jump(&self, o: u64) -> bool {
        let kind_at = |address: u64| self.output.inst(address).map(|inst| (inst.kind, address + u64::from(inst.len)));
        match kind_at(o) {
            Some((Kind::EndBranch, after)) => kind_at(after).is_some_and(|(kind, _)| kind == Kind::Jump),
            _ => false,
        }
    }

    /// Whether a fault of an instruction of the input that is no call may be an exception for which a table has something (`-fnon-call-exceptions`, Ada).
    pub(super) fn is_handled_if_it_faults(&self, i: u64, a: Inst) -> bool {
        let has_table =
            |side: &Side<'_>, row: &Located| side.unwind.fdes.get(row.fde as usize).is_some_and(|fde| fde.lsda.is_some());
        let is_told = has_table(self.input, &self.input_row) || has_table(self.output, &self.output_row);
        is_told && may_fault(self.input.code.bytes(i, a), a.kind)
    }

    pub(super) fn compare_call_sites(&mut self, i: u64, o: u64) -> Result<(), Violation> {
        let (a, b) = (self.input_row.fde, self.output_row.fde);
        if a == crate::unwind::NONE || b == crate::unwind::NONE {
            return Ok(());
        }
        let fail = |message: &str| {
            let message = format!("{message}, unlike the input's call at {i:#x}");
            Err(Violation::new(ViolationKind::CallSite, o, message))
        };
        let (a, b) = match (self.input.call_sites(a), self.output.call_sites(b)) {
            // Where functions share an entry, what has no table lets exceptions pass by one.
            (None, Some(_)) if self.input.unwind.fdes[a as usize].lsda.is_none() => {
                return if self.output.passes_by_table(b, o) { Ok(()) } else { fail("handlers") };
            }
            (None, _) => return Ok(()),
            (Some(_), None) => return fail("its language-specific data is missing or cannot be read"),
            (Some(a), Some(b)) => (a, b),
        };
        let is_call = self.input.inst(i).is_some_and(|inst| matches!(inst.kind, Kind::Call | Kind::IndirectCall));
        self.stats.call_sites += u64::from(is_call);
        if b.has_base && !a.has_base {
            return fail("landing pads that count from a base of their own");
        }
        match (a.find(i), b.find(o)) {
            (None, None) => Ok(()),
            (Some(a), Some(b)) if a.handlers != b.handlers => fail("other handlers"),
            (Some(a), Some(b)) => match (a.landing_pad, b.landing_pad) {
                (None, None) => Ok(()),
                (Some(input), Some(output)) => {
                    self.compare_marks(input, output)?;
                    self.queue.push(Pair::new(input, output, o, Reach::Name));
                    Ok(())
                }
                (Some(_), None) => fail("no landing pad"),
                (None, Some(_)) => fail("a landing pad"),
            },
            (Some(_), None) => fail("no call site entry"),
            (None, Some(_)) => fail("a call site entry"),
        }
    }
}
