//! Runs of jumps at equal distances: the tables that stand for functions where indirect calls are checked (`-fsanitize=cfi-icall`).
//!
//! LLVM gives the functions of one type neighboring entries, `jmp f; int3; int3; int3`, with `endbr64` before it where branches are tracked. A pointer to a function is the
//! address of its entry, and a call through it is let through if its distance from one entry, turned by the logarithm of the entries' size, is below their number. No
//! entry may leave its neighbors then, whether or not anything names it.
//! (LLVM's design document on control-flow integrity, "Forward-Edge CFI for Indirect Function Calls".)

use crate::address::Va;
use crate::elf::Image;
use crate::x86::BREAKPOINT;

const JUMP: u8 = 0xe9;
const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Sizes of entries, the bytes before the jump, and those up to the padding.
const FORMS: [(u64, &[u8], usize); 2] = [(8, &[], 5), (16, &ENDBR, 9)];

/// The entries of the run that has one at an address, ascending; none if that is no entry.
pub(crate) fn run_around(image: &Image<'_>, entry: Va) -> Vec<Va> {
    let Some(&form) = FORMS.iter().find(|&&form| is_entry(image, entry, form)) else { return Vec::new() };
    let size = form.0;
    let back = (1..).map_while(|step| entry.0.checked_sub(size * step)).map(Va).take_while(|&va| is_entry(image, va, form));
    let ahead = (0..).map(|step| entry + size * step).take_while(|&va| is_entry(image, va, form));
    let mut run: Vec<Va> = back.chain(ahead).collect();
    run.sort();
    run
}

fn is_entry(image: &Image<'_>, va: Va, (size, before, used): (u64, &[u8], usize)) -> bool {
    let Some(bytes) = image.read(va, size as usize) else { return false };
    bytes.starts_with(before) && bytes[before.len()] == JUMP && bytes[used..].iter().all(|&byte| byte == BREAKPOINT)
}
