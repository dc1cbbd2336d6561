//! Normalization of channels: by the batch, by groups of channels, and of each channel by itself. [`super::LayerNorm`] and
//! [`super::RmsNorm`] normalize the last dim.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::op::Op;
use graphc_ir::ops::{BatchNorm as BatchNormOp, Init};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::TensorType;

use super::convolution::not_of_rank;
use super::{Module, declare_module};

/// Batch normalization of `[n, channels, ..]`: by the statistics of the microbatch over all ranks in training, which running
/// statistics take in, and by these in inference.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{BatchNorm2d, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let bn = BatchNorm2d::new(&g, "bn1", 16);
/// assert_eq!(bn.forward(&g.input("x", DType::F32, [8, 16, 4, 4])).shape(), [8, 16, 4, 4]);
/// assert!(g.finish()?.find("bn1.running_var").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
pub struct BatchNorm {
    /// The scale, `[channels]`, at first 1.
    pub weight: Tensor,
    /// The shift, `[channels]`, at first 0.
    pub bias: Tensor,
    /// `[channels]`, at first 0; not trained.
    pub running_mean: Tensor,
    /// `[channels]`, unbiased, at first 1; not trained.
    pub running_var: Tensor,
    /// Added to the variance.
    pub epsilon: f64,
    /// The share that a microbatch's statistics have in the running ones.
    pub momentum: f64,
}

/// Batch normalization of `[n, channels]` and `[n, channels, w]`.
pub type BatchNorm1d = BatchNorm;

/// Batch normalization of images, `[n, channels, h, w]`.
pub type BatchNorm2d = BatchNorm;

impl BatchNorm {
    /// Makes a layer with an epsilon of 1e-5 and a momentum of 0.1, torch's defaults.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, channels: usize) -> Self {
        let running = |name: &str, first: f64| {
            let ty = TensorType::new(g.dtype(), [channels]);
            g.variable_of(name, ty, Init::Fill(Scalar(first)), false)
        };
        declare_module(g, name, || Self {
            weight: g.variable("weight", g.dtype(), [channels], Init::Fill(Scalar(1.0))),
            bias: g.variable("bias", g.dtype(), [channels], Init::Fill(Scalar(0.0))),
            running_mean: running("running_mean", 0.0),
            running_var: running("running_var", 1.0),
            epsilon: 1e-5,
            momentum: 0.1,
        })
    }
}

impl Module for BatchNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let (epsilon, momentum) = (Scalar(self.epsilon), Scalar(1.0 - self.momentum));
        let op = Op::BatchNorm(BatchNormOp { epsilon, momentum });
        let Self { weight, bias, running_mean, running_var, .. } = self;
        x.builder().apply(op, &[x, weight, bias, running_mean, running_var])
    }

    fn parameters(&self) -> Vec<Tensor> {
        vec![self.weight.clone(), self.bias.clone()]
    }

    fn buffers(&self) -> Vec<Tensor> {
        vec![self.running_mean.clone(), self.running_var.clone()]
    }
}

/// Normalization of each sample's groups of channels (Wu and He, arXiv 1803.08494), of `[n, channels, ..]`.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{GroupNorm, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let norm = GroupNorm::new(&g, "norm", 4, 16);
/// assert_eq!(norm.forward(&g.input("x", DType::F32, [8, 16, 4, 4])).shape(), [8, 16, 4, 4]);
/// ```
pub struct GroupNorm {
    /// The scale, `[channels]`, at first 1.
    pub weight: Tensor,
    /// The shift, `[channels]`, at first 0.
    pub bias: Tensor,
    /// Groups of channels.
    pub groups: usize,
    /// Added to the variance.
    pub epsilon: f64,
}

impl GroupNorm {
    /// Makes a layer with an epsilon of 1e-5, torch's default. The groups must divide the channels, else the builder keeps an error.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, groups: usize, channels: usize) -> Self {
        if groups == 0 || !channels.is_multiple_of(groups) {
            g.fail(format!("{groups} groups do not divide {channels} channels"));
        }
        declare_module(g, name, || Self {
            weight: g.variable("weight", g.dtype(), [channels], Init::Fill(Scalar(1.0))),
            bias: g.variable("bias", g.dtype(), [channels], Init::Fill(Scalar(0.0))),
            groups: groups.max(1),
            epsilon: 1e-5,
        })
    }
}

impl Module for GroupNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let rank = x.shape().len();
        let wide =
            |of: &Tensor| of.reshape(&[of.shape(), vec![1; rank.saturating_sub(2)]].concat());
        let y = by_groups(x, self.groups, self.epsilon);
        y.mul(&wide(&self.weight)).add(&wide(&self.bias))
    }

    fn parameters(&self) -> Vec<Tensor> {
        vec![self.weight.clone(), self.bias.clone()]
    }
}

/// Normalization of each channel of each sample, of `[n, channels, ..]`, without weights, as torch's is by default.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{InstanceNorm, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let norm = InstanceNorm::default();
/// assert_eq!(norm.forward(&g.input("x", DType::F32, [8, 16, 4, 4])).shape(), [8, 16, 4, 4]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InstanceNorm {
    /// Added to the variance.
    pub epsilon: f64,
}

impl Default for InstanceNorm {
    fn default() -> Self {
        Self { epsilon: 1e-5 }
    }
}

impl Module for InstanceNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let channels = x.shape().get(1).copied().unwrap_or(1);
        by_groups(x, channels, self.epsilon)
    }

    fn parameters(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

/// Normalizes each sample's groups of channels to mean 0 and variance 1.
#[track_caller]
fn by_groups(x: &Tensor, groups: usize, epsilon: f64) -> Tensor {
    let shape = x.shape();
    let [n, channels, rest @ ..] = &shape[..] else {
        return not_of_rank(x, "of samples and channels, [n, channels, ..]");
    };
    let each = channels * rest.iter().product::<usize>() / groups.max(1);
    x.reshape(&[*n, groups, each]).normalize(true, epsilon).reshape(&shape)
}
