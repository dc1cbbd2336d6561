//! Inputs whose samples lie along another dim than the first, and inputs without samples: trained and run as what has its samples
//! first, on any mesh, in microbatches, and by processes.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{fails, graphc, losses, succeeds};
use graphc::ir::builder::{BuildErrors, GraphBuilder, Tensor};
use graphc::ir::ops::Init;
use graphc::ir::text::{print_for_any_batch, print_graph};
use graphc::ir::types::DType;
use graphc::runtime::HostTensor;
use graphc::runtime::data::{load_safetensors, save_safetensors};

const SAMPLES: usize = 10;

/// The model as a text, with time before its samples or behind them.
fn model(time_first: bool) -> String {
    let text = print_for_any_batch("batch", |batch| {
        let g = GraphBuilder::new("model");
        let shape = |outer: usize, width: usize| match time_first {
            true => [outer, batch, width],
            false => [batch, outer, width],
        };
        let x = g.input("x", DType::F32, shape(3, 4));
        let h = g.input("h", DType::F32, shape(2, 5));
        let table = g.input("table", DType::F32, [4, 5]);
        let init = Init::Normal { mean: 0.0.into(), std: 0.5.into() };
        let w = g.variable("w", DType::F32, [5, 5], init);
        let y = x.matmul(&table).matmul(&w).add(&h.sum(&[usize::from(!time_first)], true)).tanh();
        g.output("y", &y);
        g.output("last", &h.matmul(&w));
        g.finish()
    });
    let text: Result<_, BuildErrors> = text;
    text.expect("it fits").expect("sizes are multiples")
}

/// Numbers of `[samples, outer, width]`, in that order or with samples in the middle.
fn numbers(name: &str, outer: usize, width: usize, time_first: bool) -> HostTensor {
    let number = |sample: usize, row: usize, at: usize| {
        let seed = name.bytes().map(f64::from).sum::<f64>();
        (seed + 1.7 * ((sample * outer + row) * width + at) as f64).sin() as f32
    };
    let (blocks, rows) = if time_first { (outer, SAMPLES) } else { (SAMPLES, outer) };
    let mut data = Vec::new();
    for block in 0..blocks {
        for row in 0..rows {
            let (sample, row) = if time_first { (row, block) } else { (block, row) };
            data.extend((0..width).map(|at| number(sample, row, at)));
        }
    }
    HostTensor::from_f32([blocks, rows, width], &data).expect("it fits")
}

/// Model and data in a folder.
fn write(folder: &Path, time_first: bool) {
    std::fs::write(folder.join("model.gir"), model(time_first)).expect("writable");
    let table = numbers("table", 2, 1, false);
    let table = HostTensor::from_f32([4, 5], &table.to_f32().expect("f32")).expect("20");
    let [x, h, target] = [("x", 3, 4), ("h", 2, 5), ("target", 3, 5)]
        .map(|(name, outer, width)| (name.to_owned(), numbers(name, outer, width, time_first)));
    let tensors = [x, h, target, ("table".to_owned(), table)].into();
    save_safetensors(&folder.join("data.safetensors"), &tensors).expect("writable");
}

fn train(folder: &Path, extra: &[&str]) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut args = vec!["train".to_owned(), file("model.gir"), "--data".to_owned()];
    args.extend([file("data.safetensors"), "--metrics".into(), file("losses.jsonl")]);
    let options = "--loss mse --optimizer sgd --lr 0.3 --batch 4 --steps 7 --seed 3";
    args.extend(options.split(' ').chain(extra.iter().copied()).map(str::to_owned));
    args
}

fn trained(folder: &Path, extra: &[&str]) -> Vec<f64> {
    succeeds(train(folder, extra));
    losses(&std::fs::read(folder.join("losses.jsonl")).expect("metrics"))
}

fn assert_near(found: &[f64], expected: &[f64], what: &dyn std::fmt::Debug) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs();
    let holds = found.len() == expected.len() && found.iter().zip(expected).all(near);
    assert!(holds, "{what:?}: {found:?} is not {expected:?}");
}

#[test]
fn samples_behind_time_are_trained_on_as_samples_first() {
    let [first, behind] = [false, true].map(|_| tempfile::tempdir().expect("a folder"));
    write(first.path(), false);
    write(behind.path(), true);
    let expected = trained(first.path(), &[]);
    assert!(expected[6] < expected[0], "it learns: {expected:?}");
    for extra in [
        &[][..],
        &["--mesh", "2"],
        &["--mesh", "2x2"],
        &["--mesh", "2", "--strategy", "data"],
        &["--microbatches", "2"],
        &["--mesh", "2", "--microbatches", "2", "--strategy", "zero2"],
    ] {
        assert_near(&trained(behind.path(), extra), &expected, &extra);
    }
    let shuffled = trained(first.path(), &["--shuffle"]);
    assert!(shuffled != expected, "another order");
    assert_near(&trained(behind.path(), &["--shuffle", "--mesh", "2"]), &shuffled, &"shuffled");
}

#[test]
fn processes_read_their_samples_along_any_dim() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), true);
    let extra = ["--mesh", "2", "--strategy", "data"];
    let threads = trained(folder.path(), &extra);
    let binary = env!("CARGO_BIN_EXE_graphc");
    let output = Command::new(binary)
        .args(["launch", "--standalone", "--nproc-per-node", "2", "--", binary])
        .args(train(folder.path(), &extra))
        .stdin(Stdio::null())
        .output()
        .expect("graphc starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let losses = losses(&std::fs::read(folder.path().join("losses.jsonl")).expect("metrics"));
    assert_eq!(losses, threads, "the bits of threads");
}

#[test]
fn outputs_of_batches_are_put_together_along_their_samples() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), true);
    let file = |name: &str| folder.path().join(name).display().to_string();
    let run = |extra: &[&str]| {
        let [model, data, outputs] = ["model.gir", "data.safetensors", "out.safetensors"].map(file);
        let args = ["run", &model, "--inputs", &data, "--outputs", &outputs];
        succeeds(args.iter().chain(extra));
        load_safetensors(Path::new(&outputs)).expect("it is there")
    };
    let whole = run(&[]);
    assert_eq!(whole["y"].shape(), [3, SAMPLES, 5]);
    assert_eq!(whole["last"].shape(), [2, SAMPLES, 5]);
    assert_eq!(run(&["--batch", "4"]), whole);
    assert_eq!(run(&["--dim", "batch=4", "--mesh", "2"]).keys().count(), 2);
}

/// The result of a model for several samples together depends on how they come in batches, which is said.
#[test]
fn a_model_that_mixes_samples_is_named_where_batches_are_several() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    write(folder.path(), false);
    let said = |op: &dyn Fn(&Tensor) -> Tensor, batch: usize| {
        let g = GraphBuilder::new("mixing");
        g.output("y", &op(&g.input("x", DType::F32, [batch, 3, 4])));
        let graph = g.finish().expect("it fits");
        std::fs::write(file("mixing.gir"), print_graph(&graph)).expect("writable");
        let [model, data, outputs] =
            ["mixing.gir", "data.safetensors", "out.safetensors"].map(file);
        let output = graphc(["run", &model, "--inputs", &data, "--outputs", &outputs]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    };
    let centred = |x: &Tensor| x.sub(&x.mean(&[0], true));
    for name in ["softmax", "reduce"] {
        let op = |x: &Tensor| if name == "softmax" { x.softmax(0) } else { centred(x) };
        let expected = format!("warning: `{name}` makes something of several samples together");
        assert!(said(&op, 4).contains(&expected), "{}", said(&op, 4));
        assert_eq!(said(&op, SAMPLES), "", "all samples at once");
    }
    assert_eq!(said(&|x| x.softmax(2), 4), "");
}

#[test]
fn a_field_of_another_name_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), false);
    let data = folder.path().join("data.safetensors");
    let mut tensors = load_safetensors(&data).expect("it is there");
    let target = tensors.remove("target").expect("it is there");
    tensors.insert("noise".into(), target);
    save_safetensors(&data, &tensors).expect("writable");
    let output = graphc(train(folder.path(), &[]));
    let said = String::from_utf8_lossy(&output.stderr);
    let note =
        "note: the data has no tensor `target`: it is fed with `noise`, the only one that fits";
    assert!(output.status.success() && said.contains(note), "{said}");
}

#[test]
fn evaluation_leaves_out_what_fills_up_a_batch() {
    let [first, behind] = [false, true].map(|_| tempfile::tempdir().expect("a folder"));
    let scores = |folder: &Path, time_first: bool| -> f64 {
        write(folder, time_first);
        let file = |name: &str| folder.join(name).display().to_string();
        let head =
            ["eval".to_owned(), file("model.gir"), "--data".to_owned(), file("data.safetensors")];
        let options = "--batch 4 --loss mse --format json".split(' ').map(str::to_owned);
        let text = succeeds(head.into_iter().chain(options));
        let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(found["samples"], SAMPLES);
        found["loss"].as_f64().expect("a number")
    };
    assert_near(&[scores(behind.path(), true)], &[scores(first.path(), false)], &"evaluation");
}

#[test]
fn what_has_another_number_of_samples_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), true);
    let data = folder.path().join("data.safetensors");
    let mut tensors = load_safetensors(&data).expect("it is there");
    let (h, table) = (tensors["h"].clone(), tensors["table"].clone());
    tensors.insert("h".into(), HostTensor::zeros(DType::F32, [2, 9, 5]));
    save_safetensors(&data, &tensors).expect("writable");
    let error = fails(train(folder.path(), &[]));
    assert!(error.contains("h f32[2, 9, 5] along dim 1, "), "{error}");
    tensors.extend([("h".into(), h), ("table".into(), HostTensor::zeros(DType::F32, [10, 5]))]);
    save_safetensors(&data, &tensors).expect("writable");
    let error = fails(train(folder.path(), &[]));
    assert!(error.contains("`table` is f32[10, 5], and the model takes f32[4, 5]"), "{error}");
    tensors.insert("table".into(), table);
    save_safetensors(&data, &tensors).expect("writable");
    let error = fails(train(folder.path(), &["--microbatches", "3"]));
    assert!(error.contains("dim 1 of the input `x` has extent 4, which 3 microbatches"), "{error}");
    assert!(graphc(train(folder.path(), &[])).status.success());
}
