//! The network, once as a training graph for the mesh and once on one rank for evaluation and sampling.

use anyhow::{Context, Result};
use graphc::ir::op::Op;
use graphc::ir::random::RandomStream;
use graphc::prelude::*;

use crate::corpus::Corpus;

/// Sizes of the network.
#[derive(Clone, Copy)]
pub struct Config {
    /// Transformer blocks.
    pub layers: usize,
    /// Width.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Tokens of context.
    pub sequence: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { layers: 4, width: 128, heads: 4, sequence: 64, vocabulary: 0 }
    }
}

impl Config {
    fn logits(&self, g: &GraphBuilder, batch: usize) -> Tensor {
        let ids = g.input("ids", DType::I64, [batch, self.sequence]);
        let gpt = nn::Gpt::new(
            g,
            &nn::GptConfig {
                layers: self.layers,
                width: self.width,
                heads: self.heads,
                sequence: self.sequence,
                vocabulary: self.vocabulary,
            },
        );
        nn::Module::forward(&gpt, &ids)
    }

    /// The graph whose output is the mean cross entropy of a batch.
    pub fn training_graph(&self, batch: usize) -> Result<Graph> {
        let g = GraphBuilder::new("gpt");
        let logits = self.logits(&g, batch);
        let labels = g.input("labels", DType::I64, [batch, self.sequence]);
        g.output("loss", &logits.cross_entropy(&labels));
        Ok(g.finish()?)
    }

    fn inference_graph(&self) -> Result<Graph> {
        let g = GraphBuilder::new("gpt_inference");
        g.output("logits", &self.logits(&g, 1));
        Ok(g.finish()?)
    }

    /// The names of the weights.
    pub fn parameter_names(&self) -> Result<Vec<String>> {
        let names = self.inference_graph()?.nodes.into_iter().filter_map(|node| match node.op {
            Op::Variable(variable) => Some(variable.name),
            _ => None,
        });
        Ok(names.collect())
    }
}

/// The network on one rank.
pub struct Model {
    config: Config,
    batch: usize,
    seed: u64,
    evaluation: Session,
    inference: Session,
}

impl Model {
    /// Sessions for evaluation (batches with labels) and inference (one sequence).
    pub fn new(config: Config, batch: usize, seed: u64) -> Result<Self> {
        let session = |graph: Graph| -> Result<Session> {
            let cluster = preset("cpu").context("the preset `cpu` exists")?;
            let plan = compile(graph, &CompileOptions::default(), &cluster, None)?.plan;
            Ok(Session::new(&plan, &BTreeMap::new(), SessionOptions::default())?)
        };
        let evaluation = session(config.training_graph(batch)?)?;
        let inference = session(config.inference_graph()?)?;
        Ok(Self { config, batch, seed, evaluation, inference })
    }

    /// Takes weights, by name.
    pub fn load(&mut self, weights: &BTreeMap<String, HostTensor>) -> Result<()> {
        for (name, tensor) in weights {
            self.evaluation.set_variable(name, tensor)?;
            self.inference.set_variable(name, tensor)?;
        }
        Ok(())
    }

    /// Mean loss in nats per token over windows of the held-out text.
    pub fn loss(&mut self, corpus: &Corpus) -> Result<f64> {
        const BATCHES: usize = 8;
        let (batch, sequence) = (self.batch, self.config.sequence);
        let (ids, labels) = corpus.held_out(BATCHES * batch, sequence);
        let mut sum = 0.0;
        for part in 0..BATCHES {
            let rows = part * batch * sequence..(part + 1) * batch * sequence;
            let tensor =
                |data: &[i64]| HostTensor::from_i64([batch, sequence], &data[rows.clone()]);
            let feeds = BTreeMap::from([
                ("ids".into(), tensor(&ids)?),
                ("labels".into(), tensor(&labels)?),
            ]);
            sum += f64::from(self.evaluation.step(feeds)?.wait()?["loss"].to_f32()?[0]);
        }
        Ok(sum / BATCHES as f64)
    }

    /// Text that the model writes after the first held-out characters, drawn at temperature 0.8.
    pub fn sample(&mut self, corpus: &Corpus, length: usize) -> Result<String> {
        let sequence = self.config.sequence;
        let mut tokens = corpus.prompt(sequence.min(16)).to_vec();
        let stream = RandomStream { seed: self.seed, key: 0x5A3F, step: 0 };
        while tokens.len() < length {
            let start = tokens.len().saturating_sub(sequence);
            let mut window = tokens[start..].to_vec();
            let last = window.len() - 1;
            window.resize(sequence, 0);
            let feeds =
                BTreeMap::from([("ids".into(), HostTensor::from_i64([1, sequence], &window)?)]);
            let outputs = self.inference.step(feeds)?.wait()?;
            let logits = outputs["logits"].to_f32()?;
            let row = &logits[last * self.config.vocabulary..(last + 1) * self.config.vocabulary];
            tokens.push(draw(row, stream.uniform(tokens.len() as u64)));
        }
        Ok(corpus.text(&tokens))
    }
}

/// The token at which the cumulated softmax of `logits / 0.8` passes `uniform`.
fn draw(logits: &[f32], uniform: f32) -> i64 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|x| ((x - greatest) / 0.8).exp()).collect();
    let mut rest = uniform * weights.iter().sum::<f32>();
    let passes = |weight: &f32| {
        rest -= weight;
        rest < 0.0
    };
    weights.iter().position(passes).unwrap_or(logits.len() - 1) as i64
}
