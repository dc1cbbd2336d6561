//! `graphc calibrate`: this machine, or what was measured on another one, becomes a cluster file.

use anyhow::{Context, Result, ensure};
use graphc::calibrate::{Effort, Measured, calibrate};
use graphc::profile::Profile;
use graphc_ir::mesh::DeviceKind;

use super::args::{CalibrateArgs, DeviceName};
use super::output::print;

/// Ranks that may take turns on fewer cores.
const MOST_IN_TURN: usize = 16;

/// Runs the command.
pub fn run(args: &CalibrateArgs) -> Result<()> {
    let measured = match &args.from {
        Some(path) => Profile::read(path)?.machine()?,
        None => measured(args)?,
    };
    match &args.output {
        Some(path) => {
            graphc_runtime::data::write_file(path, measured.toml().as_bytes())?;
            print(&measured.lines())
        }
        None => print(&measured.toml()),
    }
}

/// This machine.
fn measured(args: &CalibrateArgs) -> Result<Measured> {
    // Beyond the cores ranks take turns, and what is measured is the system's way of sharing them.
    let most = std::thread::available_parallelism().map_or(1, usize::from).max(MOST_IN_TURN);
    ensure!((1..=most).contains(&args.ranks), "--ranks is 1 to {most} here, not {}", args.ranks);
    let device: DeviceKind = args.device.unwrap_or(DeviceName::Cpu).into();
    let effort = match args.quick {
        true => Effort::quick(device, args.ranks),
        false => Effort::full(device, args.ranks),
    };
    calibrate(effort).context("this machine cannot be measured")
}
