//! Who calls whom directly: every call, and every jump out of a function, whose target is the entry of a function of the program.
//!
//! Made from the references and terminators of level 1, without decoding. A site is named by its caller, the address behind the call (or the end of the
//! block that jumps), and the callee, which is what translated code names it by too.

use lifter::Va;
use lifter::entity::{Block, EntityId, Func, PrimaryMap};
use lifter::ir::{Program, RefRole, RefTarget};

use crate::values::build::targets;

lifter::define_id!(
    /// A direct call, or jump, to a function's entry.
    SiteId, "site");

/// A place where one function calls another.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    pub caller: Func,
    /// The address behind the call; for a jump the end of its block.
    pub at: Va,
    pub callee: Func,
    pub block: Block,
    pub is_tail: bool,
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
    pub fn build(program: &Program) -> Self {
        let mut sites: Vec<Site> = Vec::new();
        for (block, data) in program.blocks.iter() {
            let mut push = |target: Block, at: Va, is_tail: bool| {
                let callee = program.func_of(target);
                if program.funcs[callee].entry == target {
                    sites.push(Site { caller: data.func, at, callee, block, is_tail });
                }
            };
            for reference in program.block_refs(block) {
                if let (RefRole::Call, RefTarget::Block(target)) = (reference.role, reference.target) {
                    push(target, data.start + u64::from(reference.offset) + u64::from(reference.to_end), false);
                }
            }
            for target in targets(&data.terminator, program) {
                if program.func_of(target) != data.func {
                    push(target, data.end(), true);
                }
            }
        }
        sites.sort_unstable_by_key(|s| (s.caller, s.at, s.callee, s.is_tail));
        sites.dedup_by_key(|s| (s.caller, s.at, s.callee));
        Self::index(program.funcs.len(), sites)
    }

    fn index(num_funcs: usize, sites: Vec<Site>) -> Self {
        let starts = |keys: &mut dyn Iterator<Item = usize>| {
            let mut starts = vec![0u32; num_funcs + 1];
            keys.for_each(|key| starts[key + 1] += 1);
            (0..num_funcs).for_each(|i| starts[i + 1] += starts[i]);
            starts
        };
        let first_site = starts(&mut sites.iter().map(|s| s.caller.index()));
        let first_caller = starts(&mut sites.iter().map(|s| s.callee.index()));
        let mut callers: Vec<SiteId> = (0..sites.len()).map(SiteId::new).collect();
        callers.sort_by_key(|&id| sites[id.index()].callee);
        let mut edges: Vec<(Func, Func)> = sites.iter().map(|s| (s.caller, s.callee)).collect();
        edges.sort_unstable();
        edges.dedup();
        let first_callee = starts(&mut edges.iter().map(|e| e.0.index()));
        let callees = edges.iter().map(|e| e.1.index() as u32).collect();
        CallGraph { sites: sites.into_iter().collect(), first_site, callers, first_caller, callees, first_callee }
    }

    /// The functions that one calls, each once.
    pub fn callees(&self, func: u32) -> &[u32] {
        &self.callees[self.first_callee[func as usize] as usize..self.first_callee[func as usize + 1] as usize]
    }
    /// Where a function is called.
    pub fn callers_of(&self, func: Func) -> &[SiteId] {
        &self.callers[self.first_caller[func.index()] as usize..self.first_caller[func.index() + 1] as usize]
    }
    /// Where a function calls others.
    pub fn sites_in(&self, func: Func) -> impl Iterator<Item = SiteId> + use<> {
        (self.first_site[func.index()] as usize..self.first_site[func.index() + 1] as usize).map(SiteId::new)
    }
    pub fn has_sites(&self, func: Func) -> bool {
        self.first_site[func.index()] != self.first_site[func.index() + 1]
    }
    /// The site behind a call in translated code.
    pub fn site_at(&self, caller: Func, at: Va, callee: Func) -> Option<SiteId> {
        let range = self.first_site[caller.index()] as usize..self.first_site[caller.index() + 1] as usize;
        let sites = &self.sites.as_slice()[range.clone()];
        let found = sites.binary_search_by_key(&(at, callee), |s| (s.at, s.callee)).ok()?;
        Some(SiteId::new(range.start + found))
    }
}
