//! Payloads from attributes: serde reads them, so that an op is described in one place alone.

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::error::ParseError;
use super::reader::{Fault, JsonReader};
use super::syntax::{Attribute, NodeText};
use crate::op::Op;

/// The names of all ops: what serde says that there is where it is asked for one that there is not.
pub(super) fn op_names() -> &'static [&'static str] {
    match Op::deserialize(JsonReader(json!({ "op": "" }))) {
        Err(Fault::Variant { known, .. }) => known,
        _ => &[],
    }
}

/// The payload as an op. A truth value that is missing is false; what the op does not know is an error.
pub(super) fn finish_op(node: &NodeText, mut payload: Map<String, Json>) -> Result<Op, ParseError> {
    let read =
        |payload: &Map<String, Json>| Op::deserialize(JsonReader(Json::Object(payload.clone())));
    let op = loop {
        match read(&payload) {
            Ok(op) => break op,
            Err(Fault::Missing(key)) if !payload.contains_key(key) => {
                payload.insert(key.into(), Json::Bool(false));
                if !matches!(read(&payload), Ok(_) | Err(Fault::Missing(_))) {
                    return Err(missing_error(node, key));
                }
            }
            Err(fault) => return Err(payload_error(node, &fault)),
        }
    };
    known_attributes(node, &op)?;
    Ok(op)
}

fn missing_error(node: &NodeText, key: &str) -> ParseError {
    let (op, span) = &node.op;
    let what = match key {
        "ty" => "a type, e.g. : f32[4, 8]".to_string(),
        "name" => format!("a name in quotes, e.g. {op} \"x\""),
        _ => format!("the attribute `{key}`"),
    };
    span.error(format!("{op} needs {what}"))
}

fn payload_error(node: &NodeText, fault: &Fault) -> ParseError {
    let span = match node.attributes.as_slice() {
        [] => node.op.1,
        [first, .., last] => first.span.extend_to(last.span),
        [one] => one.span,
    };
    span.error(format!("{}: {fault}", node.op.0))
}

fn known_attributes(node: &NodeText, op: &Op) -> Result<(), ParseError> {
    let Ok(Json::Object(known)) = serde_json::to_value(op) else { return Ok(()) };
    if let Some((_, span)) = node.name.as_ref().filter(|_| !known.contains_key("name")) {
        return Err(span.error(format!("{} has no name", node.op.0)));
    }
    let own: Vec<&str> = known
        .keys()
        .map(String::as_str)
        .filter(|key| !matches!(*key, "op" | "ty" | "name"))
        .collect();
    for Attribute { key, span, .. } in &node.attributes {
        if !known.contains_key(key) {
            let has = if own.is_empty() { "none".into() } else { own.join(", ") };
            return Err(span.error(format!("{} has no attribute `{key}`; it has {has}", node.op.0)));
        }
    }
    Ok(())
}
