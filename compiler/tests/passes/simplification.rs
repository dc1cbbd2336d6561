//! Simplified graphs compute the same, keep the values that have names, and are small.

use std::collections::BTreeMap;

use graphc_compiler::pipeline::{prepare_graph, prepare_until};
use graphc_ir::array::Array;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::evaluate::{evaluate_graph, evaluate_outputs};
use graphc_ir::graph::Graph;
use graphc_ir::op::{EvalContext, Op};
use graphc_ir::types::DType;
use graphc_plan::{CompileOptions, Loss};
use proptest::prelude::*;

use super::models::{attention, feeds, mlp, tied, training};

fn simplified(graph: &Graph) -> Graph {
    prepare_until(graph.clone(), &CompileOptions::default(), "simplify").expect("fits")
}

fn names(graph: &Graph) -> Vec<&'static str> {
    graph.nodes.iter().map(|node| node.op.name()).collect()
}

fn near(a: &Array, b: &Array) -> bool {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()));
    a.shape == b.shape && a.data.iter().zip(&b.data).all(|(a, b)| a == b || near((a, b)))
}

#[test]
fn a_product_takes_transposed_operands_as_they_are() {
    let g = GraphBuilder::new("t");
    let (a, b) = (g.input("a", DType::F32, [2, 3, 4]), g.input("b", DType::F32, [2, 5, 4]));
    g.output("y", &a.matmul(&b.transpose(&[1, 0, 2]).transpose(&[1, 2, 0]).transpose(&[0, 1, 2])));
    let graph = g.finish().expect("fits");
    assert_eq!(names(&simplified(&graph)), ["input", "input", "matmul"]);
}

#[test]
fn what_is_shared_is_not_computed_twice() {
    let g = GraphBuilder::new("shared");
    let x = g.input("x", DType::F32, [64, 64]);
    let sum = x.sum(&[1], true);
    g.output("kept", &sum);
    g.output("dropped", &sum.reshape(&[64]));
    g.output("again", &x.sum(&[1], true).exp());
    let graph = g.finish().expect("fits");
    assert_eq!(names(&simplified(&graph)), ["input", "reduce", "reshape", "unary"]);
}

#[test]
fn gradients_of_slices_become_one_concatenation() {
    let after = prepare_until(attention(), &training(Some(Loss::Mse)), "simplify").expect("fits");
    let names = names(&after);
    assert_eq!(names.iter().filter(|&&name| name == "pad").count(), 0, "{names:?}");
    assert_eq!(names.iter().filter(|&&name| name == "concat").count(), 1);
}

#[test]
fn what_has_a_name_or_a_pin_stays() {
    let g = GraphBuilder::new("names");
    let x = g.input("x", DType::F32, [4, 4]);
    let same = x.scale(1.0).named("same");
    let twice = x.exp().named("first");
    let again = x.exp().named("second");
    let pinned = x.exp().pin("S(0)".parse().expect("an SBP"));
    let plain = x.exp();
    for (name, tensor) in
        [("a", same), ("b", twice), ("c", again), ("d", pinned), ("e", plain.neg().neg())]
    {
        g.output(name, &tensor);
    }
    let after = simplified(&g.finish().expect("fits"));
    assert_eq!(names(&after), ["input", "unary", "unary", "unary", "unary"]);
    let value = |output: usize| after.value(after.outputs[output].value);
    let found: Vec<_> = (0..3).map(|i| value(i).name.as_deref().expect("a name")).collect();
    assert_eq!(found, ["same", "first", "second"]);
    assert!(value(3).pin.is_some());
    assert_eq!(after.outputs[4].value, after.outputs[1].value);
}

#[test]
fn the_same_graph_gives_the_same_graph() {
    let options = CompileOptions { microbatches: 2, ..training(Some(Loss::CrossEntropy)) };
    let text =
        || graphc_ir::text::print_graph(prepare_graph(tied(), &options).expect("fits").graph());
    let first = text();
    assert!((0..4).all(|_| text() == first));
}

#[test]
fn training_graphs_compute_the_same() {
    for (graph, loss) in
        [(mlp(), Loss::CrossEntropy), (attention(), Loss::Mse), (tied(), Loss::CrossEntropy)]
    {
        let options = training(Some(loss));
        let before = prepare_until(graph.clone(), &options, "optimizer").expect("fits");
        let after = prepare_until(graph, &options, "simplify").expect("fits");
        assert!(after.nodes.len() < before.nodes.len());
        let fed = feeds(&before);
        let [old, new] = [&before, &after]
            .map(|g| evaluate_graph(g, &fed, &EvalContext::default()).expect("is fed"));
        for value in before.values.iter().filter_map(|value| value.name.as_deref()) {
            let Some(kept) = after.find(value) else { panic!("{value} is gone") };
            let was = before.find(value).expect("it has that name");
            assert!(near(&old[was.index()], &new[kept.index()]), "{value}");
        }
    }
}

/// Makes one step of a random graph: an op on earlier tensors of shape [4, 4], or a scalar.
fn step(g: &GraphBuilder, made: &[Tensor], (op, i, j): (u8, usize, usize)) -> Tensor {
    let (a, b) = (&made[i % made.len()], &made[j % made.len()]);
    match op {
        0 => a.add(b),
        1 => a.mul(b),
        2 => a.sub(&b.neg()),
        3 => a.neg(),
        4 => a.scale([1.0, 0.5, -2.0][j % 3]),
        5 => a.transpose(&[1, 0]),
        6 => a.reshape(&[2, 8]).reshape(&[4, 4]),
        7 => a.matmul(&b.transpose(&[1, 0])).scale(0.25),
        8 => a.sum(&[1], true).reshape(&[4]).reshape(&[4, 1]).expand(&[4, 4]).scale(0.25),
        9 => a.mul(&g.full(DType::F32, [4, 4], [0.0, 1.0, 2.0][j % 3])),
        10 => a.add(&g.full(DType::F32, [4], [0.0, 1.0][j % 2]).expand(&[4, 4])),
        11 => a.tanh(),
        12 => g.concat(&[a.slice(0, 0..2), b.slice(0, 2..4)], 0),
        13 => {
            let top = a.slice(0, 0..1).pad(&[0, 0], &[3, 0], 0.0);
            b.slice(0, 1..4).pad(&[1, 0], &[0, 0], 0.0).add(&top)
        }
        14 => a.div(&b.mul(b).offset(1.0)),
        15 => a.mul(&b.mul(b).offset(1.0).reciprocal()),
        16 => a.greater(b).select(a, &b.expand(&[4, 4])),
        _ => a.mean(&[0, 1], false).reshape(&[1, 1]).expand(&[4, 4]),
    }
}

/// Makes a graph of steps, of which the last three tensors are read.
fn of_steps(steps: &[(u8, usize, usize)]) -> Graph {
    let g = GraphBuilder::new("random");
    let mut made = vec![g.input("x", DType::F32, [4, 4]), g.input("y", DType::F32, [4, 4])];
    for &which in steps {
        let next = step(&g, &made, which);
        made.push(next);
    }
    for (index, tensor) in made.iter().rev().take(3).enumerate() {
        g.output(&format!("out{index}"), tensor);
    }
    g.finish().expect("fits")
}

/// Counts the nodes that compute something.
fn computing(graph: &Graph) -> usize {
    graph.nodes.iter().filter(|node| !matches!(node.op, Op::Input(_))).count()
}

/// The passes before may have made a graph larger: one that cannot be cut along its batch as it is written is seen through views.
#[test]
fn simplification_is_held_against_what_it_was_given() {
    let graph = of_steps(&[
        (5, 0, 0),
        (11, 44, 0),
        (9, 14, 0),
        (0, 5, 40),
        (3, 0, 0),
        (6, 16, 0),
        (0, 39, 26),
    ]);
    let given = prepare_until(graph.clone(), &CompileOptions::default(), "decompose");
    let given = given.expect("fits");
    let after = simplified(&graph);
    assert!(computing(&given) > computing(&graph), "{:?}", names(&given));
    assert!(computing(&after) <= computing(&given), "{:?} of {:?}", names(&after), names(&given));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_graphs_compute_the_same(
        steps in prop::collection::vec((0u8..18, 0usize..64, 0usize..64), 1..40),
    ) {
        let graph = of_steps(&steps);
        let given = prepare_until(graph.clone(), &CompileOptions::default(), "decompose");
        let given = given.expect("fits");
        let after = simplified(&graph);
        let fed: BTreeMap<String, Array> = feeds(&graph);
        let [old, new] =
            [&graph, &after].map(|g| evaluate_outputs(g, &fed, &EvalContext::default()).expect("is fed"));
        for (name, array) in &old {
            prop_assert!(near(array, &new[name]), "{}: {:?} is not {:?}", name, new[name], array);
        }
        prop_assert!(computing(&after) <= computing(&given));
    }
}
