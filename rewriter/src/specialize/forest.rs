//! Optimization forests: the contexts that matter, as trees (the source's definition 3.6 and §3.6).
//!
//! **Meaning.** A root stands for any activation of a function, whoever called it; a child for the activation that one call makes of its parent. So a node is a context
//! counted from some function on, and a program's stack is in it if the stack's last calls are its path. Of the nodes that a stack is in, the
//! longest is the one that counts. Its *suffix* is the longest shorter node that every stack in it is in too; where a node has no child for a call, its
//! suffix may, and where it has no body, its suffix's is right (the links of Aho and Corasick's automaton). The source resets to a new tree wherever a root is entered and so
//! forgets what it knew; here nothing is forgotten.
//!
//! **Situations.** Who makes a forest may know that what is known in two contexts is the same: such nodes share a *situation*, and what holds below one holds below the
//! other, whether or not the tree goes on there. This is how recursion ends: a context in which nothing is new repeats an earlier one.
//!
//! **Invariants** (of [`Forest`]): every node has a body, or leads to one, or shares the situation of one that does; parents come before children, short contexts
//! before longer ones, children ascend by site. The forest depends on the set of contexts alone, not on the order in which they were given.

use lifter::entity::{EntityId, PrimaryMap};
use rustc_hash::FxHashMap;

use super::{Body, CallSite, FunctionId};

lifter::define_id!(
    /// A context.
    Node, "n");
lifter::define_id!(
    /// All that is known in a context.
    Situation, "k");

/// A context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeData {
    /// The active function.
    pub function: FunctionId,
    /// The caller's context and the call; `None` at a root.
    pub parent: Option<(Node, CallSite)>,
    /// Calls from the root on.
    pub depth: u32,
    /// The body that is made for this context; roots have none.
    pub body: Option<Body>,
    pub situation: Option<Situation>,
    /// Ascending by site.
    pub children: Vec<(CallSite, Node)>,
    /// The longest shorter context that holds here too.
    pub suffix: Option<Node>,
}

/// Collects contexts.
#[derive(Clone, Debug, Default)]
pub struct ForestBuilder {
    nodes: PrimaryMap<Node, NodeData>,
    roots: FxHashMap<FunctionId, Node>,
    children: FxHashMap<(Node, CallSite), Node>,
}

impl ForestBuilder {
    /// Any activation of a function.
    pub fn root(&mut self, function: FunctionId) -> Node {
        let nodes = &mut self.nodes;
        *self.roots.entry(function).or_insert_with(|| nodes.push(new_node(function, None, 0)))
    }

    /// The context that a call makes of another.
    pub fn child(&mut self, parent: Node, site: CallSite, callee: FunctionId) -> Node {
        let nodes = &mut self.nodes;
        let depth = nodes[parent].depth + 1;
        *self.children.entry((parent, site)).or_insert_with(|| nodes.push(new_node(callee, Some((parent, site)), depth)))
    }

    /// A context by its path. An empty one is the root.
    pub fn path(&mut self, root: FunctionId, calls: &[(CallSite, FunctionId)]) -> Node {
        let root = self.root(root);
        calls.iter().fold(root, |node, &(site, callee)| self.child(node, site, callee))
    }

    /// Gives a context that is no root a body.
    pub fn set_body(&mut self, node: Node, body: Body) {
        if self.nodes[node].parent.is_some() {
            self.nodes[node].body = Some(body);
        }
    }
    pub fn set_situation(&mut self, node: Node, situation: Situation) {
        self.nodes[node].situation = Some(situation);
    }
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// What is left when all that leads nowhere is gone.
    pub fn finish(self) -> Forest {
        let is_kept = self.kept();
        let mut levels: Vec<(Node, Option<(Node, CallSite)>)> = self
            .nodes
            .iter()
            .filter(|(node, data)| data.parent.is_none() && is_kept[node.index()])
            .map(|(n, _)| (n, None))
            .collect();
        levels.sort_unstable_by_key(|&(node, _)| self.nodes[node].function);
        let num_roots = levels.len();
        let mut below: Vec<Vec<(CallSite, Node)>> = vec![Vec::new(); self.nodes.len()];
        for (node, data) in self.nodes.iter().filter(|(node, _)| is_kept[node.index()]) {
            if let Some((parent, site)) = data.parent {
                below[parent.index()].push((site, node));
            }
        }
        // Level by level: what is appended is read later.
        let mut next = 0;
        while let Some(&(old, _)) = levels.get(next) {
            let children = &mut below[old.index()];
            children.sort_unstable();
            levels.extend(children.iter().map(|&(site, child)| (child, Some((Node::new(next), site)))));
            next += 1;
        }
        let mut forest = Forest { roots: (0..num_roots).map(Node::new).collect(), ..Forest::default() };
        for (old, parent) in levels {
            let data = &self.nodes[old];
            let node = forest.nodes.push(NodeData { parent, children: Vec::new(), suffix: None, ..data.clone() });
            if let Some((parent, site)) = parent {
                forest.nodes[parent].children.push((site, node));
                forest.callees.insert(site, data.function);
            }
        }
        forest.link();
        forest
    }

    /// Whether each node has a body or leads to one.
    fn kept(&self) -> Vec<bool> {
        let mut groups: FxHashMap<(FunctionId, Situation), Vec<Node>> = FxHashMap::default();
        for (node, data) in self.nodes.iter() {
            if let Some(situation) = data.situation {
                groups.entry((data.function, situation)).or_default().push(node);
            }
        }
        let mut is_kept = vec![false; self.nodes.len()];
        let mut open: Vec<Node> = self.nodes.iter().filter(|(_, data)| data.body.is_some()).map(|(node, _)| node).collect();
        while let Some(node) = open.pop() {
            if std::mem::replace(&mut is_kept[node.index()], true) {
                continue;
            }
            let data = &self.nodes[node];
            open.extend(data.parent.map(|(parent, _)| parent));
            if let Some(situation) = data.situation {
                open.extend(groups.remove(&(data.function, situation)).into_iter().flatten());
            }
        }
        is_kept
    }
}

fn new_node(function: FunctionId, parent: Option<(Node, CallSite)>, depth: u32) -> NodeData {
    NodeData { function, parent, depth, body: None, situation: None, children: Vec::new(), suffix: None }
}

/// Contexts with bodies, and those on the way to them.
#[derive(Clone, Debug, Default)]
pub struct Forest {
    /// Shorter contexts first.
    pub nodes: PrimaryMap<Node, NodeData>,
    /// Ascending by function.
    pub roots: Vec<Node>,
    /// The function that each call of the trees reaches.
    callees: FxHashMap<CallSite, FunctionId>,
}

impl Forest {
    /// The root for a function.
    pub fn root_of(&self, function: FunctionId) -> Option<Node> {
        let found = self.roots.binary_search_by_key(&function, |&root| self.nodes[root].function).ok()?;
        Some(self.roots[found])
    }
    pub fn child(&self, node: Node, site: CallSite) -> Option<Node> {
        let children = &self.nodes[node].children;
        children.binary_search_by_key(&site, |c| c.0).ok().map(|found| children[found].1)
    }
    /// The function that a call of the trees reaches.
    pub fn callee(&self, site: CallSite) -> Option<FunctionId> {
        self.callees.get(&site).copied()
    }

    /// The longest context that holds after a call in another, roots included.
    pub fn after_call(&self, node: Node, site: CallSite) -> Option<Node> {
        let mut context = Some(node);
        while let Some(known) = context {
            if let Some(child) = self.child(known, site) {
                return Some(child);
            }
            context = self.nodes[known].suffix;
        }
        self.root_of(self.callee(site)?)
    }

    /// The body that runs in a context: its own, or that of the longest shorter one that has any.
    pub fn body_in(&self, node: Node) -> Option<Body> {
        let mut context = Some(node);
        while let Some(known) = context {
            let data = &self.nodes[known];
            if data.body.is_some() {
                return data.body;
            }
            context = data.suffix;
        }
        None
    }

    /// Contexts that are no roots: what cloning all paths would copy.
    pub fn num_paths(&self) -> usize {
        self.nodes.len() - self.roots.len()
    }
    /// Contexts with a body of their own.
    pub fn num_optimized(&self) -> usize {
        self.nodes.values().filter(|data| data.body.is_some()).count()
    }

    /// The calls from the root on.
    pub fn path_of(&self, node: Node) -> Vec<CallSite> {
        let mut path = Vec::new();
        let mut at = self.nodes[node].parent;
        while let Some((parent, site)) = at {
            path.push(site);
            at = self.nodes[parent].parent;
        }
        path.reverse();
        path
    }

    /// Finds suffixes: a child's is what its parent's suffix makes of the same call. Nodes come after those that are shorter, so what is asked for is there.
    fn link(&mut self) {
        for node in self.nodes.keys() {
            let data = &self.nodes[node];
            let suffix = data.parent.and_then(|(parent, site)| match self.nodes[parent].suffix {
                Some(shorter) => self.after_call(shorter, site),
                None => self.root_of(data.function),
            });
            self.nodes[node].suffix = suffix;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f(index: usize) -> FunctionId {
        FunctionId::new(index)
    }
    fn call(index: usize) -> CallSite {
        CallSite::new(index)
    }

    /// Function 1 calls function 2 at 10, which calls function 3 at 20.
    fn overlapping() -> Forest {
        let mut builder = ForestBuilder::default();
        let long = builder.path(f(1), &[(call(10), f(2)), (call(20), f(3))]);
        let short = builder.path(f(2), &[(call(20), f(3))]);
        builder.path(f(1), &[(call(11), f(2))]);
        builder.set_body(long, Body::new(0));
        builder.set_body(short, Body::new(1));
        builder.finish()
    }

    #[test]
    fn what_leads_to_no_body_is_not_kept() {
        let forest = overlapping();
        assert_eq!(forest.nodes.len(), 5);
        assert!(forest.child(forest.roots[0], call(11)).is_none());
    }

    #[test]
    fn a_context_that_is_missing_in_a_tree_is_found_by_its_suffix() {
        let forest = overlapping();
        let middle = forest.child(forest.roots[0], call(10)).unwrap();
        assert_eq!(forest.nodes[middle].suffix, forest.root_of(f(2)));
        let leaf = forest.after_call(middle, call(20)).unwrap();
        assert_eq!(forest.body_in(leaf), Some(Body::new(0)));
        let shorter = forest.nodes[leaf].suffix.unwrap();
        assert_eq!(forest.path_of(shorter), [call(20)]);
        assert_eq!(forest.body_in(shorter), Some(Body::new(1)));
    }

    #[test]
    fn the_order_in_which_contexts_are_given_does_not_matter() {
        let mut builder = ForestBuilder::default();
        let short = builder.path(f(2), &[(call(20), f(3))]);
        let long = builder.path(f(1), &[(call(10), f(2)), (call(20), f(3))]);
        builder.set_body(short, Body::new(1));
        builder.set_body(long, Body::new(0));
        assert_eq!(builder.finish().nodes.as_slice(), overlapping().nodes.as_slice());
    }

    #[test]
    fn a_context_that_repeats_another_is_kept_if_the_other_is() {
        let mut builder = ForestBuilder::default();
        let first = builder.path(f(1), &[(call(10), f(2))]);
        let again = builder.path(f(1), &[(call(10), f(2)), (call(22), f(2))]);
        let leaf = builder.path(f(1), &[(call(10), f(2)), (call(20), f(3))]);
        builder.set_body(leaf, Body::new(0));
        builder.set_situation(first, Situation::new(0));
        builder.set_situation(again, Situation::new(0));
        assert_eq!(builder.finish().nodes.len(), 4);
    }
}
