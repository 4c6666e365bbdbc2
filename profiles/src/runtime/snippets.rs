//! What is put into the program's own code: increments, and what records the target of a call that follows.

use iced_x86::{Code, Encoder, Instruction, OpKind, Register};
use lifter::Va;
use lifter::x86::has_segment_base;

use super::assemble::{displacement, encode_error};
use crate::error::{Error, Result};

/// `lea rsp, [rsp-128]`.
const SKIP_RED_ZONE: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0x80];
/// `lea rsp, [rsp+128]`.
const BACK_OVER_RED_ZONE: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];
const RED_ZONE_BYTES: u64 = 128;
const PUSHFQ: u8 = 0x9c;
const POPFQ: u8 = 0x9d;

/// The length of an increment that may change the flags.
pub const COUNTER_LEN: usize = 8;
/// The length of one that does not.
pub const COUNTER_WITH_FLAGS_LEN: usize = COUNTER_LEN + SKIP_RED_ZONE.len() + BACK_OVER_RED_ZONE.len() + 2;

/// `lock inc qword [rip + counter]` at `at`, with the flags kept where asked. Otherwise OF, SF, ZF, AF and PF change; CF never
/// does.
pub fn counter_snippet(counter_va: Va, at: Va, preserve_flags: bool) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(COUNTER_WITH_FLAGS_LEN);
    if preserve_flags {
        bytes.extend(SKIP_RED_ZONE);
        bytes.push(PUSHFQ);
    }
    bytes.extend([0xf0, 0x48, 0xff, 0x05]);
    bytes.extend(displacement(at + bytes.len() as u64 + 4, counter_va)?);
    if preserve_flags {
        bytes.push(POPFQ);
        bytes.extend(BACK_OVER_RED_ZONE);
    }
    Ok(bytes)
}

/// What goes in front of an indirect call or jump, at `snippet_at`, to record its target:
///
/// ```text
/// lea rsp, [rsp-128];  push target;  push site;  call record;  lea rsp, [rsp+128]
/// ```
///
/// `record` takes both words off, so calls and returns stay paired. No register and no flag changes, and what lies in the red
/// zone stays. The target is read as the instruction will read it: an operand relative to `rsp` is shifted by what `rsp` has
/// moved, a rip-relative one goes to `rip_target`, or to the address it has in the input. The length depends on the instruction
/// alone. Operands that can't be pushed as they are (`rsp` itself, 32-bit stack or instruction pointers, far and 16-bit calls)
/// are an error: such a call is left unrecorded.
pub fn call_site_snippet(
    instruction: &Instruction,
    rip_target: Option<Va>,
    site: u32,
    record_at: Va,
    snippet_at: Va,
) -> Result<Vec<u8>> {
    let mut bytes = SKIP_RED_ZONE.to_vec();
    let push = push_of(instruction, rip_target)?;
    let push_at = snippet_at + bytes.len() as u64;
    let mut encoder = Encoder::new(64);
    encoder.encode(&push, push_at.0).map_err(|e| encode_error(push_at, e))?;
    bytes.extend(encoder.take_buffer());
    bytes.push(0x68);
    bytes.extend(site.to_le_bytes());
    bytes.push(0xe8);
    bytes.extend(displacement(snippet_at + bytes.len() as u64 + 4, record_at)?);
    bytes.extend(BACK_OVER_RED_ZONE);
    Ok(bytes)
}

/// Bytes by which the stack pointer is lower from an offset of such a snippet on, which is `len` bytes long.
pub fn call_site_depths(len: usize) -> Vec<(u32, u8)> {
    const IMMEDIATE_LEN: usize = 5;
    let behind_call = len - BACK_OVER_RED_ZONE.len();
    let behind_site = behind_call - IMMEDIATE_LEN;
    let depths = [(SKIP_RED_ZONE.len(), 0), (behind_site - IMMEDIATE_LEN, 8), (behind_site, 16), (behind_call, 0)];
    depths.map(|(offset, pushed)| (offset as u32, RED_ZONE_BYTES as u8 + pushed)).to_vec()
}

/// The same of an increment.
pub fn counter_depths(preserve_flags: bool) -> Vec<(u32, u8)> {
    if !preserve_flags {
        return Vec::new();
    }
    let behind_flags = SKIP_RED_ZONE.len() + 1;
    let depths = [(SKIP_RED_ZONE.len(), 0), (behind_flags, 8), (behind_flags + COUNTER_LEN + 1, 0)];
    depths.map(|(offset, pushed)| (offset as u32, RED_ZONE_BYTES as u8 + pushed)).to_vec()
}

/// Whether `call_site_snippet` has a way to record an instruction's target.
pub(crate) fn is_recordable(instruction: &Instruction) -> bool {
    push_of(instruction, None).is_ok()
}

/// The instruction that pushes what the call or jump goes to.
fn push_of(instruction: &Instruction, rip_target: Option<Va>) -> Result<Instruction> {
    let refused = || Error::NotRecordable { at: Va(instruction.ip()) };
    if !matches!(instruction.code(), Code::Call_rm64 | Code::Jmp_rm64) {
        return Err(refused());
    }
    if instruction.op0_kind() == OpKind::Register {
        let register = instruction.op0_register();
        let push = Instruction::with1(Code::Push_r64, register).map_err(|e| encode_error(Va(instruction.ip()), e))?;
        return if register == Register::RSP { Err(refused()) } else { Ok(push) };
    }
    let mut push = *instruction;
    push.set_code(Code::Push_rm64);
    // `notrack` and `bnd` are for branches.
    push.set_has_repne_prefix(false);
    if !has_segment_base(&push) {
        push.set_segment_prefix(Register::None);
    }
    match instruction.memory_base() {
        Register::ESP | Register::EIP => return Err(refused()),
        Register::RSP => {
            push.set_memory_displacement64(instruction.memory_displacement64().wrapping_add(RED_ZONE_BYTES));
            // Four bytes whatever the value.
            push.set_memory_displ_size(8);
        }
        Register::RIP => {
            let target = rip_target.map_or(instruction.memory_displacement64(), |va| va.0);
            push.set_memory_displacement64(target);
        }
        _ => {}
    }
    Ok(push)
}
