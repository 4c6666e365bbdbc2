//! Targets `lift` and `optimize`: damaged code and data through the lifter, damaged anything through the whole of relift.
//!
//! The lifter's program keeps its invariants whatever the bytes are. An output that the checker finds a fault in is never put in place; how
//! often that happens is counted.

use lifter::elf::{Image, Unwind};
use lifter::ir::Program;
use lifter::verify;
use profiles::{Descriptor, ProfileFile, Weights};
use rewriter::debug::Mode;
use rewriter::edit::EditPlan;
use rewriter::instrument::Instrumentation;
use rewriter::layout::{self, LayoutOptions};
use rewriter::plan::LayoutPlan;
use rewriter::relink::{Relinked, Reported};
use rewriter::{encode, materialize, relink};

use super::{Outcome, damage, refused};
use crate::edits::Recipe;
use crate::layout::Class;
use crate::random::Random;

const CODE: [Class; 5] = [Class::Code, Class::Constants, Class::Data, Class::Relocations, Class::Symbols];

const ANYTHING: [Class; 15] = [
    Class::FileHeader,
    Class::ProgramHeaders,
    Class::SectionHeaders,
    Class::Dynamic,
    Class::Symbols,
    Class::Strings,
    Class::Relocations,
    Class::Notes,
    Class::Code,
    Class::Constants,
    Class::Data,
    Class::Frames,
    Class::FrameIndex,
    Class::Exceptions,
    Class::Other,
];

/// How a file is rewritten.
#[derive(Copy, Clone, Debug)]
pub(super) enum Job {
    Original,
    /// By seed.
    Shuffle(u64),
    /// For speed, with counts made up by seed.
    Weights(u64),
    Instrument,
}

impl Job {
    fn of(recipe: &Recipe) -> Job {
        let seed = u64::from(recipe.variation);
        match recipe.flags % 8 {
            0 => Job::Original,
            1 => Job::Instrument,
            2 | 3 => Job::Weights(seed),
            _ => Job::Shuffle(seed),
        }
    }
}

pub(super) fn code(recipe: &Recipe) -> Vec<u8> {
    damage(recipe, &CODE)
}

/// Damaged anywhere, or in code alone: with headers damaged little else is reached.
pub(super) fn anything(recipe: &Recipe) -> Vec<u8> {
    damage(recipe, if recipe.flags & 8 == 0 { &CODE } else { &ANYTHING })
}

pub(super) fn lift(_recipe: &Recipe, file: &[u8]) -> Outcome {
    let lifted = Image::parse(file).and_then(|image| verified(&image).map(drop));
    lifted.map_or_else(refused, |()| Outcome::Accepted)
}

pub(super) fn optimize(recipe: &Recipe, file: &[u8]) -> Outcome {
    rewrite_and_check(file, Job::of(recipe))
}

/// Lifts, and panics if that breaks an invariant.
fn verified(image: &Image<'_>) -> lifter::Result<Program> {
    let program = lifter::lift(image, Unwind::parse(image)?)?;
    let violations = verify::verify(image, &program);
    if let Some(first) = violations.first() {
        panic!("lifting broke {} invariants, the first: {first}", violations.len());
    }
    Ok(program)
}

/// All that `relift optimize` or `relift instrument` does between reading and writing.
pub(super) fn rewrite_and_check(file: &[u8], job: Job) -> Outcome {
    let image = match Image::parse(file) {
        Ok(image) => image,
        Err(error) => return refused(error),
    };
    let program = match verified(&image) {
        Ok(program) => program,
        Err(error) => return refused(error),
    };
    let relinked = match rewrite(&image, &program, job) {
        Ok(relinked) => relinked,
        Err(error) => {
            assert!(!is_contradiction(&error), "relift contradicts itself: {error}");
            return refused(error);
        }
    };
    if let Err(error) = Image::parse(&relinked.bytes).and_then(|output| Unwind::parse(&output)) {
        panic!("relift cannot read its own output: {error}");
    }
    if matches!(job, Job::Instrument) {
        // An instrumented program does more than its input, so there is nothing to compare.
        return Outcome::Accepted;
    }
    match checker::check(file, &relinked.bytes) {
        Ok(report) => report.violations.first().map_or(Outcome::Accepted, |first| Outcome::Stopped(first.to_string())),
        Err(checker::Error::Input(error)) => refused(error),
        Err(error) => panic!("{error}"),
    }
}

/// Whether an error blames the plan, which relift itself made.
fn is_contradiction(error: &rewriter::Error) -> bool {
    use rewriter::Error::{MixedUnwindClasses, NotPlaced, PlacedPinned, PlacedTwice};
    matches!(error, PlacedTwice(..) | PlacedPinned(..) | NotPlaced(..) | MixedUnwindClasses(..))
}

fn rewrite(image: &Image<'_>, program: &Program, job: Job) -> rewriter::error::Result<Relinked> {
    let weights = match job {
        Job::Weights(seed) => made_up_weights(image, program, seed),
        _ => Weights::none(program.blocks.len(), program.edges.len()),
    };
    if let Job::Instrument = job {
        let mut instrumentation = Instrumentation::plan(image, program, "/tmp/profile".as_ref())?;
        let edits = instrumentation.edits()?;
        let plan = layout::original(program);
        let out = materialize::materialize(program, &weights, &plan, &edits)?;
        let shapes = encode::measure(image, program, &out);
        return relink::relink(image, program, &out, shapes, Some(&mut instrumentation), Mode::Drop.into(), Reported::File);
    }
    let plan = match job {
        Job::Original | Job::Instrument => layout::original(program),
        Job::Shuffle(seed) => layout::shuffle(program, seed),
        Job::Weights(_) => by_weights(program, &weights),
    };
    apply(image, program, &weights, &plan)
}

/// The plan of `relift optimize` with a profile.
pub(super) fn by_weights(program: &Program, weights: &Weights) -> LayoutPlan {
    layout::compute(program, weights, &EditPlan::default(), &LayoutOptions::default())
}

pub(super) fn apply(
    image: &Image<'_>,
    program: &Program,
    weights: &Weights,
    plan: &LayoutPlan,
) -> rewriter::error::Result<Relinked> {
    let edits = EditPlan::default();
    let out = materialize::materialize(program, weights, plan, &edits)?;
    let shapes = encode::measure(image, program, &out);
    relink::relink(image, program, &out, shapes, None, Mode::Update.into(), Reported::File)
}

/// Counts that a run could have left: every counter has a random value.
fn made_up_weights(image: &Image<'_>, program: &Program, seed: u64) -> Weights {
    let plan = profiles::plan_counters(image, program);
    let mut profile = ProfileFile::empty(Descriptor::build(image, program, &plan));
    let mut random = Random::new(seed);
    profile.counters.iter_mut().for_each(|counter| {
        *counter = random.draw() >> random.below(64);
    });
    let none = || Weights::none(program.blocks.len(), program.edges.len());
    profiles::attribute(&profile, image, program).map_or_else(|_| none(), |found| found.weights)
}
