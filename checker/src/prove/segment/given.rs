//! Whether the address of a jump table, or what was made of one, goes where the table is not followed ([`super::switch`]).
//!
//! **Problem.** What a followed table leads to is asked for nowhere else. Who has its address and knows nothing may jump through it all the same, and finds in the output what holds only with what callers know.
//! Besides, the address and the entries are other numbers in the two programs, although they count as one value.
//!
//! **Method.** Values remember whether a table's address went into them, from segment to segment, however little is known of them otherwise ([`super::super::facts`]). Where a segment ends, each place that holds such a value
//! must be one that nobody reads who knows nothing:
//! * Memory that others see is none, and neither is anything that an instruction uses which is not looked into.
//! * At a call of code of the file, liveness tells what that reads; arguments on the stack and in vector registers count as read. A thunk for indirect branches does not come back: control may go where
//!   nothing is known with all that there is. So it is behind a trap, and behind a call of which the checker says that it does not come back, with what calls keep.
//! * At a return, liveness tells what the callers read; of `rax` and `rdx`, that functions return no address of a table, which is no object of the source. For that reason code of other files gets none either.
//! * A return that does not lead to the caller is a jump by address.
//! * Where an address of the frame goes elsewhere, slots are seen by others.
//! * At a tail call that ends a proof, [`super::tail`] asks.
//! * A call to where an entry leads follows none of them.

use super::super::decoded::Reg;
use super::super::expr::Id;
use super::super::facts;
use super::super::liveness::{KEPT, Targets, VECTORS, has};
use super::{Cursor, Run};
use crate::decode::{Inst, Kind};

/// `rax` and `rdx`.
const RETURNED: [u8; 2] = [0, 2];

/// Where there are values of a table.
struct Held {
    general: Vec<u8>,
    vectors: Vec<u8>,
    slots: bool,
}

impl Run<'_, '_, '_> {
    /// A jump by address that is not followed: whether it may go through a table of the function.
    pub(super) fn note_jump(&mut self, at: u64, inst: Inst) {
        let is_tail_call = |targets: Targets| targets.places.is_empty();
        let leaves = inst.disp != 0 || self.prover.targets_of(self.walk, at).is_some_and(is_tail_call);
        self.segment.jumps_elsewhere |= !leaves;
    }

    /// A call, or a jump that is not followed: whether it goes through a table.
    pub(super) fn note_target(&mut self, target: Id) {
        self.segment.jumps_elsewhere |= self.pool.is_of_table(target);
    }

    /// Notes whether the segment gives the address of a table away.
    pub(super) fn note_tables_given_away(&mut self, input: &Cursor) {
        if self.prover.follows_tables && self.gives_table_away(input) {
            self.segment.jumps_elsewhere = true;
        }
    }

    fn gives_table_away(&mut self, input: &Cursor) -> bool {
        let is_one = |id| self.pool.is_of_table(id);
        if input.machine.stores.iter().any(|store| store.value.is_some_and(is_one)) || is_one(input.machine.rest) {
            return true;
        }
        let held = self.held_of_tables(input);
        if held.general.is_empty() && held.vectors.is_empty() && !held.slots {
            return false;
        }
        if input.lets_out {
            return held.slots;
        }
        let Some(inst) = self.walk.input.inst(input.at).filter(|_| input.within.is_none()) else { return true };
        match inst.kind {
            Kind::Trap => true,
            Kind::Call | Kind::IndirectCall => self.is_passed(input, inst, &held),
            Kind::Return => {
                let mut scratch = held.general.iter().filter(|register| !RETURNED.contains(register));
                !self.has_no_frame(input)
                    || scratch.any(|&register| !self.prover.is_dead_at_return(self.walk, self.root, register))
            }
            Kind::Branch | Kind::Loop | Kind::Jump | Kind::IndirectJump | Kind::Stop => false,
            Kind::Plain | Kind::Lea | Kind::Nop | Kind::EndBranch => self.is_used(input, inst, &held),
        }
    }

    fn held_of_tables(&self, cursor: &Cursor) -> Held {
        let of = |ids: &[_]| (0..ids.len()).filter(|&place| self.pool.is_of_table(ids[place])).map(|place| place as u8).collect();
        let machine = &cursor.machine;
        let slots = machine.slots.values().any(|&(_, id)| self.pool.is_of_table(id));
        Held { general: of(&machine.general), vectors: of(&machine.vectors), slots }
    }

    /// Whether a call passes one to code that reads it, or takes control elsewhere with one.
    fn is_passed(&mut self, input: &Cursor, inst: Inst, held: &Held) -> bool {
        let stays = held.slots || held.general.iter().any(|&register| has(KEPT, register));
        if stays && self.walk.call_never_returns(input.at, inst) {
            return true;
        }
        let Some(callee) = self.prover.own_callee(self.walk, input.at, inst) else { return false };
        held.slots
            || !held.vectors.is_empty()
            || self.walk.input.drops_return_address(callee)
            || held.general.iter().any(|&register| !self.prover.is_unread_at_call(self.walk, input.at, inst, register))
    }

    /// Whether an instruction that is not looked into may use one.
    fn is_used(&mut self, input: &Cursor, inst: Inst, held: &Held) -> bool {
        let Some(decoded) = self.prover.decode(true, self.walk.input, input.at, inst) else { return true };
        let is_of_frame = |register: Reg| matches!(register, Reg::General(number, ..) if self.pool.is_of_frame(input.machine.general[usize::from(number & 15)]));
        let reaches_slots =
            || decoded.memory().is_none_or(|(memory, _)| [memory.base, memory.index].into_iter().flatten().any(is_of_frame));
        held.general.iter().any(|&register| decoded.may_use(register))
            || held.vectors.iter().any(|&register| register >= 16 || decoded.may_use(VECTORS + register))
            || held.slots && reaches_slots()
    }

    /// The same at a tail call that ends the proof: what is called may use all that somebody reads from there on.
    pub(super) fn has_table_at_tail_call(&mut self, input: &Cursor) -> bool {
        let mut machine = input.machine.clone();
        facts::drop_popped(&mut machine, &mut input.machine.clone());
        let is_in_slot = machine.slots.values().any(|&(_, id)| self.pool.is_of_table(id));
        let held = self.held_of_tables(input);
        is_in_slot
            || !held.vectors.is_empty()
            || held.general.iter().any(|&register| !self.prover.is_dead_at_jump(self.walk, input.at, register))
    }
}
