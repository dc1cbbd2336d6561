//! Models of 16-bit numbers run on the CPU: weights, inputs and outputs through files and sessions, on any mesh, with the
//! same bits on threads and in every run.

use std::path::Path;

use crate::support::succeeds;
use graphc::ir::text::print_graph;
use graphc::prelude::*;
use graphc::runtime::data::{load_safetensors, save_safetensors};

const ROWS: usize = 8;
const WIDTH: usize = 40;

/// softmax(gelu(x w) + b), its mean over rows, and where it is greatest.
fn model(dtype: DType) -> String {
    let g = GraphBuilder::new("rows");
    let x = g.input("x", dtype, [ROWS, WIDTH]);
    let normal = Init::Normal { mean: 0.0.into(), std: 1.0.into() };
    let w = g.variable("w", dtype, [WIDTH], normal.clone());
    let b = g.variable("b", dtype, [WIDTH], normal);
    let y = ((x * w).gelu() + b).softmax(1);
    g.output("mean", &y.mean(&[0], false));
    g.output("y", &y);
    print_graph(&g.finish().expect("a graph"))
}

fn input(dtype: DType) -> HostTensor {
    let data: Vec<f64> = (0..ROWS * WIDTH).map(|i| f64::from(i as u32 % 37) * 0.1 - 1.8).collect();
    HostTensor::from_f64(dtype, [ROWS, WIDTH], &data).expect("as many as the shape has")
}

/// The outputs of `graphc run` on a mesh.
fn run(folder: &Path, dtype: DType, mesh: &str) -> BTreeMap<String, HostTensor> {
    let path = |name: &str| folder.join(name).display().to_string();
    std::fs::write(path("model.gir"), model(dtype)).expect("a scratch file");
    let inputs = BTreeMap::from([("x".to_owned(), input(dtype))]);
    save_safetensors(Path::new(&path("in.safetensors")), &inputs).expect("the inputs are written");
    let (model, inputs, outputs) =
        (path("model.gir"), path("in.safetensors"), path("out.safetensors"));
    let options = ["run", &model, "--mesh", mesh, "--strategy", "data"];
    succeeds(options.into_iter().chain(["--inputs", &inputs, "--outputs", &outputs]));
    load_safetensors(Path::new(&path("out.safetensors"))).expect("the outputs are written")
}

#[test]
fn outputs_are_near_those_of_f32_and_of_the_models_type() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let exact = run(folder.path(), DType::F32, "1");
    for (dtype, tolerance) in [(DType::BF16, 0.1), (DType::F16, 0.0125)] {
        for mesh in ["1", "2", "4"] {
            let found = run(folder.path(), dtype, mesh);
            assert_eq!(found, run(folder.path(), dtype, mesh), "two runs, one result");
            for (name, found) in &found {
                assert_eq!(found.dtype(), dtype, "{name}");
                for (a, b) in found.to_f64().iter().zip(exact[name].to_f64()) {
                    assert!((a - b).abs() <= tolerance * b.abs() + 1e-4, "{dtype} {name} {mesh}");
                }
            }
        }
    }
}

const SAMPLES: usize = 512;

/// A classifier of five classes whose weights, `w` and `v`, are of this type.
fn classifier(dtype: DType) -> String {
    let g = GraphBuilder::new("classifier");
    let x = g.input("x", DType::F32, [SAMPLES, 8]).cast(dtype);
    let normal = Init::Normal { mean: 0.0.into(), std: 0.5.into() };
    let w = g.variable("w", dtype, [8, 16], normal.clone());
    let v = g.variable("v", dtype, [16, 5], normal);
    g.output("z", &x.matmul(&w).tanh().matmul(&v));
    print_graph(&g.finish().expect("a graph"))
}

/// Numbers of both signs without a pattern, and classes.
fn samples() -> BTreeMap<String, HostTensor> {
    let number = |i: usize| ((i as f64 * 12.9898).sin() * 43758.5453).fract() * 3.0;
    let x: Vec<f64> = (0..SAMPLES * 8).map(number).collect();
    let labels: Vec<f64> = (0..SAMPLES).map(|i| ((i * 7 + i / 3) % 5) as f64).collect();
    let x = HostTensor::from_f64(DType::F32, [SAMPLES, 8], &x).expect("as many as the shape has");
    let labels = HostTensor::from_f64(DType::I64, [SAMPLES], &labels).expect("as many");
    BTreeMap::from([("x".to_owned(), x), ("labels".to_owned(), labels)])
}

/// The weights after one step of SGD.
fn weights(folder: &Path, lr: f64, extra: &[&str]) -> BTreeMap<String, Vec<f64>> {
    let path = |name: &str| folder.join(name).display().to_string();
    let (model, data, weights) =
        (path("classifier.gir"), path("data.safetensors"), path("w.safetensors"));
    let (lr, samples) = (lr.to_string(), SAMPLES.to_string());
    let options = ["train", &model, "--data", &data, "--batch", &samples, "--steps", "1"];
    let training = ["--loss", "cross_entropy", "--optimizer", "sgd", "--lr", &lr];
    let options = options.into_iter().chain(training).chain(["--weights", &weights]);
    succeeds(options.chain(extra.iter().copied()));
    let weights = load_safetensors(Path::new(&weights)).expect("the weights are written");
    weights.into_iter().map(|(name, tensor)| (name, tensor.to_f64())).collect()
}

/// Sums in half precision would be off by 2e-2 of bf16 and by 4e-3 of f16.
#[test]
fn gradients_of_many_microbatches_are_those_of_one() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("data.safetensors");
    save_safetensors(&file, &samples()).expect("the samples are written");
    // Steps so long that of the new weights the old ones are no part that counts.
    for (dtype, lr, tolerance) in [(DType::BF16, 16384.0, 6e-3), (DType::F16, 64.0, 1.5e-3)] {
        std::fs::write(folder.path().join("classifier.gir"), classifier(dtype)).expect("a file");
        let before = weights(folder.path(), 0.0, &[]);
        let one = weights(folder.path(), lr, &[]);
        for extra in [&["--mesh", "1"][..], &["--mesh", "2", "--strategy", "zero3"]] {
            let many = weights(folder.path(), lr, &[extra, &["--microbatches", "256"]].concat());
            for (name, one) in &one {
                let steps = one.iter().zip(&before[name]).map(|(after, before)| after - before);
                let longest = steps.fold(0.0, |longest: f64, step| longest.max(step.abs()));
                let apart = one.iter().zip(&many[name]).map(|(one, many)| (one - many).abs());
                let error = apart.fold(0.0, f64::max) / longest;
                assert!(error < tolerance, "{dtype} {name} {extra:?}: {error:.1e}");
            }
        }
    }
}
