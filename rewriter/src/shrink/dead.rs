//! Functions that nothing can reach.
//!
//! **Problem.** A static library's members come whole, and a linker without `--gc-sections` keeps all of them.
//!
//! **Method.** Reachability over the closed set of code addresses (see `ARCHITECTURE.md`): from what a loader, an unwinder or a probe can name and
//! from all that is pinned, along calls, jumps, addresses, jump tables and landing pads, function by function.
//!
//! **Why it is right.** In *replace* mode each address of code that the program can come to hold is in the IR: as a reference, a terminator, an
//! entry of a table, or a slot. What an unresolved jump may reach is pinned, and what is pinned is a root. So control cannot arrive in a
//! function that is not found from the roots, and no pointer to it can exist. In *guard* mode a plain number may be a pointer: nothing is dead there.
//! An offset to a function in data would be a pointer that is none of these; none is known to occur outside of jump tables, but a word that could be
//! one keeps the function all the same. A word of data that names a function keeps it, whether or not anything reads that word.
//!
//! **Terminates**: each function is visited once.

use lifter::Image;
use lifter::address::Va;
use lifter::elf::image::{SectionData, original_name};
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockData, CodeTarget, Program, RefTarget, Terminator};
use object::elf;
use rustc_hash::FxHashSet;

use crate::relink::unwind;

/// The movable functions that nothing reaches, ascending.
pub fn find(image: &Image<'_>, program: &Program) -> Vec<Func> {
    if !program.is_replaceable() {
        return Vec::new();
    }
    let mut search = Search { program, is_live: vec![false; program.funcs.len()], queue: Vec::new() };
    search.roots(image);
    while let Some(func) = search.queue.pop() {
        search.visit(func);
    }
    let is_dead = |func: &Func| program.funcs[*func].is_movable() && !search.is_live[func.index()];
    program.funcs.keys().filter(is_dead).collect()
}

struct Search<'a> {
    program: &'a Program,
    is_live: Vec<bool>,
    queue: Vec<Func>,
}

impl Search<'_> {
    fn func(&mut self, func: Func) {
        if !std::mem::replace(&mut self.is_live[func.index()], true) {
            self.queue.push(func);
        }
    }

    fn block(&mut self, block: Block) {
        self.func(self.program.func_of(block));
    }

    /// An address that may lie anywhere in a function.
    fn address(&mut self, va: Va) {
        let program = self.program;
        let after = program.blocks_by_address.partition_point(|&block| program.blocks[block].start <= va);
        if let Some(&block) = after.checked_sub(1).and_then(|index| program.blocks_by_address.get(index)) {
            self.block(block);
        }
    }

    fn roots(&mut self, image: &Image<'_>) {
        let program = self.program;
        for (func, _) in program.funcs.iter().filter(|(_, data)| !data.is_movable()) {
            self.func(func);
        }
        self.address(image.e_entry);
        for tag in [elf::DT_INIT, elf::DT_FINI] {
            if let Some(value) = image.dynamic_value(tag) {
                self.address(Va(value));
            }
        }
        for symbol in image.dynamic_symbols.iter().filter(|symbol| symbol.has_address()) {
            self.address_of_code(image, Va(symbol.st_value));
        }
        for slot in &program.slots {
            self.block(slot.target);
        }
        for cie in &program.unwind.cies {
            if let Some((_, routine)) = cie.personality {
                self.address_of_code(image, routine);
            }
        }
        for probe in crate::relink::probes(image) {
            self.address_of_code(image, probe);
        }
        self.offsets(image);
    }

    /// Words of data that may be the distance to a function: from where they are, or from the place that code names before them.
    fn offsets(&mut self, image: &Image<'_>) {
        let program = self.program;
        let mut bases: Vec<Va> = program.tables.values().map(|table| table.at).collect();
        bases.extend(program.refs.iter().filter_map(|reference| match reference.target {
            RefTarget::Fixed(va) => Some(va),
            _ => None,
        }));
        bases.sort_unstable();
        bases.dedup();
        let starts: FxHashSet<Va> = program.ranges.iter().map(|range| range.start).collect();
        let (low, high) = (starts.iter().min().copied(), starts.iter().max().copied());
        let (Some(low), Some(high)) = (low, high) else { return };
        // The unwinder's tables name every function, and none for being run.
        let is_table = |s: &SectionData<'_>| unwind::SECTIONS.contains(&original_name(s.name)) || s.sh_type == elf::SHT_RELA;
        let is_data = |s: &&SectionData<'_>| s.is_alloc() && !s.is_executable() && s.has_bytes() && !is_table(s);
        for section in image.sections.values().filter(is_data) {
            let bytes = image.read(section.sh_addr, section.sh_size as usize).unwrap_or(&[]);
            let mut base = None;
            let mut next = bases.partition_point(|&base| base < section.sh_addr);
            for (index, word) in bytes.chunks_exact(4).enumerate() {
                let place = section.sh_addr + 4 * index as u64;
                while let Some(&known) = bases.get(next).filter(|&&known| known <= place) {
                    base = Some(known);
                    next += 1;
                }
                let offset = i64::from(i32::from_le_bytes([word[0], word[1], word[2], word[3]]));
                for from in [Some(place), base].into_iter().flatten() {
                    let target = from.offset(offset);
                    if low <= target && target <= high && starts.contains(&target) {
                        self.address(target);
                    }
                }
            }
        }
    }

    fn address_of_code(&mut self, image: &Image<'_>, va: Va) {
        if image.is_executable(va) {
            self.address(va);
        }
    }

    fn visit(&mut self, func: Func) {
        let program = self.program;
        for block in program.funcs[func].blocks.iter() {
            self.visit_block(block, &program.blocks[block]);
        }
        for range in program.func_ranges(func) {
            let lsda = range.fde.and_then(|fde| program.unwind.fdes[fde].lsda);
            let Some(lsda) = lsda.and_then(|index| program.unwind.lsdas.get(index as usize)) else { continue };
            for pad in lsda.call_sites.iter().filter_map(|site| site.landing_pad) {
                self.address(pad);
            }
        }
    }

    fn visit_block(&mut self, block: Block, data: &BlockData) {
        let program = self.program;
        for reference in program.block_refs(block) {
            match reference.target {
                RefTarget::Block(target) => self.block(target),
                RefTarget::Table(table) => program.targets_of(table).iter().for_each(|&target| self.block(target)),
                RefTarget::Fixed(_) | RefTarget::UnwindTable(_) => {}
            }
        }
        program.block_edges(block).iter().for_each(|edge| self.block(edge.target));
        match data.terminator {
            Terminator::Fallthrough { next } => self.block(next),
            Terminator::Jump { target: CodeTarget::Block(target) } => self.block(target),
            Terminator::Branch { taken, next, .. } => {
                if let CodeTarget::Block(taken) = taken {
                    self.block(taken);
                }
                self.block(next);
            }
            Terminator::Loop { taken, next } => {
                self.block(taken);
                self.block(next);
            }
            Terminator::Jump { .. } | Terminator::Stop(_) => {}
        }
    }
}
