//! Axes that split sequences (context parallelism): a decoder trains to one rank's losses, whatever the ranks share.

use std::collections::BTreeSet;

use graphc::ir::op::Op;
use graphc::nn::{Embedding, Linear, Llama, LlamaConfig};
use graphc::plan::{Action, Actor};
use graphc::prelude::*;

use super::{Feeds, begin, number, step};

const STEPS: usize = 4;

fn decoder() -> Graph {
    let g = GraphBuilder::new("decoder");
    let config = LlamaConfig {
        layers: 2,
        width: 32,
        heads: 4,
        shared: 2,
        hidden: 48,
        vocabulary: 64,
        base: 1e4,
    };
    let tokens = g.input("tokens", DType::I64, [4, 16]);
    g.output("logits", &Llama::new(&g, &config).forward(&tokens));
    g.finish().expect("fits")
}

fn feeds(at: usize) -> Feeds {
    let ids = |shift: usize| -> Vec<i64> {
        (0..64).map(|place| ((place * 7 + at * 13 + shift) * 31 % 61) as i64).collect()
    };
    [("tokens", ids(0)), ("labels", ids(1))]
        .map(|(name, ids)| (name.to_owned(), HostTensor::from_i64([4, 16], &ids).expect("as many")))
        .into()
}

fn options(mesh: &[usize], strategy: &str) -> CompileOptions {
    CompileOptions {
        mesh: mesh.to_vec(),
        strategy: strategy.parse().expect("a strategy"),
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(AdamOptions::adamw(1e-2))),
        ..CompileOptions::default()
    }
}

fn losses(options: &CompileOptions) -> Vec<f64> {
    let mut session = begin(&decoder(), options);
    (0..STEPS).map(|at| number(&step(&mut session, &feeds(at)), "loss")).collect()
}

#[test]
fn ranks_that_share_sequences_train_as_one_rank() {
    let expected = losses(&options(&[1], "auto"));
    let stages = CompileOptions { stages: 2, microbatches: 2, ..options(&[2, 2], "data:cp") };
    for options in [
        options(&[2], "data:cp"),
        options(&[4], "zero3:cp"),
        options(&[2, 2], "zero1:cp"),
        options(&[2, 2], "zero3,zero3:cp"),
        options(&[2, 2], "zero1:cp,megatron"),
        options(&[2, 2], "data:cp,megatron:sp"),
        options(&[2, 2, 2], "zero1,zero1:cp,megatron:sp"),
        CompileOptions { recompute: Recompute::Full, ..options(&[2], "zero2:cp") },
        stages,
    ] {
        let found = losses(&options);
        let near = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 2e-5);
        assert!(near, "{} on {:?}: {found:?} is not {expected:?}", options.strategy, options.mesh);
    }
}

/// Returns the pairs of chunks in whose order all attention of a plan, and its gradient, takes its queries.
fn orders(graph: &Graph, options: &CompileOptions) -> BTreeSet<Option<u32>> {
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(graph.clone(), options, &cluster, None).expect("a plan").plan;
    let of = |actor: &Actor| match &actor.action {
        Action::Compute { op: Op::Attention(op), .. } => Some(op.zigzag),
        Action::Compute { op: Op::AttentionGrad(op), .. } => Some(op.zigzag),
        _ => None,
    };
    let found = plan.programs.iter().flat_map(|program| program.actors.iter().filter_map(of));
    found.map(|pairs| pairs.map(|pairs| pairs.get())).collect()
}

/// Under a causal mask each rank has early and late queries. What depends on places in a sequence otherwise leaves sequences in their own order.
#[test]
fn ranks_have_as_much_of_a_causal_mask_each() {
    for (mesh, strategy, pairs) in
        [(&[2][..], "data:cp", 2), (&[2, 2], "zero1:cp,megatron:sp", 2), (&[4], "zero3:cp", 4)]
    {
        let found = orders(&decoder(), &options(mesh, strategy));
        assert_eq!(found, [Some(pairs)].into(), "{strategy}");
    }
    assert_eq!(orders(&decoder(), &options(&[2], "zero3")), [None].into());
    let kept = CompileOptions { keep_order: true, ..options(&[2], "data:cp") };
    assert_eq!(orders(&decoder(), &kept), [None].into());
    // 16 elements are no 10 chunks.
    assert_eq!(orders(&decoder(), &options(&[5], "data:cp")), [None].into());
    // Places of weights that are dropped are those in the sequence's own order.
    let g = GraphBuilder::new("dropped");
    let x = Embedding::new(&g, "table", 64, 32).forward(&g.input("tokens", DType::I64, [4, 16]));
    let heads = x.dropout(0.1).reshape(&[4, 16, 4, 8]);
    let y = heads.attention(&heads, &heads, true).reshape(&[4, 16, 32]);
    g.output("logits", &Linear::new(&g, "head", 32, 64).forward(&y));
    let dropped = g.finish().expect("fits");
    assert_eq!(orders(&dropped, &options(&[2], "data:cp")), [None].into());
}

/// Inputs lie in parts of their sequences, and so do the queries of attention.
#[test]
fn sequences_are_split_and_parameters_lie_as_the_stage_of_zero_says() {
    let cluster = preset("dgx-h100").expect("a preset");
    let of = |strategy: &str| {
        let compiled = compile(decoder(), &options(&[2, 2], strategy), &cluster, None);
        let plan = compiled.expect("a plan").plan;
        let layouts =
            plan.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.sbp.to_string()));
        layouts.collect::<std::collections::BTreeMap<_, _>>()
    };
    for (strategy, weight, state) in [
        ("data:cp", "B, B", "B, B"),
        ("zero1:cp", "B, B", "S(0), S(0)"),
        ("data,zero3:cp", "B, S(0)", "B, S(0)"),
    ] {
        let layouts = of(strategy);
        assert_eq!(layouts["tokens"], "S(0), S(1)", "{strategy}");
        let (name, found) =
            layouts.iter().find(|(name, _)| name.starts_with("state.exp_avg.")).expect("a state");
        assert_eq!((found.as_str(), name.contains("norm")), (state, false), "{strategy} {name}");
        let parameter = &name["state.exp_avg.".len()..];
        assert_eq!(layouts[parameter], weight, "{strategy} {parameter}");
    }
}
