//! Which pieces before calls become bodies.
//!
//! **Method.** A node is a piece: all calls that have it are below it, those with one instruction more before it in nodes of their own. A body of a node costs its bytes and a jump,
//! and saves its bytes at each call that uses it. From the longest pieces to the shortest, each node takes the best of three: what its children save; one body for all its calls; the children's, and a body for those calls
//! that no child has one for.

use rustc_hash::FxHashMap;

/// Bytes of the jump at the end of a body.
const JUMP_LEN: i64 = 5;
/// What a body has to save: its start may need a byte of alignment, and unwind tables grow a little.
const SAVED_MIN: i64 = 4;

/// What a node does about its calls.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// What its children do.
    Children,
    /// One body for all.
    Own,
    /// A body for those that the children leave.
    Both,
}

/// Bytes of a piece where it is before a call, and in a body.
#[derive(Copy, Clone, Debug)]
pub(super) struct Lens {
    pub(super) call: u32,
    pub(super) body: u32,
}

#[derive(Debug)]
struct Node {
    lens: Lens,
    num_calls: u32,
    parent: Option<u32>,
    choice: Choice,
    /// Bytes saved by what is chosen, and how many calls have a body by it.
    saved: i64,
    num_covered: u32,
    /// The same of the children together.
    below: (i64, u32),
}

#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// By call one after the other, its nodes from the shortest on.
    paths: Vec<u32>,
    /// By call, where its nodes end.
    ends: Vec<u32>,
}

impl Tree {
    /// Of calls with the hashes of their pieces and how long these are, the shortest first.
    pub(super) fn of<L: Iterator<Item = (u64, Lens)>>(calls: impl Iterator<Item = L>) -> Self {
        let mut tree = Tree { nodes: Vec::new(), paths: Vec::new(), ends: Vec::new() };
        let mut known: FxHashMap<u64, u32> = FxHashMap::default();
        for pieces in calls {
            let mut parent = None;
            for (hash, lens) in pieces {
                let node = *known.entry(hash).or_insert_with(|| {
                    let (choice, below) = (Choice::Children, (0, 0));
                    tree.nodes.push(Node { lens, num_calls: 0, parent, choice, saved: 0, num_covered: 0, below });
                    (tree.nodes.len() - 1) as u32
                });
                tree.nodes[node as usize].num_calls += 1;
                tree.paths.push(node);
                parent = Some(node);
            }
            tree.ends.push(tree.paths.len() as u32);
        }
        drop(known);
        tree.choose();
        tree
    }

    /// A child's number is higher than its parent's.
    fn choose(&mut self) {
        for index in (0..self.nodes.len()).rev() {
            let node = &mut self.nodes[index];
            let (saved_below, covered_below) = node.below;
            let saves = |num_calls: u32| i64::from(num_calls) * i64::from(node.lens.call) - i64::from(node.lens.body) - JUMP_LEN;
            let own = Some(saves(node.num_calls)).filter(|saved| *saved >= SAVED_MIN);
            let rest = Some(saves(node.num_calls - covered_below)).filter(|saved| *saved >= SAVED_MIN);
            let mut best = (saved_below, Choice::Children, covered_below);
            for (saved, choice) in [(rest.map(|rest| saved_below + rest), Choice::Both), (own, Choice::Own)] {
                best = match saved {
                    Some(saved) if saved > best.0 => (saved, choice, node.num_calls),
                    _ => best,
                };
            }
            (node.saved, node.choice, node.num_covered) = best;
            let (parent, add) = (node.parent, (node.saved, node.num_covered));
            if let Some(parent) = parent {
                let below = &mut self.nodes[parent as usize].below;
                *below = (below.0 + add.0, below.1 + add.1);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node that has the body for a call, and how many instructions less one come along.
    pub(super) fn body_for(&self, call: usize) -> Option<(usize, usize)> {
        let start = call.checked_sub(1).map_or(0, |before| self.ends[before]) as usize;
        let mut body = None;
        for (depth, &node) in self.paths[start..self.ends[call] as usize].iter().enumerate() {
            match self.nodes[node as usize].choice {
                Choice::Children => {}
                Choice::Both => body = Some((node as usize, depth)),
                Choice::Own => return Some((node as usize, depth)),
            }
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body of each call, as depth; calls are words of which each letter is an instruction of four bytes, the last one first.
    fn bodies(calls: &[&str]) -> Vec<Option<usize>> {
        let hash = |word: &str, depth: usize| word.bytes().take(depth + 1).fold(7, |hash, byte| hash * 131 + u64::from(byte));
        let hashes: Vec<Vec<u64>> = calls.iter().map(|word| (0..word.len()).map(|depth| hash(word, depth)).collect()).collect();
        let lens = |count: u32| Lens { call: 4 * count, body: 4 * count };
        let tree = Tree::of(hashes.iter().map(|hashes| hashes.iter().copied().zip((1..).map(lens))));
        (0..calls.len()).map(|call| tree.body_for(call).map(|(_, depth)| depth)).collect()
    }

    #[test]
    fn a_piece_that_two_calls_have_is_worth_a_body_if_it_is_longer_than_a_jump() {
        assert_eq!(bodies(&["ab", "ac"]), [None, None]);
        assert_eq!(bodies(&["abc", "abc"]), [Some(2), Some(2)]);
        assert_eq!(bodies(&["abc"]), [None]);
    }

    #[test]
    fn calls_that_share_more_have_a_longer_body() {
        let calls = ["axyz", "axyz", "axyz", "abcd", "abcd", "abcd"];
        assert_eq!(bodies(&calls), [Some(3); 6]);
    }

    #[test]
    fn what_the_longer_bodies_leave_has_a_shorter_one() {
        let calls = ["abxyz", "abxyz", "abxyz", "abc", "abd", "abe", "abf"];
        assert_eq!(bodies(&calls), [Some(4), Some(4), Some(4), Some(1), Some(1), Some(1), Some(1)]);
    }

    #[test]
    fn one_body_for_all_is_better_than_many_that_share_little_more() {
        let calls = ["abcdx", "abcdx", "abcdy", "abcdy"];
        assert_eq!(bodies(&calls), [Some(3); 4]);
    }
}
