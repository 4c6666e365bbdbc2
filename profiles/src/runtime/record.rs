//! The routine that counts where an indirect call goes.
//!
//! It is called with the target's address and the site number on the stack, and takes both off. Each site has four slots
//! {target, count} and a count of all else. A slot is claimed with `lock cmpxchg` on its target, zero before; a slot once
//! claimed keeps its target. So threads, signal handlers that interrupt it anywhere, and processes that share the file can all
//! be in it at once. At most four slots are looked at: it terminates.
//!
//! Targets are stored relative to the image's lowest address, plus one; what lies outside the image as [`EXTERNAL_TARGET`].

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::RuntimeLayout;
use super::assemble::{encode_error, finish, lea, new_assembler};
use crate::error::{Error, Result};
use crate::format::{CALL_BYTES, EXTERNAL_TARGET, Header, SLOTS_PER_CALL};

pub(super) const LEN_MAX: u32 = 176;

const SAVED: [AsmRegister64; 4] = [rax, rcx, rdx, rdi];
/// From `rsp`, once everything is saved: the saved registers, the flags, the return address.
const SITE: i32 = 8 * (SAVED.len() as i32 + 2);
const TARGET: i32 = SITE + 8;

pub(super) fn build(layout: &RuntimeLayout, header: &Header) -> Result<Vec<u8>> {
    let at = layout.record_at();
    let image_len = u32::try_from(layout.image_high.distance(layout.image_low));
    let image_len = image_len.map_err(|_| Error::OutOfReach { at: layout.image_low, target: layout.image_high })?;
    let mut a = new_assembler(at)?;
    emit(&mut a, layout, header, image_len).map_err(|e| encode_error(at, e))?;
    finish(a, at)
}

fn emit(a: &mut CodeAssembler, layout: &RuntimeLayout, header: &Header, image_len: u32) -> Result<(), IcedError> {
    let (mut inside, mut next, mut free, mut hit, mut done) =
        (a.create_label(), a.create_label(), a.create_label(), a.create_label(), a.create_label());
    let mut search = a.create_label();
    a.pushfq()?;
    for register in SAVED {
        a.push(register)?;
    }
    a.mov(eax, dword_ptr(rsp + SITE))?;
    a.imul_3(rax, rax, CALL_BYTES as i32)?;
    lea(a, rdi, layout.counters_at + header.calls_within_counters())?;
    a.add(rdi, rax)?;
    // The slots' name for the target.
    a.mov(rdx, qword_ptr(rsp + TARGET))?;
    lea(a, rcx, layout.image_low)?;
    a.sub(rdx, rcx)?;
    a.mov(ecx, image_len)?;
    a.cmp(rdx, rcx)?;
    a.jb(inside)?;
    a.mov(rdx, EXTERNAL_TARGET.wrapping_sub(1))?;
    a.set_label(&mut inside)?;
    a.inc(rdx)?;
    a.mov(ecx, SLOTS_PER_CALL as u32)?;
    a.set_label(&mut search)?;
    a.mov(rax, qword_ptr(rdi))?;
    a.cmp(rax, rdx)?;
    a.je(hit)?;
    a.test(rax, rax)?;
    a.je(free)?;
    a.set_label(&mut next)?;
    a.add(rdi, 16)?;
    a.dec(ecx)?;
    a.jne(search)?;
    a.lock().inc(qword_ptr(rdi))?;
    a.jmp(done)?;
    a.set_label(&mut free)?;
    a.lock().cmpxchg(qword_ptr(rdi), rdx)?;
    a.je(hit)?;
    // Another thread was first; it may have claimed the slot for the same target.
    a.cmp(rax, rdx)?;
    a.jne(next)?;
    a.set_label(&mut hit)?;
    a.lock().inc(qword_ptr(rdi + 8))?;
    a.set_label(&mut done)?;
    for register in SAVED.into_iter().rev() {
        a.pop(register)?;
    }
    a.popfq()?;
    a.ret_1(16)
}
