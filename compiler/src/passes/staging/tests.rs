use std::collections::BTreeSet;

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_nn::{Llama, LlamaConfig, Module};

use super::*;

fn options(mesh: &[usize], stages: usize) -> CompileOptions {
    CompileOptions { mesh: mesh.to_vec(), stages, ..CompileOptions::default() }
}

/// `layers` linear layers of one size, each with a relu, on rows of 4.
fn layers(layers: usize) -> Graph {
    let g = GraphBuilder::new("layers");
    let x = g.input("x", DType::F32, [8, 4]);
    let layer = |x: Tensor, i: usize| {
        x.matmul(&g.variable(&format!("w{i}"), DType::F32, [4, 4], Init::Fill(1.0.into()))).relu()
    };
    g.output("y", &(0..layers).fold(x, layer));
    g.finish().expect("fits")
}

fn stages_of(graph: Graph, options: &CompileOptions) -> Vec<usize> {
    let graph = assign_stages(graph, options).expect("fits");
    collect_staging(&graph, options).expect("fits").stage
}

/// A tensor that is moved between the stages, in neither of them.
#[test]
fn what_is_moved_to_a_later_stage_is_of_that_stage() {
    let g = GraphBuilder::new("mixed");
    let places = [vec![0, 1], vec![2, 3]].map(|ranks| Placement::new(ranks, vec![2]));
    let places = places.map(|place| place.expect("a mesh"));
    for (stage, place) in places.iter().enumerate() {
        g.declare_stage(stage, Some(place.clone()));
    }
    let w = |name: &str| g.variable(name, DType::F32, [4, 4], Init::Fill(1.0.into()));
    let hidden = g.in_stage(0, || g.input("x", DType::F32, [8, 4]).matmul(&w("w0")));
    let moved = hidden.to_global(&places[1], "B".parse().expect("an SBP"));
    g.output("y", &g.in_stage(1, || moved.matmul(&w("w1"))));
    let stages = stages_of(g.finish().expect("fits"), &options(&[4], 2));
    assert_eq!(stages, [0, 0, 0, 1, 1, 1]);
}

#[test]
fn equal_layers_are_cut_equally_with_their_weights() {
    let stages = stages_of(layers(4), &options(&[2], 2));
    assert_eq!(stages, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
    let stages = stages_of(layers(4), &options(&[4], 4));
    assert_eq!(stages, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
}

#[test]
fn layers_stay_whole_and_later_stages_have_more() {
    let stages = stages_of(layers(7), &options(&[4], 4));
    let of_layers: Vec<usize> = stages[1..].chunks(3).map(|nodes| nodes[0]).collect();
    assert_eq!(of_layers, [0, 1, 1, 2, 2, 3, 3]);
    assert!(stages[1..].chunks(3).all(|nodes| nodes.iter().all(|&s| s == nodes[0])), "{stages:?}");
}

/// Blocks as many as Llama 3.1 405B has are spread evenly. The head costs two thirds of a block, and next to nothing crosses the boundary before the
/// loss.
#[test]
fn blocks_are_spread_evenly_over_many_stages() {
    let g = GraphBuilder::new("llama");
    let config = LlamaConfig {
        layers: 126,
        width: 16,
        heads: 2,
        shared: 1,
        hidden: 48,
        vocabulary: 128,
        base: 1e4,
    };
    let tokens = g.input("tokens", DType::I64, [2, 4]);
    let logits = Llama::new(&g, &config).forward(&tokens);
    g.output("loss", &logits.mean(&[2], false).mean(&[0, 1], false));
    let graph = assign_stages(g.finish().expect("fits"), &options(&[16], 16)).expect("fits");
    let mut stages_of_blocks = vec![BTreeSet::new(); config.layers];
    for (_, node) in graph.iter().filter(|(_, node)| matches!(node.op, Op::Variable(_))) {
        let name = graph.value(node.results[0]).name.clone().expect("a variable has a name");
        let Some(block) = name.strip_prefix("layers.") else { continue };
        let block: usize = block.split('.').next().and_then(|n| n.parse().ok()).expect("a number");
        stages_of_blocks[block].insert(node.stage().expect("staged").index());
    }
    let mut blocks = vec![0; 16];
    for stages in stages_of_blocks {
        assert_eq!(stages.len(), 1, "a block is of one stage");
        stages.into_iter().for_each(|stage| blocks[stage] += 1);
    }
    assert!(blocks.iter().all(|&count| count == 7 || count == 8), "{blocks:?}");
    assert_eq!((blocks[0], blocks[15]), (7, 7), "{blocks:?}: the last has the head besides");
}

#[test]
fn a_cut_goes_where_few_bytes_cross() {
    let g = GraphBuilder::new("neck");
    let x = g.input("x", DType::F32, [8, 16]);
    let w = |name: &str, shape: [usize; 2]| g.variable(name, DType::F32, shape, Init::Weights);
    let narrow = x.matmul(&w("a", [16, 64])).relu().matmul(&w("b", [64, 2]));
    g.output("y", &narrow.matmul(&w("c", [2, 64])).relu().matmul(&w("d", [64, 16])));
    let graph = g.finish().expect("fits");
    let narrow = graph.values.iter().position(|v| v.ty.shape == [8, 2]).expect("is there");
    let graph = assign_stages(graph, &options(&[2], 2)).expect("fits");
    let consumers = graph.list_consumers();
    assert_eq!(graph.nodes[graph.values[narrow].producer.index()].stage(), Some(StageId::new(0)));
    assert_eq!(graph.node(consumers[narrow][0]).stage(), Some(StageId::new(1)));
}

#[test]
fn stages_that_do_not_divide_say_what_would() {
    let error = assign_stages(layers(4), &options(&[6, 2], 4)).expect_err("4 of 6").to_string();
    assert_eq!(error, "4 stages do not divide the first axis of the mesh 6x2: 1, 2, 3 or 6 fit");
    let error = assign_stages(layers(1), &options(&[4], 4)).expect_err("2 ops").to_string();
    assert_eq!(error, "2 ops cannot be cut into 4 stages");
    assert!(assign_stages(layers(1), &options(&[2], 0)).is_err());
    let error = assign_stages(layers(1), &options(&[2, 0], 1)).expect_err("0 ranks").to_string();
    assert_eq!(
        error,
        "the mesh [2, 0]: a mesh needs at least one axis and every axis at least one rank"
    );
}

#[test]
fn the_users_stages_pull_sources_and_what_follows() {
    let g = GraphBuilder::new("user");
    let x = g.input("x", DType::F32, [8, 4]);
    let w = |name: &str| g.variable(name, DType::F32, [4, 4], Init::Weights);
    let hidden = g.in_stage(0, || x.matmul(&w("a")));
    let tied = w("tied");
    let hidden = g.in_stage(0, || hidden.matmul(&tied));
    let out = g.in_stage(1, || hidden.matmul(&tied));
    let mask = g.full(DType::F32, [4], 2.0);
    g.output("y", &(out * &mask).relu());
    g.output("z", &hidden.mul(&mask));
    let graph = assign_stages(g.finish().expect("fits"), &options(&[2], 2)).expect("fits");
    graphc_ir::verify::verify_graph(&graph).expect("holds");
    let stage = |op: &str| -> Vec<usize> {
        let nodes = graph.nodes.iter().filter(|node| node.op.name() == op);
        nodes.map(|node| node.stage().expect("staged").index()).collect()
    };
    assert_eq!(stage("input"), [0]);
    assert_eq!(stage("variable"), [0, 0]);
    assert_eq!(stage("unary"), [1]);
    assert_eq!(stage("full"), [0, 1], "made in each stage");
}

#[test]
fn placements_follow_operands_and_readers() {
    let (first, second) = (Placement::new(vec![0], vec![1]), Placement::new(vec![1], vec![1]));
    let (first, second) = (first.expect("a mesh"), second.expect("a mesh"));
    let g = GraphBuilder::new("placed");
    let x = g.input("x", DType::F32, [8, 4]);
    let w = g.variable("w", DType::F32, [4, 4], Init::Weights);
    let hidden = g.on(&first, || x.matmul(&w)).relu();
    let moved = hidden.to_global(&second, "B".parse().expect("an SBP"));
    g.output("y", &moved.neg());
    let graph = assign_stages(g.finish().expect("fits"), &options(&[2], 1)).expect("fits");
    let found = collect_staging(&graph, &options(&[2], 1)).expect("fits").placement;
    let (a, b) = (&first, &second);
    assert_eq!(found.iter().collect::<Vec<_>>(), [a, a, a, a, b, b]);
}

#[test]
fn what_lies_outside_is_refused_with_its_place() {
    let g = GraphBuilder::new("outside");
    let far = Placement::new(vec![0, 7], vec![2]).expect("a mesh");
    let x = g.on(&far, || g.input("x", DType::F32, [8, 4]));
    g.output("y", &x.relu());
    let error = assign_stages(g.finish().expect("fits"), &options(&[4], 1)).expect_err("rank 7");
    let error = error.to_string();
    assert!(error.starts_with("input ("), "{error}");
    assert!(
        error.ends_with("is placed on cpu [0, 7] as 2, but the mesh 4 has ranks 0..4"),
        "{error}"
    );

    let g = GraphBuilder::new("stages");
    g.output("y", &g.in_stage(2, || g.input("x", DType::F32, [8, 4]).relu()));
    let graph = g.finish().expect("fits");
    let error = assign_stages(graph.clone(), &options(&[2], 2)).expect_err("stage 2").to_string();
    assert!(error.contains("is in stage 2, but there are stages 0..2"), "{error}");
    let error = assign_stages(graph, &options(&[4], 4)).expect_err("3 of 4").to_string();
    let said =
        "the graph has 3 stages of its own, but 4 are asked for: ask for as many, --stages 3";
    assert_eq!(error, said);
}
