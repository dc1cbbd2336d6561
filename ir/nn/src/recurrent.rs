//! Recurrent layers over `[batch, time, features]`, unrolled over time.
//!
//! One product takes the inputs of all steps; the products of the state are made step by step. Names, order of gates and first
//! contents are torch's.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;

use super::{Module, declare_module};

/// Sizes of an [`Lstm`] or a [`Gru`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RnnConfig {
    /// Features of what is given at a step.
    pub inputs: usize,
    /// Width of the state.
    pub hidden: usize,
    /// Layers, each on what the one before it makes.
    pub layers: usize,
    /// Whether each layer also goes from the end to the start; its results are then twice as wide.
    pub bidirectional: bool,
    /// Zeros between layers, in training.
    pub dropout: f64,
}

impl RnnConfig {
    /// Makes the configuration of one layer that goes forward.
    pub fn new(inputs: usize, hidden: usize) -> Self {
        Self { inputs, hidden, layers: 1, bidirectional: false, dropout: 0.0 }
    }

    fn count_directions(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }
}

/// Long short-term memory (Hochreiter and Schmidhuber, 1997), as torch.nn.LSTM with `batch_first`.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Lstm, Module, RnnConfig};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let lstm = Lstm::new(&g, "rnn", RnnConfig { layers: 2, ..RnnConfig::new(8, 16) });
/// let (y, states) = lstm.forward_from(&g.input("x", DType::F32, [4, 5, 8]), None);
/// assert_eq!((y.shape(), states.len(), lstm.parameters().len()), (vec![4, 5, 16], 2, 8));
/// assert_eq!(states[1].hidden.shape(), [4, 16]);
/// assert!(g.finish()?.find("rnn.weight_hh_l1").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
pub struct Lstm(Recurrent);

/// The state of a layer's direction, each `[batch, hidden]`.
#[derive(Clone)]
pub struct LstmState {
    /// The state that it gives.
    pub hidden: Tensor,
    /// The content that it keeps.
    pub cell: Tensor,
}

impl Lstm {
    /// Makes the layers with weights and biases uniform in +-1/sqrt(hidden).
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, config: RnnConfig) -> Self {
        Self(declare_module(g, name, || Recurrent::new(g, config, 4)))
    }

    /// Runs the layers from these states, one for each layer's directions (zeros where there is none). Returns the results of the last
    /// layer, and the states behind the last step.
    #[track_caller]
    pub fn forward_from(
        &self,
        x: &Tensor,
        states: Option<&[LstmState]>,
    ) -> (Tensor, Vec<LstmState>) {
        let first = states.map(|states| {
            states.iter().map(|state| vec![state.hidden.clone(), state.cell.clone()]).collect()
        });
        let (y, last) = self.0.run_layers(x, first, 2, |projected, recurrent, state| {
            let gates = projected.add(recurrent);
            let parts = split_gates(&gates, 4);
            let [i, f, g, o] = &parts[..] else { return state.to_vec() };
            let cell = f.sigmoid().mul(&state[1]).add(&i.sigmoid().mul(&g.tanh()));
            vec![o.sigmoid().mul(&cell.tanh()), cell]
        });
        let state = |state: Vec<Tensor>| {
            let [hidden, cell] = [0, 1].map(|at| state[at].clone());
            LstmState { hidden, cell }
        };
        (y, last.into_iter().map(state).collect())
    }
}

impl Module for Lstm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.forward_from(x, None).0
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.0.parameters()
    }
}

/// Gated recurrent units (Cho et al., arXiv 1406.1078), as torch.nn.GRU with `batch_first`.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Gru, Module, RnnConfig};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let gru = Gru::new(&g, "rnn", RnnConfig { bidirectional: true, ..RnnConfig::new(8, 16) });
/// let (y, states) = gru.forward_from(&g.input("x", DType::F32, [4, 5, 8]), None);
/// assert_eq!((y.shape(), states.len()), (vec![4, 5, 32], 2));
/// assert!(g.finish()?.find("rnn.bias_ih_l0_reverse").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
pub struct Gru(Recurrent);

impl Gru {
    /// Makes the layers with weights and biases uniform in +-1/sqrt(hidden).
    #[track_caller]
    pub fn new(g: &GraphBuilder, name: &str, config: RnnConfig) -> Self {
        Self(declare_module(g, name, || Recurrent::new(g, config, 3)))
    }

    /// Runs the layers from these states `[batch, hidden]`, one for each layer's directions (zeros where there is none). Returns the
    /// results of the last layer, and the states behind the last step.
    #[track_caller]
    pub fn forward_from(&self, x: &Tensor, states: Option<&[Tensor]>) -> (Tensor, Vec<Tensor>) {
        let first = states.map(|states| states.iter().map(|state| vec![state.clone()]).collect());
        let (y, last) = self.0.run_layers(x, first, 1, |projected, recurrent, state| {
            let [of_x, of_h] = [projected, recurrent].map(|gates| split_gates(gates, 3));
            let ([xr, xz, xn], [hr, hz, hn]) = (&of_x[..], &of_h[..]) else {
                return state.to_vec();
            };
            let (reset, keep) = (xr.add(hr).sigmoid(), xz.add(hz).sigmoid());
            let new = xn.add(&reset.mul(hn)).tanh();
            // (1 - keep) new + keep h
            vec![new.add(&keep.mul(&state[0].sub(&new)))]
        });
        (y, last.into_iter().map(|mut state| state.swap_remove(0)).collect())
    }
}

impl Module for Gru {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.forward_from(x, None).0
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.0.parameters()
    }
}

/// Gates `[batch, count hidden]` one by one.
#[track_caller]
fn split_gates(gates: &Tensor, count: usize) -> Vec<Tensor> {
    let width = gates.shape().last().copied().unwrap_or(0);
    gates.split(1, &vec![width / count; count])
}

/// Layers of either kind.
struct Recurrent {
    config: RnnConfig,
    /// Layer by layer, of each its directions.
    cells: Vec<DirectionWeights>,
}

/// One direction of a layer; weights are of all gates.
struct DirectionWeights {
    /// `[gates hidden, inputs]`.
    weight_ih: Tensor,
    /// `[gates hidden, hidden]`.
    weight_hh: Tensor,
    /// `[gates hidden]`.
    bias_ih: Tensor,
    /// `[gates hidden]`.
    bias_hh: Tensor,
}

impl Recurrent {
    #[track_caller]
    fn new(g: &GraphBuilder, config: RnnConfig, gates: usize) -> Self {
        if config.layers == 0 || config.hidden == 0 {
            g.fail("a recurrent layer needs a state and a layer at least");
        }
        let directions = config.count_directions();
        let cell = |at: usize| {
            let (layer, reverse) = (at / directions, at % directions == 1);
            let inputs = if layer == 0 { config.inputs } else { directions * config.hidden };
            DirectionWeights::new(g, layer, reverse, [inputs, config.hidden, gates])
        };
        Self { config, cells: (0..config.layers * directions).map(cell).collect() }
    }

    fn parameters(&self) -> Vec<Tensor> {
        let of = |cell: &DirectionWeights| {
            [&cell.weight_ih, &cell.weight_hh, &cell.bias_ih, &cell.bias_hh].map(Tensor::clone)
        };
        self.cells.iter().flat_map(of).collect()
    }

    /// Runs all layers. A state is `parts` tensors, of which the first is what a step gives; `next` makes it from the gates'
    /// share of the input, that of the state, and the state.
    #[track_caller]
    fn run_layers(
        &self,
        x: &Tensor,
        first: Option<Vec<Vec<Tensor>>>,
        parts: usize,
        next: impl Fn(&Tensor, &Tensor, &[Tensor]) -> Vec<Tensor>,
    ) -> (Tensor, Vec<Vec<Tensor>>) {
        let g = x.builder();
        let (directions, hidden) = (self.config.count_directions(), self.config.hidden);
        let mut states = first.unwrap_or_default();
        let [batch, _, _] = x.shape()[..] else {
            let y = super::convolution::not_of_rank(x, "a sequence [batch, time, features]");
            return (y.clone(), vec![vec![y; parts]; self.cells.len()]);
        };
        if !states.is_empty() && states.len() != self.cells.len() {
            g.fail(format!("{} states of {} cells", states.len(), self.cells.len()));
            states.clear();
        }
        let zeros = || vec![g.full(x.ty().dtype, [batch, hidden], 0.0); parts];
        states.resize_with(self.cells.len(), zeros);
        g.with_location(|| {
            let mut y = x.clone();
            for (layer, cells) in self.cells.chunks(directions).enumerate() {
                if layer > 0 && self.config.dropout > 0.0 {
                    y = y.dropout(self.config.dropout);
                }
                let both = cells.iter().zip(&mut states[layer * directions..]).enumerate();
                let made: Vec<Tensor> = both
                    .map(|(way, (cell, state))| cell.run_direction(&y, state, way == 1, &next))
                    .collect();
                y = if directions == 1 { made[0].clone() } else { g.concat(&made, 2) };
            }
            (y, states)
        })
    }
}

impl DirectionWeights {
    #[track_caller]
    fn new(
        g: &GraphBuilder,
        layer: usize,
        reverse: bool,
        [inputs, hidden, gates]: [usize; 3],
    ) -> Self {
        let bound = 1.0 / (hidden.max(1) as f64).sqrt();
        let init = Init::Uniform { low: Scalar(-bound), high: Scalar(bound) };
        let suffix = if reverse { "_reverse" } else { "" };
        let variable = |name: &str, shape: Vec<usize>| {
            g.variable(&format!("{name}_l{layer}{suffix}"), g.dtype(), shape, init.clone())
        };
        Self {
            weight_ih: variable("weight_ih", vec![gates * hidden, inputs]),
            weight_hh: variable("weight_hh", vec![gates * hidden, hidden]),
            bias_ih: variable("bias_ih", vec![gates * hidden]),
            bias_hh: variable("bias_hh", vec![gates * hidden]),
        }
    }

    /// The states that all steps give, `[batch, time, hidden]`; `state` becomes that behind the last one.
    #[track_caller]
    fn run_direction(
        &self,
        x: &Tensor,
        state: &mut Vec<Tensor>,
        reverse: bool,
        next: impl Fn(&Tensor, &Tensor, &[Tensor]) -> Vec<Tensor>,
    ) -> Tensor {
        let projected = x.matmul_transposed(&self.weight_ih, false, true).add(&self.bias_ih);
        let [batch, time, gates] = projected.shape()[..] else { return projected };
        let steps = projected.split(1, &vec![1; time]);
        let mut given = Vec::with_capacity(time);
        let order: Vec<usize> =
            if reverse { (0..time).rev().collect() } else { (0..time).collect() };
        for at in order {
            let own = steps[at].reshape(&[batch, gates]);
            let of_state = state[0].matmul_transposed(&self.weight_hh, false, true);
            *state = next(&own, &of_state.add(&self.bias_hh), state);
            let hidden = state[0].shape().last().copied().unwrap_or(0);
            given.push(state[0].reshape(&[batch, 1, hidden]));
        }
        if reverse {
            given.reverse();
        }
        x.builder().concat(&given, 1)
    }
}
