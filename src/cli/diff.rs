//! `graphc diff`: two plans, what differs and what it costs.

use std::fmt::Write;

use anyhow::Result;
use graphc::report::{self, Difference};
use graphc_ir::types::format_bytes_briefly;
use serde_json::{Value, json};

use super::args::{DiffArgs, Format};
use super::output::print_escaped;
use super::plans::load_sound_plan;

/// Runs the command.
pub(super) fn run_diff(args: &DiffArgs) -> Result<()> {
    let (before, after) = (load_sound_plan(&args.before)?, load_sound_plan(&args.after)?);
    let difference = Difference::new(&before, &after);
    match args.format {
        Format::Text => print_escaped(&render_text(&difference)),
        Format::Json => {
            print_escaped(&(serde_json::to_string_pretty(&render_json(&difference))? + "\n"))
        }
    }
}

fn render_text(difference: &Difference) -> String {
    let mut text = String::new();
    for (name, before, after) in &difference.inputs {
        let _ = writeln!(text, "{name}: {before} -> {after}");
    }
    for &(name, before, after) in &difference.figures {
        let form = if name.contains("memory") {
            |value: f64| format_bytes_briefly(value as u64)
        } else {
            report::format_seconds
        };
        let change = match before {
            0.0 => String::new(),
            _ => format!(" ({:+.2} %)", (after / before - 1.0) * 100.0),
        };
        let _ = writeln!(text, "{name}: {} -> {}{change}", form(before), form(after));
    }
    for (kind, before, after) in &difference.collectives {
        let _ = writeln!(text, "messages of {kind} per step: {before} -> {after}");
    }
    let show = |place: &Option<String>| place.clone().unwrap_or_else(|| "none".into());
    for (name, before, after) in &difference.tensors {
        let _ = writeln!(text, "  {name}: {} -> {}", show(before), show(after));
    }
    let _ = writeln!(text, "{} tensors lie in other ways", difference.tensors.len());
    text
}

fn render_json(difference: &Difference) -> Value {
    let pair = |before: Value, after: Value| json!({ "before": before, "after": after });
    let inputs = difference.inputs.iter().map(|(n, b, a)| (n.clone(), pair(b.clone(), a.clone())));
    let figures = difference
        .figures
        .iter()
        .map(|(n, b, a)| ((*n).to_string(), pair((*b).into(), (*a).into())));
    let collectives = difference
        .collectives
        .iter()
        .map(|(n, b, a)| ((*n).to_string(), pair((*b).into(), (*a).into())));
    let tensors = difference.tensors.iter().map(|(n, b, a)| (n.clone(), pair(json!(b), json!(a))));
    json!({
        "inputs": inputs.collect::<serde_json::Map<_, _>>(),
        "figures": figures.collect::<serde_json::Map<_, _>>(),
        "collectives": collectives.collect::<serde_json::Map<_, _>>(),
        "tensors": tensors.collect::<serde_json::Map<_, _>>(),
    })
}
