//! Modules of modules.

use graphc_ir::builder::{GraphBuilder, Tensor};

use super::{Module, declare_module};

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
/// use graphc_nn::{Function, Linear, Module, Sequential};
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
    /// Makes a sequence of no modules: its result is its argument.
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
        x.builder().with_location(apply)
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.modules.iter().flat_map(Module::parameters).collect()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.modules.iter().flat_map(Module::buffers).collect()
    }
}

/// Modules of one kind under a name, `name.0`, `name.1` and so on. What they do together is whose they are to say: it derefs to
/// the modules.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Linear, Module, ModuleList};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let layers = ModuleList::new(&g, "layers", 3, |at| Linear::new(&g, at, 8, 8));
/// let x = g.input("x", DType::F32, [4, 8]);
/// let y = layers.iter().fold(x, |x, layer| layer.forward(&x).add(&x));
/// assert_eq!((y.shape(), layers.parameters().len()), (vec![4, 8], 6));
/// assert!(g.finish()?.find("layers.2.weight").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
pub struct ModuleList<M>(Vec<M>);

impl<M: Module> ModuleList<M> {
    /// Makes `count` modules; each is told its own name.
    #[track_caller]
    pub fn new(
        g: &GraphBuilder,
        name: &str,
        count: usize,
        mut declare: impl FnMut(&str) -> M,
    ) -> Self {
        declare_module(g, name, || Self((0..count).map(|at| declare(&at.to_string())).collect()))
    }

    /// The weights of all.
    pub fn parameters(&self) -> Vec<Tensor> {
        self.0.iter().flat_map(Module::parameters).collect()
    }

    /// The other variables of all.
    pub fn buffers(&self) -> Vec<Tensor> {
        self.0.iter().flat_map(Module::buffers).collect()
    }
}

impl<M> std::ops::Deref for ModuleList<M> {
    type Target = [M];

    fn deref(&self) -> &[M] {
        &self.0
    }
}
