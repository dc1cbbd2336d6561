//! Recomputation: what the backward pass reads is what the forward pass computed, bit for bit, in less memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::trained;
use graphc_compiler::check::{verify_invariants, verify_plan};
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Compiled, compile};
use graphc_compiler::decisions::{Decisions, Phase};
use graphc_compiler::passes::recompute::{Blocks, Extent, OpPlace};
use graphc_compiler::pipeline::{decide_recomputed, prepare_graph};
use graphc_compiler::planner;
use graphc_ir::array::Array;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::evaluate::evaluate_graph;
use graphc_ir::graph::Graph;
use graphc_ir::ids::ValueId;
use graphc_ir::op::{EvalContext, Op};
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_nn::{Gpt, GptConfig, Module, TransformerBlock};
use graphc_plan::{CompileOptions, Loss, Optimizer, Recompute, Strategy, TensorKind};

fn options(mesh: &[usize], stages: usize, microbatches: usize) -> CompileOptions {
    CompileOptions { recompute: Recompute::Full, ..trained::options(mesh, stages, microbatches) }
}

fn gpt(layers: usize) -> Graph {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers, width: 32, heads: 4, sequence: 16, vocabulary: 65 };
    let tokens = g.input("tokens", DType::I64, [8, 16]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    g.finish().expect("fits")
}

/// Makes three blocks with dropout behind each.
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
    let all = evaluate_graph(graph, &feeds(graph), &EvalContext::default()).expect("all is fed");
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
                prepare_graph(graph.clone(), &options).expect("fits")
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

/// Lists all ops that may be recomputed.
fn places(decisions: &Decisions) -> Vec<OpPlace> {
    let blocks = Blocks::new(&decisions.training, &decisions.rates);
    let of = |(block, ops): (usize, &Vec<_>)| {
        (0..ops.len()).map(move |place| OpPlace { block, place }).collect::<Vec<_>>()
    };
    blocks.ops.iter().enumerate().flat_map(of).collect()
}

#[test]
fn gradients_are_the_same_bits_whichever_ops_are_computed_again() {
    let none = CompileOptions { recompute: Recompute::None, ..options(&[1], 1, 2) };
    let none = CompileOptions { loss: Some(Loss::Mse), ..none };
    let kept = prepare_graph(dropping(), &none).expect("fits");
    let (expected, all) = (gradients(&kept), places(&kept));
    let mut counts = BTreeSet::new();
    for every in [2, 3, 5, 7] {
        let ops: BTreeSet<OpPlace> = all.iter().skip(every / 2).step_by(every).copied().collect();
        let some = decide_recomputed(&kept, &none, Extent::Ops(&ops)).expect("fits");
        counts.insert(copies(&some).len());
        assert!(gradients(&some) == expected, "{ops:?}");
    }
    assert!(counts.len() > 2 && !counts.contains(&0), "{counts:?}");
}

/// Lists the names of the ops that are recomputed.
fn copies(decisions: &Decisions) -> Vec<&'static str> {
    let copies =
        decisions.graph().iter().filter(|(id, _)| decisions.recomputed[id.index()].is_some());
    copies.map(|(_, node)| node.op.name()).collect()
}

#[test]
fn the_backward_pass_of_a_block_reads_what_crosses_blocks_and_its_own_copies_alone() {
    let decisions = prepare_graph(gpt(3), &options(&[1], 1, 2)).expect("fits");
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

/// Returns the memory in which a plan is found: the greater of the planner's count, in which no buffers share memory, and the memory after lowering.
fn room(compiled: &Compiled) -> u64 {
    let Compiled { decisions, sharding, plan, .. } = compiled;
    let counted =
        planner::reprice_sharding(decisions, sharding, &plan.cluster, &plan.options).memory;
    counted.into_iter().max().unwrap_or(0).max(peak(compiled))
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
    let decisions = prepare_graph(gpt(4), &none).expect("fits");
    let all = places(&decisions);
    let of = |wanted: &dyn Fn(usize) -> bool| {
        let ops = all.iter().filter(|op| wanted(op.block)).copied().collect();
        copies(&decide_recomputed(&decisions, &none, Extent::Ops(&ops)).expect("fits")).len()
    };
    let blocks = all.last().expect("some").block + 1;
    let counts: Vec<usize> = (0..blocks).map(|block| of(&|one| one == block)).collect();
    // The first is the embedding, which keeps what it makes.
    assert!(counts.iter().filter(|&&count| count > 0).count() >= 4, "{counts:?}");
    let full = decide_recomputed(&decisions, &none, Extent::Full).expect("fits");
    assert_eq!(counts.iter().sum::<usize>(), copies(&full).len(), "{counts:?}");
    assert_eq!(of(&|_| true), copies(&full).len());
}

/// Makes attention whose scores are shares. It does not become one op, so that there are scores.
fn scores(layers: usize) -> Graph {
    let g = GraphBuilder::new("scores");
    let mut x = g.input("x", DType::F32, [8, 64, 16]);
    for layer in 0..layers {
        let weight = |name: &str, [rows, columns]: [usize; 2]| {
            g.variable(&format!("{layer}.{name}"), DType::F32, [rows, columns], Init::Weights)
        };
        let [q, k, v] = ["q", "k", "v"].map(|name| x.matmul(&weight(name, [16, 16])));
        let scores = q.matmul_transposed(&k, false, true).scale(0.25).sigmoid();
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
    verify_plan(&selective.plan).expect("it compiles to itself again");
}

#[test]
fn auto_is_no_slower_than_what_is_fixed_in_the_memory_that_this_takes() {
    let with = |recompute, memory| {
        let options = CompileOptions {
            recompute,
            strategy: Strategy::Data,
            loss: Some(Loss::Mse),
            memory,
            ..options(&[1], 1, 1)
        };
        planned(scores(4), &options)
    };
    let [none, selective, full] = [Recompute::None, Recompute::Selective, Recompute::Full]
        .map(|recompute| with(recompute, None));
    let seconds = |compiled: &Compiled| compiled.plan.planner.objective_seconds;
    let count = |compiled: &Compiled| copies(&compiled.decisions).len();
    let a_little = with(Recompute::Auto, Some(peak(&none) - 1));
    assert!((1..count(&selective)).contains(&count(&a_little)), "{:?}", a_little.plan.recomputed);
    assert!(seconds(&none) < seconds(&a_little) && seconds(&a_little) < seconds(&selective));
    assert!(peak(&full) < peak(&selective));
    for fixed in [selective, full] {
        let auto = with(Recompute::Auto, Some(room(&fixed)));
        assert!(
            count(&auto) > 0 && seconds(&auto) <= seconds(&fixed),
            "{:?}",
            auto.plan.recomputed
        );
        verify_plan(&auto.plan).expect("it compiles to itself again");
    }
}

/// Makes blocks of a large product whose result has as many bytes as that of the GELU behind it.
fn gated(layers: usize) -> Graph {
    let g = GraphBuilder::new("gated");
    let mut x = g.input("x", DType::F32, [2048, 256]);
    for layer in 0..layers {
        let weight = |name: &str, shape: [usize; 2]| {
            g.variable(&format!("{layer}.{name}"), DType::F32, shape, Init::Weights)
        };
        let hidden = x.matmul(&weight("up", [256, 1024])).gelu();
        x = x.add(&hidden.matmul(&weight("down", [1024, 256])));
    }
    g.output("y", &x);
    g.finish().expect("fits")
}

#[test]
fn of_what_is_large_exactly_what_is_cheap_is_computed_again_where_that_suffices() {
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let with = |recompute, memory| {
        let options = CompileOptions {
            recompute,
            strategy: Strategy::Data,
            loss: Some(Loss::Mse),
            optimizer: Some(sgd),
            memory,
            ..options(&[1], 1, 1)
        };
        planned(gated(6), &options)
    };
    let cheap = with(Recompute::Selective, None);
    assert!(copies(&cheap.decisions).iter().all(|op| *op != "matmul"));
    let auto = with(Recompute::Auto, Some(room(&cheap)));
    // That of the block whose backward pass is the first is there at the peak in any case.
    assert_eq!(copies(&auto.decisions), copies(&cheap.decisions)[1..]);
    let recorded = &auto.plan.recomputed;
    let ops: usize = recorded.iter().map(|some| some.blocks.len() * some.ops.len()).sum();
    assert_eq!(ops, copies(&auto.decisions).len(), "{recorded:?}");
    assert!(recorded.iter().flat_map(|some| &some.ops).all(|op| op.op != "matmul"));
    verify_plan(&auto.plan).expect("it compiles to itself again");
    let less = with(Recompute::Auto, Some(room(&cheap) - 1));
    assert!(copies(&less.decisions).contains(&"matmul"), "{:?}", less.plan.recomputed);
}

#[test]
fn what_auto_computes_again_costs_little_more_than_the_best_of_all_sets_of_ops() {
    let cluster = preset("dgx-h100").expect("a preset");
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let options = CompileOptions {
        recompute: Recompute::Auto,
        loss: Some(Loss::Mse),
        optimizer: Some(sgd),
        ..options(&[2], 1, 1)
    };
    let decisions = prepare_graph(gated(2), &options).expect("fits");
    let places = places(&decisions);
    let free = planner::plan_signatures(&decisions, &options, &cluster).expect("fits").memory[0];
    let mut longest = 0.0f64;
    for share in [0.96, 0.92, 0.88] {
        let memory = Some((free as f64 * share) as u64);
        let options = CompileOptions { memory, ..options.clone() };
        let seconds = |set: usize| {
            let ops = places.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
            let ops: BTreeSet<OpPlace> = ops.map(|(_, &op)| op).collect();
            let again = decide_recomputed(&decisions, &options, Extent::Ops(&ops)).expect("fits");
            let planned = planner::plan_signatures(&again, &options, &cluster);
            planned.map_or(f64::INFINITY, |planned| planned.report.objective_seconds)
        };
        let best = (0..1 << places.len()).map(seconds).fold(f64::INFINITY, f64::min);
        let auto = compile(gated(2), &options, &cluster, None).expect("fits").plan;
        longest = longest.max(auto.planner.objective_seconds / best);
    }
    assert!(longest < 1.005, "{longest}");
}

#[test]
fn auto_recomputes_as_little_as_fits() {
    let auto = |memory: Option<u64>| CompileOptions {
        recompute: Recompute::Auto,
        strategy: Strategy::Data,
        memory,
        ..options(&[1], 1, 1)
    };
    let free = planned(gpt(6), &auto(None));
    assert!(free.plan.recomputed.is_empty());
    let full = planned(gpt(6), &CompileOptions { recompute: Recompute::Full, ..auto(None) });
    let most = copies(&full.decisions).len();
    let middle = u64::midpoint(peak(&free), peak(&full));
    let some = planned(gpt(6), &auto(Some(middle)));
    let count = copies(&some.decisions).len();
    assert!(0 < count && count < most && peak(&some) <= middle, "{count} of {most}");
    verify_plan(&some.plan).expect("it compiles to itself again");
    let cluster = preset("cpu").expect("a preset");
    let none = CompileOptions { recompute: Recompute::None, ..auto(Some(middle)) };
    assert!(compile(gpt(6), &none, &cluster, None).expect_err("too much").is_memory());
    let error = compile(gpt(6), &auto(Some(peak(&full) / 4)), &cluster, None).expect_err("less");
    assert!(error.is_memory(), "{error}");
}

#[test]
fn all_stages_of_a_pipeline_compute_as_much_again() {
    let with = |recompute, memory| CompileOptions {
        recompute,
        strategy: Strategy::Data,
        memory,
        ..options(&[2], 2, 4)
    };
    // Stage 0 has two microbatches under way, and stage 1 one.
    let peaks = |compiled: &Compiled| compiled.plan.predicted.peak_memory_bytes.clone();
    let none = planned(gpt(6), &with(Recompute::None, None));
    let [first, last] = peaks(&none)[..] else { panic!("two programs") };
    assert!(first > last, "{first} {last}");
    let some = planned(gpt(6), &with(Recompute::Auto, Some(u64::midpoint(first, last))));
    let stages = some.decisions.recomputed.iter().zip(&some.decisions.staging.stage);
    let stages: BTreeSet<usize> = stages.filter(|(copy, _)| copy.is_some()).map(|c| *c.1).collect();
    // So that the last one has memory left for what runs beside.
    assert_eq!(stages, BTreeSet::from([0, 1]), "{:?}", some.plan.recomputed);
    let [first, last] = peaks(&some)[..] else { panic!("two programs") };
    assert!(first > last, "{first} {last}");
    verify_plan(&some.plan).expect("it compiles to itself again");
}

#[test]
fn what_is_computed_again_can_be_asked_for_in_each_layout() {
    let options = options(&[2], 1, 1);
    let cluster = preset("cpu").expect("a preset");
    let decisions = prepare_graph(gpt(2), &options).expect("fits");
    let copies =
        decisions.graph().iter().filter(|(id, _)| decisions.recomputed[id.index()].is_some());
    let mut asked = 0;
    for tensor in copies.map(|(_, node)| node.results[0]).step_by(5) {
        let layouts = planner::layouts_of(&decisions, &options, &cluster, tensor).expect("no pins");
        for layout in layouts {
            let planned =
                planner::plan_with_layout(&decisions, &options, &cluster, (tensor, &layout));
            let sharding = planned.expect("it fits").sharding;
            let producer = decisions.graph().value(tensor).producer;
            assert_eq!(sharding.nodes[producer.index()].results[0], layout);
            asked += 1;
        }
    }
    assert!(asked > 10, "{asked}");
}
