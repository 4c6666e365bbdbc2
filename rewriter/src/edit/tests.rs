//! Plans of edits: what is refused, what becomes of bytes, references and counts.

use iced_x86::{Code, Instruction};
use lifter::address::Va;
use lifter::ir::{Evidence, RefKind, RefRole, RefTarget};
use lifter::x86::decode_bytes;

use super::*;
use crate::dyno;
use crate::encode::{FixupTarget, FragmentCode, FragmentShape, Run, measure, write};
use crate::layout;
use crate::materialize::{OutFragment, OutProgram, OutTarget, materialize};
use crate::plan::LayoutPlan;
use crate::relink::eh_frame::Deeper;
use crate::testing::{End, ProgramBuilder, TEXT_START, TestBlock, image_of};

const NOP: u8 = 0x90;

/// `0: call fn1; 5 no-ops; je 2`, `1: jmp 0`, `2: call fn1; ret`, and a leaf.
fn program() -> (Program, Vec<u8>) {
    let program = ProgramBuilder::default()
        .func(vec![
            TestBlock::new(12, End::Branch(2)).calling(1),
            TestBlock::new(2, End::Jump(0)),
            TestBlock::new(6, End::Return).calling(1),
        ])
        .func(vec![TestBlock::new(4, End::Return)])
        .build();
    let end = program.blocks.values().map(|data| data.end()).max().unwrap_or_default();
    let mut bytes = vec![NOP; (end.0 - TEXT_START) as usize];
    for data in program.blocks.values() {
        let start = (data.start.0 - TEXT_START) as usize;
        if !data.refs.is_empty() {
            bytes[start] = 0xe8;
        }
        match data.terminator {
            lifter::ir::Terminator::Stop(_) => bytes[start + data.len as usize - 1] = 0xc3,
            lifter::ir::Terminator::Branch { .. } => bytes[start + data.len as usize - 2] = 0x74,
            _ => bytes[start + data.len as usize - 2] = 0xeb,
        }
    }
    (program, bytes)
}

fn reference(offset: u32, target: RefTarget) -> RefData {
    let role = RefRole::IndirectThroughSlot;
    RefData { offset, to_end: 4, kind: RefKind::Rel32, role, evidence: Evidence::Exact, target }
}

const SLOT: RefTarget = RefTarget::Fixed(Va(0x8000));

fn through_slot(opcode: [u8; 2]) -> NewCode {
    let [first, second] = opcode;
    NewCode { bytes: vec![first, second, 0, 0, 0, 0], refs: vec![reference(2, SLOT)], ..NewCode::default() }
}

fn replace(edits: &mut EditPlan, block: usize, (offset, len): (u32, u32), code: NewCode) {
    let code = edits.codes.push(code);
    let block = Block::new(block);
    edits.replacements.push(Replacement { block, offset, len, code, change: Change::PltCall });
}

/// A fragment as it is measured and as it is made.
struct Encoded {
    code: FragmentCode,
    offsets: Vec<u32>,
    runs: Vec<Run>,
}

fn encoded_fragments(program: &Program, bytes: &[u8], out: &OutProgram<'_>) -> Vec<Encoded> {
    let shapes = measure(&image_of(bytes), program, out);
    let encoded = |(fragment, shape): (&OutFragment, FragmentShape<'_>)| {
        let code = write(&image_of(bytes), program, out, (fragment, shape)).unwrap();
        assert_eq!(code.bytes.len(), shape.len as usize);
        Encoded { code, offsets: shape.offsets.to_vec(), runs: shape.runs.to_vec() }
    };
    out.fragments.iter().zip(shapes.iter()).map(encoded).collect()
}

fn encoded(program: &Program, bytes: &[u8], plan: &LayoutPlan, edits: &EditPlan) -> Vec<Encoded> {
    encoded_fragments(program, bytes, &materialize(program, &Weights::default(), plan, edits).unwrap())
}

fn instructions(encoded: &Encoded) -> Vec<Instruction> {
    let mut instructions = Vec::new();
    decode_bytes(&encoded.code.bytes, Va(0), &mut instructions);
    instructions
}

#[test]
fn new_code_stands_where_the_old_was_with_its_references_and_the_rest_moves_along() {
    let (program, bytes) = program();
    let mut edits = EditPlan::default();
    replace(&mut edits, 0, (0, 5), through_slot([0xff, 0x15]));
    let codes = encoded(&program, &bytes, &layout::original(&program), &edits);
    let instructions = instructions(&codes[0]);
    let kinds: Vec<Code> = instructions.iter().map(Instruction::code).collect();
    let mut expected = vec![Code::Call_rm64];
    expected.extend([Code::Nopd; 5]);
    expected.extend([Code::Je_rel8_64, Code::Jmp_rel8_64, Code::Call_rel32_64, Code::Retnq]);
    assert_eq!(kinds, expected);
    // The branch and the jump still lead where they did, past one byte more.
    assert_eq!(instructions[6].near_branch64(), 15);
    assert_eq!(instructions[7].near_branch64(), 0);
    let fixups: Vec<(u32, FixupTarget)> = codes[0].code.fixups.iter().map(|fixup| (fixup.offset, fixup.target)).collect();
    assert_eq!(fixups[0], (2, FixupTarget::Code(OutTarget::Fixed(Va(0x8000)))));
    assert_eq!(fixups[1].0, 16);
    assert_eq!(fixups.len(), 2, "the reference of what went is gone");
    let start = Va(TEXT_START);
    assert_eq!(
        codes[0].runs[0],
        Run { old_start: start, old_len: 5, offset: 0, len: 6, is_new: true, is_quiet: false, deeper: Deeper::default() }
    );
    assert_eq!(
        codes[0].runs[1],
        Run { old_start: start + 5, old_len: 15, offset: 6, len: 15, is_new: false, is_quiet: false, deeper: Deeper::default() }
    );
}

#[test]
fn code_that_takes_the_terminators_place_is_the_end_of_its_block() {
    let (program, bytes) = program();
    let mut edits = EditPlan::default();
    replace(&mut edits, 1, (0, 2), through_slot([0xff, 0x25]));
    assert!(
        edits.replaces_terminator(&program, None, Block::new(1)) && !edits.replaces_terminator(&program, None, Block::new(0))
    );
    let codes = encoded(&program, &bytes, &layout::original(&program), &edits);
    let kinds: Vec<Code> = instructions(&codes[0]).iter().map(Instruction::code).collect();
    assert_eq!(kinds[7..], [Code::Jmp_rm64, Code::Call_rel32_64, Code::Retnq]);
    assert!(codes[0].runs.iter().any(|run| run.is_new && (run.old_len, run.len) == (2, 6)));
}

#[test]
fn a_copy_of_a_block_has_its_edits() {
    let (program, bytes) = program();
    let mut edits = EditPlan::default();
    replace(&mut edits, 2, (0, 5), through_slot([0xff, 0x15]));
    let mut plan = layout::original(&program);
    let copy = crate::plan::PlannedBlock { block: Block::new(2), align: 1, copy: Some(crate::plan::Times::new(1)) };
    plan.fragments[0].blocks.insert(1, copy);
    let codes = encoded(&program, &bytes, &plan, &edits);
    let calls = instructions(&codes[0]).iter().filter(|instruction| instruction.code() == Code::Call_rm64).count();
    assert_eq!(calls, 2);
    assert_eq!(codes[0].code.fixups.iter().filter(|f| f.target == FixupTarget::Code(OutTarget::Fixed(Va(0x8000)))).count(), 2);
}

#[test]
fn what_stands_before_a_function_runs_into_it_and_is_entered_where_a_call_says() {
    let (program, bytes) = program();
    let leaf = Block::new(3);
    let mut edits = EditPlan::default();
    let mut lead = through_slot([0xff, 0x15]);
    lead.bytes.push(NOP);
    let lead = edits.codes.push(lead);
    edits.leads.push((leaf, lead));
    let call = RefData { role: RefRole::Call, ..reference(1, RefTarget::Block(leaf)) };
    let call = NewCode { bytes: vec![0xe8, 0, 0, 0, 0], refs: vec![call], before: vec![(1, 7)].into(), ..NewCode::default() };
    replace(&mut edits, 0, (0, 5), call);
    let codes = encoded(&program, &bytes, &layout::packed(&program), &edits);
    let kinds: Vec<Code> = instructions(&codes[1]).iter().map(Instruction::code).collect();
    assert_eq!(kinds, [Code::Call_rm64, Code::Nopd, Code::Nopd, Code::Nopd, Code::Nopd, Code::Retnq]);
    assert_eq!(codes[1].offsets, [7], "what names the function leads behind it");
    let start = program.blocks[leaf].start;
    let run = Run { old_start: start, old_len: 0, offset: 0, len: 7, is_new: true, is_quiet: false, deeper: Deeper::default() };
    assert_eq!(codes[1].runs[0], run, "for an unwinder it is the function's start");
    let out = materialize(&program, &Weights::default(), &layout::packed(&program), &edits).map(|out| out.placed[leaf]).unwrap();
    let target = OutTarget::Placed(out.unwrap());
    assert_eq!(codes[0].code.fixups[0].target, FixupTarget::Before(target, 7));
    assert_eq!(codes[0].code.fixups[1].target, FixupTarget::Code(target), "other calls are as they were");
    // In the middle of a fragment something would run into it.
    edits.leads[0].0 = Block::new(1);
    assert!(materialize(&program, &Weights::default(), &layout::packed(&program), &edits).is_err());
    edits.leads[0].0 = leaf;
    // Whoever places the fragment aligns the function, not what stands before it; but not another block too.
    let mut plan = layout::packed(&program);
    (plan.fragments[1].blocks[0].align, plan.fragments[1].align) = (16, 16);
    assert_eq!(encoded(&program, &bytes, &plan, &edits)[1].offsets, [7]);
    plan.fragments[1].blocks.push(crate::plan::PlannedBlock {
        block: Block::new(2),
        align: 4,
        copy: Some(crate::plan::Times::new(1)),
    });
    assert!(materialize(&program, &Weights::default(), &plan, &edits).is_err());
}

#[test]
fn what_lies_apart_is_led_to_and_leads_back_from_each_place_of_its_code() {
    let (program, bytes) = program();
    let mut edits = EditPlan::default();
    // `nop; jne apart`, and apart `nop; nop; jmp back`.
    let bytes_of_code = vec![NOP, 0x0f, 0x85, 0, 0, 0, 0, NOP, NOP, 0xe9, 0, 0, 0, 0];
    let crossings = vec![(3, 7), (10, NewCode::END)].into();
    let runs = NewCode { bytes: bytes_of_code, apart: vec![7].into(), crossings, ..NewCode::default() };
    let never_runs = NewCode { shares: vec![(7, 0)].into(), ..runs.clone() };
    replace(&mut edits, 0, (0, 5), never_runs);
    replace(&mut edits, 0, (6, 1), runs);
    let plan = layout::original(&program);
    let weights = Weights::default();
    let out = materialize(&program, &weights, &plan, &edits).unwrap();
    let codes = encoded_fragments(&program, &bytes, &out);
    let added = out.fragments.last().unwrap();
    assert_eq!((out.fragments.len(), added.temperature), (plan.fragments.len() + 1, crate::plan::Temperature::Cold));
    let last = |fragment| out.fragment_blocks(fragment).last().unwrap().0;
    let (first, second) = (last(added), last(&out.fragments[0]));
    let within = |encoded: &Encoded| -> Vec<(u32, FixupTarget)> {
        let is_within = |f: &&crate::encode::Fixup| matches!(f.target, FixupTarget::Within(..));
        encoded.code.fixups.iter().filter(is_within).map(|fixup| (fixup.offset, fixup.target)).collect()
    };
    // Each comes back behind its own place: 7 bytes from the block's start, and 8 bytes and 7 from there.
    let block = out.placed[Block::new(0)].unwrap();
    let part = codes[0].offsets.last().unwrap();
    assert_eq!(
        within(&codes[0]),
        [(3, FixupTarget::Within(first, 0)), (11, FixupTarget::Within(second, 0)), (part + 3, FixupTarget::Within(block, 15))]
    );
    let apart = codes.last().unwrap();
    assert_eq!(within(apart), [(3, FixupTarget::Within(block, 7))]);
    assert!(apart.runs.iter().all(|run| run.is_new && run.old_len == 0));
}

#[test]
fn edits_that_cannot_be_are_refused() {
    let (program, _) = program();
    let refused = |replacements: &[(usize, (u32, u32))]| {
        let mut edits = EditPlan::default();
        replacements.iter().for_each(|&(block, place)| replace(&mut edits, block, place, through_slot([0xff, 0x15])));
        edits.check(&program).is_err()
    };
    assert!(!refused(&[(0, (0, 5)), (0, (5, 1)), (2, (0, 5))]));
    assert!(refused(&[(0, (0, 5)), (0, (4, 2))]), "two that overlap");
    assert!(refused(&[(2, (0, 5)), (0, (0, 5))]), "out of order");
    assert!(refused(&[(0, (0, 0))]), "nothing");
    assert!(refused(&[(2, (4, 3))]), "past the end");
    assert!(refused(&[(0, (5, 6))]), "a part of the terminator");
    assert!(!refused(&[(0, (5, 7))]), "the terminator with what is before it");
    let pinned = ProgramBuilder::default().pinned(vec![TestBlock::new(6, End::Return)]).build();
    let mut edits = EditPlan::default();
    replace(&mut edits, 0, (0, 5), NewCode::default());
    assert!(edits.check(&pinned).is_err(), "code that stays");
}

#[test]
fn what_is_inlined_runs_less_often_at_its_own_place() {
    let (program, bytes) = program();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    weights.blocks.copy_from_slice(&[100, 90, 10, 110]);
    let mut edits = EditPlan::default();
    let instead_of = vec![(Block::new(3), NewCode::WHOLE)].into();
    replace(&mut edits, 0, (0, 5), NewCode { bytes: vec![0x89, 0xf8], instead_of, ..NewCode::default() });
    let adjusted = edits.adjusted(&program, &weights);
    assert_eq!(adjusted.blocks, [100, 90, 10, 10]);
    let plan = layout::original(&program);
    let image = image_of(&bytes);
    let placement = |block: Block| (program.blocks[block].start, program.blocks[block].len);
    let before = dyno::compute(&image, &program, &weights, dyno::Order::Input);
    let order = dyno::Order::Output { plan: &plan, edits: &edits, input_weights: &weights, placement: &placement };
    let after = dyno::compute(&image, &program, &adjusted, order);
    assert_eq!((before.calls, after.calls), (110, 10));
    // The leaf's three no-ops and its `ret`, and the call, became one move.
    assert_eq!(before.instructions - after.instructions, 100 * (4 + 1) - 100);
}

#[test]
fn what_the_profile_does_not_know_of_a_callee_is_not_counted_at_its_sites() {
    let (program, _) = program();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    weights.blocks.copy_from_slice(&[100, 90, 10, 25]);
    let mut edits = EditPlan::default();
    let instead_of = vec![(Block::new(3), NewCode::WHOLE)].into();
    replace(&mut edits, 0, (0, 5), NewCode { bytes: vec![0x89, 0xf8], instead_of, ..NewCode::default() });
    assert_eq!(edits.vouched(&weights).get(&Block::new(3)), Some(&(NewCode::WHOLE / 4)));
    weights.blocks[3] = 100;
    assert_eq!(edits.vouched(&weights).len(), 0);
}

#[test]
fn parts_of_new_code_run_in_their_shares() {
    let code = NewCode { shares: vec![(4, NewCode::WHOLE / 4), (8, 2 * NewCode::WHOLE)].into(), ..NewCode::default() };
    assert_eq!([0, 4, 7, 8, 20].map(|offset| code.runs_at(offset, 100)), [100, 25, 25, 200, 200]);
}
