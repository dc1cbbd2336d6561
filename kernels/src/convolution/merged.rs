//! Images of few channels: with borders of zeros in memory, the channels under one row of a kernel lie side by side, and
//! are as good as channels of one place. So three channels under a kernel of 7 x 7 are 21 under one of 7 x 1.

use graphc_ir::ops::Window;

use super::gather::ImageSide;
use super::space::ConvolutionSpace;
use crate::error::KernelError;
use crate::parallel;
use crate::threads::ThreadPool;

/// The number of channels below which they are merged.
const FEW: usize = 16;

/// A convolution whose kernels' columns are channels.
pub(super) struct MergedConvolution {
    pub space: ConvolutionSpace,
    original: ConvolutionSpace,
    /// Height and width with borders.
    extents: [usize; 2],
}

impl MergedConvolution {
    /// `None` where there is nothing to be gained.
    pub(super) fn from_space(space: &ConvolutionSpace) -> Option<Self> {
        let Window { strides, pads, dilations } = space.window;
        let whole = space.groups == 1 && space.inputs == space.stride;
        if !whole || space.inputs >= FEW || space.extents[1] == 1 || dilations[1] != 1 {
            return None;
        }
        let extents = [0, 1].map(|dim| space.image[dim] + pads[dim] + pads[dim + 2]);
        let [rows, columns] = space.extents;
        let merged = ConvolutionSpace {
            window: Window { strides, pads: [0; 4], dilations },
            inputs: space.inputs * columns,
            extents: [rows, 1],
            image: [extents[0], extents[1] + 1 - columns],
            ..*space
        };
        Some(Self { space: merged, original: *space, extents })
    }

    /// The images with their borders.
    pub(super) fn side(&self) -> ImageSide {
        let Self { space, original, extents } = self;
        ImageSide { extents: *extents, width: original.inputs, first: 0, count: space.inputs }
    }

    /// Numbers of the images with their borders.
    pub(super) fn padded_len(&self) -> usize {
        self.space.batch * self.side().image_len()
    }

    /// Copies images between borders.
    pub(super) fn pad(
        &self,
        (pool, parts): (Option<&ThreadPool>, usize),
        x: &[f32],
        to: &mut [f32],
    ) -> Result<(), KernelError> {
        let ConvolutionSpace { image: [h, w], inputs, window, batch, .. } = self.original;
        let size = self.side().image_len();
        let each = batch.div_ceil(parts.max(1)).max(1);
        let pieces = to.chunks_mut(each * size).zip(x.chunks(each * h * w * inputs)).collect();
        parallel::run_parts(pool, pieces, &|(to, x): (&mut [f32], &[f32])| {
            for (to, x) in to.chunks_exact_mut(size).zip(x.chunks_exact(h * w * inputs)) {
                to.fill(0.0);
                for (row, x) in x.chunks_exact(w * inputs).enumerate() {
                    let start = (row + window.pads[0]) * self.extents[1] + window.pads[1];
                    to[start * inputs..][..w * inputs].copy_from_slice(x);
                }
            }
            Ok(())
        })
    }

    /// Kernels `[outputs, inputs, rows, columns]` as `[outputs, columns, inputs, rows]`.
    pub(super) fn reorder_kernels(&self, k: &[f32], to: &mut [f32]) {
        self.for_each_element(|original, merged| to[merged] = k[original]);
    }

    /// The way back.
    pub(super) fn restore_gradients(&self, from: &[f32], dk: &mut [f32]) {
        self.for_each_element(|original, merged| dk[original] = from[merged]);
    }

    /// Calls `body` with the place of each element of the kernels, before and after.
    fn for_each_element(&self, mut body: impl FnMut(usize, usize)) {
        let ConvolutionSpace { inputs, extents: [rows, columns], outputs, .. } = self.original;
        let mut original = 0;
        for output in 0..outputs {
            for input in 0..inputs {
                for row in 0..rows {
                    for column in 0..columns {
                        let place = (output * columns + column) * inputs + input;
                        body(original, place * rows + row);
                        original += 1;
                    }
                }
            }
        }
    }
}
