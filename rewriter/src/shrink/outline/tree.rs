//! Which pieces before calls are put where the calls lead.
//!
//! **Method.** A node is a piece: all calls that have it are below it, those with one instruction more before it in nodes of their own. A *body* of a node costs its bytes and a jump,
//! and saves its bytes at each call that uses it. From the longest pieces to the shortest, each node takes the best of three: what its children save; one body for all its calls; the children's, and a body for those calls
//! that no child has one for.
//!
//! The pieces of one way from a root down, where the root is a function that something may stand before, may be a *lead* instead: the function's first instruction follows them, so there is no jump, and
//! a shorter piece is the end of a longer one, so each call enters at its own. A node on that way costs its one instruction, and saves its bytes at each call that enters there: those that end there, and
//! those below that are not on the way on, but for what bodies there save more for. Of each root the way that saves the most is taken, if it saves more than bodies alone. Then bodies are chosen
//! once more: what of a body is on the lead stands there already, and the body jumps to it.

use rustc_hash::FxHashMap;

/// What a body has to save: its start may need a byte of alignment, and unwind tables grow a little.
const SAVED_MIN: i32 = 4;

/// As a number that may be negative. No sum of bytes of a program's code has more than 31 bits, since it addresses them all by such distances.
fn bytes(count: u32) -> i32 {
    count.cast_signed()
}

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

/// Where a call finds its piece; `depth` is how many instructions less one come along.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Body {
        node: usize,
        depth: usize,
    },
    /// Before the function itself.
    Lead {
        depth: usize,
    },
}

/// Bytes of a piece where it is before a call, in a body, and of the jump behind it there.
#[derive(Copy, Clone, Debug)]
pub(super) struct Lens {
    pub(super) call: u32,
    pub(super) body: u32,
    pub(super) jump: u32,
}

/// A call as the tree sees it.
pub(super) struct TreeCall<P> {
    /// The function called, if something may stand before it.
    pub(super) root: Option<u32>,
    /// How many bytes have to be put in a body to be worth its time.
    pub(super) body_min: u32,
    /// Hashes of its pieces and how long these are, the shortest first.
    pub(super) pieces: P,
}

#[derive(Debug)]
struct Node {
    lens: Lens,
    /// Calls that may have a body of this, and those that may not, but perhaps a longer one.
    num_calls: u32,
    num_spared: u32,
    parent: Option<u32>,
    choice: Choice,
    /// Whether, next to a lead, all calls enter that.
    yields: bool,
    is_on_lead: bool,
    /// Bytes of a body of this that are on the lead.
    led: u32,
    /// Bytes saved by what is chosen, at least, and how many calls have a body by it, at most.
    saved: i32,
    num_covered: u32,
    /// The same of the children together.
    below: (i32, u32),
    /// If this is on a lead: bytes saved by the calls of the children when none of these is, and how many calls that are.
    below_lead: (i32, u32),
    /// What is saved more if a child is on it too.
    longer: Longer,
}

/// Bytes saved more by the best node that may come next on a lead.
#[derive(Copy, Clone, Debug, Default)]
struct Longer {
    gain: i32,
    node: u32,
}

impl Longer {
    fn or(self, other: Longer) -> Self {
        if other.gain > self.gain { other } else { self }
    }
}

impl Node {
    fn new(lens: Lens, parent: Option<u32>) -> Self {
        Node {
            lens,
            num_calls: 0,
            num_spared: 0,
            parent,
            choice: Choice::Children,
            yields: false,
            is_on_lead: false,
            led: 0,
            saved: 0,
            num_covered: 0,
            below: (0, 0),
            below_lead: (0, 0),
            longer: Longer::default(),
        }
    }

    fn choose(&mut self) {
        let (saved_below, covered_below) = self.below;
        let Lens { call, body, jump } = self.lens;
        let own_len = bytes(body - self.led + jump);
        let saves = |num_calls: u32| bytes(num_calls * call) - own_len;
        let own = Some(saves(self.num_calls)).filter(|saved| *saved >= SAVED_MIN);
        let rest = Some(saves(self.num_calls.saturating_sub(covered_below))).filter(|saved| *saved >= SAVED_MIN);
        let mut best = (saved_below, Choice::Children, covered_below);
        // Not all that have a body below may have this one: at most so many have either.
        let either = (self.num_calls + covered_below).min(self.num_all());
        let both = (rest.map(|rest| saved_below + rest), Choice::Both, either);
        for (saved, choice, num_covered) in [both, (own, Choice::Own, self.num_calls)] {
            best = match saved {
                Some(saved) if saved > best.0 => (saved, choice, num_covered),
                _ => best,
            };
        }
        (self.saved, self.choice, self.num_covered) = best;
    }

    fn num_all(&self) -> u32 {
        self.num_calls + self.num_spared
    }

    /// What is saved from here on if this is on a lead behind which so many bytes stand already.
    fn saved_by_lead(&self, behind: u32) -> i32 {
        let (saved_below, num_below) = self.below_lead;
        let own = bytes((self.num_all() - num_below) * self.lens.call);
        own + saved_below + self.longer.gain - bytes(self.lens.body - behind)
    }

    /// What the calls save if this is not on the lead, but what it is below of is, at so many bytes before the call; and whether all of them enter there.
    fn saved_beside_lead(&self, len: u32) -> (i32, bool) {
        let entering = |num_calls: u32| bytes(num_calls * len);
        let (all, rest) = (entering(self.num_all()), self.saved + entering(self.num_all() - self.num_covered));
        (all.max(rest), all >= rest)
    }
}

#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// By call one after the other, its nodes from the shortest on.
    paths: Vec<u32>,
    /// By call, where its nodes end.
    ends: Vec<u32>,
    /// By call, how long what is put in a body has to be.
    body_mins: Vec<u32>,
}

impl Tree {
    /// Of calls of functions of which something may stand before so many.
    pub(super) fn of<P: Iterator<Item = (u64, Lens)>>(num_roots: usize, calls: impl Iterator<Item = TreeCall<P>>) -> Self {
        let mut tree = Tree { nodes: Vec::new(), paths: Vec::new(), ends: Vec::new(), body_mins: Vec::new() };
        let mut known: FxHashMap<u64, u32> = FxHashMap::default();
        // By node that has no parent, in their order.
        let mut root_of: FxHashMap<u32, u32> = FxHashMap::default();
        for TreeCall { root, body_min, pieces } in calls {
            let mut parent = None;
            for (hash, lens) in pieces {
                let node = *known.entry(hash).or_insert_with(|| {
                    tree.nodes.push(Node::new(lens, parent));
                    (tree.nodes.len() - 1) as u32
                });
                let data = &mut tree.nodes[node as usize];
                *(if lens.call >= body_min { &mut data.num_calls } else { &mut data.num_spared }) += 1;
                if let (None, Some(root)) = (parent, root) {
                    root_of.insert(node, root);
                }
                tree.paths.push(node);
                parent = Some(node);
            }
            tree.ends.push(tree.paths.len() as u32);
            tree.body_mins.push(body_min);
        }
        drop(known);
        let mut leads = vec![Longer::default(); num_roots];
        tree.choose(|node, gain| {
            let Some(&root) = root_of.get(&node) else { return };
            let lead = &mut leads[root as usize];
            *lead = lead.or(Longer { gain, node });
        });
        if leads.iter().any(|lead| lead.gain > 0) {
            leads.into_iter().for_each(|lead| tree.put_on_lead(lead));
            tree.choose_beside_leads();
        }
        tree
    }

    /// Decides once more for what is not on a lead: bodies are shorter by what is.
    fn choose_beside_leads(&mut self) {
        for index in 0..self.nodes.len() {
            let parent = self.nodes[index].parent.map(|parent| &self.nodes[parent as usize]);
            let led = parent.map_or(0, |parent| if parent.is_on_lead { parent.lens.body } else { parent.led });
            let node = &mut self.nodes[index];
            (node.led, node.below, node.below_lead, node.longer) = (led, (0, 0), (0, 0), Longer::default());
        }
        self.choose(|_, _| {});
    }

    /// Decides for each node; says of those without a parent what a lead that begins there would save more. A child's number is higher than its parent's.
    fn choose(&mut self, mut may_lead: impl FnMut(u32, i32)) {
        for index in (0..self.nodes.len()).rev() {
            let parent = self.nodes[index].parent;
            let lens = parent.map(|parent| self.nodes[parent as usize].lens);
            let node = &mut self.nodes[index];
            node.choose();
            let by_lead = node.saved_by_lead(lens.map_or(0, |lens| lens.body));
            let (beside, yields) = lens.map_or((node.saved, false), |lens| node.saved_beside_lead(lens.call));
            node.yields = yields;
            let add = (node.saved, node.num_covered, node.num_all());
            let Some(parent) = parent else {
                may_lead(index as u32, by_lead - beside);
                continue;
            };
            let parent = &mut self.nodes[parent as usize];
            parent.below = (parent.below.0 + add.0, parent.below.1 + add.1);
            parent.below_lead = (parent.below_lead.0 + beside, parent.below_lead.1 + add.2);
            parent.longer = parent.longer.or(Longer { gain: by_lead - beside, node: index as u32 });
        }
    }

    fn put_on_lead(&mut self, mut next: Longer) {
        while next.gain > 0 {
            let node = &mut self.nodes[next.node as usize];
            node.is_on_lead = true;
            next = node.longer;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    fn path(&self, call: usize) -> &[u32] {
        let start = call.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.paths[start as usize..self.ends[call] as usize]
    }

    /// How many instructions of a call are on a lead.
    pub(super) fn num_on_lead(&self, call: usize) -> usize {
        self.path(call).iter().take_while(|&&node| self.nodes[node as usize].is_on_lead).count()
    }

    /// Where a call finds its piece, if it is not to have it itself.
    pub(super) fn way_of(&self, call: usize) -> Option<Way> {
        let num_on_lead = self.num_on_lead(call);
        let lead = num_on_lead.checked_sub(1).map(|depth| Way::Lead { depth });
        let mut rest = self.path(call)[num_on_lead..].iter().zip(num_on_lead..).peekable();
        let yields = |node: u32| lead.is_some() && self.nodes[node as usize].yields;
        if rest.peek().is_some_and(|&(&node, _)| yields(node)) {
            return lead;
        }
        let mut way = lead;
        for (&node, depth) in rest {
            let body = Way::Body { node: node as usize, depth };
            let data = &self.nodes[node as usize];
            let is_worth_it = data.lens.call >= self.body_mins[call];
            match data.choice {
                Choice::Children => {}
                Choice::Both if is_worth_it => way = Some(body),
                Choice::Both => {}
                Choice::Own => return if is_worth_it { Some(body) } else { way },
            }
        }
        way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of each call. Calls are words of which each letter is an instruction of four bytes, the last one first; all call the same function, and those in capitals may not jump.
    fn ways(root: Option<u32>, calls: &[&'static str]) -> Vec<Option<Way>> {
        let hash = |word: &str, depth: usize| {
            word.to_lowercase().bytes().take(depth + 1).fold(7, |hash, byte| hash * 131 + u64::from(byte))
        };
        let lens = |count: u32| Lens { call: 4 * count, body: 4 * count, jump: 5 };
        let call = |word: &&'static str| {
            let word = *word;
            let body_min = if word.to_lowercase() == word { 0 } else { u32::MAX };
            TreeCall { root, body_min, pieces: (0..word.len()).map(move |depth| (hash(word, depth), lens(depth as u32 + 1))) }
        };
        let tree = Tree::of(1, calls.iter().map(call));
        (0..calls.len()).map(|call| tree.way_of(call)).collect()
    }

    /// The body of each call, as depth, where nothing can stand before the function.
    fn bodies(calls: &[&'static str]) -> Vec<Option<usize>> {
        let depth = |way: Way| match way {
            Way::Body { depth, .. } => depth,
            Way::Lead { .. } => panic!("a lead"),
        };
        ways(None, calls).into_iter().map(|way| way.map(depth)).collect()
    }

    /// Where calls enter a lead, as depth, where there is none but that.
    fn leads(calls: &[&'static str]) -> Vec<Option<usize>> {
        let depth = |way: Way| match way {
            Way::Lead { depth } => depth,
            Way::Body { .. } => panic!("a body"),
        };
        ways(Some(0), calls).into_iter().map(|way| way.map(depth)).collect()
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

    #[test]
    fn before_a_function_each_call_enters_at_its_own_piece() {
        assert_eq!(leads(&["ab", "a", "abc"]), [Some(1), Some(0), Some(1)]);
        assert_eq!(leads(&["abc", "abc", "abd"]), [Some(2), Some(2), Some(1)]);
        assert_eq!(leads(&["a", "b"]), [None; 2]);
    }

    #[test]
    fn of_several_pieces_the_one_that_saves_most_is_before_the_function() {
        assert_eq!(leads(&["a", "a", "b", "b", "b"]), [None, None, Some(0), Some(0), Some(0)]);
    }

    #[test]
    fn calls_beside_what_is_before_the_function_have_bodies_where_these_save_more() {
        let lead = |depth| Some(Way::Lead { depth });
        let found = ways(Some(0), &["ab", "ab", "xyz", "xyz", "axyz", "axyz", "axyz"]);
        assert_eq!(found[..2], [lead(0); 2], "a body of two short instructions is not worth a jump");
        assert!(matches!(found[2], Some(Way::Body { depth: 2, .. })), "another function's end: {found:?}");
        assert_eq!(found[4..], [lead(3); 3]);
        let found = ways(Some(0), &["abcdefgh", "abcdefgh", "abcdefgh", "apqrstuv", "apqrstuv", "apqrstuv"]);
        let num_leads = found.iter().filter(|&&way| way == lead(7)).count();
        let num_bodies = found.iter().filter(|way| matches!(way, Some(Way::Body { depth: 7, .. }))).count();
        assert_eq!((num_leads, num_bodies), (3, 3), "{found:?}");
    }

    #[test]
    fn a_call_that_may_not_jump_enters_what_is_before_the_function_or_keeps_its_own() {
        assert_eq!(bodies(&["ABC", "ABC", "ABC"]), [None; 3]);
        assert_eq!(leads(&["ABC", "ABC", "ABC"]), [Some(2); 3]);
        assert_eq!(leads(&["ABX", "aby", "abz"]), [Some(1); 3]);
    }
}
