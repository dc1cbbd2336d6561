//! The planner against a search through all plans, the reference integer programme, and the independent check.

use std::collections::BTreeMap;

use crate::planner_support::{Everything, Numbers, decisions, random_graph};
use graphc_compiler::boxing::find_route;
use graphc_compiler::cluster::preset;
use graphc_compiler::decisions::Decisions;
use graphc_compiler::pipeline::{decide_regathered, prepare_graph};
use graphc_compiler::planner::problem::Problem;
use graphc_compiler::planner::problem::candidates::CandidateList;
use graphc_compiler::planner::reference::ilp::solve_ilp;
use graphc_compiler::planner::{
    Planned, PlannerError, layouts_of, plan_signatures, plan_with_layout, reprice_sharding,
};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::{Graph, Node, Value};
use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;
use graphc_ir::ops::Init;
use graphc_ir::rule::Choice;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::DType;
use graphc_plan::{Cluster, CompileOptions, Loss, Optimizer, Pin, PlannerStatus};

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs())
}

/// Checks that the integer programme finds a plan that costs as much, or none either.
fn programme_agrees(problem: &Problem<'_>, planned: Option<&Planned>, name: &str) {
    let ilp = solve_ilp(problem).expect("it is small").map(|(seconds, _)| seconds);
    let found = planned.map(|planned| planned.report.objective_seconds);
    let equal = match (ilp, found) {
        (Some(a), Some(b)) => close(a, b),
        (a, b) => a.is_none() && b.is_none(),
    };
    assert!(equal, "{name}: the integer programme finds {ilp:?}, the planner {found:?}");
}

/// Plans one random graph and compares. With `limited`, it is planned under a memory limit between what the free plan needs and less than half of it.
fn compare(seed: u64, mesh: &[usize], most: usize, limited: bool, reference: bool) {
    let mut numbers = Numbers(seed);
    let decisions = decisions(random_graph(&mut numbers, most), mesh);
    let options = CompileOptions { mesh: mesh.to_vec(), ..CompileOptions::default() };
    compare_decided("cpu", (&decisions, options), numbers, limited, reference);
}

/// Compares the plans of decisions that passes have made.
fn compare_decided(
    machines: &str,
    (decisions, mut options): (&Decisions, CompileOptions),
    mut numbers: Numbers,
    limited: bool,
    reference: bool,
) {
    let cluster = preset(machines).expect("a preset");
    let free = plan_signatures(decisions, &options, &cluster).expect("memory is plenty");
    if limited {
        options.memory = Some(free.memory[0] * (40 + numbers.below(60) as u64) / 100);
    }
    let name = format!("{:?} {:?}", options, decisions.graph());
    let planned = plan_signatures(decisions, &options, &cluster);
    let problem = Problem::new(decisions, &options, &cluster).expect("no pins");
    if reference {
        programme_agrees(&problem, planned.as_ref().ok(), &name);
    }
    let ceiling =
        planned.as_ref().map_or(f64::INFINITY, |p| p.report.objective_seconds * (1.0 + 1e-9));
    let mut everything = Everything::new(&problem, decisions, &options, &cluster, ceiling);
    match &planned {
        Ok(planned) => {
            everything.run();
            let (best, _) = everything.best.as_ref().expect("the plan itself is among all");
            assert!(
                close(*best, planned.report.objective_seconds),
                "{name}: {best} {:?}",
                planned.report
            );
            assert_eq!(
                planned.report.status,
                PlannerStatus::Optimal,
                "{name}: {:?}",
                planned.report
            );
            let check = reprice_sharding(decisions, &planned.sharding, &cluster, &options);
            assert!(close(check.objective_seconds, planned.report.objective_seconds), "{name}");
            assert_eq!(check.memory, planned.memory, "{name}");
            assert!(options.memory.is_none_or(|limit| planned.memory[0] <= limit), "{name}");
        }
        Err(PlannerError::Memory { needed, limit, .. }) => assert!(needed > limit, "{name}"),
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn variables_that_are_gathered_while_others_compute() {
    for seed in 500..560 {
        let mesh: &[usize] = [&[2][..], &[4], &[2, 2]][seed as usize % 3];
        let mut numbers = Numbers(seed);
        let decisions = decisions(random_graph(&mut numbers, 6), mesh);
        let options = CompileOptions { mesh: mesh.to_vec(), ..CompileOptions::default() };
        let limited = seed % 2 == 0;
        compare_decided("dgx-a100", (&decisions, options), numbers, limited, seed % 4 == 0);
    }
}

/// Makes a training step of products, one after the other, in some microbatches.
fn training(
    numbers: &mut Numbers,
    layers: usize,
    microbatches: usize,
    mesh: &[usize],
) -> (Decisions, CompileOptions) {
    let g = GraphBuilder::new("training");
    let extents = [64, 250, 1024, 4096];
    let mut width = *numbers.of(&extents);
    let mut h = g.input("x", DType::F32, [*numbers.of(&[16, 256, 8192]), width]);
    for layer in 0..layers {
        let to = *numbers.of(&extents);
        h = h.matmul(&g.variable(&format!("w{layer}"), DType::F32, [width, to], zeros()));
        width = to;
    }
    g.output("y", &h);
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let options = CompileOptions {
        mesh: mesh.to_vec(),
        microbatches,
        loss: Some(Loss::Sum),
        fetch: vec!["*".into()],
        optimizer: Some(sgd),
        ..CompileOptions::default()
    };
    (prepare_graph(g.finish().expect("fits"), &options).expect("fits"), options)
}

#[test]
fn gradients_that_travel_while_others_compute() {
    let mut hiding = 0;
    for seed in 0..12 {
        let mut numbers = Numbers(seed);
        let (mesh, layers): (&[usize], _) =
            [(&[2][..], 2), (&[3], 1), (&[4], 1)][seed as usize % 3];
        let (decisions, options) = training(&mut numbers, layers, 1 + seed as usize % 2, mesh);
        let mut cluster = preset("dgx-a100").expect("a preset");
        let best = |cluster: &Cluster| {
            plan_signatures(&decisions, &options, cluster).expect("fits").report
        };
        let hidden = best(&cluster).objective_seconds;
        cluster.device.overlap = false;
        hiding += usize::from(hidden < best(&cluster).objective_seconds);
        compare_decided("dgx-a100", (&decisions, options), numbers, seed % 4 == 3, seed % 4 == 0);
    }
    assert!(hiding > 1, "{hiding} of 12 plans hide something");
}

/// If memory is short, each weight and activation may be kept for the backward pass, or gathered again for it. This choice never makes plans worse.
#[test]
fn what_the_backward_pass_gathers_again() {
    let (mut planned, mut leaner) = (0, 0);
    for seed in 0..24 {
        let mut numbers = Numbers(600 + seed);
        let mesh: &[usize] = [&[2][..], &[3], &[4]][seed as usize % 3];
        let machines = ["cpu", "dgx-a100"][seed as usize / 3 % 2];
        let (kept, options) = training(&mut numbers, 2, 1 + seed as usize % 2, mesh);
        let again =
            decide_regathered(&kept, &options).expect("fits").expect("weights are read again");
        let cluster = preset(machines).expect("a preset");
        let free = plan_signatures(&again, &options, &cluster).expect("memory is plenty");
        let limit = free.memory[0] * (40 + numbers.below(60) as u64) / 100;
        let little = CompileOptions { memory: Some(limit), ..options.clone() };
        let [with, without] =
            [&again, &kept].map(|decisions| plan_signatures(decisions, &little, &cluster).ok());
        if let Some(with) = &with {
            planned += 1;
            let seconds = with.report.objective_seconds;
            let least = without.map(|plan| plan.report.objective_seconds);
            let better = least.is_none_or(|least| seconds < least * (1.0 - 1e-6));
            leaner += usize::from(better);
            assert!(least.is_none_or(|least| seconds <= least * (1.0 + 1e-6)), "{seed}");
        } else {
            assert!(without.is_none(), "{seed}: only without the choice there is a plan");
        }
        if seed % 3 == 0 {
            let problem = Problem::new(&again, &little, &cluster).expect("no pins");
            programme_agrees(&problem, with.as_ref(), &format!("{seed}"));
        }
        if let Some(with) = &with {
            let check = reprice_sharding(&again, &with.sharding, &cluster, &little);
            assert!(close(check.objective_seconds, with.report.objective_seconds), "{seed}");
            assert_eq!(check.memory, with.memory, "{seed}");
        }
    }
    assert!(planned > 6 && leaner > 2, "{planned} of 24 planned, {leaner} better than kept");
}

/// A search through all plans finds none that is better than the planner's choice of what is kept or gathered again. (Other seeds take a minute.)
#[test]
fn nothing_is_better_than_what_memory_decides() {
    for seed in [8, 12, 13, 14] {
        let mut numbers = Numbers(800 + seed);
        let mesh: &[usize] = [&[2][..], &[3]][seed as usize % 2];
        let (kept, options) = training(&mut numbers, 2, 1, mesh);
        let again =
            decide_regathered(&kept, &options).expect("fits").expect("weights are read again");
        let cluster = preset(["cpu", "dgx-a100"][seed as usize / 2 % 2]).expect("a preset");
        let free = plan_signatures(&again, &options, &cluster).expect("memory is plenty");
        let limit = free.memory[0] * (40 + numbers.below(60) as u64) / 100;
        let little = CompileOptions { memory: Some(limit), ..options };
        let report = plan_signatures(&again, &little, &cluster).expect("it fits").report;
        assert_eq!(report.status, PlannerStatus::Optimal, "{seed}");
        let problem = Problem::new(&again, &little, &cluster).expect("no pins");
        let ceiling = report.objective_seconds * (1.0 + 1e-9);
        let mut everything = Everything::new(&problem, &again, &little, &cluster, ceiling);
        everything.run();
        let (best, _) = everything.best.as_ref().expect("the plan itself is among all");
        assert!(close(*best, report.objective_seconds), "{seed}: {report:?} {best}");
        let regather = |node: &Node| matches!(node.op, Op::Regather(_));
        assert!(again.graph().nodes.iter().any(regather), "{seed}");
    }
}

#[test]
fn random_graphs_on_one_axis() {
    for seed in 0..170 {
        let mesh = [[2], [3], [4]][seed as usize % 3];
        compare(seed, &mesh, 6, false, seed % 4 == 0);
    }
}

#[test]
fn random_graphs_on_one_axis_with_little_memory() {
    for seed in 170..340 {
        let mesh = [[2], [3], [4]][seed as usize % 3];
        compare(seed, &mesh, 6, true, seed % 4 == 0);
    }
}

#[test]
fn random_graphs_on_two_axes() {
    for seed in 340..420 {
        let mesh = [[2, 2], [2, 3]][seed as usize % 2];
        compare(seed, &mesh, 6, false, false);
    }
}

#[test]
fn random_graphs_on_two_axes_with_little_memory() {
    for seed in 420..500 {
        let mesh = [[2, 2], [2, 3]][seed as usize % 2];
        compare(seed, &mesh, 6, true, false);
    }
}

fn toy() -> GraphBuilder {
    GraphBuilder::new("toy")
}

fn zeros() -> Init {
    Init::Fill(0.0.into())
}

fn sbp(text: &str) -> NdSbp {
    text.parse().expect("an SBP")
}

/// Plans on the processor, and returns the layout of each value by name.
fn layouts(
    graph: Graph,
    mesh: &[usize],
    pins: &[(&str, &str)],
) -> Result<BTreeMap<String, String>, PlannerError> {
    let decisions = decisions(graph, mesh);
    let pin = |&(pattern, layout): &(&str, &str)| Pin { pattern: pattern.into(), sbp: sbp(layout) };
    let pins = pins.iter().map(pin).collect();
    let options = CompileOptions { mesh: mesh.to_vec(), pins, ..CompileOptions::default() };
    let cluster = preset("cpu").expect("a preset");
    let planned = plan_signatures(&decisions, &options, &cluster)?;
    let check = reprice_sharding(&decisions, &planned.sharding, &cluster, &options);
    assert!(close(check.objective_seconds, planned.report.objective_seconds));
    let layout = |value: &Value| {
        let made = &planned.sharding.nodes[value.producer.index()].results[value.index];
        value.name.clone().map(|name| (name, made.to_string()))
    };
    Ok(decisions.graph().values.iter().filter_map(layout).collect())
}

#[test]
fn a_large_batch_splits_data_and_a_large_weight_splits_the_model() {
    let product = |rows, columns| {
        let g = toy();
        let x = g.input("x", DType::F32, [rows, 512]);
        let w = g.variable("w", DType::F32, [512, columns], zeros());
        g.output("y", &x.matmul(&w).named("y"));
        layouts(g.finish().expect("right"), &[2], &[]).expect("it fits")
    };
    let data = product(65_536, 64);
    assert_eq!((&*data["x"], &*data["y"]), ("S(0)", "S(0)"));
    let model = product(1, 65_536);
    assert_eq!((&*model["w"], &*model["y"]), ("S(1)", "S(1)"));
}

#[test]
fn pins_are_kept() {
    let graph = || {
        let g = toy();
        let x = g.input("x", DType::F32, [4, 5]);
        let w = g.variable("w", DType::F32, [5, 8], zeros());
        g.output("out", &x.matmul(&w).named("out"));
        g.finish().expect("right")
    };
    let kept = layouts(graph(), &[2], &[("x", "S(1)"), ("out", "P(sum)")]).expect("it fits");
    assert_eq!((&*kept["x"], &*kept["out"]), ("S(1)", "P(sum)"));
    let kept = layouts(graph(), &[1, 2], &[("*", "S(0), B")]).expect("a name on an axis of one");
    assert_eq!((&*kept["x"], &*kept["w"], &*kept["out"]), ("S(0), B", "S(0), B", "S(0), B"));
    let uneven = layouts(graph(), &[8], &[("x", "S(0)")]).expect("ranks may hold nothing");
    assert_eq!(uneven["x"], "S(0)");
}

#[test]
fn a_pin_that_cannot_be_kept_says_what_can() {
    let g = toy();
    let x = g.input("x", DType::F32, [4, 5]);
    g.output("y", &x.softmax(1).named("y"));
    let error = layouts(g.finish().expect("right"), &[2], &[("y", "S(1)")]).expect_err("whole");
    let message =
        "`y` of shape [4, 5] cannot be pinned to (S(1)) on a mesh of 2: it can be (B), (S(0))";
    assert_eq!(error.to_string(), message);
}

#[test]
fn a_tensor_is_boxed_once_for_all_its_readers() {
    let g = toy();
    let x = g.input("x", DType::F32, [512, 512]).pin(sbp("S(0)"));
    for name in ["a", "b", "c"] {
        g.output(name, &x.softmax(0).named(name).pin(sbp("B")));
    }
    let decisions = decisions(g.finish().expect("right"), &[2]);
    let cluster = preset("cpu").expect("a preset");
    let options = CompileOptions { mesh: vec![2], ..CompileOptions::default() };
    let planned = plan_signatures(&decisions, &options, &cluster).expect("it fits");
    let layout = |sbp| {
        let placement = &decisions.staging.placement[0];
        decisions.layout(decisions.graph().nodes[0].results[0], placement, &sbp)
    };
    let gather = find_route(&layout(sbp("S(0)")), &layout(sbp("B")), &cluster, 1).seconds;
    let problem = Problem::new(&decisions, &options, &cluster).expect("pins fit");
    let compute: f64 = problem.candidates.iter().map(|all| all[0].seconds).sum();
    assert!(close(planned.report.objective_seconds, compute + gather), "{:?}", planned.report);
}

#[test]
fn nodes_choose_alike_for_axes_that_are_tied_unless_they_are_pinned() {
    let g = toy();
    let x = g.input("x", DType::F32, [16, 16]);
    let pinned = x.relu().pin(sbp("S(0),B,S(1)"));
    g.output("y", &pinned.matmul(&x).named("y"));
    let mesh = [2, 2, 2];
    let decisions = decisions(g.finish().expect("right"), &mesh);
    let cluster = preset("cpu").expect("a preset");
    let options = CompileOptions { mesh: mesh.to_vec(), ..CompileOptions::default() };
    let with = |tied: &[usize]| -> Vec<Vec<Vec<Choice>>> {
        let problem =
            Problem::with_tied_axes(&decisions, &options, &cluster, tied).expect("pins fit");
        let choices = |all: &CandidateList| all.iter().map(|c| c.choices.clone()).collect();
        problem.candidates.iter().map(choices).collect()
    };
    let (free, tied) = (with(&[]), with(&[1]));
    let names = decisions.graph().nodes.iter().map(|node| node.op.name());
    for ((name, free), tied) in names.zip(free).zip(tied) {
        if name == "unary" {
            assert_eq!(free, tied, "it is pinned");
            continue;
        }
        let alike: Vec<Vec<Choice>> = free.into_iter().filter(|c| c[0] == c[1]).collect();
        assert!(!tied.is_empty() && tied.iter().all(|c| c[0] == c[1]), "{name}: {tied:?}");
        assert_eq!(tied, alike, "{name}");
    }
}

#[test]
fn what_the_user_asks_for_in_the_graph_is_boxed_between_meshes() {
    let g = toy();
    let (first, second) = (
        Placement::new(vec![0], vec![1]).expect("a mesh"),
        Placement::new(vec![1, 2], vec![2]).expect("a mesh"),
    );
    let x = g.input("x", DType::F32, [6, 4]);
    let moved = x.relu().to_global(&second, sbp("S(1)"));
    g.output("y", &moved.relu().named("y"));
    let mut decisions = decisions(g.finish().expect("right"), &[1]);
    decisions.staging.placement = vec![first.clone(), first, second.clone(), second];
    let options = CompileOptions { mesh: vec![3], ..CompileOptions::default() };
    let cluster = preset("cpu").expect("a preset");
    let planned = plan_signatures(&decisions, &options, &cluster).expect("it fits");
    assert_eq!(planned.sharding.nodes[2].operands[0], sbp("S(1)"));
    assert_eq!(planned.sharding.nodes[2].results[0], sbp("S(1)"));
    let check = reprice_sharding(&decisions, &planned.sharding, &cluster, &options);
    assert!(close(check.objective_seconds, planned.report.objective_seconds));
}

/// Makes `y = x w` on two ranks.
fn product() -> Decisions {
    let g = toy();
    let x = g.input("x", DType::F32, [1024, 512]);
    let w = g.variable("w", DType::F32, [512, 64], zeros());
    g.output("y", &x.matmul(&w).named("y"));
    decisions(g.finish().expect("right"), &[2])
}

/// Returns the best plan with the graph's first output in each layout that it may have.
fn alternatives(
    decisions: &Decisions,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Vec<(NdSbp, Result<Planned, PlannerError>)> {
    let tensor = decisions.graph().outputs[0].value;
    let layouts = layouts_of(decisions, options, cluster, tensor).expect("no pins");
    let planned = |sbp: NdSbp| {
        let planned = plan_with_layout(decisions, options, cluster, (tensor, &sbp));
        (sbp, planned)
    };
    layouts.into_iter().map(planned).collect()
}

#[test]
fn alternatives_are_priced_with_all_else_chosen_anew() {
    let decisions = product();
    let options = CompileOptions { mesh: vec![2], ..CompileOptions::default() };
    let cluster = preset("cpu").expect("a preset");
    let best =
        plan_signatures(&decisions, &options, &cluster).expect("it fits").report.objective_seconds;
    let all = alternatives(&decisions, &options, &cluster);
    assert_eq!(
        all.iter().map(|(sbp, _)| sbp.to_string()).collect::<Vec<_>>(),
        ["B", "S(0)", "S(1)", "P(sum)"]
    );
    let seconds = all.iter().filter_map(|(_, planned)| planned.as_ref().ok());
    let seconds = seconds.map(|planned| planned.report.objective_seconds);
    let least = seconds.fold(f64::INFINITY, f64::min);
    assert!(close(least, best));
}

#[test]
fn alternatives_that_do_not_fit_tell_of_the_tensor_by_its_name() {
    let decisions = product();
    let memory = Some(1 << 10);
    let options = CompileOptions { mesh: vec![2], memory, ..CompileOptions::default() };
    let cluster = preset("cpu").expect("a preset");
    for (sbp, planned) in alternatives(&decisions, &options, &cluster) {
        let Err(PlannerError::Memory { largest, .. }) = planned else { panic!("{sbp} fits") };
        assert!(largest.iter().any(|(name, _)| name == "y"), "({sbp}) {largest:?}");
    }
}
