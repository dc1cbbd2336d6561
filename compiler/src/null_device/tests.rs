//! Compares the simulation of one rank of each class with that of every rank by itself.

use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::types::DType;
use graphc_nn::{Gpt, GptConfig, MixtureConfig, MixtureFeedForward, Module, Routing};
use graphc_plan::{
    Action, AdamOptions, Cluster, CompileOptions, Loss, Optimizer, Pin, Plan, Schedule, Strategy,
};

use super::classes::Classes;
use super::exchanges::Exchanges;
use super::{Simulation, execute, simulate, simulate_every_rank, trace};
use crate::cluster::preset;
use crate::compile::{compile, predict_step_seconds};

fn gpt(batch: usize) -> Graph {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers: 2, width: 16, heads: 2, sequence: 8, vocabulary: 32 };
    let tokens = g.input("tokens", DType::I64, [batch, config.sequence]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    g.finish().expect("fits")
}

fn options(mesh: &[usize], stages: usize, microbatches: usize) -> CompileOptions {
    let adam = AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.0 };
    CompileOptions {
        mesh: mesh.to_vec(),
        stages,
        microbatches,
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(adam)),
        ..CompileOptions::default()
    }
}

/// Makes a cluster with two ranks in a node, and slow links between nodes.
fn small_nodes() -> Cluster {
    let mut cluster = preset("dgx-a100").expect("a preset");
    cluster.levels[0].size = 2;
    cluster
}

fn plan(batch: usize, options: &CompileOptions, cluster: &Cluster) -> Plan {
    compile(gpt(batch), options, cluster, None).expect("compiles").plan.into_plan()
}

fn classes(plan: &Plan) -> Classes {
    Classes::coarsest_partition(plan, &Exchanges::new(plan))
}

fn assert_near(a: f64, b: f64, what: &str) {
    assert!((a - b).abs() <= 1e-9 * a.abs().max(b.abs()), "{what}: {a} and {b}");
}

fn assert_alike(quick: &Simulation, full: &Simulation, case: &str) {
    assert_near(quick.step_seconds, full.step_seconds, case);
    assert!((quick.bubble_fraction - full.bubble_fraction).abs() < 1e-9, "{case}");
    assert!((quick.shares.compute - full.shares.compute).abs() < 1e-9, "{case}");
    assert!((quick.shares.communication - full.shares.communication).abs() < 1e-9, "{case}");
    assert!((quick.shares.overlap - full.shares.overlap).abs() < 1e-9, "{case}");
    assert_eq!(quick.stages.len(), full.stages.len(), "{case}");
    for (a, b) in quick.stages.iter().zip(&full.stages) {
        assert_near(a.busy_seconds, b.busy_seconds, case);
        assert_eq!(
            (a.ranks, a.high_water, a.peak_memory_bytes),
            (b.ranks, b.high_water, b.peak_memory_bytes),
            "{case}"
        );
    }
}

#[test]
fn classes_see_the_times_of_every_rank() {
    let mut cases: Vec<(String, usize, CompileOptions, bool)> = Vec::new();
    let meshes: [(&[usize], usize, usize, usize); 7] = [
        (&[4], 1, 1, 8),
        (&[3], 1, 1, 7),
        (&[2, 2], 1, 2, 8),
        (&[4], 2, 4, 8),
        (&[4, 2], 2, 4, 8),
        (&[6], 2, 2, 12),
        (&[2, 3], 1, 1, 4),
    ];
    for (mesh, stages, microbatches, batch) in meshes {
        for strategy in [Strategy::Auto, Strategy::Data, Strategy::Zero1, Strategy::Zero3] {
            for overlap in [false, true] {
                let options = CompileOptions { strategy, ..options(mesh, stages, microbatches) };
                let case = format!("{mesh:?} {stages} {strategy:?} {overlap}");
                cases.push((case, batch, options, overlap));
            }
        }
    }
    let mut fewer = 0;
    for (case, batch, options, overlap) in cases {
        for dispatch in [0.0, 20e-6] {
            let mut cluster = small_nodes();
            (cluster.device.dispatch, cluster.device.overlap) = (dispatch, overlap);
            let case = format!("{case}, dispatch {dispatch}");
            let plan = plan(batch, &options, &cluster);
            let full = simulate_every_rank(&plan).expect("runs");
            assert_alike(&simulate(&plan).expect("runs"), &full, &case);
            assert_alike(&trace(&plan, 1).expect("runs"), &full, &case);
            fewer += usize::from(classes(&plan).first.len() < plan.world_size);
        }
    }
    assert!(fewer > 80, "most of 112 plans have fewer classes than ranks: {fewer}");
}

/// A layer of 8 experts, apart on the ranks of a mesh.
fn experts(mesh: &[usize], cluster: &Cluster) -> Plan {
    let g = GraphBuilder::new("experts");
    let x = g.input("x", DType::F32, [16, 32, 64]);
    let (width, hidden, experts, chosen, blocks) = (64, 128, 8, 2, 2);
    let (routing, capacity) = (Routing::Softmax, None);
    let sizes = MixtureConfig { width, hidden, experts, chosen, routing, blocks, capacity };
    g.output("y", &MixtureFeedForward::new(&g, "mixture", &sizes).forward(&x));
    let pin = |pattern: &str, sbp: &str| Pin {
        pattern: pattern.into(),
        sbp: sbp.parse().expect("an SBP"),
    };
    let names = ["mixture.gate.weight", "mixture.up.weight", "mixture.down.weight"];
    let pins = names.map(|name| pin(name, "S(0)"));
    let options = CompileOptions {
        loss: Some(Loss::Sum),
        pins: if mesh == [1] { Vec::new() } else { pins.to_vec() },
        ..options(mesh, 1, 2)
    };
    compile(g.finish().expect("fits"), &options, cluster, None).expect("compiles").plan.into_plan()
}

/// Of an expert there are three products forward, three that are gradients of matrices, and one that is the gradient of what is inside, as the input has
/// none; and two microbatches.
#[test]
fn a_host_takes_its_time_for_each_expert() {
    const EACH: f64 = 1e-3;
    for mesh in [&[1][..], &[2]] {
        let step = |of_each: f64, waits: bool| {
            let mut cluster = small_nodes();
            cluster.framework.expert_dispatch = of_each;
            cluster.framework.waits_for_counts = waits;
            let plan = experts(mesh, &cluster);
            let quick = simulate(&plan).expect("runs");
            let case = format!("{mesh:?}, {of_each}, {waits}");
            assert_alike(&quick, &simulate_every_rank(&plan).expect("runs"), &case);
            quick.step_seconds
        };
        let own = 8 / mesh[0];
        let host = (own * 7 * 2) as f64 * EACH;
        let (free, bound, waiting) = (step(0.0, false), step(EACH, false), step(EACH, true));
        assert!((host..host + free).contains(&bound), "{host}, {free}, {bound}");
        assert!(bound < waiting && waiting < host + free, "{bound}, {waiting}, {host}, {free}");
    }
}

/// Ranks of one program that meet over slower links are in another class than the rest. (Their kernels cannot differ in speed, because they run the
/// same program.)
#[test]
fn a_longer_way_makes_a_class_of_its_own() {
    let plan = plan(
        12,
        &CompileOptions { strategy: Strategy::Data, ..options(&[3], 1, 1) },
        &small_nodes(),
    );
    assert_eq!(classes(&plan).first.len(), 1, "all meet in one group");
    let cluster = small_nodes();
    let pairs = CompileOptions { strategy: Strategy::Data, ..options(&[3, 2], 1, 1) };
    let plan = compile(gpt(12), &pairs, &cluster, None).expect("compiles").plan;
    assert_eq!(classes(&plan).first.len(), 1, "each pair is in one node");
    let mut crooked = plan.into_plan();
    for layout in &mut crooked.layouts {
        // Ranks 1 and 2 change places: two pairs now are of two nodes each.
        layout.ranks.swap(1, 2);
    }
    let found = classes(&crooked);
    assert!(found.first.len() > 1, "{found:?}");
    let (quick, full) = (simulate(&crooked), simulate_every_rank(&crooked));
    assert_alike(&quick.expect("runs"), &full.expect("runs"), "crooked");
}

#[test]
fn a_prediction_is_what_the_plan_says() {
    for (mesh, stages, microbatches) in [(&[4][..], 1, 1), (&[2, 2], 2, 4), (&[3], 1, 1)] {
        let options = options(mesh, stages, microbatches);
        let cluster = small_nodes();
        let plan = compile(gpt(12), &options, &cluster, None).expect("compiles").plan;
        let predicted = predict_step_seconds(gpt(12), &options, &cluster).expect("predicts");
        assert_near(predicted, plan.predicted.step_seconds, "predicted");
    }
}

#[test]
fn the_number_of_classes_does_not_grow_with_ranks() {
    let of = |ranks: usize| {
        let options = CompileOptions { strategy: Strategy::Data, ..options(&[ranks, 2], 2, 2) };
        classes(&plan(4 * ranks, &options, &small_nodes())).first.len()
    };
    assert_eq!(of(4), 2);
    assert_eq!(of(64), 2);
}

/// A stage that has computed all microbatches long ago still sends them one after the other.
#[test]
fn messages_to_a_rank_share_its_link() {
    let options = CompileOptions { schedule: Schedule::Gpipe, ..options(&[2], 2, 4) };
    let mut cluster = small_nodes();
    // Seconds for each message, beside which all else is nothing.
    cluster.levels[0].bandwidth = 1e3;
    let plan = plan(8, &options, &cluster);
    let exchanges = Exchanges::new(&plan);
    let of_channel = |channel| exchanges.of_channel(channel).incoming.values();
    let seconds: f64 = (0..plan.channels.len())
        .map(|channel| 4.0 * of_channel(channel).map(|incoming| incoming.on_link).sum::<f64>())
        .sum();
    // First all that goes forward, then all that comes back.
    let step = simulate(&plan).expect("runs").step_seconds;
    assert!(plan.channels.len() > 1 && (1.0..1.01).contains(&(step / seconds)), "{step} {seconds}");
}

#[test]
fn an_unlike_order_on_one_rank_is_found() {
    let options = CompileOptions {
        schedule: Schedule::Gpipe,
        strategy: Strategy::Data,
        ..options(&[4], 2, 2)
    };
    let mut plan = plan(8, &options, &small_nodes());
    execute(&plan, 2).expect("runs");
    let mut other = plan.programs[0].clone();
    let receives = |action: &Action| matches!(action, Action::Receive { .. });
    let block = other.streams[0]
        .blocks
        .iter()
        .position(|block| block.iter().any(|a| receives(&other.actors[a.index()].action)))
        .expect("the first stage receives gradients");
    // The first rank wants its first gradients before it has sent anything.
    let first = other.streams[0].order.iter().position(|item| item.block as usize == block);
    let item = other.streams[0].order.remove(first.expect("it runs"));
    other.streams[0].order.insert(0, item);
    plan.programs.push(other);
    plan.ranks[0].program = graphc_ir::ids::ProgramId::new(plan.programs.len() - 1);
    let error = execute(&plan, 2).expect_err("it hangs").to_string();
    assert!(error.contains("rank 0"), "{error}");
}
