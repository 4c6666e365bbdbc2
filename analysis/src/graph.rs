//! Graphs over functions: who calls whom, and cycles.

pub mod call_graph;
pub mod components;

pub use call_graph::{CallGraph, Site, SiteId};
pub use components::Components;
