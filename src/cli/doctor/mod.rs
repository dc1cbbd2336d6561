//! `graphc doctor`: whether all of what is there works. One command for a machine, which prints a table to attach to a report.
//!
//! Small models of every kind are trained on the device and on the processor, and their losses compared: so every family
//! of kernels is executed, with the compiler of kernels, the libraries and, where there are several devices,
//! communication between them. Speeds are measured last.

mod models;
mod speeds;

use std::time::Instant;

use anyhow::{Result, bail};
use graphc_ir::mesh::DeviceKind;
use graphc_ir::types::DType;
use graphc_plan::{Strategy, Strategy::Auto};
use graphc_runtime::cards::{Library, NotFound, list_cards};

use super::args::{DeviceName, DoctorArgs, Format};
use super::output::print_escaped;
use models::{Case, DoctorModel};

/// A thing that was looked at, and its result.
struct DoctorLine {
    what: String,
    result: Result<String>,
    seconds: f64,
}

/// Runs the command.
pub(super) fn run_doctor(args: &DoctorArgs) -> Result<()> {
    let has_driver = !matches!(Library::Driver.find(), Err(NotFound::Nowhere { .. }));
    let found = if has_driver { DeviceName::Cuda } else { DeviceName::Cpu };
    let device: DeviceKind = args.device.unwrap_or(found).into();
    let mut lines = match device {
        DeviceKind::Cuda => check_libraries(),
        DeviceKind::Cpu if has_driver => Vec::new(),
        DeviceKind::Cpu => vec![examine_item("cards", || {
            Ok("none, as NVIDIA's driver (libcuda) is not there: ranks run on the processor".into())
        })],
    };
    let devices = match device {
        DeviceKind::Cpu => std::thread::available_parallelism().map_or(1, usize::from),
        DeviceKind::Cuda => list_cards().map_or(0, |cards| cards.len()),
    };
    if devices > 0 {
        lines.extend(
            list_cases(devices)
                .iter()
                .map(|case| examine_item(&case.name(), || case.check(device))),
        );
        if !args.quick {
            lines.extend(speeds::measure_speeds(device));
        }
    }
    print_escaped(&match args.format {
        Format::Text => render_text(&lines),
        Format::Json => format!("{:#}\n", render_json(&lines)),
    })?;
    match lines.iter().filter(|line| line.result.is_err()).count() {
        0 if devices == 0 => {
            bail!("there is no device of kind {device}: see above what is missing")
        }
        0 => Ok(()),
        wrong => bail!("{wrong} of {} checks failed", lines.len()),
    }
}

/// Lists every model in f32 and in mixed precision on one device; with two, divided between them.
fn list_cases(devices: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for model in DoctorModel::ALL {
        for precision in [None, Some(DType::BF16), Some(DType::F16)] {
            cases.push(Case { model, precision, ranks: 1, stages: 1, strategy: Auto });
        }
    }
    if devices > 1 {
        for strategy in [Strategy::Data, Strategy::Zero3, Strategy::Megatron] {
            let model = DoctorModel::Gpt;
            cases.push(Case { model, precision: None, ranks: 2, stages: 1, strategy });
        }
        let (model, strategy) = (DoctorModel::Gpt, Auto);
        cases.push(Case { model, precision: None, ranks: 2, stages: 2, strategy });
    }
    cases
}

fn check_libraries() -> Vec<DoctorLine> {
    let mut lines = vec![examine_item("cards", || {
        let cards = list_cards().map_err(anyhow::Error::msg)?;
        let names: Vec<String> = cards.iter().map(|card| card.name.clone()).collect();
        if names.is_empty() {
            bail!("the driver finds none");
        }
        Ok(names.join(", "))
    })];
    let several = list_cards().is_ok_and(|cards| cards.len() > 1);
    lines.extend(Library::ALL.map(|library| {
        examine_item(&library.to_string(), || match library.find() {
            Err(NotFound::Nowhere { .. }) if library == Library::Nccl && !several => {
                Ok("not there, and needed for several cards alone".to_owned())
            }
            Err(missing @ NotFound::Lacks { .. }) if library == Library::CublasLt => Ok(format!(
                "{missing}; products are made by graphc's own kernels, which are slower"
            )),
            Err(NotFound::Nowhere { .. }) if library == Library::CublasLt => {
                Ok("not there: products are made by graphc's own kernels, which are slower"
                    .to_owned())
            }
            found => {
                let (path, version) = (found?.path.display(), library.version());
                Ok(format!("{path}, {}", version.unwrap_or_else(|| "no version".into())))
            }
        })
    }));
    lines
}

/// Looks at something.
fn examine_item(what: &str, look: impl FnOnce() -> Result<String>) -> DoctorLine {
    let begun = Instant::now();
    let result = look();
    DoctorLine { what: what.to_owned(), result, seconds: begun.elapsed().as_secs_f64() }
}

fn render_text(lines: &[DoctorLine]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    for line in lines {
        let (verdict, said) = match &line.result {
            Ok(said) => ("ok", said.clone()),
            Err(error) => ("WRONG", format!("{error:#}")),
        };
        table.add_row([
            verdict.to_owned(),
            line.what.clone(),
            said,
            format!("{:.1} s", line.seconds),
        ]);
    }
    format!("{table}\n")
}

fn render_json(lines: &[DoctorLine]) -> serde_json::Value {
    let line = |line: &DoctorLine| {
        let (ok, said) = match &line.result {
            Ok(said) => (true, said.clone()),
            Err(error) => (false, format!("{error:#}")),
        };
        serde_json::json!({ "what": line.what, "ok": ok, "result": said, "seconds": line.seconds })
    };
    lines.iter().map(line).collect()
}
