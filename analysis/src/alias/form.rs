//! Addresses as sums of symbols with factors and a constant, modulo 2^64.
//!
//! A symbol stands for one number during one execution of a region. The difference of two forms is exact where all symbols cancel; otherwise
//! what is known of the symbols that are left bounds it: a multiple of a factor is known modulo 64 by the factor's power of two alone.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Terms;
use crate::domain::{Base, Interval, Residues, Value};

/// Terms beyond which a sum gets a symbol of its own.
const MAX_TERMS: usize = 4;

/// A sum of symbols.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Form {
    /// Ascending by symbol, no factor zero.
    terms: Terms,
    constant: i64,
}

impl Form {
    pub fn constant(constant: i64) -> Self {
        Form { terms: SmallVec::new(), constant }
    }
    pub fn symbol(symbol: u32) -> Self {
        Form { terms: SmallVec::from_slice(&[(symbol, 1)]), constant: 0 }
    }
    /// `self + factor * other`; `None` if that has too many terms.
    pub fn add(&self, other: &Form, factor: i64) -> Option<Form> {
        let mut sum = self.clone();
        sum.constant = sum.constant.wrapping_add(other.constant.wrapping_mul(factor));
        for &(symbol, own) in &other.terms {
            sum.add_term(symbol, own.wrapping_mul(factor));
        }
        (sum.terms.len() <= MAX_TERMS).then_some(sum)
    }
    #[must_use]
    pub fn plus(mut self, constant: i64) -> Self {
        self.constant = self.constant.wrapping_add(constant);
        self
    }
    fn add_term(&mut self, symbol: u32, factor: i64) {
        match self.terms.binary_search_by_key(&symbol, |t| t.0) {
            Ok(at) => {
                self.terms[at].1 = self.terms[at].1.wrapping_add(factor);
                if self.terms[at].1 == 0 {
                    self.terms.remove(at);
                }
            }
            Err(at) if factor != 0 => self.terms.insert(at, (symbol, factor)),
            Err(_) => {}
        }
    }
    fn minus(&self, other: &Form) -> Form {
        let mut difference = self.clone();
        difference.constant = difference.constant.wrapping_sub(other.constant);
        for &(symbol, factor) in &other.terms {
            difference.add_term(symbol, factor.wrapping_neg());
        }
        difference
    }
    /// How far it is from another, if that is one number.
    pub fn distance(&self, from: &Form) -> Option<i64> {
        let difference = self.minus(from);
        difference.terms.is_empty().then_some(difference.constant)
    }
    /// What is known of the distance from another.
    pub fn difference_bounds(&self, from: &Form, symbols: &Symbols) -> (Residues, Interval) {
        let difference = self.minus(from);
        let start = Value::number(difference.constant);
        let sum = difference.terms.iter().try_fold(start, |sum, &(symbol, factor)| sum.add(symbols.multiple(symbol, factor)));
        sum.map_or((Residues::ALL, Interval::FULL), |value| (value.residues, value.offsets))
    }
}

/// The symbols of a region.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    values: Vec<Value>,
    by_base: FxHashMap<Base, u32>,
}

impl Symbols {
    /// A symbol for a number of which a value is known.
    pub fn fresh(&mut self, value: Value) -> Form {
        self.values.push(value);
        Form::symbol((self.values.len() - 1) as u32)
    }
    /// The symbol of a base.
    pub fn base(&mut self, base: Base) -> Form {
        if base == Base::NUMBER {
            return Form::constant(0);
        }
        let symbol = *self.by_base.entry(base).or_insert_with(|| {
            self.values.push(Value::exact(base, 0));
            (self.values.len() - 1) as u32
        });
        Form::symbol(symbol)
    }
    /// The form of a value: exact where the value is, else a symbol of its own.
    pub fn form_of(&mut self, value: &Value) -> Form {
        match value.offset().filter(|_| !value.is_unknown()) {
            Some(offset) => self.base(value.base).plus(offset),
            None => self.fresh(*value),
        }
    }
    /// Forgets which symbol a base has: from here on it may name another number.
    pub fn forget_base(&mut self, base: Base) {
        self.by_base.remove(&base);
    }
    /// So many times a symbol, as a plain number.
    fn multiple(&self, symbol: u32, factor: i64) -> Value {
        let value = &self.values[symbol as usize];
        match value.base {
            Base::NUMBER => value.multiply(factor),
            _ => Value { base: Base::NUMBER, is_pure: false, residues: Residues::multiples_of(factor), offsets: Interval::FULL },
        }
    }
}
