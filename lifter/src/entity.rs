//! Dense `u32` ids and the tables keyed by them.
//!
//! Everything lifted lives in flat vectors and is named by an id; nothing holds a pointer. `PrimaryMap` creates ids and owns the
//! definition; `SecondaryMap` attaches a value with a default to ids that another map created; `IdRange` names a run of
//! consecutive ids. Ids print as in the text form of the IR (`fn3`, `bb12`).

use std::fmt::{self, Debug};
use std::hash::Hash;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A dense id: a `u32` that indexes one kind of table.
pub trait EntityId: Copy + Eq + Ord + Hash + Debug + Send + Sync + 'static {
    /// The id with the given index. Panics above `u32::MAX - 1`, a bound that the ELF reader enforces on inputs.
    fn new(index: usize) -> Self;
    fn index(self) -> usize;
}

/// Declares an id type that prints as its prefix followed by its index.
#[macro_export]
macro_rules! define_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        // Private tables have ids too.
        #[allow(unreachable_pub)]
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $crate::entity::EntityId for $name {
            #[inline]
            fn new(index: usize) -> Self {
                assert!(index < u32::MAX as usize, concat!("too many ids of kind ", stringify!($name)));
                Self(index as u32)
            }
            #[inline]
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

define_id!(
    /// A function: one or more code ranges that only make sense together (a body and its `.cold` part, say).
    Func, "fn");
define_id!(
    /// A basic block. Blocks of one function have consecutive ids, ascending by address.
    Block, "bb");
define_id!(
    /// A jump table.
    Table, "jt");
define_id!(
    /// A section header of the input file; the index is the one in the file.
    Section, "sec");
define_id!(
    /// An entry of `.symtab`; the index is the one in the file.
    Symbol, "sym");
define_id!(
    /// A frame description entry of `.eh_frame`.
    Fde, "fde");

/// The table that creates ids of type `K` and owns what they name.
#[derive(Clone)]
pub struct PrimaryMap<K, V> {
    items: Vec<V>,
    key: PhantomData<K>,
}

impl<K: EntityId, V> PrimaryMap<K, V> {
    pub fn new() -> Self {
        Self { items: Vec::new(), key: PhantomData }
    }
    pub fn with_capacity(capacity: usize) -> Self {
        Self { items: Vec::with_capacity(capacity), key: PhantomData }
    }
    /// The items in the order of their ids.
    pub fn from_items(items: Vec<V>) -> Self {
        Self { items, key: PhantomData }
    }
    pub fn into_items(self) -> Vec<V> {
        self.items
    }
    pub fn push(&mut self, value: V) -> K {
        let id = K::new(self.items.len());
        self.items.push(value);
        id
    }
    /// Gives back the room for items that are not to come.
    pub fn shrink_to_fit(&mut self) {
        self.items.shrink_to_fit();
    }
    pub fn len(&self) -> usize {
        self.items.len()
    }
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// The id that the next `push` returns.
    pub fn next_id(&self) -> K {
        K::new(self.items.len())
    }
    pub fn get(&self, id: K) -> Option<&V> {
        self.items.get(id.index())
    }
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.items.len()).map(K::new)
    }
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (K, &mut V)> + ExactSizeIterator {
        self.items.iter_mut().enumerate().map(|(i, v)| (K::new(i), v))
    }
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.items.iter()
    }
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, V> {
        self.items.iter_mut()
    }
    pub fn as_slice(&self) -> &[V] {
        &self.items
    }
    /// The slice named by a run of ids.
    pub fn range(&self, range: IdRange<K>) -> &[V] {
        &self.items[range.as_usize()]
    }
}

impl<K: EntityId, V> Default for PrimaryMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}
impl<K: EntityId, V> FromIterator<V> for PrimaryMap<K, V> {
    fn from_iter<I: IntoIterator<Item = V>>(iter: I) -> Self {
        Self { items: iter.into_iter().collect(), key: PhantomData }
    }
}
impl<K: EntityId, V> Index<K> for PrimaryMap<K, V> {
    type Output = V;
    #[inline]
    fn index(&self, id: K) -> &V {
        &self.items[id.index()]
    }
}
impl<K: EntityId, V> IndexMut<K> for PrimaryMap<K, V> {
    #[inline]
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut self.items[id.index()]
    }
}
impl<K: EntityId, V: Debug> Debug for PrimaryMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A value for every id of type `K`; ids never written read as the default.
#[derive(Clone, PartialEq, Eq)]
pub struct SecondaryMap<K, V> {
    items: Vec<V>,
    default: V,
    key: PhantomData<K>,
}

impl<K: EntityId, V: Clone> SecondaryMap<K, V> {
    /// A map for `len` ids, all reading as `default`.
    pub fn new(len: usize, default: V) -> Self {
        Self { items: vec![default.clone(); len], default, key: PhantomData }
    }
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.items.iter()
    }
    pub fn as_slice(&self) -> &[V] {
        &self.items
    }
}
impl<K: EntityId, V: Clone> Index<K> for SecondaryMap<K, V> {
    type Output = V;
    #[inline]
    fn index(&self, id: K) -> &V {
        self.items.get(id.index()).unwrap_or(&self.default)
    }
}
impl<K: EntityId, V: Clone> IndexMut<K> for SecondaryMap<K, V> {
    #[inline]
    fn index_mut(&mut self, id: K) -> &mut V {
        if id.index() >= self.items.len() {
            self.items.resize(id.index() + 1, self.default.clone());
        }
        &mut self.items[id.index()]
    }
}
impl<K: EntityId, V: Clone + Debug> Debug for SecondaryMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A run of consecutive ids, or of consecutive indices into a flat vector: `start..end`.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct IdRange<K> {
    start: u32,
    end: u32,
    key: PhantomData<K>,
}

impl<K> IdRange<K> {
    pub const EMPTY: Self = Self { start: 0, end: 0, key: PhantomData };

    /// The run `start..end` of indices. Panics if the bounds are out of order or above `u32::MAX`.
    pub fn from_usize(range: std::ops::Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= u32::MAX as usize);
        Self { start: range.start as u32, end: range.end as u32, key: PhantomData }
    }
    pub fn as_usize(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}
impl<K: EntityId> IdRange<K> {
    pub fn iter(self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K> {
        self.as_usize().map(K::new)
    }
    pub fn contains(self, id: K) -> bool {
        self.as_usize().contains(&id.index())
    }
    pub fn first(self) -> Option<K> {
        (!self.is_empty()).then(|| K::new(self.start as usize))
    }
}
impl<K> Default for IdRange<K> {
    fn default() -> Self {
        Self::EMPTY
    }
}
impl<K> Debug for IdRange<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
