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
    of: fn(&Measured) -> f64,
    /// Whether the input has it.
    of_input: bool,
    decimals: usize,
}

fn judged(of: fn(&Judged) -> u64) -> impl Fn(&Measured) -> f64 {
    move |measured| of(&measured.judged) as f64
}

const MEASURES: [Measure; 9] = [
    Measure {
        title: "Taken branches by dyno-stats",
        how: "conditional branches that are taken and unconditional ones, counted by each tool in its own output from the profile; the input's by relift",
        wanted: "≤ BOLT on each, geometric mean ≤ 0.90",
        of: |measured| measured.dyno.taken_after as f64,
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "Taken conditional jumps by lackey",
        how: "`valgrind --tool=lackey --basic-counts=yes`, the evaluation workload, all of the process: libc and the dynamic linker are in it",
        wanted: "≤ BOLT on each, geometric mean ≤ 0.90",
        of: |measured| judged(|j| j.taken_conditionals)(measured),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "Executed instructions",
        how: "`valgrind --tool=callgrind`, all of the process",
        wanted: "≤ BOLT on each, geometric mean ≤ 0.98 of the input",
        of: |measured| judged(|j| j.instructions)(measured),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "First-level instruction cache misses",
        how: "`valgrind --tool=cachegrind`, all of the process",
        wanted: "≤ BOLT on each",
        of: |measured| judged(|j| j.first_level_misses)(measured),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "Last-level instruction cache misses",
        how: "cachegrind; with a cache that holds the whole program these are the lines that are touched at all",
        wanted: "≤ BOLT on each",
        of: |measured| judged(|j| j.last_level_misses)(measured),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "Pages of 4 KB that hold 99 % of the program's own executed instructions",
        how: "from callgrind's counts by address",
        wanted: "≤ BOLT",
        of: |measured| judged(|j| j.hot_small_pages)(measured),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "Pages of 2 MB that hold 99 %",
        how: "the same, by 2 MB",
        wanted: "≤ BOLT",
        of: |measured| judged(|j| j.hot_large_pages)(measured),
        of_input: true,
        decimals: 0,
    },
    Measure {
        title: "CPU time of the tool, in seconds",
        how: "user and system time of the whole process, both with as many threads as there are processors; relift with `--no-check`, since BOLT does not check its output",
        wanted: "≤ 0.10",
        of: |measured| measured.cost.cpu_seconds,
        of_input: false,
        decimals: 3,
    },
    Measure {
        title: "Peak memory of the tool, in MB",
        how: "maximum resident set",
        wanted: "≤ 0.33",
        of: |measured| measured.cost.peak_kilobytes as f64 / 1024.0,
        of_input: false,
        decimals: 1,
    },
];

/// The short form that is shown while the suite runs.
pub(super) fn row(row: &Row) -> String {
    let ratios = MEASURES.iter().map(|measure| format!("{:.3}", (measure.of)(&row.relift) / (measure.of)(&row.bolt)));
    format!("{:<20} relift/BOLT {}", row.label, ratios.collect::<Vec<_>>().join(" "))
}

/// The whole record.
pub(super) fn tables(rows: &[Row], bench: &Bench, failures: &[String]) -> String {
    let mut text = String::new();
    let options = if bench.relift_options.is_empty() { String::new() } else { format!(" {}", bench.relift_options.join(" ")) };
    let _ = writeln!(
        text,
        "Made by `cargo xtask bench`. BOLT's instrumentation and `train.sh` make one profile for both tools; input and outputs then do `bench.sh`. \
         Commands:\n\n```\n{bolt} INPUT -instrument --instrumentation-file=RAW --instrumentation-file-append-pid -o INSTRUMENTED\n\
         {bolt} INPUT -data=PROFILE {bolt_options} -o OUTPUT\nrelift optimize INPUT -o OUTPUT -p PROFILE --no-check{options}\n\
         valgrind {cache}\n```\n",
        bolt = bench.bolt,
        bolt_options = BOLT_OPTIONS.join(" "),
        cache = CACHE.join(" "),
    );
    for measure in &MEASURES {
        table(&mut text, rows, measure);
    }
    time_table(&mut text, rows, bench.pairs);
    size_table(&mut text, rows);
    stripped_table(&mut text, rows);
    for failure in failures {
        let _ = writeln!(text, "Not measured: {failure}\n");
    }
    text
}

fn table(text: &mut String, rows: &[Row], measure: &Measure) {
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
        let lost = if relift > bolt * 1.0005 { " ✗" } else { "" };
        let number = |value: f64| grouped(value, measure.decimals);
        ratios[0].push(relift / bolt);
        let _ = write!(text, "| {} | ", row.label);
        if measure.of_input {
            ratios[1].push(relift / input);
            ratios[2].push(bolt / input);
            let _ = write!(text, "{} | ", number(input));
        }
        let _ = write!(text, "{} | {} | {:.3}{lost} |", number(bolt), number(relift), relift / bolt);
        if measure.of_input {
            let _ = write!(text, " {:.3} | {:.3} |", relift / input, bolt / input);
        }
        text.push('\n');
    }
    let means = ratios.map(|ratios| geometric_mean(&ratios));
    if measure.of_input {
        let _ =
            writeln!(text, "| **geometric mean** | | | | **{:.3}** | **{:.3}** | **{:.3}** |\n", means[0], means[1], means[2]);
    } else {
        let _ = writeln!(text, "| **geometric mean** | | | **{:.3}** |\n", means[0]);
    }
}

fn values(row: &Row, measure: &Measure) -> [f64; 3] {
    // The input's dyno-stats are those of relift, which sees every function.
    let mut input = (measure.of)(&row.input);
    if input == 0.0 {
        input = row.relift.dyno.taken_before as f64;
    }
    [input, (measure.of)(&row.bolt), (measure.of)(&row.relift)]
}

fn time_table(text: &mut String, rows: &[Row], pairs: usize) {
    let _ = writeln!(
        text,
        "### User time\n\nOf the program's own processes in the evaluation workload, {pairs} rounds in turns; the median of the rounds' ratios, and \
         between what bounds the middle half of them lies.\n\n\
         | program | input, s | BOLT / input | relift / input | relift / BOLT |\n| --- | ---: | ---: | ---: | ---: |"
    );
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for row in rows.iter().filter(|row| !row.input.seconds.is_empty()) {
        let pair = |over: &Measured, under: &Measured| -> [f64; 3] {
            quartiles(over.seconds.iter().zip(&under.seconds).map(|(a, b)| a / b.max(0.001)).collect())
        };
        let ratios = [pair(&row.bolt, &row.input), pair(&row.relift, &row.input), pair(&row.relift, &row.bolt)];
        let cells: Vec<String> = ratios.iter().map(|[low, middle, high]| format!("{middle:.3} ({low:.3}–{high:.3})")).collect();
        let _ = writeln!(text, "| {} | {:.3} | {} |", row.label, quartiles(row.input.seconds.clone())[1], cells.join(" | "));
        for (all, ratio) in all.iter_mut().zip(ratios) {
            all.push(ratio[1]);
        }
    }
    let means = all.map(|ratios| format!("**{:.3}**", geometric_mean(&ratios)));
    let _ = writeln!(text, "| **geometric mean** | | {} |\n", means.join(" | "));
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
        let input = row.input.stripped_bytes as f64;
        let ratios = [row.bolt.stripped_bytes as f64 / input, row.relift.stripped_bytes as f64 / input];
        let lost = if ratios[1] > 1.03 { " ✗" } else { "" };
        let _ = writeln!(
            text,
            "| {} | {} | {:.3} | {:.3}{lost} | {:.3} | {:.1} |",
            row.label,
            grouped(input, 0),
            ratios[0],
            ratios[1],
            row.checked.cpu_seconds,
            row.checked.peak_kilobytes as f64 / 1024.0
        );
        all[0].push(ratios[0]);
        all[1].push(ratios[1]);
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
        let ratio = |of: fn(&Measured) -> u64| of(bare) as f64 / of(&row.relift) as f64;
        let _ = writeln!(
            text,
            "| {} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} |",
            row.label,
            ratio(|m| m.dyno.taken_after),
            ratio(|m| m.judged.taken_conditionals),
            ratio(|m| m.judged.instructions),
            ratio(|m| m.judged.first_level_misses),
            ratio(|m| m.stripped_bytes)
        );
    }
    text.push('\n');
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// A number with its thousands apart.
fn grouped(value: f64, decimals: usize) -> String {
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

fn geometric_mean(ratios: &[f64]) -> f64 {
    let logarithms: f64 = ratios.iter().map(|ratio| ratio.max(1e-9).ln()).sum();
    (logarithms / ratios.len().max(1) as f64).exp()
}

/// The quartiles: a quarter, half and three quarters of the values are at most these.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
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
