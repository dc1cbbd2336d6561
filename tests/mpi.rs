//! Ranks that `mpirun` starts and MPI joins: the bits of threads, and an end for every failure. Built with the feature
//! `mpi` alone; needs Open MPI.

mod support;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::{Reference, reference, train_reference};

/// `mpirun` of so many processes of `program`.
fn mpirun(processes: usize, transport: &str, program: &[&str], args: &[String]) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "-n", &processes.to_string()]);
    command.args(program).args(args);
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        command.env(name, "1");
    }
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GRAPHC_JOB_TOKEN"] {
        command.env_remove(name);
    }
    command.env("GRAPHC_TRANSPORT", transport).stdin(Stdio::null());
    command
}

fn run(mut command: Command) -> Output {
    command.output().expect("mpirun starts: it comes with Open MPI")
}

/// Arguments of a training of a reference model.
fn training(name: &str, extra: &[&str]) -> Vec<String> {
    let (model, reference) = (reference(name), Reference::load(name));
    let model = |file: &str| model.join(file).display().to_string();
    let mut args = vec!["train".to_owned(), model("model.onnx")];
    args.extend(["--data".to_owned(), model("data.safetensors")]);
    args.extend(reference.args);
    args.extend(extra.iter().map(ToString::to_string));
    args
}

const GRAPHC: &str = env!("CARGO_BIN_EXE_graphc");

#[test]
fn mpi_gives_the_bits_of_threads() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let metrics = folder.path().join("losses.jsonl");
    for (name, processes, extra) in [
        ("mlp", 2, ["--mesh", "2"].as_slice()),
        ("gpt", 2, &["--mesh", "2", "--strategy", "zero3"]),
        ("gpt", 4, &["--mesh", "2x2"]),
        ("gpt", 4, &["--mesh", "2x2", "--stages", "2", "--microbatches", "2"]),
    ] {
        let threads = train_reference(name, extra);
        for transport in ["mpi", "auto", "tcp"] {
            let mut args = training(name, extra);
            args.extend(["--metrics".to_owned(), metrics.display().to_string()]);
            let output = run(mpirun(processes, transport, &[GRAPHC], &args));
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} {extra:?} {transport}: {stderr}");
            let losses = std::fs::read(&metrics).expect("metrics");
            assert!(losses == threads, "{name} {extra:?} {transport}: other bits than threads");
            std::fs::remove_file(&metrics).expect("written anew each time");
        }
    }
}

#[test]
fn programs_that_launch_starts_under_mpirun_are_joined_by_mpi() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let metrics = folder.path().join("losses.jsonl");
    let mut args = training("gpt", &["--mesh", "2"]);
    args.extend(["--metrics".to_owned(), metrics.display().to_string()]);
    let output = run(mpirun(2, "mpi", &[GRAPHC, "launch", "--", GRAPHC], &args));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let losses = std::fs::read(&metrics).expect("metrics");
    assert!(losses == train_reference("gpt", &["--mesh", "2"]), "other bits than threads");
}

#[test]
fn the_world_of_mpi_is_that_of_the_mesh() {
    let output = run(mpirun(2, "mpi", &[GRAPHC], &training("mlp", &["--mesh", "3"])));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains("--mesh has 3 ranks, and the launcher has started 2"), "{stderr}");
}

#[test]
fn ranks_that_mpi_has_not_started_are_not_joined_by_it() {
    let mut command = Command::new(GRAPHC);
    command.args(training("mlp", &["--mesh", "2"])).env("GRAPHC_TRANSPORT", "mpi");
    command.env("RANK", "0").env("WORLD_SIZE", "2");
    let output = run(command);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("start them with mpirun"), "{stderr}");
}

#[test]
fn an_error_on_one_rank_ends_all() {
    let script = "if [ $OMPI_COMM_WORLD_RANK = 1 ]; then exec \"$@\" --weights-from /nowhere/weights; fi; exec \"$@\"";
    let program = ["sh", "-c", script, "sh", GRAPHC];
    let args = training("mlp", &["--mesh", "3"]);
    let output = run(mpirun(3, "mpi", &program, &args));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{stderr}");
    assert!(stderr.contains("/nowhere/weights"), "{stderr}");
}

#[test]
fn a_rank_that_is_killed_ends_the_others_with_an_account() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    // Each rank says its number of process, and goes on for hours.
    let script = format!("echo $$ > '{}'/$OMPI_COMM_WORLD_RANK; exec \"$@\"", at(""));
    let mut args = training("gpt", &["--mesh", "3", "--metrics", &at("losses.jsonl")]);
    let steps = args.iter().position(|arg| arg == "--steps").expect("a reference has steps");
    args[steps + 1] = "100000000".to_owned();
    let mut command = mpirun(3, "mpi", &["sh", "-c", &script, "sh", GRAPHC], &args);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.expect("mpirun starts: it comes with Open MPI");
    let end = Instant::now() + Duration::from_secs(300);
    while !std::fs::metadata(at("losses.jsonl")).is_ok_and(|file| file.len() > 0) {
        assert!(Instant::now() < end, "training does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = std::fs::read_to_string(at("1")).expect("rank 1 has begun");
    let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("not 0");
    kill_process(pid, Signal::KILL).expect("rank 1 is there");
    let output = child.wait_with_output().expect("mpirun ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{stderr}");
    assert!(stderr.contains("error: rank 1 (process "), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}
