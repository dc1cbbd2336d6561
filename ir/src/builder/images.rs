//! Methods of [`Tensor`] for images `[n, channels, h, w]` and for experts.

use super::Tensor;
use crate::op::Op;
use crate::ops::{
    AveragePool, BatchNorm, Combine, Convolution, Dispatch, ExpertPlaces, GroupedMatMul, MaxPool,
    Window,
};

/// Images: `[n, channels, h, w]`.
impl Tensor {
    /// Correlation with kernels `[features, channels / groups, kh, kw]`, as torch.nn.functional.conv2d has it.
    ///
    /// ```
    /// use graphc_ir::builder::GraphBuilder;
    /// use graphc_ir::ops::Window;
    /// use graphc_ir::types::DType;
    ///
    /// let g = GraphBuilder::new("example");
    /// let x = g.input("x", DType::F32, [8, 3, 32, 32]);
    /// let kernels = g.input("k", DType::F32, [16, 3, 3, 3]);
    /// let window = Window { strides: [2, 2], pads: [1; 4], ..Window::PLAIN };
    /// assert_eq!(x.convolution(&kernels, window, 1).shape(), [8, 16, 16, 16]);
    /// ```
    #[track_caller]
    pub fn convolution(&self, kernels: &Tensor, window: Window, groups: usize) -> Tensor {
        self.builder.apply(
            Op::Convolution(Convolution { window, groups, channels_last: false }),
            &[self, kernels],
        )
    }

    /// The greatest of each window.
    #[track_caller]
    pub fn max_pool(&self, kernel: [usize; 2], window: Window) -> Tensor {
        self.builder.apply(Op::MaxPool(MaxPool { kernel, window, channels_last: false }), &[self])
    }

    /// The mean of each window; `count_border` counts zeros of the border, as torch does by default.
    #[track_caller]
    pub fn average_pool(&self, kernel: [usize; 2], window: Window, count_border: bool) -> Tensor {
        let op = AveragePool { kernel, window, count_border, channels_last: false };
        self.builder.apply(Op::AveragePool(op), &[self])
    }

    /// Normalization of each channel, times `scale` plus `bias`: by the statistics of the microbatch, over all ranks, where
    /// a graph trains, by `[mean, variance]` in inference. Where these are variables each microbatch of training takes in a tenth
    /// of its own statistics, as torch does: the variance is then the unbiased one.
    #[track_caller]
    pub fn batch_norm(
        &self,
        scale: &Tensor,
        bias: &Tensor,
        [mean, variance]: [&Tensor; 2],
        epsilon: f64,
    ) -> Tensor {
        let op = Op::BatchNorm(BatchNorm::new(epsilon));
        self.builder.apply(op, &[self, scale, bias, mean, variance])
    }
}

/// Experts: tokens are `[groups, tokens, width]`, choices (i64) `[groups, tokens, k]`.
impl Tensor {
    /// Tokens at the places of the experts that they choose, `[experts, groups, capacity, width]`; of those that choose
    /// one expert the first have its places.
    #[track_caller]
    pub fn dispatch(&self, chosen: &Tensor, experts: usize, capacity: usize) -> Tensor {
        let op = Dispatch { experts, capacity, blocks: None };
        self.builder.apply(Op::Dispatch(op), &[self, chosen])
    }

    /// Brings tokens back from the places of experts: the sum over a token's choices, times their weights.
    #[track_caller]
    pub fn combine(&self, chosen: &Tensor, weights: Option<&Tensor>) -> Tensor {
        let operands: Vec<&Tensor> = [self, chosen].into_iter().chain(weights).collect();
        self.builder.apply(Op::Combine(Combine::default()), &operands)
    }

    /// Tokens at places `[blocks, groups, capacity, width]` that several experts share: behind the tokens of each expert come those of the next.
    #[track_caller]
    pub fn dispatch_to(&self, chosen: &Tensor, places: ExpertPlaces) -> Tensor {
        self.builder.apply(Op::Dispatch(Dispatch::to_places(places)), &[self, chosen])
    }

    /// Brings tokens back from places that several experts share: the sum over a token's choices, times their weights.
    #[track_caller]
    pub fn combine_from(
        &self,
        chosen: &Tensor,
        places: ExpertPlaces,
        weights: Option<&Tensor>,
    ) -> Tensor {
        let operands: Vec<&Tensor> = [self, chosen].into_iter().chain(weights).collect();
        self.builder.apply(Op::Combine(Combine::from_places(places)), &operands)
    }

    /// Multiplies places that several experts share: each by the matrix of its expert, of `[experts, width, columns]`, or, `transposed`,
    /// of `[experts, columns, width]`.
    #[track_caller]
    pub fn grouped_matmul(&self, matrices: &Tensor, chosen: &Tensor, transposed: bool) -> Tensor {
        let op = GroupedMatMul { transpose_b: transposed };
        self.builder.apply(Op::GroupedMatMul(op), &[self, matrices, chosen])
    }
}
