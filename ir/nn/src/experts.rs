//! A mixture of experts.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::{ExpertPlaces, Init};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use super::attention::{STD, three_dims};
use super::{Linear, Module, declare_module};

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
/// use graphc_nn::{Module, SwitchConfig, SwitchFeedForward};
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

/// The way from a token's scores for experts to choices and weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// The experts with the greatest scores, weighed by a softmax over these: as Mixtral (Jiang et al., arXiv 2401.04088, section 2.1), and
    /// as Qwen3 and gpt-oss, where the softmax is over all and the chosen ones are brought to a sum of 1.
    Softmax,
    /// The sigmoid of each score. The experts with the greatest sums of that and `router.bias`, which has no gradient, are chosen. They are weighed
    /// by the sigmoids alone, brought to a sum of `scale`: as DeepSeek-V3 (arXiv 2412.19437, section 2.1.2), without its limit of nodes.
    Sigmoid {
        /// The sum of a token's weights.
        scale: f64,
    },
}

/// Sizes of a [`MixtureFeedForward`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixtureConfig {
    /// Width.
    pub width: usize,
    /// Width inside an expert.
    pub hidden: usize,
    /// Number of experts.
    pub experts: usize,
    /// Number of experts that a token takes.
    pub chosen: usize,
    /// The way in which tokens choose.
    pub routing: Routing,
    /// Number of blocks of places that experts share, which divides that of experts: at least as many as ranks that split experts.
    pub blocks: usize,
    /// Places of a block for each sequence, over what an even distribution needs; the last of more are dropped. `None`: as many as
    /// choices may need, so that none is dropped.
    pub capacity: Option<f64>,
}

/// A layer that sends each token of `[batch, time, width]` through some of many SwiGLU perceptrons and adds up what they give, weighed.
///
/// No token is dropped unless the sizes bound the places of a block. Products are as long as tokens chose the expert
/// ([`Tensor::grouped_matmul`]). Experts are one weight, `[experts, width, hidden]`. Split by experts it is expert parallelism: a rank has
/// some of the blocks.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{MixtureConfig, MixtureFeedForward, Module, Routing};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let sizes = MixtureConfig {
///     width: 16,
///     hidden: 8,
///     experts: 8,
///     chosen: 2,
///     routing: Routing::Softmax,
///     blocks: 2,
///     capacity: None,
/// };
/// let layer = MixtureFeedForward::new(&g, "mixture", &sizes);
/// let x = g.input("x", DType::F32, [2, 6, 16]);
/// assert_eq!(layer.forward(&x).shape(), [2, 6, 16]);
/// ```
pub struct MixtureFeedForward {
    /// `width -> experts`.
    pub router: Linear,
    /// The summand of scores before experts are chosen, `[experts]`, where routing is by sigmoids.
    pub bias: Option<Tensor>,
    /// `[experts, width, hidden]`, behind which is SiLU.
    pub gate: Tensor,
    /// `[experts, width, hidden]`.
    pub up: Tensor,
    /// `[experts, hidden, width]`.
    pub down: Tensor,
    /// Its sizes.
    pub sizes: MixtureConfig,
}

impl MixtureFeedForward {
    /// Makes the layer with normal weights of deviation 0.02.
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, sizes: &MixtureConfig) -> Self {
        let MixtureConfig { width, hidden, experts, chosen, blocks, .. } = *sizes;
        if !(1..=experts).contains(&chosen) || blocks == 0 || !experts.is_multiple_of(blocks) {
            g.fail(format!(
                "{chosen} of {experts} experts in {blocks} blocks: a token takes 1 to {experts}, and blocks divide experts"
            ));
        }
        if let Some(capacity) =
            sizes.capacity.filter(|capacity| capacity.is_nan() || *capacity <= 0.0)
        {
            g.fail(format!("a capacity of {capacity}: it must be more than 0"));
        }
        let normal = || Init::Normal { mean: Scalar(0.0), std: Scalar(STD) };
        let weight = |name: &str, shape| g.variable(name, g.dtype(), shape, normal());
        declare_module(g, name, || Self {
            router: Linear::with_init(g, "router", [width, experts], normal(), None),
            bias: match sizes.routing {
                Routing::Softmax => None,
                Routing::Sigmoid { .. } => {
                    let (ty, zeros) =
                        (TensorType::new(DType::F32, [experts]), Init::Fill(Scalar(0.0)));
                    Some(g.variable_of("router.bias", ty, zeros, false))
                }
            },
            gate: weight("gate.weight", [experts, width, hidden]),
            up: weight("up.weight", [experts, width, hidden]),
            down: weight("down.weight", [experts, hidden, width]),
            sizes: *sizes,
        })
    }

    /// The result, and the auxiliary loss that keeps experts evenly used: experts times the sum over experts of its share of all choices and
    /// its mean share of scores, 1 where all are used alike (Fedus et al., arXiv 2101.03961, equation 4, for several choices).
    #[track_caller]
    pub fn forward_and_balance(&self, x: &Tensor) -> (Tensor, Tensor) {
        x.builder().with_location(|| {
            let scores = self.router.forward(x).cast(DType::F32);
            let (chosen, weights) = self.choose(&scores);
            (self.mix(x, &chosen, &weights), self.balance(&scores, &chosen))
        })
    }

    /// Sums what the chosen experts give for each token, weighed.
    fn mix(&self, x: &Tensor, chosen: &Tensor, weights: &Tensor) -> Tensor {
        let Some([_, time, _]) = three_dims(x) else { return x.clone() };
        let places = self.expert_places(time);
        let taken = x.dispatch_to(chosen, places);
        let product = |x: &Tensor, weight| x.grouped_matmul(weight, chosen, false);
        let hidden = product(&taken, &self.gate).silu().mul(&product(&taken, &self.up));
        let weights = weights.cast(x.ty().dtype);
        product(&hidden, &self.down).combine_from(chosen, places, Some(&weights))
    }

    /// The experts that tokens choose, and their weights, both `[batch, time, chosen]`.
    fn choose(&self, scores: &Tensor) -> (Tensor, Tensor) {
        let count = self.sizes.chosen;
        match (self.sizes.routing, &self.bias) {
            (Routing::Sigmoid { scale }, Some(bias)) => {
                let each = scores.sigmoid();
                let (_, chosen) = each.add(bias).detach().top_k(count, 2);
                let weights = each.gather(&chosen);
                let sum = weights.sum(&[2], true);
                (chosen, weights.div(&sum).scale(scale))
            }
            _ => {
                let (best, chosen) = scores.top_k(count, 2);
                (chosen, best.softmax(2))
            }
        }
    }

    fn balance(&self, scores: &Tensor, chosen: &Tensor) -> Tensor {
        let MixtureConfig { experts, chosen: count, routing, .. } = self.sizes;
        let shares = match routing {
            Routing::Softmax => scores.softmax(2),
            Routing::Sigmoid { .. } => {
                let each = scores.sigmoid();
                each.div(&each.sum(&[2], true))
            }
        };
        let mean = shares.mean(&[0, 1], false);
        let each = scores.builder().iota(DType::I64, [experts], 0);
        let of_choice = |choice: usize| {
            chosen.slice(2, choice..choice + 1).equal(&each).cast(DType::F32).mean(&[0, 1], false)
        };
        let used = (1..count).map(of_choice).fold(of_choice(0), |all, share| all.add(&share));
        used.mul(&mean).sum(&[0], false).scale(experts as f64 / count as f64)
    }

    /// The places for sequences of this length.
    fn expert_places(&self, time: usize) -> ExpertPlaces {
        let MixtureConfig { experts, chosen, blocks, capacity, .. } = self.sizes;
        let most = ExpertPlaces::most_choices(experts, blocks, [time, chosen]);
        let bound = |capacity: f64| {
            let even = capacity * (time * chosen) as f64 / blocks.max(1) as f64;
            (even.ceil() as usize).min(most)
        };
        ExpertPlaces { experts, blocks, capacity: capacity.map_or(most, bound).max(1) }
    }
}

impl Module for MixtureFeedForward {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.builder().with_location(|| {
            let (chosen, weights) = self.choose(&self.router.forward(x).cast(DType::F32));
            self.mix(x, &chosen, &weights)
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        let experts = [&self.gate, &self.up, &self.down].map(Tensor::clone);
        [self.router.parameters(), experts.to_vec()].concat()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.bias.iter().cloned().collect()
    }
}
