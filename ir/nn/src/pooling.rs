//! Images `[n, channels, h, w]` made smaller and larger, and other layers without weights.

use graphc_ir::builder::Tensor;
use graphc_ir::ops::Window;
use graphc_ir::types::DType;

use super::Module;
use super::convolution::not_of_rank;

/// The parameters of windows that go over an image; names as torch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// The distance from one window to the next.
    pub stride: [usize; 2],
    /// Border before and after the image.
    pub padding: [usize; 2],
    /// Whether what the last window would leave out is in one more, which may reach beyond the border.
    pub ceil_mode: bool,
}

impl PoolConfig {
    /// Square windows of this extent side by side.
    pub fn square(kernel: usize) -> Self {
        Self { kernel: [kernel; 2], stride: [kernel; 2], padding: [0; 2], ceil_mode: false }
    }

    /// Returns the window without the further one of `ceil_mode`.
    fn window(&self) -> Window {
        let [rows, columns] = self.padding;
        let pads = [rows, columns, rows, columns];
        Window { strides: self.stride, pads, dilations: [1; 2] }
    }

    /// The window over an image of these extents.
    fn window_over(&self, extents: [usize; 2]) -> Window {
        let window = self.window();
        if self.ceil_mode { window.with_ceil_mode(extents, self.kernel) } else { window }
    }
}

/// The greatest of each window.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{MaxPool2d, Module, PoolConfig};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let x = g.input("x", DType::F32, [8, 16, 7, 7]);
/// let pool = MaxPool2d(PoolConfig { stride: [2; 2], padding: [1; 2], ..PoolConfig::square(3) });
/// assert_eq!(pool.forward(&x).shape(), [8, 16, 4, 4]);
/// let ceil = MaxPool2d(PoolConfig { ceil_mode: true, ..PoolConfig::square(2) });
/// assert_eq!(ceil.forward(&x).shape(), [8, 16, 4, 4]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool2d(pub PoolConfig);

impl Module for MaxPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let [_, _, h, w] = x.shape()[..] else { return not_a_image(x) };
        x.max_pool(self.0.kernel, self.0.window_over([h, w]))
    }

    fn parameters(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

/// The mean of each window; zeros of the border count, as they do in torch by default.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{AvgPool2d, Module, PoolConfig};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let pool = AvgPool2d(PoolConfig { ceil_mode: true, ..PoolConfig::square(2) });
/// assert_eq!(pool.forward(&g.input("x", DType::F32, [8, 16, 7, 7])).shape(), [8, 16, 4, 4]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPool2d(pub PoolConfig);

impl Module for AvgPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let [_, _, h, w] = x.shape()[..] else { return not_a_image(x) };
        let PoolConfig { kernel, padding: [rows, columns], .. } = self.0;
        let (window, own) = (self.0.window_over([h, w]), self.0.window());
        if window == own {
            return x.average_pool(kernel, window, true);
        }
        // The border counts, what a window reaches beyond it does not: so the border becomes part of the image.
        let pad = [0, 0, rows, columns];
        let beyond = [2, 3].map(|side| window.pads[side] - own.pads[side]);
        let pads = [0, 0, beyond[0], beyond[1]];
        x.pad(&pad, &pad, 0.0).average_pool(kernel, Window { pads, ..window }, false)
    }

    fn parameters(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

/// The mean of as many windows as the result has places, which cover the image as evenly as possible.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{AdaptiveAvgPool2d, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let x = g.input("x", DType::F32, [8, 16, 7, 5]);
/// assert_eq!(AdaptiveAvgPool2d([1, 1]).forward(&x).shape(), [8, 16, 1, 1]);
/// assert_eq!(AdaptiveAvgPool2d([3, 2]).forward(&x).shape(), [8, 16, 3, 2]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveAvgPool2d(pub [usize; 2]);

impl Module for AdaptiveAvgPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let [_, _, h, w] = x.shape()[..] else { return not_a_image(x) };
        let [rows, columns] = self.0;
        if rows == 0 || columns == 0 {
            return x.builder().fail("an image of no rows or columns has no means");
        }
        if self.0 == [1, 1] {
            return x.mean(&[2, 3], true);
        }
        if h.is_multiple_of(rows) && w.is_multiple_of(columns) {
            let kernel = [h / rows, w / columns];
            return x.average_pool(kernel, Window { strides: kernel, ..Window::PLAIN }, true);
        }
        // Windows of different extents: each row of these matrices has the shares of one.
        let (down, across) = (pooling_shares(x, h, rows), pooling_shares(x, w, columns));
        down.matmul(&x.matmul_transposed(&across, false, true))
    }

    fn parameters(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

/// `[places, extent]`: of each place the share that an element has in its mean.
#[track_caller]
fn pooling_shares(x: &Tensor, extent: usize, places: usize) -> Tensor {
    let share = |place: usize, element: usize| {
        let (start, end) = (place * extent / places, ((place + 1) * extent).div_ceil(places));
        if (start..end).contains(&element) { 1.0 / (end - start) as f64 } else { 0.0 }
    };
    let data: Vec<f64> = (0..places * extent).map(|at| share(at / extent, at % extent)).collect();
    x.builder().constant(DType::F32, [places, extent], &data).cast(x.ty().dtype)
}

/// A layer that repeats each element of an image so many times down and across.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Module, Upsample};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// assert_eq!(Upsample([2, 3]).forward(&g.input("x", DType::F32, [8, 16, 4, 4])).shape(), [8, 16, 8, 12]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upsample(pub [usize; 2]);

impl Module for Upsample {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let [n, c, h, w] = x.shape()[..] else { return not_a_image(x) };
        let [down, across] = self.0;
        let repeated = x.reshape(&[n, c, h, 1, w, 1]).expand(&[n, c, h, down, w, across]);
        repeated.reshape(&[n, c, h * down, w * across])
    }

    fn parameters(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

/// All dims but the first as one.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Flatten, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// assert_eq!(Flatten.forward(&g.input("x", DType::F32, [8, 16, 4, 4])).shape(), [8, 256]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flatten;

impl Module for Flatten {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let shape = x.shape();
        let Some((&samples, rest)) = shape.split_first() else { return x.clone() };
        x.reshape(&[samples, rest.iter().product()])
    }

    fn parameters(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

/// Zeros with this probability, in training; the rest is scaled so that the expectation stays.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Dropout, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// assert_eq!(Dropout(0.5).forward(&g.input("x", DType::F32, [8, 16])).shape(), [8, 16]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout(pub f64);

impl Module for Dropout {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        if self.0 == 0.0 { x.clone() } else { x.dropout(self.0) }
    }

    fn parameters(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

#[track_caller]
fn not_a_image(x: &Tensor) -> Tensor {
    not_of_rank(x, "an image [n, channels, h, w]")
}
