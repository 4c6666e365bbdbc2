//! What the analyses say of the pairs of each block, in each context, computed when the block is first executed there.

use std::collections::HashMap;

use analysis::alias::{Region, Verdict, judge, pairs};
use analysis::domain::Value;
use analysis::engine::{Contexts, Summaries};
use analysis::graph::SiteId;
use analysis::procedures::Procedure;
use analysis::values::build;
use lifter::Va;
use lifter::entity::{Block, EntityId};

/// A memory reference of a block, as the trace has to show it.
#[derive(Copy, Clone, Debug)]
pub(super) struct Expected {
    /// The instruction's place in the block.
    pub(super) position: u32,
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) size: u32,
    pub(super) at: Va,
    /// Its address by the two analyses.
    pub(super) values: [Value; 2],
}

/// A pair of references, what is said of it, and what was seen.
#[derive(Copy, Clone, Debug)]
pub(super) struct Pair {
    pub(super) first: u32,
    pub(super) second: u32,
    pub(super) insensitive: Verdict,
    pub(super) standard: Verdict,
    /// By relevance, once the run has shown what is hot.
    pub(super) partitioned: Verdict,
    /// A look at the block alone shows that it is apart.
    pub(super) is_apart_locally: bool,
    pub(super) executions: u64,
    pub(super) overlaps: u64,
}

/// A block in a context.
#[derive(Debug, Default)]
pub(super) struct BlockFacts {
    pub(super) references: Vec<Expected>,
    pub(super) pairs: Vec<Pair>,
    pub(super) executions: u64,
}

/// A procedure in a context.
#[derive(Debug, Default)]
pub(super) struct ProcedureFacts {
    /// By number in the procedure.
    pub(super) blocks: Vec<(Block, BlockFacts)>,
    pub(super) procedure: Option<Procedure>,
}

impl ProcedureFacts {
    pub(super) fn number_of(&self, block: Block) -> Option<usize> {
        self.blocks.binary_search_by_key(&block, |b| b.0).ok()
    }
}

/// Everything said, by procedure and class.
#[derive(Debug)]
pub(super) struct Facts<'c, 's, 'a> {
    insensitive: &'c Contexts<'s, 'a>,
    standard: &'c Contexts<'s, 'a>,
    known: HashMap<(Procedure, u32), usize>,
    pub(super) all: Vec<ProcedureFacts>,
}

impl<'c, 's, 'a> Facts<'c, 's, 'a> {
    pub(super) fn new(insensitive: &'c Contexts<'s, 'a>, standard: &'c Contexts<'s, 'a>) -> Self {
        Facts { insensitive, standard, known: HashMap::new(), all: Vec::new() }
    }

    pub(super) fn summaries(&self) -> &'s Summaries<'a> {
        self.insensitive.summaries
    }

    pub(super) fn procedure_at(&self, block: Block) -> Option<Procedure> {
        self.insensitive.summaries.around.procedures.at(block)
    }

    /// The class of a procedure that is called from another, by the address behind the call.
    pub(super) fn class(&self, caller: Option<Procedure>, at: Va, callee: Procedure) -> u32 {
        let site: Option<SiteId> = caller.and_then(|caller| self.standard.summaries.graph.site_at(caller, at, callee));
        site.map_or(0, |site| self.standard.partition.class_of(site))
    }

    /// The facts of a procedure in a class, as an index into `all`.
    pub(super) fn of(&mut self, procedure: Procedure, class: u32) -> usize {
        if let Some(&known) = self.known.get(&(procedure, class)) {
            return known;
        }
        let facts = self.compute(procedure, class);
        self.all.push(facts);
        self.known.insert((procedure, class), self.all.len() - 1);
        self.all.len() - 1
    }

    fn compute(&self, procedure: Procedure, class: u32) -> ProcedureFacts {
        let summaries = self.insensitive.summaries;
        let code = build(&summaries.around, procedure);
        let mut facts = ProcedureFacts { procedure: Some(procedure), ..ProcedureFacts::default() };
        if summaries.summaries[procedure.index()].is_none() {
            facts.blocks = code.blocks.iter().map(|b| (b.block, BlockFacts::default())).collect();
            return facts;
        }
        let (image, knowledge) = (summaries.around.image, summaries.knowledge());
        let shared = self.insensitive.solve(&code, 0);
        let own = self.standard.solve(&code, class);
        for (number, block) in code.blocks.iter().enumerate() {
            let path = [number as u32];
            let known = Region::build(image, &code, &knowledge, &path, &shared.at_start);
            let better = Region::build(image, &code, &knowledge, &path, &own.at_start);
            let mut block_facts = BlockFacts::default();
            // What no analysis thinks can be executed has no facts; executing it is a contradiction of its own.
            if known.references.len() == better.references.len() && summaries.is_understood(procedure, block.block) {
                block_facts.references = known
                    .references
                    .iter()
                    .zip(&better.references)
                    .map(|(r, better)| Expected {
                        position: r.instruction - block.instructions.0,
                        reads: r.reads,
                        writes: r.writes,
                        size: r.size,
                        at: r.at,
                        values: [r.value, better.value],
                    })
                    .collect();
                block_facts.pairs = pairs(&known.references)
                    .map(|(i, j)| {
                        let insensitive = judge(&known.symbols, &known.references[i], &known.references[j]);
                        Pair {
                            first: i as u32,
                            second: j as u32,
                            insensitive,
                            standard: judge(&better.symbols, &better.references[i], &better.references[j]),
                            partitioned: insensitive,
                            is_apart_locally: known.is_apart_locally(&known.references[i], &known.references[j]),
                            executions: 0,
                            overlaps: 0,
                        }
                    })
                    .collect();
            }
            facts.blocks.push((block.block, block_facts));
        }
        facts
    }

    /// How often each block was executed, in all contexts together.
    pub(super) fn block_counts(&self) -> Vec<u64> {
        let mut counts = vec![0; self.insensitive.summaries.around.program.blocks.len()];
        for (block, facts) in self.all.iter().flat_map(|procedure| &procedure.blocks) {
            counts[block.index()] += facts.executions;
        }
        counts
    }

    /// Asks another partition about each pair that was seen.
    pub(super) fn add_partitioned(&mut self, contexts: &Contexts<'_, '_>) {
        let summaries = self.insensitive.summaries;
        for (&(procedure, class), &index) in &self.known {
            let sites = summaries.graph.callers_of(procedure);
            let site = sites.iter().find(|&&site| self.standard.partition.class_of(site) == class);
            let own_class = site.map_or(0, |&site| contexts.partition.class_of(site));
            if contexts.context(procedure, own_class).is_none_or(|context| context.is_empty()) {
                continue;
            }
            let code = build(&summaries.around, procedure);
            let solution = contexts.solve(&code, own_class);
            for (number, (_, facts)) in self.all[index].blocks.iter_mut().enumerate().filter(|(_, b)| !b.1.pairs.is_empty()) {
                let path = [number as u32];
                let region = Region::build(summaries.around.image, &code, &summaries.knowledge(), &path, &solution.at_start);
                for pair in facts.pairs.iter_mut().filter(|p| !p.insensitive.is_no_alias()) {
                    let references = [pair.first, pair.second].map(|r| region.references.get(r as usize));
                    if let [Some(a), Some(b)] = references {
                        pair.partitioned = judge(&region.symbols, a, b);
                    }
                }
            }
        }
    }
}
