//! Small changes of the stack pointer by `push` and `pop`.
//!
//! `push` writes the word that `sub` only made room for. Nobody reads that word before something is written there, if nothing is kept in it ([`Below`]).
//! `pop` reads a word and leaves it in a register; the next instructions write that anew, and none of them can fault. A register that functions keep is spoiled only where a `pop` restores it next: an unwinder
//! finds what it held on the stack, where it was saved.

use lifter::address::Va;
use smallvec::smallvec;

use super::super::below::Below;
use super::ahead::Ahead;
use super::{Form, Here};

/// `sub $8, %rsp`
const LOWER: [u8; 4] = [0x48, 0x83, 0xec, 8];
/// `add $8, %rsp`
const RAISE: [u8; 4] = [0x48, 0x83, 0xc4, 8];
/// `push %rax`
const PUSH: u8 = 0x50;
/// `pop %rax`; the other registers follow.
const POP: u8 = 0x58;

/// What makes room for a word.
pub(super) fn lower<'b>(here: Here<'_>, ahead: &Ahead<'_, '_>, below: impl FnOnce() -> Option<&'b Below>) -> Option<Form> {
    let is_bare = || below().is_some_and(|below| below.is_bare(ahead.block, Va(here.instruction.ip())));
    let may = here.bytes == LOWER && ahead.has_no_reader_of_flags() && is_bare();
    may.then(|| Form::plain(smallvec![PUSH]))
}

/// What gives a word up.
pub(super) fn raise(here: Here<'_>, ahead: &Ahead<'_, '_>) -> Option<Form> {
    if here.bytes != RAISE || !ahead.has_no_reader_of_flags() {
        return None;
    }
    let register = ahead.written_next()?;
    let pop = POP | register & 7;
    let bytes = if register < 8 { smallvec![pop] } else { smallvec![0x41, pop] };
    Some(Form { spoils: Some(register), ..Form::plain(bytes) })
}
