//! Modules: weights and the function that they serve, as in torch.nn. A module declares its variables once, in
//! `new`, and appends nodes each time it is applied; used twice it shares its weights. Nothing here computes.
//!
//! Start with [`Linear`]; [`Gpt`] shows how modules are put together.

use crate::builder::{GraphBuilder, Tensor};
use crate::mesh::Placement;

mod attention;
mod experts;
mod gpt;
mod layers;
mod llama;
mod stage;

pub use attention::{CausalSelfAttention, Mlp, TransformerBlock};
pub use experts::{SwitchConfig, SwitchFeedForward};
pub use gpt::{Gpt, GptConfig};
pub use layers::{Embedding, LayerNorm, Linear, RmsNorm};
pub use llama::{GroupedQueryAttention, Llama, LlamaBlock, LlamaConfig, SwiGlu};
pub use stage::Staged;

/// A function with weights.
///
/// ```
/// use graphc_ir::builder::{GraphBuilder, Tensor};
/// use graphc_ir::nn::{Linear, Module};
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

    /// Its variables.
    fn parameters(&self) -> Vec<Tensor>;

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
        x.builder().located(|| self.as_ref().forward(x))
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.as_ref().parameters()
    }
}

/// A function without weights, so that it can stand between modules.
#[derive(Clone, Copy)]
pub struct Function(pub fn(&Tensor) -> Tensor);

impl Module for Function {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        (self.0)(x)
    }

    fn parameters(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

/// Modules one after the other.
///
/// ```
/// use graphc_ir::builder::{GraphBuilder, Tensor};
/// use graphc_ir::nn::{Function, Linear, Module, Sequential};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("mlp");
/// let mlp = Sequential::new()
///     .then(Linear::new(&g, "0", 784, 128))
///     .then(Function(Tensor::relu))
///     .then(Linear::new(&g, "2", 128, 10));
/// let y = mlp.forward(&g.input("x", DType::F32, [32, 784]));
/// assert_eq!((y.shape(), mlp.parameters().len()), (vec![32, 10], 4));
/// ```
#[derive(Default)]
pub struct Sequential {
    modules: Vec<Box<dyn Module>>,
}

impl Sequential {
    /// Nothing: its result is what it is given.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a module.
    pub fn then(mut self, module: impl Module + 'static) -> Self {
        self.modules.push(Box::new(module));
        self
    }
}

impl Module for Sequential {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let apply = || self.modules.iter().fold(x.clone(), |x, module| module.forward(&x));
        x.builder().located(apply)
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.modules.iter().flat_map(Module::parameters).collect()
    }
}

/// Declares the variables of a module of this name; errors name the caller.
#[track_caller]
fn module<T>(g: &GraphBuilder, name: &str, declare: impl FnOnce() -> T) -> T {
    g.located(|| g.scope(name, declare))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DType;

    #[test]
    fn errors_inside_modules_name_the_users_line() {
        let g = GraphBuilder::new("wrong");
        let net = Sequential::new().then(Linear::new(&g, "fc", 4, 4));
        let _twice = Linear::new(&g, "fc", 4, 4);
        let x = g.input("x", DType::F32, [2, 3]);
        let _ = net.set_stage(0, None).forward(&x);
        let errors = g.finish().expect_err("3 is not 4, and `fc` is taken").to_string();
        assert_eq!(errors.matches("nn/mod.rs").count(), errors.lines().count(), "{errors}");
        assert!(errors.contains("`fc.weight` is taken"), "{errors}");
    }

    #[test]
    fn a_stage_holds_the_weights_of_its_module() {
        let g = GraphBuilder::new("stages");
        let fc = Linear::new(&g, "fc", 4, 4).set_stage(1, None);
        assert_eq!(fc.parameters().len(), 2);
        let graph = g.finish().expect("fits");
        assert!(graph.nodes.iter().all(|node| node.stage.is_some_and(|stage| stage.0 == 1)));
    }
}
