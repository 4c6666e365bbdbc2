//! What the input knows at the direct calls of functions that hold whoever calls them.
//!
//! **Problem.** Where both programs were walked in lock-step they hold the same at each instruction, so what registers hold at a call is a question to the input alone.
//!
//! **Method.** A call in the middle of a function is reached from wherever walks of that function began: its entry, landing pads, what jump tables lead to, and functions that jump into it.
//! All of these are in one group of frame descriptions, since jumps connect it. Nothing is known at any of them; facts flow from all of them along the input's code, through both ways of each
//! branch, and meet where ways join. Only places from which one of the calls in question may be reached are followed. Slots of the frame are followed where no address of the frame goes elsewhere.
//!
//! **Terminates**: as the proofs of [`super`] do.

use rustc_hash::{FxHashMap, FxHashSet};

use super::class::Class;
use super::expr::{Node, Pool};
use super::facts::Facts;
use super::machine::{BASE, Machine, Privacy, STACK, Trouble};
use super::segment::KEPT;
use super::semantics::{Context, Place};
use super::{Entry, Key, Prover, identity_at};
use crate::decode::{Inst, Kind};
use crate::walk::Walk;

/// Straight pieces of code that one question follows.
const PIECES_MAX: usize = 200_000;
/// Values that are made on the way, apart from those of the facts.
const FRESH: u32 = 1 << 30;

/// Where control goes from a straight piece of code, with what is known there, and the call that ends it.
#[derive(Default)]
struct Piece {
    successors: Vec<(u64, Facts)>,
    call: Option<(u64, Entry)>,
}

impl Prover {
    /// What is known at direct calls of the input that flow from the roots of a group of functions, those at `sites` among them; what is missing is never reached.
    pub(crate) fn known_at(&mut self, walk: &Walk<'_, '_>, group: u32, roots: &[u64], sites: &[u64]) -> FxHashMap<u64, Entry> {
        let leads_nowhere = self.leads_nowhere(walk, group, sites);
        let roots: Vec<u64> = roots.iter().copied().filter(|root| !leads_nowhere.contains(root)).collect();
        let is_entry = |&root: &u64| walk.input.is_as_at_entry(root);
        let hides = roots.iter().all(is_entry) || roots.first().is_none_or(|&root| !self.lets_frame_out(walk, root));
        let all = [Privacy::Frame, Privacy::Saves(Vec::new())];
        let mut each = all.iter().skip(usize::from(!hides));
        let found = each.find_map(|privacy| self.flow(walk, &roots, &leads_nowhere, privacy));
        found.unwrap_or_else(|| sites.iter().map(|&site| (site, Entry::default())).collect())
    }

    /// `None` if not as much is private as was taken for granted, or there is too much code.
    fn flow(
        &mut self,
        walk: &Walk<'_, '_>,
        roots: &[u64],
        leads_nowhere: &FxHashSet<u64>,
        privacy: &Privacy,
    ) -> Option<FxHashMap<u64, Entry>> {
        let mut known: FxHashMap<u64, Facts> = FxHashMap::default();
        let mut calls: FxHashMap<u64, (u64, Entry)> = FxHashMap::default();
        let mut work = roots.to_vec();
        for &root in roots {
            let start = identity_at(walk, Key { input: root, output: root, within: None }).ok();
            known.insert(root, start.filter(|_| privacy.has_any()).unwrap_or_else(|| Facts::identity(None)));
        }
        if privacy.has_any() && known.values().any(|facts| facts.stack().is_none()) {
            return None;
        }
        let mut pieces = 0;
        while let Some(at) = work.pop() {
            pieces += 1;
            if pieces > PIECES_MAX {
                return None;
            }
            let piece = self.follow_alone(walk, at, &known[&at], privacy)?;
            if let Some((site, entry)) = piece.call {
                calls.insert(at, (site, entry));
            }
            for (next, facts) in piece.successors {
                if leads_nowhere.contains(&next) {
                    continue;
                }
                match known.get_mut(&next) {
                    None => drop(known.insert(next, facts)),
                    Some(old) => match old.meet(&facts) {
                        None => continue,
                        Some(met) if privacy.has_any() && met.stack().is_none() => return None,
                        Some(met) => *old = met,
                    },
                }
                work.push(next);
            }
        }
        // Several pieces may end with one call.
        let mut met: FxHashMap<u64, Entry> = FxHashMap::default();
        for (site, entry) in calls.into_values() {
            met.entry(site).and_modify(|old| *old = old.meet(&entry)).or_insert(entry);
        }
        Some(met)
    }

    /// Runs the input to the next transfer of control.
    fn follow_alone(&mut self, walk: &Walk<'_, '_>, mut at: u64, facts: &Facts, privacy: &Privacy) -> Option<Piece> {
        let mut pool = Pool::of_image(walk.input.image.extent());
        let mut fresh = Fresh(FRESH);
        let (mut machine, _) = facts.start(&mut pool, walk.input.image.is_position_dependent());
        let mut piece = Piece::default();
        loop {
            let Some(inst) = walk.input.inst(at) else { return Some(piece) };
            let after = at + u64::from(inst.len);
            let mut next = Vec::new();
            match inst.kind {
                Kind::Nop | Kind::EndBranch => {}
                Kind::Plain | Kind::Lea => self.step_alone(walk, (at, inst), &mut machine, (&mut pool, privacy, &mut fresh))?,
                Kind::Jump => next.push(walk.input.target(at, inst)),
                Kind::Branch => next.extend([walk.input.target(at, inst), after]),
                Kind::Loop => {
                    fresh.forget(&mut pool, &mut machine, &[0, 1]);
                    next.extend([walk.input.target(at, inst), after]);
                }
                Kind::Call | Kind::IndirectCall => {
                    if inst.kind == Kind::Call {
                        piece.call = Some((at, Entry::of(&pool, &machine, &machine, 0)));
                    }
                    self.return_alone(walk, (at, inst), &mut machine, (&mut pool, privacy, &mut fresh))?;
                    next.extend((!walk.call_never_returns(at, inst)).then_some(after));
                }
                Kind::IndirectJump | Kind::Return | Kind::Stop | Kind::Trap => return Some(piece),
            }
            if !matches!(inst.kind, Kind::Nop | Kind::EndBranch | Kind::Plain | Kind::Lea) {
                let facts = Facts::end(&mut pool, &machine, &machine);
                piece.successors = next.into_iter().map(|next| (next, facts.clone())).collect();
                return Some(piece);
            }
            at = after;
        }
    }

    fn step_alone(
        &mut self,
        walk: &Walk<'_, '_>,
        (at, inst): (u64, Inst),
        machine: &mut Machine,
        (pool, privacy, fresh): (&mut Pool, &Privacy, &mut Fresh),
    ) -> Option<()> {
        let decoded = self.decode(true, walk.input, at, inst).filter(|decoded| decoded.class() != Class::Opaque);
        let place = (inst.disp != 0).then(|| Place::At(walk.input.operand(at, inst)));
        let image = &walk.input.image;
        let mut context = Context { pool, privacy, image, keys: &mut self.keys, at, place };
        match decoded.map(|decoded| machine.step(&mut context, &decoded)) {
            Some(Ok(())) => {}
            Some(Err(Trouble::Escape)) => return None,
            // What is not looked into may do anything, but where slots are followed it leaves the stack pointer alone.
            Some(Err(Trouble::Other(_))) | None => {
                if privacy.has_any() && !walk.is_free_of_stack(at, inst) {
                    return None;
                }
                let all: Vec<usize> = (0..16).filter(|&place| place != STACK || !privacy.has_any()).collect();
                fresh.forget(pool, machine, &all);
                machine.slots.clear();
            }
        }
        // Accesses are not compared.
        machine.loads.clear();
        machine.stores.clear();
        machine.aligned.clear();
        machine.traps.clear();
        Some(())
    }

    /// What is left behind a call; `None` if that does not leave private what was taken to be so.
    fn return_alone(
        &mut self,
        walk: &Walk<'_, '_>,
        (at, inst): (u64, Inst),
        machine: &mut Machine,
        (pool, privacy, fresh): (&mut Pool, &Privacy, &mut Fresh),
    ) -> Option<()> {
        let broken = self.broken_by_call(walk, true, at, pool.is_of_frame(machine.general[BASE]));
        if broken.is_let_out {
            machine.escapes(privacy).ok()?;
        }
        let returns_twice = self.returns_twice(walk, at, inst);
        // What compilers keep across calls in other registers the output need not have there: nobody may read it.
        let is_lost =
            |&place: &usize| place != STACK && (returns_twice || !KEPT.contains(&place) || broken.registers >> place & 1 == 1);
        let lost: Vec<usize> = (0..16).filter(is_lost).collect();
        fresh.forget(pool, machine, &lost);
        let top = machine.stack_offset(pool).filter(|_| !returns_twice && !broken.frame);
        machine.slots.retain(|&slot, _| top.is_some_and(|top| slot >= top));
        machine.popped.clear();
        Some(())
    }

    /// The instructions of a group from which none of the sites is reached. What is not decoded may lead anywhere, and so may indirect jumps.
    fn leads_nowhere(&mut self, walk: &Walk<'_, '_>, group: u32, sites: &[u64]) -> FxHashSet<u64> {
        let mut places: FxHashSet<u64> = FxHashSet::default();
        let mut ways: Vec<(u64, u64)> = Vec::new();
        let mut leading: Vec<u64> = sites.to_vec();
        for (start, end) in self.members_of(walk, group) {
            let mut at = start;
            while let Some(inst) = walk.input.inst(at).filter(|_| at < end) {
                let after = at + u64::from(inst.len);
                places.insert(at);
                match inst.kind {
                    Kind::Jump => ways.push((walk.input.target(at, inst), at)),
                    Kind::Branch | Kind::Loop => ways.extend([(walk.input.target(at, inst), at), (after, at)]),
                    Kind::IndirectJump | Kind::Return | Kind::Stop | Kind::Trap => {}
                    _ => ways.push((after, at)),
                }
                at = after;
            }
        }
        leading.extend(ways.iter().filter(|(to, _)| !places.contains(to)).map(|&(_, from)| from));
        ways.sort_unstable();
        while let Some(place) = leading.pop() {
            if places.remove(&place) {
                let first = ways.partition_point(|&(to, _)| to < place);
                leading.extend(ways[first..].iter().take_while(|&&(to, _)| to == place).map(|&(_, from)| from));
            }
        }
        places
    }
}

/// The next value of which nothing is known.
struct Fresh(u32);

impl Fresh {
    /// Nothing is known any more of registers, and of flags.
    fn forget(&mut self, pool: &mut Pool, machine: &mut Machine, registers: &[usize]) {
        let mut value = |width: u16| {
            self.0 += 1;
            pool.make(Node::Class(self.0), width)
        };
        for &register in registers {
            machine.general[register] = value(64);
        }
        machine.flags = std::array::from_fn(|_| value(1));
        machine.vectors = std::array::from_fn(|_| value(512));
        machine.rest = value(64);
    }
}
