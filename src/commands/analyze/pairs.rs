//! The pairs of a function's blocks, each with what the oracle says of it, why, and in which contexts; without a function, how many there are.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use analysis::alias::{Reference, Region, describe, judge, pairs};
use analysis::census::Census;
use analysis::engine::Contexts;
use analysis::hot::Counts;
use analysis::partition::{Criterion, Partition};
use analysis::procedures::Procedure;
use analysis::values::build;
use lifter::entity::EntityId;
use serde_json::json;

use super::super::inspect::{find, label};
use super::super::{Style, print, print_json};
use crate::args::Analyze;
use crate::driver::Lifted;
use crate::failure::{Failure, Result};
use crate::report::group;
use crate::timing::Timing;

pub(super) fn run(
    args: &Analyze,
    lifted: &Lifted<'_>,
    contexts: &Contexts<'_, '_>,
    counts: &Counts<'_>,
    style: Style,
    timing: &Timing,
) -> Result<ExitCode> {
    timing.finish();
    match &args.func {
        Some(wanted) => {
            let func = find(lifted, wanted).ok_or_else(|| {
                Failure::at(&args.input, format!("no function {wanted}"))
                    .hint("give a symbol, an address such as 0x4010, or an id such as fn12")
            })?;
            show_function(lifted, contexts, func, style)?;
        }
        None => show_program(contexts, counts, style)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show_program(contexts: &Contexts<'_, '_>, counts: &Counts<'_>, style: Style) -> Result<()> {
    let summaries = contexts.summaries;
    let insensitive = Contexts::compute(summaries, Partition::by(Criterion::Insensitive, summaries, counts));
    let census = Census::of(contexts, &insensitive, counts);
    let understood = summaries.summaries.iter().flatten().count();
    if style.json {
        return print_json(&json!({
            "procedures": summaries.around.procedures.all.len(), "understood": understood,
            "sites": summaries.graph.sites.len(), "sites_analyzed": contexts.sites_analyzed(),
            "pairs": census.asked, "block_alone": census.local, "independent": census.apart, "beyond_insensitive": census.beyond,
        }));
    }
    let mut text = String::new();
    let rows = [
        ("procedures", summaries.around.procedures.all.len() as u64),
        ("of them understood", understood as u64),
        ("call sites", summaries.graph.sites.len() as u64),
        ("analyzed on their own", contexts.sites_analyzed() as u64),
        ("pairs of references in hot blocks", census.asked),
        ("independent by the block alone", census.local),
        ("independent", census.apart),
        ("of them not without context", census.beyond),
    ];
    for (name, number) in rows {
        let _ = writeln!(text, "{name:<36} {:>14}", group(number));
    }
    print(&text)
}

/// What holds in one context or several.
struct View {
    callers: Vec<String>,
    lines: Vec<String>,
}

fn show_function(lifted: &Lifted<'_>, contexts: &Contexts<'_, '_>, func: lifter::entity::Func, style: Style) -> Result<()> {
    let procedures = &contexts.summaries.around.procedures;
    let mut text = String::new();
    let mut all = Vec::new();
    for procedure in procedures.of_func(func) {
        let entry = lifted.program.blocks[procedures.all[procedure].entry].start;
        let _ = writeln!(text, "{} entered at {entry}", label(lifted, func));
        if contexts.summaries.summaries[procedure.index()].is_none() {
            let _ = writeln!(text, "  not understood: nothing is claimed");
            continue;
        }
        for view in views(lifted, contexts, procedure) {
            let _ = writeln!(text, "  called from {}:", view.callers.join(", "));
            view.lines.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
            all.push(json!({ "entry": entry.0, "callers": view.callers, "pairs": view.lines }));
        }
    }
    if style.json { print_json(&all) } else { print(&text) }
}

/// The answers of each class, those with the same answers together.
fn views(lifted: &Lifted<'_>, contexts: &Contexts<'_, '_>, procedure: Procedure) -> Vec<View> {
    let graph = &contexts.summaries.graph;
    let mut by_answers: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    for class in 0..contexts.partition.num_classes(procedure) {
        let Some(context) = contexts.context(procedure, class) else { continue };
        let own = graph.callers_of(procedure).iter().filter(|&&site| contexts.partition.class_of(site) == class);
        let mut callers: Vec<String> = own
            .map(|&site| {
                let site = &graph.sites[site];
                let caller = contexts.summaries.around.procedures.all[site.caller].func;
                format!("{} before {}", label(lifted, caller), site.at)
            })
            .collect();
        if class == 0 {
            callers.push("anywhere else".to_owned());
        }
        let mut lines: Vec<String> = context.iter().map(|(register, value)| known_text(*register, value)).collect();
        lines.extend(answers(contexts, procedure, class));
        by_answers.entry(lines).or_default().extend(callers);
    }
    by_answers.into_iter().map(|(lines, callers)| View { callers, lines }).collect()
}

fn known_text(register: u8, value: &analysis::domain::Value) -> String {
    format!("{} is {}", analysis::domain::base::REGISTER_NAMES[register as usize], describe(value))
}

fn answers(contexts: &Contexts<'_, '_>, procedure: Procedure, class: u32) -> Vec<String> {
    let summaries = contexts.summaries;
    let code = build(&summaries.around, procedure);
    let solution = contexts.solve(&code, class);
    let knowledge = summaries.knowledge();
    let mut lines = Vec::new();
    for (number, block) in code.blocks.iter().enumerate() {
        if !summaries.is_understood(procedure, block.block) {
            continue;
        }
        let region = Region::build(summaries.around.image, &code, &knowledge, &[number as u32], &solution.at_start);
        for (i, j) in pairs(&region.references) {
            let (a, b) = (&region.references[i], &region.references[j]);
            let verdict = judge(&region.symbols, a, b);
            lines.push(format!("{} {} | {} {}: {verdict}", a.at, access(a), b.at, access(b)));
        }
    }
    lines
}

fn access(reference: &Reference) -> String {
    let what = match (reference.reads, reference.writes) {
        (true, true) => "changes",
        (_, true) => "writes",
        _ => "reads",
    };
    let size = if reference.size == 0 { "some".to_owned() } else { reference.size.to_string() };
    format!("{what} {size} at {}", describe(&reference.value))
}
