//! Whether the input may read a register before it is written, from a place on.
//!
//! A transform may use a register that is free: then it holds something else in the output where a function returns, or where it calls. The psABI does not settle who reads it
//! there: compilers that see both sides keep values in registers that a callee leaves alone. So the input's code is searched, from that place on, for a way to an instruction that
//! reads the register, on which none writes it.
//!
//! **Ways.** A call leads into the callee, and behind the call if the callee may return without having written the register: calls and returns are matched, by summaries of callees made
//! as they are met (Reps, Horwitz, Sagiv 1995). A return from where the search began leads to behind each call of the functions that jumps connect with its own
//! ([`crate::tables::Survey`]). What is called
//! through a pointer or a stub keeps to the psABI, since no compiler could see through it: it may read arguments, and leaves nothing in the registers that calls don't keep; but for `call *(%rax)`, by which the address of a
//! thread-local variable may be asked for. Callers that no frame description covers, or that are not seen, keep to it too. A jump through a table leads to all that
//! the tables read so far for its functions name, and to the labels that the loader relocates, so this is asked when all tables are known. What is not understood reads everything.
//!
//! A jump through a register, in a function for which no table is known, is a call in its place if the frame is gone.
//!
//! **Terminates**: each address is looked at once for each register and each callee that the search came through.

use rustc_hash::{FxHashMap, FxHashSet};

use super::decoded::{Decoded, Engine, Operand, Reg};
use crate::decode::{Inst, Kind};
use crate::image::Slot;
use crate::walk::Walk;

/// Registers that calls neither keep nor return anything in: `rcx`, `rsi`, `rdi`, `r8` to `r11`.
pub(super) const FREE: [usize; 7] = [1, 6, 7, 8, 9, 10, 11];
/// The only one of these in which nothing is passed.
pub(super) const NEVER_PASSED: usize = 11;
const CALL_OF_RAX: [u8; 2] = [0xff, 0x10];

/// A question to be asked when all is known.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Need {
    /// Of the input: where it begins.
    pub(crate) from: u64,
    pub(crate) register: u8,
    /// Of the output, for messages.
    pub(crate) output: u64,
}

/// How the search goes on from an instruction.
enum Step {
    /// The register is read, or nothing is known.
    Reads,
    Written,
    To(Vec<u64>),
    /// Into a callee, and what is behind the call.
    Call(u64, u64),
    /// To a caller: behind one of these, where nobody knows which.
    Back(Vec<u64>),
}

pub(crate) struct Needs {
    engine: Engine,
    /// By group of functions: what is behind the calls of them.
    behind: FxHashMap<u32, Vec<u64>>,
    /// By group: where its jumps through tables may lead.
    labels: FxHashMap<u32, Vec<u64>>,
    searches: [Search; 16],
}

/// What was searched for one register.
#[derive(Default)]
struct Search {
    /// Addresses, each in a callee, by its entry, or where the search began: 0.
    seen: FxHashSet<(u64, u64)>,
    /// By entry of a callee, the calls behind which the search goes on if it comes back.
    waiting: FxHashMap<u64, Vec<(u64, u64)>>,
    /// Callees that may return without having written the register.
    passing: FxHashSet<u64>,
}

/// Where a search began is no callee.
const BOTTOM: u64 = 0;

impl Needs {
    /// `tables` are the targets of tables and the places that name them.
    pub(crate) fn new(walk: &Walk<'_, '_>, tables: &[(u64, Vec<u64>)]) -> Self {
        let mut needs = Self {
            engine: Engine::new(),
            behind: FxHashMap::default(),
            labels: FxHashMap::default(),
            searches: std::array::from_fn(|_| Search::default()),
        };
        let group_at = |address| walk.input.unwind.fde_at(address).map(|fde| walk.survey.group_of(fde));
        for fde in &walk.input.unwind.fdes {
            let mut at = fde.start;
            while let Some(inst) = walk.input.inst(at).filter(|_| at < fde.end) {
                let after = at + u64::from(inst.len);
                if inst.kind == Kind::Call
                    && let Some(group) = group_at(walk.input.target(at, inst))
                {
                    needs.behind.entry(group).or_default().push(after);
                }
                at = after;
            }
        }
        for (from, targets) in tables {
            if let Some(group) = group_at(*from) {
                needs.labels.entry(group).or_default().extend(targets);
            }
        }
        for &(_, slot) in &walk.input.image.slots {
            let Slot::Relative(target) = slot else { continue };
            if let Some(group) = group_at(target).filter(|_| !walk.input.unwind.starts_at(target)) {
                needs.labels.entry(group).or_default().push(target);
            }
        }
        needs
    }

    /// The instruction by which the register may be read first, if there is one. Once one was found the answers to later questions say nothing.
    pub(crate) fn reader(&mut self, walk: &Walk<'_, '_>, need: Need) -> Option<u64> {
        let register = usize::from(need.register & 15);
        let mut search = std::mem::take(&mut self.searches[register]);
        let mut open = vec![(BOTTOM, need.from)];
        let mut found = None;
        while let Some((entry, at)) = open.pop() {
            if !search.seen.insert((entry, at)) {
                continue;
            }
            match self.step(walk, at, register) {
                Step::Reads => {
                    found = Some(at);
                    break;
                }
                Step::Written => {}
                Step::To(next) => open.extend(next.into_iter().map(|next| (entry, next))),
                Step::Call(callee, after) => {
                    search.waiting.entry(callee).or_default().push((entry, after));
                    open.push((callee, callee));
                    if search.passing.contains(&callee) {
                        open.push((entry, after));
                    }
                }
                Step::Back(behind) if entry == BOTTOM => open.extend(behind.into_iter().map(|after| (BOTTOM, after))),
                Step::Back(_) => {
                    if search.passing.insert(entry) {
                        open.extend(search.waiting.get(&entry).into_iter().flatten());
                    }
                }
            }
        }
        self.searches[register] = search;
        found
    }

    fn step(&mut self, walk: &Walk<'_, '_>, at: u64, register: usize) -> Step {
        let Some(inst) = walk.input.inst(at) else { return Step::Reads };
        let after = at + u64::from(inst.len);
        let boundary = if register == NEVER_PASSED { Step::Written } else { Step::Reads };
        match inst.kind {
            Kind::Nop | Kind::EndBranch | Kind::Trap => Step::To(vec![after]),
            Kind::Stop => Step::Written,
            Kind::Jump => Step::To(vec![walk.input.target(at, inst)]),
            Kind::Branch => Step::To(vec![walk.input.target(at, inst), after]),
            Kind::Loop if register == 1 => Step::Reads,
            Kind::Loop => Step::To(vec![walk.input.target(at, inst), after]),
            Kind::Call => Step::Call(walk.input.target(at, inst), after),
            Kind::IndirectCall if walk.input.code.bytes(at, inst) == CALL_OF_RAX => match boundary {
                Step::Written => Step::To(vec![after]),
                reads => reads,
            },
            Kind::IndirectCall => boundary,
            Kind::IndirectJump => self.jump(walk, at, inst, boundary),
            Kind::Return => self.back(walk, at),
            Kind::Plain | Kind::Lea => match self.engine.decode(walk.input, at, inst) {
                Some(decoded) => effect(&decoded, register, after),
                None => Step::Reads,
            },
        }
    }

    fn jump(&self, walk: &Walk<'_, '_>, at: u64, inst: Inst, boundary: Step) -> Step {
        // Through a slot: a stub, or a call in its place.
        if inst.disp != 0 {
            return boundary;
        }
        let group = walk.input.unwind.fde_at(at).map(|fde| walk.survey.group_of(fde));
        let labels = group.and_then(|group| self.labels.get(&group));
        match (labels, boundary) {
            (Some(labels), Step::Written) => Step::To(labels.clone()),
            (None, boundary) if is_through_object(walk, at, inst) || is_frame_gone(walk, at) => boundary,
            _ => Step::Reads,
        }
    }

    fn back(&mut self, walk: &Walk<'_, '_>, at: u64) -> Step {
        let Some(fde) = walk.input.unwind.fde_at(at) else { return Step::Reads };
        // A thunk returns to what it was given.
        let before = (1..=15u64).filter_map(|size| at.checked_sub(size));
        let ends_here = before.filter_map(|before| Some((before, walk.input.inst(before)?)));
        for (before, inst) in ends_here.filter(|&(before, inst)| before + u64::from(inst.len) == at) {
            let is_boundary = walk.input.code.index(before).is_some_and(|index| walk.survey.is_boundary(index));
            if is_boundary && self.engine.decode(walk.input, before, inst).is_none_or(|decoded| writes_stack(&decoded)) {
                return Step::Reads;
            }
        }
        Step::Back(self.behind.get(&walk.survey.group_of(fde)).cloned().unwrap_or_default())
    }
}

/// Whether the stack pointer is where it was at the function's entry.
fn is_frame_gone(walk: &Walk<'_, '_>, at: u64) -> bool {
    let rules = walk.rows.and_then(|rows| rows.frame_of(walk.input.unwind.locate(at).row));
    rules.is_some_and(|rules| rules.address == Some((7, 8)))
}

/// Whether a jump reads where it goes from memory at a register: of a table of methods. Tables of labels have an index, or are read before.
fn is_through_object(walk: &Walk<'_, '_>, at: u64, inst: Inst) -> bool {
    let bytes = walk.input.code.bytes(at, inst);
    let shape = crate::decode::Shape::of(bytes);
    let is_memory = bytes.get(shape.modrm).is_some_and(|modrm| modrm >> 6 != 3);
    let is_fixed = walk.input.image.is_position_dependent();
    is_memory && !is_fixed && matches!(shape.registers(bytes), Some([_, Some(_), None]))
}

/// Whether an instruction puts something where the stack pointer points to.
fn writes_stack(decoded: &Decoded) -> bool {
    let is_stack = |register: Option<Reg>| matches!(register, Some(Reg::General(4, ..)));
    let stores = matches!(decoded.operands.first(), Some((Operand::Memory(memory), _)) if is_stack(memory.base));
    let moves_stack = matches!(decoded.operands.first(), Some((Operand::Reg(Reg::General(4, ..)), _)));
    decoded.name.starts_with("push") || stores || moves_stack && !matches!(decoded.name.as_str(), "add" | "sub" | "lea")
}

/// What an instruction that runs on does to a register.
fn effect(decoded: &Decoded, register: usize, after: u64) -> Step {
    let is_it = |candidate: Reg| matches!(candidate, Reg::General(number, ..) if usize::from(number) == register);
    if decoded.name == "syscall" {
        return match register {
            1 | 11 => Step::Written,
            6..=10 => Step::Reads,
            _ => Step::To(vec![after]),
        };
    }
    if decoded.is_special {
        return Step::Reads;
    }
    let is_plain_write = match decoded.operands.as_slice() {
        [(Operand::Reg(to @ Reg::General(_, 32.., false)), _), rest @ ..] if is_it(*to) => match decoded.name.as_str() {
            "mov" | "movabs" | "lea" | "movzx" | "movsx" | "movsxd" | "pop" => true,
            "xor" | "sub" => rest.first().is_some_and(|&(operand, _)| operand == Operand::Reg(*to)),
            _ => false,
        },
        _ => false,
    };
    if is_plain_write && matches!(decoded.name.as_str(), "xor" | "sub") {
        return Step::Written;
    }
    let sources = decoded.operands.iter().skip(usize::from(is_plain_write));
    let names = |operand: &Operand| match *operand {
        Operand::Reg(candidate) => is_it(candidate),
        Operand::Memory(memory) => memory.base.is_some_and(is_it) || memory.index.is_some_and(is_it),
        Operand::Immediate(_) => false,
    };
    let is_read = sources.into_iter().any(|(operand, _)| names(operand)) || decoded.reads.iter().any(|&r| is_it(r));
    match (is_read, is_plain_write) {
        (true, _) => Step::Reads,
        (false, true) => Step::Written,
        (false, false) => Step::To(vec![after]),
    }
}
