//! The extents, window and groups of a convolution of shards.

use graphc_ir::ops::Window;

use crate::error::KernelError;
#[cfg(target_arch = "x86_64")]
use crate::simd::{SimdLevel, simd_level};
use crate::strided;
use crate::view::Element;

/// The channels of each group of x that the kernels take: `count` of `stride` from `first` on.
pub(crate) struct TakenChannels {
    pub stride: usize,
    pub first: usize,
    pub count: usize,
}

impl TakenChannels {
    pub(crate) fn all_of_group(stride: usize) -> Self {
        Self { stride, first: 0, count: stride }
    }
}

/// Extents of a convolution of shards; `outputs` and `inputs` count the channels of one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvolutionSpace {
    pub window: Window,
    pub batch: usize,
    pub groups: usize,
    pub outputs: usize,
    pub inputs: usize,
    /// Channels of one group of x, and the first of them that the kernels take.
    pub stride: usize,
    pub first: usize,
    /// Height and width of the kernels, of x and of y.
    pub extents: [usize; 2],
    pub image: [usize; 2],
    pub shown: [usize; 2],
}

impl ConvolutionSpace {
    /// Takes the extents from the shapes of x, k and y.
    pub(crate) fn new(
        op: &'static str,
        window: Window,
        channels_last: bool,
        TakenChannels { stride, first, count }: TakenChannels,
        [x, k, y]: [&[usize]; 3],
    ) -> Result<Self, KernelError> {
        let last = |shape: &[usize]| match (channels_last, shape) {
            (true, &[n, h, w, c]) | (false, &[n, c, h, w]) => Some([n, h, w, c]),
            _ => None,
        };
        let (Some([batch, h, w, channels]), &[features, inputs, kh, kw], Some(result)) =
            (last(x), k, last(y))
        else {
            return Err(KernelError::bad_call(op, "operands of other rank than 4"));
        };
        let [_, rows, columns, _] = result;
        let groups = channels.checked_div(stride).unwrap_or(1);
        let shown = [window.count_places(0, h, kh), window.count_places(1, w, kw)];
        if [result[0], result[3]] != [batch, features]
            || shown != [Some(rows), Some(columns)]
            || groups * stride != channels
            || count != inputs
            || first.checked_add(count).is_none_or(|end| end > stride)
            || groups > 0 && !features.is_multiple_of(groups)
        {
            return Err(KernelError::bad_call(op, format!("{x:?} and {k:?} do not meet in {y:?}")));
        }
        let outputs = features.checked_div(groups).unwrap_or(0);
        let (extents, image, shown) = ([kh, kw], [h, w], [rows, columns]);
        Ok(Self { window, batch, groups, outputs, inputs, stride, first, extents, image, shown })
    }

    /// Elements of a kernel for one channel.
    pub(crate) fn taps(&self) -> usize {
        self.extents[0] * self.extents[1]
    }

    /// Places of x.
    pub(crate) fn input_places(&self) -> usize {
        self.image[0] * self.image[1]
    }

    /// Places of y.
    pub(crate) fn output_places(&self) -> usize {
        self.shown[0] * self.shown[1]
    }

    /// Channels of x and of y, of all groups.
    pub(crate) fn input_channels(&self) -> usize {
        self.groups * self.stride
    }

    pub(crate) fn output_channels(&self) -> usize {
        self.groups * self.outputs
    }

    /// The number of multiplications.
    pub(crate) fn count_multiplications(&self) -> usize {
        self.batch * self.output_places() * self.taps() * self.inputs * self.output_channels()
    }

    /// Extents of x, the kernels and y along a dim.
    pub(crate) fn extents_along(&self, dim: usize) -> [usize; 3] {
        [self.image[dim], self.extents[dim], self.shown[dim]]
    }

    /// Whether each channel is a group of its own.
    pub(crate) fn is_depthwise(&self) -> bool {
        [self.outputs, self.inputs, self.stride] == [1; 3] && self.groups > 1
    }

    /// Whether it is one product of matrices, of images of one place with kernels of one element. With padding the element may meet none.
    pub(crate) fn is_product(&self) -> bool {
        let one_channel_group = self.groups == 1 && self.stride == self.inputs;
        let one_place = self.input_places() == 1 && self.taps() == 1 && self.output_places() == 1;
        one_channel_group && one_place && self.window.pads == [0; 4]
    }

    /// Whether what is of `f32` needs no columns.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_direct(&self) -> bool {
        simd_level() == SimdLevel::Avx512
    }
}

/// Brings each image's matrix of these rows and columns to the order of its columns.
pub(crate) fn transpose_images<T: Element>(
    space: &ConvolutionSpace,
    from: &[T],
    to: &mut [T],
    [rows, columns]: [usize; 2],
) {
    let size = (rows * columns).max(1);
    for (from, to) in from.chunks_exact(size).zip(to.chunks_exact_mut(size)).take(space.batch) {
        strided::transpose_rows(from, to, [rows, columns], 0);
    }
}
