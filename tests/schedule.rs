//! Scheduling as a user meets it: what is reordered where it is known who calls, what the checker can't follow, what an assumption frees, and how a wrong order is found.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register};
use lifter::elf::Unwind;
use lifter::{Image, lift};
use object::{Object, ObjectSection, ObjectSymbol};
use profiles::Weights;
use rewriter::edit::{Change, EditPlan};
use rewriter::fold::Folding;
use rewriter::transform::{self, schedule};
use support::{End, SUCCESS, relift, relift_succeeds};

/// A fixture and its profile; `None` without a compiler.
fn built(name: &str, folder: &Path) -> Option<(PathBuf, PathBuf)> {
    if !support::installed("gcc") {
        support::skipped("scheduling: there is no gcc");
        return None;
    }
    let (program, counting, profile) = (folder.join(name), folder.join("counting"), folder.join("profile.rlp"));
    let source = support::repository(&format!("fixtures/programs/{name}/{name}.c"));
    let flags = ["-O2", "-fPIE", "-pie", "-fno-ipa-cp", "-fno-ipa-sra", "-fno-tree-vectorize", "-pthread"];
    support::compile("gcc", &flags, &[&source], &program).expect("it compiles");
    relift_succeeds(relift().arg("instrument").arg(&program).arg("-o").arg(&counting).arg("--profile").arg(&profile), folder);
    assert_eq!(support::run(&mut Command::new(&counting), folder).end, End::Exit(SUCCESS));
    Some((program, profile))
}

/// Schedules wherever that is legal; the output behaves. Gives it, and what was said.
fn scheduled(program: &Path, profile: &Path, options: &[&str], folder: &Path) -> (PathBuf, String) {
    let output = folder.join("output");
    let mut command = relift();
    command.args(["optimize", "--only", "schedule", "--edit-everywhere", "--verbose"]).args(options);
    let said = relift_succeeds(command.arg(program).arg("-p").arg(profile).arg("-o").arg(&output), folder);
    assert_eq!(support::run(&mut Command::new(&output), folder).end, End::Exit(SUCCESS), "{command:?}");
    (output, said.stderr_text())
}

/// The accesses of a function to memory beyond its own frame, in the order of its code.
fn accesses(program: &Path, function: &str) -> Vec<String> {
    let bytes = std::fs::read(program).expect("it can be read");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(function)).expect("it has a symbol");
    let (start, end) = (symbol.address(), symbol.address() + symbol.size());
    let section = file.sections().find(|s| s.address() <= start && end <= s.address() + s.size()).expect("it has code");
    let at = (start - section.address()) as usize;
    let code = &section.data().expect("it has bytes")[at..at + symbol.size() as usize];
    let mut factory = InstructionInfoFactory::new();
    let mut all = Vec::new();
    for instruction in Decoder::with_ip(64, code, start, DecoderOptions::NONE).iter() {
        for used in factory.info(&instruction).used_memory().iter().filter(|used| used.base() != Register::RSP) {
            if !matches!(used.access(), OpAccess::NoMemAccess | OpAccess::None) {
                all.push(format!("{:?} {:?}+{:#x}", used.access(), used.base(), used.displacement()));
            }
        }
    }
    all
}

#[test]
fn a_load_moves_up_over_a_store_where_each_caller_passes_pointers_apart_and_not_without_that() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let Some((program, profile)) = built("ordered_pointers", folder.path()) else { return };
    let before = accesses(&program, "mix");
    let (output, text) = scheduled(&program, &profile, &["--no-check", "--without-contexts"], folder.path());
    assert!(text.contains("edit: schedule"), "other things move: {text}");
    assert_eq!(accesses(&output, "mix"), before, "what nobody knows to be apart keeps its order");
    let (output, _) = scheduled(&program, &profile, &["--no-check"], folder.path());
    let after = accesses(&output, "mix");
    let is_load = |access: &&String| access.starts_with("Read ");
    let loads = |all: &[String]| all.iter().filter(is_load).cloned().collect::<Vec<_>>();
    let stores = |all: &[String]| all.iter().filter(|access| !is_load(access)).cloned().collect::<Vec<_>>();
    assert_ne!(after, before);
    assert_eq!(
        (loads(&after), stores(&after)),
        (loads(&before), stores(&before)),
        "loads pass stores, and nothing else passes anything"
    );
    // The oracle says why.
    let reasons = |criterion: &str| {
        let mut command = relift();
        command.args(["analyze", "--func", "mix", "--criterion", criterion]).arg(&program).arg("-p").arg(&profile);
        relift_succeeds(&mut command, folder.path()).stdout_text()
    };
    let through_both =
        |line: &&str| line.contains("writes 8 at frame+") && line.contains("reads 8 at frame+") && line.contains("bytes apart");
    let known = reasons("relevance");
    assert!(known.lines().filter(through_both).count() >= 4 && !known.contains("may alias"), "{known}");
    assert!(reasons("insensitive").contains("may alias"));
}

#[test]
fn an_order_that_only_callers_justify_is_left_out_because_the_checker_does_not_know_them() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let Some((program, profile)) = built("ordered_pointers", folder.path()) else { return };
    let (output, text) = scheduled(&program, &profile, &[], folder.path());
    assert!(text.contains("were left out: the checker could not follow them"), "{text}");
    assert!(text.contains("edit: schedule"), "only that one: {text}");
    assert_eq!(accesses(&output, "mix"), accesses(&program, "mix"));
}

#[test]
fn without_races_more_may_change_places_and_the_checker_has_to_be_told() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let Some((program, profile)) = built("free_order", folder.path()) else { return };
    let before = accesses(&program, "gather");
    let (output, _) = scheduled(&program, &profile, &[], folder.path());
    assert_eq!(accesses(&output, "gather"), before, "loads don't pass loads");
    let (output, text) = scheduled(&program, &profile, &["--assume=no-races"], folder.path());
    let mut after = accesses(&output, "gather");
    assert_ne!(after, before, "{text}");
    let mut before = before;
    after.sort();
    before.sort();
    assert_eq!(after, before);
    let check =
        |options: &[&str]| support::run(relift().arg("check").args(options).arg(&program).arg(&output), folder.path()).end;
    assert_eq!((check(&["--assume=no-races"]), check(&[])), (End::Exit(0), End::Exit(1)));
}

/// Makes an output with the first `fuel` edits of a plan.
fn rewritten(image: &Image<'_>, program: &lifter::ir::Program, edits: &EditPlan, fuel: u64) -> Vec<u8> {
    let mut edits = edits.clone();
    edits.limit(fuel);
    let weights = Weights::none(program.blocks.len(), program.edges.len());
    let plan = rewriter::layout::original(program);
    let out = rewriter::materialize::materialize(program, &weights, &plan, &edits).expect("the plan can be made");
    let shapes = rewriter::encode::measure(image, program, &out);
    rewriter::relink::relink(
        image,
        program,
        &out,
        shapes,
        None,
        rewriter::debug::Mode::Drop.into(),
        rewriter::relink::Reported::File,
    )
    .expect("it can be relinked")
    .bytes
}

#[test]
fn fuel_finds_the_one_wrong_order_among_many() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let Some((path, _)) = built("ordered_pointers", folder.path()) else { return };
    let bytes = std::fs::read(&path).expect("it can be read");
    let image = Image::parse(&bytes).expect("it is an ELF file");
    let unwind = Unwind::parse(&image).expect("its tables can be read");
    let program = lift(&image, unwind).expect("it can be lifted");
    let weights = Weights::none(program.blocks.len(), program.edges.len());
    let takes_any = schedule::Options { takes_any: true, ..schedule::Options::default() };
    let options = transform::Options { schedule: Some(takes_any), everywhere: true, ..transform::Options::default() };
    let mut edits = transform::plan(&image, &program, &weights, &Folding::default(), options);
    assert!(edits.replacements.len() >= 5, "there is something to look for");
    let behaves = |edits: &EditPlan, fuel: u64| {
        let output = folder.path().join("bisected");
        std::fs::copy(&path, &output).expect("a file can be copied");
        std::fs::write(&output, rewritten(&image, &program, edits, fuel)).expect("it can be written");
        support::run(&mut Command::new(&output), folder.path()).end == End::Exit(SUCCESS)
    };
    let count = edits.replacements.len();
    assert!(behaves(&edits, count as u64));
    // The wrong order: the instructions of one edit backwards.
    let mut found = 0;
    for planted in 0..count {
        let code = edits.replacements[planted].code;
        let right = edits.codes[code].clone();
        assert_eq!(edits.replacements[planted].change, Change::Schedule);
        if !right.refs.is_empty() {
            continue;
        }
        let instructions: Vec<_> = Decoder::new(64, &right.bytes, DecoderOptions::NONE).iter().collect();
        let backwards = instructions.iter().rev().flat_map(|i| right.bytes[i.ip() as usize..i.next_ip() as usize].to_vec());
        edits.codes[code].bytes = backwards.collect();
        // Not each wrong order shows.
        if !behaves(&edits, count as u64) {
            let (mut good, mut bad) = (0, count);
            while bad - good > 1 {
                let middle = good.midpoint(bad);
                *(if behaves(&edits, middle as u64) { &mut good } else { &mut bad }) = middle;
            }
            assert_eq!(bad, planted + 1, "the first fuel with which it fails names the edit");
            let report = checker::check(&bytes, &rewritten(&image, &program, &edits, count as u64)).expect("it can be read");
            assert!(!report.violations.is_empty(), "the checker sees it too");
            found += 1;
        }
        edits.codes[code] = right;
    }
    assert!(found >= 1, "none of {count} wrong orders showed");
}
