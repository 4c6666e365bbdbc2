//! Tables of which the output has several copies.
//!
//! **Problem.** The walk finds that a reference to a table became one to a copy of it, and that the copy's entries lead where the table's do. Each reference is right by itself. But where a jump reads its
//! entry by one reference and adds the address that another one made, the two have to be of the same copy: entries count from the table that they are in.
//!
//! **Rule.** If all references to a table of the input became references to one place, nothing can be mixed up. Otherwise each indirect jump of the output that stands for one of a function of the input which
//! names that table is looked at: it has to add what its entry was read from, on all ways to it ([`crate::prove::Ways`]). Where an indirect branch goes through a thunk, nothing is shown.
//!
//! A copy's entries lead to copies of blocks. Where code names such a block by itself, the copy has the name that the walk finds for it, and a block that begins by naming itself does so in its copy.
//!
//! **Why this is enough.** An entry of a copy has no use but to be added to an address, and the sum none but a jump; entries and addresses of tables stay in a function or go to a callee that loads and adds
//! for it, and the jump is in the function, because a table is one only to functions that it leads into, or to parts of such. Those to which only tables lead are looked at as well.
//! In code without frame descriptions functions are guessed ([`crate::functions`]), and looked at in the same way.

use rustc_hash::{FxHashMap, FxHashSet};

use super::TableReference;
use crate::decode::{Inst, Kind};
use crate::leftover::each_instruction;
use crate::prove::{TableUses, Tables, Ways};
use crate::report::ViolationKind;
use crate::walk::{Side, Stands, Walk};

/// A reference to data: what the input names, what the output does, and in which group of functions that is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
struct Reference {
    input: u64,
    output: u64,
    group: u32,
    /// Whether it is in a part to which only tables lead: of a function in another group, perhaps.
    is_in_part: bool,
}

/// What is referred to, as far as it may be a table.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    references: FxHashSet<Reference>,
    /// Tables of offsets, with the groups that read them as such, and a reference to each place where the output has it.
    tables: FxHashMap<(u64, u32), Vec<TableReference>>,
    /// References to tables that became references to copies.
    moved: Vec<(TableReference, u32)>,
}

impl Copies {
    /// Notes a reference; where it `is_table`, others to the same data may be used with it.
    pub(super) fn note(&mut self, reference: TableReference, group: u32, is_in_part: bool, is_table: bool) {
        if reference.width == 4 {
            self.references.insert(Reference { input: reference.input, output: reference.output, group, is_in_part });
            if is_table {
                let known = self.tables.entry((reference.input, group)).or_default();
                if known.iter().all(|other| other.output != reference.output) {
                    known.push(reference);
                }
            }
        }
    }

    /// Notes a reference to a table that may be one to a copy, if no proof has followed it: proofs know what becomes of the address.
    pub(super) fn note_moved(&mut self, reference: TableReference, group: u32) {
        if reference.width == 4 && reference.input != reference.output {
            self.moved.push((reference, group));
        }
    }

    /// The groups that name a table with several copies. Where a table begins, something empty may lie as well, and other functions name that: to them it is no table.
    fn groups(&self) -> FxHashSet<u32> {
        let tables: FxHashSet<u64> = self.tables.keys().map(|table| table.0).collect();
        let is_table = |reference: &&Reference| {
            self.tables.contains_key(&(reference.input, reference.group))
                || reference.is_in_part && tables.contains(&reference.input)
        };
        let (mut first, mut several) = (FxHashMap::default(), FxHashSet::default());
        for reference in self.references.iter().filter(is_table) {
            if first.insert(reference.input, reference.output).is_some_and(|other| other != reference.output) {
                several.insert(reference.input);
            }
        }
        let named = self.references.iter().filter(is_table).filter(|reference| several.contains(&reference.input));
        named.map(|reference| reference.group).collect()
    }
}

/// Reports jumps that may read from one copy of a table and add the address of another.
pub(crate) fn report_mixed(walk: &mut Walk<'_, '_>) {
    let groups = walk.copies.groups();
    if groups.is_empty() {
        return;
    }
    let asked_for = jumps_of(walk, &groups);
    let never_returns = |call: u64| never_returns(walk, call).unwrap_or(false);
    let ways = Ways::new(walk.output, &walk.entered, &never_returns);
    let not_shown = ways.not_shown(|address| walk.output.code.index(address).is_some_and(|index| asked_for.contains(&index)));
    for jump in not_shown {
        walk.report(
            ViolationKind::JumpTable,
            jump,
            "may add another address than that of the copy of a table which the entry is read from",
        );
    }
    for (at, _) in through_thunks(walk.input).into_iter().filter(|(_, group)| groups.contains(&walk.survey.group_of(*group))) {
        walk.report(
            ViolationKind::JumpTable,
            at,
            "goes through a thunk, in a function of which a table has several copies (address of the input)",
        );
    }
}

/// Whether a call of the output stands for one of the input from which nothing comes back.
fn never_returns(walk: &Walk<'_, '_>, call: u64) -> Option<bool> {
    let Stands::For(input) = walk.relation.input_of(walk.output.code.index(call)?)? else { return None };
    let at = walk.input.code.address(input);
    let inst = walk.input.inst(at).filter(|inst| matches!(inst.kind, Kind::Call | Kind::IndirectCall))?;
    Some(walk.call_never_returns(at, inst))
}

/// Reports instructions that name a copy of a table where the input reads something else by the address too.
pub(crate) fn report_other_uses(walk: &mut Walk<'_, '_>) {
    let mut moved = std::mem::take(&mut walk.copies.moved);
    moved.sort_unstable_by_key(|(reference, group)| (reference.input, *group, reference.from, reference.origin));
    moved.dedup_by_key(|(reference, _)| reference.from);
    let mut tables: FxHashMap<u32, Vec<TableReference>> = FxHashMap::default();
    for (&(_, group), references) in &walk.copies.tables {
        tables.entry(group).or_default().extend(references);
    }
    let mut found = Vec::new();
    if !moved.is_empty() {
        let mut prover = walk.take_prover();
        let mut uses = TableUses::new(walk, &mut prover);
        for same in moved.chunk_by(|(one, group), (other, of)| (one.input, group) == (other.input, of)) {
            let ((reference, group), made_at) = (same[0], same.iter().map(|(reference, _)| reference.from).collect::<Vec<u64>>());
            let (own, others) = tables.get(&group).into_iter().flatten().partition(|table| table.input == reference.input);
            found.extend(uses.other_use(&made_at, &Tables { own, others }).map(|at| (reference, at)));
        }
        walk.give_back(prover);
    }
    for (TableReference { input, origin, .. }, at) in found {
        let message =
            format!("names a copy of the table at {input:#x}, by whose address the input reads something else at {at:#x}");
        walk.report(ViolationKind::JumpTable, origin, message);
    }
}

/// Instructions at the beginning of a block among which it may name itself.
const BEGINNING: usize = 16;

/// Whether a block to which a table leads names itself in the output if it does in the input: hardened code compares where it is with where the jump went. That an address has one name is not enough,
/// as old text, in which it keeps its own, may stay beside new.
pub(super) fn names_itself_alike(walk: &Walk<'_, '_>, input: u64, output: u64) -> bool {
    let (mut at, mut moved) = (input, output);
    // Where a body was called from that stands for some of the block.
    let mut called_from = None;
    for _ in 0..BEGINNING {
        (at, moved) = match (walk.input_leads_to(at), walk.output_leads_to(moved)) {
            (at, Some(moved)) => (at, moved),
            _ => return true,
        };
        let (Some(inst), Some(other)) = (walk.input.inst(at), walk.output.inst(moved)) else { return true };
        let behind = moved + u64::from(other.len);
        let goes_to = match (other.kind, called_from) {
            (Kind::Call, None) if matches!(inst.kind, Kind::Plain | Kind::Lea) => {
                called_from = Some(behind);
                Some(walk.output.target(moved, other))
            }
            (Kind::Return, Some(_)) => called_from.take(),
            _ => None,
        };
        if let Some(place) = goes_to {
            moved = place;
            continue;
        }
        if inst.kind == Kind::Lea && inst.disp != 0 && walk.input.operand(at, inst) == input {
            let named = (other.disp != 0).then(|| walk.output.operand(moved, other));
            return named.is_some_and(|named| named == output || walk.output_leads_to(named) == walk.output_leads_to(output));
        }
        if !matches!(inst.kind, Kind::Plain | Kind::Lea | Kind::EndBranch) {
            return true;
        }
        (at, moved) = (at + u64::from(inst.len), behind);
    }
    true
}

/// The instructions of the output, by index, that stand for one of a function among `groups`, or of a part that only tables lead to.
fn jumps_of(walk: &Walk<'_, '_>, groups: &FxHashSet<u32>) -> FxHashSet<usize> {
    let (input, output) = (walk.input, walk.output);
    let is_among = |index: usize| {
        let fde = input.function_at(input.code.address(index));
        fde.is_some_and(|fde| groups.contains(&walk.survey.group_of(fde)) || walk.survey.is_apart(fde))
    };
    let mut found = FxHashSet::default();
    each_instruction(output, |address, inst| {
        let Some(index) = output.code.index(address).filter(|_| inst.kind == Kind::IndirectJump) else { return };
        let is_asked_for = match walk.relation.input_of(index) {
            Some(Stands::For(from)) => is_among(from),
            Some(Stands::ForCall) => true,
            None => false,
        };
        if is_asked_for {
            found.insert(index);
        }
    });
    found.extend(walk.relation.others().filter(|&(from, _)| is_among(from)).map(|(_, to)| to));
    found
}

/// Whether an instruction leads to code that goes where a register says, or begins such code.
pub(super) fn is_through_thunk(side: &Side<'_>, address: u64, inst: Inst) -> bool {
    let target = match inst.kind {
        Kind::Jump | Kind::Branch => {
            let thunk = side.target(address, inst);
            side.inst(thunk).filter(|inst| inst.kind == Kind::Call).map(|inst| side.target(thunk, inst))
        }
        Kind::Call => Some(side.target(address, inst)),
        _ => None,
    };
    target.is_some_and(|target| side.drops_return_address(target))
}

/// Jumps to code that goes where a register says, or such code itself, and the frame descriptions that they are in.
fn through_thunks(side: &Side<'_>) -> Vec<(u64, u32)> {
    let mut found = Vec::new();
    each_instruction(side, |address, inst| {
        if let Some(fde) = side.function_at(address)
            && is_through_thunk(side, address, inst)
        {
            found.push((address, fde));
        }
    });
    found
}
