//! Bytes that hold the same for as long as the program runs.
//!
//! They are the bytes of segments that nobody may write, and the words of `.got` that the loader makes read-only once it has relocated them
//! (`PT_GNU_RELRO`). A word of `.data.rel.ro` does not count: static programs and the C library write some of them before they are protected.

use object::elf as numbers;

use super::Image;
use crate::address::Va;

/// What the loader can protect, in bytes.
const PAGE: u64 = 4096;

impl Image<'_> {
    /// Whether the bytes at an address are what the file and the loader put there, for as long as the program runs.
    pub fn never_changes(&self, at: Va, size: u64) -> bool {
        let end = at + size;
        let is_read_only = self.loads().any(|segment| {
            !segment.is_writable()
                && !segment.is_executable()
                && segment.p_vaddr <= at
                && end <= segment.p_vaddr + segment.p_filesz
        });
        let is_protected = || {
            let is_table = self.section_at(at).is_some_and(|id| {
                let section = &self.sections[id];
                section.name == ".got" && end <= section.end()
            });
            let mut relro = self.segments.iter().filter(|segment| segment.p_type == numbers::PT_GNU_RELRO);
            is_table && relro.any(|segment| segment.p_vaddr <= at && end.0 <= segment.end().0 & !(PAGE - 1))
        };
        is_read_only || is_protected()
    }
}
