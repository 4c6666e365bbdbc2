//! What is remembered of long searches against searches that remember nothing.

use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use proptest::prelude::*;

use super::*;
use crate::address::Va;
use crate::cfg::body::Body;
use crate::cfg::values::{Numbers, Value};
use crate::discover::names::Names;
use crate::discover::stubs::Stubs;
use crate::elf::Unwind;

const AT: u64 = 0x1000;

/// A function of blocks that each end in a branch; `branches` are those that lead far, `(from, to)`, as numbers of blocks, and in `writes` an address
/// is put into a register that is called in each `period`-th block.
fn function(num_blocks: usize, branches: &[(usize, usize)], writes: &[usize], period: usize) -> Body {
    let assembled = || -> Result<Vec<u8>, iced_x86::IcedError> {
        let mut code = CodeAssembler::new(64)?;
        let mut labels: Vec<CodeLabel> = (0..=num_blocks).map(|_| code.create_label()).collect();
        for block in 0..num_blocks {
            code.set_label(&mut labels[block])?;
            if writes.contains(&block) {
                code.lea(r12, qword_ptr(AT + 16 * block as u64))?;
            }
            if block % period == 0 {
                code.call(r12)?;
            }
            code.test(eax, eax)?;
            let far = branches.iter().find(|branch| branch.0 == block);
            code.je(labels[far.map_or(block + 1, |branch| branch.1)])?;
        }
        code.set_label(&mut labels[num_blocks])?;
        code.ret()?;
        code.assemble(AT)
    };
    body_of(&assembled().expect("assembles"))
}

fn body_of(bytes: &[u8]) -> Body {
    let instructions: Vec<Instruction> = Decoder::with_ip(64, bytes, AT, DecoderOptions::NONE).into_iter().collect();
    let (names, stubs) = (Names::default(), Stubs::default());
    let mut body = Body::of(instructions, vec![Va(AT)], &names, &stubs);
    body.connect(&stubs, &Unwind::default(), &[], &[]);
    body
}

/// What the called register holds at a call, by which instructions, and whether another cluster may have brought it along. Where it holds nothing that is known, the search ends at the first
/// instruction that shows this.
fn answer(body: &Body, seen: &mut Seen, at: usize) -> (Value, Vec<usize>, bool) {
    let mut evaluator = Evaluator::new(body, seen, &|_| true, &|_| false, Numbers::NoAddresses);
    let value = evaluator.register(Register::R12, at);
    let mut trace: Vec<usize> = evaluator.trace.into_iter().collect();
    trace.sort_unstable();
    if value == Value::Other {
        trace.clear();
    }
    (value, trace, evaluator.is_led_in)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn what_is_remembered_of_long_searches_is_what_a_search_finds(
        branches in prop::collection::vec((0..6_000usize, 0..6_000usize), 0..40),
        writes in prop::collection::vec(0..6_000usize, 0..6),
        outer in (0..3_000usize, 3_000..6_000usize),
    ) {
        let mut branches = branches;
        branches.insert(0, (outer.1, outer.0));
        let body = function(6_000, &branches, &writes, 100);
        let calls: Vec<usize> = (0..body.instructions.len()).filter(|&at| body.instructions[at].is_call_near_indirect()).collect();
        let mut shared = Seen::default();
        for &at in calls.iter().rev() {
            prop_assert_eq!(answer(&body, &mut shared, at), answer(&body, &mut Seen::default(), at));
        }
    }
}

#[test]
fn long_searches_are_remembered() {
    let body = function(6_000, &[(5_000, 1_000)], &[], 100);
    let calls = (0..body.instructions.len()).filter(|&at| body.instructions[at].is_call_near_indirect());
    let mut shared = Seen::default();
    calls.rev().for_each(|at| drop(answer(&body, &mut shared, at)));
    assert!(!shared.remembered.found.is_empty());
}

#[test]
fn where_many_queries_have_gone_as_far_as_they_may_the_others_go_less_far() {
    // Each time that this loop is passed backwards, the word is one more above the stack pointer.
    let assembled = || -> Result<Vec<u8>, iced_x86::IcedError> {
        let mut code = CodeAssembler::new(64)?;
        let mut start = code.create_label();
        code.set_label(&mut start)?;
        code.pop(rax)?;
        code.test(eax, eax)?;
        code.jne(start)?;
        code.call(qword_ptr(rsp))?;
        code.ret()?;
        code.assemble(AT)
    };
    let body = body_of(&assembled().expect("assembles"));
    let call = (0..body.instructions.len()).find(|&at| body.instructions[at].is_call_near_indirect()).expect("it is there");
    let mut seen = Seen::default();
    let mut ask = || {
        let mut evaluator = Evaluator::new(&body, &mut seen, &|_| true, &|_| false, Numbers::NoAddresses);
        assert_eq!(evaluator.branch_target(call), Value::Other);
        evaluator.steps
    };
    for _ in 0..LONGEST_QUERIES {
        assert!(ask() > MAX_STEPS);
    }
    let steps = ask();
    assert!((MAX_STEPS_THEN..=MAX_STEPS_THEN + 8).contains(&steps), "{steps}");
}
