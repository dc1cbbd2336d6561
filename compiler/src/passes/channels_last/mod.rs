//! Brings images to the layout `[n, h, w, c]`, in which kernels can use vectors of channels.
//!
//! A 1x1 convolution is then a matrix product. A larger one reads rows of channels, and statistics of channels are
//! sums of rows.
//!
//! Convolution and pooling take and give images in this layout. The ops between them are computed on that layout too,
//! by the machinery of `passes/views`: elementwise ops, reductions, batch normalization, concatenation, slices,
//! padding, resizing. Kernels stay `[o, c, kh, kw]`.
//!
//! A transpose remains where images come in and where they go out. One also remains before an op that needs the
//! model's order: a flattening of several places, or a dropout, whose random numbers follow from places. Images of
//! one place or one channel need no transpose, because no element moves. They are computed channels last all the
//! same: a reshape between a convolution and its normalization would keep the two from being one loop.
//!
//! The price of the pass is the bytes that its transposes read and write. It acts where these are fewer than the
//! bytes of the images that convolutions and poolings read and write. So a network pays for its first image, but a
//! single convolution stays as it is.
//!
//! A pin on a dim becomes a pin on the same dim of the new layout. Where that layout has no such dim, the value is
//! made as the model says. Tensors with other dims than the model's are called `NAME.channels_last`. They lose their
//! name if a pattern of a pin would fit both names.
//!
//! The pass comes before stages and autodiff. So tensors that cross stages, and gradients, have their channels last
//! as well.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_plan::CompileOptions;

use crate::passes::error::PassError;
use crate::passes::views::{Purpose, image_op, rewrite_views};

const PASS: &str = "channels_last";

/// Rewrites the graph with the channels of its images last, if that pays. Otherwise it stays as it is.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub fn channels_last(graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    let traffic: usize = graph.nodes.iter().map(|node| image_bytes(&graph, node)).sum();
    if traffic == 0 {
        return Ok(graph);
    }
    let rewritten = rewrite_views(&graph, options, Purpose::Images);
    let rewritten = rewritten.map_err(|error| PassError::Op { pass: PASS, error })?;
    let added = transposed_bytes(&rewritten).saturating_sub(transposed_bytes(&graph));
    Ok(if added < traffic { rewritten } else { graph })
}

/// Bytes of the images that a convolution or a pooling with channels first reads and writes.
fn image_bytes(graph: &Graph, node: &Node) -> usize {
    let Some(op) = image_op(&node.op) else { return 0 };
    let of = |values: &[ValueId], images: &[bool]| -> usize {
        let both = values.iter().zip(images).filter(|&(_, &image)| image);
        both.map(|(&value, _)| graph.value(value).ty.bytes()).sum()
    };
    of(&node.operands, op.operands) + of(&node.results, &[op.result])
}

/// Bytes that transposes read and write.
fn transposed_bytes(graph: &Graph) -> usize {
    let transposes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Transpose(_)));
    transposes.map(|node| 2 * graph.value(node.results[0]).ty.bytes()).sum()
}

#[cfg(test)]
mod tests;
