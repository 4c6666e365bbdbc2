//! Jumps through tables inside of what is proven with what callers know.
//!
//! **Problem.** What a jump table leads to is asked for as a pair where nothing is known. In a copy of a function for certain callers it holds only with what is known at the jump.
//!
//! **Method.** Where the input names a jump table `T`, both programs get a value of its own, the *table* `T`, which no arithmetic with other addresses gives and which nothing brings into a
//! proof: not its callers, not memory that others see. Both programs jump to `T + m[T + 4 * i]`, the same value in both. Entry by entry the proof goes on where both lead, with what is known at the
//! jump, and none of these pairs is asked for where nothing is known ([`Effect::Followed`]): the entries are explained, and the rest of the table is treated as ever.
//!
//! **Why this is sound.**
//! * The same value in both means the same `i`, the same table for the load as for the sum, and no other address in either.
//! * The output has the table `T` from its instructions alone that name it, and all that one proof meets name the same place; if another one turns up, no jump through `T` is proven. So that place is
//!   what the output's jump goes through, and its entries are read there.
//! * How many entries there are is what the walk takes them to be ([`tables`]), by the instruction that names the table; where several do, the most of all. The program selects no others.
//! * What the output's table leads to is not asked for only if nobody else can jump through it: each jump by address in the proof goes through tables that are followed, or leaves the
//!   function; and the table's address goes nowhere where nothing is known ([`super::given`]). Nor does control come back to the function in the middle while a register has the table: it has no
//!   handlers for exceptions. If any of that fails, all entries are asked for as ever, and that is more. If other instructions of the output name the same table, they ask for the same.
//!
//! A jump of the input alone goes where the entry leads that is known, if the entry never changes: so the output may go there at once.

use std::rc::Rc;

use super::super::Key;
use super::super::constant::ENTRY;
use super::super::expr::{FromTable, Id, Node};
use super::super::facts::Facts;
use super::super::semantics::Place;
use super::{Cursor, Effect, Run, STEPS_MAX, Step};
use crate::decode::{Inst, Kind};
use crate::tables::{self, TableReference};
use crate::walk::Reference;

impl Run<'_, '_, '_> {
    /// What an instruction of the input names.
    pub(super) fn named_by(&mut self, at: u64, inst: Inst) -> Place {
        let place = self.walk.input.operand(at, inst);
        if inst.kind == Kind::Lea { self.table_or_place(place, at) } else { Place::At(place) }
    }

    /// A place that an instruction names of which the input's counterpart is `from`.
    pub(super) fn table_or_place(&mut self, place: u64, from: u64) -> Place {
        if !self.prover.follows_tables || self.is_fixed() {
            return Place::At(place);
        }
        let table = TableReference { input: place, output: place, width: 4, from, origin: from };
        let walk = self.walk;
        let is_table = *self.prover.is_table.entry((place, from)).or_insert_with(|| !tables::targets(walk, table).is_empty());
        if is_table { Place::Table(place) } else { Place::At(place) }
    }

    /// Notes what the output names where the input names a place that may be a jump table.
    pub(super) fn note_table(&mut self, reference: Reference, from: u64, origin: u64) {
        if let Reference::Table { input, output, width: 4 } = reference {
            let is_it = |known: &TableReference| (known.input, known.output, known.from) == (input, output, from);
            if !self.prover.tables.iter().any(is_it) {
                self.prover.tables.push(TableReference { input, output, width: 4, from, origin });
            }
        }
    }

    /// Goes on behind a jump to a value that is the same in both programs, if it goes through a table: whether it does.
    pub(super) fn switch(&mut self, input: &Cursor, output: &Cursor, target: Id) -> Step<bool> {
        let Some((table, None)) = self.entry_of(target) else { return Ok(false) };
        if self.has_handlers(input.at) {
            return Ok(false);
        }
        self.segment.table = Some(table);
        let known = || self.prover.tables.iter().filter(|known| known.input == table);
        let Some(first) = known().next() else { return Ok(false) };
        if known().any(|other| other.output != first.output) {
            return self.fail(
                output.at,
                format!("may go through another table than it takes the entry from, for {table:#x} of the input"),
            );
        }
        // Other comparisons may stand before other instructions that name it.
        let each: Option<Vec<_>> = known().map(|&known| Some((tables::certain_pairs(self.walk, known)?, known))).collect();
        let Some((mut pairs, reference)) = each.and_then(|each| each.into_iter().max_by_key(|(pairs, _)| pairs.len())) else {
            return Ok(false);
        };
        pairs.sort_unstable();
        pairs.dedup();
        // What code compares with its own address needs more than the same instructions.
        if pairs.iter().any(|&(input, _)| self.walk.survey.is_referenced(input)) {
            return Ok(false);
        }
        let facts = Rc::new(Facts::end(&mut self.pool, &input.machine, &output.machine));
        let key = |(input, output)| Key { input, output, within: None };
        self.segment.successors.extend(pairs.into_iter().map(|pair| (key(pair), Rc::clone(&facts))));
        self.segment.effects.push(Effect::Followed(reference));
        Ok(true)
    }

    /// Whether an exception may land in a function.
    fn has_handlers(&mut self, at: u64) -> bool {
        let unwind = &self.walk.input.unwind;
        let Some(fde) = unwind.fde_at(at) else { return true };
        let members = self.prover.members_of(self.walk, self.walk.survey.group_of(fde));
        members.iter().any(|&(start, _)| unwind.fde_at(start).is_none_or(|fde| unwind.fdes[fde as usize].lsda.is_some()))
    }

    /// The table of which a value is an entry, added to the table's address; and the distance of the entry if that is known and the entry never changes.
    fn entry_of(&self, target: Id) -> Option<(u64, Option<u64>)> {
        let FromTable { table, by: 0, rest: Some((word, 1)) } = self.pool.split_from_table(target)? else { return None };
        let Node::Sext(word) = *self.pool.node(word) else { return None };
        let Node::Load(number, address, 32) = *self.pool.node(word) else { return None };
        let FromTable { table: base, by, rest: index } = self.pool.split_from_table(address)?;
        let is_entry = match index {
            Some((_, factor)) => by == 0 && factor == 4,
            None => by % 4 == 0 && number == ENTRY,
        };
        (base == table && is_entry).then_some((table, index.is_none().then_some(by)))
    }

    /// The input jumps where what is known says, and stays in its function: it goes there alone.
    pub(super) fn jump_alone(&mut self, input: &mut Cursor, a: Inst) -> Step<bool> {
        if a.kind != Kind::IndirectJump || input.within.is_some() || a.disp != 0 {
            return Ok(false);
        }
        let Some(decoded) = self.prover.decode(true, self.walk.input, input.at, a) else { return Ok(false) };
        let target = self.target_of(&mut input.machine, &decoded, (input.at, None))?;
        let Some((table, Some(by))) = self.entry_of(target) else { return Ok(false) };
        let Some(place) = tables::entry(self.walk.input, table, table.wrapping_add(by), 4) else { return Ok(false) };
        if !self.walk.is_same_function(input.at, place) {
            return Ok(false);
        }
        self.note_row(true, input)?;
        input.pass(a.len);
        if input.steps > STEPS_MAX {
            return self.fail(input.at, "too many jumps in a row");
        }
        input.decided += 1;
        input.at = place;
        self.advance_input(input)?;
        Ok(true)
    }
}
