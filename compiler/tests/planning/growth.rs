//! The work of compiling grows at most in proportion to the layers of a model once they repeat, and not with ranks. The counted work is entries of
//! cost tables and prices of routes in the planner, and the size of the plan.

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Header, assemble_plan};
use graphc_compiler::pipeline::prepare_graph;
use graphc_compiler::planner::{Planned, plan_signatures};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::types::DType;
use graphc_nn::{Gpt, GptConfig, Module};
use graphc_plan::{AdamOptions, CompileOptions, Loss, Optimizer, PlannerStatus};

fn gpt(layers: usize, batch: usize) -> Graph {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers, width: 2048, heads: 16, sequence: 256, vocabulary: 8192 };
    let tokens = g.input("tokens", DType::I64, [batch, 256]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    g.finish().expect("the graph is right")
}

/// The work of one compilation.
#[derive(Debug)]
struct Taken {
    nodes: usize,
    /// The planner's work.
    planner: u64,
    /// Actors and registers of all programs, and boxing steps.
    plan: usize,
}

fn taken(layers: usize, batch: usize, mesh: &[usize]) -> Taken {
    let adam = AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    let options = CompileOptions {
        mesh: mesh.to_vec(),
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(adam)),
        ..CompileOptions::default()
    };
    let (graph, cluster) = (gpt(layers, batch), preset("dgx-a100").expect("a preset"));
    let decisions = prepare_graph(graph.clone(), &options).expect("it can be trained");
    let Planned { sharding, report, work, .. } =
        plan_signatures(&decisions, &options, &cluster).expect("memory is plenty");
    assert_eq!(report.status, PlannerStatus::Optimal, "{layers} layers on {mesh:?}: {report:?}");
    let header = Header {
        graph: &graph,
        options: &options,
        cluster: &cluster,
        weights: None,
        planner: report,
    };
    let (made, _) = assemble_plan(header, &decisions, &sharding).expect("the plan holds");
    let of_programs = made.programs.iter().map(|p| p.actors.len() + p.registers.len());
    let plan = of_programs.sum::<usize>() + made.boxing.len();
    let taken = Taken { nodes: decisions.graph().nodes.len(), planner: work, plan };
    println!("{layers} layers on {mesh:?}: {taken:?}");
    taken
}

/// Compares the work for deeper and deeper models with that for the first. The number of times that costs are shifted differs from depth to depth, so
/// neighbours are not compared.
fn grows_with_layers(mesh: &[usize], depths: &[usize]) {
    let all: Vec<Taken> = depths.iter().map(|&layers| taken(layers, 16, mesh)).collect();
    for (more, depth) in all.iter().zip(depths) {
        let in_proportion = |first: u64| 105 * first * (depth / depths[0]) as u64;
        assert!(100 * more.planner <= in_proportion(all[0].planner), "{mesh:?}: {all:?}");
        assert!(100 * more.plan as u64 <= in_proportion(all[0].plan as u64), "{mesh:?}: {all:?}");
    }
    let deepest = &all[all.len() - 1];
    let ratio = depths[depths.len() - 1] / depths[0];
    assert!(deepest.nodes > all[0].nodes * ratio * 3 / 4, "there are more layers: {all:?}");
}

#[test]
fn work_grows_at_most_in_proportion_to_layers_on_one_axis() {
    grows_with_layers(&[8], &[8, 16, 32, 64]);
}

#[test]
fn work_grows_at_most_in_proportion_to_layers_on_two_axes() {
    grows_with_layers(&[4, 8], &[8, 16, 32, 64]);
}

/// Compares the work for meshes with as many axes and more and more ranks. Each rank has as many samples.
fn does_not_grow_with_ranks(meshes: &[&[usize]]) {
    let samples = |mesh: &[usize]| 8 * mesh.iter().product::<usize>();
    let all: Vec<Taken> = meshes.iter().map(|mesh| taken(4, samples(mesh), mesh)).collect();
    for more in &all[1..] {
        assert!(more.planner * 10 <= all[0].planner * 13, "{meshes:?}: {all:?}");
        assert!(more.plan * 10 <= all[0].plan * 13, "{meshes:?}: {all:?}");
    }
}

#[test]
fn work_does_not_grow_with_the_ranks_of_one_axis() {
    does_not_grow_with_ranks(&[&[8], &[128], &[1024]]);
}

#[test]
fn work_does_not_grow_with_the_ranks_of_two_axes() {
    does_not_grow_with_ranks(&[&[2, 4], &[16, 8], &[128, 8]]);
}
