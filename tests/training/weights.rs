//! From training to use: weights that a training has written are what the next command begins with.

use std::collections::BTreeMap;

use crate::support;
use crate::support::{Scratch, fails, reference, succeeds};
use graphc::prelude::*;
use graphc::runtime::data::{load_safetensors, save_safetensors};

const SGD: [&str; 6] = ["--loss", "cross_entropy", "--optimizer", "sgd", "--batch", "16"];

impl Scratch {
    /// A folder with weights of the reference model after four steps, and the checkpoint that was saved then.
    fn trained() -> Self {
        let files = Self::new();
        let (weights, save) = (files.path("weights"), files.path("save"));
        let saved = ["--steps", "4", "--lr", "0.05", "--weights", &weights, "--save", &save];
        succeeds(files.train(&saved));
        files
    }

    fn train(&self, extra: &[&str]) -> Vec<String> {
        support::training("mlp", &[&SGD, extra].concat())
    }

    /// Returns the outputs of `graphc run` for all rows of the data.
    fn run(&self, extra: &[&str]) -> BTreeMap<String, HostTensor> {
        self.run_model(&reference("mlp").join("model.onnx").display().to_string(), extra)
    }

    fn run_model(&self, model: &str, extra: &[&str]) -> BTreeMap<String, HostTensor> {
        let inputs = reference("mlp").join("data.safetensors").display().to_string();
        let outputs = self.path("outputs");
        let own = ["run", model, "--inputs", &inputs, "--outputs", &outputs];
        succeeds(own.iter().chain(extra));
        self.tensors("outputs")
    }

    /// A file of tensors that was written before.
    pub fn tensors(&self, name: &str) -> BTreeMap<String, HostTensor> {
        load_safetensors(self.path(name).as_ref()).expect("it was written")
    }
}

#[test]
fn a_file_of_weights_and_its_checkpoint_are_used_alike() {
    let files = Scratch::trained();
    let (weights, save) = (files.path("weights"), files.path("save"));
    let from_file = files.run(&["--weights-from", &weights]);
    assert_eq!(from_file, files.run(&["--weights-from", &save]));
    assert_ne!(from_file, files.run(&[]), "the model's own weights");
}

#[test]
fn an_exported_model_holds_the_trained_weights() {
    let files = Scratch::trained();
    let (weights, save) = (files.path("weights"), files.path("save"));
    let (model, exported) = (reference("mlp").join("model.onnx"), files.path("trained.onnx"));
    let model = model.display().to_string();
    let trained = files.run(&["--weights-from", &weights]);
    for from in [&save, &weights] {
        succeeds(["export", from, "--model", &model, "-o", &exported]);
        assert_eq!(files.run_model(&exported, &[]), trained, "{from}");
    }
    // Only weights have changed places with weights.
    let sizes = [&model, &exported].map(|path| std::fs::metadata(path).expect("is there").len());
    assert_eq!(sizes[0], sizes[1]);
    let other = reference("mlp_mse").join("model.onnx").display().to_string();
    let refused = fails(["export", &save, "--model", &other, "-o", &exported]);
    assert!(refused.contains("the weights do not go into"), "{refused}");
    let refused = fails(["export", &save, "--model", &model, "-o", &weights]);
    assert!(refused.contains("must end in .onnx"), "{refused}");
}

#[test]
fn batches_are_put_together_for_all_samples() {
    let files = Scratch::trained();
    let weights = files.path("weights");
    let whole = files.run(&["--weights-from", &weights]);
    for extra in [&["--batch", "16"][..], &["--batch", "10", "--mesh", "2"], &["--batch", "100"]] {
        let parts = files.run(&[&["--weights-from", &weights], extra].concat());
        for (name, whole) in &whole {
            assert_eq!(parts[name].shape(), whole.shape());
            let pairs = parts[name].to_f64().into_iter().zip(whole.to_f64());
            pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} is not {b} ({extra:?})"));
        }
    }
}

#[test]
fn training_begins_with_given_weights() {
    let files = Scratch::trained();
    let (weights, after) = (files.path("weights"), files.path("after"));
    // At a rate of 0 the weights stay what they were.
    let still = ["--lr", "0", "--steps", "1", "--weights", &after, "--weights-from", &weights];
    succeeds(files.train(&[&still[..], &["--mesh", "2", "--strategy", "zero3"]].concat()));
    assert_eq!(files.tensors("after"), files.tensors("weights"));
}

#[test]
fn weights_of_another_model_are_refused() {
    let files = Scratch::trained();
    let mut weights = files.tensors("weights");
    let weights_file = files.path("wrong");
    let begin = files.train(&["--steps", "1", "--weights-from", &weights_file]);
    let refused = |weights: &BTreeMap<String, HostTensor>| {
        save_safetensors(weights_file.as_ref(), weights).expect("writable");
        fails(&begin)
    };
    let (name, weight) = weights.pop_first().expect("it has weights");
    let missing = refused(&weights);
    assert!(missing.contains(&format!("has no `{name}`")), "{missing}");
    let shape = [weight.shape(), &[1]].concat();
    let wider = HostTensor::new(weight.dtype(), shape, weight.bytes().to_vec()).expect("it fits");
    weights.insert(name.clone(), wider);
    let wrong = refused(&weights);
    assert!(
        wrong.contains(&format!("`{name}` is f32")) && wrong.contains("the model has"),
        "{wrong}"
    );
}
