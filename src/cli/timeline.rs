//! `graphc simulate --trace`: what ran when, in Chrome's trace format, which Perfetto reads.
//!
//! A large training has millions of actions a step, so events go to the file one by one: as one value in memory they
//! take twenty times what the null device keeps of them.

use std::io::{Result, Write};

use graphc_compiler::null_device::{ClassReport, Simulation, TraceEvent};
use graphc_plan::Plan;
use serde::Serialize;
use serde_json::{Value, json};

/// Writes a process for each kind of rank, a thread for each stream and an event for each action, in microseconds.
pub(super) fn write_timeline(
    file: &mut dyn Write,
    plan: &Plan,
    simulation: &Simulation,
) -> Result<()> {
    file.write_all(br#"{"displayTimeUnit":"ms","traceEvents":["#)?;
    let mut separator = "\n";
    let mut next =
        |file: &mut dyn Write| file.write_all(std::mem::replace(&mut separator, ",\n").as_bytes());
    for name in simulation.classes.iter().flat_map(|class| row_names(plan, class)) {
        next(file)?;
        serde_json::to_writer(&mut *file, &name)?;
    }
    for event in &simulation.trace {
        next(file)?;
        serde_json::to_writer(&mut *file, &Complete::from_event(plan, event))?;
    }
    file.write_all(b"\n]}\n")
}

/// Returns the events that name the rows of a kind of rank.
fn row_names(plan: &Plan, class: &ClassReport) -> Vec<Value> {
    let ClassReport { rank, ranks, stage } = *class;
    let named = |what: &str, tid: usize, args: Value| json!({ "name": what, "ph": "M", "pid": rank, "tid": tid, "args": args });
    let like = match ranks {
        1 => String::new(),
        ranks => format!(" and {} like it", ranks - 1),
    };
    let label = format!("stage {stage}: rank {rank}{like}");
    let mut events = vec![
        named("process_name", 0, json!({ "name": label })),
        named("process_sort_index", 0, json!({ "sort_index": stage })),
    ];
    let program = &plan.programs[plan.ranks[rank as usize].program.index()];
    events.extend((0..program.streams.len()).map(|stream| {
        let label = if stream == 0 { "compute" } else { "communication" };
        named("thread_name", stream, json!({ "name": label }))
    }));
    events
}

/// An event with a beginning and a duration, both in microseconds.
#[derive(Serialize)]
struct Complete<'a> {
    name: &'a str,
    cat: &'static str,
    ph: &'static str,
    pid: u32,
    tid: usize,
    ts: f64,
    dur: f64,
    args: EventPart,
}

/// The part of the training that an event belongs to.
#[derive(Serialize)]
struct EventPart {
    step: u64,
    microbatch: u32,
}

impl<'a> Complete<'a> {
    fn from_event(plan: &'a Plan, event: &TraceEvent) -> Self {
        Self {
            name: &event.actor(plan).name,
            cat: event.kind(plan),
            ph: "X",
            pid: event.rank,
            tid: event.stream,
            ts: round_to_microseconds(event.start),
            dur: round_to_microseconds(event.end - event.start),
            args: EventPart { step: event.step, microbatch: event.microbatch },
        }
    }
}

/// Converts seconds to microseconds, rounded to a millionth of them. Each digit is written millions of times, and the null device knows no
/// more.
fn round_to_microseconds(seconds: f64) -> f64 {
    (seconds * 1e12).round() / 1e6
}
