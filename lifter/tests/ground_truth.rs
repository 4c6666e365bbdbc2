//! Programs of `fixtures/programs`, linked with `--emit-relocs` and lifted with the relocations hidden: what is missed must be nothing.
#![allow(clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::Command;

use lifter::Image;
use lifter::elf::Unwind;
use lifter::ground_truth::{GroundTruth, ground_truth};
use lifter::ir::{BlockFlags, PinReason, Program, RelinkMode, StopKind, TableBound, Terminator};
use lifter::lift::{LiftOptions, lift_with};
use lifter::verify::verify;

/// All levels for what the lifter finds hard, one for the rest.
fn levels(source: &Path) -> &'static [&'static str] {
    let name = source.file_stem().and_then(|s| s.to_str()).unwrap_or("");
    let is_hard = ["switch", "goto", "tables", "tail", "cold", "exceptions", "big", "label", "vtables"]
        .iter()
        .any(|part| name.contains(part));
    if is_hard { &["-O0", "-O2", "-O3", "-Os"] } else { &["-O2"] }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/programs")
}

/// Every source, in order of its name.
fn sources() -> Vec<PathBuf> {
    let folders = std::fs::read_dir(fixtures()).expect("fixtures/programs is there");
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.expect("readable").path()).into_iter().flatten());
    let mut sources: Vec<PathBuf> = files.map(|file| file.expect("readable").path()).collect();
    sources.retain(|path| path.extension().is_some_and(|e| e == "c" || e == "cc"));
    sources.sort();
    assert!(sources.len() > 10, "found {} sources only", sources.len());
    sources
}

/// The compilers for C and C++ that are installed; names those that are not.
fn compilers() -> Vec<(&'static str, &'static str)> {
    let all = [("gcc", "g++"), ("clang", "clang++")];
    let (there, missing): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(c, _)| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success()));
    for (c, _) in missing {
        eprintln!("skipped every variant of {c}: it is not installed");
    }
    there
}

/// The program, or `None` where this compiler does not take this source.
fn compile(compiler: (&str, &str), source: &Path, flags: &[&str], folder: &Path) -> Option<Vec<u8>> {
    let is_cpp = source.extension().is_some_and(|e| e == "cc");
    let output = folder.join("program");
    let result = Command::new(if is_cpp { compiler.1 } else { compiler.0 })
        .args(flags)
        .args(["-w", "-ffunction-sections", "-Wl,--emit-relocs", "-pthread", "-o"])
        .arg(&output)
        .arg(source)
        .arg("-lm")
        .output()
        .expect("the compiler runs");
    if !result.status.success() {
        eprintln!("skipped {} {flags:?} {}: it does not build", compiler.0, source.display());
        return None;
    }
    Some(std::fs::read(&output).expect("the compiler wrote a program"))
}

fn lifted(bytes: &[u8], use_static_relocs: bool) -> (Image<'_>, Program) {
    let image = Image::parse(bytes).expect("parses");
    let unwind = Unwind::parse(&image).expect("has good unwind tables");
    let program = lift_with(&image, unwind, LiftOptions { use_static_relocs, ..LiftOptions::default() }).expect("lifts");
    (image, program)
}

/// The file without symbols and relocations; nothing that is loaded changes.
fn stripped(bytes: &[u8], folder: &Path) -> Vec<u8> {
    let (input, output) = (folder.join("to-strip"), folder.join("stripped"));
    std::fs::write(&input, bytes).expect("the folder takes a file");
    let result = Command::new("strip").arg("-o").arg(&output).arg(&input).status().expect("strip runs");
    assert!(result.success());
    std::fs::read(&output).expect("strip wrote a file")
}

/// Lifts the stripped file and compares it with what the whole one says.
fn assert_is_right_when_stripped(name: &str, bytes: &[u8], folder: &Path) -> GroundTruth {
    let stripped = stripped(bytes, folder);
    let (image, program) = lifted(&stripped, false);
    assert!(image.symbols.len() <= 1 && !image.has_static_relocs(), "{name} was not stripped");
    assert_eq!(verify(&image, &program), [], "{name} stripped");
    let truth = ground_truth(&Image::parse(bytes).expect("parses"), &program);
    assert!(truth.is_sound(), "{name} stripped: {truth:#?}");
    truth
}

fn movable_share(program: &Program) -> f64 {
    let ours = program.funcs.iter().filter(|(_, f)| f.pin != Some(PinReason::LinkerSection));
    let (mut moved, mut total) = (0, 0);
    for (func, data) in ours {
        total += program.func_size(func);
        moved += if data.is_movable() { program.func_size(func) } else { 0 };
    }
    moved as f64 / total as f64
}

/// Calls a closure with every program that builds, of one kind.
fn for_each_program(kind: &[&str], mut check: impl FnMut(&str, &[u8])) {
    let folder = tempfile::tempdir().expect("a folder for programs");
    let mut count = 0;
    for compiler in compilers() {
        for source in sources() {
            for &level in levels(&source) {
                let flags: Vec<&str> = kind.iter().copied().chain([level]).collect();
                if let Some(bytes) = compile(compiler, &source, &flags, folder.path()) {
                    check(&format!("{} {flags:?} {}", compiler.0, source.display()), &bytes);
                    count += 1;
                }
            }
        }
    }
    assert!(count > 50 || compilers().is_empty(), "only {count} programs were built");
}

#[test]
fn nothing_is_missed_in_position_independent_programs_without_their_relocations() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut compared, mut tables) = (0, 0);
    for_each_program(&["-fPIE", "-pie"], |name, bytes| {
        let (image, program) = lifted(bytes, false);
        assert_eq!(program.mode, Some(RelinkMode::Replace), "{name}");
        assert_eq!(verify(&image, &program), [], "{name}");
        let truth = ground_truth(&image, &program);
        assert!(truth.is_sound(), "{name}: {truth:#?}");
        assert_eq!(truth.idle_entries, [], "{name}: a proven end is where the compiler's is");
        compared += truth.num_refs + truth.num_entries;
        let without_symbols = assert_is_right_when_stripped(name, bytes, folder.path());
        assert_eq!(without_symbols.num_refs, truth.num_refs, "{name}: as many fields are compared");
        tables += program.tables.len();
    });
    assert!(compilers().is_empty() || compared > 2000 && tables > 20, "{compared} fields and {tables} tables were compared");
}

#[test]
fn the_size_of_a_table_is_proven_wherever_the_code_tells_it() {
    let (mut proven, mut tables) = (0, 0);
    let folder = tempfile::tempdir().expect("a folder for programs");
    let source = fixtures().join("switch_bounds/switch_bounds.c");
    for compiler in compilers() {
        for level in ["-O0", "-O1", "-O2", "-O3", "-Os"] {
            let Some(bytes) = compile(compiler, &source, &["-fPIE", "-pie", level], folder.path()) else { continue };
            let (image, program) = lifted(&bytes, false);
            let name = format!("{} {level}", compiler.0);
            assert!(program.funcs.values().all(|f| f.pin.is_none_or(|pin| pin != PinReason::UnresolvedJump)), "{name}");
            for table in program.tables.values() {
                let words = (0..table.targets.len() as u64).map(|i| table.at + 4 * i);
                let is_relocated = |va| !image.static_relocs_in(va, va + 1).is_empty();
                assert!(words.clone().all(is_relocated), "{name}: the table at {} is too long", table.at);
                tables += 1;
                if table.bound == TableBound::Proven {
                    assert!(table.is_exclusive, "{name}: nothing else names the table at {}", table.at);
                    proven += 1;
                }
            }
        }
    }
    // gcc alone makes 60: machines need not have both compilers.
    let enough = compilers().is_empty() || tables >= 60 && proven * 10 >= tables * 8;
    assert!(enough, "{proven} of {tables} tables are proven");
}

#[test]
fn a_table_starts_where_its_words_count_from_wherever_its_load_does() {
    let folder = tempfile::tempdir().expect("a folder for programs");
    let source = fixtures().join("biased_tables/biased_tables.c");
    for compiler in compilers() {
        let Some(bytes) = compile(compiler, &source, &["-fPIE", "-pie", "-O2"], folder.path()) else { continue };
        let (image, program) = lifted(&bytes, false);
        let sizes: Vec<(usize, TableBound)> = program.tables.values().map(|t| (t.targets.len(), t.bound)).collect();
        assert_eq!(sizes, [6, 28, 5].map(|size| (size, TableBound::Proven)), "{}", compiler.0);
        assert!(ground_truth(&image, &program).is_sound());
    }
}

#[test]
fn virtual_functions_that_only_differences_name_stay_where_they_are() {
    let folder = tempfile::tempdir().expect("a folder for programs");
    let source = fixtures().join("relative_vtables/relative_vtables.cc");
    for compiler in compilers().into_iter().filter(|c| c.0 == "clang") {
        for level in ["-O0", "-O2", "-Os"] {
            let flags = ["-fPIE", "-pie", level, "-fexperimental-relative-c++-abi-vtables", "-fno-rtti", "-Wl,--strip-all"];
            let Some(bytes) = compile(compiler, &source, &flags, folder.path()) else { continue };
            let (_, program) = lifted(&bytes, false);
            let stays = program.funcs.values().filter(|f| f.pin == Some(PinReason::MayBeTableTarget)).count();
            assert!(stays >= 6, "{level}: {stays} functions stay");
        }
    }
}

#[test]
fn nothing_is_missed_in_programs_at_a_fixed_address_with_their_relocations() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut shares = Vec::new();
    for_each_program(&["-fno-pie", "-no-pie"], |name, bytes| {
        let (image, program) = lifted(bytes, true);
        assert_eq!(program.mode, Some(RelinkMode::Replace), "{name}");
        assert_eq!(verify(&image, &program), [], "{name}");
        let truth = ground_truth(&image, &program);
        assert!(truth.is_sound(), "{name}: {truth:#?}");
        assert_eq!(truth.idle_entries, [], "{name}: a proven end is where the compiler's is");
        shares.push(movable_share(&program));
        assert_is_guarded_without_relocations(name, bytes);
        assert_is_right_when_stripped(name, bytes, folder.path());
    });
    let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    assert!(shares.is_empty() || mean > 0.72, "{mean} of the code may move");
}

/// Guard mode claims no slot, and understands every block of what may be copied.
fn assert_is_guarded_without_relocations(name: &str, bytes: &[u8]) {
    let (image, program) = lifted(bytes, false);
    assert_eq!(program.mode, Some(RelinkMode::Guard), "{name}");
    assert!(program.slots.is_empty(), "{name}");
    assert_eq!(verify(&image, &program), [], "{name}");
    let truth = ground_truth(&image, &program);
    assert!(truth.is_sound(), "{name} without relocations: {truth:#?}");
    let mut unknown = program.blocks.values().filter(|b| b.terminator == Terminator::Stop(StopKind::Unknown));
    assert!(unknown.all(|b| !program.funcs[b.func].is_movable()), "{name}");
}

#[test]
fn a_hidden_slot_and_a_forgotten_reference_are_reported() {
    let Some(&compiler) = compilers().first() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let source = fixtures().join("function_tables/function_tables.c");
    let bytes = compile(compiler, &source, &["-fPIE", "-pie", "-O2"], folder.path()).expect("builds");
    let (image, mut program) = lifted(&bytes, false);
    program.slots.clear();
    for block in program.blocks.values_mut() {
        block.refs = Default::default();
    }
    let GroundTruth { missed_refs, missed_slots, .. } = ground_truth(&image, &program);
    assert!(!missed_refs.is_empty() && !missed_slots.is_empty());
}

#[test]
fn a_table_that_ends_too_early_is_reported() {
    let Some(&compiler) = compilers().first() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let source = fixtures().join("switch_tables/switch_tables.c");
    // At a fixed address each word of a table is known by itself too.
    for level in ["-O2", "-Os"] {
        let bytes = compile(compiler, &source, &["-fPIE", "-pie", level], folder.path()).expect("builds");
        let (image, mut program) = lifted(&bytes, false);
        let tables = program.tables.len();
        assert!(tables > 2 && ground_truth(&image, &program).is_sound());
        for table in program.tables.values_mut() {
            let targets = table.targets.as_usize();
            table.targets = lifter::entity::IdRange::from_usize(targets.start..targets.end - 1);
        }
        // What lies behind an end that the lifter calls proven is listed apart, for a run to decide; without that claim it is missed.
        let truth = ground_truth(&image, &program);
        let counted = truth.missed_entries.len() + truth.idle_entries.len();
        assert!(counted >= tables, "{counted} of {tables}");
        program.tables.values_mut().for_each(|table| table.bound = TableBound::Scanned);
        let truth = ground_truth(&image, &program);
        assert!(truth.missed_entries.len() >= tables, "{} of {tables}", truth.missed_entries.len());
    }
}

#[test]
fn an_address_that_keeps_no_jump_is_reported() {
    let Some(&compiler) = compilers().first() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let source = fixtures().join("function_tables/function_tables.c");
    let bytes = compile(compiler, &source, &["-fno-pie", "-no-pie", "-O2"], folder.path()).expect("builds");
    let (image, mut program) = lifted(&bytes, false);
    assert!(ground_truth(&image, &program).is_sound());
    for block in program.blocks.values_mut() {
        block.flags.remove(BlockFlags::ANCHOR);
    }
    let truth = ground_truth(&image, &program);
    assert!(!truth.missed_slots.is_empty() && !truth.missed_refs.is_empty(), "{truth:#?}");
}
