//! Changes in a section table: sections that get another place, one that goes, one that is new, one that becomes several.
//!
//! **Method.** Headers stay in order of address; whatever names a section by its index (links, symbols, the header of the file) is
//! renumbered. The new table and the names go behind the file; `pack` finds them a better place.
//!
//! Source: gABI chapter 4.

use lifter::Image;
use lifter::address::Va;
use lifter::entity::{EntityId, PrimaryMap, Section};
use object::elf;

const HEADER: usize = 64;
/// Bytes of an `Elf64_Sym`, and where in it the section is.
const SYMBOL: usize = 24;
const SYMBOL_SECTION: usize = 6;

/// It borrows nothing, so that the file which it was made of may become the one that it is written into.
pub(super) struct SectionEdit {
    /// Those of the input.
    sections: PrimaryMap<Section, Old>,
    /// As in the input, each with its index there; `None` for a new one.
    headers: Vec<(Option<Section>, Vec<u8>)>,
    /// Where sections go on that were split, by their index in the input; the headers follow that of the first piece.
    rests: Vec<(Section, Va)>,
    names: Vec<u8>,
    names_section: Section,
}

/// What has to be known of a section of the input.
#[derive(Copy, Clone)]
struct Old {
    sh_type: u32,
    sh_addr: Va,
    sh_offset: u64,
    sh_size: u64,
}

fn write_word(header: &mut [u8], at: usize, value: u64) {
    header[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

impl SectionEdit {
    /// What each section takes besides its contents.
    pub(super) const HEADER_BYTES: u64 = HEADER as u64;

    pub(super) fn new(image: &Image<'_>, bytes: &[u8]) -> Option<Self> {
        let table = u64::from_le_bytes(bytes.get(40..48)?.try_into().ok()?) as usize;
        let header = |id: Section| Some((Some(id), bytes.get(table + HEADER * id.index()..)?.get(..HEADER)?.to_vec()));
        let headers = image.sections.keys().map(header).collect::<Option<Vec<_>>>()?;
        let names_section = Section::new(usize::from(u16::from_le_bytes([*bytes.get(62)?, *bytes.get(63)?])));
        image.sections.get(names_section)?;
        let old = image.sections.values().map(|section| Old {
            sh_type: section.sh_type,
            sh_addr: section.sh_addr,
            sh_offset: section.sh_offset.0,
            sh_size: section.sh_size,
        });
        let (sections, names) = (PrimaryMap::from_items(old.collect()), image.section_bytes(names_section).to_vec());
        Some(Self { sections, headers, rests: Vec::new(), names, names_section })
    }

    /// Whether it holds the names of all.
    pub(super) fn is_names(&self, id: Section) -> bool {
        id == self.names_section
    }

    fn header(&mut self, id: Section) -> Option<&mut Vec<u8>> {
        self.headers.iter_mut().find(|(source, _)| *source == Some(id)).map(|(_, header)| header)
    }

    pub(super) fn set_place(&mut self, id: Section, at: Va, offset: u64, size: u64) {
        if let Some(header) = self.header(id) {
            write_word(header, 16, at.0);
            write_word(header, 24, offset);
            write_word(header, 32, size);
        }
    }

    pub(super) fn remove(&mut self, id: Section) {
        self.headers.retain(|(source, _)| *source != Some(id));
    }

    /// Makes several sections of one: what the holes cover, ascending and inside it, belongs to none. To be done before anything else is added.
    pub(super) fn split(&mut self, id: Section, holes: &[(Va, Va)], name: &str) -> Option<()> {
        let section = *self.sections.get(id)?;
        let (index, (_, head)) = self.headers.iter_mut().enumerate().find(|(_, (source, _))| *source == Some(id))?;
        write_word(head, 32, holes.first()?.0 - section.sh_addr);
        let pattern = head.clone();
        let name_at = self.names.len() as u32;
        let ends = holes.iter().skip(1).map(|hole| hole.0).chain([section.sh_addr + section.sh_size]);
        for (number, (&(_, start), end)) in holes.iter().zip(ends).enumerate() {
            let mut header = pattern.clone();
            header[..4].copy_from_slice(&name_at.to_le_bytes());
            write_word(&mut header, 16, start.0);
            write_word(&mut header, 24, section.sh_offset + (start - section.sh_addr));
            write_word(&mut header, 32, end - start);
            // No more than the address has.
            write_word(&mut header, 48, 1 << start.0.trailing_zeros().min(6));
            self.headers.insert(index + 1 + number, (None, header));
            self.rests.push((id, start));
        }
        self.names.extend_from_slice(name.as_bytes());
        self.names.push(0);
        Some(())
    }

    /// The header of a new section, with nothing but a name.
    fn named(&mut self, name: &str) -> Vec<u8> {
        let mut header = vec![0; HEADER];
        header[..4].copy_from_slice(&(self.names.len() as u32).to_le_bytes());
        self.names.extend_from_slice(name.as_bytes());
        self.names.push(0);
        header
    }

    /// A section that is not loaded, in the place of another one that goes.
    pub(super) fn add_unloaded(&mut self, name: &str, old: Option<Section>, align: u64, offset: u64, size: u64) {
        old.into_iter().for_each(|id| self.remove(id));
        let mut header = self.named(name);
        header[4..8].copy_from_slice(&elf::SHT_PROGBITS.to_le_bytes());
        write_word(&mut header, 24, offset);
        write_word(&mut header, 32, size);
        write_word(&mut header, 48, align);
        self.headers.push((old, header));
    }

    /// A section for packed relocations, behind another one.
    pub(super) fn add_relr(&mut self, behind: Section, at: Va, offset: u64, size: u64) {
        let mut header = self.named(".relr.dyn");
        header[4..8].copy_from_slice(&elf::SHT_RELR.to_le_bytes());
        write_word(&mut header, 8, u64::from(elf::SHF_ALLOC));
        write_word(&mut header, 16, at.0);
        write_word(&mut header, 24, offset);
        write_word(&mut header, 32, size);
        write_word(&mut header, 48, 8);
        write_word(&mut header, 56, 8);
        let index = self.headers.iter().position(|(source, _)| *source == Some(behind)).map_or(self.headers.len(), |i| i + 1);
        self.headers.insert(index, (None, header));
    }

    /// Puts headers back into the order of addresses.
    pub(super) fn sort(&mut self) {
        let key = |header: &[u8]| {
            let word = |at: usize| header[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
            let is_loaded = word(8) & u64::from(elf::SHF_ALLOC) != 0;
            (!is_loaded, if is_loaded { word(16) } else { 0 })
        };
        if let Some((_, sections)) = self.headers.split_first_mut() {
            sections.sort_by_key(|(_, header)| key(header));
        }
    }

    /// The new index of a section; 0 for one that went.
    fn renumbered(&self, old: usize) -> u16 {
        self.headers.iter().position(|(source, _)| source.is_some_and(|id| id.index() == old)).unwrap_or(0) as u16
    }

    /// Writes names and headers behind the file, and renumbers what names sections.
    pub(super) fn write(mut self, mut out: Vec<u8>) -> Option<Vec<u8>> {
        let new_index: Vec<u16> = (0..self.sections.len()).map(|old| self.renumbered(old)).collect();
        let remap = |old: usize| new_index.get(old).copied();
        for (id, section) in self.sections.clone().iter() {
            if ![elf::SHT_SYMTAB, elf::SHT_DYNSYM].contains(&section.sh_type) {
                continue;
            }
            // The table may have moved, or be gone.
            let Some(header) = self.header(id) else { continue };
            let offset = header.get(24..32)?.try_into().ok().map(u64::from_le_bytes)? as usize;
            let table = out.get_mut(offset..offset + section.sh_size as usize)?;
            for symbol in table.chunks_exact_mut(SYMBOL) {
                let value = Va(symbol[8..16].try_into().map_or(0, u64::from_le_bytes));
                let field = &mut symbol[SYMBOL_SECTION..SYMBOL_SECTION + 2];
                let old = u16::from_le_bytes([field[0], field[1]]);
                if old < elf::SHN_LORESERVE {
                    let piece = self.rests.iter().filter(|(id, start)| id.index() == usize::from(old) && *start <= value).count();
                    // What `strip` left behind may name no section at all, or one that goes: then it is in the one that is always there, and never loaded.
                    let new = match remap(usize::from(old)) {
                        Some(0) if old != elf::SHN_UNDEF => remap(self.names_section.index()).unwrap_or(old),
                        known => known.unwrap_or(old),
                    };
                    field.copy_from_slice(&(new + piece as u16).to_le_bytes());
                }
            }
        }
        for (_, header) in &mut self.headers {
            let word =
                |header: &[u8], at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let has_section_info = word(header, 8) & elf::SHF_INFO_LINK != 0;
            for at in [40, 44].into_iter().filter(|&at| at == 40 || has_section_info) {
                let new = remap(word(header, at) as usize).map_or(0, u32::from);
                header[at..at + 4].copy_from_slice(&new.to_le_bytes());
            }
        }
        let names_at = out.len() as u64;
        out.reserve_exact(self.names.len() + 8 + HEADER * self.headers.len());
        out.extend_from_slice(&self.names);
        let (names_section, names_size) = (self.names_section, self.names.len() as u64);
        let header = self.header(names_section)?;
        write_word(header, 24, names_at);
        write_word(header, 32, names_size);
        out.resize(out.len().next_multiple_of(8), 0);
        let table_at = out.len() as u64;
        self.headers.iter().for_each(|(_, header)| out.extend_from_slice(header));
        out[40..48].copy_from_slice(&table_at.to_le_bytes());
        out[60..62].copy_from_slice(&(self.headers.len() as u16).to_le_bytes());
        out[62..64].copy_from_slice(&remap(names_section.index())?.to_le_bytes());
        Some(out)
    }
}
