//! Measures the time of compilation on GPTs of several depths and meshes, part by part.
//!
//!     cargo run --release -p graphc-compiler --example compile_times -- [LAYERS WIDTH BATCH MESH CLUSTER [MEMORY]]
//!
//! Without arguments: 12 and 32 layers of width 1024 on meshes 8, 2x2 and 8x8 of dgx-h100.

use std::error::Error;
use std::time::Instant;

use graphc_compiler::cluster::{parse_bytes, preset};
use graphc_compiler::compile::{Header, assemble_plan};
use graphc_compiler::pipeline::prepare_graph;
use graphc_compiler::planner::plan_signatures;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::types::DType;
use graphc_nn::{Gpt, GptConfig, Module};
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{AdamOptions, CompileOptions, Loss, Optimizer};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    println!("layers width batch mesh: nodes, seconds of passes, planner, lowering; status, gap");
    if !arguments.is_empty() {
        return measure(&arguments);
    }
    for layers in ["12", "32"] {
        for (mesh, batch) in [("8", "64"), ("2x2", "64"), ("8x8", "512")] {
            let case = [layers, "1024", batch, mesh, "dgx-h100"];
            measure(&case.map(String::from))?;
        }
    }
    Ok(())
}

fn measure(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [layers, width, batch, mesh, machine, memory @ ..] = arguments else {
        return Err("give LAYERS WIDTH BATCH MESH CLUSTER".into());
    };
    let cluster = preset(machine).ok_or("no such cluster")?;
    let options = options(mesh, memory.first())?;
    let graph = gpt(layers.parse()?, width.parse()?, batch.parse()?)?;
    let start = Instant::now();
    let decisions = prepare_graph(graph.clone(), &options)?;
    let passes = start.elapsed().as_secs_f64();
    let planned = plan_signatures(&decisions, &options, &cluster)?;
    let planner = start.elapsed().as_secs_f64() - passes;
    let report = planned.report.clone();
    let header = Header {
        graph: &graph,
        options: &options,
        cluster: &cluster,
        weights: None,
        planner: planned.report,
    };
    let (plan, _) = assemble_plan(header, &decisions, &planned.sharding)?;
    VerifiedPlan::check(plan)?;
    let lowering = start.elapsed().as_secs_f64() - passes - planner;
    println!(
        "{layers} {width} {batch} {mesh}: {} nodes, {passes:.2} {planner:.2} {lowering:.2} s; {:?} {:.4} %",
        decisions.graph().nodes.len(),
        report.status,
        100.0 * report.gap
    );
    Ok(())
}

fn options(mesh: &str, memory: Option<&String>) -> Result<CompileOptions, Box<dyn Error>> {
    let adam = AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    Ok(CompileOptions {
        mesh: mesh.split('x').map(str::parse).collect::<Result<_, _>>()?,
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(adam)),
        memory: memory.map(|text| parse_bytes(text).ok_or("no memory")).transpose()?,
        ..CompileOptions::default()
    })
}

/// Sequences of 1024 tokens, or of 32 in narrow models.
fn gpt(layers: usize, width: usize, batch: usize) -> Result<Graph, Box<dyn Error>> {
    let (sequence, vocabulary) = if width <= 128 { (32, 256) } else { (1024, 50_304) };
    let g = GraphBuilder::new("gpt");
    let heads = (width / 64).max(4);
    let config = GptConfig { layers, width, heads, sequence, vocabulary };
    let tokens = g.input("tokens", DType::I64, [batch, sequence]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    Ok(g.finish()?)
}
