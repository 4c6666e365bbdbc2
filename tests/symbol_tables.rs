//! Symbols, their names and hash tables lie as far from the file's beginning as from the first segment's: libunwind finds them so in the file of a function that it is asked to name.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use object::LittleEndian;
use object::elf::{DT_GNU_HASH, DT_HASH, DT_STRTAB, DT_SYMTAB, FileHeader64, PT_LOAD};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Object, ObjectSection};
use support::{compile_text, installed, relift, relift_succeeds, shrink, skipped};

/// The tags of the tables that are elsewhere.
fn displaced(file: &Path) -> Vec<u64> {
    let bytes = fs::read(file).expect("it is there");
    let header = FileHeader64::<LittleEndian>::parse(&*bytes).expect("it is an ELF file");
    let segments = header.program_headers(LittleEndian, &*bytes).expect("it has program headers");
    let loads: Vec<_> = segments.iter().filter(|segment| segment.p_type(LittleEndian) == PT_LOAD).collect();
    let base = loads[0].p_vaddr(LittleEndian) - loads[0].p_offset(LittleEndian);
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(LittleEndian, &*bytes).ok().flatten()).unwrap_or_default();
    let entries = dynamic.iter().map(|entry| (entry.d_tag(LittleEndian), entry.d_val(LittleEndian)));
    let tables = entries.filter(|&(tag, _)| [DT_HASH, DT_GNU_HASH, DT_SYMTAB, DT_STRTAB].map(u64::from).contains(&tag));
    let offset = |at: u64| {
        let holds = |start: u64, size: u64| (start..start + size).contains(&at);
        let load = loads.iter().find(|load| holds(load.p_vaddr(LittleEndian), load.p_filesz(LittleEndian)));
        load.map(|load| at - load.p_vaddr(LittleEndian) + load.p_offset(LittleEndian))
    };
    tables.filter(|&(_, at)| offset(at) != Some(at - base)).map(|(tag, _)| tag).collect()
}

#[test]
fn tables_of_symbols_are_found_in_the_file_where_they_are_in_memory() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let folders = ["/usr/bin", "/usr/sbin"].map(Path::new);
    for name in ["ls", "gzip", "git", "sed", "find", "perl", "make", "ldconfig"] {
        let Some(input) = folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file()) else {
            skipped(&format!("{name}: it is not installed"));
            continue;
        };
        assert_eq!(displaced(&input), [0; 0], "{name}");
        let (output, _) = shrink(&input, &[], name, folder.path());
        assert_eq!(displaced(&output), [0; 0], "{name}");
    }
}

#[test]
fn what_moves_for_program_headers_stays_in_the_first_segment_if_its_last_page_has_room() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for name in ["libcom_err.so.2", "liblzma.so.5", "libgpg-error.so.0"] {
        let input = Path::new("/usr/lib/x86_64-linux-gnu").join(name);
        if !input.is_file() {
            skipped(&format!("{name}: it is not installed"));
            continue;
        }
        assert_eq!(displaced(&input), [0; 0], "{name}");
        let output = folder.path().join(name);
        relift_succeeds(relift().args(["optimize", "--shuffle", "1"]).arg(&input).arg("-o").arg(&output), folder.path());
        assert_eq!(displaced(&output), [0; 0], "{name}");
    }
}

/// Address and size of a section.
fn section(file: &Path, name: &str) -> Option<(u64, u64)> {
    let bytes = fs::read(file).expect("it is there");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    file.section_by_name(name).map(|section| (section.address(), section.size()))
}

#[test]
fn tables_of_symbols_move_up_where_the_first_segments_last_page_has_no_room_for_them() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    const USER: &str = "#include <stdio.h>\nlong f3(long); long f299(long);\nint main(void) { printf(\"%ld %ld\\n\", f3(4), f299(5)); return 0; }\n";
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let flags = ["-shared", "-fPIC", "-O1", "-fcf-protection=none", "-Wl,--hash-style=gnu,--build-id,-soname,libmany.so"];
    let mut num_moved_up = 0;
    // What is left of the page depends on how many there are.
    for count in (300..420).step_by(17) {
        let function = |n: u32| format!("long f{n}(long x) {{ return labs(x) * {n} + (x ^ {count}); }}\n");
        let text: String = (0..count).map(function).collect();
        let library = compile_text(
            &format!("long labs(long);\nint puts(const char *);\nvoid told(void) {{ puts(\"\"); }}\n{text}"),
            &flags,
            folder,
            "libmany.so",
        );
        let output = folder.join("out/libmany.so");
        fs::create_dir_all(folder.join("out")).expect("a folder can be made");
        relift_succeeds(relift().args(["optimize", "--shuffle", "1"]).arg(&library).arg("-o").arg(&output), folder);
        assert_eq!(displaced(&output), [0; 0], "{count}");
        let [before, after] = [&library, &output].map(|file| section(file, ".gnu.hash").expect("it has one"));
        num_moved_up += u32::from(before.0 < after.0 && after.0 < before.0 + before.1);
        let user = compile_text(USER, &["-Wl,--no-as-needed", library.to_str().expect("its name is text")], folder, "user");
        let said = |library: &Path| {
            let done = Command::new(&user).env("LD_LIBRARY_PATH", library.parent().expect("it is in one")).output();
            let done = done.expect("it can be started");
            assert!(done.status.success(), "{count}: {done:?}");
            done.stdout
        };
        assert_eq!(said(&library), said(&output), "{count}");
    }
    assert!(num_moved_up > 0);
}
