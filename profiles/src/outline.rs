//! What a profile keeps of the program that it was recorded on, so that a rebuilt one can be recognized.
//!
//! **Problem.** A profile is counted on one build and wanted on the next. Addresses and offsets have changed by then; what a block does
//! mostly has not.
//!
//! **Method.** For each block three hashes, from what changes with every build to what changes with the source only:
//! * *strong*: the bytes with every reference masked, and how the block ends;
//! * *middle*: the instructions in order, each as its mnemonic, its constants and the displacements of its memory operands, but
//!   without registers and without the stack's layout: register allocation changes neither;
//! * *loose*: the mnemonics alone.
//!
//! The condition of the branch at the end counts in a form that is the same when the compiler swaps the two ways out, and no-ops do not count.
//! Edges, and which functions a block calls, are kept as well: they are how functions without a name are recognized, and they make a
//! flow network, so that counters can be solved without the old program (`Outline::to_program`).
//!
//! Everything is linear in instructions; functions are hashed in parallel.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use lifter::entity::{Block, EntityId, Func, IdRange};
use lifter::ir::{
    BlockData, BlockFlags, CodeRange, Condition, EdgeData, EdgeKind, FuncData, Program, RefKind, RefTarget, RelinkMode, StopKind,
    Terminator,
};
use lifter::x86::decode_block;
use lifter::{Image, Va};
use rayon::prelude::*;
use xxhash_rust::xxh3::Xxh3;

use crate::flow::{ArcKind, FlowGraph};
use crate::format::{block_offsets, name_of, parts_of};

/// What is kept of a block.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockOutline {
    /// From the function's start, as counters name blocks.
    pub offset: u32,
    pub strong: u32,
    pub middle: u32,
    pub loose: u32,
    pub num_insts: u32,
    /// Whether execution may come to it from outside its function, and leave the function at its end.
    pub may_arrive: bool,
    pub may_depart: bool,
}

/// What is kept of an edge; blocks are numbered within the function.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EdgeOutline {
    pub source: u32,
    pub target: u32,
    pub kind: EdgeKind,
}

/// What is kept of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuncOutline {
    pub name: String,
    pub content_hash: u64,
    /// Number of the block where calls arrive.
    pub entry: u32,
    /// Ascending by address.
    pub blocks: Vec<BlockOutline>,
    /// In the order of `Program::edges`.
    pub edges: Vec<EdgeOutline>,
    /// Block and called function, in the order of the code.
    pub calls: Vec<(u32, u32)>,
    /// Where its parts are, in the order in which offsets run over them: address, and length in bytes. Empty where the profile does not say.
    pub parts: Vec<(Va, u32)>,
}

impl FuncOutline {
    /// The address of an offset, and the end of the part that it is in.
    pub(crate) fn place(&self, offset: u32) -> Option<(Va, Va)> {
        let mut before = 0u64;
        for &(start, len) in &self.parts {
            let within = u64::from(offset) - before;
            if within < u64::from(len) {
                return Some((Va(start.0.checked_add(within)?), Va(start.0.checked_add(u64::from(len))?)));
            }
            before += u64::from(len);
        }
        None
    }
}

/// All functions of a program, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    pub funcs: Vec<FuncOutline>,
}

impl Outline {
    pub fn build(image: &Image<'_>, program: &Program) -> Self {
        let funcs: Vec<Func> = program.funcs.keys().collect();
        let exported = exported_names(image);
        let outline = |&func: &Func| {
            let mut outline = outline_func(image, program, func);
            if outline.name.is_empty() {
                let start = program.blocks[program.funcs[func].entry].start;
                let found = exported.binary_search_by_key(&start, |&(at, _)| at);
                outline.name = found.map_or("", |index| exported[index].1).to_owned();
            }
            outline
        };
        Outline { funcs: funcs.par_iter().map(outline).collect() }
    }

    /// Whether it says where everything is.
    pub fn is_placed(&self) -> bool {
        self.funcs.iter().all(|func| func.blocks.iter().all(|block| func.place(block.offset).is_some()))
    }

    /// A program with the same functions, blocks and edges and no code, as far as flow networks are concerned.
    pub fn to_program(&self) -> Program {
        let mut program = Program { mode: Some(RelinkMode::Replace), ..Program::default() };
        for (number, outline) in self.funcs.iter().enumerate() {
            push_func(&mut program, Func::new(number), outline);
        }
        program.blocks_by_address = program.blocks.keys().collect();
        program
    }
}

/// What `strip` leaves of the names, ascending by address, one for each.
fn exported_names<'a>(image: &Image<'a>) -> Vec<(Va, &'a str)> {
    let named = image.dynamic_symbols.iter().filter(|s| s.has_address() && !s.name.is_empty());
    let mut names: Vec<(Va, &str)> = named.map(|s| (Va(s.st_value), s.name)).collect();
    names.sort_unstable();
    names.dedup_by_key(|&mut (at, _)| at);
    names
}

fn outline_func(image: &Image<'_>, program: &Program, func: Func) -> FuncOutline {
    let data = &program.funcs[func];
    let first = data.blocks.as_usize().start;
    let graph = FlowGraph::build(program, func);
    let mut outline = FuncOutline {
        name: name_of(image, program, func).to_owned(),
        content_hash: data.content_hash,
        entry: data.entry.index().saturating_sub(first) as u32,
        parts: parts_of(program, func),
        ..FuncOutline::default()
    };
    for ((number, block), offset) in (0..).zip(data.blocks.iter()).zip(block_offsets(program, func)) {
        outline.blocks.push(BlockOutline { offset, ..outline_block(image, program, block) });
        let edges = program.block_edges(block).iter().filter(|edge| data.blocks.contains(edge.target));
        outline.edges.extend(edges.map(|edge| EdgeOutline {
            source: number,
            target: (edge.target.index() - first) as u32,
            kind: edge.kind,
        }));
        outline.calls.extend(calls_of(program, block).map(|callee| (number, callee.index() as u32)));
    }
    for arc in &graph.arcs {
        match arc.kind {
            ArcKind::Arrival(i) => outline.blocks[i as usize].may_arrive = true,
            ArcKind::Departure(i) => outline.blocks[i as usize].may_depart = true,
            ArcKind::Block(_) | ArcKind::Edge(_) => {}
        }
    }
    outline
}

/// Functions whose entry a block names, other than its own: callees, and functions whose address it passes on.
fn calls_of(program: &Program, block: Block) -> impl Iterator<Item = Func> + '_ {
    let own = program.func_of(block);
    let named = program.block_refs(block).iter().filter_map(|reference| match reference.target {
        RefTarget::Block(target) => Some(target),
        RefTarget::Fixed(_) | RefTarget::Table(_) | RefTarget::UnwindTable(_) => None,
    });
    let jumped = match program.blocks[block].terminator {
        Terminator::Jump { target: lifter::ir::CodeTarget::Block(target) } => Some(target),
        Terminator::Branch { taken: lifter::ir::CodeTarget::Block(target), .. } => Some(target),
        _ => None,
    };
    named.chain(jumped).map(move |target| program.func_of(target)).filter(move |&func| func != own)
}

fn outline_block(image: &Image<'_>, program: &Program, block: Block) -> BlockOutline {
    let data = &program.blocks[block];
    let end = ending(data.terminator);
    let mut strong = Xxh3::new();
    let mut bytes = image.read(data.start, data.body_len as usize).unwrap_or(&[]).to_vec();
    for reference in program.block_refs(block) {
        let width = if reference.kind == RefKind::Abs64 { 8 } else { 4 };
        let start = reference.offset as usize;
        if let Some(field) = bytes.get_mut(start..start + width) {
            field.fill(0);
        }
    }
    strong.update(&bytes);
    strong.update(&end);
    let (mut middle, mut loose) = (Xxh3::new(), Xxh3::new());
    let instructions = decode_block(image, program, block);
    for instruction in &instructions {
        if matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Endbr64) || instruction.is_jcc_short_or_near() {
            continue;
        }
        if instruction.is_jmp_short_or_near() {
            continue;
        }
        let mnemonic = (instruction.mnemonic() as u32).to_le_bytes();
        loose.update(&mnemonic);
        middle.update(&mnemonic);
        update_middle(&mut middle, instruction);
    }
    middle.update(&end);
    loose.update(&end);
    BlockOutline {
        offset: 0,
        strong: strong.digest() as u32,
        middle: middle.digest() as u32,
        loose: loose.digest() as u32,
        num_insts: data.num_insts,
        may_arrive: false,
        may_depart: false,
    }
}

/// How a block ends, alike for a branch and the inverted one, and for a jump and falling through.
fn ending(terminator: Terminator) -> [u8; 2] {
    match terminator {
        Terminator::Fallthrough { .. } | Terminator::Jump { .. } => [0, 0],
        Terminator::Branch { condition, .. } => [1, pair(condition)],
        Terminator::Loop { .. } => [2, 0],
        Terminator::Stop(StopKind::Return) => [3, 0],
        Terminator::Stop(StopKind::TableJump(_) | StopKind::ComputedJump | StopKind::IndirectTailCall) => [4, 0],
        Terminator::Stop(StopKind::NoReturnCall) => [5, 0],
        Terminator::Stop(StopKind::Trap | StopKind::Unknown) => [6, 0],
    }
}

fn pair(condition: Condition) -> u8 {
    condition.0 >> 1
}

/// The operands of an instruction, but for what register allocation, the stack's layout and the linker decide.
fn update_middle(hash: &mut Xxh3, instruction: &Instruction) {
    for operand in 0..instruction.op_count() {
        match instruction.op_kind(operand) {
            OpKind::Register => hash.update(&[1, instruction.op_register(operand).size() as u8]),
            OpKind::Memory => {
                let base = instruction.memory_base();
                let is_address =
                    base == Register::RIP || (base == Register::None && instruction.memory_index() == Register::None);
                let is_stack = matches!(base, Register::RSP | Register::RBP);
                let displacement = if is_address || is_stack { 0 } else { instruction.memory_displacement64() };
                // A large displacement may be an address.
                let shown = if displacement.wrapping_add(0x1_0000) < 0x2_0000 { displacement } else { 0 };
                hash.update(&[2, u8::from(is_stack), u8::from(is_address), instruction.memory_index_scale() as u8]);
                hash.update(&shown.to_le_bytes());
            }
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => hash.update(&[3]),
            _ => {
                let is_frame = instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::RSP;
                let value = instruction.try_immediate(operand).unwrap_or(0);
                let shown = if is_frame || value.wrapping_add(0x10_0000) >= 0x20_0000 { 0 } else { value };
                hash.update(&[4]);
                hash.update(&shown.to_le_bytes());
            }
        }
    }
}

fn push_func(program: &mut Program, func: Func, outline: &FuncOutline) {
    let first = program.blocks.len();
    let range = program.ranges.len();
    let start = Va(0x1000 + first as u64);
    let mut next_edge = 0;
    for (i, block) in outline.blocks.iter().enumerate() {
        let source = Block::new(first + i);
        let first_edge = program.edges.len();
        while let Some(edge) = outline.edges.get(next_edge).filter(|edge| edge.source as usize == i) {
            program.edges.push(EdgeData { source, target: Block::new(first + edge.target as usize), kind: edge.kind });
            next_edge += 1;
        }
        let stays = program.edges.get(first_edge).map_or(source, |edge| edge.target);
        program.blocks.push(BlockData {
            start: Va(0x1000 + source.index() as u64),
            func,
            range: range as u32,
            body_len: 1,
            len: 1,
            num_insts: block.num_insts,
            // All that a flow network asks of a block's end is whether it leaves.
            terminator: if block.may_depart {
                Terminator::Stop(StopKind::Return)
            } else {
                Terminator::Fallthrough { next: stays }
            },
            edges: IdRange::from_usize(first_edge..program.edges.len()),
            refs: IdRange::EMPTY,
            flags: if block.may_arrive { BlockFlags::ENTRY } else { BlockFlags::empty() },
        });
    }
    let end = start + outline.blocks.len() as u64;
    program.ranges.push(CodeRange { start, end, func, fde: None, unwind_class: 0 });
    program.funcs.push(FuncData {
        entry: Block::new(first + outline.entry as usize),
        blocks: IdRange::from_usize(first..first + outline.blocks.len()),
        ranges: IdRange::from_usize(range..range + 1),
        primary_range: range as u32,
        symbol: None,
        pin: None,
        content_hash: outline.content_hash,
    });
}
