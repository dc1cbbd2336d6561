//! Every kernel of the lookup on a card, held against the ops' own evaluations, or against the processor's kernels where those would take
//! too long.
//!
//!     cargo run --release --example card_kernels [-- --few] [--groups "rows,real norms"] [--jobs 8] [--seconds 200]
//!
//! Trials are made and executed group by group, each group by a process of its own: a kernel that faults makes a card of no use to its
//! process, and one that hangs is ended with it; the group goes on behind it in another process. A line of JSON is printed for each
//! trial, and at last one with a summary. The exit status is 1 where anything was wrong.

#[path = "../../../kernels/tests/common/calls.rs"]
mod calls;
#[path = "../../../kernels/tests/cases/mod.rs"]
mod cases;
#[path = "../../../kernels/tests/common/chains.rs"]
mod chains;
#[path = "../../../kernels/tests/common/mod.rs"]
mod common;
#[path = "../../../kernels/tests/common/growing.rs"]
mod growing;
#[path = "../../../kernels/tests/common/joint.rs"]
mod joint;
#[path = "../../../kernels/tests/common/products.rs"]
mod products;
#[path = "../../../kernels/tests/common/rectangles.rs"]
mod rectangles;

mod alone;
mod coverage;
mod groups;
mod large;
mod parent;
mod trial;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use graphc_runtime::Cause;
use graphc_runtime::cards::{Workbench, WorkbenchError};
use serde_json::{Value, json};

use groups::Group;
use trial::{Oracle, OtherBits, Outcome, Trial};

/// Holds the kernels of a card against what is right.
#[derive(Parser)]
struct Args {
    /// A few small trials of each op alone
    #[arg(long)]
    few: bool,
    /// Make the trials and what is right for each, and execute nothing: for machines without a card
    #[arg(long)]
    dry: bool,
    /// Groups whose names contain one of these
    #[arg(long, value_delimiter = ',')]
    groups: Vec<String>,
    /// Processes at a time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Threads of each process that compute what is right; all cores where it is the only one
    #[arg(long)]
    threads: Option<usize>,
    /// Seconds after which what has not begun is left out
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// Seconds after which a trial is given up
    #[arg(long, default_value_t = 120)]
    patience: u64,
    /// Be the process of this group
    #[arg(long, hide = true)]
    group: Option<String>,
    /// The first trial of the group that is executed
    #[arg(long, hide = true, default_value_t = 0)]
    from: usize,
}

/// Exit status of a process whose card is of no use any more.
const LOST: u8 = 3;

fn main() -> Result<std::process::ExitCode> {
    let args = Args::parse();
    if let Some(name) = &args.group {
        let group = groups::all().into_iter().find(|group| &group.name == name);
        return execute(&group.context("there is no such group")?, &args);
    }
    let wanted = |name: &str| args.groups.iter().any(|part| name.contains(part.as_str()));
    let all = if args.few { groups::few() } else { groups::all() };
    let names = all.into_iter().map(|group| group.name);
    let names: Vec<_> = names.filter(|name| args.groups.is_empty() || wanted(name)).collect();
    if names.is_empty() {
        bail!("there are no such groups");
    }
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let limits = parent::Limits { deadline, patience: Duration::from_secs(args.patience) };
    let jobs = args.jobs.max(1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores / jobs).max(1);
    let mut options = vec!["--threads".to_owned(), threads.to_string()];
    let flags = [(args.few, "--few"), (args.dry, "--dry")];
    options.extend(flags.into_iter().filter(|flag| flag.0).map(|flag| flag.1.to_owned()));
    let mut summary = parent::run(&names, jobs, limits, &options, &print)?;
    if args.groups.is_empty() {
        summary.look_for_untried();
    }
    print(&summary.value())?;
    Ok(u8::from(!summary.is_well()).into())
}

fn print(line: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Ends this process when the one that has started it has ended: a card is not left to a kernel that hangs.
fn end_with_parent() {
    std::thread::spawn(|| {
        // Nothing is ever written there.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::abort();
    });
}

/// Executes the trials of a group from one of them on.
fn execute(group: &Group, args: &Args) -> Result<std::process::ExitCode> {
    end_with_parent();
    let card = if args.dry { None } else { Some(Workbench::open()?) };
    for (number, made) in group.trials(args.few).into_iter().enumerate().skip(args.from) {
        print(&json!({ "group": group.name, "begins": number }))?;
        let begun = Instant::now();
        let trial = made(args.threads.unwrap_or(1));
        print(&json!({ "group": group.name, "begins": number, "trial": trial.name }))?;
        let made = begun.elapsed().as_secs_f64();
        let result = match &card {
            Some(card) => trial.run(card),
            None => Ok(Outcome::NOTHING),
        };
        let mut line = line(&trial, &result);
        line["group"] = json!(group.name);
        line["number"] = json!(number);
        line["seconds"] = json!([made, begun.elapsed().as_secs_f64() - made]);
        print(&line)?;
        if matches!(&result, Err(error) if is_lost(error)) {
            return Ok(LOST.into());
        }
    }
    Ok(0.into())
}

/// Whether nothing can be executed behind this error. What a kernel finds in its operands leaves the card as it was.
fn is_lost(error: &WorkbenchError) -> bool {
    matches!(error, WorkbenchError::Card(_) | WorkbenchError::Failed(Cause::Device(_)))
}

fn line(trial: &Trial, result: &Result<Outcome, WorkbenchError>) -> Value {
    let oracle = match trial.oracle {
        Oracle::Evaluation => "evaluation",
        Oracle::Processor => "processor",
    };
    let verdict = match result {
        Ok(outcome) if outcome.is_right() => "right",
        Ok(_) => "wrong",
        Err(_) => "failed",
    };
    let mut line =
        json!({ "trial": trial.name, "op": trial.op, "verdict": verdict, "oracle": oracle });
    match result {
        Ok(Outcome { worst, repeats, in_place, .. }) => {
            // Infinity is no number of JSON.
            line["share"] = json!(worst.share.min(1e300));
            if worst.share > 0.0 {
                let at = format!("result {} element {}", worst.result, worst.element);
                line["at"] = json!(at);
                line["found"] = json!(format!("{:e}", worst.found));
                line["right"] = json!(format!("{:e}", worst.right));
            }
            if !repeats {
                line["repeats"] = json!(false);
            }
            if let Some(OtherBits { elements, most, share }) = in_place {
                let [most, share] = [most, share].map(|number| number.min(1e300));
                line["in_place"] = json!({ "elements": elements, "most": most, "share": share });
            }
        }
        Err(error) => line["error"] = json!(error.to_string()),
    }
    line
}
