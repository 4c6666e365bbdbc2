//! Where the indirect jumps of a function of the input may lead: the jump tables that they go through.
//!
//! **Method.** The instructions right before a jump, to which nothing else leads, are followed forward: an entry of a table is read, the table's address is added, and that is jumped to;
//! or in a file at a fixed address the entry is the place itself. Compilers name a table once before a loop. Then what may have written the register is looked for backward
//! on all ways through the function: each must come to an instruction that names a table, and all of these are tables of the jump. A jump of which that cannot be said is *wild*: it may
//! lead to all that tables and data of the function name.
//!
//! Ways backward are direct jumps, running on, and indirect jumps to what they lead to. Where those lead is what is asked, so all jumps of a function begin with no such table
//! and get more until nothing changes. That is enough: take the first time that one of them went through a table that it did not get. Control came there on ways that were looked at, from an
//! instruction that names this table. At entries, at what nothing leads to but is no padding, and in functions with exception
//! handlers nothing is known. At a fixed address without relocations only straight pieces count, to which no number leads either ([`super::labels`]), and a jump through no table is a tail call if none leads
//! into its function.
//!
//! **Terminates**: tables and wild jumps only get more; a search visits each instruction and register once.

use std::rc::Rc;

use rustc_hash::FxHashSet;

use super::super::Prover;
use super::super::decoded::{Decoded, Operand, Reg};
use super::super::kept::may_write;
use super::bodies::{Bodies, Body, is_at_return_address};
use super::{COUNTER, KEPT};
use crate::decode::{Inst, Kind};
use crate::tables::TableReference;
use crate::unwind::Fde;
use crate::walk::Walk;

/// Instructions that are looked at for the jumps of one function.
const STEPS_MAX: usize = 500_000;

/// Where an indirect jump may lead inside its function.
pub(in super::super) struct Targets {
    pub(in super::super) places: Vec<u64>,
    /// It goes through a jump table, and nowhere else.
    pub(in super::super) is_table: bool,
}

/// What a table is known by.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Base {
    /// Its address, and that of the instruction that names it.
    Offsets(u64, u64),
    /// The same of a table of addresses.
    Addresses(u64, u64),
    /// What a register holds where the straight piece begins.
    Held(u8),
}

/// What a register has to do with a jump table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum TableWord {
    Unknown,
    /// The table's address.
    Table(Base),
    /// An entry of it.
    Entry(Base),
    /// Where the entry leads.
    Target(Base),
}

/// An indirect jump.
#[derive(Debug)]
struct Jump {
    at: u64,
    /// The straight piece before it begins here.
    start: u64,
    /// What it goes through, if it is a table.
    base: Option<Base>,
    /// Where it leads; `None` if it is wild.
    places: Option<Vec<u64>>,
}

/// How control comes to the instructions of a function.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// An instruction, and one from which control comes there, ascending.
    direct: Vec<(u64, u64)>,
    /// By address.
    jumps: Vec<Jump>,
    has_handlers: bool,
}

impl Ways {
    /// Adds the instructions of a frame description; nothing is known of the jumps yet.
    fn add(&mut self, walk: &Walk<'_, '_>, fde: &Fde) {
        let side = walk.input;
        self.has_handlers |= fde.lsda.is_some();
        let mut at = fde.start;
        while let Some(inst) = side.inst(at).filter(|_| at < fde.end) {
            let after = at + u64::from(inst.len);
            match inst.kind {
                Kind::Jump => self.direct.push((side.target(at, inst), at)),
                Kind::Branch | Kind::Loop => self.direct.extend([(side.target(at, inst), at), (after, at)]),
                Kind::IndirectJump | Kind::Return | Kind::Stop | Kind::Trap => {}
                Kind::Call | Kind::IndirectCall if walk.call_never_returns(at, inst) => {}
                _ => self.direct.push((after, at)),
            }
            at = after;
        }
    }

    fn leading_to(&self, place: u64) -> impl Iterator<Item = u64> + '_ {
        let first = self.direct.partition_point(|&(to, _)| to < place);
        self.direct[first..].iter().take_while(move |&&(to, _)| to == place).map(|&(_, from)| from)
    }
}

impl Prover {
    /// Where an indirect jump of the input may lead inside its function; none if it is but a tail call, `None` if that is not known.
    pub(in super::super) fn targets_of(&mut self, walk: &Walk<'_, '_>, address: u64) -> Option<Targets> {
        let bodies = self.bodies(walk);
        if bodies.is_without_knowledge(walk) {
            return None;
        }
        let number = bodies.at(walk, address)?;
        let body = bodies.body(number).filter(|body| !body.is_unclear)?;
        let ways = self.ways_of(walk, &bodies, number);
        let jump = ways.jumps.binary_search_by_key(&address, |jump| jump.at).ok().map(|index| &ways.jumps[index]);
        if let Some(places) = jump.and_then(|jump| jump.places.as_ref()).filter(|places| !places.is_empty()) {
            return Some(Targets { places: places.clone(), is_table: true });
        }
        let is_at_entry = || is_at_return_address(walk, address);
        // Words that nothing marks as addresses may be some: of a jump that may go to such a label nothing is known.
        if walk.keeps_old_text() {
            let is_tail_call = is_at_entry() && !body.has_numbered;
            return is_tail_call.then(|| Targets { places: Vec::new(), is_table: false });
        }
        let is_known = !body.targets.is_empty() || is_at_entry();
        is_known.then(|| Targets { places: body.targets.clone(), is_table: false })
    }

    /// All indirect jumps of a function.
    fn ways_of(&mut self, walk: &Walk<'_, '_>, bodies: &Bodies, number: u32) -> Rc<Ways> {
        if let Some(known) = self.liveness.ways.get(&number) {
            return known.clone();
        }
        let mut ways = Ways::default();
        if let Some(body) = bodies.body(number) {
            let fdes: Vec<_> = bodies.members(number).filter_map(|fde| walk.input.unwind.fdes.get(fde as usize)).collect();
            for &fde in &fdes {
                self.add_jumps(walk, bodies, body, fde, &mut ways.jumps);
            }
            if ways.jumps.iter().any(|jump| matches!(jump.base, Some(Base::Held(_))) && jump.places.is_some()) {
                fdes.iter().for_each(|fde| ways.add(walk, fde));
                ways.direct.sort_unstable();
                self.settle_jumps(walk, body, &mut ways);
                ways.direct = Vec::new();
            }
        }
        let ways = Rc::new(ways);
        self.liveness.ways.insert(number, ways.clone());
        ways
    }

    /// Finds out what the indirect jumps of a frame description go through, by the instructions right before them, to which nothing jumps but to the first.
    fn add_jumps(&mut self, walk: &Walk<'_, '_>, bodies: &Bodies, body: &Body, fde: &Fde, jumps: &mut Vec<Jump>) {
        let side = walk.input;
        let mut before: Vec<(u64, Inst)> = Vec::new();
        let mut at = fde.start;
        while let Some(inst) = side.inst(at).filter(|_| at < fde.end) {
            if bodies.is_jumped_to(at) || body.targets.binary_search(&at).is_ok() {
                before.clear();
            }
            if inst.kind == Kind::IndirectJump {
                let base = self.base_of(walk, &before, at);
                let places = match base {
                    Some(Base::Offsets(table, from)) => places_of(walk, reference(table, from, 4)),
                    Some(Base::Addresses(table, from)) => places_of(walk, reference(table, from, 8)),
                    // What leads there otherwise is not known where words may be addresses that nothing marks.
                    Some(Base::Held(_)) if walk.keeps_old_text() => None,
                    Some(Base::Held(_)) => Some(Vec::new()),
                    None => None,
                };
                jumps.push(Jump { at, start: before.first().map_or(at, |&(at, _)| at), base, places });
            }
            match inst.kind {
                Kind::Plain | Kind::Lea | Kind::Nop => before.push((at, inst)),
                _ => before.clear(),
            }
            at += u64::from(inst.len);
        }
    }

    /// What an indirect jump goes through behind a straight piece of code.
    fn base_of(&mut self, walk: &Walk<'_, '_>, before: &[(u64, Inst)], address: u64) -> Option<Base> {
        let side = walk.input;
        let mut registers: [TableWord; 16] = std::array::from_fn(|number| TableWord::Table(Base::Held(number as u8)));
        for &(at, inst) in before {
            let decoded = self.decode(true, side, at, inst)?;
            let word = word_of(walk, &decoded, inst, &registers, at);
            for (number, register) in (0..).zip(&mut registers) {
                if may_write(&decoded, number) || decoded.is_special {
                    *register = TableWord::Unknown;
                }
            }
            if let (Some(word), Some(&(Operand::Reg(Reg::General(number, 64, _)), _))) = (word, decoded.operands.first()) {
                registers[usize::from(number & 15)] = word;
            }
        }
        let jump = self.decode(true, side, address, side.inst(address)?)?;
        match *jump.operands.first()? {
            (Operand::Reg(Reg::General(number, 64, _)), _) => match registers[usize::from(number & 15)] {
                TableWord::Target(base) => Some(base),
                _ => None,
            },
            (Operand::Memory(_), 64) => table_of_addresses(walk, &jump, address),
            _ => None,
        }
    }

    /// Finds the tables of jumps whose register has had the address since before.
    fn settle_jumps(&mut self, walk: &Walk<'_, '_>, body: &Body, ways: &mut Ways) {
        let mut steps = 0;
        let mut has_changed = true;
        while std::mem::take(&mut has_changed) {
            for index in 0..ways.jumps.len() {
                let Jump { start, base: Some(Base::Held(register)), places: Some(ref old), .. } = ways.jumps[index] else {
                    continue;
                };
                let tables = self.named_before(walk, body, ways, (start, register), &mut steps);
                let each =
                    tables.map(|tables| tables.into_iter().map(|table| places_of(walk, table)).collect::<Option<Vec<_>>>());
                let new = each.flatten().map(|each| {
                    let mut places = each.concat();
                    places.sort_unstable();
                    places.dedup();
                    places
                });
                if new.as_ref() != Some(old) {
                    ways.jumps[index].places = new;
                    has_changed = true;
                }
            }
        }
    }

    /// The tables whose address a register may hold at a place, as far as jumps are known to lead; `None` if it may hold something else.
    fn named_before(
        &mut self,
        walk: &Walk<'_, '_>,
        body: &Body,
        ways: &Ways,
        place: (u64, u8),
        steps: &mut usize,
    ) -> Option<Vec<TableReference>> {
        let mut found = Vec::new();
        let mut seen: FxHashSet<(u64, u8)> = FxHashSet::default();
        let mut work = vec![place];
        while let Some((at, register)) = work.pop() {
            if !seen.insert((at, register)) {
                continue;
            }
            *steps += 1;
            let is_entry = walk.input.unwind.starts_at(at) && is_at_return_address(walk, at);
            let is_labelled = body.targets.binary_search(&at).is_ok();
            let mut all: Vec<u64> = ways.leading_to(at).collect();
            let is_padding = || walk.input.inst(at).is_some_and(|inst| inst.kind == Kind::Nop);
            let is_unknown = all.is_empty() && !is_labelled && !is_padding();
            if is_entry || is_unknown || ways.has_handlers || *steps > STEPS_MAX {
                return None;
            }
            if is_labelled {
                let leads_there = |jump: &&Jump| jump.places.as_ref().is_none_or(|places| places.binary_search(&at).is_ok());
                all.extend(ways.jumps.iter().filter(leads_there).map(|jump| jump.at));
            }
            for from in all {
                match self.held_before(walk, from, register)? {
                    // What a call has named for its caller is a table of that.
                    Before::Table(table) => found.push(reference(table, from, 4)),
                    Before::Register(other) => work.push((from, other)),
                }
            }
        }
        Some(found)
    }

    /// Where an instruction has what a register holds behind it.
    fn held_before(&mut self, walk: &Walk<'_, '_>, at: u64, register: u8) -> Option<Before> {
        let inst = walk.input.inst(at)?;
        let same = Before::Register(register);
        match inst.kind {
            Kind::Nop | Kind::EndBranch | Kind::Jump | Kind::Branch | Kind::IndirectJump => Some(same),
            Kind::Call => self.held_before_call(walk, at, register),
            Kind::IndirectCall => (KEPT >> register & 1 == 1).then_some(same),
            Kind::Loop => (register != COUNTER).then_some(same),
            Kind::Plain | Kind::Lea => {
                let decoded = self.decode(true, walk.input, at, inst)?;
                held_before_plain(&decoded, register)
            }
            _ => None,
        }
    }

    /// The same of a direct call: what straight code does there that is a part of the caller, and then, if it is none, by what calls keep.
    fn held_before_call(&mut self, walk: &Walk<'_, '_>, at: u64, mut register: u8) -> Option<Before> {
        let followed = self.followed(walk, true, at);
        let is_function = followed.as_ref().is_none_or(|followed| !followed.returns);
        if is_function && KEPT >> register & 1 == 0 || followed.as_ref().is_some_and(|followed| followed.is_unknown) {
            return None;
        }
        for (_, decoded) in followed.iter().flat_map(|followed| followed.insts.iter().rev()) {
            match held_before_plain(decoded, register)? {
                Before::Register(other) => register = other,
                found => return Some(found),
            }
        }
        Some(Before::Register(register))
    }
}

/// Where an instruction that does not transfer control has what a register holds behind it.
fn held_before_plain(decoded: &Decoded, register: u8) -> Option<Before> {
    if !may_write(decoded, register) && !decoded.is_special {
        return Some(Before::Register(register));
    }
    let writes = |found: &Operand| matches!(*found, Operand::Reg(Reg::General(to, 64, _)) if to == register);
    match (decoded.name.as_str(), &*decoded.operands) {
        ("lea", [(to, _), (Operand::Memory(memory), _)]) if writes(to) => memory.place.map(Before::Table),
        ("mov", [(to, _), (Operand::Reg(Reg::General(from, 64, _)), _)]) if writes(to) => Some(Before::Register(*from)),
        _ => None,
    }
}

/// What a register held before an instruction, or what that put there.
enum Before {
    Table(u64),
    Register(u8),
}

fn reference(table: u64, from: u64, width: u8) -> TableReference {
    TableReference { input: table, output: table, width, from, origin: from }
}

/// Where a table leads, ascending; `None` if it is none.
fn places_of(walk: &Walk<'_, '_>, table: TableReference) -> Option<Vec<u64>> {
    let mut places: Vec<u64> = crate::tables::targets(walk, table).into_iter().flatten().collect();
    places.sort_unstable();
    places.dedup();
    (!places.is_empty()).then_some(places)
}

/// What an instruction puts into its first operand, if it is a step on the way through a table.
fn word_of(walk: &Walk<'_, '_>, decoded: &Decoded, inst: Inst, registers: &[TableWord; 16], at: u64) -> Option<TableWord> {
    let of = |register: Reg| match register {
        Reg::General(number, 64, _) => registers[usize::from(number & 15)],
        _ => TableWord::Unknown,
    };
    match (decoded.name.as_str(), &*decoded.operands) {
        ("lea", [_, (Operand::Memory(memory), _)]) => memory.place.map(|place| TableWord::Table(Base::Offsets(place, at))),
        ("movsxd", [_, (Operand::Memory(memory), 32)]) if inst.disp == 0 => {
            let is_entry = memory.scale == 4 && memory.displacement == 0 && memory.segment == 0 && memory.index.is_some();
            match of(memory.base?) {
                TableWord::Table(base) if is_entry => Some(TableWord::Entry(base)),
                _ => None,
            }
        }
        ("mov", [_, (Operand::Memory(_), 64)]) => table_of_addresses(walk, decoded, at).map(TableWord::Target),
        ("add", [(Operand::Reg(first), _), (Operand::Reg(second), _)]) => match (of(*first), of(*second)) {
            (TableWord::Table(base), TableWord::Entry(of)) | (TableWord::Entry(of), TableWord::Table(base)) if of == base => {
                Some(TableWord::Target(base))
            }
            _ => None,
        },
        _ => None,
    }
}

/// The table of addresses of which an instruction reads an entry, in a file at a fixed address.
fn table_of_addresses(walk: &Walk<'_, '_>, decoded: &Decoded, at: u64) -> Option<Base> {
    let (memory, _) = decoded.memory()?;
    let is_entry = memory.base.is_none() && memory.index.is_some() && memory.scale == 8 && memory.segment == 0;
    let table = walk.absolute_table(&decoded.bytes).filter(|_| is_entry)?;
    Some(Base::Addresses(table, at))
}
