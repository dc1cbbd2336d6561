//! A short run of the fuzzer (`benchmarks/fuzz`) over each target, and that it finds what breaks.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `cargo test` builds examples beside the test binaries.
fn program() -> PathBuf {
    let mut path: PathBuf = std::env::current_exe().expect("a path");
    path.pop();
    path.pop();
    path.join("examples").join("fuzz")
}

fn fuzz(args: &[&str], out: &Path) -> Output {
    Command::new(program()).args(args).arg("--out").arg(out).output().expect("the program starts")
}

/// Feeds a target with so many inputs, which may take long where the machine is busy.
fn holds(target: &str, cases: u32) {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let cases = cases.to_string();
    let output = fuzz(&[target, "--cases", &cases, "--limit", "300"], folder.path());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let taken = text.split(' ').nth(1).and_then(|count| count.parse::<u32>().ok());
    assert!(taken.is_some_and(|taken| taken > 0), "not even the corpus is taken: {text}");
}

#[test]
fn onnx_models_are_taken_or_refused() {
    holds("onnx", 100);
}

#[test]
fn graphs_are_taken_or_refused() {
    holds("gir", 300);
}

#[test]
fn plans_are_taken_or_refused() {
    holds("plan", 40);
}

#[test]
fn checkpoints_are_taken_or_refused() {
    holds("checkpoint", 400);
}

#[test]
fn cluster_files_are_taken_or_refused() {
    holds("cluster", 400);
}

#[test]
fn files_of_tensors_are_taken_or_refused() {
    holds("safetensors", 1000);
}

#[test]
fn messages_of_processes_are_taken_or_refused() {
    holds("frames", 20_000);
}

#[test]
fn measurements_are_taken_or_refused() {
    holds("measured", 100);
}

#[test]
fn records_are_taken_or_refused() {
    holds("records", 1000);
}

#[cfg(feature = "images")]
#[test]
fn images_are_taken_or_refused() {
    holds("images", 1000);
}

#[cfg(feature = "bpe")]
#[test]
fn tokenizers_are_taken_or_refused() {
    holds("tokenizer", 1000);
}

/// A target that panics, hangs and takes too much memory, each at some inputs.
#[test]
fn what_breaks_is_found_and_kept() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let output = fuzz(&["faulty", "--cases", "400", "--limit", "0.5"], folder.path());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{text}");
    let found = ["a reader that panics", "more than 0.5 s", "memory allocation"];
    assert!(found.iter().all(|what| text.contains(what)), "{text}");
    assert!(text.contains("3 findings"), "{text}");
    for line in text.lines().filter_map(|line| line.strip_prefix("again: ")) {
        let path = line.split("--input ").nth(1).expect("the file that was kept");
        assert!(folder.path().join(path).is_file(), "{line}");
    }
    assert_eq!(text.matches("again: cargo run").count(), 3, "{text}");
}

#[test]
fn the_same_input_breaks_it_again() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let input = folder.path().join("input");
    std::fs::write(&input, [3]).expect("it is writable");
    let [input, scratch] =
        [input, folder.path().join("scratch")].map(|path| path.display().to_string());
    let again = ["faulty", "--input", &input, "--folder", &scratch];
    let output = fuzz(&again, folder.path());
    assert!(String::from_utf8_lossy(&output.stderr).contains("a reader that panics"));
    assert!(!output.status.success());
}
