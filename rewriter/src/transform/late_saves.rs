//! Registers are saved only on the ways that need it.
//!
//! A compiler saves callee-saved registers where a function begins, because some way through it makes a call. Often the usual way makes none. The block that
//! saves them becomes a copy of what usually runs from there to the return (`region`), without saves, restores and room on the stack; what it kept in
//! callee-saved registers it keeps in others (`names`). Where others are too few, the first saves are made at once, and taken back before the return. Where control leaves the usual
//! way, the frame is made after all, step by step as the original makes it, the saved registers get what the original has in them by then, stores to the frame that
//! have waited for it are made (`assigned`, `slots`), and the original goes on (`write`).
//!
//! **Safety.** No instruction of the region uses the stack but to make and unmake the frame, to store what nothing in it loads, and to load what it has stored, so none can tell that it is not there. The saves go to the
//! function's own frame, below the return address, which nobody else knows of before the region is left: no call is made, and the stack pointer goes nowhere.
//! * *Registers.* The copy does not write the registers that it no longer saves, so where it returns they are what they were. What it writes instead is dead when the region begins and
//!   behind all ways out of it: by liveness across calls (`analysis::liveness`), so no caller that knows the callee's code relies on it; or it gets back what it held, from a vector register of
//!   which the same is known. Nothing of what a register that is no longer saved held before is read (`held`).
//! * *Flags.* Steps of the frame that set flags are left out only where the flags are written again before they are read. A frame made late sets none.
//! * *Memory.* The other accesses are those of the original, in its order.
//! * *Unwinders.* Of the copy they read the row of the entry: the return address on top, no register saved, which is so; or that behind the saves that are made at once. Of each step of a late frame, the row that the original has
//!   there. Blocks in which an exception may be handled are not copied.
//!
//! **Profit.** Two accesses for each saved register, and the instructions themselves, each time the usual way is gone; a jump and the copies between registers otherwise. Only in
//! hot blocks, the best first (by byte added), until [`BYTES_PER_MILLE_MAX`] of the movable code is spent.

mod assigned;
mod frame;
mod held;
mod names;
mod region;
mod slots;
mod write;

use analysis::FlagLiveness;
use analysis::liveness::{RegisterLiveness, Saves};
use iced_x86::{Code, InstructionInfoFactory};
use lifter::entity::{Block, Func};
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use self::frame::{Made, Part};
use self::names::Names;
use self::region::Region;
use super::Context;
use crate::edit::{Change, EditPlan, NewCode, Replacement};

/// What copies may add to the movable code.
const BYTES_PER_MILLE_MAX: u64 = 10;
/// Regions are tried with blocks that run at least so often, as shares of the first, more and more of the usual way only.
const RARE: [u64; 3] = [NewCode::WHOLE as u64 / 50, NewCode::WHOLE as u64 / 8, NewCode::WHOLE as u64 / 3];

/// What a jump out of a region costs, in accesses and instructions.
const JUMP_COST: i64 = 4;

/// A block that saves registers, and what may stand there.
struct Site {
    block: Block,
    len: u32,
    code: NewCode,
    /// Executed accesses to memory and instructions less, for each time that the block runs, in the unit of `NewCode::shares`.
    saved: i64,
}

/// At a fixed address without relocations the checker knows less of what reads a register, and each site that it can't follow costs a round: there a site has to save
/// one in so many of all executed instructions.
const FIXED_SHARE: u128 = 1000;

pub(super) fn plan(context: &Context<'_>, edits: &mut EditPlan) {
    let program = context.program;
    let mut blocks = context.hot_blocks();
    let saves = |&block: &Block| {
        let first = lifter::x86::decode_block(context.image, program, block);
        context.is_reached(block)
            && !context.is_stand_in(program.func_of(block))
            && first.iter().any(|i| i.code() == Code::Push_r64)
    };
    blocks = blocks.into_par_iter().filter(saves).collect();
    if blocks.is_empty() {
        return;
    }
    let (live, flags) = RegisterLiveness::with_flags(context.image, program, Saves::Read);
    let mut sites: Vec<Site> = blocks.par_iter().filter_map(|&block| site(context, &live, &flags, block)).collect();
    sites.retain(|site| context.everywhere || site.saved > 0);
    if !program.is_replaceable() && !context.everywhere {
        let executed = context.executed();
        let saved = |site: &Site| {
            u128::from(context.count(site.block)) * u128::from(site.saved.cast_unsigned()) / u128::from(NewCode::WHOLE)
        };
        sites.retain(|site| saved(site) * FIXED_SHARE >= executed);
    }
    let added = |site: &Site| (site.code.bytes.len() as u64).saturating_sub(u64::from(site.len));
    let density = |site: &Site| {
        let saved = site.saved.max(0).cast_unsigned();
        u128::from(context.count(site.block)) * u128::from(saved) / u128::from(added(site).max(1))
    };
    sites.sort_by_cached_key(|site| (std::cmp::Reverse(density(site)), site.block));
    let movable = program.funcs.iter().filter(|(_, data)| data.is_movable());
    let movable_bytes: u64 = movable.map(|(func, _)| program.func_size(func)).sum();
    let mut left = if context.everywhere { u64::MAX } else { movable_bytes * BYTES_PER_MILLE_MAX / 1000 };
    // One copy a function: what a second one would copy may be what the first one has.
    let mut done: FxHashSet<Func> = FxHashSet::default();
    for site in sites {
        let cost = added(&site);
        if cost > left || !done.insert(program.func_of(site.block)) {
            continue;
        }
        left -= cost;
        let Site { block, len, code, .. } = site;
        let code = edits.codes.push(code);
        edits.replacements.push(Replacement { block, offset: 0, len, code, change: Change::LateSave });
    }
}

fn site(context: &Context<'_>, live: &RegisterLiveness, flags: &FlagLiveness, block: Block) -> Option<Site> {
    RARE.iter().find_map(|&rare| {
        let region = region::of(context, block, rare)?;
        let names = Names::find(context, live, &region).filter(|_| flags_are_free(context, flags, &region))?;
        if !held::is_unread(&region, context.program, &names) {
            return None;
        }
        let code = write::write(context, &region, &names)?;
        let saved = saved(context, &region, &names);
        (context.everywhere || saved > 0).then(|| Site { block, len: context.program.blocks[block].len, code, saved })
    })
}

/// What a region gains and loses.
fn saved(context: &Context<'_>, region: &Region, names: &Names) -> i64 {
    let late = &region.steps[names.early..];
    let saves = late.iter().filter(|step| matches!(step.made, Made::Save(_))).count() as i64;
    let copies = (0..16).filter(|&register| names.of(register) != names::Name::Own).count() as i64;
    let loads = i64::from(names.lent.count_ones());
    let exits: i64 = region.exits(context.program).iter().map(|&exit| region.share_of_exit(context, exit) as i64).sum();
    let (aside, back) = (names.aside().count() as i64, names.aside_at_return().count() as i64);
    let whole = i64::from(NewCode::WHOLE);
    let returns = (whole - exits).max(0);
    returns * (2 * saves + 2 * late.len() as i64 - back) - whole * aside - exits * (JUMP_COST + copies + loads + aside)
}

/// Whether nobody reads the flags that the steps of the frame set.
fn flags_are_free(context: &Context<'_>, flags: &FlagLiveness, region: &Region) -> bool {
    const ARITHMETIC: u32 = 0x3f;
    let mut factory = InstructionInfoFactory::new();
    region.members.iter().all(|member| {
        // Whether a step's flags are still there.
        let mut is_open = false;
        for (instruction, part) in &member.body {
            match part {
                Part::Make(Made::Room(_)) | Part::Undo(Made::Room(_)) => is_open |= frame::sets_flags(instruction),
                Part::Make(_) | Part::Undo(_) => {}
                _ => {
                    let _ = factory.info(instruction);
                    if is_open && instruction.rflags_read() & ARITHMETIC != 0 {
                        return false;
                    }
                    // What is undefined from here on can't be asked for.
                    let known = instruction.rflags_written() | instruction.rflags_cleared() | instruction.rflags_set();
                    let written = known | instruction.rflags_undefined();
                    let always =
                        !matches!(instruction.op_count(), 2 if is_shift(instruction)) && !instruction.is_string_instruction();
                    is_open &= !(always && written & ARITHMETIC == ARITHMETIC);
                }
            }
        }
        let program = context.program;
        let reads_at_end = matches!(program.blocks[member.block].terminator, lifter::ir::Terminator::Branch { .. });
        let func = program.func_of(member.block);
        let is_dead_behind = if member.is_frameless {
            !flags.live_at_return(func)
        } else {
            let mut targets = program.block_edges(member.block).iter().map(|edge| edge.target);
            targets.all(|target| !flags.any_live_at_block_start(target))
        };
        !is_open || !reads_at_end && is_dead_behind
    })
}

fn is_shift(instruction: &iced_x86::Instruction) -> bool {
    use iced_x86::Mnemonic::*;
    matches!(instruction.mnemonic(), Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd)
}
