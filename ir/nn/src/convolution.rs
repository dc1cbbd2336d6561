//! Convolutions of sequences `[n, channels, w]` and of images `[n, channels, h, w]`.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::op::Op;
use graphc_ir::ops::{ConvolutionInputGrad, Init, Window};
use graphc_ir::scalar::Scalar;

use super::{Module, declare_module};

/// The parameters of a convolution over `N` dims; names as torch's.
///
/// ```
/// use graphc_nn::ConvConfig;
///
/// let halves = ConvConfig { stride: [2; 2], padding: [1; 2], bias: false, ..ConvConfig::square(3) };
/// assert_eq!(halves.kernel, [3, 3]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvConfig<const N: usize> {
    /// Extents of the kernel.
    pub kernel: [usize; N],
    /// The distance from one place of the kernel to the next.
    pub stride: [usize; N],
    /// Zeros before and after the image.
    pub padding: [usize; N],
    /// The distance from one element of the kernel to the next.
    pub dilation: [usize; N],
    /// Groups of channels; they divide channels of both sides.
    pub groups: usize,
    /// Whether there is a bias.
    pub bias: bool,
}

impl<const N: usize> ConvConfig<N> {
    /// A kernel of this extent in every dim that steps by one, without a border, of one group, with a bias.
    pub fn square(kernel: usize) -> Self {
        Self {
            kernel: [kernel; N],
            stride: [1; N],
            padding: [0; N],
            dilation: [1; N],
            groups: 1,
            bias: true,
        }
    }

    /// Weight and bias uniform in +-1/sqrt(fan in), torch's default (Kaiming's uniform of slope sqrt(5)).
    fn uniform_init(&self, channels: usize) -> Init {
        let fan_in = (channels / self.groups.max(1)) * self.kernel.iter().product::<usize>();
        let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
        Init::Uniform { low: Scalar(-bound), high: Scalar(bound) }
    }

    /// Whether its groups divide the channels of both sides, else the builder keeps an error.
    #[track_caller]
    fn check_groups(&self, g: &GraphBuilder, channels: [usize; 2]) {
        if self.groups == 0 || channels.iter().any(|count| !count.is_multiple_of(self.groups)) {
            let [inputs, outputs] = channels;
            g.fail(format!("{} groups do not divide {inputs} and {outputs} channels", self.groups));
        }
    }
}

impl ConvConfig<2> {
    fn window(&self) -> Window {
        let [rows, columns] = self.padding;
        let pads = [rows, columns, rows, columns];
        Window { strides: self.stride, pads, dilations: self.dilation }
    }
}

/// Correlation of images `[n, inputs, h, w]` with kernels, `[n, outputs, h', w']`.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Conv2d, ConvConfig, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let halves = ConvConfig { stride: [2; 2], padding: [1; 2], ..ConvConfig::square(3) };
/// let conv = Conv2d::new(&g, "conv", [3, 16], halves);
/// let y = conv.forward(&g.input("x", DType::F32, [8, 3, 32, 32]));
/// assert_eq!((y.shape(), conv.weight.shape()), (vec![8, 16, 16, 16], vec![16, 3, 3, 3]));
/// ```
pub struct Conv2d {
    /// `[outputs, inputs / groups, h, w]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Option<Tensor>,
    /// Its parameters.
    pub config: ConvConfig<2>,
}

impl Conv2d {
    /// Makes a layer from so many channels to so many, with torch's first contents.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, channels: [usize; 2], config: ConvConfig<2>) -> Self {
        let init = config.uniform_init(channels[0]);
        Self::with_init(g, name, channels, config, init)
    }

    /// Makes a layer with this first content of the weight; the bias, if there is one, has torch's.
    #[track_caller]
    pub fn with_init(
        g: &GraphBuilder,
        name: &str,
        channels: [usize; 2],
        config: ConvConfig<2>,
        weight: Init,
    ) -> Self {
        config.check_groups(g, channels);
        let ([inputs, outputs], [h, w]) = (channels, config.kernel);
        let shape = [outputs, inputs / config.groups.max(1), h, w];
        let bias = config.bias.then(|| config.uniform_init(inputs));
        declare_module(g, name, || Self {
            weight: g.variable("weight", g.dtype(), shape, weight),
            bias: bias.map(|init| g.variable("bias", g.dtype(), [outputs], init)),
            config,
        })
    }
}

impl Module for Conv2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = x.convolution(&self.weight, self.config.window(), self.config.groups);
        with_bias(&y, self.bias.as_ref(), 2)
    }

    fn parameters(&self) -> Vec<Tensor> {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }
}

/// Correlation of sequences `[n, inputs, w]` with kernels, `[n, outputs, w']`.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Conv1d, ConvConfig, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let conv = Conv1d::new(&g, "conv", [4, 6], ConvConfig { padding: [2], ..ConvConfig::square(5) });
/// let y = conv.forward(&g.input("x", DType::F32, [8, 4, 20]));
/// assert_eq!((y.shape(), conv.weight.shape()), (vec![8, 6, 20], vec![6, 4, 5]));
/// ```
pub struct Conv1d {
    /// `[outputs, inputs / groups, w]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Option<Tensor>,
    /// Its parameters.
    pub config: ConvConfig<1>,
}

impl Conv1d {
    /// Makes a layer from so many channels to so many, with torch's first contents.
    #[track_caller]
    pub fn new(
        g: &GraphBuilder,
        name: &str,
        [inputs, outputs]: [usize; 2],
        config: ConvConfig<1>,
    ) -> Self {
        config.check_groups(g, [inputs, outputs]);
        let shape = [outputs, inputs / config.groups.max(1), config.kernel[0]];
        let init = config.uniform_init(inputs);
        let bias = config.bias.then(|| init.clone());
        declare_module(g, name, || Self {
            weight: g.variable("weight", g.dtype(), shape, init),
            bias: bias.map(|init| g.variable("bias", g.dtype(), [outputs], init)),
            config,
        })
    }
}

impl Module for Conv1d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let ([n, c, w], [o, each, k]) = (&x.shape()[..], &self.weight.shape()[..]) else {
            return not_of_rank(x, "a sequence [n, channels, w]");
        };
        let ConvConfig { stride: [stride], padding: [pad], dilation: [dilation], .. } = self.config;
        let window =
            Window { strides: [1, stride], pads: [0, pad, 0, pad], dilations: [1, dilation] };
        let (rows, kernels) =
            (x.reshape(&[*n, *c, 1, *w]), self.weight.reshape(&[*o, *each, 1, *k]));
        let y = rows.convolution(&kernels, window, self.config.groups);
        let y = match y.shape()[..] {
            [n, o, 1, w] => y.reshape(&[n, o, w]),
            _ => y,
        };
        with_bias(&y, self.bias.as_ref(), 1)
    }

    fn parameters(&self) -> Vec<Tensor> {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }
}

/// The gradient of [`Conv2d`] as a layer, which goes from small images `[n, inputs, h, w]` to large ones.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{ConvConfig, ConvTranspose2d, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let doubles = ConvConfig { stride: [2; 2], padding: [1; 2], ..ConvConfig::square(4) };
/// let up = ConvTranspose2d::new(&g, "up", [16, 3], doubles);
/// let y = up.forward(&g.input("x", DType::F32, [8, 16, 8, 8]));
/// assert_eq!((y.shape(), up.weight.shape()), (vec![8, 3, 16, 16], vec![16, 3, 4, 4]));
/// ```
pub struct ConvTranspose2d {
    /// `[inputs, outputs / groups, h, w]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Option<Tensor>,
    /// Its parameters.
    pub config: ConvConfig<2>,
    /// Rows and columns more than the kernel reaches at the far end: of the sizes that a convolution of this stride takes to
    /// the same, the one that is meant.
    pub output_padding: [usize; 2],
}

impl ConvTranspose2d {
    /// Makes a layer from so many channels to so many, with torch's first contents.
    #[track_caller]
    pub fn new(
        g: &GraphBuilder,
        name: &str,
        [inputs, outputs]: [usize; 2],
        config: ConvConfig<2>,
    ) -> Self {
        config.check_groups(g, [inputs, outputs]);
        let [h, w] = config.kernel;
        let shape = [inputs, outputs / config.groups.max(1), h, w];
        // torch takes the second dim of the weight for that which is summed over.
        let init = config.uniform_init(outputs);
        let bias = config.bias.then(|| init.clone());
        declare_module(g, name, || Self {
            weight: g.variable("weight", g.dtype(), shape, init),
            bias: bias.map(|init| g.variable("bias", g.dtype(), [outputs], init)),
            config,
            output_padding: [0; 2],
        })
    }

    /// The extent of the result in a dim; `None` where the border takes all.
    fn result_extent(&self, dim: usize, extent: usize) -> Option<usize> {
        let ConvConfig { kernel, stride, padding, dilation, .. } = self.config;
        let reach = dilation[dim] * kernel[dim].checked_sub(1)? + 1;
        let whole = extent.checked_sub(1)? * stride[dim] + reach + self.output_padding[dim];
        whole.checked_sub(2 * padding[dim])
    }
}

impl Module for ConvTranspose2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let [_, _, h, w] = x.shape()[..] else {
            return not_of_rank(x, "an image [n, channels, h, w]");
        };
        let [Some(rows), Some(columns)] = [self.result_extent(0, h), self.result_extent(1, w)]
        else {
            return x.builder().fail(format!("{:?} leaves nothing of {}", self.config, x.ty()));
        };
        let (window, groups) = (self.config.window(), self.config.groups);
        let op =
            ConvolutionInputGrad { window, groups, extents: [rows, columns], channels_last: false };
        let y = x.builder().apply(Op::ConvolutionInputGrad(op), &[&self.weight, x]);
        with_bias(&y, self.bias.as_ref(), 2)
    }

    fn parameters(&self) -> Vec<Tensor> {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }
}

/// Adds a bias of channels to what has so many dims behind them.
#[track_caller]
fn with_bias(y: &Tensor, bias: Option<&Tensor>, dims: usize) -> Tensor {
    let add = |bias: &Tensor| y.add(&bias.reshape(&[bias.shape(), vec![1; dims]].concat()));
    bias.map_or_else(|| y.clone(), add)
}

/// Reports that a tensor does not have the rank that a module takes. The builder records the error once.
#[track_caller]
pub(super) fn not_of_rank(x: &Tensor, expected: &str) -> Tensor {
    match x.id() {
        Some(_) => x.builder().fail(format!("{} is not {expected}", x.ty())),
        None => x.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graphc_ir::types::DType;

    #[test]
    fn what_does_not_fit_is_said_once() {
        let g = GraphBuilder::new("wrong");
        let config = ConvConfig { groups: 3, ..ConvConfig::square(3) };
        let _ = Conv2d::new(&g, "conv", [4, 6], config);
        let x = g.input("x", DType::F32, [2, 4]);
        let _ = Conv1d::new(&g, "conv1", [4, 6], ConvConfig::square(1)).forward(&x);
        let _ = ConvTranspose2d::new(&g, "up", [4, 6], ConvConfig::square(1)).forward(&x);
        let errors = g.finish().expect_err("three things do not fit").to_string();
        assert_eq!(errors.lines().count(), 3, "{errors}");
        assert!(errors.contains("3 groups do not divide 4 and 6 channels"), "{errors}");
        assert!(errors.contains("f32[2, 4] is not a sequence"), "{errors}");
    }
}
