//! Modules: weights and the function that they serve, as in torch.nn. A module declares its variables once, in
//! `new`, and appends nodes each time it is applied; used twice it shares its weights. Nothing here computes.
//!
//! Start with [`Linear`]; [`Gpt`] shows how modules are put together. [`models`] has whole models that people train.

#![warn(unreachable_pub)]

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::mesh::Placement;

mod attention;
mod containers;
mod convolution;
mod experts;
mod gpt;
mod layers;
mod llama;
pub mod models;
mod norms;
mod pooling;
mod recurrent;
mod stage;
mod transformer;

pub use attention::{CausalSelfAttention, Mlp, TransformerBlock};
pub use containers::{Function, ModuleList, Sequential};
pub use convolution::{Conv1d, Conv2d, ConvConfig, ConvTranspose2d};
pub use experts::{MixtureConfig, MixtureFeedForward, Routing, SwitchConfig, SwitchFeedForward};
pub use gpt::{Gpt, GptConfig};
pub use layers::{Embedding, LayerNorm, Linear, RmsNorm};
pub use llama::{GroupedQueryAttention, Llama, LlamaBlock, LlamaConfig, SwiGlu};
pub use norms::{BatchNorm, BatchNorm1d, BatchNorm2d, GroupNorm, InstanceNorm};
pub use pooling::{
    AdaptiveAvgPool2d, AvgPool2d, Dropout, Flatten, MaxPool2d, PoolConfig, Upsample,
};
pub use recurrent::{Gru, Lstm, LstmState, RnnConfig};
pub use stage::Staged;
pub use transformer::{
    Mask, MultiheadAttention, TransformerConfig, TransformerDecoderLayer, TransformerEncoderLayer,
};

/// A function with weights.
///
/// ```
/// use graphc_ir::builder::{GraphBuilder, Tensor};
/// use graphc_nn::{Linear, Module};
/// use graphc_ir::types::DType;
///
/// struct Residual(Linear);
///
/// impl Module for Residual {
///     fn forward(&self, x: &Tensor) -> Tensor {
///         x.add(&self.0.forward(x).relu())
///     }
///
///     fn parameters(&self) -> Vec<Tensor> {
///         self.0.parameters()
///     }
/// }
///
/// let g = GraphBuilder::new("example");
/// let x = g.input("x", DType::F32, [4, 8]);
/// let y = Residual(Linear::new(&g, "fc", 8, 8)).forward(&x);
/// assert_eq!(y.shape(), [4, 8]);
/// ```
pub trait Module {
    /// Applies it.
    fn forward(&self, x: &Tensor) -> Tensor;

    /// Returns its weights.
    fn parameters(&self) -> Vec<Tensor>;

    /// Returns its other variables, which no optimizer changes: running statistics, say.
    fn buffers(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// The module in a pipeline stage, on a placement if one is given.
    fn set_stage(self, stage: usize, placement: impl Into<Option<Placement>>) -> Staged<Self>
    where
        Self: Sized,
    {
        Staged::new(self, stage, placement.into())
    }
}

impl Module for Box<dyn Module> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.builder().with_location(|| self.as_ref().forward(x))
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.as_ref().parameters()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.as_ref().buffers()
    }
}

/// Declares the variables of a module of this name; errors name the caller.
#[track_caller]
fn declare_module<T>(g: &GraphBuilder, name: &str, declare: impl FnOnce() -> T) -> T {
    g.with_location(|| g.scope(name, declare))
}

#[cfg(test)]
mod tests {
    use super::*;
    use graphc_ir::types::DType;

    #[test]
    fn errors_inside_modules_name_the_users_line() {
        let g = GraphBuilder::new("wrong");
        let net = Sequential::new().then(Linear::new(&g, "fc", 4, 4));
        let _twice = Linear::new(&g, "fc", 4, 4);
        let x = g.input("x", DType::F32, [2, 3]);
        let _ = net.set_stage(0, None).forward(&x);
        let errors = g.finish().expect_err("3 is not 4, and `fc` is taken").to_string();
        assert_eq!(errors.matches("nn/src/lib.rs").count(), errors.lines().count(), "{errors}");
        assert!(errors.contains("`fc.weight` is taken"), "{errors}");
    }

    #[test]
    fn a_stage_holds_the_weights_of_its_module() {
        let g = GraphBuilder::new("stages");
        let fc = Linear::new(&g, "fc", 4, 4).set_stage(1, None);
        assert_eq!(fc.parameters().len(), 2);
        let graph = g.finish().expect("fits");
        assert!(graph.nodes.iter().all(|node| node.stage().is_some_and(|stage| stage.0 == 1)));
    }
}
