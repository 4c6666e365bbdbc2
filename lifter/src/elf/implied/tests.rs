//! What is implied without section headers, against the section headers of real files of this machine.

use crate::address::Va;
use crate::elf::image::{Image, SectionData};

/// Programs and libraries of this machine; those that are missing are passed over, at least two must be there.
fn real_files() -> Vec<Vec<u8>> {
    let programs = ["ls", "git", "perl", "gdb", "bash", "objdump"].map(|n| format!("/usr/bin/{n}"));
    let libraries =
        ["libc.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libm.so.6"].map(|n| format!("/usr/lib/x86_64-linux-gnu/{n}"));
    let files: Vec<Vec<u8>> = programs.iter().chain(&libraries).filter_map(|path| std::fs::read(path).ok()).collect();
    assert!(files.len() > 1);
    files
}

/// The file without its section headers and what is behind the last byte that is loaded.
fn cut(bytes: &[u8]) -> Vec<u8> {
    let image = Image::parse(bytes).unwrap();
    let end = image.loads().map(|s| s.p_offset.0 + s.p_filesz).max().unwrap();
    let mut cut = bytes[..end as usize].to_vec();
    cut[40..48].fill(0);
    cut[58..64].fill(0);
    cut
}

fn named<'i, 'a>(image: &'i Image<'a>, name: &str) -> Vec<&'i SectionData<'a>> {
    image.sections.values().filter(|s| s.name == name && s.sh_size > 0).collect()
}

#[test]
fn tables_that_the_loader_and_the_unwinder_name_are_where_the_section_headers_say() {
    for bytes in real_files() {
        let (whole, cut) = (Image::parse(&bytes).unwrap(), cut(&bytes));
        let implied = Image::parse(&cut).unwrap();
        assert!(!implied.has_section_headers && implied.sections.len() > 5);
        for name in [".interp", ".dynstr", ".gnu.hash", ".rela.dyn", ".eh_frame_hdr", ".init_array", ".fini_array", ".dynamic"] {
            let places = |image: &Image<'_>| -> Vec<(Va, Va)> {
                let sections = named(image, name).into_iter();
                sections.map(|s| (s.sh_addr, s.end())).collect()
            };
            assert_eq!(places(&implied), places(&whole), "{name}");
        }
        for name in [".eh_frame", ".gcc_except_table", ".dynsym"] {
            let (Some(real), found) = (named(&whole, name).first().copied(), named(&implied, name)) else { continue };
            // Padding at the end, and what nothing names any more, is left out.
            assert!(found.len() == 1 && found[0].end() <= real.end(), "{name}");
            assert!(found[0].sh_addr == real.sh_addr || name == ".gcc_except_table", "{name}");
        }
        assert_eq!(whole.dynamic_relocs.len(), implied.dynamic_relocs.len());
        assert!(implied.dynamic_symbols.len() <= whole.dynamic_symbols.len());
        assert!(implied.dynamic_symbols.iter().zip(&whole.dynamic_symbols).all(|(a, b)| a.name == b.name));
    }
}

#[test]
fn no_stub_is_taken_for_compiled_code_and_no_data_is() {
    for bytes in real_files() {
        let (whole, cut) = (Image::parse(&bytes).unwrap(), cut(&bytes));
        let implied = Image::parse(&cut).unwrap();
        let real_code = |va: Va| whole.section_at(va).map(|id| whole.sections[id].name);
        let text = named(&implied, ".text");
        let compiled: u64 = text.iter().map(|s| s.sh_size).sum();
        let real: u64 = whole.sections.values().filter(|s| s.name.starts_with(".text")).map(|s| s.sh_size).sum();
        assert!(compiled * 100 >= real * 90, "{compiled} of {real} bytes");
        for section in text {
            for va in [section.sh_addr, section.end().offset(-1)] {
                let name = real_code(va).unwrap();
                assert!(!name.starts_with(".plt") && ![".init", ".fini", ".rodata"].contains(&name), "{va}: {name}");
            }
        }
        for stubs in whole.sections.values().filter(|s| s.name.starts_with(".plt") && s.sh_size > 0) {
            let is_found = |va: Va| implied.section_at(va).is_some_and(|id| implied.sections[id].name == ".plt");
            assert!((stubs.sh_addr.0..stubs.end().0 - 8).step_by(8).all(|va| is_found(Va(va))), "{}", stubs.name);
        }
    }
}

#[test]
fn every_loaded_byte_is_in_one_section_or_is_a_header_or_alignment() {
    for bytes in real_files() {
        let cut = cut(&bytes);
        let image = Image::parse(&cut).unwrap();
        let mut sections: Vec<_> = image.sections.values().filter(|s| s.sh_size > 0).collect();
        sections.sort_by_key(|s| s.sh_addr);
        assert!(sections.windows(2).all(|w| w[0].end() <= w[1].sh_addr));
        let headers = image.low() + image.e_phoff.0 + 56 * image.segments.len() as u64;
        for segment in image.loads() {
            let mut at = segment.p_vaddr;
            for section in sections.iter().filter(|s| segment.p_vaddr <= s.sh_addr && s.sh_addr < segment.end()) {
                let gap = image.read(at.max(headers), (section.sh_addr.0.saturating_sub(at.max(headers).0)) as usize);
                assert!(gap.is_none_or(|gap| gap.iter().all(|&b| b == 0)), "{at}");
                at = section.end();
            }
            assert_eq!(at, segment.end());
        }
    }
}

#[test]
fn a_file_whose_tags_contradict_each_other_is_refused() {
    let bytes = std::fs::read("/bin/ls").unwrap();
    let cut = cut(&bytes);
    let image = Image::parse(&cut).unwrap();
    let dynamic = image.segments.iter().find(|s| s.p_type == object::elf::PT_DYNAMIC).unwrap().p_offset.0 as usize;
    let entry = |tag: u32| dynamic + 16 * image.dynamic.iter().position(|(t, _)| *t == u64::from(tag)).unwrap() + 8;
    let (symbols, strings) = (entry(object::elf::DT_SYMTAB), entry(object::elf::DT_STRTAB));
    let mut spoiled = cut.clone();
    spoiled.copy_within(strings..strings + 8, symbols);
    assert!(Image::parse(&spoiled).is_err());
    let mut spoiled = cut.clone();
    spoiled[strings..strings + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    assert!(Image::parse(&spoiled).is_err());
}
