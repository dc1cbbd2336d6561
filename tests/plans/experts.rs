//! A network with experts trains to the same losses on one rank and on several, experts split or not.

use graphc::prelude::nn::{Embedding, Linear, Module, SwitchConfig, SwitchFeedForward};
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

fn feeds() -> BTreeMap<String, HostTensor> {
    let tokens: Vec<i64> = (0..BATCH * TIME).map(|i| (i * i % TOKENS) as i64).collect();
    let labels: Vec<i64> = tokens.iter().map(|token| (token * 7 + 3) % TOKENS as i64).collect();
    let tensor = |data: &[i64]| HostTensor::from_i64([BATCH, TIME], data).expect("a tensor");
    [("tokens", tensor(&tokens)), ("labels", tensor(&labels))]
        .map(|(name, tensor)| (name.to_string(), tensor))
        .into()
}

fn losses(options: &CompileOptions) -> Vec<f32> {
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
    let plan = compile(network(), &options, &cluster, None).expect("a plan").plan;
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
    let alone = losses(&CompileOptions::default());
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
        let found = losses(&options);
        for (found, alone) in found.iter().zip(&alone) {
            let near = (found - alone).abs() <= 2e-5 * alone.abs();
            assert!(near, "{:?} {:?}: {found} instead of {alone}", options.mesh, options.pins);
        }
    }
}
