//! The whole compiler on small models: every plan holds all invariants, on every mesh, schedule and strategy.

use crate::trained::{gpt, options};
use graphc_compiler::check::{read_plan, verify_invariants, verify_plan, write_plan};
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Compiled, Header, assemble_plan, compile};
use graphc_compiler::error::CompileError;
use graphc_compiler::lower::collective_counts;
use graphc_compiler::pipeline::{decide_regathered, prepare_graph};
use graphc_compiler::planner::{Planned, plan_signatures};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::ids::RegisterId;
use graphc_ir::mesh::Placement;
use graphc_ir::types::DType;
use graphc_nn::models::{Gpt2Config, ResNet, ResNetConfig, gpt2};
use graphc_nn::{Linear, Module};
use graphc_plan::{
    Action, Actor, BoxingKind, CompileOptions, Loss, PLAN_VERSION, Program, Schedule, Strategy,
};

fn mlp() -> Graph {
    let g = GraphBuilder::new("mlp");
    let x = g.input("x", DType::F32, [12, 10]);
    let h = Linear::new(&g, "first", 10, 16).forward(&x).relu();
    g.output("y", &Linear::new(&g, "second", 16, 6).forward(&h));
    g.finish().expect("fits")
}

fn compiled(graph: Graph, options: &CompileOptions) -> Compiled {
    compiled_for("cpu", graph, options)
}

fn compiled_for(cluster: &str, graph: Graph, options: &CompileOptions) -> Compiled {
    let cluster = preset(cluster).expect("a preset");
    match compile(graph, options, &cluster, None) {
        Ok(compiled) => compiled,
        Err(error) => panic!("{options:?}: {error}"),
    }
}

#[test]
fn every_mesh_and_strategy_gives_a_plan_that_holds() {
    use Strategy::{Auto, Data, Megatron, Zero1, Zero2, Zero3};
    for graph in [mlp(), gpt()] {
        for (mesh, stages, microbatches) in [
            (&[1][..], 1, 1),
            (&[2], 1, 2),
            (&[3], 1, 1),
            (&[2, 2], 1, 1),
            (&[2], 2, 2),
            (&[2, 2], 2, 4),
        ] {
            for strategy in [Auto, Data, Zero1, Zero2, Zero3, Megatron] {
                // Three ranks do not divide four heads.
                if strategy == Megatron && mesh == [3] {
                    continue;
                }
                let options = CompileOptions { strategy, ..options(mesh, stages, microbatches) };
                for cluster in ["cpu", "dgx-a100"] {
                    let plan = compiled_for(cluster, graph.clone(), &options).plan;
                    assert_eq!(verify_invariants(&plan), Ok(()), "{cluster} {options:?}");
                }
            }
        }
    }
}

#[test]
fn schedules_and_streams_give_plans_that_hold() {
    for schedule in [Schedule::OneForwardOneBackward, Schedule::Gpipe] {
        for (cluster, streams) in [("cpu", 1), ("dgx-a100", 2)] {
            let strategy = Strategy::Data;
            let options = CompileOptions { schedule, strategy, ..options(&[4], 2, 4) };
            let plan = compiled_for(cluster, gpt(), &options).plan;
            assert_eq!(verify_invariants(&plan), Ok(()), "{options:?}");
            assert!(plan.programs.iter().all(|program| program.streams.len() == streams));
        }
    }
}

#[test]
fn inference_has_no_updates_and_keeps_nothing() {
    let options = CompileOptions { loss: None, optimizer: None, ..options(&[2, 2], 2, 4) };
    let plan = compiled(gpt(), &options).plan;
    assert_eq!(verify_invariants(&plan), Ok(()));
    assert!(!plan.training);
    let registers = plan.programs.iter().flat_map(|program| &program.registers);
    assert_eq!(registers.map(|register| register.slots).max(), Some(1));
}

#[test]
fn stages_keep_as_many_activations_as_stages_follow() {
    for (mesh, stages, microbatches) in [(2, 2, 4), (4, 4, 8)] {
        let simulation = compiled(gpt(), &options(&[mesh], stages, microbatches)).simulation;
        for report in &simulation.stages {
            let most = (stages - report.stage) as u64;
            assert_eq!(report.high_water, most, "stage {} of {stages}", report.stage);
        }
    }
}

#[test]
fn data_parallel_gradients_travel_in_one_message() {
    let options = CompileOptions { strategy: Strategy::Data, ..options(&[2], 1, 2) };
    let plan = compiled(gpt(), &options).plan;
    let variables = plan.boxing.iter().filter(|e| e.kind == BoxingKind::AllReduce).count();
    let messages = collective_counts(&plan)[&BoxingKind::AllReduce];
    assert!(variables > 20 && messages <= 6, "{variables} tensors in {messages} messages");
}

/// The statistics of batch normalization are all-reduced in data parallelism, in the forward and in the backward pass. To scatter these sums is
/// cheaper than to all-reduce them, but every rank needs all of what is computed from them.
#[test]
fn data_parallel_statistics_of_batches_are_all_reduced() {
    let g = GraphBuilder::new("images");
    let images = g.input("images", DType::F32, [8, 3, 8, 8]);
    let config = ResNetConfig { width: 4, ..ResNetConfig::resnet18(10).cifar() };
    g.output("y", &ResNet::new(&g, &config).forward(&images));
    let graph = g.finish().expect("fits");
    let options = CompileOptions { strategy: Strategy::Data, ..options(&[2], 1, 1) };
    let plan = compiled(graph, &options).plan;
    let kinds: Vec<BoxingKind> = collective_counts(&plan).into_keys().collect();
    assert_eq!(kinds, [BoxingKind::AllReduce]);
}

/// Counts the sums that follow a product and its chain: first those in memory of their own, then those in memory that the product or the chain reads.
fn sums_behind_products(program: &Program) -> [usize; 2] {
    let span = |register: &RegisterId| {
        let register = &program.registers[register.index()];
        register.offset..register.offset + register.slot_bytes * u64::from(register.slots)
    };
    let meet =
        |a: &RegisterId, b: &RegisterId| span(a).start < span(b).end && span(b).start < span(a).end;
    let op = |actor: &Actor| match &actor.action {
        Action::Compute { op, .. } => op.name(),
        Action::Fused(_) => "chain",
        _ => "other",
    };
    let readers = |of: RegisterId| program.actors.iter().filter(move |a| a.inputs.contains(&of));
    let mut counts = [0, 0];
    for product in program.actors.iter().filter(|actor| op(actor) == "matmul") {
        for chain in readers(product.outputs[0]).filter(|actor| op(actor) == "chain") {
            let sums = chain.outputs.iter().flat_map(|&made| readers(made));
            for sum in sums.filter(|actor| op(actor) == "reduce") {
                let mut read = product.inputs.iter().chain(&chain.inputs);
                counts[usize::from(read.any(|read| meet(read, &sum.outputs[0])))] += 1;
            }
        }
    }
    counts
}

/// A device takes the sum where it computes the product, if the sum's memory is nothing that it reads.
#[test]
fn sums_behind_products_have_memory_of_their_own() {
    let config =
        Gpt2Config { layers: 2, width: 24, heads: 3, sequence: 8, vocabulary: 19, dropout: 0.0 };
    let g = GraphBuilder::new("gpt2");
    let tokens = g.input("tokens", DType::I64, [4, 7]);
    g.output("logits", &gpt2(&g, &config).forward(&tokens));
    let graph = g.finish().expect("fits");
    let found = compiled(graph.clone(), &options(&[1], 1, 1)).plan;
    let program = &found.programs[0];
    assert_eq!(sums_behind_products(program), [4, 0]);
    assert!(program.arena_bytes <= program.live_bytes + program.live_bytes / 100);
    // Where that does not fit, a step takes no more memory than it must.
    let (cluster, free) = (preset("cpu").expect("a preset"), options(&[1], 1, 1));
    let short = CompileOptions { memory: Some(program.live_bytes), ..free.clone() };
    let decisions = prepare_graph(graph.clone(), &free).expect("fits");
    let Planned { sharding, report, .. } =
        plan_signatures(&decisions, &free, &cluster).expect("fits");
    let (graph, cluster, weights) = (&graph, &cluster, None);
    let header = Header { graph, options: &short, cluster, weights, planner: report };
    let (assembled, _) = assemble_plan(header, &decisions, &sharding).expect("fits");
    assert_eq!(assembled.programs[0].arena_bytes, program.live_bytes);
}

#[test]
fn the_arena_is_close_to_what_lives_at_once() {
    for microbatches in [1, 2] {
        let plan = compiled(gpt(), &options(&[2, 2], 2, microbatches)).plan;
        for program in &plan.programs {
            let ratio = program.arena_bytes as f64 / program.live_bytes as f64;
            assert!(ratio < 1.05, "{} of {}", program.arena_bytes, program.live_bytes);
        }
    }
}

#[test]
fn plans_are_the_same_from_run_to_run_and_through_files() {
    let text = || write_plan(&compiled(gpt(), &options(&[2, 2], 2, 2)).plan);
    let first = text();
    assert_eq!(first, text());
    let plan = read_plan(&first).expect("a plan");
    assert_eq!(write_plan(&plan), first);
    verify_plan(&plan).expect("it compiles to itself again");
}

#[test]
fn a_plan_edited_by_hand_is_refused_with_the_field_named() {
    let text = write_plan(&compiled(mlp(), &options(&[2], 1, 1)).plan);
    let mut plan = read_plan(&text).expect("a plan");
    plan.programs[0].actors[0].seconds += 1.0;
    let error = verify_plan(&plan).expect_err("edited").to_string();
    assert!(
        error.contains("programs[0].actors[0].seconds") && error.contains("edited by hand"),
        "{error}"
    );
    let mut plan = read_plan(&text).expect("a plan");
    plan.planner.objective_seconds *= 0.5;
    let error = verify_plan(&plan).expect_err("edited").to_string();
    assert!(error.contains("planner.objective_seconds"), "{error}");
}

#[test]
fn a_plan_of_another_version_is_refused_with_what_to_do() {
    let text = write_plan(&compiled(mlp(), &options(&[1], 1, 1)).plan);
    let own = format!("\"version\": {PLAN_VERSION}");
    let other = text.replacen(&own, "\"version\": 77", 1);
    let error = read_plan(&other).expect_err("another version").to_string();
    assert_eq!(
        error,
        format!(
            "the plan has version 77, this build reads version {PLAN_VERSION}: compile the model again"
        )
    );
    assert!(read_plan("{}").is_err() && read_plan("[1").is_err());
}

#[test]
fn too_little_memory_names_rank_and_tensors() {
    let options = CompileOptions { memory: Some(2048), ..options(&[2], 1, 1) };
    let cluster = preset("cpu").expect("a preset");
    let compiled =
        compile(mlp(), &options, &cluster, None).map(|compiled| compiled.plan.name.clone());
    let error = compiled.expect_err("too little").to_string();
    assert!(error.contains("rank 0") && error.contains("largest tensors"), "{error}");
}

#[test]
fn what_does_not_fit_as_it_is_lowered_is_planned_with_less_memory() {
    let g = GraphBuilder::new("mlp");
    let widths = ["first", "second", "third"];
    let x = g.input("x", DType::F32, [32, 32]);
    let y = widths.iter().fold(x, |x, name| Linear::new(&g, name, 32, 32).forward(&x).relu());
    g.output("y", &y);
    let graph = g.finish().expect("fits");
    let cluster = preset("dgx-a100").expect("a preset");
    let mut made_again = 0;
    for kib in [25, 26, 39, 40, 41] {
        let options = CompileOptions {
            loss: Some(Loss::Mse),
            memory: Some(kib * 1024),
            ..options(&[4], 1, 1)
        };
        let decisions = prepare_graph(graph.clone(), &options).expect("fits");
        let decisions = decide_regathered(&decisions, &options).expect("fits").unwrap_or(decisions);
        let Planned { sharding, report, .. } = plan_signatures(&decisions, &options, &cluster)
            .expect("by the planner's count it fits");
        let header = Header {
            graph: &graph,
            options: &options,
            cluster: &cluster,
            weights: None,
            planner: report.clone(),
        };
        let Err(first) = assemble_plan(header, &decisions, &sharding) else { continue };
        assert!(first.is_memory(), "{first}");
        let again = compiled_for("dgx-a100", graph.clone(), &options);
        assert!(again.plan.predicted.peak_memory_bytes.iter().all(|&bytes| bytes <= kib * 1024));
        assert!(again.plan.planner.bound_seconds <= report.bound_seconds, "{kib}");
        made_again += 1;
    }
    assert!(made_again > 0, "no plan had to be made again");
}

/// A tensor that the user lays out again and again: on one mesh, on another, on ranks in both, unevenly.
#[test]
fn to_global_moves_tensors_between_meshes() {
    let g = GraphBuilder::new("moves");
    let on = |ranks: &[u32], hierarchy: &[usize]| {
        Placement::new(ranks.to_vec(), hierarchy.to_vec()).expect("a mesh")
    };
    let sbp = |text: &str| text.parse().expect("an SBP");
    let first = on(&[0, 1], &[2]);
    let x = g.on(&first, || g.input("x", DType::F32, [5, 7]).pin(sbp("S(0)")));
    let y = g.on(&first, || x.relu()).pin(sbp("S(0)"));
    let rows = y.to_global(&on(&[1, 2, 3], &[3]), sbp("S(1)"));
    let square = rows.to_global(&on(&[0, 1, 2, 3], &[2, 2]), sbp("S(0),S(0)"));
    let back = square.to_global(&first, sbp("B"));
    g.output("rows", &rows);
    g.output("back", &back);
    let graph = g.finish().expect("fits");
    let options = CompileOptions { mesh: vec![4], ..CompileOptions::default() };
    let plan = compiled(graph, &options).plan;
    verify_plan(&plan).expect("it compiles to itself again");
    let exchanges = collective_counts(&plan)[&BoxingKind::SendRecv];
    assert_eq!(exchanges, 3, "{:?}", plan.boxing);
    assert_eq!(plan.channels.len(), 3);
}

#[test]
fn ranks_without_work_have_an_empty_program() {
    let g = GraphBuilder::new("small");
    let x = g.on(&Placement::new(vec![1], vec![1]).expect("a mesh"), || {
        g.input("x", DType::F32, [2]).relu()
    });
    g.output("y", &x);
    let options = CompileOptions { mesh: vec![3], ..CompileOptions::default() };
    let plan = compiled(g.finish().expect("fits"), &options).plan;
    verify_plan(&plan).expect("it compiles to itself again");
    let actors = |rank: usize| plan.programs[plan.ranks[rank].program.index()].actors.len();
    assert_eq!([actors(0), actors(1) / actors(1), actors(2)], [0, 1, 0]);
}

#[test]
fn errors_of_all_kinds_are_told() {
    let cluster = preset("cpu").expect("a preset");
    let error = compile(mlp(), &options(&[3], 2, 1), &cluster, None);
    let error = error.map(|compiled| compiled.plan.name.clone()).expect_err("3 by 2");
    assert!(matches!(error, CompileError::Pass(_)), "{error}");
}
