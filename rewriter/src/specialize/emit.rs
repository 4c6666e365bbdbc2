//! Copies of functions in the output: contexts of which it is worth it become clones, and the calls that lead to them go there.
//!
//! **Method.** Constants are followed through the program (`analysis::constants`), the best contexts get bodies (`choose`), and the states that can be told apart (`merge`) get
//! copies. What is reached of them from the calls of originals is made:
//! * *direct*: contexts one call deep; each call of an original goes to its clone, and there are no states;
//! * *machine*: one copy for each function and body. One that can be in several states is told its state in `r11` and keeps it in its frame (`code` has the instructions, `frame` says which
//!   functions can do that); its calls choose by the state. A function that can't keep a state gets a copy for each of its states instead;
//! * *shared*: a copy for each state; *full*: a copy for each context, as the source's comparator. Neither has anything to choose.
//!
//! **Safety.** A copy is entered only by calls whose caller has just given the registers the constants that its case takes for granted: an original's call passes what it passes whoever
//! called it, and a copy's call passes what its own state's case says. All that is removed in it computes what nothing reads, and all that is replaced computes what is put there (`simplify`).
//! It returns what the function returns and leaves alone what the function leaves alone, because no instruction is added but moves to registers that were written there, and those that
//! pass, keep and compare a state: they change `r11` and flags, where nobody reads them before they are written again (liveness across calls), and 16 bytes of stack
//! between the return address and the frame, of which nobody but the copy knows. *An activation always has the state of its own context*: see `specialize`.
//!
//! **Cost.** Functions that no context leads to, and calls of originals that lead nowhere, are as they were. An original's call that enters a copy with states has one `mov` more. An
//! activation of such a copy executes three instructions more than the function does (two for each way in, one for each way out).
//!
//! **Profit.** The instructions that are gone, weighted by the profile, for the bytes that the clone takes: the best first, up to a share of the code.

mod arguments;
mod choose;
mod code;
mod frame;
mod options;

use std::collections::BTreeMap;
use std::rc::Rc;

use analysis::constants::outcome::place_of;
use analysis::constants::{Constant, EntryUses, Exploration, Leaving, Outcome, Place, Tracked};
use analysis::engine::Summaries;
use analysis::graph::SiteId;
use analysis::hot::Counts;
use analysis::procedures::Procedure;
use analysis::values::Surroundings;
use lifter::address::Va;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::RefTarget;
use rustc_hash::{FxHashMap, FxHashSet};

use super::contexts::{ContextForest, procedure_of};
use super::merge::{Class, Merged};
use super::{Body, CallSite, FunctionId};
use crate::clones::{CloneData, CloneId, Dropped};
use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement};
use crate::transform::Context;
use choose::Wanted;
use code::{Calling, KEPT, Way};
use frame::Frames;
pub use options::{Cloning, Dispatch, Form};

/// What was done, by name.
pub type Tally = BTreeMap<&'static str, u64>;

/// Plans copies, and the calls that lead to them. Calls that other edits have replaced stay replaced.
pub(crate) fn plan(context: &Context<'_>, cloning: Cloning, edits: &mut EditPlan) {
    if cloning.is_off() {
        return;
    }
    let summaries = Summaries::compute(Surroundings::new(context.image, context.program));
    let weights: (&[u64], &[u64]) = match cloning.everywhere {
        // By counts, only what runs would be looked at.
        true => (&[], &[]),
        false => (&context.weights.blocks[..], &context.weights.edges[..]),
    };
    let counts = Counts::new(context.program, &summaries.around.procedures, &summaries.graph, weights, 1.0);
    let uses = EntryUses::compute(&summaries);
    let found = Exploration::run(&summaries, &counts, uses, cloning.max_contexts);
    let wanted = Wanted::choose(context, cloning, &found);
    let contexts = ContextForest::build(&found, |id, _, _| wanted.contexts[id.index()]);
    let merged = match cloning.form {
        Form::Full => Merged::apart(&contexts.forest),
        _ => Merged::build(&contexts.forest),
    };
    let mut emitter = Emitter {
        context,
        cloning,
        found: &found,
        contexts: &contexts,
        merged: &merged,
        edits,
        tally: wanted.tally,
        outcomes: FxHashMap::default(),
        nothing: None,
    };
    emitter.run(&mut Frames::new(context, &summaries));
    let tally = emitter.tally;
    edits.tally = tally;
}

/// A call, and the state that it leads to.
type Lead = (Place, CallSite, Class);

/// A function and what becomes of it.
type Kind = (FunctionId, Option<Body>);

/// A copy that is made.
struct Copied {
    kind: Kind,
    states: Vec<Class>,
    outcome: Rc<Outcome>,
    /// If it keeps a state.
    tracked: Option<Tracked>,
    /// From one state to the next.
    stride: u32,
}

struct Emitter<'x, 'c> {
    context: &'x Context<'c>,
    cloning: Cloning,
    found: &'x Exploration<'x, 'c>,
    contexts: &'x ContextForest,
    merged: &'x Merged,
    edits: &'x mut EditPlan,
    tally: Tally,
    outcomes: FxHashMap<Kind, Option<Rc<Outcome>>>,
    /// Code of no bytes.
    nothing: Option<NewCodeId>,
}

impl Emitter<'_, '_> {
    fn run(&mut self, frames: &mut Frames<'_, '_>) {
        let roots = self.roots();
        let reached = self.reach(&roots);
        let runs = self.runs_of(&roots, &reached);
        let copies = self.group(reached, frames);
        let mut ways: FxHashMap<Class, Way> = FxHashMap::default();
        let mut ids: Vec<CloneId> = Vec::with_capacity(copies.len());
        for copy in &copies {
            let clone = self.make(copy, &runs);
            ids.push(clone);
            for (state, &class) in (0u32..).zip(&copy.states) {
                ways.insert(class, Way::Clone { clone, state: copy.tracked.is_some().then_some(state * copy.stride) });
            }
        }
        let way_of = |class: Class| ways.get(&class).copied().unwrap_or(Way::Original);
        for (copy, &clone) in copies.iter().zip(&ids) {
            self.lead_calls(copy, clone, &way_of, &runs, frames);
        }
        let mut led: Vec<Replacement> = Vec::new();
        for &(place, site, class) in &roots {
            let calling = self.calling(site, None, 1);
            let way = way_of(class);
            if way != Way::Original {
                led.push(self.replacement(place, calling.always(way)));
                let unneeded = self.unneeded(place, calling, &[class], frames);
                let nothing = self.edits_nothing();
                let is_free = |place: &Place| !overlaps(self.edits.replacements_of(place.block), place);
                led.extend(unneeded.iter().filter(|place| is_free(place)).map(|place| replaced(place, nothing)));
            }
        }
        self.edits.replacements.extend(led);
        for clone in self.edits.clones.values_mut() {
            clone.replacements.sort_by_key(|r| (r.block, r.offset, r.len));
        }
        self.count(&copies);
    }

    fn procedure_of(&self, class: Class) -> Procedure {
        procedure_of(self.merged.classes[class].function)
    }
    fn func_of(&self, class: Class) -> Func {
        self.found.summaries().around.procedures.all[self.procedure_of(class)].func
    }

    /// Whether calls of a function may be led elsewhere: it is in the output, as itself, and something reaches it.
    fn can_change(&self, func: Func) -> bool {
        let program = self.context.program;
        program.funcs[func].is_movable()
            && !self.context.is_stand_in(func)
            && !self.context.is_folded(func)
            && self.context.is_reached(program.funcs[func].entry)
    }

    fn place(&self, site: CallSite) -> Option<Place> {
        let summaries = self.found.summaries();
        place_of(&summaries.around, &summaries.graph.sites[SiteId::new(site.index())])
    }

    fn calling(&self, site: CallSite, depth: Option<u32>, stride: u32) -> Calling {
        let summaries = self.found.summaries();
        let site = &summaries.graph.sites[SiteId::new(site.index())];
        Calling { callee: summaries.around.procedures.all[site.callee].entry, is_tail: site.is_tail, depth, stride }
    }

    /// Calls of originals that lead to copies.
    fn roots(&mut self) -> Vec<Lead> {
        let mut roots = Vec::new();
        let merged = self.merged;
        for (class, data) in merged.classes.iter().filter(|(_, data)| data.is_original) {
            if !self.can_change(self.func_of(class)) {
                continue;
            }
            for &(site, target) in &data.calls {
                let place = self.place(site).filter(|place| !overlaps(self.edits.replacements_of(place.block), place));
                if let (Some(place), true) = (place, self.has_copy(target)) {
                    roots.push((place, site, target));
                }
            }
        }
        roots.sort_unstable_by_key(|root| root.0);
        roots.dedup_by_key(|root| root.0);
        roots
    }

    fn has_copy(&mut self, class: Class) -> bool {
        !self.merged.classes[class].is_original && self.outcome(class).is_some()
    }

    /// What is copied for a state.
    fn outcome(&mut self, class: Class) -> Option<Rc<Outcome>> {
        let data = &self.merged.classes[class];
        let kind = (data.function, data.body);
        if let Some(known) = self.outcomes.get(&kind) {
            return known.clone();
        }
        let procedure = procedure_of(data.function);
        let simplified = data.body.map(|body| &self.found.cases[self.contexts.bodies[body]].simplified);
        let outcome = choose::outcome_of(self.context, self.found, procedure, simplified).ok().map(Rc::new);
        self.outcomes.insert(kind, outcome.clone());
        outcome
    }

    /// The calls of a copy in a state, as far as they are there.
    fn calls_of(&mut self, class: Class) -> Vec<Lead> {
        let Some(outcome) = self.outcome(class) else { return Vec::new() };
        let merged = self.merged;
        let is_there = |place: &Place| {
            outcome.blocks.binary_search(&place.block).is_ok()
                && outcome.removed.binary_search(place).is_err()
                && outcome.decided.binary_search_by_key(&place.block, |d| d.0).is_err()
        };
        let calls = merged.classes[class].calls.iter();
        calls.filter_map(|&(site, target)| Some((self.place(site).filter(is_there)?, site, target))).collect()
    }

    /// The states that calls lead to, in the order in which they are found.
    fn reach(&mut self, roots: &[Lead]) -> Vec<Class> {
        let mut seen: FxHashSet<Class> = FxHashSet::default();
        let mut reached: Vec<Class> = roots.iter().map(|root| root.2).filter(|&class| seen.insert(class)).collect();
        let mut next = 0;
        while let Some(&class) = reached.get(next) {
            next += 1;
            for (_, _, target) in self.calls_of(class) {
                if self.has_copy(target) && seen.insert(target) {
                    reached.push(target);
                }
            }
        }
        reached
    }

    /// How often each state is entered, if what a caller does depends on its state in nothing but where its calls go. Recursion is followed some rounds deep.
    fn runs_of(&mut self, roots: &[Lead], reached: &[Class]) -> FxHashMap<Class, u64> {
        const ROUNDS: usize = 16;
        let mut by_roots: FxHashMap<Class, u64> = FxHashMap::default();
        for &(place, _, class) in roots {
            let runs = by_roots.entry(class).or_default();
            *runs = runs.saturating_add(self.context.count(place.block));
        }
        let calls: Vec<_> = reached
            .iter()
            .map(|&class| {
                let entry = self.found.summaries().around.procedures.all[self.procedure_of(class)].entry;
                (class, entry, self.calls_of(class))
            })
            .collect();
        let mut runs = by_roots.clone();
        for _ in 0..ROUNDS {
            let mut next = by_roots.clone();
            for (class, entry, calls) in &calls {
                let own = u128::from(runs.get(class).copied().unwrap_or(0));
                let entries = u128::from(self.context.count(*entry)).max(1);
                for &(place, _, target) in calls.iter().filter(|_| own > 0) {
                    let made = own * u128::from(self.context.count(place.block)) / entries;
                    let runs = next.entry(target).or_default();
                    *runs = runs.saturating_add(u64::try_from(made).unwrap_or(u64::MAX));
                }
            }
            for (class, entry, _) in &calls {
                if let Some(runs) = next.get_mut(class) {
                    *runs = (*runs).min(self.context.count(*entry));
                }
            }
            if next == runs {
                break;
            }
            runs = next;
        }
        runs
    }

    /// Which states share a copy.
    fn group(&mut self, reached: Vec<Class>, frames: &mut Frames<'_, '_>) -> Vec<Copied> {
        let merged = self.merged;
        let mut groups: BTreeMap<Kind, Vec<Class>> = BTreeMap::new();
        for class in reached {
            let data = &merged.classes[class];
            groups.entry((data.function, data.body)).or_default().push(class);
        }
        let mut copies = Vec::new();
        for (kind, mut states) in groups {
            let Some(outcome) = self.outcome(states[0]) else { continue };
            // States from which calls go the same ways side by side: fewer runs to compare.
            states.sort_by_cached_key(|&class| (merged.classes[class].calls.iter().map(|c| c.1).collect::<Vec<Class>>(), class));
            let mut tracked = None;
            if states.len() > 1 && matches!(self.cloning.form, Form::Machine(_)) {
                match frames.of(procedure_of(kind.0), &outcome.blocks) {
                    Ok(found) => tracked = Some(found.clone()),
                    Err(why) => *self.tally.entry(no_state(why)).or_default() += 1,
                }
            }
            let stride = self.stride(states.len());
            match tracked {
                None => copies.extend(states.into_iter().map(|class| Copied {
                    kind,
                    states: vec![class],
                    outcome: Rc::clone(&outcome),
                    tracked: None,
                    stride,
                })),
                tracked => copies.push(Copied { kind, states, outcome, tracked, stride }),
            }
        }
        copies
    }

    /// From one of so many states to the next: far enough for ways out of line, if there may be any.
    fn stride(&self, num_states: usize) -> u32 {
        const COMPARED_MAX: usize = 4;
        match self.cloning.form {
            Form::Machine(Dispatch::Table) => code::WAY,
            Form::Machine(Dispatch::Cheaper) if num_states > COMPARED_MAX => code::WAY,
            _ => 1,
        }
    }

    /// A copy without its calls.
    fn make(&mut self, copy: &Copied, runs: &FxHashMap<Class, u64>) -> CloneId {
        let data = self.found.summaries().around.procedures.all[procedure_of(copy.kind.0)];
        let nothing = self.edits_nothing();
        let outcome = &copy.outcome;
        let mut replacements: Vec<Replacement> = outcome.removed.iter().map(|place| replaced(place, nothing)).collect();
        for (place, register, constant) in &outcome.constants {
            let code = code::move_constant(*register, *constant, |at| self.named_at(&outcome.blocks, at));
            replacements.push(self.replacement(*place, code));
        }
        if copy.tracked.is_some() {
            let entry = Place { block: data.entry, offset: 0, len: 0 };
            replacements.push(self.replacement(entry, code::keep_state()));
        }
        let count = copy.states.iter().filter_map(|class| runs.get(class)).fold(0u64, |sum, &runs| sum.saturating_add(runs));
        self.edits.clones.push(CloneData {
            func: data.func,
            entry: data.entry,
            blocks: outcome.blocks.clone(),
            replacements,
            decided: outcome.decided.clone(),
            count,
            deeper: if copy.tracked.is_some() { KEPT } else { 0 },
            dropped: Vec::new(),
            bound: Vec::new(),
        })
    }

    /// Code of no bytes.
    fn edits_nothing(&mut self) -> NewCodeId {
        match self.nothing {
            Some(nothing) => nothing,
            None => *self.nothing.insert(self.edits.codes.push(NewCode::default())),
        }
    }

    /// What stands before a call and only gives its targets what none of them needs.
    fn unneeded(&mut self, place: Place, calling: Calling, targets: &[Class], frames: &mut Frames<'_, '_>) -> Vec<Place> {
        let mut needed = 0;
        for &target in targets {
            let data = &self.merged.classes[target];
            match data.body {
                Some(body) => needed |= self.found.cases[self.contexts.bodies[body]].simplified.needed,
                None => return Vec::new(),
            }
        }
        let flags_are_free = frames.flags_are_free(calling.callee);
        arguments::unneeded(self.context, frames.registers(), place, calling.is_tail, needed, flags_are_free)
    }

    /// What an address names that is not where it was: code, or a table of which the copy has its own.
    fn named_at(&self, blocks: &[Block], at: Va) -> Option<RefTarget> {
        let program = self.context.program;
        if self.context.image.is_executable(at) {
            return program.block_at(at).map(RefTarget::Block);
        }
        let refs = blocks.iter().flat_map(|&block| program.block_refs(block));
        let is_it = |target: &RefTarget| matches!(*target, RefTarget::Table(table) if program.tables[table].at == at);
        refs.map(|r| r.target).find(is_it)
    }

    fn replacement(&mut self, place: Place, code: NewCode) -> Replacement {
        let code = self.edits.codes.push(code);
        replaced(&place, code)
    }

    /// Leads the calls of a copy where they go in its states, and lets it take its state off the stack where it leaves.
    fn lead_calls(
        &mut self,
        copy: &Copied,
        clone: CloneId,
        way_of: &dyn Fn(Class) -> Way,
        runs: &FxHashMap<Class, u64>,
        frames: &mut Frames<'_, '_>,
    ) {
        let calls: Vec<Vec<Lead>> = copy.states.iter().map(|&class| self.calls_of(class)).collect();
        let mut led: Vec<Replacement> = Vec::new();
        let mut led_tails: FxHashSet<Block> = FxHashSet::default();
        let mut unneeded: Vec<(Place, u32)> = Vec::new();
        // All states of one function have the same calls.
        for (index, &(place, site, _)) in calls[0].iter().enumerate() {
            let ways: Vec<(Way, u64)> = calls
                .iter()
                .zip(&copy.states)
                .map(|(calls, class)| (way_of(calls[index].2), runs.get(class).copied().unwrap_or(0)))
                .collect();
            let at = self.found.summaries().graph.sites[SiteId::new(site.index())].at;
            let depth = copy.tracked.as_ref().and_then(|tracked| tracked.depth_before(at));
            if copy.tracked.is_some() && depth.is_none() {
                continue;
            }
            let calling = self.calling(site, depth, copy.stride);
            if let Some(code) = self.dispatch(calling, &ways, frames) {
                let targets: Vec<Class> = calls.iter().map(|calls| calls[index].2).collect();
                if ways.iter().all(|&(way, _)| way != Way::Original) {
                    let places = self.unneeded(place, calling, &targets, frames);
                    unneeded.extend(places.into_iter().map(|unneeded| (unneeded, place.offset)));
                }
                led_tails.extend(calling.is_tail.then_some(place.block));
                led.push(self.replacement(place, code));
            }
        }
        let leaves = copy.tracked.iter().flat_map(|tracked| &tracked.leaves);
        for &(place, leaving) in leaves.filter(|leave| copy.outcome.blocks.binary_search(&leave.0.block).is_ok()) {
            let is_led = matches!(leaving, Leaving::Jump(_)) && led_tails.contains(&place.block);
            if let (false, Some(code)) = (is_led, frame::way_out(self.context, place, leaving)) {
                led.push(self.replacement(place, code));
            }
        }
        let nothing = self.edits_nothing();
        let data = &mut self.edits.clones[clone];
        for (place, call) in unneeded {
            let Place { block, offset, len } = place;
            let known = data.replacements.iter().position(|r| r.block == block && r.offset == offset && r.len == len);
            let before = known.map(|known| std::mem::replace(&mut data.replacements[known].code, nothing));
            if known.is_some() || !overlaps(&data.replacements, &place) {
                data.dropped.push(Dropped { block, call, offset, len, before });
                data.replacements.extend(known.is_none().then(|| replaced(&place, nothing)));
            }
        }
        data.replacements.extend(led);
        data.bound.extend(led_tails.into_iter().filter(|_| copy.tracked.is_some()));
    }

    /// The code of a call by state; `None` where it is as it was.
    fn dispatch(&mut self, calling: Calling, ways: &[(Way, u64)], frames: &mut Frames<'_, '_>) -> Option<NewCode> {
        let first = ways[0].0;
        if ways.iter().all(|way| way.0 == first) {
            return (first != Way::Original).then(|| calling.always(first));
        }
        let passes = |way: &(Way, u64)| matches!(way.0, Way::Clone { state: Some(_), .. });
        let is_legal =
            frames.flags_are_free(calling.callee) && (!ways.iter().any(passes) || frames.state_is_free(calling.callee));
        if !is_legal {
            *self.tally.entry("calls that can't choose: flags in use").or_default() += 1;
            return None;
        }
        if let Some((clone, shift)) = calling.shift(ways) {
            return Some(calling.shifted(clone, shift));
        }
        // Out of line it is five instructions; in line three, and two for each compare.
        let is_deep = code::mean_compares(ways) > 16;
        let is_by_table = match self.cloning.form {
            Form::Machine(Dispatch::Table) => true,
            Form::Machine(Dispatch::Inline) => false,
            _ => is_deep,
        };
        if is_by_table
            && calling.stride == code::WAY
            && frames.state_is_free(calling.callee)
            && let Some(table) = self.table(calling.callee, ways)
        {
            return Some(calling.by_table(table));
        }
        *self.tally.entry("calls that compare").or_default() += 1;
        Some(calling.by_compares(ways))
    }

    /// A clone of the callee that is but a table of ways.
    fn table(&mut self, callee: Block, ways: &[(Way, u64)]) -> Option<CloneId> {
        let program = self.context.program;
        let func = program.func_of(callee);
        let len = program.blocks[callee].len;
        if !program.funcs[func].is_movable() || self.context.is_folded(func) || len == 0 {
            return None;
        }
        *self.tally.entry("calls by table").or_default() += 1;
        let replacement = self.replacement(Place { block: callee, offset: 0, len }, code::table(callee, ways));
        let count = ways.iter().fold(0u64, |sum, way| sum.saturating_add(way.1));
        let (blocks, replacements) = (vec![callee], vec![replacement]);
        Some(self.edits.clones.push(CloneData {
            func,
            entry: callee,
            blocks,
            replacements,
            decided: Vec::new(),
            count,
            deeper: 0,
            dropped: Vec::new(),
            bound: vec![callee],
        }))
    }

    fn count(&mut self, copies: &[Copied]) {
        let mut add = |what: &'static str, count: usize| *self.tally.entry(what).or_default() += count as u64;
        add("clones", copies.iter().filter(|copy| copy.kind.1.is_some()).count());
        add("copies on the way", copies.iter().filter(|copy| copy.kind.1.is_none()).count());
        add("copies that keep a state", copies.iter().filter(|copy| copy.tracked.is_some()).count());
        add("states", copies.iter().map(|copy| copy.states.len()).sum());
    }
}

fn replaced(place: &Place, code: NewCodeId) -> Replacement {
    let Place { block, offset, len } = *place;
    Replacement { block, offset, len, code, change: Change::Specialize }
}

fn overlaps(replacements: &[Replacement], place: &Place) -> bool {
    replacements.iter().any(|r| r.block == place.block && r.offset < place.offset + place.len && place.offset < r.end())
}

/// The name under which a function that can't keep a state is counted.
fn no_state(why: &str) -> &'static str {
    match why {
        "not understood" => "no state: not understood",
        "depth of the stack" => "no state: depth of the stack",
        "arguments on the stack" => "no state: arguments on the stack",
        "frame pointer" => "no state: frame pointer",
        "loop to the entry" => "no state: loop to the entry",
        "conditional way out" => "no state: conditional way out",
        "arguments taken off the stack" => "no state: arguments taken off the stack",
        "r11 is in use" => "no state: r11 is in use",
        _ => "no state: unwind rows",
    }
}

/// Whether a constant may be the address of code that moves, and is not known to be a block's.
fn is_unknown_code(context: &Context<'_>, constant: Constant) -> bool {
    let image = context.image;
    match constant {
        Constant::Address(at) => {
            let is_code = image.is_executable(at) || image.segment_at(at).is_none();
            is_code && context.program.block_at(at).is_none()
        }
        Constant::Number(number) => !image.kind.is_position_independent() && image.is_executable(Va(number)),
    }
}
