//! Pieces of code that end in an indirect jump, each with the largest index that may arrive there.

use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, Register};

use super::*;
use crate::address::Va;
use crate::cfg::body::Body;
use crate::discover::names::Names;
use crate::discover::stubs::Stubs;
use crate::elf::Unwind;

type Assembled = Result<(), iced_x86::IcedError>;

/// The largest value of `rax` before the last instruction of the code, an indirect jump. Its first block is the function's entry.
fn max_at_jump(write: impl FnOnce(&mut CodeAssembler) -> Assembled) -> Option<u64> {
    const AT: u64 = 0x1000;
    let mut code = CodeAssembler::new(64).expect("64 bits");
    write(&mut code).expect("assembles");
    code.jmp(rbx).expect("assembles");
    let bytes = code.assemble(AT).expect("encodes");
    let instructions: Vec<Instruction> = Decoder::with_ip(64, &bytes, AT, DecoderOptions::NONE).into_iter().collect();
    let (names, stubs) = (Names::default(), Stubs::default());
    let mut body = Body::of(instructions, vec![Va(AT)], &names, &stubs);
    body.connect(&stubs, &Unwind::default(), &[], &[]);
    let last = body.instructions.iter().rposition(|i| i.is_jmp_near_indirect()).expect("it was put there");
    Ranges::new(&body).small_max(Register::RAX, last, 0)
}

#[test]
fn a_comparison_of_the_index_bounds_it() {
    let max = max_at_jump(|a| {
        let mut out = a.create_label();
        a.mov(eax, edi)?;
        a.cmp(eax, 9)?;
        a.ja(out)?;
        a.jmp(rbx)?;
        a.set_label(&mut out)?;
        a.mov(eax, 3)
    });
    assert_eq!(max, Some(3), "the branch that is taken leads elsewhere");
    let max = max_at_jump(|a| {
        let mut out = a.create_label();
        a.mov(eax, edi)?;
        a.cmp(eax, 9)?;
        a.jbe(out)?;
        a.ret()?;
        a.set_label(&mut out)?;
        a.nop()
    });
    assert_eq!(max, Some(9));
}

#[test]
fn padding_behind_a_jump_leads_nowhere_and_code_may_come_from_anywhere() {
    let behind_a_jump = |write: &dyn Fn(&mut CodeAssembler) -> Assembled| {
        max_at_jump(|a| {
            let (mut out, mut start, mut more) = (a.create_label(), a.create_label(), a.create_label());
            a.jmp(start)?;
            a.set_label(&mut out)?;
            a.ret()?;
            a.set_label(&mut start)?;
            a.mov(eax, edi)?;
            a.cmp(eax, 3)?;
            a.ja(more)?;
            a.jmp(rbx)?;
            write(a)?;
            a.set_label(&mut more)?;
            a.cmp(eax, 9)?;
            a.ja(out)
        })
    };
    assert_eq!(behind_a_jump(&|a| a.nop_1(word_ptr(rax))), Some(9));
    assert_eq!(behind_a_jump(&|a| a.mov(rax, rdi)), None);
}

#[test]
fn the_kernel_leaves_a_result_of_its_own() {
    let max = max_at_jump(|a| {
        a.mov(eax, 39i32)?;
        a.syscall()
    });
    assert_eq!(max, None);
}

#[test]
fn a_place_that_moves_along_an_array_is_given_up() {
    let max = max_at_jump(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.mov(eax, dword_ptr(rdi))?;
        a.add(rdi, 4)?;
        a.cmp(rdi, rsi)?;
        a.jne(again)?;
        a.mov(rax, qword_ptr(rdi))
    });
    assert_eq!(max, None);
}

#[test]
fn a_comparison_of_32_bits_says_nothing_of_the_upper_half() {
    let code = |is_extended: bool| {
        max_at_jump(|a| {
            let mut go = a.create_label();
            a.mov(rax, qword_ptr(rdi))?;
            a.cmp(eax, 9)?;
            a.jbe(go)?;
            a.ret()?;
            a.set_label(&mut go)?;
            if is_extended { a.mov(eax, eax) } else { a.nop() }
        })
    };
    assert_eq!(code(false), None);
    assert_eq!(code(true), Some(9));
}

#[test]
fn a_comparison_of_a_byte_bounds_only_that_byte() {
    let code = |is_extended: bool| {
        max_at_jump(|a| {
            let mut go = a.create_label();
            a.mov(ecx, edi)?;
            a.cmp(cl, 6)?;
            a.jbe(go)?;
            a.ret()?;
            a.set_label(&mut go)?;
            if is_extended { a.movzx(eax, cl) } else { a.mov(eax, ecx) }
        })
    };
    assert_eq!(code(false), None);
    assert_eq!(code(true), Some(6));
}

#[test]
fn a_bound_holds_on_a_copy_less_a_constant_and_through_a_spill() {
    let max = max_at_jump(|a| {
        let mut go = a.create_label();
        a.lea(ecx, ptr(rdi - 5))?;
        a.mov(dword_ptr(rsp + 16), edi)?;
        a.cmp(ecx, 7)?;
        a.jbe(go)?;
        a.ret()?;
        a.set_label(&mut go)?;
        a.push(rdx)?;
        a.call(0x1000)?;
        a.mov(eax, dword_ptr(rsp + 24))?;
        a.sub(eax, 4)
    });
    assert_eq!(max, Some(8));
}

#[test]
fn a_spill_in_a_frame_whose_address_is_passed_on_may_change() {
    let code = |leaks: bool| {
        max_at_jump(|a| {
            let mut go = a.create_label();
            a.mov(dword_ptr(rsp + 16), edi)?;
            a.cmp(edi, 7)?;
            a.jbe(go)?;
            a.ret()?;
            a.set_label(&mut go)?;
            if leaks {
                a.lea(rdi, ptr(rsp + 8))?;
            }
            a.call(0x1000)?;
            a.mov(eax, dword_ptr(rsp + 16))
        })
    };
    assert_eq!(code(false), Some(7));
    assert_eq!(code(true), None);
}

#[test]
fn a_store_with_a_prefix_for_a_segment_that_begins_at_0_changes_a_spill() {
    let code = |store: AsmMemoryOperand| {
        max_at_jump(|a| {
            let mut go = a.create_label();
            a.mov(dword_ptr(rsp + 16), edi)?;
            a.cmp(edi, 7)?;
            a.jbe(go)?;
            a.ret()?;
            a.set_label(&mut go)?;
            a.mov(store, esi)?;
            a.mov(eax, dword_ptr(rsp + 16))
        })
    };
    assert_eq!(code(dword_ptr(rsp + 16).cs()), None);
    assert_eq!(code(dword_ptr(rsp + 16).ds()), None);
    assert_eq!(code(dword_ptr(rsp + 20).ds()), Some(7));
    assert_eq!(code(dword_ptr(16).fs()), Some(7));
}

#[test]
fn memory_that_was_compared_and_is_read_again_is_bounded_until_a_store_or_a_call() {
    let code = |between: fn(&mut CodeAssembler) -> Assembled| {
        max_at_jump(|a| {
            let mut go = a.create_label();
            a.lea(rsi, ptr(rcx + 4))?;
            a.cmp(dword_ptr(rdx + rcx * 4 + 16), 10)?;
            a.jbe(go)?;
            a.ret()?;
            a.set_label(&mut go)?;
            between(a)?;
            a.mov(eax, dword_ptr(rdx + rsi * 4))
        })
    };
    assert_eq!(code(|a| a.nop()), Some(10));
    assert_eq!(code(|a| a.mov(dword_ptr(r8), 99)), None);
    assert_eq!(code(|a| a.call(0x1000)), None);
    assert_eq!(code(|a| a.inc(rcx)), Some(10), "the copy in the address is as it was");
}

#[test]
fn a_path_around_the_comparison_leaves_no_bound() {
    let code = |has_path: bool| {
        max_at_jump(|a| {
            let (mut go, mut around) = (a.create_label(), a.create_label());
            a.mov(eax, edi)?;
            a.test(esi, esi)?;
            if has_path {
                a.je(go)?;
            } else {
                a.je(around)?;
            }
            a.set_label(&mut around)?;
            a.cmp(eax, 4)?;
            a.jb(go)?;
            a.ret()?;
            a.set_label(&mut go)?;
            a.nop()
        })
    };
    assert_eq!(code(false), Some(3));
    assert_eq!(code(true), None);
}

#[test]
fn signed_checks_from_both_sides_bound_what_is_left() {
    let max = max_at_jump(|a| {
        let mut out = a.create_label();
        let mut go = a.create_label();
        a.mov(eax, edi)?;
        a.cmp(eax, 40)?;
        a.jl(out)?;
        a.cmp(eax, 46)?;
        a.jle(go)?;
        a.set_label(&mut out)?;
        a.ret()?;
        a.set_label(&mut go)?;
        a.sub(eax, 40)
    });
    assert_eq!(max, Some(6));
}

#[test]
fn a_loop_that_counts_is_not_bounded_by_its_first_value() {
    let max = max_at_jump(|a| {
        let mut again = a.create_label();
        a.xor(eax, eax)?;
        a.set_label(&mut again)?;
        a.inc(eax)?;
        a.dec(ecx)?;
        a.jne(again)
    });
    assert_eq!(max, None);
}

#[test]
fn masks_bytes_conditions_and_clamps_are_bounds() {
    assert_eq!(
        max_at_jump(|a| {
            a.mov(eax, edi)?;
            a.and(eax, 7)
        }),
        Some(7)
    );
    assert_eq!(max_at_jump(|a| a.movzx(eax, byte_ptr(rdi))), Some(255));
    assert_eq!(
        max_at_jump(|a| {
            a.xor(eax, eax)?;
            a.test(edi, edi)?;
            a.sete(al)?;
            a.lea(eax, ptr(rax * 2 + 1))
        }),
        Some(3)
    );
    assert_eq!(
        max_at_jump(|a| {
            a.mov(eax, edi)?;
            a.shr(eax, 29)
        }),
        Some(7)
    );
    assert_eq!(max_at_jump(|a| { a.sete(al) }), None, "the upper bits are what they were");
    let clamped = max_at_jump(|a| {
        a.mov(eax, edi)?;
        a.mov(ecx, 6)?;
        a.cmp(eax, 6)?;
        a.cmova(eax, ecx)
    });
    assert_eq!(clamped, Some(6));
}

#[test]
fn a_call_changes_the_registers_that_it_may() {
    assert_eq!(
        max_at_jump(|a| {
            a.mov(eax, 3)?;
            a.call(0x1000)
        }),
        None
    );
    assert_eq!(
        max_at_jump(|a| {
            a.mov(ebp, 3)?;
            a.call(0x1000)?;
            a.mov(eax, ebp)
        }),
        Some(3)
    );
    assert_eq!(
        max_at_jump(|a| {
            a.mov(ecx, 3)?;
            a.call(0x1000)?;
            a.mov(eax, ecx)
        }),
        None
    );
}

#[test]
fn a_bound_on_the_difference_of_a_shorter_number_is_one_of_all_its_bits() {
    let max = max_at_jump(|a| {
        let mut cases = a.create_label();
        a.movzx(eax, word_ptr(r14 + 0x44))?;
        a.cmp(eax, 0x1d39)?;
        a.jle(cases)?;
        a.ret()?;
        a.set_label(&mut cases)?;
        a.sub(eax, 0x1392)?;
        a.cmp(eax, 0x61)?;
        let mut go = a.create_label();
        a.jbe(go)?;
        a.ret()?;
        a.set_label(&mut go)?;
        a.nop()
    });
    assert_eq!(max, Some(0x61));
}
