//! What is closed, and what becomes of it, in the demo's program.

use clap::Parser;
use lifter::lift::Undescribed;
use rewriter::debug;
use rewriter::relink::Reported;

use super::super::code::Planned;
use super::super::{Job, shrink_program};
use super::*;
use crate::args::{Cli, Command};
use crate::driver::{self, Lifted};
use crate::progress::Progress;
use crate::timing::Timing;

static PROGRAM: &[u8] = include_bytes!("../../../../fixtures/demo/demo.elf");

struct Tried {
    lifted: Lifted<'static>,
    planned: Planned,
    blocks: Vec<(Va, u32)>,
}

impl Tried {
    fn with(closed: &Closed) -> Self {
        let cli = Cli::try_parse_from(["relift", "shrink", "demo", "-o", "smaller"]).expect("the arguments are right");
        let Command::Shrink(args) = cli.command else { panic!("another command") };
        let mut timing = Timing::new(Progress::hidden());
        let lifted = driver::lift_to_shrink(&args.rewrite.input, PROGRAM, Undescribed::Sought, true, &mut timing);
        let mut lifted = lifted.expect("the demo's program can be lifted");
        let wanted = debug::Wanted { mode: debug::Mode::Drop, separate: None };
        let job = Job { args: &args, closed, reported: Reported::Blocks, unchanged: PROGRAM, wanted, strips_headers: false };
        let (finished, planned) = shrink_program(job, &mut lifted, &mut timing, &mut Vec::new()).expect("it can be shrunk");
        Self { planned: planned.expect("its code moves"), blocks: finished.blocks, lifted }
    }

    fn func(&self, entry: Va) -> Func {
        let program = &self.lifted.program;
        program.func_of(program.block_at(entry).expect("a function begins there"))
    }

    /// Whether something of a function has changed, is gone, or stands for something else.
    fn is_changed(&self, entry: Va) -> bool {
        let (program, func) = (&self.lifted.program, self.func(entry));
        let is_own = |block: Block| program.func_of(block) == func;
        let plan = &self.planned.plan;
        self.planned.edits.replacements.iter().any(|replacement| is_own(replacement.block))
            || plan.folded_blocks.pairs().iter().any(|&(goes, stays)| is_own(goes) || is_own(stays))
            || plan.folded.pairs().iter().any(|&(goes, stays)| goes == func || stays == func)
    }

    fn about(&self, kind: ViolationKind, address: Va, input: Option<Va>) -> Closed {
        let violation = Violation { kind, address: address.0, input: input.map(|input| input.0), message: String::new() };
        Closed::about(&[violation], &self.lifted.program, &self.planned.plan, &self.blocks)
    }
}

#[test]
fn functions_that_violations_are_about_are_not_changed_the_next_time() {
    let tried = Tried::with(&Closed::none());
    let program = &tried.lifted.program;
    let entries = program.funcs.keys().map(|func| entry(program, func));
    let changed: Vec<Va> = entries.filter(|&at| tried.is_changed(at)).collect();
    assert!(changed.len() > 10, "{}", changed.len());
    let mut closed = Closed::none();
    for &at in &changed[..4] {
        let place = tried.blocks[program.funcs[tried.func(at)].entry.index()].0;
        let about = tried.about(ViolationKind::Unexplained, place, None);
        assert!(about.0.contains(&at), "{at:?}");
        closed.extend(about);
    }
    let again = Tried::with(&closed);
    assert!(closed.0.iter().all(|&at| !again.is_changed(at)), "{closed:?}");
    let others = changed.iter().filter(|at| !closed.0.contains(at));
    assert!(others.filter(|&&at| again.is_changed(at)).count() > 5, "the others are");
    assert!(!closed.clone().extend(closed), "nothing is new");
}

#[test]
fn what_a_block_stands_for_is_meant_as_well() {
    let tried = Tried::with(&Closed::none());
    let program = &tried.lifted.program;
    let across = |&&(goes, stays): &&(Block, Block)| program.func_of(goes) != program.func_of(stays);
    let pairs = tried.planned.plan.folded_blocks.pairs();
    let &(goes, stays) = pairs.iter().find(across).expect("functions share an end");
    let closed = tried.about(ViolationKind::InstructionMismatch, tried.blocks[stays.index()].0, None);
    for block in [goes, stays] {
        assert!(closed.contains(program, program.func_of(block)), "{block}: {closed:?}");
    }
}

#[test]
fn a_function_of_the_input_may_be_meant_and_where_code_went_may_be_what_is_wrong() {
    let tried = Tried::with(&Closed::none());
    let program = &tried.lifted.program;
    let data = program.funcs.values().find(|data| data.blocks.len() > 3).expect("one has several blocks");
    let inside = program.blocks[data.blocks.iter().nth(2).expect("it has three")].start;
    let at = program.blocks[data.entry].start;
    let only: Closed = Closed([at].into());
    assert_eq!(tried.about(ViolationKind::MissingFunction, at, None).0, only.0);
    assert_eq!(tried.about(ViolationKind::Section, Va(0), Some(inside)).0, only.0);
    let place = tried.blocks[data.entry.index()].0;
    assert!(tried.about(ViolationKind::StaleReference, place, None).is_empty());
}
