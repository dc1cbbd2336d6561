//! `graphc calibrate`: this machine becomes a cluster file.

use anyhow::{Context, Result, ensure};
use graphc::calibrate::{Effort, calibrate};

use super::args::CalibrateArgs;
use super::output::print;

/// Runs the command.
pub fn run(args: &CalibrateArgs) -> Result<()> {
    ensure!((1..=1024).contains(&args.ranks), "--ranks is 1 to 1024, not {}", args.ranks);
    let effort = if args.quick { Effort::quick(args.ranks) } else { Effort::full(args.ranks) };
    let measured = calibrate(effort).context("this machine cannot be measured")?;
    match &args.output {
        Some(path) => {
            graphc_runtime::data::write_file(path, measured.toml().as_bytes())?;
            print(&measured.lines())
        }
        None => print(&measured.toml()),
    }
}
