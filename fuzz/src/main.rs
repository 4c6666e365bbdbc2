//! Looks at inputs of the fuzz targets: see [`USAGE`].

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;

use fuzz::corpus::{kept, parse_line, to_line};
use fuzz::edits::Recipe;
use fuzz::limits;
use fuzz::random::{Random, recipe};
use fuzz::targets::{Outcome, Target};

const USAGE: &str = "usage: fuzz unpack TARGET FOLDER      the kept inputs of a target, one file each
       fuzz pack FOLDER               the files of a folder as lines for fuzz/corpus, shortest first
       fuzz run TARGET INPUT…         runs inputs, each a file or a line of digits, and says what became of them
       fuzz sweep TARGET COUNT SEED   runs random inputs and groups what fails, or is stopped by the checker
       fuzz make TARGET INPUT FILE    writes the damaged file of an input";

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[expect(clippy::print_stderr, reason = "a program for the command line")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["unpack", target, folder] => unpack(target, Path::new(folder)),
        ["pack", folder] => pack(Path::new(folder)),
        ["run", target, ref inputs @ ..] if !inputs.is_empty() => run(target, inputs),
        ["sweep", target, count, seed] => sweep(target, count, seed),
        ["make", target, input, file] => make(target, input, Path::new(file)),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn target(name: &str) -> Result<Target> {
    Target::named(name).ok_or_else(|| format!("no target {name}").into())
}

/// The input in a file, or on the line itself.
fn input(argument: &str) -> Result<Vec<u8>> {
    match fs::read(argument) {
        Ok(bytes) => Ok(bytes),
        Err(error) => {
            parse_line(argument).ok_or_else(|| format!("{argument} is neither a file ({error}) nor a line of digits").into())
        }
    }
}

fn unpack(name: &str, folder: &Path) -> Result<()> {
    target(name)?;
    fs::create_dir_all(folder)?;
    for (number, input) in kept(name).iter().enumerate() {
        fs::write(folder.join(format!("kept-{number:04}")), input)?;
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a program for the command line")]
fn pack(folder: &Path) -> Result<()> {
    let files = fs::read_dir(folder)?.map(|entry| Ok(fs::read(entry?.path())?)).collect::<Result<Vec<_>>>()?;
    let lines: BTreeSet<(usize, String)> = files.iter().map(|file| (file.len(), to_line(file))).collect();
    lines.iter().filter(|(len, _)| *len > 0).for_each(|(_, line)| println!("{line}"));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a program for the command line")]
fn run(name: &str, inputs: &[&str]) -> Result<()> {
    let target = target(name)?;
    for argument in inputs {
        let input = input(argument)?;
        let before = limits::allocated();
        let outcome = match target.run(&input) {
            Outcome::Accepted => "accepted".to_owned(),
            Outcome::Refused(why) => format!("refused: {why}"),
            Outcome::Stopped(why) => format!("stopped by the checker: {why}"),
        };
        let file_len = (target.file)(&Recipe::decode(&input)).len();
        println!("{argument}: {outcome} ({file_len} bytes, {} allocated at most so far)", limits::peak() - before);
    }
    Ok(())
}

/// The beginning of a message, words with numbers aside.
fn gist(message: &str) -> String {
    let words = message.split_whitespace().take(12).filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")
}

#[expect(clippy::print_stdout, reason = "a program for the command line")]
fn sweep(name: &str, count: &str, seed: &str) -> Result<()> {
    let target = target(name)?;
    let mut random = Random::new(seed.parse()?);
    let mut failures: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut accepted = 0;
    for _ in 0..count.parse()? {
        let input = recipe(&mut random);
        // A run beyond its memory ends the process.
        fs::write(std::env::temp_dir().join(format!("last-input-{name}")), to_line(&input))?;
        let gist = match catch_unwind(AssertUnwindSafe(|| target.run(&input))) {
            Ok(Outcome::Accepted) => {
                accepted += 1;
                continue;
            }
            Ok(Outcome::Refused(_)) => continue,
            Ok(Outcome::Stopped(why)) => format!("stopped: {}", gist(&why)),
            Err(panic) => format!("FAILED: {}", gist(panic_message(&*panic))),
        };
        let entry = failures.entry(gist).or_insert((0, to_line(&input)));
        entry.0 += 1;
        if entry.1.len() > 2 * input.len() {
            entry.1 = to_line(&input);
        }
    }
    println!("{name}: {accepted} accepted");
    failures.iter().for_each(|(gist, (count, input))| println!("{count:6} {gist}\n       {input}"));
    Ok(())
}

fn make(name: &str, argument: &str, file: &Path) -> Result<()> {
    Ok(fs::write(file, (target(name)?.file)(&Recipe::decode(&input(argument)?)))?)
}
