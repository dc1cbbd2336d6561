//! `graphc simulate`: the null device executes a plan with modelled time.

use anyhow::{Context, Result};
use graphc::report;
use graphc_compiler::null_device::{TraceEvent, simulate, trace};
use serde_json::json;

use super::args::{Format, SimulateArgs};
use super::compile::load_sound_plan;
use super::output::{check_distinct, print};

/// Runs the command.
pub fn run(args: &SimulateArgs) -> Result<()> {
    let trace_to = args.trace.as_deref();
    check_distinct(&[("the plan", Some(&args.plan))], &[("--trace", trace_to)])?;
    let plan = load_sound_plan(&args.plan)?;
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
            print(&(serde_json::to_string_pretty(&value)? + "\n"))
        }
        Format::Text => {
            let mut text = format!("step      {}\n", report::seconds(simulation.step_seconds));
            text += &format!("bubble    {:.2} %\n", simulation.bubble_fraction * 100.0);
            for (program, &peak) in plan.predicted.peak_memory_bytes.iter().enumerate() {
                text += &format!("memory    program {program}: {}\n", report::bytes(peak));
            }
            print(&text)
        }
    }
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
