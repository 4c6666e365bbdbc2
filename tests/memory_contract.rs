//! The memory contract: with every transform of code forced on, what threads and signal handlers see is what it was, and each access is still there, in its place.

mod support;

use std::path::Path;
use std::process::Command;

use support::{End, SUCCESS};

const TRANSFORMS: &str = "plt-calls,inline-leaves,constant-loads,late-saves,schedule";
/// More runs than one, so that a wrong order has its chance.
const RUNS: usize = 5;

/// The accesses of a program's functions that make up the contract, by function, in the order of the code: each instruction that names memory beyond the stack, a fence or a
/// lock, with the registers left out, since only the access counts.
fn accesses(program: &Path) -> Vec<(String, Vec<String>)> {
    let listing = Command::new("objdump").args(["-d", "--no-show-raw-insn", "-M", "intel"]).arg(program).output();
    let listing = String::from_utf8(listing.expect("objdump runs").stdout).expect("objdump writes text");
    let mut functions: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_inside = false;
    for line in listing.lines() {
        if let Some(name) = line.strip_suffix(">:").and_then(|line| line.split_once('<')).map(|(_, name)| name) {
            is_inside = name.starts_with("contract_") && !name.contains('.');
            if is_inside {
                functions.push((name.to_owned(), Vec::new()));
            }
        } else if let Some((_, (_, instruction))) = line.split_once('\t').map(|(at, rest)| (at, ("", rest))).filter(|_| is_inside)
        {
            let is_fence = instruction.contains("fence") || instruction.starts_with("lock");
            let is_access = instruction.contains("PTR [") && !instruction.starts_with("call") && !instruction.contains("nop");
            let is_stack = instruction.contains("[rsp");
            if is_fence || is_access && !is_stack {
                let name = instruction.split_whitespace().next().unwrap_or("").to_owned();
                let symbol = instruction.split_once("# ").map_or("", |(_, place)| place);
                functions.last_mut().expect("inside a function").1.push(format!("{name} {symbol}"));
            }
        }
    }
    functions.sort();
    functions
}

#[test]
fn what_others_see_of_memory_stays_as_it_was() {
    if !support::installed("gcc") || !support::installed("objdump") {
        support::skipped("the memory contract: there is no gcc, or no objdump");
        return;
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let (program, output) = (scratch.path().join("memory_contract"), scratch.path().join("output"));
    let source = support::repository("fixtures/programs/memory_contract/memory_contract.c");
    let flags = ["-O2", "-fPIE", "-pie", "-pthread", "-w"];
    let status = Command::new("gcc").args(flags).arg(source).arg("-o").arg(&program).status();
    assert!(status.is_ok_and(|status| status.success()), "the fixture can't be built");
    let mut command = support::relift();
    command.args(["optimize", "--edit-everywhere", "--with", TRANSFORMS]).arg(&program).arg("-o").arg(&output);
    let said = support::run(&mut command, scratch.path());
    assert_eq!(said.end, End::Exit(0), "{said:?}");
    for _ in 0..RUNS {
        let ran = support::run(&mut Command::new(&output), scratch.path());
        assert_eq!(ran.end, End::Exit(SUCCESS), "{ran:?}");
    }
    let before = accesses(&program);
    assert!(before.len() >= 8 && before.iter().map(|function| function.1.len()).sum::<usize>() >= 25, "{before:?}");
    let after = accesses(&output);
    assert_eq!(without_copies(&after), without_copies(&before));
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        assert!(after.len() >= before.len(), "{name} had {before:?} and has {after:?}");
    }
}

/// Where a block is copied, its accesses are listed twice, one after the other.
fn without_copies(functions: &[(String, Vec<String>)]) -> Vec<(String, Vec<String>)> {
    let mut functions = functions.to_vec();
    functions.iter_mut().for_each(|(_, accesses)| accesses.dedup());
    functions
}
