//! The process above: it has a child feed inputs, sees what the child dies of, and keeps the input.
//!
//! The child writes the number of a case to a file before it begins. An input follows from a target, a seed and this number, so
//! nothing else need be known of a child that is gone.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::Args;
use crate::mutate::input;
use crate::targets::Target;

/// The factor by which an input may exceed its limit by the clock where the child cannot get the processor.
const CROWDED: f64 = 20.0;
/// The time between two looks at the child.
const LOOK: Duration = Duration::from_millis(20);
/// The number of different findings after which a target is left.
const ENOUGH: usize = 10;

/// The progress of a child: the case, and the numbers of inputs that were taken and refused.
pub struct Progress(File);

impl Progress {
    /// Opens the file that both processes have.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        Ok(Self(file.with_context(|| path.display().to_string())?))
    }

    /// Says how far it is.
    pub fn write(&self, numbers: [u64; 3]) -> Result<()> {
        Ok(self.0.write_all_at(&numbers.map(u64::to_le_bytes).concat(), 0)?)
    }

    fn read(&self) -> [u64; 3] {
        let mut bytes = [0; 24];
        // Before the child has begun there is nothing.
        let _ = self.0.read_exact_at(&mut bytes, 0);
        let (numbers, _) = bytes.as_chunks::<8>();
        [0, 1, 2].map(|at| u64::from_le_bytes(numbers[at]))
    }
}

/// The end of a child.
enum End {
    /// It has fed all.
    Finished,
    /// A case has broken it, in some way.
    Broken(u64, String),
}

/// The findings about a target.
#[derive(Default)]
pub struct Report {
    taken: u64,
    refused: u64,
    /// Inputs that have broken something, each in a way of its own, with what they did.
    pub findings: Vec<(PathBuf, String)>,
}

/// Feeds a target until its time is over or its cases are.
pub fn run(target: Target, args: &Args) -> Result<Report> {
    let begun = Instant::now();
    let scratch = tempfile::tempdir().context("there is no scratch folder")?;
    let (mut report, mut kinds, mut next) = (Report::default(), BTreeSet::new(), args.from);
    let corpus = target.corpus();
    loop {
        let left = args.seconds.map(|seconds| seconds - begun.elapsed().as_secs_f64());
        if next >= args.end() || left.is_some_and(|left| left <= 0.0) {
            break;
        }
        let end = run_child(target, args, (next, left), scratch.path(), &mut report)?;
        let End::Broken(case, what) = end else { break };
        next = case + 1;
        if kinds.insert(kind_of(&what)) {
            let path = keep(target, args, case, &input(target.form(), &corpus, args.seed, case))?;
            report.findings.push((path, what));
        }
        if kinds.len() >= ENOUGH {
            break;
        }
    }
    let Report { taken, refused, findings } = &report;
    println!(
        "{}: {taken} inputs taken, {refused} refused, {} findings",
        target.name(),
        findings.len()
    );
    Ok(report)
}

/// Findings of one kind are one: where it panics, and else the first line without its numbers.
fn kind_of(what: &str) -> String {
    match what.lines().find_map(|line| line.split_once("panicked at")) {
        Some((_, place)) => place.to_owned(),
        None => what.lines().take(1).flat_map(str::chars).filter(|c| !c.is_ascii_digit()).collect(),
    }
}

fn keep(target: Target, args: &Args, case: u64, input: &[u8]) -> Result<PathBuf> {
    std::fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let path = args.out.join(format!("{}-{}-{case}", target.name(), args.seed));
    std::fs::write(&path, input).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn run_child(
    target: Target,
    args: &Args,
    (from, left): (u64, Option<f64>),
    scratch: &Path,
    report: &mut Report,
) -> Result<End> {
    let (progress, errors) = (scratch.join("progress"), scratch.join("errors"));
    let shared = Progress::open(&progress)?;
    shared.write([from, 0, 0])?;
    let folder = scratch.join(from.to_string());
    std::fs::create_dir_all(&folder)?;
    let mut command = Command::new(std::env::current_exe().context("the program has no name")?);
    command.arg(target.name()).arg("--child").arg(&progress).arg("--folder").arg(&folder);
    command.args(["--from", &from.to_string(), "--seed", &args.seed.to_string()]);
    command.args(["--memory", &args.memory.to_string()]);
    command.args(left.map(|left| format!("--seconds={left}")));
    command.args(args.cases.map(|_| format!("--cases={}", args.end() - from)));
    let child = command
        .env("RUST_BACKTRACE", "0")
        .stderr(File::create(&errors)?)
        .stdin(Stdio::null())
        .spawn();
    let ended = watch(child.context("the child does not start")?, &shared, args.limit)?;
    let [case, taken, refused] = shared.read();
    report.taken += taken;
    report.refused += refused;
    std::fs::remove_dir_all(&folder)?;
    Ok(match ended {
        Some(status) if status.success() => End::Finished,
        Some(status) => End::Broken(case, last_words(status, &errors)),
        None => End::Broken(case, format!("it takes more than {} s", args.limit)),
    })
}

/// Waits for the child and returns how it has ended; `None` if a case took too long, for which the child was killed.
fn watch(mut child: Child, progress: &Progress, limit: f64) -> Result<Option<ExitStatus>> {
    let (mut seen, mut since) = (progress.read()[0], Instant::now());
    let mut worked = seconds_of_processor(&child);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let case = progress.read()[0];
        if case != seen {
            (seen, since, worked) = (case, Instant::now(), seconds_of_processor(&child));
        }
        let waited = since.elapsed().as_secs_f64();
        // A busy machine makes nothing slow that is not.
        let is_crowded = || match (worked, seconds_of_processor(&child)) {
            (Some(before), Some(now)) => now - before < limit && waited < CROWDED * limit,
            _ => false,
        };
        if waited > limit && !is_crowded() {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

/// Seconds of the processor that a child has had, where the system tells.
fn seconds_of_processor(child: &Child) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    // Fields behind the name, which may have spaces; the 14th and 15th of all are in hundredths of a second.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut hundredths = || fields.next()?.parse::<f64>().ok();
    Some((hundredths()? + hundredths()?) / 100.0)
}

fn last_words(status: ExitStatus, errors: &Path) -> String {
    let text = std::fs::read(errors).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let words: String = text.trim().chars().take(2000).collect();
    match (words.is_empty(), status.signal()) {
        (false, _) => words,
        (true, Some(signal)) => format!("it dies of signal {signal}"),
        (true, None) => format!("it ends with {status}"),
    }
}
