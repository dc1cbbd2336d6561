//! A file of weights and a checkpoint hold the model's own tensors, all of them and nothing that is computed, and what they hold counts
//! whatever is frozen and however long inputs are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::support::{Scratch, fails, graphc, losses, succeeds};
use graphc::prelude::*;
use graphc::runtime::Checkpoint;
use graphc::runtime::data::{load_safetensors, save_safetensors};

type Tensors = BTreeMap<String, HostTensor>;

fn export(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exports").join(name).display().to_string()
}

impl Scratch {
    fn write(&self, name: &str, tensors: &Tensors) -> String {
        save_safetensors(self.path(name).as_ref(), tensors).expect("writable");
        self.path(name)
    }

    /// The first output of a model for inputs.
    fn first_output(&self, model: &str, inputs: &str, extra: &[&str]) -> Vec<f64> {
        let outputs = self.path("outputs");
        let own = ["run", model, "--inputs", inputs, "--outputs", &outputs];
        succeeds(own.iter().chain(extra));
        self.tensors("outputs").into_values().next().expect("an output").to_f64()
    }

    /// The losses of a training by SGD on cross entropy.
    fn train_model(&self, model: &str, data: &str, extra: &[&str]) -> Vec<f64> {
        let metrics = self.path("metrics");
        succeeds([&training(model, data)[..], &["--metrics", &metrics], extra].concat());
        losses(&std::fs::read(metrics).expect("metrics"))
    }
}

fn training<'a>(model: &'a str, data: &'a str) -> Vec<&'a str> {
    let options = ["--loss", "cross_entropy", "--optimizer", "sgd"];
    [&["train", model, "--data", data][..], &options].concat()
}

/// Numbers of one row after the other, the same on each call.
fn numbers(shape: &[usize]) -> HostTensor {
    let count = shape.iter().product::<usize>();
    let data: Vec<f32> = (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
    HostTensor::from_f32(shape.to_vec(), &data).expect("as many")
}

fn shifted(tensor: &HostTensor, by: f64) -> HostTensor {
    let data: Vec<f64> = tensor.to_f64().into_iter().map(|x| x + by).collect();
    HostTensor::from_f64(tensor.dtype(), tensor.shape().to_vec(), &data).expect("the same type")
}

fn are_close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

/// The model's own tensors, as they come out of a training that changes nothing.
fn tensors_of(files: &Scratch, model: &str, data: &str, extra: &[&str]) -> Tensors {
    let weights = files.path("own");
    files.train_model(
        model,
        data,
        &[&["--lr", "0", "--steps", "1", "--weights", &weights], extra].concat(),
    );
    files.tensors("own")
}

const FROZEN: [&str; 10] =
    ["g", "cls", "rb", "gamma", "temp", "o.bias", "prelu.weight", "v", "pos", "big"];

fn own_data(files: &Scratch, classes: i64) -> String {
    let labels: Vec<f64> = (0..4).map(|i| f64::from(i) % classes as f64).collect();
    let labels = HostTensor::from_f64(DType::I64, [4], &labels).expect("four");
    let tensors = [("x".to_owned(), numbers(&[4, 6])), ("labels".to_owned(), labels)];
    files.write("data", &tensors.into())
}

/// PyTorch's loss with these weights is 186.93298, whatever is frozen.
#[test]
fn weights_from_counts_for_what_is_frozen() {
    let files = Scratch::new();
    let (model, data) = (export("frozen.onnx"), export("frozen.safetensors"));
    let other = export("frozen_weights.safetensors");
    let all: BTreeSet<String> =
        load_safetensors(other.as_ref()).expect("there").into_keys().collect();
    for name in FROZEN {
        let (weights, lr) = (files.path("after"), "0.05");
        let options = ["--batch", "8", "--steps", "1", "--lr", lr, "--freeze", name];
        let from = ["--weights-from", &other, "--weights", &weights];
        let loss = files.train_model(&model, &data, &[&options[..], &from].concat());
        assert!((loss[0] / 186.93298 - 1.0).abs() < 1e-4, "{name} frozen: {}", loss[0]);
        let after = files.tensors("after");
        let missing: Vec<&String> = all.iter().filter(|name| !after.contains_key(*name)).collect();
        assert!(missing.is_empty(), "{name} frozen: {missing:?}");
        assert_eq!(after[name], load_safetensors(other.as_ref()).expect("there")[name]);
    }
}

#[test]
fn buffers_are_those_of_the_file_whatever_reads_them() {
    let files = Scratch::new();
    let model = export("buffers.onnx");
    let data = own_data(&files, 5);
    let own = tensors_of(&files, &model, &data, &["--batch", "4"]);
    let names: Vec<&str> = own.keys().map(String::as_str).collect();
    assert_eq!(names, ["freq", "l.bias", "l.weight", "mean", "std", "zeros"]);
    let inputs = files.write("inputs", &[("x".to_owned(), numbers(&[4, 6]))].into());
    let before = files.first_output(&model, &inputs, &[]);
    for name in ["freq", "mean", "std", "zeros", "l.weight"] {
        let mut other = own.clone();
        other.insert(name.into(), shifted(&own[name], 0.75));
        let (other, changed) = (files.write("other", &other), files.path("changed.onnx"));
        succeeds(["export", &other, "--model", &model, "-o", &changed]);
        let found = files.first_output(&model, &inputs, &["--weights-from", &other]);
        assert!(are_close(&found, &files.first_output(&changed, &inputs, &[])), "{name}");
        assert!(!are_close(&found, &before), "{name}");
    }
}

#[test]
fn a_file_may_lack_what_is_not_trained_and_nothing_else() {
    let files = Scratch::new();
    let model = export("buffers.onnx");
    let data = own_data(&files, 5);
    let own = tensors_of(&files, &model, &data, &["--batch", "4"]);
    let inputs = files.write("inputs", &[("x".to_owned(), numbers(&[4, 6]))].into());
    let without = |name: &str| {
        let mut tensors = own.clone();
        tensors.remove(name).expect("it was there");
        tensors.insert("literal.0".into(), numbers(&[3]));
        files.write("part", &tensors)
    };
    let part = without("freq");
    let run = ["run", &model, "--inputs", &inputs, "--outputs", &files.path("outputs")];
    let output = graphc(run.iter().chain(&["--weights-from", &part]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success()
            && said.contains("has no `freq`, not trained: what the model has is taken"),
        "{said}"
    );
    assert!(!said.contains("left aside"), "tables of before are passed over: {said}");
    let part = without("l.weight");
    let refused = fails(run.iter().chain(&["--weights-from", &part]));
    assert!(
        refused.contains("has no `l.weight`: it holds the weights of another model"),
        "{refused}"
    );
    let refused = fails(["export", &part, "--model", &model, "-o", &files.path("changed.onnx")]);
    assert!(refused.contains("they lack 1 of its parameters, `l.weight` first"), "{refused}");
}

/// Inputs and labels of so many places.
fn sequences(files: &Scratch, places: usize) -> String {
    let labels: Vec<f64> = (0..4 * places).map(|i| (i % 4) as f64).collect();
    let labels = HostTensor::from_f64(DType::I64, [4, places], &labels).expect("as many");
    let tensors = [("x".to_owned(), numbers(&[4, places, 8])), ("labels".to_owned(), labels)];
    files.write(&format!("sequences.{places}"), &tensors.into())
}

#[test]
fn tables_are_computed_for_each_extent_and_never_stored() {
    let files = Scratch::new();
    let model = export("tables.onnx");
    let (save, weights) = (files.path("save"), files.path("weights"));
    let short = sequences(&files, 24);
    let options = ["--batch", "4", "--dim", "t=24", "--lr", "1e-9"];
    let saved = ["--steps", "2", "--save", &save, "--weights", &weights];
    files.train_model(&model, &short, &[&options[..], &saved].concat());
    let own = BTreeSet::from(["o.bias", "o.weight", "q.bias", "q.weight"].map(String::from));
    assert_eq!(files.tensors("weights").into_keys().collect::<BTreeSet<_>>(), own);
    let checkpoint = Checkpoint::open(save.as_ref()).expect("complete");
    assert_eq!(checkpoint.variables().keys().cloned().collect::<BTreeSet<_>>(), own);
    for places in [6, 40] {
        let dim = format!("t={places}");
        let inputs = numbers(&[4, places, 8]);
        let inputs = files.write("inputs", &[("x".to_owned(), inputs)].into());
        let plain = files.first_output(&model, &inputs, &["--batch", "4", "--dim", &dim]);
        for from in [&weights, &save] {
            let options = ["--batch", "4", "--dim", &dim, "--weights-from", from];
            assert!(
                are_close(&files.first_output(&model, &inputs, &options), &plain),
                "{from} at {dim}"
            );
        }
    }
    let long = sequences(&files, 40);
    let options = ["--batch", "4", "--dim", "t=40", "--lr", "1e-9", "--steps", "4"];
    let resumed = files.path("resumed");
    let more = ["--resume", &save, "--weights", &resumed];
    succeeds([&training(&model, &long)[..], &options, &more].concat());
    let exported = files.path("trained.onnx");
    for from in [&save, &weights] {
        succeeds(["export", from, "--model", &model, "-o", &exported]);
    }
}

/// A plan has its tables in itself: it gives the same as the model.
#[test]
fn a_plan_carries_its_tables() {
    let files = Scratch::new();
    let (model, plan) = (export("tables.onnx"), files.path("plan.json"));
    succeeds(["compile", &model, "--batch", "4", "--dim", "t=24", "--mesh", "2", "-o", &plan]);
    let inputs = files.write("inputs", &[("x".to_owned(), numbers(&[4, 24, 8]))].into());
    let expected = files.first_output(&model, &inputs, &["--batch", "4", "--dim", "t=24"]);
    assert!(are_close(&files.first_output(&plan, &inputs, &[]), &expected));
    succeeds(["verify", &plan, &model]);
}

#[test]
fn a_training_goes_on_with_others_frozen() {
    let files = Scratch::new();
    let (model, data) = (export("frozen.onnx"), export("frozen.safetensors"));
    let options =
        ["--batch", "8", "--loss", "cross_entropy", "--optimizer", "adam", "--lr", "1e-3"];
    let base = [&["train", &model, "--data", &data][..], &options].concat();
    let (frozen, free) = (files.path("frozen"), files.path("free"));
    succeeds([&base[..], &["--steps", "2", "--freeze", "g", "--save", &frozen]].concat());
    let weights = files.path("weights");
    let thawed = ["--steps", "4", "--resume", &frozen, "--save", &free, "--weights", &weights];
    succeeds([&base[..], &thawed].concat());
    let held = Checkpoint::open(frozen.as_ref()).expect("complete");
    let before = held.read(&["g"]).expect("whole").remove("g").expect("read");
    assert_ne!(files.tensors("weights")["g"], before, "it is trained");
    let again =
        ["--steps", "6", "--resume", &free, "--freeze", "g", "--weights", &files.path("last")];
    succeeds([&base[..], &again].concat());
    assert_eq!(files.tensors("last")["g"], files.tensors("weights")["g"], "it is frozen");
    // Another optimizer has other states, whatever is frozen.
    let sgd = ["--loss", "cross_entropy", "--optimizer", "sgd", "--batch", "8", "--steps", "6"];
    let refused = fails(
        [&["train", &model, "--data", &data, "--lr", "1e-3"][..], &sgd, &["--resume", &free]]
            .concat(),
    );
    assert!(refused.contains("of another model or optimizer"), "{refused}");
}

#[test]
fn weights_that_a_file_has_once_are_exported_apart() {
    let files = Scratch::new();
    let model = export("two_batch_norms_plain.onnx");
    let data = export("two_batch_norms_plain.safetensors");
    let (save, trained) = (files.path("save"), files.path("trained.onnx"));
    files.train_model(
        &model,
        &data,
        &["--batch", "8", "--lr", "0.1", "--steps", "5", "--save", &save],
    );
    succeeds(["export", &save, "--model", &model, "-o", &trained]);
    let x = load_safetensors(data.as_ref()).expect("there").remove("x").expect("an input");
    let inputs = files.write("inputs", &[("x".to_owned(), x)].into());
    let found = files.first_output(&trained, &inputs, &[]);
    assert!(are_close(&found, &files.first_output(&model, &inputs, &["--weights-from", &save])));
    assert!(!are_close(&found, &files.first_output(&model, &inputs, &[])));
}

/// Indices are computed with when the model is read: the file holds them, and others go into the model first.
#[test]
fn other_indices_than_the_model_s_are_refused_by_name() {
    let files = Scratch::new();
    let model = export("indexed_plain.onnx");
    let labels = HostTensor::from_f64(DType::I64, [4], &[0.0, 1.0, 2.0, 0.0]).expect("four");
    let data = [("x".to_owned(), numbers(&[4, 4])), ("labels".to_owned(), labels)];
    let data = files.write("data", &data.into());
    let (save, weights) = (files.path("save"), files.path("weights"));
    let options = ["--lr", "0.1", "--batch", "4", "--steps", "2", "--save", &save];
    let on_two = ["--mesh", "2", "--weights", &weights];
    files.train_model(&model, &data, &[&options[..], &on_two].concat());
    let mut own = files.tensors("weights");
    assert_eq!(own.keys().collect::<Vec<_>>(), ["index", "w.weight"]);
    let held = Checkpoint::open(save.as_ref()).expect("complete");
    assert_eq!(held.read(&["index"]).expect("whole")["index"], own["index"]);
    own.insert("index".into(), HostTensor::from_f64(DType::I64, [2], &[1.0, 3.0]).expect("two"));
    let other = files.write("other", &own);
    let inputs = files.write("inputs", &[("x".to_owned(), numbers(&[4, 4]))].into());
    let run = ["run", &model, "--inputs", &inputs, "--outputs", &files.path("outputs")];
    let refused = fails(run.iter().chain(&["--weights-from", &other]));
    assert!(
        refused.contains("`index` of") && refused.contains("is another than the model's"),
        "{refused}"
    );
    let changed = files.path("changed.onnx");
    succeeds(["export", &other, "--model", &model, "-o", &changed]);
    files.first_output(&changed, &inputs, &["--weights-from", &other]);
    let again = ["--lr", "0.1", "--batch", "4", "--steps", "4", "--resume", &save];
    succeeds([&training(&model, &data)[..], &again].concat());
    let refused = fails([&training(&changed, &data)[..], &again].concat());
    assert!(refused.contains("is another than the model's"), "{refused}");
}
