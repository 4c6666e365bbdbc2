//! A function in as many versions as its calling contexts are worth, without a copy of the ways that lead to them.
//!
//! **Problem.** What is known of a function's arguments depends on who calls it, and on who calls those. To give each context its own body one clones the
//! functions on the way too, or keeps track of the context while the program runs and clones only the functions that differ (Poesia and Pereira, *Dynamic
//! Dispatch of Context-Sensitive Optimizations*, OOPSLA 2020). This folder has the second, free of machine code: functions, call sites and bodies are ids.
//!
//! * `forest`: which contexts have a body of their own, as trees rooted at any function;
//! * `machine`: the states of the source's algorithm 2;
//! * `merge`: states that cannot be told apart become one;
//! * `contexts`: the forest of what constant propagation finds in a binary; `size`: what each way takes; `emit`: clones in the output;
//! * `copies`: what algorithm 1 makes of a program: clones, at most one tracking copy of a function on the way, and what each of their calls does in each state.
//!
//! **Where the state lives.** Not in memory that others see. A transition is a call from one of these copies (or from the function at a root, whose state is
//! known) to another, so the state is an argument of that call, hidden from the program, and the callee keeps it in its own frame. *An activation of a copy
//! always has the state of its own context*: copies are entered by transitions alone, each of which passes the state that its caller's state and the site
//! determine; nothing changes it while the activation lives; and whatever is pushed, popped, unwound or switched to in between, a frame that is
//! returned to is the frame it was. So a return needs no transition: the source's sentinel, its stack of states and its handlers for exceptions have nothing to
//! do here, and threads, signals, coroutines, `longjmp` and `fork` nothing to disturb. A state counts among the contexts of one function only (the source's §3.7), so
//! a copy with one context needs none.

pub mod contexts;
pub mod copies;
pub mod emit;
pub mod forest;
pub mod machine;
pub mod merge;
pub mod size;

#[cfg(test)]
mod model;

use std::fmt::Display;

lifter::define_id!(
    /// A function of the program that is transformed.
    FunctionId, "f");
lifter::define_id!(
    /// A direct call; it has one caller and one callee.
    CallSite, "call");
lifter::define_id!(
    /// What a function becomes where certain facts hold. Equal ones have one id.
    Body, "body");

/// What ids are called for people.
pub trait Names {
    fn function(&self, function: FunctionId) -> String;
    fn site(&self, site: CallSite) -> String;
    fn body(&self, body: Body) -> String;
}

/// Every id by its number.
#[derive(Copy, Clone, Debug, Default)]
pub struct Numbers;

impl Names for Numbers {
    fn function(&self, function: FunctionId) -> String {
        function.to_string()
    }
    fn site(&self, site: CallSite) -> String {
        site.to_string()
    }
    fn body(&self, body: Body) -> String {
        body.to_string()
    }
}

/// The items, with a separator between them.
fn joined<T: Display>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(separator)
}
