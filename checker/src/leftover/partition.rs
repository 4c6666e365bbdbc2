//! Partition refinement: the coarsest partition in which equal nodes have equal labels and, edge by edge, equal successors.
//!
//! **Method.** All nodes with the same label begin in one class. A node whose successors changed their class gets a new signature; the nodes of a
//! class with different signatures part, and the largest part keeps the class, so that only the smaller ones are news for who leads to them
//! (Hopcroft 1971; in this form Jacobs and Wißmann, "Fast Coalgebraic Bisimilarity Minimization", POPL 2023).
//!
//! **Terminates**: a node gets a new class only if its class at least halves, so at most log n times: O((n + m) log n) in all.

/// Who leads to each node.
pub(super) struct Predecessors {
    starts: Vec<u32>,
    nodes: Vec<u32>,
}

impl Predecessors {
    /// `visit` calls its argument with each pair of a node and a successor; it is called twice, and must give the same pairs.
    pub(super) fn new(count: usize, visit: impl Fn(&mut dyn FnMut(u32, u32))) -> Self {
        let mut starts = vec![0u32; count + 1];
        visit(&mut |_, to| starts[to as usize + 1] += 1);
        for index in 0..count {
            starts[index + 1] += starts[index];
        }
        let mut nodes = vec![0u32; starts[count] as usize];
        let mut next = starts.clone();
        visit(&mut |from, to| {
            nodes[next[to as usize] as usize] = from;
            next[to as usize] += 1;
        });
        Self { starts, nodes }
    }

    fn of(&self, node: u32) -> &[u32] {
        &self.nodes[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }
}

pub(super) struct Partition {
    class: Vec<u32>,
    /// The nodes, class by class.
    members: Vec<u32>,
    /// Where each node is in `members`.
    place: Vec<u32>,
    /// The range of each class in `members`.
    ranges: Vec<(u32, u32)>,
}

impl Partition {
    pub(super) fn new(labels: &[u64]) -> Self {
        let mut members: Vec<u32> = (0..labels.len() as u32).collect();
        members.sort_unstable_by_key(|&node| (labels[node as usize], node));
        let mut partition = Self { class: vec![0; labels.len()], place: vec![0; labels.len()], members, ranges: Vec::new() };
        let mut start = 0;
        while start < labels.len() {
            let label = labels[partition.members[start] as usize];
            let size = partition.members[start..].iter().take_while(|&&node| labels[node as usize] == label).count();
            for at in start..start + size {
                let node = partition.members[at] as usize;
                partition.class[node] = partition.ranges.len() as u32;
                partition.place[node] = at as u32;
            }
            partition.ranges.push((start as u32, (start + size) as u32));
            start += size;
        }
        partition
    }

    pub(super) fn class(&self, node: u32) -> u32 {
        self.class[node as usize]
    }

    pub(super) fn classes(&self) -> impl Iterator<Item = &[u32]> {
        self.ranges.iter().map(|&(start, end)| &self.members[start as usize..end as usize])
    }

    /// Refines until it is stable. `signature` hashes what a node says of itself and the classes of its successors.
    pub(super) fn refine(&mut self, predecessors: &Predecessors, signature: impl Fn(&Self, u32) -> u64) {
        let mut changed: Vec<u32> = (0..self.class.len() as u32).collect();
        let mut is_waiting = vec![true; self.class.len()];
        while !changed.is_empty() {
            let mut signed: Vec<(u32, u64, u32)> =
                changed.drain(..).map(|node| (self.class(node), signature(self, node), node)).collect();
            signed.sort_unstable();
            signed.iter().for_each(|&(_, _, node)| is_waiting[node as usize] = false);
            for group in signed.chunk_by(|a, b| a.0 == b.0) {
                self.split(group, |node| {
                    for &before in predecessors.of(node) {
                        if !std::mem::replace(&mut is_waiting[before as usize], true) {
                            changed.push(before);
                        }
                    }
                });
            }
        }
    }

    /// Parts a class by the signatures of those members that have new ones; `group` is sorted by them.
    fn split(&mut self, group: &[(u32, u64, u32)], mut moved: impl FnMut(u32)) {
        let class = group[0].0;
        let (start, end) = self.ranges[class as usize];
        let mut parts: Vec<(u32, u32)> = Vec::new();
        let mut at = start;
        for part in group.chunk_by(|a, b| a.1 == b.1) {
            let from = at;
            for &(_, _, node) in part {
                self.swap(node, at);
                at += 1;
            }
            parts.push((from, at));
        }
        if at < end {
            parts.push((at, end));
        }
        let Some(largest) = (0..parts.len()).max_by_key(|&part| (parts[part].1 - parts[part].0, part)) else { return };
        for (part, &range) in parts.iter().enumerate() {
            if part == largest {
                self.ranges[class as usize] = range;
                continue;
            }
            let new = self.ranges.len() as u32;
            self.ranges.push(range);
            for at in range.0..range.1 {
                let node = self.members[at as usize];
                self.class[node as usize] = new;
                moved(node);
            }
        }
    }

    /// Puts a node of the same class at `at`.
    fn swap(&mut self, node: u32, at: u32) {
        let (from, other) = (self.place[node as usize], self.members[at as usize]);
        self.members.swap(from as usize, at as usize);
        self.place[other as usize] = from;
        self.place[node as usize] = at;
    }
}
