//! What a model has that graphc has not: all ops, and all forms of ops, at once.

use std::fmt;

use super::ImportError;
use super::unsupported::UnsupportedOps;

/// As many kinds of forms a message lists.
const MOST_LISTED: usize = 12;

/// As many nodes are refused before nobody looks at the rest of a model.
pub(super) const MOST_REFUSED: usize = 256;

/// What is not supported: ops, and forms of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Ops that there are not.
    pub ops: UnsupportedOps,
    /// Nodes in a form that there is not, in the order in which they are computed.
    pub nodes: Vec<RefusedNode>,
}

/// A node in a form that is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedNode {
    /// The node's name.
    pub node: String,
    /// The type of the op.
    pub op_type: String,
    /// What is wrong.
    pub reason: String,
}

impl Refused {
    /// Nothing, where nothing is refused; a single node alone has an error of its own, and so have ops alone.
    ///
    /// # Errors
    /// Where something is refused.
    pub(super) fn check(mut self) -> Result<(), ImportError> {
        match (self.ops.0.is_empty(), self.nodes.len()) {
            (true, 0) => Ok(()),
            (false, 0) => Err(ImportError::Unsupported { ops: self.ops }),
            (true, 1) => {
                let RefusedNode { node, op_type, reason } = self.nodes.remove(0);
                Err(ImportError::Node { node, op_type, reason })
            }
            _ => Err(ImportError::Refused { refused: self }),
        }
    }

    /// The nodes by type of op and reason, each kind where its first one is.
    fn group_kinds(&self) -> Vec<Vec<&RefusedNode>> {
        let mut kinds: Vec<Vec<&RefusedNode>> = Vec::new();
        for node in &self.nodes {
            let alike = |kind: &&mut Vec<&RefusedNode>| {
                kind[0].op_type == node.op_type && kind[0].reason == node.reason
            };
            match kinds.iter_mut().find(alike) {
                Some(kind) => kind.push(node),
                None => kinds.push(vec![node]),
            }
        }
        kinds
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.ops.0.is_empty() {
            writeln!(f, "{}", self.ops)?;
        }
        match self.nodes.len() {
            1 => write!(f, "1 node is in a form that is not supported:")?,
            count => write!(f, "{count} nodes are in forms that are not supported:")?,
        }
        let kinds = self.group_kinds();
        for kind in kinds.iter().take(MOST_LISTED) {
            let (first, others) = (kind[0], kind.len() - 1);
            let RefusedNode { node, op_type, reason } = first;
            let more = if others > 0 { format!(" and {others} more") } else { String::new() };
            write!(f, "\n  `{node}`{more} of type {op_type}: {reason}")?;
        }
        match kinds.len().checked_sub(MOST_LISTED) {
            Some(left @ 1..) => write!(f, "\n  and {left} more kinds"),
            _ => Ok(()),
        }
    }
}
