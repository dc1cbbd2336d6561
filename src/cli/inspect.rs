//! `graphc inspect`: what is where in a plan.

use anyhow::Result;
use graphc::report;
use graphc_compiler::passes::attention::{Attentions, Kept};
use graphc_compiler::passes::functions::Functions;
use graphc_compiler::passes::joined::Held;
use serde_json::{Value, json};

use super::args::{Format, InspectArgs};
use super::output::print_escaped;
use super::plans::load_sound_plan;

/// Runs the command.
pub(super) fn run_inspect(args: &InspectArgs) -> Result<()> {
    let plan = load_sound_plan(&args.plan)?;
    let (attentions, functions) = (report::find_attentions(&plan), report::find_functions(&plan));
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
            "attention": attentions.as_ref().map(attention_json),
            "functions": functions.as_ref().map(functions_json),
            "tensors": plan.tensors,
            "boxing": plan.boxing,
            "programs": programs,
            "ranks": plan.ranks,
        });
        return print_escaped(&(serde_json::to_string_pretty(&value)? + "\n"));
    }
    let attention = attentions.as_ref().map(report::attention_lines).unwrap_or_default();
    let functions = functions.as_ref().map(report::function_lines).unwrap_or_default();
    let summary = report::summary(&plan) + &attention + &functions;
    let mut text = format!("{summary}\n{}\n", report::tensors(&plan));
    if !plan.boxing.is_empty() {
        text += &format!("{}\n", report::boxing(&plan));
    }
    print_escaped(&(text + &report::programs(&plan).to_string()))
}

fn attention_json(found: &Attentions) -> Value {
    let part = |(kept, softmax): (&Kept, &Vec<String>)| json!({ "reason": kept.reason(), "softmax": softmax });
    let in_parts: Vec<Value> = found.in_parts.iter().map(part).collect();
    json!({ "one_op": found.whole, "in_parts": in_parts })
}

fn functions_json(found: &Functions) -> Value {
    let part = |((held, name), values): (&(Held, &str), &Vec<String>)| json!({ "function": name, "reason": held.reason(), "values": values });
    let in_parts: Vec<Value> = found.in_parts.iter().map(part).collect();
    json!({ "one_op": found.whole, "in_parts": in_parts })
}
