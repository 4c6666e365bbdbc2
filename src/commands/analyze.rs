//! `relift analyze`: what the alias analysis finds, and what it costs.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Instant;

use analysis::engine::{Contexts, Summaries};
use analysis::partition::Partition;
use analysis::values::Surroundings;

use super::{Style, print};
use crate::args::Analyze;
use crate::driver;
use crate::failure::Result;
use crate::files;
use crate::timing::Timing;

pub(crate) fn run(args: &Analyze, _style: Style, timing: &mut Timing) -> Result<ExitCode> {
    let bytes = files::read(&args.input)?;
    let lifted = driver::lift(&args.input, &bytes, false, timing)?;
    let around = Surroundings::new(&lifted.image, &lifted.program);
    let started = Instant::now();
    let summaries = Summaries::compute(around);
    let mut text = String::new();
    let num_funcs = summaries.around.procedures.all.len();
    let known = summaries.summaries.iter().flatten();
    let _ = writeln!(
        text,
        "{} functions, {} sites, {} analyses up, {:?}",
        num_funcs,
        summaries.graph.sites.len(),
        summaries.analyses,
        started.elapsed()
    );
    let _ = writeln!(
        text,
        "understood {}, returning {}, rsp known {}, rbx kept {}, rbp kept {}, rdi kept {}, keep nothing {}, write nothing unknown {}",
        known.clone().count(),
        known.clone().filter(|s| s.returns).count(),
        known.clone().filter(|s| s.returns && s.results[4].offset() == Some(8)).count(),
        known.clone().filter(|s| s.returns && s.results[3].base.entry_register() == Some(3)).count(),
        known.clone().filter(|s| s.returns && s.results[5].base.entry_register() == Some(5)).count(),
        known.clone().filter(|s| s.returns && s.results[7].base.entry_register() == Some(7)).count(),
        known.clone().filter(|s| s.returns && s.effects.keeps & 0xff == 0).count(),
        known.clone().filter(|s| s.returns && !s.effects.writes_unknown).count()
    );
    if _style.verbose {
        let bad = |f: analysis::procedures::Procedure| {
            summaries.summaries[lifter::entity::EntityId::index(f)]
                .as_ref()
                .is_none_or(|s| s.returns && s.results[4].offset() != Some(8))
        };
        for func in summaries.around.procedures.all.keys().filter(|&f| bad(f)) {
            let via: Vec<_> = summaries
                .graph
                .sites_in(func)
                .map(|s| summaries.graph.sites[s].callee)
                .filter(|&c| bad(c) && c != func)
                .collect();
            if via.is_empty() {
                let data = &lifted.program.funcs[summaries.around.procedures.all[func].func];
                let name = data.symbol.map(|s| lifted.image.symbols[s].name);
                let _ = writeln!(
                    text,
                    "root {func} {} {:?} pin {:?} rsp {:?}",
                    lifted.program.blocks[data.entry].start,
                    name,
                    data.pin,
                    summaries.summaries[lifter::entity::EntityId::index(func)].as_ref().map(|s| s.results[4])
                );
            }
        }
    }
    for (name, partition) in [
        ("insensitive", Partition::insensitive(&summaries.graph, num_funcs)),
        ("standard", Partition::standard(&summaries.graph, num_funcs)),
    ] {
        let started = Instant::now();
        let contexts = Contexts::compute(&summaries, partition);
        let _ =
            writeln!(text, "{name}: {} analyses down, {:?}, {} bytes", contexts.analyses, started.elapsed(), contexts.bytes());
    }
    timing.finish();
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
