//! The graph of unreached code: pieces of both files and who leads to whom.
//!
//! Code that the walk reached is a leaf: the walk has found what stands for what, so both sides name it by the input's place. Where its label
//! is *wanted* (something unmatched may be a copy of it) it is a piece like any other, of both sides at once. Whether code follows a call, and
//! what a field that may move names, is definite in the input and open in the output ([`super::choice`]).
//!
//! Nearly any word is the distance to some code of a large file, so a field of the output is read as a table only as far as one of the input is
//! that an equal piece names: only such pieces can become equal nodes. Pieces with equal labels have equal limits.
//!
//! **Terminates**: each address of each side becomes a node once; entries are read once, up to limits that only grow with input nodes.

use std::collections::hash_map::Entry;

use rustc_hash::{FxHashMap, FxHashSet};

use super::choice::{Answer, Field, Open, Shapes};
use super::pieces::{End, Of, Piece, Place, Reader, Tables};
use crate::decode::Kind;
use crate::tables::{self, TableReference};
use crate::walk::{Bits, Walk};

/// Whose a node is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Only(Of),
    /// Code that the walk found in both; the address is the input's.
    Both,
}

/// A few nodes: what a piece leads to is its two ways, or a callee, a landing pad and a personality.
#[derive(Copy, Clone, Debug)]
pub(super) struct Edges([u32; 3]);

impl Edges {
    const NONE: u32 = u32::MAX;

    fn of(nodes: [Option<u32>; 3]) -> Self {
        Self(nodes.map(|node| node.unwrap_or(Self::NONE)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied().filter(|&edge| edge != Self::NONE)
    }
}

/// There is one for each piece of what is left over, which may be most of a file.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) owner: Owner,
    pub(super) address: u64,
    pub(super) label: u64,
    /// What it leads to whatever is chosen.
    pub(super) edges: Edges,
    pub(super) open: Option<Open>,
    /// What was chosen; nothing counts before.
    pub(super) answer: Option<Answer>,
}

/// What makes two nodes one.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Piece(Of, u64),
    Reached(usize),
    Cycle,
}

pub(super) struct Graph<'r, 'w, 'a> {
    walk: &'r Walk<'w, 'a>,
    pub(super) tables: &'r Tables,
    /// Labels of unreached pieces; code that the walk reached is a piece if it has one of them.
    wanted: &'r FxHashSet<u64>,
    pub(super) nodes: Vec<Node>,
    pub(super) shapes: Shapes,
    ids: FxHashMap<Key, u32>,
    work: Vec<(u32, Of, Piece)>,
    /// By label, the entries of the longest table that a piece of the input with this label names.
    limits: FxHashMap<u64, usize>,
    /// Nodes of the output with a field that may name a table.
    fields: Vec<u32>,
}

impl<'r, 'w, 'a> Graph<'r, 'w, 'a> {
    pub(super) fn new(walk: &'r Walk<'w, 'a>, tables: &'r Tables, wanted: &'r FxHashSet<u64>) -> Self {
        Self {
            walk,
            tables,
            wanted,
            nodes: Vec::new(),
            shapes: Shapes::default(),
            ids: FxHashMap::default(),
            work: Vec::new(),
            limits: FxHashMap::default(),
            fields: Vec::new(),
        }
    }

    pub(super) fn reader(&self, of: Of) -> Reader<'r, 'w, 'a> {
        Reader { walk: self.walk, of, tables: self.tables }
    }

    /// The node of what `address` leads to, if anything does.
    pub(super) fn id(&self, of: Of, address: u64) -> Option<u32> {
        let reader = self.reader(of);
        let key = match reader.lead(address, |_, _| {}) {
            Place::At(address) => reader.related(address).map_or(Key::Piece(of, address), Key::Reached),
            Place::Bad(address) => Key::Piece(of, address),
            Place::Cycle => Key::Cycle,
        };
        self.ids.get(&key).copied()
    }

    /// Adds the code at `address` and all that it leads to, but for what tables of the output lead to.
    pub(super) fn add(&mut self, of: Of, address: u64) -> u32 {
        let node = self.node(of, address);
        self.expand_all();
        node
    }

    /// Adds what tables of the output lead to; the last to be called.
    pub(super) fn add_tables(&mut self) {
        loop {
            let mut is_done = true;
            for at in 0..self.fields.len() {
                let node = &mut self.nodes[self.fields[at] as usize];
                let limit = self.limits.get(&node.label).copied().unwrap_or(0);
                let Some(Open::Field(field)) = &mut node.open else { continue };
                let (value, width) = (field.value, field.width);
                let limit = limit.min(self.tables.get(&value).map_or(usize::MAX, Vec::len));
                if field.entries.len() >= limit {
                    continue;
                }
                let mut entries = std::mem::take(&mut field.entries);
                for position in entries.len()..limit {
                    let target = self.target(value, position, width);
                    entries.push(target.map(|target| self.node(Of::Output, target)));
                }
                if let Some(Open::Field(field)) = &mut self.nodes[self.fields[at] as usize].open {
                    field.entries = entries;
                }
                is_done = false;
            }
            if is_done {
                return;
            }
            self.expand_all();
        }
    }

    fn expand_all(&mut self) {
        while let Some((node, of, piece)) = self.work.pop() {
            self.expand(node, of, &piece);
        }
    }

    /// The node of an address that something holds.
    fn node(&mut self, of: Of, address: u64) -> u32 {
        let place = self.reader(of).lead(address, |_, _| {});
        self.node_at(of, place)
    }

    /// That of where a call, a jump, or falling through leads.
    fn way(&mut self, of: Of, address: u64) -> u32 {
        let place = self.reader(of).flow(address, |_, _| {});
        self.node_at(of, place)
    }

    fn node_at(&mut self, of: Of, place: Place) -> u32 {
        let reader = self.reader(of);
        let (key, owner, place, start) = match place {
            Place::Cycle => (Key::Cycle, Owner::Both, 0, None),
            Place::Bad(place) => (Key::Piece(of, place), Owner::Only(of), place, Some(place)),
            Place::At(place) => match reader.related(place) {
                None => (Key::Piece(of, place), Owner::Only(of), place, Some(place)),
                Some(index) => (Key::Reached(index), Owner::Both, self.walk.input.code.address(index), None),
            },
        };
        let entry = match self.ids.entry(key) {
            Entry::Occupied(known) => return *known.get(),
            Entry::Vacant(new) => new,
        };
        let id = self.nodes.len() as u32;
        entry.insert(id);
        let piece = match (start, key) {
            (Some(start), _) => Some((of, reader.piece(start, |_, _| {}))),
            (None, Key::Reached(_)) if !self.wanted.is_empty() => {
                let piece = self.reader(Of::Input).piece(place, |_, _| {});
                self.wanted.contains(&piece.label).then_some((Of::Input, piece))
            }
            _ => None,
        };
        let label = match (&piece, key) {
            (Some((_, piece)), _) => piece.label,
            // No piece has a label like these but by chance.
            (None, Key::Reached(index)) => (index as u64 + 2).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            (None, _) => 1,
        };
        self.nodes.push(Node { owner, address: place, label, edges: Edges::of([None; 3]), open: None, answer: None });
        self.work.extend(piece.map(|(of, piece)| (id, of, piece)));
        id
    }

    fn expand(&mut self, node: u32, of: Of, piece: &Piece) {
        let mut open = None;
        let edges = match piece.end {
            End::Nothing => [None; 3],
            End::Flow(next) => [Some(self.way(of, next)), None, None],
            End::Ways(first, second) => [Some(self.way(of, first)), Some(self.way(of, second)), None],
            End::Names { target, after } => [Some(self.node(of, target)), Some(self.way(of, after)), None],
            End::Call { callee, landing_pad, personality, at, inst } => {
                let callee = callee.map(|callee| self.way(of, callee));
                let [landing_pad, personality] = [landing_pad, personality].map(|target| Some(self.node(of, target?)));
                let after = self.way(of, at + u64::from(inst.len));
                let own = (of == Of::Input).then(|| match self.walk.ends_at(at, inst) {
                    true => Answer::Stops,
                    false => Answer::GoesOn,
                });
                open = Some(Open::Call { after, own });
                [callee, landing_pad, personality]
            }
            End::MayName { value, at, field, width, after } => {
                let after = after.map(|after| self.way(of, after));
                let field = self.field(of, value, (at, field, width));
                match of {
                    Of::Output => self.fields.push(node),
                    Of::Input => {
                        let limit = self.limits.entry(piece.label).or_default();
                        *limit = field.entries.len().max(*limit);
                    }
                }
                open = Some(Open::Field(Box::new(field)));
                [after, None, None]
            }
        };
        let node = &mut self.nodes[node as usize];
        (node.edges, node.open) = (Edges::of(edges), open);
    }

    fn field(&mut self, of: Of, value: u64, (at, field, width): (u64, u8, u8)) -> Field {
        let tables = self.tables;
        let known = tables.get(&value).filter(|_| of == Of::Output || tables::may_be_jumped_through(self.walk, at));
        let side = self.reader(of).side();
        let is_code = side.image.in_code(value);
        let own = (of == Of::Input).then(|| match known {
            Some(targets) => Answer::Table(self.shapes.id(targets.iter().map(Option::is_some).collect())),
            None if is_code && self.walk.names_code(value, at + u64::from(field), width) => Answer::Code,
            None => Answer::Literal,
        });
        let entries = match of {
            Of::Input => known.into_iter().flatten().map(|target| target.map(|target| self.node(of, target))).collect(),
            Of::Output => Vec::new(),
        };
        let code = is_code.then(|| self.node(of, value));
        Field { value, width, entries, code, own }
    }

    /// Where an entry of the output leads, if it may be one.
    fn target(&self, value: u64, position: usize, width: u8) -> Option<u64> {
        let place = value.wrapping_add(position as u64 * u64::from(width));
        tables::entry(self.walk.output, value, place, width).filter(|&target| self.leads_to_function(target))
    }

    /// Whether an address of the output is a function's, or that of a jump to one: where functions went an old entry may keep that. Without frame descriptions it is if the walk came there.
    fn leads_to_function(&self, address: u64) -> bool {
        let side = self.walk.output;
        let is_jump = || side.inst(address).is_some_and(|inst| inst.kind == Kind::Jump);
        let leads_to = || match self.reader(Of::Output).lead(address, |_, _| {}) {
            Place::At(place) => Some(place),
            Place::Bad(_) | Place::Cycle => None,
        };
        let is_function =
            |place| self.reader(Of::Output).related(place).is_some() || is_jump() && side.unwind.fde_at(place).is_some();
        side.unwind.fde_at(address).is_some() || leads_to().is_some_and(is_function)
    }
}

/// The jump tables that the input's code names, or only those that unreached code does.
pub(super) fn tables_named(walk: &Walk<'_, '_>, all: bool) -> Tables {
    let (input, mut found) = (walk.input, Tables::default());
    let everything = Bits::default();
    let passed = if all { &everything } else { &walk.relation.seen };
    super::each_instruction_left(input, passed, |address, inst| {
        if !all && input.code.index(address).is_none_or(|index| walk.relation.seen.contains(index)) {
            return;
        }
        let named = if inst.kind == Kind::Lea && inst.disp != 0 {
            Some((input.operand(address, inst), 4))
        } else {
            walk.absolute_table(input.code.bytes(address, inst)).map(|value| (value, 8))
        };
        let Some((value, width)) = named.filter(|&(value, _)| !input.image.in_code(value)) else { return };
        let reference = TableReference { input: value, output: value, width, from: address, origin: address };
        let targets = tables::targets(walk, reference);
        if found.get(&value).map_or(0, Vec::len) < targets.len() {
            found.insert(value, targets);
        }
    });
    found
}
