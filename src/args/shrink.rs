//! What `relift shrink` takes.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rewriter::fold::shares::Slowdown;
use rewriter::plan::Unwinds;

use super::{Rewrite, Separate};

#[derive(Debug, Clone, Args)]
pub(crate) struct Shrink {
    #[command(flatten)]
    pub(crate) rewrite: Rewrite,
    #[command(flatten)]
    pub(crate) separate: Separate,
    /// A profile, as for `optimize`: what it says runs is laid out for speed.
    #[arg(short, long, value_name = "PROFILE")]
    pub(crate) profile: Vec<PathBuf>,
    /// Use only these techniques.
    #[arg(long, value_delimiter = ',', value_name = "TECHNIQUE")]
    pub(crate) only: Vec<Technique>,
    /// Leave these techniques out.
    #[arg(long, value_delimiter = ',', value_name = "TECHNIQUE")]
    pub(crate) skip: Vec<Technique>,
    /// How much more time the program may take for fewer bytes, in percent, as guessed from the code: 0 shares code by jumps and calls only where it does not run but for errors, 100 wherever that
    /// saves a byte. A profile knows instead.
    #[arg(long, value_name = "PERCENT", default_value_t = Slowdown::PERCENT_DEFAULT, value_parser = percent, conflicts_with = "profile")]
    pub(crate) slower: f32,
    /// How close segments come in the file: `tight` lets a page of it be mapped twice with different rights, as lld and gold do;
    /// `safe` lets code share no page.
    #[arg(long, value_enum, default_value_t = Pack::Tight)]
    pub(crate) pack: Pack,
    /// Pack relative relocations, which glibc 2.36, musl 1.2.4 and later read; `auto` does so if this machine's C library reads them.
    #[arg(long, value_enum, default_value_t = Relr::Auto)]
    pub(crate) relr: Relr,
    /// Leave out what no loader reads: symbols, comments, and the section headers that debuggers and `strip` need. With a debug file these headers stay,
    /// and the link to it, and where the program may read a section that is not loaded, they stay with that.
    #[arg(long)]
    pub(crate) strip: bool,
    /// Take something for granted that no analysis can show.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT")]
    pub(crate) assume: Vec<Granted>,
    /// A training command, as for `train`: {} stands for the program. What runs then is the profile.
    #[arg(last = true, value_name = "CMD", conflicts_with_all = ["profile", "slower"])]
    pub(crate) workload: Vec<String>,
}

/// What a smaller file may take for granted.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Granted {
    /// Nobody asks for the callers of code amid instructions that only compute in registers, push them, pop them or return: unwind tables are less than half as large where they say nothing of these.
    /// Exceptions, crashes and breakpoints on lines are fine; profilers that walk the stack from where a timer stops the program, and `pthread_cancel` of threads that allow it anywhere, are not.
    NoAsyncUnwind,
}

impl Shrink {
    pub(crate) fn assumptions(&self) -> checker::Assumptions {
        checker::Assumptions { no_async_unwind: self.unwinds() == Unwinds::FromStops, ..checker::Assumptions::default() }
    }
    pub(crate) fn unwinds(&self) -> Unwinds {
        if self.assume.contains(&Granted::NoAsyncUnwind) { Unwinds::FromStops } else { Unwinds::Anywhere }
    }
    pub(crate) fn is_on(&self, technique: Technique) -> bool {
        (self.only.is_empty() || self.only.contains(&technique)) && !self.skip.contains(&technique)
    }
}

/// A number from 0 to the most that may be asked for.
fn percent(given: &str) -> Result<f32, String> {
    let number = given.parse().ok().filter(|number| (0.0..=Slowdown::PERCENT_MAX).contains(number));
    number.ok_or_else(|| format!("a number from 0 to {} is wanted", Slowdown::PERCENT_MAX))
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Technique {
    /// Leave out functions that nothing can reach.
    DeadCode,
    /// Let one body stand for all functions that do the same.
    Fold,
    /// Let one copy stand for all blocks, and ends of blocks, that do the same and go on alike, without jumps where these are guessed to take much time.
    Tails,
    /// Call functions of the file straight, not through words that never change.
    DirectCalls,
    /// Put the arguments that many calls of a function have alike into one place, to which these calls lead: before the function, where no jump more is needed, or elsewhere, if a jump more is guessed to take little time.
    Outline,
    /// Put instructions that many places have alike into one, which these call, if two jumps more are guessed to take little time.
    Subroutines,
    /// Order the blocks of each function so that the most branches are short.
    Order,
    /// Let long branches to the same place go by way of one jump, where each is short then, and the jump is guessed to take little time.
    Relays,
    /// Leave out what only aligns functions and loops.
    Padding,
    /// Begin functions where few branches that are guessed to run often lie on the ends of 32 bytes, which processors of Intel's Skylake family decode each time: some bytes more. Not with a profile.
    Windows,
    /// Write instructions in forms that take fewer bytes: `push` for `sub $8, %rsp`, numbers from registers that hold them, moves of vectors without a prefix.
    Forms,
    /// Leave out `endbr64` where no tracked indirect branch can arrive.
    Endbr,
    /// Let code that lies side by side share unwind entries.
    UnwindEntries,
    /// Pack relative relocations (DT_RELR).
    Relr,
    /// Leave out DT_HASH where there is DT_GNU_HASH.
    Hash,
    /// Move the loader's and the unwinder's tables to the segments whose last page has room.
    Spread,
    /// Make two segments of one that has pages in its middle that nothing needs.
    Cuts,
    /// Choose file offsets so that unused pages and gaps are not in the file.
    Holes,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pack {
    Tight,
    Safe,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Relr {
    Auto,
    On,
    Off,
}
