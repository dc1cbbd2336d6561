//! Evaluation of a whole graph by the ops' own oracles: one device, every element an `f64`. What any layout,
//! schedule or kernel computes is held against this.

use std::collections::BTreeMap;

use crate::array::Array;
use crate::graph::{Graph, Node, Source};
use crate::ids::ValueId;
use crate::op::{EvalContext, Op, OpError, Operand, Region};

/// The reason that a graph cannot be evaluated.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// A feed whose shape is not that of its input or variable.
    #[error("`{name}` has shape {expected:?}, but {found:?} is fed")]
    FeedShape {
        /// The input or variable.
        name: String,
        /// Its shape.
        expected: Vec<usize>,
        /// The shape of the feed.
        found: Vec<usize>,
    },
    /// A feed that no input or variable has the name of.
    #[error("the graph has no input and no variable `{name}`")]
    UnknownFeed {
        /// The name.
        name: String,
    },
    /// An op that cannot be evaluated.
    #[error("{place}: {error}")]
    Op {
        /// The place at which the user wrote the op.
        place: Source,
        /// The error of the op.
        error: OpError,
    },
}

crate::readable_debug!(EvaluateError);

/// Computes all values of a graph, by [`ValueId`]. `feeds` gives inputs and variables by name; a variable that is not fed has its first
/// content.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use graphc_ir::array::Array;
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_ir::evaluate::evaluate_outputs;
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let x = g.input("x", DType::F32, [3]);
/// g.output("y", &x.relu().scale(2.0));
/// let graph = g.finish()?;
/// let feeds = BTreeMap::from([("x".to_string(), Array::new([3], vec![-1.0, 0.0, 4.0]))]);
/// let results = evaluate_outputs(&graph, &feeds, &Default::default())?;
/// assert_eq!(results["y"].data, [0.0, 0.0, 8.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A missing, unknown or misshapen feed, or an index out of range.
pub fn evaluate_graph(
    graph: &Graph,
    feeds: &BTreeMap<String, Array>,
    cx: &EvalContext,
) -> Result<Vec<Array>, EvaluateError> {
    check_names(graph, feeds)?;
    let regions: Vec<Region> = graph.values.iter().map(|value| Region::whole(&value.ty)).collect();
    let mut arrays: Vec<Option<Array>> = vec![None; graph.values.len()];
    for node in &graph.nodes {
        let results = match find_feed(node, feeds)? {
            Some(array) => vec![array.clone()],
            None => evaluate_node(node, &arrays, &regions, cx)?,
        };
        for (&value, array) in node.results.iter().zip(results) {
            arrays[value.index()] = Some(array);
        }
    }
    Ok(arrays.into_iter().flatten().collect())
}

/// The named results of a graph. See [`evaluate_graph`].
///
/// # Errors
/// Those of [`evaluate_graph`].
pub fn evaluate_outputs(
    graph: &Graph,
    feeds: &BTreeMap<String, Array>,
    cx: &EvalContext,
) -> Result<BTreeMap<String, Array>, EvaluateError> {
    let arrays = evaluate_graph(graph, feeds, cx)?;
    let array = |value: ValueId| arrays[value.index()].clone();
    Ok(graph.outputs.iter().map(|output| (output.name.clone(), array(output.value))).collect())
}

fn name_of(node: &Node) -> Option<&str> {
    match &node.op {
        Op::Input(input) => Some(&input.name),
        Op::Variable(variable) => Some(&variable.name),
        _ => None,
    }
}

fn check_names(graph: &Graph, feeds: &BTreeMap<String, Array>) -> Result<(), EvaluateError> {
    let known = |name: &String| graph.nodes.iter().any(|node| name_of(node) == Some(name));
    match feeds.keys().find(|name| !known(name)) {
        None => Ok(()),
        Some(name) => Err(EvaluateError::UnknownFeed { name: name.clone() }),
    }
}

fn find_feed<'a>(
    node: &Node,
    feeds: &'a BTreeMap<String, Array>,
) -> Result<Option<&'a Array>, EvaluateError> {
    let expected = match &node.op {
        Op::Input(input) => &input.ty.shape,
        Op::Variable(variable) => &variable.ty.shape,
        _ => return Ok(None),
    };
    let Some((name, array)) = name_of(node).and_then(|name| feeds.get_key_value(name)) else {
        return Ok(None);
    };
    if array.shape == *expected {
        return Ok(Some(array));
    }
    let (expected, found) = (expected.clone(), array.shape.clone());
    Err(EvaluateError::FeedShape { name: name.clone(), expected, found })
}

fn evaluate_node(
    node: &Node,
    arrays: &[Option<Array>],
    regions: &[Region],
    cx: &EvalContext,
) -> Result<Vec<Array>, EvaluateError> {
    let operand = |value: &ValueId| {
        let array = arrays[value.index()].as_ref().expect("nodes stand in topological order");
        Operand { array, region: &regions[value.index()] }
    };
    let operands: Vec<Operand<'_>> = node.operands.iter().map(operand).collect();
    let results: Vec<Region> =
        node.results.iter().map(|value| regions[value.index()].clone()).collect();
    node.op
        .operation()
        .evaluate(&operands, &results, cx)
        .map_err(|error| EvaluateError::Op { place: node.source.clone(), error })
}
