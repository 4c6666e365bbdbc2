//! Which chains a jump joins, kept up to date while chains merge: what block and function ordering have in common.
//!
//! **Invariants.** Two live chains have one link if any jump joins them, else none; each knows the other as a neighbor. A link's version
//! rises with every merge of one of its chains, so what was computed of it before can be told to be stale.

/// All jumps between two chains, in either direction.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// Indices into the caller's jumps.
    pub(crate) jumps: Vec<u32>,
    pub(crate) chains: (u32, u32),
    pub(crate) version: u32,
}

/// What a merge did to a link of the merged chain.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renewed {
    pub(crate) other: u32,
    pub(crate) link: u32,
    /// Whether it took in another link's jumps.
    pub(crate) has_grown: bool,
}

#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Link>,
    /// For each chain: the chains that it is linked to, with the link.
    neighbors: Vec<Vec<(u32, u32)>>,
}

impl Links {
    /// Links from `(chain, chain, jump)`, the two chains different.
    pub(crate) fn new(num_chains: usize, mut pairs: Vec<(u32, u32, u32)>) -> Self {
        for (a, b, _) in &mut pairs {
            (*a, *b) = ((*a).min(*b), (*a).max(*b));
        }
        pairs.sort_unstable();
        let mut links = Self { links: Vec::new(), neighbors: vec![Vec::new(); num_chains] };
        for run in pairs.chunk_by(|x, y| (x.0, x.1) == (y.0, y.1)) {
            let (a, b, _) = run[0];
            let link = links.links.len() as u32;
            links.links.push(Link { jumps: run.iter().map(|&(_, _, jump)| jump).collect(), chains: (a, b), version: 0 });
            links.neighbors[a as usize].push((b, link));
            links.neighbors[b as usize].push((a, link));
        }
        links
    }

    pub(crate) fn get(&self, link: u32) -> &Link {
        &self.links[link as usize]
    }

    pub(crate) fn len(&self) -> u32 {
        self.links.len() as u32
    }

    /// Chain Y goes into X: X gets Y's links, two links to the same chain become one. Returns all of X's links.
    pub(crate) fn merge(&mut self, x: u32, y: u32) -> Vec<Renewed> {
        let mut mine = std::mem::take(&mut self.neighbors[x as usize]);
        let theirs = std::mem::take(&mut self.neighbors[y as usize]);
        if let Some(at) = mine.iter().position(|&(chain, _)| chain == y) {
            let (_, link) = mine.swap_remove(at);
            self.retire(link);
        }
        mine.sort_unstable();
        let mut renewed: Vec<Renewed> = mine.iter().map(|&(other, link)| Renewed { other, link, has_grown: false }).collect();
        for (other, link) in theirs.into_iter().filter(|&(chain, _)| chain != x) {
            match mine.binary_search_by_key(&other, |&(chain, _)| chain) {
                Ok(at) => {
                    let jumps = self.retire(link);
                    self.links[mine[at].1 as usize].jumps.extend(jumps);
                    renewed[at].has_grown = true;
                    self.neighbors[other as usize].retain(|&(chain, _)| chain != y);
                }
                Err(_) => {
                    for neighbor in self.neighbors[other as usize].iter_mut().filter(|(chain, _)| *chain == y) {
                        neighbor.0 = x;
                    }
                    renewed.push(Renewed { other, link, has_grown: false });
                }
            }
        }
        mine.clear();
        for &Renewed { other, link, .. } in &renewed {
            let data = &mut self.links[link as usize];
            data.version += 1;
            data.chains = (x.min(other), x.max(other));
            mine.push((other, link));
        }
        self.neighbors[x as usize] = mine;
        renewed
    }

    /// Empties a link for good.
    fn retire(&mut self, link: u32) -> Vec<u32> {
        let link = &mut self.links[link as usize];
        link.version += 1;
        std::mem::take(&mut link.jumps)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::layout::Random;

    #[test]
    fn links_are_those_that_the_jumps_give_after_any_merges() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let num_chains = 2 + random.below(30);
            let any = |random: &mut Random| random.below(num_chains) as u32;
            let jumps: Vec<(u32, u32)> = (0..60).map(|_| (any(&mut random), any(&mut random))).collect();
            let mut chain_of: Vec<u32> = (0..num_chains as u32).collect();
            let pairs = (0..).zip(&jumps).filter(|(_, (a, b))| a != b).map(|(index, &(a, b))| (a, b, index)).collect();
            let mut links = Links::new(num_chains as usize, pairs);
            for _ in 0..num_chains {
                let (x, y) = (chain_of[any(&mut random) as usize], chain_of[any(&mut random) as usize]);
                if x == y {
                    continue;
                }
                chain_of.iter_mut().filter(|chain| **chain == y).for_each(|chain| *chain = x);
                let renewed = links.merge(x, y);
                assert!(
                    renewed.iter().all(|renewed| links.get(renewed.link).chains == (x.min(renewed.other), x.max(renewed.other)))
                );

                let mut expected: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
                for (index, &(a, b)) in (0..).zip(&jumps) {
                    let (a, b) = (chain_of[a as usize], chain_of[b as usize]);
                    if a != b {
                        expected.entry((a.min(b), a.max(b))).or_default().push(index);
                    }
                }
                let live = links.links.iter().filter(|link| !link.jumps.is_empty());
                let found: BTreeMap<(u32, u32), Vec<u32>> = live
                    .map(|link| {
                        let mut jumps = link.jumps.clone();
                        jumps.sort_unstable();
                        (link.chains, jumps)
                    })
                    .collect();
                assert_eq!(found, expected);
            }
        }
    }
}
