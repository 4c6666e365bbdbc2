//! What the output's code does not tell by itself: whether a call comes back, and what a field that may move names.
//!
//! **Method.** In the input both are known. A class of the partition in which all of the input's nodes say the same makes its nodes of the output say so
//! too; the partition is refined with what this adds, until no class is added. Where the input's nodes of a class differ, each
//! of the output takes what then fits; or, where more fits than is right, what the input says behind equal code ([`Hints`]). **A choice needs no proof**: it is part of the node that is compared, and nodes are equal only if all
//! that follows from it is equal. A wrong one can only keep equal things apart.
//!
//! **Terminates**: each round but the last opens a class.

use std::hash::Hasher;

use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use super::graph::{Node, Owner};
use super::partition::{Partition, Predecessors};
use super::pieces::Of;

#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    /// The call never returns.
    Stops,
    GoesOn,
    /// The field is a number, the same in both files.
    Literal,
    Code,
    /// A jump table of this shape.
    Table(u32),
}

/// The shapes of the input's tables: by entry, whether the program can select it.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    shapes: Vec<Vec<bool>>,
    ids: FxHashMap<Vec<bool>, u32>,
}

impl Shapes {
    pub(super) fn id(&mut self, shape: Vec<bool>) -> u32 {
        let next = self.shapes.len() as u32;
        *self.ids.entry(shape).or_insert_with_key(|shape| {
            self.shapes.push(shape.clone());
            next
        })
    }

    pub(super) fn get(&self, id: u32) -> &[bool] {
        self.shapes.get(id as usize).map_or(&[], Vec::as_slice)
    }
}

/// What a node has to choose; `own` is the input's definite answer.
#[derive(Clone, Debug)]
pub(super) enum Open {
    Call { after: u32, own: Option<Answer> },
    Field(Box<Field>),
}

/// A field that may name code, a table, or nothing but itself.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) value: u64,
    pub(super) width: u8,
    pub(super) entries: Vec<Option<u32>>,
    pub(super) code: Option<u32>,
    pub(super) own: Option<Answer>,
}

impl Open {
    fn own(&self) -> Option<Answer> {
        match self {
            Self::Call { own, .. } => *own,
            Self::Field(field) => field.own,
        }
    }

    /// What a node leads to by an answer; `None` where the output leads to nothing that may be code.
    fn edges<'n>(&'n self, shapes: &'n Shapes, answer: Answer) -> impl Iterator<Item = Option<u32>> + 'n {
        let (next, shape, entries): (_, &[bool], &[Option<u32>]) = match (self, answer) {
            (Self::Call { after, .. }, Answer::GoesOn) => (Some(Some(*after)), &[], &[]),
            (Self::Field(field), Answer::Code) => (Some(field.code), &[], &[]),
            (Self::Field(field), Answer::Table(shape)) => (None, shapes.get(shape), &field.entries),
            _ => (None, &[], &[]),
        };
        let selected = shape.iter().enumerate().filter(|&(_, is_selected)| *is_selected);
        next.into_iter().chain(selected.map(|(at, _)| entries.get(at).copied().flatten()))
    }
}

/// The successors of a node as far as it has chosen.
fn successors<'n>(node: &'n Node, shapes: &'n Shapes) -> impl Iterator<Item = Option<u32>> + 'n {
    successors_by(node, shapes, node.answer)
}

/// The same for an answer.
fn successors_by<'n>(node: &'n Node, shapes: &'n Shapes, answer: Option<Answer>) -> impl Iterator<Item = Option<u32>> + 'n {
    let chosen = node.open.as_ref().zip(answer).map(|(open, answer)| open.edges(shapes, answer));
    node.edges.iter().map(Some).chain(chosen.into_iter().flatten())
}

fn signature(nodes: &[Node], shapes: &Shapes, partition: &Partition, node: u32) -> u64 {
    let node = &nodes[node as usize];
    let mut hasher = std::hash::DefaultHasher::new();
    std::hash::Hash::hash(&node.answer, &mut hasher);
    if let (Some(Open::Field(field)), Some(Answer::Literal)) = (&node.open, node.answer) {
        hasher.write_u64(field.value);
    }
    successors(node, shapes).for_each(|next| hasher.write_u32(next.map_or(u32::MAX, |next| partition.class(next))));
    hasher.finish()
}

/// Makes all choices; gives the partition of equal nodes. `by_context`: what is left open is what the input says behind equal code, if it says one thing.
pub(super) fn solve(nodes: &mut [Node], shapes: &Shapes, by_context: bool) -> Partition {
    let labels: Vec<u64> = nodes.iter().map(|node| node.label).collect();
    let mut partition = Partition::new(&labels);
    loop {
        refine(nodes, shapes, &mut partition);
        let mut chosen = choose_where_clear(nodes, &partition);
        let is_last = chosen.is_empty();
        if is_last {
            let hints = if by_context { Hints::find(nodes, shapes, &partition) } else { Hints::default() };
            chosen = choose_the_rest(nodes, shapes, &partition, &hints);
        }
        for &(node, answer) in &chosen {
            nodes[node as usize].answer = Some(answer);
        }
        if is_last {
            refine(nodes, shapes, &mut partition);
            return partition;
        }
    }
}

fn refine(nodes: &[Node], shapes: &Shapes, partition: &mut Partition) {
    let predecessors = Predecessors::new(nodes.len(), |visit| {
        for (node, from) in nodes.iter().zip(0..) {
            successors(node, shapes).flatten().for_each(|to| visit(from, to));
        }
    });
    partition.refine(&predecessors, |partition, node| signature(nodes, shapes, partition, node));
}

/// Choices in classes whose nodes of the input agree.
fn choose_where_clear(nodes: &[Node], partition: &Partition) -> Vec<(u32, Answer)> {
    let mut chosen = Vec::new();
    for members in partition.classes() {
        if members.iter().any(|&node| nodes[node as usize].open.is_none() || nodes[node as usize].answer.is_some()) {
            continue;
        }
        let mut answers = members.iter().filter_map(|&node| nodes[node as usize].open.as_ref()?.own());
        let Some(first) = answers.next() else { continue };
        if answers.all(|answer| answer == first) {
            chosen.extend(members.iter().map(|&node| (node, first)));
        }
    }
    chosen
}

fn choose_the_rest(nodes: &[Node], shapes: &Shapes, partition: &Partition, hints: &Hints) -> Vec<(u32, Answer)> {
    let mut chosen = Vec::new();
    for members in partition.classes() {
        let is_waiting = |&&node: &&u32| nodes[node as usize].open.is_some() && nodes[node as usize].answer.is_none();
        if members.iter().any(|node| !is_waiting(&node)) {
            continue;
        }
        let offer = Offer::of(nodes, shapes, partition, members);
        for &node in members {
            let Some(open) = &nodes[node as usize].open else { continue };
            let answer = open.own().or_else(|| hints.of(node)).or_else(|| offer.fitting(shapes, partition, open));
            chosen.extend(answer.map(|answer| (node, answer)));
        }
    }
    chosen
}

/// What nodes of the output may say by what leads to them.
///
/// **Problem.** The last of several calls of what throws ends a function, and in the output another block may stand behind it. If that is what other such calls go on with, both answers fit, and the node is like none of the
/// input if it takes the wrong one.
///
/// **Method.** Nodes of the output are led to by nodes that are equal to some of the input, as far as that is known. If all nodes of the same class to which these lead in the same way say the same, it is that. What is said for a node leads further.
#[derive(Default)]
struct Hints(FxHashMap<u32, Answer>);

impl Hints {
    /// Rounds in which what was said leads further. A function has seldom more than a few such calls on a way.
    const ROUNDS_MAX: usize = 16;

    fn of(&self, node: u32) -> Option<Answer> {
        self.0.get(&node).copied()
    }

    fn find(nodes: &[Node], shapes: &Shapes, partition: &Partition) -> Self {
        let is_output = |node: u32| nodes[node as usize].owner == Owner::Only(Of::Output);
        let is_waiting = |node: u32| nodes[node as usize].open.is_some() && nodes[node as usize].answer.is_none();
        // Ways from nodes of one file to those of which it is to be said: what is known of where they begin, and where they end.
        let ways = |is_wanted: &dyn Fn(u32) -> bool, answer_of: &dyn Fn(u32) -> Option<Answer>| {
            let mut found = Vec::new();
            for from in (0..nodes.len() as u32).filter(|&node| is_wanted(node)) {
                let answer = answer_of(from);
                for (position, to) in successors_by(&nodes[from as usize], shapes, answer).enumerate() {
                    if let Some(to) = to.filter(|&to| is_wanted(to) && is_waiting(to)) {
                        found.push(((partition.class(from), answer, position, partition.class(to)), to));
                    }
                }
            }
            found
        };
        let own = |node: u32| nodes[node as usize].open.as_ref().and_then(Open::own);
        let mut said: FxHashMap<_, Option<Answer>> = FxHashMap::default();
        for (way, to) in ways(&|node| !is_output(node), &|node| nodes[node as usize].answer.or_else(|| own(node))) {
            let answer = own(to);
            said.entry(way).and_modify(|known| *known = known.filter(|&known| Some(known) == answer)).or_insert(answer);
        }
        let mut hints = Self::default();
        for _ in 0..Self::ROUNDS_MAX {
            let mut new: FxHashMap<u32, Option<Answer>> = FxHashMap::default();
            for (way, to) in ways(&is_output, &|node| nodes[node as usize].answer.or_else(|| hints.of(node))) {
                let answer = said.get(&way).copied().flatten();
                if hints.of(to).is_none() {
                    new.entry(to).and_modify(|known| *known = known.filter(|&known| Some(known) == answer)).or_insert(answer);
                }
            }
            let num_known = hints.0.len();
            hints.0.extend(new.into_iter().filter_map(|(node, answer)| Some((node, answer?))));
            if hints.0.len() == num_known {
                break;
            }
        }
        hints
    }
}

/// What the input's nodes of a class say, and what follows from it.
#[derive(Default)]
struct Offer {
    answers: FxHashSet<Answer>,
    tables: Vec<u32>,
    /// Hashes of an answer and what it leads to.
    consequences: FxHashSet<u64>,
    literals: FxHashSet<u64>,
}

impl Offer {
    fn of(nodes: &[Node], shapes: &Shapes, partition: &Partition, members: &[u32]) -> Self {
        let mut offer = Self::default();
        for &node in members.iter().filter(|&&node| nodes[node as usize].owner != Owner::Only(Of::Output)) {
            let Some(open) = &nodes[node as usize].open else { continue };
            let Some(answer) = open.own() else { continue };
            offer.answers.insert(answer);
            offer.consequences.insert(consequence(shapes, partition, open, answer));
            match (answer, open) {
                (Answer::Table(shape), _) => offer.tables.push(shape),
                (Answer::Literal, Open::Field(field)) => drop(offer.literals.insert(field.value)),
                _ => {}
            }
        }
        offer.tables.sort_unstable_by_key(|&shape| (std::cmp::Reverse(shapes.get(shape).len()), shape));
        offer.tables.dedup();
        offer
    }

    /// The answer whose consequences the input has too; of tables the longest.
    fn fitting(&self, shapes: &Shapes, partition: &Partition, open: &Open) -> Option<Answer> {
        if let Open::Field(field) = open
            && self.literals.contains(&field.value)
        {
            return Some(Answer::Literal);
        }
        let tables = self.tables.iter().map(|&shape| Answer::Table(shape));
        let candidates = tables.chain([Answer::Code, Answer::GoesOn, Answer::Stops, Answer::Literal]);
        let mut possible = candidates.filter(|answer| self.answers.contains(answer));
        possible.find(|&answer| self.consequences.contains(&consequence(shapes, partition, open, answer)))
    }
}

fn consequence(shapes: &Shapes, partition: &Partition, open: &Open, answer: Answer) -> u64 {
    let mut hasher = FxHasher::default();
    std::hash::Hash::hash(&answer, &mut hasher);
    open.edges(shapes, answer).for_each(|next| hasher.write_u32(next.map_or(u32::MAX, |next| partition.class(next))));
    hasher.finish()
}
