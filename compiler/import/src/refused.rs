//! The parts of a model that graphc lacks: all ops, and all forms of ops, in one error.

use std::fmt;

use super::ImportError;
use super::unsupported::UnsupportedOps;

/// The most kinds of forms that a message lists.
const MOST_LISTED: usize = 12;

/// The number of refused nodes at which the import stops.
pub(super) const MOST_REFUSED: usize = 256;

/// All of a model that is not supported: ops, and forms of other ops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The ops that graphc lacks.
    pub ops: UnsupportedOps,
    /// The nodes in a form that graphc lacks, in the order in which they are computed.
    pub nodes: Vec<RefusedNode>,
}

/// A node in a form that is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedNode {
    /// The node's name.
    pub node: String,
    /// The type of the op.
    pub op_type: String,
    /// The reason.
    pub reason: String,
}

impl Refused {
    /// Returns an error that names all that is refused, if anything is. A single node alone has an error of its own, and so have ops alone.
    ///
    /// # Errors
    /// Returns an error if something is refused.
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

    /// Groups the nodes by type of op and reason. The groups are in the order of their first nodes.
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
