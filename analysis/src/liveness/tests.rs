//! Small programs assembled instruction by instruction, and which registers their blocks and returns need.

use iced_x86::code_asm::*;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::*;

use super::*;
use crate::testing::{Code, RETURN, asm, at, jump, next, straight};

fn liveness(code: &mut Code) -> RegisterLiveness {
    code.with(|image, program| RegisterLiveness::compute(image, program, Saves::Read))
}

/// Which blocks need a general register at their start.
fn needs(code: &mut Code, register: u8) -> Vec<bool> {
    let live = liveness(code);
    let program = &code.program;
    program.blocks.keys().map(|block| live.at_start(program, block).contains(Registers::general(register))).collect()
}

/// `main` calls the function whose blocks follow; nobody needs anything of `main` but what it reads itself.
fn called(behind: Vec<u8>, callee: Vec<(Vec<u8>, Terminator, Vec<usize>)>) -> Code {
    let mut code = Code::default();
    code.func(vec![
        (asm(0, |a| a.call(at(3))), next(1), vec![1]),
        (behind, next(2), vec![2]),
        (asm(2, |a| a.jmp(at(2))), jump(2), vec![2]),
    ]);
    code.func(callee);
    code
}

const RCX: u8 = 1;
const RBX: u8 = 3;
const R8: u8 = 8;

#[test]
fn a_register_is_live_between_its_write_and_its_read() {
    let mut code =
        straight(vec![asm(0, |a| a.mov(ecx, 1)), asm(1, |a| a.nop()), asm(2, |a| a.add(eax, ecx)), asm(3, |a| a.mov(ecx, eax))]);
    assert_eq!(needs(&mut code, RCX), [false, true, true, false]);
}

#[test]
fn a_partial_write_leaves_the_rest_live() {
    let mut code = straight(vec![asm(0, |a| a.mov(cl, 1)), asm(1, |a| a.add(rax, rcx))]);
    assert_eq!(needs(&mut code, RCX), [true, true]);
    let mut code = straight(vec![asm(0, |a| a.cmove(rcx, rdx)), asm(1, |a| a.add(rax, rcx))]);
    assert_eq!(needs(&mut code, RCX), [true, true]);
    let mut code = straight(vec![asm(0, |a| a.xor(ecx, ecx)), asm(1, |a| a.add(rax, rcx))]);
    assert_eq!(needs(&mut code, RCX), [false, true]);
}

#[test]
fn a_callee_that_leaves_a_register_alone_keeps_it_live_across_its_call() {
    let leaf = |emit: Vec<u8>| vec![(emit, next(4), vec![4]), (asm(4, |a| a.ret()), RETURN, vec![])];
    let mut kept = called(asm(1, |a| a.add(rax, r8)), leaf(asm(3, |a| a.mov(ecx, 1))));
    assert_eq!(needs(&mut kept, R8), [true, true, false, true, true]);
    let mut written = called(asm(1, |a| a.add(rax, r8)), leaf(asm(3, |a| a.mov(r8d, 1))));
    assert_eq!(needs(&mut written, R8), [false, true, false, false, true]);
}

#[test]
fn what_one_caller_needs_is_not_live_before_the_calls_of_others() {
    let mut code = called(asm(1, |a| a.add(rax, r8)), vec![(asm(3, |a| a.ret()), RETURN, vec![])]);
    let end = |i| (asm(i, |a| a.jmp(at(i))), jump(i), vec![i]);
    code.func(vec![(asm(4, |a| a.call(at(3))), next(5), vec![5]), end(5)]);
    assert_eq!(needs(&mut code, R8), [true, true, false, true, false, false]);
}

#[test]
fn a_tail_call_returns_to_the_callers_of_who_makes_it_and_not_to_those_of_its_target() {
    // The first caller calls what jumps to the shared function, the second calls that itself and reads `r8` behind it.
    let end = |i| (asm(i, |a| a.jmp(at(i))), jump(i), vec![i]);
    let build = |behind: Vec<u8>| {
        let mut code = Code::default();
        code.func(vec![(asm(0, |a| a.call(at(6))), next(1), vec![1]), (behind, next(2), vec![2]), end(2)]);
        let second = asm(4, |a| a.add(rax, r8));
        code.func(vec![(asm(3, |a| a.call(at(7))), next(4), vec![4]), (second, next(5), vec![5]), end(5)]);
        code.func(vec![(asm(6, |a| a.jmp(at(7))), jump(7), vec![7])]);
        code.func(vec![(asm(7, |a| a.ret()), RETURN, vec![])]);
        code
    };
    let mut quiet = build(asm(1, |a| a.nop()));
    assert_eq!(needs(&mut quiet, R8), [false, false, false, true, true, false, false, true]);
    let mut reads = build(asm(1, |a| a.add(rax, r8)));
    assert_eq!(needs(&mut reads, R8), [true, true, false, true, true, false, true, true]);
}

#[test]
fn of_a_function_whose_address_is_taken_callers_need_what_the_convention_says() {
    let mut code = called(asm(1, |a| a.nop()), vec![(asm(3, |a| a.ret()), RETURN, vec![])]);
    assert!(!needs(&mut code, RBX)[3]);
    code.take_address(3);
    assert!(needs(&mut code, RBX)[3] && needs(&mut code, 0)[3] && !needs(&mut code, R8)[3]);
    assert!(!needs(&mut code, RBX)[1]);
}

#[test]
fn a_call_through_a_pointer_keeps_to_the_convention_unless_it_may_be_a_descriptor_s() {
    let start = |emit: Vec<u8>| {
        let mut code = straight(vec![emit, asm(1, |a| a.add(rbx, r11))]);
        liveness(&mut code).at_start(&code.program, Block::new(0))
    };
    let plain = start(asm(0, |a| a.call(rax)));
    assert!(plain.contains(Registers::PASSED) && !plain.contains(Registers::general(11)));
    assert!(plain.contains(Registers::general(RBX)));
    let descriptor = start(asm(0, |a| a.call(qword_ptr(rax))));
    assert!(descriptor.contains(Registers::PASSED) && descriptor.contains(Registers::general(11)));
}

#[test]
fn a_thunk_that_returns_to_what_it_was_given_passes_all_registers_on() {
    let thunk = vec![(
        asm(3, |a| {
            a.mov(qword_ptr(rsp), rax)?;
            a.ret()
        }),
        RETURN,
        vec![],
    )];
    let mut code = called(asm(1, |a| a.nop()), thunk);
    assert_eq!(liveness(&mut code).at_start(&code.program, Block::new(0)), Registers::ALL);
    let plain = vec![(
        asm(3, |a| {
            a.push(rax)?;
            a.pop(rcx)?;
            a.ret()
        }),
        RETURN,
        vec![],
    )];
    let mut code = called(asm(1, |a| a.nop()), plain);
    assert!(!needs(&mut code, R8)[0]);
}

#[test]
fn an_sse_write_replaces_the_lower_half_only() {
    let low = |n: u32| Registers(1 << (16 + n));
    let above = |n: u32| Registers(1 << (32 + n));
    let mut code = called(
        asm(1, |a| {
            a.movaps(xmm1, xmm2)?;
            a.vaddps(ymm0, ymm1, ymm3)
        }),
        vec![(asm(3, |a| a.ret()), RETURN, vec![])],
    );
    let live = liveness(&mut code).at_start(&code.program, Block::new(1));
    assert!(!live.meets(low(1)) && live.contains(above(1)) && live.contains(low(2).union(low(3)).union(above(3))));
}

#[test]
fn a_save_is_a_read_or_a_passage() {
    let callee = || {
        let saves = asm(3, |a| {
            a.push(rbx)?;
            a.mov(rbx, rcx)?;
            a.pop(rbx)?;
            a.ret()
        });
        vec![(saves, RETURN, vec![])]
    };
    let mut code = called(asm(1, |a| a.mov(ebx, 0)), callee());
    assert!(needs(&mut code, RBX)[0]);
    let find = |image: &Image<'_>, program: &Program| {
        let procedures = Procedures::find(image, program);
        let mut summaries = vec![None; procedures.all.len()];
        let mut summary = Summary::UNSEEN;
        summary.add_exit(&crate::values::State::at_entry());
        summaries[1] = Some(summary);
        let live = RegisterLiveness::compute(image, program, Saves::Passed(&procedures, &summaries));
        (live.at_start(program, Block::new(0)), live.at_return(Func::new(1)))
    };
    let (dead, _) = code.with(find);
    assert!(!dead.contains(Registers::general(RBX)));
    let mut code = called(asm(1, |a| a.add(rax, rbx)), callee());
    let (live, at_return) = code.with(find);
    assert!(live.contains(Registers::general(RBX)) && at_return.contains(Registers::general(RBX)));
}
