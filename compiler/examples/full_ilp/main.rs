//! The planner against the whole integer programme: every signature of every node and every boxing of every tensor as
//! variables, nothing eliminated, dropped or folded, solved by HiGHS; without the feature `highs` by microlp, which ends for the
//! smallest models alone.
//!
//!     cargo run --release -p graphc-compiler --features highs --example full_ilp -- [NAME]
//!
//! It takes minutes. A row for each model (or those whose names contain NAME): nodes, variables, constraints, what the planner reports and
//! what the solver finds in seconds of a step, how far they are apart, and how long both took. What the solver chooses is
//! priced again from the graph alone. It ends with status 1 where a plan that the planner calls optimal is none, or its
//! bound is no bound.

mod models;

use std::error::Error;
use std::time::Instant;

use graphc_compiler::cluster::preset;
use graphc_compiler::decisions::{Decisions, NodeSharding, Sharding};
use graphc_compiler::pipeline::{decide_regathered, prepare_graph};
use graphc_compiler::planner::problem::Problem;
use graphc_compiler::planner::problem::candidates::{Candidate, CandidateList};
use graphc_compiler::planner::problem::size::programme_size;
use graphc_compiler::planner::reference::ilp::{SOLVER, solve_ilp};
use graphc_compiler::planner::{Planned, plan_signatures, reprice_sharding};
use graphc_ir::graph::Graph;
use graphc_ir::mesh::format_mesh;
use graphc_ir::sbp::NdSbp;
use graphc_plan::{AdamOptions, Cluster, CompileOptions, Loss, Optimizer, PlannerStatus, Strategy};

/// The most by which two objectives may differ.
const TOLERANCE: f64 = 1e-6;

/// A model, and how it is to be planned.
struct Case {
    name: &'static str,
    graph: Graph,
    loss: Loss,
    mesh: &'static [usize],
    machine: &'static str,
    adam: bool,
    stages: usize,
    microbatches: usize,
    strategy: Strategy,
    /// The memory limit, as a share of what the fastest plan needs; each tensor may then lie otherwise for the backward pass.
    memory: Option<f64>,
}

impl Case {
    /// One stage on dgx-a100, trained with AdamW.
    fn new(name: &'static str, graph: Graph, loss: Loss, mesh: &'static [usize]) -> Self {
        let (stages, microbatches, strategy) = (1, 1, Strategy::Auto);
        let (machine, adam, memory) = ("dgx-a100", true, None);
        Self { name, graph, loss, mesh, machine, adam, stages, microbatches, strategy, memory }
    }

    fn sgd(self) -> Self {
        Self { adam: false, ..self }
    }

    fn on(self, machine: &'static str) -> Self {
        Self { machine, ..self }
    }

    fn stages(self, stages: usize, microbatches: usize) -> Self {
        Self { stages, microbatches, ..self }
    }

    fn within(self, memory: f64) -> Self {
        Self { memory: Some(memory), ..self }
    }

    fn strategy(self, strategy: Strategy) -> Self {
        Self { strategy, ..self }
    }

    fn options(&self) -> CompileOptions {
        let adam = AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
        let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        CompileOptions {
            mesh: self.mesh.to_vec(),
            stages: self.stages,
            microbatches: self.microbatches,
            strategy: self.strategy,
            loss: Some(self.loss),
            optimizer: Some(if self.adam { Optimizer::AdamW(adam) } else { sgd }),
            ..CompileOptions::default()
        }
    }

    fn cluster(&self) -> Result<Cluster, Box<dyn Error>> {
        Ok(preset(self.machine).ok_or("no such cluster")?)
    }
}

fn cases() -> Result<Vec<Case>, Box<dyn Error>> {
    use Loss::{CrossEntropy, Mse};
    Ok(vec![
        Case::new("mlp (ONNX)", models::reference("mlp", 32)?, CrossEntropy, &[8]).on("cpu"),
        Case::new("mlp_mse (ONNX)", models::reference("mlp_mse", 16)?, Mse, &[2, 4]).sgd(),
        Case::new("gpt (ONNX)", models::reference("gpt", 8)?, CrossEntropy, &[4]),
        Case::new("gpt (ONNX), 2 stages", models::reference("gpt", 8)?, CrossEntropy, &[4])
            .stages(2, 4),
        Case::new("resnet (ONNX)", models::reference("resnet", 16)?, CrossEntropy, &[4]).sgd(),
        Case::new("mlp of 6 layers", models::mlp(6, 256, 1024)?, Mse, &[8]),
        Case::new("mlp of 2 layers", models::mlp(2, 256, 1024)?, Mse, &[2, 2]),
        Case::new("mlp of 6 layers, little memory", models::mlp(6, 64, 512)?, Mse, &[4])
            .within(0.6),
        Case::new("gpt of 1 layer", models::gpt(1, 16, 1024, false)?, CrossEntropy, &[4]),
        Case::new("gpt of 2 layers, tied", models::gpt(2, 16, 256, true)?, CrossEntropy, &[8]),
        Case::new("gpt of 2 layers, 2 stages", models::gpt(2, 16, 256, false)?, CrossEntropy, &[4])
            .stages(2, 4),
        Case::new("gpt of 4 layers", models::gpt(4, 16, 512, false)?, CrossEntropy, &[2]).on("cpu"),
        Case::new("bert of 2 layers", models::bert(2, [8, 32, 512])?, Mse, &[8]),
        Case::new("llama of 2 blocks", models::llama(2, 16, 512)?, CrossEntropy, &[4]),
        Case::new("llama of 2 blocks, h100", models::llama(2, 16, 512)?, CrossEntropy, &[8])
            .on("dgx-h100"),
        Case::new("swiglu of 2 layers", models::swiglu(2, 16, 512)?, Mse, &[8]),
        Case::new("swiglu of 1 layer", models::swiglu(1, 16, 512)?, Mse, &[2, 4]).sgd(),
        Case::new("grouped heads", models::grouped_heads(16, 256)?, Mse, &[8]).on("p3.16xlarge"),
        Case::new("grouped heads, little memory", models::grouped_heads(16, 256)?, Mse, &[4])
            .sgd()
            .within(0.8),
        Case::new("convolutions", models::convolutions(16, 32)?, CrossEntropy, &[4]).sgd(),
        Case::new("experts", models::experts(16, 256)?, Mse, &[8]),
        Case::new("experts, 2 axes", models::experts(16, 256)?, Mse, &[2, 2]).sgd(),
        Case::new("vit of 2 layers", models::vit(2, 16, 256)?, CrossEntropy, &[4]),
        Case::new(
            "gpt of 1 layer, little memory",
            models::gpt(1, 16, 256, false)?,
            CrossEntropy,
            &[4],
        )
        .within(0.7),
        Case::new(
            "llama of 2 blocks, little memory",
            models::llama(2, 16, 512)?,
            CrossEntropy,
            &[4],
        )
        .within(0.8),
        Case::new("gpt of 1 layer, zero1", models::gpt(1, 16, 256, false)?, CrossEntropy, &[4])
            .strategy(Strategy::Zero1),
        Case::new("gpt of 1 layer, zero3", models::gpt(1, 16, 256, false)?, CrossEntropy, &[2, 2])
            .strategy(Strategy::Zero3),
    ])
}

fn main() -> Result<(), Box<dyn Error>> {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    println!(
        "| model | mesh | nodes | variables | constraints | planner s | {SOLVER} s | apart | status | planner took | {SOLVER} took |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut wrong = 0;
    for case in cases()?.into_iter().filter(|case| case.name.contains(&wanted)) {
        wrong += usize::from(!agrees(&case)?);
    }
    match wrong {
        0 => Ok(()),
        _ => Err(format!("{wrong} models disagree").into()),
    }
}

/// Plans, solves, prints a row: whether both agree.
fn agrees(case: &Case) -> Result<bool, Box<dyn Error>> {
    let (mut options, cluster) = (case.options(), case.cluster()?);
    let mut decisions = prepare_graph(case.graph.clone(), &options)?;
    if let Some(share) = case.memory {
        let free = plan_signatures(&decisions, &options, &cluster)?;
        let most = free.memory.iter().max().copied().unwrap_or(0);
        options.memory = Some((most as f64 * share) as u64);
        decisions = decide_regathered(&decisions, &options)?.unwrap_or(decisions);
    }
    let start = Instant::now();
    let planned = plan_signatures(&decisions, &options, &cluster)?;
    let planner_took = start.elapsed().as_secs_f64();
    let mut problem = Problem::new(&decisions, &options, &cluster)?;
    if case.strategy != Strategy::Auto {
        // Boxing is then all that is to be found.
        let known = signatures(&problem, &planned.sharding)?;
        let all = problem.candidates.iter().zip(known);
        let alone = all.map(|(all, label)| CandidateList::from([all[label].clone()]));
        problem = problem.with_candidates(alone.collect());
    }
    let (variables, constraints) = programme_size(&problem);
    eprintln!("{}: {variables} variables, {constraints} constraints", case.name);
    let start = Instant::now();
    let solved = solve_ilp(&problem)?;
    let solver_took = start.elapsed().as_secs_f64();
    let (found, assignment) = solved.ok_or("the solver finds that nothing fits")?;
    let Planned { report, .. } = &planned;
    let apart = report.objective_seconds / found - 1.0;
    println!(
        "| {} | {} | {} | {variables} | {constraints} | {:.9e} | {found:.9e} | {apart:.1e} | {} | {planner_took:.2} s | {solver_took:.1} s |",
        case.name,
        format_mesh(case.mesh),
        decisions.graph().nodes.len(),
        report.objective_seconds,
        status(case, &planned),
    );
    let priced = recomputed(&decisions, &problem, &assignment, &cluster, &options);
    let holds = (priced / found - 1.0).abs() <= TOLERANCE;
    let optimal = report.status == PlannerStatus::Optimal || case.strategy != Strategy::Auto;
    let equal = apart.abs() <= TOLERANCE || !optimal && apart > 0.0;
    let bounded = report.bound_seconds <= found * (1.0 + TOLERANCE);
    if !holds {
        println!("{}: what the solver chose is {priced:.9e} by the check", case.name);
    }
    Ok(holds && equal && bounded)
}

fn status(case: &Case, planned: &Planned) -> String {
    match planned.report.status {
        PlannerStatus::Optimal => "optimal".into(),
        PlannerStatus::Gap if case.strategy != Strategy::Auto => format!("{:?}", case.strategy),
        PlannerStatus::Gap => format!("gap {:.1e}", planned.report.gap),
    }
}

/// The candidates that a plan has.
fn signatures(problem: &Problem<'_>, sharding: &Sharding) -> Result<Vec<usize>, &'static str> {
    let layouts = &problem.layouts;
    let of = |known: &[_], wanted: &[_]| {
        known.iter().zip(wanted).all(|(&known, wanted)| *layouts.sbp(known) == *wanted)
    };
    let same = |candidate: &Candidate, kept: &NodeSharding| {
        of(&candidate.operands, &kept.operands) && of(&candidate.results, &kept.results)
    };
    let nodes = problem.candidates.iter().zip(&sharding.nodes);
    let labels = nodes.map(|(all, kept)| all.iter().position(|candidate| same(candidate, kept)));
    labels.collect::<Option<_>>().ok_or("the plan has a signature that is none")
}

/// Prices a choice of signatures by the independent check.
fn recomputed(
    decisions: &Decisions,
    problem: &Problem<'_>,
    assignment: &[usize],
    cluster: &Cluster,
    options: &CompileOptions,
) -> f64 {
    let names = |ids: &[_]| ids.iter().map(|&id| NdSbp::clone(&problem.layouts.sbp(id))).collect();
    let nodes = problem.chosen_candidates(assignment).into_iter().map(|candidate| NodeSharding {
        choices: candidate.choices.clone(),
        operands: names(&candidate.operands),
        results: names(&candidate.results),
    });
    let sharding = Sharding { nodes: nodes.collect() };
    reprice_sharding(decisions, &sharding, cluster, options).objective_seconds
}
