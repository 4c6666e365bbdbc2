//! Where an unseen pointer may name code: who stays, so that the file does not grow.
//!
//! **Problem.** In *guard* mode each address that a number may hold keeps a jump, so the old text is free in tens of thousands of pieces, each about as long as a function. Whatever is put into them
//! in a new order fits badly: a megabyte in seven of GCC's compiler would go behind the image. But what never runs wins nothing by a move, fits its own place exactly, and
//! needs no jump there.
//!
//! **Method.** The code that ran gets a *room*: the stretch of the old text that is long enough for all of it and of which the fewest bytes belong to functions that did not run. These leave it, and
//! go into what the functions that ran leave elsewhere, with the cold parts of the latter; all other functions that did not run stay.
//!
//! **Invariants.** A function stays only if all that it runs into or reaches by a branch of two bytes stays too, and if no jump at a kept address of another one needs its bytes.
//!
//! **Termination.** Each function is let go once.

use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockData, BlockFlags, CodeRange, CodeTarget, FuncData, PinReason, Program, Terminator};

use super::fit;
use crate::edit::EditPlan;
use crate::plan::{LayoutPlan, Temperature};

/// How much longer than the code that ran its room is, in hundredths: kept addresses lie in it, and what is longer than what lies between two of them leaves a rest.
const ROOM_PERCENT: u64 = 115;

/// From this length on a block is straight code, in bytes.
const STRAIGHT_MIN: u32 = 4096;

/// Pins what need not move, and says where the code that ran is to begin. Does nothing where no address has to be kept, or nothing runs.
pub fn pin_idle(image: &Image<'_>, program: &mut Program, edits: &EditPlan, plan: &LayoutPlan) -> Option<Va> {
    if program.is_replaceable() {
        return None;
    }
    let mut runs = Running::of(program, plan);
    runs.leave_out_straight_code(program);
    let (start, end) = runs.room(program)?;
    let is_in_room = |va: Va| start <= va && va < end;
    let leaves = |func: Func| runs.funcs[func.index()] || program.func_ranges(func).iter().any(|range| is_in_room(range.start));
    let mut stays: Vec<bool> = program.funcs.iter().map(|(func, data)| data.is_movable() && !leaves(func)).collect();
    // What changes has to move, and what has no fragment is where another function is.
    let changed = edits.replacements.iter().map(|edit| program.func_of(edit.block));
    let cloned = edits.clones.values().map(|clone| clone.func);
    let folded = plan.folded.pairs().iter().flat_map(|&(func, stand_in)| [func, stand_in]);
    let gone = plan.dropped.iter().copied();
    changed.chain(cloned).chain(folded).chain(gone).for_each(|func| stays[func.index()] = false);
    let_go(image, program, &mut stays);
    for (data, _) in program.funcs.values_mut().zip(&stays).filter(|(_, stays)| **stays) {
        data.pin.get_or_insert(PinReason::NotWorthMoving);
    }
    Some(start)
}

/// Makes a plan one for a program in which what never runs was pinned: takes that out, and cuts what moves to fit.
pub fn around_idle(image: &Image<'_>, program: &Program, hot_from: Va, plan: &mut LayoutPlan) {
    plan.fragments.retain(|fragment| program.funcs[fragment.func].is_movable());
    plan.hot_from = Some(hot_from);
    plan.joins_kept_entries = true;
    fit::cut_to_fit(image, program, hot_from, &mut plan.fragments);
}

/// What the plan lays out as code that runs.
struct Running {
    funcs: Vec<bool>,
    /// Bytes, by code range.
    bytes: Vec<u64>,
}

impl Running {
    fn of(program: &Program, plan: &LayoutPlan) -> Self {
        let mut runs = Self { funcs: vec![false; program.funcs.len()], bytes: vec![0; program.ranges.len()] };
        for fragment in plan.fragments.iter().filter(|fragment| fragment.temperature == Temperature::Hot) {
            runs.funcs[fragment.func.index()] = true;
            for planned in &fragment.blocks {
                let data = &program.blocks[planned.block];
                runs.bytes[data.range as usize] += u64::from(data.len);
            }
        }
        runs
    }

    /// Does as if functions with very long blocks did not run: in what is executed from end to end no order is better than the old one, and nothing can be cut.
    fn leave_out_straight_code(&mut self, program: &Program) {
        for data in program.blocks.values().filter(|data| data.len >= STRAIGHT_MIN) {
            self.funcs[data.func.index()] = false;
            program.funcs[data.func].ranges.as_usize().for_each(|range| self.bytes[range] = 0);
        }
    }

    /// The stretch of old text out of which the fewest bytes have to go, of all that are long enough.
    fn room(&self, program: &Program) -> Option<(Va, Va)> {
        let needed = self.bytes.iter().sum::<u64>() * ROOM_PERCENT / 100;
        let is_movable = |range: &CodeRange| program.funcs[range.func].is_movable() && range.start < range.end;
        let mut ranges: Vec<(Va, Va, u64)> = program
            .ranges
            .iter()
            .zip(&self.bytes)
            .filter(|(range, _)| is_movable(range))
            .map(|(range, &bytes)| (range.start, range.end, bytes))
            .collect();
        ranges.sort_unstable();
        let len_of = |index: usize| ranges[index].1 - ranges[index].0;
        let idle_of = |index: usize| len_of(index).saturating_sub(ranges[index].2);
        let (mut first, mut len, mut idle) = (0, 0, 0);
        let mut best: Option<(u64, Va, Va)> = None;
        for last in 0..ranges.len() {
            len += len_of(last);
            idle += idle_of(last);
            while first < last && len - len_of(first) >= needed {
                len -= len_of(first);
                idle -= idle_of(first);
                first += 1;
            }
            if len >= needed && best.is_none_or(|(least, ..)| idle < least) {
                best = Some((idle, ranges[first].0, ranges[last].1));
            }
        }
        best.filter(|_| needed > 0).map(|(_, start, end)| (start, end))
    }
}

/// Of those that are to stay, lets go what can't, for what others do that move.
fn let_go(image: &Image<'_>, program: &Program, stays: &mut [bool]) {
    let mut followers = followers(image, program);
    followers.sort_unstable();
    followers.dedup();
    let moves = |(func, data): (Func, &FuncData)| (data.is_movable() && !stays[func.index()]).then_some(func);
    let mut moving: Vec<Func> = program.funcs.iter().filter_map(moves).collect();
    while let Some(func) = moving.pop() {
        let first = followers.partition_point(|&(leader, _)| leader < func);
        for &(_, follower) in followers[first..].iter().take_while(|&&(leader, _)| leader == func) {
            if std::mem::take(&mut stays[follower.index()]) {
                moving.push(follower);
            }
        }
    }
}

/// Pairs of functions, of which the second can't stay if the first one moves.
fn followers(image: &Image<'_>, program: &Program) -> Vec<(Func, Func)> {
    let mut pairs = Vec::new();
    for data in program.blocks.values() {
        pairs.extend(near_successors(program, data).map(|next| (next, data.func)));
        if data.flags.contains(BlockFlags::ANCHOR) {
            let end = program.ranges[data.range as usize].end;
            let anchor_end = data.start + data.anchor_len(image.has_ibt);
            let over = (0..anchor_end.0.saturating_sub(end.0)).filter_map(|at| program.block_containing(end + at));
            pairs.extend(over.map(|block| (data.func, program.func_of(block))));
        }
    }
    pairs
}

/// Other functions that a block runs into, or reaches by a branch that may be short.
fn near_successors<'p>(program: &'p Program, data: &'p BlockData) -> impl Iterator<Item = Func> + 'p {
    const LONG_BRANCH: u32 = 5;
    let is_short = data.len - data.body_len < LONG_BRANCH;
    let of = |target: CodeTarget| match target {
        CodeTarget::Block(block) => Some(block),
        CodeTarget::Fixed(_) => None,
    };
    let near: [Option<Block>; 2] = match data.terminator {
        Terminator::Fallthrough { next } => [Some(next), None],
        Terminator::Jump { target } => [of(target).filter(|_| is_short), None],
        Terminator::Branch { taken, next, .. } => [of(taken).filter(|_| is_short), Some(next)],
        Terminator::Loop { taken, next } => [Some(taken), Some(next)],
        Terminator::Stop(_) => [None, None],
    };
    near.into_iter().flatten().map(|block| program.func_of(block)).filter(|&func| func != data.func)
}

#[cfg(test)]
mod tests {
    use lifter::elf::image::SectionData;
    use lifter::ir::RelinkMode;
    use object::elf;
    use profiles::Weights;
    use proptest::prelude::*;

    use super::*;
    use crate::layout::{LayoutOptions, compute};
    use crate::testing::{End, ProgramBuilder, TEXT_START, TestBlock, image_of, random_program, walk};

    /// An image whose text is these bytes.
    fn image_with_text(bytes: &[u8]) -> Image<'_> {
        let mut image = image_of(bytes);
        image.sections.push(SectionData {
            name: ".text",
            sh_name: 0,
            sh_type: elf::SHT_PROGBITS,
            sh_flags: u64::from(elf::SHF_ALLOC | elf::SHF_EXECINSTR),
            sh_addr: Va(TEXT_START),
            sh_offset: lifter::address::FileOffset(0),
            sh_size: bytes.len() as u64,
            sh_link: 0,
            sh_info: 0,
            sh_addralign: 16,
            sh_entsize: 0,
        });
        image
    }

    /// In *guard* mode, with a kept address at each entry.
    fn guarded(mut program: Program) -> Program {
        program.mode = Some(RelinkMode::Guard);
        let entries: Vec<Block> = program.funcs.values().map(|data| data.entry).collect();
        entries.into_iter().for_each(|entry| program.blocks[entry].flags |= BlockFlags::ANCHOR);
        program
    }

    fn end_of(program: &Program) -> u64 {
        program.blocks.values().map(|data| data.end().0).max().unwrap_or(TEXT_START)
    }

    fn kept(program: &Program) -> Vec<usize> {
        let is_kept = |data: &FuncData| data.pin == Some(PinReason::NotWorthMoving);
        program.funcs.iter().filter(|(_, data)| is_kept(data)).map(|(func, _)| func.index()).collect()
    }

    /// Ten functions that return, the first and the last of which ran.
    fn ten(second: End) -> Program {
        let mut builder = ProgramBuilder::default();
        for index in 0..10 {
            let end = if index == 1 { second.clone() } else { End::Return };
            builder = builder.func(vec![TestBlock::new(160, end)]);
        }
        guarded(builder.build())
    }

    fn keep(program: &mut Program) -> LayoutPlan {
        let bytes = vec![0x90; (end_of(program) - TEXT_START) as usize];
        let mut weights = Weights::none(program.blocks.len(), program.edges.len());
        (weights.blocks[0], weights.blocks[9]) = (5, 5);
        let edits = EditPlan::default();
        let mut plan = compute(program, &weights, &edits, &LayoutOptions::default());
        if let Some(hot_from) = pin_idle(&image_with_text(&bytes), program, &edits, &plan) {
            around_idle(&image_with_text(&bytes), program, hot_from, &mut plan);
        }
        plan
    }

    #[test]
    fn what_never_runs_stays_but_for_what_makes_room() {
        let mut program = ten(End::Return);
        let plan = keep(&mut program);
        assert_eq!(kept(&program), [3, 4, 5, 6, 7, 8], "the second and third function make room for the last one");
        assert_eq!(plan.hot_from, Some(Va(TEXT_START)));
        assert_eq!(plan.fragments.len(), 4);
    }

    #[test]
    fn a_function_leaves_if_a_short_jump_leads_from_it_to_one_that_leaves() {
        let mut program = ten(End::Return);
        program.blocks[Block::new(4)].terminator = Terminator::Jump { target: CodeTarget::Block(Block::new(9)) };
        program.blocks[Block::new(4)].body_len -= 5;
        keep(&mut program);
        assert!(kept(&program).contains(&4), "a long jump can be changed");
        let mut program = ten(End::Return);
        program.blocks[Block::new(4)].terminator = Terminator::Jump { target: CodeTarget::Block(Block::new(9)) };
        program.blocks[Block::new(4)].body_len -= 2;
        program.blocks[Block::new(5)].terminator = Terminator::Fallthrough { next: Block::new(4) };
        keep(&mut program);
        assert_eq!(kept(&program), [3, 6, 7, 8]);
    }

    #[test]
    fn nothing_stays_where_no_address_is_kept() {
        let mut program = ten(End::Return);
        program.mode = Some(RelinkMode::Replace);
        assert_eq!(keep(&mut program).hot_from, None);
        assert_eq!(kept(&program), [0; 0]);
    }

    proptest! {
        #[test]
        fn what_is_left_in_a_plan_is_what_moves(num_funcs in 1usize..30, seed: u64) {
            let mut program = guarded(random_program(num_funcs, 20, seed));
            let weights = walk(&program, 5, seed);
            let edits = EditPlan::default();
            let mut plan = compute(&program, &weights, &edits, &LayoutOptions::default());
            let before = plan.clone();
            let bytes = vec![0x90; (end_of(&program) - TEXT_START) as usize];
            let hot_from = pin_idle(&image_with_text(&bytes), &mut program, &edits, &plan);
            hot_from.into_iter().for_each(|from| around_idle(&image_with_text(&bytes), &program, from, &mut plan));
            let blocks = |plan: &LayoutPlan, temperature| -> Vec<Block> {
                let of = plan.fragments.iter().filter(|fragment| fragment.temperature == temperature && program.funcs[fragment.func].is_movable());
                of.flat_map(|fragment| fragment.blocks.iter().map(|planned| planned.block)).collect()
            };
            for temperature in [Temperature::Hot, Temperature::Cold, Temperature::Unknown] {
                prop_assert_eq!(blocks(&plan, temperature), blocks(&before, temperature));
            }
            prop_assert!(plan.fragments.iter().all(|fragment| program.funcs[fragment.func].is_movable()));
            for data in program.blocks.values().filter(|data| program.funcs[data.func].pin == Some(PinReason::NotWorthMoving)) {
                prop_assert!(near_successors(&program, data).all(|func| !program.funcs[func].is_movable()), "{}", data.start);
            }
        }
    }
}
