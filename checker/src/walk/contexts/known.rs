//! What leads to pairs that were put aside, and what is known there.

use rustc_hash::{FxHashMap, FxHashSet};

use super::super::Walk;
use super::{At, Leading, meet};
use crate::decode::Kind;
use crate::prove::{Called, Entry};

/// What was found in a group of functions.
pub(super) struct Found {
    roots: Vec<u64>,
    sites: Vec<u64>,
    known: FxHashMap<u64, Entry>,
}

impl Walk<'_, '_> {
    /// What functions that hold whoever calls them know where they call what was put aside.
    pub(super) fn leading(&mut self, is_last: bool) -> Leading {
        let mut leading = Leading::default();
        for (at, aside) in &self.contexts.aside {
            if aside.is_open {
                leading.known.insert((*at, 0, None), Entry::default());
            }
        }
        let proven: Vec<Called> = self.contexts.proven.iter().copied().collect();
        for called in proven {
            if let Some(told) = self.told(called.at, &called.entry) {
                meet(&mut leading.known, told, called.entry);
                leading.sites.entry(told).or_default().push(called.site);
            }
        }
        for &(site, at) in &self.contexts.inside {
            if let Some(told) = self.told(at, &Entry::default()) {
                meet(&mut leading.known, told, Entry::default());
                leading.sites.entry(told).or_default().push(site);
            }
        }
        let sites = self.sites_by_group();
        let mut roots: FxHashMap<u32, Vec<u64>> = FxHashMap::default();
        for &(at, _) in self.contexts.roots.keys() {
            let group = self.input.unwind.fde_at(at).map(|fde| self.survey.group_of(fde));
            if let Some(group) = group.filter(|group| sites.contains_key(group)) {
                roots.entry(group).or_default().push(at);
            }
        }
        for (group, places) in sites {
            let mut wanted: Vec<u64> = places.iter().map(|&(from, _)| from).collect();
            let mut roots = roots.remove(&group).unwrap_or_default();
            for list in [&mut wanted, &mut roots] {
                list.sort_unstable();
                list.dedup();
            }
            self.follow_group(group, roots, wanted);
            let Some(found) = self.contexts.groups.get(&group) else { continue };
            for (place, at) in places {
                leading.sites.entry((at, 0, None)).or_default().push(place);
                // What no root leads to yet may be reached later.
                if let Some(entry) = found.known.get(&place).copied().or_else(|| is_last.then(Entry::default)) {
                    meet(&mut leading.known, (at, 0, None), entry);
                }
            }
        }
        leading
    }

    /// The calls that may lead to what was put aside, with what they lead to, by group of the caller.
    fn sites_by_group(&mut self) -> FxHashMap<u32, Vec<(u64, At)>> {
        let mut sites: FxHashMap<u32, Vec<(u64, At)>> = FxHashMap::default();
        let outputs: FxHashSet<u64> = self.contexts.aside.keys().map(|at| at.1).collect();
        let mut leads: FxHashMap<u32, bool> = FxHashMap::default();
        for &(from, to) in &self.contexts.calls {
            let target = self.output.code.address(to as usize);
            let is_sought =
                *leads.entry(to).or_insert_with(|| self.output_leads_to(target).is_some_and(|at| outputs.contains(&at)));
            if !is_sought {
                continue;
            }
            let place = self.input.code.address(from as usize);
            let callee = self.input.inst(place).filter(|inst| inst.kind == Kind::Call);
            let callee = callee.map(|inst| self.input.target(place, inst));
            let at = callee.and_then(|callee| self.leads_to((callee, target)));
            let Some(at) = at.filter(|at| self.contexts.aside.contains_key(at)) else { continue };
            let group = self.input.unwind.fde_at(place).map_or(crate::unwind::NONE, |fde| self.survey.group_of(fde));
            sites.entry(group).or_default().push((place, at));
        }
        sites
    }

    /// Finds the calls of a group, if they are not known from before.
    fn follow_group(&mut self, group: u32, roots: Vec<u64>, sites: Vec<u64>) {
        if self.contexts.groups.get(&group).is_some_and(|found| found.roots == roots && found.sites == sites) {
            return;
        }
        let mut entered = self.contexts.entered.take();
        let is_closed = group != crate::unwind::NONE && !entered.get_or_insert_with(|| self.entered_groups()).contains(&group);
        self.contexts.entered = entered;
        let mut known = FxHashMap::default();
        if is_closed {
            let mut prover = self.take_prover();
            known = prover.known_at(self, group, &roots, &sites);
            self.give_back(prover);
        }
        self.contexts.groups.insert(group, Found { roots, sites, known });
    }

    /// Groups of functions into which code without frame descriptions jumps or runs.
    fn entered_groups(&self) -> FxHashSet<u32> {
        let mut entered = FxHashSet::default();
        let mut enter = |at: u64| entered.extend(self.input.unwind.fde_at(at).map(|fde| self.survey.group_of(fde)));
        crate::leftover::each_instruction(self.input, |address, inst| {
            if self.input.unwind.fde_at(address).is_some() {
                return;
            }
            if matches!(inst.kind, Kind::Jump | Kind::Branch | Kind::Loop) {
                enter(self.input.target(address, inst));
            }
            if !inst.ends_flow() && inst.kind != Kind::Nop {
                enter(address + u64::from(inst.len));
            }
        });
        entered
    }
}
