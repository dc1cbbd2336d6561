//! The outputs that the plan of a graph gives.

use graphc_compiler::passes::loss::attach_loss;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_plan::{CompileOptions, Loss, Metric, Optimizer};

/// Two outputs of a product: scores, and their squares.
fn graph() -> Graph {
    let g = GraphBuilder::new("two outputs");
    let x = g.input("x", DType::F32, [4, 3]);
    let scores = x.matmul(&g.variable("w", DType::F32, [3, 5], Init::Fill(0.5.into())));
    g.output("scores", &scores);
    g.output("squares", &(&scores * &scores));
    g.finish().expect("a graph")
}

fn training() -> CompileOptions {
    let lr = 0.1;
    let sgd = Optimizer::Sgd { lr, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let loss = Some(Loss::CrossEntropy);
    CompileOptions { loss, optimizer: Some(sgd), ..CompileOptions::default() }
}

fn given(graph: Graph, options: &CompileOptions) -> Vec<String> {
    let graph = attach_loss(graph, options).expect("the loss fits");
    graph.outputs.into_iter().map(|output| output.name).collect()
}

fn fetching(pattern: &str, options: CompileOptions) -> CompileOptions {
    CompileOptions { fetch: vec![pattern.into()], ..options }
}

#[test]
fn a_training_gives_its_loss_and_what_is_asked_for() {
    assert_eq!(given(graph(), &training()), ["loss"]);
    assert_eq!(given(graph(), &fetching("squ*", training())), ["squares", "loss"]);
    assert_eq!(given(graph(), &fetching("*", training())), ["scores", "squares", "loss"]);
    let counted = CompileOptions { metrics: vec![Metric::Top1], ..training() };
    assert_eq!(given(graph(), &counted), ["loss", "top1", "samples"]);
}

#[test]
fn inference_and_evaluation_give_all_unless_some_are_asked_for() {
    let evaluation = CompileOptions { optimizer: None, ..training() };
    assert_eq!(given(graph(), &CompileOptions::default()), ["scores", "squares"]);
    assert_eq!(given(graph(), &evaluation), ["scores", "squares", "loss"]);
    assert_eq!(given(graph(), &fetching("loss", evaluation)), ["loss"]);
    let some = fetching("scores", CompileOptions::default());
    assert_eq!(given(graph(), &some), ["scores"]);
}

/// A graph's author who computes the loss says with each output what a step is to give.
#[test]
fn a_graph_with_its_own_loss_gives_all_that_it_names() {
    let with_loss = || {
        let builder = GraphBuilder::new("its own loss");
        let x = builder.input("x", DType::F32, [4, 3]);
        let w = builder.variable("w", DType::F32, [3, 5], Init::Fill(0.5.into()));
        let scores = x.matmul(&w);
        builder.output("error", &scores.mean(&[0, 1], false));
        builder.output("scores", &scores);
        builder.finish().expect("a graph")
    };
    let own = CompileOptions { loss: None, ..training() };
    assert_eq!(given(with_loss(), &own), ["error", "scores", "loss"]);
    assert_eq!(given(with_loss(), &fetching("scores", own)), ["scores", "loss"]);
}

#[test]
fn an_output_that_is_not_there_is_an_error_that_names_those_that_are() {
    let error = attach_loss(graph(), &fetching("logits", training())).expect_err("none");
    let text = error.to_string();
    assert!(text.contains("`logits`") && text.contains("scores, squares, loss"), "{text}");
}
