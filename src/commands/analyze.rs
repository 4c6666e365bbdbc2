//! `relift analyze`: what the alias analysis finds, and what it costs.

mod contexts;
mod hottest;
mod pairs;
mod tables;
mod traffic;

use std::process::ExitCode;

use analysis::engine::{Contexts, Summaries};
use analysis::hot::Counts;
use analysis::partition::{Criterion, Partition};
use analysis::values::Surroundings;
use profiles::Weights;

use super::Style;
use crate::args::{Analyze, CriterionName};
use crate::commands::profile;
use crate::driver::{self, Lifted};
use crate::failure::{Failure, Result};
use crate::files;
use crate::timing::Timing;

pub(crate) fn run(args: &Analyze, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    let wants_profile = args.tables
        || args.traffic
        || args.hottest.is_some()
        || !matches!(args.criterion, CriterionName::Insensitive | CriterionName::Standard);
    if wants_profile && args.profile.is_empty() {
        return Err(Failure::at(&args.input, "which call sites matter is the profile's to say")
            .hint("give one with -p, or choose --criterion insensitive or standard"));
    }
    let bytes = files::read(&args.input)?;
    let lifted = driver::lift(&args.input, &bytes, false, timing)?;
    let weights = match args.profile.is_empty() {
        true => Weights::default(),
        false => {
            timing
                .phase("attribute the profile", |timing| {
                    profile::load(&args.profile, args.profile_binary.as_deref(), &args.input, &lifted, timing)
                })?
                .0
        }
    };
    if let Some(count) = args.hottest {
        return hottest::run(&lifted, &weights, count, style, timing);
    }
    let summaries =
        timing.phase("summarize procedures", |_| Summaries::compute(Surroundings::new(&lifted.image, &lifted.program)));
    if args.traffic {
        return traffic::run(&summaries, &weights, style, timing);
    }
    let counts = counts(&lifted, &summaries, &weights, args.phi);
    if !args.contexts.is_empty() {
        return contexts::run(args, &summaries, &counts, style, timing);
    }
    if args.tables {
        return tables::run(args, &summaries, &counts, style, timing);
    }
    let contexts = timing
        .phase("analyze by context", |_| Contexts::compute(&summaries, Partition::by(criterion(args), &summaries, &counts)));
    pairs::run(args, &lifted, &contexts, &counts, style, timing)
}

fn counts<'w>(lifted: &Lifted<'_>, summaries: &Summaries<'_>, weights: &'w Weights, phi: f64) -> Counts<'w> {
    let procedures = &summaries.around.procedures;
    Counts::new(&lifted.program, procedures, &summaries.graph, (&weights.blocks, &weights.edges), phi)
}

fn criterion(args: &Analyze) -> Criterion {
    match args.criterion {
        CriterionName::Insensitive => Criterion::Insensitive,
        CriterionName::Standard => Criterion::Standard,
        CriterionName::Frequency => Criterion::Frequency { theta: args.theta },
        CriterionName::Relevance => Criterion::Relevance { theta: args.theta },
        CriterionName::Conservative => Criterion::Conservative,
        CriterionName::Budgeted => Criterion::Budgeted { sites: args.budget },
    }
}
