//! A vector that is mostly empty: one word then, not three.
//!
//! New code has a dozen lists, of which most have something for few transforms only; there are tens of thousands of pieces of it (16,000 in `git`, which took 4.8 MB
//! when each list was a `Vec`, and 1.9 MB so).

use std::ops::{Deref, DerefMut};

/// A vector that takes no more than a pointer while it is empty. It behaves as one in all else; what asks for it to be changed gives it room.
#[derive(Clone, Debug)]
#[expect(clippy::box_collection, reason = "this is the point")]
pub struct Seldom<T>(Option<Box<Vec<T>>>);

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> From<Vec<T>> for Seldom<T> {
    fn from(vec: Vec<T>) -> Self {
        Self(if vec.is_empty() { None } else { Some(Box::new(vec)) })
    }
}

impl<T> FromIterator<T> for Seldom<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<T> IntoIterator for Seldom<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.map(|vec| *vec).unwrap_or_default().into_iter()
    }
}

impl<'v, T> IntoIterator for &'v Seldom<T> {
    type Item = &'v T;
    type IntoIter = std::slice::Iter<'v, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T> Deref for Seldom<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

impl<T> DerefMut for Seldom<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0.as_deref_mut().map_or(&mut [], Vec::as_mut_slice)
    }
}

impl<T> Extend<T> for Seldom<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        let mut items = items.into_iter().peekable();
        if items.peek().is_some() {
            self.0.get_or_insert_default().extend(items);
        }
    }
}

impl<T: PartialEq> PartialEq for Seldom<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Seldom<T> {}

impl<T> Seldom<T> {
    pub fn push(&mut self, item: T) {
        self.0.get_or_insert_default().push(item);
    }

    pub fn retain_mut(&mut self, is_kept: impl FnMut(&mut T) -> bool) {
        if let Some(vec) = &mut self.0 {
            vec.retain_mut(is_kept);
        }
    }
}
