//! `graphc kernels`: what plans launch on cards, compiled where none is.

use std::time::Instant;

use anyhow::Result;
use graphc_runtime::cards::{Library, PreparedKernels, prepare_kernels};

use super::args::{Capability, KernelsArgs};
use super::output::print_escaped;
use super::plans::load_sound_plan;

/// Runs the command.
pub(super) fn run_kernels(args: &KernelsArgs) -> Result<()> {
    let plans = args.plans.iter().map(|path| load_sound_plan(path)).collect::<Result<Vec<_>>>()?;
    let Capability(major, minor) = args.capability;
    let begun = Instant::now();
    let PreparedKernels { kernels, compiled } =
        prepare_kernels(&plans, (major, minor), &args.output)?;
    let (seconds, folder) = (begun.elapsed().as_secs_f64(), args.output.display());
    let version = Library::Nvrtc.version().unwrap_or_default();
    print_escaped(&format!(
        "{folder}: {kernels} kernels for capability {major}.{minor}, of which {compiled} were compiled now, in {seconds:.1} s, by NVRTC \
         {version}\n"
    ))
}
