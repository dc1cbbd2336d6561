//! Brings images to `[n, h, w, c]`, for whose channels kernels have vectors: a convolution of 1x1 is then a product of matrices, a
//! larger one reads rows of channels, and statistics of channels are sums of rows.
//!
//! Convolution and pooling take their images so and give them so; what is computed of them in between (elementwise ops, reductions,
//! batch normalization, concatenation, slices, padding) is computed on what they give, by the machinery of `passes/views`. A
//! transpose is left where images come from, where they go, and before what needs them as the model says, such as a flattening
//! of more than one place. Of images of one place a transpose moves no element, but they are computed channels last too: a reshape
//! between a convolution and its normalization would keep them from being one loop.
//!
//! The price is the bytes that transposes read and write. The pass acts where it adds fewer of them than convolutions and poolings read
//! and write themselves: a network pays for its first image, a single convolution between two others does not.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::plan::CompileOptions;

use crate::passes::error::PassError;
use crate::passes::views::{Purpose, image_op, rewrite};

const PASS: &str = "channels_last";

/// The graph, or what computes the same with the channels of its images last where that pays.
///
/// # Errors
/// Where an op does not take its operands.
pub fn channels_last(graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    let traffic: usize = graph.nodes.iter().map(|node| images(&graph, node)).sum();
    if traffic == 0 {
        return Ok(graph);
    }
    let rewritten = rewrite(&graph, options, Purpose::Images);
    let rewritten = rewritten.map_err(|error| PassError::Op { pass: PASS, error })?;
    let added = moved(&rewritten).saturating_sub(moved(&graph));
    Ok(if added < traffic { rewritten } else { graph })
}

/// Bytes of the images that a convolution or a pooling with channels first reads and writes.
fn images(graph: &Graph, node: &Node) -> usize {
    let Some(op) = image_op(&node.op) else { return 0 };
    let of = |values: &[ValueId], images: &[bool]| -> usize {
        let both = values.iter().zip(images).filter(|&(_, &image)| image);
        both.map(|(&value, _)| graph.value(value).ty.bytes()).sum()
    };
    of(&node.operands, op.operands) + of(&node.results, &[op.result])
}

/// Bytes that transposes read and write.
fn moved(graph: &Graph) -> usize {
    let transposes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Transpose(_)));
    transposes.map(|node| 2 * graph.value(node.results[0]).ty.bytes()).sum()
}

#[cfg(test)]
mod tests;
