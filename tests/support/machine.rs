//! A machine that has cards as far as programs can tell: the double of NVIDIA's libraries, and trainings on it.
#![allow(dead_code)] // each test binary uses its part

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use gpu_double::{Env, install};
use tempfile::TempDir;

use crate::support::{Reference, losses, training};

/// A machine with cards: the double's libraries, and a folder for compiled kernels.
pub struct Machine {
    folder: TempDir,
    env: Env,
}

impl Machine {
    /// `None` where the compiler of kernels is not installed.
    pub fn new() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let env = install(folder.path())?;
        Some(Self { folder, env })
    }

    /// A file of this test.
    pub fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_graphc"));
        command.args(args).envs(self.env.variables.iter().cloned());
        command.env("GRAPHC_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
        // Products that are timed are computed dozens of times.
        command.env("GRAPHC_TUNE", "0");
        command
    }

    /// The losses of a reference's training on cards, and how often each kernel was executed.
    pub fn counted(&self, name: &str, extra: &[&str]) -> (Vec<f64>, BTreeMap<String, usize>) {
        let metrics = self.file("counted.jsonl");
        let counts = self.counts(self.command(arguments(name, extra, &metrics)));
        (losses(&std::fs::read(metrics).expect("metrics")), counts)
    }

    /// Takes the libraries away whose names begin so.
    pub fn remove(&self, library: &str) {
        for entry in self.folder.path().read_dir().expect("a folder").flatten() {
            if entry.file_name().to_string_lossy().starts_with(library) {
                std::fs::remove_file(entry.path()).expect("it can be removed");
            }
        }
    }

    /// Counts how many times a command, which must succeed, executes each kernel. Products are counted by how they end.
    pub fn counts(&self, command: Command) -> BTreeMap<String, usize> {
        self.counts_and_errors(command).0
    }

    /// Counts like [`Self::counts`], and returns the command's standard error too.
    pub fn counts_and_errors(&self, mut command: Command) -> (BTreeMap<String, usize>, String) {
        let account = self.file("account");
        // Of another command.
        let _ = std::fs::remove_file(&account);
        command.env("GPU_DOUBLE_ACCOUNT", &account);
        let output = checked(command);
        let mut counts = BTreeMap::new();
        // Without a card there is none.
        for line in std::fs::read_to_string(account).unwrap_or_default().lines() {
            let kernel = line.split(' ').next().unwrap_or_default();
            *counts.entry(kernel.to_owned()).or_default() += 1;
        }
        (counts, String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

pub fn checked(mut command: Command) -> Output {
    let output = command.output().expect("graphc starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !stderr.contains("gpu double"), "{command:?}: {stderr}");
    output
}

pub fn arguments(name: &str, extra: &[&str], metrics: &str) -> Vec<String> {
    let mut args = training(name, &["--device", "cuda", "--metrics", metrics]);
    let mut own = Reference::load(name).args;
    if let Some(at) = own.iter().position(|arg| arg == "--steps" && extra.contains(&"--steps")) {
        own.drain(at..at + 2);
    }
    args.extend(own);
    args.extend(extra.iter().map(ToString::to_string));
    args
}

/// Whether the losses are those that PyTorch reached.
pub fn near(name: &str, extra: &[&str], reached: &[f64], tolerance: f64) {
    let expected = Reference::load(name).losses;
    crate::support::near(reached, &expected, tolerance, &format!("{name} {extra:?}"));
}
