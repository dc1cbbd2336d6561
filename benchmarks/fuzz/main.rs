//! Feeds what reads files, models, plans and messages with inputs that nobody would write, each target in a process of its own
//! within a limit of memory, and each input within one of time. What panics, hangs or takes too much memory is kept, and the
//! command that feeds it again is printed.
//!
//!     cargo run --example fuzz -- onnx --seconds 600
//!     cargo run --example fuzz --features images,bpe -- all --seconds 60
//!     cargo run --example fuzz -- onnx --input target/fuzz/onnx-0-1234
//!
//! Inputs are edited from a corpus by a seed: the same seed gives the same inputs. There is no feedback of what code an input
//! reaches; instead inputs are edited as what they are (`mutate`). What was found and mended is in `found/TARGET`, which every run
//! feeds first. The profile `dev` has the checks of arithmetic that `release` has not.

mod mutate;
mod supervise;
mod targets;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use mutate::input;
use supervise::Progress;
use targets::Target;

/// Feeds readers with damaged input.
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// A target, or `all`, one after the other
    #[arg(value_parser = parse_targets)]
    targets: Targets,
    /// Seconds for each target
    #[arg(long, conflicts_with = "cases")]
    seconds: Option<f64>,
    /// Inputs for each target, the corpus among them
    #[arg(long)]
    cases: Option<u64>,
    /// What inputs are drawn by
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The first input
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Bytes of address space that a target may have
    #[arg(long, default_value_t = 2 << 30)]
    memory: u64,
    /// Seconds that an input may take
    #[arg(long, default_value_t = 30.0)]
    limit: f64,
    /// Where inputs are kept that break something
    #[arg(long, default_value = "target/fuzz")]
    out: PathBuf,
    /// Feed this file alone, in this process
    #[arg(long)]
    input: Option<PathBuf>,
    /// This is a child, which says here how far it is
    #[arg(long, hide = true)]
    child: Option<PathBuf>,
    /// The child's folder
    #[arg(long, hide = true, default_value = "target/fuzz/folder")]
    folder: PathBuf,
}

/// The targets that are fed.
#[derive(Clone, Debug)]
struct Targets(Vec<Target>);

fn parse_targets(text: &str) -> Result<Targets, String> {
    match text {
        "all" => Ok(Targets(Target::all().collect())),
        name => Ok(Targets(vec![Target::from_str(name, false).map_err(|_| unknown(name))?])),
    }
}

fn unknown(name: &str) -> String {
    let names: Vec<String> = Target::all().map(Target::name).collect();
    format!("there is no target `{name}`: write all, {}", names.join(", "))
}

impl Args {
    /// The first case that is not fed.
    fn end(&self) -> u64 {
        self.cases.map_or(u64::MAX, |cases| self.from.saturating_add(cases))
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let Targets(targets) = &args.targets;
    if let (Some(progress), [target]) = (&args.child, &targets[..]) {
        return feed_all(*target, &args, &Progress::open(progress)?);
    }
    if let Some(path) = &args.input {
        return feed_file(targets, &args, path);
    }
    let mut found = false;
    for &target in targets {
        let report = supervise::run(target, &args)?;
        for (path, what) in &report.findings {
            let (name, path) = (target.name(), path.display());
            println!("{path}: {what}\nagain: cargo run --example fuzz -- {name} --input {path}");
        }
        found |= !report.findings.is_empty();
    }
    Ok(if found { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Feeds one file, within the limit of memory.
fn feed_file(targets: &[Target], args: &Args, path: &Path) -> Result<ExitCode> {
    limit_memory(args.memory)?;
    let input = std::fs::read(path).with_context(|| path.display().to_string())?;
    std::fs::create_dir_all(&args.folder).with_context(|| args.folder.display().to_string())?;
    for &target in targets {
        let begun = Instant::now();
        let outcome = target.feed(&input, &args.folder);
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{} in {seconds:.3} s: {}",
            target.name(),
            outcome.err().unwrap_or("taken".into())
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Feeds the inputs of a target, in the child.
fn feed_all(target: Target, args: &Args, progress: &Progress) -> Result<ExitCode> {
    limit_memory(args.memory)?;
    let (begun, corpus, mut counts) = (Instant::now(), target.corpus(), [0, 0]);
    for case in args.from..args.end() {
        if args.seconds.is_some_and(|seconds| begun.elapsed().as_secs_f64() > seconds) {
            break;
        }
        progress.write([case, counts[0], counts[1]])?;
        let input = input(target.form(), &corpus, args.seed, case);
        let refused = target.feed(&input, &args.folder).is_err();
        counts[usize::from(refused)] += 1;
    }
    progress.write([args.end(), counts[0], counts[1]])?;
    Ok(ExitCode::SUCCESS)
}

/// Limits the memory of the process. The system refuses requests beyond it, and a program that does not check that dies.
fn limit_memory(bytes: u64) -> Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::As, limit).context("the system limits no memory")
}
