//! Rewritten graphs compute the same, and models of time before samples can be cut.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_ir::ops::{EmbeddingOp, Input};
use graphc_ir::types::{DType, Samples, TensorType};
use graphc_plan::{CompileOptions, Loss, Optimizer};
use proptest::prelude::*;

use super::{BatchCut, batch_first, find_batch_cut};
use crate::passes::views::same::{add_weight, assert_same, count_transposes, is_finite};
use crate::passes::views::{Purpose, rewrite_views};

/// Attention as `nn.TransformerEncoderLayer` is exported: time before samples, samples merged with heads and with time.
fn time_first() -> Graph {
    let [samples, time, heads, each] = [4, 3, 2, 5];
    let width = heads * each;
    let g = GraphBuilder::new("time_first");
    let x = g.input("x", DType::F32, [samples, time, width]);
    let qkv = x.transpose(&[1, 0, 2]).matmul(&add_weight(&g, "qkv", &[width, 3 * width]));
    let qkv = qkv.add(&add_weight(&g, "qkv_bias", &[3 * width]));
    let qkv = qkv.reshape(&[1, time, samples, 3, width]).transpose(&[3, 1, 2, 0, 4]);
    let part = |index: usize| {
        let part = qkv.slice(0, index..index + 1).reshape(&[time, samples * heads, each]);
        part.transpose(&[1, 0, 2]).reshape(&[samples, heads, time, each])
    };
    let scores = part(0).matmul_transposed(&part(1), false, true).softmax(3);
    let mixed = scores.matmul(&part(2)).transpose(&[2, 0, 1, 3]).reshape(&[time * samples, width]);
    let projected = mixed.matmul_transposed(&add_weight(&g, "proj", &[width, width]), false, true);
    let projected = projected.add(&add_weight(&g, "proj_bias", &[width])).named("projected");
    let projected = projected.reshape(&[time, samples, width]).transpose(&[1, 0, 2]);
    g.output(
        "y",
        &x.add(&projected).layer_norm(
            &add_weight(&g, "scale", &[width]),
            &add_weight(&g, "shift", &[width]),
            1e-5,
        ),
    );
    g.finish().expect("fits")
}

#[test]
fn rows_that_are_looked_up_with_time_before_samples_are_cut_along_the_samples() {
    let g = GraphBuilder::new("look_up");
    let ids = g.input("ids", DType::I64, [4, 3]).transpose(&[1, 0]);
    let rows = g.apply(Op::Embedding(EmbeddingOp {}), &[&add_weight(&g, "table", &[5, 6]), &ids]);
    g.output("y", &rows.matmul(&add_weight(&g, "w", &[6, 2])).transpose(&[1, 0, 2]));
    let graph = g.finish().expect("fits");
    assert!(find_batch_cut(&graph, 2) == BatchCut::Forward);
    let rewritten = batch_first(graph.clone(), &trained()).expect("fits");
    assert!(find_batch_cut(&rewritten, 2) == BatchCut::All);
    assert_eq!(count_transposes(&rewritten), 0);
}

/// A training, of which gradients are cut as well.
fn trained() -> CompileOptions {
    let optimizer = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let (loss, optimizer) = (Some(Loss::Sum), Some(optimizer));
    CompileOptions { loss, optimizer, ..CompileOptions::default() }
}

/// Holds that a model which cannot be cut along its batch as it is written can be, and computes the same.
fn is_cut_otherwise(graph: &Graph) {
    assert!(find_batch_cut(graph, 2) == BatchCut::Nothing);
    let rewritten = batch_first(graph.clone(), &trained()).expect("fits");
    assert!(
        find_batch_cut(&rewritten, 2) == BatchCut::All
            && find_batch_cut(&rewritten, 4) == BatchCut::All
    );
    assert_same(graph, &rewritten);
}

/// Two views of the same samples through one encoder, as SimCLR and SimSiam have them: with attention, norms and an MLP.
#[test]
fn samples_of_two_inputs_behind_each_other_are_cut_along_the_samples() {
    let g = GraphBuilder::new("two_views");
    let [a, b] = ["a", "b"].map(|name| g.input(name, DType::F32, [4, 3, 6]));
    let both = g.concat(&[a, b], 0);
    let heads = |name| both.matmul(&add_weight(&g, name, &[6, 6])).tanh().reshape(&[8, 3, 2, 3]);
    let [q, k, v] = ["q", "k", "v"].map(heads);
    let mixed = q.attention(&k, &v, false).reshape(&[8, 3, 6]);
    let encoded = both.add(&mixed).normalize(true, 1e-5).mean(&[1], false);
    let encoded = encoded.matmul(&add_weight(&g, "w", &[6, 5])).gelu();
    let halves = encoded.split(0, &[4, 4]);
    let apart = encoded.slice(0, 0..4).sub(&encoded.slice(0, 4..8));
    g.output("y", &halves[0].mul(&halves[1]).add(&apart));
    is_cut_otherwise(&g.finish().expect("fits"));
}

/// Samples repeated for each expert, and what is scored of them with experts before samples, as in LLaMA 4.
#[test]
fn samples_that_are_repeated_for_experts_are_cut_along_the_samples() {
    let [samples, time, experts, width] = [4, 5, 3, 6];
    let g = GraphBuilder::new("experts");
    let x = g.input("x", DType::F32, [samples, time, width]);
    let rows = samples * time;
    let flat = x.reshape(&[rows, width]);
    let scores = flat.matmul(&add_weight(&g, "router", &[width, experts])).softmax(1).sigmoid();
    let repeated = flat.reshape(&[1, rows, 1, width]).expand(&[experts, rows, 1, width]);
    let scored = repeated
        .reshape(&[experts * rows, width])
        .mul(&scores.transpose(&[1, 0]).reshape(&[experts * rows, 1]));
    let each = scored.reshape(&[experts, rows, width]);
    let made = each.matmul(&add_weight(&g, "up", &[experts, width, 8])).silu();
    let made = made.matmul(&add_weight(&g, "down", &[experts, 8, width])).sum(&[0], false);
    g.output("y", &flat.add(&made).reshape(&[samples, time, width]));
    is_cut_otherwise(&g.finish().expect("fits"));
}

#[test]
fn attention_of_time_before_samples_is_cut_along_the_samples() {
    let graph = time_first();
    assert!(find_batch_cut(&graph, 2) == BatchCut::Nothing);
    let rewritten = batch_first(graph.clone(), &CompileOptions::default()).expect("fits");
    assert!(
        find_batch_cut(&rewritten, 2) == BatchCut::All
            && find_batch_cut(&rewritten, 4) == BatchCut::All
    );
    assert_same(&graph, &rewritten);
    assert_eq!(
        count_transposes(&rewritten),
        4,
        "those that heads need: of queries, keys, values and what is mixed"
    );
    assert_eq!(rewritten.find("projected"), None, "its dims are not those of the model");
    let projected = rewritten.find("projected.batch_first").expect("it is there");
    assert_eq!(rewritten.value(projected).ty.shape, [4, 3, 10]);
}

#[test]
fn gradients_of_what_is_fed_time_first_are_cut_along_the_samples() {
    let g = GraphBuilder::new("time_first");
    let ty = TensorType::new(DType::F32, [3, 4, 6]);
    let x = g.input_of(Input { samples: Samples::Dim(1), ..Input::new("x", ty) });
    g.output("y", &x.matmul(&add_weight(&g, "w", &[6, 5])));
    let graph = g.finish().expect("fits");
    assert!(
        find_batch_cut(&graph, 2) == BatchCut::Forward,
        "the gradient of `w` merges samples with time"
    );
    let inference = batch_first(graph.clone(), &CompileOptions::default()).expect("fits");
    assert_eq!(inference, graph);
    let options = CompileOptions { gradients: true, ..CompileOptions::default() };
    let rewritten = batch_first(graph.clone(), &options).expect("fits");
    assert!(find_batch_cut(&rewritten, 4) == BatchCut::All);
    assert_same(&graph, &rewritten);
}

#[test]
fn what_is_cut_already_stays_as_it_is() {
    let g = GraphBuilder::new("plain");
    let x = g.input("x", DType::F32, [4, 3, 6]).transpose(&[0, 2, 1]);
    g.output("y", &x.matmul(&add_weight(&g, "w", &[3, 3])));
    let graph = g.finish().expect("fits");
    assert_eq!(batch_first(graph.clone(), &CompileOptions::default()).expect("fits"), graph);
}

#[test]
fn a_pin_holds_a_value_in_its_shape() {
    let mut graph = time_first();
    let pinned = graph.find("projected").expect("named");
    graph.values[pinned.index()].pin = Some("S(1)".parse().expect("an SBP"));
    let rewritten =
        rewrite_views(&graph, &CompileOptions::default(), Purpose::Samples).expect("fits");
    let found = rewritten.find("projected").expect("named");
    let value = rewritten.value(found);
    assert_eq!((&value.ty.shape[..], value.pin.is_some()), (&[12, 10][..], true));
    assert_same(&graph, &rewritten);
}

/// Applies op number `which` where it fits.
fn step(g: &GraphBuilder, x: &Tensor, y: &Tensor, which: u32, name: &str) -> Tensor {
    let shape = x.shape();
    let rank = shape.len();
    let last = shape.last().copied().unwrap_or(1);
    match which % 11 {
        0 if rank > 1 => {
            let order: Vec<usize> = (0..rank).map(|dim| (dim + 1) % rank).collect();
            x.transpose(&order)
        }
        1 if rank > 1 => {
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(0, 1);
            x.transpose(&order)
        }
        2 if rank > 1 => {
            let mut merged = vec![shape[0] * shape[1]];
            merged.extend(&shape[2..]);
            x.reshape(&merged)
        }
        3 if last.is_multiple_of(2) => {
            let mut cut = shape[..rank - 1].to_vec();
            cut.extend([2, last / 2]);
            x.reshape(&cut)
        }
        4 => {
            let mut one = shape.to_vec();
            one.insert(0, 1);
            x.reshape(&one)
        }
        5 if rank > 1 => x.matmul(&add_weight(g, name, &[last, 4])),
        6 => x.add(&add_weight(g, name, &[last])),
        7 if shape == y.shape() => x.mul(y),
        8 if rank > 0 && shape[0] > 1 => x.slice(0, 1..shape[0]),
        9 => x.softmax(rank.saturating_sub(2)),
        10 => x.layer_norm(
            &add_weight(g, name, &[last]),
            &add_weight(g, &format!("{name}.shift"), &[last]),
            1e-5,
        ),
        _ => x.exp().neg(),
    }
}

proptest! {
    #[test]
    fn whatever_is_moved_is_computed_the_same(steps in prop::collection::vec(0u32..11, 1..14)) {
        let g = GraphBuilder::new("random");
        let x = g.input("x", DType::F32, [2, 3, 4]);
        let mut values = vec![x];
        for (index, which) in steps.into_iter().enumerate() {
            let (last, earlier) = (&values[values.len() - 1], &values[index / 2]);
            let next = step(&g, last, earlier, which, &format!("w{index}"));
            values.push(next);
        }
        for (index, value) in values.iter().enumerate().skip(1).step_by(4) {
            g.output(&format!("y{index}"), value);
        }
        g.output("last", &values[values.len() - 1]);
        let graph = g.finish();
        // Weights of one name in two shapes are no graph.
        prop_assume!(graph.is_ok());
        let graph = graph.expect("fits");
        // An exponential of one of another is soon infinite.
        prop_assume!(is_finite(&graph));
        assert_same(&graph, &rewrite_views(&graph, &CompileOptions::default(), Purpose::Samples).expect("fits"));
    }
}

/// Two layers in both directions, unrolled as `nn.RNN` is exported: steps `[n, w]` beside states `[1, n, w]`.
fn unrolled() -> Graph {
    let [samples, time, width] = [4, 3, 5];
    let g = GraphBuilder::new("unrolled");
    let mut all = g.input("x", DType::F32, [samples, time, width]).transpose(&[1, 0, 2]);
    for layer in 0..2 {
        let mut directions = Vec::new();
        for direction in 0..2 {
            let named = |kind: &str| format!("{kind}{layer}{direction}");
            let inputs = if layer == 0 { width } else { 2 * width };
            let steps = all.matmul(&add_weight(&g, &named("inputs"), &[inputs, width]));
            let recurrent = add_weight(&g, &named("recurrent"), &[width, width]);
            let mut state = g.full(DType::F32, [1, samples, width], 0.0);
            let mut states = Vec::new();
            for step in 0..time {
                let x = steps.slice(0, step..step + 1).reshape(&[samples, width]);
                state = state.matmul(&recurrent).add(&x).tanh();
                states.push(state.clone());
            }
            directions.push(g.concat(&states, 0));
        }
        all = g.concat(&directions, 2);
    }
    g.output("y", &all.transpose(&[1, 0, 2]));
    g.finish().expect("fits")
}

#[test]
fn layers_that_are_unrolled_are_cut_along_the_samples() {
    let graph = unrolled();
    assert!(
        find_batch_cut(&graph, 2) == BatchCut::Forward,
        "gradients of weights merge steps and samples"
    );
    let options = CompileOptions { gradients: true, ..CompileOptions::default() };
    let rewritten = batch_first(graph.clone(), &options).expect("fits");
    assert!(
        find_batch_cut(&rewritten, 2) == BatchCut::All
            && find_batch_cut(&rewritten, 4) == BatchCut::All
    );
    assert_same(&graph, &rewritten);
}

/// A class token before the patches of each frame, of which the first `samples` rows are taken for the samples, as in TimeSformer; and the first
/// frame of each sample.
#[test]
fn rows_that_all_samples_have_alike_are_cut_along_the_samples() {
    let [samples, frames, width] = [4, 3, 6];
    let rows = samples * frames;
    let g = GraphBuilder::new("video");
    let x = g.input("x", DType::F32, [samples, frames, 5, width]).reshape(&[rows, 5, width]);
    let x = x.matmul(&add_weight(&g, "w", &[width, width]));
    let class = add_weight(&g, "class", &[1, width]).reshape(&[1, 1, width]);
    let class = class.expand(&[1, rows, width]).reshape(&[rows, 1, width]);
    let all = g.concat(&[class, x], 1).add(&add_weight(&g, "positions", &[1, 6, width]));
    let first = all.slice(0, 0..samples).slice(1, 0..1);
    let frames_of = all.slice(1, 1..6).reshape(&[samples, frames * 5, width]);
    let every =
        all.reshape(&[rows, 6 * width]).slice_all(&[0, 0], &[rows, 6 * width], &[frames, 1]);
    let every = every.reshape(&[samples, 6, width]);
    g.output("y", &g.concat(&[first, frames_of, every], 1).transpose(&[0, 2, 1]).tanh());
    let graph = g.finish().expect("fits");
    is_cut_otherwise(&graph);
    // What is cut of the patches meets other samples.
    let g = GraphBuilder::new("others");
    let x = g.input("x", DType::F32, [samples, frames, width]).reshape(&[rows, width]);
    g.output("y", &x.slice(0, 0..samples).transpose(&[1, 0]));
    let graph = g.finish().expect("fits");
    assert_eq!(batch_first(graph.clone(), &trained()).expect("fits"), graph);
}

/// Positions that every sample has alike, time before samples, with a weight of their own, as in XLNet.
#[test]
fn what_is_repeated_for_samples_behind_time_is_cut_along_the_samples() {
    let [samples, time, width] = [4, 3, 6];
    let g = GraphBuilder::new("positions");
    let x = g.input("x", DType::F32, [samples, time, width]).transpose(&[1, 0, 2]);
    let positions = add_weight(&g, "positions", &[time, 1, width]).expand(&[time, samples, width]);
    let positions = positions.matmul(&add_weight(&g, "r", &[width, width]));
    let heads = |x: &Tensor| x.reshape(&[time, samples, 2, 3]).transpose(&[1, 2, 0, 3]);
    let scores = heads(&x).matmul_transposed(&heads(&positions), false, true).softmax(3);
    g.output("y", &scores.matmul(&heads(&x)));
    let graph = g.finish().expect("fits");
    assert!(find_batch_cut(&graph, 2) == BatchCut::Forward);
    let rewritten = batch_first(graph.clone(), &trained()).expect("fits");
    assert!(find_batch_cut(&rewritten, 2) == BatchCut::All);
    assert_same(&graph, &rewritten);
}
