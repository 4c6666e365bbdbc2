//! Whether as little is known at one place as at another: a quick look before they are met.
//!
//! **Problem.** Many proofs come to the same pairs with facts that differ a little, and each arrival is compared with all that the pair was proven with. To meet facts
//! makes new ones, which is dear; mostly one register tells that the proof knew more.
//!
//! **Invariant.** What is refused here is refused by [`Facts::meet`] too: it would give other facts. So it makes no difference to what is proven.

use super::{Facts, Value};

impl Facts {
    /// Whether meeting `other` may leave what is known here as it is: no more than a look at each place, and false only where it does not.
    pub(in crate::prove) fn may_be_less_than(&self, other: &Self) -> bool {
        // By class, the value of the other that it meets: another one would part the class.
        let mut partners: Vec<Option<Value>> = vec![None; self.classes.len()];
        let mut is_one = |class: u32, value: Value| *partners[class as usize].get_or_insert(value) == value;
        let mut stays = |mut first: Value, mut second: Value| match (first, second) {
            (Value::Const(_) | Value::Image(_) | Value::Table(_) | Value::Frame(_), _) => first == second,
            (_, Value::Quad(..) | Value::QuadLow(..) | Value::Lower(..)) => true,
            (Value::Class(class), _) => is_one(class, second),
            (Value::Quad(..) | Value::QuadLow(..) | Value::Lower(..) | Value::Unlisted(_), _) => true,
            // An operation stays if it is the same one.
            _ => match (first.classes(), second.classes()) {
                ([Some(x), None], [Some(y), None]) => {
                    let (class, partner) = (std::mem::take(x), Value::Class(std::mem::take(y)));
                    first == second && is_one(class, partner)
                }
                _ => false,
            },
        };
        // All slots of the other have a place in what they meet to.
        let is_listed = other.input.slots.keys().all(|at| self.input.slots.contains_key(at));
        is_listed
            && [(&self.input, &other.input), (&self.output, &other.output)].into_iter().all(|(here, there)| {
                here.registers.iter().zip(&there.registers).all(|(&first, &second)| stays(first, second))
                    && here.slots.iter().all(|(at, &(size, first))| match there.slots.get(at) {
                        Some(&(other_size, second)) => size != other_size || stays(first, second),
                        None => true,
                    })
            })
    }
}
