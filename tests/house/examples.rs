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

/// Examples that have a number of ranks of their own, above and below, run on other numbers too.
#[test]
fn examples_run_on_any_number_of_ranks() {
    for (name, part) in [
        ("messages", "rank"),
        ("group_all_reduce", "rank"),
        ("ring_all_reduce", "has the sums"),
        ("synchronous_sgd", "weights [2.0"),
        ("ddp", "500 steps"),
        ("multiprocessing_toy", "in the last"),
    ] {
        for ranks in [1, 5] {
            let shown = launched(ranks, name, &[]);
            let lines = shown.lines().filter(|line| line.contains(part)).count();
            assert_eq!(lines, ranks, "{name}: a line of each rank with `{part}` in\n{shown}");
        }
    }
    for ranks in [1, 3] {
        assert!(launched(ranks, "data_parallel_toy", &[]).contains("500 steps"));
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let out = folder.path().display().to_string();
    let gpt =
        ["--steps", "1", "--sample", "2", "--batch", "3", "--microbatches", "1", "--out", &out];
    assert!(launched(3, "gpt", &gpt).contains("3 ranks"));
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
fn spans_of_a_compilation_and_of_steps_are_printed() {
    let shown = example("spans", &[]);
    for span in ["compile{graph=\"spans\"}:choose_signatures", "step{number=2}", "open_session"] {
        assert!(shown.contains(span), "no {span} in {shown}");
    }
}

/// The example runs on two and on four ranks in threads; processes print the same bits.
#[test]
fn eager_tensors_are_the_same_on_threads_and_processes() {
    let sorted = |shown: &str| {
        let mut lines: Vec<String> = shown.lines().map(String::from).collect();
        lines.sort();
        lines
    };
    let threads = example("eager_tensors", &[]);
    let processes = [2, 4].map(|ranks| launched(ranks, "eager_tensors", &[]));
    assert_eq!(sorted(&threads), sorted(&processes.concat()));
    assert_eq!(threads.matches("mean").count(), 6, "{threads}");
}

/// A folder with a synthetic set.
fn synthetic(set: &str, samples: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let data = folder.path().join("data").display().to_string();
    let mut graphc = Command::new(env!("CARGO_BIN_EXE_graphc"));
    shown("graphc data synth", graphc.args(["data", "synth", set, &data, "--samples", samples]));
    folder
}

fn lines(shown: &str) -> Vec<serde_json::Value> {
    shown.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Trains on CIFAR-10 on two threads, and returns what is printed. Two processes save, and print the same bits.
fn trains_on_cifar10(name: &str, data: &str, own: &[&str], save: &str) -> Vec<serde_json::Value> {
    let args = [&["--data", data, "--lr", "0.02"], own].concat();
    let whole = lines(&example(name, &[&args[..], &["--mesh", "2"]].concat()));
    let processes = lines(&launched(2, name, &[&args[..], &["--save", save]].concat()));
    for (processes, whole) in processes.iter().zip(&whole) {
        for field in ["loss", "top1", "eval"] {
            assert_eq!(processes[field], whole[field], "{name}: {field}");
        }
    }
    assert_eq!(processes.len(), whole.len(), "{name}: a line an epoch");
    whole
}

/// Trains ResNet-18 for two epochs, and a third one by one plan on one rank.
fn resnet18(own: &[&str]) {
    let (name, folder) = ("resnet18_cifar10", synthetic("cifar10", "80"));
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (data, save) = (path("data"), path("save"));
    let args = ["--batch", "20", "--width", "4", "--epochs"];
    let whole = trains_on_cifar10(name, &data, &[&args[..], &["2"], own].concat(), &save);
    assert_eq!((whole.len(), whole[1]["eval"]["samples"].as_f64()), (2, Some(16.0)));
    // As if the best so far had been better than whatever comes.
    let best = || std::fs::read_dir(folder.path().join("save/best")).expect("saved").count();
    std::fs::write(folder.path().join("save/best/top1"), "2").expect("writable");
    let kept = best();
    let go_on = ["3", "--resume", &save, "--save", &save];
    let more = [&["--data", &data, "--lr", "0.02"], &args[..], &go_on].concat();
    let resumed = lines(&example(name, &more));
    assert_eq!((resumed.len(), resumed[0]["epoch"].as_u64()), (1, Some(2)));
    let last = graphc::prelude::Checkpoint::open(&folder.path().join("save/last")).expect("saved");
    let top1 = std::fs::read_to_string(folder.path().join("save/best/top1")).expect("there");
    assert_eq!(
        (last.step(), best(), top1.as_str()),
        (12, kept, "2"),
        "the last is new, the best is not"
    );
}

#[test]
fn resnet18_is_trained_evaluated_saved_and_resumed_on_another_mesh() {
    resnet18(&[]);
}

#[test]
fn resnet18_with_a_plan_for_each_rank_is_resumed_by_one_plan() {
    resnet18(&["--ddp"]);
}

#[test]
fn mobilenet_v2_is_trained_by_sbp_alone() {
    let folder = synthetic("cifar10", "10");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let own = ["--batch", "4", "--width", "0.1", "--epochs", "1"];
    let lines = trains_on_cifar10("mobilenetv2_cifar10", &path("data"), &own, &path("save"));
    assert_eq!(lines[0]["eval"]["samples"].as_f64(), Some(2.0));
}

#[test]
fn gradients_averaged_by_hand_learn_mnist() {
    let folder = synthetic("mnist", "600");
    let data = folder.path().join("data").display().to_string();
    // Long and slow enough that how sums are rounded does not show: of 14 runs at about this rate the worst reached 0.98.
    let args = ["--data", &data, "--epochs", "6", "--batch", "12", "--lr", "0.05"];
    for (ranks, shown) in [
        (2, example("mnist_synchronous_sgd", &args)),
        (3, launched(3, "mnist_synchronous_sgd", &args)),
    ] {
        let last = shown.lines().filter(|line| line.contains("epoch 5"));
        let accuracy = |line: &str| -> f64 {
            line.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number")
        };
        let found: Vec<f64> = last.map(accuracy).collect();
        assert!(found.len() == ranks && found.iter().all(|&found| found > 0.9), "{shown}");
    }
}

#[test]
fn stages_learn_as_one_rank_does() {
    for shown in [example("stages", &[]), launched(2, "stages", &[])] {
        assert!(shown.contains("4 microbatches: loss") && shown.contains("send_recv"), "{shown}");
    }
    let mut odd = Command::new(env!("CARGO_BIN_EXE_graphc"));
    odd.args(["launch", "--standalone", "--nproc-per-node", "3", "--"]).arg(program("stages"));
    assert!(fails(&mut odd).contains("start an even number of them, not 3"));
}

#[test]
fn the_toy_of_the_tutorials_learns_on_every_rank() {
    on_threads_and_processes("multiprocessing_toy", 2, "in the last");
}

/// Standard error of a run that must fail.
fn fails(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "exit status");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_data_set_that_is_not_there_is_an_error_that_says_where_it_comes_from() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let data = ["--data", &folder.path().display().to_string()];
    for (name, extra, set) in [
        ("resnet18_cifar10", &[][..], "cifar10"),
        ("resnet18_cifar10", &["--ddp"][..], "cifar10"),
        ("mobilenetv2_cifar10", &[][..], "cifar10"),
        ("mnist_synchronous_sgd", &[][..], "mnist"),
    ] {
        let said = fails(Command::new(program(name)).args(data).args(extra));
        let synth = format!("graphc data synth {set} DIR");
        for part in ["is not there", "https://", &synth] {
            assert!(said.contains(part), "{name}: {part} in {said}");
        }
        assert!(!said.contains("panicked"), "{said}");
    }
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
