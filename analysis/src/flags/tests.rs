//! Small programs assembled instruction by instruction, and which of their blocks need the flags that they are entered with.

use iced_x86::code_asm::*;
use lifter::Va;
use lifter::entity::{IdRange, Table};
use lifter::ir::*;

use super::*;
use crate::testing::{Code, RETURN, asm, at, jump, next, straight};

fn liveness(code: &mut Code) -> FlagLiveness {
    code.with(FlagLiveness::compute)
}

/// Which blocks have live flags at their start.
fn live(code: &mut Code) -> Vec<bool> {
    let liveness = liveness(code);
    code.program.blocks.keys().map(|block| liveness.live_at_block_start(block)).collect()
}

#[test]
fn a_flag_is_live_between_its_write_and_its_read() {
    let mut code = straight(vec![
        asm(0, |a| a.cmp(eax, ecx)),
        asm(1, |a| a.mov(eax, 1u32)),
        asm(2, |a| a.sete(al)),
        asm(3, |a| a.add(eax, eax)),
    ]);
    assert_eq!(live(&mut code), [false, true, true, false]);
    let liveness = liveness(&mut code);
    assert_eq!((0..3).map(|e| liveness.live_on_edge(e)).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn an_increment_does_not_disturb_the_carry() {
    let mut code = straight(vec![asm(0, |a| a.add(eax, ecx)), asm(1, |a| a.adc(edx, 0))]);
    assert_eq!(live(&mut code), [false, false]);
    assert!(liveness(&mut code).carry_live_at_block_start(Block::new(1)));
}

#[test]
fn a_shift_by_cl_may_leave_the_flags_and_one_by_a_constant_does_not() {
    let read = |i| asm(i, |a| a.sete(al));
    let mut by_cl = straight(vec![asm(0, |a| a.shl(eax, cl)), read(1)]);
    assert_eq!(live(&mut by_cl), [true, true]);
    let mut by_constant = straight(vec![asm(0, |a| a.shl(eax, 3)), read(1)]);
    assert_eq!(live(&mut by_constant), [false, true]);
    let mut compare = straight(vec![asm(0, |a| a.repe().cmpsb()), read(1)]);
    assert_eq!(live(&mut compare), [true, true]);
}

#[test]
fn a_callee_that_reads_flags_makes_them_live_before_the_call() {
    let mut code = Code::default();
    code.func(vec![(asm(0, |a| a.call(at(2))), next(1), vec![1]), (asm(1, |a| a.ret()), RETURN, vec![])]);
    code.func(vec![(
        asm(2, |a| {
            a.sete(al)?;
            a.ret()
        }),
        RETURN,
        vec![],
    )]);
    assert_eq!(live(&mut code), [true, false, true]);
}

#[test]
fn a_caller_that_reads_after_the_call_makes_flags_live_at_the_return() {
    let mut code = Code::default();
    let call_then_read = asm(0, |a| {
        a.call(at(1))?;
        a.sete(al)?;
        a.ret()
    });
    code.func(vec![(call_then_read, RETURN, vec![])]);
    // Compares, then returns in a block of its own.
    code.func(vec![
        (asm(1, |a| a.cmp(edi, esi)), next(2), vec![2]),
        (
            asm(2, |a| {
                a.mov(eax, edi)?;
                a.ret()
            }),
            RETURN,
            vec![],
        ),
    ]);
    assert_eq!(live(&mut code), [false, false, true]);
}

#[test]
fn flags_that_a_callee_does_not_touch_pass_through_it() {
    let mut code = Code::default();
    let call_then_read = asm(0, |a| {
        a.call(at(1))?;
        a.sete(al)?;
        a.ret()
    });
    code.func(vec![(call_then_read, RETURN, vec![])]);
    code.func(vec![(asm(1, |a| a.ret()), RETURN, vec![])]);
    assert_eq!(live(&mut code), [true, true]);
}

#[test]
fn a_tail_call_returns_to_the_callers_of_the_function_that_makes_it() {
    let mut code = Code::default();
    let call_then_read = asm(0, |a| {
        a.call(at(1))?;
        a.sete(al)?;
        a.ret()
    });
    code.func(vec![(call_then_read, RETURN, vec![])]);
    code.func(vec![(asm(1, |a| a.jmp(at(2))), jump(2), vec![])]);
    code.func(vec![(asm(2, |a| a.ret()), RETURN, vec![])]);
    code.func(vec![(asm(3, |a| a.ret()), RETURN, vec![])]);
    assert_eq!(live(&mut code), [true, true, true, false]);
}

#[test]
fn what_is_read_after_an_indirect_call_is_live_in_all_it_may_reach() {
    let mut code = Code::default();
    let call_then_read = asm(0, |a| {
        a.call(rax)?;
        a.sete(al)?;
        a.ret()
    });
    code.func(vec![(call_then_read, RETURN, vec![])]);
    code.func(vec![(asm(1, |a| a.ret()), RETURN, vec![])]);
    code.func(vec![(asm(2, |a| a.ret()), RETURN, vec![])]);
    code.take_address(1);
    assert_eq!(live(&mut code), [true, true, false]);
}

#[test]
fn flags_are_dead_across_calls_that_keep_to_the_psabi() {
    let mut code = Code::default();
    let call_then_write = asm(0, |a| {
        a.call(rax)?;
        a.test(eax, eax)?;
        a.sete(al)?;
        a.ret()
    });
    code.func(vec![(call_then_write, RETURN, vec![])]);
    code.func(vec![(asm(1, |a| a.ret()), RETURN, vec![])]);
    code.take_address(1);
    assert_eq!(live(&mut code), [false, false]);
}

#[test]
fn what_is_not_understood_reads_everything() {
    let mut code = straight(vec![asm(0, |a| a.mov(eax, ecx)), vec![0x06, 0x06]]);
    assert_eq!(live(&mut code), [true, true]);
    let mut unknown = Code::default();
    unknown.func(vec![(asm(0, |a| a.jmp(rax)), Terminator::Stop(StopKind::Unknown), vec![])]);
    assert_eq!(live(&mut unknown), [true]);
}

#[test]
fn a_table_jump_reads_what_any_of_its_targets_reads() {
    let mut code = Code::default();
    let table = Table::new(0);
    code.func(vec![
        (asm(0, |a| a.jmp(rax)), Terminator::Stop(StopKind::TableJump(table)), vec![1, 2]),
        (asm(1, |a| a.ret()), RETURN, vec![]),
        (asm(2, |a| a.setl(al)), next(1), vec![1]),
    ]);
    code.program.table_targets = vec![Block::new(1), Block::new(2)];
    code.program.tables.push(TableData {
        at: Va(0),
        entry_size: 4,
        base: TableBase::Own,
        bound: TableBound::Proven,
        targets: IdRange::from_usize(0..2),
        is_exclusive: true,
    });
    assert_eq!(live(&mut code), [true, false, true]);
}

#[test]
fn a_loop_carries_flags_around_its_back_edge() {
    // bb0: cmp; bb1: mov, bb2: jne bb1 (reads), back to bb1.
    let mut code = Code::default();
    let branch = Terminator::Branch { condition: Condition(5), taken: CodeTarget::Block(Block::new(1)), next: Block::new(3) };
    code.func(vec![
        (asm(0, |a| a.cmp(eax, ecx)), next(1), vec![1]),
        (asm(1, |a| a.mov(eax, ecx)), next(2), vec![2]),
        (asm(2, |a| a.jne(at(1))), branch, vec![3, 1]),
        (asm(3, |a| a.ret()), RETURN, vec![]),
    ]);
    assert_eq!(live(&mut code), [false, true, true, false]);
}
