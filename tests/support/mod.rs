//! Helpers that tests across crates share: the CLI, references, scratch folders.
#![allow(dead_code)] // each test binary uses its part

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Folder of a reference model.
pub fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refs").join(name)
}

/// The results that PyTorch reached, and the command that should reach them.
pub struct Reference {
    pub args: Vec<String>,
    pub losses: Vec<f64>,
    pub tolerance: f64,
}

impl Reference {
    pub fn load(name: &str) -> Self {
        let text = std::fs::read_to_string(reference(name).join("ref.json")).expect("ref.json");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let strings = value["args"].as_array().expect("args").iter();
        let losses = value["losses"].as_array().expect("losses").iter();
        Self {
            args: strings.map(|arg| arg.as_str().expect("a string").into()).collect(),
            losses: losses.map(|loss| loss.as_f64().expect("a number")).collect(),
            tolerance: value["relative_tolerance"].as_f64().expect("a number"),
        }
    }

    /// `--steps` where the arguments lack it is the number of losses.
    pub fn steps(&self) -> usize {
        self.losses.len()
    }
}

/// A folder for the files of a test; tests have methods of their own for what they put there.
pub struct Scratch(pub tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a scratch folder"))
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// Runs the CLI.
pub fn graphc<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_graphc")).args(args).output().expect("graphc starts")
}

/// Standard error of a run that must fail with status 1.
pub fn fails<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = graphc(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "exit status; standard error: {stderr}");
    assert!(output.stdout.is_empty(), "nothing on standard output");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

/// Standard output of a run that must succeed.
pub fn succeeds<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = graphc(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The first run of `graphc calibrate` that is good enough, of three: where others have the machine it advises to measure again.
pub fn calibrated(run: impl Fn() -> Output, is_good: impl Fn(&Output) -> bool) -> Output {
    let again = |output: Output| {
        let advises =
            String::from_utf8_lossy(&output.stderr).contains("so measure again when it is idle");
        if advises && !is_good(&output) { run() } else { output }
    };
    let output = again(again(run()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The bytes of the metrics file that training a reference with `extra` arguments writes.
pub fn train_reference(name: &str, extra: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let metrics = folder.path().join("losses.jsonl");
    let mut args = training(name, extra);
    args.extend(["--metrics".to_owned(), metrics.display().to_string()]);
    args.extend(Reference::load(name).args);
    succeeds(&args);
    std::fs::read(metrics).expect("metrics")
}

/// The values of a text of which each line is one of JSON.
pub fn json_lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Whether numbers are within a share of what they should be.
pub fn near(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: steps");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / expected.abs();
        assert!(error <= tolerance, "{what}, step {step}: {found}, not {expected}");
    }
}

/// The losses of a metrics file, whose steps must count up from 0.
pub fn losses(metrics: &[u8]) -> Vec<f64> {
    let parse = |(step, value): (usize, &serde_json::Value)| {
        assert_eq!(value["step"].as_u64(), Some(step as u64));
        value["loss"].as_f64().expect("a number")
    };
    let lines = json_lines(std::str::from_utf8(metrics).expect("UTF-8"));
    lines.iter().enumerate().map(parse).collect()
}

/// Arguments of a training of a reference model.
pub fn training(name: &str, extra: &[&str]) -> Vec<String> {
    let model = reference(name);
    let mut args = vec![
        "train".to_owned(),
        model.join("model.onnx").display().to_string(),
        "--data".to_owned(),
        model.join("data.safetensors").display().to_string(),
    ];
    args.extend(extra.iter().map(ToString::to_string));
    args
}

/// Makes a shared library of a source in C.
pub fn compile_library(source: &str, library: &Path) {
    let file = library.with_extension("c");
    std::fs::write(&file, source).expect("a scratch file");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-o"]).arg(library).arg(&file).arg("-ldl");
    let output = command.output().expect("the C compiler, which building graphc needs as well");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
