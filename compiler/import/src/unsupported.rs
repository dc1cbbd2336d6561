//! Ops of a model that graphc has not: all of them, with how many nodes have each.

use std::fmt;

use graphc_ir::text::nearest_name;

/// The types of ops in a model that are not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedOps(pub Vec<UnsupportedOp>);

/// A type of op that is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedOp {
    /// The type.
    pub op_type: String,
    /// Its domain, `ai.onnx` for the standard one.
    pub domain: String,
    /// The number of nodes that have it.
    pub count: usize,
    /// The name of the first of them.
    pub node: String,
    /// A hint for the message: a supported op whose name is similar, or that no op of the domain is supported. It may be empty.
    hint: String,
}

impl UnsupportedOp {
    /// Makes the entry of a node's op. `supported` are the ops of its domain that are supported.
    pub(super) fn new(node: String, domain: &str, op_type: &str, supported: &[&str]) -> Self {
        let domain = if domain.is_empty() { "ai.onnx" } else { domain };
        let hint = suggest_op(op_type, supported);
        Self { op_type: op_type.into(), domain: domain.into(), count: 1, node, hint }
    }
}

impl UnsupportedOps {
    /// Counts one more node of an op.
    pub(super) fn add(&mut self, op: UnsupportedOp) {
        let alike =
            |other: &&mut UnsupportedOp| other.op_type == op.op_type && other.domain == op.domain;
        match self.0.iter_mut().find(alike) {
            Some(known) => known.count += 1,
            None => self.0.push(op),
        }
    }
}

impl fmt::Display for UnsupportedOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: usize = self.0.iter().map(|op| op.count).sum();
        let (have, are) =
            if nodes == 1 { ("node has an op", "is") } else { ("nodes have ops", "are") };
        write!(f, "{nodes} {have} that {are} not supported: ")?;
        let ops: Vec<String> = self.0.iter().map(UnsupportedOp::to_string).collect();
        f.write_str(&ops.join(", "))
    }
}

impl fmt::Display for UnsupportedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op_type, domain, count, node, hint } = self;
        write!(f, "{count} {op_type}")?;
        if domain != "ai.onnx" {
            write!(f, " of domain `{domain}`")?;
        }
        let which = if *count == 1 { "node" } else { "the first is node" };
        write!(f, " ({which} `{node}`{hint})")
    }
}

/// Writes the hint of a name that is not known: the supported op with the most similar name. It may also be that no op of the domain is supported.
/// There is none for short names, which are similar to each other by chance.
fn suggest_op(op_type: &str, supported: &[&str]) -> String {
    if supported.is_empty() {
        return "; no op of this domain is supported".into();
    }
    let typo = |near: &&str| near.len() > 4 && near.len().abs_diff(op_type.len()) < 2;
    let near = nearest_name(op_type, supported.iter().copied()).filter(typo);
    near.map_or(String::new(), |near| format!("; did the exporter mean {near}?"))
}
