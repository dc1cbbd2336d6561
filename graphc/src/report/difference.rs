//! Compares two plans: what differs, and what it costs.

use std::collections::BTreeMap;

use graphc_compiler::lower::collective_counts;
use graphc_ir::mesh::format_mesh;
use graphc_plan::{Plan, TensorEntry};
use serde_json::{Value, json};

/// The differences of two plans. Each pair is (before, after).
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Options and other inputs, by name.
    pub inputs: Vec<(String, Value, Value)>,
    /// Figures, by name: bytes of memory, else seconds.
    pub figures: Vec<(&'static str, f64, f64)>,
    /// Messages of collectives per step, by kind: tensors that travel in one message count once.
    pub collectives: Vec<(&'static str, usize, usize)>,
    /// Tensors that lie in other ways: name and where they lie, `None` where a plan has none of that name. Those that a graph numbers
    /// (`%12`) are left out, as another graph's numbers are other tensors.
    pub tensors: Vec<(String, Option<String>, Option<String>)>,
}

impl Difference {
    /// Compares two plans.
    pub fn new(before: &Plan, after: &Plan) -> Self {
        Self {
            inputs: compare_inputs(before, after),
            figures: compare_figures(before, after),
            collectives: compare_collectives(before, after),
            tensors: compare_tensors(before, after),
        }
    }
}

fn compare_inputs(before: &Plan, after: &Plan) -> Vec<(String, Value, Value)> {
    let mut all = Vec::new();
    let [old, new] = [before, after]
        .map(|plan| serde_json::to_value(&plan.options).expect("options have string keys only"));
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
    all
}

fn compare_figures(before: &Plan, after: &Plan) -> Vec<(&'static str, f64, f64)> {
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

fn compare_collectives(before: &Plan, after: &Plan) -> Vec<(&'static str, usize, usize)> {
    let (old, new) = (collective_counts(before), collective_counts(after));
    let mut kinds: Vec<_> = old.keys().chain(new.keys()).copied().collect();
    kinds.sort_unstable();
    kinds.dedup();
    let count = |map: &BTreeMap<_, usize>, kind| map.get(kind).copied().unwrap_or(0);
    let all = kinds.iter().map(|kind| (kind.name(), count(&old, kind), count(&new, kind)));
    all.filter(|(_, before, after)| before != after).collect()
}

fn compare_tensors(before: &Plan, after: &Plan) -> Vec<(String, Option<String>, Option<String>)> {
    let places = |plan: &Plan| -> BTreeMap<String, String> {
        let named = plan.tensors.iter().filter(|tensor| !tensor.name.starts_with('%'));
        named.map(|tensor| (tensor.name.clone(), describe_place(tensor))).collect()
    };
    let (old, new) = (places(before), places(after));
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let pair = |name: &String| (name.clone(), old.get(name).cloned(), new.get(name).cloned());
    names.into_iter().map(pair).filter(|(_, before, after)| before != after).collect()
}

fn describe_place(tensor: &TensorEntry) -> String {
    format!("({}) on {} of stage {}", tensor.sbp, format_mesh(&tensor.hierarchy), tensor.stage)
}
