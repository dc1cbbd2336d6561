//! Tensors at which gradients end, chosen by name.

use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::ops::{Unary, UnaryFunction};
use graphc_ir::pattern::{matches_pattern, nearest_pattern};

use super::ImportError;

/// Returns the graph with gradients that end at floating-point tensors of given names: what `--stop-gradient` does for a file. A `*` in a name stands
/// for any characters. All that reads such a tensor reads its `Tensor.detach` instead.
///
/// ```
/// use graphc_import::stop_gradients;
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Linear, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("a body that learns nothing");
/// let x = g.input("x", DType::F32, [4, 5]);
/// let [body, head] = ["body", "head"].map(|name| Linear::new(&g, name, 5, 5));
/// g.output("features", &body.forward(&x));
/// g.output("y", &head.forward(&body.forward(&x)));
/// let graph = stop_gradients(&g.finish()?, &["body.*".into()])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if a pattern matches no such tensor.
pub fn stop_gradients(graph: &Graph, patterns: &[String]) -> Result<Graph, ImportError> {
    check_patterns(graph, patterns)?;
    let mut result = graph.clone_empty();
    let mut read: Vec<ValueId> = Vec::new();
    for (_, node) in graph.iter() {
        let operands = node.operands.iter().map(|value| read[value.index()]).collect();
        let made = push(&mut result, node.op.clone(), operands, node)?;
        for (&old, new) in node.results.iter().zip(made) {
            let (from, to) = (graph.value(old), &mut result.values[new.index()]);
            to.name.clone_from(&from.name);
            to.pin.clone_from(&from.pin);
            let ends = name(graph, old)
                .is_some_and(|name| patterns.iter().any(|p| matches_pattern(p, name)));
            read.push(match ends {
                true => {
                    let detach = Op::Unary(Unary { function: UnaryFunction::Detach });
                    push(&mut result, detach, vec![new], node)?[0]
                }
                false => new,
            });
        }
    }
    let output =
        |output: &Output| Output { name: output.name.clone(), value: read[output.value.index()] };
    result.outputs = graph.outputs.iter().map(output).collect();
    Ok(result)
}

fn push(
    graph: &mut Graph,
    op: Op,
    operands: Vec<ValueId>,
    like: &Node,
) -> Result<Vec<ValueId>, ImportError> {
    let made = graph.push_like(op, operands, like);
    made.map_err(|error| ImportError::Structure { reason: error.to_string() })
}

/// The name of a value at which gradients may end.
fn name(graph: &Graph, value: ValueId) -> Option<&str> {
    if !graph.value(value).ty.dtype.is_float() {
        return None;
    }
    match &graph.producer(value).op {
        Op::Variable(variable) => Some(&variable.name),
        _ => graph.value(value).name.as_deref(),
    }
}

fn check_patterns(graph: &Graph, patterns: &[String]) -> Result<(), ImportError> {
    let results = graph.iter().flat_map(|(_, node)| &node.results);
    let names: Vec<&str> = results.filter_map(|&value| name(graph, value)).collect();
    match patterns.iter().find(|pattern| !names.iter().any(|name| matches_pattern(pattern, name))) {
        None => Ok(()),
        Some(pattern) => Err(ImportError::NoTensor {
            pattern: pattern.clone(),
            nearest: nearest_pattern(pattern, names),
        }),
    }
}
