//! Compiles the graph in a plan again, and compares the result with the plan.

use graphc_ir::text;
use graphc_plan::Plan;
use graphc_plan::check::{ErrorCollector, VerifiedPlan};
use serde_json::Value;

use crate::compile::{Compiled, compile};
use crate::planner::reprice_sharding;

/// The most differences that are reported.
const MOST_DIFFERENCES: usize = 8;

/// Compares a plan with the result of compiling its graph, options and cluster, and returns that result.
pub(super) fn compare_recompiled(plan: &Plan, errors: &mut ErrorCollector) -> Option<VerifiedPlan> {
    check_sizes(plan, errors);
    if !errors.0.is_empty() {
        return None;
    }
    let graph = text::parse_graph(&plan.graph.join("\n"));
    let graph = graph.map_err(|error| errors.add("graph", error.to_string())).ok()?;
    let again = compile(graph, &plan.options, &plan.cluster, plan.weights.clone());
    let again =
        again.map_err(|error| errors.add("graph", format!("does not compile: {error}"))).ok()?;
    if *again.plan != *plan {
        report_differences(plan, &again.plan, errors);
    }
    check_objective(plan, &again, errors);
    Some(again.plan)
}

/// Checks that the sizes with which the work of compiling grows are those of the plan.
fn check_sizes(plan: &Plan, errors: &mut ErrorCollector) {
    let options = &plan.options;
    let ranks = plan.mesh.iter().try_fold(1usize, |n, &e| n.checked_mul(e));
    let sensible = options.mesh == plan.mesh && ranks == Some(plan.ranks.len());
    errors.require(sensible, "options.mesh", || format!("{:?} is not the plan's", options.mesh));
    for (name, open, option, own) in [
        ("options.stages", options.auto_stages, options.stages, plan.stages),
        (
            "options.microbatches",
            options.auto_microbatches,
            options.microbatches,
            plan.microbatches,
        ),
    ] {
        errors
            .require(open || option == own, name, || format!("is {option}, not the plan's {own}"));
    }
}

/// Prices the signatures once more, from the graph alone. The planner must have counted the same.
fn check_objective(plan: &Plan, again: &Compiled, errors: &mut ErrorCollector) {
    let Compiled { decisions, sharding, .. } = again;
    let priced =
        reprice_sharding(decisions, sharding, &plan.cluster, &plan.options).objective_seconds;
    let claimed = plan.planner.objective_seconds;
    let close = (priced - claimed).abs() <= 1e-6 * priced.abs().max(f64::MIN_POSITIVE);
    errors.require(close, "planner.objective_seconds", || {
        format!("is {claimed}, but the signatures cost {priced}")
    });
    let bound = plan.planner.bound_seconds;
    errors.require(bound <= claimed * (1.0 + 1e-6), "planner.bound_seconds", || {
        format!("is {bound}, above the objective {claimed}")
    });
}

/// Reports the fields that differ.
fn report_differences(plan: &Plan, again: &Plan, errors: &mut ErrorCollector) {
    let value = |plan: &Plan| serde_json::to_value(plan).unwrap_or_default();
    let mut found = Vec::new();
    compare_values(&value(plan), &value(again), String::new(), &mut found);
    for (place, here, there) in found.into_iter().take(MOST_DIFFERENCES) {
        let message = format!(
            "is {here}, but the graph compiles to {there}: edited by hand, or written by another build"
        );
        errors.add(place, message);
    }
}

fn compare_values(
    here: &Value,
    there: &Value,
    place: String,
    found: &mut Vec<(String, String, String)>,
) {
    if here == there || found.len() >= MOST_DIFFERENCES {
        return;
    }
    match (here, there) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            for key in keys {
                let dot = if place.is_empty() { "" } else { "." };
                let (a, b) =
                    (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                compare_values(a, b, format!("{place}{dot}{key}"), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare_values(a, b, format!("{place}[{index}]"), found);
            }
        }
        _ => found.push((place, describe_value(here), describe_value(there))),
    }
}

fn describe_value(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".into(),
        scalar => scalar.to_string(),
    }
}
