//! The positions in an image of the windows of convolutions and pools.

use serde::{Deserialize, Serialize};

use crate::operation::{OpError, shape_error};
use crate::types::TensorType;

/// The steps by which a window of `kernel` elements goes over an image: element k of the window at place p reads row `p stride + k dilation - pad` of
/// the image, 0 outside it. Of both dims, h first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    /// The distance from one place to the next.
    pub strides: [usize; 2],
    /// The numbers of rows of zeros before and after: `[top, left, bottom, right]`.
    pub pads: [usize; 4],
    /// The distance from one element of the window to the next.
    pub dilations: [usize; 2],
}

impl Window {
    /// A window that steps by one over an image without border.
    pub const PLAIN: Window = Window { strides: [1; 2], pads: [0; 4], dilations: [1; 2] };

    /// Returns the number of places in an image of this extent; `None` where the window is larger than the image.
    pub fn count_places(&self, dim: usize, extent: usize, kernel: usize) -> Option<usize> {
        let padded = extent + self.pads[dim] + self.pads[dim + 2];
        let reach = self.dilations[dim] * kernel.checked_sub(1)?;
        Some(padded.checked_sub(reach + 1)? / self.strides[dim] + 1)
    }

    /// Returns the window with more border behind the image, so that what its last place would leave out is in a place of its own, as torch's
    /// `ceil_mode` has it: such a place begins in the image, or in the border before it.
    pub fn with_ceil_mode(self, extents: [usize; 2], kernel: [usize; 2]) -> Self {
        let mut window = self;
        for dim in 0..2 {
            let reach = self.dilations[dim] * kernel[dim].saturating_sub(1) + 1;
            let padded = extents[dim] + self.pads[dim] + self.pads[dim + 2];
            let Some(rest) = padded.checked_sub(reach) else { continue };
            let last = rest.div_ceil(self.strides[dim].max(1)) * self.strides[dim];
            let begins = last < extents[dim] + self.pads[dim];
            let needed = if begins { last + reach } else { padded };
            window.pads[dim + 2] += needed.saturating_sub(padded);
        }
        window
    }

    /// Returns the row of the image that an element of the window at a place reads; `None` where it is border.
    pub fn source_index(
        &self,
        dim: usize,
        place: usize,
        element: usize,
        extent: usize,
    ) -> Option<usize> {
        let padded = place * self.strides[dim] + element * self.dilations[dim];
        padded.checked_sub(self.pads[dim]).filter(|&row| row < extent)
    }

    pub(crate) fn check_values(
        &self,
        op: &'static str,
        operands: &[&TensorType],
    ) -> Result<(), OpError> {
        let steps = self.strides.iter().chain(&self.dilations);
        let large = steps.clone().chain(&self.pads).any(|&value| value > 1 << 20);
        if large || steps.clone().any(|&step| step == 0) {
            return Err(shape_error(
                op,
                operands,
                "strides and dilations are 1 or more, none is huge",
            ));
        }
        Ok(())
    }
}
