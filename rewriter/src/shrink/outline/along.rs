//! Which instructions can stand where a call leads, and what unwinders find at them.

use analysis::values::touches_memory;
use iced_x86::{Code, FlowControl, Instruction, InstructionInfo, InstructionInfoFactory, Mnemonic, OpAccess, Register};
use lifter::address::Va;
use lifter::elf::lsda::CallSite;
use lifter::ir::Program;

use super::lower::has_other_use;
use crate::relink::eh_frame::FrameRows;

/// Whether an instruction can do the same with a return address more on the stack.
pub(in crate::shrink) fn may_come_along(instruction: &Instruction, infos: &mut InstructionInfoFactory) -> bool {
    let is_plain = instruction.flow_control() == FlowControl::Next
        && !instruction.is_stack_instruction()
        && !instruction.is_privileged()
        && !has_other_use(instruction)
        && !matches!(instruction.code(), Code::Endbr64 | Code::Endbr32 | Code::INVALID)
        // The shadow stack has a return address more too.
        && !matches!(instruction.code(), Code::Rdsspd_r32 | Code::Rdsspq_r64 | Code::Incsspd_r32 | Code::Incsspq_r64)
        // Who measures time does not measure jumps.
        && !matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Rdtsc | Mnemonic::Rdtscp | Mnemonic::Rdpmc);
    if !is_plain {
        return false;
    }
    written(infos.info(instruction)).all(|register| register != Register::RSP)
}

/// Whether an instruction leaves alone what callees have to.
pub(super) fn keeps_saved(instruction: &Instruction, infos: &mut InstructionInfoFactory) -> bool {
    let saved = [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
    written(infos.info(instruction)).all(|register| !saved.contains(&register))
}

fn written(info: &InstructionInfo) -> impl Iterator<Item = Register> {
    let is_read =
        |access: OpAccess| matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
    info.used_registers().iter().filter(move |used| !is_read(used.access())).map(|used| used.register().full_register())
}

/// Whether an instruction reads or writes memory, or may stop otherwise.
fn may_fault(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) || touches_memory(instruction)
}

/// What unwinders find in a range of code.
pub(in crate::shrink) struct Described<'a> {
    rows: FrameRows<'a>,
    sites: &'a [CallSite],
}

impl<'a> Described<'a> {
    /// `None` where it is not understood, or nothing is said.
    pub(in crate::shrink) fn of(program: &'a Program, range: u32) -> Option<Self> {
        let fde = program.unwind.fdes.get(program.ranges[range as usize].fde?)?;
        if fde.opaque_lsda.is_some() {
            return None;
        }
        let rows = FrameRows::evaluate(program.unwind.cies.get(fde.cie as usize)?, fde)?;
        let sites = match fde.lsda {
            Some(lsda) => &program.unwind.lsdas.get(lsda as usize)?.call_sites[..],
            None => &[],
        };
        Some(Self { rows, sites })
    }

    /// Whether who unwinds from an instruction finds what is found at the call behind it.
    pub(super) fn is_as_at(&self, (at, instruction): (Va, &Instruction), call: Va) -> bool {
        self.rows.at(at) == self.rows.at(call) && (!may_fault(instruction) || self.handlers(at) == self.handlers(call))
    }

    /// Whether who unwinds finds the same at two places.
    pub(in crate::shrink) fn is_alike(&self, a: Va, b: Va) -> bool {
        self.has_row_of(a, b) && self.handlers(a) == self.handlers(b)
    }

    pub(in crate::shrink) fn has_row_of(&self, a: Va, b: Va) -> bool {
        self.rows.at(a) == self.rows.at(b)
    }

    /// Whether an unwinder finds the frame by the stack pointer at a place.
    pub(in crate::shrink) fn is_by_stack(&self, at: Va) -> bool {
        self.rows.at(at).is_by_stack()
    }

    fn handlers(&self, at: Va) -> Option<(Option<Va>, u64)> {
        let site = self.sites.iter().rfind(|site| site.start <= at).filter(|site| at < site.end);
        site.map(|site| (site.landing_pad, site.action))
    }
}
