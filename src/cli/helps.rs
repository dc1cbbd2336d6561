//! `graphc completions` and `graphc man`: what shells and `man` know of the command line.

use anyhow::{Context, Result};
use graphc_runtime::data::make_folder;

use super::args::{CompletionsArgs, ManArgs, command_line};
use super::output::print_escaped;

/// Prints what completes the command line in a shell.
pub(super) fn run_completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line::build_command(), "graphc", &mut script);
    print_escaped(&String::from_utf8(script).context("the script is no text")?)
}

/// Writes the pages `graphc.1`, `graphc-compile.1` and so on.
pub(super) fn write_pages(args: &ManArgs) -> Result<()> {
    let folder = args.folder.display();
    make_folder(&args.folder)
        .and_then(|()| clap_mangen::generate_to(command_line::build_command(), &args.folder))
        .with_context(|| format!("cannot write manual pages to {folder}"))
}
