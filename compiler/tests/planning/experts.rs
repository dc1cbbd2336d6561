//! Fixed strategies leave experts where pins have them: what ranks exchange are the tokens.

use crate::trained;
use graphc_compiler::check::verify_invariants;
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Compiled, compile};
use graphc_compiler::lower::collective_counts;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::types::DType;
use graphc_nn::{Embedding, Linear, MixtureConfig, MixtureFeedForward, Module, Routing};
use graphc_plan::{BoxingKind, CompileOptions, Pin, TensorKind};

/// Tokens, embedded; eight experts in four blocks beside a residual; the next token.
fn mixture(routing: Routing) -> Graph {
    let g = GraphBuilder::new("mixture");
    let (experts, chosen, blocks) = (8, 2, 4);
    let (width, hidden, capacity) = (16, 64, Some(1.0));
    let sizes = MixtureConfig { width, hidden, experts, chosen, routing, blocks, capacity };
    let x = Embedding::new(&g, "wte", 64, width).forward(&g.input("tokens", DType::I64, [16, 8]));
    let y = MixtureFeedForward::new(&g, "mixture", &sizes).forward(&x);
    g.output("logits", &Linear::new(&g, "head", width, 64).forward(&x.add(&y)));
    g.finish().expect("fits")
}

fn compiled(routing: Routing, strategy: &str, mesh: &[usize], experts: Option<&str>) -> Compiled {
    let pin = |part: &str, sbp: &str| Pin {
        pattern: format!("mixture.{part}.weight"),
        sbp: sbp.parse().expect("an SBP"),
    };
    let pins = |sbp: &str| ["gate", "up", "down"].map(|part| pin(part, sbp)).to_vec();
    let options = CompileOptions {
        strategy: strategy.parse().expect("a strategy"),
        pins: experts.map_or_else(Vec::new, pins),
        ..trained::options(mesh, 1, 2)
    };
    let compiled = compile(mixture(routing), &options, &preset("cpu").expect("a preset"), None);
    let compiled = compiled.unwrap_or_else(|error| panic!("{strategy} on {mesh:?}: {error}"));
    assert_eq!(verify_invariants(&compiled.plan), Ok(()), "{strategy} on {mesh:?}");
    compiled
}

fn count(compiled: &Compiled, kind: BoxingKind) -> usize {
    collective_counts(&compiled.plan).get(&kind).copied().unwrap_or(0)
}

/// The layouts of gradients and weights of experts, of which dim 0 counts the experts.
fn layouts(compiled: &Compiled) -> Vec<String> {
    let of_experts = compiled.plan.tensors.iter().filter(|tensor| {
        tensor.shape.len() == 3 && tensor.shape[0] == 8 && tensor.kind == TensorKind::Parameter
    });
    let mut all: Vec<String> = of_experts.map(|tensor| tensor.sbp.to_string()).collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn tokens_go_to_experts_that_are_pinned_apart() {
    for (strategy, mesh, apart) in
        [("data", &[4][..], "S(0)"), ("zero1", &[4], "S(0)"), ("zero1", &[2, 2], "B, S(0)")]
    {
        let plan = compiled(Routing::Softmax, strategy, mesh, Some(apart));
        assert_eq!(layouts(&plan), [apart], "{strategy} on {mesh:?}");
        // To experts and back, in both directions; without pins each rank has all of them.
        let exchanges = count(&plan, BoxingKind::AllToAll);
        assert!(exchanges >= 4, "{exchanges} by {strategy} on {mesh:?}");
        let whole = compiled(Routing::Softmax, strategy, mesh, None);
        assert_eq!(count(&whole, BoxingKind::AllToAll), 0, "{strategy} on {mesh:?}");
    }
}

#[test]
fn tensor_parallelism_takes_experts_that_are_chosen_by_sigmoids() {
    let routing = Routing::Sigmoid { scale: 2.5 };
    for strategy in ["megatron", "megatron:sp"] {
        let plan = compiled(routing, strategy, &[2, 2], Some("S(0), S(0)"));
        assert_eq!(layouts(&plan), ["S(0), S(0)"], "{strategy}");
    }
}
