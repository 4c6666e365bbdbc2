//! Labels that a function tells others for what its calls return to.
//!
//! **Problem.** gccgo tells its runtime a label behind the call of a deferred function, which may `recover` if its return address is that label, or up to 16 bytes before it. A call that stands for several, each with a
//! label of its own, returns to one of them: to the walk that is right, since what is done behind it is the same. No step of either program shows who compares.
//!
//! **Rule.** Let an instruction that the walk passed name a place of its own function at most 16 bytes behind a call of it, and let neither the function nor its parts have an indirect jump, which labels are for otherwise.
//! Then wherever the call stands in the output, what is named in the place of the label stands as close behind it.
//!
//! **What is taken for granted.** Nobody asks how far behind the call the label is, but for that.

use rustc_hash::FxHashMap;

use super::Walk;
use crate::decode::Kind;
use crate::report::{Violation, ViolationKind};

/// So far behind a call may be what its return address is compared with.
const CLOSE_BEHIND: u64 = 16;

impl Walk<'_, '_> {
    /// Reports calls that no longer stand before the label that is told for them.
    pub(crate) fn report_told_returns(&mut self) {
        let told = self.told_returns();
        if told.is_empty() {
            return;
        }
        let mut found = Vec::new();
        for (from, to) in self.relation.pairs(self.output.code.size()) {
            let (call, stands_at) = (self.input.code.address(from), self.output.code.address(to));
            let first = told.partition_point(|&(other, ..)| other < call);
            let own: Vec<_> = told[first..].iter().take_while(|told| told.0 == call).collect();
            let end = self.output.inst(stands_at).map(|inst| stands_at + u64::from(inst.len));
            let is_close = |name: u64| end.is_some_and(|end| (end..=end + CLOSE_BEHIND).contains(&name));
            for label in own.chunk_by(|a, b| a.1 == b.1).filter(|names| !names.iter().any(|told| is_close(told.2))) {
                found.push((stands_at, call, label[0].1, label[0].2));
            }
        }
        found.sort_unstable();
        self.violations.extend(found.into_iter().map(|(stands_at, call, label, name)| {
            let message = format!(
                "stands for the call at {call:#x}, of which the input tells somebody that it returns to {label:#x}: that is {name:#x} here, and not close behind"
            );
            Violation::new(ViolationKind::Conflict, stands_at, message).about(label)
        }));
    }

    /// Calls of the input with a label that is told for them, and what is named in its place in the output. Ascending.
    fn told_returns(&self) -> Vec<(u64, u64, u64)> {
        let input = self.input;
        let is_passed = |at: u64| input.code.index(at).is_some_and(|index| self.relation.seen.contains(index));
        let mut jumping: FxHashMap<u32, bool> = FxHashMap::default();
        let mut labels: FxHashMap<u64, Vec<u64>> = FxHashMap::default();
        // Who names its own place asks where it is.
        for (_, label) in self.survey.own_places(input).into_iter().filter(|&(at, label)| at != label && is_passed(at)) {
            let Some(fde) = input.unwind.fde_at(label) else { continue };
            let calls = self.calls_close_before(fde, label);
            let group = self.survey.group_of(fde);
            if !calls.is_empty() && !*jumping.entry(group).or_insert_with(|| self.has_indirect_jump(fde)) {
                labels.insert(label, calls);
            }
        }
        if labels.is_empty() {
            return Vec::new();
        }
        let named = self.relation.named().filter_map(|(label, name)| Some((labels.get(&label)?, label, name)));
        let mut told: Vec<(u64, u64, u64)> =
            named.flat_map(|(calls, label, name)| calls.iter().map(move |&call| (call, label, name))).collect();
        told.sort_unstable();
        told
    }

    /// The calls of a function that a label is close behind.
    fn calls_close_before(&self, fde: u32, label: u64) -> Vec<u64> {
        let function = &self.input.unwind.fdes[fde as usize];
        let (mut at, mut calls) = (function.start, Vec::new());
        while let Some(inst) = self.input.inst(at).filter(|_| at < label) {
            let end = at + u64::from(inst.len);
            if matches!(inst.kind, Kind::Call | Kind::IndirectCall) && (end..=end + CLOSE_BEHIND).contains(&label) {
                calls.push(at);
            }
            at = end;
        }
        calls
    }
}
