//! The vision transformer (Dosovitskiy et al., arXiv 2010.11929), as torchvision has it.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;

use super::collect_parameters;
use crate::{Conv2d, ConvConfig, Dropout, LayerNorm, Linear, Mask, Module, MultiheadAttention};

/// Sizes of a [`VisionTransformer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VitConfig {
    /// Height and width of the images.
    pub image: usize,
    /// Height and width of a patch, which divides the image.
    pub patch: usize,
    /// Layers.
    pub layers: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
    /// Width.
    pub width: usize,
    /// Width inside a perceptron.
    pub hidden: usize,
    /// Classes.
    pub classes: usize,
    /// Zeros, in training, in what is added to the residual.
    pub dropout: f64,
}

impl VitConfig {
    /// ViT-B/16 for images of 224x224.
    pub fn b16(classes: usize) -> Self {
        let (image, patch, layers, heads) = (224, 16, 12, 12);
        Self { image, patch, layers, heads, width: 768, hidden: 3072, classes, dropout: 0.0 }
    }

    /// A small one for images of 32x32.
    pub fn cifar(classes: usize) -> Self {
        let (image, patch, layers, heads) = (32, 4, 6, 4);
        Self { image, patch, layers, heads, width: 192, hidden: 768, classes, dropout: 0.0 }
    }
}

/// ViT-B/16 for so many classes.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::models::vit_b_16;
/// use graphc_nn::Module;
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("vit_b_16");
/// let model = vit_b_16(&g, 1000);
/// let logits = model.forward(&g.input("x", DType::F32, [2, 3, 224, 224]));
/// assert_eq!((logits.shape(), model.parameters().len()), (vec![2, 1000], 152));
/// assert!(g.finish()?.find("encoder.layers.encoder_layer_11.mlp.3.bias").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
#[track_caller]
pub fn vit_b_16(g: &GraphBuilder, classes: usize) -> VisionTransformer {
    VisionTransformer::new(g, &VitConfig::b16(classes))
}

/// A transformer over the patches of images and a token of the class: `[n, 3, h, w]` to logits `[n, classes]`.
pub struct VisionTransformer {
    /// The projection from patches to the width.
    pub conv_proj: Conv2d,
    /// `[1, 1, width]`.
    pub class_token: Tensor,
    /// `[1, 1 + patches, width]`.
    pub pos_embedding: Tensor,
    /// The layers.
    pub layers: Vec<VitLayer>,
    /// The normalization behind the layers.
    pub ln: LayerNorm,
    /// The projection from the width to classes.
    pub head: Linear,
    dropout: Dropout,
}

impl VisionTransformer {
    /// Makes the model with torchvision's first contents; the classifier is 0 at first.
    #[track_caller]
    pub fn new(g: &GraphBuilder, config: &VitConfig) -> Self {
        let VitConfig { image, patch, width, .. } = *config;
        if patch == 0 || !image.is_multiple_of(patch) {
            g.fail(format!("patches of {patch} do not divide images of {image}"));
        }
        let tokens = 1 + (image / patch.max(1)).pow(2);
        let form = ConvConfig { stride: [patch; 2], ..ConvConfig::square(patch) };
        let by_patch = normal_init((1.0 / (3 * patch * patch).max(1) as f64).sqrt());
        let zero = || Init::Fill(Scalar(0.0));
        g.with_location(|| Self {
            class_token: g.variable("class_token", g.dtype(), [1, 1, width], zero()),
            conv_proj: Conv2d::with_init(g, "conv_proj", [3, width], form, by_patch),
            pos_embedding: g.variable(
                "encoder.pos_embedding",
                g.dtype(),
                [1, tokens, width],
                normal_init(0.02),
            ),
            layers: (0..config.layers).map(|at| VitLayer::new(g, at, config)).collect(),
            ln: layer_norm(g, "encoder.ln", width),
            head: Linear::with_init(g, "heads.head", [width, config.classes], zero(), Some(zero())),
            dropout: Dropout(config.dropout),
        })
    }

    /// Patches, the token of the class before them, with their positions: `[n, 1 + patches, width]`.
    #[track_caller]
    pub fn embed(&self, x: &Tensor) -> Tensor {
        let patches = self.conv_proj.forward(x);
        let [n, width, rows, columns] = patches.shape()[..] else { return patches };
        let patches = patches.reshape(&[n, width, rows * columns]);
        let class = self.class_token.expand(&[n, 1, width]);
        let tokens = x.builder().concat(&[class, patches.transpose(&[0, 2, 1])], 1);
        self.dropout.forward(&tokens.add(&self.pos_embedding))
    }
}

impl Module for VisionTransformer {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.builder().with_location(|| {
            let y = self.layers.iter().fold(self.embed(x), |y, layer| layer.forward(&y));
            let y = self.ln.forward(&y);
            let [n, _, width] = y.shape()[..] else { return y };
            self.head.forward(&y.slice(1, 0..1).reshape(&[n, width]))
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        let mut all = vec![self.class_token.clone(), self.pos_embedding.clone()];
        all.extend(self.conv_proj.parameters());
        all.extend(self.layers.iter().flat_map(Module::parameters));
        all.extend(collect_parameters(&[&self.ln, &self.head]));
        all
    }
}

/// Attention and a perceptron, each behind a normalization and beside a residual.
pub struct VitLayer {
    /// The normalization before attention.
    pub ln_1: LayerNorm,
    /// Attention.
    pub self_attention: MultiheadAttention,
    /// The normalization before the perceptron.
    pub ln_2: LayerNorm,
    /// `mlp.0` and `mlp.3`: to the width inside, and back.
    pub mlp: [Linear; 2],
    dropout: Dropout,
}

impl VitLayer {
    #[track_caller]
    fn new(g: &GraphBuilder, at: usize, config: &VitConfig) -> Self {
        let VitConfig { width, heads, hidden, .. } = *config;
        let bound = (6.0 / (width + hidden).max(1) as f64).sqrt();
        let linear = |name: &str, sizes: [usize; 2]| {
            let weight = Init::Uniform { low: Scalar(-bound), high: Scalar(bound) };
            Linear::with_init(g, name, sizes, weight, Some(normal_init(1e-6)))
        };
        g.scope(&format!("encoder.layers.encoder_layer_{at}"), || Self {
            ln_1: layer_norm(g, "ln_1", width),
            self_attention: MultiheadAttention::new(g, "self_attention", width, heads),
            ln_2: layer_norm(g, "ln_2", width),
            mlp: [linear("mlp.0", [width, hidden]), linear("mlp.3", [hidden, width])],
            dropout: Dropout(config.dropout),
        })
    }
}

impl Module for VitLayer {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.ln_1.forward(x);
        let y = self.self_attention.attend(&y, &y, &y, Mask::None);
        let x = x.add(&self.dropout.forward(&y));
        let [wide, narrow] = &self.mlp;
        let inside = self.dropout.forward(&wide.forward(&self.ln_2.forward(&x)).gelu());
        x.add(&self.dropout.forward(&narrow.forward(&inside)))
    }

    fn parameters(&self) -> Vec<Tensor> {
        let [wide, narrow] = &self.mlp;
        collect_parameters(&[&self.ln_1, &self.self_attention, &self.ln_2, wide, narrow])
    }
}

fn layer_norm(g: &GraphBuilder, name: &str, width: usize) -> LayerNorm {
    LayerNorm { epsilon: 1e-6, ..LayerNorm::new(g, name, width) }
}

fn normal_init(std: f64) -> Init {
    Init::Normal { mean: Scalar(0.0), std: Scalar(std) }
}
