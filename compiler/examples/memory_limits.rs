//! Measures planning as memory gets short: status, gap and seconds at limits from what the free plan needs down to
//! where nothing fits.
//!
//!     cargo run --release -p graphc-compiler --example memory_limits -- [CASE...]
//!
//! Cases are the names in [`CASES`]; without arguments all are run.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

use graphc_compiler::cluster::preset;
use graphc_compiler::pipeline::prepare_graph;
use graphc_compiler::planner::{PlannerError, UNLIMITED, plan_signatures};
use graphc_import::{ImportOptions, load_model};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::types::DType;
use graphc_nn::{Gpt, GptConfig, Module};
use graphc_plan::{AdamOptions, CompileOptions, Loss, Optimizer, Recompute};

/// A model to plan: a file in `examples/models` or the layers of a GPT of width 256, with the batch.
struct Case {
    name: &'static str,
    model: Model,
    batch: usize,
    cluster: &'static str,
    mesh: &'static [usize],
    stages: usize,
    microbatches: usize,
}

enum Model {
    File(&'static str),
    Gpt(usize),
}

const fn case(
    name: &'static str,
    model: Model,
    batch: usize,
    mesh: &'static [usize],
    [stages, microbatches]: [usize; 2],
) -> Case {
    Case { name, model, batch, cluster: "dgx-h100", mesh, stages, microbatches }
}

const CASES: &[Case] = &[
    case("gpt-2x2", Model::Gpt(4), 64, &[2, 2], [1, 1]),
    case("gpt-2x4", Model::Gpt(4), 64, &[2, 4], [1, 1]),
    case("gpt-8", Model::Gpt(4), 64, &[8], [1, 1]),
    case("llama-8", Model::File("llama3_8b"), 16, &[8], [1, 1]),
    case("llama-8x8", Model::File("llama3_8b"), 16, &[8, 8], [1, 1]),
    case("gpt3-64x8-8", Model::File("gpt3_175b"), 64, &[64, 8], [8, 8]),
];

/// Limits, as shares of what the free plan needs, until nothing fits.
const SHARES: [f64; 7] = [0.97, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4];

fn main() -> Result<(), Box<dyn Error>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    println!("case          limit GiB  status    gap %   objective s  seconds  peak MiB");
    for case in CASES.iter().filter(|case| names.is_empty() || names.iter().any(|n| n == case.name))
    {
        run(case)?;
    }
    Ok(())
}

fn run(case: &Case) -> Result<(), Box<dyn Error>> {
    let free = line(case, None)?.ok_or("even without a limit nothing fits")?;
    for share in SHARES {
        if line(case, Some((free as f64 * share) as u64))?.is_none() {
            break;
        }
    }
    Ok(())
}

/// Plans under a limit and prints what came of it: what the plan needs, if there is one.
fn line(case: &Case, limit: Option<u64>) -> Result<Option<u64>, Box<dyn Error>> {
    let options = options(case, limit);
    let cluster = preset(case.cluster).ok_or("no such cluster")?;
    let decisions = prepare_graph(graph(case)?, &options)?;
    let start = Instant::now();
    let planned = plan_signatures(&decisions, &options, &cluster);
    let seconds = start.elapsed().as_secs_f64();
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let of = limit.map_or("none".into(), |limit| format!("{:.3}", gib(limit)));
    let name = case.name;
    match planned {
        Ok(planned) => {
            let report = &planned.report;
            println!(
                "{name:13} {of:>9}  {:8} {:7.4} {:12.6} {seconds:8.2} {:9}",
                format!("{:?}", report.status),
                100.0 * report.gap,
                report.objective_seconds,
                resident()
            );
            Ok(planned.memory.iter().max().copied())
        }
        Err(PlannerError::Memory { needed, least, .. }) => {
            let least = least.map_or("unknown".into(), |least| format!("{:.3}", gib(least)));
            println!(
                "{name:13} {of:>9}  too little: {:.3} found, least {least}; {seconds:.2} s, {} MiB",
                gib(needed),
                resident()
            );
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The most memory of this process so far, in MiB; 0 where the system does not say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn options(case: &Case, memory: Option<u64>) -> CompileOptions {
    let adam = AdamOptions { lr: 3e-4, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    CompileOptions {
        mesh: case.mesh.to_vec(),
        stages: case.stages,
        microbatches: case.microbatches,
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(adam)),
        recompute: match case.model {
            Model::File(_) => Recompute::Full,
            Model::Gpt(_) => Recompute::None,
        },
        memory: Some(memory.unwrap_or(UNLIMITED)),
        ..CompileOptions::default()
    }
}

fn graph(case: &Case) -> Result<Graph, Box<dyn Error>> {
    match case.model {
        Model::File(name) => {
            let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models");
            let dims = BTreeMap::from([("batch".to_owned(), case.batch)]);
            Ok(load_model(
                &models.join(name).with_extension("gir"),
                &dims,
                ImportOptions::default(),
            )?
            .graph)
        }
        Model::Gpt(layers) => {
            let g = GraphBuilder::new("gpt");
            let config =
                GptConfig { layers, width: 256, heads: 8, sequence: 128, vocabulary: 8192 };
            let tokens = g.input("tokens", DType::I64, [case.batch, 128]);
            g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
            Ok(g.finish()?)
        }
    }
}
