//! MobileNetV2 (Sandler et al., arXiv 1801.04381), as torchvision has it.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;

use super::collect_parameters;
use super::resnet::by_fan_out;
use crate::{BatchNorm2d, Conv2d, ConvConfig, Dropout, Linear, Module};

/// The configuration of a [`MobileNetV2`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MobileNetConfig {
    /// Channels are multiplied by it, and rounded to multiples of 8.
    pub width: f64,
    /// Classes.
    pub classes: usize,
    /// Zeros before the classifier, in training.
    pub dropout: f64,
    /// Whether the model is for images of 32x32: the stem and the second stage then keep the size.
    pub cifar_stem: bool,
}

/// Expansion, channels, blocks and stride of each stage (table 2).
const STAGES: [[usize; 4]; 7] = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
];

impl MobileNetConfig {
    /// Makes the configuration for images of 224x224.
    pub fn new(classes: usize) -> Self {
        Self { width: 1.0, classes, dropout: 0.2, cifar_stem: false }
    }

    /// With the stem for images of 32x32.
    pub fn cifar(self) -> Self {
        Self { cifar_stem: true, ..self }
    }

    /// Returns the number of channels times the width.
    fn scaled_channels(&self, channels: usize) -> usize {
        by_eight(channels as f64 * self.width)
    }

    /// The stride of a stage's first block.
    fn stage_stride(&self, stage: usize) -> usize {
        if self.cifar_stem && stage == 1 { 1 } else { STAGES[stage][3] }
    }
}

/// The multiple of 8 nearest to a number, no less than 8 or 9 tenths of it.
fn by_eight(wanted: f64) -> usize {
    let near = ((wanted + 4.0) as usize / 8 * 8).max(8);
    if (near as f64) < 0.9 * wanted { near + 8 } else { near }
}

/// MobileNetV2 for so many classes.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::models::mobilenet_v2;
/// use graphc_nn::Module;
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("mobilenet_v2");
/// let model = mobilenet_v2(&g, 10);
/// let logits = model.forward(&g.input("x", DType::F32, [2, 3, 64, 64]));
/// assert_eq!((logits.shape(), model.parameters().len()), (vec![2, 10], 158));
/// assert!(g.finish()?.find("features.17.conv.1.1.running_mean").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
#[track_caller]
pub fn mobilenet_v2(g: &GraphBuilder, classes: usize) -> MobileNetV2 {
    MobileNetV2::new(g, &MobileNetConfig::new(classes))
}

/// Inverted residuals between two convolutions, and a classifier: images `[n, 3, h, w]` to logits `[n, classes]`.
pub struct MobileNetV2 {
    /// `features.0`: from colours to channels.
    pub stem: ConvNorm,
    /// `features.1` and so on.
    pub blocks: Vec<InvertedResidual>,
    /// `features.18`: to the channels that are classified.
    pub last: ConvNorm,
    /// The dropout before the classifier.
    pub dropout: Dropout,
    /// `classifier.1`.
    pub classifier: Linear,
}

impl MobileNetV2 {
    /// Makes the model with torchvision's first contents.
    #[track_caller]
    pub fn new(g: &GraphBuilder, config: &MobileNetConfig) -> Self {
        let normal = Init::Normal { mean: Scalar(0.0), std: Scalar(0.01) };
        let zero = Some(Init::Fill(Scalar(0.0)));
        g.with_location(|| {
            let (stem, blocks, last) = g.scope("features", || declare_features(g, config));
            let sizes = [last.output_channels(), config.classes];
            Self {
                stem,
                blocks,
                last,
                dropout: Dropout(config.dropout),
                classifier: Linear::with_init(g, "classifier.1", sizes, normal, zero),
            }
        })
    }
}

fn declare_features(
    g: &GraphBuilder,
    config: &MobileNetConfig,
) -> (ConvNorm, Vec<InvertedResidual>, ConvNorm) {
    let first = config.scaled_channels(32);
    let stride = if config.cifar_stem { 1 } else { 2 };
    let stem = ConvNorm::new(
        g,
        "0",
        [3, first],
        ConvConfig { stride: [stride; 2], ..same_size_config(3) },
    );
    let (mut blocks, mut channels) = (Vec::new(), first);
    for (stage, [expansion, outputs, count, _]) in STAGES.into_iter().enumerate() {
        for block in 0..count {
            let stride = if block == 0 { config.stage_stride(stage) } else { 1 };
            let (name, sizes) = (blocks.len() + 1, [channels, config.scaled_channels(outputs)]);
            blocks.push(InvertedResidual::new(g, &name.to_string(), sizes, expansion, stride));
            channels = sizes[1];
        }
    }
    let (name, last) = (blocks.len() + 1, by_eight(1280.0 * config.width.max(1.0)));
    let last = ConvNorm::new(g, &name.to_string(), [channels, last], same_size_config(1));
    (stem, blocks, last)
}

impl Module for MobileNetV2 {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.builder().with_location(|| {
            let blocks = self.blocks.iter();
            let y = blocks.fold(self.stem.forward(x), |y, block| block.forward(&y));
            let features = self.last.forward(&y).mean(&[2, 3], false);
            self.classifier.forward(&self.dropout.forward(&features))
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        let mut all = self.stem.parameters();
        all.extend(self.blocks.iter().flat_map(Module::parameters));
        all.extend(collect_parameters(&[&self.last, &self.classifier]));
        all
    }

    fn buffers(&self) -> Vec<Tensor> {
        let mut all = self.stem.buffers();
        all.extend(self.blocks.iter().flat_map(Module::buffers));
        all.extend(self.last.buffers());
        all
    }
}

/// A convolution without bias, a normalization, and min(max(x, 0), 6).
pub struct ConvNorm {
    /// `0`.
    pub conv: Conv2d,
    /// `1`.
    pub norm: BatchNorm2d,
}

impl ConvNorm {
    /// Makes a layer from so many channels to so many.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, channels: [usize; 2], config: ConvConfig<2>) -> Self {
        let init = by_fan_out(channels[1] * config.kernel.iter().product::<usize>());
        let declare = || Self {
            conv: Conv2d::with_init(g, "0", channels, config, init),
            norm: BatchNorm2d::new(g, "1", channels[1]),
        };
        g.with_location(|| g.scope(name, declare))
    }

    /// Channels that it makes.
    fn output_channels(&self) -> usize {
        self.norm.weight.shape().first().copied().unwrap_or(0)
    }
}

impl Module for ConvNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.norm.forward(&self.conv.forward(x)).clip(0.0, 6.0)
    }

    fn parameters(&self) -> Vec<Tensor> {
        collect_parameters(&[&self.conv, &self.norm])
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.norm.buffers()
    }
}

/// A block that is wide inside: to more channels, each filtered by itself, and to few channels without a rectifier; beside it
/// is what it is given, where size and channels stay.
pub struct InvertedResidual {
    /// `conv.0` and, where there is an expansion, `conv.1`: to more channels, and over each of them.
    pub wide: Vec<ConvNorm>,
    /// The convolution to few channels.
    pub narrow: Conv2d,
    /// The normalization behind it.
    pub norm: BatchNorm2d,
    /// Whether what it is given is added.
    pub residual: bool,
}

impl InvertedResidual {
    /// Makes a block from so many channels to so many; inside there are `expansion` times as many as it is given.
    #[track_caller]
    pub fn new(
        g: &GraphBuilder,
        name: &str,
        [inputs, outputs]: [usize; 2],
        expansion: usize,
        stride: usize,
    ) -> Self {
        let inner = inputs * expansion;
        let each = ConvConfig { stride: [stride; 2], groups: inner, ..same_size_config(3) };
        let expand = ([inputs, inner], same_size_config(1));
        let over = ([inner, inner], each);
        let wide = if expansion == 1 { vec![over] } else { vec![expand, over] };
        let count = wide.len();
        let declare = || Self {
            wide: wide
                .into_iter()
                .enumerate()
                .map(|(at, (channels, config))| ConvNorm::new(g, &at.to_string(), channels, config))
                .collect(),
            narrow: Conv2d::with_init(
                g,
                &count.to_string(),
                [inner, outputs],
                same_size_config(1),
                by_fan_out(outputs),
            ),
            norm: BatchNorm2d::new(g, &(count + 1).to_string(), outputs),
            residual: stride == 1 && inputs == outputs,
        };
        g.with_location(|| g.scope(name, || g.scope("conv", declare)))
    }
}

impl Module for InvertedResidual {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.builder().with_location(|| {
            let wide = self.wide.iter().fold(x.clone(), |y, layer| layer.forward(&y));
            let y = self.norm.forward(&self.narrow.forward(&wide));
            if self.residual { x.add(&y) } else { y }
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        let mut all: Vec<Tensor> = self.wide.iter().flat_map(Module::parameters).collect();
        all.extend(collect_parameters(&[&self.narrow, &self.norm]));
        all
    }

    fn buffers(&self) -> Vec<Tensor> {
        let mut all: Vec<Tensor> = self.wide.iter().flat_map(Module::buffers).collect();
        all.extend(self.norm.buffers());
        all
    }
}

/// A convolution without bias that keeps the size.
fn same_size_config(kernel: usize) -> ConvConfig<2> {
    ConvConfig { padding: [kernel / 2; 2], bias: false, ..ConvConfig::square(kernel) }
}
