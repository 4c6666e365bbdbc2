//! First guesses for arcs without a count: a gravity model, made exact by a greedy pass.
//!
//! A node with flow to spare gives each target that lacks flow a share in proportion to the lack; what rounding leaves goes to
//! the first targets that still lack some. Edges come before arrivals and departures: a label that both a computed goto and the
//! outside may reach is taken to be reached by the goto. Each pass looks at each arc at most twice.

use super::network::Network;
use crate::flow::{ArcKind, FlowGraph};

pub(super) fn share_unknown(graph: &FlowGraph, network: &mut Network) {
    share_by_lack(graph, network);
    for arc in 0..graph.arcs.len() {
        if matches!(graph.arcs[arc].kind, ArcKind::Edge(_)) {
            pour(graph, network, arc);
        }
    }
    // The outside has as much as is asked of it; what it gives and takes need not balance here, since all other nodes' balances
    // add up to its own.
    for arc in 0..graph.arcs.len() {
        let excess = match graph.arcs[arc].kind {
            ArcKind::Arrival(_) => -network.excess[graph.arcs[arc].to as usize],
            ArcKind::Departure(_) => network.excess[graph.arcs[arc].from as usize],
            ArcKind::Block(_) | ArcKind::Edge(_) => 0,
        };
        if excess > 0 {
            network.push(arc, excess);
            network.expected[arc] = network.flows[arc];
        }
    }
}

fn share_by_lack(graph: &FlowGraph, network: &mut Network) {
    let lack: Vec<i64> = network.excess.iter().map(|&excess| (-excess).max(0)).collect();
    let is_shared = |network: &Network, arc: usize| matches!(graph.arcs[arc].kind, ArcKind::Edge(_)) && !network.is_known[arc];
    for node in 0..graph.num_nodes() as u32 {
        let supply = network.excess[node as usize];
        if supply <= 0 {
            continue;
        }
        let arcs: Vec<usize> = network.outgoing.of(node).iter().map(|&a| a as usize).filter(|&a| is_shared(network, a)).collect();
        let total: i128 = arcs.iter().map(|&a| i128::from(lack[graph.arcs[a].to as usize])).sum();
        if total == 0 {
            continue;
        }
        for arc in arcs {
            let target = graph.arcs[arc].to as usize;
            let share = (i128::from(supply) * i128::from(lack[target]) / total) as i64;
            let share = share.min(-network.excess[target]);
            if share > 0 {
                network.push(arc, share);
                network.expected[arc] = network.flows[arc];
            }
        }
    }
}

/// Gives an uncounted arc what its source has to spare and its target lacks.
fn pour(graph: &FlowGraph, network: &mut Network, arc: usize) {
    if network.is_known[arc] {
        return;
    }
    let (from, to) = (graph.arcs[arc].from as usize, graph.arcs[arc].to as usize);
    let amount = network.excess[from].min(-network.excess[to]);
    if amount > 0 {
        network.push(arc, amount);
        network.expected[arc] = network.flows[arc];
    }
}
