//! Unwind tables of real files against what gimli reads, and damaged ones.

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};

use crate::Image;
use crate::address::Va;
use crate::elf::Unwind;
use crate::elf::eh_frame::Levels;
use crate::elf::image::SectionData;
use crate::entity::EntityId;

/// Programs and libraries of this machine, C, C++ and Rust; those that are missing are passed over, at least one must be there.
fn real_files() -> Vec<Vec<u8>> {
    let own = std::env::current_exe().unwrap();
    let names = ["/bin/ls", "/usr/bin/cmake", "/usr/bin/python3", "/usr/bin/git", "/usr/bin/perl", "/usr/bin/gdb"];
    let libraries =
        ["libc.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libm.so.6"].map(|n| format!("/usr/lib/x86_64-linux-gnu/{n}"));
    let files: Vec<Vec<u8>> = names
        .iter()
        .map(Into::into)
        .chain(libraries.iter().map(Into::into))
        .chain([own])
        .filter_map(|path: std::path::PathBuf| std::fs::read(path).ok())
        .collect();
    assert!(files.len() > 1);
    files
}

#[test]
fn every_entry_that_gimli_sees_is_read_with_the_same_bounds_and_exception_table() {
    for bytes in real_files() {
        let image = Image::parse(&bytes).unwrap();
        let unwind = Unwind::parse(&image).unwrap();
        let section = image.section_named(".eh_frame").unwrap();
        let frame = EhFrame::new(image.section_bytes(section), LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(image.sections[section].sh_addr.0);
        let mut expected = Vec::new();
        let mut entries = frame.entries(&bases);
        while let Some(entry) = entries.next().unwrap() {
            let CieOrFde::Fde(partial) = entry else { continue };
            let fde = partial.parse(|section, bases, offset| section.cie_from_offset(bases, offset)).unwrap();
            if fde.len() != 0 && image.is_executable(Va(fde.initial_address())) {
                let lsda = match fde.lsda() {
                    Some(gimli::Pointer::Direct(at)) if at != 0 => Some(Va(at)),
                    _ => None,
                };
                expected.push((Va(fde.initial_address()), Va(fde.initial_address() + fde.len()), lsda));
            }
        }
        expected.sort();
        let lsda_of = |f: &super::FdeData| f.lsda.map(|l| unwind.lsdas[l as usize].at);
        let found: Vec<_> = unwind.fdes.values().map(|f| (f.start, f.end, lsda_of(f))).collect();
        assert_eq!(found.len(), expected.len());
        assert!(found == expected);
        assert!(!found.is_empty());
        assert!(unwind.fdes.values().all(|f| f.opaque_lsda.is_none() && f.ops.is_sorted_by_key(|op| op.at)));
    }
}

/// What lies between them is alignment and whole tables of functions that the linker removed.
#[test]
fn exception_tables_are_measured_to_their_last_byte() {
    for bytes in real_files() {
        let image = Image::parse(&bytes).unwrap();
        let Some(section) = image.section_named(".gcc_except_table") else { continue };
        let mut lsdas = Unwind::parse(&image).unwrap().lsdas;
        lsdas.sort_by_key(|l| l.at);
        lsdas.dedup_by_key(|l| l.at);
        let mut reached = image.sections[section].sh_addr;
        for lsda in &lsdas {
            let gap = image.read(reached, (lsda.at - reached) as usize).unwrap();
            // Without alignment it is nothing or a table, which begins with an omitted pad base.
            let first = gap.iter().find(|&&byte| byte != 0);
            assert!(first.is_none_or(|&byte| byte == 0xff), "{reached}: {gap:x?}");
            reached = lsda.at + lsda.len;
        }
    }
}

#[test]
fn landing_pads_and_types_lie_in_the_image() {
    for bytes in real_files() {
        let image = Image::parse(&bytes).unwrap();
        let unwind = Unwind::parse(&image).unwrap();
        for lsda in &unwind.lsdas {
            for pad in lsda.call_sites.iter().filter_map(|s| s.landing_pad) {
                let fde = unwind.fde_containing(pad).unwrap();
                assert!(image.is_executable(pad) && fde.index() < unwind.fdes.len());
            }
            assert!(lsda.types.iter().flatten().all(|&va| image.segment_at(va).is_some()));
        }
    }
}

#[test]
fn a_file_without_section_headers_gives_the_same_entries() {
    for bytes in real_files() {
        let whole = Unwind::parse(&Image::parse(&bytes).unwrap()).unwrap();
        let mut image = Image::parse(&bytes).unwrap();
        image.sections = Default::default();
        let stripped = Unwind::parse(&image).unwrap();
        assert_eq!(whole.fdes.len(), stripped.fdes.len());
        assert!(whole.fdes.values().zip(stripped.fdes.values()).all(|(a, b)| (a.start, &a.ops) == (b.start, &b.ops)));
    }
}

fn place(section: &SectionData<'_>) -> (usize, usize) {
    (section.sh_offset.0 as usize, section.sh_size as usize)
}

/// Bytes of a section replaced at random, its length cut at random: the reader answers, with an error or not.
#[test]
fn damaged_tables_never_panic() {
    let mut seed = 1u64;
    let mut random = |bound: usize| {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (seed >> 33) as usize % bound.max(1)
    };
    let mut refused = 0;
    for library in ["libgcc_s.so.1", "libstdc++.so.6"] {
        let Ok(mut bytes) = std::fs::read(format!("/usr/lib/x86_64-linux-gnu/{library}")) else { continue };
        let image = Image::parse(&bytes).unwrap();
        let named = |name: &str| image.section_named(name).map(|s| (s, place(&image.sections[s])));
        let places: Vec<_> = [".eh_frame", ".gcc_except_table", ".eh_frame_hdr"].into_iter().filter_map(named).collect();
        for round in 0..150 {
            let (section, (offset, size)) = places[random(places.len())];
            let damage: Vec<usize> = (0..1 + random(4)).map(|_| offset + random(size)).collect();
            let saved: Vec<u8> = damage.iter().map(|&at| bytes[at]).collect();
            for &at in &damage {
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
            }
            let mut image = Image::parse(&bytes).unwrap();
            if round % 3 == 0 {
                image.sections[section].sh_size = random(size) as u64;
            }
            if round % 5 == 0 {
                image.sections = Default::default();
            }
            refused += usize::from(Unwind::parse(&image).is_err());
            drop(image);
            for (&at, &byte) in damage.iter().zip(&saved).rev() {
                bytes[at] = byte;
            }
        }
    }
    assert!(refused > 0);
}

/// An image of a code segment at 0x1000 and of read-only bytes at 0x2000.
fn image_of(bytes: &[u8]) -> Image<'_> {
    use crate::FileOffset;
    use crate::elf::image::{FileKind, Segment};
    let segment = |p_flags, p_vaddr, p_filesz| Segment {
        p_type: object::elf::PT_LOAD,
        p_flags,
        p_offset: FileOffset(0),
        p_vaddr,
        p_filesz,
        p_memsz: 0x1000,
        p_align: 1,
    };
    Image {
        bytes,
        kind: FileKind::FixedExecutable,
        e_entry: Va(0),
        e_phoff: FileOffset(0),
        segments: vec![segment(object::elf::PF_X, Va(0x1000), 0), segment(object::elf::PF_R, Va(0x2000), bytes.len() as u64)],
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
    }
}

/// `.eh_frame` at a place in the read-only bytes.
fn unwind_section(offset: u64, size: u64) -> SectionData<'static> {
    SectionData {
        name: ".eh_frame",
        sh_name: 0,
        sh_type: object::elf::SHT_PROGBITS,
        sh_flags: u64::from(object::elf::SHF_ALLOC),
        sh_addr: Va(0x2000 + offset),
        sh_offset: crate::FileOffset(offset),
        sh_size: size,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 8,
        sh_entsize: 0,
    }
}

/// Parses a section of one common entry and the frame entries with these instructions, each for 0x400 bytes of code from 0x1000 on.
fn parse_entries(entries: &[&[u8]]) -> crate::Result<Unwind> {
    let mut bytes = vec![16, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 2, 0x78, 16, 1, 0x03, 0x0c, 7, 8];
    for (index, instructions) in entries.iter().enumerate() {
        let start = 0x1000 + 0x400 * index as u32;
        let back = bytes.len() as u32 + 4;
        bytes.extend((13 + instructions.len() as u32).to_le_bytes());
        bytes.extend([back, start, 0x400].map(u32::to_le_bytes).concat());
        bytes.push(0);
        bytes.extend(*instructions);
    }
    let mut image = image_of(&bytes);
    image.sections.push(unwind_section(0, bytes.len() as u64));
    Unwind::parse(&image)
}

#[test]
fn advances_of_all_sizes_are_folded_into_addresses() {
    // The code alignment factor is 2.
    let instructions = [
        &[0x0a, 0x41, 0x0e, 16, 0x02, 0x10, 0x86, 2][..],
        &[0x03, 0x20, 0x00, 0x00, 0x0d, 6, 0x04, 1, 0, 0, 0, 0x0f, 1, 0x00],
        &[0x01, 0x00, 0x11, 0, 0, 0x0b, 0x2e, 32, 0x00, 0x00],
    ]
    .concat();
    let unwind = parse_entries(&[&instructions]).unwrap();
    let ops: Vec<(u64, &[u8])> = unwind.fdes.values().flat_map(|f| &f.ops).map(|op| (op.at.0, &op.bytes[..])).collect();
    let expected: [(u64, &[u8]); 7] = [
        (0x1000, &[0x0a]),
        (0x1002, &[0x0e, 16]),
        (0x1022, &[0x86, 2]),
        (0x1062, &[0x0d, 6]),
        (0x1064, &[0x0f, 1, 0]),
        (0x1100, &[0x0b]),
        (0x1100, &[0x2e, 32]),
    ];
    assert_eq!(ops, expected);
}

#[test]
fn what_is_ambiguous_or_unknown_is_an_error() {
    assert!(parse_entries(&[&[0x00], &[0x0e, 16]]).is_ok());
    let unbalanced: &[u8] = &[0x0b];
    let unknown: &[u8] = &[0x3f];
    let cut_off: &[u8] = &[0x0f, 9, 0];
    let descending: &[u8] = &[0x41, 0x01, 0x00, 0x10, 0, 0];
    for instructions in [unbalanced, unknown, cut_off, descending] {
        assert!(parse_entries(&[instructions]).is_err(), "{instructions:x?}");
    }
}

#[test]
fn an_exception_table_of_fixed_size_fields_is_read() {
    use crate::elf::lsda::parse::Budget;
    use crate::elf::lsda::{CallSite, Lsda};
    let mut bytes = vec![0x03, 0x00, 0x11, 0x00, 0x00]; // pads count from 0x1100
    bytes.extend([0x03, 50, 0x03, 26]); // types and call sites in four bytes
    for site in [[0x10u32, 0x10, 0x20], [0x40, 0x08, 0]] {
        bytes.extend(site.map(u32::to_le_bytes).concat());
        bytes.push(if site[2] == 0 { 0 } else { 3 });
    }
    // Type 1, the last; specification 1, then the record before.
    bytes.extend([1, 0, 0x7f, 0x7d]);
    assert_eq!(bytes.len(), 39);
    bytes.resize(57 - 8, 0);
    bytes.extend([0u32, 0x2222].map(u32::to_le_bytes).concat()); // type 2 is anything, type 1 at 0x2222
    bytes.extend([2, 1, 0]);
    let image = image_of(&bytes);
    let lsda = Lsda::parse(&image, Va(0x2000), Va(0x1000)..Va(0x1400), &Budget::for_file(&image)).unwrap();
    let sites = [
        CallSite { start: Va(0x1010), end: Va(0x1020), landing_pad: Some(Va(0x1120)), action: 3 },
        CallSite { start: Va(0x1040), end: Va(0x1048), landing_pad: None, action: 0 },
    ];
    assert_eq!(lsda.call_sites, sites);
    assert_eq!(lsda.actions, [1, 0, 0x7f, 0x7d]);
    assert_eq!(lsda.types, [Some(Va(0x2222)), None]);
    assert_eq!(lsda.specifications, [2, 1, 0]);
    assert_eq!(lsda.len, bytes.len() as u64);
}

/// Of two functions in one entry: 2 bytes, 30 with something pushed, and again.
const TWO_FUNCTIONS: [&[u8]; 2] = [
    // What is gone back to is remembered.
    &[0x0a, 0x41, 0x0e, 0x10, 0x4f, 0x0b, 0x0a, 0x41, 0x0e, 0x10, 0x4f, 0x0b],
    // It is said again.
    &[0x41, 0x0e, 0x10, 0x4f, 0x0e, 0x08, 0x41, 0x0e, 0x10, 0x4f, 0x0e, 0x08],
];

/// Entries with the common entry that compilers write.
fn parse_usual(entries: &[&[u8]]) -> Unwind {
    let mut unwind = parse_entries(entries).unwrap();
    unwind.cies[0].instructions = vec![0x0c, 7, 8, 0x90, 1];
    unwind
}

#[test]
fn an_entry_is_cut_where_another_may_begin_and_says_the_same_of_each_place() {
    for instructions in TWO_FUNCTIONS {
        let unwind = parse_usual(&[instructions]);
        let fde = &unwind.fdes.as_slice()[0];
        let levels = Levels::of(&unwind.cies[0], fde).expect("it is what compilers write");
        let may_begin = [0, 1, 2, 31, 32, 33, 34, 63, 64].map(|offset| levels.may_begin(fde.start + offset));
        assert_eq!(may_begin, [true, true, false, false, true, true, false, false, true]);
        let begins_anew = [31, 32, 33, 64].map(|offset| levels.begins_anew(fde.start + offset));
        assert_eq!(begins_anew, [false, true, false, true]);
        let cut = unwind.clone().cut_at(&[fde.start + 32, fde.start + 64]);
        let bounds: Vec<(u64, u64)> = cut.fdes.values().map(|part| (part.start - fde.start, part.end - fde.start)).collect();
        assert_eq!(bounds, [(0, 32), (32, 64), (64, 0x400)]);
        for part in cut.fdes.values() {
            let of_part = Levels::of(&cut.cies[0], part).expect("nothing is gone back to that was not remembered");
            let agrees = |offset: u64| of_part.may_begin(part.start + offset) == levels.may_begin(part.start + offset);
            assert!((0..part.end - part.start).all(agrees), "{part:?}");
        }
    }
}

#[test]
fn an_entry_that_says_more_than_what_is_saved_where_is_left_whole() {
    // An expression for the frame address; a rule for the return address.
    for instructions in [&[0x41, 0x0f, 0x02, 0x77, 0x08][..], &[0x41, 0x90, 0x02]] {
        let unwind = parse_usual(&[instructions]);
        assert!(Levels::of(&unwind.cies[0], &unwind.fdes.as_slice()[0]).is_none(), "{instructions:x?}");
    }
}

#[test]
fn entries_side_by_side_are_compared_by_the_rows_where_they_meet() {
    let push_and_save: [u8; 4] = [0x0e, 0x10, 0x83, 0x02];
    let framed = [&[0x41][..], &push_and_save].concat();
    let back = [&push_and_save[..], &[0x41, 0x0e, 0x08, 0xc3]].concat();
    let unknown = [0x41, 0x0f, 0x02, 0x77, 0x08];
    let alike = |entries: [&[u8]; 4]| {
        let unwind = parse_usual(&entries);
        let fdes: Vec<_> = unwind.fdes.keys().collect();
        (fdes.windows(2).map(|pair| unwind.may_run_on(pair[0], pair[1])).collect::<Vec<bool>>(), unwind)
    };
    let (found, unwind) = alike([&framed, &back, &[], &framed]);
    assert_eq!(found, [true; 3]);
    // Nothing is pushed on either side of the last two.
    assert_eq!(unwind.parted(), [Va(0x1800), Va(0x1c00)]);
    let (found, unwind) = alike([&framed, &[0x0e, 0x10], &unknown, &framed]);
    assert_eq!(found, [false, false, true]);
    assert_eq!(unwind.parted(), []);
}

/// Code that begins with a jump, at 0x1000, an entry for all of it, one for the jump alone, and a search table that lists the entries of `listed`, by their index.
fn parse_with_jump(first_byte: u8, listed: &[usize]) -> crate::Result<Unwind> {
    const TABLE: u32 = 0x2010;
    let mut bytes = vec![first_byte, 1, 2, 3, 4, 0x90, 0x90, 0x90, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([16, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 2, 0x78, 16, 1, 0x03, 0x0c, 7, 8]);
    let mut places = Vec::new();
    for len in [0x400u32, 5] {
        let at = bytes.len() as u32;
        places.push(TABLE + at - 16);
        bytes.extend([16, at - 16 + 4, 0x1000, len, 0].map(u32::to_le_bytes).concat());
    }
    let (table_len, header) = (bytes.len() as u64 - 16, 0x2000 + bytes.len() as u32);
    bytes.extend([1, 0x03, 0x03, 0x3b]);
    bytes.extend([TABLE, listed.len() as u32].map(u32::to_le_bytes).concat());
    for &index in listed {
        bytes.extend([0x1000u32.wrapping_sub(header), places[index].wrapping_sub(header)].map(u32::to_le_bytes).concat());
    }
    let mut image = image_of(&bytes);
    (image.segments[0].p_filesz, image.segments[0].p_memsz) = (16, 0x1000);
    let rest = bytes.len() as u64 - 16 - table_len;
    image.segments.push(crate::elf::image::Segment {
        p_type: object::elf::PT_GNU_EH_FRAME,
        p_vaddr: Va(u64::from(header)),
        p_filesz: rest,
        p_memsz: rest,
        ..image.segments[1]
    });
    image.sections.push(unwind_section(16, table_len));
    Unwind::parse(&image)
}

#[test]
fn of_two_entries_for_the_same_code_the_one_counts_that_the_search_table_lists() {
    let bounds = |unwind: &Unwind| unwind.fdes.values().map(|fde| (fde.start.0, fde.end.0)).collect::<Vec<_>>();
    let replaced = parse_with_jump(0xe9, &[1]).expect("the whole entry is not listed");
    assert_eq!(bounds(&replaced), [(0x1000, 0x1005)]);
    assert_eq!(replaced.replaced, [(Va(0x1005), Va(0x1400))], "behind a jump away is what is elsewhere");
    assert!(replaced.is_replaced(Va(0x1005)) && !replaced.is_replaced(Va(0x1004)) && !replaced.is_replaced(Va(0x1400)));
    let whole = parse_with_jump(0xe9, &[0]).expect("that of the jump is not listed");
    assert_eq!((bounds(&whole), whole.replaced.len()), (vec![(0x1000, 0x1400)], 0));
    let other = parse_with_jump(0xe8, &[1]).expect("the whole entry is not listed");
    assert_eq!((bounds(&other), other.replaced.len()), (vec![(0x1000, 0x1005)], 0), "a call comes back");
    assert!(parse_with_jump(0xe9, &[0, 1]).is_err(), "an unwinder finds one or the other");
}
