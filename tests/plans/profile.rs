//! `--profile`: seconds of each actor, measured while a plan runs, on the processor and on cards (the double of them), which `simulate`,
//! `report` and `calibrate` read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::{Machine, checked};
use crate::support;
use crate::support::{fails, reference};
use serde_json::Value;

const STEPS: &str = "12";

/// A plan of a reference model, and what is written beside it.
struct Case {
    folder: tempfile::TempDir,
    model: &'static str,
}

impl Case {
    fn new(model: &'static str, extra: &[&str]) -> Self {
        let case = Self { folder: tempfile::tempdir().expect("a scratch folder"), model };
        let path = reference(model).join("model.onnx");
        let mut args = vec!["compile", text(&path), "--batch", "8", "--loss", "cross_entropy"];
        let plan = case.file("plan.json");
        args.extend(["--optimizer", "adamw", "-o", text(&plan)]);
        args.extend(extra);
        support::succeeds(args);
        case
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The metrics of a training by `command`, which has what stands before `train`.
    fn train(&self, mut command: Command, device: &str, profiled: bool) -> Vec<u8> {
        let (metrics, data) =
            (self.file("m.jsonl"), reference(self.model).join("data.safetensors"));
        command.args(["train", text(&self.file("plan.json")), "--data", text(&data)]);
        command.args(["--steps", STEPS, "--device", device, "--metrics", text(&metrics)]);
        if profiled {
            command.args(["--profile", text(&self.file("measured.json"))]);
        }
        checked(command);
        std::fs::read(metrics).expect("metrics")
    }

    fn read(&self, name: &str) -> Value {
        let text = std::fs::read_to_string(self.file(name)).expect("it was written");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Checks that each actor that acts is in the profile once, and that others read it. Returns how many are launched with another.
    fn check(&self) -> usize {
        let (plan, profile) = (self.read("plan.json"), self.read("measured.json"));
        assert!(profile["step_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
        let mut joined = 0;
        for program in list(&profile["programs"]) {
            let of = program["program"].as_u64().expect("a program") as usize;
            let mut found = Vec::new();
            for entry in list(&program["actors"]) {
                assert!(entry["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.0));
                let others = entry["with"].as_array().into_iter().flatten();
                joined += others.clone().count();
                found.extend([&entry["actor"]].into_iter().chain(others).map(Value::as_u64));
            }
            found.sort();
            let actors = list(&plan["programs"][of]["actors"]).len() as u64;
            assert_eq!(found, (0..actors).map(Some).collect::<Vec<_>>(), "program {of}");
        }
        let [plan, measured] = ["plan.json", "measured.json"].map(|name| self.file(name));
        let simulated = support::succeeds(["simulate", text(&plan), "--measured", text(&measured)]);
        assert!(simulated.contains("matmul") && simulated.contains("by graphc"), "{simulated}");
        let page = self.file("page.html");
        let reads = ["--measured", text(&measured), "--explain", "0"];
        support::succeeds([&["report", text(&plan), "-o", text(&page)][..], &reads].concat());
        support::succeeds(["calibrate", "--from", text(&measured)]);
        joined
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

fn alone() -> Command {
    Command::new(env!("CARGO_BIN_EXE_graphc"))
}

/// Adds the arguments that start a process for each of two ranks.
fn launched(mut command: Command) -> Command {
    command.args(["launch", "--standalone", "--nproc-per-node", "2", "--"]);
    command.arg(env!("CARGO_BIN_EXE_graphc"));
    command
}

#[test]
fn actors_are_measured_on_the_processor_by_threads_and_processes() {
    for extra in [&["--mesh", "2"][..], &["--mesh", "2", "--stages", "2", "--microbatches", "2"]] {
        let case = Case::new("gpt", extra);
        let right = case.train(alone(), "cpu", false);
        assert!(case.train(alone(), "cpu", true) == right, "{extra:?}: other losses");
        case.check();
        std::fs::remove_file(case.file("measured.json")).expect("it is there");
        assert!(case.train(launched(alone()), "cpu", true) == right, "{extra:?}: other losses");
        case.check();
    }
}

#[test]
fn actors_are_measured_on_cards() {
    let Some(machine) = Machine::new() else { return };
    let none: [&str; 0] = [];
    for extra in [
        &["--mesh", "1"][..],
        &["--mesh", "2", "--cluster", "dgx-h100", "--strategy", "zero2"],
        &["--mesh", "2", "--stages", "2", "--microbatches", "2", "--cluster", "dgx-h100"],
    ] {
        let case = Case::new("gpt", extra);
        let right = case.train(machine.command(none), "cuda", false);
        let found = case.train(machine.command(none), "cuda", true);
        assert!(found == right, "{extra:?}: other losses");
        assert!(case.check() > 0, "{extra:?}: updates are launched together");
        let actors = list(&case.read("measured.json")["programs"][0]["actors"]).clone();
        let taken = actors.iter().filter(|a| a["seconds"].as_f64().is_some_and(|s| s > 0.0));
        assert!(2 * taken.count() > actors.len(), "{extra:?}: events tell the double's time");
    }
}

/// Processes with a card each, and threads that share one, so that they communicate through the host.
#[test]
fn ranks_of_all_kinds_are_measured_on_cards() {
    let Some(machine) = Machine::new() else { return };
    let none: [&str; 0] = [];
    let case = Case::new("mlp", &["--mesh", "2"]);
    let right = case.train(machine.command(none), "cuda", false);
    assert!(case.train(launched(machine.command(none)), "cuda", true) == right, "other losses");
    assert!(case.check() > 0);
    let mut shared = machine.command(none);
    shared.env("GPU_DOUBLE_DEVICES", "1");
    case.train(shared, "cuda", true);
    assert!(case.check() > 0);
}

#[test]
fn inference_is_measured_after_its_outputs_are_there() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (model, data) = (reference("mlp").join("model.onnx"), file("x.safetensors"));
    let plan = file("plan.json");
    support::succeeds(["compile", text(&model), "--batch", "4", "-o", &plan]);
    let written: Value =
        serde_json::from_str(&std::fs::read_to_string(&plan).expect("a plan")).expect("JSON");
    let input = list(&written["tensors"]).iter().find(|t| t["kind"] == "input").expect("an input");
    let shape: Vec<usize> =
        list(&input["shape"]).iter().map(|n| n.as_u64().expect("a number") as usize).collect();
    let values = vec![0.5; shape.iter().product()];
    let tensor = graphc_runtime::HostTensor::from_f32(shape, &values).expect("a tensor");
    let name = input["name"].as_str().expect("a name").to_owned();
    let tensors = BTreeMap::from([(name, tensor)]);
    graphc_runtime::data::save_safetensors(Path::new(&data), &tensors).expect("written");
    let (outputs, measured) = (file("y.safetensors"), file("measured.json"));
    let run = ["run", &plan, "--inputs", &data, "--outputs", &outputs, "--profile", &measured];
    support::succeeds(run);
    assert!(Path::new(&outputs).exists());
    let text = support::succeeds(["simulate", &plan, "--measured", &measured]);
    assert!(text.contains("matmul"), "{text}");
}

#[test]
fn too_few_steps_are_refused() {
    let data = reference("mlp").join("data.safetensors");
    let model = reference("mlp").join("model.onnx");
    let folder = tempfile::tempdir().expect("a scratch folder");
    let measured = folder.path().join("measured.json");
    let train =
        ["train", text(&model), "--data", text(&data), "--batch", "8", "--optimizer", "sgd"];
    let rest = ["--lr", "0.1", "--loss", "cross_entropy", "--steps", "8"];
    let error = fails([&train[..], &rest, &["--profile", text(&measured)]].concat());
    assert!(error.contains("9 steps at least, and 8 are made"), "{error}");
    assert!(!measured.exists());
}

/// Kernels' names say the op, and a profiler's ranges the actor; without a profiler there are no ranges.
#[test]
fn a_profiler_sees_ops_and_actors_by_name() {
    let Some(machine) = Machine::new() else { return };
    let case = Case::new("gpt", &["--mesh", "1"]);
    let (ranges, account) = (case.file("ranges"), case.file("account"));
    let train = |attached: bool| {
        let none: [&str; 0] = [];
        let mut command = machine.command(none);
        command.env("GPU_DOUBLE_RANGES", &ranges).env("GPU_DOUBLE_ACCOUNT", &account);
        command.env("GRAPHC_REPLAY", "0");
        if attached {
            let library = gpu_double::library().expect("the double");
            command.env("NVTX_INJECTION64_PATH", library);
        }
        case.train(command, "cuda", false)
    };
    let right = train(false);
    assert!(!ranges.exists(), "nobody looks on");
    let kernels = std::fs::read_to_string(&account).expect("an account");
    let kernels: BTreeSet<&str> = kernels.lines().filter_map(|l| l.split(' ').next()).collect();
    for kernel in [
        "chain_add_gelu",
        "updates_adam",
        "attention_causal_d8",
        "gather_embedding",
        "join_reduce_sum",
    ] {
        assert!(kernels.iter().any(|name| name.starts_with(kernel)), "{kernel} in {kernels:?}");
    }
    for name in &kernels {
        assert!(name.len() < 64 && !["chain", "update", "walk"].contains(name), "{name}");
    }
    assert!(train(true) == right, "other losses where a profiler looks on");
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string(&ranges).expect("ranges").lines() {
        let name = line.strip_prefix("0 ").unwrap_or_else(|| panic!("{line} is in another range"));
        *found.entry(name.to_owned()).or_default() += 1;
    }
    let plan = case.read("plan.json");
    let names: BTreeSet<&str> = list(&plan["programs"][0]["actors"])
        .iter()
        .map(|actor| actor["name"].as_str().expect("a name"))
        .collect();
    let steps: usize = STEPS.parse().expect("a number");
    for (range, times) in &found {
        let name = range.split(" and ").next().unwrap_or_default();
        assert!(names.contains(name) && times % steps == 0, "{range}: {times}");
    }
    assert!(found.keys().any(|range| range.starts_with("adam_update ") && range.contains(" more")));
}
