//! The planner against a search through all plans, the reference integer programme, and the independent check.

mod planner_support;

use graphc_compiler::cluster::preset;
use graphc_compiler::planner::ilp::solve_ilp;
use graphc_compiler::planner::problem::Problem;
use graphc_compiler::planner::{PlanError, plan, recompute};
use graphc_ir::plan::{CompileOptions, PlannerStatus};
use planner_support::{Everything, Numbers, decisions, random_graph};

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs())
}

/// Plans one random graph and compares. With `limited`, under a memory limit between what the free plan needs and
/// less than half of it.
fn compare(seed: u64, mesh: &[usize], most: usize, limited: bool, reference: bool) {
    let mut numbers = Numbers(seed);
    let graph = random_graph(&mut numbers, most);
    let decisions = decisions(graph, mesh);
    let cluster = preset("cpu").expect("a preset");
    let mut options = CompileOptions { mesh: mesh.to_vec(), ..CompileOptions::default() };
    let free = plan(&decisions, &options, &cluster).expect("memory is plenty");
    if limited {
        options.memory = Some(free.memory[0] * (40 + numbers.below(60) as u64) / 100);
    }
    let name = format!("seed {seed} mesh {mesh:?} limit {:?}", options.memory);
    let planned = plan(&decisions, &options, &cluster);
    let mut problem = Problem::new(&decisions, &options, &cluster).expect("no pins");
    if reference {
        let ilp = solve_ilp(&mut problem).map(|(seconds, _)| seconds);
        let found = planned.as_ref().ok().map(|planned| planned.report.objective_seconds);
        let equal = match (ilp, found) {
            (Some(a), Some(b)) => close(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        assert!(equal, "{name}: the integer programme finds {ilp:?}, the planner {found:?}");
    }
    let ceiling =
        planned.as_ref().map_or(f64::INFINITY, |p| p.report.objective_seconds * (1.0 + 1e-9));
    let mut everything = Everything::new(&problem, &decisions, &options, &cluster, ceiling);
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
            let check = recompute(&decisions, &planned.sharding, &cluster, &options);
            assert!(close(check.objective_seconds, planned.report.objective_seconds), "{name}");
            assert_eq!(check.memory, planned.memory, "{name}");
            assert!(options.memory.is_none_or(|limit| planned.memory[0] <= limit), "{name}");
        }
        Err(PlanError::Memory { needed, limit, .. }) => assert!(needed > limit, "{name}"),
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn random_graphs_on_one_axis() {
    for seed in 0..100 {
        let mesh = [[2], [3], [4]][seed as usize % 3];
        compare(seed, &mesh, 6, false, seed % 4 == 0);
    }
}

#[test]
fn random_graphs_on_one_axis_with_little_memory() {
    for seed in 100..200 {
        let mesh = [[2], [3], [4]][seed as usize % 3];
        compare(seed, &mesh, 6, true, seed % 4 == 0);
    }
}

#[test]
fn random_graphs_on_two_axes() {
    for seed in 200..250 {
        let mesh = [[2, 2], [2, 3]][seed as usize % 2];
        compare(seed, &mesh, 6, false, false);
    }
}

#[test]
fn random_graphs_on_two_axes_with_little_memory() {
    for seed in 250..300 {
        let mesh = [[2, 2], [2, 3]][seed as usize % 2];
        compare(seed, &mesh, 6, true, false);
    }
}
