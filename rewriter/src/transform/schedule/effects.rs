//! What an instruction reads and writes, as far as its order among others goes.
//!
//! **Method.** Only what is known to be a plain computation may move: instructions of the extensions listed in [`is_known`] that name general and vector registers, the
//! arithmetic flags, and at most one place in memory. All else is *fixed*, and nothing passes it: transfers of control, locked and repeated instructions, fences, system calls, x87 and MMX,
//! control and status words, whatever writes the stack pointer, no-ops and markers.
//!
//! **Registers** count whole: who writes `al` writes `rax`, who writes `xmm0` writes `zmm0`. What merges reads besides, but since two writers of one register never change places, the order
//! alone says so.
//!
//! **Flags** count one by one. What the manual calls undefined is taken for read and written, but where an instruction leaves nothing of what was there by any account.
//!
//! **Traps.** A division may trap for its values, and arithmetic on floating-point numbers where a program has unmasked it.

use iced_x86::{
    CpuidFeature, EncodingKind, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

/// The arithmetic flags in the numbering of the decoder.
pub(super) const FLAGS: u32 = 0x3f;
/// The stack pointer as a bit of a register set.
const STACK: u64 = 1 << 4;

/// A set of registers: 16 general ones, then 32 vectors.
pub(super) type Registers = u64;

/// Reads and writes of an instruction that may move.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// For its address alone.
    pub(super) address: Registers,
    pub(super) reads: Registers,
    pub(super) writes: Registers,
    pub(super) flags_read: u32,
    pub(super) flags_written: u32,
    pub(super) loads: bool,
    pub(super) stores: bool,
    pub(super) may_trap: bool,
    pub(super) is_division: bool,
}

impl Effects {
    pub(super) fn uses_memory(&self) -> bool {
        self.loads || self.stores
    }
}

/// The effects of an instruction; `None` for one that is fixed.
pub(super) fn effects_of(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> Option<Effects> {
    if !may_move(instruction) {
        return None;
    }
    let mut effects = Effects::default();
    let info = factory.info(instruction);
    for used in info.used_registers() {
        let Some(bit) = bit_of(used.register()) else {
            if is_unchanging(used.register()) && used.access() == OpAccess::Read {
                continue;
            }
            return None;
        };
        let (reads, writes) = match used.access() {
            OpAccess::None | OpAccess::NoMemAccess => (false, false),
            OpAccess::Read | OpAccess::CondRead => (true, false),
            OpAccess::Write => (false, true),
            _ => (true, true),
        };
        effects.reads |= if reads { bit } else { 0 };
        effects.writes |= if writes { bit } else { 0 };
    }
    if effects.writes & STACK != 0 {
        return None;
    }
    let mut places = 0;
    for used in info.used_memory() {
        let (loads, stores) = match used.access() {
            OpAccess::None | OpAccess::NoMemAccess => continue,
            OpAccess::Read | OpAccess::CondRead => (true, false),
            OpAccess::Write | OpAccess::CondWrite => (used.access() == OpAccess::CondWrite, true),
            _ => (true, true),
        };
        places += 1;
        if used.vsib_size() != 0 {
            return None;
        }
        effects.loads |= loads;
        effects.stores |= stores;
        let parts = [used.base(), used.index()];
        effects.address |= parts.into_iter().filter_map(bit_of).fold(0, |set, bit| set | bit);
    }
    if places > 1 {
        return None;
    }
    // A register that is in the address alone has nothing to do with the operation itself.
    effects.reads &= !effects.address | named(instruction);
    let written = instruction.rflags_written() | instruction.rflags_cleared() | instruction.rflags_set();
    let undefined = instruction.rflags_undefined();
    let is_counted = is_shift(instruction.mnemonic()) && count_may_be_zero(instruction);
    effects.flags_written = (written | undefined) & FLAGS;
    effects.flags_read = instruction.rflags_read() & FLAGS;
    if is_counted || !overwrites(instruction.mnemonic()) {
        effects.flags_read |= undefined & FLAGS;
    }
    if is_counted {
        effects.flags_read |= effects.flags_written;
    }
    effects.is_division = matches!(instruction.mnemonic(), Mnemonic::Div | Mnemonic::Idiv);
    effects.may_trap = effects.is_division || super::model::is_float_arithmetic(instruction.mnemonic());
    Some(effects)
}

/// Registers that stand as operands, not in an address.
fn named(instruction: &Instruction) -> Registers {
    let operands = (0..instruction.op_count()).filter(|&at| instruction.op_kind(at) == OpKind::Register);
    let named = operands.filter_map(|at| bit_of(instruction.op_register(at))).fold(0, |set, bit| set | bit);
    // Implicit operands of multiplications, divisions and comparisons may be in the address too: then they count for both.
    if instruction.op_count() < 2 { named | 1 | 1 << 2 } else { named }
}

fn bit_of(register: Register) -> Option<Registers> {
    if register.is_gpr() {
        Some(1 << register.full_register().number())
    } else if register.is_xmm() || register.is_ymm() {
        Some(1 << (16 + register.number()))
    } else {
        None
    }
}

/// Registers that no instruction that may move writes.
fn is_unchanging(register: Register) -> bool {
    use Register::*;
    matches!(register, RIP | FS | GS | DS | ES | SS | CS)
}

fn may_move(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let is_plain = instruction.flow_control() == FlowControl::Next
        && matches!(instruction.encoding(), EncodingKind::Legacy | EncodingKind::VEX)
        && !instruction.has_lock_prefix()
        && !instruction.has_rep_prefix()
        && !instruction.has_repne_prefix()
        && !instruction.is_stack_instruction()
        && !instruction.is_string_instruction()
        && !instruction.is_privileged()
        && instruction.cpuid_features().iter().all(|&feature| is_known(feature));
    let has_memory = (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
    // An exchange with memory is locked by itself; bit strings in memory reach beyond the operand.
    let is_special = match instruction.mnemonic() {
        Xchg | Xadd | Cmpxchg | Cmpxchg8b | Cmpxchg16b => has_memory || instruction.mnemonic() != Xchg,
        Bt | Bts | Btr | Btc => has_memory,
        Nop | Endbr64 | Endbr32 | Pause | Mfence | Lfence | Sfence | Ldmxcsr | Stmxcsr | Vldmxcsr | Vstmxcsr | Clflush
        | Cpuid | Lahf | Sahf | Cld | Std | Clc | Stc | Cmc | Xlatb | In | Out | Cli | Sti | Hlt | Wait | Movnti | Movntdq
        | Movntpd | Movntps | Movntdqa | Vmovntdq | Vmovntpd | Vmovntps | Vmovntdqa | Maskmovdqu | Vmaskmovdqu | Vmaskmovps
        | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq | Vzeroupper | Vzeroall | Prefetchnta | Prefetcht0 | Prefetcht1 | Prefetcht2
        | Prefetchw | Rdtsc | Rdtscp | Rcl | Rcr => true,
        _ => false,
    };
    is_plain && !is_special
}

/// Extensions of which all instructions that are not fixed by name or register are plain computations.
fn is_known(feature: CpuidFeature) -> bool {
    use CpuidFeature::*;
    matches!(
        feature,
        INTEL8086
            | INTEL186
            | INTEL286
            | INTEL386
            | INTEL486
            | X64
            | CMOV
            | SSE
            | SSE2
            | SSE3
            | SSSE3
            | SSE4_1
            | SSE4_2
            | POPCNT
            | LZCNT
            | BMI1
            | BMI2
            | MOVBE
            | AVX
            | AVX2
            | FMA
            | F16C
    )
}

fn is_shift(name: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(name, Shl | Sal | Shr | Sar | Rol | Ror | Shld | Shrd)
}

/// Whether a shift may leave all flags as they were.
fn count_may_be_zero(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let last = instruction.op_count().saturating_sub(1);
    let is_number = matches!(instruction.op_kind(last), OpKind::Immediate8);
    let is_plain = matches!(instruction.mnemonic(), Shl | Sal | Shr | Sar);
    let bound = if instruction.op0_register().size() == 8 || instruction.memory_size().size() == 8 { 63 } else { 31 };
    !is_plain || !is_number || instruction.immediate(last) & bound == 0
}

/// Instructions after which no flag can be what it was before (Intel SDM vol. 2: defined or undefined, none unaffected).
fn overwrites(name: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(name, And | Or | Xor | Test | Imul | Shl | Sal | Shr | Sar)
}
