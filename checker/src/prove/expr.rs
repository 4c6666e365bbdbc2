//! Values as a hash-consed graph: equal nodes are equal values, whatever instructions made them.
//!
//! All nodes of a [`Pool`] belong to one segment, and so to one execution of it. Both programs' values are made in the same pool: an id says
//! which value it is, and two different ids say nothing.
//!
//! **Normal forms.** Sums are linear: a constant and terms with coefficients, modulo 2^width; so `lea`, `add`, `sub`, shifts and multiplications by constants
//! meet. Truncation goes into sums and through extensions and insertions. Bitwise operations have sorted operands. Everything is folded if it is constant.
//! Each rewriting is an identity of arithmetic modulo 2^width, or says that an address inside of the image is not zero: no system maps a program there.
//!
//! A node is *of the frame* if the frame's address went into it: such a value may point to a slot.

use rustc_hash::FxHashMap;

pub(super) type Id = u32;

#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Op {
    And,
    Or,
    Xor,
    Not,
    Shl,
    Shr,
    Sar,
    Mul,
}

/// The arithmetic flags, in the order of [`super::machine::FLAGS`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Flag {
    Carry,
    Parity,
    Adjust,
    Zero,
    Sign,
    Overflow,
}

/// What flags are of.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum FlagOf {
    /// A result alone.
    Result,
    Add,
    Sub,
    /// An operation by its key: with its operands and the flag as it was.
    Other(u32),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Const(u64),
    /// Where the image is loaded; in a file at a fixed address its addresses are constants.
    ImageBase,
    /// The jump table that the input has at this address, wherever it lies: no arithmetic with other addresses gives it.
    Table(u64),
    /// The canonical frame address of the function.
    Frame,
    /// A value that the segment begins with.
    Class(u32),
    /// A slot of the frame as the segment began, the same in both programs.
    Slot(i64, u8),
    /// What a load from memory that others see gets, by its number among these.
    Load(u32, Id, u16),
    /// A word that never changes once the program runs.
    Fixed(u64, u16),
    Linear(u64, Box<[(Id, u64)]>),
    Zext(Id),
    Sext(Id),
    Trunc(Id),
    /// Bits from a position on are another value's.
    Insert(Id, Id, u16),
    /// Bits from a position on.
    Extract(Id, u16),
    /// Neighboring pieces of memory, lowest first.
    Pieces(Box<[Id]>),
    Op(Op, Box<[Id]>),
    Flag(Flag, FlagOf, Box<[Id]>),
    /// Of a condition (1 bit): if, then, else.
    Select(Id, Id, Id),
    /// An output of an instruction that is not looked into: its key, the number of the output, the inputs.
    Out(u32, u16, Box<[Id]>),
}

#[derive(Copy, Clone)]
struct Info {
    width: u16,
    of: Origins,
}

/// Which addresses went into a value.
#[derive(Copy, Clone, Default)]
struct Origins {
    frame: bool,
    table: bool,
}

impl Origins {
    fn and(self, other: Self) -> Self {
        Self { frame: self.frame | other.frame, table: self.table | other.table }
    }
}

/// An address counted from that of a jump table: a distance, and at most one more term with its factor.
pub(super) struct FromTable {
    pub(super) table: u64,
    pub(super) by: u64,
    pub(super) rest: Option<(Id, u64)>,
}

#[derive(Default)]
pub(super) struct Pool {
    nodes: Vec<Node>,
    infos: Vec<Info>,
    ids: FxHashMap<(Node, u16), Id>,
    /// By number, the class that was asked for last.
    classes: Vec<Option<Id>>,
    /// Where the image begins and ends, both counted to it.
    extent: Option<(u64, u64)>,
}

pub(super) fn mask(width: u16) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

fn signed(value: u64, width: u16) -> i64 {
    let unused = 64 - u32::from(width.min(64));
    (value << unused).cast_signed() >> unused
}

impl Pool {
    /// Values of a program with an image of this extent.
    pub(super) fn of_image(extent: Option<(u64, u64)>) -> Self {
        Self { extent, ..Self::default() }
    }

    /// The same without any value, with the room that these took.
    pub(super) fn emptied(mut self, extent: Option<(u64, u64)>) -> Self {
        self.nodes.clear();
        self.infos.clear();
        self.ids.clear();
        self.classes.clear();
        Self { extent, ..self }
    }

    /// How many values there are; their ids are less.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether a value is an address of the image, or the one behind it. None of these is zero, wherever the image lies: a system maps no program there.
    fn is_in_image(&self, id: Id) -> bool {
        let is_within = |address: u64| self.extent.is_some_and(|(start, end)| start <= address && address <= end);
        self.as_image(id).is_some_and(is_within)
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn width(&self, id: Id) -> u16 {
        self.infos[id as usize].width
    }

    pub(super) fn is_of_frame(&self, id: Id) -> bool {
        self.infos[id as usize].of.frame
    }

    /// Whether the address of a jump table went into a value, or an entry of one.
    pub(super) fn is_of_table(&self, id: Id) -> bool {
        self.infos[id as usize].of.table
    }

    /// A value that a segment begins with.
    pub(super) fn class(&mut self, number: u32, width: u16, is_of_table: bool) -> Id {
        let at = number as usize;
        let known = self.classes.get(at).copied().flatten();
        let id = match known.filter(|&id| self.width(id) == width) {
            Some(id) => id,
            None => self.make(Node::Class(number), width),
        };
        if self.classes.len() <= at {
            self.classes.resize(at + 1, None);
        }
        self.classes[at] = Some(id);
        self.infos[id as usize].of.table |= is_of_table;
        id
    }

    fn args(node: &Node) -> impl Iterator<Item = Id> + '_ {
        let (one, many): ([Option<Id>; 3], &[Id]) = match node {
            Node::Zext(x) | Node::Sext(x) | Node::Trunc(x) | Node::Extract(x, _) => ([Some(*x), None, None], &[]),
            Node::Insert(x, y, _) => ([Some(*x), Some(*y), None], &[]),
            Node::Select(x, y, z) => ([Some(*x), Some(*y), Some(*z)], &[]),
            Node::Op(_, list) | Node::Flag(_, _, list) | Node::Out(_, _, list) | Node::Pieces(list) => ([None; 3], list),
            _ => ([None; 3], &[]),
        };
        one.into_iter().flatten().chain(many.iter().copied())
    }

    pub(super) fn make(&mut self, node: Node, width: u16) -> Id {
        let key = (node, width);
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        let of = |id: Id| self.infos[id as usize].of;
        let of = match &key.0 {
            Node::Frame => Origins { frame: true, table: false },
            Node::Table(_) => Origins { frame: false, table: true },
            Node::Load(_, address, _) => Origins { frame: false, ..of(*address) },
            Node::Linear(_, terms) => terms.iter().fold(Origins::default(), |all, &(term, _)| all.and(of(term))),
            node => Self::args(node).fold(Origins::default(), |all, arg| all.and(of(arg))),
        };
        let id = self.nodes.len() as Id;
        self.nodes.push(key.0.clone());
        self.infos.push(Info { width, of });
        self.ids.insert(key, id);
        id
    }

    pub(super) fn constant(&mut self, value: u64, width: u16) -> Id {
        self.make(Node::Const(value & mask(width)), width)
    }

    pub(super) fn frame(&mut self, offset: i64) -> Id {
        let base = self.make(Node::Frame, 64);
        self.linear(offset.cast_unsigned(), vec![(base, 1)], 64)
    }

    pub(super) fn image(&mut self, address: u64, is_fixed: bool) -> Id {
        if is_fixed {
            return self.constant(address, 64);
        }
        let base = self.make(Node::ImageBase, 64);
        self.linear(address, vec![(base, 1)], 64)
    }

    pub(super) fn table(&mut self, address: u64) -> Id {
        self.make(Node::Table(address), 64)
    }

    pub(super) fn as_table(&self, id: Id) -> Option<u64> {
        match *self.node(id) {
            Node::Table(address) => Some(address),
            _ => None,
        }
    }

    /// A value as an address counted from that of a table.
    pub(super) fn split_from_table(&self, id: Id) -> Option<FromTable> {
        let (by, terms) = self.split(id);
        let is_table = |&&(term, factor): &&(Id, u64)| factor == 1 && self.as_table(term).is_some();
        let table = self.as_table(terms.iter().find(is_table)?.0)?;
        let mut others = terms.iter().filter(|term| !is_table(term)).copied();
        let rest = others.next();
        (self.width(id) == 64 && others.next().is_none()).then_some(FromTable { table, by, rest })
    }

    pub(super) fn as_const(&self, id: Id) -> Option<u64> {
        match self.node(id) {
            Node::Const(value) => Some(*value),
            _ => None,
        }
    }

    fn as_offset_from(&self, id: Id, base: &Node) -> Option<u64> {
        match self.node(id) {
            node if node == base && self.width(id) == 64 => Some(0),
            Node::Linear(offset, terms) if self.width(id) == 64 => match **terms {
                [(term, 1)] if self.node(term) == base => Some(*offset),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn as_frame(&self, id: Id) -> Option<i64> {
        self.as_offset_from(id, &Node::Frame).map(u64::cast_signed)
    }

    pub(super) fn as_image(&self, id: Id) -> Option<u64> {
        self.as_offset_from(id, &Node::ImageBase)
    }

    /// A value as a constant and the rest of a sum.
    pub(super) fn split(&self, id: Id) -> (u64, Vec<(Id, u64)>) {
        match self.node(id) {
            Node::Const(value) => (*value, Vec::new()),
            Node::Linear(offset, terms) => (*offset, terms.to_vec()),
            _ => (0, vec![(id, 1)]),
        }
    }

    fn linear(&mut self, constant: u64, mut terms: Vec<(Id, u64)>, width: u16) -> Id {
        terms.sort_unstable();
        let mut sum: Vec<(Id, u64)> = Vec::with_capacity(terms.len());
        for (term, factor) in terms {
            match sum.last_mut().filter(|last| last.0 == term) {
                Some(last) => last.1 = last.1.wrapping_add(factor) & mask(width),
                None => sum.push((term, factor & mask(width))),
            }
        }
        sum.retain(|&(_, factor)| factor != 0);
        let constant = constant & mask(width);
        match *sum {
            [] => self.constant(constant, width),
            [(term, 1)] if constant == 0 => term,
            _ => self.make(Node::Linear(constant, sum.into()), width),
        }
    }

    /// `x + factor * y`.
    pub(super) fn add_scaled(&mut self, x: Id, y: Id, factor: u64) -> Id {
        let width = self.width(x);
        let (mut constant, mut terms) = self.split(x);
        let (other, more) = self.split(y);
        constant = constant.wrapping_add(other.wrapping_mul(factor));
        terms.extend(more.into_iter().map(|(term, by)| (term, by.wrapping_mul(factor))));
        self.linear(constant, terms, width)
    }

    pub(super) fn add(&mut self, x: Id, y: Id) -> Id {
        self.add_scaled(x, y, 1)
    }

    pub(super) fn sub(&mut self, x: Id, y: Id) -> Id {
        self.add_scaled(x, y, u64::MAX)
    }

    pub(super) fn add_const(&mut self, x: Id, value: u64) -> Id {
        let value = self.constant(value, self.width(x));
        self.add(x, value)
    }

    pub(super) fn scale(&mut self, x: Id, factor: u64) -> Id {
        let zero = self.constant(0, self.width(x));
        self.add_scaled(zero, x, factor)
    }

    pub(super) fn trunc(&mut self, x: Id, width: u16) -> Id {
        let from = self.width(x);
        if from <= width {
            return x;
        }
        match self.node(x).clone() {
            Node::Const(value) => self.constant(value, width),
            Node::Linear(constant, terms) => {
                let zero = self.constant(constant, width);
                terms.iter().fold(zero, |sum, &(term, factor)| {
                    let term = self.trunc(term, width);
                    self.add_scaled(sum, term, factor)
                })
            }
            Node::Zext(inner) if self.width(inner) >= width => self.trunc(inner, width),
            Node::Zext(inner) => self.zext(inner, width),
            Node::Sext(inner) if self.width(inner) >= width => self.trunc(inner, width),
            Node::Sext(inner) => self.sext(inner, width),
            Node::Trunc(inner) => self.trunc(inner, width),
            Node::Insert(base, _, at) if at >= width => self.trunc(base, width),
            Node::Insert(_, value, 0) if self.width(value) >= width => self.trunc(value, width),
            Node::Insert(base, value, 0) => {
                let base = self.trunc(base, width);
                self.insert(base, value, 0)
            }
            Node::Pieces(pieces) if self.width(pieces[0]) >= width => self.trunc(pieces[0], width),
            Node::Op(op @ (Op::And | Op::Or | Op::Xor | Op::Not), args) => {
                let args = args.iter().map(|&arg| self.trunc(arg, width)).collect();
                self.bitwise(op, args, width)
            }
            _ => self.make(Node::Trunc(x), width),
        }
    }

    pub(super) fn zext(&mut self, x: Id, width: u16) -> Id {
        if self.width(x) >= width {
            return x;
        }
        match *self.node(x) {
            Node::Const(value) if width <= 64 => self.constant(value, width),
            Node::Const(0) => self.make(Node::Const(0), width),
            Node::Zext(inner) => self.zext(inner, width),
            _ => self.make(Node::Zext(x), width),
        }
    }

    pub(super) fn sext(&mut self, x: Id, width: u16) -> Id {
        let from = self.width(x);
        if from >= width {
            return x;
        }
        match *self.node(x) {
            Node::Const(value) if width <= 64 => self.constant(signed(value, from).cast_unsigned(), width),
            // The sign of what was extended by zeros is zero.
            Node::Zext(inner) => self.zext(inner, width),
            Node::Sext(inner) => self.sext(inner, width),
            _ => self.make(Node::Sext(x), width),
        }
    }

    pub(super) fn insert(&mut self, base: Id, value: Id, at: u16) -> Id {
        let (width, size) = (self.width(base), self.width(value));
        if at == 0 && size >= width {
            return self.trunc(value, width);
        }
        if let (Some(base), Some(value)) = (self.as_const(base), self.as_const(value))
            && width <= 64
        {
            return self.constant(base & !(mask(size) << at) | value << at, width);
        }
        match *self.node(base) {
            Node::Insert(under, _, place) if place == at && self.is_covered(base, size) => self.insert(under, value, at),
            // Of two that do not overlap the lower one is below.
            Node::Insert(under, other, place) if place >= at + size => {
                let under = self.insert(under, value, at);
                self.make(Node::Insert(under, other, place), width)
            }
            Node::Const(0) if at == 0 => self.zext(value, width),
            Node::Zext(_) if at == 0 && self.is_covered(base, size) => self.zext(value, width),
            _ => self.make(Node::Insert(base, value, at), width),
        }
    }

    /// Whether the value inserted or extended in `id` has no more than `size` bits.
    fn is_covered(&self, id: Id, size: u16) -> bool {
        match *self.node(id) {
            Node::Insert(_, value, _) | Node::Zext(value) => self.width(value) <= size,
            _ => false,
        }
    }

    /// `width` bits from bit `at` on.
    pub(super) fn extract(&mut self, x: Id, at: u16, width: u16) -> Id {
        if at == 0 {
            return self.trunc(x, width);
        }
        match self.node(x).clone() {
            Node::Const(value) if at < 64 => self.constant(value >> at, width),
            Node::Const(0) => self.constant(0, width),
            Node::Zext(inner) if self.width(inner) <= at => self.constant(0, width),
            Node::Zext(inner) if self.width(inner) >= at + width => self.extract(inner, at, width),
            Node::Insert(_, value, place) if place <= at && at + width <= place + self.width(value) => {
                self.extract(value, at - place, width)
            }
            Node::Insert(base, value, place) if at + width <= place || place + self.width(value) <= at => {
                self.extract(base, at, width)
            }
            Node::Pieces(pieces) => {
                let mut start = 0;
                for &piece in &pieces {
                    let end = start + self.width(piece);
                    if start <= at && at + width <= end {
                        return self.extract(piece, at - start, width);
                    }
                    start = end;
                }
                self.make(Node::Extract(x, at), width)
            }
            _ => self.make(Node::Extract(x, at), width),
        }
    }

    pub(super) fn pieces(&mut self, pieces: Vec<Id>) -> Id {
        match *pieces {
            [one] => one,
            _ => {
                let width = pieces.iter().map(|&piece| self.width(piece)).sum();
                self.make(Node::Pieces(pieces.into()), width)
            }
        }
    }

    pub(super) fn bitwise(&mut self, op: Op, args: Vec<Id>, width: u16) -> Id {
        if op == Op::Not {
            // `not x` is `-1 - x`.
            let ones = self.make_ones(width);
            return match args.first() {
                Some(&x) if width <= 64 => self.sub(ones, x),
                _ => self.make(Node::Op(op, args.into()), width),
            };
        }
        if width > 64 {
            return self.wide_bitwise(op, args, width);
        }
        let neutral = if op == Op::And { mask(width) } else { 0 };
        let mut constant = neutral;
        let mut rest: Vec<Id> = Vec::new();
        for arg in args {
            let inner = match self.node(arg) {
                Node::Op(same, inner) if *same == op => inner.to_vec(),
                _ => vec![arg],
            };
            for arg in inner {
                match self.as_const(arg) {
                    Some(value) if op == Op::And => constant &= value,
                    Some(value) if op == Op::Or => constant |= value,
                    Some(value) => constant ^= value,
                    None => rest.push(arg),
                }
            }
        }
        rest.sort_unstable();
        if op == Op::Xor {
            let mut odd: Vec<Id> = Vec::new();
            for arg in rest {
                match odd.last() {
                    Some(&last) if last == arg => odd.truncate(odd.len() - 1),
                    _ => odd.push(arg),
                }
            }
            rest = odd;
        } else {
            rest.dedup();
        }
        if rest.is_empty() || (op == Op::And && constant == 0) || (op == Op::Or && constant == mask(width)) {
            return self.constant(constant, width);
        }
        if let ([x], Op::And, 0xff | 0xffff | 0xffff_ffff) = (&*rest, op, constant) {
            let low = self.trunc(*x, constant.count_ones() as u16);
            return self.zext(low, width);
        }
        if constant != neutral {
            let constant = self.constant(constant, width);
            rest.push(constant);
        }
        match *rest {
            [x] => x,
            _ => self.make(Node::Op(op, rest.into()), width),
        }
    }

    fn make_ones(&mut self, width: u16) -> Id {
        self.constant(u64::MAX, width.min(64))
    }

    fn wide_bitwise(&mut self, op: Op, mut args: Vec<Id>, width: u16) -> Id {
        args.sort_unstable();
        match (op, &*args) {
            (Op::Xor, [x, y]) if x == y => self.make(Node::Const(0), width),
            (Op::And | Op::Or, [x, y]) if x == y => *x,
            _ => self.make(Node::Op(op, args.into()), width),
        }
    }

    /// A shift by `count`, which was masked as the processor does.
    pub(super) fn shift(&mut self, op: Op, x: Id, count: Id) -> Id {
        let width = self.width(x);
        let Some(count_value) = self.as_const(count) else { return self.make(Node::Op(op, [x, count].into()), width) };
        if count_value == 0 {
            return x;
        }
        if let Some(value) = self.as_const(x) {
            let by = u32::try_from(count_value).unwrap_or(64);
            let result = match op {
                Op::Shl => value.checked_shl(by).unwrap_or(0),
                Op::Shr => value.checked_shr(by).unwrap_or(0),
                _ => (signed(value, width) >> by.min(63)).cast_unsigned(),
            };
            return self.constant(result, width);
        }
        if op == Op::Shl && count_value < u64::from(width) {
            return self.scale(x, 1 << count_value);
        }
        self.make(Node::Op(op, [x, count].into()), width)
    }

    /// The last bit that a shift of a constant by a constant moves out. From the value's size on it is not defined.
    pub(super) fn carry_of_shift(&mut self, op: Op, x: Id, count: Id) -> Option<Id> {
        let width = self.width(x);
        let (value, by) = (self.as_const(x)?, self.as_const(count)?);
        if by == 0 || by >= u64::from(width) {
            return None;
        }
        let carry = match op {
            Op::Shl => value >> (u64::from(width) - by) & 1,
            Op::Shr => value >> (by - 1) & 1,
            Op::Sar => (signed(value, width) >> (by - 1)).cast_unsigned() & 1,
            _ => return None,
        };
        Some(self.constant(carry, 1))
    }

    pub(super) fn multiply(&mut self, x: Id, y: Id) -> Id {
        match (self.as_const(x), self.as_const(y)) {
            (_, Some(factor)) => self.scale(x, factor),
            (Some(factor), None) => self.scale(y, factor),
            (None, None) => {
                let (low, high) = (x.min(y), x.max(y));
                self.make(Node::Op(Op::Mul, [low, high].into()), self.width(x))
            }
        }
    }

    /// A flag of a sum, a difference or a result.
    pub(super) fn flag(&mut self, flag: Flag, of: FlagOf, args: &[Id]) -> Id {
        let values: Option<Vec<u64>> = args.iter().map(|&arg| self.as_const(arg)).collect();
        let width = args.first().map_or(64, |&arg| self.width(arg));
        if let Some(value) = values.and_then(|values| fold_flag(flag, of, &values, width)) {
            return self.constant(u64::from(value), 1);
        }
        if let (Flag::Zero, FlagOf::Result, &[value]) = (flag, of, args)
            && self.is_in_image(value)
        {
            return self.constant(0, 1);
        }
        self.make(Node::Flag(flag, of, args.into()), 1)
    }

    pub(super) fn select(&mut self, condition: Id, yes: Id, no: Id) -> Id {
        match self.as_const(condition) {
            Some(0) => no,
            Some(_) => yes,
            None if yes == no => yes,
            None => {
                // The opposite condition with exchanged ways is the same.
                if let Some(opposite) = self.opposite_of(condition) {
                    return self.make(Node::Select(opposite, no, yes), self.width(yes));
                }
                self.make(Node::Select(condition, yes, no), self.width(yes))
            }
        }
    }

    /// What a condition that is a negation negates.
    pub(super) fn opposite_of(&self, condition: Id) -> Option<Id> {
        match self.node(condition) {
            Node::Linear(1, terms) if self.width(condition) == 1 => match **terms {
                [(term, 1)] => Some(term),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn negate(&mut self, condition: Id) -> Id {
        // One bit: adding one is negating.
        self.add_const(condition, 1)
    }
}

fn fold_flag(flag: Flag, of: FlagOf, values: &[u64], width: u16) -> Option<bool> {
    if width > 64 {
        return None;
    }
    let sign = |value: u64| value >> (width - 1) & 1 == 1;
    let result = match (of, values) {
        (FlagOf::Result, &[value]) => value,
        (FlagOf::Add, &[x, y]) => x.wrapping_add(y) & mask(width),
        (FlagOf::Sub, &[x, y]) => x.wrapping_sub(y) & mask(width),
        _ => return None,
    };
    match (flag, of, values) {
        (Flag::Zero, _, _) => Some(result == 0),
        (Flag::Sign, _, _) => Some(sign(result)),
        (Flag::Parity, _, _) => Some((result as u8).count_ones().is_multiple_of(2)),
        (Flag::Carry, FlagOf::Add, &[x, _]) => Some(result < x),
        (Flag::Carry, FlagOf::Sub, &[x, y]) => Some(x < y),
        (Flag::Overflow, FlagOf::Add, &[x, y]) => Some(sign(x) == sign(y) && sign(result) != sign(x)),
        (Flag::Overflow, FlagOf::Sub, &[x, y]) => Some(sign(x) != sign(y) && sign(result) != sign(x)),
        (Flag::Adjust, FlagOf::Add | FlagOf::Sub, &[x, y]) => Some((x ^ y ^ result) >> 4 & 1 == 1),
        _ => None,
    }
}
