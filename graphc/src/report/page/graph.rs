//! Lists the ops of the forward graph, with what each reads and in which layout, for the page's picture of it.

use std::collections::BTreeMap;

use graphc_compiler::decisions::{Decisions, Phase};
use graphc_ir::graph::Node;
use graphc_ir::ids::ValueId;
use graphc_ir::plan::{Action, Plan};
use serde::Serialize;

use super::parts::Parts;
use super::table::InternTable;
use crate::report::alternatives::name_of;

/// An op: its name, its layer (null of none), the number of its part, the tensors that it reads with the layout in which each is read,
/// and the tensors that it makes. Tensors and layouts are numbers of `places`.
pub type OpRow = (String, Option<usize>, usize, Vec<(usize, usize)>, Vec<usize>);

/// The ops of the forward pass.
#[derive(Clone, Debug, Serialize)]
pub struct Ops {
    /// The ops, in the order in which they are computed.
    pub ops: Vec<OpRow>,
}

/// Numbers of tensors, of layouts and of parts, which rows refer to.
pub struct PageNumbers<'a> {
    /// The number of each tensor that the plan lists, and that of its layout, by the tensor's name.
    pub tensors: BTreeMap<&'a str, (usize, usize)>,
    /// Layouts.
    pub layouts: &'a mut InternTable<String>,
    /// Names of parts.
    pub parts: &'a mut InternTable<String>,
}

/// Lists the ops of a plan's forward graph.
pub fn list_ops(
    plan: &Plan,
    decisions: &Decisions,
    parts: &Parts,
    numbers: &mut PageNumbers<'_>,
) -> Ops {
    let read = layouts_of_reads(plan);
    let forward = |index: usize, node: &Node| {
        decisions.training.phases[index] == Phase::Forward
            && decisions.recomputed[index].is_none()
            && !node.op.is_given()
    };
    let nodes = decisions.graph().nodes.iter().enumerate();
    let ops = nodes.filter(|(index, node)| forward(*index, node));
    Ops { ops: ops.map(|(_, node)| op_row(decisions, node, parts, &read, numbers)).collect() }
}

/// Layouts as they are read, by names of what is made and what is read for it.
type Reads<'a> = BTreeMap<(&'a str, &'a str), String>;

/// The layout in which each actor that computes reads each tensor.
fn layouts_of_reads(plan: &Plan) -> Reads<'_> {
    let mut reads = Reads::new();
    for program in &plan.programs {
        for actor in &program.actors {
            if !matches!(actor.action, Action::Compute { .. } | Action::Fused(_)) {
                continue;
            }
            for made in &actor.outputs {
                let made = program.registers[made.index()].name.as_str();
                for input in &actor.inputs {
                    let register = &program.registers[input.index()];
                    let layout = plan.layouts[register.layout as usize].sbp.to_string();
                    reads.entry((made, register.name.as_str())).or_insert(layout);
                }
            }
        }
    }
    reads
}

fn op_row(
    decisions: &Decisions,
    node: &Node,
    parts: &Parts,
    read: &Reads<'_>,
    numbers: &mut PageNumbers<'_>,
) -> OpRow {
    let names = |values: &[ValueId]| -> Vec<String> {
        values.iter().map(|&value| name_of(decisions, value)).collect()
    };
    let (inputs, outputs) = (names(&node.operands), names(&node.results));
    let part = node.results.first().map(|value| &parts.of_values[value.index()]);
    let path = part.map_or_else(String::new, |part| part.path.clone());
    let mut reads = Vec::new();
    for input in &inputs {
        let Some(&(tensor, own)) = numbers.tensors.get(input.as_str()) else { continue };
        let layout = outputs.iter().find_map(|made| read.get(&(made.as_str(), input.as_str())));
        reads.push((tensor, layout.map_or(own, |layout| numbers.layouts.intern(layout.clone()))));
    }
    let makes = outputs.iter().filter_map(|made| Some(numbers.tensors.get(made.as_str())?.0));
    let makes = makes.collect();
    let layer = part.and_then(|part| part.layer);
    (node.op.name().into(), layer, numbers.parts.intern(path), reads, makes)
}
