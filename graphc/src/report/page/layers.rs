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
    /// The part that the names of its weights share, or its first tensor.
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
pub fn by_layer(
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

/// The name of a layer: the part up to a dot with which all names of its parameters begin; else its first parameter,
/// else its first tensor.
fn layer_name(tensors: &[Tensor], members: &[usize]) -> String {
    let names: Vec<&str> = (members.iter().map(|&index| &tensors[index]))
        .filter(|tensor| tensor.1 == "parameter")
        .map(|tensor| tensor.0.as_str())
        .collect();
    let Some(first) = names.first() else { return tensors[members[0]].0.clone() };
    let common = names.iter().fold(*first, |common, name| {
        let same = common.char_indices().zip(name.chars()).find(|((_, a), b)| a != b);
        &common[..same.map_or(common.len().min(name.len()), |((at, _), _)| at)]
    });
    match (common == *first, common.rfind('.')) {
        (false, Some(dot)) if dot > 0 => common[..dot].into(),
        _ => (*first).into(),
    }
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
