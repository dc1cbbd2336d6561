//! `graphc simulate`: the null device executes a plan with modelled time.

use anyhow::{Context, Result};
use graphc::report;
use graphc_compiler::null_device::{TraceEvent, simulate, trace};
use serde_json::json;

use super::args::{Format, SimulateArgs};
use super::compile::load_plan;

/// Runs the command.
pub fn run(args: &SimulateArgs) -> Result<()> {
    let plan = load_plan(&args.plan)?;
    let simulation = simulate(&plan).context("the plan cannot run")?;
    if let Some(path) = &args.trace {
        let events = trace(&plan, 1).context("the plan cannot run")?.trace;
        let text = serde_json::to_string(&chrome_trace(&events))?;
        graphc_runtime::data::write_file(path, text.as_bytes())?;
    }
    match args.format {
        Format::Json => {
            let value = json!({
                "step_seconds": simulation.step_seconds,
                "bubble_fraction": simulation.bubble_fraction,
                "peak_memory_bytes": plan.predicted.peak_memory_bytes,
            });
            println!("{}", serde_json::to_string_pretty(&value)?);
        }
        Format::Text => {
            println!("step      {}", report::seconds(simulation.step_seconds));
            println!("bubble    {:.2} %", simulation.bubble_fraction * 100.0);
            for (program, &peak) in plan.predicted.peak_memory_bytes.iter().enumerate() {
                println!("memory    program {program}: {}", report::bytes(peak));
            }
        }
    }
    Ok(())
}

/// Events in Chrome's trace format: a process for each rank, a thread for each stream, microseconds.
fn chrome_trace(events: &[TraceEvent]) -> serde_json::Value {
    let event = |event: &TraceEvent| {
        json!({
            "name": event.actor,
            "ph": "X",
            "pid": event.rank,
            "tid": event.stream,
            "ts": event.start * 1e6,
            "dur": (event.end - event.start) * 1e6,
            "args": { "step": event.step, "microbatch": event.microbatch },
        })
    };
    json!({ "traceEvents": events.iter().map(event).collect::<Vec<_>>(), "displayTimeUnit": "ms" })
}
