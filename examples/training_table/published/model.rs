//! The graph of a published model: a decoder, or an encoder like BERT, of blocks of attention and a perceptron.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::Result;
use graphc::prelude::*;
use graphc_ir::builder::BuildErrors;
use graphc_ir::ops::Init;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::scalar::Scalar;
use graphc_plan::Pin;

use crate::mixture_block::{Block, BlockConfig};

/// Added to variances.
const EPSILON: f64 = 1e-5;

/// The base of rotary positions.
const BASE: f64 = 500_000.0;

/// The parts that a family of models has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Learned positions, GELU, layer norms and biases; the head reads the table of tokens.
    Gpt,
    /// Like `Gpt`, without a causal mask.
    Bert,
    /// Rotary positions, a gated perceptron with SiLU, RMS norms, no biases, a head of its own.
    Llama,
    /// Rotary positions, a perceptron with a squared ReLU, layer norms, no biases, a head of its own.
    Nemotron,
}

/// The model to train, and the form in which its weights are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The family of models, which says what blocks are made of.
    pub family: Family,
    /// Blocks.
    pub layers: usize,
    /// Width.
    pub hidden: usize,
    /// Heads of queries, and of keys and values.
    pub heads: [usize; 2],
    /// Width of the perceptron inside.
    pub wide: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Sequences of a step.
    pub batch: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// The element type of products.
    pub half: DType,
    /// Whether weights are f32, and cast where they are read.
    pub mixed: bool,
    /// Whether attention is one kernel, without scores in memory.
    pub flash: bool,
    /// Whether logits are f32.
    pub wide_logits: bool,
    /// The number of parts that stages have in all; 1 without stages.
    pub parts: usize,
    /// Whether the table of tokens and the head count as a block each where blocks are dealt out to parts.
    pub ends_count: bool,
    /// The layout of weights and states.
    pub shards: Shards,
    /// The experts of blocks, if they have any.
    pub mixture: Option<Mixture>,
    /// The layout of tokens, where the strategy alone does not give it.
    pub tokens: Option<NdSbp>,
}

/// Blocks with experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// The sizes of a block.
    pub block: BlockConfig,
    /// The layout of experts' weights.
    pub weights: NdSbp,
    /// The layout of the optimizer's states of experts.
    pub states: NdSbp,
}

/// The layout of weights and the optimizer's states on the mesh.
#[derive(Clone, Debug, PartialEq)]
pub enum Shards {
    /// As the strategy has it.
    OfStrategy,
    /// Split over these axes, besides the split of tensor parallelism over the last axis, where there is one.
    Over {
        /// Axes of the mesh.
        axes: usize,
        /// The axes of the ranks that share a weight.
        split: Vec<usize>,
        /// Whether the last axis is that of tensor parallelism.
        tensor: bool,
        /// Whether weights are in shards, and not the states alone.
        weights: bool,
    },
}

/// The way in which tensor parallelism splits a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Columns,
    Rows,
    /// The one dim of a bias, as the columns of its weight.
    Bias,
    Whole,
}

impl Model {
    /// Width of a head.
    fn head(&self) -> usize {
        self.hidden / self.heads[0]
    }

    /// Parameters.
    pub fn parameters(&self) -> usize {
        let &Self { layers, hidden, wide, vocabulary, sequence, .. } = self;
        let keys = 2 * self.head() * self.heads[1];
        let perceptron = if self.family == Family::Llama { 3 } else { 2 } * wide;
        let ends = match self.family {
            Family::Gpt | Family::Bert => vocabulary + sequence,
            Family::Llama | Family::Nemotron => 2 * vocabulary,
        };
        hidden * (layers * (2 * hidden + keys + perceptron) + ends)
    }

    /// The graph of the whole model over the whole batch, and the layouts of the optimizer's states.
    pub fn graph(&self) -> Result<(Graph, Vec<Pin>), BuildErrors> {
        let g = GraphBuilder::new("published");
        let parts = Parts { g: &g, model: self, states: RefCell::default() };
        parts.build();
        let states = parts.states.into_inner();
        Ok((g.finish()?, states.into_values().collect()))
    }

    /// The part that a block is in: blocks are cut into equal parts, or nearly.
    fn part(&self, layer: usize) -> usize {
        match self.ends_count {
            true => (layer + 1) * self.parts / (self.layers + 2),
            false => layer * self.parts / self.layers,
        }
    }
}

/// A model while it is built.
struct Parts<'a> {
    g: &'a GraphBuilder,
    model: &'a Model,
    /// The pins of states, by the last part of a variable's name.
    states: RefCell<BTreeMap<String, Pin>>,
}

impl Parts<'_> {
    fn build(&self) {
        let &Model { family, layers, hidden, vocabulary, batch, sequence, .. } = self.model;
        let words = self.staged(0, || self.weight("wte", &[vocabulary, hidden], Cut::Rows));
        let mut x = self.staged(0, || {
            let tokens = self.g.input("tokens", DType::I64, [batch, sequence]);
            let tokens = match &self.model.tokens {
                Some(sbp) => tokens.pin(sbp.clone()),
                None => tokens,
            };
            let x = words.embedding(&tokens);
            match family {
                Family::Gpt | Family::Bert => {
                    x.add(&self.weight("wpe", &[sequence, hidden], Cut::Whole))
                }
                Family::Llama | Family::Nemotron => x,
            }
        });
        for layer in 0..layers {
            let block = || self.g.scope(&format!("blocks.{layer}"), || self.block(layer, &x));
            x = self.staged(self.model.part(layer), block);
        }
        self.staged(self.model.parts - 1, || {
            let x = self.norm("ln_f", &x);
            let logits = match family {
                Family::Gpt | Family::Bert => x.matmul_transposed(&words, false, true),
                Family::Llama | Family::Nemotron => {
                    x.matmul(&self.weight("head", &[hidden, vocabulary], Cut::Columns))
                }
            };
            let wide = self.model.wide_logits;
            self.g.output("logits", &if wide { logits.cast(DType::F32) } else { logits });
        });
    }

    fn staged<T>(&self, part: usize, body: impl FnOnce() -> T) -> T {
        if self.model.parts == 1 { body() } else { self.g.in_stage(part, body) }
    }

    fn block(&self, layer: usize, x: &Tensor) -> Tensor {
        if let Some(mixture) = &self.model.mixture {
            return self.block_with_experts(mixture, layer, x);
        }
        let x = x.add(&self.attention(&self.norm("ln1", x)));
        x.add(&self.perceptron(&self.norm("ln2", &x)))
    }

    fn block_with_experts(&self, mixture: &Mixture, layer: usize, x: &Tensor) -> Tensor {
        let Model { half, ref shards, .. } = *self.model;
        let block = self.g.with_dtype(half, || Block::new(self.g, &mixture.block, layer));
        let (experts, others): (Vec<Tensor>, Vec<Tensor>) =
            block.parameters().into_iter().partition(|weight| weight.shape().len() == 3);
        if let Shards::Over { axes, split, tensor, weights } = shards {
            let sbp = lies(*axes, split, *tensor, Cut::Whole);
            if *weights {
                others.into_iter().for_each(|weight| _ = weight.pin(sbp.clone()));
            }
            for part in ["attention", "ffn_norm", "mixture.router", "perceptron"] {
                let BlockConfig { dense, shared, .. } = mixture.block;
                if part != "perceptron" || dense.0 > 0 || shared > 0 {
                    self.note_states(&format!("blocks.*.{part}*"), &sbp);
                }
            }
        }
        experts.into_iter().for_each(|weight| _ = weight.pin(mixture.weights.clone()));
        for part in ["gate", "up", "down"] {
            self.note_states(&format!("blocks.*.mixture.{part}.weight"), &mixture.states);
        }
        block.forward(&mixture.block, x)
    }

    /// Notes where the states of weights with such a name lie.
    fn note_states(&self, name: &str, sbp: &NdSbp) {
        let pin = Pin { pattern: format!("state.*.{name}"), sbp: sbp.clone() };
        self.states.borrow_mut().insert(name.to_owned(), pin);
    }

    fn attention(&self, x: &Tensor) -> Tensor {
        let &Model { hidden, batch, sequence, flash, .. } = self.model;
        let mixed = if flash { self.flash(x) } else { self.scores(x) };
        self.linear("proj", &mixed.reshape(&[batch, sequence, hidden]), hidden, Cut::Rows)
    }

    /// Attention in one kernel.
    fn flash(&self, x: &Tensor) -> Tensor {
        let &Model { family, heads: [heads, shared], batch, sequence, .. } = self.model;
        let each = self.model.head();
        let [q, k, v] = match heads == shared {
            true => {
                let joined = self.linear("qkv", x, 3 * heads * each, Cut::Columns);
                let parts = joined.reshape(&[batch, sequence, heads, 3, each]).split(3, &[1, 1, 1]);
                [0, 1, 2].map(|part: usize| parts[part].reshape(&[batch, sequence, heads, each]))
            }
            false => [("wq", heads), ("wk", shared), ("wv", shared)].map(|(name, heads)| {
                let part = self.linear(name, x, heads * each, Cut::Columns);
                part.reshape(&[batch, sequence, heads, each])
            }),
        };
        let causal = family != Family::Bert;
        match family {
            Family::Gpt | Family::Bert => q.attention(&k, &v, causal),
            Family::Llama | Family::Nemotron => {
                q.rotary(BASE, false).attention(&k.rotary(BASE, false), &v, causal)
            }
        }
    }

    /// Attention by its scores, over which one kernel scales, masks and normalizes once, as softmax does here.
    fn scores(&self, x: &Tensor) -> Tensor {
        let &Model { heads: [heads, _], batch, sequence, .. } = self.model;
        let each = self.model.head();
        let joined = self.linear("qkv", x, 3 * heads * each, Cut::Columns);
        let parts = joined.reshape(&[batch, sequence, heads, 3, each]).transpose(&[0, 2, 3, 1, 4]);
        let parts = parts.split(2, &[1, 1, 1]);
        let part = |index: usize| parts[index].reshape(&[batch, heads, sequence, each]);
        let scores = part(0).matmul_transposed(&part(1), false, true);
        scores.softmax(3).matmul(&part(2)).transpose(&[0, 2, 1, 3])
    }

    fn perceptron(&self, x: &Tensor) -> Tensor {
        let &Model { family, hidden, wide, .. } = self.model;
        let fc = self.linear("fc", x, wide, Cut::Columns);
        let inside = match family {
            Family::Gpt | Family::Bert => fc.gelu_tanh(),
            Family::Llama => fc.silu().mul(&self.linear("gate", x, wide, Cut::Columns)),
            Family::Nemotron => {
                let positive = fc.relu();
                positive.mul(&positive)
            }
        };
        self.linear("out", &inside, hidden, Cut::Rows)
    }

    fn linear(&self, name: &str, x: &Tensor, outputs: usize, cut: Cut) -> Tensor {
        let inputs = x.shape().last().copied().unwrap_or(1);
        let y = x.matmul(&self.weight(name, &[inputs, outputs], cut));
        let cut = match cut {
            // The only dim of the bias is that of the weight's columns.
            Cut::Columns => Cut::Bias,
            Cut::Rows | Cut::Whole | Cut::Bias => Cut::Whole,
        };
        match self.model.family {
            Family::Gpt | Family::Bert => {
                y.add(&self.weight(&format!("{name}_bias"), &[outputs], cut))
            }
            Family::Llama | Family::Nemotron => y,
        }
    }

    fn norm(&self, name: &str, x: &Tensor) -> Tensor {
        let width = [self.model.hidden];
        let centered = self.model.family != Family::Llama;
        let y = x.normalize(centered, EPSILON).mul(&self.weight(name, &width, Cut::Whole));
        if !centered {
            return y;
        }
        y.add(&self.weight(&format!("{name}_bias"), &width, Cut::Whole))
    }

    /// A weight as products read it. How its states lie is noted.
    fn weight(&self, name: &str, shape: &[usize], cut: Cut) -> Tensor {
        let Model { half, mixed, ref shards, .. } = *self.model;
        let init = Init::Normal { mean: Scalar(0.0), std: Scalar(0.02) };
        let dtype = if mixed { DType::F32 } else { half };
        let mut weight = self.g.variable(name, dtype, shape, init);
        if let Shards::Over { axes, split, tensor, weights } = shards {
            let sbp = lies(*axes, split, *tensor, cut);
            self.note_states(name, &sbp);
            if *weights {
                weight = weight.pin(sbp);
            }
        }
        weight.cast(half)
    }
}

/// The layout of a weight in shards. Ranks that share it split the dim that tensor parallelism leaves whole, so that each one's shard is of the part that it
/// multiplies with. A bias has one dim for both.
fn lies(axes: usize, split: &[usize], tensor: bool, cut: Cut) -> NdSbp {
    let shared = if tensor && cut == Cut::Rows { 1 } else { 0 };
    let of_axis = |axis: usize| match cut {
        _ if split.contains(&axis) => Sbp::Split(shared),
        Cut::Columns if tensor && axis + 1 == axes => Sbp::Split(1),
        Cut::Rows | Cut::Bias if tensor && axis + 1 == axes => Sbp::Split(0),
        Cut::Columns | Cut::Rows | Cut::Bias | Cut::Whole => Sbp::Broadcast,
    };
    NdSbp((0..axes).map(of_axis).collect())
}
