//! What is known where a segment begins: which registers, flags and slots of both programs hold the same value.
//!
//! Each place of either program has a value: a constant, an address, or a *class*; places of one class hold one value. So "the output's `rbx` is what the
//! input has at `cfa-0x18`" is one class for two places, and a register of the output of which nothing is known has a class of its own. A slot
//! that is not listed holds the same in both programs.
//!
//! Values keep one operation on a class, because a register is mostly the extension of what a slot has, or goes up with another one.
//!
//! **Meeting.** Where ways join, places stay equal that are so on both: a pair of different values becomes a class, the same for the same pair. Each meeting splits
//! classes or drops an operation, so a chain of them ends.

mod less;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::expr::{Id, Node, Pool};
use super::machine::{Machine, Privacy, STACK};

#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Value {
    Const(u64),
    Image(u64),
    /// The address of this jump table of the input, or of what stands for it.
    Table(u64),
    Frame(i64),
    Class(u32),
    Zext(u32),
    Sext(u32),
    Trunc(u32),
    Plus(u32, u64),
    /// The low bits of a class, the rest zeros or copies of the sign.
    Low(u32, u16),
    SignedLow(u32, u16),
    /// Of a vector register: the low 64 bits are the first class, extended by zeros if it is shorter, the next are zeros, those above 128 are the second's.
    Quad(u32, u32),
    /// The same with the low bits of the first class, extended by zeros.
    QuadLow(u32, u16, u32),
    /// The same where the first class is all of the low 128 bits.
    Lower(u32, u32),
    /// Of a vector register: the low 128 bits are zeros, those above are the class's.
    Cleared(u32),
    /// The low bits of a class, copies of the sign up to 32 bits, then zeros: what `movsx` puts into the lower half of a register.
    SignedHalf(u32, u16),
    /// In a meeting: of a slot that is not listed.
    Unlisted(i64),
}

impl Value {
    /// The classes that a value is made of.
    fn classes(&mut self) -> [Option<&mut u32>; 2] {
        match self {
            Value::Class(class)
            | Value::Zext(class)
            | Value::Sext(class)
            | Value::Trunc(class)
            | Value::Plus(class, _)
            | Value::Low(class, _)
            | Value::SignedLow(class, _)
            | Value::SignedHalf(class, _)
            | Value::Cleared(class) => [Some(class), None],
            Value::Quad(low, above) | Value::QuadLow(low, _, above) | Value::Lower(low, above) => [Some(low), Some(above)],
            Value::Const(_) | Value::Image(_) | Value::Table(_) | Value::Frame(_) | Value::Unlisted(_) => [None, None],
        }
    }
}

/// The places of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// 16 general registers, 32 vector registers, 6 flags, the rest.
    pub(super) registers: [Value; 55],
    /// By offset: bits and value.
    pub(super) slots: BTreeMap<i64, (u16, Value)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) input: Places,
    pub(super) output: Places,
    classes: Vec<Class>,
}

/// What is known of the value of a class.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Class {
    /// Bits.
    width: u16,
    /// The address of a jump table went into it on some way.
    is_of_table: bool,
}

impl Class {
    fn of(width: u16) -> Self {
        Self { width, is_of_table: false }
    }
}

const WIDTHS: [u16; 55] = {
    let mut widths = [64; 55];
    let mut at = 16;
    while at < 54 {
        widths[at] = if at < 48 { 512 } else { 1 };
        at += 1;
    }
    widths
};

pub(super) fn places(machine: &Machine) -> [Id; 55] {
    let mut all = [machine.rest; 55];
    all[..16].copy_from_slice(&machine.general);
    all[16..48].copy_from_slice(&machine.vectors);
    all[48..54].copy_from_slice(&machine.flags);
    all
}

/// The name of a place of [`Places::registers`].
pub(super) fn name_of(place: usize) -> String {
    const GENERAL: [&str; 16] =
        ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
    match place {
        0..16 => GENERAL[place].into(),
        16..48 => format!("xmm{}", place - 16),
        48..54 => "a flag".into(),
        _ => "the rest of the state".into(),
    }
}

impl Facts {
    /// All is the same in both programs but for the flags, of which nothing is known; `pointer` is at a known distance from the frame address.
    pub(super) fn identity(pointer: Option<(usize, i64)>) -> Self {
        let mut classes = WIDTHS.map(Class::of).to_vec();
        let mut registers = [Value::Const(0); 55];
        for (place, value) in registers.iter_mut().enumerate() {
            *value = Value::Class(place as u32);
        }
        if let Some((register, offset)) = pointer {
            registers[register] = Value::Frame(offset);
        }
        let input = Places { registers, slots: BTreeMap::new() };
        let mut output = input.clone();
        for value in &mut output.registers[48..54] {
            *value = Value::Class(classes.len() as u32);
            classes.push(Class::of(1));
        }
        let mut facts = Self { input, output, classes };
        facts.renumber();
        facts
    }

    /// What a register holds at the start; followed by [`Facts::settle`].
    pub(super) fn know(&mut self, register: usize, input: Option<Value>, output: Option<Value>, is_same: bool) {
        if let Some(value) = input {
            self.input.registers[register] = value;
        }
        if let Some(value) = output {
            self.output.registers[register] = value;
        } else if !is_same {
            self.output.registers[register] = Value::Class(self.classes.len() as u32);
            self.classes.push(Class::of(64));
        }
    }

    /// Equal facts are equal data again.
    pub(super) fn settle(&mut self) {
        self.renumber();
    }

    /// Classes in the order in which they turn up, so that equal facts are equal data.
    fn renumber(&mut self) {
        let old = std::mem::take(&mut self.classes);
        let mut known: Vec<Option<u32>> = vec![None; old.len()];
        let mut classes = Vec::with_capacity(old.len());
        let mut number = |class: &mut u32| {
            *class = *known[*class as usize].get_or_insert_with(|| {
                classes.push(old[*class as usize]);
                classes.len() as u32 - 1
            });
        };
        for places in [&mut self.input, &mut self.output] {
            let slots = places.slots.values_mut().map(|(_, value)| value);
            for value in places.registers.iter_mut().chain(slots) {
                value.classes().into_iter().flatten().for_each(&mut number);
            }
        }
        self.classes = classes;
    }

    /// The machines of both programs with these facts.
    pub(super) fn start(&self, pool: &mut Pool, is_fixed: bool) -> (Machine, Machine) {
        let known_as = |pool: &mut Pool, class: u32| {
            let Class { width, is_of_table } = self.classes[class as usize];
            pool.class(class, width, is_of_table)
        };
        let mut machine = |places: &Places| {
            let mut make = |value: Value, width: u16| match value {
                Value::Const(value) if width <= 64 => pool.constant(value, width),
                Value::Const(_) => pool.make(Node::Const(0), width),
                Value::Image(address) => pool.image(address, is_fixed),
                Value::Table(address) => pool.table(address),
                Value::Frame(offset) => pool.frame(offset),
                Value::Unlisted(at) => pool.make(Node::Slot(at, (width / 8) as u8), width),
                Value::Class(class) => known_as(pool, class),
                Value::Quad(low, whole) | Value::QuadLow(low, _, whole) | Value::Lower(low, whole) => {
                    let whole = known_as(pool, whole);
                    let mut low = known_as(pool, low);
                    if let Value::QuadLow(_, bits, _) = value {
                        low = pool.trunc(low, bits);
                    }
                    let low = pool.zext(low, 128);
                    pool.insert(whole, low, 0)
                }
                Value::Cleared(above) => {
                    let whole = known_as(pool, above);
                    let low = pool.constant(0, 128);
                    pool.insert(whole, low, 0)
                }
                Value::Zext(class)
                | Value::Sext(class)
                | Value::Trunc(class)
                | Value::Plus(class, _)
                | Value::Low(class, _)
                | Value::SignedLow(class, _)
                | Value::SignedHalf(class, _) => {
                    let inner = known_as(pool, class);
                    match value {
                        Value::Zext(_) => pool.zext(inner, width),
                        Value::Sext(_) => pool.sext(inner, width),
                        Value::Plus(_, by) => pool.add_const(inner, by),
                        Value::Low(_, bits) => {
                            let low = pool.trunc(inner, bits);
                            pool.zext(low, width)
                        }
                        Value::SignedLow(_, bits) => {
                            let low = pool.trunc(inner, bits);
                            pool.sext(low, width)
                        }
                        Value::SignedHalf(_, bits) => {
                            let low = pool.trunc(inner, bits);
                            let half = pool.sext(low, 32);
                            pool.zext(half, width)
                        }
                        _ => pool.trunc(inner, width),
                    }
                }
            };
            let mut all = places.registers.iter().zip(WIDTHS).map(|(&value, width)| make(value, width));
            let mut take = || all.next().unwrap_or_default();
            let general = std::array::from_fn(|_| take());
            let vectors = std::array::from_fn(|_| take());
            let flags = std::array::from_fn(|_| take());
            let rest = take();
            let slots = places.slots.iter().map(|(&at, &(width, value))| (at, (width, make(value, width)))).collect();
            Machine {
                general,
                vectors,
                flags,
                rest,
                slots,
                loads: Vec::new(),
                stores: Vec::new(),
                aligned: Vec::new(),
                traps: Vec::new(),
                popped: Vec::new(),
                slot_loads: 0,
                slot_stores: 0,
                fixed_loads: 0,
                no_races: false,
            }
        };
        (machine(&self.input), machine(&self.output))
    }

    /// What is known behind a segment.
    pub(super) fn end(pool: &mut Pool, input: &Machine, output: &Machine) -> Self {
        let (mut input, mut output) = (input.clone(), output.clone());
        drop_popped(&mut input, &mut output);
        let pieces = common_pieces(&input, &output);
        let mut numbers: Vec<Option<u32>> = Vec::new();
        let mut classes = Vec::with_capacity(WIDTHS.len());
        let differing = (0..32).filter(|&at| input.vectors[at] != output.vectors[at]);
        let all = input.vectors.iter().chain(&output.vectors);
        let cleared: FxHashMap<Id, Id> = all.filter_map(|&id| Some((id, above_zeros(pool, id)?))).collect();
        let lowers: FxHashMap<Id, (Id, Id, bool)> = differing.filter_map(|at| lower(pool, output.vectors[at])).collect();
        let mut side = |machine: &mut Machine| {
            let slots: Vec<(i64, u16, Id)> = pieces
                .iter()
                .map(|&(at, end)| {
                    let size = ((end - at) * 8) as u16;
                    (at, size, machine.read_slot(pool, at, size))
                })
                .collect();
            let mut class = |pool: &Pool, id: Id| {
                if numbers.len() < pool.len() {
                    numbers.resize(pool.len(), None);
                }
                *numbers[id as usize].get_or_insert_with(|| {
                    classes.push(Class { width: pool.width(id), is_of_table: pool.is_of_table(id) });
                    classes.len() as u32 - 1
                })
            };
            let mut value = |pool: &Pool, id: Id| match pool.node(id) {
                _ if cleared.contains_key(&id) => Value::Cleared(class(pool, cleared[&id])),
                _ if lowers.contains_key(&id) => {
                    let (low, above, is_quad) = lowers[&id];
                    // What a general register with the same value is, so that both stay the same.
                    let (inner, bits) = match *pool.node(low) {
                        Node::Zext(inner) if is_quad => match *pool.node(inner) {
                            Node::Trunc(whole) => (whole, Some(pool.width(inner))),
                            _ => (inner, None),
                        },
                        _ => (low, None),
                    };
                    let (inner, above) = (class(pool, inner), class(pool, above));
                    match (is_quad, bits) {
                        (true, Some(bits)) => Value::QuadLow(inner, bits, above),
                        (true, None) => Value::Quad(inner, above),
                        (false, _) => Value::Lower(inner, above),
                    }
                }
                Node::Const(value) => Value::Const(*value),
                Node::Table(address) => Value::Table(*address),
                _ if pool.as_frame(id).is_some() => Value::Frame(pool.as_frame(id).unwrap_or(0)),
                _ if pool.as_image(id).is_some() => Value::Image(pool.as_image(id).unwrap_or(0)),
                Node::Zext(inner) => match pool.node(*inner) {
                    Node::Trunc(whole) => Value::Low(class(pool, *whole), pool.width(*inner)),
                    Node::Sext(part) if pool.width(*inner) == 32 => match pool.node(*part) {
                        Node::Trunc(whole) => Value::SignedHalf(class(pool, *whole), pool.width(*part)),
                        _ => Value::Zext(class(pool, *inner)),
                    },
                    _ => Value::Zext(class(pool, *inner)),
                },
                Node::Sext(inner) => match pool.node(*inner) {
                    Node::Trunc(whole) => Value::SignedLow(class(pool, *whole), pool.width(*inner)),
                    _ => Value::Sext(class(pool, *inner)),
                },
                Node::Trunc(inner) => Value::Trunc(class(pool, *inner)),
                Node::Linear(by, terms) if terms.len() == 1 && terms[0].1 == 1 => Value::Plus(class(pool, terms[0].0), *by),
                _ => Value::Class(class(pool, id)),
            };
            let registers = places(machine).map(|id| value(pool, id));
            let slots = slots.into_iter().map(|(at, size, id)| (at, (size, value(pool, id)))).collect();
            Places { registers, slots }
        };
        let (input, output) = (side(&mut input), side(&mut output));
        let mut facts = Self { input, output, classes };
        facts.renumber();
        facts
    }

    /// What is known where this way joins another; `None` if that is what was known.
    pub(super) fn meet(&self, other: &Self) -> Option<Self> {
        if self == other {
            return None;
        }
        let room = self.classes.len().max(other.classes.len());
        let firsts = vec![None; self.classes.len()];
        let mut meeting =
            Meeting { firsts, numbers: FxHashMap::default(), classes: Vec::with_capacity(room), facts: [self, other] };
        // A slot that only one of them lists is the same in both programs in the other.
        let mut boundaries: Vec<(i64, i64)> = Vec::new();
        for places in [&self.input, &other.input] {
            boundaries.extend(places.slots.iter().map(|(&at, &(size, _))| (at, at + i64::from(size / 8))));
        }
        boundaries.sort_unstable();
        boundaries.dedup();
        let overlaps = boundaries.windows(2).any(|pair| pair[1].0 < pair[0].1);
        if overlaps {
            return Some(
                self.refined(&boundaries).meet(&other.refined(&boundaries)).unwrap_or_else(|| self.refined(&boundaries)),
            )
            .filter(|met| met != self);
        }
        let input = meeting.places(&self.input, &other.input, &boundaries);
        let output = meeting.places(&self.output, &other.output, &boundaries);
        let mut met = Self { input, output, classes: meeting.classes };
        met.renumber();
        (met != *self).then_some(met)
    }

    /// The same with slots cut where these ranges begin and end; what a slot that is cut holds is only known to be the same in both programs, if
    /// it is.
    fn refined(&self, ranges: &[(i64, i64)]) -> Self {
        let mut facts = self.clone();
        let mut cuts: Vec<i64> = ranges.iter().flat_map(|&(start, end)| [start, end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        for (&at, &(size, value)) in &self.input.slots {
            let end = at + i64::from(size / 8);
            let inner: Vec<i64> = cuts.iter().copied().filter(|&cut| at < cut && cut < end).collect();
            if inner.is_empty() {
                continue;
            }
            let other = self.output.slots.get(&at).map(|&(_, value)| value);
            let is_of_table = [Some(value), other].into_iter().flatten().any(|value| self.is_of_table(value));
            facts.input.slots.remove(&at);
            facts.output.slots.remove(&at);
            let mut start = at;
            for stop in inner.into_iter().chain([end]) {
                let bits = ((stop - start) * 8) as u16;
                let mut fresh = || {
                    facts.classes.push(Class { width: bits, is_of_table });
                    Value::Class(facts.classes.len() as u32 - 1)
                };
                let first = fresh();
                let second = if other == Some(value) { first } else { fresh() };
                facts.input.slots.insert(start, (bits, first));
                facts.output.slots.insert(start, (bits, second));
                start = stop;
            }
        }
        facts.renumber();
        facts
    }

    /// The same, of the slots only those that stay private.
    pub(super) fn only(&self, privacy: &Privacy) -> Self {
        let mut facts = self.clone();
        for places in [&mut facts.input, &mut facts.output] {
            places.slots.retain(|&at, &mut (bits, _)| privacy.covers(at, i64::from(bits / 8)) == Some(true));
        }
        facts.renumber();
        facts
    }

    /// Whether the address of a jump table may have gone into a value.
    fn is_of_table(&self, mut value: Value) -> bool {
        let is_table = matches!(value, Value::Table(_));
        is_table || value.classes().into_iter().flatten().any(|class| self.classes[*class as usize].is_of_table)
    }

    pub(super) fn stack(&self) -> Option<(i64, i64)> {
        match (self.input.registers[STACK], self.output.registers[STACK]) {
            (Value::Frame(input), Value::Frame(output)) => Some((input, output)),
            _ => None,
        }
    }
}

/// What a vector register of the output holds in its low 64 or 128 bits if a general register was put there, with which the output takes that back, or something else; and what is above.
fn lower(pool: &mut Pool, id: Id) -> Option<(Id, (Id, Id, bool))> {
    let (above, value) = replaced(pool, id)?;
    let low = pool.trunc(value, 64);
    let is_quad = pool.zext(low, 128) == value;
    let low = if is_quad { low } else { value };
    matches!(pool.node(above), Node::Class(_)).then_some((id, (low, above, is_quad)))
}

/// What is above the low 128 bits of a vector register if these are zeros.
fn above_zeros(pool: &Pool, id: Id) -> Option<Id> {
    let (above, value) = replaced(pool, id)?;
    (pool.as_const(value) == Some(0) && matches!(pool.node(above), Node::Class(_))).then_some(above)
}

/// What a vector register was whose low 128 bits were replaced, and by what.
pub(super) fn replaced(pool: &Pool, id: Id) -> Option<(Id, Id)> {
    match *pool.node(id) {
        Node::Insert(above, value, 0) if pool.width(value) == 128 => Some((above, value)),
        _ => None,
    }
}

/// Nothing is known any more of what was on the stack of the input and is taken off: nobody reads it before it is written again.
pub(super) fn drop_popped(input: &mut Machine, output: &mut Machine) {
    for (start, end) in std::mem::take(&mut input.popped) {
        for machine in [&mut *input, &mut *output] {
            machine.slots.retain(|&at, &mut (size, _)| at + i64::from(size / 8) <= start || end <= at);
        }
    }
}

/// The ranges into which the slots of both fall.
pub(super) fn common_pieces(input: &Machine, output: &Machine) -> Vec<(i64, i64)> {
    let mut ranges: Vec<(i64, i64)> = input.boundaries().chain(output.boundaries()).collect();
    ranges.sort_unstable();
    ranges.dedup();
    let mut cuts: Vec<i64> = ranges.iter().flat_map(|&(start, end)| [start, end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces = Vec::new();
    for (start, end) in ranges {
        let first = cuts.partition_point(|&cut| cut <= start);
        let mut at = start;
        for &cut in cuts[first..].iter().take_while(|&&cut| cut <= end) {
            pieces.push((at, cut));
            at = cut;
        }
    }
    pieces.sort_unstable();
    pieces.dedup();
    pieces
}

struct Meeting<'f> {
    /// By class of the first, the other value that it met first, its width, and what became of these: mostly there is no other.
    firsts: Vec<Option<(Value, u16, u32)>>,
    numbers: FxHashMap<(Value, Value, u16), u32>,
    classes: Vec<Class>,
    facts: [&'f Facts; 2],
}

impl Meeting<'_> {
    fn places(&mut self, first: &Places, second: &Places, slots: &[(i64, i64)]) -> Places {
        let mut registers = first.registers;
        for (place, value) in registers.iter_mut().enumerate() {
            *value = self.value(*value, second.registers[place], WIDTHS[place]);
        }
        let mut met = BTreeMap::new();
        for &(at, end) in slots {
            let size = ((end - at) * 8) as u16;
            // What is not listed has a class of its own for each slot.
            let unlisted = Value::Unlisted(at);
            let find = |places: &Places| places.slots.get(&at).map_or(unlisted, |&(_, value)| value);
            met.insert(at, (size, self.value(find(first), find(second), size)));
        }
        Places { registers, slots: met }
    }

    fn value(&mut self, first: Value, second: Value, width: u16) -> Value {
        let of_class = |meeting: &mut Self, x: u32, y: u32| {
            let widths = [meeting.facts[0].classes[x as usize].width, meeting.facts[1].classes[y as usize].width];
            (widths[0] == widths[1]).then(|| meeting.class(Value::Class(x), Value::Class(y), widths[0]))
        };
        let above = |value: Value| match value {
            Value::Class(above)
            | Value::Quad(_, above)
            | Value::QuadLow(.., above)
            | Value::Lower(_, above)
            | Value::Cleared(above) => Some(Value::Class(above)),
            _ => None,
        };
        let is_lower = |value: Value| matches!(value, Value::Quad(..) | Value::QuadLow(..) | Value::Lower(..));
        // The low 64 bits, as a general register has them.
        let quad_of = |value: Value, facts: &Facts| match value {
            Value::Quad(low, above) if facts.classes[low as usize].width == 64 => Some((Value::Class(low), above)),
            Value::Quad(low, above) => Some((Value::Zext(low), above)),
            Value::QuadLow(low, bits, above) => Some((Value::Low(low, bits), above)),
            _ => None,
        };
        if let (Some((x, a)), Some((y, b))) = (quad_of(first, self.facts[0]), quad_of(second, self.facts[1])) {
            let (low, above) = (self.value(x, y, 64), self.class(Value::Class(a), Value::Class(b), width));
            return match low {
                Value::Low(low, bits) => Value::QuadLow(low, bits, above),
                Value::Class(low) | Value::Zext(low) => Value::Quad(low, above),
                // These three meet in one of them.
                _ => Value::Class(self.class(first, second, width)),
            };
        }
        let met = match (first, second) {
            (Value::Const(_) | Value::Image(_) | Value::Table(_) | Value::Frame(_), _) if first == second => Some(first),
            (Value::Zext(x), Value::Zext(y)) => of_class(self, x, y).map(Value::Zext),
            (Value::Sext(x), Value::Sext(y)) => of_class(self, x, y).map(Value::Sext),
            (Value::Trunc(x), Value::Trunc(y)) => of_class(self, x, y).map(Value::Trunc),
            (Value::Low(x, a), Value::Low(y, b)) if a == b => of_class(self, x, y).map(|class| Value::Low(class, a)),
            (Value::SignedLow(x, a), Value::SignedLow(y, b)) if a == b => {
                of_class(self, x, y).map(|class| Value::SignedLow(class, a))
            }
            (Value::Cleared(x), Value::Cleared(y)) => of_class(self, x, y).map(Value::Cleared),
            _ if is_lower(first) || is_lower(second) => match (above(first), above(second)) {
                (Some(x), Some(y)) => Some(Value::Lower(self.class(first, second, 128), self.class(x, y, width))),
                _ => None,
            },
            (Value::SignedHalf(x, a), Value::SignedHalf(y, b)) if a == b => {
                of_class(self, x, y).map(|class| Value::SignedHalf(class, a))
            }
            (Value::Plus(x, a), Value::Plus(y, b)) if a == b => of_class(self, x, y).map(|class| Value::Plus(class, a)),
            _ => None,
        };
        met.unwrap_or_else(|| Value::Class(self.class(first, second, width)))
    }

    fn class(&mut self, first: Value, second: Value, width: u16) -> u32 {
        let next = self.classes.len() as u32;
        let known = match first {
            Value::Class(class) => {
                let known = self.firsts[class as usize].get_or_insert((second, width, next));
                (known.0 == second && known.1 == width).then_some(known.2)
            }
            _ => None,
        };
        let class = known.unwrap_or_else(|| *self.numbers.entry((first, second, width)).or_insert(next));
        if class == next {
            let is_of_table = self.facts[0].is_of_table(first) || self.facts[1].is_of_table(second);
            self.classes.push(Class { width, is_of_table });
        }
        class
    }
}

#[cfg(test)]
mod tests;
