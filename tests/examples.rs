//! Every example runs and shows what it says.

use std::path::PathBuf;
use std::process::Command;

/// The program of an example. `cargo test` builds examples beside the test binaries.
fn program(name: &str) -> PathBuf {
    let mut path: PathBuf = std::env::current_exe().expect("a path");
    path.pop();
    path.pop();
    path.join("examples").join(name)
}

/// Standard output of an example.
fn example(name: &str, args: &[&str]) -> String {
    shown(name, Command::new(program(name)).args(args))
}

/// Standard output of an example whose ranks are so many processes.
fn launched(processes: usize, name: &str, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graphc"));
    command.args(["launch", "--standalone", "--nproc-per-node", &processes.to_string(), "--"]);
    shown(name, command.arg(program(name)).args(args))
}

fn shown(name: &str, command: &mut Command) -> String {
    let output = command.output().expect("the example starts");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// An example on threads and as processes: each rank prints one line with `part`.
fn on_threads_and_processes(name: &str, ranks: usize, part: &str) {
    for shown in [example(name, &[]), launched(ranks, name, &[])] {
        let lines = shown.lines().filter(|line| line.contains(part)).count();
        assert_eq!(lines, ranks, "{name}: a line of each rank with `{part}` in\n{shown}");
    }
}

#[test]
fn messages_arrive() {
    on_threads_and_processes("messages", 2, "1000 numbers of rank");
}

#[test]
fn a_group_reduces_among_itself() {
    on_threads_and_processes("group_all_reduce", 3, "rank");
}

#[test]
fn a_ring_sums_as_all_reduce_does() {
    on_threads_and_processes("ring_all_reduce", 4, "has the sums");
}

#[test]
fn synchronous_sgd_finds_the_weights() {
    on_threads_and_processes("synchronous_sgd", 2, "weights [2.0");
}

#[test]
fn ddp_finds_the_weights() {
    on_threads_and_processes("ddp", 2, "500 steps");
}

#[test]
fn parallelism_shows_every_layout() {
    let shown = example("parallelism", &[]);
    for part in
        ["data parallel", "model parallel", "pipeline", "mixed", "planned", "implicit boxing"]
    {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    assert!(shown.contains("out [4, 8]") && shown.contains("out [4, 3]"), "{shown}");
    assert!(shown.contains("send_recv"), "stages exchange tensors:\n{shown}");
}

#[test]
fn data_parallel_toy_finds_the_weights() {
    for shown in [example("data_parallel_toy", &[]), launched(2, "data_parallel_toy", &[])] {
        assert_eq!(shown.matches("500 steps").count(), 1, "{shown}");
    }
}

#[test]
fn global_tensors_are_laid_out_anew() {
    assert!(example("global_tensors", &[]).contains("S(0), S(1) on 2x2"));
}

#[test]
fn resnet18_is_trained_evaluated_saved_and_resumed_on_another_mesh() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (data, save) = (path("data"), path("save"));
    let synth = ["data", "synth", "cifar10", &data, "--samples", "80"];
    let mut graphc = Command::new(env!("CARGO_BIN_EXE_graphc"));
    shown("graphc data synth", graphc.args(synth));
    let args = ["--data", &data, "--batch", "20", "--width", "4", "--lr", "0.02", "--epochs"];
    let lines = |shown: String| -> Vec<serde_json::Value> {
        shown.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let whole = lines(example("resnet18_cifar10", &[&args[..], &["2", "--mesh", "2"]].concat()));
    assert_eq!(whole.len(), 2, "a line an epoch");
    assert_eq!(whole[1]["eval"]["samples"], 16.0);
    let launched =
        lines(launched(2, "resnet18_cifar10", &[&args[..], &["2", "--save", &save]].concat()));
    for (launched, whole) in launched.iter().zip(&whole) {
        assert_eq!((&launched["loss"], &launched["eval"]), (&whole["loss"], &whole["eval"]));
    }
    let more = [&args[..], &["3", "--resume", &save]].concat();
    let resumed = lines(example("resnet18_cifar10", &more));
    assert_eq!((resumed.len(), resumed[0]["epoch"].as_u64()), (1, Some(2)));
}

#[test]
fn gpt_learns_on_four_ranks() {
    let args = ["--steps", "12", "--sample", "24", "--batch", "8"];
    let weights = [
        gpt_learns(|out| example("gpt", &[&args[..], &["--out", out]].concat())),
        gpt_learns(|out| launched(4, "gpt", &[&args[..], &["--out", out]].concat())),
    ];
    assert!(weights[0] == weights[1], "threads and processes give the same bits");
}

/// Checks what a run shows and leaves in a folder. The weights.
fn gpt_learns(run: impl Fn(&str) -> String) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let shown = run(&folder.path().display().to_string());
    assert!(shown.contains("2 stages") && shown.contains("4 ranks"), "{shown}");
    assert!(folder.path().join("plan.json").exists());
    let line = shown.lines().find(|line| line.starts_with("held-out loss")).expect("losses");
    let numbers: Vec<f64> = line
        .split_whitespace()
        .filter_map(|word| word.trim_end_matches(',').parse().ok())
        .collect();
    assert!(numbers[1] < numbers[0], "the loss falls: {line}");
    std::fs::read(folder.path().join("weights.safetensors")).expect("weights")
}
