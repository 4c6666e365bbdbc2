//! The relation between input and output code addresses, dense in both directions, with undo.
//!
//! Indexes are those of [`crate::decode::Code`]; 0 in a map means nothing, so values are stored plus one.

use rustc_hash::FxHashMap;

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

    fn remove(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word &= !(1 << (index % 64));
        }
    }
}

/// What recording a pair came to.
pub(super) enum Recorded {
    New,
    Known,
    /// Another input or another output is already there.
    Conflict(Option<usize>, Option<usize>),
}

enum Undo {
    Forward(usize),
    Second(usize),
    Backward(usize),
    Seen(usize),
    Covered(usize),
}

pub(crate) struct Relation {
    forward: Vec<u32>,
    backward: Vec<u32>,
    /// Input instructions whose counterpart in `forward` is at their own address.
    own: Bits,
    /// The other counterpart of those that stand twice in the output, once moved and once at their own address.
    second: FxHashMap<u32, u32>,
    /// Input bytes that the walk passed: instructions, and jumps and padding between them.
    pub(crate) seen: Bits,
    /// The same of the output.
    pub(crate) covered: Bits,
    journal: Option<Vec<Undo>>,
}

impl Relation {
    pub(crate) fn new(input_size: usize, output_size: usize) -> Self {
        Self {
            forward: vec![0; input_size],
            backward: vec![0; output_size],
            own: Bits::new(input_size),
            second: FxHashMap::default(),
            seen: Bits::new(input_size),
            covered: Bits::new(output_size),
            journal: None,
        }
    }

    pub(crate) fn output_of(&self, input: usize) -> Option<usize> {
        self.forward.get(input).and_then(|&value| (value as usize).checked_sub(1))
    }

    fn note(&mut self, undo: Undo) {
        if let Some(journal) = &mut self.journal {
            journal.push(undo);
        }
    }

    /// Relates (index, address) of both sides; `sizes` are the instructions' lengths.
    pub(super) fn record(&mut self, input: (usize, u64), output: (usize, u64), sizes: (u8, u8)) -> Recorded {
        let (value_in, value_out) = (input.0 as u32 + 1, output.0 as u32 + 1);
        let known = self.forward[input.0];
        let second = if known == 0 { None } else { self.second.get(&value_in).copied() };
        if known == value_out || second == Some(value_out) {
            return Recorded::Known;
        }
        let back = self.backward[output.0];
        if back != 0 && back != value_in {
            return Recorded::Conflict(Some(back as usize - 1), None);
        }
        if known == 0 {
            self.forward[input.0] = value_out;
            if input.1 == output.1 {
                self.own.insert(input.0);
            }
            self.note(Undo::Forward(input.0));
        } else if second.is_none() && (input.1 == output.1 || self.own.contains(input.0)) {
            self.second.insert(value_in, value_out);
            self.note(Undo::Second(input.0));
        } else {
            return Recorded::Conflict(None, Some(known as usize - 1));
        }
        self.backward[output.0] = value_in;
        self.note(Undo::Backward(output.0));
        self.pass(true, input.0, sizes.0);
        self.pass(false, output.0, sizes.1);
        Recorded::New
    }

    /// Marks an instruction's bytes as passed.
    pub(super) fn pass(&mut self, is_input: bool, index: usize, size: u8) {
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
        for undo in self.journal.take().into_iter().flatten() {
            match undo {
                Undo::Forward(index) => {
                    self.forward[index] = 0;
                    self.own.remove(index);
                }
                Undo::Second(index) => drop(self.second.remove(&(index as u32 + 1))),
                Undo::Backward(index) => self.backward[index] = 0,
                Undo::Seen(index) => self.seen.remove(index),
                Undo::Covered(index) => self.covered.remove(index),
            }
        }
    }
}
