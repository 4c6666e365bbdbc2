//! Made-up programs for tests: blocks assembled one by one.

use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;
use lifter::FileOffset;
use lifter::elf::image::{FileKind, Segment};
use lifter::entity::{Block, EntityId, Func, IdRange, PrimaryMap};
use lifter::ir::*;
use lifter::{Image, Va};

const SLOT: u64 = 64;

pub(crate) fn at(block: usize) -> u64 {
    0x1000 + SLOT * block as u64
}

/// Made-up code: block `i` lies at `at(i)`, whatever runs into it.
#[derive(Default)]
pub(crate) struct Code {
    bytes: Vec<u8>,
    pub(crate) program: Program,
}

impl Code {
    /// A function with these blocks, each with its code and its end.
    pub(crate) fn func(&mut self, blocks: Vec<(Vec<u8>, Terminator, Vec<usize>)>) -> &mut Self {
        let func = Func::new(self.program.funcs.len());
        let first = self.program.blocks.len();
        let count = blocks.len();
        for (code, terminator, targets) in blocks {
            let source = self.program.blocks.next_id();
            let first_edge = self.program.edges.len();
            for target in targets {
                self.program.edges.push(EdgeData { source, target: Block::new(target), kind: EdgeKind::Taken });
            }
            self.program.blocks.push(BlockData {
                start: Va(at(source.index())),
                func,
                range: func.index() as u32,
                body_len: code.len() as u32,
                len: code.len() as u32,
                num_insts: 1,
                terminator,
                edges: IdRange::from_usize(first_edge..self.program.edges.len()),
                refs: IdRange::EMPTY,
                flags: BlockFlags::empty(),
            });
            self.bytes.extend_from_slice(&code);
            self.bytes.resize(self.program.blocks.len() * SLOT as usize, 0xcc);
        }
        let (start, end) = (Va(at(first)), Va(at(first + count)));
        let range = self.program.ranges.len();
        self.program.ranges.push(CodeRange { start, end, func, fde: None, unwind_class: 0 });
        self.program.funcs.push(FuncData {
            entry: Block::new(first),
            blocks: IdRange::from_usize(first..first + count),
            ranges: IdRange::from_usize(range..range + 1),
            primary_range: range as u32,
            symbol: None,
            pin: None,
            content_hash: 0,
        });
        self
    }

    pub(crate) fn take_address(&mut self, block: usize) -> &mut Self {
        self.program.blocks[Block::new(block)].flags |= BlockFlags::ADDRESS_TAKEN;
        self
    }

    /// Looks at it as a program.
    pub(crate) fn with<R>(&mut self, look: impl FnOnce(&Image<'_>, &Program) -> R) -> R {
        self.program.blocks_by_address = self.program.blocks.keys().collect();
        let len = self.bytes.len() as u64;
        let segment = Segment {
            p_type: 1,
            p_flags: 5,
            p_offset: FileOffset(0),
            p_vaddr: Va(at(0)),
            p_filesz: len,
            p_memsz: len,
            p_align: 0x1000,
        };
        let image = Image {
            bytes: &self.bytes,
            kind: FileKind::PieExecutable,
            e_entry: Va(0),
            e_phoff: FileOffset(0),
            segments: vec![segment],
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
        };
        look(&image, &self.program)
    }
}

/// What an assembler makes of a block's instructions at its place.
pub(crate) fn asm(block: usize, emit: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>) -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    emit(&mut a).unwrap();
    a.assemble(at(block)).unwrap()
}

pub(crate) const RETURN: Terminator = Terminator::Stop(StopKind::Return);

pub(crate) fn jump(block: usize) -> Terminator {
    Terminator::Jump { target: CodeTarget::Block(Block::new(block)) }
}
pub(crate) fn next(block: usize) -> Terminator {
    Terminator::Fallthrough { next: Block::new(block) }
}

/// One function that runs through these blocks in order and returns from the last.
pub(crate) fn straight(blocks: Vec<Vec<u8>>) -> Code {
    let last = blocks.len() - 1;
    let end = |i: usize| if i == last { (RETURN, vec![]) } else { (next(i + 1), vec![i + 1]) };
    let mut code = Code::default();
    let blocks = blocks.into_iter().enumerate().map(|(i, bytes)| (bytes, end(i).0, end(i).1));
    code.func(blocks.collect());
    code
}
