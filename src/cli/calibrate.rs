//! `graphc calibrate`: this machine, or what was measured on another one, becomes a cluster file.

use anyhow::{Context, Result, ensure};
use graphc::calibrate::{CalibrationEffort, Measured, calibrate_machine};
use graphc::profile::Profile;
use graphc_ir::mesh::DeviceKind;

use super::args::{CalibrateArgs, DeviceName};
use super::output::{check_places, print_escaped, print_message};

/// Ranks that may take turns on fewer cores.
const MOST_IN_TURN: usize = 16;

/// Runs the command.
pub(super) fn run_calibrate(args: &CalibrateArgs) -> Result<()> {
    check_places(&[("--output", args.output.as_deref())])?;
    let measured = match &args.from {
        Some(path) => Profile::read(path)?.to_measured()?,
        None => read_or_measure(args)?,
    };
    if let Some(missing) = measured.unmeasured_figures() {
        print_message("note", &missing);
    }
    if let Some(advice) = measured.disturbance.advice() {
        print_message("warning", &advice);
    }
    match &args.output {
        Some(path) => {
            graphc_runtime::data::write_file(path, measured.toml().as_bytes())?;
            print_escaped(&measured.lines())
        }
        None => print_escaped(&measured.toml()),
    }
}

/// Measures this machine, or reads what was measured.
fn read_or_measure(args: &CalibrateArgs) -> Result<Measured> {
    // Beyond the cores ranks take turns, and what is measured is the system's way of sharing them.
    let most = std::thread::available_parallelism().map_or(1, usize::from).max(MOST_IN_TURN);
    let device: DeviceKind = args.device.unwrap_or(DeviceName::Cpu).into();
    let ranks = args.ranks.unwrap_or_else(|| usual_ranks(device));
    ensure!((1..=most).contains(&ranks), "--ranks is 1 to {most} here, not {ranks}");
    let effort = match args.quick {
        true => CalibrationEffort::quick(device, ranks),
        false => CalibrationEffort::full(device, ranks),
    };
    calibrate_machine(effort).context("this machine cannot be measured")
}

/// Ranks that are measured where nobody says how many: two, so that there is a link, but one for each card.
fn usual_ranks(device: DeviceKind) -> usize {
    match device {
        DeviceKind::Cpu => 2,
        DeviceKind::Cuda => {
            graphc_runtime::cards::list_cards().map_or(1, |cards| cards.len().max(1))
        }
    }
}
