//! Data sets and loaders across crates: the same losses on every mesh and however ranks are fed, and the command that writes
//! sets. The code of the guide's section on data is compiled and run here.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::support::{fails, succeeds};
use graphc::data::synth::{self, SynthSet};
use graphc::data::{DistributedSampler, LastBatch, Remainder, describe_dataset};
use graphc::prelude::*;
use graphc::runtime::job::{JobOptions, free_port};
use graphc_ir::types::TensorType;

/// A perceptron on images of MNIST, or of any set of 784 bytes.
fn perceptron(mesh: &[usize], microbatches: usize, batch: usize) -> VerifiedPlan {
    let g = GraphBuilder::new("perceptron");
    let x = g.input("x", DType::F32, [batch, 784]);
    let init = |std: f64| Init::Normal { mean: 0.0.into(), std: std.into() };
    let hidden = x.matmul(&g.variable("w1", DType::F32, [784, 16], init(0.05))).relu();
    let logits = hidden.matmul(&g.variable("w2", DType::F32, [16, 10], init(0.2)));
    g.output("loss", &logits.cross_entropy(&g.input("labels", DType::I64, [batch])));
    let options = CompileOptions {
        mesh: mesh.to_vec(),
        microbatches,
        strategy: Strategy::Data,
        optimizer: Some(Optimizer::Sgd {
            lr: 0.1,
            momentum: 0.0,
            weight_decay: 0.0,
            nesterov: false,
        }),
        ..CompileOptions::default()
    };
    compile(g.finish().expect("a graph"), &options, &preset("cpu").expect("a preset"), None)
        .expect("a plan")
        .plan
}

fn mnist(samples: usize) -> (tempfile::TempDir, Source) {
    let folder = tempfile::tempdir().expect("a folder");
    synth::write_set(SynthSet::Mnist, folder.path(), samples, 1).expect("it is writable");
    let source = format!("mnist:{}", folder.path().display());
    (folder, source.parse().expect("a source"))
}

/// The losses of two epochs, and how many rows of the batch were fed.
fn losses(mut session: Session, source: &Source) -> (Vec<f32>, usize) {
    let set = source.open(Split::Train, session.inputs()).expect("a set");
    let options = LoaderOptions { last: LastBatch::Wrap, ..source.training(3) };
    let loader = Loader::for_session(set, &session, options).expect("it fits");
    let (mut losses, mut rows) = (Vec::new(), 0);
    for batch in loader.from_step(0).expect("threads").take(2 * loader.batches() as usize) {
        let batch = batch.expect("it can be read");
        rows = batch.feeds["x"].shape()[0];
        let outputs = session.step(batch.feeds).expect("alive").wait().expect("done");
        losses.push(outputs["loss"].to_f32().expect("f32")[0]);
    }
    session.shutdown().expect("no rank fails");
    (losses, rows)
}

fn alone(plan: &VerifiedPlan, source: &Source) -> (Vec<f32>, usize) {
    losses(
        Session::new(plan, &BTreeMap::new(), SessionOptions::default()).expect("it fits"),
        source,
    )
}

/// Trains as a job of ranks, each a member as a process would be. Returns the losses and the number of rows of each rank.
fn in_a_job(plan: &VerifiedPlan, source: &Source, ranks: u32) -> Vec<(Vec<f32>, usize)> {
    let url = format!("tcp://127.0.0.1:{}", free_port().expect("a port"));
    std::thread::scope(|scope| {
        let rank = |rank| {
            let mut options = JobOptions::from_url(&url, rank, ranks).expect("a URL");
            options.token = "a token".into();
            move || {
                let job = Job::join(options).expect("all come");
                let session = Session::on(&job, plan, &BTreeMap::new(), SessionOptions::default());
                let seen = losses(session.expect("it fits"), source);
                job.barrier().expect("all come");
                seen
            }
        };
        let ranks: Vec<_> = (0..ranks).map(|number| scope.spawn(rank(number))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

#[test]
fn losses_are_the_same_on_every_mesh_and_from_rows_alone() {
    let (_folder, source) = mnist(50);
    let (expected, rows) = alone(&perceptron(&[1], 1, 12), &source);
    assert_eq!((expected.len(), rows), (10, 12));
    for (mesh, microbatches, held) in [(3, 1, [4, 4, 4]), (3, 2, [4, 4, 4])] {
        let plan = perceptron(&[mesh], microbatches, 12);
        let (threads, rows) = alone(&plan, &source);
        assert_eq!(rows, 12);
        for (one, other) in expected.iter().zip(&threads) {
            assert!((one - other).abs() < 1e-5 * one.abs(), "{expected:?} and {threads:?}");
        }
        let processes = in_a_job(&plan, &source, mesh as u32);
        for ((losses, rows), held) in processes.into_iter().zip(held) {
            assert_eq!((losses, rows), (threads.clone(), held), "{microbatches} microbatches");
        }
    }
}

#[test]
fn the_command_writes_sets_that_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    for set in ["cifar10", "mnist"] {
        let shown = succeeds(["data", "synth", set, &path, "--samples", "60", "--seed", "4"]);
        assert_eq!(shown.trim_end().lines().count(), 1);
        assert!(
            shown.starts_with(&format!("{set}:{path}: 60 training samples and 12 held")),
            "{shown}"
        );
        let source: Source = format!("{set}:{path}").parse().expect("a source");
        for (split, samples) in [(Split::Train, 60), (Split::Test, 12)] {
            let opened = source.open(split, &BTreeMap::new()).expect("a set");
            assert_eq!(opened.samples(), samples, "{}", describe_dataset(opened.as_ref()));
        }
    }
    assert!(fails(["data", "synth", "mnist", &path]).contains("there is another file"));
    assert!(fails(["data", "synth", "mnist", &path, "--samples", "3"]).contains("10 to 1000000"));
}

/// The guide's first piece of code.
fn train(name: &str, session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    let source: Source = name.parse()?; // for example cifar10:data/cifar10
    let samples = source.open(Split::Train, session.inputs())?;
    let loader = Loader::for_session(samples, session, source.training(7))?;
    for epoch in 0..2 {
        for batch in loader.epoch(epoch)? {
            let batch = batch?;
            let outputs = session.step(batch.feeds)?.wait()?;
            println!("step {}: loss {}", batch.step, outputs["loss"].to_f32()?[0]);
        }
    }
    Ok(())
}

/// The guide's second piece of code.
fn samples_of(
    rank: usize,
    ranks: usize,
    source: &Source,
    session: &Session,
) -> Result<Loader, Box<dyn std::error::Error>> {
    let set = source.open(Split::Train, session.inputs())?;
    let sampler = DistributedSampler::new(set.samples(), ranks, rank, Remainder::Drop).shuffled(7);
    let options = LoaderOptions { sampler: Some(sampler), ..source.training(7) };
    Ok(Loader::new(set, session.inputs(), options)?)
}

#[test]
fn the_guides_code_runs() {
    let (_folder, source) = mnist(24);
    let plan = perceptron(&[2], 1, 8);
    let mut session =
        Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("it fits");
    train(&source.to_string(), &mut session).expect("it trains");
    let loader = samples_of(1, 2, &source, &session).expect("a loader");
    // Half of 24 samples are for this rank, of which one batch of 8 is full.
    assert_eq!((loader.batches(), loader.samples()), (1, 8));
}

#[test]
fn the_guides_code_is_that_of_this_file() {
    let lines = |text: &str| -> String {
        let code = |line: &&str| !line.is_empty() && !line.starts_with("use ");
        text.lines().map(str::trim).filter(code).collect::<Vec<_>>().join("\n")
    };
    let guide =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide.md"));
    let guide = guide.expect("the guide");
    let section = guide.split("\n## ").find(|section| section.starts_with("Data sets\n"));
    let blocks: Vec<&str> = section.expect("the section").split("```rust\n").skip(1).collect();
    assert_eq!(blocks.len(), 2);
    let own = lines(include_str!("data.rs"));
    for block in blocks {
        let code = lines(block.split("```").next().expect("its end"));
        assert!(own.contains(&code), "not in tests/training/data.rs:\n{code}");
    }
}

#[test]
fn a_set_of_ones_own_is_a_set() {
    struct Squares;
    impl Dataset for Squares {
        fn name(&self) -> &str {
            "squares"
        }
        fn samples(&self) -> usize {
            4
        }
        fn fields(&self) -> &[graphc::data::Field] {
            static FIELDS: std::sync::OnceLock<[graphc::data::Field; 1]> =
                std::sync::OnceLock::new();
            let ty = || TensorType::new(DType::F32, [1]);
            let kind = graphc::data::FieldKind::Plain;
            FIELDS.get_or_init(|| [graphc::data::Field::new("x", ty(), kind)])
        }
        fn read(
            &self,
            i: usize,
            _: usize,
            into: &mut [u8],
        ) -> Result<(), graphc::data::DatasetError> {
            into.copy_from_slice(&((i * i) as f32).to_ne_bytes());
            Ok(())
        }
    }
    let inputs = BTreeMap::from([("x".to_owned(), TensorType::new(DType::F32, [4, 1]))]);
    let loader = Loader::new(Arc::new(Squares), &inputs, LoaderOptions::evaluation());
    let batch = loader.expect("it fits").make(0).expect("it can be read");
    assert_eq!(batch.feeds["x"].to_f32().expect("f32"), [0.0, 1.0, 4.0, 9.0]);
}
