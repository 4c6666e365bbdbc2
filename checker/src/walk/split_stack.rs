//! Returns behind which control goes on: `__morestack` finds a function's body by its own return address, past the `ret` that stands there.
//!
//! **Rule.** Let constants go to `r10` and `r11` (how much room is wanted), then a call be followed by a `ret` of one byte, with no other flow between. Then what stands behind the `ret` of the output
//! stands for what stands behind that of the input. The callee need not be found: where it is something else nothing is lost, for what a program does not execute there it has all the same.

use super::Walk;
use crate::decode::Kind;
use crate::tables::instruction_before;

const RETURN: [u8; 1] = [0xc3];
/// Instructions looked at before the call.
const BEFORE_MAX: usize = 8;
/// What instructions begin with that put a constant into `r10`, and into `r11`: of 32 bits, of 32 bits with the sign, of 64 bits, none.
const CONSTANTS: [[&[u8]; 5]; 2] = [
    [&[0x41, 0xba], &[0x49, 0xc7, 0xc2], &[0x49, 0xba], &[0x45, 0x31, 0xd2], &[0x45, 0x33, 0xd2]],
    [&[0x41, 0xbb], &[0x49, 0xc7, 0xc3], &[0x49, 0xbb], &[0x45, 0x31, 0xdb], &[0x45, 0x33, 0xdb]],
];

impl Walk<'_, '_> {
    /// Whether what stands behind a return of the input is executed as well.
    pub(crate) fn goes_on_behind_return(&self, address: u64) -> bool {
        let code = &self.input.code;
        if self.input.inst(address).is_none_or(|inst| code.bytes(address, inst) != RETURN) {
            return false;
        }
        let Some((mut at, _)) =
            instruction_before(self, address).filter(|(_, inst)| matches!(inst.kind, Kind::Call | Kind::IndirectCall))
        else {
            return false;
        };
        let mut are_there = [false; 2];
        for _ in 0..BEFORE_MAX {
            let Some((before, inst)) = instruction_before(self, at).filter(|(_, inst)| inst.kind == Kind::Plain) else { break };
            let bytes = code.bytes(before, inst);
            for (is_there, forms) in are_there.iter_mut().zip(CONSTANTS) {
                *is_there |= forms.iter().any(|form| bytes.starts_with(form));
            }
            at = before;
        }
        are_there == [true; 2]
    }
}
