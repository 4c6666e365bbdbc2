//! Which blocks something leads to: only these are worth a change.
//!
//! **Method.** From what a loader or another file names (entry point, relocated words, exported symbols, start-up and exit routines) along
//! edges, references, jump tables and landing pads. Code that nothing leads to does not run, whatever a profile of another build says of it; and the checker can tell
//! only of what runs that an edit of it is right.
//!
//! **Terminates**: each block is pushed once.

use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, SecondaryMap};
use lifter::ir::{BlockFlags, CodeTarget, Program, RefTarget, StopKind, Terminator};
use object::elf;

/// For each block, whether it is reached.
pub fn reached(image: &Image<'_>, program: &Program) -> SecondaryMap<Block, bool> {
    let mut search = Search { program, reached: SecondaryMap::new(program.blocks.len(), false), open: Vec::new() };
    search.name(image.e_entry);
    program.slots.iter().for_each(|slot| search.push(slot.target));
    image.dynamic_symbols.iter().filter(|symbol| symbol.has_address()).for_each(|symbol| search.name(Va(symbol.st_value)));
    [elf::DT_INIT, elf::DT_FINI].iter().filter_map(|&tag| image.dynamic_value(tag)).for_each(|value| search.name(Va(value)));
    // An unseen pointer may hold the address of an anchor; one inside of a function is a number that looks like a pointer.
    let entries = program.funcs.values().map(|func| func.entry);
    entries.filter(|&entry| program.blocks[entry].flags.contains(BlockFlags::ANCHOR)).for_each(|entry| search.push(entry));
    while let Some(block) = search.open.pop() {
        search.follow(block);
    }
    search.reached
}

struct Search<'a> {
    program: &'a Program,
    reached: SecondaryMap<Block, bool>,
    open: Vec<Block>,
}

impl Search<'_> {
    fn push(&mut self, block: Block) {
        if !std::mem::replace(&mut self.reached[block], true) {
            self.open.push(block);
        }
    }

    fn name(&mut self, va: Va) {
        if let Some(block) = self.program.block_at(va) {
            self.push(block);
        }
    }

    fn follow(&mut self, block: Block) {
        let program = self.program;
        let data = &program.blocks[block];
        program.block_edges(block).iter().for_each(|edge| self.push(edge.target));
        for reference in program.block_refs(block) {
            match reference.target {
                RefTarget::Block(target) => self.push(target),
                RefTarget::Table(table) => program.targets_of(table).iter().for_each(|&target| self.push(target)),
                RefTarget::Fixed(_) | RefTarget::UnwindTable(_) => {}
            }
        }
        match data.terminator {
            Terminator::Jump { target: CodeTarget::Block(target) }
            | Terminator::Branch { taken: CodeTarget::Block(target), .. } => self.push(target),
            Terminator::Stop(StopKind::TableJump(table)) => {
                program.targets_of(table).iter().for_each(|&target| self.push(target));
            }
            _ => {}
        }
        let table = program.ranges[data.range as usize].fde.and_then(|fde| program.unwind.fdes[fde].lsda);
        if let Some(table) = table.and_then(|table| program.unwind.lsdas.get(table as usize)) {
            let first = table.call_sites.partition_point(|site| site.end <= data.start);
            let within = table.call_sites[first..].iter().take_while(|site| site.start < data.end());
            within.filter_map(|site| site.landing_pad).for_each(|pad| self.name(pad));
        }
    }
}
