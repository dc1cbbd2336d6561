//! Trainings that have gone wrong are never called good: those of f16, whose steps are skipped, end like those of f32; what is not
//! finite is neither saved nor evaluated; and a directory of checkpoints in which a manifest is missing stops nobody.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support;
use crate::support::{fails, graphc, reference, succeeds, training};
use graphc::prelude::*;
use graphc_runtime::data::save_safetensors;
use serde_json::Value;

const SGD: [&str; 6] = ["--loss", "cross_entropy", "--optimizer", "sgd", "--batch", "16"];

/// The training of `mlp` with these arguments.
fn train(extra: &[&str]) -> Vec<String> {
    training("mlp", &[&SGD[..], extra].concat())
}

fn lines(metrics: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(metrics).expect("metrics");
    support::json_lines(&text)
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

#[test]
fn a_loss_that_is_not_finite_ends_a_training_in_each_precision() {
    for precision in ["f32", "bf16", "f16"] {
        let error = fails(train(&["--lr", "1e30", "--steps", "30", "--precision", precision]));
        assert!(error.contains("weights after it are of no use"), "{precision}: {error}");
    }
}

/// Gradients so large that the square of their norm is infinite, behind a loss that is not: all processes end, with one account.
#[test]
fn a_norm_that_is_not_finite_ends_a_training_on_all_processes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, data) = (path(folder.path(), "m.gir"), path(folder.path(), "d.safetensors"));
    let graph = "graph @large {\n  %x = input \"x\" : f32[4, 2]\n  %w = variable \"w\" {init={\"fill\": 1}, trainable=true} : f32[2, 1]\n  \
                 %y = matmul %x, %w : f32[4, 1]\n  return \"y\" = %y\n}\n";
    std::fs::write(&model, graph).expect("room");
    let x = HostTensor::from_f32([8, 2], &[1e25; 16]).expect("a tensor");
    save_safetensors(Path::new(&data), &BTreeMap::from([("x".to_owned(), x)])).expect("room");
    let train = [
        "train",
        &model,
        "--data",
        &data,
        "--batch",
        "4",
        "--loss",
        "sum",
        "--optimizer",
        "sgd",
        "--lr",
        "0.1",
    ];
    let train = [&train[..], &["--clip-norm", "1", "--steps", "3", "--mesh", "2"]].concat();
    let launch =
        ["launch", "--standalone", "--nproc-per-node", "2", "--", env!("CARGO_BIN_EXE_graphc")];
    for command in [train.clone(), [&launch[..], &train].concat()] {
        let error = fails(&command);
        let said = "the norm of the gradients of step 0 is inf, its loss 8";
        assert!(
            error.contains(said) && error.contains("weights after it are of no use"),
            "{error}"
        );
    }
}

#[test]
fn a_training_that_only_skips_ends_and_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let metrics = path(folder.path(), "m");
    let run = |extra: &[&str]| {
        let own = ["--lr", "1e30", "--steps", "70", "--precision", "f16", "--metrics", &metrics];
        train(&[&own[..], extra].concat())
    };
    let error = fails(run(&["--on-nan", "skip", "--max-skips", "4"]));
    let said = "5 steps in a row up to step 5 have changed nothing";
    assert!(error.contains(said) && error.contains("--max-skips 4"), "{error}");
    assert_eq!(lines(&metrics).len(), 6, "the first step, and the skipped ones");
    assert!(fails(run(&["--on-nan", "skip"])).contains("51 steps in a row"), "the limit is 50");
    let error = fails(train(&["--lr", "0.1", "--steps", "1", "--max-skips", "4"]));
    assert!(error.contains("no step of this plan is ever skipped"), "{error}");
    // Who ignores it goes on, with a scale that never vanishes.
    let output = graphc(run(&["--on-nan", "ignore"]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("steps changed nothing"), "{said}");
    let scales = lines(&metrics).into_iter().map(|line| line["loss_scale"].as_f64().expect("f16"));
    assert_eq!(scales.fold(f64::INFINITY, f64::min), 1.0);
}

#[test]
fn weights_that_are_not_finite_are_neither_saved_nor_written_nor_evaluated() {
    let folder = tempfile::tempdir().expect("a folder");
    let (save, weights) = (path(folder.path(), "save"), path(folder.path(), "w.safetensors"));
    let ruin = ["--lr", "1e39", "--steps", "1"];
    for mesh in ["1", "2x2"] {
        let error = fails(train(&[&ruin[..], &["--save", &save, "--mesh", mesh]].concat()));
        assert!(error.contains("no checkpoint of them is saved"), "{error}");
    }
    assert_eq!(std::fs::read_dir(&save).expect("a folder").count(), 0);
    let error = fails(train(&[&ruin[..], &["--weights", &weights]].concat()));
    assert!(error.contains("no weights are written"), "{error}");
    assert!(!Path::new(&weights).exists());

    // Who ignores it has them, and everybody is told.
    succeeds(train(&[&ruin[..], &["--save", &save, "--on-nan", "ignore"]].concat()));
    let resume = ["--lr", "0.1", "--steps", "2", "--resume", &save];
    let error = fails(train(&resume));
    assert!(error.contains("weights that are not finite"), "{error}");
    let error = fails(train(&[&resume[..], &["--on-nan", "stop"]].concat()));
    assert!(error.contains("weights that are not finite"), "{error}");
    succeeds(train(&[&resume[..], &["--on-nan", "ignore"]].concat()));
    let (model, data) =
        (path(&reference("mlp"), "model.onnx"), path(&reference("mlp"), "data.safetensors"));
    let own = ["eval", &model, "--weights-from", &save, "--data", &data, "--batch", "16"];
    let error = fails([&own[..], &["--loss", "cross_entropy"]].concat());
    assert!(error.contains("the loss is not finite"), "{error}");
}

#[test]
fn a_checkpoint_without_its_manifest_is_passed_over_and_set_aside() {
    let folder = tempfile::tempdir().expect("a folder");
    let (save, metrics) = (path(folder.path(), "save"), path(folder.path(), "m"));
    let run = |steps: &str| {
        let own = ["--lr", "0.05", "--save", &save, "--save-every", "3", "--resume", &save];
        let output =
            graphc(train(&[&own[..], &["--steps", steps, "--metrics", &metrics]].concat()));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    };
    run("6");
    let whole = lines(&metrics);
    std::fs::remove_file(Path::new(&save).join("step-00000006/manifest.json"))
        .expect("it is there");
    let said = run("8");
    assert!(said.contains("step-00000006 has no manifest.json and is passed over for"), "{said}");
    assert!(said.contains("it is now") && said.contains("step-00000006.incomplete-1"), "{said}");
    assert_eq!(lines(&metrics)[..6], whole[..], "the steps since the one before are made again");
    assert!(Path::new(&save).join("step-00000008/manifest.json").is_file());
    assert!(!run("9").contains("manifest.json"), "it is in nobody's way any more");
}
