//! The strategy megatron splits the right weights, and needs nothing but all-reduces.

use std::collections::BTreeMap;

use crate::trained;
use graphc_compiler::check::verify_invariants;
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Compiled, compile};
use graphc_compiler::error::CompileError;
use graphc_compiler::lower::collective_counts;
use graphc_compiler::planner::reprice_sharding;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_ir::ops::Init;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::DType;
use graphc_nn::{Embedding, Gpt, GptConfig, Linear, Module, RmsNorm, TransformerBlock};
use graphc_plan::{Action, BoxingKind, CompileOptions, Loss, Pin, Recompute, Strategy};

fn options(mesh: &[usize], stages: usize, microbatches: usize) -> CompileOptions {
    CompileOptions { strategy: Strategy::Megatron, ..trained::options(mesh, stages, microbatches) }
}

fn gpt(layers: usize, heads: usize) -> Graph {
    let g = GraphBuilder::new("gpt");
    let width = 8 * heads;
    let config = GptConfig { layers, width, heads, sequence: 16, vocabulary: 65 };
    let tokens = g.input("tokens", DType::I64, [8, 16]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    g.finish().expect("fits")
}

/// Makes two layers like LLaMA's: grouped heads, a gated perceptron, root-mean-square norms, no biases.
fn llama(heads: usize, groups: usize) -> Graph {
    let g = GraphBuilder::new("llama");
    let (batch, time, each) = (8, 16, 8);
    let width = heads * each;
    let tokens = g.input("tokens", DType::I64, [batch, time]);
    let mut x = Embedding::new(&g, "embed", 96, width).forward(&tokens);
    for layer in 0..2 {
        let linear = |name: &str, inputs, outputs| {
            Linear::without_bias(&g, &format!("layers.{layer}.{name}"), inputs, outputs)
        };
        let normed = RmsNorm::new(&g, &format!("layers.{layer}.norm1"), width).forward(&x);
        let part = |name: &str, count: usize| {
            let y = linear(name, width, count * each).forward(&normed);
            y.reshape(&[batch, time, count, each]).transpose(&[0, 2, 1, 3])
        };
        let repeated = |part: Tensor| {
            let apart = part.reshape(&[batch, groups, 1, time, each]);
            let wide = apart.expand(&[batch, groups, heads / groups, time, each]);
            wide.reshape(&[batch, heads, time, each])
        };
        let (q, k) = (part("q", heads), repeated(part("k", groups)));
        let v = repeated(part("v", groups));
        let mixed = q.matmul_transposed(&k, false, true).softmax(3).matmul(&v);
        let mixed = mixed.transpose(&[0, 2, 1, 3]).reshape(&[batch, time, width]);
        x = x.add(&linear("o", width, width).forward(&mixed));
        let normed = RmsNorm::new(&g, &format!("layers.{layer}.norm2"), width).forward(&x);
        let gate = linear("gate", width, 3 * width).forward(&normed);
        let up = linear("up", width, 3 * width).forward(&normed);
        x = x.add(&linear("down", 3 * width, width).forward(&gate.sigmoid().mul(&gate).mul(&up)));
    }
    let normed = RmsNorm::new(&g, "norm", width).forward(&x);
    g.output("logits", &Linear::without_bias(&g, "head", width, 96).forward(&normed));
    g.finish().expect("fits")
}

fn compiled(graph: Graph, options: &CompileOptions) -> Compiled {
    let cluster = preset("cpu").expect("a preset");
    let compiled = compile(graph, options, &cluster, None);
    let compiled = compiled.unwrap_or_else(|error| panic!("{options:?}: {error}"));
    assert_eq!(verify_invariants(&compiled.plan), Ok(()), "{options:?}");
    let found = reprice_sharding(&compiled.decisions, &compiled.sharding, &cluster, options);
    let objective = compiled.plan.planner.objective_seconds;
    assert!((found.objective_seconds / objective - 1.0).abs() < 1e-9, "{options:?}");
    compiled
}

/// Returns the layouts of weights by name.
fn weights(compiled: &Compiled) -> BTreeMap<&str, String> {
    let tensors = compiled.plan.tensors.iter();
    tensors.map(|tensor| (tensor.name.as_str(), tensor.sbp.to_string())).collect()
}

fn counts(compiled: &Compiled) -> BTreeMap<BoxingKind, usize> {
    let mut counts = collective_counts(&compiled.plan);
    counts.retain(|kind, _| !matches!(kind, BoxingKind::Slice | BoxingKind::Mask));
    counts
}

#[test]
fn columns_and_rows_alternate_and_the_vocabulary_is_split() {
    for (mesh, split) in
        [(&[2][..], ["S(0)", "S(1)", "B"]), (&[2, 2], ["B, S(0)", "B, S(1)", "B, B"])]
    {
        let [rows, columns, whole] = split;
        let compiled = compiled(gpt(2, 4), &options(mesh, 1, 2));
        let layouts = weights(&compiled);
        for (name, layout) in [
            // Weights are [outputs, inputs].
            ("wte.weight", rows),
            ("wpe.weight", whole),
            ("blocks.0.ln1.weight", whole),
            ("blocks.0.attn.qkv.weight", rows),
            ("blocks.0.attn.qkv.bias", rows),
            ("blocks.1.attn.proj.weight", columns),
            ("blocks.1.attn.proj.bias", whole),
            ("blocks.0.mlp.fc.weight", rows),
            ("blocks.0.mlp.fc.bias", rows),
            ("blocks.1.mlp.proj.weight", columns),
            ("state.exp_avg.blocks.1.mlp.proj.weight", columns),
            ("ln_f.bias", whole),
            ("head.weight", rows),
        ] {
            assert_eq!(layouts[name], layout, "{name}");
        }
    }
}

/// Returns the layouts of the operands and results of the last node of this op.
fn layouts_of(compiled: &Compiled, op: &str) -> [Vec<String>; 2] {
    let nodes = compiled.decisions.graph().nodes.iter();
    let place = nodes.rev().position(|node| node.op.name() == op).expect("there is one");
    let sharding = compiled.sharding.nodes.iter().rev().nth(place).expect("as many as nodes");
    let text = |layouts: &[NdSbp]| layouts.iter().map(NdSbp::to_string).collect();
    [text(&sharding.operands), text(&sharding.results)]
}

#[test]
fn the_gradient_of_a_table_is_made_in_the_parts_in_which_the_table_lies() {
    for (mesh, ids, gradient) in [(&[2][..], "B", "S(0)"), (&[2, 2], "S(0), B", "P(sum), S(0)")] {
        let compiled = compiled(gpt(1, 4), &options(mesh, 1, 2));
        let [operands, results] = layouts_of(&compiled, "embedding_grad");
        assert_eq!((operands[0].as_str(), results[0].as_str()), (ids, gradient));
    }
}

/// Makes a look-up in one stage and a product with the same table in the other, each beside a block.
fn tied(time: usize) -> Graph {
    let g = GraphBuilder::new("tied");
    let block = |x: Tensor, name: &str| TransformerBlock::new(&g, name, 16, 4).forward(&x);
    let table = g.in_stage(0, || Embedding::new(&g, "wte", 96, 16));
    let tokens = g.input("tokens", DType::I64, [8, time]);
    let x = g.in_stage(0, || block(table.forward(&tokens), "0"));
    let logits = g.in_stage(1, || block(x, "1").matmul_transposed(&table.weight, false, true));
    g.output("logits", &logits);
    g.finish().expect("fits")
}

#[test]
fn a_weight_of_two_stages_lies_alike_in_both() {
    // A microbatch of many tokens, and one of few, of which each is less than the table.
    for (time, microbatches) in [(64, 2), (2, 2), (2, 4)] {
        let compiled = compiled(tied(time), &options(&[2, 2, 2], 2, microbatches));
        let graph = compiled.decisions.graph();
        let weight = graph.find("wte.weight").expect("there is one");
        let readers = graph.iter().filter(|(_, node)| {
            node.operands.contains(&weight) && matches!(node.op, Op::MatMul(_) | Op::Embedding(_))
        });
        let layouts: Vec<String> = readers
            .map(|(id, node)| {
                let position = node.operands.iter().position(|&operand| operand == weight);
                compiled.sharding.nodes[id.index()].operands[position.expect("it reads it")]
                    .to_string()
            })
            .collect();
        // The look-up, the head, and the gradient of what the head reads.
        assert_eq!(layouts, ["B, B, S(0)"; 3], "{time} tokens, {microbatches} microbatches");
    }
}

#[test]
fn a_layer_takes_two_all_reduces_forward_and_two_backward() {
    for recompute in [Recompute::None, Recompute::Full] {
        let options = CompileOptions { recompute, ..options(&[2], 1, 1) };
        let [two, four] = [2, 4].map(|layers| counts(&compiled(gpt(layers, 4), &options)));
        assert_eq!(two.keys().collect::<Vec<_>>(), [&BoxingKind::AllReduce], "{two:?}");
        // Recomputation repeats that of attention; that of the perceptron is at the block's end, where nothing reads it.
        let each = if recompute == Recompute::None { 4 } else { 5 };
        let more = four[&BoxingKind::AllReduce] - two[&BoxingKind::AllReduce];
        assert_eq!(more, 2 * each, "{two:?} {four:?}");
        // Embedding, the head's input gradient, three of the loss.
        assert_eq!(two[&BoxingKind::AllReduce], 2 * each + 5, "{two:?}");
    }
}

#[test]
fn sequences_are_split_between_products_and_weights_stay_where_they_are() {
    for recompute in [Recompute::None, Recompute::Full] {
        let strategy = Strategy::MegatronSp;
        let options = CompileOptions { strategy, recompute, ..options(&[2], 1, 1) };
        let compiled = compiled(gpt(2, 4), &options);
        let layouts = weights(&compiled);
        let without = CompileOptions { strategy: Strategy::Megatron, ..options };
        let whole = self::compiled(gpt(2, 4), &without);
        assert_eq!(layouts["blocks.0.attn.qkv.weight"], "S(0)");
        assert_eq!(layouts["blocks.1.mlp.proj.weight"], "S(1)");
        // What norms read are parts of sequences, forward and backward.
        for op in ["normalize", "normalize_grad"] {
            let [operands, _] = layouts_of(&compiled, op);
            assert_eq!(operands[0], "S(1)", "{op}");
        }
        // What is reduced over ranks is no activation any more, but for those of the loss.
        let [apart, whole] = [&compiled, &whole].map(counts);
        let scattered = apart.get(&BoxingKind::ReduceScatter).copied().unwrap_or(0);
        assert!(scattered >= 8, "{apart:?} {whole:?}");
        assert!(
            apart[&BoxingKind::AllReduce] < whole[&BoxingKind::AllReduce],
            "{apart:?} {whole:?}"
        );
    }
}

/// Each rank keeps and adds up its part of the residual stream alone, and what it sends is of the products' type.
#[test]
fn the_residual_stream_is_split_along_the_sequence() {
    for precision in [None, Some(DType::BF16)] {
        let strategy = Strategy::MegatronSp;
        let options = CompileOptions { strategy, precision, ..options(&[2], 1, 1) };
        let compiled = compiled(llama(4, 4), &options);
        let graph = compiled.decisions.graph();
        let readers = graph.list_consumers();
        // Gradients of several products of one input are added up before they are reduced. Nothing else is.
        for ((_, node), sharding) in graph.iter().zip(&compiled.sharding.nodes) {
            let mut read = node.operands.iter().filter(|value| readers[value.index()].len() > 1);
            let adds = node.op.name() == "binary" && sharding.results[0].to_string() == "P(sum)";
            assert!(!adds || read.next().is_none(), "{:?}", node.operands);
        }
        let plan = &compiled.plan;
        let dtypes = plan.programs[0].actors.iter().filter_map(|actor| match actor.action {
            Action::Collective { kind: BoxingKind::ReduceScatter, .. } => {
                let register = &plan.programs[0].registers[actor.inputs[0].index()];
                Some(plan.layouts[register.layout.index()].dtype)
            }
            _ => None,
        });
        let wanted = precision.unwrap_or(DType::F32);
        let dtypes: Vec<DType> = dtypes.collect();
        let others = dtypes.iter().filter(|&&dtype| dtype != wanted).count();
        // The table of tokens is of f32.
        assert!(dtypes.len() >= 8 && others <= 1, "{dtypes:?}");
    }
}

/// Updates work in the layout of pinned states, as in a distributed optimizer: ranks that hold the same weight share its states, each with a part of
/// them.
#[test]
fn updates_work_where_states_are_pinned() {
    let name = "blocks.0.mlp.proj.weight";
    let pin =
        Pin { pattern: format!("state.*.{name}"), sbp: "S(0),S(1)".parse().expect("a layout") };
    let options = options(&[2, 2], 1, 1);
    let whole = compiled(gpt(1, 4), &options);
    let shared = compiled(gpt(1, 4), &CompileOptions { pins: vec![pin], ..options });
    let [before, after] = [&whole, &shared].map(|compiled| weights(compiled)[name].clone());
    assert_eq!((before.as_str(), after.as_str()), ("B, S(1)", "B, S(1)"));
    let [before, after] = [&whole, &shared].map(counts);
    let of = |counts: &BTreeMap<BoxingKind, usize>, kind| counts.get(&kind).copied().unwrap_or(0);
    // The gradient is scattered to those who update a part, and the weight is gathered of what they update.
    for (kind, more) in [(BoxingKind::ReduceScatter, 1), (BoxingKind::AllGather, 1)] {
        assert_eq!(of(&after, kind), of(&before, kind) + more, "{before:?} {after:?}");
    }
}

#[test]
fn grouped_heads_and_gated_perceptrons_split_alike() {
    let compiled = compiled(llama(4, 2), &options(&[2], 1, 1));
    let layouts = weights(&compiled);
    for (name, layout) in [
        ("q", "S(0)"),
        ("k", "S(0)"),
        ("v", "S(0)"),
        ("o", "S(1)"),
        ("gate", "S(0)"),
        ("up", "S(0)"),
        ("down", "S(1)"),
    ] {
        assert_eq!(layouts[format!("layers.1.{name}.weight").as_str()], layout, "{name}");
    }
    let counts = counts(&compiled);
    assert_eq!(counts.keys().collect::<Vec<_>>(), [&BoxingKind::AllReduce], "{counts:?}");
    assert_eq!(counts[&BoxingKind::AllReduce], 2 * 4 + 5);
}

#[test]
fn stages_and_modules_of_any_kind_have_such_a_plan() {
    compiled(gpt(2, 4), &options(&[2, 2], 2, 4));
    compiled(gpt(2, 4), &options(&[2, 2, 2], 2, 2));
    let g = GraphBuilder::new("blocks");
    let x = g.input("x", DType::F32, [8, 6, 16]);
    let block = |x: Tensor, i: usize| TransformerBlock::new(&g, &i.to_string(), 16, 4).forward(&x);
    let blocks = (0..2).fold(x, block);
    // Attention of one head is nobody's to share.
    let head = blocks.reshape(&[8, 6, 1, 16]);
    g.output("y", &head.attention(&head, &head, false));
    let loss = Some(Loss::Mse);
    compiled(g.finish().expect("fits"), &CompileOptions { loss, ..options(&[4], 1, 2) });
}

/// Makes two layers whose norms stand behind sums, so that products read what another stage has sent, and whose attention drops weights: by the op,
/// or in parts. Of a packed weight those of queries, keys and values are slices. The first products read an input, or what is looked up in a table.
fn dropping(op: bool, packed: bool, staged: bool, table: bool) -> Graph {
    const EACH: usize = 4;
    let g = GraphBuilder::new("dropping");
    let width = 4 * EACH;
    let mut x = g.in_stage(0, || match table {
        true => Embedding::new(&g, "wte", 96, width).forward(&g.input("x", DType::I64, [8, 6])),
        false => g.input("x", DType::F32, [8, 6, width]),
    });
    for layer in 0..2 {
        let name = |name: &str| format!("{layer}.{name}");
        x = g.in_stage(if staged { layer } else { 0 }, || {
            let weights = |name: String, rows| {
                let init = Init::Normal { mean: 0.0.into(), std: 0.02.into() };
                g.variable(&name, DType::F32, [rows, width], init)
            };
            let parts: Vec<Tensor> = match packed {
                true => {
                    let all = weights(name("qkv"), 3 * width);
                    (0..3).map(|part| all.slice(0, part * width..(part + 1) * width)).collect()
                }
                false => ["q", "k", "v"].map(|part| weights(name(part), width)).into(),
            };
            let heads = |weight: &Tensor| {
                x.matmul_transposed(weight, false, true).reshape(&[8, 6, 4, EACH])
            };
            let [q, k, v] = [0, 1, 2].map(|part| heads(&parts[part]));
            let mixed = match op {
                true => q.dropped_attention(&k, &v, true, 0.1),
                false => {
                    let [q, k, v] = [q, k, v].map(|part| part.transpose(&[0, 2, 1, 3]));
                    let scores = q.matmul_transposed(&k, false, true).softmax(3);
                    scores.dropout(0.1).matmul(&v).transpose(&[0, 2, 1, 3])
                }
            };
            let mixed = mixed.reshape(&[8, 6, width]);
            let mixed = Linear::new(&g, &name("o"), width, width).forward(&mixed);
            let x = RmsNorm::new(&g, &name("norm1"), width).forward(&x.add(&mixed.dropout(0.1)));
            let up = Linear::new(&g, &name("up"), width, 2 * width).forward(&x).relu();
            let down = Linear::new(&g, &name("down"), 2 * width, width).forward(&up);
            RmsNorm::new(&g, &name("norm2"), width).forward(&x.add(&down.dropout(0.1)))
        });
    }
    g.output("y", &x);
    g.finish().expect("fits")
}

#[test]
fn attention_that_drops_weights_is_split_along_heads_wherever_its_operands_come_from() {
    for (strategy, packed, staged, table) in [
        (Strategy::Megatron, true, false, false),
        (Strategy::Megatron, false, true, false),
        (Strategy::MegatronSp, true, false, false),
        (Strategy::MegatronSp, false, true, false),
        (Strategy::MegatronSp, true, true, false),
        (Strategy::Megatron, false, false, true),
        (Strategy::MegatronSp, false, false, true),
        (Strategy::MegatronSp, true, true, true),
    ] {
        for op in [false, true] {
            let (mesh, stages) = if staged { (&[2, 2][..], 2) } else { (&[2][..], 1) };
            let given = options(mesh, stages, stages);
            let given =
                CompileOptions { strategy, keep_attention: !op, loss: Some(Loss::Mse), ..given };
            let compiled = compiled(dropping(op, packed, staged, table), &given);
            let (name, split) = if op { ("attention", "S(2)") } else { ("softmax", "S(1)") };
            let [operands, _] = layouts_of(&compiled, name);
            let all = operands.iter().all(|layout| layout.ends_with(split));
            assert!(!operands.is_empty() && all, "{name} {strategy:?} {operands:?}");
            // Beside the first products, which read all of them, sequences are split.
            let [operands, _] = layouts_of(&compiled, "normalize");
            let split = if strategy == Strategy::MegatronSp { "S(1)" } else { "B" };
            assert!(operands[0].ends_with(split), "{strategy:?} {operands:?}");
        }
    }
}

#[test]
fn heads_that_the_axis_does_not_divide_are_said() {
    let cluster = preset("cpu").expect("a preset");
    for graph in [gpt(1, 3), llama(6, 3)] {
        let planned = compile(graph, &options(&[4], 1, 1), &cluster, None);
        let Err(CompileError::Plan(error)) = planned else { panic!("3 by 4") };
        let text = error.to_string();
        assert!(text.contains("4 ranks, the innermost axis of 4, do not divide"), "{text}");
        assert!(text.contains("heads of attention"), "{text}");
    }
}

/// Makes attention of four heads over `keys` heads of keys and values, and a projection. If `staged`, a stage that splits nothing comes before it.
fn attention(keys: usize, staged: bool) -> Graph {
    let g = GraphBuilder::new("attention");
    let stage = |stage: usize| if staged { stage } else { 0 };
    let [q, k, v] = g.in_stage(0, || {
        let input = |name: &str, heads| g.input(name, DType::F32, [8, 6, heads, 4]).tanh();
        [input("q", 4), input("k", keys), input("v", keys)]
    });
    let y = g.in_stage(stage(1), || {
        let mixed = q.attention(&k, &v, false).reshape(&[8, 6, 16]);
        Linear::new(&g, "o", 16, 16).forward(&mixed)
    });
    g.output("y", &y);
    g.finish().expect("fits")
}

#[test]
fn what_keeps_heads_from_being_split_is_said() {
    let cluster = preset("cpu").expect("a preset");
    let error = |graph: Graph, options: CompileOptions| {
        let options = CompileOptions { loss: Some(Loss::Mse), ..options };
        let planned = compile(graph, &options, &cluster, None);
        let Err(CompileError::Plan(error)) = planned else { panic!("heads are not split") };
        error.to_string()
    };
    let few = error(attention(2, false), options(&[4], 1, 1));
    let reason = "4 ranks, the innermost axis of 4, do not divide 2 heads of keys and values, \
                  which 4 heads of queries share";
    assert!(few.contains(reason), "{few}");
    let cut = error(attention(4, true), options(&[2, 2], 2, 2));
    assert!(cut.contains("comes whole from another stage, which ends inside this layer"), "{cut}");
}
