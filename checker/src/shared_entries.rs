//! Frame descriptions of the input that stand for several functions.
//!
//! **Problem.** Rules ask which function an instruction is in, and hold functions in one piece. A file that was relinked before may have one frame description for neighbors that have nothing else in common.
//!
//! **Rule.** A function begins inside of a frame description where a call from another one leads or a symbol for a function is, if nothing runs into it and unwinding there is as at an entry; or where a call from the same one leads, if the rules also go back to those of an entry there. In such a
//! description, so does what is named, if there is no indirect jump, by which it might be a label (one through a word at a fixed distance leads to none), or where the rules go back to those of an entry.
//!
//! **Why this is enough.** Parts of one function that are taken for two have jumps from one to the other, and are treated like parts that compilers describe one by one ([`crate::tables::Survey`]).
//!
//! **Terminates**: each round but the last finds a beginning inside of a description.

use goblin::elf::sym::{STT_FUNC, STT_GNU_IFUNC};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::decode::Kind;
use crate::image::Slot;
use crate::tables::{Survey, may_jump_to_labels};
use crate::walk::Side;

/// How many bytes of padding may stand before a function.
const PADDING_MAX: u64 = 256;

/// Has each frame description stand for one function, and looks at the input's functions.
pub(crate) fn tell_apart(side: &mut Side<'_>, absolute_fields: &FxHashSet<u64>) -> Survey {
    loop {
        let survey = Survey::of(side, absolute_fields);
        let beginnings = beginnings(side, &survey);
        if beginnings.is_empty() {
            return survey;
        }
        side.cut_at(&beginnings);
    }
}

/// Ascending.
fn beginnings(side: &Side<'_>, survey: &Survey) -> Vec<u64> {
    let symbols = side.image.elf.dynsyms.iter().map(|symbol| (symbol, &side.image.elf.dynstrtab));
    let symbols = symbols.chain(side.image.elf.syms.iter().map(|symbol| (symbol, &side.image.elf.strtab)));
    let functions = symbols.filter(|(symbol, names)| {
        let is_part = || names.get_at(symbol.st_name).is_some_and(|name| name.contains(".cold"));
        matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC) && symbol.st_shndx != 0 && !is_part()
    });
    let known = survey.calls_inside.iter().copied().chain(functions.map(|(symbol, _)| symbol.st_value));
    let goes_back = |place: u64| place.checked_sub(1).is_some_and(|before| !side.unwind.has_no_frame(before));
    let own = survey.own_calls_inside.iter().copied().filter(|&place| goes_back(place));
    let mut found: Vec<u64> = known.chain(own).filter(|&place| may_begin(side, survey, place)).collect();
    if found.is_empty() {
        return found;
    }
    let shared: FxHashSet<u32> = found.iter().filter_map(|&place| side.unwind.fde_at(place)).collect();
    let held = side.image.slots.iter().filter_map(|&(_, slot)| match slot {
        Slot::Relative(address) | Slot::Resolver(address) => Some(address),
        _ => None,
    });
    let shared: FxHashMap<u32, bool> = shared.into_iter().map(|fde| (fde, may_jump_to_labels(side, fde))).collect();
    let is_function = |&place: &u64| {
        let has_labels = side.unwind.fde_at(place).and_then(|fde| shared.get(&fde).copied());
        has_labels.is_some_and(|has_labels| !has_labels || goes_back(place)) && may_begin(side, survey, place)
    };
    found.extend(survey.named_inside().chain(held).filter(is_function));
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether a function may begin inside of a frame description.
fn may_begin(side: &Side<'_>, survey: &Survey, place: u64) -> bool {
    let Some(fde) = side.unwind.fde_at(place).map(|fde| &side.unwind.fdes[fde as usize]) else { return false };
    fde.start != place && side.unwind.has_no_frame(place) && !is_run_into(side, survey, (fde.start, place))
}

/// Whether control may run into a place from what stands before it, or no instruction begins there.
fn is_run_into(side: &Side<'_>, survey: &Survey, (start, place): (u64, u64)) -> bool {
    let begins = |address: &u64| side.code.index(*address).is_some_and(|index| survey.is_boundary(index));
    let before = (start.max(place.saturating_sub(PADDING_MAX))..place).rev().filter(begins);
    let last = before.filter_map(|at| side.inst(at)).find(|inst| !matches!(inst.kind, Kind::Nop | Kind::Trap));
    !begins(&place) || !last.is_some_and(|inst| matches!(inst.kind, Kind::Jump | Kind::IndirectJump | Kind::Return | Kind::Stop))
}
