//! Data-parallel training by SBP: four samples over the ranks, by default two, the squared error summed, gradients as averaged
//! over two ranks, 500 steps of SGD. The weights become [[2], [3]].
//!
//!     cargo run --release --example data_parallel_toy
//!     graphc launch --standalone --nproc-per-node 2 -- target/release/examples/data_parallel_toy

use std::time::Instant;

use graphc::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Under the launcher the ranks are processes, otherwise threads.
    let job = Job::from_environment()?;
    let ranks = job.as_ref().map_or(2, |job| job.world_size() as usize);
    let g = GraphBuilder::new("toy");
    let x = g.input("x", DType::F32, [4, 2]).pin("S(0)".parse()?);
    let y = g.input("y", DType::F32, [4, 1]).pin("S(0)".parse()?);
    let w = g.variable("w", DType::F32, [2, 1], Init::Fill(0.0.into())).pin("B".parse()?);
    // Pinned so that samples stay where they are: left alone, the planner would gather data this small.
    let error = (x.matmul(&w) - y).pin("S(0)".parse()?);
    // The sum over all ranks' samples, halved: what two ranks with a sum each would average.
    g.output("loss", &(&error * &error).sum(&[0, 1], false).scale(0.5));

    let options = CompileOptions {
        mesh: vec![ranks],
        optimizer: Some(Optimizer::Sgd {
            lr: 0.01,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }),
        ..CompileOptions::default()
    };
    let plan = compile(g.finish()?, &options, &preset("cpu").ok_or("no preset")?, None)?.plan;
    let summary = graphc::report::summary(&plan);

    let options = SessionOptions::default();
    let mut session = Session::with_job(job.as_ref(), &plan, &BTreeMap::new(), options)?;
    if session.leads() {
        print!("{summary}");
    }
    let feeds = BTreeMap::from([
        ("x".into(), HostTensor::from_f32([4, 2], &[1., 2., 2., 3., 4., 6., 3., 1.])?),
        ("y".into(), HostTensor::from_f32([4, 1], &[8., 13., 26., 9.])?),
    ]);
    let start = Instant::now();
    let mut last = None;
    for _ in 0..500 {
        last = Some(session.step(feeds.clone())?);
    }
    let loss = last.ok_or("no step")?.wait()?["loss"].to_f32()?[0];
    let elapsed = start.elapsed();
    let w = session.variable("w")?.to_f32()?;
    if session.leads() {
        println!("500 steps in {:.1} ms, loss {loss:.2e}, w = {w:?}", elapsed.as_secs_f64() * 1e3);
    }
    assert!((w[0] - 2.0).abs() < 1e-3 && (w[1] - 3.0).abs() < 1e-3);
    Ok(())
}
