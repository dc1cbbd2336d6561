//! Methods of [`Tensor`] for movement of data, normalization, losses and the rest.

use std::ops::Range;

use super::{Axis, GraphBuilder, Tensor};
use crate::mesh::Placement;
use crate::op::Op;
use crate::ops::{
    Attention, Concat, CrossEntropy, DropoutOp, EmbeddingOp, Expand, IGNORED_LABEL, LabelRank,
    LogSoftmax, Normalize, Pad, Pick, Reshape, Rotary, Slice, Softmax, Split, ToGlobal, Transpose,
    Triangle,
};
use crate::sbp::NdSbp;
use crate::scalar::Scalar;
use crate::types::DType;

impl GraphBuilder {
    /// Tensors one after the other along a dim.
    #[track_caller]
    pub fn concat(&self, tensors: &[Tensor], axis: impl Into<Axis>) -> Tensor {
        let axis = match (tensors.first(), axis.into()) {
            (Some(first), axis) => match first.resolve_axis(axis) {
                Ok(axis) => axis,
                Err(inert) => return inert,
            },
            (None, Axis::At(axis) | Axis::FromEnd(axis)) => axis,
        };
        self.apply(Op::Concat(Concat { axis }), &tensors.iter().collect::<Vec<_>>())
    }
}

/// Movement of data.
impl Tensor {
    /// Returns the same elements, row-major, in another shape.
    #[track_caller]
    pub fn reshape(&self, shape: &[usize]) -> Tensor {
        self.builder.apply(Op::Reshape(Reshape { shape: shape.to_vec() }), &[self])
    }

    /// Dims in another order: result dim i is dim `permutation[i]`.
    #[track_caller]
    pub fn transpose(&self, permutation: &[impl Into<Axis> + Copy]) -> Tensor {
        let permutation = match self.resolve_axes(permutation) {
            Ok(permutation) => permutation,
            Err(inert) => return inert,
        };
        self.builder.apply(Op::Transpose(Transpose { permutation }), &[self])
    }

    /// The last two dims exchanged.
    #[track_caller]
    pub fn t(&self) -> Tensor {
        let rank = self.shape().len();
        if self.id.is_some() && rank < 2 {
            return self.builder.fail(format!("{} has no two dims to exchange", self.ty()));
        }
        let mut permutation: Vec<usize> = (0..rank).collect();
        permutation[rank.saturating_sub(2)..].reverse();
        self.transpose(&permutation)
    }

    /// Dims of extent 1, and missing leading dims, repeated to this shape.
    #[track_caller]
    pub fn expand(&self, shape: &[usize]) -> Tensor {
        self.builder.apply(Op::Expand(Expand { shape: shape.to_vec() }), &[self])
    }

    /// A range of one dim.
    #[track_caller]
    pub fn slice(&self, dim: impl Into<Axis>, range: Range<usize>) -> Tensor {
        let dim = match self.resolve_axis(dim) {
            Ok(dim) => dim,
            Err(inert) => return inert,
        };
        let mut ends = self.shape();
        let mut starts = vec![0; ends.len()];
        if dim >= ends.len() {
            return self.builder.fail(format!("{} has no dim {dim} to slice", self.ty()));
        }
        (starts[dim], ends[dim]) = (range.start, range.end);
        let steps = vec![1; ends.len()];
        self.slice_all(&starts, &ends, &steps)
    }

    /// Elements `start, start + step, ..` before `end` of each dim.
    #[track_caller]
    pub fn slice_all(&self, starts: &[usize], ends: &[usize], steps: &[usize]) -> Tensor {
        let [starts, ends, steps] = [starts, ends, steps].map(<[usize]>::to_vec);
        self.builder.apply(Op::Slice(Slice { starts, ends, steps }), &[self])
    }

    /// Parts of these extents along a dim; their sum is the dim's.
    #[track_caller]
    pub fn split(&self, axis: impl Into<Axis>, sizes: &[usize]) -> Vec<Tensor> {
        let mut parts = match self.resolve_axis(axis) {
            Ok(axis) => {
                let op = Op::Split(Split { axis, sizes: sizes.to_vec() });
                self.builder.apply_all(op, &[self])
            }
            Err(inert) => vec![inert],
        };
        // After an error there is one inert handle, but the caller counts on as many as sizes.
        parts.resize_with(sizes.len(), || self.builder.inert_tensor());
        parts
    }

    /// A border of one value: `low` elements before and `high` after each dim.
    #[track_caller]
    pub fn pad(&self, low: &[usize], high: &[usize], value: f64) -> Tensor {
        let (low, high) = (low.to_vec(), high.to_vec());
        let pad = Pad { interior: vec![0; low.len()], low, high, value: Scalar(value) };
        self.builder.apply(Op::Pad(pad), &[self])
    }

    /// Sets the elements above a diagonal of the last two dims to zero; 0 is the main one, positive ones are above it.
    #[track_caller]
    pub fn tril(&self, diagonal: i64) -> Tensor {
        self.builder.apply(Op::Triangle(Triangle { lower: true, diagonal }), &[self])
    }

    /// Sets the elements below a diagonal of the last two dims to zero.
    #[track_caller]
    pub fn triu(&self, diagonal: i64) -> Tensor {
        self.builder.apply(Op::Triangle(Triangle { lower: false, diagonal }), &[self])
    }

    /// Moves the tensor to a placement, in a layout.
    #[track_caller]
    pub fn to_global(&self, placement: &Placement, sbp: NdSbp) -> Tensor {
        let placement = placement.clone();
        self.builder.apply(Op::ToGlobal(ToGlobal { placement, sbp }), &[self])
    }
}

/// Normalization, look-up and dropout.
impl Tensor {
    /// Softmax over a dim.
    #[track_caller]
    pub fn softmax(&self, axis: impl Into<Axis>) -> Tensor {
        match self.resolve_axis(axis) {
            Ok(axis) => self.builder.apply(Op::Softmax(Softmax { axis }), &[self]),
            Err(inert) => inert,
        }
    }

    /// Logarithm of softmax over a dim.
    #[track_caller]
    pub fn log_softmax(&self, axis: impl Into<Axis>) -> Tensor {
        match self.resolve_axis(axis) {
            Ok(axis) => self.builder.apply(Op::LogSoftmax(LogSoftmax { axis }), &[self]),
            Err(inert) => inert,
        }
    }

    /// Layer normalization over the last dim: mean 0 and variance 1, times `weight`, plus `bias`.
    #[track_caller]
    pub fn layer_norm(&self, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Tensor {
        self.normalize(true, epsilon).mul(weight).add(bias)
    }

    /// Root-mean-square normalization over the last dim, times `weight`.
    #[track_caller]
    pub fn rms_norm(&self, weight: &Tensor, epsilon: f64) -> Tensor {
        self.normalize(false, epsilon).mul(weight)
    }

    /// Normalization over the last dim without scale and shift; `center` subtracts the mean.
    #[track_caller]
    pub fn normalize(&self, center: bool, epsilon: f64) -> Tensor {
        let normalize = Normalize { center, epsilon: Scalar(epsilon) };
        self.builder.apply(Op::Normalize(normalize), &[self])
    }

    /// Attention of queries `[batch, time, heads, width]` to keys and values `[batch, keys, kv, width]` by scaled dot
    /// products, 1 / sqrt(width) the scale; `kv` divides `heads`. `causal`: a query sees itself and what is before it.
    ///
    /// ```
    /// use graphc_ir::builder::GraphBuilder;
    /// use graphc_ir::types::DType;
    ///
    /// let g = GraphBuilder::new("example");
    /// let query = g.input("q", DType::F32, [2, 8, 4, 16]);
    /// let [key, value] = ["k", "v"].map(|name| g.input(name, DType::F32, [2, 8, 2, 16]));
    /// assert_eq!(query.attention(&key, &value, true).shape(), [2, 8, 4, 16]);
    /// ```
    #[track_caller]
    pub fn attention(&self, keys: &Tensor, values: &Tensor, causal: bool) -> Tensor {
        self.builder.apply(Op::Attention(self.plain_attention(causal)), &[self, keys, values])
    }

    /// Computes `attention` whose weights are dropped, in training, with this probability; the rest is scaled so that the expectation stays.
    #[track_caller]
    pub fn dropped_attention(
        &self,
        keys: &Tensor,
        values: &Tensor,
        causal: bool,
        probability: f64,
    ) -> Tensor {
        let (probability, key) = (Scalar(probability), self.builder.next_key());
        let dropout = Some(DropoutOp { probability, key, training: true });
        let op = Attention { dropout, ..self.plain_attention(causal) };
        self.builder.apply(Op::Attention(op), &[self, keys, values])
    }

    /// Returns attention with the usual scale of these queries.
    fn plain_attention(&self, causal: bool) -> Attention {
        let width = self.shape().last().copied().unwrap_or(1).max(1);
        Attention::new(causal, Scalar(1.0 / (width as f64).sqrt()))
    }

    /// Rotary position embedding of `[.., time, heads, width]`. The halves of each head make the pairs, as in
    /// transformers, or neighbours do where `interleaved`, as in RoFormer and in LLaMA's own weights.
    #[track_caller]
    pub fn rotary(&self, base: f64, interleaved: bool) -> Tensor {
        let rotary = Rotary { base: Scalar(base), interleaved, inverse: false, zigzag: None };
        self.builder.apply(Op::Rotary(rotary), &[self])
    }

    /// Looks up rows of a table `[V, D]`: those that `ids` (i64) name, `[.., D]`.
    #[track_caller]
    pub fn embedding(&self, ids: &Tensor) -> Tensor {
        self.builder.apply(Op::Embedding(EmbeddingOp {}), &[self, ids])
    }

    /// Zeros with this probability, in training; the rest is scaled so that the expectation stays.
    #[track_caller]
    pub fn dropout(&self, probability: f64) -> Tensor {
        let (probability, key) = (Scalar(probability), self.builder.next_key());
        self.builder.apply(Op::Dropout(DropoutOp { probability, key, training: true }), &[self])
    }
}

/// Losses: scalars of f32, whatever the precision of the scores. Labels are classes (i64) shaped as all dims but the
/// last; -100 is ignored.
impl Tensor {
    /// Computes the mean cross entropy of scores `[.., C]` over the labels that are not ignored; NaN where all are.
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Tensor) -> Tensor {
        self.smoothed_cross_entropy(labels, 0.0)
    }

    /// Cross entropy where every class has its part of a share of the target besides the label: `label_smoothing` of
    /// torch.nn.CrossEntropyLoss.
    #[track_caller]
    pub fn smoothed_cross_entropy(&self, labels: &Tensor, smoothing: f64) -> Tensor {
        let op = CrossEntropy { smoothing: smoothing.into(), classes: None };
        let loss = self.builder.apply(Op::CrossEntropy(op), &[self, labels]);
        loss.mean_over_labels(labels)
    }

    /// Computes the negative log-likelihood of log-probabilities `[.., C]`: the mean of minus that of the label, over the labels not
    /// ignored.
    #[track_caller]
    pub fn nll(&self, labels: &Tensor) -> Tensor {
        let picked = self.builder.apply(Op::Pick(Pick::default()), &[self, labels]);
        picked.cast(DType::F32).neg().mean_over_labels(labels)
    }

    /// The mean of the squared differences.
    #[track_caller]
    pub fn mse(&self, target: &Tensor) -> Tensor {
        self.squared_errors(target).mean_of_all()
    }

    /// The squared differences, of f32.
    #[track_caller]
    pub fn squared_errors(&self, target: &Tensor) -> Tensor {
        let difference = self.sub(target).cast(DType::F32);
        difference.mul(&difference)
    }

    /// The mean of the absolute differences: torch.nn.L1Loss.
    #[track_caller]
    pub fn l1(&self, target: &Tensor) -> Tensor {
        self.absolute_errors(target).mean_of_all()
    }

    /// The absolute differences, of f32.
    #[track_caller]
    pub fn absolute_errors(&self, target: &Tensor) -> Tensor {
        self.cast(DType::F32).sub(&target.cast(DType::F32)).abs()
    }

    /// The mean of half the squared differences where these are below 1, and of what lies above half of 1 elsewhere:
    /// torch.nn.HuberLoss with a delta of 1.
    #[track_caller]
    pub fn huber(&self, target: &Tensor) -> Tensor {
        self.huber_errors(target).mean_of_all()
    }

    /// Computes the error of each element of which [`Tensor::huber`] is the mean.
    #[track_caller]
    pub fn huber_errors(&self, target: &Tensor) -> Tensor {
        let difference = self.cast(DType::F32).sub(&target.cast(DType::F32));
        // d^2 / 2 within the bounds, and sign(d) (d - sign(d) / 2) = |d| - 1/2 beyond.
        let near = difference.clip(-1.0, 1.0);
        near.mul(&difference.sub(&near.scale(0.5)))
    }

    /// Binary cross entropy of logits and targets between 0 and 1, the mean over all: torch.nn.BCEWithLogitsLoss.
    #[track_caller]
    pub fn bce(&self, target: &Tensor) -> Tensor {
        self.bce_errors(target).mean_of_all()
    }

    /// Computes the error of each element of which [`Tensor::bce`] is the mean.
    #[track_caller]
    pub fn bce_errors(&self, target: &Tensor) -> Tensor {
        let (x, target) = (self.cast(DType::F32), target.cast(DType::F32));
        // log(1 + e^x) - t x
        x.softplus().sub(&target.mul(&x))
    }

    /// Counts the labels for which fewer than `k` classes of scores `[.., C]` score more, of equal scores the first. It is a sum over all
    /// labels that are not ignored, f32\[\].
    #[track_caller]
    pub fn top(&self, labels: &Tensor, k: usize) -> Tensor {
        let label = self.builder.apply(Op::Pick(Pick::default()), &[self, labels]);
        let rank = self.builder.apply(Op::LabelRank(LabelRank::default()), &[self, labels, &label]);
        let hits = rank.less(&rank.scalar_like(k as f64)).and(&labels.counted_labels());
        hits.cast(DType::F32).sum_of_all()
    }

    /// Counts the labels that are not ignored, f32\[\].
    #[track_caller]
    pub fn count_labels(&self) -> Tensor {
        self.counted_labels().cast(DType::F32).sum_of_all()
    }

    /// Returns which labels are not ignored, of bool.
    #[track_caller]
    fn counted_labels(&self) -> Tensor {
        self.not_equal(&self.scalar_like(IGNORED_LABEL as f64))
    }

    #[track_caller]
    fn mean_of_all(&self) -> Tensor {
        self.mean(&(0..self.shape().len()).collect::<Vec<_>>(), false)
    }

    #[track_caller]
    fn sum_of_all(&self) -> Tensor {
        self.sum(&(0..self.shape().len()).collect::<Vec<_>>(), false)
    }

    #[track_caller]
    fn mean_over_labels(&self, labels: &Tensor) -> Tensor {
        let all: Vec<usize> = (0..self.shape().len()).collect();
        let counted = labels.not_equal(&labels.scalar_like(IGNORED_LABEL as f64));
        let count = counted.cast(self.ty().dtype).sum(&all, false);
        self.sum(&all, false).div(&count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow() {
        let g = GraphBuilder::new("shapes");
        let x = g.input("x", DType::F32, [2, 3, 4]);
        assert_eq!(x.t().shape(), [2, 4, 3]);
        assert_eq!(x.slice(1, 1..3).shape(), [2, 2, 4]);
        let parts = x.split(2, &[1, 3]);
        assert_eq!(parts[1].shape(), [2, 3, 3]);
        assert_eq!(g.concat(&parts, 2).shape(), [2, 3, 4]);
        assert_eq!(x.pad(&[1, 0, 0], &[0, 0, 2], 0.0).shape(), [3, 3, 6]);
        let labels = g.input("labels", DType::I64, [2, 3]);
        let losses = [x.cross_entropy(&labels), x.log_softmax(2).nll(&labels), x.mse(&x.tril(0))];
        assert!(losses.iter().all(|loss| loss.shape().is_empty()));
        g.finish().expect("all fits");
    }

    /// Numbers of values mean others in another graph, or none.
    #[test]
    fn tensors_of_two_builders_do_not_meet() {
        let g = GraphBuilder::new("own");
        let x = g.input("x", DType::F32, [2, 2]);
        let h = GraphBuilder::new("other");
        let y = h.input("y", DType::F32, [2, 2]).relu().exp();
        g.output("sum", &x.add(&y));
        g.output("y", &y);
        let errors = g.finish().expect_err("they are of two graphs").to_string();
        assert_eq!(errors.matches("(`other`) is used in `own`").count(), 2, "{errors}");
        h.output("y", &y);
        h.finish().expect("it is whole");
    }

    #[test]
    fn an_output_is_shown_by_its_name_where_no_other_value_has_it() {
        let g = GraphBuilder::new("names");
        let x = g.input("x", DType::F32, [2, 3]);
        for (name, axis) in [("score", 0), ("x", 1)] {
            g.output(name, &x.sum(&[axis], false));
        }
        let graph = g.finish().expect("all fits");
        let shown = |at: usize| graph.display_name(graph.outputs[at].value);
        assert_eq!([shown(0), shown(1)], ["score", "%2"]);
    }

    #[test]
    fn what_does_not_fit_is_reported_once_at_the_callers_line() {
        let g = GraphBuilder::new("wrong");
        let x = g.input("x", DType::F32, [4]);
        let parts = x.split(0, &[1, 2]);
        assert_eq!(parts.len(), 2);
        let _ = parts[1].t().slice(3, 0..1).softmax(7);
        let errors = g.finish().expect_err("1 + 2 is not 4").to_string();
        assert!(errors.contains("methods.rs"), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}
