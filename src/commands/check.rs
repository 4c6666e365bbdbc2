//! `relift check`: exit status 0 where the checker finds nothing, in the programs or in what they tell debuggers, 1 with all that it finds.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use checker::Files;

use super::{Style, print, print_json};
use crate::args::{Assumption, Check};
use crate::failure::{Failure, Result};
use crate::files;
use crate::report::group;
use crate::timing::Timing;

/// Violations printed before the rest is only counted.
const SHOWN_MAX: usize = 50;

pub(crate) fn run(args: &Check, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    let read = |path: &Option<PathBuf>| path.as_deref().map(files::read).transpose();
    let (before, after) = (files::read(&args.input)?, files::read(&args.output)?);
    let debug_files = (read(&args.debug_file)?, read(&args.debug_file_output)?);
    let before = Files { program: &before, debug_file: debug_files.0.as_deref() };
    let after = Files { program: &after, debug_file: debug_files.1.as_deref() };
    let assumptions = checker::Assumptions {
        no_races: args.assume.contains(&Assumption::NoRaces),
        no_async_unwind: args.assume.contains(&Assumption::NoAsyncUnwind),
    };
    let report = timing
        .phase("check", |_| checker::check_assuming(before, after, assumptions))
        .map_err(|e| Failure::new(format!("{} and {}: {e}", args.input.display(), args.output.display())))?;
    timing.finish();
    if style.json {
        let violations: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
        let debug = report
            .debug
            .as_ref()
            .map(|debug| serde_json::json!({ "compared": debug.compared, "different": debug.different, "differences": debug.messages }));
        let seconds = timing.total().as_secs_f64();
        print_json(&serde_json::json!({ "violations": violations, "debug": debug, "seconds": seconds }))?;
    } else {
        let mut text = String::new();
        for violation in report.violations.iter().take(SHOWN_MAX) {
            let _ = writeln!(text, "{violation}");
        }
        if report.violations.len() > SHOWN_MAX {
            let _ = writeln!(text, "... and {} more", report.violations.len() - SHOWN_MAX);
        }
        let stats = &report.stats;
        let _ = writeln!(
            text,
            "{} violations; {} instructions compared ({} moved), {} unwind rows, {} jump tables, {} call sites with landing pads",
            report.violations.len(),
            group(stats.instructions),
            group(stats.moved_instructions),
            group(stats.unwind_rows),
            group(stats.jump_tables),
            group(stats.call_sites),
        );
        if stats.unasked_rows > 0 {
            let _ = writeln!(text, "{} of these rows differ where code can't stop by itself", group(stats.unasked_rows));
        }
        if stats.changed_pieces > 0 {
            let _ = writeln!(text, "{}", proven(stats));
        }
        if let Some(debug) = &report.debug {
            tell(debug, style.verbose, &mut text);
        }
        print(&text)?;
    }
    let is_ok = report.is_ok() && report.debug.is_none_or(|debug| debug.different == 0);
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What debuggers are told, in one line, or in as many as there are differences.
fn tell(debug: &checker::DebugReport, is_verbose: bool, text: &mut String) {
    let (compared, different) = (group(debug.compared), group(debug.different));
    let first = debug.first().filter(|_| !is_verbose).map_or_else(String::new, |first| format!(", the first: {first}"));
    let _ = writeln!(text, "debug information compared at {compared} instructions and addresses: {different} differences{first}");
    for message in debug.messages.iter().filter(|_| is_verbose) {
        let _ = writeln!(text, "{message}");
    }
}

/// What differs and does the same, in words.
fn proven(stats: &checker::Stats) -> String {
    let each = [
        (stats.slot_loads_less, "loads and"),
        (stats.slot_stores_less, "stores of private slots less"),
        (stats.fixed_loads_less, "loads of constants less"),
        (stats.loads_moved, "loads moved over stores"),
        (stats.branches_decided, "branches decided"),
        (stats.dead_registers, "registers that nobody reads"),
    ];
    let each: Vec<String> = each.iter().map(|&(count, what)| format!("{} {what}", group(count))).collect();
    format!(
        "{} pieces of changed code proven ({} functions followed as a whole: {})",
        group(stats.changed_pieces),
        group(stats.proven_roots),
        each.join(", ").replace("and,", "and"),
    )
}
