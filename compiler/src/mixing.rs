//! Tells whether what a model gives for a sample depends on the other samples of its batch.
//!
//! Such a model gives other numbers where its samples come in other batches. What can be cut into microbatches without a sum over them treats each
//! sample by itself; the rule by which a training is cut ([`crate::passes::rates`]) tells.

use graphc_ir::op::Op;
use graphc_ir::text;
use graphc_plan::{CompileOptions, Plan};

use crate::passes::error::PassError;
use crate::passes::samples::common_batch;
use crate::pipeline::prepare_graph;

/// Returns the name of an op of a plan's model that makes something of several samples together, which reaches an output. It is `None` if there is none, as far
/// as the rules of ops tell.
pub fn find_mixing_op(plan: &Plan) -> Option<&'static str> {
    let graph = text::parse_graph(&plan.graph.join("\n")).ok()?;
    let batch = common_batch(&graph);
    let microbatches = (2..=batch).find(|parts| batch.is_multiple_of(*parts))?;
    // Who says where stages end has to have so many.
    let stages = if graph.stages.is_empty() { 1 } else { plan.options.stages };
    let options = CompileOptions {
        stages,
        microbatches,
        dims: plan.options.dims.clone(),
        ..CompileOptions::default()
    };
    match prepare_graph(graph, &options) {
        Err(PassError::CannotCut { op, .. }) => Some(op),
        // An error that has another cause says nothing of samples.
        Err(_) => None,
        Ok(decisions) => {
            let graph = decisions.graph();
            let sum = graph.nodes.iter().find(|node| matches!(node.op, Op::Accumulate(_)))?;
            Some(graph.producer(sum.operands[0]).op.name())
        }
    }
}
