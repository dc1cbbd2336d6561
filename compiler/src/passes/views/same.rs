//! Functions that the tests of rewritten graphs share.

use std::collections::BTreeMap;

use graphc_ir::array::Array;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::evaluate::evaluate_outputs;
use graphc_ir::graph::Graph;
use graphc_ir::op::{EvalContext, Op};
use graphc_ir::ops::Init;
use graphc_ir::types::{DType, TensorType};

/// A variable.
pub(in crate::passes) fn add_weight(g: &GraphBuilder, name: &str, shape: &[usize]) -> Tensor {
    g.variable(name, DType::F32, shape, Init::Fill(0.5.into()))
}

fn feed_numbers(graph: &Graph) -> BTreeMap<String, Array> {
    let number = |(name, ty): (&String, &TensorType)| {
        let seed = name.bytes().map(f64::from).sum::<f64>();
        let data = (0..ty.elements()).map(|i| (seed + 1.7 * i as f64).sin()).collect();
        (name.clone(), Array::new(ty.shape.clone(), data))
    };
    let fed = graph.nodes.iter().filter_map(|node| match &node.op {
        Op::Input(input) => Some((&input.name, &input.ty)),
        Op::Variable(variable) => Some((&variable.name, &variable.ty)),
        _ => None,
    });
    fed.map(number).collect()
}

fn compute_outputs(graph: &Graph) -> BTreeMap<String, Array> {
    evaluate_outputs(graph, &feed_numbers(graph), &EvalContext::default()).expect("all is fed")
}

/// Whether all that a graph computes of these numbers is finite, so that it can be compared.
pub(in crate::passes) fn is_finite(graph: &Graph) -> bool {
    compute_outputs(graph).values().all(|array| array.data.iter().all(|number| number.is_finite()))
}

/// Holds that two graphs compute the same of the same numbers.
pub(in crate::passes) fn assert_same(a: &Graph, b: &Graph) {
    for ((name, a), (other, b)) in compute_outputs(a).iter().zip(&compute_outputs(b)) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * (1.0 + a.abs());
        assert_eq!((name, &a.shape), (other, &b.shape));
        assert!(a.data.iter().zip(&b.data).all(near), "{name}: {a:?} is not {b:?}");
    }
}

/// Counts the transposes of a graph.
pub(in crate::passes) fn count_transposes(graph: &Graph) -> usize {
    graph.nodes.iter().filter(|node| matches!(node.op, Op::Transpose(_))).count()
}
