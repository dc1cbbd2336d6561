//! Tests of a system that gives no more threads or processes: a command does what it can with those that it has, or ends with an error that
//! says so. It neither panics nor waits for ever.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Reference, reference};

/// A user of whom nobody else has processes. For root no limit holds, so tests of root's are run as this one.
const NOBODY: u32 = 61_234;
/// The time that no run takes, also where peers that have no thread are waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// The number of threads and processes with which all commands succeed.
const ENOUGH: u32 = 200;

/// A folder that any user may write, with the program and the reference that is trained.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let mode = PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(folder.path(), mode).expect("our own");
        let copy = |from: &Path, name: &str| {
            let to = folder.path().join(name);
            std::fs::copy(from, &to).expect("writable");
            std::fs::set_permissions(to, PermissionsExt::from_mode(0o755)).expect("our own");
        };
        copy(Path::new(env!("CARGO_BIN_EXE_graphc")), "graphc");
        for name in ["model.onnx", "data.safetensors"] {
            copy(&reference("mlp").join(name), name);
        }
        Self(folder)
    }

    /// Whether a command succeeds where its user may have so many threads and processes; what it says on standard error.
    fn run(&self, most: u32, args: &[String]) -> (bool, String) {
        let errors = self.0.path().join("errors");
        let mut command = Command::new("sh");
        // The shells have two names for this limit.
        let script = format!("ulimit -u {most} 2>&- || ulimit -p {most}; exec ./graphc \"$@\"");
        command.args(["-c", &script, "sh"]).args(args).current_dir(self.0.path());
        command.env("RAYON_NUM_THREADS", "4").env("HOME", self.0.path());
        command.stdout(std::process::Stdio::null());
        command.stderr(std::fs::File::create(&errors).expect("writable"));
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY);
        }
        let mut child = command.spawn().expect("sh starts");
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break status;
            }
            if begun.elapsed() > PATIENCE {
                child.kill().expect("a child");
                panic!("{args:?} with {most} threads: {}", read(&errors));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let said = read(&errors);
        let what = format!("{args:?} with {most} threads: {status}: {said}");
        assert!(matches!(status.code(), Some(0 | 1)), "{what}");
        assert!(!said.contains("panicked"), "{what}");
        (status.success(), said)
    }

    /// Runs a command with ever more threads. Whether it succeeded with the fewest.
    fn check(&self, args: &[&str]) -> bool {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let with = |most| {
            let (succeeds, said) = self.run(most, &args);
            let is_told =
                said.contains("no more threads or processes") && said.contains("ulimit -u");
            assert!(succeeds || is_told, "{args:?} with {most} threads: {said}");
            succeeds
        };
        let few = [2, 3, 4, 5, 6, 8, 12].map(with);
        // Of a user's other processes only some may end meanwhile, so that more than enough is tried as another user alone.
        if rustix::process::geteuid().is_root() {
            assert!(with(ENOUGH), "{args:?}");
        }
        with(1) && few[0]
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn trained() -> Vec<String> {
    let args = Reference::load("mlp").args;
    let given = ["train", "model.onnx", "--data", "data.safetensors"];
    given.into_iter().map(str::to_owned).chain(args).collect()
}

#[test]
fn a_model_is_compiled_with_any_number_of_threads() {
    let machine = Machine::new();
    let mut args = Reference::load("mlp").args;
    let steps = args.iter().position(|arg| arg == "--steps").expect("steps");
    args.drain(steps..steps + 2);
    let base = ["compile", "model.onnx", "-o", "plan.json", "--mesh", "4", "--cluster", "dgx-h100"];
    let args: Vec<&str> = base.into_iter().chain(args.iter().map(String::as_str)).collect();
    assert!(machine.check(&args), "no thread is needed");
}

#[test]
fn a_number_of_threads_that_no_process_has_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graphc"));
    let output = command.arg("devices").env("RAYON_NUM_THREADS", "100000000").output();
    let output = output.expect("graphc starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("RAYON_NUM_THREADS") && said.contains("from 1 to 1024"), "{said}");
}

#[test]
fn a_training_without_threads_is_an_error() {
    let machine = Machine::new();
    let args = trained();
    let args: Vec<&str> = args.iter().map(String::as_str).chain(["--mesh", "2"]).collect();
    assert!(!machine.check(&args), "each rank is a thread");
}

#[test]
fn a_launch_without_processes_is_an_error() {
    let machine = Machine::new();
    let args = trained();
    let launch = ["launch", "--standalone", "--nproc-per-node", "2", "--tee", "--logdir", "logs"];
    let args = args.iter().map(String::as_str);
    let args: Vec<&str> = launch.into_iter().chain(["--", "./graphc"]).chain(args).collect();
    assert!(!machine.check(&args), "each rank is a process");
}
