//! `graphc explain`: why a tensor lies as it does, and what fills the memory.

use std::fmt::Write;

use anyhow::Result;
use graphc::report::{self, Alternative, Backward, Explained, LayoutChoice, MemoryPeak};
use graphc_compiler::compile::prepare_again;
use graphc_compiler::planner::{Waiting, WaitingWay, Waits};
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::format_bytes_briefly;
use graphc_plan::Plan;
use serde_json::json;

use super::args::{ExplainArgs, Format};
use super::output::print_escaped;
use super::plans::load_sound_plan;

/// Other tensors that are listed where a layout changes them.
const LISTED: usize = 6;

/// Seconds of a step that are not worth a number.
const LEAST: f64 = 5e-8;

/// Runs the command.
pub(super) fn run_explain(args: &ExplainArgs) -> Result<()> {
    let plan = load_sound_plan(&args.plan)?;
    match &args.tensor {
        Some(tensor) => explain_tensor(&plan, tensor, args.format),
        None => explain_memory(&plan, args.format),
    }
}

fn explain_tensor(plan: &Plan, tensor: &str, format: Format) -> Result<()> {
    let explained = report::explain_tensor(plan, &prepare_again(plan)?, tensor)?;
    match format {
        Format::Text => print_escaped(&render_text(plan, tensor, &explained)),
        Format::Json => {
            print_escaped(&(serde_json::to_string_pretty(&render_json(plan, &explained))? + "\n"))
        }
    }
}

fn render_text(plan: &Plan, tensor: &str, explained: &Explained) -> String {
    let Explained { choice, waiting, backward } = explained;
    let chosen = choice.chosen.as_ref();
    let lies = match chosen {
        Some(sbp) => format!("is ({sbp})"),
        None => "has a layout that is not listed,".to_owned(),
    };
    let mut text = format!(
        "`{tensor}` {lies} in a plan of {} per step (bound {})\n",
        report::format_seconds(plan.planner.objective_seconds),
        report::format_seconds(plan.planner.bound_seconds),
    );
    text += &render_layouts(plan, choice, |sbp| sbp.to_string());
    if let Some(waiting) = waiting {
        let _ = writeln!(
            text,
            "for the backward pass it is {}",
            report::describe_waiting(&waiting.chosen)
        );
    }
    if let Some(Backward { choice, .. }) = backward {
        text += &render_layouts(plan, choice, |sbp| explained.for_backward(sbp));
    }
    text + &waiting.as_ref().map_or_else(String::new, other_ways)
}

/// A line for each other way to have a tensor for the backward pass.
fn other_ways(waiting: &Waiting) -> String {
    let Waiting { stage, chosen, others } = waiting;
    let mut text = String::new();
    for other in others {
        let seconds = match other.seconds - chosen.seconds {
            s if s.abs() < LEAST => "as long".to_owned(),
            s if s < 0.0 => format!("-{}", report::format_seconds(-s)),
            s => format!("+{}", report::format_seconds(s)),
        };
        let (more, bytes) = match other.bytes >= chosen.bytes {
            true => ("+", other.bytes - chosen.bytes),
            false => ("-", chosen.bytes - other.bytes),
        };
        let _ = writeln!(
            text,
            "  {:<34} about {seconds} a step, {more}{} at the peak of stage {stage}",
            report::describe_waiting(other),
            format_bytes_briefly(bytes)
        );
    }
    match text.is_empty() {
        true => text,
        false => {
            "other ways, by the planner's model, where all else stays as it is:\n".to_owned()
                + &text
        }
    }
}

/// A line for each layout.
fn render_layouts(plan: &Plan, choice: &LayoutChoice, name: impl Fn(&NdSbp) -> String) -> String {
    let objective = plan.planner.objective_seconds;
    let LayoutChoice { chosen, all, .. } = choice;
    let (chosen, mut text) = (chosen.as_ref(), String::new());
    for Alternative { sbp, outcome } in all {
        let mark = if Some(sbp) == chosen { "*" } else { " " };
        let _ = match outcome {
            Err(reason) => writeln!(text, "{mark} {:<16} {reason}", name(sbp)),
            Ok((seconds, changed)) => {
                let more = (seconds / objective - 1.0) * 100.0;
                let mut line = format!(
                    "{mark} {:<16} {:>10} {more:>+9.3} %",
                    name(sbp),
                    report::format_seconds(*seconds)
                );
                if !changed.is_empty() {
                    let some = changed.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>();
                    line += &format!("  changes {} more: {}", changed.len(), some.join(", "));
                }
                writeln!(text, "{line}")
            }
        };
    }
    text
}

fn render_json(plan: &Plan, explained: &Explained) -> serde_json::Value {
    let Explained { choice, waiting, backward } = explained;
    let mut values = json!({
        "objective_seconds": plan.planner.objective_seconds,
        "alternatives": render_alternatives(choice),
    });
    if let Some(Waiting { stage, chosen, others }) = waiting {
        let way = |waits: &Waits| json!({ "way": way_name(waits.way), "kept_as": waits.sbp, "seconds": waits.seconds, "peak_bytes": waits.bytes });
        let others: Vec<_> = others.iter().map(way).collect();
        values["waiting"] = way(chosen);
        values["waiting"]["stage"] = json!(stage);
        values["waiting"]["others"] = json!(others);
    }
    if let Some(Backward { rests, choice }) = backward {
        values["backward"] = json!({ "again_from": rests, "sbp": choice.chosen, "alternatives": render_alternatives(choice) });
    }
    values
}

fn render_alternatives(choice: &LayoutChoice) -> Vec<serde_json::Value> {
    let one = |alternative: &Alternative| match &alternative.outcome {
        Ok((seconds, changed)) => {
            json!({ "sbp": alternative.sbp, "objective_seconds": seconds, "changes": changed })
        }
        Err(reason) => json!({ "sbp": alternative.sbp, "error": reason }),
    };
    choice.all.iter().map(one).collect()
}

fn way_name(way: WaitingWay) -> &'static str {
    match way {
        WaitingWay::Kept => "kept",
        WaitingWay::Gathered => "gathered",
        WaitingWay::Sliced => "sliced",
        WaitingWay::Recomputed => "recomputed",
    }
}

fn explain_memory(plan: &Plan, format: Format) -> Result<()> {
    let peaks: Vec<MemoryPeak> =
        plan.programs.iter().map(|program| report::find_peak(plan, program)).collect();
    if format == Format::Json {
        let one = |peak: &MemoryPeak| json!({ "bytes": peak.bytes, "actor": peak.actor, "kinds": peak.kinds, "largest": peak.largest });
        let all: Vec<_> = peaks.iter().map(one).collect();
        return print_escaped(&(serde_json::to_string_pretty(&json!({ "programs": all }))? + "\n"));
    }
    let mut text = String::new();
    for (index, (peak, program)) in peaks.iter().zip(&plan.programs).enumerate() {
        let _ = writeln!(
            text,
            "program {index} (stage {}): {} at {}, in an arena of {}",
            program.stage,
            format_bytes_briefly(peak.bytes),
            peak.actor,
            format_bytes_briefly(program.arena_bytes)
        );
        for (kind, bytes) in &peak.kinds {
            let _ = writeln!(text, "  {kind:<12} {:>10}", format_bytes_briefly(*bytes));
        }
        for (name, bytes) in &peak.largest {
            let _ = writeln!(text, "    {:>10}  {name}", format_bytes_briefly(*bytes));
        }
    }
    print_escaped(&text)
}
