//! The copies that a forest asks for, and what their calls do: the source's algorithm 1.
//!
//! **Copies.** One *clone* for each function and body, and for each function on the way at most one *tracking copy*, the function's own body. A copy's states are
//! numbered from 0 within it, because it can only be in those: one that has a single state is never told it.
//!
//! **Calls.** The calls of a copy that lead somewhere in any state, and those of the originals at roots, whose state is known. Whoever else calls reaches the
//! original and finds it unchanged but for its own calls that a root has.

use std::fmt::Write as _;

use lifter::entity::PrimaryMap;
use rustc_hash::FxHashMap;

use super::merge::{Class, Merged};
use super::{Body, CallSite, FunctionId, Names, joined};

lifter::define_id!(
    /// A copy of a function.
    Copied, "copy");

/// Where a call goes in one state.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// As it always went.
    Original,
    /// Into a copy, in one of its states.
    Copy { copy: Copied, state: u32 },
}

/// A call of a copy, by state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub site: CallSite,
    /// One for each state of the copy.
    pub targets: Vec<Target>,
}

impl Call {
    /// Where it goes, if that is the same in every state.
    pub fn always(&self) -> Option<Target> {
        let first = *self.targets.first()?;
        self.targets.iter().all(|&target| target == first).then_some(first)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyData {
    pub function: FunctionId,
    /// `None` for a tracking copy.
    pub body: Option<Body>,
    pub states: Vec<Class>,
    /// Those that go to a copy in any state; ascending by site.
    pub calls: Vec<Call>,
}

/// All copies and what leads to them.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    /// Ascending by function, the tracking copy first, then by body.
    pub copies: PrimaryMap<Copied, CopyData>,
    /// Calls of originals that go to copies; ascending by function and site.
    pub roots: Vec<(FunctionId, CallSite, Target)>,
}

impl Copies {
    pub fn build(merged: &Merged) -> Self {
        let mut tracked: Vec<(FunctionId, Option<Body>, Class)> = merged
            .classes
            .iter()
            .filter(|(_, data)| !data.is_original)
            .map(|(class, data)| (data.function, data.body, class))
            .collect();
        tracked.sort_unstable();
        let mut copies = Copies::default();
        let mut place: FxHashMap<Class, Target> = FxHashMap::default();
        for group in tracked.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (function, body, _) = group[0];
            let states: Vec<Class> = group.iter().map(|g| g.2).collect();
            let copy = copies.copies.next_id();
            place.extend((0..).zip(&states).map(|(state, &class)| (class, Target::Copy { copy, state })));
            copies.copies.push(CopyData { function, body, states, calls: Vec::new() });
        }
        let target = |class: Class| place.get(&class).copied().unwrap_or(Target::Original);
        for data in copies.copies.values_mut() {
            data.calls = calls_of(merged, &data.states, target);
        }
        for data in merged.classes.values().filter(|data| data.is_original) {
            let led = data.calls.iter().map(|&(site, class)| (data.function, site, target(class)));
            copies.roots.extend(led.filter(|r| r.2 != Target::Original));
        }
        copies.roots.sort_unstable();
        copies
    }

    /// Copies that have a body of their own.
    pub fn num_clones(&self) -> usize {
        self.copies.values().filter(|copy| copy.body.is_some()).count()
    }
    /// Copies of functions on the way.
    pub fn num_tracking(&self) -> usize {
        self.copies.len() - self.num_clones()
    }
    /// Whether a copy has to be told its state.
    pub fn needs_state(&self, copy: Copied) -> bool {
        self.copies[copy].states.len() > 1
    }

    /// Copies, their calls by state, and the calls that lead to them, as text.
    pub fn dump(&self, names: &dyn Names) -> String {
        let name = |copy: Copied| {
            let data = &self.copies[copy];
            let what = data.body.map_or_else(|| "tracking".to_owned(), |body| names.body(body));
            format!("{}.{what}", names.function(data.function))
        };
        let target = |target: Target| match target {
            Target::Original => "original".to_owned(),
            Target::Copy { copy, state } if self.needs_state(copy) => format!("{}({state})", name(copy)),
            Target::Copy { copy, .. } => name(copy),
        };
        let mut text = String::new();
        for (copy, data) in self.copies.iter() {
            let plural = if data.states.len() == 1 { "state" } else { "states" };
            let _ = writeln!(text, "{}: {} {plural}", name(copy), data.states.len());
            for call in &data.calls {
                let targets = match call.always() {
                    Some(always) => target(always),
                    None => joined(call.targets.iter().map(|&t| target(t)), ", "),
                };
                let _ = writeln!(text, "  {} -> {targets}", names.site(call.site));
            }
        }
        for &(function, site, to) in &self.roots {
            let _ = writeln!(text, "{}: {} -> {}", names.function(function), names.site(site), target(to));
        }
        text
    }
}

fn calls_of(merged: &Merged, states: &[Class], target: impl Fn(Class) -> Target) -> Vec<Call> {
    // All states of one function have the same calls.
    let Some(&first) = states.first() else { return Vec::new() };
    let sites = merged.classes[first].calls.iter().enumerate();
    let call = |(index, &(site, _)): (usize, &(CallSite, Class))| {
        let targets: Vec<Target> = states.iter().map(|&class| target(merged.classes[class].calls[index].1)).collect();
        targets.iter().any(|&t| t != Target::Original).then_some(Call { site, targets })
    };
    sites.filter_map(call).collect()
}
