//! A network with experts trains to the same losses on one rank and on several, experts split or not.

use graphc::prelude::nn::{
    Embedding, Linear, MixtureConfig, MixtureFeedForward, Module, Routing, SwitchConfig,
    SwitchFeedForward,
};
use graphc::prelude::*;

const BATCH: usize = 8;
const TIME: usize = 12;
const TOKENS: usize = 20;

/// Tokens, embedded; experts beside a residual; the next token.
fn network() -> Graph {
    let g = GraphBuilder::new("experts");
    let tokens = g.input("tokens", DType::I64, [BATCH, TIME]);
    let labels = g.input("labels", DType::I64, [BATCH, TIME]);
    let sizes = SwitchConfig { width: 16, hidden: 32, experts: 4, capacity: 1.0 };
    let x = Embedding::new(&g, "wte", TOKENS, sizes.width).forward(&tokens);
    let (y, balance) = SwitchFeedForward::new(&g, "experts", &sizes).forward_and_balance(&x);
    let logits = Linear::new(&g, "head", sizes.width, TOKENS).forward(&x.add(&y));
    g.output("loss", &logits.cross_entropy(&labels).add(&balance.scale(0.01)));
    g.finish().expect("a graph")
}

/// As [`network`], with experts of which each token takes two and none is dropped.
fn mixture(routing: Routing, blocks: usize) -> Graph {
    let g = GraphBuilder::new("experts");
    let tokens = g.input("tokens", DType::I64, [BATCH, TIME]);
    let labels = g.input("labels", DType::I64, [BATCH, TIME]);
    let (experts, chosen) = (8, 2);
    let sizes =
        MixtureConfig { width: 16, hidden: 8, experts, chosen, routing, blocks, capacity: None };
    let x = Embedding::new(&g, "wte", TOKENS, sizes.width).forward(&tokens);
    let (y, balance) = MixtureFeedForward::new(&g, "experts", &sizes).forward_and_balance(&x);
    let logits = Linear::new(&g, "head", sizes.width, TOKENS).forward(&x.add(&y));
    g.output("loss", &logits.cross_entropy(&labels).add(&balance.scale(0.01)));
    g.finish().expect("a graph")
}

fn feeds() -> BTreeMap<String, HostTensor> {
    let tokens: Vec<i64> = (0..BATCH * TIME).map(|i| (i * i % TOKENS) as i64).collect();
    let labels: Vec<i64> = tokens.iter().map(|token| (token * 7 + 3) % TOKENS as i64).collect();
    let tensor = |data: &[i64]| HostTensor::from_i64([BATCH, TIME], data).expect("a tensor");
    [("tokens", tensor(&tokens)), ("labels", tensor(&labels))]
        .map(|(name, tensor)| (name.to_string(), tensor))
        .into()
}

fn losses(network: Graph, options: &CompileOptions) -> Vec<f32> {
    let options = CompileOptions {
        optimizer: Some(Optimizer::Sgd {
            lr: 0.5,
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.0,
        }),
        ..options.clone()
    };
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(network, &options, &cluster, None).expect("a plan").plan;
    let session = Session::new(&plan, &BTreeMap::new(), SessionOptions::default());
    let mut session = session.expect("a session");
    let step = |_| {
        let outputs = session.step(feeds()).expect("a step").wait().expect("a step");
        outputs["loss"].to_f32().expect("a loss")[0]
    };
    (0..8).map(step).collect()
}

#[test]
fn losses_are_those_of_one_rank_with_experts_split_or_not() {
    let alone = losses(network(), &CompileOptions::default());
    assert!(alone[7] < 0.7 * alone[0], "it learns: {alone:?}");
    let pin = |pattern: &str, sbp: &str| Pin {
        pattern: pattern.into(),
        sbp: sbp.parse().expect("an SBP"),
    };
    let on = |mesh: &[usize]| CompileOptions { mesh: mesh.to_vec(), ..CompileOptions::default() };
    let split = |mesh: &[usize], sbp: &str| CompileOptions {
        pins: vec![pin("experts.fc.weight", sbp), pin("experts.proj.weight", sbp)],
        ..on(mesh)
    };
    let microbatches = |options| CompileOptions { microbatches: 2, ..options };
    for options in [
        on(&[2]),
        on(&[4]),
        split(&[2], "S(0)"),
        split(&[4], "S(0)"),
        split(&[3], "S(0)"),
        split(&[2, 2], "B, S(0)"),
        split(&[2, 2], "S(2), S(0)"),
        microbatches(on(&[2])),
        microbatches(split(&[2], "S(0)")),
    ] {
        let found = losses(network(), &options);
        for (found, alone) in found.iter().zip(&alone) {
            let near = (found - alone).abs() <= 2e-5 * alone.abs();
            assert!(near, "{:?} {:?}: {found} instead of {alone}", options.mesh, options.pins);
        }
    }
}

/// Computes the result of [`MixtureFeedForward`], each expert for each token, weighed by 0 where the token has not chosen it.
fn all_experts(layer: &MixtureFeedForward, x: &Tensor) -> Tensor {
    let (best, chosen) = layer.router.forward(x).top_k(layer.sizes.chosen, 2);
    let weights = best.softmax(2);
    let expert = |expert: usize| {
        let part = |weights: &Tensor| {
            let [_, rows, columns] = weights.shape()[..] else { return weights.clone() };
            weights.slice(0, expert..expert + 1).reshape(&[rows, columns])
        };
        let hidden = x.matmul(&part(&layer.gate)).silu().mul(&x.matmul(&part(&layer.up)));
        let this = x.builder().constant(DType::I64, [1], &[expert as f64]);
        let share = chosen.equal(&this).cast(DType::F32).mul(&weights).sum(&[2], true);
        hidden.matmul(&part(&layer.down)).mul(&share)
    };
    (1..layer.sizes.experts).map(expert).fold(expert(0), |sum, y| sum.add(&y))
}

#[test]
fn products_of_chosen_experts_are_those_of_all_experts_weighed() {
    let build = |all: bool| {
        let g = GraphBuilder::new("experts");
        let tokens = g.input("tokens", DType::I64, [BATCH, TIME]);
        let labels = g.input("labels", DType::I64, [BATCH, TIME]);
        let routing = Routing::Softmax;
        let sizes = MixtureConfig {
            width: 16,
            hidden: 8,
            experts: 8,
            chosen: 2,
            routing,
            blocks: 1,
            capacity: None,
        };
        let x = Embedding::new(&g, "wte", TOKENS, sizes.width).forward(&tokens);
        let layer = MixtureFeedForward::new(&g, "experts", &sizes);
        let y = if all { all_experts(&layer, &x) } else { layer.forward(&x) };
        let logits = Linear::new(&g, "head", sizes.width, TOKENS).forward(&x.add(&y));
        g.output("loss", &logits.cross_entropy(&labels));
        g.finish().expect("a graph")
    };
    let [chosen, all] = [false, true].map(|all| losses(build(all), &CompileOptions::default()));
    for (chosen, all) in chosen.iter().zip(&all) {
        assert!((chosen - all).abs() <= 2e-5 * all.abs(), "{chosen} instead of {all}");
    }
}

#[test]
fn no_token_is_dropped_on_any_mesh_with_any_number_of_blocks() {
    let pin = |pattern: &str, sbp: &str| Pin {
        pattern: pattern.into(),
        sbp: sbp.parse().expect("an SBP"),
    };
    let on = |mesh: &[usize]| CompileOptions { mesh: mesh.to_vec(), ..CompileOptions::default() };
    let split = |mesh: &[usize], sbp: &str| CompileOptions {
        pins: ["gate", "up", "down"]
            .map(|weight| pin(&format!("experts.{weight}.weight"), sbp))
            .to_vec(),
        ..on(mesh)
    };
    for routing in [Routing::Softmax, Routing::Sigmoid { scale: 2.5 }] {
        let alone = losses(mixture(routing, 1), &CompileOptions::default());
        assert!(alone[7] < 0.7 * alone[0], "it learns: {alone:?}");
        let microbatches = CompileOptions { microbatches: 2, ..split(&[2], "S(0)") };
        for (blocks, options) in [
            (8, CompileOptions::default()),
            (1, on(&[2])),
            (4, on(&[4])),
            (2, split(&[2], "S(0)")),
            (4, split(&[4], "S(0)")),
            (4, split(&[3], "S(0)")),
            (2, split(&[2, 2], "B, S(0)")),
            (2, split(&[2, 2], "S(1), S(0)")),
            (2, microbatches),
        ] {
            let found = losses(mixture(routing, blocks), &options);
            for (found, alone) in found.iter().zip(&alone) {
                let near = (found - alone).abs() <= 2e-5 * alone.abs();
                assert!(near, "{blocks} blocks, {options:?}: {found} instead of {alone}");
            }
        }
    }
}
