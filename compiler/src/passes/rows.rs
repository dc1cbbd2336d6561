//! Keeps apart the leading dims that a product with a matrix takes as one.
//!
//! PyTorch writes such a product as `addmm(bias, x.view(-1, width), weight).view(batch, time, -1)`: the `Conv1D` of
//! GPT-2 does, and so does every linear layer that `torch.export` decomposes. A product with a matrix treats each row by
//! itself, so the views are not needed. Where they stay, they keep what is elementwise on either side from being one
//! loop, and sequences from being split: of a merged dim only the slowest factor can be.
//!
//! A reshape that makes leading dims one becomes a view (`passes/views`), and what is computed of it is computed with
//! the dims apart. A view that is taken apart again leaves nothing. An op that needs the rows as one has them made for
//! it. The pass acts where fewer reshapes are left than the model has.
//!
//! A tensor whose dims are then not those of the model is called `NAME.rows`.

use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_plan::CompileOptions;

use crate::passes::error::PassError;
use crate::passes::views::{Purpose, rewrite_views};

const PASS: &str = "rows";

/// Rewrites the graph with leading dims apart, if that leaves fewer reshapes. Otherwise it stays as it is.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(crate) fn keep_leading_dims(
    graph: Graph,
    options: &CompileOptions,
) -> Result<Graph, PassError> {
    let reshapes = count_reshapes(&graph);
    if reshapes < 2 {
        return Ok(graph);
    }
    let rewritten = rewrite_views(&graph, options, Purpose::Rows);
    let rewritten = rewritten.map_err(|error| PassError::Op { pass: PASS, error })?;
    Ok(if count_reshapes(&rewritten) < reshapes { rewritten } else { graph })
}

/// Counts the reshapes whose results are read.
fn count_reshapes(graph: &Graph) -> usize {
    let mut is_read = vec![false; graph.values.len()];
    let read = graph.nodes.iter().flat_map(|node| &node.operands);
    for value in read.chain(graph.outputs.iter().map(|output| &output.value)) {
        is_read[value.index()] = true;
    }
    let reshapes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Reshape(_)));
    reshapes.filter(|node| is_read[node.results[0].index()]).count()
}

#[cfg(test)]
mod tests {
    use graphc_ir::builder::{GraphBuilder, Tensor};
    use graphc_ir::types::DType;
    use proptest::prelude::*;

    use super::*;
    use crate::passes::views::same::{add_weight, assert_same};

    const TIME: usize = 3;
    const WIDTH: usize = 4;

    fn one_linear(g: &GraphBuilder, x: &Tensor, batch: usize, at: usize) -> Tensor {
        let weight = add_weight(g, &format!("w{at}"), &[WIDTH, WIDTH]);
        let bias = add_weight(g, &format!("b{at}"), &[WIDTH]);
        bias.add(&x.reshape(&[batch * TIME, WIDTH]).matmul(&weight))
    }

    fn append(g: &GraphBuilder, x: &Tensor, batch: usize, which: u32, at: usize) -> Tensor {
        let named = |kind: &str| add_weight(g, &format!("{kind}{at}"), &[WIDTH]);
        let last = x.shape().len() - 1;
        match which {
            0 => one_linear(g, x, batch, at),
            1 => x.reshape(&[batch, TIME, WIDTH]),
            2 => x.reshape(&[batch, TIME, 2, WIDTH / 2]).tanh().reshape(&[batch * TIME, WIDTH]),
            3 => x.layer_norm(&named("scale"), &named("shift"), 1e-5).tanh(),
            4 => x.softmax(last),
            5 => g.concat(&[x.slice(last, 1..WIDTH), x.slice(last, 0..1)], last),
            6 => x.add(&x.sum(&[0], true)),
            7 => x.mul(&x.mean(&[last], true)),
            8 => x.transpose(&(0..=last).rev().collect::<Vec<usize>>()).tanh().reshape(&x.shape()),
            9 => x
                .reshape(&[TIME, batch, WIDTH])
                .slice(0, 0..1)
                .add(&x.reshape(&[TIME, batch, WIDTH])),
            _ => x.add(&add_weight(g, &format!("table{at}"), &x.shape())),
        }
    }

    proptest! {
        #[test]
        fn whatever_is_computed_of_rows_is_the_same(batch in 1usize..3, steps in prop::collection::vec(0u32..11, 1..14)) {
            let g = GraphBuilder::new("random");
            let mut value = g.input("x", DType::F32, [batch, TIME, WIDTH]);
            for (at, &which) in steps.iter().enumerate() {
                value = append(&g, &value, batch, which, at);
                if which == 4 {
                    g.output(&format!("y{at}"), &value);
                }
            }
            g.output("last", &value);
            let graph = g.finish().expect("fits");
            let rewritten = rewrite_views(&graph, &CompileOptions::default(), Purpose::Rows).expect("fits");
            assert_same(&graph, &rewritten);
            let kept = keep_leading_dims(graph.clone(), &CompileOptions::default()).expect("fits");
            prop_assert!(count_reshapes(&kept) <= count_reshapes(&graph));
        }
    }

    #[test]
    fn rows_that_others_need_as_one_stay_as_they_are_written() {
        let g = GraphBuilder::new("routed");
        let x = g.input("x", DType::F32, [2, TIME, WIDTH]);
        let rows = one_linear(&g, &x, 2, 0);
        g.output("y", &rows.transpose(&[1, 0]).add(&rows.tanh().transpose(&[1, 0])));
        let graph = g.finish().expect("fits");
        let kept = keep_leading_dims(graph.clone(), &CompileOptions::default()).expect("fits");
        assert_eq!(kept, graph);
    }
}
