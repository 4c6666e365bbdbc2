//! Sections that are not loaded, and that the program reads from its own file all the same.
//!
//! **Problem.** What is built once and serves many programs carries what is special to each in a section behind the rest: Racket the machine code of its language, PyInstaller an archive of modules, Rust's procedural
//! macros what the compiler asks of them. It is found by the section headers, as `objcopy --add-section` leaves it. No loader reads either.
//!
//! **Rule.** Such a section is the program's own unless its type or its name says that it is for a tool. That is what GNU's `strip` goes by, which also leaves unknown sections where they are.

use lifter::Image;
use lifter::elf::image::SectionData;
use object::elf;

/// How the names of sections for linkers, debuggers and other tools begin.
const OF_TOOLS: [&str; 12] = [
    ".GCC.",
    ".annobin",
    ".comment",
    ".debug",
    ".deplibs",
    ".gdb_index",
    ".gnu.",
    ".gnu_debug",
    ".llvm",
    ".note",
    ".stab",
    ".zdebug",
];

/// Whether a section is not loaded and may be read by the program.
pub(super) fn is_own(section: &SectionData<'_>) -> bool {
    let is_content = section.sh_type == elf::SHT_PROGBITS || section.sh_type >= elf::SHT_LOUSER;
    let is_for_tools = || OF_TOOLS.iter().any(|prefix| section.name.starts_with(prefix));
    !section.is_alloc() && is_content && section.sh_size > 0 && !is_for_tools()
}

/// The name of the first such section.
pub fn own<'a>(image: &Image<'a>) -> Option<&'a str> {
    image.sections.values().find(|section| image.has_section_headers && is_own(section)).map(|section| section.name)
}
