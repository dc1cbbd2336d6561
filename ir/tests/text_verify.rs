//! The verifier names every invariant that a graph breaks, all at once.

use graphc_ir::graph::{Graph, Output, Part};
use graphc_ir::ids::{NodeId, StageId, ValueId};
use graphc_ir::mesh::{DeviceKind, Placement};
use graphc_ir::text::parse_graph;
use graphc_ir::types::{DType, TensorType};
use graphc_ir::verify::verify_graph;

fn graph() -> Graph {
    let text = "graph @g {
  stage 0 on cpu[0, 1] as 2
  stage 1
  %x = input \"x\" stage 0 : f32[4, 8]
  %w = variable \"w\" {init=\"weights\", trainable=true} : f32[8, 8]
  %y = matmul %x, %w stage 0 : f32[4, 8]
  %z = unary %y {function=\"relu\"} stage 1 : f32[4, 8]
  return \"z\" = %z
}
";
    parse_graph(text).expect("fits")
}

/// Returns the message of the verifier about the graph after a change.
fn after(change: impl FnOnce(&mut Graph)) -> String {
    let mut graph = graph();
    assert_eq!(verify_graph(&graph), Ok(()));
    change(&mut graph);
    verify_graph(&graph).expect_err("the graph is broken").to_string()
}

#[test]
fn all_errors_are_collected_with_node_op_and_source() {
    let found = after(|graph| {
        graph.values[2].ty = TensorType::new(DType::F32, [4, 9]);
        graph.nodes[3].part = Some(Part::Stage(StageId::new(7)));
        graph.outputs.push(Output { name: "z".into(), value: ValueId::new(99) });
    });
    let expected = "\
n2 matmul (line 6, column 3): y is f32[4, 9], where inference gives f32[4, 8]
n3 unary (line 7, column 3): z is f32[4, 8], where inference gives f32[4, 9]
n3 unary (line 7, column 3): stage 7 is not declared
graph: output `z` is %99, no value of the graph
graph: two outputs are called `z`";
    assert_eq!(found, expected);
}

#[test]
fn operands_are_defined_before_they_are_used() {
    let found = after(|graph| graph.nodes[2].operands[0] = ValueId::new(3));
    assert_eq!(found, "n2 matmul (line 6, column 3): operand z is used before it is defined");
    let found = after(|graph| graph.nodes[2].operands[0] = ValueId::new(33));
    assert_eq!(found, "n2 matmul (line 6, column 3): operand %33 is no value of the graph");
}

#[test]
fn nodes_and_values_name_each_other() {
    let found = after(|graph| graph.values[3].producer = NodeId::new(1));
    assert!(found.contains("result 0, %3, says that it is result 0 of n1"), "{found}");
    let found = after(|graph| graph.nodes[3].results[0] = ValueId::new(2));
    assert!(found.contains("result %2 is produced twice"), "{found}");
    assert!(found.contains("graph: %3 is produced by no node"), "{found}");
}

#[test]
fn names_are_unique() {
    let found = after(|graph| graph.values[3].name = Some("y".into()));
    assert_eq!(found, "n3 unary (line 7, column 3): the name `y` is taken by a result of n2");
}

#[test]
fn data_flows_to_later_stages() {
    let found = after(|graph| {
        graph.nodes[2].part = Some(Part::Stage(StageId::new(1)));
        graph.nodes[3].part = Some(Part::Stage(StageId::new(0)));
    });
    assert_eq!(found, "n3 unary (line 7, column 3): in stage 0 it takes y from the later stage 1");
}

#[test]
fn placements_and_pins_fit() {
    let found = after(|graph| graph.values[2].pin = Some("S(0), B".parse().expect("reads")));
    assert_eq!(
        found,
        "n2 matmul (line 6, column 3): the pin (S(0), B) of y does not fit: the mesh has 1 axes, and it names 2"
    );
    let found = after(|graph| graph.values[3].pin = Some("S(2)".parse().expect("reads")));
    assert!(found.ends_with("it splits dim 2 of a tensor of rank 2"), "{found}");
    let placement = Placement { device: DeviceKind::Cpu, ranks: vec![1, 1], hierarchy: vec![2] };
    let found = after(|graph| graph.stages[1] = Some(placement));
    assert_eq!(found, "graph: stage 1: rank 1 is named twice in one mesh");
}
