//! Programs for tests, made of blocks and edges without a file behind them.
//!
//! **Method.** Functions are given as lists of blocks with their way out by index; `ProgramBuilder::build` lays them out one after the other
//! from `TEXT_START`, makes edges and references, and returns a program whose invariants are those of a lifted one. Counts come with the
//! blocks, or from random walks.

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::{FileKind, Segment};
use lifter::entity::{Block, EntityId, Func, IdRange, PrimaryMap};
use lifter::ir::{
    BlockData, BlockFlags, CodeRange, CodeTarget, Condition, EdgeData, EdgeKind, Evidence, FuncData, PinReason, Program, RefData,
    RefKind, RefRole, RefTarget, RelinkMode, StopKind, Terminator,
};
use profiles::Weights;

use crate::layout::Random;

pub(crate) const TEXT_START: u64 = 0x1000;

/// How a test block ends; blocks of the same function by index, `next` is always the one after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Fallthrough,
    Jump(usize),
    Branch(usize),
    Loop(usize),
    Switch(Vec<usize>),
    /// A jump to another function, by index.
    TailCall(usize),
    Return,
    Trap,
}

#[derive(Clone, Debug)]
pub(crate) struct TestBlock {
    pub(crate) len: u32,
    pub(crate) end: End,
    /// Functions that are called here, by index.
    pub(crate) calls: Vec<usize>,
    /// Starts a new code range of this unwind class.
    pub(crate) new_range: Option<u32>,
}

impl TestBlock {
    pub(crate) fn new(len: u32, end: End) -> Self {
        Self { len, end, calls: Vec::new(), new_range: None }
    }
    pub(crate) fn calling(mut self, func: usize) -> Self {
        self.calls.push(func);
        self
    }
    pub(crate) fn in_new_range(mut self, unwind_class: u32) -> Self {
        self.new_range = Some(unwind_class);
        self
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramBuilder {
    funcs: Vec<(Vec<TestBlock>, Option<PinReason>)>,
}

impl ProgramBuilder {
    pub(crate) fn func(mut self, blocks: Vec<TestBlock>) -> Self {
        self.funcs.push((blocks, None));
        self
    }
    pub(crate) fn pinned(mut self, blocks: Vec<TestBlock>) -> Self {
        self.funcs.push((blocks, Some(PinReason::DataInText)));
        self
    }

    pub(crate) fn build(self) -> Program {
        let mut program = Program { mode: Some(RelinkMode::Replace), ..Program::default() };
        let mut firsts = Vec::new();
        let mut num_blocks = 0;
        for (blocks, _) in &self.funcs {
            firsts.push(num_blocks);
            num_blocks += blocks.len();
        }
        let mut at = Va(TEXT_START);
        for (index, (blocks, pin)) in self.funcs.iter().enumerate() {
            at = at.align_up(16);
            add_func(&mut program, &firsts, index, blocks, *pin, &mut at);
        }
        program.blocks_by_address = program.blocks.keys().collect();
        program
    }
}

fn add_func(program: &mut Program, firsts: &[usize], index: usize, blocks: &[TestBlock], pin: Option<PinReason>, at: &mut Va) {
    let func = Func::new(index);
    let first = firsts[index];
    let (first_range, first_start) = (program.ranges.len(), *at);
    program.ranges.push(CodeRange { start: first_start, end: first_start, func, fde: None, unwind_class: 0 });
    for (local, block) in blocks.iter().enumerate() {
        if let Some(unwind_class) = block.new_range {
            if local == 0 {
                program.ranges.truncate(first_range);
            }
            *at = at.align_up(16);
            program.ranges.push(CodeRange { start: *at, end: *at, func, fde: None, unwind_class });
        }
        let data = block_data(program, firsts, first, local, block, func, *at);
        *at = data.end();
        program.blocks.push(data);
        if let Some(range) = program.ranges.last_mut() {
            range.end = *at;
        }
    }
    program.funcs.push(FuncData {
        entry: Block::new(first),
        blocks: IdRange::from_usize(first..first + blocks.len()),
        ranges: IdRange::from_usize(first_range..program.ranges.len()),
        primary_range: first_range as u32,
        symbol: None,
        pin,
        content_hash: 0,
    });
}

fn block_data(
    program: &mut Program,
    firsts: &[usize],
    first: usize,
    local: usize,
    block: &TestBlock,
    func: Func,
    start: Va,
) -> BlockData {
    let id = |local: usize| Block::new(first + local);
    let (source, next) = (id(local), id(local + 1));
    let condition = Condition(4);
    let (terminator, terminator_len, targets) = match &block.end {
        End::Fallthrough => (Terminator::Fallthrough { next }, 0, vec![(next, EdgeKind::Fallthrough)]),
        End::Jump(to) => (Terminator::Jump { target: CodeTarget::Block(id(*to)) }, 2, vec![(id(*to), EdgeKind::Taken)]),
        End::Branch(to) => (
            Terminator::Branch { condition, taken: CodeTarget::Block(id(*to)), next },
            2,
            vec![(next, EdgeKind::Fallthrough), (id(*to), EdgeKind::Taken)],
        ),
        End::Loop(to) => {
            (Terminator::Loop { taken: id(*to), next }, 2, vec![(next, EdgeKind::Fallthrough), (id(*to), EdgeKind::Taken)])
        }
        End::Switch(targets) => {
            let table = EntityId::new(0);
            (Terminator::Stop(StopKind::TableJump(table)), 0, targets.iter().map(|&to| (id(to), EdgeKind::Table)).collect())
        }
        End::TailCall(to) => (Terminator::Jump { target: CodeTarget::Block(Block::new(firsts[*to])) }, 5, Vec::new()),
        End::Return => (Terminator::Stop(StopKind::Return), 0, Vec::new()),
        End::Trap => (Terminator::Stop(StopKind::Trap), 0, Vec::new()),
    };
    let first_edge = program.edges.len();
    program.edges.extend(targets.into_iter().map(|(target, kind)| EdgeData { source, target, kind }));
    let first_ref = program.refs.len();
    program.refs.extend(block.calls.iter().enumerate().map(|(call, &to)| RefData {
        offset: 5 * call as u32 + 1,
        to_end: 4,
        kind: RefKind::Rel32,
        role: RefRole::Call,
        evidence: Evidence::Derived,
        target: RefTarget::Block(Block::new(firsts[to])),
    }));
    BlockData {
        start,
        func,
        range: program.ranges.len() as u32 - 1,
        body_len: block.len - terminator_len,
        len: block.len,
        num_insts: block.len.div_ceil(4),
        terminator,
        edges: IdRange::from_usize(first_edge..program.edges.len()),
        refs: IdRange::from_usize(first_ref..program.refs.len()),
        flags: if local == 0 { BlockFlags::ENTRY } else { BlockFlags::empty() },
    }
}

/// An image with nothing but these bytes at `TEXT_START`.
pub(crate) fn image_of(bytes: &[u8]) -> Image<'_> {
    let segment = Segment {
        p_type: object::elf::PT_LOAD,
        p_flags: object::elf::PF_R | object::elf::PF_X,
        p_offset: FileOffset(0),
        p_vaddr: Va(TEXT_START),
        p_filesz: bytes.len() as u64,
        p_memsz: bytes.len() as u64,
        p_align: 0x1000,
    };
    Image {
        bytes,
        kind: FileKind::PieExecutable,
        e_entry: Va(TEXT_START),
        e_phoff: FileOffset(0),
        segments: vec![segment],
        sections: PrimaryMap::new(),
        has_section_headers: false,
        symbols: PrimaryMap::new(),
        dynamic_symbols: Vec::new(),
        dynamic: Vec::new(),
        dynamic_relocs: Vec::new(),
        static_relocs: Vec::new(),
        build_id: None,
        has_ibt: false,
        moves_fini: false,
    }
}

/// A random program: functions of up to `blocks_max` blocks that call each other, some pinned, some with a second unwind class.
pub(crate) fn random_program(num_funcs: usize, blocks_max: u64, seed: u64) -> Program {
    random_program_with(num_funcs, blocks_max, true, seed)
}

/// The same, where a function may be asked to have one code range.
pub(crate) fn random_program_with(num_funcs: usize, blocks_max: u64, has_ranges: bool, seed: u64) -> Program {
    let mut random = Random::new(seed);
    let mut builder = ProgramBuilder::default();
    for _ in 0..num_funcs {
        let num_blocks = 1 + random.below(blocks_max) as usize;
        let any = |random: &mut Random| random.below(num_blocks as u64) as usize;
        let mut blocks = Vec::new();
        for local in 0..num_blocks {
            let is_last = local + 1 == num_blocks;
            let end = match random.below(if is_last { 3 } else { 12 }) {
                0 => End::Jump(any(&mut random)),
                1 => End::Return,
                2 if random.below(2) == 0 => End::TailCall(random.below(num_funcs as u64) as usize),
                2 => End::Switch((0..3).map(|_| any(&mut random)).collect()),
                3 => End::Loop(any(&mut random)),
                4 | 5 => End::Fallthrough,
                _ => End::Branch(any(&mut random)),
            };
            let mut block = TestBlock::new(12 + random.below(60) as u32, end);
            if random.below(4) == 0 {
                block = block.calling(random.below(num_funcs as u64) as usize);
            }
            if has_ranges && random.below(20) == 0 {
                block = block.in_new_range(random.below(2) as u32);
            }
            blocks.push(block);
        }
        builder = if random.below(10) == 0 { builder.pinned(blocks) } else { builder.func(blocks) };
    }
    builder.build()
}

/// Weights as a run gives them: walks through some functions, each from its entry, `num_walks` of them.
pub(crate) fn walk(program: &Program, num_walks: u64, seed: u64) -> Weights {
    let mut random = Random::new(seed);
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    for _ in 0..num_walks {
        let func = Func::new(random.below(program.funcs.len() as u64) as usize);
        let mut at = program.funcs[func].entry;
        for _ in 0..100 {
            weights.blocks[at.index()] += 1;
            let edges = program.blocks[at].edges.as_usize();
            if edges.is_empty() {
                break;
            }
            // Lopsided, as branches are: the block's number decides which way is the usual one.
            let usual = at.index() % edges.len();
            let way = if random.below(8) == 0 { random.below(edges.len() as u64) as usize } else { usual };
            weights.edges[edges.start + way] += 1;
            at = program.edges[edges.start + way].target;
        }
    }
    weights
}
