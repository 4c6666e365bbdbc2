//! The sections that a file without section headers would have, from its program headers, its dynamic section and its unwind tables.
//!
//! **Problem.** Some files have had their section headers cut off: no loader reads them. The rest of relift asks for sections: which
//! bytes are compiled code, which are the linker's stubs, where are the tables that are written anew, and what is free.
//!
//! **Method.** Whatever a program header or a dynamic tag names is a *part* with a name of its own. In executable segments, jumps through
//! slots that the loader binds are stubs ([`stubs`]), and compiled code is what unwind entries cover, from the first one to the last one
//! between two parts. Every other byte of a segment belongs to a section without a meaning: in executable segments that is code
//! of unknown bounds, which stays, and elsewhere data, which stays too.
//!
//! **Invariants.** Sections are disjoint, ascending, each within one segment; together they hold every loaded byte but the file's
//! own headers and zeros that only align a part. Where two parts overlap, the file contradicts itself and is refused.
//!
//! **Limits.** Sections of compiled code that the program tells apart by `__start_` and `__stop_` symbols are one. **Ends** because each
//! loop walks a list of the file once.
//!
//! Sources: gABI chapter 5 (dynamic section, hash table); LSB 5.0 §10.6.

mod stubs;
#[cfg(test)]
mod tests;

use object::elf;

use crate::address::{FileOffset, Va};
use crate::elf::Unwind;
use crate::elf::eh_frame::extent_by_search_table;
use crate::elf::image::{Image, SectionData, Segment};
use crate::error::{Error, Result};
use stubs::Stubs;

/// Not yet among `object`'s constants.
const DT_RELRSZ: u32 = 35;
const DT_RELR: u32 = 36;
const SHT_RELR: u32 = 19;

/// A stretch of loaded bytes whose meaning is known.
#[derive(Copy, Clone, Debug)]
struct Part {
    start: Va,
    end: Va,
    /// `None`: no section is made of it.
    name: Option<&'static str>,
    sh_type: u32,
    sh_entsize: u64,
}

impl Part {
    fn new(name: &'static str, sh_type: u32, start: Va, size: u64) -> Self {
        Part { start, end: Va(start.0.saturating_add(size)), name: Some(name), sh_type, sh_entsize: 0 }
    }
    fn len(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }
}

impl Image<'_> {
    /// Makes `sections`, of which there are none. The dynamic section and its relocations have been read.
    pub(crate) fn imply_sections(&mut self) -> Result<()> {
        let mut parts = self.parts_by_headers();
        parts.extend(self.parts_by_tags());
        let frames = extent_by_search_table(self)?;
        parts.extend(frames.map(|(start, end)| Part::new(".eh_frame", elf::SHT_PROGBITS, start, end - start)));
        let unwind = Unwind::parse(self)?;
        parts.extend(self.exception_tables(&unwind));
        parts.retain(|p| p.len() > 0);
        parts.sort_by_key(|p| (p.start, p.end));
        self.check_parts(&parts)?;
        let code = self.parts_of_code(&unwind, &parts);
        parts.extend(code);
        parts.extend(self.file_headers());
        parts.sort_by_key(|p| p.start);
        let mut sections = vec![null_section()];
        let mut loads: Vec<Segment> = self.loads().copied().collect();
        loads.sort_by_key(|s| s.p_vaddr);
        for segment in &loads {
            self.tile(segment, &parts, &mut sections);
        }
        let strings = sections.iter().position(|s| s.name == ".dynstr").unwrap_or(0);
        for symbols in sections.iter_mut().filter(|s| s.sh_type == elf::SHT_DYNSYM) {
            symbols.sh_link = strings as u32;
        }
        self.sections = sections.into_iter().collect();
        Ok(())
    }

    fn parts_by_headers(&self) -> Vec<Part> {
        let part = |s: &Segment| {
            let (name, sh_type) = match s.p_type {
                elf::PT_INTERP => (".interp", elf::SHT_PROGBITS),
                elf::PT_NOTE => (".note", elf::SHT_NOTE),
                elf::PT_DYNAMIC => (".dynamic", elf::SHT_DYNAMIC),
                elf::PT_GNU_EH_FRAME => (".eh_frame_hdr", elf::SHT_PROGBITS),
                _ => return None,
            };
            Some(Part::new(name, sh_type, s.p_vaddr, s.p_filesz))
        };
        let mut parts: Vec<Part> = self.segments.iter().filter_map(part).collect();
        // Two entries may describe the same notes, or one of them all that the others describe one by one.
        parts.sort_by_key(|p| (p.name, p.start, std::cmp::Reverse(p.end)));
        parts.dedup_by(|next, kept| next.name == kept.name && next.end <= kept.end);
        parts
    }

    fn parts_by_tags(&self) -> Vec<Part> {
        let tag = |tag: u32| self.dynamic_value(tag).map(Va);
        let mut parts = Vec::new();
        let mut add = |name, sh_type, start: Option<Va>, size: Option<u64>, sh_entsize| {
            if let (Some(start), Some(size)) = (start, size) {
                parts.push(Part { sh_entsize, ..Part::new(name, sh_type, start, size) });
            }
        };
        let count = self.count_dynamic_symbols();
        add(".dynsym", elf::SHT_DYNSYM, tag(elf::DT_SYMTAB), Some(24 * count), 24);
        add(".gnu.version", elf::SHT_GNU_VERSYM, tag(elf::DT_VERSYM), Some(2 * count), 2);
        for (name, sh_type, start, size, sh_entsize) in [
            (".dynstr", elf::SHT_STRTAB, elf::DT_STRTAB, elf::DT_STRSZ, 0),
            (".rela.plt", elf::SHT_RELA, elf::DT_JMPREL, elf::DT_PLTRELSZ, 24),
            (".relr.dyn", SHT_RELR, DT_RELR, DT_RELRSZ, 8),
            (".preinit_array", elf::SHT_PREINIT_ARRAY, elf::DT_PREINIT_ARRAY, elf::DT_PREINIT_ARRAYSZ, 8),
            (".init_array", elf::SHT_INIT_ARRAY, elf::DT_INIT_ARRAY, elf::DT_INIT_ARRAYSZ, 8),
            (".fini_array", elf::SHT_FINI_ARRAY, elf::DT_FINI_ARRAY, elf::DT_FINI_ARRAYSZ, 8),
        ] {
            add(name, sh_type, tag(start), self.dynamic_value(size), sh_entsize);
        }
        // Some linkers count the relocations of stubs among all others.
        let stubs = self.dynamic_value(elf::DT_JMPREL);
        let size = self.dynamic_value(elf::DT_RELASZ).zip(self.dynamic_value(elf::DT_RELA)).map(|(size, start)| {
            let until_stubs = stubs.and_then(|stubs| stubs.checked_sub(start)).unwrap_or(u64::MAX);
            size.min(until_stubs)
        });
        add(".rela.dyn", elf::SHT_RELA, tag(elf::DT_RELA), size, 24);
        let hash = tag(elf::DT_HASH);
        add(".hash", elf::SHT_HASH, hash, hash.and_then(|at| self.size_of_hash(at)), 4);
        let hash = tag(elf::DT_GNU_HASH);
        add(".gnu.hash", elf::SHT_GNU_HASH, hash, hash.and_then(|at| self.size_of_gnu_hash(at)), 0);
        parts
    }

    /// How many dynamic symbols are known of: the hash tables reach them, or a relocation names them.
    fn count_dynamic_symbols(&self) -> u64 {
        let by_hash = self.dynamic_value(elf::DT_HASH).and_then(|at| self.read_u32(Va(at).offset(4))).map_or(0, u64::from);
        let by_gnu_hash = self.dynamic_value(elf::DT_GNU_HASH).and_then(|at| self.count_hashed(Va(at))).unwrap_or(0);
        let by_relocation = self.dynamic_relocs.iter().map(|r| u64::from(r.symbol) + 1).max().unwrap_or(0);
        by_hash.max(by_gnu_hash).max(by_relocation)
    }

    fn size_of_hash(&self, at: Va) -> Option<u64> {
        let word = |index: i64| self.read_u32(at.offset(4 * index)).map(u64::from);
        Some(4 * (2 + word(0)? + word(1)?))
    }

    fn size_of_gnu_hash(&self, at: Va) -> Option<u64> {
        let word = |index: i64| self.read_u32(at.offset(4 * index)).map(u64::from);
        let (buckets, first, bloom) = (word(0)?, word(1)?, word(2)?);
        Some(16 + 8 * bloom + 4 * buckets + 4 * self.count_hashed(at)?.saturating_sub(first))
    }

    /// Each part is loaded from the file, within one segment, and no other's.
    fn check_parts(&self, parts: &[Part]) -> Result<()> {
        for part in parts {
            let name = part.name.unwrap_or_default();
            if usize::try_from(part.len()).ok().and_then(|len| self.read(part.start, len)).is_none() {
                return Err(Error::malformed(name, format!("{} + {:#x} is not loaded from the file", part.start, part.len())));
            }
        }
        match parts.windows(2).find(|w| w[0].end > w[1].start) {
            Some(pair) => {
                let names = [pair[0].name, pair[1].name].map(Option::unwrap_or_default);
                Err(Error::malformed(names[1], format!("overlaps {}", names[0])))
            }
            None => Ok(()),
        }
    }

    /// Stubs and compiled code, between the parts that are known.
    fn parts_of_code(&self, unwind: &Unwind, parts: &[Part]) -> Vec<Part> {
        let functions: Vec<(Va, Va)> = unwind.fdes.values().map(|f| (f.start, f.end)).filter(|f| f.0 < f.1).collect();
        let mut code = Vec::new();
        for segment in self.loads().filter(|s| s.is_executable()) {
            let end = segment.p_vaddr + segment.p_filesz;
            let mut at = segment.p_vaddr;
            let within = parts.iter().filter(|p| segment.p_vaddr <= p.start && p.start < end);
            for (stop, next) in within.map(|p| (p.start, p.end)).chain([(end, end)]) {
                let stubs = Stubs::find(self, at, stop, &functions);
                code.extend(stubs.runs.iter().map(|run| Part {
                    sh_entsize: run.stride,
                    ..Part::new(".plt", elf::SHT_PROGBITS, run.start, run.end - run.start)
                }));
                let mut from = at;
                for cut in stubs.runs.iter().map(|run| (run.start, run.end)).chain([(stop, stop)]) {
                    code.extend(compiled_code(&functions, &stubs.lazy, from, cut.0));
                    from = cut.1;
                }
                at = next;
            }
        }
        code
    }

    /// Exception tables that follow each other; of several such runs the longest. What is left of others stays, unused.
    fn exception_tables(&self, unwind: &Unwind) -> Option<Part> {
        const ALIGN_MAX: u64 = 16;
        let mut tables: Vec<(Va, Va)> = unwind.lsdas.iter().map(|l| (l.at, l.at + l.len)).collect();
        tables.sort();
        let is_next = |run: &(Va, Va), start: Va| {
            let gap = start.0.saturating_sub(run.1.0);
            gap < ALIGN_MAX && self.read(run.1, gap as usize).is_some_and(|bytes| bytes.iter().all(|&b| b == 0))
        };
        let mut runs: Vec<(Va, Va)> = Vec::new();
        for (start, end) in tables {
            match runs.last_mut().filter(|run| start < run.1 || is_next(run, start)) {
                Some(run) => run.1 = run.1.max(end),
                None => runs.push((start, end)),
            }
        }
        let (start, end) = runs.into_iter().max_by_key(|run| run.1 - run.0)?;
        Some(Part::new(".gcc_except_table", elf::SHT_PROGBITS, start, end - start))
    }

    /// The file's own headers, where they are loaded.
    fn file_headers(&self) -> Vec<Part> {
        const ENTRY: u64 = 56;
        let in_file = [(0, 64), (self.e_phoff.0, ENTRY * self.segments.len() as u64)];
        let loaded = |(start, size): (u64, u64)| {
            let holds = |s: &&Segment| s.p_offset.0 <= start && start - s.p_offset.0 + size <= s.p_filesz;
            let segment = self.loads().find(holds)?;
            Some(Part { name: None, ..Part::new("", 0, segment.p_vaddr + (start - segment.p_offset.0), size) })
        };
        in_file.into_iter().filter_map(loaded).collect()
    }

    /// Makes sections of the parts of a segment, and of what lies between them.
    fn tile(&self, segment: &Segment, parts: &[Part], sections: &mut Vec<SectionData<'static>>) {
        let file_end = segment.p_vaddr + segment.p_filesz;
        let within = parts.iter().filter(|p| segment.p_vaddr <= p.start && p.start < file_end);
        let (mut at, mut is_behind_headers) = (segment.p_vaddr, false);
        for part in within {
            if at < part.start && !self.is_alignment(segment, at, part.start, is_behind_headers) {
                sections.push(filler(segment, at, part.start));
            }
            if let Some(name) = part.name {
                let data = SectionData {
                    sh_type: part.sh_type,
                    sh_entsize: part.sh_entsize,
                    ..section(segment, name, part.start, part.end, is_code(name))
                };
                sections.push(data);
            }
            is_behind_headers = part.name.is_none();
            at = part.end.max(at);
        }
        if at < file_end {
            sections.push(filler(segment, at, file_end));
        }
        if segment.p_filesz < segment.p_memsz {
            let zeros = section(segment, ".bss", file_end, segment.end(), false);
            sections.push(SectionData { sh_type: elf::SHT_NOBITS, ..zeros });
        }
    }

    /// Whether bytes between two parts only align the second one. Behind the file's own headers zeros are no one's, however many.
    fn is_alignment(&self, segment: &Segment, start: Va, end: Va, is_behind_headers: bool) -> bool {
        const ALIGN_MAX: u64 = 16;
        let may_be = is_behind_headers || end - start < ALIGN_MAX && !segment.is_executable();
        may_be && self.read(start, (end - start) as usize).is_some_and(|bytes| bytes.iter().all(|&b| b == 0))
    }
}

fn is_code(name: &str) -> bool {
    [".text", ".plt"].contains(&name)
}

/// The compiled code of `start..end`: from the first function to the last one, and again behind each that the loader knows of.
/// `functions` ascend and are disjoint.
fn compiled_code(functions: &[(Va, Va)], lazy: &[Va], start: Va, end: Va) -> Vec<Part> {
    let mut code: Vec<(Va, Va)> = Vec::new();
    let mut is_open = false;
    let first = functions.partition_point(|f| f.0 < start);
    for &(from, to) in functions[first..].iter().take_while(|f| f.1 <= end) {
        let next_lazy = lazy.get(lazy.partition_point(|&va| va < from));
        if next_lazy.is_some_and(|&va| va < to) {
            is_open = false;
            continue;
        }
        match code.last_mut().filter(|_| is_open) {
            Some(last) => last.1 = to,
            None => code.push((from, to)),
        }
        is_open = true;
    }
    code.into_iter().map(|(from, to)| Part::new(".text", elf::SHT_PROGBITS, from, to - from)).collect()
}

fn section(segment: &Segment, name: &'static str, start: Va, end: Va, is_executable: bool) -> SectionData<'static> {
    let flag = |is_set: bool, flag: u32| if is_set { u64::from(flag) } else { 0 };
    SectionData {
        name,
        sh_name: 0,
        sh_type: elf::SHT_PROGBITS,
        sh_flags: flag(true, elf::SHF_ALLOC)
            | flag(segment.is_writable(), elf::SHF_WRITE)
            | flag(is_executable, elf::SHF_EXECINSTR),
        sh_addr: start,
        sh_offset: FileOffset(segment.p_offset.0 + (start - segment.p_vaddr)),
        sh_size: end - start,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 1,
        sh_entsize: 0,
    }
}

/// What no part tells of: code that stays, or data.
fn filler(segment: &Segment, start: Va, end: Va) -> SectionData<'static> {
    let name = match (segment.is_executable(), segment.is_writable()) {
        (true, _) => ".code",
        (false, true) => ".data",
        (false, false) => ".rodata",
    };
    section(segment, name, start, end, segment.is_executable())
}

fn null_section() -> SectionData<'static> {
    SectionData {
        name: "",
        sh_name: 0,
        sh_type: elf::SHT_NULL,
        sh_flags: 0,
        sh_addr: Va(0),
        sh_offset: FileOffset(0),
        sh_size: 0,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 0,
        sh_entsize: 0,
    }
}
