//! The relation between input and output code addresses, in both directions, with undo.
//!
//! An input instruction may stand at several places, because a layout may copy tails, and an output instruction may stand for several of the
//! input, because functions that do the same may share one body: each of these pairs is walked, so that what is shared was compared with each
//! of those that share it. But an address that the program can hold and compare stands for one address of the input only,
//! and the other way round it has one name in the output, or two of which one is the input's own address (old text that a guarded relink
//! keeps).
//!
//! What stands in a body, where a call of the output leads that the input has not ([`super::outlined`], [`super::subroutines`]), is kept apart: there is one more return address on the stack, so who comes there by a jump meets nothing
//! that is known.
//!
//! Indexes are those of [`crate::decode::Code`].

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::numbers::{Numbers, Starts};

/// A set of code indexes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn new(size: usize) -> Self {
        Self(vec![0; size.div_ceil(64)])
    }

    pub(crate) fn contains(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Whether it was new.
    pub(crate) fn insert(&mut self, index: usize) -> bool {
        let Some(word) = self.0.get_mut(index / 64) else { return false };
        let is_new = *word >> (index % 64) & 1 == 0;
        *word |= 1 << (index % 64);
        is_new
    }

    /// Whether all of a range are in it.
    pub(crate) fn contains_all(&self, range: std::ops::Range<usize>) -> bool {
        let (first, last) = (range.start.div_ceil(64), range.end / 64);
        if first > last {
            return range.into_iter().all(|index| self.contains(index));
        }
        let is_whole = |word: &u64| *word == u64::MAX;
        self.0.get(first..last).is_some_and(|words| words.iter().all(is_whole))
            && (range.start..first * 64).chain(last * 64..range.end).all(|index| self.contains(index))
    }

    /// The first from an index on that is not in it.
    pub(crate) fn first_outside(&self, from: usize) -> usize {
        let missing = |at: usize| self.0.get(at).map_or(u64::MAX, |word| !word);
        let first = missing(from / 64) & u64::MAX << (from % 64);
        let at = if first != 0 { from / 64 } else { (from / 64 + 1..).find(|&at| missing(at) != 0).unwrap_or(self.0.len()) };
        let bits = if at == from / 64 { first } else { missing(at) };
        at * 64 + bits.trailing_zeros() as usize
    }

    pub(crate) fn remove(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word &= !(1 << (index % 64));
        }
    }
}

/// What an output instruction stands for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stands {
    /// For the input's instruction of this index.
    For(usize),
    /// For one of a callee, in the place of a call.
    ForCall,
}

/// What recording a pair came to.
pub(super) enum Recorded {
    New,
    Known,
    /// Another input is already there; `None`: the same, but in a body in the place of another call, or of none.
    Conflict(Option<usize>),
}

/// Where an input address stands in the output that the program can hold.
#[derive(Copy, Clone, Debug, Default)]
struct Identity {
    /// The name of the copy.
    moved: Option<u64>,
    /// It stands at its own address too.
    is_own: bool,
}

/// Input and output of a pair.
type Standing = (u32, u32);

enum Undo {
    /// An index, and the counterpart that it had.
    Forward(usize, Option<usize>),
    Backward(usize),
    /// An index, and whether what it stood for held for certain callers alone.
    Conditional(usize, bool),
    More(Standing),
    MoreWithin(Standing, u64),
    Held(u64),
    Within(usize),
    Rewritten(usize),
    RewrittenCall(usize),
    InBody(Standing),
    InputInBody(usize),
    Name(u64, Option<Identity>),
    Seen(usize),
    Covered(usize),
    Joined(usize),
}

pub(crate) struct Relation {
    /// One counterpart of each input instruction, one that holds for all callers if there is any; tails may have more.
    forward: Numbers,
    backward: Numbers,
    /// Output instructions that were only found where more is known than that all is the same: they stand for what they do for certain callers alone.
    conditional: FxHashSet<usize>,
    /// Output instructions that a proof paired: registers may hold other values there than the input's, and the instruction may be another one.
    proven: FxHashSet<usize>,
    /// Further pairs of output instructions that stand for several.
    more: FxHashSet<Standing>,
    /// The same in the place of calls.
    more_within: FxHashSet<(Standing, u64)>,
    /// By output address, the input's that the program holds where the output's holds it.
    held: FxHashMap<u64, u64>,
    /// Of an output instruction in a body that stands in a call's place: the input's call.
    within: FxHashMap<usize, u64>,
    /// Of an output instruction that stands where the input makes a call and makes that call otherwise or not at all: the call. Where it makes the call and what comes before it:
    /// the first of that. Of a shorter form of another instruction: that.
    rewritten: FxHashMap<usize, usize>,
    /// These calls and instructions.
    rewritten_calls: FxHashSet<usize>,
    /// Output and input of pairs in bodies, where calls of the output lead that the input has not. Control comes there by those calls alone, so that none of them says what a jump would come to.
    in_bodies: BTreeSet<Standing>,
    /// The input's instructions of these pairs.
    inputs_in_bodies: FxHashSet<usize>,
    names: FxHashMap<u64, Identity>,
    /// Input bytes that the walk passed: instructions, and jumps and padding between them.
    pub(crate) seen: Bits,
    /// The same of the output.
    pub(crate) covered: Bits,
    /// Output instructions at which control arrives by anything but the instruction before.
    joined: Bits,
    journal: Option<Vec<Undo>>,
}

impl Relation {
    pub(crate) fn new(
        (input_starts, input_size): (Arc<Starts>, usize),
        (output_starts, output_size): (Arc<Starts>, usize),
    ) -> Self {
        Self {
            forward: Numbers::new(input_starts),
            backward: Numbers::new(output_starts),
            conditional: FxHashSet::default(),
            proven: FxHashSet::default(),
            more: FxHashSet::default(),
            more_within: FxHashSet::default(),
            held: FxHashMap::default(),
            within: FxHashMap::default(),
            rewritten: FxHashMap::default(),
            rewritten_calls: FxHashSet::default(),
            in_bodies: BTreeSet::new(),
            inputs_in_bodies: FxHashSet::default(),
            names: FxHashMap::default(),
            seen: Bits::new(input_size),
            covered: Bits::new(output_size),
            joined: Bits::new(output_size),
            journal: None,
        }
    }

    /// One of the places where an input instruction stands.
    pub(crate) fn output_of(&self, input: usize) -> Option<usize> {
        self.forward.get(input)
    }

    /// Whether an address of the input that the program can hold is known to stand at another place than this one.
    pub(crate) fn is_named_elsewhere(&self, input: u64, output: u64) -> bool {
        self.names.get(&input).and_then(|identity| identity.moved).is_some_and(|moved| moved != output)
    }

    /// The addresses of the input that the program can hold, each with one that the output holds in its place.
    pub(super) fn named(&self) -> impl Iterator<Item = (u64, u64)> {
        self.names.iter().flat_map(|(&address, identity)| {
            identity.moved.into_iter().chain(identity.is_own.then_some(address)).map(move |name| (address, name))
        })
    }

    /// All pairs of an instruction of the input and one of the output, of which there are `outputs` bytes; what stands in the place of calls included, and what is in bodies.
    pub(crate) fn pairs(&self, outputs: usize) -> impl Iterator<Item = (usize, usize)> {
        let first = (0..outputs).filter_map(|output| Some((self.backward.get(output)?, output)));
        let more = self.more.iter().chain(self.more_within.iter().map(|(standing, _)| standing)).copied();
        let more = more.chain(self.in_bodies.iter().map(|&(output, input)| (input, output)));
        first.chain(more.map(|(input, output)| (input as usize, output as usize)))
    }

    /// Input and output of each pair, with the call in whose place the output stands, if it does. There are `outputs` bytes of the output.
    pub(crate) fn standing(&self, outputs: usize) -> impl Iterator<Item = (usize, usize, Option<u64>)> {
        let first =
            (0..outputs).filter_map(|output| Some((self.backward.get(output)?, output, self.within.get(&output).copied())));
        let more = self.more.iter().map(|&(input, output)| (input as usize, output as usize, None));
        let within = self.more_within.iter().map(|&((input, output), call)| (input as usize, output as usize, Some(call)));
        first.chain(more).chain(within)
    }

    /// Whether an output instruction stands for this one of the input, be it among others.
    pub(crate) fn is_for(&self, output: usize, input: usize) -> bool {
        self.input_of(output) == Some(Stands::For(input)) || self.more.contains(&(input as u32, output as u32))
    }

    /// Pairs of indexes in which an output instruction stands for a further one of the input.
    pub(crate) fn others(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.more.iter().map(|&(input, output)| (input as usize, output as usize))
    }

    /// What an output instruction stands for, the first that was found; nothing that has an address alone, if it does so in the place of a call.
    pub(crate) fn input_of(&self, output: usize) -> Option<Stands> {
        let input = self.backward.get(output)?;
        Some(if self.within.contains_key(&output) { Stands::ForCall } else { Stands::For(input) })
    }

    /// Whether what an output instruction stands for holds for certain callers alone.
    pub(crate) fn is_conditional(&self, output: usize) -> bool {
        self.conditional.contains(&output)
    }

    /// Whether what an output instruction stands for was found by a proof.
    pub(crate) fn is_proven(&self, output: usize) -> bool {
        self.proven.contains(&output)
    }

    /// Notes that a proof paired an output instruction. That it did stays known if the proof is given up: then nothing stands there, or a stricter walk comes to it.
    pub(super) fn note_proven(&mut self, output: usize) {
        self.proven.insert(output);
    }

    pub(super) fn add_conditional(&mut self, outputs: impl Iterator<Item = u32>) {
        self.conditional.extend(outputs.map(|output| output as usize));
    }

    /// Before an instruction of a proof is recorded: whether the proof holds for certain callers alone.
    pub(super) fn note_condition(&mut self, output: usize, is_conditional: bool) {
        if !is_conditional {
            if !self.conditional.remove(&output) {
                return;
            }
            self.note(Undo::Conditional(output, true));
            if let Some(Stands::For(input)) = self.input_of(output)
                && let Some(place) = self.output_of(input).filter(|&place| self.is_conditional(place))
            {
                self.forward.set(input, output);
                self.note(Undo::Forward(input, Some(place)));
            }
        } else if self.input_of(output).is_none() && self.conditional.insert(output) {
            self.note(Undo::Conditional(output, false));
        }
    }

    /// The first input instruction that was found to stand where this one does; itself, if it does so alone. What share a place for certain callers only need not do the same.
    pub(crate) fn first_of(&self, input: usize) -> Option<usize> {
        let place = self.output_of(input)?;
        match self.input_of(place) {
            Some(Stands::For(first)) if !self.is_conditional(place) => Some(first),
            _ => Some(input),
        }
    }

    /// Whether an input instruction stands anywhere for all callers.
    pub(crate) fn stands_for_all(&self, input: usize) -> bool {
        self.output_of(input).is_some_and(|place| !self.is_conditional(place))
    }

    fn note(&mut self, undo: Undo) {
        if let Some(journal) = &mut self.journal {
            journal.push(undo);
        }
    }

    /// Relates the indexes of both sides; `sizes` are the instructions' lengths. What stands `within` a call's place is not where the callee is
    /// found, and the callee is not passed.
    pub(super) fn record(&mut self, input: usize, output: usize, sizes: (u8, u8), within: Option<u64>) -> Recorded {
        if within.is_some() && self.is_in_body(output) {
            return Recorded::Conflict(None);
        }
        match self.backward.get(output) {
            Some(known) if known == input && self.within.get(&output).copied() == within => return Recorded::Known,
            Some(known) => return self.record_more(known, input, output, sizes.0, within),
            None => {}
        }
        self.backward.set(output, input);
        self.note(Undo::Backward(output));
        self.pass(false, output, sizes.1);
        if let Some(call) = within {
            self.within.insert(output, call);
            self.note(Undo::Within(output));
            return Recorded::New;
        }
        self.place(input, output, sizes.0);
        Recorded::New
    }

    /// As `record`, where the output's instruction stands for the input's `known` already, or for the same in the place of another call. What
    /// stands in a call's place stands in the place of each call or of none.
    fn record_more(&mut self, known: usize, input: usize, output: usize, size: u8, within: Option<u64>) -> Recorded {
        if within.is_some() != self.within.contains_key(&output) {
            return Recorded::Conflict(Some(known).filter(|&known| known != input));
        }
        let standing = (input as u32, output as u32);
        let is_new = match within {
            Some(call) => self.more_within.insert((standing, call)),
            None => self.more.insert(standing),
        };
        if !is_new {
            return Recorded::Known;
        }
        match within {
            Some(call) => self.note(Undo::MoreWithin(standing, call)),
            None => {
                self.note(Undo::More(standing));
                self.place(input, output, size);
            }
        }
        Recorded::New
    }

    /// Notes one of the places of an input instruction.
    fn place(&mut self, input: usize, output: usize, size: u8) {
        let known = self.forward.get(input);
        if known.is_none_or(|known| self.is_conditional(known) && !self.is_conditional(output)) {
            self.forward.set(input, output);
            self.note(Undo::Forward(input, known));
        }
        self.pass(true, input, size);
    }

    /// Notes that the program holds the output's address `name` where the input's holds `address`. Gives the other address of the input
    /// that it is taken for already: the program could find two equal that were not.
    pub(super) fn hold(&mut self, address: u64, name: u64) -> Option<u64> {
        match self.held.get(&name) {
            Some(&other) => (other != address).then_some(other),
            None => {
                self.held.insert(name, address);
                self.note(Undo::Held(name));
                None
            }
        }
    }

    /// Whether the program holds an address of the output for another one of the input than this.
    pub(crate) fn is_held_for_another(&self, address: u64, name: u64) -> bool {
        self.held.get(&name).is_some_and(|&other| other != address)
    }

    /// Notes that the output goes on at an index, in another way, where the input makes a call, or passes its arguments, or has a longer form of an instruction.
    pub(super) fn rewrite(&mut self, call: usize, output: usize) {
        if self.rewritten.insert(output, call).is_none() {
            self.note(Undo::Rewritten(output));
        }
        if self.rewritten_calls.insert(call) {
            self.note(Undo::RewrittenCall(call));
        }
    }

    /// Notes that control arrives at an output instruction by something else than the one before it.
    pub(super) fn join(&mut self, output: usize) {
        if self.joined.insert(output) {
            self.note(Undo::Joined(output));
        }
    }

    pub(super) fn is_joined(&self, output: usize) -> bool {
        self.joined.contains(output)
    }

    /// Relates the indexes of both sides where the output's instruction is in a body: `false` if it stands in the place of a call as well. Each call of a body is compared anew, so nothing is known by that, and
    /// a jump that leads there is compared by itself.
    pub(super) fn record_in_body(&mut self, input: usize, output: usize, sizes: (u8, u8)) -> bool {
        if self.within.contains_key(&output) {
            return false;
        }
        let standing = (output as u32, input as u32);
        if self.in_bodies.insert(standing) {
            self.note(Undo::InBody(standing));
            if self.inputs_in_bodies.insert(input) {
                self.note(Undo::InputInBody(input));
            }
            self.pass(true, input, sizes.0);
            self.pass(false, output, sizes.1);
        }
        true
    }

    /// Whether an instruction of the input stands in a body.
    pub(crate) fn stands_in_body(&self, input: usize) -> bool {
        self.inputs_in_bodies.contains(&input)
    }

    /// Whether an output instruction stands where a call leads that the input has not.
    pub(crate) fn is_in_body(&self, output: usize) -> bool {
        let output = output as u32;
        self.in_bodies.range((output, 0)..=(output, u32::MAX)).next().is_some()
    }

    /// The call of the input that stands in another way at an output index, or the instruction that has a shorter form there.
    pub(crate) fn call_rewritten_at(&self, output: usize) -> Option<usize> {
        self.rewritten.get(&output).copied()
    }

    pub(super) fn num_rewritten_calls(&self) -> usize {
        self.rewritten_calls.len()
    }

    /// Whether an instruction of the input is a call that stands in another way somewhere, or has a shorter form there.
    pub(crate) fn is_rewritten_call(&self, input: usize) -> bool {
        self.rewritten_calls.contains(&input)
    }

    /// Notes that the program holds `name` in the output where it holds `address` in the input. Gives the other name that this
    /// has already, if that is not the same. Its own address is one only where code addresses are plain numbers: the program may compare
    /// what a table holds with a number in an instruction.
    pub(super) fn name(&mut self, address: u64, name: u64, has_numbers: bool) -> Option<u64> {
        let old = self.names.get(&address).copied();
        let mut identity = old.unwrap_or_default();
        if has_numbers && identity.is_own && name != address {
            return Some(address);
        }
        if has_numbers && identity.moved.is_some() && name == address {
            return identity.moved;
        }
        if name == address {
            if identity.is_own {
                return None;
            }
            identity.is_own = true;
        } else if let Some(other) = identity.moved {
            return (other != name).then_some(other);
        } else {
            identity.moved = Some(name);
        }
        self.names.insert(address, identity);
        self.note(Undo::Name(address, old));
        None
    }

    /// Marks an instruction's bytes as passed.
    pub(crate) fn pass(&mut self, is_input: bool, index: usize, size: u8) {
        for index in index..index + usize::from(size) {
            let bits = if is_input { &mut self.seen } else { &mut self.covered };
            if bits.insert(index) {
                self.note(if is_input { Undo::Seen(index) } else { Undo::Covered(index) });
            }
        }
    }

    /// Marks bytes among the output's code that are a table's.
    pub(crate) fn cover_data(&mut self, index: usize, size: u8) {
        self.pass(false, index, size);
    }

    pub(super) fn begin(&mut self) {
        self.journal = Some(Vec::new());
    }

    pub(super) fn commit(&mut self) {
        self.journal = None;
    }

    pub(super) fn undo(&mut self) {
        for undo in self.journal.take().into_iter().flatten().rev() {
            match undo {
                Undo::Forward(index, Some(known)) => self.forward.set(index, known),
                Undo::Forward(index, None) => self.forward.clear(index),
                Undo::Name(address, Some(old)) => drop(self.names.insert(address, old)),
                Undo::Name(address, None) => drop(self.names.remove(&address)),
                Undo::Backward(index) => self.backward.clear(index),
                Undo::Conditional(index, true) => drop(self.conditional.insert(index)),
                Undo::Conditional(index, false) => drop(self.conditional.remove(&index)),
                Undo::More(standing) => drop(self.more.remove(&standing)),
                Undo::MoreWithin(standing, call) => drop(self.more_within.remove(&(standing, call))),
                Undo::Held(name) => drop(self.held.remove(&name)),
                Undo::Within(index) => drop(self.within.remove(&index)),
                Undo::Rewritten(index) => drop(self.rewritten.remove(&index)),
                Undo::RewrittenCall(index) => drop(self.rewritten_calls.remove(&index)),
                Undo::InputInBody(input) => drop(self.inputs_in_bodies.remove(&input)),
                Undo::InBody(standing) => drop(self.in_bodies.remove(&standing)),
                Undo::Seen(index) => self.seen.remove(index),
                Undo::Covered(index) => self.covered.remove(index),
                Undo::Joined(index) => self.joined.remove(index),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_outside_is_the_first_that_is_not_in_the_set() {
        const SIZE: usize = 300;
        for (start, end) in [(0, 0), (3, 9), (60, 70), (64, 128), (100, 300), (0, 300), (192, 256)] {
            let mut bits = Bits::new(SIZE);
            (start..end).for_each(|index| assert!(bits.insert(index)));
            for from in 0..SIZE {
                let first = (from..).find(|&index| !bits.contains(index)).unwrap();
                assert_eq!(bits.first_outside(from), first, "{start} {end} {from}");
            }
        }
    }

    #[test]
    fn where_a_wrong_guess_arrived_nothing_is_joined() {
        const SIZE: usize = 100;
        let starts = || (Arc::new(Starts::of(SIZE, 0..SIZE)), SIZE);
        let mut relation = Relation::new(starts(), starts());
        relation.join(1);
        relation.begin();
        (1..3).for_each(|index| relation.join(index));
        relation.undo();
        assert!(relation.is_joined(1) && !relation.is_joined(2));
        relation.begin();
        relation.join(2);
        relation.commit();
        assert!(relation.is_joined(2));
    }
}
