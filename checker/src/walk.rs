//! The product walk: both programs decoded in lock-step from pairs that must correspond.
//!
//! **Method.** A pair (input address, output address) is first made canonical: direct jumps are followed and padding is skipped on both
//! sides, so that a layout's jumps do not count. If it is new, the two instructions are compared; their references and successors are
//! new pairs. The relation that grows is kept as two dense maps, one per direction.
//!
//! *Strict* walks report what does not correspond. *Trials* are guesses (padding that may be code, code that no reference reaches): all
//! that a trial did is undone if anything in it does not correspond.
//!
//! Five things may differ: what a relocated or moved field says, a call past a stub, a body in the place of its call ([`calls`]), a call in the place of what stands where it leads ([`outlined`], [`subroutines`]), and in how
//! many bytes an instruction says what it does ([`forms`]).
//!
//! **Invariants.** Each instruction of the output was compared with each of the input that it stands for, and an
//! address that the program can hold has one identity ([`Relation`]). What follows a call is
//! a successor unless the callee never returns ([`crate::noreturn`]) or the frame description ends there; then it is only tried.
//!
//! **Terminates**: each step relates a pair that was not related before, but for at most [`ALONE_MAX`] in a row; there are finitely many, and
//! a failed trial is repeated at most once per round of [`crate::leftover`].

mod below;
mod bounds;
mod calls;
mod compare;
mod contexts;
mod forms;
mod frames;
mod guesses;
mod numbers;
mod outlined;
mod places;
mod proofs;
mod relation;
mod restartable;
mod settle;
mod side;
mod split_stack;
mod stepped_over;
mod subroutines;
mod system_calls;
mod told;

use std::cell::OnceCell;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::decode::{Inst, Kind, UD2};
use crate::faults::Held;
use crate::noreturn::NoReturn;
use crate::prove::Liveness;
use crate::report::{Stats, Violation, ViolationKind};
use crate::stack::StackUse;
use crate::tables::{Copies, Doubtful, Survey, TableReference};
use crate::unwind::{Located, Rows};
use below::Below;
pub(crate) use calls::CALL_THROUGH;
pub(crate) use compare::Reference;
pub(crate) use compare::{condition, prefixes};
use contexts::Contexts;
pub use contexts::NOTHING_LEADS;
use forms::{Forms, Straight};
pub(crate) use frames::AT_RETURN_ADDRESS;
use proofs::Proofs;
use relation::Recorded;
pub(crate) use relation::{Bits, Relation, Stands};
pub(crate) use side::{Side, joined};

/// Steps that the input may make alone, over calls and returns that the output lacks.
const ALONE_MAX: usize = 16;

/// As much may stand between two functions on either side of where no-ops turn into zeros.
const PADDING_MAX: u64 = 64;

/// A chain of jumps longer than any real one is a cycle.
const JUMP_CHAIN_MAX: usize = 512;

/// A pair to be walked, and who asked for it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) input: u64,
    pub(crate) output: u64,
    /// An output address for messages.
    pub(crate) origin: u64,
    pub(crate) reach: Reach,
    /// The call of the input in whose callee `input` is, while the output has the callee's body in the call's place.
    within: Option<u64>,
}

impl Pair {
    pub(crate) fn new(input: u64, output: u64, origin: u64, reach: Reach) -> Self {
        Self { input, output, origin, reach, within: None }
    }
}

/// How control comes to a pair.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// By falling through or a jump: any copy will do.
    Flow,
    /// By a direct call in both programs.
    Call,
    /// By another call, a landing pad, a symbol: nothing compares such an address.
    Name,
    /// By an address that the program can hold and compare.
    Pointer,
}

/// An input address that the output still names although it may have moved; looked at when all is known.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Unmoved {
    pub(crate) address: u64,
    pub(crate) origin: u64,
}

/// A reference to data at another address than in the input: legal only into a copy of a jump table.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Displaced {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) origin: u64,
}

/// What was found and what is known after the walk.
pub(crate) struct Finished {
    pub(crate) violations: Vec<Violation>,
    pub(crate) stats: Stats,
    /// Words of the output's data that a jump table or a slot explains: address and size, sorted.
    pub(crate) explained: Vec<(u64, u64)>,
    /// Copies of functions that hold for certain callers only, as far as a walk that has found violations can tell.
    pub(crate) copies: FxHashSet<(u64, u64)>,
    /// About the input alone.
    pub(crate) liveness: Liveness,
    /// Which instructions correspond.
    pub(crate) relation: Relation,
}

pub(crate) struct Walk<'w, 'a> {
    pub(crate) input: &'w Side<'a>,
    pub(crate) output: &'w Side<'a>,
    pub(crate) relation: Relation,
    pub(crate) tables: Vec<TableReference>,
    /// By table of the input and what stands for it: how many entries were asked for.
    pub(crate) tables_seen: FxHashMap<(u64, u64), usize>,
    pub(crate) tables_followed: FxHashSet<(u64, u64)>,
    /// Entries of the input's tables that are for cases which never come.
    pub(crate) never_selected: FxHashSet<u64>,
    pub(crate) violations: Vec<Violation>,
    pub(crate) stats: Stats,
    pub(crate) explained: Vec<(u64, u64)>,
    pub(crate) unmoved: Vec<Unmoved>,
    pub(crate) displaced: Vec<Displaced>,
    /// Tables whose address goes to a call.
    pub(crate) arguments: Vec<TableReference>,
    /// `(input, output, origin)`: where calls return that instructions of the input name, and where the output names it.
    pub(crate) returns: Vec<(u64, u64, u64)>,
    /// Words of data and instructions, and the frame descriptions that have to stay whole because of them ([`places`], [`restartable`]).
    places_known: Vec<(u64, u32)>,
    /// Instructions with whose address somebody counts, and the frame descriptions in which what they name is.
    counted: Vec<(u64, u32)>,
    /// Entries of tables behind the last that must correspond.
    pub(crate) doubtful: Vec<Doubtful>,
    /// Moved tables: input start, output start, bytes that were explained.
    pub(crate) clones: Vec<(u64, u64, u64)>,
    pub(crate) copies: Copies,
    /// Places of the output at which control arrives by an address, a call or a table.
    pub(crate) entered: Bits,
    pub(crate) survey: &'w Survey,
    /// Places in the input's code where the linker put an absolute address.
    absolute_fields: &'w FxHashSet<u64>,
    /// Looked for when the first body stands in the place of a call.
    held: &'w OnceCell<Held>,
    /// Whether code addresses in the input are plain numbers.
    has_numbers: bool,
    noreturn: &'w NoReturn,
    stack_use: StackUse,
    forms: Forms,
    below: Below,
    queue: Vec<Pair>,
    /// What flows from the root that is walked now.
    flows: Vec<Pair>,
    /// Frame descriptions of the input that it has come to.
    touched: Vec<u32>,
    /// Instructions of the output that it was the first to find a counterpart of, by index.
    recorded: Vec<u32>,
    /// The rules of frames, for proofs.
    pub(crate) rows: Option<&'w Rows>,
    proofs: Proofs,
    contexts: Contexts,
    /// Where the walk from a root began.
    began_at: Option<(u64, u64)>,
    tries: Vec<Pair>,
    /// Those that were tried and not kept, or are tried only where nothing else explains the output.
    not_kept: Vec<Pair>,
    /// Of the input ([`crate::remains`]).
    pub(crate) old_bodies: Vec<(u64, u64)>,
    /// Where functions without frame descriptions seem to begin that numbers name, and where the numbers are ([`guesses`]).
    guessed: Vec<(u64, u64)>,
    /// How often a walk has come to what was proven.
    met_proven: usize,
    /// Places of the output to which only branches lead that are decided otherwise.
    never: Vec<u64>,
    input_row: Located,
    output_row: Located,
    /// What is said of the program.
    pub(crate) assumptions: crate::Assumptions,
}

/// What is known of the input alone.
pub(crate) struct Known<'a> {
    pub(crate) side: Side<'a>,
    survey: Survey,
    absolute_fields: FxHashSet<u64>,
    held: OnceCell<Held>,
    has_numbers: bool,
    noreturn: NoReturn,
}

impl<'a> Known<'a> {
    pub(crate) fn of(mut side: Side<'a>) -> Self {
        let absolute_fields = crate::data::absolute_fields(&side.image);
        let survey = crate::shared_entries::tell_apart(&mut side, &absolute_fields);
        side.forget_unasked_rules();
        side.note_running_on(crate::tables::running_on(&side, &survey));
        Self {
            survey,
            absolute_fields,
            held: OnceCell::new(),
            has_numbers: crate::data::has_numbers(&side.image),
            noreturn: NoReturn::compute(&side),
            side,
        }
    }
}

/// Where following jumps and padding leads.
enum Canonical {
    At(u64, Inst),
    /// Jumps that lead back to themselves.
    Cycle,
    /// The address does not decode.
    Bad(u64),
}

/// Where an address leads through jumps and padding.
pub(crate) fn leads_to(side: &Side<'_>, address: u64) -> Option<u64> {
    match Walk::lead(side, address, |_, _| {}) {
        Canonical::At(address, _) => Some(address),
        _ => None,
    }
}

impl<'w, 'a> Walk<'w, 'a> {
    pub(crate) fn new(known: &'w Known<'a>, output: &'w Side<'a>, copies: FxHashSet<(u64, u64)>) -> Self {
        let input = &known.side;
        Self {
            input,
            output,
            relation: Relation::new(input.starts(), output.starts()),
            tables: Vec::new(),
            tables_seen: FxHashMap::default(),
            tables_followed: FxHashSet::default(),
            never_selected: FxHashSet::default(),
            violations: Vec::new(),
            stats: Stats { code_bytes: output.code.size() as u64, ..Stats::default() },
            explained: Vec::new(),
            unmoved: Vec::new(),
            guessed: Vec::new(),
            displaced: Vec::new(),
            arguments: Vec::new(),
            returns: Vec::new(),
            places_known: Vec::new(),
            counted: Vec::new(),
            doubtful: Vec::new(),
            clones: Vec::new(),
            copies: Copies::default(),
            entered: Bits::new(output.code.size()),
            survey: &known.survey,
            absolute_fields: &known.absolute_fields,
            held: &known.held,
            has_numbers: known.has_numbers,
            noreturn: &known.noreturn,
            stack_use: StackUse::default(),
            forms: Forms::default(),
            below: Below::default(),
            queue: Vec::new(),
            flows: Vec::new(),
            touched: Vec::new(),
            recorded: Vec::new(),
            rows: None,
            proofs: Proofs::default(),
            contexts: Contexts::with_copies(copies),
            began_at: None,
            tries: Vec::new(),
            not_kept: Vec::new(),
            old_bodies: Vec::new(),
            met_proven: 0,
            never: Vec::new(),
            input_row: Located::nowhere(),
            output_row: Located::nowhere(),
            assumptions: crate::Assumptions::default(),
        }
    }

    pub(crate) fn report(&mut self, kind: ViolationKind, address: u64, message: impl Into<String>) {
        self.violations.push(Violation::new(kind, address, message));
    }

    /// Asks for a pair that must correspond.
    pub(crate) fn seed(&mut self, input: u64, output: u64, origin: u64) {
        if let Err(violation) = self.compare_marks(input, output) {
            self.violations.push(violation);
        }
        self.seed_name(input, output, origin);
    }

    /// The same for a symbol that only debuggers read: nothing branches by it.
    pub(crate) fn seed_name(&mut self, input: u64, output: u64, origin: u64) {
        self.stats.seeds += 1;
        self.queue.push(Pair::new(input, output, origin, Reach::Name));
    }

    /// Asks for a pair of addresses that are called or jumped to indirectly.
    pub(crate) fn seed_address(&mut self, input: u64, output: u64, origin: u64) {
        if let Err(violation) = self.reference_code(input, output, origin) {
            self.violations.push(violation);
        }
    }

    /// The same for a pointer that data hold. Programs mark those of functions in their low bits.
    pub(crate) fn seed_pointer(&mut self, input: u64, output: u64, origin: u64) {
        let lost_alignment = input.is_multiple_of(4) && !output.is_multiple_of(4);
        if lost_alignment && self.input.unwind.starts_at(input) {
            let message = format!("names a function at {output:#x}, no multiple of four as the input's {input:#x} is");
            self.violations.push(Violation::new(ViolationKind::DataChanged, origin, message));
        }
        if let Err(violation) = self.reference_below(input, origin) {
            self.violations.push(violation);
        }
        self.seed_address(input, output, origin);
    }

    /// Asks for the function that begins a few bytes behind an address that the program computes or stores: nothing but that can be meant, and the distance does not change.
    fn reference_below(&mut self, input: u64, origin: u64) -> Result<(), Violation> {
        self.named_below(input).map_or(Ok(()), |start| self.reference_code(start, start, origin))
    }

    /// Notes that control arrives at a place of the output by something else than a jump.
    pub(crate) fn enter(&mut self, output: u64) {
        self.output.code.index(output).map(|index| self.entered.insert(index));
    }

    /// Where jumps and padding lead from an address; `visit` sees them.
    fn lead(side: &Side<'_>, start: u64, mut visit: impl FnMut(usize, u8)) -> Canonical {
        let mut address = start;
        let mut jumps = 0;
        loop {
            let Some(inst) = side.inst(address) else { return Canonical::Bad(address) };
            let is_idle = side.is_idle(inst);
            if inst.kind != Kind::Jump && !is_idle {
                return Canonical::At(address, inst);
            }
            if let Some(index) = side.code.index(address) {
                visit(index, inst.len);
            }
            if is_idle {
                address += u64::from(inst.len);
                continue;
            }
            address = side.target(address, inst);
            jumps += 1;
            if jumps > JUMP_CHAIN_MAX {
                return Canonical::Cycle;
            }
        }
    }

    /// The same on a way that is walked, which explains what lies on it.
    fn canonical(&mut self, is_input: bool, start: u64) -> Canonical {
        let side = if is_input { self.input } else { self.output };
        Self::lead(side, start, |index, size| self.relation.pass(is_input, index, size))
    }

    /// Where `address` of the output leads through jumps and padding.
    pub(crate) fn output_leads_to(&self, address: u64) -> Option<u64> {
        leads_to(self.output, address)
    }

    /// Where `address` of the input leads through padding.
    pub(crate) fn input_leads_to(&self, mut address: u64) -> u64 {
        while let Some(inst) = self.input.inst(address).filter(|&inst| self.input.is_idle(inst)) {
            address += u64::from(inst.len);
        }
        address
    }

    /// Whether a jump of the output leads to what is no code of the input: LLVM lets what follows a call that never returns jump to the
    /// function's end.
    pub(crate) fn leads_nowhere(&self, address: u64, inst: Inst) -> bool {
        let target = self.output.target(address, inst);
        self.input.code.index(target).is_none_or(|index| !self.survey.is_boundary(index))
            && self.input.unwind.fde_at(target).is_none()
    }

    /// Whether an address holds the same instruction in both programs.
    pub(crate) fn is_untouched(&self, address: u64) -> bool {
        let bytes = |side: &Side<'a>| side.inst(address).map(|inst| side.code.bytes(address, inst));
        self.input.code.index(address).is_some_and(|index| self.survey.is_boundary(index))
            && bytes(self.input).is_some_and(|same| bytes(self.output) == Some(same))
    }

    /// Whether any constant of the program may be a code address, so that something has to stay there.
    pub(crate) fn keeps_old_text(&self) -> bool {
        self.input.image.is_position_dependent() && self.absolute_fields.is_empty()
    }

    /// Whether code of the input is of a function that is elsewhere now, as far as that shows.
    pub(crate) fn is_replaced(&self, address: u64) -> bool {
        let is_in = |parts: &[(u64, u64)]| {
            let before = parts.partition_point(|part| part.0 <= address);
            parts[..before].last().is_some_and(|part| address < part.1)
        };
        is_in(&self.input.unwind.replaced) || is_in(&self.old_bodies)
    }

    /// Whether two places of the input are in one function.
    pub(crate) fn is_same_function(&self, one: u64, other: u64) -> bool {
        let group_at = |at| self.input.unwind.fde_at(at).map(|fde| self.survey.group_of(fde));
        group_at(one).is_some_and(|group| group_at(other) == Some(group))
    }

    /// Whether nothing follows a call of the input.
    pub(crate) fn ends_at(&self, address: u64, inst: Inst) -> bool {
        self.noreturn.stops(self.input, address, inst)
    }

    /// Whether a field of the input's code with a value that is an address of code names it: a relocation says so; where there are none, a `lea`
    /// does, and any field that meets an instruction.
    pub(crate) fn names_code(&self, value: u64, place: u64, width: u8) -> bool {
        let meets = || self.input.code.index(value).is_some_and(|index| self.survey.is_boundary(index));
        width == 4 || if self.absolute_fields.is_empty() { meets() } else { self.absolute_fields.contains(&place) }
    }

    /// Walks straight on from a pair until something known or an end.
    fn run(&mut self, pair: Pair) -> Result<(), Violation> {
        let Pair { input: mut i, output: mut o, mut origin, mut within, .. } = pair;
        let mut name = Some(pair).filter(|pair| pair.reach != Reach::Flow);
        let mut alone = 0;
        let mut straight = Straight::new();
        loop {
            let Some((input, a, output, b)) = self.meet((i, o), origin, within, name.is_none())? else { return Ok(()) };
            (i, o) = (input, output);
            self.began_at.get_or_insert((i, o));
            let fail = |kind, at, message: String| Err(Violation::new(kind, at, format!("{message} (from {origin:#x})")));
            let (Some(from), Some(to)) = (self.input.code.index(i), self.output.code.index(o)) else { return Ok(()) };
            if !straight.come_to(o) {
                self.relation.join(to);
            }
            if let Some(name) = name.take().filter(|name| name.reach == Reach::Pointer) {
                self.compare_marks(name.input, name.output)?;
                if let Some(other) = self.relation.name(name.input, name.output, self.has_numbers) {
                    let message = format!("the input's {:#x} already stands at {other:#x}", name.input);
                    return fail(ViolationKind::Conflict, name.output, message);
                }
                if let Some(other) = self.relation.hold(name.input, name.output) {
                    let message = format!("is the address of the input's {other:#x} and of its {:#x}", name.input);
                    return fail(ViolationKind::Conflict, name.output, message);
                }
            }
            if let Some(step) = self.step_of_input((i, a), (o, b), within) {
                alone += 1;
                if alone > ALONE_MAX {
                    return fail(
                        ViolationKind::InstructionMismatch,
                        o,
                        format!("nothing for the calls from the input's {i:#x} on"),
                    );
                }
                if within.is_none() {
                    self.relation.rewrite(from, to);
                    self.relation.pass(true, from, a.len);
                }
                (i, within) = step;
                continue;
            }
            alone = 0;
            match self.relation.record(from, to, (a.len, b.len), within) {
                Recorded::Known => return self.meet_proven(i, o, within),
                Recorded::Conflict(Some(other)) => {
                    let other = self.input.code.address(other);
                    return fail(ViolationKind::Conflict, o, format!("stands for the input's {other:#x} and for its {i:#x}"));
                }
                Recorded::Conflict(None) => {
                    return fail(ViolationKind::Conflict, o, format!("stands for the input's {i:#x} in place of another call"));
                }
                Recorded::New => self.recorded.push(to as u32),
            }
            self.stats.instructions += 1;
            self.stats.moved_instructions += u64::from(i != o);
            self.compare_rows(within.unwrap_or(i), o)?;
            if let Some(call) = within {
                if let Some(after) = self.leave_by_call(call, i, a, o, b)? {
                    (origin, within) = (o, None);
                    (i, o) = after;
                    continue;
                }
                self.compare_inlined(call, i, a, o)?;
            }
            if within.is_none()
                && self.is_handled_if_it_faults(i, a)
                && let Err(violation) = self.compare_call_sites(i, o)
            {
                // What registers hold, which may be proven, does not matter for it.
                self.violations.push(violation);
            }
            if self.is_call_past_stub(i, a, o, b) || self.is_call_of_constant(i, a, b) {
                self.relation.rewrite(from, to);
            } else {
                match self.compare(i, a, o, b) {
                    Ok(references) => self.follow(references, i, o)?,
                    Err(difference) => {
                        if within.is_none() && self.pass_form((i, a), (o, b), &straight)? {
                            straight.pass(o, b);
                            origin = o;
                            (i, o) = (i + u64::from(a.len), o + u64::from(b.len));
                            continue;
                        }
                        if within.is_none()
                            && let Some(behind) = self.pass_outlined((i, a), (o, b))?
                        {
                            let Some(next) = behind else { return Ok(()) };
                            origin = o;
                            (i, o) = next;
                            continue;
                        }
                        if within.is_none()
                            && let Some(next) = self.pass_subroutine((i, a), (o, b))?
                        {
                            straight.pass(o, b);
                            origin = o;
                            (i, o) = next;
                            continue;
                        }
                        let Some(end) = self.pass_changed((i, a), (o, b), within)? else {
                            return Err(self.tell(difference, (i, a), (o, b)).from(origin));
                        };
                        origin = o;
                        (i, o) = end;
                        continue;
                    }
                }
            }
            straight.pass(o, b);
            origin = o;
            match self.next(i, a, o, b, within)? {
                Some(next) => (i, o) = next,
                None => return Ok(()),
            }
        }
    }

    /// The two instructions to which a pair leads; `None` if there is nothing to compare.
    fn meet(
        &mut self,
        (i, o): (u64, u64),
        origin: u64,
        within: Option<u64>,
        is_flow: bool,
    ) -> Result<Option<(u64, Inst, u64, Inst)>, Violation> {
        let fail = |kind, at, message: String| Err(Violation::new(kind, at, format!("{message} (from {origin:#x})")));
        // What is passed in a callee is not passed in its own right.
        let mut input = if within.is_some() { Self::lead(self.input, i, |_, _| {}) } else { self.canonical(true, i) };
        let output = self.canonical(false, o);
        if within.is_none()
            && let (Canonical::At(mark, a), Canonical::At(_, b)) = (&input, &output)
            && self.may_lose_mark((*mark, *a), *b)
        {
            self.input.code.index(*mark).into_iter().for_each(|index| self.relation.pass(true, index, a.len));
            input = self.canonical(true, mark + u64::from(a.len));
        }
        match (input, output) {
            (Canonical::At(input, inst), _) if is_flow && self.is_end_of_function(input, inst) => Ok(None),
            (Canonical::At(input, inst), Canonical::At(output, other)) => Ok(Some((input, inst, output, other))),
            (Canonical::Cycle, Canonical::Cycle) => Ok(None),
            (Canonical::Bad(input), Canonical::Bad(output)) if self.is_same_unknown(input, output) => {
                // The function that begins with it is not missing.
                self.input.code.index(input).into_iter().for_each(|index| self.relation.pass(true, index, 1));
                Ok(None)
            }
            (Canonical::Bad(input), _) if self.input.code.index(input).is_some() => {
                fail(ViolationKind::BadTarget, o, format!("the input does not decode at {input:#x}"))
            }
            (_, Canonical::Bad(output)) => {
                fail(ViolationKind::BadTarget, output, format!("not an instruction; the input has {i:#x}"))
            }
            _ => fail(ViolationKind::BadTarget, o, format!("leads elsewhere than the input's {i:#x}")),
        }
    }

    /// Whether the input leads to the padding behind a function: LLVM sends ways there that the program cannot take, and lets functions end in nothing where it knows that nobody comes.
    fn is_end_of_function(&self, address: u64, inst: Inst) -> bool {
        let fde_at = |address| self.input.unwind.fde_at(address);
        inst.kind == Kind::Trap && fde_at(address).is_none() && fde_at(address - 1).is_some() || self.is_before_zeros(address)
    }

    /// Whether nothing but no-ops stands between the end of a frame description and an address, and nothing but zeros from there to the beginning of the next one.
    fn is_before_zeros(&self, address: u64) -> bool {
        let fdes = &self.input.unwind.fdes;
        let next = fdes.partition_point(|fde| fde.start <= address);
        let (Some(before), Some(next)) = (next.checked_sub(1).map(|last| &fdes[last]), fdes.get(next)) else { return false };
        let (filled, rest) = (address.wrapping_sub(before.end), next.start - address);
        if filled > PADDING_MAX || rest > PADDING_MAX {
            return false;
        }
        let zeros = self.input.code.tail(address).and_then(|tail| tail.get(..rest as usize));
        zeros.is_some_and(|zeros| zeros.iter().all(|&byte| byte == 0)) && self.input_leads_to(before.end) == address
    }

    /// Whether what neither side can decode is the same: outside of all code, or untouched.
    fn is_same_unknown(&self, input: u64, output: u64) -> bool {
        let bytes = |side: &Side<'a>| side.code.tail(input).map(|tail| &tail[..tail.len().min(15)]);
        input == output && bytes(self.input) == bytes(self.output)
    }

    /// The successor by falling through, after queueing the others.
    fn next(&mut self, i: u64, a: Inst, o: u64, b: Inst, within: Option<u64>) -> Result<Option<(u64, u64)>, Violation> {
        let (after_i, after_o) = (i + u64::from(a.len), o + u64::from(b.len));
        let push = |walk: &mut Self, input, output| walk.flows.push(Pair { within, ..Pair::new(input, output, o, Reach::Flow) });
        match a.kind {
            Kind::Branch => {
                let (taken_i, taken_o) = (self.input.target(i, a), self.output.target(o, b));
                if compare::condition(self.input.code.bytes(i, a)) == compare::condition(self.output.code.bytes(o, b)) {
                    push(self, taken_i, taken_o);
                    Ok(Some((after_i, after_o)))
                } else {
                    push(self, taken_i, after_o);
                    Ok(Some((after_i, taken_o)))
                }
            }
            Kind::Loop => {
                push(self, self.input.target(i, a), self.output.target(o, b));
                Ok(Some((after_i, after_o)))
            }
            Kind::Call | Kind::IndirectCall => {
                self.compare_call_sites(i, o)?;
                if let Some(input) = self.constant_target(i, a).filter(|_| b.kind == Kind::Call) {
                    self.queue.push(Pair::new(input, self.output.target(o, b), o, Reach::Name));
                }
                if a.kind == Kind::Call && b.kind == Kind::Call {
                    let (input, output) = (self.input.target(i, a), self.output.target(o, b));
                    self.called(i, Pair::new(input, output, o, Reach::Call));
                }
                Ok(self.behind_call((i, a), (o, b)))
            }
            Kind::Return if self.goes_on_behind_return(i) => {
                self.queue.push(Pair::new(after_i, after_o, o, Reach::Name));
                Ok(None)
            }
            Kind::Stop if self.is_stepped_over(i, a) => Ok(Some((after_i, after_o))),
            Kind::Trap => {
                self.try_behind_traps((after_i, after_o), o);
                Ok(None)
            }
            Kind::Stop if self.input.code.bytes(i, a) == UD2 => {
                self.not_kept.push(Pair::new(after_i, after_o, o, Reach::Flow));
                Ok(None)
            }
            Kind::IndirectJump | Kind::Return | Kind::Stop => Ok(None),
            _ => Ok(Some((after_i, after_o))),
        }
    }

    /// Notes what may run behind a trap, and behind each `ud2` that follows it: compilers go on behind both if they are nothing but text to them, and an optimizer may keep that way. Ends of functions that are shared lead to one
    /// trap from several, of which each has its own behind it.
    fn try_behind_traps(&mut self, (mut i, mut o): (u64, u64), origin: u64) {
        loop {
            self.tries.push(Pair::new(i, o, origin, Reach::Flow));
            let (Some(a), Some(b)) = (self.input.inst(i), self.output.inst(o)) else { return };
            if a != b || self.input.code.bytes(i, a) != UD2 {
                return;
            }
            (i, o) = (i + u64::from(a.len), o + u64::from(b.len));
        }
    }

    /// Where both go on behind calls that correspond; `None` where nothing follows.
    fn behind_call(&mut self, (i, a): (u64, Inst), (o, b): (u64, Inst)) -> Option<(u64, u64)> {
        let (after_i, after_o) = (i + u64::from(a.len), o + u64::from(b.len));
        if self.noreturn.ends_at(self.input, i, a) && !self.goes_on_behind_return(after_i) {
            self.tries.push(Pair::new(after_i, after_o, o, Reach::Flow));
            return None;
        }
        self.note_return(after_i, after_o, o);
        Some((after_i, after_o))
    }

    /// Queues what an instruction refers to.
    fn follow(&mut self, reference: Option<Reference>, i: u64, o: u64) -> Result<(), Violation> {
        match reference {
            None => Ok(()),
            Some(Reference::Code(input, output)) => {
                self.note_return(input, output, o);
                self.note_signature(input, i);
                self.reference_below(input, o)?;
                self.reference_code(input, output, o)
            }
            Some(Reference::Table { input, output, width }) => {
                self.tables.push(TableReference { input, output, width, from: i, origin: o });
                Ok(())
            }
            Some(Reference::Displaced(input, output)) => {
                self.displaced.push(Displaced { input, output, origin: o });
                Ok(())
            }
        }
    }

    /// A code address that the program computes, stores or exports.
    fn reference_code(&mut self, input: u64, output: u64, origin: u64) -> Result<(), Violation> {
        if input == output {
            self.unmoved.push(Unmoved { address: input, origin });
        }
        if !self.output.image.in_code(output) {
            let message = format!("names {output:#x}, which is not code; the input names {input:#x}");
            return Err(Violation::new(ViolationKind::BadTarget, origin, message));
        }
        let is_code = self.input.code.index(input).is_some_and(|index| self.survey.is_boundary(index));
        if input == output && !is_code {
            self.tries.push(Pair::new(input, output, origin, Reach::Pointer));
            if self.has_numbers && self.input.starts_undescribed(input) {
                self.guessed.push((input, origin));
            }
            return Ok(());
        }
        self.compare_marks(input, output)?;
        self.stats.seeds += 1;
        self.queue.push(Pair::new(input, output, origin, Reach::Pointer));
        Ok(())
    }
}
