use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};

use crate::Image;
use crate::address::Va;
use crate::elf::Unwind;
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
