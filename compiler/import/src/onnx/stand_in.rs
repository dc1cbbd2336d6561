//! Stand-ins for the results of nodes that are refused, so that the nodes behind them are checked as well.

use graphc_ir::op::Op;
use graphc_ir::ops::Input;
use rten_onnx::onnx::NodeProto;

use super::lower::{Lowering, Val};
use super::model::{list_node_reads, node_title};
use super::node::LoweringProblem;
use crate::{ImportError, RefusedNode};

impl Lowering {
    /// Lowers a node of the model, or returns why it is refused. If the file describes the types of a refused node's results, inputs of these types
    /// stand in for them. Otherwise nothing is known of them, nor of what is computed from them.
    pub(super) fn node_or_stand_in(
        &mut self,
        proto: &NodeProto,
    ) -> Result<Option<RefusedNode>, ImportError> {
        if list_node_reads(proto).iter().any(|name| self.unknown.contains(*name)) {
            self.stand_in(proto)?;
            return Ok(None);
        }
        let refused = match self.lower_node(proto) {
            Ok(()) => return Ok(None),
            Err(ImportError::Node { node, op_type, reason }) => {
                Some(RefusedNode { node, op_type, reason })
            }
            // All of these are known before.
            Err(ImportError::Unsupported { .. }) => None,
            Err(other) => return Err(other),
        };
        self.stand_in(proto)?;
        Ok(refused)
    }

    fn stand_in(&mut self, proto: &NodeProto) -> Result<(), ImportError> {
        for name in proto.output.iter().filter(|name| !name.is_empty()) {
            let Some(ty) = self.described.get(name).cloned() else {
                self.unknown.insert(name.clone());
                continue;
            };
            let input = Op::Input(Input::new(format!("{name} of a node that is refused"), ty));
            let made = self.push(input, Vec::new()).map_err(|LoweringProblem(reason)| {
                ImportError::Tensor { name: node_title(proto), reason }
            })?;
            self.values.insert(name.clone(), Val::Tensor(made[0]));
        }
        Ok(())
    }
}
