//! Proofs of changed straight-line code.
//!
//! **Problem.** A walk in lock-step ([`crate::walk`]) knows one relation: all is the same in both programs. A transform that forwards a store to a load, moves a load, or drops code
//! that a constant decides leaves instructions without a partner.
//!
//! **Method.** Where a walk from a root meets two instructions that differ, the root is proven instead: both programs are followed by *segments*, from a pair of addresses to the
//! next transfer of control ([`segment`]), on hash-consed values ([`expr`], [`semantics`], [`machine`]). Between segments goes what is known ([`facts`]): which registers and
//! slots of both programs hold one value. This is a data-flow problem over pairs of addresses, solved to its greatest fixpoint from the root, where all is the same. A value of which nothing is
//! known hurts only where somebody reads it.
//!
//! A root's proof stands for itself: it follows all that flows from the root, through code of other functions too. What a walk that was given up has
//! recorded proves nothing, so walks that come into such code later are proven too ([`crate::walk`]).
//!
//! A proof goes on in a function that is entered by a jump. If it fails, it is tried once more with such a jump as an end, where that may be one ([`segment`]): then the function is a root of its own.
//!
//! Registers that differ at a return do no harm if nobody reads them there ([`liveness`]). Where a function is left by a jump, the return is one to the callers of the function that the proof began in: what was
//! proven by that holds for proofs that begin there alone.
//!
//! Of what is entered with what callers know, more is followed than of all else: jumps through tables go on with what is known there, which `segment::switch` argues for.
//!
//! **What is taken for granted** besides what [`machine`] says of private slots: a call keeps `rbx`, `rbp`, `rsp`, `r12` to `r15`, and leaves its caller's frame alone, but for what straight code does that is no function
//! ([`followed`]); it reads no flags; nobody reads what calls left below the stack pointer.
//!
//! **Terminates**: each visit of a pair but the first lowers its facts, of which there are chains of bounded length; and the number of
//! segments is bounded.

mod adjust;
mod aligned;
mod bases;
mod callers;
mod class;
mod constant;
mod counted;
mod decoded;
mod entry;
mod escape;
mod expr;
mod facts;
mod followed;
mod kept;
mod liveness;
mod machine;
mod ordered;
mod segment;
mod semantics;
mod start;
mod table_uses;

use std::collections::BTreeSet;
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::decode::{Inst, Kind};
use crate::image::Slot;
use crate::report::{Stats, Violation, ViolationKind};
use crate::tables::TableReference;
use crate::walk::{Reference, Side, Walk};
pub(crate) use bases::Ways;
pub(crate) use constant::{address_in, never_changes};
pub(crate) use counted::counted_with;
use decoded::{Decoded, Engine};
pub(crate) use entry::{Called, Entry, Told};
use expr::Pool;
use facts::{Facts, Value};
use followed::Followed;
pub(crate) use liveness::Liveness;
use machine::{BASE, Privacy, STACK};
pub(crate) use ordered::compared_by_order;
pub(crate) use segment::{Effect, Local};
use segment::{Ends, Failure, Run, Segment};
pub(crate) use start::relocates_itself;
pub(crate) use table_uses::{TableUses, Tables};

/// Segments of one proof.
const SEGMENTS_MAX: usize = 200_000;
/// Instructions with their operands that are kept: a proof is of code that lies near, so what comes back soon comes back while it is known, and each takes some 400 bytes.
const DECODED_MAX: usize = 4096;
/// Functions that return a second time, to a frame of which the registers are old and the slots new.
const RETURN_TWICE: [&str; 8] = ["setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", "vfork", "getcontext", "savectx", "__vfork"];

/// A pair of addresses, and the call in whose place the input's is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) within: Option<u64>,
}

/// Keys of operations as numbers.
#[derive(Default)]
struct Keys(FxHashMap<Vec<u8>, u32>);

impl Keys {
    fn number(&mut self, key: &[u8]) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(key.to_vec()).or_insert(next)
    }
}

/// What a proof has found.
#[derive(Default)]
pub(crate) struct Proof {
    pub(crate) effects: Vec<Effect>,
    pub(crate) input: Vec<(u64, u8)>,
    pub(crate) output: Vec<(u64, u8)>,
    pub(crate) stats: Stats,
    /// Direct calls, and what is known there.
    pub(crate) calls: Vec<Called>,
    /// Registers that are others than in the input where it returns.
    pub(crate) leaves: u16,
    /// Not all jumps inside of its functions were followed.
    jumps_elsewhere: bool,
}

/// What proofs share.
pub(crate) struct Prover {
    engine: Engine,
    decoded: FxHashMap<(bool, u64), Option<Rc<Decoded>>>,
    keys: Keys,
    /// Room for the values of a segment.
    pool: Pool,
    /// Branches that are decided on both sides are followed, not compared.
    decides_first: bool,
    /// Segments end at tail calls where they can.
    ends_at_tail_calls: bool,
    /// The last proof that was tried came to one.
    meets_tail_calls: bool,
    /// What is proven may leave registers other than the input at returns.
    may_leave: bool,
    /// Registers that are so behind calls of what is entered with something known.
    left: FxHashMap<Told, u16>,
    /// By what is called, in the input or the output, the registers that it may write.
    written: FxHashMap<(bool, u64), u16>,
    /// By what is called, in the input or the output, what it does for its caller.
    followed: FxHashMap<(bool, u64), Rc<Followed>>,
    /// What was proven, by pair.
    proven: FxHashMap<Key, Vec<Proven>>,
    /// By group of functions, whether an address of the frame is made.
    escapes: FxHashMap<u32, bool>,
    liveness: Liveness,
    /// What is proven goes on behind jumps through tables, with what is known there.
    follows_tables: bool,
    /// What a proof's instructions of the output name where the input names a jump table.
    tables: Vec<TableReference>,
    /// Whether instructions of the input name jump tables, by what they name and where they are.
    is_table: FxHashMap<(u64, u64), bool>,
    /// Starts and ends of the frame descriptions of each group of functions.
    groups: FxHashMap<u32, Vec<(u64, u64)>>,
}

/// With what a pair was proven.
struct Proven {
    privacy: Privacy,
    facts: Rc<Facts>,
    /// By that nobody reads certain registers where this frame description of the input returns to.
    returns_from: Option<u32>,
}

/// What is to be proven.
struct Task {
    /// A pair at which all is the same.
    root: (u64, u64),
    /// What else is known there.
    entry: Entry,
    /// All calls are to be found: what was proven before is looked at again.
    is_whole: bool,
}

/// A pair with what is known there, and what came of it.
struct Visited {
    facts: Rc<Facts>,
    outcome: Option<Result<Segment, Failure>>,
}

impl Prover {
    /// With what is known already of the registers that the input reads.
    pub(crate) fn with(liveness: Liveness) -> Self {
        Self {
            engine: Engine::new(),
            decoded: FxHashMap::default(),
            keys: Keys::default(),
            pool: Pool::default(),
            decides_first: false,
            ends_at_tail_calls: false,
            meets_tail_calls: false,
            may_leave: false,
            left: FxHashMap::default(),
            written: FxHashMap::default(),
            followed: FxHashMap::default(),
            proven: FxHashMap::default(),
            escapes: FxHashMap::default(),
            liveness,
            follows_tables: false,
            tables: Vec::new(),
            is_table: FxHashMap::default(),
            groups: FxHashMap::default(),
        }
    }

    pub(crate) fn into_liveness(self) -> Liveness {
        self.liveness
    }

    fn decode(&mut self, is_input: bool, side: &Side<'_>, address: u64, inst: Inst) -> Option<Rc<Decoded>> {
        if self.decoded.len() >= DECODED_MAX {
            self.decoded.clear();
        }
        let known = self.decoded.entry((is_input, address));
        known.or_insert_with(|| self.engine.decode(side, address, inst).map(Rc::new)).clone()
    }

    /// Whether a call of the input may return again later.
    fn returns_twice(&self, walk: &Walk<'_, '_>, address: u64, inst: Inst) -> bool {
        let slot = match inst.kind {
            Kind::Call => walk.input.slot_of_stub(walk.input.target(address, inst)),
            _ if inst.disp != 0 => Some(walk.input.operand(address, inst)),
            _ => None,
        };
        let Some(Slot::Symbol { symbol, .. }) = slot.and_then(|slot| walk.input.image.slot(slot)) else { return false };
        let name = walk.input.image.dynamic_symbol_name(symbol);
        RETURN_TWICE.contains(&name.split('@').next().unwrap_or(name))
    }

    /// Where both programs are in the same state again behind a pair at which they are so and then differ.
    pub(crate) fn meet_again(
        &mut self,
        walk: &Walk<'_, '_>,
        (input, output): (u64, u64),
        within: Option<u64>,
    ) -> Result<Local, Violation> {
        let nothing = Privacy::Saves(Vec::new());
        self.follows_tables = false;
        Run::new(self, walk, &nothing, input).meet_again(input, output, within).map_err(Failure::into_violation)
    }

    /// Proves what flows from a pair at which all is the same.
    pub(crate) fn prove(&mut self, walk: &Walk<'_, '_>, input: u64, output: u64) -> Result<Proof, Violation> {
        let task = Task { root: (input, output), entry: Entry::default(), is_whole: false };
        self.prove_deciding(walk, &task, &[false, true])
    }

    /// Proves a function that is entered with what its callers know.
    pub(crate) fn prove_entered(&mut self, walk: &Walk<'_, '_>, told: Told, entry: Entry) -> Result<Proof, Violation> {
        let task = Task { root: told.0, entry, is_whole: true };
        self.may_leave = true;
        // Ways that are never taken may leave more.
        let decided = self.prove_deciding(walk, &task, &[true]);
        let outcome = match decided {
            Ok(proof) if proof.leaves == 0 => Ok(proof),
            decided => match (decided, self.prove_deciding(walk, &task, &[false])) {
                (Ok(decided), Ok(other)) if other.leaves & decided.leaves != other.leaves => Ok(decided),
                (decided, Err(_)) => decided,
                (_, other) => other,
            },
        };
        self.may_leave = false;
        outcome
    }

    /// What a call of a pair leaves other than the input.
    pub(crate) fn left(&self, told: Told) -> u16 {
        self.left.get(&told).copied().unwrap_or(0)
    }

    /// Whether a pair leaves more than was known.
    pub(crate) fn add_left(&mut self, told: Told, registers: u16) -> bool {
        let known = self.left(told);
        if known | registers != known {
            self.left.insert(told, known | registers);
        }
        known | registers != known
    }

    /// Proves what flows from a pair, through all that jumps lead to, or if there is no such proof, up to tail calls.
    fn prove_deciding(&mut self, walk: &Walk<'_, '_>, task: &Task, ways: &[bool]) -> Result<Proof, Violation> {
        self.meets_tail_calls = false;
        let whole = self.prove_in_ways(walk, task, ways);
        if whole.is_ok() || !self.meets_tail_calls {
            return whole;
        }
        self.ends_at_tail_calls = true;
        let parted = self.prove_in_ways(walk, task, ways);
        self.ends_at_tail_calls = false;
        parted.or(whole)
    }

    /// Proves what flows from a pair, in one of the ways to take slots for private, and to go on at branches that are decided.
    fn prove_in_ways(&mut self, walk: &Walk<'_, '_>, task: &Task, ways: &[bool]) -> Result<Proof, Violation> {
        let (input, output) = task.root;
        let root = Key { input, output, within: None };
        let mut start = identity_at(walk, root).map_err(Failure::into_violation)?;
        task.entry.add_to(&mut start);
        // Where a frame is made already, an address of it may be known already.
        let is_hidden = walk.input.unwind.has_no_frame(input) || !self.lets_frame_out(walk, input);
        let mut first = None;
        for &decides_first in ways {
            self.decides_first = decides_first;
            let all = [Privacy::Frame, Privacy::Saves(saves_around(walk, root)), Privacy::Saves(Vec::new())];
            for privacy in all.into_iter().skip(usize::from(!is_hidden)) {
                match self.prove_with(walk, (root, task.is_whole), &start, &privacy) {
                    Ok(proof) => return Ok(proof),
                    Err(failure) if failure.is_escape => {}
                    Err(failure) => {
                        first.get_or_insert(failure);
                        break;
                    }
                }
            }
        }
        let nothing = || Failure::new(output, "nothing is private in the frame");
        Err(first.unwrap_or_else(nothing).into_violation())
    }

    fn prove_with(
        &mut self,
        walk: &Walk<'_, '_>,
        (root, is_whole): (Key, bool),
        start: &Facts,
        privacy: &Privacy,
    ) -> Result<Proof, Failure> {
        if privacy.has_any() && start.stack().is_none() {
            return Err(Failure::escape(root.output));
        }
        self.tables.clear();
        self.follows_tables = is_whole;
        let saves = Privacy::Saves(saves_around(walk, root));
        let mut visits = Visits {
            root,
            is_whole,
            returns_from: walk.input.unwind.fde_at(root.input),
            needs_return: false,
            all: [privacy, &saves],
            visited: FxHashMap::default(),
            work: BTreeSet::new(),
        };
        visits.begin(start);
        let mut segments = 0;
        while let Some((node, facts)) = visits.next() {
            segments += 1;
            if segments > SEGMENTS_MAX {
                return Err(Failure::new(node.0.output, "too much code to prove at once"));
            }
            let num_tables = self.tables.len();
            let outcome = self.follow(walk, &visits, node, &facts);
            for table in &self.tables[num_tables..] {
                visits.follow_again(table.input);
            }
            match &outcome {
                Ok(segment) => {
                    let is_let_out = node.1 || segment.is_let_out;
                    for (next, facts) in &segment.successors {
                        let facts = if segment.is_let_out { Rc::new(facts.only(&saves)) } else { Rc::clone(facts) };
                        self.arrive(walk, &mut visits, (*next, is_let_out), facts)?;
                    }
                }
                Err(failure) if failure.is_escape => return Err(failure.clone()),
                Err(_) => {}
            }
            if let Some(known) = visits.visited.get_mut(&node).filter(|known| known.facts == facts) {
                known.outcome = Some(outcome);
            }
        }
        self.collect(visits)
    }

    /// One segment. Where an address of the frame goes elsewhere in it, it ends there, if all but saves is the same then.
    fn follow(&mut self, walk: &Walk<'_, '_>, visits: &Visits<'_>, node: Node, facts: &Facts) -> Result<Segment, Failure> {
        if self.ends_at_tail_calls {
            let ends = Ends { at_tail_call: true, ..Ends::default() };
            let outcome = self.follow_up_to(ends, walk, visits, node, facts);
            if outcome.is_ok() {
                return outcome;
            }
        }
        let outcome = self.follow_up_to(Ends::default(), walk, visits, node, facts);
        match outcome {
            Err(failure) if failure.is_escape && *visits.privacy(node) == Privacy::Frame => {
                self.follow_up_to(Ends { at_escape: true, ..Ends::default() }, walk, visits, node, facts)
            }
            outcome => outcome,
        }
    }

    /// The same, with the rules of the frame the same, or if they are not, followed.
    fn follow_up_to(
        &mut self,
        ends: Ends,
        walk: &Walk<'_, '_>,
        visits: &Visits<'_>,
        node: Node,
        facts: &Facts,
    ) -> Result<Segment, Failure> {
        let (key, privacy, root) = (node.0, visits.privacy(node), visits.root.input);
        match Run::new(self, walk, privacy, root).up_to(ends).follow(key, facts) {
            Err(failure) if failure.kind == ViolationKind::UnwindRow => {
                Run::new(self, walk, privacy, root).up_to(ends).unwinding().follow(key, facts)
            }
            outcome => outcome,
        }
    }

    /// Facts flow to a pair.
    fn arrive(&self, walk: &Walk<'_, '_>, visits: &mut Visits<'_>, node: Node, facts: Rc<Facts>) -> Result<(), Failure> {
        let privacy = visits.privacy(node);
        if !visits.is_whole
            && let Some(proven) = self.proven_with(node.0, privacy, &facts, visits.returns_from)
        {
            visits.needs_return |= proven.returns_from.is_some();
            return Ok(());
        }
        let has_any = privacy.has_any();
        let Some(known) = visits.visited.get_mut(&node) else {
            visits.visited.insert(node, Visited { facts, outcome: None });
            visits.work.insert(node);
            return Ok(());
        };
        let Some(met) = known.facts.meet(&facts) else { return Ok(()) };
        // What was known to be an address of the frame must stay so. Where addresses of the frame may be anywhere, `rbp` is like any other register, if the frame is not found by it.
        let is_of_base = |side: &Side<'_>, address| !matches!(walk.frame_address(side, address), Some((7, _)));
        let counts_from_base = || is_of_base(walk.input, node.0.input) || is_of_base(walk.output, node.0.output);
        let has_base = has_any && (*privacy == Privacy::Frame || counts_from_base());
        for place in [Some(STACK), Some(BASE).filter(|_| has_base)].into_iter().flatten() {
            for (old, new) in [(&known.facts.input, &met.input), (&known.facts.output, &met.output)] {
                let is_frame = |value| matches!(value, Value::Frame(_));
                if has_any && is_frame(old.registers[place]) && !is_frame(new.registers[place]) {
                    return Err(Failure::escape(node.0.output));
                }
            }
        }
        *known = Visited { facts: Rc::new(met), outcome: None };
        visits.work.insert(node);
        Ok(())
    }

    /// A proof of the pair with which as little was known, and which holds where the frame description returns to.
    fn proven_with(&self, key: Key, privacy: &Privacy, facts: &Facts, returns_from: Option<u32>) -> Option<&Proven> {
        let holds_here = |proven: &Proven| proven.returns_from.is_none() || proven.returns_from == returns_from;
        let is_less = |proven: &&Proven| proven.facts.may_be_less_than(facts) && proven.facts.meet(facts).is_none();
        let is_enough = |proven: &&Proven| holds_here(proven) && proven.privacy == *privacy && is_less(proven);
        self.proven.get(&key)?.iter().find(is_enough)
    }

    /// Puts together what is reached with the final facts.
    fn collect(&mut self, mut visits: Visits<'_>) -> Result<Proof, Failure> {
        let mut proof = Proof::default();
        let first: Node = (visits.root, false);
        let mut reached: FxHashSet<Node> = FxHashSet::from_iter([first]);
        let mut work = vec![first];
        let mut failure: Option<Failure> = None;
        let mut proven = Vec::new();
        while let Some(node) = work.pop() {
            let Some(Visited { facts, outcome: Some(outcome) }) = visits.visited.remove(&node) else { continue };
            match outcome {
                Ok(segment) => {
                    visits.needs_return |= segment.needs_return;
                    let is_let_out = node.1 || segment.is_let_out;
                    let next = segment.successors.iter().map(|&(next, _)| (next, is_let_out));
                    work.extend(next.filter(|&next| reached.insert(next)));
                    proof.add(segment);
                    proven.push((node, facts));
                }
                Err(other) => {
                    if failure.as_ref().is_none_or(|known| other.address < known.address) {
                        failure = Some(other);
                    }
                }
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        proof.settle_tables();
        // Where all calls are looked for, what was proven before is looked at again; it may hold under more than it is told later.
        for (node, facts) in proven.into_iter().filter(|_| !visits.is_whole) {
            let returns_from = visits.returns_from.filter(|_| visits.needs_return);
            self.proven.entry(node.0).or_default().push(Proven { privacy: visits.privacy(node).clone(), facts, returns_from });
        }
        Ok(proof)
    }
}

/// A pair, and whether an address of the frame has gone elsewhere before.
type Node = (Key, bool);

/// What a proof has looked at.
struct Visits<'p> {
    root: Key,
    /// Of a task, whether all calls are looked for.
    is_whole: bool,
    /// The frame description at the root.
    returns_from: Option<u32>,
    /// Something holds only because nobody reads certain registers where that returns to.
    needs_return: bool,
    /// What is private before an address of the frame goes elsewhere, and then.
    all: [&'p Privacy; 2],
    visited: FxHashMap<Node, Visited>,
    /// What is left to be looked at. The first in the input goes first: ways mostly join behind where they part, so that all have arrived by then.
    work: BTreeSet<Node>,
}

impl<'p> Visits<'p> {
    fn begin(&mut self, start: &Facts) {
        self.visited.insert((self.root, false), Visited { facts: Rc::new(start.clone()), outcome: None });
        self.work.insert((self.root, false));
    }

    /// A pair that has to be looked at, with what is known there.
    fn next(&mut self) -> Option<(Node, Rc<Facts>)> {
        while let Some(node) = self.work.pop_first() {
            if let Some(known) = self.visited.get(&node).filter(|known| known.outcome.is_none()) {
                return Some((node, Rc::clone(&known.facts)));
            }
        }
        None
    }

    /// Another place may be meant where the input jumps through a table.
    fn follow_again(&mut self, table: u64) {
        for (&node, visited) in &mut self.visited {
            if matches!(&visited.outcome, Some(Ok(segment)) if segment.table == Some(table)) {
                visited.outcome = None;
                self.work.insert(node);
            }
        }
    }

    fn privacy(&self, node: Node) -> &'p Privacy {
        self.all[usize::from(node.1)]
    }
}

impl Proof {
    fn add(&mut self, segment: Segment) {
        self.effects.extend(segment.effects);
        self.input.extend(segment.input);
        self.output.extend(segment.output);
        self.calls.extend(segment.call);
        self.leaves |= segment.leaves;
        self.jumps_elsewhere |= segment.jumps_elsewhere;
        self.stats.add_proven(&segment.stats);
    }

    /// What followed tables lead to is asked for nowhere else; if other jumps may go through them, it is.
    fn settle_tables(&mut self) {
        let is_followed = |effect: &&Effect| matches!(effect, Effect::Followed(_));
        if self.jumps_elsewhere {
            self.effects.retain(|effect| !is_followed(&effect));
            return;
        }
        let followed: FxHashSet<(u64, u64)> = self
            .effects
            .iter()
            .filter_map(|effect| if let Effect::Followed(table) = effect { Some((table.input, table.output)) } else { None })
            .collect();
        self.effects.retain(|effect| match effect {
            Effect::Reference { reference: Reference::Table { input, output, .. }, .. } => !followed.contains(&(*input, *output)),
            _ => true,
        });
    }
}

/// The facts at a root: all is the same, and the frame is where its description says.
fn identity_at(walk: &Walk<'_, '_>, root: Key) -> Result<Facts, Failure> {
    let told = walk.input.moves_to_known_rules(root.input);
    let (place, moved) = told.ok_or_else(|| Failure::new(root.output, "no frame description that says where the frame is"))?;
    let frame = walk.rows.and_then(|rows| rows.frame_of(walk.input.unwind.locate(place).row));
    match frame.and_then(|frame| frame.address) {
        Some((7, offset)) => Ok(Facts::identity(Some((STACK, -offset - moved)))),
        Some((6, offset)) => Ok(Facts::identity(Some((BASE, -offset)))),
        _ => Err(Failure::new(root.output, "no frame description that says where the frame is")),
    }
}

/// The slots in which the input saves registers, anywhere in the function of a root.
fn saves_around(walk: &Walk<'_, '_>, root: Key) -> Vec<i64> {
    let mut saves: Vec<i64> = Vec::new();
    let Some(rows) = walk.rows else { return saves };
    let Some(fde) = walk.input.unwind.fde_at(root.input) else { return saves };
    for row in walk.input.unwind.rows_of(fde) {
        saves.extend(rows.frame_of(row).into_iter().flat_map(|frame| &frame.saves));
    }
    saves.sort_unstable();
    saves.dedup();
    saves
}
