//! A step whose loss is not finite, where such steps are to be skipped: it changes no variable on any rank, whatever the mesh, and what
//! follows is as if it had not been.

use crate::support;
use crate::support::{fails, graphc, reference, succeeds, training};
use graphc::nn::{BatchNorm1d, Module};
use graphc::prelude::*;
use serde_json::Value;

const BATCH: usize = 12;

fn network() -> Graph {
    let g = GraphBuilder::new("network");
    let init = |std: f64| Init::Normal { mean: 0.0.into(), std: std.into() };
    let x = g.input("x", DType::F32, [BATCH, 6]);
    let h = x.matmul(&g.variable("a", DType::F32, [6, 8], init(0.5)));
    let h = BatchNorm1d::new(&g, "norm", 8).forward(&h).relu();
    g.output("scores", &h.matmul(&g.variable("b", DType::F32, [8, 4], init(0.5))));
    g.finish().expect("a graph")
}

/// Rows of a number; of the poisoned ones a single element of the last sample is no number.
fn feeds(seed: usize, poisoned: bool) -> BTreeMap<String, HostTensor> {
    let mut x: Vec<f32> =
        (0..BATCH * 6).map(|i| ((i * i + 31 * seed) % 17) as f32 / 8.0 - 1.0).collect();
    if poisoned {
        x[(BATCH - 1) * 6] = f32::NAN;
    }
    let labels: Vec<i64> = (0..BATCH).map(|i| ((i * 5 + seed) % 4) as i64).collect();
    BTreeMap::from([
        ("x".into(), HostTensor::from_f32([BATCH, 6], &x).expect("a tensor")),
        ("labels".into(), HostTensor::from_i64([BATCH], &labels).expect("a tensor")),
    ])
}

fn options() -> CompileOptions {
    let adam = AdamOptions { lr: 0.05, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 };
    CompileOptions {
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(adam)),
        ema: Some(0.5),
        skip_non_finite: true,
        ..CompileOptions::default()
    }
}

fn session(options: &CompileOptions) -> Session {
    let plan = compile(network(), options, &preset("cpu").expect("a preset"), None);
    let plan = plan.expect("a plan").plan;
    Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("a session")
}

fn variables(session: &mut Session) -> BTreeMap<String, Vec<f64>> {
    let names: Vec<String> = session.variables().into_keys().collect();
    let value = |name: String| {
        let value = session.variable(&name).expect("a variable").to_f64();
        (name, value)
    };
    names.into_iter().map(value).collect()
}

/// The variables after steps on these batches, of which `None` is one that must change nothing.
fn after(options: &CompileOptions, batches: &[Option<usize>]) -> BTreeMap<String, Vec<f64>> {
    let mut session = session(options);
    for batch in batches {
        let before = variables(&mut session);
        let feeds = feeds(batch.unwrap_or(3), batch.is_none());
        let outputs = session.step(feeds).expect("a step").wait().expect("outputs");
        let (loss, skipped) = (outputs["loss"].to_f64()[0], outputs.get("skipped"));
        assert_eq!(loss.is_nan(), batch.is_none());
        if options.skip_non_finite {
            assert_eq!(skipped.expect("an output").to_f64(), [f64::from(batch.is_none())]);
        }
        let mut now = variables(&mut session);
        if batch.is_none() {
            let count = |all: &BTreeMap<String, Vec<f64>>| all["state.skipped_steps"][0];
            assert_eq!(count(&now), count(&before) + 1.0);
            now.insert("state.skipped_steps".into(), before["state.skipped_steps"].clone());
            assert_eq!(now, before, "{:?} {:?}", options.mesh, options.strategy);
        } else {
            assert_ne!(now, before);
        }
    }
    let mut all = variables(&mut session);
    all.remove("state.skipped_steps");
    all
}

fn near(found: &BTreeMap<String, Vec<f64>>, expected: &BTreeMap<String, Vec<f64>>, what: &str) {
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    for (name, expected) in expected {
        for (found, expected) in found[name].iter().zip(expected) {
            let far = (found - expected).abs();
            assert!(far < 2e-5 * (1.0 + expected.abs()), "{what} {name}: {found}, not {expected}");
        }
    }
}

#[test]
fn a_skipped_step_changes_nothing_on_any_mesh() {
    let with = [None, Some(0), None, Some(1), None, Some(2)];
    let without = [Some(0), Some(1), Some(2)];
    let of = |mesh: &[usize], strategy, stages, microbatches| CompileOptions {
        mesh: mesh.to_vec(),
        strategy,
        stages,
        microbatches,
        ..options()
    };
    use Strategy::{Auto, Data, Megatron, Zero1, Zero2, Zero3};
    for on in [
        of(&[1], Auto, 1, 1),
        of(&[3], Auto, 1, 2),
        of(&[2, 2], Auto, 1, 1),
        of(&[2], Data, 1, 1),
        of(&[3], Zero1, 1, 1),
        of(&[2], Zero2, 1, 2),
        of(&[2, 2], Zero3, 1, 1),
        of(&[2], Megatron, 1, 1),
        of(&[2], Auto, 2, 2),
        of(&[4], Zero3, 2, 3),
    ] {
        let what = format!("{:?} {:?} {} stages", on.mesh, on.strategy, on.stages);
        let plain = CompileOptions { skip_non_finite: false, ..on.clone() };
        near(&after(&on, &with), &after(&plain, &without), &what);
    }
}

#[test]
fn every_optimizer_stays_where_it_is() {
    let rmsprop = RmspropOptions {
        lr: 0.01,
        alpha: 0.9,
        eps: 1e-8,
        weight_decay: 0.0,
        momentum: 0.9,
        centered: true,
    };
    let lamb = AdamOptions { lr: 0.05, beta1: 0.9, beta2: 0.99, eps: 1e-6, weight_decay: 0.1 };
    for optimizer in [
        Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.1 },
        Optimizer::Lamb(lamb),
        Optimizer::Rmsprop(rmsprop),
        Optimizer::muon(0.05),
        Optimizer::nadam(0.05),
    ] {
        let clip_norm = Some(0.5);
        let on =
            CompileOptions { mesh: vec![2], optimizer: Some(optimizer), clip_norm, ..options() };
        let plain = CompileOptions { skip_non_finite: false, ..on.clone() };
        let found = after(&on, &[Some(0), None, Some(1)]);
        near(&found, &after(&plain, &[Some(0), Some(1)]), &format!("{optimizer:?}"));
    }
}

#[test]
fn the_scale_of_a_half_precision_loss_stays_too() {
    for mesh in [vec![1], vec![2]] {
        let on = CompileOptions { mesh, precision: Some(DType::F16), ..options() };
        let found = after(&on, &[Some(0), None, Some(1)]);
        assert_eq!(found["state.loss_scale"], [65536.0]);
        assert_eq!(found["state.loss_scale.updates"], [2.0]);
    }
}

#[test]
fn who_asks_for_nothing_pays_nothing() {
    let plain = CompileOptions { skip_non_finite: false, ..options() };
    let plan = compile(network(), &plain, &preset("cpu").expect("a preset"), None);
    let text = graphc::plan::write_plan(&plan.expect("a plan").plan);
    for trace in ["skip", "non_finite"] {
        assert!(!text.contains(trace), "{trace}");
    }
}

/// Data whose third batch of 16 has a sample that is no number.
fn poisoned(folder: &std::path::Path) -> String {
    use graphc::runtime::data::{load_safetensors, save_safetensors};
    let own = reference("mlp").join("data.safetensors");
    let mut tensors = load_safetensors(&own).expect("data");
    let x = tensors.values_mut().find(|tensor| tensor.dtype() == DType::F32).expect("an input");
    let row = x.bytes().len() / x.shape()[0];
    x.bytes_mut()[40 * row..40 * row + 4].copy_from_slice(&f32::NAN.to_ne_bytes());
    let path = folder.join("poisoned.safetensors");
    save_safetensors(&path, &tensors).expect("writable");
    path.display().to_string()
}

const SGD: [&str; 8] =
    ["--loss", "cross_entropy", "--optimizer", "sgd", "--batch", "16", "--lr", "0.05"];

#[test]
fn the_command_counts_skipped_steps() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (data, metrics, plan) = (poisoned(folder.path()), path("m"), path("plan.json"));
    let mut args = training("mlp", &SGD);
    args[3].clone_from(&data);
    let own = ["--steps", "8", "--on-nan", "skip", "--metrics", &metrics].map(String::from);
    let output = graphc([args, own.to_vec()].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("2 steps changed nothing"), "{said}");
    let lines = std::fs::read_to_string(&metrics).expect("metrics");
    let lines: Vec<Value> = support::json_lines(&lines);
    let skipped: Vec<bool> =
        lines.iter().map(|line| line["skipped"].as_bool().expect("said")).collect();
    assert_eq!(
        skipped,
        [2, 6].iter().fold(vec![false; 8], |mut all, &at| {
            all[at] = true;
            all
        })
    );
    assert!(lines[2]["loss"].is_null() && lines[7]["loss"].is_number());

    // A plan has it, or has it not.
    let model = reference("mlp").join("model.onnx").display().to_string();
    let compile = [&["compile", &model, "-o", &plan][..], &SGD].concat();
    succeeds([&compile[..], &["--on-nan", "skip"]].concat());
    let own = ["train", &plan, "--data", &data, "--steps", "4"];
    succeeds(own);
    let error = fails([&own[..], &["--on-nan", "stop"]].concat());
    assert!(error.contains("--on-nan stop contradicts") && error.contains("with skip"), "{error}");
    succeeds(&compile);
    let error = fails([&own[..], &["--on-nan", "skip"]].concat());
    assert!(error.contains("--on-nan skip contradicts"), "{error}");
    let error = fails([&compile[..], &["--on-nan", "ignore"]].concat());
    assert!(error.contains("only skip makes another plan"), "{error}");
}

#[test]
fn who_has_met_a_loss_that_is_no_number_may_go_on_skipping() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, save) = (poisoned(folder.path()), folder.path().join("save").display().to_string());
    let mut args = training("mlp", &SGD);
    args[3].clone_from(&data);
    let run =
        |extra: &[&str]| [args.clone(), extra.iter().map(ToString::to_string).collect()].concat();
    fails(run(&["--steps", "6", "--save", &save, "--save-every", "2"]));
    let resume = ["--steps", "6", "--save", &save, "--resume", &save];
    fails(run(&resume));
    succeeds(run(&[&resume[..], &["--on-nan", "skip"]].concat()));
    // And the other way: what it has counted is not missed.
    succeeds(run(&["--steps", "6", "--resume", &save]));
}
