//! Whether debuggers are told the same of both programs.
//!
//! **Problem.** `.debug_*` sections name code by address: which line an instruction belongs to, which entries (functions, inlined calls, blocks) contain it, where variables
//! are while it runs. When code moves, all of these are written anew, and nothing that runs shows a mistake.
//!
//! **Method.** The walk knows, without a word from the producer, which instruction of the input each one of the output stands for. An entry is known by its offset, which stays. Each
//! side's sections are read to intervals of addresses with keys ([`facts`]), and at an instruction the sum of the keys says what holds there ([`timeline`]); so two
//! instructions that correspond are compared by four numbers: rows, places to stop, ranges, locations. At a call the location lists are compared at its last byte too, since it is there that
//! debuggers look for a caller's variables. Single addresses must correspond by the walk's relation ([`compare`]). All that names no code goes into
//! a fingerprint for each unit, which must stay.
//!
//! **What counts as the same.**
//! * An output instruction that stands for several of the input (folded functions, shared tails) says what one of them does, in all of it at once.
//! * What stands in a call's place has the ranges of the call, and the row of the call or of the callee's instruction. Location lists are not compared there: the callee's
//!   variables have no place of their own in the caller.
//! * In pieces that needed a proof registers may hold other values than the input's. There variables may have no location at all, and where the instruction is another one, nothing is
//!   compared: what is new belongs to a neighbor. A location that is told in such a piece is taken for right if it is the input's.
//! * Where an instruction has a further copy, in which variables may be in other registers, that may have no location at all, if another place has the right ones.
//! * Instructions without a counterpart (jumps, padding, pieces that were proven as a whole, code that nothing leads to) are not compared.
//! * A call may say no more what it calls.
//! * Ranges that begin outside of all code say nothing of any instruction; single addresses outside of code stay what they were.
//! * Where the output does without an `endbr64`, what stood behind it may be a place to stop for both.
//! * An address of code that the output lacks is outside of code in the output.
//!
//! **Sound** as far as it goes: the sums of two instructions are equal only if the same keys hold at both (but for collisions of 64 bits, which nobody seeks: a producer
//! that lies gains nothing), and a key holds the entry's offset and all that is said. So no difference means that a debugger that looks up any compared
//! address finds the same rows, entries and expressions in both files. It does not mean that the input was right.
//!
//! **A debug file of its own** ([`file`]) is compared with the input's in the same way, with the symbols in it. Besides, it must be the one that the output names, with the output's
//! build id and loaded sections: else debuggers would not find it, or add what they should not.
//!
//! **Terminates**: sections are read once, and shared lists are bounded by the sections' size.

mod compare;
mod contents;
mod facts;
pub(crate) mod file;
mod lookup;
mod rows;
mod timeline;
mod unit;

use std::cell::OnceCell;

use contents::Source;
use file::DebugFile;

use crate::image::Image;
use crate::report::DebugReport;
use crate::walk::{Relation, Side};

/// Compares what both programs and their debug files, if there are any, tell debuggers; `None` if one side tells nothing.
pub(crate) fn compare(
    (input, from): (&Side<'_>, Option<&DebugFile<'_>>),
    (output, to): (&Side<'_>, Option<&DebugFile<'_>>),
    relation: &Relation,
) -> Option<DebugReport> {
    let comparison = OnceCell::new();
    let comparison = || comparison.get_or_init(|| compare::Comparison::of(input, output, relation));
    let unreadable = |message| DebugReport { compared: 0, different: 1, messages: vec![message] };
    let mut report: Option<DebugReport> = None;
    let mut add = |other| report.get_or_insert_default().add(other);
    let own = (source(&input.image), source(&output.image));
    if own.0.has_any() && own.1.has_any() {
        add(comparison().run(own.0, own.1).unwrap_or_else(unreadable));
    }
    if let (Some(from), Some(to)) = (from, to) {
        if from.source().has_any() {
            add(comparison().run(from.source(), to.source()).unwrap_or_else(unreadable));
        }
        add(comparison().run_names(&from.functions(), &to.functions()));
        add(to.belonging_to(&output.image));
    }
    report
}

fn source<'s, 'a>(image: &'s Image<'a>) -> Source<'s, 'a> {
    Source { bytes: image.bytes, sections: &image.sections }
}
