//! Counter placement, derivation, inference and the file format on programs of this machine: walks through their lifted control flow stand in
//! for runs, so that every true count is known.

use lifter::elf::Unwind;
use lifter::entity::{EntityId, Func};
use lifter::ir::Program;
use lifter::{Image, lift};
use profiles::{CounterSite, Descriptor, ProfileFile, attribute, derive, infer, plan_counters};

const PROGRAMS: [&str; 6] = ["/usr/bin/xz", "/usr/bin/gzip", "/usr/bin/bzip2", "/usr/bin/perl", "/usr/bin/bash", "/usr/bin/git"];

/// A small generator of pseudo-random numbers (Marsaglia 2003), the same on every run.
struct Random(u64);

impl Random {
    fn next(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }
}

/// True counts of walks through every movable function. A walk that has not left its function after some hundred steps is taken back, as if it had
/// never been made.
fn walk(program: &Program) -> (Vec<u64>, Vec<u64>) {
    let (mut blocks, mut edges) = (vec![0; program.blocks.len()], vec![0; program.edges.len()]);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for (_, func) in program.funcs.iter().filter(|(_, f)| f.is_movable()) {
        for _ in 0..3 {
            let (mut block, mut trace) = (func.entry, Vec::new());
            let has_left = loop {
                let range = program.blocks[block].edges.as_usize();
                let is_stop = matches!(program.blocks[block].terminator, lifter::ir::Terminator::Stop(_));
                if range.is_empty() {
                    trace.push((block, None));
                    break is_stop;
                }
                if trace.len() > 400 {
                    break false;
                }
                let edge = range.start + random.next(range.len());
                trace.push((block, Some(edge)));
                block = program.edges[edge].target;
            };
            for (block, edge) in trace.into_iter().filter(|_| has_left) {
                blocks[block.index()] += 1;
                edge.into_iter().for_each(|edge: usize| edges[edge] += 1);
            }
        }
    }
    (blocks, edges)
}

fn check(path: &str) {
    let Ok(bytes) = std::fs::read(path) else { return };
    let image = Image::parse(&bytes).unwrap();
    let program = lift(&image, Unwind::parse(&image).unwrap()).unwrap();
    let plan = plan_counters(&image, &program);
    assert_eq!(plan, plan_counters(&image, &program), "{path}: the plan is not the same twice");
    let (blocks, edges) = walk(&program);

    let mut descriptor = Descriptor::build(&image, &program, &plan);
    descriptor.set_entries(image.low(), |func: Func| Some(program.blocks[program.funcs[func].entry].start));
    let mut file = ProfileFile::empty(descriptor);
    assert_eq!(file.counters.len(), plan.counters.len());
    for (counter, site) in file.counters.iter_mut().zip(&plan.counters) {
        *counter = match *site {
            CounterSite::Block(block) => blocks[block.index()],
            CounterSite::Edge(edge) => edges[edge as usize],
        };
    }
    let file = ProfileFile::read(&file.write()).unwrap();
    let found = attribute(&file, &image, &program).unwrap();
    assert!(found.quality.is_exact, "{path}");
    assert_eq!(found.quality.counts_matched, found.quality.counts_total, "{path}");
    assert_eq!(found.counts, derive(&program, &plan, &file.counters), "{path}: the file names other sites than the plan");
    let movable = |block: &lifter::ir::BlockData| program.funcs[block.func].is_movable();
    for (block, data) in program.blocks.iter().filter(|(_, data)| movable(data)) {
        assert_eq!(found.weights.blocks[block.index()], blocks[block.index()], "{path}: {block} at {}", data.start);
        for edge in data.edges.as_usize() {
            if let Some(count) = found.counts.edges[edge].get() {
                assert_eq!(count, edges[edge] as i64, "{path}: edge {edge} of {block}");
            }
        }
    }
    assert_eq!(profiles::infer::first_inconsistent(&program, &found.weights), None, "{path}");

    // Another identity, as after a rebuild: every function is found again by its content.
    let mut rebuilt = file.clone();
    rebuilt.descriptor.identity = [0, 0];
    let again = attribute(&rebuilt, &image, &program).unwrap();
    assert_eq!(again.quality.functions_matched, again.quality.functions_total, "{path}");

    // Lost counters: wrong, but consistent.
    let mut damaged = file.counters.clone();
    damaged.iter_mut().step_by(5).for_each(|counter| *counter /= 2);
    let weights = infer(&program, &derive(&program, &plan, &damaged));
    assert_eq!(profiles::infer::first_inconsistent(&program, &weights), None, "{path}");
}

#[test]
fn counts_of_walks_through_stock_programs_come_back_exactly() {
    PROGRAMS.iter().for_each(|path| check(path));
}

#[test]
fn no_counter_is_placed_where_code_does_not_move() {
    let Some(bytes) = PROGRAMS.iter().find_map(|path| std::fs::read(path).ok()) else { return };
    let image = Image::parse(&bytes).unwrap();
    let program = lift(&image, Unwind::parse(&image).unwrap()).unwrap();
    let plan = plan_counters(&image, &program);
    for site in &plan.counters {
        let block = match *site {
            CounterSite::Block(block) => block,
            CounterSite::Edge(edge) => program.edges[edge as usize].source,
        };
        assert!(program.funcs[program.func_of(block)].is_movable());
    }
    for call in &plan.calls {
        let data = &program.blocks[call.block];
        assert!(call.offset + u32::from(call.len) <= data.len);
    }
}
