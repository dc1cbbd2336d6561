//! The gradients of the loss by tensors that the user names, which become outputs `grad.<tensor>`: of inputs, as attacks and saliency maps
//! need them, or of what is computed between.
//!
//! The pass `loss` makes each of these tensors an output, which no pass takes away or rewrites. A pass may put a copy beside it, in
//! another layout or precision, that the model reads instead. So differentiation looks for the tensor behind its copies, and makes the same
//! copies of its gradient, which takes the place of the output.

use std::collections::BTreeMap;

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::pattern::matches_pattern;
use graphc_plan::CompileOptions;

use super::pins::find_close_name;
use super::{GRADIENT, LOSS, name_is_free};
use crate::passes::error::PassError;

const PASS: &str = "loss";

/// Makes each tensor whose gradient is asked for ([`CompileOptions::gradients_of`]) an output, which holds its place.
///
/// # Errors
/// The first pattern that fits no tensor of floating-point numbers, or a name of an output that is taken.
pub(super) fn hold_places(mut graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    let mut wanted: BTreeMap<usize, String> = BTreeMap::new();
    for pattern in &options.gradients_of {
        let named = graph.values.iter().enumerate().filter_map(|(index, value)| {
            let name = value.name.as_deref().filter(|name| *name != LOSS)?;
            (value.ty.dtype.is_float() && matches_pattern(pattern, name))
                .then(|| (index, name.to_owned()))
        });
        let named: Vec<(usize, String)> = named.collect();
        wanted.extend(named.iter().cloned());
        if named.is_empty() {
            let floats = graph.values.iter().filter(|value| value.ty.dtype.is_float());
            let names: Vec<&str> = floats.filter_map(|value| value.name.as_deref()).collect();
            let nearest = find_close_name(pattern, &names).map(str::to_owned);
            return Err(PassError::GradientUnknown { pattern: pattern.clone(), nearest });
        }
    }
    for (index, name) in wanted {
        // Those of trained variables are outputs already.
        if options.gradients && is_trained(graph.producer(ValueId::new(index))) {
            continue;
        }
        let output = Output { name: format!("{GRADIENT}{name}"), value: ValueId::new(index) };
        name_is_free(PASS, &graph, &output.name)?;
        graph.outputs.push(output);
    }
    Ok(graph)
}

/// A tensor whose gradient is asked for.
pub(super) struct WantedGradient {
    /// The output that its gradient becomes.
    output: String,
    /// The tensor that the model reads.
    pub tensor: ValueId,
    /// The ops that copy it to the output, in order.
    copies: Vec<Op>,
}

/// Finds the tensors whose places outputs hold.
pub(super) fn find_wanted(graph: &Graph, options: &CompileOptions) -> Vec<WantedGradient> {
    let is_wanted = |output: &&Output| {
        let tensor = output.name.strip_prefix(GRADIENT);
        tensor.is_some_and(|tensor| {
            options.gradients_of.iter().any(|pattern| matches_pattern(pattern, tensor))
        })
    };
    let mut read = vec![false; graph.values.len()];
    graph.nodes.iter().flat_map(|node| &node.operands).for_each(|value| read[value.index()] = true);
    let find = |output: &Output| {
        let (mut tensor, mut copies) = (output.value, Vec::new());
        while !read[tensor.index()] {
            let node = graph.producer(tensor);
            let (Op::Transpose(_) | Op::Reshape(_) | Op::Cast(_)) = &node.op else { break };
            copies.push(node.op.clone());
            tensor = node.operands[0];
        }
        copies.reverse();
        WantedGradient { output: output.name.clone(), tensor, copies }
    };
    graph.outputs.iter().filter(is_wanted).map(find).collect()
}

impl WantedGradient {
    /// Makes the copies of the tensor's gradient, which is of the tensor's element type then.
    pub(super) fn copy_gradient(&self, builder: &GraphBuilder, gradient: &Tensor) -> Tensor {
        let own = gradient.cast(builder.tensor(self.tensor).ty().dtype);
        self.copies.iter().fold(own, |gradient, copy| builder.apply(copy.clone(), &[&gradient]))
    }

    /// Lets the output give the gradient, or takes it away where there is none, because the loss does not depend on the tensor.
    ///
    /// # Errors
    /// Returns an error if there is none, and the tensor was asked for by its own name.
    pub(super) fn set_output(
        &self,
        graph: &mut Graph,
        gradient: Option<ValueId>,
        (options, loss): (&CompileOptions, &str),
    ) -> Result<(), PassError> {
        let Some(gradient) = gradient else {
            let tensor = self.output.trim_start_matches(GRADIENT);
            if options.gradients_of.iter().any(|name| name == tensor) {
                let (tensor, loss) = (tensor.to_owned(), loss.to_owned());
                return Err(PassError::GradientUnreached { tensor, loss });
            }
            graph.outputs.retain(|output| output.name != self.output);
            return Ok(());
        };
        let own = graph.outputs.iter_mut().filter(|output| output.name == self.output);
        own.for_each(|output| output.value = gradient);
        Ok(())
    }
}

/// Whether a node is a variable that is trained.
pub(super) fn is_trained(node: &Node) -> bool {
    matches!(&node.op, Op::Variable(variable) if variable.trainable)
}
