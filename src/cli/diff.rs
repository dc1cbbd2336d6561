//! `graphc diff`: two plans, what differs and what it costs.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use graphc::report;
use graphc_compiler::lower::collective_counts;
use graphc_ir::plan::{Plan, TensorEntry};
use serde_json::{Value, json};

use super::args::{DiffArgs, Format};
use super::compile::load_sound_plan;
use super::output::print;

/// Runs the command.
pub fn run(args: &DiffArgs) -> Result<()> {
    let (before, after) = (load_sound_plan(&args.before)?, load_sound_plan(&args.after)?);
    let difference = Difference::new(&before, &after)?;
    match args.format {
        Format::Text => print(&difference.text()),
        Format::Json => print(&(serde_json::to_string_pretty(&difference.json())? + "\n")),
    }
}

/// What differs. Each pair is (before, after).
struct Difference {
    /// Options and other inputs, by name.
    inputs: Vec<(String, Value, Value)>,
    /// Figures, by name.
    figures: Vec<(&'static str, f64, f64)>,
    /// Collectives per step, by kind.
    collectives: Vec<(&'static str, usize, usize)>,
    /// Tensors that lie in other ways: name and where they lie, `None` where a plan has none of that name.
    tensors: Vec<(String, Option<String>, Option<String>)>,
}

impl Difference {
    fn new(before: &Plan, after: &Plan) -> Result<Self> {
        Ok(Self {
            inputs: inputs(before, after)?,
            figures: figures(before, after),
            collectives: collectives(before, after),
            tensors: tensors(before, after),
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, before, after) in &self.inputs {
            let _ = writeln!(text, "{name}: {before} -> {after}");
        }
        for &(name, before, after) in &self.figures {
            let form = if name.contains("memory") {
                |value: f64| report::bytes(value as u64)
            } else {
                report::seconds
            };
            let change = match before {
                0.0 => String::new(),
                _ => format!(" ({:+.2} %)", (after / before - 1.0) * 100.0),
            };
            let _ = writeln!(text, "{name}: {} -> {}{change}", form(before), form(after));
        }
        for (kind, before, after) in &self.collectives {
            let _ = writeln!(text, "{kind} per step: {before} -> {after}");
        }
        let show = |place: &Option<String>| place.clone().unwrap_or_else(|| "none".into());
        for (name, before, after) in &self.tensors {
            let _ = writeln!(text, "  {name}: {} -> {}", show(before), show(after));
        }
        let _ = writeln!(text, "{} tensors lie in other ways", self.tensors.len());
        text
    }

    fn json(&self) -> Value {
        let pair = |before: Value, after: Value| json!({ "before": before, "after": after });
        let inputs = self.inputs.iter().map(|(n, b, a)| (n.clone(), pair(b.clone(), a.clone())));
        let figures =
            self.figures.iter().map(|(n, b, a)| ((*n).to_string(), pair((*b).into(), (*a).into())));
        let collectives = self
            .collectives
            .iter()
            .map(|(n, b, a)| ((*n).to_string(), pair((*b).into(), (*a).into())));
        let tensors = self.tensors.iter().map(|(n, b, a)| (n.clone(), pair(json!(b), json!(a))));
        json!({
            "inputs": inputs.collect::<serde_json::Map<_, _>>(),
            "figures": figures.collect::<serde_json::Map<_, _>>(),
            "collectives": collectives.collect::<serde_json::Map<_, _>>(),
            "tensors": tensors.collect::<serde_json::Map<_, _>>(),
        })
    }
}

fn inputs(before: &Plan, after: &Plan) -> Result<Vec<(String, Value, Value)>> {
    let mut all = Vec::new();
    let options = [before, after].map(|plan| serde_json::to_value(&plan.options));
    let [old, new] = options;
    let (old, new) = (old?, new?);
    let (old, new) = (old.as_object(), new.as_object());
    let names = old.into_iter().chain(new).flat_map(|map| map.keys());
    let mut names: Vec<&String> = names.collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let of = |map: Option<&serde_json::Map<String, Value>>| {
            map.and_then(|map| map.get(name)).cloned().unwrap_or(Value::Null)
        };
        all.push((name.clone(), of(old), of(new)));
    }
    all.push(("graph".into(), json!(before.name), json!(after.name)));
    all.push(("cluster".into(), json!(before.cluster.name), json!(after.cluster.name)));
    all.retain(|(_, before, after)| before != after);
    if before.graph != after.graph && before.name == after.name {
        let lines = |plan: &Plan| json!(format!("{} lines", plan.graph.len()));
        all.push(("the graph's text".into(), lines(before), lines(after)));
    }
    Ok(all)
}

fn figures(before: &Plan, after: &Plan) -> Vec<(&'static str, f64, f64)> {
    let peak =
        |plan: &Plan| plan.predicted.peak_memory_bytes.iter().max().copied().unwrap_or(0) as f64;
    let (old, new) = (&before.planner, &after.planner);
    vec![
        ("objective", old.objective_seconds, new.objective_seconds),
        ("bound", old.bound_seconds, new.bound_seconds),
        ("predicted step", before.predicted.step_seconds, after.predicted.step_seconds),
        ("peak memory", peak(before), peak(after)),
    ]
}

fn collectives(before: &Plan, after: &Plan) -> Vec<(&'static str, usize, usize)> {
    let (old, new) = (collective_counts(before), collective_counts(after));
    let mut kinds: Vec<_> = old.keys().chain(new.keys()).copied().collect();
    kinds.sort_unstable();
    kinds.dedup();
    let count = |map: &BTreeMap<_, usize>, kind| map.get(kind).copied().unwrap_or(0);
    let all =
        kinds.iter().map(|kind| (report::kind_name(*kind), count(&old, kind), count(&new, kind)));
    all.filter(|(_, before, after)| before != after).collect()
}

fn tensors(before: &Plan, after: &Plan) -> Vec<(String, Option<String>, Option<String>)> {
    let places = |plan: &Plan| -> BTreeMap<String, String> {
        plan.tensors.iter().map(|tensor| (tensor.name.clone(), place(tensor))).collect()
    };
    let (old, new) = (places(before), places(after));
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let pair = |name: &String| (name.clone(), old.get(name).cloned(), new.get(name).cloned());
    names.into_iter().map(pair).filter(|(_, before, after)| before != after).collect()
}

fn place(tensor: &TensorEntry) -> String {
    let mesh: Vec<String> = tensor.hierarchy.iter().map(usize::to_string).collect();
    format!("({}) on {} of stage {}", tensor.sbp, mesh.join("x"), tensor.stage)
}
