//! Compares gradients with finite differences.

use graphc_compiler::pipeline::{prepare_graph, prepare_until};
use graphc_ir::evaluate::evaluate_graph;
use graphc_ir::graph::Graph;
use graphc_ir::op::EvalContext;
use graphc_plan::{CompileOptions, CrossEntropyForm, Loss, Pin, Strategy};

use super::models::{Feeds, attention, feeds, mlp, tied, training};

/// Compares each element of each gradient with the central difference of the loss.
fn check(graph: Graph, options: &CompileOptions) {
    let decisions = prepare_graph(graph, options).expect("fits");
    let (graph, training) = (decisions.graph(), &decisions.training);
    let loss = training.loss.expect("it trains");
    let fed = feeds(graph);
    let loss_of = |feeds: &Feeds| {
        evaluate_graph(graph, feeds, &EvalContext::default()).expect("all is fed")[loss.index()]
            .data[0]
    };
    let values = evaluate_graph(graph, &fed, &EvalContext::default()).expect("all is fed");
    let trained = graph.nodes.iter().filter(|node| !node.op.operation().updates().is_empty());
    assert_eq!(trained.count(), training.gradients.len());
    for &(variable, gradient) in &training.gradients {
        let name = graph.display_name(variable);
        assert_eq!(graph.display_name(gradient), format!("grad.{name}"));
        for (element, found) in values[gradient.index()].data.iter().enumerate() {
            let at = |step: f64| {
                let mut moved = fed.clone();
                moved.get_mut(&name).expect("it is fed").data[element] += step;
                loss_of(&moved)
            };
            let expected = (at(1e-4) - at(-1e-4)) / 2e-4;
            let near = (found - expected).abs() <= 1e-6 + 1e-5 * expected.abs();
            assert!(near, "d loss / d {name}[{element}] is {expected}, not {found}");
        }
    }
}

fn on(mesh: &[usize], options: CompileOptions) -> CompileOptions {
    CompileOptions { mesh: mesh.to_vec(), ..options }
}

#[test]
fn of_an_mlp() {
    check(mlp(), &training(Some(Loss::CrossEntropy)));
    check(mlp(), &training(Some(Loss::Mse)));
    check(mlp(), &training(Some(Loss::Sum)));
}

#[test]
fn of_attention() {
    check(attention(), &training(Some(Loss::Mse)));
}

#[test]
fn of_tied_embeddings() {
    check(tied(), &training(Some(Loss::CrossEntropy)));
}

#[test]
fn of_ops_in_parts() {
    let pinned = |pattern: &str, sbp: &str, loss| {
        let pins = vec![Pin { pattern: pattern.into(), sbp: sbp.parse().expect("an SBP") }];
        CompileOptions { pins, ..on(&[2], training(Some(loss))) }
    };
    check(mlp(), &pinned("y", "S(1)", Loss::CrossEntropy));
    check(attention(), &pinned("p", "S(3)", Loss::Mse));
    check(tied(), &on(&[4], training(Some(Loss::CrossEntropy))));
    for cross_entropy in [CrossEntropyForm::Whole, CrossEntropyForm::Parts] {
        let options = on(&[4], training(Some(Loss::CrossEntropy)));
        let options = CompileOptions { cross_entropy, ..options };
        check(tied(), &options);
        check(mlp(), &options);
    }
}

#[test]
fn cross_entropy_is_in_parts_where_classes_may_be_split() {
    let fused = |graph: Graph, options: CompileOptions| {
        let after = prepare_until(graph, &options, "decompose").expect("fits");
        after.nodes.iter().any(|node| node.op.name() == "cross_entropy")
    };
    let options = training(Some(Loss::CrossEntropy));
    assert!(fused(tied(), options.clone()), "one rank");
    assert!(!fused(tied(), on(&[2], options.clone())), "more classes than samples");
    assert!(fused(mlp(), on(&[2], options.clone())), "fewer");
    let data = CompileOptions { strategy: Strategy::Data, ..on(&[2], options.clone()) };
    assert!(fused(tied(), data), "the strategy splits no classes");
    let pins = vec![Pin { pattern: "b2".into(), sbp: "S(0)".parse().expect("an SBP") }];
    assert!(!fused(mlp(), CompileOptions { pins, ..on(&[2], options) }), "scores are split");
}

#[test]
fn of_microbatches() {
    let cut = |options| CompileOptions { microbatches: 2, ..options };
    check(mlp(), &cut(training(Some(Loss::CrossEntropy))));
    check(attention(), &cut(training(Some(Loss::Mse))));
    check(tied(), &cut(training(Some(Loss::CrossEntropy))));
}

#[test]
fn lie_in_the_stages_of_their_ops() {
    let options = CompileOptions { stages: 2, ..on(&[2], training(Some(Loss::CrossEntropy))) };
    let stages = |graph: Graph, names: &[&str]| -> Vec<usize> {
        let decisions = prepare_graph(graph, &options).expect("fits");
        let graph = decisions.graph();
        let stage = |name: &&str| {
            let value = graph.find(name).expect("it has a name");
            decisions.staging.stage[graph.value(value).producer.index()]
        };
        names.iter().map(stage).collect()
    };
    let found = stages(mlp(), &["x", "w1", "grad.w1", "w2", "grad.w2", "labels", "loss"]);
    assert_eq!(found, [0, 0, 0, 1, 1, 1, 1]);
    let found = stages(tied(), &["ids", "table", "grad.table", "labels", "loss"]);
    assert_eq!(found, [0, 0, 0, 1, 1], "the table is read in both stages");
    check(tied(), &options);
}

#[test]
fn two_variables_may_have_one_gradient() {
    let g = graphc_ir::builder::GraphBuilder::new("sum");
    let dtype = graphc_ir::types::DType::F32;
    let one = || graphc_ir::ops::Init::Fill(1.0.into());
    let (a, b) = (g.variable("a", dtype, [3], one()), g.variable("b", dtype, [3], one()));
    g.output("y", &a.add(&b).exp().sum(&[0], false));
    let _unused = g.variable("unused", dtype, [3], one());
    let graph = g.finish().expect("fits");
    let after = prepare_until(graph.clone(), &training(None), "autodiff").expect("fits");
    assert!(after.find("grad.a").is_some() && after.find("grad.unused").is_none());
    check(graph, &training(None));
}
