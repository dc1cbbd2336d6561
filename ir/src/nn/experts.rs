//! A mixture of experts.

use super::attention::{STD, three_dims};
use super::{Linear, Module, declare_module};
use crate::builder::{GraphBuilder, Tensor};
use crate::ops::Init;
use crate::scalar::Scalar;
use crate::types::DType;

/// Sizes of a [`SwitchFeedForward`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchConfig {
    /// Width.
    pub width: usize,
    /// Width inside an expert.
    pub hidden: usize,
    /// Number of experts.
    pub experts: usize,
    /// Places of an expert for each sequence, over what an even distribution needs: `capacity * time / experts`.
    pub capacity: f64,
}

/// A layer that sends each token of `[batch, time, width]` through one of several perceptrons, which the router chooses (Fedus et al.,
/// arXiv 2101.03961, section 2). Each sequence is a group: of its tokens that choose an expert the first have its places, and the rest,
/// which are dropped, become 0, so that a residual beside the layer passes them on.
///
/// Experts are one weight, `[experts, width, hidden]`: split by experts it is expert parallelism, and what the planner
/// boxes is the tensor of places, from groups to experts and back.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_ir::nn::{Module, SwitchConfig, SwitchFeedForward};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let sizes = SwitchConfig { width: 16, hidden: 64, experts: 4, capacity: 1.25 };
/// let layer = SwitchFeedForward::new(&g, "switch", &sizes);
/// let x = g.input("x", DType::F32, [2, 8, 16]);
/// let (y, balance) = layer.forward_and_balance(&x);
/// assert_eq!((y.shape(), balance.shape()), (vec![2, 8, 16], vec![]));
/// ```
pub struct SwitchFeedForward {
    /// `width -> experts`.
    pub router: Linear,
    /// `[experts, width, hidden]`.
    pub fc: Tensor,
    /// `[experts, hidden, width]`.
    pub proj: Tensor,
    /// Its sizes.
    pub sizes: SwitchConfig,
}

impl SwitchFeedForward {
    /// Makes the layer with normal weights of deviation 0.02.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, sizes: &SwitchConfig) -> Self {
        let SwitchConfig { width, hidden, experts, capacity } = *sizes;
        if experts == 0 || !capacity.is_finite() || capacity <= 0.0 {
            g.fail(format!("{experts} experts of capacity {capacity}: both must be more than 0"));
        }
        let normal = || Init::Normal { mean: Scalar(0.0), std: Scalar(STD) };
        declare_module(g, name, || Self {
            router: Linear::with_init(g, "router", [width, experts], normal(), None),
            fc: g.variable("fc.weight", g.dtype(), [experts, width, hidden], normal()),
            proj: g.variable("proj.weight", g.dtype(), [experts, hidden, width], normal()),
            sizes: *sizes,
        })
    }

    /// The result, and the auxiliary loss that keeps experts evenly used: experts times the sum over experts of the share
    /// of tokens that choose it and its mean probability (equation 4), 1 where all are used alike. A training loss adds a
    /// hundredth of it.
    #[track_caller]
    pub fn forward_and_balance(&self, x: &Tensor) -> (Tensor, Tensor) {
        let Some([batch, time, width]) = three_dims(x) else { return (x.clone(), x.clone()) };
        x.builder().with_location(|| {
            let experts = self.sizes.experts;
            // The router is f32 in any case (section 2.4).
            let probabilities = self.router.forward(x).cast(DType::F32).softmax(2);
            let chosen = probabilities.argmax(2, true);
            let weight = probabilities.max(&[2], true).cast(x.ty().dtype);
            let places = self.expert_capacity(time);
            let flat =
                x.dispatch(&chosen, experts, places).reshape(&[experts, batch * places, width]);
            let y = flat.matmul(&self.fc).relu().matmul(&self.proj);
            let y = y.reshape(&[experts, batch, places, width]).combine(&chosen, Some(&weight));
            let each = x.builder().iota(DType::I64, [experts], 0);
            let share = chosen.equal(&each).cast(DType::F32).mean(&[0, 1], false);
            let mean = probabilities.mean(&[0, 1], false);
            (y, share.mul(&mean).sum(&[0], false).scale(experts as f64))
        })
    }

    /// Places of an expert for a sequence of this length: at least one.
    fn expert_capacity(&self, time: usize) -> usize {
        let even = self.sizes.capacity * time as f64 / self.sizes.experts.max(1) as f64;
        (even.ceil() as usize).clamp(1, time.max(1))
    }
}

impl Module for SwitchFeedForward {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.forward_and_balance(x).0
    }

    fn parameters(&self) -> Vec<Tensor> {
        [self.router.parameters(), vec![self.fc.clone(), self.proj.clone()]].concat()
    }
}
