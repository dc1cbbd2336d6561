//! Measures how good `--recompute auto` is: of small models in less and less memory, the cost of its plan beside that of the best of all plans, of
//! whatever ops are computed again.
//!
//!     cargo run --release -p graphc-compiler --example recompute_subsets
//!
//! Which ops are computed again and how tensors lie is one problem, which the compiler takes apart. Here it is solved whole: every set of ops
//! is planned.

use std::collections::BTreeSet;
use std::error::Error;

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::compile;
use graphc_compiler::decisions::Decisions;
use graphc_compiler::passes::recompute::{Blocks, Extent, OpPlace};
use graphc_compiler::pipeline::{decide_recomputed, decide_regathered, prepare_graph};
use graphc_compiler::planner::{PlannerError, plan_signatures};
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::Graph;
use graphc_ir::mesh::format_mesh;
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_plan::{Cluster, CompileOptions, Loss, Optimizer, Recompute};

const WIDTH: usize = 1024;

/// Limits, as shares of what the plan of fewest seconds needs, until nothing fits.
const SHARES: [f64; 9] = [0.97, 0.92, 0.87, 0.82, 0.77, 0.72, 0.67, 0.62, 0.57];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cluster      model   mesh  limit MiB   auto us  best us  longer %");
    let (mut sum, mut count) = (0.0, 0);
    // Of few tokens weights take most of the memory, and communication much of the time.
    for (cluster, tokens) in [("dgx-h100", 16_384), ("p3.16xlarge", 2048)] {
        for (name, model) in [("wide", wide as fn(usize) -> Graph), ("normed", normed)] {
            for mesh in [&[1][..], &[2], &[4], &[2, 2]] {
                for share in SHARES {
                    let found = line((name, model(tokens)), cluster, mesh, share)?;
                    let Some(longer) = found else { break };
                    (sum, count) = (sum + longer, count + 1);
                }
            }
        }
    }
    println!("in the mean {:.2} % longer", sum / f64::from(count));
    Ok(())
}

/// By how many percent what `auto` takes is longer than the best; `None` where nothing fits.
fn line(
    (name, graph): (&str, Graph),
    cluster: &str,
    mesh: &[usize],
    share: f64,
) -> Result<Option<f64>, Box<dyn Error>> {
    let machines = preset(cluster).expect("a preset");
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let options = CompileOptions {
        mesh: mesh.to_vec(),
        loss: Some(Loss::Mse),
        optimizer: Some(sgd),
        recompute: Recompute::Auto,
        ..CompileOptions::default()
    };
    let decisions = prepare_graph(graph.clone(), &options)?;
    let free = plan_signatures(&decisions, &options, &machines)?.memory[0];
    let limit = (free as f64 * share) as u64;
    let options = CompileOptions { memory: Some(limit), ..options };
    let auto = match compile(graph, &options, &machines, None) {
        Ok(found) => found.plan.planner.objective_seconds,
        Err(error) if error.is_memory() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let best = best(&decisions, &options, &machines)?;
    let longer = (auto / best - 1.0) * 100.0;
    let mesh = format_mesh(mesh);
    let mib = limit as f64 / f64::from(1 << 20);
    println!(
        "{name:<11} {mesh:<7} {mib:>9.1} {:>9.1} {:>8.1} {longer:>9.2}",
        auto * 1e6,
        best * 1e6
    );
    Ok(Some(longer))
}

/// The fewest seconds of all sets of ops.
fn best(
    decisions: &Decisions,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<f64, Box<dyn Error>> {
    let blocks = Blocks::new(&decisions.training, &decisions.rates);
    let all: Vec<OpPlace> = (blocks.ops.iter().enumerate())
        .flat_map(|(block, ops)| (0..ops.len()).map(move |place| OpPlace { block, place }))
        .collect();
    let (mut best, mut seen) = (f64::INFINITY, BTreeSet::new());
    for set in 0..1usize << all.len() {
        let ops = all.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
        let ops: BTreeSet<OpPlace> = ops.map(|(_, &op)| op).collect();
        let again = decide_recomputed(decisions, options, Extent::Ops(&ops))?;
        // What nothing reads is not computed: other sets give the same graph.
        if !seen.insert(format!("{:?}", again.recomputed)) {
            continue;
        }
        for decisions in [decide_regathered(&again, options)?, Some(again)].into_iter().flatten() {
            match plan_signatures(&decisions, options, cluster) {
                Ok(found) => best = best.min(found.report.objective_seconds),
                Err(PlannerError::Memory { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(best)
}

/// Three blocks of a product to four times the width, an activation and a product back.
fn wide(tokens: usize) -> Graph {
    blocks(tokens, 3, Tensor::clone)
}

/// Two such blocks, of which each normalizes what it reads.
fn normed(tokens: usize) -> Graph {
    blocks(tokens, 2, |x| x.normalize(true, 1e-5))
}

fn blocks(tokens: usize, layers: usize, read: impl Fn(&Tensor) -> Tensor) -> Graph {
    let g = GraphBuilder::new("blocks");
    let mut x = g.input("x", DType::F32, [tokens, WIDTH]);
    for layer in 0..layers {
        let weight = |name: &str, shape: [usize; 2]| {
            g.variable(&format!("{layer}.{name}"), DType::F32, shape, Init::Weights)
        };
        let hidden = read(&x).matmul(&weight("up", [WIDTH, 4 * WIDTH])).gelu();
        x = x.add(&hidden.matmul(&weight("down", [4 * WIDTH, WIDTH])));
    }
    g.output("y", &x);
    g.finish().expect("fits")
}
