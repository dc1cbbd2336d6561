//! Residual networks (He et al., arXiv 1512.03385), as torchvision has them.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;

use super::collect_parameters;
use crate::{BatchNorm2d, Conv2d, ConvConfig, Linear, MaxPool2d, Module, ModuleList, PoolConfig};

/// The configuration of a [`ResNet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResNetConfig {
    /// Whether blocks are bottlenecks, of three convolutions instead of two.
    pub bottleneck: bool,
    /// Blocks of each of the four layers.
    pub blocks: [usize; 4],
    /// Channels of the first layer; each next one has twice as many.
    pub width: usize,
    /// Classes.
    pub classes: usize,
    /// Whether the model is for images of 32x32: the stem is then a convolution of 3x3 that keeps the size, and there is no pooling behind
    /// it.
    pub cifar_stem: bool,
}

impl ResNetConfig {
    /// ResNet-18 for images of 224x224.
    pub fn resnet18(classes: usize) -> Self {
        let blocks = [2; 4];
        Self { bottleneck: false, blocks, width: 64, classes, cifar_stem: false }
    }

    /// ResNet-50 for images of 224x224.
    pub fn resnet50(classes: usize) -> Self {
        let blocks = [3, 4, 6, 3];
        Self { bottleneck: true, blocks, width: 64, classes, cifar_stem: false }
    }

    /// With the stem for images of 32x32.
    pub fn cifar(self) -> Self {
        Self { cifar_stem: true, ..self }
    }

    /// Channels behind a layer.
    fn layer_channels(&self, layer: usize) -> usize {
        (self.width << layer) * if self.bottleneck { 4 } else { 1 }
    }
}

/// ResNet-18 for so many classes.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::models::resnet18;
/// use graphc_nn::Module;
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("resnet18");
/// let model = resnet18(&g, 1000);
/// let logits = model.forward(&g.input("x", DType::F32, [2, 3, 224, 224]));
/// assert_eq!((logits.shape(), model.parameters().len()), (vec![2, 1000], 62));
/// assert!(g.finish()?.find("layer4.0.downsample.1.running_var").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
#[track_caller]
pub fn resnet18(g: &GraphBuilder, classes: usize) -> ResNet {
    ResNet::new(g, &ResNetConfig::resnet18(classes))
}

/// ResNet-50 for so many classes; the stride of a bottleneck is in its convolution of 3x3, as torchvision has it.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::models::resnet50;
/// use graphc_nn::Module;
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("resnet50");
/// let model = resnet50(&g, 10);
/// let logits = model.forward(&g.input("x", DType::F32, [2, 3, 64, 64]));
/// assert_eq!((logits.shape(), model.parameters().len()), (vec![2, 10], 161));
/// ```
#[track_caller]
pub fn resnet50(g: &GraphBuilder, classes: usize) -> ResNet {
    ResNet::new(g, &ResNetConfig::resnet50(classes))
}

/// A residual network: images `[n, 3, h, w]` to logits `[n, classes]`.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::models::{ResNet, ResNetConfig};
/// use graphc_nn::Module;
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("cifar10");
/// let model = ResNet::new(&g, &ResNetConfig::resnet18(10).cifar());
/// let logits = model.forward(&g.input("x", DType::F32, [8, 3, 32, 32]));
/// g.output("loss", &logits.cross_entropy(&g.input("labels", DType::I64, [8])));
/// assert!(g.finish().is_ok());
/// ```
pub struct ResNet {
    /// The convolution from colours to the first layer's channels.
    pub conv1: Conv2d,
    /// The normalization behind it.
    pub bn1: BatchNorm2d,
    /// Halves the size behind the stem; `None` for small images.
    pub maxpool: Option<MaxPool2d>,
    /// `layer1` to `layer4`: each but the first halves the size and doubles the channels.
    pub layers: Vec<ModuleList<Block>>,
    /// The projection from channels to classes.
    pub fc: Linear,
}

impl ResNet {
    /// Makes the model with torchvision's first contents: kernels normal, by the channels that they make (He et al., arXiv 1502.01852).
    #[track_caller]
    pub fn new(g: &GraphBuilder, config: &ResNetConfig) -> Self {
        let layer = |at: usize| {
            let (stride, channels) = (if at == 0 { 1 } else { 2 }, config.layer_channels(at));
            let before = if at == 0 { config.width } else { config.layer_channels(at - 1) };
            let mut inputs = [before].into_iter().chain(std::iter::repeat(channels));
            let mut strides = [stride].into_iter().chain(std::iter::repeat(1));
            ModuleList::new(g, &format!("layer{}", at + 1), config.blocks[at], |name| {
                let inputs = inputs.next().unwrap_or(channels);
                Block::new(
                    g,
                    name,
                    [inputs, channels],
                    strides.next().unwrap_or(1),
                    config.bottleneck,
                )
            })
        };
        let halves = PoolConfig { stride: [2; 2], padding: [1; 2], ..PoolConfig::square(3) };
        g.with_location(|| {
            let (kernel, stride) = if config.cifar_stem { (3, 1) } else { (7, 2) };
            Self {
                conv1: declare_convolution(g, "conv1", [3, config.width], kernel, stride),
                bn1: BatchNorm2d::new(g, "bn1", config.width),
                maxpool: (!config.cifar_stem).then_some(MaxPool2d(halves)),
                layers: (0..4).map(layer).collect(),
                fc: Linear::new(g, "fc", config.layer_channels(3), config.classes),
            }
        })
    }

    /// Computes the features of images, `[n, channels]`: the means of the last layer's channels.
    #[track_caller]
    pub fn features(&self, x: &Tensor) -> Tensor {
        x.builder().with_location(|| {
            let mut y = self.bn1.forward(&self.conv1.forward(x)).relu();
            if let Some(pool) = &self.maxpool {
                y = pool.forward(&y);
            }
            let blocks = self.layers.iter().flat_map(|layer| layer.iter());
            blocks.fold(y, |y, block| block.forward(&y)).mean(&[2, 3], false)
        })
    }
}

impl Module for ResNet {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.fc.forward(&self.features(x))
    }

    fn parameters(&self) -> Vec<Tensor> {
        let mut all = collect_parameters(&[&self.conv1, &self.bn1]);
        all.extend(self.layers.iter().flat_map(ModuleList::parameters));
        all.extend(self.fc.parameters());
        all
    }

    fn buffers(&self) -> Vec<Tensor> {
        let mut all = self.bn1.buffers();
        all.extend(self.layers.iter().flat_map(ModuleList::buffers));
        all
    }
}

/// A residual block: two convolutions of 3x3, or a bottleneck of 1x1, 3x3 and 1x1, each with a normalization.
pub struct Block {
    /// The convolutions, `conv1` and so on.
    pub convs: Vec<Conv2d>,
    /// The normalization behind each of them, `bn1` and so on.
    pub norms: Vec<BatchNorm2d>,
    /// The convolution and normalization beside them, where size or channels change.
    pub downsample: Option<(Conv2d, BatchNorm2d)>,
}

impl Block {
    /// Makes a block from so many channels to so many.
    #[track_caller]
    pub fn new(
        g: &GraphBuilder,
        name: &str,
        [inputs, outputs]: [usize; 2],
        stride: usize,
        bottleneck: bool,
    ) -> Self {
        let inner = if bottleneck { outputs / 4 } else { outputs };
        // Channels, kernel and stride of each.
        let shapes: &[([usize; 2], usize, usize)] = match bottleneck {
            true => {
                &[([inputs, inner], 1, 1), ([inner, inner], 3, stride), ([inner, outputs], 1, 1)]
            }
            false => &[([inputs, inner], 3, stride), ([inner, outputs], 3, 1)],
        };
        let convolution =
            |(at, &(channels, kernel, stride)): (usize, &([usize; 2], usize, usize))| {
                declare_convolution(g, &format!("conv{}", at + 1), channels, kernel, stride)
            };
        let norm = |(at, &([_, channels], ..)): (usize, &([usize; 2], usize, usize))| {
            BatchNorm2d::new(g, &format!("bn{}", at + 1), channels)
        };
        let beside = || {
            let beside = declare_convolution(g, "downsample.0", [inputs, outputs], 1, stride);
            (beside, BatchNorm2d::new(g, "downsample.1", outputs))
        };
        let declare = || Self {
            convs: shapes.iter().enumerate().map(convolution).collect(),
            norms: shapes.iter().enumerate().map(norm).collect(),
            downsample: (stride != 1 || inputs != outputs).then(beside),
        };
        g.with_location(|| g.scope(name, declare))
    }
}

impl Module for Block {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.builder().with_location(|| {
            let mut y = x.clone();
            for (at, (conv, norm)) in self.convs.iter().zip(&self.norms).enumerate() {
                let before = if at == 0 { y } else { y.relu() };
                y = norm.forward(&conv.forward(&before));
            }
            let beside = match &self.downsample {
                Some((conv, norm)) => norm.forward(&conv.forward(x)),
                None => x.clone(),
            };
            y.add(&beside).relu()
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        let pairs = self.convs.iter().zip(&self.norms);
        let mut all: Vec<Tensor> =
            pairs.flat_map(|(conv, norm)| collect_parameters(&[conv, norm])).collect();
        let beside = self.downsample.iter();
        all.extend(beside.flat_map(|(conv, norm)| collect_parameters(&[conv, norm])));
        all
    }

    fn buffers(&self) -> Vec<Tensor> {
        let beside = self.downsample.iter().map(|(_, norm)| norm);
        self.norms.iter().chain(beside).flat_map(Module::buffers).collect()
    }
}

/// A convolution without bias that keeps the size but for its stride.
#[track_caller]
fn declare_convolution(
    g: &GraphBuilder,
    name: &str,
    channels: [usize; 2],
    kernel: usize,
    stride: usize,
) -> Conv2d {
    let (stride, padding) = ([stride; 2], [kernel / 2; 2]);
    let config = ConvConfig { stride, padding, bias: false, ..ConvConfig::square(kernel) };
    Conv2d::with_init(g, name, channels, config, by_fan_out(channels[1] * kernel * kernel))
}

/// Normal, of variance 2 / fan out.
pub(super) fn by_fan_out(fan_out: usize) -> Init {
    let std = (2.0 / fan_out.max(1) as f64).sqrt();
    Init::Normal { mean: Scalar(0.0), std: Scalar(std) }
}
