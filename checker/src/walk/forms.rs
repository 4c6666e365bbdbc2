//! Instructions of the output that do in fewer bytes what the input's do.
//!
//! **The rules**, each for one instruction of the input and one of the output:
//! * Moves of vectors and halves of them, zeros in them, and low halves put together, without the prefix that says what type the elements have.
//! * `push` for `sub $8, %rsp`, where what comes next reads no flags, and where nothing is kept in the word below the stack pointer ([`super::below`]): then nobody has written the word that the stack pointer names now, and
//!   nobody reads it first.
//! * `pop` for `add $8, %rsp`, where what comes next reads no flags, and writes the register before anything reads it or may fault. One that calls keep must be taken off the stack there: who unwinds finds it where it was saved.
//! * `xor` of a register with itself for a move of zero, where what comes next reads no flags.
//! * For a move of a number or the address of data, a move or sum of a register of which the output's code makes known that the result is that ([`crate::straight`]), from an instruction on from which control comes straight here.
//! * For a store of a number, a store of a register that holds it, as wide, and at the same address.
//!
//! Where control arrives is known when all has been walked: that it arrives nowhere between is asked then ([`Walk::judge_forms`]).
//! What a call of a subroutine ([`super::subroutines`]) does is what stands there.
//!
//! **Bounds.** [`BEHIND`] instructions of the output are looked at, and [`AHEAD`] of the input. What comes next is followed through jumps. Calls, returns and jumps to other files hand on no flags.

use super::{Reference, Walk};
use crate::decode::{Inst, Kind};
use crate::report::{Violation, ViolationKind};
use crate::straight::{Parts, Registers, Value};

/// Instructions back to which what registers hold is followed.
const BEHIND: usize = 48;
/// Instructions that may come before the one that decides.
const AHEAD: usize = 48;

/// `sub $8, %rsp`
const LOWER: [u8; 4] = [0x48, 0x83, 0xec, 8];
/// `add $8, %rsp`
const RAISE: [u8; 4] = [0x48, 0x83, 0xc4, 8];

/// `rbx`, `rbp`, `rsp` and `r12` to `r15`.
const KEPT: u16 = 0xf038;

/// The last instructions of the output through which a walk came straight to where it is.
pub(super) struct Straight {
    addresses: [u64; BEHIND],
    count: usize,
    next: u64,
}

impl Straight {
    pub(super) fn new() -> Self {
        Self { addresses: [0; BEHIND], count: 0, next: u64::MAX }
    }

    /// Whether a walk comes to an instruction from the one before it.
    pub(super) fn come_to(&mut self, address: u64) -> bool {
        let is_next = address == self.next;
        if !is_next {
            (self.count, self.next) = (0, address);
        }
        is_next
    }

    pub(super) fn pass(&mut self, address: u64, inst: Inst) {
        self.addresses[self.count % BEHIND] = address;
        self.count += 1;
        self.next = address + u64::from(inst.len);
    }

    /// In order.
    fn addresses(&self) -> impl Iterator<Item = u64> {
        (self.count.saturating_sub(BEHIND)..self.count).map(|number| self.addresses[number % BEHIND])
    }
}

/// What was taken for granted about forms.
#[derive(Default)]
pub(super) struct Forms {
    /// Stretches of the output, by index, into which control must come by their first instruction alone, ending with the one that counts on it.
    pub(super) relied: Vec<(u32, u32)>,
}

impl Walk<'_, '_> {
    /// Passes an instruction of the output that is a shorter form of the input's; `false` if it is none.
    pub(super) fn pass_form(&mut self, (i, a): (u64, Inst), (o, b): (u64, Inst), straight: &Straight) -> Result<bool, Violation> {
        let Some(reference) = self.compare_forms((i, a), (o, b), straight)? else { return Ok(false) };
        if let (Some(from), Some(to)) = (self.input.code.index(i), self.output.code.index(o)) {
            self.relation.rewrite(from, to);
        }
        self.follow(reference, i, o)?;
        Ok(true)
    }

    /// What the instructions refer to, if the output's is another form of the input's.
    fn compare_forms(
        &mut self,
        (i, a): (u64, Inst),
        (o, b): (u64, Inst),
        straight: &Straight,
    ) -> Result<Option<Option<Reference>>, Violation> {
        if !self.may_be_form(a, b) || self.is_known_by_fault(i, a) {
            return Ok(None);
        }
        let (x, y) = (self.input.code.bytes(i, a), self.output.code.bytes(o, b));
        let behind = i + x.len() as u64;
        let is_same = x == LOWER && is_push(y) && self.are_flags_unread(behind) && self.is_bare_below(i)
            || x == RAISE
                && pushed_or_popped(y, 0x58).is_some_and(|register| self.is_unread(behind, register))
                && self.are_flags_unread(behind);
        if is_same {
            return Ok(Some(None));
        }
        match self.compare_form_alone((i, a), (o, b))? {
            Some(found) => Ok(Some(found)),
            None => self.compare_known((i, a), (o, b), straight),
        }
    }

    /// The same for forms that do not move the stack pointer, and count on nothing that comes before.
    pub(super) fn compare_form_alone(
        &self,
        (i, a): (u64, Inst),
        (o, b): (u64, Inst),
    ) -> Result<Option<Option<Reference>>, Violation> {
        let (x, y) = (self.input.code.bytes(i, a), self.output.code.bytes(o, b));
        if !self.may_be_form(a, b) {
            Ok(None)
        } else if is_zero(x, y) && self.are_flags_unread(i + x.len() as u64) {
            Ok(Some(None))
        } else if is_without_prefix(x, y, a.disp) {
            self.same_operand((i, a), (o, b)).map(Some)
        } else {
            Ok(None)
        }
    }

    fn may_be_form(&self, a: Inst, b: Inst) -> bool {
        matches!(b.kind, Kind::Plain | Kind::Lea) && b.len < a.len && !self.input.image.is_position_dependent()
    }

    /// What the operand in memory that both have refers to.
    fn same_operand(&self, (i, a): (u64, Inst), (o, b): (u64, Inst)) -> Result<Option<Reference>, Violation> {
        if a.disp == 0 {
            return Ok(None);
        }
        let (to_i, to_o) = (self.input.operand(i, a), self.output.operand(o, b));
        self.operand(a, to_i, to_o).map_err(|difference| self.tell(difference, (i, a), (o, b)))
    }

    /// The same for forms that count on what registers hold.
    fn compare_known(
        &mut self,
        (i, a): (u64, Inst),
        (o, b): (u64, Inst),
        straight: &Straight,
    ) -> Result<Option<Option<Reference>>, Violation> {
        let (x, y) = (Parts::of(self.input.code.bytes(i, a)), Parts::of(self.output.code.bytes(o, b)));
        let names = |side: &super::Side<'_>, at, inst: Inst| (inst.disp != 0).then(|| side.operand(at, inst));
        let stored = x.stored_by(&y, (a.disp, b.disp));
        let wanted = x.value(names(self.input, i, a));
        if stored.is_none() && wanted.is_none() {
            return Ok(None);
        }
        let mut registers = Registers::default();
        let addresses: Vec<u64> = straight.addresses().collect();
        for (number, &at) in addresses.iter().enumerate() {
            let Some(inst) = self.output.inst(at) else { return Ok(None) };
            for (at, inst) in self.done_by(at, inst) {
                registers.pass(Parts::of(self.output.code.bytes(at, inst)), names(self.output, at, inst), number);
            }
        }
        let (since, reference) = match (stored, wanted) {
            (Some((register, size, number)), _) => {
                let Some((Value::Number(held), since)) = registers.of(register) else { return Ok(None) };
                if (held ^ number) << (64 - 8 * size) != 0 {
                    return Ok(None);
                }
                (since, self.same_operand((i, a), (o, b))?)
            }
            (None, Some((register, wanted))) => {
                let writes_no_flags = [0x89, 0x8b, 0x8d].into_iter().any(|opcode| y.is_of(0, opcode));
                let found = registers.value_after(y, names(self.output, o, b), addresses.len()).filter(|_| writes_no_flags);
                let Some((_, _, since)) = found.filter(|&(to, held, _)| (to, held) == (register, wanted)) else {
                    return Ok(None);
                };
                match wanted {
                    Value::Number(_) => (since, None),
                    Value::Address(at) if self.input.image.in_code(at) || self.output.image.in_code(at) => return Ok(None),
                    Value::Address(at) => (since, Some(Reference::Table { input: at, output: at, width: 4 })),
                }
            }
            (None, None) => return Ok(None),
        };
        let first = addresses.get(since).copied().unwrap_or(o);
        if let (Some(first), Some(last)) = (self.output.code.index(first), self.output.code.index(o)) {
            self.forms.relied.push((first as u32, last as u32));
        }
        Ok(Some(reference))
    }

    /// Asks that control arrives nowhere between what makes a register known and what counts on it.
    pub(super) fn judge_forms(&mut self) {
        for (first, last) in std::mem::take(&mut self.forms.relied) {
            if (first + 1..=last).any(|index| self.relation.is_joined(index as usize)) {
                let at = self.output.code.address(last as usize);
                let message = "counts on what a register holds, but control arrives between where that is known and here";
                self.report(ViolationKind::InstructionMismatch, at, message);
            }
        }
    }

    /// Whether nothing of the input reads the flags that are there at an address, before it writes them.
    fn are_flags_unread(&self, address: u64) -> bool {
        self.ahead(address, |inst, parts| match inst.kind {
            Kind::Call | Kind::IndirectCall | Kind::Return => Some(true),
            Kind::IndirectJump if inst.disp != 0 => Some(true),
            Kind::Nop | Kind::EndBranch => None,
            Kind::Plain | Kind::Lea => match parts.writes_flags() {
                Some(true) => Some(true),
                Some(false) => None,
                None => Some(false),
            },
            _ => Some(false),
        })
    }

    /// Whether what a register holds at an address of the input is not read, nor seen by anybody, before it is written.
    fn is_unread(&self, address: u64, register: u8) -> bool {
        self.ahead(address, |_, parts| match parts.moved() {
            Some((read, _, _)) if read >> register & 1 != 0 => Some(false),
            Some((_, written, is_popped)) if written == register => Some(is_popped || KEPT >> register & 1 == 0),
            Some(_) => None,
            None => Some(false),
        })
    }

    /// What the first instruction says that says something, from an address of the input on.
    fn ahead(&self, mut address: u64, mut of: impl FnMut(Inst, Parts<'_>) -> Option<bool>) -> bool {
        for _ in 0..AHEAD {
            let Some(inst) = self.input.inst(address) else { return false };
            if inst.kind == Kind::Jump {
                address = self.input.target(address, inst);
                continue;
            }
            if let Some(answer) = of(inst, Parts::of(self.input.code.bytes(address, inst))) {
                return answer;
            }
            address += u64::from(inst.len);
        }
        false
    }
}

/// The register that an instruction pushes or pops, by the opcode for the first.
fn pushed_or_popped(bytes: &[u8], first: u8) -> Option<u8> {
    let (register, high) = match *bytes {
        [opcode] => (opcode, 0),
        [0x41, opcode] => (opcode, 8),
        _ => return None,
    };
    (register & !7 == first).then_some(register & 7 | high)
}

fn is_push(bytes: &[u8]) -> bool {
    pushed_or_popped(bytes, 0x50).is_some()
}

/// Whether `x` moves zero into a register, and `y` is the exclusive or of that register with itself.
fn is_zero(x: &[u8], y: &[u8]) -> bool {
    let (x, y) = (Parts::of(x), Parts::of(y));
    let is_exclusive_or = (y.is_of(0, 0x31) || y.is_of(0, 0x33)) && y.legacy_prefixes().is_empty();
    let zeroed = y.reg().filter(|&register| is_exclusive_or && y.register_operand() == Some(register));
    zeroed.is_some() && x.value(None) == zeroed.map(|register| (register, Value::Number(0)))
}

/// Whether `y` is the vector instruction `x` without its prefix; a displacement by the instruction pointer, at an offset, may differ.
fn is_without_prefix(x: &[u8], y: &[u8], displacement: u8) -> bool {
    let (parts, new) = (Parts::of(x), Parts::of(y));
    let [prefix] = *parts.legacy_prefixes() else { return false };
    let are_registers = parts.register_operand().is_some();
    let is_same = are_registers && parts.register_operand() == parts.reg();
    let of = |opcode| parts.is_of(1, opcode);
    let opcode = match prefix {
        0x66 if of(0x28) || of(0x6f) => 0x28,
        0x66 if of(0x29) || of(0x7f) => 0x29,
        0x66 if of(0x10) => 0x10,
        0x66 if of(0x11) => 0x11,
        0x66 if [0x12, 0x13, 0x16, 0x17].into_iter().any(of) && !are_registers => parts.opcode(),
        0x66 if (of(0xef) || of(0x57)) && is_same => 0x57,
        0x66 if (of(0x6c) || of(0x14)) && are_registers => 0x16,
        0xf3 if of(0x6f) => 0x10,
        0xf3 if of(0x7f) => 0x11,
        _ => return false,
    };
    let mut expected = x[1..].to_vec();
    expected[parts.opcode_at() - 1] = opcode;
    let mut found = y.to_vec();
    if displacement != 0 {
        let field = usize::from(displacement) - 1;
        let fields = [&mut expected, &mut found].into_iter().filter_map(|bytes| bytes.get_mut(field..field + 4));
        fields.for_each(|field| field.fill(0));
    }
    new.legacy_prefixes().is_empty() && expected == found
}

#[cfg(test)]
mod tests {
    use super::is_without_prefix;

    #[test]
    fn a_vector_is_aligned_without_a_prefix_if_it_was_with_one() {
        let (aligned, unaligned): (&[u8], &[u8]) = (&[0x0f, 0x28, 0x47, 3], &[0x0f, 0x10, 0x47, 3]);
        assert!(is_without_prefix(&[0x66, 0x0f, 0x6f, 0x47, 3], aligned, 0));
        assert!(!is_without_prefix(&[0x66, 0x0f, 0x6f, 0x47, 3], unaligned, 0));
        assert!(is_without_prefix(&[0xf3, 0x0f, 0x6f, 0x47, 3], unaligned, 0));
        assert!(!is_without_prefix(&[0xf3, 0x0f, 0x6f, 0x47, 3], aligned, 0));
        // What is half a vector, and what is `mm0`.
        assert!(!is_without_prefix(&[0xf3, 0x0f, 0x7e, 0x47, 3], unaligned, 0));
        assert!(!is_without_prefix(&[0x0f, 0x6f, 0x47, 3], unaligned, 0));
    }
}
