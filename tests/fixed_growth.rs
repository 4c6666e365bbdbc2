//! At a fixed address each function that a number may name keeps a jump. By a profile what never ran stays, and the file hardly grows. Where the processor tracks indirect branches, a mark stands before the jump.

mod support;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSymbol};
use serde_json::Value;
use support::{End, compile, compile_text, installed, offset_of, relift, relift_succeeds, repository, run, size, skipped};

const NUM_FUNCTIONS: usize = 400;
/// One function in so many runs.
const STEP: usize = 10;

/// Functions behind pointers, one in ten of which runs, with a way through each that never does.
fn program() -> String {
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n");
    for n in 0..NUM_FUNCTIONS {
        let _ = write!(
            text,
            "__attribute__((noinline)) unsigned f{n}(unsigned x) {{\n\
             \x20   unsigned r = x;\n\
             \x20   for (unsigned i = 0; i <= (x & 7); i++) {{\n\
             \x20       if ((r ^ i) % 7 == 3) r += {n} * i; else if (r & 1) r = r * 3 + {n}; else r ^= 85 + {n};\n\
             \x20       if (r == 123456789) {{ printf(\"%u of %u in f{n}\\n\", r, i); fflush(stdout); r = (unsigned)rand() % (i + {n} + 1); }}\n\
             \x20   }}\n\
             \x20   return r;\n}}\n"
        );
    }
    let names: Vec<String> = (0..NUM_FUNCTIONS).map(|n| format!("f{n}")).collect();
    let _ = write!(
        text,
        "unsigned (*const table[])(unsigned) = {{ {} }};\n\
         int main(int argc, char **argv) {{\n\
         \x20   unsigned step = argc > 1 ? (unsigned)atoi(argv[1]) : {STEP}, sum = 1;\n\
         \x20   for (unsigned i = 0; i < 300; i++) for (unsigned j = 0; j < {NUM_FUNCTIONS}; j += step) sum += table[j](sum + i);\n\
         \x20   printf(\"%u\\n\", sum);\n\
         \x20   return 0;\n}}\n",
        names.join(", ")
    );
    text
}

/// Runs both with every function, every third, and those that ran in training.
fn assert_says_the_same(input: &Path, output: &Path, folder: &Path) {
    for step in ["1", "3", "10"] {
        let says = |program| run(Command::new(program).arg(step), folder).stdout_text();
        assert_eq!(says(input), says(output), "{}, every {step}th", output.display());
    }
}

#[test]
fn what_never_ran_stays_and_the_file_hardly_grows() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let input = compile_text(&program(), &["-O2", "-no-pie", "-fno-pie"], folder, "pointers");
    let output = folder.join("faster");
    let said = relift_succeeds(relift().args(["train", "--json"]).arg(&input).arg("-o").arg(&output).args(["--", "{}"]), folder);
    let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    assert_eq!(report["mode"], "guard");
    let growth = size(&output) as f64 / size(&input) as f64;
    assert!(growth < 1.08, "{growth}");

    // Both are named `f<number>` in the output, whichever part has the name.
    let (before, after) = (fs::read(&input).expect("it was built"), fs::read(&output).expect("it was made"));
    let address_in = |bytes: &[u8], name: &str| {
        let file = object::File::parse(bytes).expect("both are ELF files");
        file.symbols().find(|symbol| symbol.name() == Ok(name)).map(|symbol| symbol.address())
    };
    let stays = |n: &usize| address_in(&before, &format!("f{n}")) == address_in(&after, &format!("f{n}"));
    let (ran, idle): (Vec<usize>, Vec<usize>) = (0..NUM_FUNCTIONS).partition(|n| n % STEP == 0);
    let (num_ran, num_idle) = (ran.iter().filter(|n| stays(n)).count(), idle.iter().filter(|n| stays(n)).count());
    assert!(num_ran * 4 < ran.len(), "{num_ran} of {} functions that ran stay", ran.len());
    assert!(num_idle * 4 > idle.len() * 3, "{num_idle} of {} functions that did not run stay", idle.len());

    // What did not run in training runs all the same.
    assert_says_the_same(&input, &output, folder);
}

#[test]
fn kept_addresses_are_marked_where_indirect_branches_are_tracked() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let flags = ["-O2", "-no-pie", "-fno-pie", "-fcf-protection=full", "-Wl,-z,ibt"];
    let input = compile_text(&program(), &flags, folder, "marked");
    let trained = folder.join("trained");
    relift_succeeds(relift().arg("train").arg(&input).arg("-o").arg(&trained).args(["--", "{}"]), folder);
    let shuffled = folder.join("shuffled");
    relift_succeeds(relift().args(["optimize", "--shuffle", "3"]).arg(&input).arg("-o").arg(&shuffled), folder);
    assert_says_the_same(&input, &trained, folder);
    assert_says_the_same(&input, &shuffled, folder);

    // The jump behind the mark leads behind the mark of the function's new place, and nowhere else.
    let (before, mut changed) = (fs::read(&input).expect("it was built"), fs::read(&shuffled).expect("it was made"));
    let at = offset_of("f10", &before);
    assert_eq!(changed[at..at + 5], [0xf3, 0x0f, 0x1e, 0xfa, 0xe9]);
    let is_right = |bytes: &[u8]| {
        let output = folder.join("changed");
        fs::write(&output, bytes).expect("the scratch folder can be written");
        run(relift().arg("check").arg(&input).arg(&output), folder).end == End::Exit(0)
    };
    assert!(is_right(&changed));
    let displacement = i32::from_le_bytes(changed[at + 5..at + 9].try_into().expect("four bytes"));
    for wrong in [displacement + 2, displacement - 16] {
        changed[at + 5..at + 9].copy_from_slice(&wrong.to_le_bytes());
        assert!(!is_right(&changed), "{wrong:#x} for {displacement:#x}");
    }
}

#[test]
fn labels_are_marked_where_indirect_branches_are_tracked() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let (source, input) = (repository("fixtures/programs/computed_goto/computed_goto.c"), folder.join("labels"));
    let flags = ["-O2", "-w", "-no-pie", "-fno-pie", "-fcf-protection=full", "-Wl,-z,ibt"];
    compile("gcc", &flags, &[&source], &input).unwrap_or_else(|error| panic!("{error}"));
    let expected = run(&mut Command::new(&input), folder);
    for seed in ["5", "6"] {
        let output = folder.join(format!("shuffled-{seed}"));
        relift_succeeds(relift().args(["optimize", "--shuffle", seed]).arg(&input).arg("-o").arg(&output), folder);
        assert_eq!(run(&mut Command::new(&output), folder), expected, "--shuffle {seed}");
    }
}
