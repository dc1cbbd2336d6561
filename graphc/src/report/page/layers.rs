//! Finds the model's layers for a page: which tensors belong to which, and which layers are alike.

use std::collections::BTreeMap;

use graphc_compiler::decisions::{Decisions, Phase};
use graphc_compiler::passes::layers::find_layers;
use graphc_ir::ids::{LayerId, ValueId};
use graphc_ir::op::Op;
use serde::Serialize;

use super::table::InternTable;

/// A tensor: name, kind, type, layout, stage, marks.
pub type Tensor = (String, &'static str, usize, usize, usize, u8);

/// A layer.
#[derive(Clone, Debug, Serialize)]
pub struct Layer {
    /// The part that the names of its weights share, or their modules, or its first tensor.
    pub name: String,
    /// Its stage.
    pub stage: usize,
    /// Its tensors.
    pub tensors: Vec<usize>,
    /// The number of its form: layers of one form have tensors of the same kinds and types.
    pub form: usize,
    /// The number of its variant: layers of one variant have them in the same layouts, with the same marks, too.
    pub variant: usize,
}

/// The tensors of each layer; of each value its layer, as a number of these.
pub(super) fn by_layer(
    decisions: &Decisions,
    values: &BTreeMap<String, ValueId>,
    tensors: &[Tensor],
) -> (Vec<Layer>, Vec<Option<usize>>) {
    let of = layer_of_values(decisions);
    let mut found: BTreeMap<Option<LayerId>, Vec<usize>> = BTreeMap::new();
    for (index, tensor) in tensors.iter().enumerate() {
        let layer = values.get(&tensor.0).and_then(|value| of[value.index()]);
        found.entry(layer).or_default().push(index);
    }
    let (mut forms, mut variants) = (InternTable::default(), InternTable::default());
    let layer = |(number, members): (Option<LayerId>, Vec<usize>)| {
        let rest = number.is_none();
        let stage = tensors[members[0]].4;
        let name = if rest { "the rest".into() } else { layer_name(tensors, &members) };
        // Gradients are made in the opposite order.
        let sorted = |variant: bool| {
            let part = |&index: &usize| {
                let (_, kind, ty, layout, _, marks) = tensors[index];
                (kind, ty, if variant { (layout, marks) } else { (0, 0) })
            };
            let mut parts: Vec<_> = members.iter().map(part).collect();
            parts.sort_unstable();
            (rest, parts)
        };
        let (form, variant) = (forms.intern(sorted(false)), variants.intern(sorted(true)));
        Layer { name, stage, tensors: members, form, variant }
    };
    let (some, none): (Vec<_>, Vec<_>) = found.into_iter().partition(|(layer, _)| layer.is_some());
    let numbers: BTreeMap<LayerId, usize> =
        some.iter().enumerate().filter_map(|(number, (id, _))| Some(((*id)?, number))).collect();
    let of_values = of.iter().map(|id| numbers.get(&(*id)?).copied()).collect();
    (some.into_iter().chain(none).map(layer).collect(), of_values)
}

/// Modules that the name of a layer has; of more the first ones.
const NAMED_MODULES: usize = 3;

/// The name of a layer: the part up to a dot with which the names of all its parameters begin; where they have none in common,
/// their modules; without parameters its first tensor.
fn layer_name(tensors: &[Tensor], members: &[usize]) -> String {
    let names: Vec<&str> = (members.iter().map(|&index| &tensors[index]))
        .filter(|tensor| tensor.1 == "parameter")
        .map(|tensor| tensor.0.as_str())
        .collect();
    match names.is_empty() {
        true => tensors[members[0]].0.clone(),
        false => name_by_parameters(&names),
    }
}

fn name_by_parameters(names: &[&str]) -> String {
    let mut modules: Vec<&str> = Vec::new();
    for module in names.iter().map(|name| module_of_weight(name)) {
        if !modules.contains(&module) {
            modules.push(module);
        }
    }
    let common = common_path(modules.iter().copied());
    if !common.is_empty() {
        return common;
    }
    let more = if modules.len() > NAMED_MODULES { ", .." } else { "" };
    modules.truncate(NAMED_MODULES);
    modules.join(", ") + more
}

/// The module of a weight: its name without the last part.
pub(super) fn module_of_weight(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

/// The parts between dots with which all names begin that are not empty.
pub(super) fn common_path<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names = names.filter(|name| !name.is_empty());
    let Some(first) = names.next() else { return String::new() };
    let mut same: Vec<&str> = first.split('.').collect();
    for name in names {
        let equal = same.iter().zip(name.split('.')).take_while(|(one, other)| *one == other);
        let count = equal.count();
        same.truncate(count);
    }
    same.join(".")
}

/// The layer of each value: that of its forward node; of what is read there alone, of variables say, that of the first reader;
/// of gradients and states that of their variable; of what is gathered again that of its origin.
fn layer_of_values(decisions: &Decisions) -> Vec<Option<LayerId>> {
    let graph = decisions.graph();
    let forward = |node: usize| {
        decisions.training.phases[node] == Phase::Forward && decisions.recomputed[node].is_none()
    };
    let mut nodes = find_layers(graph, forward).of;
    let consumers = graph.list_consumers();
    for node in (0..graph.nodes.len()).rev().filter(|&node| forward(node)) {
        if nodes[node].is_none() {
            let results = graph.nodes[node].results.iter();
            let readers = results.flat_map(|value| &consumers[value.index()]);
            nodes[node] = readers.filter_map(|reader| nodes[reader.index()]).min();
        }
    }
    let mut values: Vec<Option<LayerId>> =
        graph.values.iter().map(|value| nodes[value.producer.index()]).collect();
    for &(variable, gradient) in &decisions.training.gradients {
        values[gradient.index()] = values[variable.index()];
    }
    for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::Regather(_))) {
        let result = node.results[0].index();
        values[result] = values[result].or(values[node.operands[0].index()]);
    }
    let updates = graph.nodes.iter().filter(|node| !node.op.operation().updates().is_empty());
    for node in updates {
        let known = node.operands.iter().find_map(|value| values[value.index()]);
        for value in node.operands.iter().chain(&node.results) {
            let variable = matches!(graph.producer(*value).op, Op::Variable(_));
            if variable && values[value.index()].is_none() {
                values[value.index()] = known;
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::{common_path, module_of_weight, name_by_parameters};

    #[test]
    fn modules_are_what_names_have_in_common() {
        assert_eq!(module_of_weight("layers.5.ffn.w1.weight"), "layers.5.ffn.w1");
        assert_eq!(module_of_weight("pos"), "pos");
        assert_eq!(common_path(["a.1.q", "a.1.k", "", "a.1.v"].into_iter()), "a.1");
        assert_eq!(common_path(["a.1", "a.10"].into_iter()), "a");
        assert_eq!(common_path([].into_iter()), "");
    }

    #[test]
    fn layers_are_named_after_all_their_modules() {
        assert_eq!(name_by_parameters(&["b.1.up.weight", "b.1.up.bias", "b.1.down.bias"]), "b.1");
        assert_eq!(name_by_parameters(&["tok.weight", "pos"]), "tok, pos");
        assert_eq!(name_by_parameters(&["ln.weight", "ln.bias", "head.weight"]), "ln, head");
        assert_eq!(name_by_parameters(&["tok.weight"]), "tok");
        assert_eq!(name_by_parameters(&["a.w", "b.w", "c.w", "d.w"]), "a, b, c, ..");
    }
}
