//! Measures the costs of graphc besides kernels: actors per action, compile time.
//!
//!     cargo run --release -p graphc-overhead

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use graphc::nn::Module;
use graphc::prelude::*;

fn cpu() -> graphc::plan::Cluster {
    preset("cpu").expect("a preset")
}

/// A chain of products of empty tensors: kernels that do nothing.
fn empty_chain(actors: usize) -> Graph {
    let g = GraphBuilder::new("chain");
    let mut x = g.input("x", DType::F32, [0, 1]);
    let w = g.variable("w", DType::F32, [1, 1], Init::Fill(1.0.into()));
    for _ in 0..actors {
        x = x.matmul(&w);
    }
    g.output("out", &x);
    g.finish().expect("a graph")
}

/// Seconds per action on one rank: elements are actions.
fn actors(c: &mut Criterion) {
    const ACTORS: usize = 1000;
    const STEPS: usize = 32;
    let plan = compile(empty_chain(ACTORS), &CompileOptions::default(), &cpu(), None)
        .expect("a plan")
        .plan;
    let options = SessionOptions { threads_per_rank: Some(1), ..SessionOptions::default() };
    let mut session = Session::new(&plan, &BTreeMap::new(), options).expect("a session");
    let feeds =
        BTreeMap::from([("x".into(), HostTensor::from_f32([0, 1], &[]).expect("a tensor"))]);
    let mut group = c.benchmark_group("actors");
    group.throughput(Throughput::Elements((ACTORS * STEPS) as u64));
    group.bench_function("empty kernels, one rank", |b| {
        b.iter(|| {
            let handles: Vec<_> =
                (0..STEPS).map(|_| session.step(feeds.clone()).expect("a step")).collect();
            handles.into_iter().for_each(|handle| drop(handle.wait().expect("outputs")));
        });
    });
    group.finish();
}

fn gpt(batch: usize) -> Graph {
    let g = GraphBuilder::new("gpt");
    let config = nn::GptConfig { layers: 4, width: 128, heads: 4, sequence: 64, vocabulary: 83 };
    let ids = g.input("ids", DType::I64, [batch, 64]);
    let logits = nn::Gpt::new(&g, &config).forward(&ids);
    g.output("loss", &logits.cross_entropy(&g.input("labels", DType::I64, [batch, 64])));
    g.finish().expect("a graph")
}

fn mlp() -> Graph {
    let g = GraphBuilder::new("mlp");
    let x = nn::Linear::new(&g, "a", 784, 256).forward(&g.input("x", DType::F32, [32, 784])).relu();
    let x = nn::Linear::new(&g, "b", 256, 10).forward(&x);
    g.output("loss", &x.cross_entropy(&g.input("labels", DType::I64, [32])));
    g.finish().expect("a graph")
}

/// Compile time of training plans.
fn compile_time(c: &mut Criterion) {
    let adam = AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    let training = |mesh: &[usize], stages: usize| CompileOptions {
        mesh: mesh.to_vec(),
        stages,
        microbatches: stages,
        optimizer: Some(Optimizer::AdamW(adam)),
        ..CompileOptions::default()
    };
    let mut group = c.benchmark_group("compile");
    group.sample_size(10);
    for (name, graph, options) in [
        ("mlp on 2", mlp(), training(&[2], 1)),
        ("mlp on 2x2", mlp(), training(&[2, 2], 1)),
        ("gpt on 1", gpt(32), training(&[1], 1)),
        ("gpt on 4", gpt(32), training(&[4], 1)),
        ("gpt on 2x2", gpt(32), training(&[2, 2], 1)),
        ("gpt on 4 in 2 stages", gpt(32), training(&[4], 2)),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| compile(graph.clone(), &options, &cpu(), None).expect("a plan"));
        });
    }
    group.finish();
}

criterion_group!(benches, actors, compile_time);
criterion_main!(benches);
