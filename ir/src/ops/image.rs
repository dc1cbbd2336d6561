//! The dims of an image: `[n, c, h, w]`, or with channels last `[n, h, w, c]`.
//!
//! Ops of images are written once, for the first order, and bring dims of the second to it and back. The kind of a convolution's arithmetic
//! follows from its window and channels, and is said here as well.

use crate::array::Array;
use crate::operation::{Arithmetic, ConvolutionShape, OpError, Operand, Region};
use crate::shard::Rect;
use crate::types::TensorType;

/// The order of an image's dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageDims {
    /// Whether the order is `[n, h, w, c]`; otherwise it is `[n, c, h, w]`.
    pub channels_last: bool,
}

impl ImageDims {
    /// Returns one item for each of an image's dims in the order `[n, c, h, w]`.
    pub(super) fn to_channels_first<T: Clone>(self, [a, b, c, d]: [T; 4]) -> [T; 4] {
        if self.channels_last { [a, d, b, c] } else { [a, b, c, d] }
    }

    /// Returns items, one for each dim of `[n, c, h, w]`, in the order of the image's dims.
    pub(super) fn order_channels<T: Clone>(self, [n, c, h, w]: [T; 4]) -> [T; 4] {
        if self.channels_last { [n, h, w, c] } else { [n, c, h, w] }
    }

    /// Returns the names of the dims, for messages.
    pub(super) fn dim_names(self) -> &'static str {
        if self.channels_last { "batch, h, w, channels" } else { "batch, channels, h, w" }
    }

    /// Evaluates an op that is written for `[n, c, h, w]`; `operands` and `results` say which of them are images.
    pub(super) fn evaluate_channels_first(
        self,
        operands: (&[Operand<'_>], &[bool]),
        results: (&[Region], &[bool]),
        op: impl FnOnce(&[Operand<'_>], &[Region]) -> Result<Vec<Array>, OpError>,
    ) -> Result<Vec<Array>, OpError> {
        if !self.channels_last {
            return op(operands.0, results.0);
        }
        let brought: Vec<(Array, Region)> = operands
            .0
            .iter()
            .zip(operands.1)
            .map(|(operand, &image)| match image {
                true => {
                    (permute_dims(operand.array, TO_FIRST), channels_first_region(operand.region))
                }
                false => (operand.array.clone(), operand.region.clone()),
            })
            .collect();
        let brought: Vec<Operand<'_>> =
            brought.iter().map(|(array, region)| Operand { array, region }).collect();
        let regions: Vec<Region> = results
            .0
            .iter()
            .zip(results.1)
            .map(|(of, &image)| if image { channels_first_region(of) } else { of.clone() })
            .collect();
        let found = op(&brought, &regions)?.into_iter().zip(results.1);
        let back = |(array, &image)| if image { permute_dims(&array, TO_LAST) } else { array };
        Ok(found.map(back).collect())
    }
}

/// The dim of `[n, h, w, c]` that each dim of `[n, c, h, w]` is, and the other way.
const TO_FIRST: [usize; 4] = [0, 3, 1, 2];
const TO_LAST: [usize; 4] = [0, 2, 3, 1];

fn channels_first_region(of: &Region) -> Region {
    let first = |extents: &[usize]| TO_FIRST.map(|dim| extents[dim]).to_vec();
    let rect = Rect { origin: first(&of.rect.origin), extent: first(&of.rect.extent) };
    Region { dtype: of.dtype, global: first(&of.global), rect }
}

fn permute_dims(array: &Array, dims: [usize; 4]) -> Array {
    Array::from_fn(dims.map(|dim| array.shape[dim]), |index| {
        let mut from = [0; 4];
        for (&dim, &at) in dims.iter().zip(index) {
            from[dim] = at;
        }
        array.element_at(&from)
    })
}

/// Channels of a group below which a convolution is no product of gathered elements.
const FEW_COLUMNS: usize = 8;

/// Returns the kind of FLOPs of a convolution by windows of these extents, whose elements are each multiplied for so many channels. One of windows of
/// one element is a matrix product.
pub(super) fn convolution_arithmetic(
    window: [usize; 2],
    columns: usize,
    backward: bool,
) -> Arithmetic {
    if window == [1; 2] || columns < FEW_COLUMNS {
        return Arithmetic::Products;
    }
    Arithmetic::Convolution(ConvolutionShape { columns, backward })
}

/// Returns the extent of a dim, 1 where there is none.
pub(super) fn extent_of(of: &TensorType, dim: usize) -> usize {
    of.shape.get(dim).copied().unwrap_or(1)
}

/// Runs `body` for each row and column of an image `[n, c, h, w]`.
pub(super) fn for_each_place(shape: &[usize], mut body: impl FnMut([usize; 2])) {
    for row in 0..shape[2] {
        for column in 0..shape[3] {
            body([row, column]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TO_FIRST, TO_LAST, permute_dims};
    use crate::array::Array;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;
    use crate::ops::{
        AveragePool, Convolution, ConvolutionInputGrad, ConvolutionKernelGrad, MaxPool,
        MaxPoolGrad, Window,
    };
    use crate::types::{DType, TensorType};

    const WINDOW: Window = Window { strides: [2, 1], pads: [1, 0, 0, 1], dilations: [1, 2] };

    fn numbers(shape: [usize; 4]) -> Array {
        let mut next = 0.0;
        Array::from_fn(shape, |_| {
            next = (next * 7.0 + 3.0) % 31.0;
            next
        })
    }

    /// Holds that an op gives the same in both layouts; which operands, and whether the result, are images.
    fn same(of: impl Fn(bool) -> Op, operands: &[(Array, bool)], image: bool) {
        let run = |last: bool| {
            let brought = operands.iter().map(|(array, image)| {
                let array =
                    if last && *image { permute_dims(array, TO_LAST) } else { array.clone() };
                (DType::F32, array)
            });
            evaluate(of(last), &brought.collect::<Vec<_>>()).expect("fits").swap_remove(0)
        };
        let last = run(true);
        let last = if image { permute_dims(&last, TO_FIRST) } else { last };
        assert_eq!(run(false), last);
    }

    #[test]
    fn channels_last_is_the_same_op_of_other_dims() {
        let (x, k, y) = (numbers([2, 4, 5, 6]), numbers([6, 2, 2, 3]), numbers([2, 6, 3, 3]));
        let (window, groups, extents) = (WINDOW, 2, [5, 6]);
        let of_y = |channels_last| Op::Convolution(Convolution { window, groups, channels_last });
        same(of_y, &[(x.clone(), true), (k.clone(), false)], true);
        let of_x = |channels_last| {
            let op = ConvolutionInputGrad { window, groups, extents, channels_last };
            Op::ConvolutionInputGrad(op)
        };
        same(of_x, &[(k, false), (y.clone(), true)], true);
        let of_k = |channels_last| {
            let op = ConvolutionKernelGrad { window, groups, extents: [2, 3], channels_last };
            Op::ConvolutionKernelGrad(op)
        };
        same(of_k, &[(x.clone(), true), (y, true)], false);
        let kernel = [2, 2];
        let max = |channels_last| Op::MaxPool(MaxPool { kernel, window, channels_last });
        same(max, &[(x.clone(), true)], true);
        let of_max = |channels_last| Op::MaxPoolGrad(MaxPoolGrad { kernel, window, channels_last });
        same(of_max, &[(x.clone(), true), (numbers([2, 4, 3, 5]), true)], true);
        let count_border = true;
        let mean = |channels_last| {
            Op::AveragePool(AveragePool { kernel, window, count_border, channels_last })
        };
        same(mean, &[(x, true)], true);
    }

    #[test]
    fn the_text_form_of_channels_first_is_as_it_was() {
        let op = |channels_last| {
            let op = Convolution { window: Window::PLAIN, groups: 1, channels_last };
            serde_json::to_value(Op::Convolution(op)).expect("an op is JSON")
        };
        assert!(op(false).get("channels_last").is_none());
        let back: Op = serde_json::from_value(op(true)).expect("an op");
        assert!(matches!(back, Op::Convolution(Convolution { channels_last: true, .. })));
    }

    #[test]
    fn what_does_not_fit_is_said_in_the_order_of_the_dims() {
        let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
        let (window, channels_last) = (Window::PLAIN, true);
        let op = ConvolutionKernelGrad { window, groups: 1, extents: [2, 2], channels_last };
        let error =
            Op::ConvolutionKernelGrad(op).infer_types(&[&ty(&[1, 5, 6, 3]), &ty(&[1, 4, 4, 2])]);
        let error = error.expect_err("does not fit").to_string();
        assert!(error.ends_with("the gradient must be [1, 4, 5, 2]"), "{error}");
        let op = Op::MaxPool(MaxPool { kernel: [2, 2], window, channels_last });
        let error = op.infer_types(&[&ty(&[5, 6, 3])]).expect_err("does not fit").to_string();
        assert!(error.ends_with("four dims: batch, h, w, channels"), "{error}");
    }
}
