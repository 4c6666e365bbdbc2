//! Programs as a distribution ships them, stripped and without relocations: how much of them may move.
#![allow(clippy::print_stderr)]

use lifter::elf::Unwind;
use lifter::ir::{PinReason, Program, RelinkMode};
use lifter::verify::verify;
use lifter::{Image, lift};

const PROGRAMS: [&str; 7] = ["xz", "gzip", "bzip2", "git", "perl", "bash", "sqlite3"];

fn read(name: &str) -> Option<Vec<u8>> {
    let bytes = std::fs::read(std::path::Path::new("/usr/bin").join(name)).ok();
    if bytes.is_none() {
        eprintln!("skipped {name}: it is not installed");
    }
    bytes
}

/// Bytes of compiled code that may move, and all of them.
fn movable_bytes(program: &Program) -> (u64, u64) {
    let compiled = program.funcs.iter().filter(|(_, f)| f.pin != Some(PinReason::LinkerSection));
    compiled.fold((0, 0), |(moved, total), (func, data)| {
        let size = program.func_size(func);
        (moved + if data.is_movable() { size } else { 0 }, total + size)
    })
}

#[test]
fn nearly_all_code_of_stock_programs_may_move() {
    for name in PROGRAMS {
        let Some(bytes) = read(name) else { continue };
        let image = Image::parse(&bytes).expect("parses");
        let program = lift(&image, Unwind::parse(&image).expect("unwinds")).expect("lifts");
        assert_eq!(verify(&image, &program), [], "{name}");
        if program.mode != Some(RelinkMode::Replace) {
            eprintln!("skipped the share of {name}: it is linked at a fixed address");
            continue;
        }
        let (moved, total) = movable_bytes(&program);
        assert!(moved * 100 >= total * 95, "{name}: {moved} of {total} bytes may move");
    }
}

#[test]
fn lifting_gives_the_same_program_for_any_number_of_threads() {
    let Some(bytes) = read("bash") else { return };
    let image = Image::parse(&bytes).expect("parses");
    let lifted = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| format!("{:?}", lift(&image, Unwind::parse(&image).expect("unwinds")).expect("lifts")))
    };
    assert!(lifted(1) == lifted(3));
}
