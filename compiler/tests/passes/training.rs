//! The training graph, evaluated step by step, does the same as a loop written by hand. Graphs that cannot be trained are refused.

use graphc_compiler::pipeline::{PASSES, prepare_graph, prepare_until};
use graphc_import::{ImportOptions, choose_trained};
use graphc_ir::array::Array;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::evaluate::evaluate_graph;
use graphc_ir::graph::Graph;
use graphc_ir::op::{EvalContext, Op};
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_plan::{
    AdamOptions, CompileOptions, Loss, Metric, MuonOptions, Optimizer, ParameterGroup, Pin,
    RmspropOptions,
};

use super::models::{Feeds, attention, feeds, mlp, tied, training};

/// Evaluates a training graph for some steps, and returns the losses and the variables after them.
fn train(graph: Graph, options: &CompileOptions, steps: u64) -> (Vec<f64>, Feeds) {
    let decisions = prepare_graph(graph, options).expect("fits");
    let graph = decisions.graph();
    let loss = decisions.training.loss.expect("it trains");
    let mut fed = feeds(graph);
    let mut losses = Vec::new();
    for step in 0..steps {
        let cx = EvalContext { seed: 0, step };
        let values = evaluate_graph(graph, &fed, &cx).expect("all is fed");
        losses.push(values[loss.index()].data[0]);
        for node in &graph.nodes {
            for &(result, operand) in node.op.operation().updates() {
                let Op::Variable(variable) = &graph.producer(node.operands[operand]).op else {
                    panic!("an update of no variable");
                };
                let new = values[node.results[result].index()].clone();
                fed.insert(variable.name.clone(), new);
            }
        }
    }
    (losses, fed)
}

/// y = x w, mean squared error: the gradient is 2 x^T (x w - t) / n.
fn line() -> Graph {
    let g = GraphBuilder::new("line");
    let x = g.input("x", DType::F32, [4, 2]);
    g.output("y", &x.matmul(&g.variable("w", DType::F32, [2, 1], Init::Fill(0.0.into()))));
    g.finish().expect("fits")
}

/// Computes steps of `line` by hand.
fn by_hand(fed: &Feeds, mut step: impl FnMut(u64, usize, f64, f64) -> f64) -> (Vec<f64>, Array) {
    let (x, t, mut w) = (&fed["x"], &fed["target"], fed["w"].clone());
    let mut losses = Vec::new();
    for n in 0..5 {
        let error: Vec<f64> = (0..4)
            .map(|i| x.data[2 * i] * w.data[0] + x.data[2 * i + 1] * w.data[1] - t.data[i])
            .collect();
        losses.push(error.iter().map(|e| e * e).sum::<f64>() / 4.0);
        let gradient = |j: usize| (0..4).map(|i| x.data[2 * i + j] * error[i]).sum::<f64>() / 2.0;
        let gradients = [gradient(0), gradient(1)];
        for (j, gradient) in gradients.into_iter().enumerate() {
            w.data[j] = step(n, j, w.data[j], gradient);
        }
    }
    (losses, w)
}

fn agree(optimizer: Optimizer, step: impl FnMut(u64, usize, f64, f64) -> f64) {
    let options = CompileOptions { optimizer: Some(optimizer), ..training(Some(Loss::Mse)) };
    let fed = feeds(&prepare_until(line(), &options, "loss").expect("fits"));
    let (losses, w) = by_hand(&fed, step);
    for microbatches in [1, 2, 4] {
        let options = CompileOptions { microbatches, ..options.clone() };
        let (found, after) = train(line(), &options, 5);
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
        assert!(found.iter().zip(&losses).all(near), "{found:?} is not {losses:?}");
        assert!(after["w"].data.iter().zip(&w.data).all(near), "{after:?} is not {w:?}");
    }
}

#[test]
fn sgd_as_by_hand() {
    let (lr, weight_decay) = (0.1, 0.01);
    let sgd = |momentum, nesterov| Optimizer::Sgd { lr, momentum, nesterov, weight_decay };
    agree(sgd(0.0, false), |_, _, w, g| w - lr * (g + weight_decay * w));
    let mut m = [0.0; 2];
    agree(sgd(0.9, true), |_, j, w, g| {
        let g = g + weight_decay * w;
        m[j] = 0.9 * m[j] + g;
        w - lr * (g + 0.9 * m[j])
    });
}

#[test]
fn adamw_as_by_hand() {
    let options = AdamOptions { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 };
    let (mut m, mut v) = ([0.0; 2], [0.0; 2]);
    agree(Optimizer::AdamW(options), |n, j, w, g| {
        m[j] = 0.9 * m[j] + 0.1 * g;
        v[j] = 0.99 * v[j] + 0.01 * g * g;
        let correct = |beta: f64| 1.0 - beta.powi(n as i32 + 1);
        w * (1.0 - 0.1 * 0.1) - 0.1 * (m[j] / correct(0.9)) / ((v[j] / correct(0.99)).sqrt() + 1e-8)
    });
}

#[test]
fn losses_fall_and_do_not_depend_on_stages_or_microbatches() {
    for (graph, loss) in
        [(mlp(), Loss::CrossEntropy), (attention(), Loss::Mse), (tied(), Loss::CrossEntropy)]
    {
        let one = training(Some(loss));
        let many = CompileOptions { mesh: vec![4], stages: 2, microbatches: 2, ..one.clone() };
        let (expected, _) = train(graph.clone(), &one, 6);
        let (found, _) = train(graph, &many, 6);
        assert!(expected[5] < expected[0], "{expected:?}");
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
        assert!(found.iter().zip(&expected).all(near), "{found:?} is not {expected:?}");
    }
}

#[test]
fn classes_of_images_are_dim_1() {
    let g = GraphBuilder::new("images");
    let x = g.input("x", DType::F32, [2, 3, 4, 5]);
    g.output("y", &x.mul(&g.variable("w", DType::F32, [3, 1, 1], Init::Fill(1.0.into()))));
    let options = training(Some(Loss::CrossEntropy));
    let graph = prepare_until(g.finish().expect("fits"), &options, "loss").expect("fits");
    let labels = graph.find("labels").expect("an input");
    assert_eq!(graph.value(labels).ty.shape, [2, 4, 5]);
}

fn refused(graph: Graph, options: &CompileOptions, expected: &str) {
    let error = prepare_graph(graph, options).expect_err(expected).to_string();
    assert_eq!(error, expected);
}

#[test]
fn what_is_frozen_by_a_pattern_is_not_trained() {
    let mut graph = mlp();
    let updated = |graph: &Graph| {
        let options = training(Some(Loss::CrossEntropy));
        let before = feeds(prepare_graph(graph.clone(), &options).expect("fits").graph());
        let after = train(graph.clone(), &options, 1).1;
        let is_changed =
            |name: &&String| before.contains_key(*name) && before[*name] != after[*name];
        after.keys().filter(is_changed).cloned().collect::<Vec<String>>()
    };
    let all = updated(&graph);
    assert!(all.len() > 1, "{all:?}");
    let options = ImportOptions {
        freeze: vec!["*".into()],
        train: vec![all[0].clone()],
        ..ImportOptions::default()
    };
    choose_trained(&mut graph, &options).expect("there are such variables");
    assert_eq!(updated(&graph), all[..1]);
    let wrong = ImportOptions { freeze: vec!["none".into()], ..ImportOptions::default() };
    let error = choose_trained(&mut graph, &wrong).expect_err("no such variable").to_string();
    assert!(error.contains("'none' matches no weight"), "{error}");
}

#[test]
fn what_cannot_be_trained_is_said() {
    let empty = || GraphBuilder::new("empty").finish().expect("fits");
    refused(
        empty(),
        &training(None),
        "the graph has no output, so there is nothing to train: declare one",
    );
    refused(
        mlp(),
        &training(None),
        "the first output `y` is f32[4, 3], not a scalar loss: choose a loss (cross_entropy, nll, mse, bce, huber, l1, sum, or output:NAME on the command line)",
    );
    let g = GraphBuilder::new("fixed");
    let x = g.input("x", DType::F32, [4]);
    g.output("y", &x.sum(&[0], false));
    let fixed = g.finish().expect("fits");
    let expected = "no trainable variable reaches the loss `y`: there is nothing to train";
    refused(fixed.clone(), &training(None), expected);
    refused(
        fixed,
        &training(Some(Loss::CrossEntropy)),
        "cross_entropy cannot take the first output `y` of f32[]: it needs a dim of samples and a dim of classes",
    );
    let g = GraphBuilder::new("taken");
    let labels = g.input("labels", DType::F32, [4, 3]);
    g.output("y", &labels);
    let error =
        prepare_graph(g.finish().expect("fits"), &training(Some(Loss::Nll))).expect_err("taken");
    assert!(error.to_string().ends_with("but loss needs it"), "{error}");
}

#[test]
fn numbers_and_metrics_that_make_no_sense_are_said() {
    let mse = || training(Some(Loss::Mse));
    let refuses = |options: CompileOptions, expected: &str| refused(mlp(), &options, expected);
    refuses(
        CompileOptions { clip_norm: Some(0.0), ..mse() },
        "clip_norm is a number above 0, not 0",
    );
    refuses(
        CompileOptions { clip_value: Some(f64::NAN), ..mse() },
        "clip_value is a number above 0, not NaN",
    );
    let sgd = |lr, momentum, nesterov, weight_decay| {
        Some(Optimizer::Sgd { lr, momentum, nesterov, weight_decay })
    };
    let adam = AdamOptions { lr: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    let rmsprop = RmspropOptions {
        lr: 0.1,
        alpha: 1.0,
        eps: 1e-8,
        weight_decay: 0.0,
        momentum: 0.0,
        centered: false,
    };
    for (optimizer, expected) in [
        (sgd(-0.1, 0.0, false, 0.0), "lr is a number of at least 0, not -0.1"),
        (sgd(f64::NAN, 0.0, false, 0.0), "lr is a number of at least 0, not NaN"),
        (sgd(0.1, f64::INFINITY, false, 0.0), "momentum is a number of at least 0, not inf"),
        (sgd(0.1, 0.0, true, 0.0), "Nesterov's momentum is a number above 0, not 0"),
        (sgd(0.1, 0.9, true, -1.0), "weight_decay is a number of at least 0, not -1"),
        (
            Some(Optimizer::Adam(AdamOptions { beta1: 1.0, ..adam })),
            "beta1 is a number of at least 0 and below 1, not 1",
        ),
        (
            Some(Optimizer::AdamW(AdamOptions { beta2: -0.5, ..adam })),
            "beta2 is a number of at least 0 and below 1, not -0.5",
        ),
        (
            Some(Optimizer::Lamb(AdamOptions { eps: f64::NAN, ..adam })),
            "eps is a number of at least 0, not NaN",
        ),
        (Some(Optimizer::Rmsprop(rmsprop)), "alpha is a number of at least 0 and below 1, not 1"),
        (
            Some(Optimizer::Muon(MuonOptions { momentum: 1.0, ..MuonOptions::new(0.1) })),
            "momentum is a number of at least 0 and below 1, not 1",
        ),
        (
            Some(Optimizer::Muon(MuonOptions { iterations: 0, ..MuonOptions::new(0.1) })),
            "iterations is a number of at least 1 and below 100, not 0",
        ),
        (
            Some(Optimizer::Muon(MuonOptions {
                coefficients: [1.0, f64::NAN, 1.0],
                ..MuonOptions::new(0.1)
            })),
            "a coefficient of Muon is a number that is finite, not NaN",
        ),
    ] {
        refuses(CompileOptions { optimizer, ..mse() }, expected);
    }
    let group = ParameterGroup { lr: -1.0, ..ParameterGroup::no_decay("*") };
    refuses(
        CompileOptions { groups: vec![group], ..mse() },
        "the learning rate of a group is a number of at least 0, not -1",
    );
    refuses(
        CompileOptions { metrics: vec![Metric::Top5], ..mse() },
        "top5 needs a loss that compares scores with labels: cross_entropy or nll, not mse",
    );
    refuses(
        CompileOptions { metrics: vec![Metric::Top1], loss: None, ..mse() },
        "top1 needs a loss that compares scores with labels: cross_entropy or nll, not the graph's own",
    );
    let g = GraphBuilder::new("taken");
    let x = g.input("x", DType::F32, [4, 4]);
    let w = g.variable("grad_norm", DType::F32, [4, 4], Init::Fill(1.0.into()));
    g.output("y", &x.matmul(&w));
    let options = CompileOptions { clip_norm: Some(1.0), ..mse() };
    let error = prepare_graph(g.finish().expect("fits"), &options).expect_err("taken").to_string();
    assert!(error.ends_with("but optimizer needs it"), "{error}");
}

/// A group with an optimizer of its own is trained as that optimizer would; the others as theirs.
#[test]
fn parts_of_a_graph_have_optimizers_of_their_own() {
    let sgd = Optimizer::Sgd { lr: 0.25, momentum: 0.5, nesterov: false, weight_decay: 0.0 };
    let with = |optimizer, groups| {
        let options =
            CompileOptions { optimizer: Some(optimizer), groups, ..training(Some(Loss::Mse)) };
        train(mlp(), &options, 1).1
    };
    let (all_adam, all_sgd) = (with(Optimizer::adam(0.01), vec![]), with(sgd, vec![]));
    let both = with(Optimizer::adam(0.01), vec![ParameterGroup::updated_by("w1", sgd)]);
    assert_eq!(both["w1"], all_sgd["w1"]);
    assert!(both["w1"] != all_adam["w1"] && both["w2"] == all_adam["w2"]);
    let wrong = ParameterGroup::updated_by("w1", Optimizer::sgd(-1.0));
    let options = CompileOptions { groups: vec![wrong], ..training(Some(Loss::Mse)) };
    let error = prepare_graph(mlp(), &options).expect_err("no rate").to_string();
    assert_eq!(error, "lr is a number of at least 0, not -1");
}

#[test]
fn names_that_fit_nothing_are_said() {
    let pins = vec![Pin { pattern: "grad.w11".into(), sbp: "B".parse().expect("an SBP") }];
    let options = CompileOptions { pins, ..training(Some(Loss::Mse)) };
    let error = prepare_graph(mlp(), &options).expect_err("no such tensor").to_string();
    assert!(error.starts_with("no tensor has a name like `grad.w11`"), "{error}");
    assert!(error.contains("did you mean `grad.w1`?"), "{error}");
    let groups = ["w*", "w11"].map(ParameterGroup::no_decay).to_vec();
    let options = CompileOptions { groups, ..training(Some(Loss::Mse)) };
    let error = prepare_graph(mlp(), &options).expect_err("no such variable").to_string();
    assert!(error.starts_with("no trained variable has a name like `w11`"), "{error}");
    let error = prepare_until(mlp(), &training(Some(Loss::Mse)), "planing").expect_err("no pass");
    let names: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
    let expected = format!("there is no pass `planing`; the passes are {}", names.join(", "));
    assert_eq!(error.to_string(), expected);
}

#[test]
fn an_inference_graph_has_neither_gradients_nor_losses() {
    let decisions = prepare_graph(mlp(), &CompileOptions::default()).expect("fits");
    assert_eq!((decisions.training.loss, decisions.training.gradients.len()), (None, 0));
    assert!(decisions.graph().nodes.iter().all(|node| node.op.name() != "sgd_update"));
}
