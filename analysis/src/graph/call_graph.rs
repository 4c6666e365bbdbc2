//! Who calls whom directly: every call, and every jump out of a procedure, whose target is a procedure's entry.
//!
//! Made from the references and terminators of level 1, without decoding. A site is named by its caller, the address behind the call (or the end of the
//! block that jumps), and the callee, which is what translated code names it by too.

use lifter::Va;
use lifter::entity::{Block, EntityId, PrimaryMap};
use lifter::ir::{Program, RefRole, RefTarget};

use crate::procedures::{Procedure, Procedures, targets};

lifter::define_id!(
    /// A direct call, or jump, to a procedure's entry.
    SiteId, "site");

/// A place where one procedure calls another.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    pub caller: Procedure,
    /// The address behind the call; for a jump the end of its block.
    pub at: Va,
    pub callee: Procedure,
    pub block: Block,
    pub is_tail: bool,
}

fn push_sites(program: &Program, procedures: &Procedures, caller: Procedure, block: Block, sites: &mut Vec<Site>) {
    let data = &program.blocks[block];
    let mut push = |target: Block, at: Va, is_tail: bool| {
        if let Some(callee) = procedures.at(target) {
            sites.push(Site { caller, at, callee, block, is_tail });
        }
    };
    for reference in program.block_refs(block) {
        if let (RefRole::Call, RefTarget::Block(target)) = (reference.role, reference.target) {
            push(target, data.start + u64::from(reference.offset) + u64::from(reference.to_end), false);
        }
    }
    let beyond = targets(&data.terminator, program).into_iter().filter(|&b| program.func_of(b) != data.func);
    let other_entries = program.block_edges(block).iter().map(|e| e.target);
    let other_entries = other_entries.filter(|&b| procedures.at(b).is_some_and(|p| p != caller));
    for target in beyond.chain(other_entries) {
        push(target, data.end(), true);
    }
}

/// All sites, and the edges that they make.
#[derive(Clone, Debug, Default)]
pub struct CallGraph {
    /// Ascending by caller, address and callee.
    pub sites: PrimaryMap<SiteId, Site>,
    /// By caller, where its sites start; one more at the end.
    first_site: Vec<u32>,
    /// By callee, its sites, flattened.
    callers: Vec<SiteId>,
    first_caller: Vec<u32>,
    /// By caller, its callees, each once, flattened.
    callees: Vec<u32>,
    first_callee: Vec<u32>,
}

impl CallGraph {
    pub fn build(program: &Program, procedures: &Procedures) -> Self {
        let mut sites: Vec<Site> = Vec::new();
        for (func, data) in program.funcs.iter() {
            let own: Vec<Procedure> = procedures.of_func(func).collect();
            for &caller in &own {
                match own.len() {
                    1 => data.blocks.iter().for_each(|b| push_sites(program, procedures, caller, b, &mut sites)),
                    _ => procedures
                        .reach(program, caller)
                        .into_iter()
                        .for_each(|b| push_sites(program, procedures, caller, b, &mut sites)),
                }
            }
        }
        sites.sort_unstable_by_key(|s| (s.caller, s.at, s.callee, s.is_tail));
        sites.dedup_by_key(|s| (s.caller, s.at, s.callee));
        Self::index(procedures.all.len(), sites)
    }

    fn index(num_procedures: usize, sites: Vec<Site>) -> Self {
        let starts = |keys: &mut dyn Iterator<Item = usize>| {
            let mut starts = vec![0u32; num_procedures + 1];
            keys.for_each(|key| starts[key + 1] += 1);
            (0..num_procedures).for_each(|i| starts[i + 1] += starts[i]);
            starts
        };
        let first_site = starts(&mut sites.iter().map(|s| s.caller.index()));
        let first_caller = starts(&mut sites.iter().map(|s| s.callee.index()));
        let mut callers: Vec<SiteId> = (0..sites.len()).map(SiteId::new).collect();
        callers.sort_by_key(|&id| sites[id.index()].callee);
        let mut edges: Vec<(Procedure, Procedure)> = sites.iter().map(|s| (s.caller, s.callee)).collect();
        edges.sort_unstable();
        edges.dedup();
        let first_callee = starts(&mut edges.iter().map(|e| e.0.index()));
        let callees = edges.iter().map(|e| e.1.index() as u32).collect();
        CallGraph { sites: sites.into_iter().collect(), first_site, callers, first_caller, callees, first_callee }
    }

    /// The functions that one calls, each once.
    pub fn callees(&self, procedure: u32) -> &[u32] {
        &self.callees[self.first_callee[procedure as usize] as usize..self.first_callee[procedure as usize + 1] as usize]
    }
    /// Where a function is called.
    pub fn callers_of(&self, procedure: Procedure) -> &[SiteId] {
        &self.callers[self.first_caller[procedure.index()] as usize..self.first_caller[procedure.index() + 1] as usize]
    }
    /// Where a function calls others.
    pub fn sites_in(&self, procedure: Procedure) -> impl Iterator<Item = SiteId> + use<> {
        (self.first_site[procedure.index()] as usize..self.first_site[procedure.index() + 1] as usize).map(SiteId::new)
    }
    pub fn has_sites(&self, procedure: Procedure) -> bool {
        self.first_site[procedure.index()] != self.first_site[procedure.index() + 1]
    }
    /// The site behind a call in translated code.
    pub fn site_at(&self, caller: Procedure, at: Va, callee: Procedure) -> Option<SiteId> {
        let range = self.first_site[caller.index()] as usize..self.first_site[caller.index() + 1] as usize;
        let sites = &self.sites.as_slice()[range.clone()];
        let found = sites.binary_search_by_key(&(at, callee), |s| (s.at, s.callee)).ok()?;
        Some(SiteId::new(range.start + found))
    }
}
