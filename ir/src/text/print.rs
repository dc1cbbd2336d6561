//! Prints a graph as text.

use std::fmt::Write;

use serde_json::{Map, Value as Json};

use crate::graph::{Graph, Node};
use crate::ids::ValueId;
use crate::mesh::{Placement, format_mesh};
use crate::types::TensorType;

/// The text of a graph.
pub fn print_graph(graph: &Graph) -> String {
    let mut text = format!("graph @{} {{\n", print_label(&graph.name, true));
    for (index, placement) in graph.stages.iter().enumerate() {
        let _ = write!(text, "  stage {index}");
        if let Some(placement) = placement {
            let _ = write!(text, " on {}", print_placement(placement));
        }
        text.push('\n');
    }
    for node in &graph.nodes {
        let _ = writeln!(text, "  {}", print_node(graph, node));
    }
    for output in &graph.outputs {
        let value = print_value(graph, output.value);
        let _ = writeln!(text, "  return {} = {value}", Json::from(output.name.as_str()));
    }
    text.push_str("}\n");
    text
}

fn print_node(graph: &Graph, node: &Node) -> String {
    let values =
        |ids: &[ValueId]| ids.iter().map(|&v| print_value(graph, v)).collect::<Vec<_>>().join(", ");
    let mut text = format!("{} = {}", values(&node.results), node.op.name());
    let mut payload = node_payload(node);
    if let Some(Json::String(name)) = payload.shift_remove("name") {
        let _ = write!(text, " {}", Json::from(name));
    }
    payload.shift_remove("ty");
    if !node.operands.is_empty() {
        let _ = write!(text, " {}", values(&node.operands));
    }
    text.push_str(&print_attributes(&payload));
    if let Some(stage) = node.stage() {
        let _ = write!(text, " stage {}", stage.index());
    }
    if let Some(placement) = &node.placement {
        let _ = write!(text, " on {}", print_placement(placement));
    }
    if let Some(dtype) = node.autocast {
        let _ = write!(text, " autocast {dtype}");
    }
    text.push_str(&print_pins(graph, node));
    let types: Vec<String> = node.results.iter().map(|&v| print_type(&graph.value(v).ty)).collect();
    let _ = write!(text, " : {}", types.join(", "));
    text
}

/// The payload's serde form without its tag.
fn node_payload(node: &Node) -> Map<String, Json> {
    let Ok(Json::Object(mut map)) = serde_json::to_value(&node.op) else {
        unreachable!(
            "a payload is a struct of numbers, texts and lists, and serializes as an object"
        );
    };
    map.shift_remove("op");
    map
}

fn print_attributes(payload: &Map<String, Json>) -> String {
    let shown = payload.iter().filter(|(_, value)| **value != Json::Bool(false));
    let texts: Vec<String> =
        shown.map(|(key, value)| format!("{key}={}", print_literal(value))).collect();
    if texts.is_empty() { String::new() } else { format!(" {{{}}}", texts.join(", ")) }
}

fn print_pins(graph: &Graph, node: &Node) -> String {
    let pins: Vec<_> = node.results.iter().map(|&v| graph.value(v).pin.as_ref()).collect();
    let text = |pin: &Option<&crate::sbp::NdSbp>| {
        pin.map_or_else(|| "_".to_string(), |pin| format!("\"{pin}\""))
    };
    match pins.as_slice() {
        pins if pins.iter().all(Option::is_none) => String::new(),
        [pin] => format!(" pin {}", text(pin)),
        pins => format!(" pin ({})", pins.iter().map(text).collect::<Vec<_>>().join(", ")),
    }
}

/// JSON on one line; a float without a fraction is written as an integer, which reads back as the same number.
fn print_literal(value: &Json) -> String {
    match value {
        Json::Array(items) => {
            format!("[{}]", items.iter().map(print_literal).collect::<Vec<_>>().join(", "))
        }
        Json::Object(map) => {
            let entry = |(key, value): (&String, &Json)| {
                format!("{}: {}", Json::from(key.as_str()), print_literal(value))
            };
            format!("{{{}}}", map.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        Json::Number(number) => match number.as_f64() {
            Some(x)
                if number.is_f64() && x.fract() == 0.0 && x.abs() < 1e15 && !negative_zero(x) =>
            {
                (x as i64).to_string()
            }
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

fn negative_zero(x: f64) -> bool {
    x == 0.0 && x.is_sign_negative()
}

fn print_value(graph: &Graph, id: ValueId) -> String {
    match &graph.value(id).name {
        Some(name) => format!("%{}", print_label(name, false)),
        None => id.to_string(),
    }
}

/// A name as it stands after `%` or `@`: quoted where it would not be read back as it is.
fn print_label(name: &str, digits: bool) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let number = name.bytes().all(|b| b.is_ascii_digit());
    if !name.is_empty() && name.chars().all(plain) && (digits || !number) {
        return name.into();
    }
    Json::from(name).to_string()
}

fn print_type(ty: &TensorType) -> String {
    ty.to_string()
}

fn print_placement(placement: &Placement) -> String {
    let mesh = format_mesh(&placement.hierarchy);
    format!("{}{:?} as {mesh}", placement.device, placement.ranks)
}
