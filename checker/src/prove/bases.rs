//! Whether what a jump adds to the entry of a table is the address that the entry was read from.
//!
//! **Problem.** An entry counts from its table. Where one table of the input has several copies, each of them is right by itself, and code that reads the entry from one and adds the
//! address of another goes anywhere. The walk compares the instructions that name tables one by one, and so do proofs, to which all copies are one value.
//!
//! **Method.** The output alone is asked. From a jump to a register the search goes back on all ways, by what is wanted to hold ([`Wanted`]): that the register is a sum, then that of the sum's two terms one
//! is an entry of the table that the other is the address of. That holds where the entry is loaded from what the other register points to, which nothing has overwritten since; or where both come from
//! instructions that name the same place.
//!
//! **Why this is sound.** Each way backwards ends in an instruction that makes what is wanted true whatever was before: a load by the register that is added; names of one place; a load of 64 bits, or an address of code, which
//! are no sums. What is not understood, and places at which control arrives by an address or a call are no such ends, and then the jump is not shown. So each execution that comes to the jump
//! added what its last load read from.
//! Where a call comes back from, the search goes on in what was called if that is straight code up to a `ret`, which is a part of its caller ([`crate::followed`]). Other functions keep the registers that the psABI has them keep, but for
//! those that a part of the caller before them writes ([`super::followed`]).
//! A sum that was in memory meanwhile is believed where it was not loaded from the stack: compilers keep addresses of functions in memory, not those that they make of entries.
//!
//! **Terminates**: what is wanted at an address is asked once, and at most [`STEPS_MAX`] are.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::decoded::{Decoded, Engine, Memory, Operand, Reg};
use super::followed::Followed;
use super::liveness::KEPT;
use crate::decode::{Inst, Kind};
use crate::followed::straight;
use crate::leftover::each_instruction;
use crate::walk::{Bits, Side};

/// Instructions between a load and its jumps, in all ways.
const STEPS_MAX: usize = 1024;
/// The longest instruction.
const LENGTH_MAX: u64 = 15;
const STACK: [u8; 2] = [4, 5];

/// What must hold before an instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Wanted {
    /// A register is no wrong sum.
    Target(u8),
    /// Of two registers one is an entry of the table to which the other points.
    Terms(u8, u8),
    /// A register is an entry of the table at an address.
    Entry(u8, u64),
    /// A register points to a table at an address.
    Base(u8, u64),
    /// One of two registers does.
    Either(u8, u8, u64),
}

impl Wanted {
    /// Whether calls keep all the registers that it is about.
    fn is_kept(self) -> bool {
        let registers = match self {
            Self::Target(one) | Self::Entry(one, _) | Self::Base(one, _) => [one, one],
            Self::Terms(one, other) | Self::Either(one, other, _) => [one, other],
        };
        registers.iter().all(|register| KEPT >> register & 1 == 1)
    }
}

/// What an instruction makes of what is wanted behind it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Before {
    Holds,
    Wants(Wanted),
    Unknown,
}

/// Indirect jumps of a program, and how control comes to each instruction.
pub(crate) struct Ways<'s, 'a> {
    side: &'s Side<'a>,
    engine: Engine,
    starts: Bits,
    /// Places to which calls lead, and those that something else than a jump leads to.
    entered: Bits,
    /// Target and source of direct jumps and branches, sorted.
    jumps: Vec<(u64, u64)>,
    indirect: Vec<(u64, Inst)>,
    /// Whether what a call calls does not come back.
    never_returns: &'s dyn Fn(u64) -> bool,
}

impl<'s, 'a> Ways<'s, 'a> {
    pub(crate) fn new(side: &'s Side<'a>, entered: &Bits, never_returns: &'s dyn Fn(u64) -> bool) -> Self {
        let (mut starts, mut entered) = (Bits::new(side.code.size()), entered.clone());
        let (mut jumps, mut indirect) = (Vec::new(), Vec::new());
        each_instruction(side, |address, inst| {
            side.code.index(address).map(|index| starts.insert(index));
            match inst.kind {
                Kind::Jump | Kind::Branch | Kind::Loop => jumps.push((side.target(address, inst), address)),
                Kind::Call => drop(side.code.index(side.target(address, inst)).map(|index| entered.insert(index))),
                Kind::IndirectJump => indirect.push((address, inst)),
                _ => {}
            }
        });
        jumps.sort_unstable();
        Self { side, engine: Engine::new(), starts, entered, jumps, indirect, never_returns }
    }

    /// The indirect jumps for which it is not shown that they add what their entry was read from.
    pub(crate) fn not_shown(&self, is_asked_for: impl Fn(u64) -> bool) -> Vec<u64> {
        let jumps = self.indirect.iter().filter(|&&(address, _)| is_asked_for(address));
        jumps.filter(|&&(address, inst)| !self.is_shown(address, inst)).map(|&(address, _)| address).collect()
    }

    fn is_shown(&self, jump: u64, inst: Inst) -> bool {
        let Some(decoded) = self.engine.decode(self.side, jump, inst) else { return false };
        let register = match decoded.operands[..] {
            [(Operand::Reg(Reg::General(register, 64, _)), _)] => register,
            [(Operand::Memory(memory), _)] => return !is_on_stack(&memory),
            _ => return false,
        };
        let mut known = FxHashMap::default();
        let mut asked = FxHashSet::default();
        let mut work = vec![(jump, Wanted::Target(register))];
        while let Some((address, wanted)) = work.pop() {
            if !asked.insert((address, wanted)) {
                continue;
            }
            if asked.len() > STEPS_MAX {
                return false;
            }
            let Some(sources) = self.sources(address) else { return false };
            for (source, inst) in sources {
                let before = match inst.kind {
                    Kind::Call | Kind::IndirectCall => self.before_call(source, inst, wanted),
                    _ => {
                        let decoded = known.entry(source).or_insert_with(|| self.engine.decode(self.side, source, inst));
                        decoded.as_ref().map_or(Before::Unknown, |decoded| before(decoded, wanted))
                    }
                };
                match before {
                    Before::Holds => {}
                    Before::Wants(wanted) => work.push((source, wanted)),
                    Before::Unknown => return false,
                }
            }
        }
        true
    }

    /// What has to hold before a call that comes back.
    fn before_call(&self, at: u64, inst: Inst, wanted: Wanted) -> Before {
        let kept = if wanted.is_kept() { Before::Wants(wanted) } else { Before::Unknown };
        if inst.kind == Kind::IndirectCall {
            return kept;
        }
        let decode = |at: u64, inst: Inst| self.engine.decode(self.side, at, inst);
        let target = self.side.target(at, inst);
        let Some(part) = straight(self.side, target) else {
            let followed = Followed::of(self.side, target, |at, inst| decode(at, inst).map(Rc::new));
            let is_known = !followed.is_unknown
                && followed.insts.iter().all(|(_, decoded)| before(decoded, wanted) == Before::Wants(wanted));
            return if is_known { kept } else { Before::Unknown };
        };
        let mut so_far = wanted;
        for (at, inst) in part.into_iter().rev() {
            let Some(decoded) = decode(at, inst).filter(|decoded| !may_write(decoded, STACK[0])) else { return Before::Unknown };
            match before(&decoded, so_far) {
                Before::Wants(wanted) => so_far = wanted,
                end => return end,
            }
        }
        Before::Wants(so_far)
    }

    /// The instructions from which control comes to an address; `None` if it also comes from elsewhere, or not at all.
    fn sources(&self, address: u64) -> Option<Vec<(u64, Inst)>> {
        let side = self.side;
        let index = side.code.index(address)?;
        if self.entered.contains(index) {
            return None;
        }
        let first = self.jumps.partition_point(|&(target, _)| target < address);
        let jumps = self.jumps[first..].iter().take_while(|&&(target, _)| target == address).map(|&(_, source)| source);
        let mut sources: Vec<(u64, Inst)> = jumps.map(|source| Some((source, side.inst(source)?))).collect::<Option<_>>()?;
        let is_call = |inst: Inst| matches!(inst.kind, Kind::Call | Kind::IndirectCall);
        let goes_on = |&(at, inst): &(u64, Inst)| !(inst.ends_flow() || is_call(inst) && (self.never_returns)(at));
        sources.extend(self.above(address).filter(goes_on));
        (!sources.is_empty()).then_some(sources)
    }

    /// The instruction that stands before an address. Between the two may be filler, to which nothing leads: it is reached only by what runs into it, and changes nothing.
    fn above(&self, mut address: u64) -> Option<(u64, Inst)> {
        let side = self.side;
        loop {
            let (at, index, inst) = (1..=LENGTH_MAX).find_map(|size| {
                let at = address.checked_sub(size)?;
                let index = side.code.index(at).filter(|&index| self.starts.contains(index))?;
                side.inst(at).filter(|inst| u64::from(inst.len) == size).map(|inst| (at, index, inst))
            })?;
            let is_led_to = || self.entered.contains(index) || self.jumps.binary_search_by_key(&at, |jump| jump.0).is_ok();
            if !matches!(inst.kind, Kind::Trap | Kind::Nop) || is_led_to() {
                return Some((at, inst));
            }
            address = at;
        }
    }
}

fn is_on_stack(memory: &Memory) -> bool {
    let is_stack = |found: Option<Reg>| matches!(found, Some(Reg::General(number, ..)) if STACK.contains(&number));
    is_stack(memory.base) || is_stack(memory.index)
}

/// What has to hold before an instruction so that what is wanted holds behind it.
fn before(decoded: &Decoded, wanted: Wanted) -> Before {
    if matches!(decoded.inst.kind, Kind::Jump | Kind::Branch | Kind::Nop | Kind::EndBranch) {
        return Before::Wants(wanted);
    }
    if !matches!(decoded.inst.kind, Kind::Plain | Kind::Lea) || decoded.is_locked_or_repeated() {
        return Before::Unknown;
    }
    let writes = |register| may_write(decoded, register);
    match wanted {
        Wanted::Target(sum) if writes(sum) => before_target(decoded, sum),
        Wanted::Terms(one, other) if writes(one) && writes(other) => Before::Unknown,
        Wanted::Terms(one, other) if writes(one) => before_term(decoded, one, other),
        Wanted::Terms(one, other) if writes(other) => before_term(decoded, other, one),
        Wanted::Entry(entry, table) if writes(entry) => before_entry(decoded, entry, table),
        Wanted::Base(base, table) if writes(base) => match step(decoded, base) {
            Step::Names(place) if place == table => Before::Holds,
            Step::Moves(from) => Before::Wants(Wanted::Base(from, table)),
            _ => Before::Unknown,
        },
        Wanted::Either(one, other, _) if writes(one) && writes(other) => Before::Unknown,
        Wanted::Either(one, other, table) if writes(one) || writes(other) => {
            let (written, rest) = if writes(one) { (one, other) } else { (other, one) };
            match step(decoded, written) {
                Step::Names(place) if place == table => Before::Holds,
                // It is the index.
                _ => Before::Wants(Wanted::Base(rest, table)),
            }
        }
        _ => Before::Wants(wanted),
    }
}

/// What an instruction puts into a register.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Step {
    /// The address of a place.
    Names(u64),
    /// What another register has.
    Moves(u8),
    /// The sum of two registers.
    Adds(u8, u8),
    /// The same with bits that a mask sets.
    Masks,
    /// The low half of a register, extended by its sign.
    Extends(u8),
    /// A word of 32 bits.
    Reads(Memory),
    /// A word of 64 bits.
    ReadsAll(Memory),
    Unknown,
}

fn step(decoded: &Decoded, register: u8) -> Step {
    if decoded.name == "cdqe" && register == 0 {
        return Step::Extends(0);
    }
    let [(Operand::Reg(Reg::General(written, width, false)), _), (from, size)] = decoded.operands[..] else {
        return Step::Unknown;
    };
    if written != register {
        return Step::Unknown;
    }
    match (decoded.name.as_str(), width, from) {
        ("mov", 64, Operand::Reg(Reg::General(from, 64, _))) => Step::Moves(from),
        ("mov", 64, Operand::Memory(memory)) if size == 64 => Step::ReadsAll(memory),
        ("mov", 32, Operand::Memory(memory)) | ("movsxd", 64, Operand::Memory(memory)) if size == 32 => Step::Reads(memory),
        ("movsxd", 64, Operand::Reg(Reg::General(from, 32, _))) => Step::Extends(from),
        ("add", 64, Operand::Reg(Reg::General(from, 64, _))) if from != register => Step::Adds(register, from),
        ("or", 64, Operand::Reg(Reg::General(from, 64, _))) if from != register => Step::Masks,
        ("lea", 64, Operand::Memory(Memory { place: Some(place), .. })) => Step::Names(place),
        ("lea", 64, Operand::Memory(memory)) if memory.scale == 1 && memory.displacement == 0 => {
            match (memory.base, memory.index) {
                (Some(Reg::General(one, 64, _)), Some(Reg::General(other, 64, _))) if one != other => Step::Adds(one, other),
                _ => Step::Unknown,
            }
        }
        _ => Step::Unknown,
    }
}

fn before_target(decoded: &Decoded, sum: u8) -> Before {
    match step(decoded, sum) {
        Step::Names(_) => Before::Holds,
        Step::ReadsAll(memory) if !is_on_stack(&memory) => Before::Holds,
        Step::Moves(from) => Before::Wants(Wanted::Target(from)),
        Step::Adds(one, other) => Before::Wants(Wanted::Terms(one, other)),
        Step::Masks => Before::Wants(Wanted::Target(sum)),
        _ => Before::Unknown,
    }
}

/// Of two terms one is written here.
fn before_term(decoded: &Decoded, written: u8, other: u8) -> Before {
    match step(decoded, written) {
        Step::Names(place) => Before::Wants(Wanted::Entry(other, place)),
        Step::Moves(from) | Step::Extends(from) if from != other => Before::Wants(Wanted::Terms(from, other)),
        Step::Reads(memory) if bases(&memory).contains(&Some(other)) => Before::Holds,
        _ => Before::Unknown,
    }
}

fn before_entry(decoded: &Decoded, entry: u8, table: u64) -> Before {
    match step(decoded, entry) {
        Step::Moves(from) | Step::Extends(from) => Before::Wants(Wanted::Entry(from, table)),
        Step::Reads(memory) => match bases(&memory) {
            [Some(base), None] => Before::Wants(Wanted::Base(base, table)),
            [Some(base), Some(index)] if base != index => Before::Wants(Wanted::Either(base, index, table)),
            _ => Before::Unknown,
        },
        _ => Before::Unknown,
    }
}

/// The registers that may point to the table from which a word is read.
fn bases(memory: &Memory) -> [Option<u8>; 2] {
    let number = |register: Option<Reg>| match register {
        Some(Reg::General(number, 64, _)) => Some(number),
        _ => None,
    };
    if memory.segment != 0 || memory.place.is_some() {
        return [None; 2];
    }
    [number(memory.base), number(memory.index).filter(|_| memory.scale == 1)]
}

/// Whether an instruction may write a general register. Of those that only read their operands the usual ones are known.
fn may_write(decoded: &Decoded, register: u8) -> bool {
    let is_it = |found: Reg| matches!(found, Reg::General(number, ..) if number == register);
    let reads_first = matches!(decoded.name.as_str(), "cmp" | "test" | "push" | "bt");
    let reads_second = reads_first
        || matches!(decoded.name.as_str(), "mov" | "movsxd" | "movzx" | "movsx" | "add" | "sub" | "and" | "or" | "xor" | "imul");
    let in_operands = decoded.operands.iter().enumerate().any(|(position, &(operand, _))| match operand {
        Operand::Reg(found) => is_it(found) && !(if position == 0 { reads_first } else { reads_second }),
        Operand::Memory(_) | Operand::Immediate(_) => false,
    });
    let is_unlisted = decoded.is_special || decoded.writes.contains(&Reg::Other) && !decoded.computes_on_vectors();
    in_operands || is_unlisted || decoded.writes.iter().any(|&found| is_it(found))
}
