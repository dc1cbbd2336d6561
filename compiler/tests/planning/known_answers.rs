//! Models whose best plans are known, under constants by mesh axis: how many collectives a training step takes.

use expect_test::expect_file;
use graphc_compiler::cluster::{find_link, parse_cluster};
use graphc_compiler::compile::{Compiled, compile};
use graphc_compiler::cost::collective_seconds;
use graphc_compiler::lower::collective_counts;
use graphc_compiler::pipeline::prepare_graph;
use graphc_compiler::planner::{Planned, plan_signatures};
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::Graph;
use graphc_ir::sbp::NdSbp;
use graphc_ir::text;
use graphc_ir::types::DType;
use graphc_nn::{LayerNorm, Linear, Module};
use graphc_plan::{
    AdamOptions, BoxingKind, Cluster, CompileOptions, Loss, Optimizer, PlannerStatus, Strategy,
    TensorKind,
};

fn cluster(axes: usize) -> Cluster {
    let text = match axes {
        1 => include_str!("../../../tests/known_answers/slow_matmul.toml"),
        _ => include_str!("../../../tests/known_answers/slow_matmul_2d.toml"),
    };
    parse_cluster(text).expect("the file is right")
}

fn options(mesh: &[usize]) -> CompileOptions {
    let adam = AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    CompileOptions {
        mesh: mesh.to_vec(),
        loss: Some(Loss::Mse),
        optimizer: Some(Optimizer::Adam(adam)),
        ..CompileOptions::default()
    }
}

/// Makes layers of one width with ReLU between them.
fn mlp(layers: usize, batch: usize, width: usize) -> Graph {
    let g = GraphBuilder::new("mlp");
    let mut x = g.input("x", DType::F32, [batch, width]);
    for layer in 0..layers {
        x = Linear::new(&g, &format!("layers.{layer}"), width, width).forward(&x);
        if layer + 1 < layers {
            x = x.relu();
        }
    }
    g.output("y", &x);
    g.finish().expect("the graph is right")
}

fn mlp_of_256_rows() -> Graph {
    model("mlp_256x32", mlp(6, 256, 32))
}

/// Makes encoder layers like BERT's: attention over all positions and a feed-forward part, each added and normalized.
fn bert(layers: usize, [batch, time, width, heads]: [usize; 4]) -> Graph {
    let g = GraphBuilder::new("bert");
    let mut x = g.input("x", DType::F32, [batch, time, width]);
    for layer in 0..layers {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let linear = |part: &str, from, to| Linear::new(&g, &name(part), from, to);
        let split =
            |x: &Tensor| x.reshape(&[batch, time, heads, width / heads]).transpose(&[0, 2, 1, 3]);
        let [q, k, v] =
            ["query", "key", "value"].map(|part| split(&linear(part, width, width).forward(&x)));
        let scale = 1.0 / ((width / heads) as f64).sqrt();
        let mixed = q.matmul_transposed(&k, false, true).scale(scale).softmax(3).matmul(&v);
        let mixed = mixed.transpose(&[0, 2, 1, 3]).reshape(&[batch, time, width]);
        let attended = linear("output", width, width).forward(&mixed).add(&x);
        x = LayerNorm::new(&g, &name("attention_norm"), width).forward(&attended);
        let hidden = linear("up", width, 4 * width).forward(&x).gelu();
        let fed = linear("down", 4 * width, width).forward(&hidden).add(&x);
        x = LayerNorm::new(&g, &name("norm"), width).forward(&fed);
    }
    g.output("y", &x);
    g.finish().expect("the graph is right")
}

/// Checks the model's text, which is beside the cluster files, and returns the model. `UPDATE_EXPECT=1` writes the text anew.
fn model(name: &str, graph: Graph) -> Graph {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/known_answers");
    let (path, text) = (format!("{folder}/{name}.gir"), text::print_graph(&graph));
    expect_file![path].assert_eq(&text);
    text::parse_graph(&text).expect("the text is right")
}

fn planned(graph: Graph, options: &CompileOptions) -> Compiled {
    let compiled = compile(graph, options, &cluster(options.mesh.len()), None).expect("it fits");
    if options.strategy == Strategy::Auto {
        assert_eq!(compiled.plan.planner.status, PlannerStatus::Optimal);
    }
    compiled
}

/// Returns the layouts of all parameters of two dims.
fn weights(compiled: &Compiled) -> Vec<String> {
    let tensors = compiled.plan.tensors.iter();
    let weights = tensors.filter(|t| t.kind == TensorKind::Parameter && t.shape.len() == 2);
    weights.map(|t| NdSbp(t.sbp.0.clone()).to_string()).collect()
}

fn count(compiled: &Compiled, kind: BoxingKind) -> usize {
    collective_counts(&compiled.plan).get(&kind).copied().unwrap_or(0)
}

/// Asserts that ranks communicate only by all-reduces, and that there are `number` of them after fusion.
fn all_reduces(compiled: &Compiled, number: usize) {
    let counts = collective_counts(&compiled.plan);
    let moved =
        counts.iter().filter(|(kind, _)| !matches!(kind, BoxingKind::Slice | BoxingKind::Mask));
    assert_eq!(moved.collect::<Vec<_>>(), [(&BoxingKind::AllReduce, &number)]);
}

#[test]
fn a_large_batch_is_split_and_gradients_travel_once() {
    let plan = planned(mlp_of_256_rows(), &options(&[4]));
    all_reduces(&plan, 1);
    assert_eq!(weights(&plan), ["B"; 6]);
}

#[test]
fn zero_2_scatters_gradients_once_and_gathers_parameters_once() {
    let options = CompileOptions { strategy: Strategy::Zero2, ..options(&[4]) };
    let plan = planned(mlp_of_256_rows(), &options);
    assert_eq!(
        (count(&plan, BoxingKind::ReduceScatter), count(&plan, BoxingKind::AllGather)),
        (1, 1)
    );
    assert_eq!(count(&plan, BoxingKind::AllReduce), 1, "of the loss alone");
}

#[test]
fn large_layers_are_split_by_columns_and_rows_in_turn() {
    let plan = planned(model("mlp_32x256", mlp(6, 32, 256)), &options(&[4]));
    all_reduces(&plan, 5);
    assert_eq!(weights(&plan), ["S(0)", "S(1)", "S(0)", "S(1)", "S(0)", "S(1)"]);
}

#[test]
fn an_encoder_with_a_large_batch_is_split_by_samples() {
    let plan = planned(model("bert_64x64x32", bert(2, [64, 64, 32, 8])), &options(&[4]));
    all_reduces(&plan, 1);
    assert_eq!(weights(&plan), ["B"; 12]);
}

/// Published with six all-reduces: samples over the slow axis, layers by columns and rows in turn over the fast one,
/// which takes five all-reduces of activations and one of gradients. Under the same constants it is cheaper to split
/// samples over both axes, where gradients are scattered over the fast axis before they are reduced over the slow one.
#[test]
fn on_two_axes_samples_over_both_are_cheaper_than_the_published_plan() {
    let cluster = cluster(2);
    let plan = planned(mlp_of_256_rows(), &options(&[2, 2]));
    assert_eq!(weights(&plan), ["B, B"; 6]);
    let all_reduce = |axis: usize, floats: usize| {
        let link = find_link(&cluster, &[0, 1], Some(axis));
        collective_seconds(&cluster, &link, BoxingKind::AllReduce, 4.0 * floats as f64)
    };
    // Gradients of half of each weight and of the biases of columns; those of rows are whole.
    let gradients = 6 * 32 * 32 / 2 + 3 * 16 + 3 * 32;
    let published = 5.0 * all_reduce(1, 128 * 32) + all_reduce(0, gradients);
    // Six products forward, six for weights, five for activations, of which each rank computes a quarter.
    let products = 17.0 * 2.0 * 256.0 * 32.0 * 32.0 / 4.0 / 10.0;
    let found = plan.plan.planner.objective_seconds - products;
    assert!(found > 0.0 && found < published, "{found} {published}");
}

/// Published with eight all-reduces over both axes, in which every weight is split over both. The same is found: each
/// all-reduce of an activation goes through both axes in three steps, one of them an all-reduce, and one is of the
/// gradients of what is normalized between two layers.
#[test]
fn an_encoder_with_a_small_batch_is_split_by_columns_and_rows_over_both_axes() {
    let text = include_str!("../../../tests/known_answers/slow_matmul_2d_alpha_2.toml");
    let cluster = parse_cluster(text).expect("the file is right");
    let graph = model("bert_8x8x128", bert(2, [8, 8, 128, 8]));
    let plan = compile(graph, &options(&[2, 2]), &cluster, None).expect("it fits");
    assert_eq!(plan.plan.planner.status, PlannerStatus::Optimal);
    assert_eq!(count(&plan, BoxingKind::AllReduce), 8);
    assert!(weights(&plan).iter().all(|sbp| !sbp.contains('B')), "{:?}", weights(&plan));
}

/// 1024-4096-1024 on 256 ranks: whole where memory is plenty, in shards where it is as little as with all in shards; but for the weight
/// that is whole at the peak in any case, which stays so, as that plan takes fewer seconds.
#[test]
fn memory_for_a_share_of_the_parameters_shards_them_all() {
    let g = GraphBuilder::new("feed_forward");
    let x = g.input("x", DType::F32, [2048, 256, 1024]);
    let hidden = Linear::new(&g, "up", 1024, 4096).forward(&x).relu();
    g.output("y", &Linear::new(&g, "down", 4096, 1024).forward(&hidden));
    let mut options = options(&[256]);
    let graph = model("feed_forward", g.finish().expect("the graph is right"));
    let decisions = prepare_graph(graph, &options).expect("it can be trained");
    let parameters = |options: &CompileOptions| -> (Vec<String>, Planned) {
        let planned = plan_signatures(&decisions, options, &cluster(1)).expect("it fits");
        let graph = decisions.graph();
        let of = |name: &str| {
            let value = graph.find(name).expect("a parameter");
            planned.sharding.nodes[graph.value(value).producer.index()].results[0].to_string()
        };
        (["up.weight", "down.weight", "up.bias", "down.bias"].map(of).to_vec(), planned)
    };
    let (layouts, plenty) = parameters(&options);
    assert_eq!(layouts[..2], ["B", "B"]);
    options.strategy = Strategy::Zero3;
    let (layouts, sharded) = parameters(&options);
    assert_eq!(layouts, ["S(0)"; 4]);
    assert!(sharded.memory[0] < plenty.memory[0]);
    options.strategy = Strategy::Auto;
    options.memory = Some(sharded.memory[0]);
    let (layouts, found) = parameters(&options);
    assert_eq!(layouts, ["S(0)", "B", "S(0)", "S(0)"]);
    assert!(found.memory[0] <= sharded.memory[0]);
    assert!(found.report.objective_seconds < sharded.report.objective_seconds);
    assert_eq!(found.report.status, PlannerStatus::Optimal);
}
