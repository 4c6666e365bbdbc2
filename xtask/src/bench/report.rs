//! The tables: one per measure, a line per program, the geometric mean below.

use std::fmt::Write;

use super::judge::{CACHE, Judged};
use super::run::{Bench, Measured, Row};
use super::tools::BOLT_OPTIONS;

/// A measure of all three binaries, by number; smaller is better.
struct Measure {
    title: &'static str,
    how: &'static str,
    wanted: &'static str,
    of: fn(&Measured) -> Option<f64>,
    /// Whether the input has it.
    of_input: bool,
    decimals: usize,
}

fn judged(measured: &Measured, of: fn(&Judged) -> u64) -> Option<f64> {
    measured.judged.as_ref().map(|judged| of(judged) as f64)
}

const MEASURES: [Measure; 9] = [
    Measure {
        title: "Taken branches by dyno-stats",
        how: "conditional branches that are taken and unconditional ones, counted by each tool in its own output from the profile; the input's by relift",
        wanted: "≤ BOLT on each, geometric mean ≤ 0.90",
        of: |measured| measured.dyno.map(|dyno| dyno.taken_after as f64),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "Taken conditional jumps by lackey",
        how: "`valgrind --tool=lackey --basic-counts=yes`, the evaluation workload, all of the process: libc and the dynamic linker are in it",
        wanted: "≤ BOLT on each, geometric mean ≤ 0.90",
        of: |measured| judged(measured, |j| j.taken_conditionals),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "Executed instructions",
        how: "`valgrind --tool=callgrind`, all of the process",
        wanted: "≤ BOLT on each, geometric mean ≤ 0.98 of the input",
        of: |measured| judged(measured, |j| j.instructions),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "First-level instruction cache misses",
        how: "`valgrind --tool=cachegrind`, all of the process",
        wanted: "≤ BOLT on each",
        of: |measured| judged(measured, |j| j.first_level_misses),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "Last-level instruction cache misses",
        how: "cachegrind; with a cache that holds the whole program these are the lines that are touched at all",
        wanted: "≤ BOLT on each",
        of: |measured| judged(measured, |j| j.last_level_misses),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "Pages of 4 KB that hold 99 % of the program's own executed instructions",
        how: "from callgrind's counts by address",
        wanted: "≤ BOLT",
        of: |measured| judged(measured, |j| j.hot_small_pages),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "Pages of 2 MB that hold 99 %",
        how: "the same, by 2 MB",
        wanted: "≤ BOLT",
        of: |measured| judged(measured, |j| j.hot_large_pages),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "CPU time of the tool, in seconds",
        how: "user and system time of the whole process, both with as many threads as there are processors; relift with `--no-check`, since BOLT does not check its output",
        wanted: "≤ 0.10",
        of: |measured| Some(measured.cost.cpu_seconds),
        of_input: false,
        decimals: 3,
    },
    Measure {
        title: "Peak memory of the tool, in MB",
        how: "maximum resident set",
        wanted: "≤ 0.33",
        of: |measured| Some(measured.cost.peak_kilobytes as f64 / 1024.0),
        of_input: false,
        decimals: 1,
    },
];

/// The short form that is shown while the suite runs.
pub(super) fn row(row: &Row) -> String {
    let mut ratios: Vec<String> =
        MEASURES.iter().map(|measure| values(row, measure)).map(|[_, bolt, relift]| ratio_cell(relift, bolt)).collect();
    let times = time_ratios(row).filter(|[_, _, [_, middle, _]]| *middle > 0.0);
    ratios.extend(times.map(|[_, _, [low, middle, high]]| format!("time {middle:.3} ({low:.3}–{high:.3})")));
    let problem = row.bolt.as_ref().err().map(|problem| format!(" BOLT fails: {}", first_line(problem))).unwrap_or_default();
    format!("{:<20} relift/BOLT {}{problem}", row.label, ratios.join(" "))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The whole record.
pub(super) fn tables(rows: &[Row], bench: &Bench, failures: &[String]) -> String {
    let mut text = String::new();
    let options = if bench.relift_options.is_empty() { String::new() } else { format!(" {}", bench.relift_options.join(" ")) };
    let _ = writeln!(
        text,
        "Made by `cargo xtask bench`. BOLT's instrumentation and `train.sh` make one profile for both tools; input and outputs then do `bench.sh`. \
         Commands:\n\n```\n{bolt} INPUT -instrument --instrumentation-file=RAW --instrumentation-file-append-pid -o INSTRUMENTED\n\
         {bolt} INPUT -data=PROFILE {bolt_options} -o OUTPUT\nrelift optimize INPUT -o OUTPUT -p PROFILE --debug=drop --no-check{options}\n\
         valgrind {cache}\n```\n",
        bolt = bench.bolt,
        bolt_options = BOLT_OPTIONS.join(" "),
        cache = CACHE.join(" "),
    );
    for measure in &MEASURES {
        table(&mut text, rows, measure);
    }
    time_table(&mut text, rows, bench);
    size_table(&mut text, rows);
    stripped_table(&mut text, rows);
    for row in rows {
        if let Err(problem) = &row.bolt {
            let _ = writeln!(text, "{}: BOLT fails: {problem}\n", row.label);
        }
    }
    for failure in failures {
        let _ = writeln!(text, "Not measured: {failure}\n");
    }
    text
}

fn table(text: &mut String, rows: &[Row], measure: &Measure) {
    if rows.iter().all(|row| (measure.of)(&row.relift).is_none()) {
        return;
    }
    let _ =
        writeln!(text, "### {}\n\n{}. Wanted of relift / BOLT: {}.\n", measure.title, capitalized(measure.how), measure.wanted);
    let input_head = if measure.of_input { "input | " } else { "" };
    let tail = if measure.of_input { " relift / input | BOLT / input |" } else { "" };
    let _ = writeln!(text, "| program | {input_head}BOLT | relift | relift / BOLT |{tail}");
    let columns = if measure.of_input { 7 } else { 4 };
    let _ = writeln!(text, "| --- |{}", " ---: |".repeat(columns - 1));
    let mut ratios = [Vec::new(), Vec::new(), Vec::new()];
    for row in rows {
        let [input, bolt, relift] = values(row, measure);
        let lost = if relift.zip(bolt).is_some_and(|(relift, bolt)| relift > bolt * 1.0005) { " ✗" } else { "" };
        let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| grouped(value, measure.decimals));
        let bolt_number = if row.bolt.is_ok() { number(bolt) } else { "fails".to_owned() };
        let _ = write!(text, "| {} | ", row.label);
        if measure.of_input {
            let _ = write!(text, "{} | ", number(input));
        }
        let _ = write!(text, "{bolt_number} | {} | {}{lost} |", number(relift), ratio_cell(relift, bolt));
        if measure.of_input {
            let _ = write!(text, " {} | {} |", ratio_cell(relift, input), ratio_cell(bolt, input));
        }
        text.push('\n');
        for (ratios, pair) in ratios.iter_mut().zip([relift.zip(bolt), relift.zip(input), bolt.zip(input)]) {
            ratios.extend(pair.map(|(over, under)| over / under));
        }
    }
    let means = ratios.map(|ratios| geometric_mean(&ratios));
    if measure.of_input {
        let _ =
            writeln!(text, "| **geometric mean** | | | | **{:.3}** | **{:.3}** | **{:.3}** |\n", means[0], means[1], means[2]);
    } else {
        let _ = writeln!(text, "| **geometric mean** | | | **{:.3}** |\n", means[0]);
    }
}

pub(super) fn ratio_cell(over: Option<f64>, under: Option<f64>) -> String {
    over.zip(under).map_or("–".to_owned(), |(over, under)| format!("{:.3}", over / under))
}

/// Of the input, of BOLT's output and of relift's, what there is.
fn values(row: &Row, measure: &Measure) -> [Option<f64>; 3] {
    let bolt = row.bolt.as_ref().ok().and_then(measure.of);
    // The input's dyno-stats are those of relift, which sees every function.
    let is_dyno = row.input.dyno.is_none() && measure.title.ends_with("dyno-stats");
    let before = || row.relift.dyno.map(|dyno| dyno.taken_before as f64);
    let input = if is_dyno { before() } else { (measure.of)(&row.input) };
    [input, bolt, (measure.of)(&row.relift)]
}

/// The quartiles of the rounds' ratios: BOLT over input, relift over input, relift over BOLT.
fn time_ratios(row: &Row) -> Option<[[f64; 3]; 3]> {
    if row.input.rounds.is_empty() {
        return None;
    }
    let seconds = |measured: &Measured| measured.rounds.iter().map(|used| used.total()).collect::<Vec<f64>>();
    let none = Measured::default();
    let bolt = seconds(row.bolt.as_ref().unwrap_or(&none));
    let (input, relift) = (seconds(&row.input), seconds(&row.relift));
    let pair = |over: &[f64], under: &[f64]| quartiles(over.iter().zip(under).map(|(a, b)| a / b.max(1e-6)).collect());
    Some([pair(&bolt, &input), pair(&relift, &input), pair(&relift, &bolt)])
}

fn time_table(text: &mut String, rows: &[Row], bench: &Bench) {
    if rows.iter().all(|row| row.input.rounds.is_empty()) {
        return;
    }
    let _ = writeln!(
        text,
        "### Time\n\nUser and system time together of the program's own processes in the evaluation workload: the kernel knows the sum to the nanosecond, its two \
         parts only by the ticks of a clock. {} rounds, each of so many repeats of the workload that the input needs {} s or more; in each repeat the three take \
         turns, in changing order. The median of the rounds' ratios, and between what bounds the middle half of them lies. Last, the same of the user time \
         alone.\n\n\
         | program | repeats | input, s a round | BOLT / input | relift / input | relift / BOLT | user: relift / BOLT |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        bench.rounds, bench.round_seconds
    );
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for row in rows {
        let Some(ratios) = time_ratios(row) else { continue };
        let cell = |[low, middle, high]: [f64; 3]| match middle {
            0.0 => "–".to_owned(),
            _ => format!("{middle:.3} ({low:.3}–{high:.3})"),
        };
        let input = quartiles(row.input.rounds.iter().map(|used| used.total()).collect())[1];
        let _ = writeln!(
            text,
            "| {} | {} | {input:.3} | {} | {} |",
            row.label,
            row.repeats,
            ratios.map(cell).join(" | "),
            user_ratio(row).map_or("–".to_owned(), |ratio| format!("{ratio:.3}"))
        );
        for (all, ratio) in all.iter_mut().zip(ratios) {
            all.extend(Some(ratio[1]).filter(|ratio| *ratio > 0.0));
        }
    }
    let means = all.map(|ratios| format!("**{:.3}**", geometric_mean(&ratios)));
    let _ = writeln!(text, "| **geometric mean** | | | {} | |\n", means.join(" | "));
}

fn user_ratio(row: &Row) -> Option<f64> {
    let bolt = row.bolt.as_ref().ok()?;
    let ratios = row.relift.rounds.iter().zip(&bolt.rounds).map(|(a, b)| a.user / b.user.max(1e-6)).collect();
    Some(quartiles(ratios)[1])
}

fn size_table(text: &mut String, rows: &[Row]) {
    let _ = writeln!(
        text,
        "### Stripped size\n\nOf the output after `strip`, over that of the input. Wanted: relift ≤ 1.03. Beside it the CPU time and memory of relift with its \
         own check of the output.\n\n| program | input, bytes | BOLT / input | relift / input | checked: CPU s | checked: MB |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |"
    );
    let mut all = [Vec::new(), Vec::new()];
    for row in rows {
        let bytes = |measured: &Measured| measured.stripped_bytes as f64;
        let input = bytes(&row.input);
        let (bolt, relift) = (row.bolt.as_ref().ok().map(|bolt| bytes(bolt) / input), bytes(&row.relift) / input);
        let lost = if relift > 1.03 { " ✗" } else { "" };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {relift:.3}{lost} | {:.3} | {:.1} |",
            row.label,
            grouped(input, 0),
            ratio_cell(bolt, Some(1.0)),
            row.checked.cpu_seconds,
            row.checked.peak_kilobytes as f64 / 1024.0
        );
        all[0].extend(bolt);
        all[1].push(relift);
    }
    let _ = writeln!(
        text,
        "| **geometric mean** | | **{:.3}** | **{:.3}** | | |\n",
        geometric_mean(&all[0]),
        geometric_mean(&all[1])
    );
}

/// relift without symbols and relocations over relift with them.
fn stripped_table(text: &mut String, rows: &[Row]) {
    let _ = writeln!(
        text,
        "### Without relocations\n\nThe same input after `strip`: no symbols, no relocations; the same profile, by address. relift's own figures from it over \
         those above. BOLT: refused.\n\n| program | taken by dyno-stats | taken conditional by lackey | instructions | first-level misses | stripped size |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |"
    );
    for row in rows {
        let Some(bare) = &row.stripped else {
            let _ = writeln!(text, "| {} | – | – | – | – | – |", row.label);
            continue;
        };
        let dyno = |measured: &Measured| measured.dyno.map(|dyno| dyno.taken_after as f64);
        let judges: [fn(&Judged) -> u64; 3] = [|j| j.taken_conditionals, |j| j.instructions, |j| j.first_level_misses];
        let counted = judges.map(|of| ratio_cell(judged(bare, of), judged(&row.relift, of)));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.3} |",
            row.label,
            ratio_cell(dyno(bare), dyno(&row.relift)),
            counted.join(" | "),
            bare.stripped_bytes as f64 / row.relift.stripped_bytes as f64
        );
    }
    text.push('\n');
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// A number with its thousands apart.
pub(super) fn grouped(value: f64, decimals: usize) -> String {
    let plain = format!("{value:.decimals$}");
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index != 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

pub(super) fn geometric_mean(ratios: &[f64]) -> f64 {
    let logarithms: f64 = ratios.iter().map(|ratio| ratio.max(1e-9).ln()).sum();
    (logarithms / ratios.len().max(1) as f64).exp()
}

/// The quartiles: a quarter, half and three quarters of the values are at most these.
pub(super) fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |part: usize| values.get((values.len().saturating_sub(1) * part + 2) / 4).copied().unwrap_or(0.0);
    [at(1), at(2), at(3)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        assert_eq!(grouped(1_234_567.0, 0), "1,234,567");
        assert_eq!(grouped(123.0, 0), "123");
        assert_eq!(grouped(1234.5, 1), "1,234.5");
    }

    #[test]
    fn means_and_quartiles_are_those_of_the_book() {
        assert!((geometric_mean(&[2.0, 8.0]) - 4.0).abs() < 1e-9);
        assert_eq!(quartiles(vec![5.0, 1.0, 3.0, 2.0, 4.0]), [2.0, 3.0, 4.0]);
    }
}
