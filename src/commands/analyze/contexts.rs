//! `relift analyze --contexts`: constants followed through calling contexts, and what each way to specialize for them would take and save.

use std::process::ExitCode;

use analysis::constants::{ContextId, EntryUses, Exploration, Facts};
use analysis::engine::Summaries;
use analysis::graph::SiteId;
use analysis::hot::Counts;
use lifter::entity::EntityId;
use lifter::ir::Program;
use rewriter::specialize::contexts::{ContextForest, procedure_of};
use rewriter::specialize::copies::Copies;
use rewriter::specialize::machine::Machine;
use rewriter::specialize::merge::Merged;
use rewriter::specialize::size::{Lengths, Sizes};
use rewriter::specialize::{Body, CallSite, FunctionId, Names};
use serde_json::json;

use super::super::{Style, print, print_json};
use crate::args::{Analyze, AnalyzeDump};
use crate::failure::Result;
use crate::report::group;
use crate::timing::{self, Timing};

/// A row of the table: what a budget finds.
struct Row {
    budget: usize,
    contexts: usize,
    cases: usize,
    optimizable: usize,
    nodes: usize,
    states: usize,
    merged: usize,
    clones: usize,
    tracking: usize,
    sizes: Sizes,
    direct: Direct,
    /// Of the executed instructions, by the profile.
    saved: u128,
    seconds: f64,
}

/// What contexts one call deep alone would give.
struct Direct {
    clones: usize,
    bytes: u64,
    saved: u128,
}

pub(super) fn run(
    args: &Analyze,
    summaries: &Summaries<'_>,
    counts: &Counts<'_>,
    style: Style,
    timing: &mut Timing,
) -> Result<ExitCode> {
    let program = summaries.around.program;
    let uses = timing.phase("see which arguments are read", |_| EntryUses::compute(summaries));
    let (mut rows, mut dump, mut best) = (Vec::new(), String::new(), Vec::new());
    let executed = executed(program, counts);
    for &budget in &args.contexts {
        let started = timing::processor_seconds();
        let found = timing.phase("follow constants", |_| Exploration::run(summaries, counts, uses.clone(), budget));
        let whole = timing.phase("build the machine", |_| ContextForest::build(&found, |_, _, case| case.removed >= args.least));
        let machine = Machine::build(&whole.forest);
        let merged = Merged::build(&whole.forest);
        let copies = Copies::build(&merged);
        let seconds = timing::processor_seconds() - started;
        let lengths = CodeLengths { found: &found, whole: &whole, program };
        rows.push(Row {
            budget,
            contexts: found.contexts.len() - found.num_roots,
            cases: found.cases.len(),
            optimizable: whole.num_optimizable,
            nodes: whole.forest.num_paths(),
            states: machine.states.len(),
            merged: merged.num_tracked(),
            clones: copies.num_clones(),
            tracking: copies.num_tracking(),
            sizes: Sizes::of(&whole.forest, &copies, &lengths),
            direct: direct(&found, program, args.least),
            saved: found.contexts.keys().map(|context| u128::from(found.saved_in(context))).sum(),
            seconds,
        });
        let names = ProgramNames { found: &found, whole: &whole };
        best = best_contexts(&names, executed);
        if args.dump == Some(AnalyzeDump::Fsm) {
            dump += &format!("contexts {budget}\n{}{}", machine.dump(&whole.forest, &names), copies.dump(&names));
        }
    }
    timing.finish();
    if style.json {
        let rows: Vec<_> = rows.iter().map(row_json).collect();
        print_json(&json!({
            "procedures": summaries.around.procedures.all.len(), "sites": summaries.graph.sites.len(),
            "text_bytes": text_bytes(program), "executed_instructions": executed as u64,
            "peak_rss_bytes": timing::peak_rss_bytes(), "contexts": rows, "best": best, "dump": dump,
        }))?;
    } else {
        print(&(dump + &text(summaries, &rows, executed) + "\n" + &best.concat()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn direct(found: &Exploration<'_, '_>, program: &Program, least: u32) -> Direct {
    let mut direct = Direct { clones: 0, bytes: 0, saved: 0 };
    let mut cases = Vec::new();
    for (id, context) in found.contexts.iter() {
        if context.depth == 1 && found.cases[context.case].removed >= least.max(1) {
            cases.push(context.case);
            direct.saved += u128::from(found.saved_in(id));
        }
    }
    let content = |&case: &analysis::constants::Case| (found.cases[case].procedure, &found.cases[case].simplified.fates);
    cases.sort_unstable_by_key(|case| content(case));
    cases.dedup_by_key(|case| (found.cases[*case].procedure, found.cases[*case].simplified.fates.clone()));
    direct.clones = cases.len();
    let len = |&case: &analysis::constants::Case| {
        let data = &found.cases[case];
        u64::from(data.len).min(code_len(found, program, data.procedure))
    };
    direct.bytes = cases.iter().map(len).sum();
    direct
}

fn code_len(found: &Exploration<'_, '_>, program: &Program, procedure: analysis::procedures::Procedure) -> u64 {
    let blocks = found.summaries().around.procedures.reach(program, procedure);
    blocks.iter().map(|&block| u64::from(program.blocks[block].len)).sum()
}

struct CodeLengths<'x, 's, 'a> {
    found: &'x Exploration<'s, 'a>,
    whole: &'x ContextForest,
    program: &'x Program,
}

impl Lengths for CodeLengths<'_, '_, '_> {
    fn function(&self, function: FunctionId) -> u64 {
        code_len(self.found, self.program, procedure_of(function))
    }
    fn body(&self, body: Body) -> u64 {
        u64::from(self.found.cases[self.whole.bodies[body]].len)
    }
}

struct ProgramNames<'x, 's, 'a> {
    found: &'x Exploration<'s, 'a>,
    whole: &'x ContextForest,
}

impl Names for ProgramNames<'_, '_, '_> {
    fn function(&self, function: FunctionId) -> String {
        let around = &self.found.summaries().around;
        let data = &around.procedures.all[procedure_of(function)];
        let start = around.program.blocks[data.entry].start;
        let symbol = around.program.funcs[data.func].symbol.filter(|_| around.program.funcs[data.func].entry == data.entry);
        symbol.map_or_else(|| start.to_string(), |symbol| around.image.symbols[symbol].name.to_string())
    }
    fn site(&self, site: CallSite) -> String {
        let site = &self.found.summaries().graph.sites[SiteId::new(site.index())];
        format!("{}{}", if site.is_tail { "jump before " } else { "call before " }, site.at)
    }
    fn body(&self, body: Body) -> String {
        self.facts(&self.found.cases[self.whole.bodies[body]].facts)
    }
}

impl ProgramNames<'_, '_, '_> {
    #[expect(clippy::unused_self, reason = "a name among others")]
    fn facts(&self, facts: &Facts) -> String {
        let name = |register: u8| analysis::domain::base::REGISTER_NAMES[usize::from(register)];
        let facts: Vec<String> = facts.iter().map(|(register, constant)| format!("{}={constant}", name(register))).collect();
        format!("({})", facts.join(" "))
    }
}

/// How many contexts are shown one by one.
const NUM_BEST: usize = 12;

/// The contexts that save most, as lines.
fn best_contexts(names: &ProgramNames<'_, '_, '_>, executed: u128) -> Vec<String> {
    let found = names.found;
    let mut saving: Vec<(u64, ContextId)> = found.contexts.keys().map(|id| (found.saved_in(id), id)).collect();
    saving.retain(|s| s.0 > 0);
    saving.sort_unstable_by_key(|&(saved, id)| (std::cmp::Reverse(saved), id));
    let line = |&(saved, id): &(u64, ContextId)| {
        let case = &found.cases[found.contexts[id].case];
        let function = names.function(FunctionId::new(case.procedure.index()));
        let path: Vec<String> = found.path_of(id).iter().map(|site| names.site(CallSite::new(site.index()))).collect();
        let share = saved as f64 * 100.0 / executed.max(1) as f64;
        format!(
            "{share:.3} % saved by {} instructions less in {function} {} after {}\n",
            case.removed,
            names.facts(&case.facts),
            path.join(", ")
        )
    };
    saving.iter().take(NUM_BEST).map(line).collect()
}

fn executed(program: &Program, counts: &Counts<'_>) -> u128 {
    let executed = program.blocks.iter().map(|(id, data)| u128::from(counts.of_block(id)) * u128::from(data.num_insts));
    executed.sum()
}

fn text_bytes(program: &Program) -> u64 {
    program.blocks.values().map(|data| u64::from(data.len)).sum()
}

fn row_json(row: &Row) -> serde_json::Value {
    let Sizes { inline, table, shorter, full, full_shared } = row.sizes;
    json!({
        "budget": row.budget, "contexts": row.contexts, "cases": row.cases, "optimizable": row.optimizable, "nodes": row.nodes,
        "states": row.states, "merged_states": row.merged, "clones": row.clones, "tracking_copies": row.tracking,
        "bytes": { "inline": inline, "table": table, "shorter": shorter, "full": full, "full_shared": full_shared, "direct": row.direct.bytes },
        "direct_clones": row.direct.clones, "saved_instructions": row.saved as u64,
        "direct_saved_instructions": row.direct.saved as u64, "seconds": row.seconds,
    })
}

fn text(summaries: &Summaries<'_>, rows: &[Row], executed: u128) -> String {
    let program = summaries.around.program;
    let mut text = format!(
        "{} procedures, {} direct calls, {} bytes of instructions\n\n",
        group(summaries.around.procedures.all.len() as u64),
        group(summaries.graph.sites.len() as u64),
        group(text_bytes(program)),
    );
    type Line<'r> = (&'static str, Box<dyn Fn(&Row) -> String + 'r>);
    let number = |get: fn(&Row) -> u64| -> Box<dyn Fn(&Row) -> String> { Box::new(move |row| group(get(row))) };
    let share = move |saved: u128| match executed {
        0 => "-".to_owned(),
        _ => format!("{:.3} %", saved as f64 * 100.0 / executed as f64),
    };
    let lines: Vec<Line<'_>> = vec![
        ("contexts looked at", number(|r| r.contexts as u64)),
        ("  distinct cases", number(|r| r.cases as u64)),
        ("contexts that save instructions", number(|r| r.optimizable as u64)),
        ("nodes of the forest", number(|r| r.nodes as u64)),
        ("states", number(|r| r.states as u64)),
        ("  that can be told apart", number(|r| r.merged as u64)),
        ("clones", number(|r| r.clones as u64)),
        ("tracking copies", number(|r| r.tracking as u64)),
        ("bytes, compares in line", number(|r| r.sizes.inline)),
        ("bytes, tables", number(|r| r.sizes.table)),
        ("bytes, full cloning", number(|r| r.sizes.full)),
        ("  equal states shared", number(|r| r.sizes.full_shared)),
        ("bytes, direct calls alone", number(|r| r.direct.bytes)),
        ("executed instructions saved", Box::new(move |r| share(r.saved))),
        ("  by direct calls alone", Box::new(move |r| share(r.direct.saved))),
        ("processor seconds", Box::new(|r| format!("{:.2}", r.seconds))),
    ];
    for (name, value) in lines {
        let cells: Vec<String> = rows.iter().map(|row| format!("{:>14}", value(row))).collect();
        text += &format!("{name:<32}{}\n", cells.concat());
    }
    text
}
