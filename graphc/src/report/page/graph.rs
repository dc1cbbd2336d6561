//! Lists the ops of the forward graph, with what each reads and in which layout, for the page's picture of it.

use std::collections::BTreeMap;

use graphc_compiler::decisions::{Decisions, Phase};
use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_plan::{Action, Plan};
use serde::Serialize;

use super::parts::Parts;
use super::table::InternTable;
use crate::report::alternatives::name_of;

/// An op: its name, its layer (null of none), the number of its part, the tensors that it reads with the layout in which each is read,
/// and the tensors that it makes. Tensors and layouts are numbers of `places`.
pub(crate) type OpRow = (String, Option<usize>, usize, Vec<(usize, usize)>, Vec<usize>);

/// The ops of the forward pass.
#[derive(Clone, Debug, Serialize)]
pub struct Ops {
    /// The ops, in the order in which they are computed.
    pub ops: Vec<OpRow>,
}

/// Numbers of tensors, of layouts and of parts, which rows refer to.
pub(super) struct PageNumbers<'a> {
    /// The number of each tensor that the plan lists, and that of its layout, by the tensor's name.
    pub tensors: BTreeMap<&'a str, (usize, usize)>,
    /// Layouts.
    pub layouts: &'a mut InternTable<String>,
    /// Names of parts.
    pub parts: &'a mut InternTable<String>,
}

/// Lists the ops of a plan's forward graph.
pub(super) fn list_ops(
    plan: &Plan,
    decisions: &Decisions,
    parts: &Parts,
    numbers: &mut PageNumbers<'_>,
) -> Ops {
    let reads = Reads::new(plan, decisions);
    let forward = |index: usize, node: &Node| {
        decisions.training.phases[index] == Phase::Forward
            && decisions.recomputed[index].is_none()
            && !node.op.is_given()
    };
    let nodes = decisions.graph().nodes.iter().enumerate();
    let ops = nodes.filter(|(index, node)| forward(*index, node));
    Ops { ops: ops.map(|(_, node)| op_row(node, parts, &reads, numbers)).collect() }
}

/// Values of a chain that are gone through, far more than one has.
const LONGEST_CHAIN: usize = 64;

/// Layouts as they are read.
struct Reads<'a> {
    decisions: &'a Decisions,
    /// The nodes that read each value.
    consumers: Vec<Vec<NodeId>>,
    /// By the name of what a kernel makes the layout of each tensor that it reads for that.
    layouts: BTreeMap<&'a str, BTreeMap<&'a str, String>>,
}

impl<'a> Reads<'a> {
    fn new(plan: &'a Plan, decisions: &'a Decisions) -> Self {
        let mut layouts: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
        for program in &plan.programs {
            for actor in &program.actors {
                if !matches!(actor.action, Action::Compute { .. } | Action::Fused(_)) {
                    continue;
                }
                for made in &actor.outputs {
                    let made = program.registers[made.index()].name.as_str();
                    let known = layouts.entry(made).or_default();
                    for input in &actor.inputs {
                        let register = &program.registers[input.index()];
                        let layout = plan.layouts[register.layout.index()].sbp.to_string();
                        known.entry(register.name.as_str()).or_insert(layout);
                    }
                }
            }
        }
        Self { decisions, consumers: decisions.graph().list_consumers(), layouts }
    }

    /// The layout in which a node reads a tensor. What a node makes within a chain that is one kernel has no place of its own, so
    /// the layout is the one in which the kernel reads the tensor, which is known by what the chain makes in the end.
    fn find_layout(&self, node: &Node, input: &str) -> Option<&String> {
        let mut results = node.results.clone();
        let mut next = 0;
        while let Some(&value) = results.get(next).filter(|_| next < LONGEST_CHAIN) {
            next += 1;
            if let Some(known) = self.layouts.get(name_of(self.decisions, value).as_str()) {
                match known.get(input) {
                    Some(layout) => return Some(layout),
                    None => continue,
                }
            }
            for reader in &self.consumers[value.index()] {
                let of_reader = &self.decisions.graph().nodes[reader.index()].results;
                let new = of_reader.iter().filter(|value| !results.contains(value));
                results.extend(new.copied().collect::<Vec<_>>());
            }
        }
        None
    }
}

fn op_row(node: &Node, parts: &Parts, read: &Reads<'_>, numbers: &mut PageNumbers<'_>) -> OpRow {
    let names = |values: &[ValueId]| -> Vec<String> {
        values.iter().map(|&value| name_of(read.decisions, value)).collect()
    };
    let (inputs, outputs) = (names(&node.operands), names(&node.results));
    let part = node.results.first().map(|value| &parts.of_values[value.index()]);
    let path = part.map_or_else(String::new, |part| part.path.clone());
    let mut reads = Vec::new();
    for input in &inputs {
        let Some(&(tensor, own)) = numbers.tensors.get(input.as_str()) else { continue };
        let layout = read.find_layout(node, input);
        reads.push((tensor, layout.map_or(own, |layout| numbers.layouts.intern(layout.clone()))));
    }
    let makes = outputs.iter().filter_map(|made| Some(numbers.tensors.get(made.as_str())?.0));
    let makes = makes.collect();
    let layer = part.and_then(|part| part.layer);
    (node.op.name().into(), layer, numbers.parts.intern(path), reads, makes)
}
