//! States that cannot be told apart become one.
//!
//! **When that is.** Two states of one function are the same if the same body runs in them and every call leads to states that are the same. A context in which the
//! original runs, and from which no call leads anywhere that the original's calls don't lead, is the original: nothing need be tracked there.
//!
//! **Method.** Contexts of one situation are one from the start, with the calls that any of them has. The others are split by what runs, and then as long as calls
//! tell some apart (Moore's partition refinement). To the contexts comes, for each function without a root, a plain state, in which nothing is known.
//!
//! **Terminates**: each round makes more classes or is the last.

use lifter::entity::{EntityId, PrimaryMap};
use rustc_hash::FxHashMap;

use super::forest::{Forest, Node, Situation};
use super::machine::relevant_sites;
use super::{Body, CallSite, FunctionId};

lifter::define_id!(
    /// A state of the merged machine.
    Class, "q");

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassData {
    pub function: FunctionId,
    pub body: Option<Body>,
    /// It is the function as it stands, which any caller reaches.
    pub is_original: bool,
    /// For each call that leads somewhere in any context of the function; ascending by site.
    pub calls: Vec<(CallSite, Class)>,
}

/// A forest's states, merged.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    pub classes: PrimaryMap<Class, ClassData>,
    /// By context.
    pub class_of: Vec<Class>,
}

impl Merged {
    pub fn build(forest: &Forest) -> Self {
        let items = Items::collect(forest, false);
        let classes = items.refine();
        Self::of_classes(&items, &classes)
    }

    /// A state for each context, though some can't be told apart: what cloning all paths makes.
    pub fn apart(forest: &Forest) -> Self {
        let items = Items::collect(forest, true);
        let classes: Vec<u32> = (0..items.all.len() as u32).collect();
        Self::of_classes(&items, &classes)
    }

    fn of_classes(items: &Items, class_of_item: &[u32]) -> Self {
        let mut merged = Merged::default();
        let mut first_of: Vec<usize> = Vec::new();
        for (item, &class) in class_of_item.iter().enumerate() {
            if class as usize == first_of.len() {
                first_of.push(item);
            }
        }
        let mut is_original = vec![false; first_of.len()];
        for (item, &class) in class_of_item.iter().enumerate() {
            is_original[class as usize] |= items.all[item].is_original;
        }
        let class_at = |item: usize| Class::new(class_of_item[item] as usize);
        for (class, &first) in first_of.iter().enumerate() {
            let item = &items.all[first];
            let calls = item.calls.iter().map(|&(site, target)| (site, class_at(target))).collect();
            let is_original = is_original[class];
            merged.classes.push(ClassData { function: item.function, body: item.body, is_original, calls });
        }
        merged.class_of = items.of_node.iter().map(|&item| class_at(item)).collect();
        merged
    }

    /// States that something runs in other than an original.
    pub fn num_tracked(&self) -> usize {
        self.classes.values().filter(|class| !class.is_original).count()
    }
}

/// Contexts of one situation, or the plain state of a function.
struct Item {
    function: FunctionId,
    body: Option<Body>,
    is_original: bool,
    calls: Vec<(CallSite, usize)>,
}

struct Items {
    all: Vec<Item>,
    /// By node.
    of_node: Vec<usize>,
}

impl Items {
    /// With `is_apart`, contexts of one situation have an item each.
    fn collect(forest: &Forest, is_apart: bool) -> Self {
        let mut items = Items { all: Vec::new(), of_node: Vec::with_capacity(forest.nodes.len()) };
        let mut by_situation: FxHashMap<(FunctionId, Situation), usize> = FxHashMap::default();
        let mut members: Vec<Vec<Node>> = Vec::new();
        for (node, data) in forest.nodes.iter() {
            let is_original = data.parent.is_none();
            let next = items.all.len();
            let item = match data.situation.filter(|_| !is_original && !is_apart) {
                Some(situation) => *by_situation.entry((data.function, situation)).or_insert(next),
                None => next,
            };
            if item == next {
                items.all.push(Item { function: data.function, body: None, is_original, calls: Vec::new() });
                members.push(Vec::new());
            }
            members[item].push(node);
            items.of_node.push(item);
        }
        if is_apart {
            add_those_alike(forest, &mut members);
        }
        let plain = items.add_plain(forest);
        let sites = relevant_sites(forest);
        for (item, members) in members.iter().enumerate() {
            let own = members.iter().find_map(|&node| forest.nodes[node].body);
            items.all[item].body = own.or_else(|| forest.body_in(members[0]));
            let function = items.all[item].function;
            let sites = sites.get(&function).map_or(&[][..], |list| list);
            items.all[item].calls = sites.iter().map(|&site| (site, items.target(forest, &plain, members, site))).collect();
        }
        for (&function, &item) in &plain {
            let sites = sites.get(&function).map_or(&[][..], |list| list);
            let target = |&site: &CallSite| forest.callee(site).map(|callee| (site, items.original(forest, &plain, callee)));
            items.all[item].calls = sites.iter().filter_map(target).collect();
        }
        items
    }

    /// A state in which nothing is known, for each function that has no root.
    fn add_plain(&mut self, forest: &Forest) -> FxHashMap<FunctionId, usize> {
        let mut functions: Vec<FunctionId> = forest.nodes.values().map(|data| data.function).collect();
        functions.sort_unstable();
        functions.dedup();
        functions.retain(|&function| forest.root_of(function).is_none());
        let mut plain = FxHashMap::default();
        for function in functions {
            plain.insert(function, self.all.len());
            self.all.push(Item { function, body: None, is_original: true, calls: Vec::new() });
        }
        plain
    }

    fn original(&self, forest: &Forest, plain: &FxHashMap<FunctionId, usize>, function: FunctionId) -> usize {
        forest.root_of(function).map_or_else(|| plain[&function], |root| self.of_node[root.index()])
    }

    /// Where a call leads in contexts that are the same: down the tree where any of them has a child.
    fn target(&self, forest: &Forest, plain: &FxHashMap<FunctionId, usize>, members: &[Node], site: CallSite) -> usize {
        let child = members.iter().find_map(|&node| forest.child(node, site));
        match child.or_else(|| forest.after_call(members[0], site)) {
            Some(node) => self.of_node[node.index()],
            // The call is one of the trees, so its callee is known.
            None => forest.callee(site).map_or(0, |callee| self.original(forest, plain, callee)),
        }
    }

    /// By item, its class; classes are numbered in the order in which they come.
    fn refine(&self) -> Vec<u32> {
        let mut classes = number(self.all.iter().map(|item| (item.function, item.body)));
        let mut count = num_classes(&classes);
        loop {
            let of_calls = |item: &Item| -> Vec<u32> { item.calls.iter().map(|c| classes[c.1]).collect() };
            let finer = number(self.all.iter().zip(&classes).map(|(item, &class)| (class, of_calls(item))));
            let finer_count = num_classes(&finer);
            classes = finer;
            if finer_count == count {
                return classes;
            }
            count = finer_count;
        }
    }
}

/// To each item's only context, if no call of it leads on, one of the same situation from which most do.
fn add_those_alike(forest: &Forest, members: &mut [Vec<Node>]) {
    let mut most: FxHashMap<(FunctionId, Situation), Node> = FxHashMap::default();
    let key = |node: Node| {
        let data = &forest.nodes[node];
        data.situation.filter(|_| data.parent.is_some()).map(|situation| (data.function, situation))
    };
    let children = |node: Node| forest.nodes[node].children.len();
    for node in forest.nodes.keys() {
        if let Some(key) = key(node) {
            let known = most.entry(key).or_insert(node);
            *known = if children(node) > children(*known) { node } else { *known };
        }
    }
    for members in members.iter_mut().filter(|members| children(members[0]) == 0) {
        members.extend(key(members[0]).and_then(|key| most.get(&key)));
    }
}

/// Equal keys get equal numbers, in the order in which they come.
fn number<K: std::hash::Hash + Eq>(keys: impl Iterator<Item = K>) -> Vec<u32> {
    let mut numbers: FxHashMap<K, u32> = FxHashMap::default();
    keys.map(|key| {
        let next = numbers.len() as u32;
        *numbers.entry(key).or_insert(next)
    })
    .collect()
}

fn num_classes(classes: &[u32]) -> u32 {
    classes.iter().max().map_or(0, |last| last + 1)
}
