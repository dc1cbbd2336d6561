//! Recomputation: what the backward pass reads is what the forward pass computed, bit for bit, in less memory.

use std::collections::{BTreeMap, BTreeSet};

use graphc_compiler::check::{verify, verify_invariants};
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Compiled, compile};
use graphc_compiler::decisions::{Decisions, Phase};
use graphc_compiler::passes::recompute::Depth;
use graphc_compiler::pipeline::{prepare, recompute_blocks};
use graphc_ir::array::Array;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::evaluate::evaluate;
use graphc_ir::graph::Graph;
use graphc_ir::ids::ValueId;
use graphc_ir::nn::{Gpt, GptConfig, Module, TransformerBlock};
use graphc_ir::op::{EvalContext, Op};
use graphc_ir::ops::Init;
use graphc_ir::plan::{
    AdamOptions, CompileOptions, Loss, Optimizer, Recompute, Strategy, TensorKind,
};
use graphc_ir::types::DType;

const ADAM: AdamOptions =
    AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };

fn options(mesh: &[usize], stages: usize, microbatches: usize) -> CompileOptions {
    CompileOptions {
        mesh: mesh.to_vec(),
        stages,
        microbatches,
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(ADAM)),
        recompute: Recompute::Full,
        ..CompileOptions::default()
    }
}

fn gpt(layers: usize) -> Graph {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers, width: 32, heads: 4, sequence: 16, vocabulary: 65 };
    let tokens = g.input("tokens", DType::I64, [8, 16]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    g.finish().expect("fits")
}

/// Two blocks with dropout behind each.
fn dropping() -> Graph {
    let g = GraphBuilder::new("dropping");
    let mut x = g.input("x", DType::F32, [4, 6, 8]).mul(&g.full(DType::F32, [8], 0.5));
    for i in 0..3 {
        let block = TransformerBlock::new(&g, &format!("blocks.{i}"), 8, 2);
        x = block.forward(&x).dropout(0.5).tanh();
    }
    g.output("y", &x);
    g.finish().expect("fits")
}

fn feeds(graph: &Graph) -> BTreeMap<String, Array> {
    let feed = |node: &graphc_ir::graph::Node| {
        let (name, ty) = match &node.op {
            Op::Input(input) => (&input.name, &input.ty),
            Op::Variable(variable) => (&variable.name, &variable.ty),
            _ => return None,
        };
        let number = |i: usize| match ty.dtype.is_float() {
            true => ((i + name.len()) as f64 * 0.7).sin() * 0.5,
            false => (i % 5) as f64,
        };
        Some((name.clone(), Array::new(ty.shape.clone(), (0..ty.elements()).map(number).collect())))
    };
    graph.nodes.iter().filter_map(feed).collect()
}

fn gradients(decisions: &Decisions) -> Vec<Array> {
    let graph = decisions.graph();
    let all = evaluate(graph, &feeds(graph), &EvalContext::default()).expect("all is fed");
    decisions.training.gradients.iter().map(|(_, gradient)| all[gradient.index()].clone()).collect()
}

#[test]
fn gradients_are_the_same_bits_and_dropout_draws_the_same_numbers() {
    for (graph, loss) in [(gpt(3), Loss::CrossEntropy), (dropping(), Loss::Mse)] {
        for (mesh, stages, microbatches) in [(1, 1, 1), (1, 1, 2), (2, 2, 2)] {
            let full =
                CompileOptions { loss: Some(loss), ..options(&[mesh], stages, microbatches) };
            let with = |recompute| {
                let options = CompileOptions { recompute, ..full.clone() };
                prepare(graph.clone(), &options).expect("fits")
            };
            let kept = with(Recompute::None);
            assert!(kept.recomputed.iter().all(Option::is_none));
            for recompute in [Recompute::Selective, Recompute::Full] {
                let recomputed = with(recompute);
                assert!(recomputed.recomputed.iter().any(Option::is_some));
                assert!(
                    gradients(&recomputed) == gradients(&kept),
                    "{recompute:?} {mesh} {stages} {microbatches}"
                );
            }
        }
    }
}

#[test]
fn the_backward_pass_of_a_block_reads_what_crosses_blocks_and_its_own_copies_alone() {
    let decisions = prepare(gpt(3), &options(&[1], 1, 2)).expect("fits");
    let (graph, phases) = (decisions.graph(), &decisions.training.phases);
    let mut kept = BTreeSet::new();
    for (id, node) in graph.iter().filter(|(id, _)| phases[id.index()] == Phase::Backward) {
        for &operand in &node.operands {
            let producer = graph.value(operand).producer;
            if phases[producer.index()] == Phase::Forward
                && decisions.training.kinds[operand.index()] == TensorKind::Activation
                && graph.value(operand).ty.elements() >= 8 * 16 * 32
            {
                kept.insert(operand);
            }
        }
        if let Some(original) = decisions.recomputed[id.index()] {
            let original = graph.node(original);
            assert_eq!((&node.op, node.part), (&original.op, original.part));
            let original_of = |value: &ValueId| {
                let producer = graph.value(*value).producer;
                match decisions.recomputed[producer.index()] {
                    Some(first) => graph.node(first).results[graph.value(*value).index],
                    None => *value,
                }
            };
            let operands: Vec<ValueId> = node.operands.iter().map(original_of).collect();
            assert_eq!(operands, original.operands, "{id}");
        }
    }
    // The inputs of three blocks, and what the head and its normalization need: their input, the input of the product,
    // and the scores.
    assert!((3..=8).contains(&kept.len()), "{kept:?}");
}

fn planned(graph: Graph, options: &CompileOptions) -> Compiled {
    let cluster = preset("cpu").expect("a preset");
    compile(graph, options, &cluster, None).unwrap_or_else(|error| panic!("{options:?}: {error}"))
}

fn peak(compiled: &Compiled) -> u64 {
    compiled.plan.predicted.peak_memory_bytes.iter().copied().max().expect("a program")
}

#[test]
fn memory_falls_with_every_block_and_copies_lie_as_their_originals() {
    for strategy in [Strategy::Auto, Strategy::Data] {
        for (mesh, stages, microbatches) in [(&[1][..], 1, 1), (&[2], 1, 1), (&[2], 2, 4)] {
            let full = CompileOptions { strategy, ..options(mesh, stages, microbatches) };
            let none = CompileOptions { recompute: Recompute::None, ..full.clone() };
            let (with, without) = (planned(gpt(6), &full), planned(gpt(6), &none));
            assert_eq!(verify_invariants(&with.plan), Ok(()), "{full:?}");
            let (less, more) = (peak(&with), peak(&without));
            assert!(less < more * 4 / 5, "{strategy:?} {mesh:?}: {less} of {more}");
            assert!(
                with.plan.predicted.step_seconds > without.plan.predicted.step_seconds,
                "{mesh:?}"
            );
            for (copy, original) in with.decisions.recomputed.iter().enumerate() {
                if let Some(original) = original {
                    let nodes = &with.sharding.nodes;
                    assert_eq!(nodes[copy].results, nodes[original.index()].results, "{mesh:?}");
                }
            }
        }
    }
}

#[test]
fn each_block_of_a_stage_can_be_recomputed_by_itself() {
    let none = CompileOptions { recompute: Recompute::None, ..options(&[2], 2, 2) };
    let decisions = prepare(gpt(4), &none).expect("fits");
    let copies = |blocks: usize| {
        let depth = Depth { full: blocks, selective: 0 };
        let decisions = recompute_blocks(&decisions, &none, depth).expect("fits");
        decisions.recomputed.iter().flatten().count()
    };
    // At most six blocks on a stage: the first is the embedding, which keeps what it makes, and a cut may part one.
    let counts: Vec<usize> = (0..8).map(copies).collect();
    assert!(counts.windows(2).all(|pair| pair[0] <= pair[1]), "{counts:?}");
    assert_eq!((counts[0], counts[6]), (0, counts[7]), "{counts:?}");
    assert!(counts[1] > 0 && counts[2] > counts[1], "{counts:?}");
}

/// Attention in parts, so that there are scores.
fn scores(layers: usize) -> Graph {
    let g = GraphBuilder::new("scores");
    let mut x = g.input("x", DType::F32, [8, 64, 16]);
    for layer in 0..layers {
        let weight = |name: &str, [rows, columns]: [usize; 2]| {
            g.variable(&format!("{layer}.{name}"), DType::F32, [rows, columns], Init::Weights)
        };
        let [q, k, v] = ["q", "k", "v"].map(|name| x.matmul(&weight(name, [16, 16])));
        let scores = q.matmul_transposed(&k, false, true).scale(0.25);
        let attention = scores.softmax(2).matmul(&v).matmul(&weight("o", [16, 16]));
        let x1 = x.add(&attention);
        let hidden = x1.matmul(&weight("up", [16, 64])).gelu();
        x = x1.add(&hidden.matmul(&weight("down", [64, 16])));
    }
    g.output("y", &x);
    g.finish().expect("fits")
}

#[test]
fn selective_computes_scores_again_and_no_product_with_weights() {
    let with = |recompute| {
        let options = CompileOptions { loss: Some(Loss::Mse), recompute, ..options(&[1], 1, 1) };
        planned(scores(4), &options)
    };
    let [none, selective, full] =
        [Recompute::None, Recompute::Selective, Recompute::Full].map(with);
    let graph = selective.decisions.graph();
    let copies: Vec<_> = (graph.iter())
        .filter(|(id, _)| selective.decisions.recomputed[id.index()].is_some())
        .map(|(_, node)| node)
        .collect();
    let is_variable = |value: &ValueId| matches!(graph.producer(*value).op, Op::Variable(_));
    let products = copies.iter().filter(|node| matches!(node.op, Op::MatMul(_)));
    assert!(products.clone().count() > 0, "scores are computed again");
    assert!(products.flat_map(|node| &node.operands).all(|operand| !is_variable(operand)));
    assert!(copies.iter().any(|node| matches!(node.op, Op::Softmax(_))));
    let seconds = |compiled: &Compiled| compiled.plan.predicted.step_seconds;
    assert!(seconds(&none) < seconds(&selective) && seconds(&selective) < seconds(&full));
    // Scores, their softmax and what GELU gives are more than a third of what a layer keeps.
    assert!(peak(&selective) * 4 < peak(&none) * 3, "{} of {}", peak(&selective), peak(&none));
    assert_eq!((selective.plan.recomputed_blocks, full.plan.selective_blocks), (0, 0));
    assert!(selective.plan.selective_blocks > 0);
    verify(&selective.plan).expect("it compiles to itself again");
}

#[test]
fn auto_gives_up_what_is_cheap_before_whole_blocks() {
    let auto = |recompute, memory| CompileOptions {
        recompute,
        strategy: Strategy::Data,
        loss: Some(Loss::Mse),
        memory,
        ..options(&[1], 1, 1)
    };
    let [none, selective, full] = [Recompute::None, Recompute::Selective, Recompute::Full]
        .map(|recompute| planned(scores(4), &auto(recompute, None)));
    let short = planned(scores(4), &auto(Recompute::Auto, Some(peak(&none) - 1)));
    let blocks =
        |compiled: &Compiled| (compiled.plan.recomputed_blocks, compiled.plan.selective_blocks);
    assert_eq!(blocks(&short).0, 0, "{:?}", blocks(&short));
    assert!((1..blocks(&selective).1).contains(&blocks(&short).1), "{:?}", blocks(&short));
    assert!(peak(&full) < peak(&selective));
    let shorter = planned(scores(4), &auto(Recompute::Auto, Some(peak(&selective) - 1)));
    assert_eq!(blocks(&shorter).1, blocks(&selective).1);
    assert!(0 < blocks(&shorter).0, "{:?}", blocks(&shorter));
    verify(&shorter.plan).expect("it compiles to itself again");
}

#[test]
fn auto_recomputes_as_few_blocks_as_fit() {
    let auto = |memory: Option<u64>| CompileOptions {
        recompute: Recompute::Auto,
        strategy: Strategy::Data,
        memory,
        ..options(&[1], 1, 1)
    };
    let free = planned(gpt(6), &auto(None));
    assert_eq!(free.plan.recomputed_blocks, 0);
    let full = planned(gpt(6), &CompileOptions { recompute: Recompute::Full, ..auto(None) });
    let most = full.plan.recomputed_blocks;
    let middle = u64::midpoint(peak(&free), peak(&full));
    let some = planned(gpt(6), &auto(Some(middle)));
    let blocks = some.plan.recomputed_blocks;
    assert!(0 < blocks && blocks < most && peak(&some) <= middle, "{blocks} of {most}");
    verify(&some.plan).expect("it compiles to itself again");
    let cluster = preset("cpu").expect("a preset");
    let none = CompileOptions { recompute: Recompute::None, ..auto(Some(middle)) };
    assert!(compile(gpt(6), &none, &cluster, None).expect_err("too much").is_memory());
    let error = compile(gpt(6), &auto(Some(peak(&full) / 4)), &cluster, None).expect_err("less");
    assert!(error.is_memory(), "{error}");
}
