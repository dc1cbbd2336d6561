//! A step's batch computed microbatch by microbatch equals the whole.

use std::collections::BTreeMap;

use graphc_compiler::decisions::{Decisions, ValueRate};
use graphc_compiler::pipeline::prepare_graph;
use graphc_ir::array::Array;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::evaluate::evaluate_graph;
use graphc_ir::graph::Graph;
use graphc_ir::ids::ValueId;
use graphc_ir::op::{EvalContext, Op, Operand, Region};
use graphc_ir::ops::{Init, ReduceFunction};
use graphc_ir::shard::{Rect, split_range};
use graphc_ir::types::DType;
use graphc_plan::{CompileOptions, Float8Recipe, Loss};

use super::models::{Feeds, attention, feeds, mlp, tied, training};

/// Returns the part of a value that a microbatch has.
fn region(decisions: &Decisions, value: ValueId, microbatch: usize) -> Region {
    let mut region = Region::whole(&decisions.graph().value(value).ty);
    if let ValueRate::Microbatch { dim } = decisions.rates.values[value.index()] {
        let range = split_range(region.global[dim], decisions.rates.microbatches, microbatch);
        (region.rect.origin[dim], region.rect.extent[dim]) = (range.start, range.len());
    }
    region
}

/// Computes each node as its rate says, once or for every microbatch, and joins the parts.
fn by_microbatches(decisions: &Decisions, feeds: &Feeds) -> Vec<Array> {
    let (graph, cx) = (decisions.graph(), EvalContext::default());
    let mut contents: Vec<Vec<Array>> = vec![Vec::new(); graph.values.len()];
    for (id, node) in graph.iter() {
        let times = match decisions.rates.nodes[id.index()] {
            Some(_) => decisions.rates.microbatches,
            None => 1,
        };
        for microbatch in 0..times {
            let regions = |values: &[ValueId]| -> Vec<Region> {
                values.iter().map(|&value| region(decisions, value, microbatch)).collect()
            };
            let (operands, results) = (regions(&node.operands), regions(&node.results));
            let arrays: Vec<&Array> = node
                .operands
                .iter()
                .map(|value| &contents[value.index()])
                .map(|parts| &parts[microbatch.min(parts.len() - 1)])
                .collect();
            let fed = match &node.op {
                Op::Input(input) => feeds.get(&input.name),
                Op::Variable(variable) => feeds.get(&variable.name),
                _ => None,
            };
            let made = match fed {
                Some(array) => vec![array.slice_rect(&results[0].rect)],
                None => {
                    let operands: Vec<Operand<'_>> = arrays
                        .iter()
                        .zip(&operands)
                        .map(|(array, region)| Operand { array, region })
                        .collect();
                    node.op.operation().evaluate(&operands, &results, &cx).expect("in range")
                }
            };
            for (result, array) in node.results.iter().zip(made) {
                let parts = &mut contents[result.index()];
                match (&node.op, parts.first_mut()) {
                    (Op::Accumulate(_), Some(sum)) => {
                        sum.data.iter_mut().zip(array.data).for_each(|(sum, x)| *sum += x);
                    }
                    _ => parts.push(array),
                }
            }
        }
    }
    let all = (0..graph.values.len()).map(ValueId::new);
    all.map(|value| together(decisions, value, &contents[value.index()])).collect()
}

fn together(decisions: &Decisions, value: ValueId, parts: &[Array]) -> Array {
    match decisions.rates.values[value.index()] {
        ValueRate::Step | ValueRate::Anew => parts[0].clone(),
        ValueRate::Summand => {
            let mut sum = parts[0].clone();
            for part in &parts[1..] {
                sum.data.iter_mut().zip(&part.data).for_each(|(sum, x)| *sum += x);
            }
            sum
        }
        // The greatest size of all.
        ValueRate::Each => {
            let mut greatest = parts[0].clone();
            for part in &parts[1..] {
                greatest.data.iter_mut().zip(&part.data).for_each(|(a, b)| *a = a.max(*b));
            }
            greatest
        }
        ValueRate::Microbatch { .. } => {
            let mut whole = Array::full(decisions.graph().value(value).ty.shape.clone(), f64::NAN);
            for (microbatch, part) in parts.iter().enumerate() {
                let rect: Rect = region(decisions, value, microbatch).rect;
                whole.write_rect(&rect, part);
            }
            whole
        }
    }
}

fn check(graph: Graph, options: &CompileOptions) {
    let decisions = prepare_graph(graph.clone(), options).expect("fits");
    let fed = feeds(decisions.graph());
    let found = by_microbatches(&decisions, &fed);
    let whole =
        evaluate_graph(decisions.graph(), &fed, &EvalContext::default()).expect("all is fed");
    for (index, (found, whole)) in found.iter().zip(&whole).enumerate() {
        let name = decisions.graph().display_name(ValueId::new(index));
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * (1.0 + b.abs()) || a == b;
        assert!(found.data.iter().zip(&whole.data).all(near), "{name}: {found:?} is not {whole:?}");
    }
    // The same as without microbatches.
    let one =
        prepare_graph(graph, &CompileOptions { microbatches: 1, ..options.clone() }).expect("fits");
    let expected = evaluate_graph(one.graph(), &fed, &EvalContext::default()).expect("all is fed");
    for &(variable, gradient) in &one.training.gradients {
        let name = format!("grad.{}", one.graph().display_name(variable));
        let here = decisions.graph().find(&name).expect("it has that gradient too");
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9;
        let (a, b) = (&found[here.index()], &expected[gradient.index()]);
        assert!(a.data.iter().zip(&b.data).all(near), "{name}: {a:?} is not {b:?}");
    }
}

fn parts(microbatches: usize, loss: Loss) -> CompileOptions {
    CompileOptions { microbatches, ..training(Some(loss)) }
}

#[test]
fn sum_to_the_whole_step() {
    check(mlp(), &parts(4, Loss::CrossEntropy));
    check(mlp(), &parts(2, Loss::Mse));
    check(mlp(), &parts(2, Loss::Sum));
    check(attention(), &parts(2, Loss::Mse));
    check(tied(), &parts(2, Loss::CrossEntropy));
    check(tied(), &CompileOptions { mesh: vec![2], ..parts(2, Loss::CrossEntropy) });
}

#[test]
fn what_no_input_reaches_is_computed_once() {
    let decisions = prepare_graph(tied(), &parts(2, Loss::CrossEntropy)).expect("fits");
    let graph = decisions.graph();
    let rate = |value: ValueId| decisions.rates.values[value.index()];
    for &(variable, gradient) in &decisions.training.gradients {
        assert_eq!((rate(variable), rate(gradient)), (ValueRate::Step, ValueRate::Step));
    }
    for (id, node) in graph.iter() {
        let reads_summand = node.operands.iter().any(|&v| rate(v) == ValueRate::Summand);
        assert_eq!(reads_summand, matches!(node.op, Op::Accumulate(_)), "{id}");
    }
    let iota = graph.nodes.iter().find(|node| node.op.name() == "iota").expect("positions");
    assert_eq!(rate(iota.results[0]), ValueRate::Step);
}

#[test]
fn random_numbers_are_those_of_the_whole_batch() {
    let g = GraphBuilder::new("noise");
    let x = g.input("x", DType::F32, [4, 3]);
    let w = g.variable("w", DType::F32, [3, 3], graphc_ir::ops::Init::Fill(0.5.into()));
    let (mean, std) = (0.0.into(), 1.0.into());
    let noise = g.random(DType::F32, [4, 3], graphc_ir::ops::Distribution::Normal { mean, std });
    g.output("y", &x.matmul(&w).add(&noise.exp()).dropout(0.5).mul(&noise));
    check(g.finish().expect("fits"), &parts(2, Loss::Mse));
}

/// A scale for each tensor is one for each microbatch of an activation and of its gradient; that of a weight is made once.
#[test]
fn tensors_of_8_bits_have_a_scale_for_each_microbatch() {
    let g = GraphBuilder::new("eight");
    let weight = |name: &str| g.variable(name, DType::F32, [32, 32], Init::Fill(0.1.into()));
    let x = g.input("x", DType::F32, [4, 16, 32]);
    let hidden = x.matmul(&weight("first")).relu().matmul(&weight("second")).relu();
    g.output("y", &hidden.matmul(&weight("scores")));
    let options = CompileOptions {
        precision: Some(DType::F8E4M3),
        float8_recipe: Float8Recipe::Tensorwise,
        ..parts(2, Loss::CrossEntropy)
    };
    let decisions = prepare_graph(g.finish().expect("fits"), &options).expect("fits");
    let rates = &decisions.rates;
    let mut scaled = BTreeMap::new();
    for node in &decisions.graph().nodes {
        if matches!(&node.op, Op::Reduce(op) if op.function == ReduceFunction::MaxAbs) {
            let rate = rates.values[node.results[0].index()];
            *scaled.entry(format!("{rate:?}")).or_insert(0) += 1;
        }
    }
    // Two activations and two gradients; two weights.
    let expected = [("Each", 4), ("Step", 2)].map(|(rate, count)| (rate.to_owned(), count));
    assert_eq!(scaled, BTreeMap::from(expected));
}

#[test]
fn what_cannot_be_cut_is_said() {
    let error = prepare_graph(mlp(), &parts(3, Loss::Mse)).expect_err("4 by 3").to_string();
    assert_eq!(
        error,
        "dim 0 of the input `x` has extent 4, which 3 microbatches do not divide: 1, 2 or 4 do"
    );
    let g = GraphBuilder::new("over");
    let x = g.input("x", DType::F32, [4, 3]);
    g.output("y", &x.softmax(0).named("s"));
    let options = CompileOptions { microbatches: 2, ..CompileOptions::default() };
    let error =
        prepare_graph(g.finish().expect("fits"), &options).expect_err("softmax").to_string();
    assert!(error.starts_with("softmax ("), "{error}");
    let why = "cannot be cut into 2 microbatches: x, f32[4, 3], is cut along dim 0; what it makes";
    assert!(error.contains(why) && error.contains("take one microbatch"), "{error}");
    let g = GraphBuilder::new("max");
    g.output("y", &g.input("x", DType::F32, [4, 3]).max(&[0], false));
    assert!(prepare_graph(g.finish().expect("fits"), &options).is_err(), "a maximum is no sum");
    let g = GraphBuilder::new("sum");
    let x = g.input("x", DType::F32, [4, 3]);
    let sum = x.sum(&[0], true).tanh();
    g.output("y", &g.concat(&[sum.clone(), sum.clone(), sum.clone(), sum], 0).add(&x));
    let error = prepare_graph(g.finish().expect("fits"), &options).expect_err("sum").to_string();
    assert!(error.starts_with("reduce ("), "it names the op where samples meet: {error}");
    let why = "it sums over samples, and binary (";
    assert!(error.contains(why) && error.contains("take one microbatch"), "{error}");
    let none = CompileOptions { microbatches: 0, ..CompileOptions::default() };
    assert!(prepare_graph(mlp(), &none).is_err());
}
