//! The targets: what each makes of a recipe, and what must hold afterwards.
//!
//! A target panics where relift broke a promise; that it refuses a file, in one readable line, is none broken.

mod optimize;
mod profile;
mod read;
mod verdict;

use std::sync::OnceLock;

use crate::edits::Recipe;
use crate::layout::{Class, Layout};
use crate::limits;
use crate::seeds;

/// What became of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    /// With what a user would read.
    Refused(String),
    /// The checker found a fault in the output, so that it would not be written. The file says of itself what is not so, or relift or the
    /// checker is wrong.
    Stopped(String),
}

/// A fuzz target.
#[derive(Copy, Clone, Debug)]
pub struct Target {
    pub name: &'static str,
    /// The damaged file of a recipe.
    pub file: fn(&Recipe) -> Vec<u8>,
    /// Runs a part of relift on it.
    run: fn(&Recipe, &[u8]) -> Outcome,
}

/// All targets.
pub const ALL: [Target; 7] = [
    Target { name: "elf", file: read::headers, run: read::elf },
    Target { name: "eh_frame", file: read::frames, run: read::unwind },
    Target { name: "lsda", file: read::exceptions, run: read::unwind },
    Target { name: "lift", file: optimize::code, run: optimize::lift },
    Target { name: "profile", file: profile::file, run: profile::run },
    Target { name: "optimize", file: optimize::anything, run: optimize::optimize },
    Target { name: "checker", file: verdict::output, run: verdict::check },
];

impl Target {
    pub fn named(name: &str) -> Option<Target> {
        ALL.into_iter().find(|target| target.name == name)
    }

    /// Runs an input within its limits.
    ///
    /// # Panics
    /// If relift broke a promise.
    pub fn run(&self, input: &[u8]) -> Outcome {
        let recipe = Recipe::decode(input);
        let file = (self.file)(&recipe);
        let mut outcome = Outcome::Accepted;
        let _took = limits::within(file.len(), || outcome = (self.run)(&recipe, &file));
        if let Outcome::Refused(why) | Outcome::Stopped(why) = &outcome {
            assert!(!why.is_empty() && why.chars().count() < 400, "the error is no line: {why}");
            assert!(!why.contains(char::is_control), "the error would print control characters: {why:?}");
        }
        outcome
    }
}

/// The sound files with their maps, made once.
fn sound() -> &'static [(&'static [u8], Layout)] {
    static SOUND: OnceLock<Vec<(&'static [u8], Layout)>> = OnceLock::new();
    SOUND.get_or_init(|| seeds::ELF.iter().map(|seed| (seed.bytes, Layout::of(seed.bytes))).collect())
}

/// The file that a recipe makes, with edits in these classes; of the sound files, those that have any region of them.
fn damage(recipe: &Recipe, classes: &[Class]) -> Vec<u8> {
    let has_region = |layout: &Layout| layout.regions.iter().any(|r| classes.contains(&r.class));
    let usable: Vec<_> = sound().iter().filter(|(_, layout)| has_region(layout)).collect();
    let (bytes, layout) = usable[usize::from(recipe.seed) % usable.len()];
    recipe.apply(bytes, layout, classes)
}

fn refused(error: impl ToString) -> Outcome {
    Outcome::Refused(error.to_string())
}
