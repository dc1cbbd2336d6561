//! `graphc launch`: who is who, where output goes, and that nothing is left behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Reference, losses, reference};
use rustix::process::{Pid, Signal, kill_process};

/// Variables of launchers that the machine of the tests may have set.
const FOREIGN: [&str; 13] = [
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_TASKS_PER_NODE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "GRAPHC_JOB_TOKEN",
];

/// `graphc launch` with these options and `sh -c` of a script in a folder.
fn launch(folder: &Path, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graphc"));
    command.arg("launch").args(options).args(["--", "sh", "-c", script]).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    FOREIGN.iter().for_each(|name| {
        command.env_remove(name);
    });
    command
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a scratch folder")
}

fn output(mut command: Command) -> Output {
    command.output().expect("it starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(String::from).collect()
}

/// Standard output of a launch that must succeed.
fn succeeds(command: Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// The error of a launch that must end with this status.
fn fails(command: Command, status: i32) -> String {
    let output = output(command);
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{error}");
    assert!(!error.contains("panicked"), "{error}");
    error
}

fn names(error: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(error.contains(part), "`{part}` is not in: {error}"));
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(300);
    while !holds() {
        assert!(Instant::now() < end, "not within 300 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process runs: a dead one that nobody has waited for does not.
fn runs(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

/// The processes whose numbers scripts have written to files `pid-*`.
fn processes(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder").filter_map(Result::ok);
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("pid-"));
    let read = ours.map(|entry| std::fs::read_to_string(entry.path()).expect("a number"));
    read.map(|number| number.trim().to_owned()).filter(|number| !number.is_empty()).collect()
}

fn nothing_runs(folder: &Path, expected: usize) {
    let processes = processes(folder);
    assert_eq!(processes.len(), expected, "processes that were started");
    for process in processes {
        until(&format!("process {process} ends"), || !runs(&process));
    }
}

/// A program of which each rank writes its number and that of a process in the background, and waits for it.
const FAMILY: &str = "sleep 1000 & echo $! > pid-$RANK-b; echo $$ > pid-$RANK-a; wait";

fn started(folder: &Path, count: usize) {
    until("all processes are there", || processes(folder).len() == count);
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it runs");
}

#[test]
fn every_process_knows_who_it_is() {
    let folder = folder();
    let options = "--nnodes 2 --node-rank 1 --nproc-per-node 2 --master-addr h --master-port 1234";
    let options: Vec<&str> = options.split(' ').collect();
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $NODE_COUNT \
                  $MASTER_ADDR $MASTER_PORT $GRAPHC_RESTART";
    let printed = succeeds(launch(folder.path(), &options, script));
    assert_eq!(lines(&printed), lines("2 0 4 2 1 2 h 1234 0\n3 1 4 2 1 2 h 1234 0"));
}

#[test]
fn a_job_has_one_secret_and_one_port() {
    let folder = folder();
    let script = "echo $MASTER_ADDR $MASTER_PORT $GRAPHC_JOB_TOKEN";
    let alone = ["--standalone", "--nproc-per-node", "3"];
    let run = || lines(&succeeds(launch(folder.path(), &alone, script)));
    let (one, other) = (run(), run());
    assert_eq!((one.len(), other.len()), (1, 1), "all ranks see the same");
    assert_ne!(one, other, "another job has another secret");
    let words: Vec<String> = one.iter().flat_map(|l| l.split(' ').map(String::from)).collect();
    assert_eq!(words[0], "127.0.0.1");
    assert!(words[1].parse::<u16>().is_ok_and(|port| port > 0), "{words:?}");
    assert!(words[2].len() == 32 && words[2].chars().all(|c| c.is_ascii_hexdigit()), "{words:?}");

    let mut given = launch(folder.path(), &alone, "echo $GRAPHC_JOB_TOKEN");
    given.env("GRAPHC_JOB_TOKEN", "ours");
    assert_eq!(lines(&succeeds(given)), lines("ours"));

    let node = |rank: &str| {
        let options = ["--nnodes", "2", "--node-rank", rank, "--master-addr", "h"];
        let output = output(launch(folder.path(), &options, "echo $GRAPHC_JOB_TOKEN"));
        assert_eq!(stderr(&output).contains("GRAPHC_JOB_TOKEN is not set"), rank == "0");
        stdout(&output)
    };
    assert_eq!(node("0"), node("1"), "machines work out the same");
}

#[test]
fn output_passes_through_in_whole_lines() {
    let folder = folder();
    let script = "i=0; while [ $i -lt 200 ]; do printf 'rank '; printf \"$RANK says $i\\n\"; \
                  i=$((i+1)); done; echo warning >&2";
    let options = ["--nproc-per-node", "4"];
    let output = output(launch(folder.path(), &options, script));
    let text = stdout(&output);
    let expected = (0..4).flat_map(|rank| (0..200).map(move |i| format!("rank {rank} says {i}")));
    assert_eq!(text.lines().count(), 800);
    assert_eq!(lines(&text), expected.collect());
    assert_eq!(stderr(&output), "warning\n".repeat(4));
    let single = succeeds(launch(folder.path(), &[], "printf 'no end of line'"));
    assert_eq!(single, "no end of line");
}

#[test]
fn logs_are_kept_by_rank_and_restart() {
    let folder = folder();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect(name);
    let script = "echo out $RANK; echo err $RANK >&2; exit $((1 - GRAPHC_RESTART))";
    let logs = ["--nproc-per-node", "2", "--max-restarts", "1", "--grace", "2", "--logdir", "logs"];
    let with = |extra: &[&str]| launch(folder.path(), &[&logs[..], extra].concat(), script);

    let plain = output(with(&[]));
    assert!(plain.status.success(), "{}", stderr(&plain));
    assert_eq!(lines(&stdout(&plain)), lines("out 0\nout 1"));
    for restart in ["", "restart-1/"] {
        for rank in 0..2 {
            assert_eq!(
                read(&format!("logs/rank-{rank}/{restart}stdout.log")),
                format!("out {rank}\n")
            );
            assert_eq!(
                read(&format!("logs/rank-{rank}/{restart}stderr.log")),
                format!("err {rank}\n")
            );
        }
    }
    assert_eq!(succeeds(with(&["--redirect"])), "");
    assert_eq!(read("logs/rank-1/stdout.log"), "out 1\n");
    let tee = output(with(&["--tee"]));
    assert_eq!(lines(&stdout(&tee)), lines("[rank 0] out 0\n[rank 1] out 1"));
    names(&stderr(&tee), &["[rank 0] err 0\n", "[rank 1] err 1\n"]);
}

#[test]
fn the_first_failure_is_told_and_ends_the_others() {
    let folder = folder();
    let script = format!(
        "if [ $RANK = 2 ]; then for rank in 0 1 3; do while [ ! -e pid-$rank-a ]; do sleep 0.01; done; done; \
         echo it is broken >&2; exit 3; fi; {FAMILY}"
    );
    let options = ["--nproc-per-node", "4", "--grace", "0.2"];
    let error = fails(launch(folder.path(), &options, &script), 1);
    names(&error, &["rank 2 (local rank 2", "failed first: exit status 3", "\n    it is broken"]);
    nothing_runs(folder.path(), 6);
    let error = fails(launch(folder.path(), &options, "[ $RANK != 1 ] || kill -9 $$"), 1);
    names(&error, &["rank 1 ", "signal 9 (SIGKILL)"]);
}

/// A rank that notices the death of another may be seen to fail before it.
#[test]
fn a_rank_that_a_signal_ended_is_named_before_one_that_gave_up() {
    let folder = folder();
    let script = "[ $RANK = 0 ] || exit 1; sleep 0.3; kill -9 $$";
    let error =
        fails(launch(folder.path(), &["--nproc-per-node", "2", "--grace", "600"], script), 1);
    names(&error, &["rank 0 ", "failed first: signal 9 (SIGKILL)"]);
}

#[test]
fn the_others_may_end_by_themselves() {
    let folder = folder();
    let script =
        "trap 'echo told > told' TERM; [ $RANK = 0 ] || exit 1; sleep 0.3; echo so > report";
    fails(launch(folder.path(), &["--nproc-per-node", "2", "--grace", "600"], script), 1);
    assert!(folder.path().join("report").exists(), "it had the time to report");
    assert!(!folder.path().join("told").exists(), "nobody told it to end");
}

#[test]
fn who_does_not_end_is_killed() {
    let folder = folder();
    let script = "trap '' TERM INT; echo $$ > pid-$RANK; \
                  if [ $RANK = 1 ]; then while [ ! -e pid-0 ]; do sleep 0.01; done; exit 1; fi; \
                  while true; do sleep 0.05; done";
    let options = ["--nproc-per-node", "2", "--grace", "0.2"];
    fails(launch(folder.path(), &options, script), 1);
    nothing_runs(folder.path(), 2);
}

#[test]
fn processes_are_started_again_so_many_times() {
    let folder = folder();
    let script = "echo $RANK $GRAPHC_RESTART; [ $GRAPHC_RESTART = 2 ] || exit 7";
    let options = ["--nproc-per-node", "2", "--max-restarts"];
    let with = |most| launch(folder.path(), &[&options[..], &[most]].concat(), script);
    let begun = Instant::now();
    let enough = output(with("3"));
    assert!(enough.status.success(), "{}", stderr(&enough));
    assert!(begun.elapsed() >= Duration::from_secs(3), "a second's pause, and one of two");
    assert!(lines(&stdout(&enough)).contains("1 2"));
    names(
        &stderr(&enough),
        &["exit status 7", "after 1 s, restart 1 of 3", "after 2 s, restart 2 of 3"],
    );
    names(&fails(with("1"), 1), &["restart 1 of 1", "error: rank ", "exit status 7"]);
}

#[test]
fn a_pause_between_restarts_ends_with_a_signal() {
    let folder = folder();
    let script = "echo > failed-$GRAPHC_RESTART; exit 1";
    let mut child =
        launch(folder.path(), &["--nproc-per-node", "1", "--max-restarts", "9"], script)
            .spawn()
            .expect("it starts");
    let end = Instant::now() + Duration::from_secs(60);
    // Behind the fifth start there is a pause of 16 s.
    while !folder.path().join("failed-4").exists() {
        assert!(Instant::now() < end, "it is started again");
        std::thread::sleep(Duration::from_millis(20));
    }
    send(&child, Signal::INT);
    let ended = child.wait().expect("it ends");
    assert_eq!(ended.code(), Some(130));
    assert!(!folder.path().join("failed-5").exists(), "it was not started again");
}

#[test]
fn a_training_that_fails_goes_on_from_its_checkpoint() {
    let folder = folder();
    let path = |file: &str| reference("mlp").join(file).display().to_string();
    let own = Reference::load("mlp");
    let steps = own.args.iter().position(|arg| arg == "--steps").expect("steps");
    let without = |place: &usize| *place != steps && *place != steps + 1;
    let args: Vec<&str> =
        (0..own.args.len()).filter(without).map(|place| own.args[place].as_str()).collect();
    let graphc = env!("CARGO_BIN_EXE_graphc");
    // The first start ends after 5 steps as a crash would end it; the second one makes the rest.
    let script = format!(
        "[ $GRAPHC_RESTART = 0 ] && steps=5 || steps=12; \
         {graphc} train {} --data {} {} --steps $steps --metrics m --save s --resume s || exit 2; \
         [ $GRAPHC_RESTART = 1 ]",
        path("model.onnx"),
        path("data.safetensors"),
        args.join(" ")
    );
    let launched = output(launch(folder.path(), &["--standalone", "--max-restarts", "1"], &script));
    assert!(launched.status.success(), "{}", stderr(&launched));
    let reached = losses(&std::fs::read(folder.path().join("m")).expect("metrics"));
    assert_eq!(reached.len(), 12);
    for (reached, expected) in reached.iter().zip(&own.losses) {
        assert!((reached - expected).abs() <= own.tolerance * expected, "{reached} {expected}");
    }
}

#[test]
fn signals_reach_every_process() {
    for (signal, status, name) in [(Signal::INT, 130, "INT"), (Signal::TERM, 143, "TERM")] {
        let folder = folder();
        // A shell without job control lets its background processes ignore SIGINT: the trap ends them. It does not `wait` for them, since a
        // signal that comes between the last command and a `wait` is heard only when that ends.
        let family = FAMILY.replace("wait", "while true; do sleep 0.05; done");
        let script = format!("trap 'echo > told-$RANK; kill $!; exit 0' {name}; {family}");
        let child = launch(folder.path(), &["--nproc-per-node", "2"], &script).spawn();
        let child = child.expect("it starts");
        started(folder.path(), 4);
        send(&child, signal);
        let ended = child.wait_with_output().expect("it ends");
        assert_eq!(ended.status.code(), Some(status), "{}", stderr(&ended));
        for rank in 0..2 {
            assert!(folder.path().join(format!("told-{rank}")).exists(), "rank {rank} got it");
        }
        nothing_runs(folder.path(), 4);
    }
}

#[test]
fn who_ignores_the_signal_is_killed_after_the_grace() {
    let folder = folder();
    let script = format!("trap '' INT TERM; {FAMILY}");
    let options = ["--nproc-per-node", "2", "--grace", "0.3"];
    let child = launch(folder.path(), &options, &script).spawn().expect("it starts");
    started(folder.path(), 4);
    send(&child, Signal::TERM);
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(143), "{}", stderr(&ended));
    let said = "note: killed before they had ended: rank 0, 1; what they had not saved is lost";
    assert!(stderr(&ended).contains(said), "{}", stderr(&ended));
    nothing_runs(folder.path(), 4);
}

#[test]
fn nothing_outlives_a_launch_that_is_killed() {
    let folder = folder();
    let child = launch(folder.path(), &["--nproc-per-node", "3"], FAMILY).spawn();
    let mut child = child.expect("it starts");
    started(folder.path(), 6);
    child.kill().expect("it runs");
    child.wait().expect("it has ended");
    nothing_runs(folder.path(), 6);
}

#[test]
fn what_a_finished_rank_leaves_in_the_background_is_ended() {
    let folder = folder();
    let script = "sleep 1000 & echo $! > pid-$RANK";
    succeeds(launch(folder.path(), &["--nproc-per-node", "2"], script));
    nothing_runs(folder.path(), 2);
}

#[test]
fn under_slurm_and_mpirun_there_is_one_process_of_their_rank() {
    let folder = folder();
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $NODE_COUNT \
                  $MASTER_ADDR";
    let with = |options: &[&str], variables: &str| {
        let mut command = launch(folder.path(), options, script);
        command.envs(variables.split(' ').filter_map(|pair| pair.split_once('=')));
        command
    };
    let slurm = "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NNODES=4 SLURM_NODEID=2 \
                 SLURM_JOB_NODELIST=n[01-03,07]";
    assert_eq!(succeeds(with(&[], slurm)), "5 1 8 2 2 4 n01\n");
    assert_eq!(succeeds(with(&["--master-addr", "h"], slurm)), "5 1 8 2 2 4 h\n");
    let own = succeeds(with(&["--nproc-per-node", "1"], slurm));
    assert_eq!(own, "0 0 1 1 0 1 127.0.0.1\n", "what the command line says comes first");
    let mpi = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
               OMPI_COMM_WORLD_LOCAL_SIZE=2";
    assert_eq!(succeeds(with(&["--master-addr", "h"], mpi)), "3 1 4 2 1 2 h\n");
    names(&fails(with(&[], mpi), 1), &["on which machine rank 0 is", "--master-addr"]);
    assert_eq!(succeeds(with(&[], "PMI_RANK=1 PMI_SIZE=2")), "1 1 2 2 0 1 127.0.0.1\n");
    names(&fails(with(&[], "PMI_RANK=1"), 1), &["PMI_SIZE is not set"]);
    let nonsense = "SLURM_PROCID=x SLURM_NTASKS=2";
    names(&fails(with(&[], nonsense), 1), &["SLURM_PROCID is `x`"]);
}

/// Prepares two ranks of a training that writes its metrics, as a job's processes start them without `graphc launch`.
fn trains(program: &[&str], metrics: &Path) -> Command {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(env!("CARGO_BIN_EXE_graphc")).args(["train", "--mesh", "2"]);
    command.arg(reference("mlp").join("model.onnx"));
    command.arg("--data").arg(reference("mlp").join("data.safetensors"));
    command.args(Reference::load("mlp").args).arg("--metrics").arg(metrics);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let launcher = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];
    FOREIGN.iter().chain(&launcher).for_each(|name| {
        command.env_remove(name);
    });
    command
}

fn reached(metrics: &Path) {
    let losses = losses(&std::fs::read(metrics).expect("rank 0 writes them"));
    let expected = Reference::load("mlp");
    assert_eq!(losses.len(), expected.losses.len());
    for (found, expected) in losses.iter().zip(&expected.losses) {
        assert!((found - expected).abs() <= 1e-4 * expected.abs(), "{found} is not {expected}");
    }
}

#[test]
fn a_program_that_srun_has_started_needs_no_launch() {
    let folder = folder();
    let metrics = folder.path().join("losses.jsonl");
    let job = format!("tests.{}", std::process::id());
    let rank = |rank: &str| {
        let mut command = trains(&["env"], &metrics);
        let step = [("SLURM_JOB_ID", job.as_str()), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2")];
        let place = [("SLURM_NNODES", "1"), ("SLURM_NODEID", "0"), ("SLURM_JOB_NODELIST", "n7")];
        command.envs(step).envs(place).envs([("SLURM_PROCID", rank), ("SLURM_LOCALID", rank)]);
        command.spawn().expect("it starts")
    };
    for process in ["1", "0"].map(rank) {
        let output = process.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", stderr(&output));
    }
    reached(&metrics);
}

#[test]
fn a_program_that_mpirun_has_started_needs_no_launch() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("skipped: there is no mpirun (Open MPI) here");
        return;
    }
    let folder = folder();
    let metrics = folder.path().join("losses.jsonl");
    let mut command = trains(&["mpirun", "--oversubscribe", "-n", "2"], &metrics);
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    let output = output(command);
    assert!(output.status.success(), "{}", stderr(&output));
    reached(&metrics);
}

#[test]
fn a_wrong_command_line_is_explained() {
    let folder = folder();
    let wrong = |options: &[&str], parts: &[&str]| {
        names(&fails(launch(folder.path(), options, "true"), 2), parts);
    };
    wrong(&["--nproc-per-node", "0"], &["--nproc-per-node", "at least 1"]);
    wrong(
        &["--nnodes", "2", "--node-rank", "2", "--master-addr", "h"],
        &["--node-rank 2", "--nnodes 2"],
    );
    wrong(&["--nnodes", "2"], &["--master-addr"]);
    wrong(&["--master-port", "70000"], &["70000", "--master-port"]);
    wrong(&["--master-port", "0"], &["--master-port"]);
    wrong(&["--nproc-per-node", "99999999999"], &["at most 1024"]);
    wrong(&["--standalone", "--nnodes", "2"], &["--standalone", "--nnodes"]);
    wrong(&["--tee"], &["--tee needs --logdir"]);
    wrong(&["--redirect"], &["--redirect needs --logdir"]);
    wrong(&["--max-restarts", "-1"], &["'-1' for '--max-restarts <K>'", "at least 0"]);
    wrong(&["--grace", "nan"], &["--grace"]);
    let mut nothing = Command::new(env!("CARGO_BIN_EXE_graphc"));
    nothing.args(["launch", "--nproc-per-node", "2"]);
    names(&fails(nothing, 2), &["COMMAND"]);
}

#[test]
fn what_cannot_be_started_is_named() {
    let folder = folder();
    let mut absent = Command::new(env!("CARGO_BIN_EXE_graphc"));
    absent.args(["launch", "--nproc-per-node", "2", "--", "no-such-program", "x"]);
    names(&fails(absent, 1), &["cannot start rank 0: `no-such-program`", "No such file"]);
    std::fs::write(folder.path().join("file"), "in the way").expect("writable");
    let options = ["--nproc-per-node", "2", "--logdir", "file"];
    names(
        &fails(launch(folder.path(), &options, "true"), 1),
        &["cannot write logs to file/rank-0"],
    );
}
