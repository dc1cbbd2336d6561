//! Recognises functions that a model writes in parts, and lets the one op stand for each that graphc has for it: the parts keep what lies
//! between them for the backward pass, and are several passes over memory.
//!
//! GELU, by tanh or the error function, and SiLU are known by their values at some points, never by their form (`curves.rs`). Layer and
//! root-mean-square normalization over the last dim are known by their ops (`norms.rs`), and so is the logarithm of a label's probability
//! (`labels.rs`) and an embedding by one-hot vectors (`rows.rs`). Nothing is replaced of which somebody else reads a value inside or asks a layout of it, nor what is on several stages.

mod curves;
mod labels;
mod norms;
mod rewrite;
mod rows;

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::graph::Graph;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_plan::CompileOptions;

use super::constants::Constants;
use super::joined::{Held, check_joined};
use crate::passes::error::PassError;

const PASS: &str = "functions";

/// Replaces each function that is recognised by one op.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(crate) fn fuse_functions(graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    let mut places = find_places(&graph, options);
    places.retain(|place| place.held.is_none());
    if places.is_empty() {
        return Ok(graph);
    }
    rewrite::rewrite_functions(&graph, &places).map_err(|error| PassError::Op { pass: PASS, error })
}

/// The functions that a graph writes in parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Functions {
    /// The number of those that become one op, by the function's name.
    pub whole: BTreeMap<&'static str, usize>,
    /// The names of the last values of those that are left in parts, by the reason and the function's name.
    pub in_parts: BTreeMap<(Held, &'static str), Vec<String>>,
}

/// Collects the functions that a graph writes in parts, as the pass would leave them.
pub(crate) fn functions_in_parts(graph: &Graph, options: &CompileOptions) -> Functions {
    let mut found = Functions::default();
    for FunctionInParts { found: function, last, held } in find_places(graph, options) {
        match held {
            None => *found.whole.entry(function.name).or_default() += 1,
            Some(held) => {
                let value = graph.display_name(graph.node(last).results[0]);
                found.in_parts.entry((held, function.name)).or_default().push(value);
            }
        }
    }
    found
}

/// A place where a graph writes a function in parts.
struct FunctionInParts {
    /// The node whose result is the function's.
    last: NodeId,
    found: FoundFunction,
    held: Option<Held>,
}

/// A function, the values from which it is computed, and the nodes that one op in its place makes unnecessary.
struct FoundFunction {
    name: &'static str,
    /// The op whose first result it is; a cross entropy is negated, and shaped as it is written. Of a row that an embedding does not have it is 0.
    op: Op,
    operands: Vec<ValueId>,
    inside: BTreeSet<NodeId>,
}

/// Finds all places of a graph, in its order. Of places that have a node in common it keeps the last, which is the larger one.
fn find_places(graph: &Graph, options: &CompileOptions) -> Vec<FunctionInParts> {
    let consumers = graph.list_consumers();
    let mut finder = FunctionFinder { graph, constants: Constants::new(graph) };
    let mut taken: BTreeSet<NodeId> = BTreeSet::new();
    let mut places = Vec::new();
    for (last, _) in graph.iter().rev() {
        if taken.contains(&last) {
            continue;
        }
        let Some(found) = finder.find_function(last) else { continue };
        if !found.inside.is_disjoint(&taken) {
            continue;
        }
        taken.extend(found.inside.iter().copied().chain([last]));
        let held = check_joined(graph, options, &consumers, (last, &found.inside)).err();
        places.push(FunctionInParts { last, found, held });
    }
    places.reverse();
    places
}

struct FunctionFinder<'a> {
    graph: &'a Graph,
    constants: Constants<'a>,
}

impl FunctionFinder<'_> {
    /// Returns the function that ends in a node.
    fn find_function(&mut self, last: NodeId) -> Option<FoundFunction> {
        self.find_curve(last)
            .or_else(|| self.find_norm(last))
            .or_else(|| self.find_label_lookup(last))
            .or_else(|| self.find_row_lookup(last))
    }
}

#[cfg(test)]
mod tests;
