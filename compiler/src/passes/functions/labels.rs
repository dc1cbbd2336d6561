//! The logarithm of a label's probability: a look-up in the logarithm of a softmax. Cross entropy is that negated, and never keeps a
//! logarithm for each class.

use std::collections::BTreeSet;

use graphc_ir::ids::NodeId;
use graphc_ir::op::Op;
use graphc_ir::ops::{CrossEntropy, LogSoftmax, Pick};

use super::{FoundFunction, FunctionFinder};

impl FunctionFinder<'_> {
    /// The look-up that ends in a node.
    pub(super) fn find_label_lookup(&self, last: NodeId) -> Option<FoundFunction> {
        let node = self.graph.node(last);
        let &[logarithms, labels] = &node.operands[..] else { return None };
        let shape = &self.graph.value(logarithms).ty.shape;
        let one_of_each_row = match &node.op {
            Op::Pick(Pick { classes: None }) => true,
            Op::Gather(_) => {
                let places = &self.graph.value(labels).ty.shape;
                places.len() == shape.len() && places.last() == Some(&1)
            }
            _ => false,
        };
        let softmax = self.graph.value(logarithms).producer;
        let node = self.graph.node(softmax);
        let Op::LogSoftmax(LogSoftmax { axis }) = node.op else { return None };
        (one_of_each_row && axis + 1 == shape.len()).then(|| FoundFunction {
            name: "cross_entropy",
            op: Op::CrossEntropy(CrossEntropy::default()),
            operands: vec![node.operands[0], labels],
            inside: BTreeSet::from([softmax]),
        })
    }
}
