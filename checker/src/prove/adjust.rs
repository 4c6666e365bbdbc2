//! Whether anything reads the adjust flag.
//!
//! Logical instructions leave it undefined, so it differs as soon as one of them is gone before another. Nothing reads it in 64-bit code but what copies all flags: `lahf`, `pushf` and `syscall`.
//! Code is followed from an address of the input up to calls, tail calls among them, and returns, which pass no flags.
//!
//! **Terminates**: each address is visited once.

use rustc_hash::FxHashSet;

use super::Prover;
use crate::decode::Kind;
use crate::walk::Walk;

/// Instructions that are followed.
const STEPS_MAX: usize = 2_000;

impl Prover {
    pub(super) fn adjust_flag_is_free(&mut self, walk: &Walk<'_, '_>, at: u64) -> bool {
        let mut seen: FxHashSet<u64> = FxHashSet::default();
        let mut work = vec![at];
        while let Some(at) = work.pop() {
            if !seen.insert(at) {
                continue;
            }
            let Some(inst) = walk.input.inst(at).filter(|_| seen.len() < STEPS_MAX) else { return false };
            let after = at + u64::from(inst.len);
            match inst.kind {
                Kind::Nop | Kind::EndBranch => work.push(after),
                Kind::Jump => work.push(walk.input.target(at, inst)),
                Kind::Branch | Kind::Loop => work.extend([walk.input.target(at, inst), after]),
                Kind::Call | Kind::IndirectCall | Kind::Return | Kind::Stop | Kind::Trap => {}
                Kind::IndirectJump => match self.targets_of(walk, at) {
                    Some(targets) => work.extend(targets.places),
                    None => return false,
                },
                Kind::Plain | Kind::Lea => {
                    let Some(decoded) = self.decode(true, walk.input, at, inst) else { return false };
                    let name = decoded.name.as_str();
                    if name.starts_with("pushf") || name.starts_with("sys") || name == "lahf" {
                        return false;
                    }
                    work.push(after);
                }
            }
        }
        true
    }
}
