//! Whether a program that relocates itself reads packed relocations: then nothing has to keep old loaders away.
//!
//! A static position-independent program has no loader but its own start-up code, which is in the file and compared like any other code. From 2.36 on, glibc's
//! (`_dl_relocate_static_pie`) asserts of the program's own dynamic section what an entry of `DT_RELR` measures, and applies them. So it is known by one
//! function that holds both addresses: that of the dynamic section, and that of the assertion's text.
//!
//! Source: glibc 2.36, `elf/get-dynamic-info.h`, `elf/dl-reloc-static-pie.c`, `elf/dynamic-link.h`.

use std::collections::BTreeSet;

use goblin::elf::dynamic::{DF_1_PIE, DT_FLAGS_1, DT_NEEDED};
use goblin::elf::program_header::{PT_DYNAMIC, PT_INTERP};

use crate::decode::Kind;
use crate::leftover::each_instruction;
use crate::walk::Side;

const ASSERTION: &[u8] = b"info[DT_RELRENT]->d_un.d_val == sizeof (ElfW(Relr))\0";

pub(crate) fn reads_packed_relocations(side: &Side<'_>) -> bool {
    let image = &side.image;
    let header = |p_type: u32| image.elf.program_headers.iter().find(|header| header.p_type == p_type);
    let is_alone = header(PT_INTERP).is_none() && image.dynamic_value(DT_NEEDED).is_none();
    let is_program = image.dynamic_value(DT_FLAGS_1).is_some_and(|flags| flags & DF_1_PIE != 0);
    let Some(dynamic) = header(PT_DYNAMIC).filter(|_| is_alone && is_program) else { return false };
    let (mut relocate, mut assert) = (BTreeSet::new(), BTreeSet::new());
    each_instruction(side, |address, inst| {
        if inst.kind != Kind::Lea || inst.disp == 0 {
            return;
        }
        let named = side.operand(address, inst);
        if named == dynamic.p_vaddr {
            relocate.extend(side.unwind.fde_at(address));
        } else if image.at(named, ASSERTION.len()) == Some(ASSERTION) {
            assert.extend(side.unwind.fde_at(address));
        }
    });
    !relocate.is_disjoint(&assert)
}
