//! What transforms are worth by themselves: `cargo xtask bench --worth late-saves`.
//!
//! **Method.** Of each program two outputs are made, with the check, of the same profile: *layout alone*, without any transform that changes what code does, and
//! the same with the transforms in question. Both do the evaluation workload. Executed loads and stores and instructions are counted twice, by relift's dyno-stats (the
//! program's own code, the training workload) and by cachegrind (all of the process with its libraries, the evaluation workload); processor time is taken in turns.

use std::fmt::Write;
use std::path::Path;

use super::judge::{self, References};
use super::programs::Program;
use super::report::{geometric_mean, grouped, quartiles};
use super::run::{Bench, Said, Subject};
use super::{time, tools};
use crate::shell::{self, Result};

/// Transforms that change what code does and are on by default; the others order, copy and align it.
const EDITING: [&str; 3] = ["plt-calls", "inline-leaves", "late-saves"];

/// One of the two outputs.
#[derive(Clone, Debug, Default)]
struct Side {
    /// By dyno-stats.
    accesses: u64,
    instructions: u64,
    hot_bytes: u64,
    /// Bytes of all code, with what edits added.
    code_bytes: u64,
    /// By cachegrind; nothing unless counts are wanted.
    counted: Option<References>,
}

/// One program, layout alone first.
pub(super) struct Worth {
    label: String,
    sides: [Side; 2],
    /// The quartiles of the ratios of processor time; nothing unless time is wanted.
    time: Option<[f64; 3]>,
}

/// Measures one program with and without `transforms`.
pub(super) fn row(bench: &Bench, program: &Program, transforms: &[String]) -> Result<Worth> {
    let subject = bench.subject(program)?;
    let (profile, _) = tools::profile(bench, &subject)?;
    let outputs = ["layout-alone", "layout-and-worth"].map(|name| subject.folder.join(name));
    let expected = bench.run_program(&subject, &subject.input)?;
    expected.require_success("bench")?;
    let mut sides = [Side::default(), Side::default()];
    for ((side, output), wanted) in sides.iter_mut().zip(&outputs).zip([&[][..], transforms]) {
        *side = one(bench, &subject, &profile, output, wanted, &expected)?;
    }
    let time = match bench.wants_time {
        true => {
            let ([alone, with], _) = time::measure(bench, &subject, [&outputs[0], &outputs[1]], &expected)?;
            Some(quartiles(alone.iter().zip(&with).map(|(alone, with)| with.total() / alone.total().max(1e-6)).collect()))
        }
        false => None,
    };
    Ok(Worth { label: program.label(), sides, time })
}

fn one(bench: &Bench, subject: &Subject<'_>, profile: &Path, output: &Path, wanted: &[String], expected: &Said) -> Result<Side> {
    let options = options(wanted);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let (_, report) = tools::report(bench, subject, &subject.input, profile, output, &options)?;
    if bench.run_program(subject, output)? != *expected {
        return Err(format!("{} does not print what the input prints", output.display()));
    }
    let stat = |name| tools::dyno_stat(&report, "after", name);
    let code_bytes = report["text_bytes"]["total"].as_u64().unwrap_or(0);
    let changes = report["transforms"].as_object().into_iter().flatten().map(|(_, counts)| counts);
    let (added, removed) = changes.fold((0, 0), |(added, removed), counts| {
        let count = |name: &str| counts[name].as_u64().unwrap_or(0);
        (added + count("bytes added"), removed + count("bytes removed"))
    });
    Ok(Side {
        accesses: stat("loads") + stat("stores"),
        instructions: stat("instructions"),
        hot_bytes: stat("hot_bytes"),
        code_bytes: (code_bytes + added).saturating_sub(removed),
        counted: bench.wants_counts.then(|| judge::references(bench, subject, output)).transpose()?,
    })
}

/// What relift is told so that of all that changes code only these transforms run.
fn options(wanted: &[String]) -> Vec<String> {
    let skipped = EDITING.iter().filter(|name| wanted.iter().all(|wanted| wanted != *name)).map(|name| format!("--skip={name}"));
    skipped.chain(wanted.iter().map(|name| format!("--with={name}"))).collect()
}

/// The short form that is shown while the suite runs.
pub(super) fn line(row: &Worth) -> String {
    format!("{:<20} {}", row.label, cells(row).join(" "))
}

/// The whole record.
pub(super) fn table(rows: &[Worth], bench: &Bench, transforms: &[String], failures: &[String]) -> String {
    let mut text = format!(
        "Made by `cargo xtask bench --worth {}`: layout alone (`{}`), and the same with them (`{}`){}. Percent are changes from the one to the other; dyno-stats: the program's own code, the training \
         workload; cachegrind: all of the process, the evaluation workload. Time is user and system time together, {} rounds in turns, the median of the rounds' ratios and between \
         what bounds the middle half lies.\n\n\
         | program | loads and stores, dyno-stats | change | data references, cachegrind | change | instructions, dyno-stats | cachegrind | hot bytes | code bytes | time |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        transforms.join(","),
        options(&[]).join(" "),
        options(transforms).join(" "),
        bench.relift_options.iter().fold(String::new(), |all, option| all + ", both with `" + option + "`"),
        bench.rounds,
    );
    for row in rows {
        let number = |value: Option<u64>| value.map_or("–".to_owned(), |value| grouped(value as f64, 0));
        let [accesses, references, instructions, counted, hot, code, time] = cells(row);
        let alone = &row.sides[0];
        let _ = writeln!(
            text,
            "| {} | {} | {accesses} | {} | {references} | {instructions} | {counted} | {hot} | {code} | {time} |",
            row.label,
            number(Some(alone.accesses)),
            number(alone.counted.map(|counted| counted.data)),
        );
    }
    let mean = |of: &dyn Fn(&Worth) -> Option<f64>| {
        let all: Vec<f64> = rows.iter().filter_map(of).collect();
        if all.is_empty() { None } else { Some(geometric_mean(&all)) }
    };
    let time = mean(&|row| row.time.map(|[_, middle, _]| middle));
    let _ = writeln!(
        text,
        "| **geometric mean** | | **{}** | | **{}** | **{}** | **{}** | **{}** | **{}** | **{}** |\n",
        percent(mean(&accesses)),
        percent(mean(&references)),
        percent(mean(&instructions)),
        percent(mean(&counted_instructions)),
        percent(mean(&hot_bytes)),
        percent(mean(&code_bytes)),
        time.map_or("–".to_owned(), |time| format!("{time:.3}")),
    );
    for failure in failures {
        let _ = writeln!(text, "Not measured: {failure}\n");
    }
    text
}

/// Loads and stores by both judges, instructions by both, hot bytes, all bytes of code, time.
fn cells(row: &Worth) -> [String; 7] {
    let time = row.time.map_or("–".to_owned(), |[low, middle, high]| format!("{middle:.3} ({low:.3}–{high:.3})"));
    let [accesses, references, instructions, counted, hot, code] =
        [accesses(row), references(row), instructions(row), counted_instructions(row), hot_bytes(row), code_bytes(row)]
            .map(percent);
    [accesses, references, instructions, counted, hot, code, time]
}

fn ratio(row: &Worth, of: impl Fn(&Side) -> Option<u64>) -> Option<f64> {
    let [alone, with] = [&row.sides[0], &row.sides[1]].map(of);
    Some(with? as f64 / alone.filter(|alone| *alone != 0)? as f64)
}

fn accesses(row: &Worth) -> Option<f64> {
    ratio(row, |side| Some(side.accesses))
}
fn references(row: &Worth) -> Option<f64> {
    ratio(row, |side| side.counted.map(|counted| counted.data))
}
fn instructions(row: &Worth) -> Option<f64> {
    ratio(row, |side| Some(side.instructions))
}
fn counted_instructions(row: &Worth) -> Option<f64> {
    ratio(row, |side| side.counted.map(|counted| counted.instructions))
}
fn hot_bytes(row: &Worth) -> Option<f64> {
    ratio(row, |side| Some(side.hot_bytes))
}
/// Of all code, not of what the edits are in.
fn code_bytes(row: &Worth) -> Option<f64> {
    ratio(row, |side| Some(side.code_bytes))
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or("–".to_owned(), |ratio| format!("{:+.2} %", (ratio - 1.0) * 100.0).replace('-', "−"))
}

/// Measures all of `programs`; the tables, and what could not be measured.
pub(super) fn run<'a>(
    bench: &Bench,
    programs: impl Iterator<Item = &'a Program>,
    transforms: &[String],
) -> (String, Vec<String>) {
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for program in programs {
        match row(bench, program, transforms) {
            Ok(row) => {
                shell::say(&line(&row));
                rows.push(row);
            }
            Err(problem) => {
                shell::say(&format!("{}: {problem}", program.label()));
                failures.push(format!("{}: {problem}", program.label()));
            }
        }
    }
    (table(&rows, bench, transforms, &failures), failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_alone_skips_all_that_changes_code_and_the_other_side_all_but_what_is_asked() {
        assert_eq!(options(&[]), ["--skip=plt-calls", "--skip=inline-leaves", "--skip=late-saves"]);
        assert_eq!(options(&["late-saves".into()]), ["--skip=plt-calls", "--skip=inline-leaves", "--with=late-saves"]);
        assert_eq!(options(&["constant-loads".into()])[3], "--with=constant-loads");
    }

    #[test]
    fn a_change_is_given_in_percent_of_layout_alone() {
        let side = |accesses| Side { accesses, ..Side::default() };
        let row = Worth { label: "a".into(), sides: [side(200), side(150)], time: None };
        assert_eq!(cells(&row)[..2], ["−25.00 %", "–"]);
        let nothing = Worth { label: "a".into(), sides: [side(0), side(0)], time: Some([0.9, 1.0, 1.1]) };
        assert_eq!((cells(&nothing)[0].as_str(), cells(&nothing)[6].as_str()), ("–", "1.000 (0.900–1.100)"));
    }
}
