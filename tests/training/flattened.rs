//! Scores of which a sample has several rows, `[batch * time, classes]`, as many models give them: labels and targets stay those of
//! samples, and training is that of the model that gives `[batch, time, classes]`.

use std::path::Path;

use crate::support::{losses, succeeds};
use graphc::ir::builder::{BuildErrors, GraphBuilder};
use graphc::ir::ops::Init;
use graphc::ir::text::print_for_any_batch;
use graphc::ir::types::DType;
use graphc::runtime::HostTensor;
use graphc::runtime::data::save_safetensors;

const TIME: usize = 3;
const CLASSES: usize = 5;
const SAMPLES: usize = 10;

fn model(flat: bool) -> String {
    let text = print_for_any_batch("batch", |batch| {
        let g = GraphBuilder::new("model");
        let x = g.input("x", DType::F32, [batch, TIME, 4]);
        let init = Init::Normal { mean: 0.0.into(), std: 0.5.into() };
        let y = x.tanh().matmul(&g.variable("w", DType::F32, [4, CLASSES], init));
        g.output("y", &if flat { y.reshape(&[batch * TIME, CLASSES]) } else { y });
        g.finish()
    });
    let text: Result<_, BuildErrors> = text;
    text.expect("it fits").expect("sizes are multiples")
}

/// Ten samples, of which one step's label is ignored.
fn write_data(folder: &Path) {
    let numbers = |width: usize| -> Vec<f32> {
        (0..SAMPLES * TIME * width).map(|at| (0.7 + 1.9 * at as f64).sin() as f32).collect()
    };
    let mut labels: Vec<i64> = (0..SAMPLES * TIME).map(|at| (at * 7 % CLASSES) as i64).collect();
    labels[4] = -100;
    let floats = |width| HostTensor::from_f32([SAMPLES, TIME, width], &numbers(width));
    let tensors = [
        ("x".to_owned(), floats(4).expect("it fits")),
        ("target".to_owned(), floats(CLASSES).expect("it fits")),
        ("labels".to_owned(), HostTensor::from_i64([SAMPLES, TIME], &labels).expect("it fits")),
    ];
    save_safetensors(&folder.join("data.safetensors"), &tensors.into()).expect("writable");
}

/// The losses of a training that evaluates behind its last step, the last one's evaluation, and what a step counts.
fn train(folder: &Path, flat: bool, extra: &[&str]) -> Vec<f64> {
    std::fs::write(folder.join("model.gir"), model(flat)).expect("writable");
    let file = |name: &str| folder.join(name).display().to_string();
    let data = file("data.safetensors");
    let files = ["--data", &data, "--eval-data", &data, "--metrics", &file("losses.jsonl")];
    let options = "--optimizer sgd --lr 0.3 --batch 4 --steps 5 --seed 3";
    let mut args = vec!["train".to_owned(), file("model.gir")];
    args.extend(files.iter().copied().chain(options.split(' ')).map(str::to_owned));
    args.extend(extra.iter().map(ToString::to_string));
    succeeds(args);
    let metrics = std::fs::read(folder.join("losses.jsonl")).expect("metrics");
    let text = String::from_utf8(metrics.clone()).expect("UTF-8");
    let last: serde_json::Value =
        serde_json::from_str(text.lines().last().expect("steps")).expect("JSON");
    let mut found = losses(&metrics);
    found.extend(["loss", "samples"].map(|name| last["eval"][name].as_f64().expect("a number")));
    found
}

#[test]
fn labels_and_targets_of_flattened_scores_are_those_of_samples() {
    let folder = tempfile::tempdir().expect("a folder");
    write_data(folder.path());
    for loss in ["cross_entropy", "mse", "nll"] {
        let own = ["--loss", loss];
        let expected = train(folder.path(), false, &own);
        assert!(expected[4] < expected[0] || loss == "nll", "{loss} learns: {expected:?}");
        for extra in [
            &[][..],
            &["--mesh", "2"],
            &["--mesh", "2x2"],
            &["--microbatches", "2"],
            &["--mesh", "2", "--microbatches", "2", "--strategy", "zero2"],
        ] {
            let found = train(folder.path(), true, &[&own[..], extra].concat());
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs();
            let holds = found.len() == expected.len() && found.iter().zip(&expected).all(near);
            assert!(holds, "{loss} {extra:?}: {found:?} is not {expected:?}");
        }
    }
}
