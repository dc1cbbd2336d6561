//! The settings of a checkpoint's training: options that decide what a step does to variables, whatever the mesh.

use std::collections::BTreeMap;

use graphc_ir::graph::{Graph, Node};
use graphc_ir::op::Op;
use graphc_ir::text;
use graphc_ir::types::TensorType;
use graphc_plan::{CompileOptions, Plan};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Options by name, as plans write them. What only one of two records names is not compared: versions may know more or
/// less of each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct TrainingSettings(BTreeMap<String, Value>);

impl TrainingSettings {
    /// Returns the settings that options tell: the optimizer with its numbers, schedule, clipping and groups, the loss, and
    /// the type of each input, whose first extent is the batch.
    pub(crate) fn from_options(
        options: &CompileOptions,
        inputs: &BTreeMap<String, TensorType>,
    ) -> Self {
        let mut settings = BTreeMap::new();
        if let Ok(Value::Object(optimizer)) = serde_json::to_value(options.optimizer) {
            let named = |(name, value): (String, Value)| match name.as_str() {
                "name" => ("optimizer".to_owned(), value),
                _ => (name, value),
            };
            settings.extend(optimizer.into_iter().map(named));
        }
        let others = [
            ("loss", serde_json::to_value(options.loss)),
            ("label smoothing", serde_json::to_value(options.label_smoothing)),
            ("learning-rate schedule", serde_json::to_value(&options.lr_schedule)),
            ("maximize", serde_json::to_value(options.maximize)),
            ("clip norm", serde_json::to_value(options.clip_norm)),
            ("clip value", serde_json::to_value(options.clip_value)),
            ("parameter groups", serde_json::to_value(&options.groups)),
            ("kept statistics", serde_json::to_value(&options.keep_statistics)),
            ("sums over microbatches", serde_json::to_value(options.accumulation)),
        ];
        let written =
            |(name, value): (&str, serde_json::Result<Value>)| Some((name.to_owned(), value.ok()?));
        settings.extend(others.into_iter().filter_map(written));
        let input = |(name, ty): (&String, &TensorType)| {
            (format!("input `{name}`"), Value::String(ty.to_string()))
        };
        settings.extend(inputs.iter().map(input));
        Self(settings)
    }

    /// Returns the settings of a plan: beside its options and inputs the parts of a batch, of which each has statistics of its
    /// own, the precision, and which weights are trained.
    pub(crate) fn of_plan(plan: &Plan, inputs: &BTreeMap<String, TensorType>) -> Self {
        let mut settings = Self::from_options(&plan.options, inputs);
        let precision =
            plan.options.precision.map_or("the model's".into(), |dtype| dtype.to_string());
        settings.0.insert("microbatches".into(), plan.microbatches.into());
        settings.0.insert("precision".into(), precision.into());
        if let Ok(graph) = text::parse_graph(&plan.graph.join("\n")) {
            settings.0.insert(TRAINED.into(), list_trained_weights(&graph).into());
        }
        settings
    }

    /// Returns the weights that were trained, where the record names them.
    pub(super) fn trained_weights(&self) -> Option<impl Iterator<Item = &str>> {
        let names = self.0.get(TRAINED)?.as_array()?;
        Some(names.iter().filter_map(Value::as_str))
    }

    /// Describes the differences from `before`.
    pub(crate) fn describe_changes(&self, before: &Self) -> Vec<String> {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let changed = self.0.iter().filter_map(|(name, now)| {
            let was = before.0.get(name).filter(|&was| was != now)?;
            Some(match (was, now) {
                (Value::Array(was), Value::Array(now)) if name == TRAINED => {
                    other_weights(was, now)
                }
                _ => format!("{name} was {}, and is {} now", text(was), text(now)),
            })
        });
        changed.collect()
    }
}

/// The record that names the weights which are trained.
const TRAINED: &str = "trained weights";

/// The number of names in a sentence.
const NAMED: usize = 3;

fn list_trained_weights(graph: &Graph) -> Vec<String> {
    let name = |node: &Node| match &node.op {
        Op::Variable(variable) if variable.trainable => Some(variable.name.clone()),
        _ => None,
    };
    graph.nodes.iter().filter_map(name).collect()
}

/// Describes the weights that are trained in only one of two records.
fn other_weights(was: &[Value], now: &[Value]) -> String {
    let alone = |one: &[Value], other: &[Value]| -> Vec<String> {
        let names = one.iter().filter(|name| !other.contains(name)).filter_map(Value::as_str);
        names.map(|name| format!("`{name}`")).collect()
    };
    let said = |names: Vec<String>, change: &str| match names.len() {
        0 => None,
        1 => {
            Some(format!("{} {}", names[0], change.replacen("were", "was", 1).replace("are", "is")))
        }
        all if all <= NAMED => Some(format!("{} {change}", names.join(", "))),
        all => Some(format!("{} and {} more {change}", names[..NAMED].join(", "), all - NAMED)),
    };
    let lost = said(alone(was, now), "were trained, and are not now");
    let gained = said(alone(now, was), "were not trained, and are now");
    let both: Vec<String> = lost.into_iter().chain(gained).collect();
    if both.is_empty() { "the order of trained weights is another".into() } else { both.join("; ") }
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;
    use graphc_plan::{Loss, Optimizer, ParameterGroup};

    use super::*;

    fn settings(lr: f64, batch: usize) -> TrainingSettings {
        let optimizer = Optimizer::Sgd { lr, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let options = CompileOptions {
            optimizer: Some(optimizer),
            loss: Some(Loss::Mse),
            ..CompileOptions::default()
        };
        let inputs = BTreeMap::from([("x".to_owned(), TensorType::new(DType::F32, [batch, 3]))]);
        TrainingSettings::from_options(&options, &inputs)
    }

    #[test]
    fn what_has_changed_is_named_with_both_values() {
        let before = settings(0.1, 8);
        assert!(settings(0.1, 8).describe_changes(&before).is_empty());
        assert_eq!(
            settings(0.05, 16).describe_changes(&before),
            ["input `x` was f32[8, 3], and is f32[16, 3] now", "lr was 0.1, and is 0.05 now"]
        );
    }

    #[test]
    fn schedules_clipping_and_groups_are_compared() {
        let of =
            |options: CompileOptions| TrainingSettings::from_options(&options, &BTreeMap::new());
        let before = of(CompileOptions::default());
        let now = of(CompileOptions {
            lr_schedule: "warmup:10 cosine:100".parse().expect("a schedule"),
            clip_norm: Some(1.0),
            groups: vec![ParameterGroup::no_decay("*.bias")],
            ..CompileOptions::default()
        });
        assert_eq!(
            now.describe_changes(&before),
            [
                "clip norm was null, and is 1.0 now",
                "learning-rate schedule was constant, and is warmup:10 cosine:100 now",
                r#"parameter groups was [], and is [{"pattern":"*.bias","lr":1.0,"weight_decay":0.0}] now"#,
            ]
        );
    }

    #[test]
    fn weights_that_are_trained_in_one_of_both_are_named() {
        let of = |names: &[&str]| {
            TrainingSettings(BTreeMap::from([(TRAINED.into(), names.to_vec().into())]))
        };
        let changes = |was: &[&str], now: &[&str]| of(now).describe_changes(&of(was)).concat();
        assert_eq!(changes(&["a", "b"], &["b"]), "`a` was trained, and is not now");
        assert_eq!(changes(&["a"], &["a", "b", "c"]), "`b`, `c` were not trained, and are now");
        assert_eq!(
            changes(&["a", "b", "c", "d", "e"], &["f"]),
            "`a`, `b`, `c` and 2 more were trained, and are not now; `f` was not trained, and is now"
        );
        assert_eq!(changes(&["a"], &["a"]), "");
    }

    #[test]
    fn what_one_record_lacks_is_not_compared() {
        let mut before = settings(0.1, 8);
        before.0.remove("lr");
        assert!(settings(0.05, 8).describe_changes(&before).is_empty());
    }
}
