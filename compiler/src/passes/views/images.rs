//! Convolution, pooling and batch normalization of images that have their channels last.

use graphc_ir::graph::Node;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::BatchNormTraining;

use super::rewrite::ViewRewriter;
use super::view::BaseView;

/// The permutation from `[n, h, w, c]` to `[n, c, h, w]`: the dim of the former that becomes each dim of the latter.
pub(super) const CHANNELS_FIRST: [usize; 4] = [0, 3, 1, 2];
/// The permutation from `[n, c, h, w]` to `[n, h, w, c]`: the dim of the former that becomes each dim of the latter.
const CHANNELS_LAST: [usize; 4] = [0, 2, 3, 1];

/// An op of images with channels last: whether each operand, and the result, is an image.
pub(in crate::passes) struct ImageOp {
    op: Op,
    pub operands: &'static [bool],
    pub result: bool,
}

/// Returns the op on images `[n, h, w, c]` that does the same as an op on images `[n, c, h, w]`; `None` for any other op.
pub(in crate::passes) fn image_op(op: &Op) -> Option<ImageOp> {
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
    (!before).then_some(ImageOp { op: last, operands, result })
}

impl ViewRewriter<'_> {
    /// Computes an op of images with channels last; `None` for any other op.
    pub(super) fn apply_image_op(&mut self, node: &Node) -> Result<Option<Vec<BaseView>>, OpError> {
        let Some(ImageOp { op, operands: images, result }) = image_op(&node.op) else {
            return Ok(None);
        };
        let mut operands = Vec::new();
        for (&operand, &image) in node.operands.iter().zip(images) {
            operands.push(match image {
                true => self.arrange_base(operand, &CHANNELS_LAST, node)?,
                false => self.restore_value(operand)?,
            });
        }
        let order = if result { CHANNELS_LAST } else { [0, 1, 2, 3] };
        let dims = BaseView::from_order(operands[0], &order).dims;
        self.compute_views(op, operands, &dims, node).map(Some)
    }

    /// Computes batch normalization by the statistics of the batch, with channels as the last dim; `None` if channels are not moved.
    pub(super) fn batch_norm(
        &mut self,
        norm: &BatchNormTraining,
        node: &Node,
    ) -> Result<Option<Vec<BaseView>>, OpError> {
        let (x, rank) = (node.operands[0], self.old.value(node.operands[0]).ty.shape.len());
        if norm.channel != 1 || self.stays_in_place(&self.view(x)) {
            return Ok(None);
        }
        let order: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
        let mut operands = vec![self.arrange_base(x, &order, node)?];
        for &operand in &node.operands[1..] {
            operands.push(self.restore_value(operand)?);
        }
        let seen = BaseView::from_order(operands[0], &order).dims;
        let statistic = match norm.batches {
            // Of one part they have no dim but that of channels.
            1 => (0..rank).map(|dim| if dim == 1 { vec![0] } else { Vec::new() }).collect(),
            // Of several, one more, the first.
            _ => [vec![0]].into_iter().chain(seen.iter().map(|dim| vec![dim[0] + 1])).collect(),
        };
        let op = Op::BatchNormTraining(BatchNormTraining { channel: rank - 1, ..*norm });
        let dims: [Vec<Vec<usize>>; 3] = [seen, Vec::clone(&statistic), statistic];
        self.computed_each(op, operands, &dims, node).map(Some)
    }
}
