//! Programs made up for tests: control flow without code, and walks through it.

use lifter::Va;
use lifter::elf::Image;
use lifter::elf::image::FileKind;
use lifter::entity::{Block, EntityId, Func, IdRange, PrimaryMap, Table};
use lifter::ir::*;
use proptest::prelude::*;

/// How a made-up block ends. Targets are block indices of the same function.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Fallthrough,
    Jump(usize),
    Branch(usize),
    Return,
    Table(Vec<usize>),
    Computed(Vec<usize>),
}

pub(crate) const BLOCK_BYTES: u32 = 8;

/// A program with one function for each list of ends; every block is `BLOCK_BYTES` long.
pub(crate) fn program(funcs: &[Vec<End>]) -> Program {
    let mut program = Program { mode: Some(RelinkMode::Replace), ..Program::default() };
    for (number, ends) in funcs.iter().enumerate() {
        let func = Func::new(number);
        let first = program.blocks.len();
        let start = Va(0x1000 + u64::from(BLOCK_BYTES) * first as u64);
        let range = program.ranges.len();
        for (i, end) in ends.iter().enumerate() {
            push_block(&mut program, func, first, i, end);
        }
        let end = start + u64::from(BLOCK_BYTES) * ends.len() as u64;
        program.ranges.push(CodeRange { start, end, func, fde: None, unwind_class: 0 });
        program.funcs.push(FuncData {
            entry: Block::new(first),
            blocks: IdRange::from_usize(first..first + ends.len()),
            ranges: IdRange::from_usize(range..range + 1),
            primary_range: range as u32,
            symbol: None,
            pin: None,
            content_hash: 0x1234_5678_9abc_def0 ^ ((number as u64) << 8 | ends.len() as u64),
        });
    }
    program.blocks_by_address = program.blocks.keys().collect();
    program
}

fn push_block(program: &mut Program, func: Func, first: usize, i: usize, end: &End) {
    let at = |index: usize| Block::new(first + index);
    let source = at(i);
    let first_edge = program.edges.len();
    let mut edge = |target: usize, kind: EdgeKind| {
        let edge = EdgeData { source, target: at(target), kind };
        if !program.edges[first_edge..].contains(&edge) {
            program.edges.push(edge);
        }
    };
    let terminator = match end {
        End::Fallthrough => {
            edge(i + 1, EdgeKind::Fallthrough);
            Terminator::Fallthrough { next: at(i + 1) }
        }
        End::Jump(target) => {
            edge(*target, EdgeKind::Taken);
            Terminator::Jump { target: CodeTarget::Block(at(*target)) }
        }
        End::Branch(target) => {
            edge(i + 1, EdgeKind::Fallthrough);
            edge(*target, EdgeKind::Taken);
            Terminator::Branch { condition: Condition(4), taken: CodeTarget::Block(at(*target)), next: at(i + 1) }
        }
        End::Return => Terminator::Stop(StopKind::Return),
        End::Table(targets) => {
            targets.iter().for_each(|&t| edge(t, EdgeKind::Table));
            let table = program.tables.push(TableData {
                at: Va(0x8000),
                entry_size: 4,
                base: TableBase::Own,
                bound: TableBound::Proven,
                targets: IdRange::from_usize(program.table_targets.len()..program.table_targets.len() + targets.len()),
                is_exclusive: true,
            });
            program.table_targets.extend(targets.iter().map(|&t| at(t)));
            let _: Table = table;
            Terminator::Stop(StopKind::TableJump(table))
        }
        End::Computed(targets) => {
            targets.iter().for_each(|&t| edge(t, EdgeKind::Computed));
            Terminator::Stop(StopKind::ComputedJump)
        }
    };
    program.blocks.push(BlockData {
        start: Va(0x1000 + u64::from(BLOCK_BYTES) * source.index() as u64),
        func,
        range: program.ranges.len() as u32,
        body_len: BLOCK_BYTES,
        len: BLOCK_BYTES,
        num_insts: BLOCK_BYTES,
        terminator,
        edges: IdRange::from_usize(first_edge..program.edges.len()),
        refs: IdRange::EMPTY,
        flags: if i == 0 { BlockFlags::ENTRY } else { BlockFlags::empty() },
    });
}

/// An image with nothing in it.
pub(crate) fn empty_image() -> Image<'static> {
    Image {
        bytes: &[],
        kind: FileKind::PieExecutable,
        e_entry: Va(0),
        e_phoff: lifter::FileOffset(0),
        segments: Vec::new(),
        sections: PrimaryMap::new(),
        symbols: PrimaryMap::new(),
        dynamic_symbols: Vec::new(),
        dynamic: Vec::new(),
        dynamic_relocs: Vec::new(),
        static_relocs: Vec::new(),
        has_section_headers: true,
        build_id: None,
        has_ibt: false,
        moves_fini: false,
    }
}

/// Functions of up to `max_blocks` blocks in which every block reaches the last one, which returns.
pub(crate) fn arbitrary_ends(max_blocks: usize) -> impl Strategy<Value = Vec<End>> {
    (2..=max_blocks).prop_flat_map(|num_blocks| {
        let ends: Vec<_> = (0..num_blocks - 1).map(move |i| arbitrary_end(i, num_blocks)).collect();
        ends.prop_map(|mut ends| {
            ends.push(End::Return);
            ends
        })
    })
}

fn arbitrary_end(i: usize, num_blocks: usize) -> impl Strategy<Value = End> {
    let onward = i + 1..num_blocks;
    let targets = (onward.clone(), proptest::collection::vec(0..num_blocks, 0..4)).prop_map(|(first, mut others)| {
        others.push(first);
        others
    });
    prop_oneof![
        2 => Just(End::Fallthrough),
        1 => onward.prop_map(End::Jump),
        5 => (0..num_blocks).prop_map(End::Branch),
        1 => targets.clone().prop_map(End::Table),
        1 => targets.prop_map(End::Computed),
    ]
}

/// The true counts of `choices` interpreted as walks through function 0: each walk goes from the entry to a return.
pub(crate) fn walk(program: &Program, walks: &[Vec<u8>]) -> (Vec<i64>, Vec<i64>) {
    let (mut blocks, mut edges) = (vec![0; program.blocks.len()], vec![0; program.edges.len()]);
    for choices in walks {
        let mut block = program.funcs[Func::new(0)].entry;
        let mut choices = choices.iter();
        loop {
            blocks[block.index()] += 1;
            let range = program.blocks[block].edges.as_usize();
            if range.is_empty() {
                break;
            }
            // Out of choices, the walk goes for the highest block it can, which ends it.
            let highest = || range.clone().max_by_key(|&e| program.edges[e].target).unwrap_or(range.start);
            let edge = choices.next().map_or_else(highest, |&choice| range.start + usize::from(choice) % range.len());
            edges[edge] += 1;
            block = program.edges[edge].target;
        }
    }
    (blocks, edges)
}
