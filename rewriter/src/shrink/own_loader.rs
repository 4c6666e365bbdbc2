//! Programs that relocate themselves, and of which that is known that they read packed relocations.
//!
//! **Problem.** Packed relocations come with a version that old loaders don't know, so that they refuse the file. A static position-independent program
//! asks no library for anything: what relocates it is a part of it.
//!
//! **Method.** glibc's `_dl_relocate_static_pie` collects the entries of its own dynamic section; from the version on that applies `DT_RELR`, the same
//! function asserts what the size of one must be. A function that holds the address of the dynamic section and that of the assertion's text is this one,
//! so the file in hand has it and no other can take its place.
//!
//! Source: glibc 2.36, `elf/get-dynamic-info.h`, `elf/dl-reloc-static-pie.c`, `elf/dynamic-link.h`.

use std::collections::BTreeSet;

use lifter::Image;
use lifter::address::Va;
use lifter::ir::{Program, RefTarget};
use object::elf;

const ASSERTION: &[u8] = b"info[DT_RELRENT]->d_un.d_val == sizeof (ElfW(Relr))\0";

/// Whether a position-independent program asks for no loader and no library.
pub fn is_alone(image: &Image<'_>) -> bool {
    let has_loader = image.segments.iter().any(|s| s.p_type == elf::PT_INTERP) || image.dynamic_value(elf::DT_NEEDED).is_some();
    !has_loader && image.dynamic_value(elf::DT_FLAGS_1).is_some_and(|flags| flags & u64::from(elf::DF_1_PIE) != 0)
}

pub fn reads_packed_relocations(image: &Image<'_>, program: &Program) -> bool {
    let segment = image.segments.iter().find(|s| s.p_type == elf::PT_DYNAMIC);
    let Some(dynamic) = segment.filter(|_| is_alone(image)) else { return false };
    let is_assertion = |va: Va| image.read(va, ASSERTION.len()).is_some_and(|bytes| bytes == ASSERTION);
    let (mut relocate, mut assert) = (BTreeSet::new(), BTreeSet::new());
    for (id, block) in program.blocks.iter() {
        for reference in program.block_refs(id) {
            match reference.target {
                RefTarget::Fixed(va) if va == dynamic.p_vaddr => _ = relocate.insert(block.range),
                RefTarget::Fixed(va) if is_assertion(va) => _ = assert.insert(block.range),
                _ => {}
            }
        }
    }
    !relocate.is_disjoint(&assert)
}
