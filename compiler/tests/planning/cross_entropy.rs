//! Cross entropy as one op or in parts: the planner takes what costs less, and says so in the plan.

use graphc_compiler::check::verify_plan;
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::prepare_again;
use graphc_compiler::compile::{Compiled, compile, emit_after};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_plan::{CompileOptions, CrossEntropyForm, Loss, Optimizer, Recompute};

/// Scores of classes from one matrix.
fn classifier(samples: usize, width: usize, classes: usize) -> Graph {
    let g = GraphBuilder::new("classifier");
    let x = g.input("x", DType::F32, [samples, width]);
    let init = || Init::Fill(0.1.into());
    let hidden = g.variable("hidden", DType::F32, [width, width], init());
    let w = g.variable("w", DType::F32, [width, classes], init());
    g.output("scores", &x.matmul(&hidden).relu().matmul(&w));
    g.finish().expect("the graph is right")
}

fn options(mesh: &[usize], cross_entropy: CrossEntropyForm) -> CompileOptions {
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    CompileOptions {
        mesh: mesh.to_vec(),
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(sgd),
        cross_entropy,
        ..CompileOptions::default()
    }
}

fn compiled(graph: Graph, options: &CompileOptions) -> Compiled {
    let cluster = preset("p3.16xlarge").expect("a preset");
    compile(graph, options, &cluster, None).expect("it fits")
}

/// The form that is taken, where the other is dearer; the report is of both.
fn cheaper(graph: &Graph, mesh: &[usize]) -> CrossEntropyForm {
    let of = |form| compiled(graph.clone(), &options(mesh, form)).plan;
    let [auto, whole, parts] =
        [CrossEntropyForm::Auto, CrossEntropyForm::Whole, CrossEntropyForm::Parts].map(of);
    let seconds = [&whole, &parts].map(|plan| plan.planner.objective_seconds);
    let bounds = [&whole, &parts].map(|plan| plan.planner.bound_seconds);
    assert_eq!(auto.planner.objective_seconds, seconds[0].min(seconds[1]), "{seconds:?}");
    assert!(auto.planner.bound_seconds <= bounds[0].min(bounds[1]) * (1.0 + 1e-9));
    assert!(auto.planner.bound_seconds >= auto.planner.objective_seconds * (1.0 - 1e-6));
    assert_ne!(seconds[0], seconds[1]);
    assert_eq!(
        (whole.cross_entropy, parts.cross_entropy),
        (CrossEntropyForm::Auto, CrossEntropyForm::Auto)
    );
    let expected =
        if seconds[0] < seconds[1] { CrossEntropyForm::Whole } else { CrossEntropyForm::Parts };
    assert_eq!(auto.cross_entropy, expected, "{seconds:?}");
    expected
}

#[test]
fn one_op_is_cheaper_though_classes_outnumber_samples() {
    assert_eq!(cheaper(&classifier(8, 16, 64), &[2]), CrossEntropyForm::Whole);
}

#[test]
fn parts_are_cheaper_though_samples_outnumber_classes() {
    assert_eq!(cheaper(&classifier(16384, 1024, 16000), &[16]), CrossEntropyForm::Parts);
}

#[test]
fn a_plan_knows_which_form_it_is_of() {
    let cluster = preset("p3.16xlarge").expect("a preset");
    for (graph, is_whole) in
        [(classifier(8, 16, 64), true), (classifier(16384, 1024, 16000), false)]
    {
        let mesh = if is_whole { 2 } else { 16 };
        for recompute in [Recompute::None, Recompute::Auto] {
            let options = CompileOptions { recompute, ..options(&[mesh], CrossEntropyForm::Auto) };
            let Compiled { plan, decisions, .. } = compiled(graph.clone(), &options);
            assert_eq!(plan.cross_entropy == CrossEntropyForm::Whole, is_whole);
            let again = prepare_again(&plan).expect("as before");
            assert_eq!(again.graph(), decisions.graph());
            let emitted = emit_after(graph.clone(), &options, &cluster, "recompute");
            assert_eq!(&emitted.expect("the pass exists"), decisions.graph());
            verify_plan(&plan).expect("the plan is what compiles again");
        }
    }
}

#[test]
fn on_one_rank_there_is_one_form() {
    let plan = compiled(classifier(8, 16, 64), &options(&[1], CrossEntropyForm::Auto)).plan;
    assert_eq!(plan.cross_entropy, CrossEntropyForm::Auto);
}
