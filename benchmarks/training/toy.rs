//! W5: the toy of 500 steps, whose time is all overhead.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use graphc::prelude::*;
use graphc::runtime::job::Job;
use serde_json::json;

use crate::{Args, cpu, session};

/// 500 steps of data parallelism, the median of several runs.
pub fn measure(args: &Args, job: Option<&Arc<Job>>) -> Result<()> {
    let g = GraphBuilder::new("toy");
    let rows = 2 * args.ranks;
    let x = g.input("x", DType::F32, [rows, 2]).pin(NdSbp(vec![Sbp::Split(0)]));
    let y = g.input("y", DType::F32, [rows, 1]).pin(NdSbp(vec![Sbp::Split(0)]));
    let w = g.variable("w", DType::F32, [2, 1], Init::Fill(0.0.into()));
    let error = x.matmul(&w.pin(NdSbp(vec![Sbp::Broadcast]))) - y;
    g.output("loss", &(&error * &error).sum(&[0, 1], false).scale(1.0 / args.ranks as f64));
    let options = CompileOptions {
        mesh: vec![args.ranks],
        optimizer: Some(Optimizer::Sgd {
            lr: 0.01,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }),
        ..CompileOptions::default()
    };
    let plan = compile(g.finish()?, &options, &cpu()?, None)?.plan;
    let mut session = session(&plan, args.threads, job)?;
    let (xs, ys) = ([1., 2., 2., 3., 4., 6., 3., 1.], [8., 13., 26., 9.]);
    let feeds = BTreeMap::from([
        ("x".into(), HostTensor::from_f32([rows, 2], &xs[..rows * 2])?),
        ("y".into(), HostTensor::from_f32([rows, 1], &ys[..rows])?),
    ]);
    let mut times = Vec::new();
    for _ in 0..11 {
        session.set_variable("w", &HostTensor::from_f32([2, 1], &[0.0, 0.0])?)?;
        let start = Instant::now();
        let mut last = None;
        for _ in 0..500 {
            last = Some(session.step(feeds.clone())?);
        }
        last.context("500 steps")?.wait()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let w = session.variable("w")?.to_f32()?;
    let line = json!({
        "workload": "W5",
        "framework": "graphc",
        "procs": args.ranks,
        "wall_500_s": times[times.len() / 2],
        "w": w,
    });
    if job.is_none_or(|job| job.rank() == 0) {
        println!("{line}");
    }
    Ok(())
}
