//! Which execution of which block, in which context, an access belongs to: a shadow call stack kept from the addresses of instructions alone.
//!
//! A call pushes an activation with the address behind it; arriving at that address pops it and whatever is above. Code outside the program (libraries, the
//! loader) is a blank. Where the trace does not fit (a signal, `longjmp`), the execution of the block that was interrupted is given up, and the stack is cut to the
//! topmost activation that has the block. What is not followed is not checked; nothing is checked that is not followed.

use std::collections::BTreeMap;

use analysis::alias::Verdict;
use analysis::domain::Base;
use analysis::engine::Contexts;
use analysis::hot::Counts;
use analysis::partition::{Criterion, Partition};
use analysis::procedures::Procedure;
use lifter::entity::Block;
use lifter::ir::Program;
use lifter::x86::decode_block;
use lifter::{Image, Va};

use super::facts::Facts;

/// The share of executed instructions that hot blocks have.
const HOT_SHARE: f64 = 0.95;

/// One memory access of the trace.
#[derive(Copy, Clone, Debug)]
pub(super) struct Access {
    pub(super) address: u64,
    pub(super) size: u32,
    pub(super) loads: bool,
    pub(super) stores: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    Call,
    Return,
    Other,
}

/// An instruction of the program.
#[derive(Copy, Clone, Debug)]
struct Known {
    at: Va,
    next: Va,
    block: Block,
    position: u32,
    is_last: bool,
    is_repeated: bool,
    kind: Kind,
}

/// One execution of a block that is going on.
#[derive(Debug)]
struct Execution {
    facts: usize,
    block: usize,
    /// The position that comes next.
    next: u32,
    /// By reference: first byte, byte behind the last, and how many accesses.
    spans: Vec<(u64, u64, u32)>,
}

#[derive(Debug)]
struct Activation {
    facts: Option<usize>,
    return_to: Option<Va>,
    /// Where the return address is, if the trace has shown it.
    frame: Option<u64>,
    open: Option<Execution>,
}

/// A pair that is not what the analysis says.
#[derive(Clone, Debug)]
pub(super) struct Contradiction {
    pub(super) first: Va,
    pub(super) second: Va,
    pub(super) analysis: &'static str,
    pub(super) claim: String,
    pub(super) spans: [(u64, u64); 2],
}

/// What a whole run showed.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) instructions: u64,
    pub(super) executions: u64,
    /// Pairs of accesses checked against a claim, and pairs seen at all.
    pub(super) checked: u64,
    pub(super) seen: u64,
    /// Addresses checked against what describes them.
    pub(super) described: u64,
    pub(super) given_up: u64,
    pub(super) contradictions: BTreeMap<(Va, Va, &'static str), (Contradiction, u64)>,
    /// The blocks that make up `HOT_SHARE` of what was executed, ascending.
    pub(super) hot: Vec<Block>,
    /// By pair: what is said of it in each context that was executed.
    pub(super) pairs: BTreeMap<(Block, u32, u32), Vec<super::facts::Pair>>,
}

pub(super) struct Follower<'c, 's, 'a> {
    facts: Facts<'c, 's, 'a>,
    entry: Va,
    low: Va,
    /// By distance from `low`, one more than the index into `known`.
    index: Vec<u32>,
    known: Vec<Known>,
    /// What has to be added to an address of the file; not known before the program's entry is reached.
    bias: Option<u64>,
    /// The addresses of the entry's first instructions, and how many were matched.
    prologue: Vec<u64>,
    matched: usize,
    candidate: u64,
    stack: Vec<Activation>,
    current: Option<u32>,
    accesses: Vec<Access>,
    /// Where the last call has put its return address.
    pushed: Option<u64>,
    found: Found,
}

impl<'c, 's, 'a> Follower<'c, 's, 'a> {
    pub(super) fn new(image: &Image<'_>, program: &Program, facts: Facts<'c, 's, 'a>) -> Self {
        let low = program.blocks.values().map(|b| b.start).min().unwrap_or_default();
        let high = program.blocks.values().map(|b| b.end()).max().unwrap_or_default();
        let mut follower = Follower {
            facts,
            entry: image.e_entry,
            low,
            index: vec![0; (high - low) as usize],
            known: Vec::new(),
            bias: None,
            prologue: Vec::new(),
            matched: 0,
            candidate: 0,
            stack: Vec::new(),
            current: None,
            accesses: Vec::new(),
            pushed: None,
            found: Found::default(),
        };
        for block in program.blocks.keys() {
            follower.index_block(image, program, block);
        }
        let mut instructions = Vec::new();
        let length = (1..=64).rev().find(|&n| image.read(image.e_entry, n).is_some()).unwrap_or(0);
        lifter::x86::decode_bytes(image.read(image.e_entry, length).unwrap_or(&[]), image.e_entry, &mut instructions);
        let is_straight = |i: &&iced_x86::Instruction| i.flow_control() == iced_x86::FlowControl::Next;
        follower.prologue = instructions.iter().take_while(is_straight).take(8).map(|i| i.ip()).collect();
        follower
    }

    fn index_block(&mut self, image: &Image<'_>, program: &Program, block: Block) {
        let instructions = decode_block(image, program, block);
        let count = instructions.len();
        for (position, instruction) in instructions.iter().enumerate() {
            let kind = match instruction.flow_control() {
                _ if instruction.is_call_near() || instruction.is_call_near_indirect() => Kind::Call,
                iced_x86::FlowControl::Return => Kind::Return,
                _ => Kind::Other,
            };
            self.known.push(Known {
                at: Va(instruction.ip()),
                next: Va(instruction.next_ip()),
                block,
                position: position as u32,
                is_last: position + 1 == count,
                is_repeated: instruction.has_rep_prefix() || instruction.has_repne_prefix(),
                kind,
            });
            self.index[(instruction.ip() - self.low.0) as usize] = self.known.len() as u32;
        }
    }

    pub(super) fn num_instructions(&self) -> u64 {
        self.found.instructions
    }

    pub(super) fn access(&mut self, access: Access) {
        if self.current.is_some() {
            self.accesses.push(access);
        }
    }

    pub(super) fn instruction(&mut self, address: u64) {
        let Some(bias) = self.bias else { return self.find_bias(address) };
        let va = address.wrapping_sub(bias);
        let within = va.wrapping_sub(self.low.0) as usize;
        let number = self.index.get(within).copied().unwrap_or(0);
        let next = number.checked_sub(1);
        if next.is_some() && next == self.current && self.known[number as usize - 1].is_repeated {
            return;
        }
        self.assign();
        let before = std::mem::replace(&mut self.current, next);
        let last = before.map(|b| self.known[b as usize]);
        if last.is_some_and(|l| l.is_last) {
            self.close();
        }
        match next {
            Some(next) => {
                self.found.instructions += 1;
                let next = self.known[next as usize];
                self.arrive(last, next);
            }
            None if last.is_some_and(|l| l.kind == Kind::Call) => {
                let return_to = last.map(|l| l.next);
                self.stack.push(Activation { facts: None, return_to, frame: None, open: None });
            }
            None => {}
        }
    }

    /// The difference between addresses at run time and in the file shows when the entry's first instructions come in a row.
    fn find_bias(&mut self, address: u64) {
        let first = self.prologue.first().copied().unwrap_or(self.entry.0);
        let expected = self.prologue.get(self.matched).copied().unwrap_or(first);
        let start = address.wrapping_sub(expected - first);
        if start & 0xfff == first & 0xfff && (self.matched == 0 || self.candidate == start) {
            self.matched += 1;
            self.candidate = start;
        } else {
            self.matched = 0;
        }
        if self.matched == self.prologue.len() {
            self.bias = Some(start.wrapping_sub(first));
        }
    }

    fn arrive(&mut self, last: Option<Known>, next: Known) {
        match last.map(|l| l.kind) {
            Some(Kind::Call) => return self.enter(last, next),
            Some(Kind::Return) | None if self.come_back(next) => {}
            None => {
                if self.facts.procedure_at(next.block).is_some() && next.position == 0 && !self.is_expected(&next) {
                    // Called from outside.
                    return self.enter(None, next);
                }
                return self.jump_back(&next);
            }
            Some(Kind::Return) => return self.jump_back(&next),
            Some(Kind::Other) => {
                let is_elsewhere = next.position == 0 && !self.is_own_entry(&next);
                if let (true, Some(last), Some(callee)) = (is_elsewhere, last, self.facts.procedure_at(next.block)) {
                    self.go_on_in(callee, last);
                }
            }
        }
        self.advance(&next);
    }

    /// A call's target, or an entry that is called from outside.
    fn enter(&mut self, last: Option<Known>, next: Known) {
        let callee = self.facts.procedure_at(next.block).filter(|_| next.position == 0);
        let caller = self.stack.last().and_then(|a| a.facts).and_then(|f| self.facts.all[f].procedure);
        let facts = callee.map(|callee| {
            let class = last.map_or(0, |last| self.facts.class(caller, last.next, callee));
            self.facts.of(callee, class)
        });
        let frame = last.and(self.pushed);
        self.stack.push(Activation { facts, return_to: last.map(|l| l.next), frame, open: None });
        self.advance(&next);
    }

    /// A jump to another procedure's entry.
    fn go_on_in(&mut self, callee: Procedure, last: Known) {
        let caller = self.stack.last().and_then(|a| a.facts).and_then(|f| self.facts.all[f].procedure);
        let class = self.facts.class(caller, last.next, callee);
        let facts = self.facts.of(callee, class);
        match self.stack.last_mut() {
            // Where its frame is depends on how the jump left the stack.
            Some(top) => (top.facts, top.frame, top.open) = (Some(facts), None, None),
            None => self.stack.push(Activation { facts: Some(facts), return_to: None, frame: None, open: None }),
        }
    }

    fn is_own_entry(&self, next: &Known) -> bool {
        let own = self.stack.last().and_then(|a| a.facts).and_then(|f| self.facts.all[f].procedure);
        own.is_some() && own == self.facts.procedure_at(next.block)
    }

    fn is_expected(&self, next: &Known) -> bool {
        let open = self.stack.last().and_then(|a| a.open.as_ref());
        open.is_some_and(|o| self.facts.all[o.facts].blocks[o.block].0 == next.block && o.next == next.position)
    }

    /// Back behind a call: drops what was called.
    fn come_back(&mut self, next: Known) -> bool {
        /// A search further down than this finds only by chance.
        const DEPTH: usize = 64;
        let found = self.stack.iter().rev().take(DEPTH).position(|a| a.return_to == Some(next.at));
        match found {
            Some(above) => {
                self.stack.truncate(self.stack.len() - 1 - above);
                true
            }
            None => false,
        }
    }

    /// Somewhere into the program, not by a call and not by a return to one (`longjmp`). Which activation it is that goes on cannot be told if several have the
    /// block: so the one that is taken for it has no known frame.
    fn jump_back(&mut self, next: &Known) {
        let is_expected = self.is_expected(next);
        self.advance(next);
        if let Some(top) = self.stack.last_mut().filter(|_| !is_expected) {
            top.frame = None;
        }
    }

    /// The next instruction of the block that is being executed, or the first of another.
    fn advance(&mut self, next: &Known) {
        if self.is_expected(next) {
            if let Some(open) = self.stack.last_mut().and_then(|a| a.open.as_mut()) {
                open.next += 1;
            }
            return;
        }
        if self.stack.last_mut().and_then(|a| a.open.take()).is_some() {
            self.found.given_up += 1;
        }
        if next.position != 0 {
            return;
        }
        let has_block = |facts: &Facts<'_, '_, '_>, a: &Activation| a.facts.and_then(|f| facts.all[f].number_of(next.block));
        let Some(above) = self.stack.iter().rev().take(64).position(|a| has_block(&self.facts, a).is_some()) else { return };
        self.stack.truncate(self.stack.len() - above);
        let Some(top) = self.stack.last_mut() else { return };
        let (Some(facts), Some(block)) = (top.facts, has_block(&self.facts, top)) else { return };
        let count = self.facts.all[facts].blocks[block].1.references.len();
        top.open = Some(Execution { facts, block, next: 1, spans: vec![(0, 0, 0); count] });
    }

    /// Gives the accesses since the last instruction to its references.
    fn assign(&mut self) {
        let accesses = std::mem::take(&mut self.accesses);
        if self.current.is_some_and(|c| self.known[c as usize].kind == Kind::Call) {
            self.pushed = accesses.iter().rev().find(|a| a.stores).map(|a| a.address);
        }
        if let Some(current) = self.current
            && let Some(open) = self.stack.last_mut().and_then(|a| a.open.as_mut())
        {
            let known = self.known[current as usize];
            let (block, facts) = &self.facts.all[open.facts].blocks[open.block];
            if *block == known.block && open.next == known.position + 1 {
                let first = facts.references.partition_point(|r| r.position < known.position);
                let own = facts.references[first..].iter().take_while(|r| r.position == known.position).count();
                give(&accesses, &facts.references[first..first + own], &mut open.spans[first..first + own], known.is_repeated);
            }
        }
        self.accesses = accesses;
        self.accesses.clear();
    }

    /// The block has been executed to its end.
    fn close(&mut self) {
        let Some(top) = self.stack.last_mut() else { return };
        let Some(open) = top.open.take() else { return };
        self.found.executions += 1;
        let (frame, image) = (top.frame, self.bias);
        self.check_values(&open, frame, image);
        let (_, facts) = &mut self.facts.all[open.facts].blocks[open.block];
        facts.executions += 1;
        for pair in &mut facts.pairs {
            let (a, b) = (open.spans[pair.first as usize], open.spans[pair.second as usize]);
            if a.2 == 0 || b.2 == 0 {
                continue;
            }
            let overlaps = a.0 < b.1 && b.0 < a.1;
            pair.executions += 1;
            pair.overlaps += u64::from(overlaps);
            self.found.seen += 1;
            let references = [&facts.references[pair.first as usize], &facts.references[pair.second as usize]];
            let mut is_claimed = false;
            for (analysis, verdict) in [("insensitive", pair.insensitive), ("standard", pair.standard)] {
                let is_wrong = match verdict {
                    Verdict::NoAlias(_) => overlaps,
                    Verdict::MustAlias => a.0 != b.0 && a.2 == 1 && b.2 == 1,
                    Verdict::MayAlias(_) => continue,
                };
                is_claimed = true;
                if is_wrong {
                    let (first, second) = (references[0].at, references[1].at);
                    let contradiction =
                        Contradiction { first, second, analysis, claim: verdict.to_string(), spans: [(a.0, a.1), (b.0, b.1)] };
                    self.found.contradictions.entry((first, second, analysis)).or_insert((contradiction, 0)).1 += 1;
                }
            }
            self.found.checked += u64::from(is_claimed);
        }
    }

    /// Each address must be among those that its value describes.
    fn check_values(&mut self, open: &Execution, frame: Option<u64>, image: Option<u64>) {
        let (_, facts) = &self.facts.all[open.facts].blocks[open.block];
        for (reference, span) in facts.references.iter().zip(&open.spans).filter(|(r, s)| s.2 == 1 && r.size != 0) {
            for (analysis, value) in ["insensitive", "standard"].into_iter().zip(&reference.values) {
                let base = match value.base {
                    Base::NUMBER => Some(0),
                    Base::IMAGE => image,
                    Base::FRAME => frame,
                    _ => None,
                };
                let Some(base) = base else { continue };
                self.found.described += 1;
                if !value.describes(base, span.0) {
                    let (at, claim) = (reference.at, format!("{value:?} from {base:#x}"));
                    let contradiction = Contradiction { first: at, second: at, analysis, claim, spans: [(span.0, span.1); 2] };
                    self.found.contradictions.entry((at, at, analysis)).or_insert((contradiction, 0)).1 += 1;
                }
            }
        }
    }

    pub(super) fn finish(mut self) -> Found {
        let blocks = self.facts.block_counts();
        self.ask_partitioned(&blocks);
        for procedure in &self.facts.all {
            for (block, facts) in &procedure.blocks {
                for pair in facts.pairs.iter().filter(|p| p.executions > 0) {
                    self.found.pairs.entry((*block, pair.first, pair.second)).or_default().push(*pair);
                    if pair.overlaps > 0 && pair.partitioned.is_no_alias() {
                        let [first, second] = [pair.first, pair.second].map(|r| facts.references[r as usize].at);
                        let (analysis, claim) = ("partitioned", pair.partitioned.to_string());
                        let contradiction = Contradiction { first, second, analysis, claim, spans: [(0, 0); 2] };
                        self.found.contradictions.entry((first, second, analysis)).or_insert((contradiction, 0)).1 +=
                            pair.overlaps;
                    }
                }
            }
        }
        self.found
    }

    /// What the analysis with contexts at relevant sites alone says, the run itself being the profile.
    fn ask_partitioned(&mut self, blocks: &[u64]) {
        let summaries = self.facts.summaries();
        let around = &summaries.around;
        let edges = vec![0; around.program.edges.len()];
        let counts = Counts::new(around.program, &around.procedures, &summaries.graph, (blocks, &edges), HOT_SHARE);
        let partition = Partition::by(Criterion::Relevance { theta: 1.0 }, summaries, &counts);
        self.facts.add_partitioned(&Contexts::compute(summaries, partition));
        self.found.hot = around.program.blocks.keys().filter(|&block| counts.is_hot(block)).collect();
    }
}

impl std::fmt::Debug for Follower<'_, '_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("depth", &self.stack.len()).finish_non_exhaustive()
    }
}

/// Each access goes to the first reference that it may be of and that has none yet; those of a repeated instruction, and pieces of one access, add up.
fn give(accesses: &[Access], references: &[super::facts::Expected], spans: &mut [(u64, u64, u32)], is_repeated: bool) {
    for access in accesses {
        let end = access.address + u64::from(access.size);
        let fits = |r: &super::facts::Expected| (!access.loads || r.reads) && (!access.stores || r.writes);
        let free = references.iter().zip(spans.iter()).position(|(r, s)| {
            fits(r) && (s.2 == 0 || is_repeated || r.reads && r.writes && s.0 == access.address || s.1 - s.0 < u64::from(r.size))
        });
        let Some(free) = free else { continue };
        let span = &mut spans[free];
        *span = match span.2 {
            0 => (access.address, end, 1),
            count => (span.0.min(access.address), span.1.max(end), count + 1),
        };
    }
}
