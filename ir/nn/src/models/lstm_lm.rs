//! A language model of LSTMs (Zaremba et al., arXiv 1409.2329), as in PyTorch's example of word-level language modelling.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;

use super::collect_parameters;
use crate::{Dropout, Embedding, Linear, Lstm, Module, RnnConfig};

/// Sizes of an [`LstmLm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LstmLmConfig {
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Width of tokens.
    pub width: usize,
    /// Width of the states.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Zeros before, between and behind layers, in training.
    pub dropout: f64,
}

impl LstmLmConfig {
    /// The example's: two layers of 200 and a dropout of 0.2.
    pub fn new(vocabulary: usize) -> Self {
        Self { vocabulary, width: 200, hidden: 200, layers: 2, dropout: 0.2 }
    }
}

/// A language model of these sizes.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::models::{LstmLmConfig, lstm_lm};
/// use graphc_nn::Module;
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("lstm_lm");
/// let model = lstm_lm(&g, &LstmLmConfig::new(1000));
/// let logits = model.forward(&g.input("tokens", DType::I64, [4, 20]));
/// assert_eq!((logits.shape(), model.parameters().len()), (vec![4, 20, 1000], 11));
/// assert!(g.finish()?.find("rnn.weight_ih_l1").is_some());
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
#[track_caller]
pub fn lstm_lm(g: &GraphBuilder, config: &LstmLmConfig) -> LstmLm {
    LstmLm::new(g, config)
}

/// Tokens (i64) `[batch, time]` to logits `[batch, time, vocabulary]`; states begin at 0.
pub struct LstmLm {
    /// The embedding of tokens.
    pub encoder: Embedding,
    /// The recurrence over time.
    pub rnn: Lstm,
    /// The projection to logits.
    pub decoder: Linear,
    dropout: Dropout,
}

impl LstmLm {
    /// Makes the model with the example's first contents: tables uniform in +-0.1, no bias at first.
    #[track_caller]
    pub fn new(g: &GraphBuilder, config: &LstmLmConfig) -> Self {
        let LstmLmConfig { vocabulary, width, hidden, layers, dropout } = *config;
        let tenth = || Init::Uniform { low: Scalar(-0.1), high: Scalar(0.1) };
        let zero = Some(Init::Fill(Scalar(0.0)));
        let rnn = RnnConfig { layers, dropout, ..RnnConfig::new(width, hidden) };
        g.with_location(|| Self {
            encoder: Embedding::with_init(g, "encoder", vocabulary, width, tenth()),
            rnn: Lstm::new(g, "rnn", rnn),
            decoder: Linear::with_init(g, "decoder", [hidden, vocabulary], tenth(), zero),
            dropout: Dropout(dropout),
        })
    }
}

impl Module for LstmLm {
    #[track_caller]
    fn forward(&self, tokens: &Tensor) -> Tensor {
        tokens.builder().with_location(|| {
            let x = self.dropout.forward(&self.encoder.forward(tokens));
            self.decoder.forward(&self.dropout.forward(&self.rnn.forward(&x)))
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        collect_parameters(&[&self.encoder, &self.rnn, &self.decoder])
    }
}
