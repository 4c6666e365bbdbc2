//! Pieces of code as a label and what follows: what two layouts of the same code have in common.
//!
//! **Method.** A piece begins anywhere and ends with the first instruction that leads elsewhere or may name something that moves. Jumps are followed and
//! padding is skipped, so where blocks lie changes nothing; a branch gives the way of its even condition first, since a layout may invert
//! it. The label hashes the instructions but for the fields that may move, the rules of unwinding in force, and handlers at calls. It depends on
//! the code from there on alone, never on where other pieces begin: equal code has equal pieces in both files.
//!
//! An `endbr64` that begins a function to which the walk came is padding to direct calls and jumps of what is left, since the output may lack it (`Walk::may_lose_mark`) or have a further entry; it is an instruction to all that names its address.
//!
//! **Terminates**: a piece has at most [`INSTRUCTIONS_MAX`] instructions and [`JUMPS_MAX`] jumps; padding comes to an end.

use std::hash::Hasher;

use rustc_hash::FxHashMap;

use crate::decode::{Inst, Kind, Shape};
use crate::unwind::{Located, NONE};
use crate::walk::{CALL_THROUGH, Side, Stands, Walk, condition, prefixes};

/// So that a loop without a branch ends.
const INSTRUCTIONS_MAX: usize = 64;
const JUMPS_MAX: usize = 512;

/// Whose code it is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Of {
    Input,
    Output,
}

/// Jump tables that the input's code names: by address the targets, `None` for entries that cannot be selected.
pub(super) type Tables = FxHashMap<u64, Vec<Option<u64>>>;

#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) label: u64,
    pub(super) end: End,
}

/// What follows a piece; addresses as they are named.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Nothing,
    Flow(u64),
    Ways(u64, u64),
    Call {
        callee: Option<u64>,
        landing_pad: Option<u64>,
        personality: Option<u64>,
        at: u64,
        inst: Inst,
    },
    /// An instruction that names code.
    Names {
        target: u64,
        after: u64,
    },
    /// An instruction with a field that may name code, a table of entries of `width` bytes, or nothing but itself.
    MayName {
        value: u64,
        at: u64,
        field: u8,
        width: u8,
        after: Option<u64>,
    },
}

/// What an instruction says apart from its bytes.
enum Field {
    None,
    Names(u64),
    MayName { value: u64, field: usize, width: u8 },
}

/// Where following jumps and padding leads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    At(u64),
    Cycle,
    Bad(u64),
}

pub(super) struct Reader<'r, 'w, 'a> {
    pub(super) walk: &'r Walk<'w, 'a>,
    pub(super) of: Of,
    pub(super) tables: &'r Tables,
}

impl<'w, 'a> Reader<'_, 'w, 'a> {
    pub(super) fn side(&self) -> &'w Side<'a> {
        match self.of {
            Of::Input => self.walk.input,
            Of::Output => self.walk.output,
        }
    }

    /// The index in the input's code of what the walk found to stand at `address`; of several that stand together always the same.
    pub(super) fn related(&self, address: u64) -> Option<usize> {
        let index = self.side().code.index(address)?;
        match self.of {
            // Of what was found for certain callers alone, the output may have all of the function besides.
            Of::Input => self.walk.relation.first_of(index).filter(|_| self.walk.relation.stands_for_all(index)),
            Of::Output if self.walk.relation.is_conditional(index) => None,
            Of::Output => match self.walk.relation.input_of(index)? {
                Stands::For(input) => self.walk.relation.first_of(input),
                // What leads into the middle of a body that replaced a call is another thing than what leads into the callee.
                Stands::ForCall => None,
            },
        }
    }

    /// The index in the input's code of the call for which the walk found something else at `address` of the output, or which is there in the input: from
    /// such a place on both files are known to do the same. Of several calls for which the output has one thing, as where ends of functions are shared, it is always the same. A call past its stub has the same label as
    /// the call of the stub: code that nothing reaches may have that still.
    fn rewritten_call(&self, address: u64) -> Option<usize> {
        let index = self.side().code.index(address)?;
        let relation = &self.walk.relation;
        let call = match self.of {
            Of::Input => relation.is_rewritten_call(index).then_some(index),
            Of::Output => relation.call_rewritten_at(index),
        };
        let call = call.filter(|&call| {
            let input = self.walk.input;
            let at = input.code.address(call);
            let target = input.inst(at).filter(|inst| inst.kind == Kind::Call).map(|inst| input.target(at, inst));
            target.and_then(|target| input.slot_of_stub(target)).is_none()
        })?;
        Some(relation.first_of(call).unwrap_or(call))
    }

    /// Whether an `endbr64` is nothing to calls and jumps that name it, as all that nothing reached may: it begins a function that the walk came to behind it. The output may have lost it there, or have a second
    /// entry without the one, or with one of its own. What holds the address does not pass it. An `endbr64` that nothing reached and that runs on into what was reached (a cold part in which a compiler saw no way on) looks
    /// the same, so that it is passed in the output, too.
    fn is_passed_mark(&self, address: u64, inst: Inst) -> bool {
        if inst.kind != Kind::EndBranch {
            return false;
        }
        let in_input = match self.of {
            Of::Input => Some(address),
            Of::Output => self.related(address).map(|index| self.walk.input.code.address(index)),
        };
        let begins_function = in_input.is_none_or(|address| self.walk.input.unwind.starts_at(address));
        let is_reached = |address| match self.follow(address, |_, _| false, |_, _| {}) {
            Place::At(place) => self.related(place).is_some(),
            Place::Bad(_) | Place::Cycle => false,
        };
        begins_function && is_reached(address + u64::from(inst.len))
    }

    /// Where an address leads that something holds, which needs its mark; `visit` sees the jumps and the padding between.
    pub(super) fn lead(&self, start: u64, visit: impl FnMut(u64, Inst)) -> Place {
        self.follow(start, |address, inst| address != start && self.is_passed_mark(address, inst), visit)
    }

    /// Where a direct call or jump leads.
    pub(super) fn flow(&self, start: u64, visit: impl FnMut(u64, Inst)) -> Place {
        self.follow(start, |address, inst| self.is_passed_mark(address, inst), visit)
    }

    fn follow(&self, mut address: u64, is_passed: impl Fn(u64, Inst) -> bool, mut visit: impl FnMut(u64, Inst)) -> Place {
        let mut jumps = 0;
        loop {
            let Some(inst) = self.side().inst(address) else { return Place::Bad(address) };
            match inst.kind {
                _ if self.side().is_idle(inst) || is_passed(address, inst) => {
                    visit(address, inst);
                    address += u64::from(inst.len);
                }
                Kind::Jump => {
                    visit(address, inst);
                    jumps += 1;
                    if jumps > JUMPS_MAX {
                        return Place::Cycle;
                    }
                    address = self.side().target(address, inst);
                }
                _ => return Place::At(address),
            }
        }
    }

    /// Reads the piece at `start`.
    pub(super) fn piece(&self, start: u64, mut visit: impl FnMut(u64, Inst)) -> Piece {
        let mut label = Label::new();
        let (mut address, mut jumps, mut count) = (start, 0, 0);
        loop {
            if count == INSTRUCTIONS_MAX {
                return label.end(End::Flow(address));
            }
            let Some(inst) = self.side().inst(address) else {
                label.bad(self.side(), address);
                return label.end(End::Nothing);
            };
            let after = address + u64::from(inst.len);
            let is_idle = self.side().is_idle(inst) || address != start && self.is_passed_mark(address, inst);
            if is_idle || inst.kind == Kind::Jump || self.rewritten_call(address).is_none() {
                visit(address, inst);
            }
            match inst.kind {
                _ if is_idle => address = after,
                Kind::Jump if jumps == JUMPS_MAX => return label.end(End::Nothing),
                Kind::Jump => {
                    jumps += 1;
                    address = self.side().target(address, inst);
                }
                _ => {
                    if let Some(call) = self.rewritten_call(address) {
                        return label.known(call);
                    }
                    count += 1;
                    if !self.walk.assumptions.no_async_unwind
                        || crate::quiet::can_stop(self.side().code.bytes(address, inst), inst.kind)
                    {
                        label.rules(self.side(), address);
                    }
                    if let Some(end) = self.instruction(address, inst, &mut label) {
                        return label.end(end);
                    }
                    address = after;
                }
            }
        }
    }

    /// Adds an instruction to the label; gives the end of the piece if it is one.
    fn instruction(&self, address: u64, inst: Inst, label: &mut Label) -> Option<End> {
        let side = self.side();
        let bytes = side.code.bytes(address, inst);
        let after = address + u64::from(inst.len);
        // A call of a stub is the call through its slot that it may become.
        if inst.kind == Kind::Call
            && let Some(slot) = side.slot_of_stub(side.target(address, inst))
        {
            label.byte(Kind::IndirectCall as u8);
            label.bytes(&CALL_THROUGH);
            label.word(slot);
            return Some(self.call(address, inst, None, label));
        }
        label.byte(inst.kind as u8);
        match inst.kind {
            Kind::Branch => {
                label.byte(condition(bytes) & 14);
                prefixes(bytes).for_each(|&prefix| label.byte(prefix));
                let target = side.target(address, inst);
                let is_even = condition(bytes) & 1 == 0;
                Some(if is_even { End::Ways(target, after) } else { End::Ways(after, target) })
            }
            Kind::Loop => {
                let field = if bytes.first() == Some(&0xc7) { 4 } else { 1 };
                label.bytes(&bytes[..bytes.len().saturating_sub(field)]);
                Some(End::Ways(side.target(address, inst), after))
            }
            Kind::Call => {
                prefixes(bytes).filter(|&&prefix| prefix != 0x67).for_each(|&prefix| label.byte(prefix));
                Some(self.call(address, inst, Some(side.target(address, inst)), label))
            }
            Kind::IndirectCall => {
                self.operand(address, inst, bytes, label);
                Some(self.call(address, inst, None, label))
            }
            _ => {
                let ends = inst.ends_flow() || inst.kind == Kind::Trap;
                match self.field(address, inst, bytes, label) {
                    Field::Names(target) => Some(End::Names { target, after }),
                    Field::MayName { value, field, width } => {
                        let after = Some(after).filter(|_| !ends);
                        Some(End::MayName { value, at: address, field: field as u8, width, after })
                    }
                    Field::None => ends.then_some(End::Nothing),
                }
            }
        }
    }

    fn call(&self, at: u64, inst: Inst, callee: Option<u64>, label: &mut Label) -> End {
        let side = self.side();
        let mut end = (None, None);
        // Where exceptions pass, it makes no difference that the entry has a table for its other functions.
        if let Some(fde) = side.unwind.fde_at(at).filter(|&fde| !side.passes_by_table(fde, at)) {
            end.1 = side.unwind.fdes[fde as usize].local_personality;
            if let Some(sites) = side.call_sites(fde) {
                let site = sites.find(at);
                end.0 = site.and_then(|site| site.landing_pad);
                label.handlers(site);
            }
        }
        End::Call { callee, landing_pad: end.0, personality: end.1, at, inst }
    }

    /// All bytes of an instruction, with the address that a rip-relative operand names in place of the distance.
    fn operand(&self, address: u64, inst: Inst, bytes: &[u8], label: &mut Label) {
        let disp = usize::from(inst.disp);
        if disp == 0 || bytes.len() < disp + 4 {
            label.bytes(bytes);
            return;
        }
        label.bytes(&bytes[..disp]);
        label.word(self.side().operand(address, inst));
        label.bytes(&bytes[disp + 4..]);
    }

    /// The same, without a field that may move.
    fn field(&self, address: u64, inst: Inst, bytes: &[u8], label: &mut Label) -> Field {
        let side = self.side();
        if inst.kind == Kind::Lea && inst.disp != 0 {
            let value = side.operand(address, inst);
            let names_function = self.names_function(value);
            if names_function || self.may_move(value) {
                label.bytes(&bytes[..usize::from(inst.disp).min(bytes.len())]);
                let is_marked = names_function && side.has_ibt && side.begins_with_mark(value);
                label.byte(u8::from(names_function) + u8::from(is_marked));
                let field = usize::from(inst.disp);
                return if names_function { Field::Names(value) } else { Field::MayName { value, field, width: 4 } };
            }
        } else if inst.kind == Kind::Plain && inst.disp != 0 && self.may_be_of_table(side.operand(address, inst)) {
            // A case that the compiler knew, as of a number that it compared before: the entry is loaded without an index.
            let (field, value) = (usize::from(inst.disp), side.operand(address, inst));
            label.bytes(&bytes[..field.min(bytes.len())]);
            label.bytes(bytes.get(field + 4..).unwrap_or(&[]));
            return Field::MayName { value, field, width: 4 };
        } else if self.walk.input.image.is_position_dependent()
            && let Some((at, size, value)) = absolute_fields(inst, bytes).find(|&(_, _, value)| self.may_move(value))
        {
            self.operand(address, inst, &bytes[..at], label);
            label.bytes(&bytes[at + size..]);
            return Field::MayName { value, field: at as u8 as usize, width: 8 };
        }
        self.operand(address, inst, bytes, label);
        Field::None
    }

    /// Whether a function, or a part of one, is at an address, or a jump to one: what unseen pointers may name keeps its address by a jump that no frame description covers.
    fn names_function(&self, address: u64) -> bool {
        let unwind = &self.side().unwind;
        let leads_to_function = || match self.lead(address, |_, _| {}) {
            Place::At(place) => unwind.fde_at(place).is_some(),
            Place::Bad(_) | Place::Cycle => false,
        };
        let is_old_entry = || self.of == Of::Output && self.side().undescribed_jump(address).is_some();
        unwind.fde_at(address).is_some() || is_old_entry() && leads_to_function()
    }

    /// Whether an address may be another one in the other file: code, a jump table, or what only the output has.
    fn may_move(&self, value: u64) -> bool {
        let (input, output) = (&self.walk.input.image, &self.walk.output.image);
        input.in_code(value) || output.in_code(value) || self.may_be_of_table(value)
    }

    /// Whether a jump table may be at an address: one of the input, or a copy where only the output has anything.
    fn may_be_of_table(&self, value: u64) -> bool {
        let (input, output) = (&self.walk.input.image, &self.walk.output.image);
        self.tables.contains_key(&value) || output.tail(value).is_some() && input.tail(value).is_none()
    }
}

/// Fields that may hold an absolute address: offset, size, value.
fn absolute_fields(inst: Inst, bytes: &[u8]) -> impl Iterator<Item = (usize, usize, u64)> {
    let shape = Shape::of(bytes);
    let read = move |at: usize, size: usize| {
        let field = bytes.get(at..at + size)?;
        Some((at, size, field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))))
    };
    let displacement = shape.wide_displacement(bytes).filter(|_| inst.disp == 0);
    // Other last bytes are no number, whatever they say.
    let immediate = shape.wide_immediate_at(bytes);
    let fields = [displacement.map(|at| (at, 4)), immediate.map(|at| (at, bytes.len() - at))];
    fields.into_iter().flatten().filter_map(move |(at, size)| read(at, size))
}

/// The bytes of a label before they are hashed.
struct Label {
    bytes: Vec<u8>,
    located: Located,
    rules: (u32, u32),
    handling: u32,
}

impl Label {
    fn new() -> Self {
        Self { bytes: Vec::with_capacity(64), located: Located::nowhere(), rules: (NONE - 1, NONE - 1), handling: NONE - 1 }
    }

    fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn word(&mut self, word: u64) {
        self.bytes(&word.to_le_bytes());
    }

    /// The rules of unwinding and who handles exceptions, where they are others than before.
    fn rules(&mut self, side: &Side<'_>, address: u64) {
        if !self.located.covers(address) {
            self.located = side.unwind.locate(address);
        }
        let rules = (self.located.row, side.bare_frame(&self.located));
        if rules != self.rules {
            self.rules = rules;
            self.word(u64::from(rules.0) << 32 | u64::from(rules.1));
        }
        let handling = if side.can_raise_at(address) { side.frame_at(&self.located, address) } else { self.handling };
        if handling != self.handling {
            self.handling = handling;
            self.byte(0xfd);
            self.word(u64::from(handling));
        }
    }

    fn handlers(&mut self, site: Option<&crate::unwind::CallSite>) {
        let Some(site) = site else { return self.byte(1) };
        self.byte(2 + u8::from(site.landing_pad.is_some()));
        let mut hasher = std::hash::DefaultHasher::new();
        std::hash::Hash::hash(&*site.handlers, &mut hasher);
        self.word(hasher.finish());
    }

    /// What cannot be decoded is the same only at the same address.
    fn bad(&mut self, side: &Side<'_>, address: u64) {
        self.byte(0xff);
        self.word(address);
        let tail = side.code.tail(address).unwrap_or(&[]);
        self.bytes(&tail[..tail.len().min(15)]);
    }

    /// The end of a piece that runs into what is known.
    fn known(&mut self, call: usize) -> Piece {
        self.byte(0xfe);
        self.word(call as u64);
        self.end(End::Nothing)
    }

    fn end(&self, end: End) -> Piece {
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(&self.bytes);
        let shape = match end {
            End::Nothing => 0,
            End::Flow(_) => 1,
            End::Ways(..) => 2,
            End::Call { callee, landing_pad, personality, .. } => {
                3 + u8::from(callee.is_some()) + 2 * u8::from(landing_pad.is_some()) + 4 * u8::from(personality.is_some())
            }
            End::Names { .. } => 11,
            End::MayName { after, .. } => 12 + u8::from(after.is_some()),
        };
        hasher.write_u8(shape);
        Piece { label: hasher.finish(), end }
    }
}
