//! Puts the ops that behave otherwise in training in the mode of the job.

use graphc_ir::graph::Graph;
use graphc_ir::op::Op;

/// The graph with dropout that drops in training, and passes everything on in inference.
pub fn set_mode(mut graph: Graph, training: bool) -> Graph {
    for node in &mut graph.nodes {
        if let Op::Dropout(dropout) = &mut node.op {
            dropout.training = training;
        }
    }
    graph
}
