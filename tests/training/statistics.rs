//! Running statistics of an exported model on the command line: trained, frozen, saved, exported, averaged.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support;
use crate::support::{Reference, fails, reference, succeeds, training};
use graphc::prelude::HostTensor;
use graphc::runtime::data::load_safetensors;

fn read(path: &str) -> BTreeMap<String, HostTensor> {
    load_safetensors(Path::new(path)).expect("is there")
}

fn train(extra: &[&str]) {
    succeeds([training("resnet", extra), Reference::load("resnet").args].concat());
}

/// Returns PyTorch's running statistics after the same steps: see `running.py` beside the reference.
fn recorded() -> BTreeMap<String, Vec<f64>> {
    let text = std::fs::read_to_string(reference("resnet").join("running.json"));
    serde_json::from_str(&text.expect("is there")).expect("JSON")
}

fn hold(weights: &BTreeMap<String, HostTensor>, what: &str) {
    for (name, expected) in recorded() {
        let found = weights[&name].to_f64();
        let greatest = expected.iter().fold(0.0f64, |greatest, x| greatest.max(x.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            let far = (found - expected).abs() / greatest;
            assert!(far <= 2e-3, "{what}, {name}: {found} instead of {expected}");
        }
    }
}

#[test]
fn an_exported_models_statistics_run_as_pytorchs() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let weights = folder.path().join("weights.safetensors").display().to_string();
    for extra in [&["--mesh", "1"], &["--mesh", "2x2"]] {
        train(&[extra.as_slice(), &["--weights", &weights]].concat());
        hold(&read(&weights), extra[1]);
    }
}

/// Frozen weights stay, but their statistics run on. At a learning rate of 0 all weights stay, so these are the same.
#[test]
fn statistics_of_frozen_layers_run_on() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let [all, frozen] = ["all", "frozen"].map(|name| {
        let path = folder.path().join(name).with_extension("safetensors");
        path.display().to_string()
    });
    let once = ["--mesh", "1", "--lr", "0"];
    let base = [
        training("resnet", &once),
        ["--loss", "cross_entropy", "--optimizer", "sgd", "--steps", "3", "--batch", "16"]
            .map(String::from)
            .to_vec(),
    ]
    .concat();
    let run = |more: &[&str]| {
        succeeds([base.clone(), more.iter().map(ToString::to_string).collect()].concat());
    };
    run(&["--weights", &all]);
    run(&["--weights", &frozen, "--freeze", "bn.*", "--freeze", "body.*", "--freeze", "stem.*"]);
    let [all, frozen] = [read(&all), read(&frozen)];
    for name in recorded().keys() {
        assert_eq!(all[name], frozen[name], "{name}");
    }
    assert!(all["bn.running_var"].to_f64().iter().all(|&x| x != 1.0));
}

/// Scales and shifts are trained, by the statistics that are kept.
#[test]
fn kept_statistics_stay_on_every_mesh() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let weights = folder.path().join("weights.safetensors").display().to_string();
    let mut first: Option<BTreeMap<String, HostTensor>> = None;
    for extra in [&["--mesh", "1"][..], &["--mesh", "2x2"], &["--mesh", "2", "--microbatches", "8"]]
    {
        train(&[extra, &["--keep-statistics", "*", "--weights", &weights]].concat());
        let found = read(&weights);
        for name in recorded().keys() {
            let begun = if name.ends_with("running_var") { 1.0 } else { 0.0 };
            assert!(found[name].to_f64().iter().all(|&x| x == begun), "{extra:?} {name}");
        }
        assert!(found["bn.weight"].to_f64().iter().all(|&x| x != 1.0), "{extra:?}");
        // Samples do not see each other, so microbatches change nothing but the order of sums.
        let first = first.get_or_insert_with(|| found.clone());
        for (name, tensor) in first {
            let (found, first) = (found[name].to_f64(), tensor.to_f64());
            let far = found.iter().zip(&first).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(far < 1e-3, "{extra:?} {name}: {far}");
        }
    }
    let all = [training("resnet", &["--keep-statistics", "bm.*"]), Reference::load("resnet").args];
    let error = fails(all.concat());
    assert!(
        error.contains("no batch norm has running statistics with a name like `bm.*`"),
        "{error}"
    );
}

#[test]
fn a_batch_norm_of_one_value_per_channel_is_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let model = folder.path().join("bn.gir");
    let text = r#"graph @norm {
  %x = input "x" : f32[batch, 5]
  %scale = variable "bn.weight" {init={"fill": 1}, trainable=true} : f32[5]
  %mean = variable "bn.running_mean" {init={"fill": 0}} : f32[5]
  %variance = variable "bn.running_var" {init={"fill": 1}} : f32[5]
  %y = batch_norm %x, %scale, %mean, %mean, %variance {epsilon=0.00001} : f32[batch, 5]
  return "y" = %y
}
"#;
    std::fs::write(&model, text).expect("a scratch file");
    let model = model.display().to_string();
    let training = ["--loss", "sum", "--optimizer", "sgd", "--lr", "0.1"];
    let compile = |extra: &[&str]| -> Vec<String> {
        let options = ["compile", &model].into_iter().chain(training);
        options.chain(extra.iter().copied()).map(String::from).collect()
    };
    let error = fails(compile(&["--batch", "4", "--microbatches", "4"]));
    let whole = "normalizes f32[4, 5] by the statistics of each of 4 microbatches";
    assert!(error.contains(whole) && error.contains("fewer microbatches"), "{error}");
    let error = fails(compile(&["--batch", "1"]));
    assert!(error.contains("more than 1; take a larger batch, or keep"), "{error}");
    succeeds(compile(&["--batch", "4", "--microbatches", "2"]));
    succeeds(compile(&["--batch", "1", "--keep-statistics", "bn.*"]));
    // Inference takes what is given.
    succeeds(["compile", &model, "--batch", "1"]);
}

#[test]
fn checkpoints_hold_statistics_and_averages() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (saved, weights) = (path("saved"), path("weights.safetensors"));
    train(&["--mesh", "2", "--ema", "0.5", "--save", &saved, "--weights", &weights]);
    let weights = read(&weights);
    hold(&weights, "trained");
    let (plain, averaged) = (path("plain.safetensors"), path("averaged.safetensors"));
    succeeds(["export", &saved, "-o", &plain]);
    assert_eq!(read(&plain), weights);
    succeeds(["export", &saved, "-o", &averaged, "--ema"]);
    let averaged = read(&averaged);
    assert_eq!(averaged.len(), weights.len());
    assert_eq!(averaged["bn.running_mean"], weights["bn.running_mean"]);
    let [new, average] = [&weights, &averaged].map(|of| of["fc.bias"].to_f64());
    assert!(new.iter().zip(&average).all(|(new, average)| new != average));
    let plain = path("without");
    train(&["--mesh", "1", "--save", &plain]);
    let error = fails(["export", &plain, "-o", &path("none.safetensors"), "--ema"]);
    assert!(error.contains("train with --ema"), "{error}");
}

#[test]
fn an_average_of_no_share_is_refused() {
    let args = [training("resnet", &["--ema", "1"]), Reference::load("resnet").args].concat();
    let output = support::graphc(&args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("--ema") && error.contains("at least 0 and below 1"), "{error}");
}
