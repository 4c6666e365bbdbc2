//! Programs as a distribution ships them, stripped and without relocations: how much of them may move.
#![allow(clippy::print_stderr)]

use lifter::elf::Unwind;
use lifter::entity::{Block, EntityId};
use lifter::ir::{CodeTarget, PinReason, Program, RelinkMode, Terminator};
use lifter::split::{Cut, split};
use lifter::verify::verify;
use lifter::{Image, lift, x86};

const PROGRAMS: [&str; 7] = ["xz", "gzip", "bzip2", "git", "perl", "bash", "sqlite3"];

fn read(name: &str) -> Option<Vec<u8>> {
    let bytes = std::fs::read(std::path::Path::new("/usr/bin").join(name)).ok();
    if bytes.is_none() {
        eprintln!("skipped {name}: it is not installed");
    }
    bytes
}

/// Bytes of compiled code that may move, and all of them.
fn movable_bytes(program: &Program) -> (u64, u64) {
    let compiled = program.funcs.iter().filter(|(_, f)| f.pin != Some(PinReason::LinkerSection));
    compiled.fold((0, 0), |(moved, total), (func, data)| {
        let size = program.func_size(func);
        (moved + if data.is_movable() { size } else { 0 }, total + size)
    })
}

#[test]
fn nearly_all_code_of_stock_programs_may_move() {
    for name in PROGRAMS {
        let Some(bytes) = read(name) else { continue };
        let image = Image::parse(&bytes).expect("parses");
        let program = lift(&image, Unwind::parse(&image).expect("unwinds")).expect("lifts");
        assert_eq!(verify(&image, &program), [], "{name}");
        if program.mode != Some(RelinkMode::Replace) {
            eprintln!("skipped the share of {name}: it is linked at a fixed address");
            continue;
        }
        let (moved, total) = movable_bytes(&program);
        assert!(moved * 100 >= total * 95, "{name}: {moved} of {total} bytes may move");
    }
}

#[test]
fn lifting_gives_the_same_program_for_any_number_of_threads() {
    let Some(bytes) = read("bash") else { return };
    let image = Image::parse(&bytes).expect("parses");
    let lifted = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| format!("{:?}", lift(&image, Unwind::parse(&image).expect("unwinds")).expect("lifts")))
    };
    assert!(lifted(1) == lifted(3));
}

#[test]
fn blocks_cut_before_every_instruction_are_a_program_whose_parts_run_into_each_other() {
    for name in ["gzip", "xz"] {
        let Some(bytes) = read(name) else { continue };
        let image = Image::parse(&bytes).expect("parses");
        let mut program = lift(&image, Unwind::parse(&image).expect("unwinds")).expect("lifts");
        let mut cuts = Vec::new();
        for block in program.blocks.keys().filter(|&block| program.funcs[program.func_of(block)].is_movable()) {
            let start = program.blocks[block].start.0;
            for (num_insts, instruction) in (0..).zip(x86::decode_block(&image, &program, block)) {
                cuts.push(Cut { block, offset: (instruction.ip() - start) as u32, num_insts });
            }
        }
        let (blocks, edges) = (program.blocks.clone(), program.edges.clone());
        let num_refs = program.refs.len();
        let made = split(&mut program, &cuts);
        assert_eq!(verify(&image, &program), [], "{name}");
        assert!(program.blocks.len() > 3 * blocks.len(), "{name}");
        assert_eq!(program.edges.len() - edges.len(), program.blocks.len() - blocks.len(), "{name}");
        assert_eq!(program.blocks.values().map(|data| data.refs.len()).sum::<usize>(), num_refs, "{name}");
        let mut lens = vec![0; blocks.len()];
        program.blocks.values().zip(&made.origins).for_each(|(part, origin)| lens[origin.index()] += part.len);
        for (old, data) in blocks.iter() {
            assert_eq!((program.blocks[made.front(old)].start, lens[old.index()]), (data.start, data.len), "{name}");
        }
        for (block, data) in program.blocks.iter().filter(|(block, _)| made.front(made.origins[block.index()]) != *block) {
            let before = &program.blocks[Block::new(block.index() - 1)];
            assert_eq!((before.terminator, before.end()), (Terminator::Fallthrough { next: block }, data.start), "{name}");
        }
        let jumped = program.blocks.values().filter_map(|data| match data.terminator {
            Terminator::Jump { target: CodeTarget::Block(target) } => Some(target),
            _ => None,
        });
        assert!(jumped.into_iter().all(|target| made.front(made.origins[target.index()]) == target), "{name}");
    }
}
