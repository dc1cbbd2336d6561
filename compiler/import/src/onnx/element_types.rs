//! The element types that a file gives its values, where these are not those that the graph has: bytes with a sign, say, are `i32` in
//! the graph, but what is quantized to them ends at 127.

use std::collections::BTreeMap;

use rten_onnx::onnx::{DataType, GraphProto, NodeProto, ValueInfoProto};

use super::model::op_type;
use super::node::NodeCall;

/// Ops whose first result has the element type of the first operand.
const PASSES_ON: [&str; 15] = [
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// The element types of names, as far as the file says them or they follow, those of graphs within nodes among them.
pub(super) fn element_types(graph: &GraphProto) -> BTreeMap<String, DataType> {
    let mut types = BTreeMap::new();
    collect_element_types(graph, &mut types);
    types
}

fn collect_element_types(graph: &GraphProto, types: &mut BTreeMap<String, DataType>) {
    let tensors = graph.initializer.iter().map(|tensor| (&tensor.name, tensor.data_type));
    let infos = graph.input.iter().chain(&graph.value_info).chain(&graph.output);
    let infos = infos.map(|info| (&info.name, of_info(info)));
    for (name, data_type) in tensors.chain(infos) {
        if let (Some(name), Some(data_type)) = (name, data_type) {
            types.insert(name.clone(), data_type);
        }
    }
    for node in &graph.node {
        node.attribute
            .iter()
            .filter_map(|a| a.g.as_ref())
            .for_each(|inner| collect_element_types(inner, types));
        let Some(output) = node.output.first() else { continue };
        if let Some(data_type) = of_node(node, types) {
            types.entry(output.clone()).or_insert(data_type);
        }
    }
}

fn of_info(info: &ValueInfoProto) -> Option<DataType> {
    info.r#type.as_ref()?.tensor_type.as_ref()?.elem_type
}

fn of_node(node: &NodeProto, types: &BTreeMap<String, DataType>) -> Option<DataType> {
    let call = NodeCall { proto: node, opset: 0 };
    let of_operand = |at: usize| types.get(node.input.get(at)?).copied();
    match op_type(node) {
        "Cast" => Some(DataType(i32::try_from(call.int("to", 0).ok()?).ok()?)),
        "CastLike" => of_operand(1),
        "Constant" | "ConstantOfShape" => call.tensor("value").ok()??.data_type,
        op if PASSES_ON.contains(&op) => of_operand(0),
        _ => None,
    }
}
