//! Real files, written again in place and torn to pieces; gimli evaluates both sides.

mod oracle;
mod run;

use lifter::elf::Unwind;
use lifter::elf::eh_frame::FdeData;
use lifter::elf::lsda::{CallSite, Lsda};
use lifter::entity::EntityId;
use lifter::{Image, Va};
use rustc_hash::FxHashSet;

use crate::relink::space::PAGE;

use super::{Choices, Deeper, Piece, UnwindBytes, UnwindFragment, UnwindLayout, quiet};
use oracle::{Entry, Row};

/// A small generator (splitmix64) so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Programs and libraries of this machine: C, C++ and Rust, PIE and not. Those that are missing are passed over.
fn real_files() -> Vec<(String, Vec<u8>)> {
    let own = std::env::current_exe().unwrap().to_string_lossy().into_owned();
    let programs = ["bash", "cmake", "python3", "git", "perl", "node", "gdb", "x86_64-linux-gnu-ld.bfd", "rustc", "c++filt"];
    let libraries = ["libc.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libcrypto.so.3", "libasan.so.8", "libpthread.so.0"];
    let paths = programs
        .iter()
        .map(|name| format!("/usr/bin/{name}"))
        .chain(libraries.iter().map(|name| format!("/usr/lib/x86_64-linux-gnu/{name}")))
        .chain([own]);
    let files: Vec<_> = paths.filter_map(|path| Some((path.clone(), std::fs::read(path).ok()?))).collect();
    assert!(files.len() > 2, "no programs to test on");
    files
}

/// Unwind sections in place: where they were put, and what they say.
struct Written {
    eh_frame_at: Va,
    except_table_at: Va,
    hdr_at: Va,
    bytes: UnwindBytes,
}

/// Code that stays.
fn identity(start: Va, end: Va) -> UnwindFragment {
    UnwindFragment { start, len: (end - start) as u32, pieces: vec![Piece::in_place(start, end)] }
}

/// Plans and writes, the sections behind everything else in the image.
fn write(unwind: &Unwind, fragments: &[UnwindFragment], sections_at: Va, pad: impl Fn(Va) -> Option<Va> + Sync) -> Written {
    write_with(unwind, fragments, Choices::default(), sections_at, pad)
}

fn write_with(
    unwind: &Unwind,
    fragments: &[UnwindFragment],
    choices: Choices<'_>,
    sections_at: Va,
    pad: impl Fn(Va) -> Option<Va> + Sync,
) -> Written {
    let layout = UnwindLayout::plan(unwind, fragments, choices, |_, va| pad(va)).unwrap();
    let except_table_at = sections_at;
    let eh_frame_at = (except_table_at + layout.except_table_len).align_up(8);
    let hdr_at = (eh_frame_at + layout.eh_frame_len).align_up(4);
    let bytes = layout.write(except_table_at, eh_frame_at, hdr_at).unwrap();
    assert_eq!(bytes.eh_frame.len() as u64, layout.eh_frame_len);
    assert_eq!(bytes.except_table.len() as u64, layout.except_table_len);
    assert_eq!(bytes.eh_frame_hdr.len() as u64, layout.eh_frame_hdr_len);
    Written { eh_frame_at, except_table_at, hdr_at, bytes }
}

/// The written sections, read by the lifter as if they were a file of their own, with code anywhere below them.
fn read_back(written: &Written, like: &Image<'_>) -> Unwind {
    let end = written.hdr_at + written.bytes.eh_frame_hdr.len() as u64;
    let mut bytes = vec![0; (end - written.except_table_at) as usize];
    let frame = (written.eh_frame_at - written.except_table_at) as usize;
    bytes[..written.bytes.except_table.len()].copy_from_slice(&written.bytes.except_table);
    bytes[frame..frame + written.bytes.eh_frame.len()].copy_from_slice(&written.bytes.eh_frame);
    let hdr = (written.hdr_at - written.except_table_at) as usize;
    bytes[hdr..].copy_from_slice(&written.bytes.eh_frame_hdr);
    let segment = |p_type, p_flags, p_offset: usize, p_vaddr: Va, p_filesz, p_memsz| lifter::elf::image::Segment {
        p_type,
        p_flags,
        p_offset: lifter::FileOffset(p_offset as u64),
        p_vaddr,
        p_filesz,
        p_memsz,
        p_align: 1,
    };
    let len = bytes.len() as u64;
    let hdr_len = written.bytes.eh_frame_hdr.len() as u64;
    let image = Image {
        bytes: &bytes,
        kind: like.kind,
        e_entry: Va(0),
        e_phoff: lifter::FileOffset(0),
        segments: vec![
            segment(object::elf::PT_LOAD, object::elf::PF_X, 0, Va(0x100), 0, written.except_table_at.0 - 0x100),
            segment(object::elf::PT_LOAD, object::elf::PF_R, 0, written.except_table_at, len, len),
            segment(object::elf::PT_GNU_EH_FRAME, object::elf::PF_R, hdr, written.hdr_at, hdr_len, hdr_len),
        ],
        sections: Default::default(),
        has_section_headers: false,
        symbols: Default::default(),
        dynamic_symbols: Vec::new(),
        dynamic: Vec::new(),
        dynamic_relocs: Vec::new(),
        static_relocs: Vec::new(),
        build_id: None,
        has_ibt: false,
        moves_fini: false,
    };
    Unwind::parse(&image).unwrap()
}

fn entries_of_image(image: &Image<'_>) -> Vec<Entry> {
    let section = image.section_named(".eh_frame").unwrap();
    let mut entries = oracle::entries(image.section_bytes(section), image.sections[section].sh_addr);
    entries.retain(|e| e.start < e.end && image.is_executable(e.start));
    entries
}

fn entry_at(entries: &[Entry], va: Va) -> Option<&Entry> {
    let after = entries.partition_point(|e| e.start <= va);
    entries[..after].last().filter(|e| va < e.end)
}

/// Call sites with neighbors that say the same made one.
fn merged(sites: &[CallSite]) -> Vec<CallSite> {
    let mut merged: Vec<CallSite> = Vec::new();
    for site in sites {
        match merged.last_mut() {
            Some(l) if (l.end, l.landing_pad, l.action) == (site.start, site.landing_pad, site.action) => l.end = site.end,
            _ => merged.push(*site),
        }
    }
    merged
}

fn site_at(lsda: &Lsda, va: Va) -> Option<&CallSite> {
    let after = lsda.call_sites.partition_point(|s| s.start <= va);
    lsda.call_sites[..after].last().filter(|s| va < s.end)
}

fn lsda_at(unwind: &Unwind, va: Va) -> Option<&Lsda> {
    Some(&unwind.lsdas[unwind.fdes[unwind.fde_containing(va)?].lsda? as usize])
}

/// What the new call sites reach of the tables, which may be less than the old ones did, is the same.
fn assert_same_tables(old: &Lsda, new: &Lsda) {
    assert!(old.actions.starts_with(&new.actions));
    assert!(old.types.starts_with(&new.types));
    assert!(old.specifications.starts_with(&new.specifications));
}

/// What is done with exceptions at an address: nothing is known of it, or where they land, and what the landing pad is told for which type or list of types.
type Handled = Option<(Option<Va>, Vec<(i64, Vec<Option<Va>>)>)>;

fn handled_at(lsda: &Lsda, va: Va) -> Handled {
    let site = site_at(lsda, va)?;
    let mut chain = Vec::new();
    let mut at = site.action.checked_sub(1);
    while let Some(start) = at {
        let bytes = gimli::EndianSlice::new(&lsda.actions[start as usize..], gimli::LittleEndian);
        let mut reader = bytes;
        let filter = gimli::Reader::read_sleb128(&mut reader).unwrap();
        let distance_at = start + (bytes.len() - reader.len()) as u64;
        let distance = gimli::Reader::read_sleb128(&mut reader).unwrap();
        let types = match filter {
            1.. => vec![lsda.types[filter as usize - 1]],
            _ => lsda.specifications.iter().skip(!filter as usize).map(|&byte| Some(Va(u64::from(byte)))).collect(),
        };
        chain.push((filter, if filter == 0 { Vec::new() } else { types }));
        at = (distance != 0).then(|| distance_at.wrapping_add_signed(distance));
    }
    Some((site.landing_pad, chain))
}

#[test]
fn code_that_stays_keeps_its_rows_and_exception_tables() {
    for (name, bytes) in real_files() {
        let image = Image::parse(&bytes).unwrap();
        let unwind = Unwind::parse(&image).unwrap();
        // Stretches that span many entries and the gaps between them.
        let fdes = unwind.fdes.as_slice();
        let fragments: Vec<_> = fdes.chunks(3).map(|c| identity(c[0].start, c[c.len() - 1].end)).collect();
        let written = write(&unwind, &fragments, image.high().align_up(4096), Some);
        let old = entries_of_image(&image);
        let new = oracle::entries(&written.bytes.eh_frame, written.eh_frame_at);
        assert_eq!(old.len(), new.len());
        for (old, new) in old.iter().zip(&new) {
            assert_eq!(old, new, "{name}");
        }
        oracle::check_search_table(&written.bytes, written.hdr_at, written.eh_frame_at, &new);
        let again = read_back(&written, &image);
        for (old, new) in unwind.fdes.values().zip(again.fdes.values()) {
            assert_eq!((old.start, old.lsda.is_some()), (new.start, new.lsda.is_some()));
            let (Some(old), Some(new)) = (old.lsda, new.lsda) else { continue };
            let (old, new) = (&unwind.lsdas[old as usize], &again.lsdas[new as usize]);
            assert_eq!(merged(&old.call_sites), merged(&new.call_sites), "{name}");
            assert_same_tables(old, new);
        }
        let size = |name| image.section_named(name).map_or(0, |s| image.sections[s].sh_size);
        let ratio = |new: usize, old: u64| new as f64 / old.max(1) as f64;
        let frame = ratio(written.bytes.eh_frame.len(), size(".eh_frame"));
        let table = ratio(written.bytes.except_table.len(), size(".gcc_except_table"));
        assert!(frame <= 1.01 && table <= 1.02, "{name}: .eh_frame x{frame:.3}, .gcc_except_table x{table:.3}");
    }
}

/// Where the bytes of torn code went.
struct Torn {
    fragments: Vec<UnwindFragment>,
    /// Ascending by old start.
    pieces: Vec<Piece>,
    end: Va,
}

impl Torn {
    fn new_address(&self, old: Va) -> Option<Va> {
        let after = self.pieces.partition_point(|p| p.old_start <= old);
        let piece = self.pieces[..after].last()?;
        (old < piece.old_end()).then(|| piece.map(old))
    }
}

/// Cuts up to four neighboring entries at random, shuffles (or not), grows and shrinks the pieces and deals them to fragments.
fn tear(unwind: &Unwind, from: Va, every: usize, random: &mut Random) -> Torn {
    let mut fragments: Vec<UnwindFragment> = Vec::new();
    let mut at = from;
    let mut index = random.below(every as u64) as usize;
    while let Some(first) = unwind.fdes.as_slice().get(index) {
        let group = 1 + random.below(4) as usize;
        let is_alike = |f: &FdeData| f.opaque_lsda.is_none() && first.opaque_lsda.is_none();
        let mut pieces: Vec<(Va, u32)> = Vec::new();
        for fde in unwind.fdes.as_slice()[index..].iter().take(group).filter(|f| f.start == first.start || is_alike(f)) {
            let mut start = fde.start;
            while start < fde.end {
                let len = (1 + random.below(60)).min(fde.end - start) as u32;
                pieces.push((start, len));
                start = start + u64::from(len);
            }
        }
        match random.below(4) {
            0 => {}
            1 => {
                // Keeps the order but takes some out, to the end.
                let (kept, moved) = pieces.iter().partition::<Vec<_>, _>(|_| random.below(8) != 0);
                pieces = kept;
                pieces.extend(moved);
            }
            _ => random.shuffle(&mut pieces),
        }
        let per_fragment = 1 + random.below(pieces.len() as u64) as usize;
        for chunk in pieces.chunks(per_fragment) {
            at = at.align_up(1 << random.below(5));
            let start = at;
            let mut placed = Vec::new();
            for &(old_start, old_len) in chunk {
                at = at.align_up(1 << random.below(3));
                let new_len = match random.below(8) {
                    0 => old_len + 5,
                    1 if old_len > 2 => old_len - 2,
                    _ => old_len,
                };
                placed.push(Piece {
                    old_start,
                    old_len,
                    new_start: at,
                    new_len,
                    is_new: false,
                    is_quiet: false,
                    deeper: Deeper::default(),
                    clone: None,
                });
                at = at + u64::from(new_len);
            }
            fragments.push(UnwindFragment { start, len: (at - start) as u32, pieces: placed });
        }
        index += group + random.below(2 * every as u64) as usize;
    }
    // Fragments are dealt to addresses, not in the order of their functions, by the order in which they are handed over.
    random.shuffle(&mut fragments);
    let mut pieces: Vec<Piece> = fragments.iter().flat_map(|f| f.pieces.iter().copied()).collect();
    pieces.sort_by_key(|p| p.old_start);
    Torn { fragments, pieces, end: at }
}

/// The row for an address, or for the end of the entry the row that holds there.
fn row_until(entries: &[Entry], va: Va, end: Va) -> &Row {
    entry_at(entries, va).unwrap().row_at(end)
}

fn check_torn(name: &str, image: &Image<'_>, unwind: &Unwind, torn: &Torn) {
    // Pads of entries that were not torn stay.
    let pad = |old: Va| torn.new_address(old).or(Some(old));
    let written = write(unwind, &torn.fragments, torn.end.align_up(4096), pad);
    let old_entries = entries_of_image(image);
    let new_entries = oracle::entries(&written.bytes.eh_frame, written.eh_frame_at);
    oracle::check_search_table(&written.bytes, written.hdr_at, written.eh_frame_at, &new_entries);
    let again = read_back(&written, image);
    assert!(again.fdes.values().all(|f| f.opaque_lsda.is_none()));
    // A row that begins where the entry ends, as those of PLTs have, holds behind the last instruction, which the oracle does not say.
    let with_such = unwind.fdes.values().filter(|fde| fde.ops.iter().any(|op| op.at == fde.end));
    let ends_with_a_row: FxHashSet<Va> = with_such.map(|fde| fde.end).collect();
    for piece in torn.fragments.iter().flat_map(|f| &f.pieces) {
        let old_entry = entry_at(&old_entries, piece.old_start).unwrap();
        for k in 0..u64::from(piece.new_len) {
            let (old, new) = (piece.old_start + k, piece.new_start + k);
            let new_entry = entry_at(&new_entries, new).unwrap_or_else(|| panic!("{name}: no entry for {new}"));
            if old >= piece.old_end() && ends_with_a_row.contains(&piece.old_end()) {
                continue;
            }
            let expected = if old < piece.old_end() { old } else { piece.old_end() };
            let context = || format!("{name}: {old} at {new} in {piece:?}");
            assert_eq!(row_until(&old_entries, piece.old_start, expected), new_entry.row_at(new), "{}", context());
            let (old_lsda, new_lsda) = (lsda_at(unwind, piece.old_start), lsda_at(&again, new));
            // What has no exception table may share one that lets exceptions pass.
            let gets_table = old_lsda.is_none() && new_lsda.is_some();
            assert!(gets_table || old_entry.personality == new_entry.personality, "{}", context());
            if old < piece.old_end() {
                assert!(old_lsda.is_none() || new_lsda.is_some(), "{}", context());
                let Some(new_lsda) = new_lsda else { continue };
                assert_eq!(handled_anew(old_lsda, old, pad), handled_at(new_lsda, new), "{}", context());
            }
        }
    }
}

/// Tears the code of each real file.
fn each_torn(seed: u64, mut look: impl FnMut(&str, &Image<'_>, &Unwind, &Torn)) {
    let mut random = Random(seed);
    for (name, bytes) in real_files() {
        let image = Image::parse(&bytes).unwrap();
        let unwind = Unwind::parse(&image).unwrap();
        let every = (unwind.fdes.len() / 1500).max(1);
        let torn = tear(&unwind, image.high().align_up(4096), every, &mut random);
        look(&name, &image, &unwind, &torn);
    }
}

#[test]
fn torn_and_shuffled_code_keeps_the_row_and_call_site_of_every_byte() {
    each_torn(1, check_torn);
}

/// What is done with exceptions at an address, with the landing pad's new place.
fn handled_anew(lsda: Option<&Lsda>, va: Va, pad: impl Fn(Va) -> Option<Va>) -> Handled {
    match lsda {
        Some(lsda) => handled_at(lsda, va).map(|(pad_of, chain)| (pad_of.and_then(pad), chain)),
        None => Some((None, Vec::new())),
    }
}

#[test]
fn call_sites_of_torn_code_are_right_where_an_exception_can_come_from_and_fewer() {
    let (mut full_len, mut len, mut num_compared) = (0, 0, 0);
    each_torn(11, |name, image, unwind, torn| {
        let pad = |old: Va| torn.new_address(old).or(Some(old));
        let at = torn.end.align_up(4096);
        let written = write_with(unwind, &torn.fragments, Choices { image: Some(image), ..Choices::default() }, at, pad);
        let again = read_back(&written, image);
        for piece in torn.fragments.iter().flat_map(|fragment| &fragment.pieces) {
            let old_lsda = lsda_at(unwind, piece.old_start);
            let copied = piece.old_len.min(piece.new_len);
            let told = |k: u32| {
                let old = piece.old_start + u64::from(k);
                // A call site begins with an instruction, though the piece was torn off amid one.
                (old_lsda.and_then(|lsda| site_at(lsda, old)).map(|site| site.start), handled_anew(old_lsda, old, pad))
            };
            let handled: Vec<(Option<Va>, Handled)> = (0..copied).map(told).collect();
            let mut start = piece.old_start;
            for stretch in handled.chunk_by(|a, b| a == b) {
                // The branch at the end of the piece may be cut short.
                let code = image.read(start, (piece.old_end() - start) as usize).unwrap();
                let end = start + stretch.len() as u64;
                for old in quiet::raising(code, start).take_while(|&old| old < end) {
                    let new = piece.new_start + (old - piece.old_start);
                    let Some(new_lsda) = lsda_at(&again, new) else {
                        assert!(old_lsda.is_none(), "{name}: {old} at {new} in {piece:?}");
                        continue;
                    };
                    assert_eq!(stretch[0].1, handled_at(new_lsda, new), "{name}: {old} at {new} in {piece:?}");
                    num_compared += 1;
                }
                start = end;
            }
        }
        full_len += write(unwind, &torn.fragments, at, pad).bytes.except_table.len();
        len += written.bytes.except_table.len();
    });
    assert!(num_compared > 1000 && len < full_len, "{num_compared} compared, {len} of {full_len} bytes");
}

#[test]
fn sparse_rows_of_torn_code_are_right_where_it_can_stop_and_say_that_they_are_sparse() {
    let (mut full_len, mut sparse_len) = (0, 0);
    each_torn(7, |name, image, unwind, torn| {
        let pad = |old: Va| torn.new_address(old).or(Some(old));
        let at = torn.end.align_up(4096);
        let sparse = Choices { image: Some(image), is_sparse: true, ..Choices::default() };
        let written = write_with(unwind, &torn.fragments, sparse, at, pad);
        assert!(read_back(&written, image).is_sparse(), "{name}");
        let (old_entries, new_entries) = (entries_of_image(image), oracle::entries(&written.bytes.eh_frame, written.eh_frame_at));
        for piece in torn.fragments.iter().flat_map(|fragment| &fragment.pieces) {
            let code = image.read(piece.old_start, piece.old_len as usize).unwrap();
            for old in quiet::stops(code, piece.old_start).filter(|&old| old - piece.old_start < u64::from(piece.new_len)) {
                let new = piece.new_start + (old - piece.old_start);
                let row = entry_at(&new_entries, new).unwrap().row_at(new);
                assert_eq!(row_until(&old_entries, piece.old_start, old), row, "{name}: {old} at {new} in {piece:?}");
            }
        }
        full_len += write(unwind, &torn.fragments, at, pad).bytes.eh_frame.len();
        sparse_len += written.bytes.eh_frame.len();
    });
    assert!(sparse_len < full_len, "{sparse_len} of {full_len}");
}

#[test]
fn no_ops_that_align_a_piece_have_its_row() {
    let (_, bytes) = real_files().pop().unwrap();
    let image = Image::parse(&bytes).unwrap();
    let unwind = Unwind::parse(&image).unwrap();
    let mut at = image.high().align_up(4096);
    let mut fragments = Vec::new();
    for fde in unwind.fdes.values().filter(|fde| fde.lsda.is_none() && fde.opaque_lsda.is_none()) {
        let Some(middle) = fde.ops.iter().map(|op| op.at).find(|&va| fde.start < va && va < fde.end) else { continue };
        let pieces = [(middle, fde.end), (fde.start, middle)].map(|(start, end)| {
            let piece = Piece { new_start: at, ..Piece::in_place(start, end) };
            at = piece.new_end() + 3;
            piece
        });
        let (start, len) = (pieces[0].new_start, (pieces[1].new_end() - pieces[0].new_start) as u32);
        fragments.push(UnwindFragment { start, len, pieces: pieces.to_vec() });
    }
    let written = write(&unwind, &fragments, at.align_up(4096), Some);
    let entries = oracle::entries(&written.bytes.eh_frame, written.eh_frame_at);
    for [first, second] in fragments.iter().map(|fragment| [&fragment.pieces[0], &fragment.pieces[1]]) {
        let entry = entry_at(&entries, second.new_start).unwrap();
        assert_eq!(entry.row_at(first.new_end()), entry.row_at(second.new_start), "{first:?} {second:?}");
    }
}

#[test]
fn the_order_of_fragments_does_not_change_the_output() {
    let (_, bytes) = real_files().pop().unwrap();
    let image = Image::parse(&bytes).unwrap();
    let unwind = Unwind::parse(&image).unwrap();
    let mut fragments: Vec<_> = unwind.fdes.values().map(|f| identity(f.start, f.end)).collect();
    let at = image.high().align_up(4096);
    let first = write(&unwind, &fragments, at, Some).bytes;
    Random(3).shuffle(&mut fragments);
    assert!(first == write(&unwind, &fragments, at, Some).bytes);
}

#[test]
fn entries_begin_where_they_have_to_and_say_the_same() {
    let mut random = Random(11);
    for (name, bytes) in real_files() {
        let image = Image::parse(&bytes).unwrap();
        let Ok(unwind) = Unwind::parse(&image) else { continue };
        let fragments: Vec<UnwindFragment> = unwind.fdes.values().map(|fde| identity(fde.start, fde.end)).collect();
        let mut layout = UnwindLayout::plan(&unwind, &fragments, Choices::default(), |_, va| Some(va)).unwrap();
        let at = image.high().align_up(PAGE);
        let (before, longest) = (layout.eh_frame_len, layout.longest_entry_len().unwrap());
        let behind = (before - layout.common_entries_len) / 4 + 8;
        let mut begins: Vec<Va> = (0..6).map(|_| at + layout.common_entries_len + 4 * random.below(behind)).collect();
        begins.extend([at, at + before + 12]);
        begins.sort_unstable();
        begins.dedup_by(|next, last| *next - *last < longest);
        layout.begin_at(at, &begins).unwrap();
        assert!(layout.eh_frame_len <= before + begins.len() as u64 * (longest + 4), "{name}");
        let (tables_at, hdr_at) = (at + (1 << 28), at + (1 << 29));
        let written = layout.write(tables_at, at, hdr_at).unwrap();
        assert_eq!(written.eh_frame.len() as u64, layout.eh_frame_len, "{name}");
        let lengths = |offset: usize| u32::from_le_bytes(written.eh_frame[offset..offset + 4].try_into().unwrap()) as usize + 4;
        let starts: Vec<usize> =
            std::iter::successors(Some(0), |&offset| (lengths(offset) > 4).then(|| offset + lengths(offset))).collect();
        let end = starts[starts.len() - 1];
        for begin in begins.iter().map(|&begin| (begin - at) as usize) {
            let is_end = begin >= end && written.eh_frame[end..begin + 4].iter().all(|&byte| byte == 0);
            assert!(is_end || starts.binary_search(&begin).is_ok(), "{name}: nothing begins at {begin:#x}");
        }
        let new = oracle::entries(&written.eh_frame, at);
        assert!(entries_of_image(&image) == new, "{name}");
        oracle::check_search_table(&written, hdr_at, at, &new);
    }
}

#[test]
fn a_pad_that_went_nowhere_is_an_error_that_names_it() {
    let found = real_files().into_iter().any(|(_, bytes)| {
        let image = Image::parse(&bytes).unwrap();
        let unwind = Unwind::parse(&image).unwrap();
        let Some(fde) = unwind
            .fdes
            .values()
            .find(|f| f.lsda.is_some_and(|l| unwind.lsdas[l as usize].call_sites.iter().any(|s| s.landing_pad.is_some())))
        else {
            return false;
        };
        let error = UnwindLayout::plan(&unwind, &[identity(fde.start, fde.end)], Choices::default(), |_, _| None).unwrap_err();
        assert!(matches!(error, super::UnwindError::LandingPadGone { pad, .. } if unwind.fde_containing(pad).is_some()));
        true
    });
    assert!(found);
}

#[test]
fn fragments_that_overlap_and_pieces_that_descend_are_errors() {
    let (_, bytes) = real_files().pop().unwrap();
    let image = Image::parse(&bytes).unwrap();
    let unwind = Unwind::parse(&image).unwrap();
    let fde = &unwind.fdes[lifter::entity::Fde::new(0)];
    let twice = [identity(fde.start, fde.end), identity(fde.start, fde.end)];
    assert!(matches!(
        UnwindLayout::plan(&unwind, &twice, Choices::default(), |_, va| Some(va)),
        Err(super::UnwindError::Overlap(_))
    ));
    let mut outside = identity(fde.start, fde.end);
    outside.pieces[0].new_start = fde.start + 1;
    assert!(matches!(
        UnwindLayout::plan(&unwind, &[outside], Choices::default(), |_, va| Some(va)),
        Err(super::UnwindError::Pieces(_))
    ));
}

#[test]
fn damaged_tables_are_written_or_refused_without_a_panic() {
    let mut random = Random(5);
    let mut written = 0;
    for (_, mut bytes) in real_files().into_iter().filter(|(name, _)| name.contains("/lib") && !name.contains("crypto")) {
        let image = Image::parse(&bytes).unwrap();
        let sections = [".eh_frame", ".gcc_except_table"].into_iter().filter_map(|name| image.section_named(name));
        let places: Vec<_> = sections.map(|s| (image.sections[s].sh_offset.0, image.sections[s].sh_size)).collect();
        for _ in 0..30 {
            let (offset, size) = places[random.below(places.len() as u64) as usize];
            let at = (offset + random.below(size)) as usize;
            let saved = std::mem::replace(&mut bytes[at], random.next() as u8);
            let image = Image::parse(&bytes).unwrap();
            if let Ok(unwind) = Unwind::parse(&image) {
                let torn = tear(&unwind, image.high().align_up(4096), 20, &mut random);
                if let Ok(layout) =
                    UnwindLayout::plan(&unwind, &torn.fragments, Choices::default(), |_, va| torn.new_address(va).or(Some(va)))
                {
                    let (a, b) = (torn.end.align_up(8), torn.end.align_up(8) + layout.except_table_len.next_multiple_of(8));
                    written += usize::from(layout.write(a, b, b + layout.eh_frame_len).is_ok());
                }
            }
            bytes[at] = saved;
        }
    }
    assert!(written > 0);
}
