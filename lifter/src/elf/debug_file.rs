//! A program's debug information in a file of its own, as `objcopy --only-keep-debug`, `eu-strip -f` and `dh_strip` make it.
//!
//! **Problem.** Such a file says of each loaded section where it is, but has no bytes of it, and its program headers may lead anywhere: it is no program, and the
//! reader of programs refuses it. And nothing in it says of which program it is but a build id, which may be missing.
//!
//! **Method.** Only section headers are read, and what they lead to: the symbol table and the notes. The file belongs to a program if both have the same build id, and code is
//! in sections of the same places; where one of them has no build id, all loaded sections must be where the program has them. A whole program that was not stripped will do.
//!
//! **Invariant.** As in an [`Image`], every section with bytes lies in the file.
//!
//! Source: gABI chapter 4; GDB's manual, "Debugging Information in Separate Files".

use object::elf;

use crate::elf::image::{Image, SectionData, Sections, SymbolData};
use crate::elf::parse::{self, notes_of};
use crate::entity::{PrimaryMap, Section, Symbol};
use crate::error::{Error, Result};

#[derive(Debug)]
pub struct DebugFile<'a> {
    pub bytes: &'a [u8],
    pub sections: PrimaryMap<Section, SectionData<'a>>,
    pub symbols: PrimaryMap<Symbol, SymbolData<'a>>,
}

impl<'a> DebugFile<'a> {
    /// Reads the debug file of a program.
    ///
    /// # Errors
    /// If it is no ELF file, damaged, without debug information, or of another program.
    pub fn parse(bytes: &'a [u8], program: &Image<'_>) -> Result<Self> {
        if !program.has_section_headers {
            return Err(Error::Unsupported("the program has no section headers, so it can't name a debug file".into()));
        }
        let file = Self::read(bytes)?;
        file.require_belongs(program)?;
        Ok(file)
    }

    /// Reads a debug file, whatever program it is of.
    ///
    /// # Errors
    /// If it is no ELF file, damaged, or without debug information.
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        let header = parse::check_machine(bytes)?;
        let sections = parse::parse_sections(header, bytes)?;
        if let Some(split) = sections.values().find(|section| section.name.ends_with(".dwo")) {
            return Err(Error::SplitDebugInformation { section: split.name.to_owned() });
        }
        parse::check_type(header)?;
        let is_told = |s: &SectionData<'_>| s.has_bytes() && (s.name == ".debug_info" || s.sh_type == elf::SHT_SYMTAB);
        if !sections.values().any(is_told) {
            return Err(Error::NoDebugInformation);
        }
        let all = Sections { bytes, data: &sections };
        let symbols = parse::parse_symbols(all, elf::SHT_SYMTAB)?.into_iter().collect();
        Ok(DebugFile { bytes, sections, symbols })
    }

    pub fn all_sections(&self) -> Sections<'_, 'a> {
        Sections { bytes: self.bytes, data: &self.sections }
    }

    /// The build id, by its section: program headers need not lead there.
    fn build_id(&self) -> Option<&'a [u8]> {
        let notes = self.sections.iter().filter(|(_, section)| section.sh_type == elf::SHT_NOTE && section.is_alloc());
        notes
            .flat_map(|(id, section)| notes_of(self.all_sections().bytes_of(id), if section.sh_addralign == 8 { 8 } else { 4 }))
            .find(|note| note.name == b"GNU\0" && note.n_type == elf::NT_GNU_BUILD_ID)
            .map(|note| note.desc)
    }

    fn require_belongs(&self, program: &Image<'_>) -> Result<()> {
        let of_program = program.build_id.and_then(|(at, len)| program.bytes.get(at.0 as usize..at.0 as usize + len));
        let has_ids = match (of_program, self.build_id()) {
            (Some(a), Some(b)) if a != b => {
                return Err(Error::BuildIdsDiffer { program: hexadecimal(a), debug_file: hexadecimal(b) });
            }
            (a, b) => a.is_some() && b.is_some(),
        };
        // Who stripped the program may have changed what lies around its code, but not where that is.
        let counts = |s: &&SectionData<'_>| s.is_alloc() && s.sh_size > 0 && (!has_ids || s.is_executable());
        let missing = |of: &PrimaryMap<Section, SectionData<'_>>, from: &PrimaryMap<Section, SectionData<'_>>| {
            let place = |s: &SectionData<'_>| (s.sh_addr, s.sh_size);
            let is_missing =
                |s: &&SectionData<'_>| !from.values().any(|o| o.is_alloc() && o.name == s.name && place(o) == place(s));
            of.values().filter(counts).find(is_missing).map(|s| s.name.to_owned())
        };
        match missing(&program.sections, &self.sections).or_else(|| missing(&self.sections, &program.sections)) {
            Some(section) => Err(Error::LayoutsDiffer { section }),
            None => Ok(()),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
