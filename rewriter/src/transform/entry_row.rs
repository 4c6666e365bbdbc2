//! Whether an unwinder finds at a place what it finds at a function's entry: the return address on top of the stack, no register saved (psABI, DWARF section 6.4).

use lifter::address::Va;
use lifter::entity::Block;
use lifter::ir::Program;

use crate::relink::eh_frame::{has_pushed, keeps_initial_row};

/// Whether the frame description of a block says so from its start up to `end`, an address in it.
pub(crate) fn has_entry_row(program: &Program, block: Block, end: Va) -> bool {
    let data = &program.blocks[block];
    let Some(fde) = program.ranges[data.range as usize].fde else { return false };
    let described = &program.unwind.fdes[fde];
    let cie = &program.unwind.cies[described.cie as usize];
    cie.is_standard() && described.opaque_lsda.is_none() && keeps_initial_row(&program.unwind, fde, data.start, end)
}

/// Whether the frame description of a block says at an address in it that these registers, by their numbers in encodings, have been pushed and nothing else.
pub(super) fn has_pushed_row(program: &Program, block: Block, at: Va, registers: &[u8]) -> bool {
    /// By number in encodings (psABI, figure 3.36).
    const COLUMNS: [u64; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
    let columns: Vec<u64> = registers.iter().map(|&register| COLUMNS[usize::from(register & 15)]).collect();
    let fde = program.ranges[program.blocks[block].range as usize].fde;
    fde.is_some_and(|fde| has_pushed(&program.unwind, fde, at, &columns))
}

/// Whether a block's frame description names an exception table.
pub(super) fn has_exception_table(program: &Program, block: Block) -> bool {
    let fde = program.ranges[program.blocks[block].range as usize].fde;
    fde.is_some_and(|fde| program.unwind.fdes[fde].lsda.is_some())
}
