//! The linker's stubs, found by their jumps: each goes through a slot that the loader binds to a symbol or to a resolver's answer.
//!
//! **Method.** Every `jmp *slot(%rip)` at the right distance from an aligned address begins, or ends, an entry of a procedure linkage table; the
//! first entry pushes the module's word and jumps to the loader. A function that the compiler ends in such a jump looks alike, so an
//! entry inside of what an unwind entry covers counts only if that is covered by entries from its start to its end.
//!
//! **Why a miss is harmless.** A slot that is bound late holds the address that the loader continues at; code there is never taken
//! for compiled code (`lazy`). Without that a stub is a function like others. To take such a function for a stub only means that it
//! stays, and its slot does too.
//!
//! Sources: psABI x86-64 §5.2 (procedure linkage table), §13.2 (the second table, for indirect-branch tracking).

use object::elf;

use crate::address::Va;
use crate::elf::image::Image;

/// Adjacent entries of one size.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: Va,
    pub(super) end: Va,
    pub(super) stride: u64,
}

pub(super) struct Stubs {
    /// Ascending.
    pub(super) runs: Vec<Run>,
    /// Where the loader continues when it has bound a slot late. Ascending.
    pub(super) lazy: Vec<Va>,
}

const ENTRY: u64 = 16;
const SMALL_ENTRY: u64 = 8;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const BND: u8 = 0xf2;

/// What the search knows of the file.
struct Search<'i> {
    bytes: &'i [u8],
    start: Va,
    /// Bound by the loader. Ascending.
    slots: Vec<Va>,
    /// The word that the first entry pushes.
    module_word: Option<Va>,
}

impl Stubs {
    /// Searches `start..end`; `functions` are covered by unwind entries, ascend and are disjoint.
    pub(super) fn find(image: &Image<'_>, start: Va, end: Va, functions: &[(Va, Va)]) -> Self {
        let bound = [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT, elf::R_X86_64_IRELATIVE];
        let relocs = || image.dynamic_relocs.iter().filter(|r| bound.contains(&r.r_type));
        let table = image.dynamic_value(elf::DT_PLTGOT).map(Va);
        let mut slots: Vec<Va> = relocs().map(|r| r.slot).collect();
        slots.extend(table.map(|at| at + 16));
        slots.extend(image.dynamic_value(elf::DT_TLSDESC_GOT).map(Va));
        slots.sort();
        let mut lazy: Vec<Va> = relocs()
            .filter(|r| r.r_type == elf::R_X86_64_JUMP_SLOT)
            .filter_map(|r| image.read_u64(r.slot).map(Va))
            .filter(|va| start <= *va && *va < end)
            .collect();
        lazy.sort();
        let bytes = image.read(start, (end - start) as usize).unwrap_or(&[]);
        let search = Search { bytes, start, slots, module_word: table.map(|at| at + 8) };
        let mut entries = search.entries();
        drop_parts_of_functions(&mut entries, functions);
        Self { runs: joined(&entries), lazy }
    }
}

impl Search<'_> {
    /// All entries, ascending and disjoint.
    fn entries(&self) -> Vec<(Va, Va)> {
        let mut entries: Vec<(Va, Va)> = Vec::new();
        for jump in memchr::memmem::find_iter(self.bytes, &[0xff, 0x25]) {
            let slot = self.named_by(jump);
            let Some(entry) = slot.filter(|va| self.slots.binary_search(va).is_ok()).and_then(|_| self.entry_of(jump)) else {
                continue;
            };
            if entries.last().is_none_or(|last| last.1 <= entry.0) {
                entries.push(entry);
                self.extend_behind_first(jump, &mut entries);
            }
        }
        entries
    }

    /// The address that six bytes of an instruction with a rip-relative operand name.
    fn named_by(&self, at: usize) -> Option<Va> {
        let field = self.bytes.get(at + 2..at + 6)?;
        let distance = i32::from_le_bytes(field.try_into().ok()?);
        Some((self.start + at as u64 + 6).offset(i64::from(distance)))
    }

    /// The entry that a jump belongs to.
    fn entry_of(&self, jump: usize) -> Option<(Va, Va)> {
        let mut first = jump;
        let is_before = |first: usize, bytes: &[u8]| self.bytes[..first].ends_with(bytes);
        if is_before(first, &[BND]) {
            first -= 1;
        }
        // The first entry, and that of descriptors, push a word before they jump.
        if first >= 6 && self.bytes[first - 6..].starts_with(&[0xff, 0x35]) && self.named_by(first - 6) == self.module_word {
            first -= 6;
        }
        if is_before(first, &ENDBR64) {
            first -= 4;
        }
        let start = self.start + first as u64;
        if !start.0.is_multiple_of(SMALL_ENTRY) {
            return None;
        }
        let behind = self.bytes.get(jump + 6..)?;
        let is_small = first == jump && behind.starts_with(&[0x66, 0x90]);
        let size = if is_small { SMALL_ENTRY } else { ENTRY };
        let rest = behind.get(..size as usize - (jump + 6 - first))?;
        let pushes = rest.len() == 10 && rest[0] == 0x68 && rest[5] == 0xe9;
        let pads = crate::x86::padding_len(rest) == rest.len();
        (pushes || pads).then_some((start, start + size))
    }

    /// With indirect-branch tracking, what follows the first entry pushes an index and jumps to that entry; the jumps through slots are in
    /// a second table.
    fn extend_behind_first(&self, jump: usize, entries: &mut Vec<(Va, Va)>) {
        let Some(&(first, mut at)) = entries.last() else { return };
        if self.named_by(jump) != self.module_word.map(|word| word + 8) {
            return;
        }
        while self.pushes_and_jumps_to(at, first) {
            entries.push((at, at + ENTRY));
            at = at + ENTRY;
        }
    }

    fn pushes_and_jumps_to(&self, at: Va, first: Va) -> bool {
        let offset = (at - self.start) as usize;
        let Some(bytes) = self.bytes.get(offset..offset + ENTRY as usize) else { return false };
        if !bytes.starts_with(&ENDBR64) || bytes[4] != 0x68 {
            return false;
        }
        let jump = if bytes[9] == BND { 10 } else { 9 };
        let distance = bytes[jump + 1..jump + 5].try_into().map_or(0, i32::from_le_bytes);
        bytes[jump] == 0xe9 && (at + jump as u64 + 5).offset(i64::from(distance)) == first
    }
}

/// Keeps an entry within a function only if entries cover that function.
fn drop_parts_of_functions(entries: &mut Vec<(Va, Va)>, functions: &[(Va, Va)]) {
    let torn: Vec<(Va, Va)> = functions.iter().copied().filter(|&(from, to)| !is_covered(entries, from, to)).collect();
    entries.retain(|&(start, end)| {
        let first = torn.partition_point(|f| f.1 <= start);
        torn.get(first).is_none_or(|f| f.0 >= end)
    });
}

/// Whether entries cover a stretch without a gap.
fn is_covered(entries: &[(Va, Va)], from: Va, to: Va) -> bool {
    let first = entries.partition_point(|e| e.1 <= from);
    let mut at = from;
    for &(start, end) in &entries[first..] {
        if at >= to || start > at {
            break;
        }
        at = end;
    }
    at >= to
}

fn joined(entries: &[(Va, Va)]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &(start, end) in entries {
        let stride = end - start;
        match runs.last_mut().filter(|run| run.end == start && run.stride == stride) {
            Some(run) => run.end = end,
            None => runs.push(Run { start, end, stride }),
        }
    }
    runs
}
