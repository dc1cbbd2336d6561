//! `graphc inspect`: what is where in a plan.

use anyhow::Result;
use graphc::report;
use serde_json::json;

use super::args::{Format, InspectArgs};
use super::compile::load_sound_plan;
use super::output::print;

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<()> {
    let plan = load_sound_plan(&args.plan)?;
    if args.format == Format::Json {
        let programs: Vec<_> = plan
            .programs
            .iter()
            .map(|program| {
                json!({
                    "stage": program.stage,
                    "actors": program.actors.len(),
                    "registers": program.registers.len(),
                    "arena_bytes": program.arena_bytes,
                    "live_bytes": program.live_bytes,
                })
            })
            .collect();
        let value = json!({
            "name": plan.name,
            "world_size": plan.world_size,
            "mesh": plan.mesh,
            "stages": plan.stages,
            "microbatches": plan.microbatches,
            "planner": plan.planner,
            "predicted": plan.predicted,
            "tensors": plan.tensors,
            "boxing": plan.boxing,
            "programs": programs,
            "ranks": plan.ranks,
        });
        return print(&(serde_json::to_string_pretty(&value)? + "\n"));
    }
    let mut text = format!("{}\n{}\n", report::summary(&plan), report::tensors(&plan));
    if !plan.boxing.is_empty() {
        text += &format!("{}\n", report::boxing(&plan));
    }
    print(&(text + &report::programs(&plan).to_string()))
}
