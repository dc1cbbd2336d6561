//! Pipeline stages of modules.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::mesh::Placement;

use super::Module;

/// A module in a pipeline stage: its variables and all that it computes. What it is given is boxed to where the
/// stage is.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_ir::mesh::Placement;
/// use graphc_nn::{Linear, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("pipeline");
/// let first = Linear::new(&g, "first", 5, 8).set_stage(0, Placement::new(vec![0, 1], vec![2])?);
/// let second = Linear::new(&g, "second", 8, 3).set_stage(1, Placement::new(vec![2, 3], vec![2])?);
/// let x = first.here(&g, || g.input("x", DType::F32, [4, 5]));
/// g.output("out", &second.forward(&first.forward(&x)));
/// let graph = g.finish()?;
/// assert_eq!(graph.stages.len(), 2);
/// assert!(graph.nodes.iter().all(|node| node.stage().is_some()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Staged<M> {
    /// The module.
    pub module: M,
    stage: usize,
    placement: Option<Placement>,
}

impl<M: Module> Staged<M> {
    /// Puts a module, with its variables, in a stage; on a placement if one is given.
    pub fn new(module: M, stage: usize, placement: Option<Placement>) -> Self {
        for variable in [module.parameters(), module.buffers()].concat() {
            variable.builder().assign_stage(&variable, stage, placement.as_ref());
        }
        Self { module, stage, placement }
    }
}

impl<M> Staged<M> {
    /// Runs `body` with every node it makes in this stage.
    pub fn here<T>(&self, builder: &GraphBuilder, body: impl FnOnce() -> T) -> T {
        builder.declare_stage(self.stage, self.placement.clone());
        builder.in_stage(self.stage, || match &self.placement {
            Some(placement) => builder.on(placement, body),
            None => body(),
        })
    }
}

impl<M: Module> Module for Staged<M> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let builder = x.builder();
        builder.with_location(|| self.here(builder, || self.module.forward(x)))
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.module.parameters()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.module.buffers()
    }
}
