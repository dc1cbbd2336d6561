//! The commands, one file each. `args.rs` says what may be said; `options.rs` turns it into the compiler's words.

use anyhow::Result;

pub mod args;
mod checkpoints;
mod compile;
mod data;
mod export;
mod inspect;
mod options;
mod output;
mod run;
mod simulate;
mod train;
mod verify;

use args::Command;

/// Runs a command.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Compile(args) => compile::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Export(args) => export::run(&args),
    }
}
