//! Tables moved to other segments, so that fewer pages are begun.
//!
//! **Problem.** Each segment that begins with a page wastes, on average, half a page at its end. What no loader reads fills only part of that.
//!
//! **Method.** The loader's tables and the unwinder's lie at the ends of segments that are not written, and are found by the dynamic section
//! and by a program header alone. They can lie at the end of any such segment. All ways to spread them (grouped, so that there are few) over the
//! ends are tried on paper, and the one with the shortest file is taken, before and after `strip`; of several, the one that moves least.
//!
//! Symbols, their names and hash tables stay in their segment ([`tables::stays`]).
//!
//! **Why it is right.** See [`super::tables`]: nothing but tags and `PT_GNU_EH_FRAME` says where these tables are, and what code names stays. Bytes of
//! a table may become executable, as in all files of linkers that put what is only read in one segment with code; with
//! [`Sharing::Safe`] they don't, and without section headers either: nothing would tell them from code.
//!
//! **Terminates**: there are at most `SEGMENTS_MAX ^ GROUPS` ways.

use lifter::Image;
use lifter::address::Va;
use lifter::elf::image::{SectionData, Segment};
use lifter::entity::Section;
use object::elf;

use super::pack::{self, Options, Sharing};
use super::section_table::SectionEdit;
use super::{cuts, tables, unwind_shift};
use crate::relink::{headers, unwind};

/// As many groups of tables as are told apart.
const GROUPS: usize = 8;
const SEGMENTS_MAX: usize = 4;
/// Two tables are not put closer than any alignment asks.
const ALIGN: u64 = 8;

/// A table that may move.
#[derive(Copy, Clone, Debug)]
struct Item {
    section: Section,
    group: usize,
    at: Va,
    size: u64,
    align: u64,
    /// Index among the segments that are loaded.
    load: usize,
}

/// A file with its tables spread, and the places that it took for them, as starts and ends.
pub type Spread = (Vec<u8>, Vec<(Va, Va)>);

/// Spreads the tables. `None` where the file does not get shorter; else the file with larger and smaller segments, and what is free in it.
pub fn spread(bytes: &[u8], free: &[(Va, Va)], named: &[Va], options: Options) -> Option<Spread> {
    let image = Image::parse(bytes).ok().filter(|image| image.has_section_headers && pack::may_move(image))?;
    if image.has_static_relocs() {
        return None;
    }
    let (items, bases) = movable(&image, free, named)?;
    let plan = Search::new(&image, &items, &bases, options)?.best()?;
    apply(&image, free, (&items, &bases), &plan)
}

fn group_of(image: &Image<'_>, section: &SectionData<'_>) -> Option<usize> {
    let loader_group = |tag: u32| match tag {
        elf::DT_GNU_HASH | elf::DT_HASH => 0,
        elf::DT_SYMTAB => 1,
        elf::DT_STRTAB => 2,
        elf::DT_VERSYM | elf::DT_VERDEF | elf::DT_VERNEED => 3,
        elf::DT_JMPREL => 5,
        _ => 4,
    };
    match unwind::index_of(section.name, section.sh_type) {
        Some(0) => Some(6),
        Some(1) => Some(7),
        _ => tables::tag_of(image, section).map(loader_group),
    }
}

/// The tables at the ends of segments, and where each segment ends without them.
fn movable(image: &Image<'_>, free: &[(Va, Va)], named: &[Va]) -> Option<(Vec<Item>, Vec<Va>)> {
    let loads: Vec<Segment> = image.loads().copied().collect();
    let is_named = |s: &SectionData<'_>| named.get(named.partition_point(|&va| va < s.sh_addr)).is_some_and(|&va| va <= s.end());
    let mut items: Vec<Item> = Vec::new();
    for (section, s) in image.sections.iter().filter(|(_, s)| s.is_alloc() && s.has_bytes() && s.sh_size > 0) {
        let holds = |l: &Segment| l.p_vaddr <= s.sh_addr && s.end() <= l.p_vaddr + l.p_filesz && !l.is_writable();
        let (Some(group), Some(load)) = (group_of(image, s), loads.iter().position(holds)) else { continue };
        if !is_named(s) {
            let align = s.sh_addralign.clamp(ALIGN, 4096).next_power_of_two();
            items.push(Item { section, group, at: s.sh_addr, size: s.sh_size, align, load });
        }
    }
    items.sort_by_key(|item| item.at);
    loop {
        let mut gone = free.to_vec();
        gone.extend(items.iter().map(|item| (item.at, item.at + item.size)));
        gone.sort_unstable();
        let bases = pack::needed_ends(image, &gone);
        let count = items.len();
        items.retain(|item| item.at >= bases[item.load]);
        if items.len() == count {
            return (!items.is_empty()).then_some((items, bases));
        }
    }
}

struct Search<'a, 'b> {
    image: &'a Image<'b>,
    items: &'a [Item],
    bases: &'a [Va],
    /// Loaded segments that may hold tables, and up to where.
    open: Vec<(usize, Va)>,
    options: Options,
}

/// For each item its segment and address.
type Plan = Vec<(usize, Va)>;

impl<'a, 'b> Search<'a, 'b> {
    fn new(image: &'a Image<'b>, items: &'a [Item], bases: &'a [Va], options: Options) -> Option<Self> {
        let loads: Vec<Segment> = image.loads().copied().collect();
        let mut open = Vec::new();
        for (index, load) in loads.iter().enumerate() {
            let next = loads.get(index + 1).map_or(u64::MAX, |next| next.p_vaddr.0 & !(next.p_align.max(4096) - 1));
            let is_open = !load.is_writable() && load.p_filesz == load.p_memsz && load.p_filesz > 0;
            let is_allowed = options.sharing == Sharing::Tight && !options.strip || !load.is_executable();
            let holds_any = items.iter().any(|item| item.load == index);
            if is_open && (is_allowed || holds_any) && bases[index].0 < next {
                open.push((index, Va(next)));
            }
        }
        (open.len() > 1 && open.len() <= SEGMENTS_MAX).then_some(Self { image, items, bases, open, options })
    }

    /// Puts each group into a segment; `None` if one has no room.
    fn place(&self, choice: &[usize; GROUPS]) -> Option<(Plan, Vec<Va>)> {
        let mut ends = self.bases.to_vec();
        let mut plan = Vec::with_capacity(self.items.len());
        for item in self.items {
            let (load, limit) = self.open[choice[item.group]];
            let at = ends[load].align_up(item.align);
            ends[load] = at + item.size;
            if ends[load] > limit {
                return None;
            }
            plan.push((load, at));
        }
        Some((plan, ends))
    }

    /// How long the file becomes if its segments end there, and how long without what no loader reads: what fills holes now may be stripped later.
    fn total(&self, ends: &[Va]) -> (u64, u64) {
        let parts = cuts::whole(self.image, ends);
        let stripped = Options { strip: true, ..self.options };
        (pack::total(self.image, &parts, self.options), pack::total(self.image, &parts, stripped))
    }

    fn best(&self) -> Option<Plan> {
        let mut present = [false; GROUPS];
        let mut home = [0; GROUPS];
        for item in self.items {
            present[item.group] = !tables::stays(self.image, &self.image.sections[item.section]);
            home[item.group] = self.open.iter().position(|&(load, _)| load == item.load)?;
        }
        let (now, now_stripped) = self.total(&self.place(&home)?.1);
        let mut best: Option<(u64, u64, Plan)> = None;
        let mut choice = home.map(|_| 0);
        (0..GROUPS).filter(|&group| !present[group]).for_each(|group| choice[group] = home[group]);
        loop {
            if let Some((plan, ends)) = self.place(&choice) {
                let (total, stripped) = self.total(&ends);
                let both = total + stripped;
                let moved = self.items.iter().zip(&plan).filter(|(item, (load, _))| item.load != *load);
                let moved: u64 = moved.map(|(item, _)| item.size).sum();
                let is_better = total <= now && both < now + now_stripped;
                if is_better && best.as_ref().is_none_or(|(least, bytes, _)| (both, moved) < (*least, *bytes)) {
                    best = Some((both, moved, plan));
                }
            }
            // Count on, in the base of as many segments as there are.
            let Some(next) = (0..GROUPS).find(|&group| present[group] && choice[group] + 1 < self.open.len()) else { break };
            (0..next).filter(|&group| present[group]).for_each(|group| choice[group] = 0);
            choice[next] += 1;
        }
        best.map(|(_, _, plan)| plan)
    }
}

/// Writes the tables to their new places, in a file whose segments have room for them.
fn apply(image: &Image<'_>, free: &[(Va, Va)], (items, bases): (&[Item], &[Va]), plan: &Plan) -> Option<Spread> {
    let mut ends: Vec<Va> = image.loads().map(|load| load.p_vaddr + load.p_filesz).collect();
    for (item, &(load, at)) in items.iter().zip(plan) {
        ends[load] = ends[load].max(at + item.size);
    }
    let mut out = pack::lay_out(image, &cuts::whole(image, &ends), Options::default()).ok()?;
    let room = Image::parse(&out).ok()?;
    let new_place = |index: usize| {
        let found = items.iter().zip(plan).find(|(item, _)| image.section_named(unwind::SECTIONS[index]) == Some(item.section));
        found.map(|(item, (_, at))| (item.at, *at, item.size))
    };
    let delta = |index: usize| new_place(index).map_or(0, |(from, to, _)| to.distance(from));
    let mut edit = SectionEdit::new(&room, &out)?;
    let mut dynamic = image.dynamic.clone();
    let mut written: Vec<(Va, Vec<u8>)> = Vec::new();
    // A search table that stays, of entries that move.
    if delta(1) != 0 && new_place(0).is_none() {
        let section = &image.sections[image.section_named(unwind::SECTIONS[0])?];
        let old = image.read(section.sh_addr, section.sh_size as usize)?;
        written.push((section.sh_addr, unwind_shift::search_table(old, 0, delta(1))?));
    }
    for (item, &(_, at)) in items.iter().zip(plan) {
        let section = &image.sections[item.section];
        let old = image.section_bytes(item.section);
        let content = match unwind::index_of(section.name, section.sh_type) {
            Some(0) => unwind_shift::search_table(old, delta(0), delta(1))?,
            Some(_) => unwind_shift::entries(old, delta(1))?,
            None => old.to_vec(),
        };
        if let Some(tag) = tables::tag_of(image, section) {
            tables::set_tag(&mut dynamic, tag, at.0);
        }
        written.push((at, content));
    }
    cut_sections(&room, bases, &mut edit, &mut dynamic);
    for (item, &(_, at)) in items.iter().zip(plan) {
        edit.set_place(item.section, at, room.file_offset(at)?.0, item.size);
    }
    edit.sort();
    let section = image.segments.iter().find(|s| s.p_type == elf::PT_DYNAMIC)?;
    for (index, (_, value)) in dynamic.iter().enumerate() {
        written.push((section.p_vaddr + 16 * index as u64 + 8, value.to_le_bytes().to_vec()));
    }
    let mut segments = room.segments.clone();
    if let Some((_, at, _)) = new_place(0) {
        for segment in segments.iter_mut().filter(|s| s.p_type == elf::PT_GNU_EH_FRAME) {
            (segment.p_vaddr, segment.p_offset) = (at, room.file_offset(at)?);
        }
    }
    // From here on the file is written into, of which nothing more is read: a second one beside it would be the most that there is at any time.
    let offset_of = |va: Va| Some(room.file_offset(va)?.0 as usize);
    let cleared: Vec<(usize, u64)> = items.iter().map(|item| Some((offset_of(item.at)?, item.size))).collect::<Option<_>>()?;
    let written: Vec<(usize, Vec<u8>)> =
        written.into_iter().map(|(va, content)| Some((offset_of(va)?, content))).collect::<Option<_>>()?;
    let start = room.e_phoff.0 as usize;
    for (start, size) in cleared {
        out.get_mut(start..start + size as usize)?.fill(0);
    }
    for (start, content) in written {
        out.get_mut(start..start + content.len())?.copy_from_slice(&content);
    }
    let table = headers::encode(&segments);
    out.get_mut(start..start + table.len())?.copy_from_slice(&table);
    let bytes = edit.write(out)?;
    // Nothing behind the bases was needed but the tables.
    let behind = image.loads().zip(bases).map(|(load, &base)| (base, load.p_vaddr + load.p_filesz));
    let mut gone = free.to_vec();
    gone.extend(behind.filter(|(base, end)| base < end));
    Some((bytes, vacated(gone, items, plan)))
}

/// Sections end where what is needed of their segment does. Where one is that has nothing left, the dynamic section may still say.
fn cut_sections(room: &Image<'_>, bases: &[Va], edit: &mut SectionEdit, dynamic: &mut [(u64, u64)]) {
    for (load, &base) in room.loads().zip(bases).filter(|(load, _)| !load.is_writable()) {
        let is_cut = |s: &SectionData<'_>| s.is_alloc() && load.p_vaddr <= s.sh_addr && s.sh_addr < load.end() && s.end() > base;
        for (id, section) in room.sections.iter().filter(|(_, s)| is_cut(s)) {
            let at = section.sh_addr.min(base);
            edit.set_place(id, at, load.p_offset.0 + (at - load.p_vaddr), base - at);
            if let Some(tag) = tables::tag_of(room, section).filter(|_| section.sh_size == 0) {
                tables::set_tag(dynamic, tag, at.0);
            }
        }
    }
}

/// What was free, where tables were included, less where they are now.
fn vacated(mut all: Vec<(Va, Va)>, items: &[Item], plan: &Plan) -> Vec<(Va, Va)> {
    all.sort_unstable();
    let mut joined: Vec<(Va, Va)> = Vec::new();
    for (start, end) in all {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    let mut taken: Vec<(Va, Va)> = items.iter().zip(plan).map(|(item, &(_, at))| (at, at + item.size)).collect();
    taken.sort_unstable();
    let mut rest = Vec::new();
    for (mut start, end) in joined {
        for &(from, to) in &taken {
            if end <= from || to <= start {
                continue;
            }
            if start < from {
                rest.push((start, from));
            }
            start = start.max(to);
        }
        if start < end {
            rest.push((start, end));
        }
    }
    rest
}
