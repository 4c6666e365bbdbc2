//! Code of the large model, in which addresses are numbers of 64 bits (psABI, 3.5.1 and 3.5.3).
//!
//! **The problem.** Position-independent code of that model takes an address of itself, adds a number to find the global offset table, and finds functions by further numbers from
//! there: `lea .(%rip), %r15; movabs $GOT - ., %r11; add %r11, %r15`, then `movabs $f - GOT, %rax; add %r15, %rax; call *%rax`. No relocation and no displacement says so, and
//! moved code would find neither. At a fixed address functions are called by `movabs $f, %rax; call *%rax`.
//!
//! **Method.** Numbers that fit into 32 bits are moved by five or seven bytes by every compiler and assembler that knows them; `movabs` has such a number only where the linker put it
//! there. One beside an address of the function's own code, which together are an address of the file, is the first form; one that names code, and is called, the second.

use iced_x86::{Code, Instruction, Mnemonic, OpKind};

use crate::address::Va;
use crate::discover::units::{UnitData, Units, unit_at};
use crate::elf::Image;

/// How many instructions may stand between the parts: the prologue is scheduled among them.
const REACH: u32 = 12;

/// What was seen of the parts, in the order of a unit's instructions.
#[derive(Debug, Default)]
pub(crate) struct CodeModel {
    instructions: u32,
    /// By register, the last number that fits into 32 bits and was moved there with 64, and when.
    numbers: [Option<(u64, u32)>; 16],
    /// The last address of the unit itself, and when.
    own: Option<(Va, u32)>,
    pub(crate) is_large: bool,
}

impl CodeModel {
    pub(crate) fn note(&mut self, image: &Image<'_>, units: &Units, unit: &UnitData, instruction: &Instruction) {
        self.instructions += 1;
        let now = self.instructions;
        let is_image = |value: u64| image.low().0 <= value && value < image.high().0;
        let is_near = |when: u32| now - when <= REACH;
        if instruction.code() == Code::Mov_r64_imm64 && is_short(instruction.immediate64()) {
            let number = instruction.immediate64();
            self.numbers[instruction.op0_register().number()] = Some((number, now));
            self.is_large |= self.own.is_some_and(|(place, when)| is_near(when) && is_image(place.0.wrapping_add(number)));
        } else if instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand() {
            let place = Va(instruction.ip_rel_memory_address());
            if unit.start <= place && place < unit.end {
                self.own = Some((place, now));
                let mut numbers = self.numbers.iter().flatten();
                self.is_large |= numbers.any(|&(number, when)| is_near(when) && is_image(place.0.wrapping_add(number)));
            }
        } else if instruction.code() == Code::Call_rm64 && instruction.op0_kind() == OpKind::Register {
            let called = self.numbers[instruction.op0_register().number()].filter(|&(_, when)| is_near(when));
            let is_code = |value: u64| unit_at(units, Va(value)).is_some();
            self.is_large |= called.is_some_and(|(value, _)| !image.kind.is_position_independent() && is_code(value));
        }
    }
}

/// Whether a shorter instruction would have moved a number.
fn is_short(number: u64) -> bool {
    u32::try_from(number).is_ok() || i32::try_from(number.cast_signed()).is_ok()
}
