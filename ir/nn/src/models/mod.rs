//! Models that people train, of the modules of [`crate`]. Names of weights are torchvision's where it has the model, so
//! that its weights fit.
//!
//! Start with [`resnet18`].

use graphc_ir::builder::Tensor;

use crate::Module;

mod gpt2;
mod lstm_lm;
mod mobilenet;
mod resnet;
mod vit;

pub use gpt2::{Gpt2, Gpt2Block, Gpt2Config, Product, gpt2};
pub use lstm_lm::{LstmLm, LstmLmConfig, lstm_lm};
pub use mobilenet::{ConvNorm, InvertedResidual, MobileNetConfig, MobileNetV2, mobilenet_v2};
pub use resnet::{Block, ResNet, ResNetConfig, resnet18, resnet50};
pub use vit::{VisionTransformer, VitConfig, VitLayer, vit_b_16};

/// The weights of modules, one after the other.
fn collect_parameters(modules: &[&dyn Module]) -> Vec<Tensor> {
    modules.iter().flat_map(|module| module.parameters()).collect()
}
