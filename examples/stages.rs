//! A network whose stages are set by hand: the first half of the ranks computes the first stage, with samples cut, S(0), the
//! second half the second one, with weights cut, S(0) of `[outputs, inputs]`. A step's batch goes through in microbatches, one
//! forward and one backward in turn, so both stages work at once. Losses are those of one rank.
//!
//!     cargo run --release --example stages
//!     graphc launch --standalone --nproc-per-node 4 -- target/release/examples/stages

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use graphc::nn::{Linear, Module};
use graphc::prelude::*;
use graphc::report;

const BATCH: usize = 32;
const MICROBATCHES: usize = 4;
const STEPS: usize = 60;

/// Two stage modules.
struct Stages {
    first: nn::Staged<Linear>,
    second: nn::Staged<Linear>,
}

impl Stages {
    /// Places the model on so many ranks, half of them for each stage. On one rank there are no stages.
    fn new(g: &GraphBuilder, ranks: usize) -> Result<Self> {
        let half = ranks / 2;
        let on = |first: usize| {
            Placement::new((first as u32..(first + half) as u32).collect(), vec![half])
        };
        let (first, second) = (Linear::new(g, "first", 16, 32), Linear::new(g, "second", 32, 8));
        first.weight.clone().pin(NdSbp(vec![Sbp::Broadcast]));
        second.weight.clone().pin(NdSbp(vec![Sbp::Split(0)]));
        Ok(Self { first: first.set_stage(0, on(0)?), second: second.set_stage(1, on(half)?) })
    }
}

/// The network in stages.
fn staged(ranks: usize) -> Result<Graph> {
    let g = GraphBuilder::new("stages");
    let stages = Stages::new(&g, ranks)?;
    let x = stages
        .first
        .here(&g, || g.input("x", DType::F32, [BATCH, 16]))
        .pin(NdSbp(vec![Sbp::Split(0)]));
    let hidden = stages.first.forward(&x);
    let hidden = stages.first.here(&g, || hidden.tanh());
    g.output("y", &stages.second.forward(&hidden));
    Ok(g.finish()?)
}

/// Builds the same network on one rank.
fn whole() -> Result<Graph> {
    let g = GraphBuilder::new("stages");
    let (first, second) = (Linear::new(&g, "first", 16, 32), Linear::new(&g, "second", 32, 8));
    g.output("y", &second.forward(&first.forward(&g.input("x", DType::F32, [BATCH, 16])).tanh()));
    Ok(g.finish()?)
}

fn main() -> Result<()> {
    let job = Job::from_environment()?;
    let ranks = job.as_ref().map_or(4, |job| job.world_size() as usize);
    let result = run(ranks, job.as_ref());
    if let (Some(job), Err(error)) = (&job, &result) {
        job.fail(format!("{error:#}"));
    }
    result
}

fn run(ranks: usize, job: Option<&Arc<Job>>) -> Result<()> {
    ensure!(
        ranks.is_multiple_of(2),
        "the two stages have half of the ranks each, so start an even number of them, not {ranks}"
    );
    let sgd = Optimizer::Sgd { lr: 0.5, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let training =
        CompileOptions { loss: Some(Loss::Mse), optimizer: Some(sgd), ..CompileOptions::default() };
    let pipeline = CompileOptions {
        mesh: vec![ranks],
        stages: 2,
        microbatches: MICROBATCHES,
        ..training.clone()
    };
    let cluster = preset("cpu").context("a preset")?;
    let plan = compile(staged(ranks)?, &pipeline, &cluster, None)?.plan;
    let alone = compile(whole()?, &training, &cluster, None)?.plan;
    let mut session = Session::with_job(job, &plan, &BTreeMap::new(), SessionOptions::default())?;
    let mut one = Session::new(&alone, &BTreeMap::new(), SessionOptions::default())?;
    if session.leads() {
        print!("{}{}", report::tensors(&plan), report::boxing(&plan));
    }
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let loss = session.step(feeds(step)?)?.wait()?["loss"].to_f32()?[0];
        let expected = one.step(feeds(step)?)?.wait()?["loss"].to_f32()?[0];
        ensure!(
            (loss - expected).abs() < 1e-5,
            "step {step}: {loss} in stages, {expected} on one rank"
        );
        losses.push(loss);
    }
    if session.leads() {
        let (first, last) = (losses[0], losses[STEPS - 1]);
        println!(
            "2 stages of {} ranks, {MICROBATCHES} microbatches: loss {first:.4} to {last:.4}",
            ranks / 2
        );
    }
    Ok(())
}

/// Samples of a linear function.
fn feeds(step: usize) -> Result<BTreeMap<String, HostTensor>> {
    let x: Vec<f32> =
        (0..BATCH * 16).map(|at| ((at * 37 + step * 11) % 23) as f32 / 11.0 - 1.0).collect();
    let y: Vec<f32> =
        x.chunks(16).flat_map(|row| row.chunks(2).map(|pair| pair[0] - pair[1])).collect();
    Ok(BTreeMap::from([
        ("x".to_owned(), HostTensor::from_f32([BATCH, 16], &x)?),
        ("target".to_owned(), HostTensor::from_f32([BATCH, 8], &y)?),
    ]))
}
