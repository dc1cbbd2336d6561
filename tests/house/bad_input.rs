//! Bad input gets an error that says what, where and what to do, exit status 1, and leaves nothing half-written.

use std::path::{Path, PathBuf};

use crate::support::{fails, graphc, reference, succeeds};
use graphc::prelude::*;
use graphc::runtime::data::{load_safetensors, save_safetensors};

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

/// Returns the message about a wrong command line, which ends with status 2.
fn refused(args: &[&str]) -> String {
    let output = graphc(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_negative_number_is_refused_with_what_its_option_takes() {
    for (option, takes) in [
        ("--lr", "write a number of at least 0"),
        ("--beta1", "write a number of at least 0 and below 1"),
        ("--batch", "write a number of at least 1"),
        ("--mesh", "write a mesh as 4 or 2x4"),
        ("--stages", "write a number of at least 1, or auto"),
        ("--warmup", "`-1` is no number of steps"),
    ] {
        let error = refused(&["compile", "model.onnx", option, "-1"]);
        names(&error, &[&format!("invalid value '-1' for '{option}"), takes]);
    }
    for (option, takes) in [("--steps", "at least 1"), ("--seed", "a whole number of at least 0")] {
        let error = refused(&["train", "model.onnx", "--data", "data", option, "-1"]);
        names(&error, &[&format!("invalid value '-1' for '{option}"), takes]);
    }
    let error = refused(&["compile", "model.onnx", "--lr-schedule", "cosine"]);
    names(&error, &["write cosine:STEPS or cosine:STEPS,FLOOR, as in cosine:1000"]);
}

#[test]
fn a_file_of_another_kind_is_said_to_be_one() {
    let model = model("mlp");
    names(
        &fails(["inspect", &model]),
        &["is a model and no plan", "graphc compile", "-o plan.json"],
    );
    let error = fails(train(&model, &data("mlp"), &["--batch", "16", "--weights-from", &model]));
    names(
        &error,
        &["--weights-from", "model.onnx is a model", "a safetensors file or a checkpoint"],
    );
}

#[test]
fn an_output_in_a_folder_that_is_not_there_is_named() {
    let error = fails(["compile", &model("mlp"), "--batch", "4", "-o", "no/such/plan.json"]);
    names(&error, &["cannot write no/such/plan.json: there is no folder no/such"]);
    assert!(!error.contains(".part"), "{error}");
}

#[test]
fn stages_of_the_model_that_are_not_asked_for_say_how_to_ask() {
    let scratch = Scratch::new();
    let graph = "graph @staged {\n  stage 0\n  stage 1\n  %x = input \"x\" stage 0 : f32[4, 4]\n  \
                 %y = unary %x {function=\"relu\"} stage 1 : f32[4, 4]\n  return \"y\" = %y\n}\n";
    let path = text(&scratch.write("staged.gir", graph));
    let error = fails(["compile", &path, "--mesh", "2"]);
    names(&error, &["(line 5, column 3) is in stage 1, but there are stages 0..1"]);
    let error = fails(["compile", &path, "--mesh", "4", "--stages", "4"]);
    names(&error, &["2 stages of its own, but 4 are asked for", "--stages 2"]);
    let shown = succeeds(["compile", &path, "--mesh", "2", "--stages", "2"]);
    names(&shown, &["2 ranks as 2, 2 stages, 1 microbatch, 2 programs"]);
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
        names(&error, &["label", "77", "from 0 to 9"]);
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
    names(&error, &["layers.0.weight", "(S(0), B)", "mesh of 2:"]);
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
    // What is written behind the last step is tried before the first.
    let losses = scratch.path("losses.jsonl");
    for option in ["--weights", "--outputs", "--profile"] {
        let late = text(&scratch.path("missing/late.file"));
        let metrics = ["--metrics", &text(&losses), option, &late];
        names(
            &fails(train(&model("mlp"), &data("mlp"), &metrics)),
            &[option, "there is no folder"],
        );
        assert!(!losses.exists(), "{option}: nothing was trained");
    }
    let missing = text(&scratch.path("missing/here.toml"));
    names(&fails(["calibrate", "-o", &missing]), &["--output", "there is no folder"]);
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
    std::fs::write(&path, content.replacen("\"version\": 3", "\"version\": 99", 1))
        .expect("written");
    for command in ["verify", "inspect", "simulate"] {
        names(&fails([command, &text(&path)]), &["version", "99", "compile"]);
    }
    std::fs::write(&path, "{ \"version\": 3 }").expect("written");
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
fn a_plan_that_is_not_sound_is_neither_shown_nor_simulated() {
    let scratch = Scratch::new();
    let (path, content) = plan(&scratch);
    let edits: [&dyn Fn(&mut serde_json::Value); 4] = [
        &|p| p["stages"] = 9_000_000_000_000_000_000u64.into(),
        &|p| p["ranks"][1]["program"] = 77.into(),
        &|p| p["layouts"][3]["microbatch_dim"] = 1000.into(),
        &|p| p["programs"][0]["actors"][3]["outputs"] = serde_json::json!([9999]),
    ];
    for edit in edits {
        let mut value: serde_json::Value = serde_json::from_str(&content).expect("JSON");
        edit(&mut value);
        std::fs::write(&path, value.to_string()).expect("written");
        for command in ["inspect", "simulate"] {
            names(&fails([command, &text(&path)]), &["plan.json is not valid"]);
        }
    }
}

#[test]
fn no_output_overwrites_an_input_or_another_output() {
    let scratch = Scratch::new();
    let (path, content) = plan(&scratch);
    names(&fails(["simulate", &text(&path), "--trace", &text(&path)]), &["--trace", "overwrite"]);
    assert_eq!(std::fs::read_to_string(&path).expect("the plan"), content);
    let copy = scratch.path("model.onnx");
    std::fs::copy(model("mlp"), &copy).expect("a copy");
    let copy = text(&copy);
    names(&fails(["compile", &copy, "--batch", "4", "-o", &copy]), &["--output", "the model"]);
    for option in ["--weights", "--metrics", "--outputs"] {
        names(&fails(train(&copy, &data("mlp"), &[option, &copy])), &[option, "the model"]);
    }
    let out = text(&scratch.path("out"));
    let error = fails(train(&copy, &data("mlp"), &["--weights", &out, "--metrics", &out]));
    names(&error, &["--weights", "--metrics"]);
    assert!(!Path::new(&out).exists());
}

#[cfg(target_os = "linux")]
#[test]
fn standard_output_that_is_full_or_closed_is_no_panic() {
    use std::process::{Command, Stdio};
    let scratch = Scratch::new();
    let (path, _) = plan(&scratch);
    for command in ["inspect", "simulate", "verify"] {
        let run = |stdout: Stdio| {
            let mut graphc = Command::new(env!("CARGO_BIN_EXE_graphc"));
            graphc.args([command, &text(&path)]).stdout(stdout).stderr(Stdio::piped());
            graphc.spawn().expect("it starts").wait_with_output().expect("it ends")
        };
        let full = std::fs::File::options().write(true).open("/dev/full").expect("the device");
        let output = run(full.into());
        assert_eq!(output.status.code(), Some(1));
        names(&String::from_utf8_lossy(&output.stderr), &["cannot write to standard output"]);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = run(writer.into());
        assert_eq!(output.status.code(), Some(0), "a reader that has seen enough");
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn values_that_make_no_sense_are_a_wrong_command_line() {
    for (option, value) in [
        ("--lr", "nan"),
        ("--weight-decay", "-1"),
        ("--beta1", "1"),
        ("--threads", "100000"),
        ("--threads", "0"),
        ("--timeout", "0"),
        ("--timeout", "inf"),
        ("--pin", "x=Q(0)"),
        ("--pin", "x"),
    ] {
        let extra = format!("{option}={value}");
        wrong(train(&model("mlp"), &data("mlp"), &[&extra]), &[option, value]);
    }
    let steps = ["train", &model("mlp"), "--data", &data("mlp"), "--steps", "0"];
    wrong(steps.map(str::to_owned).into(), &["--steps", "'0'"]);
    names(&fails(train(&model("mlp"), &data("mlp"), &["--dim=depth=4"])), &["depth"]);
}

/// The command line is refused with status 2, and these are named.
fn wrong(args: Vec<String>, parts: &[&str]) {
    let output = graphc(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    names(&stderr, parts);
}

#[test]
fn a_tensor_that_the_model_does_not_use_has_no_say() {
    let scratch = Scratch::new();
    let mut tensors = load_safetensors(&reference("mlp").join("data.safetensors")).expect("data");
    let path = scratch.path("data.safetensors");
    tensors.insert("a".into(), HostTensor::zeros(DType::F32, [3, 2]));
    tensors.insert("b".into(), HostTensor::zeros(DType::F32, []));
    save_safetensors(&path, &tensors).expect("saved");
    assert_eq!(
        succeeds(train(&model("mlp"), &text(&path), &[])),
        succeeds(train(&model("mlp"), &data("mlp"), &[]))
    );
    for tensor in tensors.values_mut() {
        *tensor = HostTensor::zeros(
            tensor.dtype(),
            [&[0], tensor.shape().get(1..).unwrap_or(&[])].concat(),
        );
    }
    save_safetensors(&path, &tensors).expect("saved");
    names(&fails(train(&model("mlp"), &text(&path), &[])), &["no samples"]);
}

#[test]
fn no_memory_at_all_is_no_limit() {
    for size in ["0", "0KiB", "0.2"] {
        let output = graphc(["compile", "m.onnx", "--memory", size]);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{error}");
        names(&error, &[size, "is no size"]);
    }
}

#[test]
fn names_in_a_wrong_command_line_do_not_steer_the_terminal() {
    let name = "x\u{202e}\u{7}\r\u{1b}[31mred";
    let commands =
        [vec![name], vec!["compile", "m.onnx", "--mesh", name], vec!["compile", "m.onnx", name]];
    for args in commands {
        let output = graphc(args);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(r"x\u202e") && error.contains(r"\u000d"), "{error}");
        assert!(error.chars().all(|c| !c.is_control() || c == '\n'), "{error:?}");
    }
    let help = graphc(["compile", "--help"]);
    assert_eq!((help.status.code(), help.stderr.is_empty()), (Some(0), true));
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let mesh = |mesh| vec!["compile", "m.onnx", "--mesh", mesh];
    let huge = "4294967296x4294967296";
    for args in [
        vec!["compile"],
        mesh("0"),
        mesh(huge),
        mesh("99999999999"),
        vec!["compile", "m.onnx", "--batch", "0"],
        vec!["compile", "m.onnx", "--stages", "0"],
        vec!["compile", "m.onnx", "--microbatches", "many"],
        vec!["compile", "m.onnx", "--schedule", "interleaved:1"],
        vec!["compile", "m.onnx", "--recompute", "some"],
        vec!["no-such-command"],
    ] {
        assert_eq!(graphc(args).status.code(), Some(2));
    }
}
