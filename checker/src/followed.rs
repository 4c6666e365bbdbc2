//! Callees that are straight code up to a `ret`: what a function does by calling one it may as well do itself, as relift has it where it put such code once for many places ([`crate::walk`]).
//!
//! **What that means.** Such a callee may write registers that functions keep, hand back others than the psABI says, and read and write the frame of its caller. So what reasons over the code of a function, in the input that is
//! such an output of before, looks at the callee's instructions in the place of the call; [`crate::prove`] has the same with operands, and of those that end otherwise too.

use crate::decode::{Inst, Kind};
use crate::walk::Side;

/// Instructions that are followed; relift writes some 20 at most.
pub(crate) const STEPS_MAX: usize = 64;

/// The instructions of what is called at an address, jumps and filler aside; `None` if it is not straight up to a `ret`.
pub(crate) fn straight(side: &Side<'_>, target: u64) -> Option<Vec<(u64, Inst)>> {
    let (mut at, mut found) = (target, Vec::new());
    for _ in 0..STEPS_MAX {
        let inst = side.inst(at)?;
        let after = at + u64::from(inst.len);
        at = match inst.kind {
            Kind::Nop | Kind::EndBranch => after,
            Kind::Jump => side.target(at, inst),
            Kind::Plain | Kind::Lea => {
                found.push((at, inst));
                after
            }
            Kind::Return => return is_plain_return(side, at, inst).then_some(found),
            _ => return None,
        };
    }
    None
}

/// Whether an instruction returns and does nothing else.
pub(crate) fn is_plain_return(side: &Side<'_>, at: u64, inst: Inst) -> bool {
    inst.kind == Kind::Return && matches!(side.code.bytes(at, inst), [0xc3] | [0xf3, 0xc3])
}
