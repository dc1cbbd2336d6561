//! Fixed strategies leave experts where pins have them: what ranks exchange are the tokens.

use crate::trained;
use graphc_compiler::check::verify_invariants;
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Compiled, compile, emit_after};
use graphc_compiler::lower::collective_counts;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::types::DType;
use graphc_nn::{Embedding, Linear, MixtureConfig, MixtureFeedForward, Module, Routing};
use graphc_plan::{BoxingKind, CompileOptions, Float8Recipe, Pin, TensorKind};

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

/// Sixteen wide experts, of which each token takes eight, each with a block of its own.
fn wide_mixture() -> Graph {
    let g = GraphBuilder::new("wide");
    let (experts, chosen, blocks) = (16, 8, 16);
    let (width, hidden, capacity) = (1024, 512, Some(1.0));
    let routing = Routing::Softmax;
    let sizes = MixtureConfig { width, hidden, experts, chosen, routing, blocks, capacity };
    let x = Embedding::new(&g, "wte", 64, width);
    let x = x.forward(&g.input("tokens", DType::I64, [32, 1024]));
    let y = MixtureFeedForward::new(&g, "mixture", &sizes).forward(&x);
    g.output("logits", &Linear::new(&g, "head", width, 64).forward(&x.add(&y)));
    g.finish().expect("fits")
}

fn wide_options(ranks: usize) -> CompileOptions {
    let apart = |part| Pin {
        pattern: format!("mixture.{part}.weight"),
        sbp: "S(0)".parse().expect("an SBP"),
    };
    CompileOptions {
        strategy: "data".parse().expect("a strategy"),
        pins: ["gate", "up", "down"].map(apart).to_vec(),
        precision: Some(DType::BF16),
        ..trained::options(&[ranks], 1, 1)
    }
}

#[test]
fn copies_of_tokens_do_not_cross_nodes_where_each_token_takes_many_experts() {
    let exchanges = |ranks: usize| {
        let cluster = preset("dgx-h100").expect("a preset");
        let compiled = compile(wide_mixture(), &wide_options(ranks), &cluster, None);
        let compiled = compiled.unwrap_or_else(|error| panic!("{ranks} ranks: {error}"));
        assert_eq!(verify_invariants(&compiled.plan), Ok(()), "{ranks} ranks");
        count(&compiled, BoxingKind::AllToAll)
    };
    // Within a node eight of sixteen copies are fewer bytes than all tokens of all ranks; between two nodes a token would cross the same link for each copy.
    let [node, nodes] = [8, 16].map(exchanges);
    assert!(node >= 4, "{node} exchanges of copies in a node");
    assert!(nodes < node, "{nodes} between nodes and {node} in a node");
}

#[test]
fn tokens_are_cast_before_they_are_copied_to_experts() {
    let cluster = preset("dgx-h100").expect("a preset");
    let cast = emit_after(wide_mixture(), &wide_options(8), &cluster, "autocast").expect("a graph");
    let mut dispatched = 0;
    for (_, node) in cast.iter().filter(|(_, node)| matches!(node.op, Op::Dispatch(_))) {
        assert_eq!(cast.value(node.results[0]).ty.dtype, DType::BF16);
        dispatched += 1;
    }
    assert_eq!(dispatched, 1);
    let casts_copies = |node: &graphc_ir::graph::Node| {
        matches!(node.op, Op::Cast(_))
            && matches!(cast.producer(node.operands[0]).op, Op::Dispatch(_))
    };
    assert!(!cast.nodes.iter().any(casts_copies), "copies are cast");
}

#[test]
fn tokens_go_to_experts_in_8_bits_as_in_16() {
    let cluster = preset("dgx-h100").expect("a preset");
    let eight = |float8_recipe| CompileOptions {
        precision: Some(DType::F8E4M3),
        float8_recipe,
        ..wide_options(8)
    };
    let sixteen = compile(wide_mixture(), &wide_options(8), &cluster, None).expect("a plan");
    for recipe in [Float8Recipe::Rowwise, Float8Recipe::Tensorwise] {
        let compiled = compile(wide_mixture(), &eight(recipe), &cluster, None).expect("a plan");
        assert_eq!(verify_invariants(&compiled.plan), Ok(()), "{recipe:?}");
        let [own, of_16] = [&compiled, &sixteen].map(|plan| count(plan, BoxingKind::AllToAll));
        assert_eq!(own, of_16, "{recipe:?}");
        // Three products forward and three backward; tensorwise the gradients of the weights too.
        let graph = emit_after(wide_mixture(), &eight(recipe), &cluster, "float8");
        let graph = graph.expect("a graph");
        let is_8_bits = |value: ValueId| graph.value(value).ty.dtype.is_float8();
        let products = graph.nodes.iter().filter(|node| {
            matches!(node.op, Op::GroupedMatMul(_) | Op::GroupedMatMulGrad(_))
                && node.operands.len() == 5
                && is_8_bits(node.operands[0])
        });
        let expected = if recipe == Float8Recipe::Rowwise { 6 } else { 9 };
        assert_eq!(products.count(), expected, "{recipe:?}");
    }
}
