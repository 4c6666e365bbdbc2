//! Target `checker`: the checker's own reader and walk, on damaged outputs and damaged inputs.
//!
//! The checker is what stands between a fault of relift and a user's file, so it has to survive any fault. Whether a damaged output is
//! found wrong is not asked here: the damage may lie where it makes no difference.

use std::sync::OnceLock;

use lifter::elf::{Image, Unwind};
use profiles::Weights;
use rewriter::layout;

use super::optimize::apply;
use super::{Outcome, refused};
use crate::edits::Recipe;
use crate::layout::{Class, Layout};
use crate::seeds;

/// What of the pair is damaged.
const DAMAGE_INPUT: u8 = 1;
const DAMAGE_BOTH: u8 = 2;

/// A sound pair with the maps of both files.
struct Pair {
    input: &'static [u8],
    input_layout: Layout,
    output: Vec<u8>,
    output_layout: Layout,
}

fn pairs() -> &'static [Pair] {
    static PAIRS: OnceLock<Vec<Pair>> = OnceLock::new();
    PAIRS.get_or_init(|| seeds::ELF.iter().map(|seed| pair(seed.bytes)).collect())
}

fn pair(input: &'static [u8]) -> Pair {
    let image = Image::parse(input).expect("the seed is sound");
    let unwind = Unwind::parse(&image).expect("the seed's unwind tables are sound");
    let program = lifter::lift(&image, unwind).expect("the seed can be lifted");
    let weights = Weights::none(program.blocks.len(), program.edges.len());
    let output = apply(&image, &program, &weights, &layout::shuffle(&program, 1)).expect("the seed can be relinked").bytes;
    Pair { input, input_layout: Layout::of(input), output_layout: Layout::of(&output), output }
}

fn pair_of(recipe: &Recipe) -> &'static Pair {
    &pairs()[usize::from(recipe.seed) % pairs().len()]
}

fn all_classes(layout: &Layout) -> Vec<Class> {
    layout.regions.iter().map(|r| r.class).collect()
}

pub(super) fn output(recipe: &Recipe) -> Vec<u8> {
    let pair = pair_of(recipe);
    let (bytes, layout) =
        if recipe.flags & DAMAGE_INPUT != 0 { (pair.input, &pair.input_layout) } else { (&pair.output[..], &pair.output_layout) };
    recipe.apply(bytes, layout, &all_classes(layout))
}

pub(super) fn check(recipe: &Recipe, damaged: &[u8]) -> Outcome {
    let pair = pair_of(recipe);
    let (input, output) = match (recipe.flags & DAMAGE_BOTH != 0, recipe.flags & DAMAGE_INPUT != 0) {
        (true, _) => (damaged, damaged),
        (false, true) => (damaged, &pair.output[..]),
        (false, false) => (pair.input, damaged),
    };
    match checker::check(input, output) {
        Ok(report) => {
            let summary = report.summary(3);
            assert_eq!(report.is_ok(), summary.is_empty(), "a report that says nothing: {summary}");
            Outcome::Accepted
        }
        Err(error) => refused(error),
    }
}
