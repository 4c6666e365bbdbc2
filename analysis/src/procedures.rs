//! Procedures: what one call enters. The unit of the analysis of values.
//!
//! **Why not functions.** The lifter's functions are what has to move together: several procedures that fall or jump into each other are one of them, often only because
//! a path that is never taken runs off the end of one. A procedure is an entry and what can be reached from it without passing another entry; going on
//! to another entry is a jump in place of a call, which means the same. Code that several procedures reach belongs to each of them.
//!
//! **Entries** are the entry of each function, and other blocks that are called, that another function jumps to, or that an exported symbol names, and where
//! an unwind entry starts that something names.
//!
//! **Arrivals.** A block whose address is taken, which is no entry, and to which no jump of its own function goes through a table or a computed address: the
//! receiver of a non-local goto, say. Control may arrive there while an activation of its procedure is going on, with nothing known.
//!
//! **Code that may be entered anywhere.** Where an address in a function takes part in arithmetic, and in gaps without an unwind entry that something falls into, nothing
//! is claimed of what holds inside. What a call of the entry does is known nonetheless: that other activations begin elsewhere does not concern this one.

use lifter::entity::{Block, EntityId, Func, PrimaryMap};
use lifter::ir::{BlockFlags, EdgeKind, PinReason, Program, RefRole, RefTarget, StopKind, Terminator};
use lifter::{Image, Va};

lifter::define_id!(
    /// A procedure: an entry and what is reached from it.
    Procedure, "proc");

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ProcedureData {
    pub entry: Block,
    pub func: Func,
}

/// The procedures of a program.
#[derive(Clone, Debug, Default)]
pub struct Procedures {
    /// By function, then by entry.
    pub all: PrimaryMap<Procedure, ProcedureData>,
    /// By function, its first; one more at the end.
    first: Vec<u32>,
    /// By block, the procedure that it is the entry of, or none.
    entered: Vec<Option<Procedure>>,
    /// Ascending.
    arrivals: Vec<Block>,
}

impl Procedures {
    pub fn find(image: &Image<'_>, program: &Program) -> Self {
        let is_entry = entries(image, program);
        let mut procedures = Procedures { entered: vec![None; program.blocks.len()], ..Procedures::default() };
        for (func, data) in program.funcs.iter() {
            procedures.first.push(procedures.all.len() as u32);
            for block in data.blocks.iter().filter(|b| is_entry[b.index()]) {
                procedures.entered[block.index()] = Some(procedures.all.push(ProcedureData { entry: block, func }));
            }
        }
        procedures.first.push(procedures.all.len() as u32);
        procedures.arrivals = arrivals(program, &is_entry);
        procedures
    }

    /// The procedure that a block is the entry of.
    pub fn at(&self, entry: Block) -> Option<Procedure> {
        self.entered[entry.index()]
    }
    pub fn of_func(&self, func: Func) -> impl Iterator<Item = Procedure> + use<> {
        (self.first[func.index()] as usize..self.first[func.index() + 1] as usize).map(Procedure::new)
    }
    pub fn is_arrival(&self, block: Block) -> bool {
        self.arrivals.binary_search(&block).is_ok()
    }

    /// The blocks of a procedure, ascending.
    pub fn reach(&self, program: &Program, procedure: Procedure) -> Vec<Block> {
        let data = self.all[procedure];
        let blocks = program.funcs[data.func].blocks;
        let first = blocks.as_usize().start;
        let mut is_reached = vec![false; blocks.len()];
        let mut has_range = vec![false; program.func_ranges(data.func).len()];
        let first_range = program.funcs[data.func].ranges.as_usize().start;
        let mut waiting = vec![data.entry];
        is_reached[data.entry.index() - first] = true;
        while let Some(block) = waiting.pop() {
            let mut push = |target: Block| {
                let is_own = blocks.contains(target) && (target == data.entry || self.at(target).is_none());
                if is_own && !std::mem::replace(&mut is_reached[target.index() - first], true) {
                    waiting.push(target);
                }
            };
            program.block_edges(block).iter().for_each(|edge| push(edge.target));
            // What an unwind entry's table names is reached from any of its code, and so is what control may arrive at by other ways.
            let range = program.blocks[block].range as usize;
            if !std::mem::replace(&mut has_range[range - first_range], true) {
                self.side_entrances(program, range).into_iter().for_each(push);
            }
        }
        blocks.iter().filter(|b| is_reached[b.index() - first]).collect()
    }

    fn side_entrances(&self, program: &Program, range: usize) -> Vec<Block> {
        let range = &program.ranges[range];
        let table = range.fde.and_then(|fde| program.unwind.fdes[fde].lsda);
        let sites = table.and_then(|t| program.unwind.lsdas.get(t as usize)).map_or(&[][..], |l| &l.call_sites);
        let mut list: Vec<Block> = sites.iter().filter_map(|s| program.block_at(s.landing_pad?)).collect();
        let within = |b: &Block| (range.start..range.end).contains(&program.blocks[*b].start);
        let blocks = program.funcs[range.func].blocks;
        let first = self.arrivals.partition_point(|b| b.index() < blocks.as_usize().start);
        let own = self.arrivals[first..].iter().take_while(|b| blocks.contains(**b));
        list.extend(own.copied().filter(within));
        list
    }

    /// Whether nothing can be claimed of what holds in a block.
    pub fn may_be_entered_anywhere(&self, program: &Program, block: Block) -> bool {
        match program.funcs[program.blocks[block].func].pin {
            Some(PinReason::AddressArithmetic) => true,
            Some(PinReason::NoBounds) => !has_unwind_entry(program, block),
            _ => false,
        }
    }

    /// Whether control may come to a procedure from places that are no direct calls or jumps in understood code.
    pub fn has_unknown_callers(&self, program: &Program, procedure: Procedure) -> bool {
        let entry = &program.blocks[self.all[procedure].entry];
        entry.flags.intersects(BlockFlags::ADDRESS_TAKEN | BlockFlags::ANCHOR)
    }
}

/// By block, whether it is an entry.
fn entries(image: &Image<'_>, program: &Program) -> Vec<bool> {
    let mut is_entry = vec![false; program.blocks.len()];
    for data in program.funcs.values() {
        is_entry[data.entry.index()] = true;
    }
    for (block, data) in program.blocks.iter() {
        for reference in program.block_refs(block) {
            if let (RefRole::Call, RefTarget::Block(target)) = (reference.role, reference.target) {
                is_entry[target.index()] = true;
            }
        }
        for target in targets(&data.terminator, program) {
            is_entry[target.index()] |= program.func_of(target) != data.func;
        }
        let starts_unwind_entry =
            program.ranges[data.range as usize].fde.is_some() && program.ranges[data.range as usize].start == data.start;
        is_entry[block.index()] |= starts_unwind_entry && data.flags.contains(BlockFlags::ENTRY);
    }
    for symbol in image.dynamic_symbols.iter().filter(|s| s.has_address()) {
        if let Some(block) = program.block_at(Va(symbol.st_value)) {
            is_entry[block.index()] = true;
        }
    }
    is_entry
}

fn arrivals(program: &Program, is_entry: &[bool]) -> Vec<Block> {
    let mut is_label = vec![false; program.blocks.len()];
    for edge in program.edges.iter().filter(|e| matches!(e.kind, EdgeKind::Computed | EdgeKind::Table)) {
        is_label[edge.target.index()] = true;
    }
    let may_be_arrived_at = |block: &Block| {
        let flags = program.blocks[*block].flags;
        let is_taken = flags.contains(BlockFlags::ADDRESS_TAKEN) && !is_label[block.index()];
        !is_entry[block.index()] && (is_taken || flags.contains(BlockFlags::ANCHOR))
    };
    program.blocks.keys().filter(may_be_arrived_at).collect()
}

/// Whether an unwind entry covers a block.
pub(crate) fn has_unwind_entry(program: &Program, block: Block) -> bool {
    program.ranges[program.blocks[block].range as usize].fde.is_some()
}

/// The blocks that a terminator goes to directly.
pub(crate) fn targets(terminator: &Terminator, program: &Program) -> Vec<Block> {
    let mut list = Vec::new();
    each_target(terminator, program, |target| list.push(target));
    list
}

/// The same, without a list.
pub(crate) fn each_target(terminator: &Terminator, program: &Program, mut visit: impl FnMut(Block)) {
    use lifter::ir::CodeTarget;
    let mut push = |target: CodeTarget| {
        if let CodeTarget::Block(block) = target {
            visit(block);
        }
    };
    match *terminator {
        Terminator::Fallthrough { next } => push(CodeTarget::Block(next)),
        Terminator::Jump { target } => push(target),
        Terminator::Branch { taken, next, .. } => {
            push(taken);
            push(CodeTarget::Block(next));
        }
        Terminator::Loop { taken, next } => {
            push(CodeTarget::Block(taken));
            push(CodeTarget::Block(next));
        }
        Terminator::Stop(StopKind::TableJump(table)) => program.targets_of(table).iter().copied().for_each(visit),
        Terminator::Stop(_) => {}
    }
}
