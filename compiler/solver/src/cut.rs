//! Finds minimum cuts, by petgraph's version of Dinic's algorithm.

use petgraph::Direction;
use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

/// A capacity of an edge.
pub trait Capacity: petgraph::algo::PositiveMeasure + std::ops::Sub<Output = Self> {}

impl Capacity for u64 {}
impl Capacity for u128 {}

/// The minimum cut between two nodes with the fewest nodes on one side: by node whether it is there. The side is that
/// of the source (`Outgoing`: more could flow from there to the node) or of the sink (`Incoming`: more could flow
/// from the node to there).
pub fn smallest_side<C: Capacity>(
    graph: &DiGraph<(), C>,
    (source, sink): (NodeIndex, NodeIndex),
    side: Direction,
) -> Vec<bool> {
    let (_, flow) = dinics(graph, source, sink);
    let far = |edge: &petgraph::graph::EdgeReference<'_, C>, way: Direction| match way {
        Direction::Outgoing => edge.target(),
        Direction::Incoming => edge.source(),
    };
    let start = if side == Direction::Outgoing { source } else { sink };
    let mut reached = vec![false; graph.node_count()];
    let mut pending = vec![start];
    reached[start.index()] = true;
    while let Some(node) = pending.pop() {
        // Along edges that are not full, and against those that something flows through.
        let along = graph.edges_directed(node, side);
        let along = along.filter(|edge| flow[edge.id().index()] < *edge.weight());
        let against = graph.edges_directed(node, side.opposite());
        let against = against.filter(|edge| flow[edge.id().index()] > C::zero());
        let along = along.map(|edge| far(&edge, side));
        for next in along.chain(against.map(|edge| far(&edge, side.opposite()))) {
            if !std::mem::replace(&mut reached[next.index()], true) {
                pending.push(next);
            }
        }
    }
    reached
}
