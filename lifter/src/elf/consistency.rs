//! Whether the parts of a file say the same: sections and segments, the dynamic section and the tables that it names.
//!
//! **Problem.** A loader goes by segments and the dynamic section, a rewriter mostly by sections. Where the two contradict each other, what
//! is rewritten is not what is loaded, and no output could be right.
//!
//! **Method.** Each fact that is written down twice is compared, once, before anything is made of it. What no linker writes is
//! refused; the checks were made on all files of a distribution, of which none fails any. **Ends** because each loop walks a table
//! of the file once; the chains of the hash table are walked from the highest bucket only.
//!
//! Sources: gABI chapters 4 and 5; the GNU hash table as glibc's `do_lookup_x` reads it.

use object::elf;

use crate::address::Va;
use crate::elf::image::{Image, SectionData};
use crate::error::{Error, Result};

impl Image<'_> {
    /// Refuses a file whose parts contradict each other.
    pub(crate) fn check_consistency(&self) -> Result<()> {
        self.check_sections()?;
        self.check_relocations()?;
        self.check_static_relocations()?;
        self.check_search_table()?;
        self.check_dynamic_tables()
    }

    fn check_sections(&self) -> Result<()> {
        let mut loaded: Vec<&SectionData<'_>> =
            self.sections.values().filter(|s| s.is_alloc() && !s.is_tls_bss() && s.sh_size > 0).collect();
        for section in &loaded {
            let what = || format!("section {}", section.name);
            let segment =
                self.segment_at(section.sh_addr).ok_or_else(|| Error::malformed(what(), "lies in no segment that is loaded"))?;
            if section.end() > segment.end() {
                return Err(Error::malformed(what(), "reaches out of its segment"));
            }
            if section.has_bytes() && self.file_offset(section.sh_addr) != Some(section.sh_offset) {
                return Err(Error::malformed(what(), "is not loaded from its place in the file"));
            }
        }
        loaded.sort_by_key(|s| s.sh_addr);
        match loaded.windows(2).find(|w| w[0].end() > w[1].sh_addr) {
            Some(pair) => Err(Error::malformed(format!("section {}", pair[1].name), "overlaps the one before it")),
            None => Ok(()),
        }
    }

    /// Each word is relocated once, and is one that the loader can write.
    fn check_relocations(&self) -> Result<()> {
        let relocs = || self.dynamic_relocs.iter().filter(|r| r.r_type != elf::R_X86_64_NONE);
        let what = |slot: Va| format!("the relocation of {slot}");
        let has_text_relocations = self.dynamic_value(elf::DT_TEXTREL).is_some();
        let mut last = None;
        for reloc in relocs() {
            let is_writable = self.segment_at(reloc.slot).is_some_and(|s| s.is_writable());
            if !is_writable && !has_text_relocations {
                return Err(Error::malformed(what(reloc.slot), "would write where nothing can be written"));
            }
            if last == Some(reloc.slot) {
                return Err(Error::malformed(what(reloc.slot), "is not the only one of this word"));
            }
            if reloc.symbol != 0 && reloc.symbol as usize >= self.dynamic_symbols.len() {
                return Err(Error::malformed(what(reloc.slot), "names a symbol that is not there"));
            }
            last = Some(reloc.slot);
        }
        Ok(())
    }

    /// Relocations that `--emit-relocs` kept describe what the linker wrote. Of the kinds whose value nothing but symbol and addend
    /// decide, the fields are compared.
    fn check_static_relocations(&self) -> Result<()> {
        const HIGHEST_TYPE: u32 = 42;
        if self.kind.is_position_independent() {
            return Ok(());
        }
        for reloc in &self.static_relocs {
            let what = || format!("the kept relocation of {}", reloc.at);
            if reloc.r_type > HIGHEST_TYPE {
                return Err(Error::malformed(what(), format!("has the unknown type {}", reloc.r_type)));
            }
            let Some(symbol) = self.symbols.get(reloc.symbol) else { continue };
            // With symbols of sections, lld keeps the addends of the objects where it merged constants.
            let has_value = symbol.has_address() && symbol.st_type() != elf::STT_GNU_IFUNC;
            if !has_value {
                continue;
            }
            let value = symbol.st_value.wrapping_add_signed(reloc.addend);
            let (value, width) = match reloc.r_type {
                elf::R_X86_64_64 => (value, 8),
                elf::R_X86_64_32 | elf::R_X86_64_32S => (value, 4),
                elf::R_X86_64_PC32 => (value.wrapping_sub(reloc.at.0), 4),
                _ => continue,
            };
            let is_described = self.read(reloc.at, width).is_some_and(|field| field == &value.to_le_bytes()[..width]);
            if !is_described {
                return Err(Error::malformed(what(), format!("does not say what is there ({})", symbol.name)));
            }
        }
        Ok(())
    }

    /// The program header of the search table for unwinding names one of them.
    fn check_search_table(&self) -> Result<()> {
        let Some(header) = self.segments.iter().find(|s| s.p_type == elf::PT_GNU_EH_FRAME) else { return Ok(()) };
        let section = self.section_named(".eh_frame_hdr").map(|id| self.sections[id].sh_addr);
        match section == Some(header.p_vaddr) {
            true => Ok(()),
            false => Err(Error::malformed("PT_GNU_EH_FRAME", "is not the section .eh_frame_hdr")),
        }
    }

    /// The dynamic section and the section headers name the same symbols and strings.
    fn check_dynamic_tables(&self) -> Result<()> {
        let section_of = |sh_type: u32| self.sections.values().find(|s| s.sh_type == sh_type && s.is_alloc());
        let (Some(symbols), Some(_)) = (section_of(elf::SHT_DYNSYM), self.dynamic.first()) else { return Ok(()) };
        let strings = self.sections.values().nth(symbols.sh_link as usize);
        let same = |tag: u32, place: Option<Va>| self.dynamic_value(tag).map(Va) == place;
        if !same(elf::DT_SYMTAB, Some(symbols.sh_addr)) {
            return Err(Error::malformed("DT_SYMTAB", "is not where the section of dynamic symbols is"));
        }
        if !same(elf::DT_STRTAB, strings.map(|s| s.sh_addr)) {
            return Err(Error::malformed("DT_STRTAB", "is not where the strings of the dynamic symbols are"));
        }
        let Some(hash) = self.dynamic_value(elf::DT_GNU_HASH) else { return Ok(()) };
        match self.count_hashed(Va(hash)) {
            Some(count) if count <= self.dynamic_symbols.len() as u64 => Ok(()),
            _ => Err(Error::malformed("DT_GNU_HASH", "is not the hash table of the dynamic symbols")),
        }
    }

    /// One more than the highest symbol that the GNU hash table reaches; `None` if the table leaves the file.
    pub(crate) fn count_hashed(&self, at: Va) -> Option<u64> {
        let word = |index: u64| self.read_u32(Va(at.0.checked_add(index.checked_mul(4)?)?)).map(u64::from);
        let (buckets, first, bloom) = (word(0)?, word(1)?, word(2)?);
        // Words of 64 bits.
        let bucket_at = 4 + 2 * bloom;
        let mut highest = 0;
        for index in 0..buckets {
            highest = highest.max(word(bucket_at + index)?);
        }
        if highest < first {
            return Some(first.min(self.dynamic_symbols.len() as u64));
        }
        let mut chain = highest;
        while word(bucket_at + buckets + (chain - first))? & 1 == 0 {
            chain += 1;
        }
        Some(chain + 1)
    }
}
