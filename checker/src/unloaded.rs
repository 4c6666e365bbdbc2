//! Sections that no loader reads, but perhaps the program, from its own file.
//!
//! **Rule.** A section that is not loaded has the same name and the same content in the output, unless its type or its name says that it is for linkers, debuggers or other tools. Where it lies
//! in the file is free: who reads it goes by the section headers.

use goblin::elf::section_header::SHT_PROGBITS;

use crate::image::{Image, Section};
use crate::report::{Violation, ViolationKind};

/// The first of the types that are for applications (gABI, "Section Types").
const SHT_LOUSER: u32 = 0x8000_0000;

/// How the names of sections begin that describe the others.
const DESCRIBING: [&str; 12] = [
    ".comment",
    ".debug",
    ".zdebug",
    ".stab",
    ".note",
    ".gdb_index",
    ".gnu_debug",
    ".gnu.",
    ".GCC.",
    ".annobin",
    ".llvm",
    ".deplibs",
];

pub(crate) fn check(input: &Image<'_>, output: &Image<'_>, violations: &mut Vec<Violation>) {
    for section in input.sections.iter().filter(|section| may_be_read(section)) {
        let bytes = input.section_bytes(section);
        let mut same = output.sections.iter().filter(|other| other.name == section.name && !other.is_alloc());
        if !same.any(|other| output.section_bytes(other) == bytes) {
            let message =
                format!("{}, which is not loaded, and which the program may read, is lost or has another content", section.name);
            violations.push(Violation::new(ViolationKind::DataChanged, 0, message));
        }
    }
}

fn may_be_read(section: &Section<'_>) -> bool {
    let is_content = section.sh_type == SHT_PROGBITS || section.sh_type >= SHT_LOUSER;
    !section.is_alloc() && is_content && section.size > 0 && !DESCRIBING.iter().any(|prefix| section.name.starts_with(prefix))
}
