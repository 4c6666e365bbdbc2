//! Register liveness on programs of this machine, against paths: what is dead at a place is not read on any way on from there before it is written.

use analysis::liveness::{Callee, RegisterLiveness, Registers, Saves, step};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register};
use lifter::elf::Unwind;
use lifter::entity::{Block, EntityId, Func, PrimaryMap};
use lifter::ir::{CodeTarget, Program, StopKind, Terminator};
use lifter::x86::decode_block;
use lifter::{Image, lift};

const PROGRAMS: [&str; 7] = [
    "/usr/bin/xz",
    "/usr/bin/gzip",
    "/usr/bin/perl",
    "/usr/bin/bash",
    "/usr/bin/git",
    "/usr/bin/cmake",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
];
const WALKS: u64 = 60_000;
const STEPS: usize = 200;
const DEPTH: usize = 6;

/// A small generator (splitmix64): tests need the same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % limit.max(1) as u64) as usize
    }
}

/// What an instruction reads and writes of general registers, by its operands alone.
fn accesses(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> (Registers, Registers) {
    let (mut reads, mut writes) = (Registers::NONE, Registers::NONE);
    for used in factory.info(instruction).used_registers().iter().filter(|used| used.register().is_gpr()) {
        let register = Registers::general((used.register().full_register() as u32 - Register::RAX as u32) as u8);
        if matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite) {
            reads = reads.union(register);
        }
        if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess) {
            writes = writes.union(register);
        }
    }
    (reads, writes)
}

struct Walker<'a> {
    program: &'a Program,
    code: &'a PrimaryMap<Block, Vec<Instruction>>,
    /// By function, behind which calls it returns.
    callers: &'a [Vec<(Block, usize)>],
    random: Random,
}

impl Walker<'_> {
    fn pick(&mut self, targets: &[Block]) -> Option<Block> {
        (!targets.is_empty()).then(|| targets[self.random.below(targets.len())])
    }

    /// The block that runs behind one, going up to a caller where it returns.
    /// `bottom` is the function that the path began in, or has returned to: jumps in place of calls return for it.
    fn next(&mut self, block: Block, calls: &mut Vec<(Block, usize)>, bottom: &mut Func) -> Option<(Block, usize)> {
        let program = self.program;
        let inside = |target: CodeTarget| match target {
            CodeTarget::Block(block) => Some(block),
            CodeTarget::Fixed(_) => None,
        };
        let start = |block: Option<Block>| Some((block?, 0));
        match program.blocks[block].terminator {
            Terminator::Fallthrough { next } => Some((next, 0)),
            Terminator::Jump { target } => start(inside(target)),
            Terminator::Branch { taken, next, .. } => {
                let is_taken = self.random.below(2) == 0;
                start(if is_taken { inside(taken) } else { Some(next) })
            }
            Terminator::Loop { taken, next } => start(self.pick(&[taken, next])),
            Terminator::Stop(StopKind::TableJump(table)) => {
                let targets = program.targets_of(table).to_vec();
                start(self.pick(&targets))
            }
            Terminator::Stop(StopKind::ComputedJump) => {
                let targets: Vec<Block> = program.block_edges(block).iter().map(|edge| edge.target).collect();
                start(self.pick(&targets))
            }
            Terminator::Stop(StopKind::Return) => calls.pop().or_else(|| {
                let callers = &self.callers[bottom.index()];
                let back = *callers.get(self.random.below(callers.len()))?;
                *bottom = program.func_of(back.0);
                Some(back)
            }),
            Terminator::Stop(_) => None,
        }
    }

    /// Follows a path from behind an instruction, as long as something is dead that was not written since. Gives what it checked.
    fn walk(&mut self, from: (Block, usize), dead: Registers, name: &str) -> usize {
        let (mut block, mut index) = (from.0, from.1 + 1);
        let mut dead = dead;
        let (mut calls, mut bottom) = (Vec::new(), self.program.func_of(from.0));
        let mut factory = InstructionInfoFactory::new();
        for checked in 0..STEPS {
            while index >= self.code[block].len() {
                match self.next(block, &mut calls, &mut bottom) {
                    Some(next) => (block, index) = next,
                    None => return checked,
                }
            }
            let instruction = self.code[block][index];
            let (reads, writes) = accesses(&instruction, &mut factory);
            let place = || format!("{name}: dead behind {:#x}", self.code[from.0][from.1].ip());
            // A call of the kernel preserves what the decoder does not tell.
            if instruction.mnemonic() != Mnemonic::Syscall {
                assert!(!dead.meets(reads), "{}, but {:#x} reads {:?}", place(), instruction.ip(), Registers(dead.0 & reads.0));
            }
            dead = dead.without(writes);
            index += 1;
            match step(self.program, &instruction, &mut factory).callee {
                Callee::None => {}
                Callee::Entry(entry) if calls.len() < DEPTH => {
                    calls.push((block, index));
                    (block, index) = (entry, 0);
                }
                Callee::Boundary => {
                    assert!(!dead.meets(Registers::PASSED), "{}, but {:#x} may pass it", place(), instruction.ip());
                    dead = dead.intersection(Registers::KEPT);
                }
                _ => return checked,
            }
            if dead.is_empty() {
                return checked;
            }
        }
        STEPS
    }
}

#[test]
fn no_path_reads_what_is_dead_before_it_is_written() {
    for path in PROGRAMS {
        let Ok(bytes) = std::fs::read(path) else { continue };
        let image = Image::parse(&bytes).unwrap();
        let program = lift(&image, Unwind::parse(&image).unwrap()).unwrap();
        let liveness = RegisterLiveness::compute(&image, &program, Saves::Read);
        let mut code: PrimaryMap<Block, Vec<Instruction>> = PrimaryMap::default();
        let mut callers = vec![Vec::new(); program.funcs.len()];
        let mut factory = InstructionInfoFactory::new();
        for block in program.blocks.keys() {
            let instructions = decode_block(&image, &program, block);
            for (index, instruction) in instructions.iter().enumerate() {
                if let Callee::Entry(entry) = step(&program, instruction, &mut factory).callee {
                    callers[program.func_of(entry).index()].push((block, index + 1));
                }
            }
            code.push(instructions);
        }
        let mut walker = Walker { program: &program, code: &code, callers: &callers, random: Random(1) };
        let (mut checked, mut free) = (0, 0u64);
        for _ in 0..WALKS {
            let block = Block::new(walker.random.below(program.blocks.len()));
            let behind = liveness.behind_each(&image, &program, block);
            if behind.is_empty() || !program.funcs[program.func_of(block)].is_movable() {
                continue;
            }
            let index = walker.random.below(behind.len());
            let dead = Registers(0xffef).without(behind[index].1);
            free += u64::from(dead.0.count_ones());
            checked += walker.walk((block, index), dead, path);
        }
        // Were nothing dead, the test would say nothing.
        assert!(checked as u64 > WALKS && free > WALKS, "{path}: {checked} steps, {free} dead registers");
    }
}
