//! Ops on what their operands are views of.

use graphc_ir::graph::Node;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Input, LogSoftmax, MatMul, Reshape, Resize, Softmax, Transpose};

use super::Purpose;
use super::images::CHANNELS_FIRST;
use super::rewrite::ViewRewriter;
use super::view::{BaseView, Reshaped, reshape_view};

impl ViewRewriter<'_> {
    /// The node on what its operands are views of; `None` where it needs them as they were.
    pub(super) fn on_bases(&mut self, node: &Node) -> Result<Option<Vec<BaseView>>, OpError> {
        if self.purpose == Purpose::Images
            && let Some(views) = self.apply_image_op(node)?
        {
            return Ok(Some(views));
        }
        if let (Op::Input(input), Purpose::Samples) = (&node.op, self.purpose) {
            return self.samples_first(input, node);
        }
        let Some(&operand) = node.operands.first() else { return Ok(None) };
        if let (Op::Expand(expand), Purpose::Samples) = (&node.op, self.purpose)
            && let Some(views) = self.repeat_for_samples(&expand.shape, node)?
        {
            return Ok(Some(views));
        }
        let view = self.view(operand);
        match &node.op {
            Op::Transpose(_) | Op::Concat(_) | Op::BatchNormTraining(_)
                if self.purpose == Purpose::Rows =>
            {
                Ok(None)
            }
            Op::Reshape(Reshape { shape }) if self.purpose == Purpose::Rows => {
                self.merge_leading(&view, shape, node)
            }
            Op::Transpose(Transpose { permutation }) => Ok(self.transpose_view(&view, permutation)),
            Op::Reshape(Reshape { shape }) => self.reshape_view(&view, shape, node),
            Op::Binary(_) | Op::Where(_) => self.apply_elementwise(node),
            Op::Concat(concat) => self.concat_views(concat.axis, node),
            Op::Embedding(_) if self.purpose == Purpose::Samples => self.look_up_rows(node),
            _ if self.stays_in_place(&view) => Ok(None),
            Op::BatchNormTraining(norm) => self.batch_norm(norm, node),
            Op::Slice(slice) => self.slice_view(&view, slice, node),
            Op::Pad(pad) => self.pad_view(&view, pad, node),
            Op::Resize(resize) => {
                let [axis] = view.dims[resize.axis][..] else { return Ok(None) };
                let op = Op::Resize(Resize { axis, ..*resize });
                self.compute_views(op, vec![view.base], &view.dims, node).map(Some)
            }
            Op::Split(split) => self.split_view(&view, split, node),
            Op::Expand(expand) => self.expand_view(view, &expand.shape, node),
            Op::Reduce(reduce) => self.reduce_view(&view, reduce, node),
            Op::ToGlobal(op) => self.laid_globally(&view, op, node),
            // The numbers of a dropout follow from where an element stands.
            Op::Dropout(_) if self.purpose == Purpose::Images => Ok(None),
            Op::Unary(_) | Op::Cast(_) | Op::Dropout(_) => {
                self.compute_views(node.op.clone(), vec![view.base], &view.dims, node).map(Some)
            }
            Op::Normalize(_) => {
                let Some(view) = self.with_last_dim(view, node)? else { return Ok(None) };
                self.compute_views(node.op.clone(), vec![view.base], &view.dims, node).map(Some)
            }
            Op::Softmax(Softmax { axis }) => {
                let [dim] = view.dims[*axis][..] else { return Ok(None) };
                let op = Op::Softmax(Softmax { axis: dim });
                self.compute_views(op, vec![view.base], &view.dims, node).map(Some)
            }
            Op::LogSoftmax(LogSoftmax { axis }) => {
                let [dim] = view.dims[*axis][..] else { return Ok(None) };
                let op = Op::LogSoftmax(LogSoftmax { axis: dim });
                self.compute_views(op, vec![view.base], &view.dims, node).map(Some)
            }
            Op::MatMul(MatMul { transpose_a: false, .. })
                if self.old.value(node.operands[1]).ty.shape.len() == 2 =>
            {
                self.multiply_matrix(view, node)
            }
            _ => self.in_other_order(node),
        }
    }

    /// Views an input whose samples lie along another dim than the first, on a base that has them there.
    fn samples_first(
        &mut self,
        input: &Input,
        node: &Node,
    ) -> Result<Option<Vec<BaseView>>, OpError> {
        let Some(dim @ 1..) = input.samples_dim() else { return Ok(None) };
        let views = self.as_it_was(node)?;
        let others = (0..input.ty.shape.len()).filter(|&other| other != dim);
        let order: Vec<usize> = std::iter::once(dim).chain(others).collect();
        let base = self.transpose(views[0].base, order.clone(), node)?;
        Ok(Some(vec![BaseView::from_order(base, &order)]))
    }

    /// Whether ops on a view are computed on the value itself. This is so if the view shows its base as it is. For images it is so as well if no
    /// element must move for it, unless the base's dims are in another order, as in images of one place. Those are computed where the convolution
    /// behind them is, so that all is one loop.
    pub(super) fn stays_in_place(&self, view: &BaseView) -> bool {
        let extents = self.extents(view.base);
        let whole = *view == BaseView::whole(view.base, extents.len());
        match self.purpose {
            Purpose::Samples | Purpose::Rows => whole,
            Purpose::Images => whole || view.keeps_order(extents) && !view.is_permuted(),
        }
    }

    /// Permutes a view. A transpose of images stays in the graph, unless its operand is moved already, or it makes an image `[n, c, h, w]` of a value
    /// that has its channels last.
    fn transpose_view(&self, view: &BaseView, permutation: &[usize]) -> Option<Vec<BaseView>> {
        let images = self.purpose == Purpose::Images;
        let moves = !images || !self.stays_in_place(view) || permutation == CHANNELS_FIRST;
        moves.then(|| vec![view.transposed(permutation)])
    }

    fn reshape_view(
        &mut self,
        view: &BaseView,
        shape: &[usize],
        node: &Node,
    ) -> Result<Option<Vec<BaseView>>, OpError> {
        let found = reshape_view(view, self.extents(view.base), shape);
        let images = self.purpose == Purpose::Images;
        let stays = self.stays_in_place(view);
        let found = found.map(|found| if images && !stays { found.merge_dims() } else { found });
        let Some(Reshaped { shape, view: seen }) = found else { return Ok(None) };
        if images && stays && self.extents(view.base) != shape {
            return Ok(None);
        }
        let base = self.reshape(view.base, shape, node)?;
        Ok(Some(vec![BaseView { base, ..seen }]))
    }

    /// Views leading dims as one, where a reshape makes them one, and takes them apart again. The base keeps them apart.
    fn merge_leading(
        &mut self,
        view: &BaseView,
        shape: &[usize],
        node: &Node,
    ) -> Result<Option<Vec<BaseView>>, OpError> {
        let extents = self.extents(view.base).to_vec();
        if !self.stays_in_place(view) {
            let is_apart = extents == shape && view.keeps_order(&extents);
            return Ok(is_apart.then(|| vec![BaseView::whole(view.base, extents.len())]));
        }
        let Some((&rows, [_, ..])) = shape.split_first().filter(|&(&rows, _)| rows > 1) else {
            return Ok(None);
        };
        let merged =
            (2..extents.len()).find(|&dims| extents[..dims].iter().product::<usize>() == rows);
        let Some(merged) = merged else { return Ok(None) };
        let base = self.reshape(view.base, [&extents[..merged], &shape[1..]].concat(), node)?;
        let others = (merged..merged + shape.len() - 1).map(|dim| vec![dim]);
        let dims = std::iter::once((0..merged).collect()).chain(others).collect();
        Ok(Some(vec![BaseView { base, dims }]))
    }

    /// Looks up rows of a table at places whose view differs from their base.
    fn look_up_rows(&mut self, node: &Node) -> Result<Option<Vec<BaseView>>, OpError> {
        let places = self.view(node.operands[1]);
        if self.stays_in_place(&places) {
            return Ok(None);
        }
        let table = self.restore_value(node.operands[0])?;
        let width = self.extents(places.base).len();
        let dims = [&places.dims[..], &[vec![width]]].concat();
        self.compute_views(node.op.clone(), vec![table, places.base], &dims, node).map(Some)
    }

    /// A product with a matrix that all share.
    fn multiply_matrix(
        &mut self,
        view: BaseView,
        node: &Node,
    ) -> Result<Option<Vec<BaseView>>, OpError> {
        let Some(view) = self.with_last_dim(view, node)? else { return Ok(None) };
        if self.extents(view.base).len() < 2 {
            return Ok(None);
        }
        let weight = self.restore_value(node.operands[1])?;
        self.compute_views(node.op.clone(), vec![view.base, weight], &view.dims, node).map(Some)
    }

    /// The view of a base whose last dim is what is seen last, and of nothing else: that may have to be made.
    fn with_last_dim(&mut self, view: BaseView, node: &Node) -> Result<Option<BaseView>, OpError> {
        let rank = self.extents(view.base).len();
        let Some((last, others)) = view.dims.split_last().filter(|(last, _)| !last.is_empty())
        else {
            return Ok(None);
        };
        if *last == [rank - 1] {
            return Ok(Some(view));
        }
        if self.purpose == Purpose::Images {
            return Ok(None);
        }
        // The other dims stay in their order, the last ones come behind them as one.
        let kept: Vec<usize> = (0..rank).filter(|dim| !last.contains(dim)).collect();
        let mut shape: Vec<usize> = kept.iter().map(|&dim| self.extents(view.base)[dim]).collect();
        shape.push(last.iter().map(|&dim| self.extents(view.base)[dim]).product());
        let at = |dim: &usize| kept.iter().position(|kept| kept == dim);
        let mut dims: Vec<Vec<usize>> =
            others.iter().map(|group| group.iter().filter_map(at).collect()).collect();
        dims.push(vec![kept.len()]);
        let order = kept.iter().chain(last).copied().collect();
        let transposed = self.transpose(view.base, order, node)?;
        let base = self.reshape(transposed, shape, node)?;
        Ok(Some(BaseView { base, dims }))
    }
}
