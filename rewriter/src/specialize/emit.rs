//! Clones in the output: contexts of which it is worth it become copies of functions, and the calls that lead to them go there.
//!
//! **Method.** Constants are followed through the program (`analysis::constants`), the best contexts get bodies, and the states that can be told apart (`merge`) become clones: each call of an
//! original or of a clone whose target is known goes straight there. Where a context is one call deep that is all there is to it; deeper ones need the functions on the way cloned once for each state.
//!
//! **Safety.** A clone is entered only by calls whose caller has just given the registers the constants that its case takes for granted: an original's call passes what it passes whoever
//! called it, and a clone's call passes what its own case says. All that is removed in it computes what nothing reads, and all that is replaced computes what is put there (`simplify`).
//! It returns what the function returns and leaves alone what the function leaves alone, because no instruction is added but moves to registers that were written there.
//!
//! **Profit.** The instructions that are gone, weighted by the profile, for the bytes that the clone takes: the best first, up to a share of the code.

use analysis::constants::outcome::place_of;
use analysis::constants::{Case, Constant, EntryUses, Exploration, Outcome, Place, Simplified};
use analysis::engine::Summaries;
use analysis::graph::SiteId;
use analysis::hot::Counts;
use analysis::procedures::Procedure;
use analysis::values::Surroundings;
use lifter::address::Va;
use lifter::entity::{EntityId, Func};
use lifter::ir::{Evidence, RefData, RefKind, RefRole, RefTarget};
use rustc_hash::{FxHashMap, FxHashSet};

use super::CallSite;
use super::contexts::{ContextForest, procedure_of};
use super::merge::{Class, Merged};
use crate::clones::{CloneData, CloneId};
use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement};
use crate::transform::Context;

/// Which contexts become clones.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Cloning {
    #[default]
    None,
    /// Contexts one call deep.
    Direct,
    /// All, with the functions on the way cloned too.
    Full,
}

/// Contexts that are looked at.
const MAX_CONTEXTS: usize = 15_000;
/// What clones may add to the movable code.
const BYTES_PER_MILLE_MAX: u64 = 20;
/// A body must save one executed instruction of so many.
const SAVED_SHARE_MIN: u128 = 100_000;

/// Plans clones, and the calls that lead to them. Calls that other edits have replaced stay replaced.
pub(crate) fn plan(context: &Context<'_>, cloning: Cloning, edits: &mut EditPlan) {
    if cloning == Cloning::None {
        return;
    }
    let summaries = Summaries::compute(Surroundings::new(context.image, context.program));
    let weights = (&context.weights.blocks[..], &context.weights.edges[..]);
    let counts = Counts::new(context.program, &summaries.around.procedures, &summaries.graph, weights, 1.0);
    let uses = EntryUses::compute(&summaries);
    let found = Exploration::run(&summaries, &counts, uses, MAX_CONTEXTS);
    let chosen = choose(context, cloning, &found);
    let is_near = |depth: u32| cloning == Cloning::Full || depth == 1;
    let contexts = ContextForest::build(&found, |c, _| is_near(c.depth) && chosen.contains(&c.case));
    let merged = Merged::build(&contexts.forest);
    Emitter {
        context,
        found: &found,
        contexts: &contexts,
        merged: &merged,
        edits,
        clones: FxHashMap::default(),
        nothing: None,
        open: Vec::new(),
    }
    .run();
}

/// The cases that are worth a body, best first, until the bytes are spent.
fn choose(context: &Context<'_>, cloning: Cloning, found: &Exploration<'_, '_>) -> FxHashSet<Case> {
    struct Candidate {
        cases: Vec<Case>,
        saved: u128,
        len: u32,
    }
    let program = context.program;
    let mut by_content: FxHashMap<(Procedure, &Simplified), usize> = FxHashMap::default();
    let mut candidates: Vec<Candidate> = Vec::new();
    for (id, data) in found.contexts.iter() {
        let case = &found.cases[data.case];
        if data.is_root() || case.removed == 0 || cloning == Cloning::Direct && data.depth != 1 {
            continue;
        }
        let next = candidates.len();
        let index = *by_content.entry((case.procedure, &case.simplified)).or_insert(next);
        if index == next {
            candidates.push(Candidate { cases: Vec::new(), saved: 0, len: case.len });
        }
        candidates[index].cases.push(data.case);
        candidates[index].saved += u128::from(found.saved_in(id));
    }
    let executed: u128 = program.blocks.iter().map(|(id, data)| u128::from(context.count(id)) * u128::from(data.num_insts)).sum();
    if !context.everywhere {
        candidates.retain(|c| c.saved * SAVED_SHARE_MIN >= executed && c.saved > 0);
        candidates.sort_by_key(|c| (std::cmp::Reverse(c.saved * 1024 / u128::from(c.len.max(1))), c.cases[0]));
        let movable = program.blocks.values().filter(|block| program.funcs[block.func].is_movable());
        let mut left = movable.map(|block| u64::from(block.len)).sum::<u64>() * BYTES_PER_MILLE_MAX / 1000;
        candidates.retain(|c| {
            let rest = left.checked_sub(u64::from(c.len));
            left = rest.unwrap_or(left);
            rest.is_some()
        });
    }
    candidates.into_iter().flat_map(|c| c.cases).collect()
}

struct Emitter<'x, 'c> {
    context: &'x Context<'c>,
    found: &'x Exploration<'x, 'c>,
    contexts: &'x ContextForest,
    merged: &'x Merged,
    edits: &'x mut EditPlan,
    /// By state, its clone; `None` if it can have none.
    clones: FxHashMap<Class, Option<CloneId>>,
    /// Code of no bytes.
    nothing: Option<NewCodeId>,
    /// Clones whose calls are not looked at yet.
    open: Vec<(Class, CloneId)>,
}

impl Emitter<'_, '_> {
    fn run(mut self) {
        let mut led: Vec<Replacement> = Vec::new();
        let mut roots: Vec<(Class, CallSite, Class)> = Vec::new();
        for (class, data) in self.merged.classes.iter().filter(|(_, data)| data.is_original) {
            roots.extend(data.calls.iter().map(|&(site, target)| (class, site, target)));
        }
        for (class, site, target) in roots {
            let caller = self.func_of(class);
            if !self.can_change(caller) {
                continue;
            }
            if let Some(place) = self.place(site).filter(|place| !overlaps(self.edits.replacements_of(place.block), place)) {
                led.extend(self.lead(place, site, target));
            }
        }
        while let Some((class, clone)) = self.open.pop() {
            for (site, target) in self.merged.classes[class].calls.clone() {
                let Some(place) = self.place(site) else { continue };
                let data = &self.edits.clones[clone];
                if data.contains(place.block) && !overlaps(&data.replacements, &place) {
                    let led = self.lead(place, site, target);
                    self.edits.clones[clone].replacements.extend(led);
                }
            }
        }
        self.edits.replacements.extend(led);
        for clone in self.edits.clones.values_mut() {
            clone.replacements.sort_by_key(|r| (r.block, r.offset));
        }
    }

    fn func_of(&self, class: Class) -> Func {
        let procedure = procedure_of(self.merged.classes[class].function);
        self.found.summaries().around.procedures.all[procedure].func
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

    /// The call of a site, led to the clone of a state.
    fn lead(&mut self, place: Place, site: CallSite, target: Class) -> Option<Replacement> {
        if self.merged.classes[target].is_original {
            return None;
        }
        let clone = self.clone_of(target)?;
        let entry = self.edits.clones[clone].entry;
        self.edits.clones[clone].count += self.context.count(place.block);
        let is_tail = self.found.summaries().graph.sites[SiteId::new(site.index())].is_tail;
        let (opcode, role) = if is_tail { (0xe9, RefRole::Branch) } else { (0xe8, RefRole::Call) };
        let reference = RefData {
            offset: 1,
            to_end: 4,
            kind: RefKind::Rel32,
            role,
            evidence: Evidence::Derived,
            target: RefTarget::Block(entry),
        };
        let code = NewCode { bytes: vec![opcode, 0, 0, 0, 0], refs: vec![reference], enters: Some(clone), ..NewCode::default() };
        let code = self.edits.codes.push(code);
        let Place { block, offset, len } = place;
        Some(Replacement { block, offset, len, code, change: Change::Specialize })
    }

    /// The clone of a state, made when it is first wanted.
    fn clone_of(&mut self, class: Class) -> Option<CloneId> {
        if let Some(&known) = self.clones.get(&class) {
            return known;
        }
        let clone = self.make(class);
        self.clones.insert(class, clone);
        self.open.extend(clone.map(|clone| (class, clone)));
        clone
    }

    fn make(&mut self, class: Class) -> Option<CloneId> {
        let data = &self.merged.classes[class];
        let procedure = procedure_of(data.function);
        let around = &self.found.summaries().around;
        let func = around.procedures.all[procedure].func;
        let program = self.context.program;
        if !program.funcs[func].is_movable() || self.context.is_folded(func) {
            return None;
        }
        let simplified = data.body.map(|body| &self.found.cases[self.contexts.bodies[body]].simplified);
        let outcome = Outcome::of(around, procedure, simplified)?;
        if outcome.constants.iter().any(|&(_, _, constant)| self.is_code(constant)) {
            return None;
        }
        let nothing = match self.nothing {
            Some(nothing) => nothing,
            None => *self.nothing.insert(self.edits.codes.push(NewCode::default())),
        };
        let mut replacements = Vec::new();
        let mut replace = |place: &Place, code: NewCodeId| {
            let Place { block, offset, len } = *place;
            replacements.push(Replacement { block, offset, len, code, change: Change::Specialize });
        };
        outcome.removed.iter().for_each(|place| replace(place, nothing));
        for (place, register, constant) in &outcome.constants {
            let code = self.edits.codes.push(move_constant(*register, *constant));
            replace(place, code);
        }
        let entry = around.procedures.all[procedure].entry;
        let clone = CloneData { func, entry, blocks: outcome.blocks, replacements, decided: outcome.decided, count: 0 };
        Some(self.edits.clones.push(clone))
    }

    /// Whether a constant may be the address of code, which moves.
    fn is_code(&self, constant: Constant) -> bool {
        let image = self.context.image;
        match constant {
            Constant::Address(at) => image.is_executable(at) || image.segment_at(at).is_none(),
            Constant::Number(number) => !image.kind.is_position_independent() && image.is_executable(Va(number)),
        }
    }
}

fn overlaps(replacements: &[Replacement], place: &Place) -> bool {
    replacements.iter().any(|r| r.block == place.block && r.offset < place.offset + place.len && place.offset < r.end())
}

/// The instruction that gives a register a constant and changes nothing else.
fn move_constant(register: u8, constant: Constant) -> NewCode {
    let (low, high) = (register & 7, register >> 3);
    let mut bytes = Vec::with_capacity(10);
    let mut refs = Vec::new();
    match constant {
        Constant::Number(number) => {
            if let Ok(number) = u32::try_from(number) {
                bytes.extend((high != 0).then_some(0x41));
                bytes.push(0xb8 | low);
                bytes.extend(number.to_le_bytes());
            } else if let Ok(number) = i32::try_from(number.cast_signed()) {
                bytes.extend([0x48 | high, 0xc7, 0xc0 | low]);
                bytes.extend(number.to_le_bytes());
            } else {
                bytes.extend([0x48 | high, 0xb8 | low]);
                bytes.extend(number.to_le_bytes());
            }
        }
        Constant::Address(at) => {
            bytes.extend([0x48 | high << 2, 0x8d, 0x05 | low << 3, 0, 0, 0, 0]);
            refs.push(RefData {
                offset: 3,
                to_end: 4,
                kind: RefKind::Rel32,
                role: RefRole::Address,
                evidence: Evidence::Derived,
                target: RefTarget::Fixed(at),
            });
        }
    }
    NewCode { bytes, refs, ..NewCode::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_moved_by_the_shortest_instruction_that_touches_no_flag() {
        let bytes = |register, number: i64| move_constant(register, Constant::Number(number.cast_unsigned())).bytes;
        assert_eq!(bytes(7, 5), [0xbf, 5, 0, 0, 0]);
        assert_eq!(bytes(9, 5), [0x41, 0xb9, 5, 0, 0, 0]);
        assert_eq!(bytes(6, -2), [0x48, 0xc7, 0xc6, 0xfe, 0xff, 0xff, 0xff]);
        assert_eq!(bytes(15, 1 << 40), [0x49, 0xbf, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(move_constant(8, Constant::Address(Va(0x2000))).bytes, [0x4c, 0x8d, 0x05, 0, 0, 0, 0]);
    }
}
