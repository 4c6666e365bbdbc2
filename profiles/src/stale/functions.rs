//! Which function of a build is which of another.
//!
//! **Method**, surest evidence first; each function is matched at most once.
//! 1. Name and content. Local functions may share a name; those of one name are matched by content, and in order if equally many are left.
//! 2. The name without what compilers append: `.cold`, `.part.3`, `.constprop.0`, `.isra.1`, `.lto_priv.7`, `.llvm.123`.
//! 3. Content alone, for functions without a name: the same bytes but for addresses. Equal ones in order.
//! 4. Blocks that few functions have: who shares most of them is a candidate.
//! 5. The neighborhood: what matched blocks of matched functions call is a candidate, and so is what lies between matched functions.
//!    Each new match may tell of others, so this is repeated, a bounded number of times.
//!
//! Candidates of steps 4 and 5 are accepted if enough of their blocks are the same by their loose hash. Except for a bounded number of rounds,
//! everything is linear in blocks and calls, but for sorting.

use lifter::entity::{EntityId, Func};
use rustc_hash::FxHashMap;

use super::blocks::match_blocks;
use crate::outline::{FuncOutline, Outline};

/// By what a function was recognized.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// It is the same.
    Content,
    /// It changed and has its name.
    Name,
    /// It changed and has no name, or another: its blocks, its callers, or what lies around it.
    Neighborhood,
}

/// By function of the old build, its counterpart. Only `wanted` ones are looked for by step 4 and 5.
pub fn match_functions(old: &Outline, new: &Outline, wanted: &[bool]) -> Vec<Option<(Func, Evidence)>> {
    let mut matcher = Matcher {
        old,
        new,
        to_new: vec![None; old.funcs.len()],
        to_old: vec![None; new.funcs.len()],
        is_spread: vec![false; old.funcs.len()],
    };
    matcher.by_name(|name| name);
    matcher.by_name(base_name);
    matcher.by_content();
    matcher.by_rare_blocks(wanted);
    const ROUNDS_MAX: usize = 6;
    for _ in 0..ROUNDS_MAX {
        if !matcher.by_calls(wanted) & !matcher.by_order(wanted) {
            break;
        }
    }
    matcher.to_new
}

/// A name without what compilers append to the names of parts and copies.
pub(crate) fn base_name(name: &str) -> &str {
    const SUFFIXES: [&str; 9] =
        [".cold", ".part", ".constprop", ".isra", ".lto_priv", ".llvm", ".localalias", ".specialized", ".unlikely"];
    let end = SUFFIXES.iter().filter_map(|suffix| name.find(suffix)).filter(|&at| at > 0).min().unwrap_or(name.len());
    &name[..end]
}

struct Matcher<'a> {
    old: &'a Outline,
    new: &'a Outline,
    to_new: Vec<Option<(Func, Evidence)>>,
    to_old: Vec<Option<u32>>,
    /// Whether what a matched function calls was looked at.
    is_spread: Vec<bool>,
}

impl Matcher<'_> {
    fn join(&mut self, old: u32, new: u32, evidence: Evidence) {
        let is_equal = self.old.funcs[old as usize].content_hash == self.new.funcs[new as usize].content_hash;
        let evidence = if is_equal { Evidence::Content } else { evidence };
        self.to_new[old as usize] = Some((Func::new(new as usize), evidence));
        self.to_old[new as usize] = Some(old);
    }

    fn open<'o>(
        funcs: &'o [FuncOutline],
        is_open: impl Fn(usize) -> bool + 'o,
    ) -> impl Iterator<Item = (u32, &'o FuncOutline)> + 'o {
        (0u32..).zip(funcs).filter(move |&(i, _)| is_open(i as usize))
    }

    /// Groups of open functions with the same key, those of the old build and those of the new, ascending.
    fn groups<'o, K: std::hash::Hash + Eq>(&'o self, key: impl Fn(&'o FuncOutline) -> Option<K>) -> Vec<(Vec<u32>, Vec<u32>)> {
        let mut groups: FxHashMap<K, (Vec<u32>, Vec<u32>)> = FxHashMap::default();
        for (i, func) in Self::open(&self.old.funcs, |i| self.to_new[i].is_none()) {
            if let Some(key) = key(func) {
                groups.entry(key).or_default().0.push(i);
            }
        }
        for (i, func) in Self::open(&self.new.funcs, |i| self.to_old[i].is_none()) {
            if let Some(group) = key(func).and_then(|key| groups.get_mut(&key)) {
                group.1.push(i);
            }
        }
        let mut groups: Vec<_> = groups.into_values().filter(|(_, new)| !new.is_empty()).collect();
        groups.sort_unstable();
        groups
    }

    fn by_name(&mut self, key: impl for<'n> Fn(&'n str) -> &'n str) {
        for (old, new) in self.groups(|f| Some(key(&f.name)).filter(|name| !name.is_empty())) {
            self.match_group(&old, &new);
        }
    }

    /// Matches functions of one name.
    fn match_group(&mut self, old: &[u32], new: &[u32]) {
        // So many of one name are told apart by content alone, by hashing.
        const SEARCHED_MAX: usize = 1_000_000;
        if old.len().saturating_mul(new.len()) > SEARCHED_MAX {
            return;
        }
        for &a in old {
            let content = self.old.funcs[a as usize].content_hash;
            let same = new
                .iter()
                .copied()
                .find(|&b| self.to_old[b as usize].is_none() && self.new.funcs[b as usize].content_hash == content);
            if let Some(b) = same {
                self.join(a, b, Evidence::Content);
            }
        }
        let old: Vec<u32> = old.iter().copied().filter(|&a| self.to_new[a as usize].is_none()).collect();
        let new: Vec<u32> = new.iter().copied().filter(|&b| self.to_old[b as usize].is_none()).collect();
        if old.len() == new.len() {
            old.iter().zip(&new).for_each(|(&a, &b)| self.join(a, b, Evidence::Name));
            return;
        }
        const PAIRS_MAX: usize = 2_000;
        if old.len().saturating_mul(new.len()) > PAIRS_MAX {
            return;
        }
        let mut pairs = Vec::new();
        for &a in &old {
            pairs.extend(new.iter().map(|&b| (self.likeness(a, b), a, b)));
        }
        pairs.sort_unstable_by_key(|&(likeness, a, b)| (std::cmp::Reverse(likeness), a, b));
        for (_, a, b) in pairs {
            if self.to_new[a as usize].is_none() && self.to_old[b as usize].is_none() {
                self.join(a, b, Evidence::Name);
            }
        }
    }

    fn by_content(&mut self) {
        for (old, new) in self.groups(|f| Some((f.content_hash, f.blocks.len()))) {
            // Tiny functions are equal by chance; of several, the first is taken for the first only if none is missing.
            let is_tiny = self.old.funcs[old[0] as usize].blocks.iter().map(|b| b.num_insts).sum::<u32>() < 4;
            if old.len() == new.len() || !is_tiny {
                old.iter().zip(&new).for_each(|(&a, &b)| self.join(a, b, Evidence::Content));
            }
        }
    }

    /// How many per thousand of two functions' blocks are the same by their loose hash.
    fn likeness(&self, old: u32, new: u32) -> u32 {
        let sorted = |func: &FuncOutline| {
            let mut hashes: Vec<u32> = func.blocks.iter().map(|b| b.loose).collect();
            hashes.sort_unstable();
            hashes
        };
        let (left, right) = (sorted(&self.old.funcs[old as usize]), sorted(&self.new.funcs[new as usize]));
        let (mut i, mut j, mut shared) = (0, 0, 0);
        while i < left.len() && j < right.len() {
            match left[i].cmp(&right[j]) {
                std::cmp::Ordering::Less => i += 1,
                std::cmp::Ordering::Greater => j += 1,
                std::cmp::Ordering::Equal => (i, j, shared) = (i + 1, j + 1, shared + 1),
            }
        }
        (shared * 1000 / left.len().max(right.len()).max(1)) as u32
    }

    /// Step 4: candidates share blocks that few functions have.
    fn by_rare_blocks(&mut self, wanted: &[bool]) {
        const RARE_MAX: usize = 4;
        const INSTRUCTIONS_MIN: u32 = 4;
        let mut holders: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        for (i, func) in Self::open(&self.new.funcs, |i| self.to_old[i].is_none()) {
            for block in func.blocks.iter().filter(|b| b.num_insts >= INSTRUCTIONS_MIN) {
                let holders = holders.entry(block.middle).or_default();
                if holders.len() <= RARE_MAX && holders.last() != Some(&i) {
                    holders.push(i);
                }
            }
        }
        let mut votes = Vec::new();
        for (i, func) in Self::open(&self.old.funcs, |i| self.to_new[i].is_none() && wanted[i]) {
            let mut count: FxHashMap<u32, u32> = FxHashMap::default();
            for block in func.blocks.iter().filter(|b| b.num_insts >= INSTRUCTIONS_MIN) {
                for &holder in holders.get(&block.middle).filter(|h| h.len() <= RARE_MAX).into_iter().flatten() {
                    *count.entry(holder).or_default() += 1;
                }
            }
            votes.extend(count.into_iter().map(|(holder, count)| (i, holder, count)));
        }
        self.accept(votes, 300);
    }

    /// Accepts the candidates with the most votes, those that are alike enough. Whether there was any.
    fn accept(&mut self, mut votes: Vec<(u32, u32, u32)>, likeness_min: u32) -> bool {
        votes.sort_unstable_by_key(|&(old, new, count)| (std::cmp::Reverse(count), old, new));
        let mut has_any = false;
        for (old, new, _) in votes {
            let is_open = self.to_new[old as usize].is_none() && self.to_old[new as usize].is_none();
            if is_open && self.likeness(old, new) >= likeness_min {
                self.join(old, new, Evidence::Neighborhood);
                has_any = true;
            }
        }
        has_any
    }

    /// Step 5: what matched blocks call, in order. Whether anything was found.
    fn by_calls(&mut self, wanted: &[bool]) -> bool {
        let mut votes: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        for old in 0..self.to_new.len() {
            let Some((new, _)) = self.to_new[old] else { continue };
            let (from, to) = (&self.old.funcs[old], &self.new.funcs[new.index()]);
            let is_told = from.calls.iter().any(|&(_, callee)| wanted[callee as usize] && self.to_new[callee as usize].is_none());
            if !is_told || std::mem::replace(&mut self.is_spread[old], true) {
                continue;
            }
            for (block, found) in (0u32..).zip(match_blocks(from, to)) {
                let Some((counterpart, _)) = found else { continue };
                let (left, right) = (calls_of(from, block), calls_of(to, counterpart));
                if left.len() != right.len() {
                    continue;
                }
                for (&(_, a), &(_, b)) in left.iter().zip(right) {
                    if self.to_new[a as usize].is_none() && self.to_old[b as usize].is_none() {
                        *votes.entry((a, b)).or_default() += 1;
                    }
                }
            }
        }
        self.accept(votes.into_iter().map(|((a, b), count)| (a, b, count)).collect(), 200)
    }

    /// Step 5: what lies between matched functions in both builds. Whether anything was found.
    fn by_order(&mut self, wanted: &[bool]) -> bool {
        let mut votes = Vec::new();
        for (old, _) in wanted.iter().enumerate().filter(|&(old, &is_wanted)| is_wanted && self.to_new[old].is_none()) {
            let before = old.checked_sub(1).and_then(|i| self.to_new[i]).map(|(f, _)| f.index() + 1);
            let after = self.to_new.get(old + 1).copied().flatten().and_then(|(f, _)| f.index().checked_sub(1));
            let is_both = before.is_some() && before == after;
            for candidate in [before, after].into_iter().flatten().filter(|&c| self.to_old.get(c).is_some_and(Option::is_none)) {
                votes.push((old as u32, candidate as u32, 1 + u32::from(is_both)));
            }
        }
        self.accept(votes, 300)
    }
}

fn calls_of(func: &FuncOutline, block: u32) -> &[(u32, u32)] {
    let start = func.calls.partition_point(|&(b, _)| b < block);
    let end = func.calls.partition_point(|&(b, _)| b <= block);
    &func.calls[start..end]
}
