//! What the dynamic loader reads, in less space: relative relocations packed, a hash table that no one needs left out.
//!
//! **Method.** The loader's tables (symbols, strings, versions, relocations) lie next to each other in a segment that is not written, and nothing
//! but the dynamic section says where. Those of such a run are laid out anew from its start, each with its own alignment; what the run has left
//! at its end is free. The words that packed relocations are about get the addends, which RELR has no room for. The string table
//! grows at its end by the name of one version, and the table of versions by that version, by which a glibc that can't read `DT_RELR`
//! refuses the file instead of running it wrong. A program that relocates itself needs no version ([`super::own_loader`]). Its own code names its
//! dynamic section, so that this can't move; where it is full (by `lld`), entries that say nothing make room.
//!
//! **Why it is right.** A loader finds each table by its tag and gets the same entries: the same words are relocated, each once, to the same
//! addresses. Neither glibc nor musl lets a relocation's result depend on another one's. `DT_HASH` may go where `DT_GNU_HASH` is: glibc and musl
//! use either. A file of which code names one of the tables, or where a tag and a section disagree, stays as it is.
//!
//! Sources: gABI chapter 5 (dynamic section, relative relocation table); glibc 2.36, `elf/dl-version.c`, for the version.

use std::collections::BTreeMap;

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::{DynRelocPlace, SectionData, Segment};
use lifter::entity::Section;
use object::elf;

use super::evict::{self, Evicted};
use super::section_table::SectionEdit;
use super::versions::{self, Asked, DT_RELR_VERSION};
use super::{cuts, pack, relr};
use crate::relink::headers;

/// Dynamic tags of the gABI.
const DT_RELRSZ: u32 = 35;
const DT_RELR: u32 = 36;
const DT_RELRENT: u32 = 37;
const SHT_RELR: u32 = 19;
/// Bytes of an `Elf64_Rela`.
const RELA: u64 = 24;
/// Bytes of an `Elf64_Dyn`.
const DYN: u64 = 16;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Pack relative relocations.
    pub relr: bool,
    /// The program relocates itself and reads them.
    pub reads_relr: bool,
    /// Leave out `DT_HASH` where there is `DT_GNU_HASH`.
    pub hash: bool,
    /// Make room for the program headers that cuts need.
    pub cuts: bool,
}

/// What was made smaller.
#[derive(Clone, Debug, Default)]
pub struct Repacked {
    pub bytes: Vec<u8>,
    /// All that nothing needs now, ascending.
    pub free: Vec<(Va, Va)>,
    pub num_relocations: u64,
    pub relr_bytes: u64,
    pub hash_bytes: u64,
}

/// Packs the tables of a file; `named` are the addresses of data that its code names, `free` what else nothing needs, both ascending. `None` where
/// nothing is gained or known.
pub fn repack(bytes: &[u8], named: &[Va], free: &[(Va, Va)], options: Options) -> Option<Repacked> {
    let mut packed = repack_with_room(bytes, named, free, options, 0);
    let mut moved = None;
    if options.relr && packed.as_ref().is_none_or(|packed| packed.num_relocations == 0) {
        moved = super::dynamic::with_room(bytes, named, RELR_ENTRIES);
        let better = moved.as_ref().and_then(|moved| repack_with_room(moved, named, free, options, 0));
        match better.filter(|better| better.num_relocations > 0 && better.relr_bytes >= MOVED_BYTES_MIN) {
            Some(better) => packed = Some(better),
            None => moved = None,
        }
    }
    let bytes = moved.as_deref().unwrap_or(bytes);
    if !options.cuts {
        return packed;
    }
    let so_far = packed.as_ref().map_or((bytes, free), |packed| (&packed.bytes, &packed.free));
    let cuts = cuts_without_header(so_far.0, so_far.1)?;
    if cuts.is_empty() {
        return packed;
    }
    // A file less in memory, and seldom made again.
    drop(packed);
    repack_with_room(bytes, named, free, options, cuts.len()).or_else(|| {
        let packed = repack_with_room(bytes, named, free, options, 0);
        let so_far = packed.as_ref().map_or((bytes, free), |packed| (&packed.bytes, &packed.free));
        let evicted = evict::for_cuts(so_far.0, named, so_far.1, &cuts);
        let Some(Evicted { bytes, free }) = evicted else { return packed };
        Some(Repacked { bytes, free, ..packed.unwrap_or_default() })
    })
}

/// The pages that cuts spare, in descending order, if there is not enough room for all their program headers.
fn cuts_without_header(bytes: &[u8], free: &[(Va, Va)]) -> Option<Vec<u64>> {
    let image = Image::parse(bytes).ok()?;
    let wanted = cuts::wanted(&image, free);
    Some(if wanted.len() <= cuts::spare_headers(&image) { Vec::new() } else { wanted })
}

/// As `repack`, with room for so many program headers behind their table.
fn repack_with_room(bytes: &[u8], named: &[Va], free: &[(Va, Va)], options: Options, num_headers: usize) -> Option<Repacked> {
    // What is written behind the file hides bytes that were there before.
    let image = Image::parse(bytes).ok().filter(pack::may_move)?;
    let run = Run::find(&image, named)?;
    let head = if num_headers > 0 { Some(Head::find(&image, &run, named, num_headers)?) } else { None };
    let (contents, dynamic) = (BTreeMap::new(), image.dynamic.clone());
    let reads_relr = options.reads_relr;
    let mut job = Job { image: &image, run, head, reads_relr, contents, dynamic, added: None, in_place: Vec::new() };
    let hash_bytes = if options.hash { job.drop_hash() } else { 0 };
    let num_relocations = if options.relr { job.pack_relocations_or_not() } else { 0 };
    if hash_bytes == 0 && num_relocations == 0 && job.head.is_none() {
        return None;
    }
    job.finish(bytes, free, hash_bytes, num_relocations)
}

/// Entries of the dynamic section that packed relocations need.
const RELR_ENTRIES: u64 = 3;
/// What packed relocations have to save for the dynamic section to move, which may cost a page.
const MOVED_BYTES_MIN: u64 = 8192;

/// Tables next to each other.
struct Run {
    /// Ascending by address.
    sections: Vec<Section>,
    start: Va,
    end: Va,
}

impl Run {
    /// The run that the relocations are in.
    fn find(image: &Image<'_>, named: &[Va]) -> Option<Run> {
        if !image.has_section_headers || image.has_static_relocs() {
            return None;
        }
        let mut alloc: Vec<(Section, &SectionData<'_>)> =
            image.sections.iter().filter(|(_, s)| s.is_alloc() && !s.is_tls_bss() && s.sh_size > 0).collect();
        alloc.sort_by_key(|(_, s)| s.sh_addr);
        let rela = image.dynamic_value(elf::DT_RELA)?;
        let at = alloc.iter().position(|(_, s)| s.sh_addr.0 == rela && s.sh_type == elf::SHT_RELA)?;
        let segment = image.segment_at(Va(rela)).filter(|s| !s.is_writable())?;
        let is_table = |(_, s): &(Section, &SectionData<'_>)| {
            let is_named = named.get(named.partition_point(|&va| va < s.sh_addr)).is_some_and(|&va| va < s.end());
            let is_inside = segment.p_vaddr <= s.sh_addr && s.end().0 <= segment.p_vaddr.0 + segment.p_filesz;
            is_inside && !is_named && tag_of(image, s).is_some()
        };
        let first = alloc[..at].iter().rposition(|s| !is_table(s)).map_or(0, |last| last + 1);
        let count = alloc[first..].iter().take_while(|s| is_table(s)).count();
        let run = alloc.get(first..first + count).filter(|run| !run.is_empty())?;
        // The last table may be followed at once by something that code finds by the table's end.
        let end = run.last()?.1.end();
        if named.binary_search(&end).is_ok() && alloc.get(first + count).is_none_or(|next| next.1.sh_addr != end) {
            return None;
        }
        Some(Run { sections: run.iter().map(|&(id, _)| id).collect(), start: run[0].1.sh_addr, end })
    }
}

/// The dynamic tag that says where a section is, if its size is the one that the loader goes by.
pub(super) fn tag_of(image: &Image<'_>, section: &SectionData<'_>) -> Option<u32> {
    let (tag, size) = match section.sh_type {
        elf::SHT_DYNSYM => (elf::DT_SYMTAB, None),
        elf::SHT_STRTAB => (elf::DT_STRTAB, Some(elf::DT_STRSZ)),
        elf::SHT_HASH => (elf::DT_HASH, None),
        elf::SHT_GNU_HASH => (elf::DT_GNU_HASH, None),
        elf::SHT_GNU_VERSYM => (elf::DT_VERSYM, None),
        elf::SHT_GNU_VERDEF => (elf::DT_VERDEF, None),
        elf::SHT_GNU_VERNEED => (elf::DT_VERNEED, None),
        elf::SHT_RELA if image.dynamic_value(elf::DT_RELA) == Some(section.sh_addr.0) => (elf::DT_RELA, Some(elf::DT_RELASZ)),
        SHT_RELR => (DT_RELR, Some(DT_RELRSZ)),
        elf::SHT_RELA => (elf::DT_JMPREL, Some(elf::DT_PLTRELSZ)),
        _ => return None,
    };
    let is_same = |tag: u32, value: u64| image.dynamic_value(tag) == Some(value);
    (is_same(tag, section.sh_addr.0) && size.is_none_or(|size| is_same(size, section.sh_size))).then_some(tag)
}

/// Whether a section holds a table that has to lie as far from the file's beginning as from the first segment's: symbols, their names and hash tables. Linkers put them so, and libunwind, when it is asked for the name of
/// a function, looks for them there in the file of any program or library: it crashes where that does not hold.
pub(super) fn stays(image: &Image<'_>, section: &SectionData<'_>) -> bool {
    let staying = [elf::DT_SYMTAB, elf::DT_STRTAB, elf::DT_HASH, elf::DT_GNU_HASH];
    tag_of(image, section).is_some_and(|tag| staying.contains(&tag))
}

/// Has the dynamic section say something else, if it says anything.
pub(super) fn set_tag(dynamic: &mut [(u64, u64)], tag: u32, value: u64) {
    dynamic.iter_mut().filter(|entry| entry.0 == u64::from(tag)).for_each(|entry| entry.1 = value);
}

/// What lies between the program headers and the run, and is found through them alone.
struct Head {
    sections: Vec<Section>,
    start: Va,
    end: Va,
    /// By how much it moves.
    shift: u64,
}

impl Head {
    /// Moves it by the size of so many program headers; `None` if anything else is there.
    fn find(image: &Image<'_>, run: &Run, named: &[Va], num_headers: usize) -> Option<Head> {
        const ALIGN_MAX: u64 = 64;
        // A multiple of all alignments that there are.
        let shift = (headers::ENTRY * num_headers as u64).next_multiple_of(ALIGN_MAX);
        let table_end = headers::table_end(image)?;
        let mut sections: Vec<(Section, &SectionData<'_>)> = image
            .sections
            .iter()
            .filter(|(_, s)| s.is_alloc() && !s.is_tls_bss() && s.end() > table_end && s.sh_addr < run.start)
            .collect();
        sections.sort_by_key(|(_, s)| s.sh_addr);
        let start = sections.first().map_or(run.start, |(_, s)| s.sh_addr);
        let is_movable = |s: &SectionData<'_>| {
            let is_found = s.sh_type == elf::SHT_NOTE || s.name == ".interp";
            is_found && s.sh_addr >= table_end && s.end() <= run.start && s.sh_addralign <= ALIGN_MAX
        };
        let is_whole =
            |s: &Segment| s.is_load() || s.end() <= start || s.p_vaddr >= run.end || start <= s.p_vaddr && s.end() <= run.start;
        let is_named = named.get(named.partition_point(|&va| va < table_end)).is_some_and(|&va| va < run.start);
        let ids = sections.iter().map(|&(id, _)| id).collect();
        (!is_named && sections.iter().all(|(_, s)| is_movable(s)) && image.segments.iter().all(is_whole)).then_some(Head {
            sections: ids,
            start,
            end: run.start,
            shift,
        })
    }

    fn moved_segments(&self, image: &Image<'_>) -> Vec<Segment> {
        let moves = |s: &Segment| !s.is_load() && s.p_filesz > 0 && self.start <= s.p_vaddr && s.p_vaddr < self.end;
        let moved = |s: &Segment| {
            let p_offset = FileOffset(s.p_offset.0 + self.shift);
            Segment { p_vaddr: s.p_vaddr + self.shift, p_offset, ..*s }
        };
        image.segments.iter().map(|s| if moves(s) { moved(s) } else { *s }).collect()
    }
}

struct Job<'a, 'b> {
    image: &'a Image<'b>,
    run: Run,
    /// What makes room for program headers.
    head: Option<Head>,
    /// Of the program itself.
    reads_relr: bool,
    /// New contents, by section; `None` for one that goes.
    contents: BTreeMap<Section, Option<Vec<u8>>>,
    dynamic: Vec<(u64, u64)>,
    /// The packed relocations.
    added: Option<Vec<u8>>,
    /// Words of data that get an addend.
    in_place: Vec<(Va, u64)>,
}

impl Job<'_, '_> {
    fn section(&self, sh_type: u32) -> Option<Section> {
        self.run.sections.iter().copied().find(|&id| self.image.sections[id].sh_type == sh_type)
    }

    /// The table's bytes as far as known by now.
    fn content(&self, id: Section) -> Option<Vec<u8>> {
        match self.contents.get(&id) {
            Some(changed) => changed.clone(),
            None => Some(self.image.section_bytes(id).to_vec()),
        }
    }

    fn set_tag(&mut self, tag: u32, value: u64) {
        set_tag(&mut self.dynamic, tag, value);
    }

    fn drop_hash(&mut self) -> u64 {
        let (Some(hash), Some(_)) = (self.section(elf::SHT_HASH), self.image.dynamic_value(elf::DT_GNU_HASH)) else { return 0 };
        self.contents.insert(hash, None);
        self.dynamic.retain(|&(tag, _)| tag != u64::from(elf::DT_HASH));
        self.image.sections[hash].sh_size
    }

    /// Returns how many relocations were packed; without room for them all is as before.
    fn pack_relocations_or_not(&mut self) -> u64 {
        let before = (self.contents.clone(), self.dynamic.clone());
        self.pack_relocations().unwrap_or_else(|| {
            (self.contents, self.dynamic) = before;
            0
        })
    }

    /// Returns how many relocations were packed.
    fn pack_relocations(&mut self) -> Option<u64> {
        let image = self.image;
        if image.dynamic_value(DT_RELR).is_some() {
            return None;
        }
        let table = *self.run.sections.iter().find(|&&id| tag_of(image, &image.sections[id]) == Some(elf::DT_RELA))?;
        let packable = relr::packable(image);
        let start = image.sections[table].sh_offset.0;
        let mut is_packed = vec![false; (image.sections[table].sh_size / RELA) as usize];
        for reloc in image.dynamic_relocs.iter().filter(|reloc| packable.contains_key(&reloc.slot)) {
            let DynRelocPlace::Rela(place) = reloc.place else { return None };
            // One of another table stays there, and its word is not to be relocated twice.
            *is_packed.get_mut((place.0.checked_sub(start)? / RELA) as usize)? = true;
        }
        let num_packed = is_packed.iter().filter(|&&is| is).count();
        let entries = image.section_bytes(table).chunks_exact(RELA as usize).zip(&is_packed);
        let rest: Vec<u8> = entries.filter(|(_, is_packed)| !**is_packed).flat_map(|(entry, _)| entry.iter().copied()).collect();
        let slots: Vec<u64> = packable.keys().map(|slot| slot.0).collect();
        let packed = relr::encode(&slots);
        if num_packed == 0 || !self.ask_for_relr()? {
            return None;
        }
        let left = rest.chunks_exact(RELA as usize);
        let num_relative = left.take_while(|entry| entry[8..16] == u64::from(elf::R_X86_64_RELATIVE).to_le_bytes()).count();
        self.set_tag(elf::DT_RELASZ, rest.len() as u64);
        self.set_tag(elf::DT_RELACOUNT, num_relative as u64);
        self.dynamic.retain(|&entry| entry != (u64::from(elf::DT_RELACOUNT), 0));
        self.dynamic.push((u64::from(DT_RELRSZ), packed.len() as u64));
        self.dynamic.push((u64::from(DT_RELR), 0));
        self.dynamic.push((u64::from(DT_RELRENT), 8));
        let segment = image.segments.iter().find(|s| s.p_type == elf::PT_DYNAMIC)?;
        while DYN * (self.dynamic.len() as u64 + 1) > segment.p_filesz {
            self.drop_spare()?;
        }
        self.contents.insert(table, Some(rest));
        self.in_place = packable.into_iter().collect();
        self.added = Some(packed);
        Some(num_packed as u64)
    }

    /// Leaves out an entry that says nothing to a program that relocates itself: to bind at once, if another one says so too, and a hash table of no symbols.
    fn drop_spare(&mut self) -> Option<()> {
        if !self.reads_relr {
            return None;
        }
        let image = self.image;
        let binds_now = image.dynamic_value(elf::DT_FLAGS_1).is_some_and(|flags| flags & u64::from(elf::DF_1_NOW) != 0);
        let flags = (u64::from(elf::DT_FLAGS), u64::from(elf::DF_BIND_NOW));
        if binds_now && self.dynamic.contains(&flags) {
            self.dynamic.retain(|&entry| entry != flags);
            return Some(());
        }
        let hash = self.section(elf::SHT_GNU_HASH).filter(|_| image.dynamic_symbols.len() <= 1)?;
        self.contents.insert(hash, None).is_none().then(|| self.dynamic.retain(|&(tag, _)| tag != u64::from(elf::DT_GNU_HASH)))
    }

    /// Adds the version that makes older loaders refuse; `Some(false)` where nothing would.
    fn ask_for_relr(&mut self) -> Option<bool> {
        let (needs, strings) = (self.section(elf::SHT_GNU_VERNEED), self.section(elf::SHT_STRTAB)?);
        let Some(needs) = needs else { return Some(self.reads_relr) };
        let (table, mut names) = (self.content(needs)?, self.content(strings)?);
        match versions::asked(&table, &names)? {
            Asked::Nothing => return Some(false),
            Asked::WithRelr => return Some(true),
            Asked::WithoutRelr => {}
        }
        let used = |id: Section| {
            let indices =
                self.image.section_bytes(id).chunks_exact(2).map(|half| u16::from_le_bytes([half[0], half[1]]) & 0x7fff);
            indices.max()
        };
        let used = self.section(elf::SHT_GNU_VERSYM).and_then(used)?;
        let longer = versions::with_relr(&table, &names, used, names.len() as u32)?;
        names.extend_from_slice(DT_RELR_VERSION.as_bytes());
        names.push(0);
        self.set_tag(elf::DT_STRSZ, names.len() as u64);
        self.contents.insert(needs, Some(longer));
        self.contents.insert(strings, Some(names));
        Some(true)
    }

    fn finish(mut self, bytes: &[u8], free: &[(Va, Va)], hash_bytes: u64, num_relocations: u64) -> Option<Repacked> {
        let image = self.image;
        let mut out = bytes.to_vec();
        let mut edit = SectionEdit::new(image, bytes)?;
        let mut written: Vec<(Va, Vec<u8>)> = Vec::new();
        let (start, shift) = self.head.as_ref().map_or((self.run.start, 0), |head| (head.start, head.shift));
        for &id in self.head.iter().flat_map(|head| &head.sections) {
            let section = &image.sections[id];
            edit.set_place(id, section.sh_addr + shift, section.sh_offset.0 + shift, section.sh_size);
            written.push((section.sh_addr + shift, image.section_bytes(id).to_vec()));
        }
        let mut at = self.run.start + shift;
        for id in self.run.sections.clone() {
            let section = &image.sections[id];
            let Some(content) = self.content(id) else {
                edit.remove(id);
                continue;
            };
            at = at.align_up(section.sh_addralign.max(1).next_power_of_two());
            if let Some(tag) = tag_of(image, section) {
                self.set_tag(tag, at.0);
            }
            edit.set_place(id, at, image.file_offset(self.run.start)?.0 + (at - self.run.start), content.len() as u64);
            written.push((at, content));
            at = written.last().map(|(at, content)| *at + content.len() as u64)?;
        }
        if let Some(packed) = self.added.take() {
            at = at.align_up(8);
            self.set_tag(DT_RELR, at.0);
            let offset = image.file_offset(self.run.start)?.0 + (at - self.run.start);
            edit.add_relr(*self.run.sections.last()?, at, offset, packed.len() as u64);
            written.push((at, packed));
            at = written.last().map(|(at, content)| *at + content.len() as u64)?;
        }
        if at >= self.run.end {
            return None;
        }
        let mut write = |va: Va, content: &[u8]| {
            let start = image.file_offset(va)?.0 as usize;
            out.get_mut(start..start + content.len())?.copy_from_slice(content);
            Some(())
        };
        write(start, &vec![0; (self.run.end - start) as usize])?;
        written.iter().try_for_each(|(va, content)| write(*va, content))?;
        self.in_place.iter().try_for_each(|(va, addend)| write(*va, &addend.to_le_bytes()))?;
        let segment = image.segments.iter().find(|s| s.p_type == elf::PT_DYNAMIC)?;
        let mut dynamic: Vec<u8> =
            self.dynamic.iter().flat_map(|(tag, value)| [tag.to_le_bytes(), value.to_le_bytes()].concat()).collect();
        dynamic.resize(dynamic.len().max(DYN as usize * (image.dynamic.len() + 1)), 0);
        write(segment.p_vaddr, &dynamic)?;
        if let Some(head) = &self.head {
            let table = headers::encode(&head.moved_segments(image));
            write(Va(headers::table_end(image)?.0 - table.len() as u64), &table)?;
        }
        let relr_bytes = (self.run.end - at).saturating_sub(hash_bytes);
        let mut free = free.to_vec();
        free.push((at, self.run.end));
        free.sort_unstable();
        let bytes = edit.write(out)?;
        Some(Repacked { bytes, free, num_relocations, relr_bytes, hash_bytes })
    }
}
