//! One program, lifted in each way, against its relocations and symbols.

use std::path::Path;
use std::process::Command;

use lifter::Image;
use lifter::address::Va;
use lifter::elf::Unwind;
use lifter::ground_truth::{GroundTruth, ground_truth};
use lifter::ir::{PinReason, Program};
use lifter::lift::{LiftOptions, lift_with};
use lifter::verify::verify;

use crate::shell::{self, Result};
use crate::truth::Built;

/// What the lifter was shown.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shown {
    Relocations,
    Symbols,
    Nothing,
}

impl Shown {
    pub(super) const ALL: [Shown; 3] = [Shown::Relocations, Shown::Symbols, Shown::Nothing];

    pub(super) fn name(self) -> &'static str {
        match self {
            Shown::Relocations => "all",
            Shown::Symbols => "symbols",
            Shown::Nothing => "stripped",
        }
    }
}

/// How one lifting of one file compares.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) file: Built,
    pub(super) shown: Shown,
    /// What was compared, or why there is nothing to compare.
    pub(super) result: Result<Compared>,
}

#[derive(Debug)]
pub(super) struct Compared {
    pub(super) truth: GroundTruth,
    /// Bytes of compiled code, and those of them that may move.
    pub(super) code_bytes: u64,
    pub(super) movable_bytes: u64,
    /// What `lifter::verify` says.
    pub(super) violations: Vec<String>,
    /// What is wrong, with the symbol it is in.
    pub(super) wrong: Vec<String>,
}

/// How many wrong places of one lifting are named.
const NAMED_MAX: usize = 6;

impl Verdict {
    /// A proof that says less than the compiler did is no excuse here: nothing runs that could show it to be right.
    pub(super) fn is_right(&self) -> bool {
        let is_right = |c: &Compared| c.truth.is_sound() && c.truth.idle_entries.is_empty() && c.violations.is_empty();
        self.result.as_ref().is_ok_and(is_right)
    }

    /// A line for each wrong thing, the first ones only.
    pub(super) fn complaints(&self) -> Vec<String> {
        let idle = self.idle_entries().iter().map(|(at, _)| format!("table target behind a proven end at {at}"));
        self.wrong_lines().into_iter().chain(idle.take(NAMED_MAX).map(|line| self.line(&line))).collect()
    }

    /// The same without the table targets behind proven ends.
    pub(super) fn wrong_lines(&self) -> Vec<String> {
        match &self.result {
            Err(problem) => vec![self.line(problem)],
            Ok(compared) => {
                let all = compared.violations.iter().chain(&compared.wrong);
                all.take(NAMED_MAX).map(|line| self.line(line)).collect()
            }
        }
    }

    /// `(word, size)` of the table targets behind ends that the lifter calls proven.
    pub(super) fn idle_entries(&self) -> &[(Va, u8)] {
        self.result.as_ref().map_or(&[], |compared| &compared.truth.idle_entries)
    }

    fn line(&self, what: &str) -> String {
        format!("{}/{} {}: {what}", self.file.program, self.file.variant, self.shown.name())
    }
}

pub(super) fn judge(file: &Built) -> Vec<Verdict> {
    let verdict = |shown, result| Verdict { file: file.clone(), shown, result };
    let bytes = match shell::read_file(&file.path) {
        Ok(bytes) => bytes,
        Err(problem) => return vec![verdict(Shown::Relocations, Err(problem))],
    };
    let oracle = match Image::parse(&bytes) {
        Ok(image) if image.has_static_relocs() => image,
        Ok(_) => return vec![verdict(Shown::Relocations, Err("it has no relocations to compare with".into()))],
        Err(error) => return vec![verdict(Shown::Relocations, Err(error.to_string()))],
    };
    let compare = |shown: Shown| {
        if shown == Shown::Nothing {
            return compare_lifted(&oracle, &stripped(&file.path)?, shown);
        }
        compare_lifted(&oracle, &bytes, shown)
    };
    Shown::ALL.into_iter().map(|shown| verdict(shown, compare(shown))).collect()
}

/// The file without symbols and relocations, as `strip` makes it.
fn stripped(path: &Path) -> Result<Vec<u8>> {
    let output = tempfile::NamedTempFile::new().map_err(|error| format!("cannot make a file: {error}"))?;
    shell::run(Command::new("strip").arg("-o").arg(output.path()).arg(path))?;
    shell::read_file(output.path())
}

fn compare_lifted(oracle: &Image<'_>, bytes: &[u8], shown: Shown) -> Result<Compared> {
    let image = Image::parse(bytes).map_err(|error| error.to_string())?;
    if shown == Shown::Nothing && (image.has_static_relocs() || !image.symbols.is_empty() && image.symbols.len() > 1) {
        return Err("strip left symbols or relocations".into());
    }
    let unwind = Unwind::parse(&image).map_err(|error| error.to_string())?;
    let options = LiftOptions { use_static_relocs: shown == Shown::Relocations, ..LiftOptions::default() };
    let program = lift_with(&image, unwind, options).map_err(|error| error.to_string())?;
    let truth = ground_truth(oracle, &program);
    let wrong = truth.wrong().map(|(what, va)| format!("{what} at {va}{}", whereabouts(oracle, &program, va))).collect();
    let (code_bytes, movable_bytes) = code_sizes(&program);
    let violations = verify(&image, &program).iter().map(ToString::to_string).collect();
    Ok(Compared { truth, code_bytes, movable_bytes, violations, wrong })
}

fn code_sizes(program: &Program) -> (u64, u64) {
    let mut sizes = (0, 0);
    for (func, data) in program.funcs.iter().filter(|(_, f)| f.pin != Some(PinReason::LinkerSection)) {
        let size = program.func_size(func);
        sizes.0 += size;
        sizes.1 += if data.is_movable() { size } else { 0 };
    }
    sizes
}

/// The section and, in code, the function that an address is in.
fn whereabouts(oracle: &Image<'_>, program: &Program, va: Va) -> String {
    let section = oracle.section_at(va).map_or("", |s| oracle.sections[s].name);
    let is_around = |s: &&lifter::elf::image::SymbolData<'_>| {
        s.has_address() && s.st_value <= va.0 && va.0 < s.st_value + s.st_size && !s.name.is_empty()
    };
    let symbol = oracle.symbols.values().find(is_around).map(|s| format!(" {}", s.name)).unwrap_or_default();
    let func = program.block_containing(va).map(|b| program.func_of(b));
    let pin = func.and_then(|f| program.funcs[f].pin).map(|p| format!(" pinned: {}", p.name())).unwrap_or_default();
    format!(" in {section}{symbol}{pin}")
}
