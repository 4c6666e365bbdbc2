//! How right lifting was, by the relocations that it did not look at.
//!
//! **Problem.** A wrong reference shows only when the program that was relinked by it runs the code in question. **Method.** A file linked with
//! `--emit-relocs` says of each field that it names a place, and its symbols say where functions start. Lift it with
//! [`LiftOptions::use_static_relocs`](crate::lift::LiftOptions) off, or lift a stripped copy (`strip` moves nothing that is loaded), then compare field
//! by field. What the linker stored is the truth about the target; what the relocation adds is that there is one.
//!
//! **What is a miss.** Only what would make a wrong program: a field of code that moves, or any field that names code that moves, which lifting
//! does not follow; an entry of a jump table whose target moves. A field in pinned code that names what stays needs nobody to follow it, and is counted
//! apart. In *guard* mode no absolute address is changed; instead a place that one holds must be an anchor, where a jump stays.
//!
//! **What is invented.** A word of data that would be rewritten and is not relocated; a field of an instruction that names another section without
//! a relocation. Assemblers resolve what stays within one section themselves, so those fields are counted and prove nothing.

mod fields;
mod oracle;
mod starts;
mod words;

use crate::address::Va;
use crate::elf::Image;
use crate::ground_truth::oracle::Oracle;
use crate::ir::{BlockFlags, Program, RelinkMode};

/// Places on which lifting and the linker disagree, each list ascending, and how many were compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroundTruth {
    /// Relocated fields of instructions that were compared.
    pub num_refs: usize,
    /// Fields of instructions that lifting took for something else.
    pub missed_refs: Vec<Va>,
    /// Fields in pinned code that lifting has no reference for, and that name what stays.
    pub num_idle_refs: usize,
    /// Fields of instructions that lifting took for a reference to another section, without a relocation.
    pub invented_refs: Vec<Va>,
    /// References within one section, which the assembler resolved.
    pub num_assembled_refs: usize,

    /// Relocated words of data that hold a complete code address.
    pub num_slots: usize,
    /// Those that are no slot although their target may move.
    pub missed_slots: Vec<Va>,
    /// Slots that are not relocated.
    pub invented_slots: Vec<Va>,

    /// Relocated entries of jump tables.
    pub num_entries: usize,
    /// Those that a lifted table reads rightly.
    pub num_lifted_entries: usize,
    /// Those of cases that cannot occur, which lead behind the end of the function.
    pub num_unreachable_entries: usize,
    /// `(word, size)` of those behind the proven end of a lifted table. Either the compiler did not know what the lifter proved, say of an index that is
    /// constant, or the proof is wrong: only a run in which they lead nowhere can tell.
    pub idle_entries: Vec<(Va, u8)>,
    /// Those that no lifted table reads, or one that stays as it is, and that name what stays.
    pub num_pinned_entries: usize,
    /// Those that a lifted table reads wrongly or not to its end, and those that nothing reads although their target may move.
    pub missed_entries: Vec<Va>,
    /// Entries of lifted tables that are not relocated, or belong to the next table: harmless, where a table is copied.
    pub num_extra_entries: usize,
    /// Such entries of tables that would be overwritten in place.
    pub invented_entries: Vec<Va>,

    /// Addresses of function symbols in compiled code.
    pub num_starts: usize,
    /// Those where lifting has no function that can be entered.
    pub missed_starts: Vec<Va>,
    /// Functions of lifting that no function symbol names.
    pub num_extra_starts: usize,

    /// *Guard* mode: anchors whose jump has no room before the next anchor or before pinned code.
    pub crowded_anchors: Vec<Va>,
}

impl GroundTruth {
    /// Whether nothing was missed that moves, and nothing would be written that holds no address.
    pub fn is_sound(&self) -> bool {
        self.wrong().next().is_none()
    }

    /// All places that make a wrong program, with what is wrong there.
    pub fn wrong(&self) -> impl Iterator<Item = (&'static str, Va)> {
        let lists = [
            ("missed reference", &self.missed_refs),
            ("invented reference", &self.invented_refs),
            ("missed slot", &self.missed_slots),
            ("invented slot", &self.invented_slots),
            ("missed table target", &self.missed_entries),
            ("invented table target", &self.invented_entries),
            ("crowded anchor", &self.crowded_anchors),
        ];
        lists.into_iter().flat_map(|(what, list)| list.iter().map(move |&va| (what, va)))
    }
}

/// Compares a program to what the relocations and symbols of `image` say: the same file, or the one that it was before it was stripped.
pub fn ground_truth(image: &Image<'_>, program: &Program) -> GroundTruth {
    let comparison = Comparison { oracle: &Oracle::new(image), program };
    let mut truth = GroundTruth::default();
    comparison.compare_fields(&mut truth);
    comparison.compare_words(&mut truth);
    comparison.compare_starts(&mut truth);
    truth
}

#[derive(Copy, Clone)]
struct Comparison<'p> {
    oracle: &'p Oracle<'p>,
    program: &'p Program,
}

impl Comparison<'_> {
    fn is_movable(&self, va: Va) -> bool {
        let block = self.program.block_containing(va);
        block.is_some_and(|b| self.program.funcs[self.program.func_of(b)].is_movable())
    }

    fn is_guard(&self) -> bool {
        self.program.mode == Some(RelinkMode::Guard)
    }

    /// *Guard* mode: whether a block starts at an address that keeps a jump to where it goes.
    fn is_anchor(&self, va: Va) -> bool {
        let block = self.program.block_at(va);
        block.is_some_and(|b| self.program.blocks[b].flags.contains(BlockFlags::ANCHOR))
    }

    /// Whether whatever holds this absolute address stays right: nothing moves there, or *guard* mode keeps a jump.
    fn is_kept(&self, va: Va) -> bool {
        !self.is_movable(va) || self.is_guard() && self.is_anchor(va)
    }
}
