//! The share of a step that attention takes.

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::sketch_plan;
use graphc_compiler::cost::{compute_work, on_cluster};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::op::Op;
use graphc_ir::ops::Attention;
use graphc_ir::rule::Choice;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_nn::{Gpt, GptConfig, Llama, LlamaConfig, Module};
use graphc_plan::{
    Action, Actor, AdamOptions, Cluster, CompileOptions, Loss, Optimizer, Plan, Strategy,
};

const ADAM: AdamOptions =
    AdamOptions { lr: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };

/// The plan of a step of these many sequences of a length, on `ranks` ranks, each with a part of the batch.
fn plan(cluster: &Cluster, batch: usize, length: usize, ranks: usize) -> Plan {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers: 2, width: 1024, heads: 8, sequence: length, vocabulary: 1024 };
    g.with_dtype(DType::BF16, || {
        let tokens = g.input("tokens", DType::I64, [batch, length]);
        g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    });
    let options = CompileOptions {
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(ADAM)),
        mesh: vec![ranks],
        strategy: Strategy::Data,
        ..CompileOptions::default()
    };
    sketch_plan(g.finish().expect("fits"), &options, cluster).expect("a plan")
}

/// The planner's own plan of a step of a block with the sizes of Llama 3 8B.
fn planned(cluster: &Cluster, batch: usize, length: usize, ranks: usize) -> Plan {
    let g = GraphBuilder::new("llama");
    let config = LlamaConfig { layers: 1, vocabulary: 1024, ..LlamaConfig::llama3_8b() };
    g.with_dtype(DType::BF16, || {
        let tokens = g.input("tokens", DType::I64, [batch, length]);
        g.output("logits", &Llama::new(&g, &config).forward(&tokens));
    });
    let options = CompileOptions {
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(ADAM)),
        mesh: vec![ranks],
        ..CompileOptions::default()
    };
    sketch_plan(g.finish().expect("fits"), &options, cluster).expect("a plan")
}

fn is_attention(actor: &Actor) -> bool {
    matches!(actor.action, Action::Compute { op: Op::Attention(_) | Op::AttentionGrad(_), .. })
}

/// The share of kernels' seconds that attention has, in a step of these many sequences of a length.
fn share(cluster: &Cluster, batch: usize, length: usize) -> f64 {
    let plan = plan(cluster, batch, length, 1);
    let (mut attention, mut all) = (0.0, 0.0);
    for actor in &plan.programs[0].actors {
        all += actor.seconds;
        if is_attention(actor) {
            attention += actor.seconds;
        }
    }
    attention / all
}

#[test]
fn attention_dominates_long_sequences_and_not_short_ones() {
    let cluster = preset("dgx-h100").expect("a preset");
    let (short, long) = (share(&cluster, 64, 1024), share(&cluster, 1, 65536));
    assert!(short < 0.25, "{short} of a step of short sequences");
    assert!(long > 0.8, "{long} of a step of long ones");
    let mut products = cluster.clone();
    products.device.attention = None;
    assert!(share(&products, 1, 65536) < long, "it is no matrix product of its FLOPs");
}

#[test]
fn a_plan_on_other_machines_has_the_attention_of_one_that_is_made_for_them() {
    let [a100, h100] = ["dgx-a100", "dgx-h100"].map(|name| preset(name).expect("a preset"));
    let attention = |plan: &Plan| -> Vec<f64> {
        let actors = plan.programs[0].actors.iter();
        actors.filter(|actor| is_attention(actor)).map(|actor| actor.seconds).collect()
    };
    let made = attention(&plan(&h100, 8, 4096, 2));
    let moved = attention(&on_cluster(&plan(&a100, 8, 4096, 2), &h100));
    assert_eq!(made.len(), 4);
    assert!(made.iter().zip(&moved).all(|(a, b)| (a / b - 1.0).abs() < 1e-9), "{made:?} {moved:?}");
}

/// The layouts of queries, keys and values of all attention, forward and backward.
fn layouts(plan: &Plan) -> Vec<[String; 3]> {
    let program = &plan.programs[0];
    let of = |actor: &Actor| {
        let sbp = |operand: usize| {
            let register = &program.registers[actor.inputs[operand].index()];
            plan.layouts[register.layout.index()].sbp.to_string()
        };
        [sbp(0), sbp(1), sbp(2)]
    };
    program.actors.iter().filter(|actor| is_attention(actor)).map(of).collect()
}

/// One sequence of 131,072 tokens has no batch to split, and fewer heads of keys than ranks: so ranks have a part of its queries each
/// and gather keys and values, which are a quarter as wide ("context parallelism"; Dubey et al., arXiv 2407.21783, section 3.3.2).
#[test]
fn queries_of_a_long_sequence_are_split_and_its_keys_gathered() {
    let cluster = preset("dgx-h100").expect("a preset");
    let long = layouts(&planned(&cluster, 1, 131_072, 32));
    assert_eq!(long.len(), 2);
    assert_eq!(long[0], ["S(1)", "B", "B"]);
    assert_eq!(long[1][0], "S(1)", "the gradient of keys and values is then a sum over ranks");
    let short = layouts(&planned(&cluster, 32, 4096, 32));
    assert!(short.iter().flatten().all(|sbp| sbp == "S(0)"), "{short:?}");
}

#[test]
fn the_last_queries_of_a_causal_mask_set_the_pace() {
    let cluster = preset("dgx-h100").expect("a preset");
    let seconds = |causal, queries_over: usize| {
        let op = Op::Attention(Attention::new(causal, Scalar(0.1)));
        let q = TensorType::new(DType::BF16, [1, 131_072, 8, 128]);
        let l = TensorType::new(DType::F32, [1, 131_072, 8]);
        let axes = [(Choice::Factor(1), queries_over)];
        compute_work(&cluster, &op, &[&q, &q, &q], &[&q, &l], &axes).1
    };
    let ratio = seconds(true, 16) / (seconds(true, 1) / 16.0);
    assert!((1.9..2.0).contains(&ratio), "{ratio}: 31/16 of the mean");
    let even = seconds(false, 16) / (seconds(false, 1) / 16.0);
    assert!((0.99..1.01).contains(&even), "{even}");
}
