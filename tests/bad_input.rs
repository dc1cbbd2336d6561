//! Bad input gets an error that says what, where and what to do, exit status 1, and leaves nothing half-written.

mod support;

use std::path::{Path, PathBuf};

use graphc::prelude::*;
use graphc::runtime::data::{load_safetensors, save_safetensors};
use support::{fails, graphc, reference, succeeds};

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a scratch folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a scratch file");
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("the folder");
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn model(name: &str) -> String {
    text(&reference(name).join("model.onnx"))
}

fn data(name: &str) -> String {
    text(&reference(name).join("data.safetensors"))
}

/// The error must name all of these.
fn names(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

const TRAIN: [&str; 6] = ["--steps", "2", "--loss", "cross_entropy", "--optimizer", "sgd"];

fn train(model: &str, data: &str, extra: &[&str]) -> Vec<String> {
    let head = ["train", model, "--data", data];
    head.iter().chain(&TRAIN).chain(extra).map(ToString::to_string).collect()
}

#[test]
fn a_corrupt_model_is_named() {
    let scratch = Scratch::new();
    let whole = std::fs::read(reference("mlp").join("model.onnx")).expect("the model");
    for (name, content) in [
        ("noise.onnx", b"\xff\x13 no protobuf".to_vec()),
        ("cut.onnx", whole[..whole.len() / 2].to_vec()),
    ] {
        let path = scratch.write(name, content);
        names(&fails(["compile", &text(&path), "--batch", "4"]), &[name]);
    }
    names(&fails(["compile", "no/such/model.onnx"]), &["no/such/model.onnx"]);
    let path = scratch.write("model.txt", "graph");
    names(&fails(["compile", &text(&path)]), &["model.txt", ".onnx", ".gir"]);
}

#[test]
fn shapes_that_do_not_fit_point_at_the_line() {
    let scratch = Scratch::new();
    let graph = "graph @bad {\n  %x = input \"x\" : f32[4, 5]\n  %w = variable \"w\" \
                 {init={\"fill\": 1.0}, trainable=true} : f32[6, 8]\n  %y = matmul %x, %w\n  return \"y\" = %y\n}\n";
    let path = scratch.write("bad.gir", graph);
    names(&fails(["compile", &text(&path)]), &["matmul", "f32[4, 5]", "f32[6, 8]", "4", "^"]);
}

#[test]
fn an_unset_symbolic_batch_says_which_option_sets_it() {
    names(&fails(["compile", &model("mlp")]), &["batch", "--batch"]);
}

#[test]
fn a_data_file_without_an_input_is_named() {
    let scratch = Scratch::new();
    let mut tensors = load_safetensors(&reference("mlp").join("data.safetensors")).expect("data");
    tensors.remove("labels");
    let path = scratch.path("data.safetensors");
    save_safetensors(&path, &tensors).expect("saved");
    names(&fails(train(&model("mlp"), &text(&path), &[])), &["labels", "i64"]);
    names(&fails(train(&model("mlp"), "no/data.safetensors", &[])), &["no/data.safetensors"]);
    let path = scratch.write("noise.safetensors", "noise");
    names(&fails(train(&model("mlp"), &text(&path), &[])), &["noise.safetensors"]);
}

#[test]
fn a_label_out_of_range_ends_the_job_on_every_mesh() {
    let scratch = Scratch::new();
    let mut tensors = load_safetensors(&reference("mlp").join("data.safetensors")).expect("data");
    let mut labels = tensors["labels"].to_i64().expect("labels");
    labels[5] = 77;
    tensors
        .insert("labels".into(), HostTensor::from_i64([labels.len()], &labels).expect("a tensor"));
    let path = scratch.path("data.safetensors");
    save_safetensors(&path, &tensors).expect("saved");
    for mesh in ["1", "2", "2x2"] {
        let error = fails(train(&model("mlp"), &text(&path), &["--batch", "16", "--mesh", mesh]));
        names(&error, &["label", "77", "0..10"]);
    }
}

#[test]
fn a_mesh_that_the_stages_do_not_divide_is_refused() {
    let error = fails(train(&model("mlp"), &data("mlp"), &["--mesh", "3", "--stages", "2"]));
    names(&error, &["3", "2", "stages"]);
}

#[test]
fn a_batch_that_the_microbatches_do_not_divide_is_refused() {
    let extra = ["--mesh", "2", "--stages", "2", "--microbatches", "3", "--batch", "16"];
    names(&fails(train(&model("mlp"), &data("mlp"), &extra)), &["16", "3", "microbatches"]);
}

#[test]
fn a_pin_that_cannot_be_is_refused() {
    let pin = |sbp: &str| format!("layers.0.weight={sbp}");
    let error = fails(train(&model("mlp"), &data("mlp"), &["--mesh", "2", "--pin", &pin("S(2)")]));
    names(&error, &["layers.0.weight", "S(2)"]);
    let error =
        fails(train(&model("mlp"), &data("mlp"), &["--mesh", "2", "--pin", &pin("S(0),B")]));
    names(&error, &["layers.0.weight", "(S(0), B)", "mesh of [2]"]);
    let error = fails(train(&model("mlp"), &data("mlp"), &["--mesh", "2", "--pin", "no.such=B"]));
    names(&error, &["no.such"]);
}

#[test]
fn too_little_memory_says_where_how_much_and_what_weighs_most() {
    let error = fails(train(&model("mlp"), &data("mlp"), &["--mesh", "2", "--memory", "8KiB"]));
    names(&error, &["rank 0", "memory", "layers.1.weight", "8.00 KiB"]);
    assert!(
        error.matches("KiB").count() + error.matches(" B").count() >= 6,
        "five tensors: {error}"
    );
}

#[test]
fn an_output_that_cannot_be_written_leaves_nothing() {
    let scratch = Scratch::new();
    let plan = scratch.path("missing/plan.json");
    names(
        &fails(["compile", &model("mlp"), "--batch", "4", "-o", &text(&plan)]),
        &["missing/plan.json"],
    );
    assert!(scratch.names().is_empty());
    let metrics = scratch.path("missing/losses.jsonl");
    let error = fails(train(&model("mlp"), &data("mlp"), &["--metrics", &text(&metrics)]));
    names(&error, &["missing/losses.jsonl"]);
    // A folder stands where the file should go.
    std::fs::create_dir(scratch.path("taken")).expect("a folder");
    let taken = text(&scratch.path("taken"));
    names(&fails(["compile", &model("mlp"), "--batch", "4", "-o", &taken]), &["taken"]);
    assert_eq!(scratch.names(), ["taken"]);
}

fn plan(scratch: &Scratch) -> (PathBuf, String) {
    let path = scratch.path("plan.json");
    let args = ["--batch", "8", "--mesh", "2", "--loss", "cross_entropy", "--optimizer", "sgd"];
    let mut command = vec!["compile".to_string(), model("mlp"), "-o".into(), text(&path)];
    command.extend(args.map(String::from));
    succeeds(&command);
    let content = std::fs::read_to_string(&path).expect("the plan");
    (path, content)
}

#[test]
fn a_plan_of_another_version_says_so() {
    let scratch = Scratch::new();
    let (path, content) = plan(&scratch);
    succeeds(["verify", &text(&path)]);
    succeeds(["verify", &text(&path), &model("mlp")]);
    std::fs::write(&path, content.replacen("\"version\": 1", "\"version\": 99", 1))
        .expect("written");
    for command in ["verify", "inspect", "simulate"] {
        names(&fails([command, &text(&path)]), &["version", "99", "compile"]);
    }
    std::fs::write(&path, "{ \"version\": 1 }").expect("written");
    names(&fails(["inspect", &text(&path)]), &["plan.json"]);
}

type Edit = &'static dyn Fn(&mut serde_json::Value);

#[test]
fn a_plan_edited_by_hand_is_refused() {
    let scratch = Scratch::new();
    let (path, content) = plan(&scratch);
    let edits: [(&str, Edit, &str); 5] = [
        (
            "a register's offset",
            &|p| p["programs"][0]["registers"][1]["offset"] = 64_000_064.into(),
            "registers",
        ),
        (
            "an actor's input",
            &|p| p["programs"][0]["actors"][3]["inputs"] = serde_json::json!([9999]),
            "9999",
        ),
        ("the objective", &|p| p["planner"]["objective_seconds"] = 0.0.into(), "objective"),
        ("a tensor's layout", &|p| p["tensors"][0]["sbp"] = serde_json::json!(["S(7)"]), "tensors"),
        ("a rank's program", &|p| p["ranks"][1]["program"] = 7.into(), "ranks"),
    ];
    for (what, edit, part) in edits {
        let mut value: serde_json::Value = serde_json::from_str(&content).expect("JSON");
        edit(&mut value);
        std::fs::write(&path, value.to_string()).expect("written");
        let error = fails(["verify", &text(&path)]);
        assert!(error.contains(part), "{what}: `{part}` is not in: {error}");
        if !["the objective", "a tensor's layout"].contains(&what) {
            fails(train(&text(&path), &data("mlp"), &[]));
        }
    }
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    for args in [vec!["compile"], vec!["compile", "m.onnx", "--mesh", "0"], vec!["no-such-command"]]
    {
        assert_eq!(graphc(args).status.code(), Some(2));
    }
}
