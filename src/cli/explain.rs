//! `graphc explain`: why a tensor lies as it does, and what fills the memory.

use std::fmt::Write;

use anyhow::{Result, bail};
use graphc::report::{self, Peak};
use graphc_compiler::compile::prepare_again;
use graphc_compiler::decisions::{Decisions, Phase, Sharding};
use graphc_compiler::planner::alternatives;
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::plan::Plan;
use graphc_ir::sbp::NdSbp;
use serde_json::json;

use super::args::{ExplainArgs, Format};
use super::compile::load_sound_plan;
use super::output::print;

/// Other tensors that are listed where a layout changes them.
const LISTED: usize = 6;

/// Runs the command.
pub fn run(args: &ExplainArgs) -> Result<()> {
    let plan = load_sound_plan(&args.plan)?;
    match &args.tensor {
        Some(tensor) => explain(&plan, tensor, args.format),
        None => memory(&plan, args.format),
    }
}

/// A layout that the tensor may have.
struct Alternative {
    sbp: NdSbp,
    /// Seconds of the best plan with it, and the names of other tensors that then lie in other ways; or why there is
    /// none.
    outcome: Result<(f64, Vec<String>), String>,
}

/// The layouts that a tensor may have, and that of the plan.
struct Choice {
    chosen: Option<NdSbp>,
    all: Vec<Alternative>,
}

/// What the backward pass reads where the tensor may lie otherwise for it.
struct Backward {
    /// The layout from which it is gathered again: all others are kept.
    rests: Option<NdSbp>,
    choice: Choice,
}

fn explain(plan: &Plan, tensor: &str, format: Format) -> Result<()> {
    let decisions = prepare_again(plan)?;
    let value = find(&decisions, tensor)?;
    let choice = choice(plan, &decisions, value, tensor)?;
    let mut backward = None;
    if let Some(again) = again(&decisions, value) {
        let graph = decisions.graph();
        let operand = graph.producer(again).operands[0];
        let rests = laid(plan, &name_of(&decisions, operand));
        let choice = self::choice(plan, &decisions, again, &name_of(&decisions, again))?;
        backward = Some(Backward { rests, choice });
    }
    match format {
        Format::Text => print(&shown(plan, tensor, &choice, backward.as_ref())),
        Format::Json => {
            let values = values(plan, &choice, backward.as_ref());
            print(&(serde_json::to_string_pretty(&values)? + "\n"))
        }
    }
}

/// How the plan lays a tensor.
fn laid(plan: &Plan, tensor: &str) -> Option<NdSbp> {
    plan.tensors.iter().find(|entry| entry.name == tensor).map(|entry| entry.sbp.clone())
}

/// What the backward pass reads for a value, cast or not, where that may lie otherwise.
fn again(decisions: &Decisions, value: ValueId) -> Option<ValueId> {
    let graph = decisions.graph();
    let is_of = |mut of: ValueId| {
        while of != value && matches!(graph.producer(of).op, Op::Regather(_) | Op::Cast(_)) {
            of = graph.producer(of).operands[0];
        }
        of == value
    };
    let found = graph.nodes.iter().zip(&decisions.training.phases).find(|(node, phase)| {
        matches!(node.op, Op::Regather(_)) && **phase == Phase::Backward && is_of(node.operands[0])
    });
    found.map(|(node, _)| node.results[0])
}

fn choice(plan: &Plan, decisions: &Decisions, value: ValueId, tensor: &str) -> Result<Choice> {
    let chosen = laid(plan, tensor);
    let found = alternatives(decisions, &plan.options, &plan.cluster, value)?;
    let base = found.iter().find(|(sbp, _)| Some(sbp) == chosen.as_ref());
    let base = base.and_then(|(_, planned)| Some(planned.as_ref().ok()?.sharding.clone()));
    let alternative = |(sbp, planned): (NdSbp, Result<graphc_compiler::planner::Planned, _>)| {
        let outcome = match planned {
            Ok(planned) => {
                let base = base.as_ref().unwrap_or(&planned.sharding);
                let changed = changed(decisions, base, &planned.sharding, value);
                Ok((planned.report.objective_seconds, changed))
            }
            Err(error) => Err(format!("{error}")),
        };
        Alternative { sbp, outcome }
    };
    let all = found.into_iter().map(alternative).collect();
    Ok(Choice { chosen, all })
}

fn name_of(decisions: &Decisions, value: ValueId) -> String {
    let graph = decisions.graph();
    match &graph.producer(value).op {
        Op::Variable(variable) => variable.name.clone(),
        _ => graph.display_name(value),
    }
}

fn find(decisions: &Decisions, tensor: &str) -> Result<ValueId> {
    let all = || (0..decisions.graph().values.len()).map(ValueId::new);
    if let Some(value) = all().find(|&value| name_of(decisions, value) == tensor) {
        return Ok(value);
    }
    let part: Vec<String> =
        all().map(|value| name_of(decisions, value)).filter(|name| name.contains(tensor)).collect();
    match part.as_slice() {
        [] => bail!("the plan has no tensor `{tensor}`: `graphc inspect` lists them"),
        some => {
            let some = some.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
            bail!("the plan has no tensor `{tensor}`; there are {some}, ..")
        }
    }
}

/// Names of tensors of which two plans make different layouts, this one left out.
fn changed(decisions: &Decisions, a: &Sharding, b: &Sharding, this: ValueId) -> Vec<String> {
    let graph = decisions.graph();
    let differs = |value: &ValueId| {
        let (node, index) = (graph.value(*value).producer.index(), graph.value(*value).index);
        *value != this && a.nodes[node].results[index] != b.nodes[node].results[index]
    };
    let values = (0..graph.values.len()).map(ValueId::new).filter(differs);
    values.map(|value| name_of(decisions, value)).collect()
}

fn shown(plan: &Plan, tensor: &str, choice: &Choice, backward: Option<&Backward>) -> String {
    let chosen = choice.chosen.as_ref();
    let mut text = format!(
        "`{tensor}` is ({}) in a plan of {} per step (bound {})\n",
        chosen.map_or_else(|| "?".into(), NdSbp::to_string),
        report::seconds(plan.planner.objective_seconds),
        report::seconds(plan.planner.bound_seconds),
    );
    text += &lines(plan, choice, |sbp| sbp.to_string());
    if let Some(Backward { rests, choice }) = backward {
        let how = |sbp: &NdSbp| match Some(sbp) == rests.as_ref() {
            true => format!("again from {sbp}"),
            false => format!("kept as {sbp}"),
        };
        let chosen = choice.chosen.as_ref().map_or_else(|| "?".into(), how);
        let _ = writeln!(text, "for the backward pass it is {chosen}");
        text += &lines(plan, choice, how);
    }
    text
}

/// A line for each layout.
fn lines(plan: &Plan, choice: &Choice, name: impl Fn(&NdSbp) -> String) -> String {
    let objective = plan.planner.objective_seconds;
    let Choice { chosen, all } = choice;
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
                    report::seconds(*seconds)
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

fn values(plan: &Plan, choice: &Choice, backward: Option<&Backward>) -> serde_json::Value {
    let one = |alternative: &Alternative| match &alternative.outcome {
        Ok((seconds, changed)) => {
            json!({ "sbp": alternative.sbp, "objective_seconds": seconds, "changes": changed })
        }
        Err(reason) => json!({ "sbp": alternative.sbp, "error": reason }),
    };
    let all = |choice: &Choice| choice.all.iter().map(one).collect::<Vec<_>>();
    let mut values = json!({
        "objective_seconds": plan.planner.objective_seconds,
        "alternatives": all(choice),
    });
    if let Some(Backward { rests, choice }) = backward {
        values["backward"] =
            json!({ "again_from": rests, "sbp": choice.chosen, "alternatives": all(choice) });
    }
    values
}

fn memory(plan: &Plan, format: Format) -> Result<()> {
    let peaks: Vec<Peak> =
        plan.programs.iter().map(|program| report::peak(plan, program)).collect();
    if format == Format::Json {
        let one = |peak: &Peak| json!({ "bytes": peak.bytes, "actor": peak.actor, "kinds": peak.kinds, "largest": peak.largest });
        let all: Vec<_> = peaks.iter().map(one).collect();
        return print(&(serde_json::to_string_pretty(&json!({ "programs": all }))? + "\n"));
    }
    let mut text = String::new();
    for (index, (peak, program)) in peaks.iter().zip(&plan.programs).enumerate() {
        let _ = writeln!(
            text,
            "program {index} (stage {}): {} at {}, in an arena of {}",
            program.stage,
            report::bytes(peak.bytes),
            peak.actor,
            report::bytes(program.arena_bytes)
        );
        for (kind, bytes) in &peak.kinds {
            let _ = writeln!(text, "  {kind:<12} {:>10}", report::bytes(*bytes));
        }
        for (name, bytes) in &peak.largest {
            let _ = writeln!(text, "    {:>10}  {name}", report::bytes(*bytes));
        }
    }
    print(&text)
}
