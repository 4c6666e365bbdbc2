//! A region's memory references, each with its address in both views.

use lifter::{Image, Va};

use super::form::{Form, Symbols};
use crate::domain::{Base, Value};
use crate::values::calls::Knowledge;
use crate::values::code::{Call, Effect, Instruction, Place, ProcedureCode, Register, RegisterSet, Sum};
use crate::values::memory::Address;
use crate::values::{Observer, State, walk};

/// A memory reference of a region.
#[derive(Clone, Debug)]
pub struct Reference {
    /// The instruction, by its number in the procedure.
    pub instruction: u32,
    pub at: Va,
    /// Which of the instruction's references it is.
    pub operand: u32,
    pub form: Form,
    pub value: Value,
    /// 0 if it is not known.
    pub size: u32,
    pub reads: bool,
    pub writes: bool,
    /// Whether others may hold an address where this one is.
    pub has_escaped: bool,
    /// The address lies in the image, whatever the base.
    pub is_in_image: bool,
    /// How many calls the region has made before.
    pub stretch: u32,
    /// The same address to one who looks at the region alone.
    pub local: Form,
    pub local_kind: LocalKind,
}

/// What a look at the region alone tells of an address: LLVM's distinction between a stack slot, a global and anything else.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LocalKind {
    Stack,
    Image,
    Other,
}

/// A path of blocks, with its references in order.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// By number in the procedure.
    pub blocks: Vec<u32>,
    pub references: Vec<Reference>,
    pub symbols: Symbols,
    pub local_symbols: Symbols,
}

impl Region {
    /// Walks a path of blocks from the state at the start of the first.
    pub fn build(
        image: &Image<'_>,
        code: &ProcedureCode,
        knowledge: &Knowledge<'_>,
        blocks: &[u32],
        at_start: &[Option<State>],
    ) -> Self {
        let mut walker = Walker {
            image_range: (image.low().0 as i64, image.high().0 as i64),
            is_fixed: !image.kind.is_position_independent(),
            code,
            region: Region { blocks: blocks.to_vec(), ..Region::default() },
            forms: std::array::from_fn(|_| Form::default()),
            locals: std::array::from_fn(|_| Form::default()),
            pending: None,
            stretch: 0,
        };
        let mut is_first = true;
        for &block in blocks {
            let Some(start) = &at_start[block as usize] else { break };
            if is_first {
                walker.begin(start);
            }
            is_first = false;
            if !walk(code, knowledge, block, start, &mut walker) {
                break;
            }
        }
        walker.region
    }

    /// Whether a look at the region alone shows that two references can't overlap: the same sum of registers at a distance, or stack and image.
    pub fn is_apart_locally(&self, a: &Reference, b: &Reference) -> bool {
        if a.size == 0 || b.size == 0 {
            return false;
        }
        if let Some(distance) = a.local.distance(&b.local) {
            return distance <= -i64::from(a.size) || distance >= i64::from(b.size);
        }
        matches!((a.local_kind, b.local_kind), (LocalKind::Stack, LocalKind::Image) | (LocalKind::Image, LocalKind::Stack))
    }
}

/// The regions of a procedure: each block on its own.
pub fn regions_of(code: &ProcedureCode) -> impl Iterator<Item = [u32; 1]> + '_ {
    (0..code.blocks.len() as u32).map(|block| [block])
}

struct Walker<'c> {
    image_range: (i64, i64),
    is_fixed: bool,
    code: &'c ProcedureCode,
    region: Region,
    forms: [Form; 16],
    /// The same without what is known at the region's start.
    locals: [Form; 16],
    /// The instruction whose effect on forms waits for the state behind it.
    pending: Option<u32>,
    stretch: u32,
}

impl Walker<'_> {
    fn begin(&mut self, start: &State) {
        for register in 0..16u8 {
            self.forms[register as usize] = self.region.symbols.form_of(&start.get(register));
            self.locals[register as usize] = self.region.local_symbols.fresh(Value::UNKNOWN);
        }
    }

    /// Brings the forms behind the pending instruction, given the state there.
    fn settle(&mut self, state: &State) {
        let Some(number) = self.pending.take() else { return };
        let instruction = self.code.instructions[number as usize];
        let writes = written(&instruction);
        let (symbolic, local) = match instruction.effect {
            Effect::Linear { sum, is_32: false, .. } => {
                (self.sum_form(&sum, &self.forms.clone(), false), self.sum_form(&sum, &self.locals.clone(), true))
            }
            Effect::Subtract { from, what, is_32: false, .. } => (
                self.forms[from as usize].add(&self.forms[what as usize], -1),
                self.locals[from as usize].add(&self.locals[what as usize], -1),
            ),
            _ => (None, None),
        };
        let old_locals = self.locals.clone();
        for register in (0..16u8).filter(|r| writes >> r & 1 != 0) {
            let value = state.get(register);
            let is_exact = value.offset().is_some() && !value.is_unknown();
            self.forms[register as usize] = match (&symbolic, is_exact) {
                (Some(form), false) => form.clone(),
                _ => self.region.symbols.form_of(&value),
            };
            self.locals[register as usize] = match (instruction.effect, &local) {
                (_, Some(form)) => form.clone(),
                (Effect::Push { .. }, _) => old_locals[register as usize].clone().plus(-8),
                (Effect::Pop { to }, _) if to != register => old_locals[register as usize].clone().plus(8),
                // A call that comes back leaves the stack pointer as it was.
                (Effect::Call(_), _) if register == crate::values::code::RSP => old_locals[register as usize].clone(),
                _ => self.region.local_symbols.fresh(Value::UNKNOWN),
            };
        }
        if matches!(instruction.effect, Effect::Call(_)) {
            self.stretch += 1;
            // Another thread may go on with it.
            self.region.symbols.forget_base(Base::THREAD);
            self.region.local_symbols.forget_base(Base::THREAD);
        }
    }

    fn sum_form(&mut self, sum: &Sum, forms: &[Form; 16], is_local: bool) -> Option<Form> {
        let symbols = if is_local { &mut self.region.local_symbols } else { &mut self.region.symbols };
        let start = if sum.is_image { symbols.base(Base::IMAGE) } else { Form::constant(0) };
        let mut form = start.plus(sum.constant);
        if let Some(base) = sum.base {
            form = form.add(&forms[base as usize], 1)?;
        }
        match sum.index {
            Some(index) => form.add(&forms[index as usize], sum.scale),
            None => Some(form),
        }
    }

    fn place_form(&mut self, place: &Place, value: &Value, is_local: bool) -> Form {
        let forms = if is_local { self.locals.clone() } else { self.forms.clone() };
        let form = match place {
            Place::Sum(sum) => self.sum_form(sum, &forms, is_local),
            Place::Thread(sum) => {
                let symbols = if is_local { &mut self.region.local_symbols } else { &mut self.region.symbols };
                let thread = symbols.base(Base::THREAD);
                self.sum_form(sum, &forms, is_local).and_then(|form| form.add(&thread, 1))
            }
            Place::Unknown => None,
        };
        match (form, is_local) {
            (Some(form), _) => form,
            (None, true) => self.region.local_symbols.fresh(Value::UNKNOWN),
            (None, false) => self.region.symbols.fresh(*value),
        }
    }
}

impl Observer for Walker<'_> {
    fn at_instruction(&mut self, number: u32, state: &State, addresses: &[Address]) {
        self.settle(state);
        let code = self.code;
        let instruction = &code.instructions[number as usize];
        for (operand, (reference, address)) in code.references_of(instruction).iter().zip(addresses).enumerate() {
            if reference.is_implicit {
                continue;
            }
            let value = address.value;
            let size = i64::from(reference.size);
            let is_within = !value.offsets.is_full()
                && value.offsets.low >= self.image_range.0
                && value.offsets.high.saturating_add(size) <= self.image_range.1;
            let form = self.place_form(&reference.address, &value, false);
            let local = self.place_form(&reference.address, &value, true);
            self.region.references.push(Reference {
                instruction: number,
                at: Va(instruction.at),
                operand: operand as u32,
                form,
                value,
                size: reference.size,
                reads: reference.reads,
                writes: reference.writes,
                has_escaped: state.may_be_known_elsewhere(&value),
                is_in_image: self.is_fixed && value.base == Base::NUMBER && is_within,
                stretch: self.stretch,
                local,
                local_kind: local_kind(&reference.address),
            });
        }
        self.pending = Some(number);
    }

    fn at_call(&mut self, _: &Call, _: &State, _: bool) {}
}

fn local_kind(place: &Place) -> LocalKind {
    match place {
        Place::Sum(sum) if sum.base == Some(crate::values::code::RSP) => LocalKind::Stack,
        Place::Sum(sum) if sum.is_image && sum.index.is_none() => LocalKind::Image,
        _ => LocalKind::Other,
    }
}

/// The registers that an instruction gives new values to.
fn written(instruction: &Instruction) -> RegisterSet {
    let bit = |register: Register| 1 << register;
    let stack = bit(crate::values::code::RSP);
    match instruction.effect {
        Effect::None | Effect::Store { .. } => 0,
        Effect::Linear { to, .. }
        | Effect::Subtract { to, .. }
        | Effect::And { to, .. }
        | Effect::Extend { to, .. }
        | Effect::Bounded { to, .. }
        | Effect::Load { to }
        | Effect::Select { to, .. } => bit(to),
        Effect::Push { .. } => stack,
        Effect::Pop { to } => bit(to) | stack,
        Effect::Leave => stack | bit(crate::values::code::RBP),
        Effect::Exchange { a, b } => bit(a) | bit(b),
        Effect::Generic { writes, .. } => writes,
        Effect::Call(_) => RegisterSet::MAX,
        Effect::SystemCall => bit(0) | bit(1) | bit(11),
    }
}
