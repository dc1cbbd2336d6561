//! The commands, one file or folder each. `args` says what may be said, and what it means to the compiler.

use std::process::ExitCode;

use anyhow::Result;

mod advise;
pub(crate) mod args;
mod calibrate;
mod check;
mod clusters;
mod compile;
mod contradictions;
mod data;
mod data_files;
mod devices;
mod diff;
mod doctor;
mod eval;
mod explain;
mod export;
mod helps;
mod inspect;
mod kernels;
mod launch;
mod models;
mod numbers;
pub(crate) mod output;
mod pages;
mod planning;
mod plans;
mod profiling;
mod ranks;
mod report;
mod run;
mod run_file;
mod simulate;
mod start;
mod timeline;
mod train;
mod verify;
mod world;

use args::Command;
pub(crate) use launch::hand_over;

/// Runs a command. The status is 0 but where a launch or a training was interrupted.
pub(crate) fn run_command(command: Command) -> Result<ExitCode> {
    output::expect_full_disks()?;
    check_threads()?;
    let result = execute_command(command);
    output::say_notes();
    result
}

/// Whether the number of threads that plan side by side, which the environment may say, is one that a process can have.
fn check_threads() -> Result<()> {
    const VARIABLE: &str = "RAYON_NUM_THREADS";
    let said = std::env::var(VARIABLE).ok().and_then(|text| text.parse::<usize>().ok());
    match said.filter(|&number| number > args::MOST_THREADS) {
        Some(number) => {
            anyhow::bail!("{VARIABLE} is {number}: write a number from 1 to {}", args::MOST_THREADS)
        }
        None => Ok(()),
    }
}

fn execute_command(command: Command) -> Result<ExitCode> {
    match command {
        Command::Compile(args) => compile::run_compile(&args)?,
        Command::Advise(args) => advise::run_advise(&args)?,
        Command::Inspect(args) => inspect::run_inspect(&args)?,
        Command::Explain(args) => explain::run_explain(&args)?,
        Command::Diff(args) => diff::run_diff(&args)?,
        Command::Verify(args) => verify::run_verify(&args)?,
        Command::Check(args) => check::run_check(&args)?,
        Command::Simulate(args) => simulate::run_simulate(&args)?,
        Command::Devices(args) => devices::run_devices(&args)?,
        Command::Clusters(args) => clusters::run_clusters(&args)?,
        Command::Doctor(args) => doctor::run_doctor(&args)?,
        Command::Kernels(args) => kernels::run_kernels(&args)?,
        Command::Report(args) => report::run_report(&args)?,
        Command::Calibrate(args) => calibrate::run_calibrate(&args)?,
        Command::Run(args) => run::run_inference(&args)?,
        Command::Train(args) => return train::run_train(&args),
        Command::Eval(args) => eval::run_eval(&args)?,
        Command::Export(args) => export::run_export(&args)?,
        Command::Data(args) => data::run_data(&args)?,
        Command::Completions(args) => helps::run_completions(&args)?,
        Command::Man(args) => helps::write_pages(&args)?,
        Command::Launch(args) => return launch::run_launch(&args),
        Command::LaunchGuard => launch::guard(),
    }
    Ok(ExitCode::SUCCESS)
}
