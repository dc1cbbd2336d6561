//! Convolution and pooling of pictures that have their channels last.

use graphc_ir::graph::Node;
use graphc_ir::op::{Op, OpError};

use super::rewrite::Rewriter;
use super::view::View;

/// Which dims of `[n, h, w, c]` those of `[n, c, h, w]` are.
pub(super) const CHANNELS_FIRST: [usize; 4] = [0, 3, 1, 2];
/// Which dims of `[n, c, h, w]` those of `[n, h, w, c]` are.
const CHANNELS_LAST: [usize; 4] = [0, 2, 3, 1];

/// An op of pictures with channels last: whether each operand, and the result, is a picture.
pub(in crate::passes) struct PictureOp {
    op: Op,
    pub operands: &'static [bool],
    pub result: bool,
}

/// The op of pictures `[n, h, w, c]` that an op of pictures `[n, c, h, w]` is; `None` of any other.
pub(in crate::passes) fn picture_op(op: &Op) -> Option<PictureOp> {
    let mut last = op.clone();
    let (channels_last, operands, result): (_, &[bool], _) = match &mut last {
        Op::Convolution(op) => (&mut op.channels_last, &[true, false], true),
        Op::ConvolutionInputGrad(op) => (&mut op.channels_last, &[false, true], true),
        Op::ConvolutionKernelGrad(op) => (&mut op.channels_last, &[true, true], false),
        Op::MaxPool(op) => (&mut op.channels_last, &[true], true),
        Op::MaxPoolGrad(op) => (&mut op.channels_last, &[true, true], true),
        Op::AveragePool(op) => (&mut op.channels_last, &[true], true),
        Op::AveragePoolGrad(op) => (&mut op.channels_last, &[true], true),
        _ => return None,
    };
    let before = std::mem::replace(channels_last, true);
    (!before).then_some(PictureOp { op: last, operands, result })
}

impl Rewriter<'_> {
    /// An op of pictures with channels last; `None` of any other.
    pub(super) fn picture(&mut self, node: &Node) -> Result<Option<Vec<View>>, OpError> {
        let Some(PictureOp { op, operands: pictures, result }) = picture_op(&node.op) else {
            return Ok(None);
        };
        let mut operands = Vec::new();
        for (&operand, &picture) in node.operands.iter().zip(pictures) {
            operands.push(match picture {
                true => self.arranged(operand, &CHANNELS_LAST, node)?,
                false => self.made(operand)?,
            });
        }
        let order = if result { CHANNELS_LAST } else { [0, 1, 2, 3] };
        let dims = View::arranged(operands[0], &order).dims;
        self.computed(op, operands, &dims, node).map(Some)
    }
}
