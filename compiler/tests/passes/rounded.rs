//! Evaluates mixed precision with every value of half precision rounded to its type, as devices do. The oracle itself never rounds.

use graphc_compiler::decisions::Decisions;
use graphc_compiler::pipeline::prepare_graph;
use graphc_ir::array::Array;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::op::{EvalContext, Op, Operand, Region};
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_plan::{AdamOptions, CompileOptions, Loss, Optimizer};

use super::models::Feeds;

/// Rounds a number to an element of this type: to nearest, ties to even, infinite beyond the greatest.
fn round(dtype: DType, x: f64) -> f64 {
    let (bits, least, greatest) = match dtype {
        DType::BF16 => (7, -126.0, 3.389_531_389_251_535_5e38),
        DType::F16 => (10, -14.0, 65504.0),
        _ => return x,
    };
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let unit = (x.abs().log2().floor().max(least) - f64::from(bits)).exp2();
    let rounded = (x / unit).round_ties_even() * unit;
    if rounded.abs() > greatest { f64::INFINITY.copysign(x) } else { rounded }
}

/// Evaluates all values of a graph, and rounds those of half precision.
pub fn evaluate_rounded(graph: &Graph, feeds: &Feeds, cx: &EvalContext) -> Vec<Array> {
    let regions: Vec<Region> = graph.values.iter().map(|value| Region::whole(&value.ty)).collect();
    let mut values: Vec<Array> = Vec::new();
    for node in &graph.nodes {
        let fed = match &node.op {
            Op::Input(input) => feeds.get(&input.name),
            Op::Variable(variable) => feeds.get(&variable.name),
            _ => None,
        };
        let operand = |value: &graphc_ir::ids::ValueId| Operand {
            array: &values[value.index()],
            region: &regions[value.index()],
        };
        let operands: Vec<Operand<'_>> = node.operands.iter().map(operand).collect();
        let into: Vec<Region> = node.results.iter().map(|v| regions[v.index()].clone()).collect();
        let results = match fed {
            Some(array) => vec![array.clone()],
            None => node.op.operation().evaluate(&operands, &into, cx).expect("evaluates"),
        };
        for (region, mut array) in into.iter().zip(results) {
            array.data.iter_mut().for_each(|x| *x = round(region.dtype, *x));
            values.push(array);
        }
    }
    values
}

/// Evaluates a step, feeds the results of updates to the next one, and returns all values.
fn step(decisions: &Decisions, fed: &mut Feeds, step: u64) -> Vec<Array> {
    let graph = decisions.graph();
    let values = evaluate_rounded(graph, fed, &EvalContext { seed: 0, step });
    for node in &graph.nodes {
        for &(result, operand) in node.op.operation().updates() {
            let Op::Variable(variable) = &graph.producer(node.operands[operand]).op else {
                panic!("an update of no variable");
            };
            fed.insert(variable.name.clone(), values[node.results[result].index()].clone());
        }
    }
    values
}

fn output(decisions: &Decisions, values: &[Array], name: &str) -> f64 {
    let found = decisions.graph().outputs.iter().find(|output| output.name == name);
    values[found.expect("an output").value.index()].data[0]
}

/// Makes two products of a sum, trained by Adam in f16.
fn scaled(microbatches: usize) -> Decisions {
    let g = GraphBuilder::new("scaled");
    let x = g.input("x", DType::F32, [4, 8]);
    let weight = |name: &str| g.variable(name, DType::F32, [8, 8], Init::Fill(0.25.into()));
    g.output("y", &x.matmul(&weight("w")).matmul(&weight("v")).mean(&[0, 1], false));
    let adam = AdamOptions { lr: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1 };
    let options = CompileOptions {
        loss: Some(Loss::Sum),
        optimizer: Some(Optimizer::AdamW(adam)),
        precision: Some(DType::F16),
        microbatches,
        ..CompileOptions::default()
    };
    prepare_graph(g.finish().expect("fits"), &options).expect("fits")
}

#[test]
fn an_overflow_skips_a_step_as_if_it_had_not_been() {
    for microbatches in [1, 2] {
        let decisions = scaled(microbatches);
        let rows = |number: f64| Array::full([4, 8], number);
        // One row too large for f16 is enough.
        let mut large = rows(1.0);
        large.data[31] = 1e6;
        let (mut with, mut without) = (Feeds::new(), Feeds::new());
        for (at, (x, skipped)) in
            [(rows(1.0), 0.0), (large, 1.0), (rows(0.5), 0.0)].into_iter().enumerate()
        {
            let before = with.clone();
            with.insert("x".into(), x.clone());
            let values = step(&decisions, &mut with, at as u64);
            assert_eq!(output(&decisions, &values, "skipped"), skipped, "step {at}");
            let scale = if at < 2 { 65536.0 } else { 32768.0 };
            assert_eq!(output(&decisions, &values, "loss_scale"), scale, "step {at}");
            if skipped == 1.0 {
                for (name, array) in &before {
                    let kept = name == "x" || name.starts_with("state.loss_scale");
                    assert!(kept || with[name] == *array, "{name} has changed");
                }
                assert_eq!(with["state.loss_scale.updates"].data, [1.0]);
            } else {
                without.insert("x".into(), x);
                step(&decisions, &mut without, 7);
            }
        }
        // The scale is a power of 2, and steps are counted by the updates, so nothing else differs.
        for name in ["w", "v", "state.exp_avg.w", "state.exp_avg_sq.v"] {
            assert_eq!(with[name], without[name], "{name}");
        }
        assert_ne!(with["w"].data[0], 0.25);
    }
}

#[test]
fn rounding_is_that_of_the_types() {
    let of = |dtype, numbers: [f64; 4]| numbers.map(|x| round(dtype, x));
    assert_eq!(of(DType::BF16, [1.0, 1.0 + 2f64.powi(-8), 257.0, -3.0]), [1.0, 1.0, 256.0, -3.0]);
    let least = 2f64.powi(-24);
    assert_eq!(
        of(DType::F16, [65519.0, 65520.0, least, least / 2.0]),
        [65504.0, f64::INFINITY, least, 0.0]
    );
    assert_eq!(round(DType::F32, 0.1), 0.1);
}
