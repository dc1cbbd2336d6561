//! Makes values that depend on nothing (constants, iota, random) in every stage that reads them, so that they need no
//! communication.

use std::collections::BTreeMap;

use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::ValueId;
use graphc_ir::op::OpError;

/// Copies each generator for every other stage and placement that reads it.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(super) fn spread_generators(graph: &Graph) -> Result<Graph, OpError> {
    let mut result = Graph { stages: graph.stages.clone(), ..Graph::new(graph.name.clone()) };
    let mut values: Vec<ValueId> = Vec::with_capacity(graph.values.len());
    let mut copies: BTreeMap<_, ValueId> = BTreeMap::new();
    for node in &graph.nodes {
        let mut operands = Vec::new();
        for &operand in &node.operands {
            let producer = graph.producer(operand);
            let moved = producer.op.is_generator() && lies_elsewhere(producer, node);
            let key = (operand, node.part, node.placement.clone());
            operands.push(match copies.get(&key) {
                Some(&copy) => copy,
                None if !moved => values[operand.index()],
                None => {
                    let like = Node { op: producer.op.clone(), ..node.clone() };
                    let copy = result.push_like(like.op.clone(), Vec::new(), &like)?[0];
                    copies.insert(key, copy);
                    copy
                }
            });
        }
        let results = result.push_like(node.op.clone(), operands, node)?;
        for (&old, &new) in node.results.iter().zip(&results) {
            let value = &mut result.values[new.index()];
            value.name.clone_from(&graph.value(old).name);
            value.pin.clone_from(&graph.value(old).pin);
        }
        values.extend(results);
    }
    let output = |o: &Output| Output { name: o.name.clone(), value: values[o.value.index()] };
    result.outputs = graph.outputs.iter().map(output).collect();
    Ok(result)
}

fn lies_elsewhere(producer: &Node, reader: &Node) -> bool {
    (producer.part, &producer.placement) != (reader.part, &reader.placement)
}
