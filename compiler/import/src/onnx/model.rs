//! The structure of a model: its nodes in topological order, with every name given once.

use std::collections::{BTreeMap, BTreeSet};

use rten_onnx::onnx::{GraphProto, NodeProto};

use graphc_ir::cycle::{find_cycle, format_cycle};

use crate::ImportError;

/// Returns the indices of the nodes in topological order. This is the order of the file, if that is topological.
///
/// # Errors
/// Returns an error if a name is given twice, a node or an output reads a name that nothing makes, nodes form a cycle, or there are no outputs.
pub(super) fn order_nodes(graph: &GraphProto) -> Result<Vec<usize>, ImportError> {
    let given = list_given_names(graph)?;
    let producers = index_producers(graph, &given)?;
    for node in &graph.node {
        for input in list_node_reads(node) {
            if !given.contains(input) && !producers.contains_key(input) {
                let (node, op) = (node_title(node), op_type(node));
                return fail_structure(format!(
                    "node `{node}` of type {op} reads `{input}`, which is no input, initializer or result"
                ));
            }
        }
    }
    check_outputs(graph, &given, &producers)?;
    sort_nodes(graph, &producers)
}

/// Orders the nodes of a graph within a node, as [`order_nodes`] does. Such a graph may read values that are made outside of it.
pub(super) fn inner_order(graph: &GraphProto) -> Result<Vec<usize>, ImportError> {
    let given = list_given_names(graph)?;
    sort_nodes(graph, &index_producers(graph, &given)?)
}

/// Returns the names that a node reads: its operands, and what graphs within it read from outside of them.
pub(super) fn list_node_reads(node: &NodeProto) -> Vec<&str> {
    let mut found: Vec<&str> =
        node.input.iter().map(String::as_str).filter(|input| !input.is_empty()).collect();
    for graph in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
        let initializers = graph.initializer.iter().map(|tensor| tensor.name.as_deref());
        let inputs = graph.input.iter().map(|input| input.name.as_deref());
        let own: BTreeSet<&str> = (initializers.chain(inputs).flatten())
            .chain(graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str)))
            .collect();
        let outputs = graph.output.iter().filter_map(|output| output.name.as_deref());
        let within = graph.node.iter().flat_map(list_node_reads).chain(outputs);
        found.extend(within.filter(|name| !own.contains(name)));
    }
    found
}

/// Returns all names that a node or an output of the graph reads, including those of graphs within its nodes.
pub(super) fn list_graph_reads(graph: &GraphProto) -> BTreeSet<String> {
    let outputs = graph.output.iter().filter_map(|output| output.name.clone());
    let mut names: BTreeSet<String> = outputs.collect();
    for node in &graph.node {
        names.extend(node.input.iter().cloned());
        let inner = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref());
        inner.for_each(|graph| names.extend(list_graph_reads(graph)));
    }
    names
}

/// Sorts the nodes so that each comes behind those whose results it reads.
fn sort_nodes(
    graph: &GraphProto,
    producers: &BTreeMap<&str, usize>,
) -> Result<Vec<usize>, ImportError> {
    let mut waits: Vec<usize> = Vec::new();
    let mut readers = vec![BTreeSet::new(); graph.node.len()];
    for (index, node) in graph.node.iter().enumerate() {
        let sources: BTreeSet<usize> = list_node_reads(node)
            .iter()
            .filter_map(|&input| producers.get(input).copied())
            .collect();
        waits.push(sources.len());
        sources.into_iter().for_each(|source| _ = readers[source].insert(index));
    }
    let mut ready: BTreeSet<usize> = (0..waits.len()).filter(|&index| waits[index] == 0).collect();
    let mut order = Vec::new();
    while let Some(index) = ready.pop_first() {
        order.push(index);
        for &reader in &readers[index] {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.insert(reader);
            }
        }
    }
    if order.len() < graph.node.len() {
        let edges: Vec<(u32, u32)> = (readers.iter().enumerate())
            .flat_map(|(from, readers)| readers.iter().map(move |&to| (from as u32, to as u32)))
            .collect();
        let name = |node: &u32| format!("`{}`", node_title(&graph.node[*node as usize]));
        let names: Vec<String> = find_cycle(&edges).iter().map(name).collect();
        return fail_structure(format!(
            "nodes wait for each other in a cycle: {}",
            format_cycle(&names)
        ));
    }
    Ok(order)
}

/// Returns the names of inputs and initializers. An old file lists an initializer as an input too.
fn list_given_names(graph: &GraphProto) -> Result<BTreeSet<&str>, ImportError> {
    let mut initializers = BTreeSet::new();
    for tensor in &graph.initializer {
        let name = tensor.name.as_deref().unwrap_or("");
        if !initializers.insert(name) {
            return fail_structure(format!("two initializers are called `{name}`"));
        }
    }
    let mut inputs = BTreeSet::new();
    for input in &graph.input {
        let name = input.name.as_deref().unwrap_or("");
        if name.is_empty() {
            return fail_structure("an input has no name".into());
        }
        if !inputs.insert(name) {
            return fail_structure(format!("two inputs are called `{name}`"));
        }
    }
    Ok(initializers.union(&inputs).copied().collect())
}

fn index_producers<'a>(
    graph: &'a GraphProto,
    given: &BTreeSet<&str>,
) -> Result<BTreeMap<&'a str, usize>, ImportError> {
    let mut producers = BTreeMap::new();
    for (index, node) in graph.node.iter().enumerate() {
        for output in node.output.iter().filter(|output| !output.is_empty()) {
            let twice = producers.insert(output.as_str(), index).is_some();
            if twice || given.contains(output.as_str()) {
                let (node, op) = (node_title(node), op_type(node));
                return fail_structure(format!(
                    "node `{node}` of type {op} makes `{output}`, a name that is given twice"
                ));
            }
        }
    }
    Ok(producers)
}

fn check_outputs(
    graph: &GraphProto,
    given: &BTreeSet<&str>,
    producers: &BTreeMap<&str, usize>,
) -> Result<(), ImportError> {
    if graph.output.is_empty() {
        return fail_structure("it has no outputs".into());
    }
    let mut seen = BTreeSet::new();
    for output in &graph.output {
        let name = output.name.as_deref().unwrap_or("");
        if !given.contains(name) && !producers.contains_key(name) {
            return fail_structure(format!("nobody makes the output `{name}`"));
        }
        if !seen.insert(name) {
            return fail_structure(format!("two outputs are called `{name}`"));
        }
    }
    Ok(())
}

fn fail_structure<T>(reason: String) -> Result<T, ImportError> {
    Err(ImportError::Structure { reason })
}

/// Returns a node's name, or that of its first result if it has none.
pub(super) fn node_title(node: &NodeProto) -> String {
    let name = node.name.as_deref().filter(|name| !name.is_empty());
    name.or(node.output.first().map(String::as_str)).unwrap_or("").to_string()
}

pub(super) fn op_type(node: &NodeProto) -> &str {
    node.op_type.as_deref().unwrap_or("")
}
