//! Small models of every kind, trained on a device and on the processor.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use graphc::prelude::*;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::random::RandomStream;
use graphc_ir::types::TensorType;
use graphc_nn::models::{InvertedResidual, LstmLm, LstmLmConfig, ResNet, ResNetConfig};
use graphc_nn::{
    Dropout, Gpt, GptConfig, Linear, Llama, LlamaConfig, Module, SwitchConfig, SwitchFeedForward,
};

/// Steps of each training.
const STEPS: usize = 3;
/// Rows of a batch.
const BATCH: usize = 4;
/// Tokens of a sample.
const TIME: usize = 8;
/// Classes of images and tokens of a vocabulary.
const CLASSES: usize = 11;

/// A model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DoctorModel {
    /// Attention, layer normalization, GELU, embeddings.
    Gpt,
    /// Grouped heads, rotary positions, root-mean-square normalization.
    Llama,
    /// Convolutions, batch normalization, pooling.
    Resnet,
    /// Convolutions of one channel each, dropout.
    Mobilenet,
    /// Recurrent cells.
    Lstm,
    /// Experts.
    Switch,
}

/// A training.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) model: DoctorModel,
    /// The element type of mixed precision.
    pub(super) precision: Option<DType>,
    pub(super) ranks: usize,
    pub(super) stages: usize,
    pub(super) strategy: Strategy,
}

impl DoctorModel {
    fn name(self) -> &'static str {
        match self {
            Self::Gpt => "gpt",
            Self::Llama => "llama",
            Self::Lstm => "lstm",
            Self::Switch => "switch",
            Self::Resnet => "resnet",
            Self::Mobilenet => "mobilenet",
        }
    }

    pub(super) const ALL: [Self; 6] =
        [Self::Gpt, Self::Llama, Self::Resnet, Self::Mobilenet, Self::Lstm, Self::Switch];

    fn takes_tokens(self) -> bool {
        matches!(self, Self::Gpt | Self::Llama | Self::Lstm)
    }

    /// The graph: input `x`, first output `logits`.
    fn graph(self) -> Result<Graph> {
        let g = GraphBuilder::new("doctor");
        let input = |shape: &[usize], dtype| g.input("x", dtype, shape.to_vec());
        let logits = match self {
            Self::Gpt => {
                let (layers, width, heads) = (2, 16, 2);
                let config =
                    GptConfig { layers, width, heads, sequence: TIME, vocabulary: CLASSES };
                Gpt::new(&g, &config).forward(&input(&[BATCH, TIME], DType::I64))
            }
            Self::Llama => {
                let config = LlamaConfig {
                    layers: 1,
                    width: 16,
                    heads: 4,
                    shared: 2,
                    hidden: 24,
                    vocabulary: CLASSES,
                    base: 10_000.0,
                };
                Llama::new(&g, &config).forward(&input(&[BATCH, TIME], DType::I64))
            }
            Self::Resnet => {
                let config = ResNetConfig {
                    bottleneck: false,
                    blocks: [1, 1, 1, 1],
                    width: 4,
                    classes: CLASSES,
                    cifar_stem: false,
                };
                ResNet::new(&g, &config).forward(&input(&[BATCH, 3, 16, 16], DType::F32))
            }
            Self::Mobilenet => {
                let x = input(&[BATCH, 4, 8, 8], DType::F32);
                let first = InvertedResidual::new(&g, "first", [4, 4], 2, 1).forward(&x);
                let second = InvertedResidual::new(&g, "second", [4, 8], 2, 2).forward(&first);
                let flat = Dropout(0.2).forward(&second.mean(&[2, 3], false));
                Linear::new(&g, "head", 8, CLASSES).forward(&flat)
            }
            Self::Lstm => {
                let config = LstmLmConfig {
                    vocabulary: CLASSES,
                    width: 8,
                    hidden: 8,
                    layers: 1,
                    dropout: 0.2,
                };
                LstmLm::new(&g, &config).forward(&input(&[BATCH, TIME], DType::I64))
            }
            Self::Switch => {
                let config = SwitchConfig { width: 8, hidden: 16, experts: 4, capacity: 1.25 };
                let x = input(&[BATCH, TIME, 8], DType::F32);
                let y = SwitchFeedForward::new(&g, "switch", &config).forward(&x);
                Linear::new(&g, "head", 8, CLASSES).forward(&(&x + &y))
            }
        };
        g.output("logits", &logits);
        Ok(g.finish()?)
    }

    /// Returns the optimizer of the model's trial; the models together have each kind.
    fn optimizer(self) -> Optimizer {
        let adam =
            AdamOptions { lr: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
        let rmsprop = RmspropOptions {
            lr: 0.001,
            alpha: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            momentum: 0.9,
            centered: true,
        };
        match self {
            Self::Gpt => Optimizer::AdamW(adam),
            Self::Llama => Optimizer::Adam(adam),
            Self::Lstm => Optimizer::Rmsprop(rmsprop),
            Self::Switch => Optimizer::Lamb(adam),
            Self::Resnet | Self::Mobilenet => {
                Optimizer::Sgd { lr: 0.01, momentum: 0.9, nesterov: false, weight_decay: 1e-4 }
            }
        }
    }

    fn make_feeds(
        inputs: &BTreeMap<String, TensorType>,
        step: usize,
    ) -> Result<BTreeMap<String, HostTensor>> {
        let stream = RandomStream { seed: 7, key: 1, step: step as u64 };
        let label = |i: usize| (stream.words(i as u64)[0] as usize % CLASSES) as i64;
        let mut feeds = BTreeMap::new();
        for (name, ty) in inputs {
            let shape = ty.shape.clone();
            let elements = shape.iter().product();
            let tensor = match ty.dtype {
                DType::I64 => {
                    HostTensor::from_i64(shape, &(0..elements).map(label).collect::<Vec<_>>())?
                }
                _ => {
                    let number = |i: usize| stream.normal(i as u64);
                    HostTensor::from_f32(shape, &(0..elements).map(number).collect::<Vec<_>>())?
                }
            };
            feeds.insert(name.clone(), tensor);
        }
        Ok(feeds)
    }
}

impl Case {
    pub(super) fn name(&self) -> String {
        let model = self.model.name();
        let precision = self.precision.map_or("f32".to_owned(), |dtype| dtype.to_string());
        let tokens = if self.model.takes_tokens() { "tokens" } else { "numbers" };
        let mut name = format!("{model} of {tokens}, {precision}");
        if self.ranks > 1 {
            name += &format!(", {} ranks, {}", self.ranks, self.strategy);
        }
        if self.stages > 1 {
            name += &format!(", {} stages", self.stages);
        }
        name
    }

    /// Trains on the device and on one processor, and compares the losses.
    pub(super) fn check(&self, device: DeviceKind) -> Result<String> {
        let alone = Self { ranks: 1, stages: 1, strategy: Strategy::Auto, ..*self };
        let expected = alone.losses(DeviceKind::Cpu, true).context("on the processor")?;
        let found = self.losses(device, true)?;
        let launched = self.losses(device, false)?;
        ensure!(
            found == launched,
            "steps that are replayed give {found:?}, and launched one by one (GRAPHC_REPLAY=0) {launched:?}"
        );
        let tolerance = match self.precision {
            None => 2e-5,
            Some(DType::F16) => 1e-2,
            Some(_) => 5e-2,
        };
        let pairs = found.iter().zip(&expected);
        let worst = pairs.map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
        ensure!(
            worst <= tolerance,
            "losses {found:?}, on the processor {expected:?}: {worst:.1e} apart, {tolerance:.0e} allowed"
        );
        Ok(format!("losses {:.5} to {:.5}, within {worst:.1e}", found[0], found[STEPS - 1]))
    }

    fn losses(&self, device: DeviceKind, replay: bool) -> Result<Vec<f64>> {
        let options = CompileOptions {
            mesh: vec![self.ranks],
            stages: self.stages,
            microbatches: self.stages,
            loss: Some(Loss::CrossEntropy),
            optimizer: Some(self.model.optimizer()),
            precision: self.precision,
            strategy: self.strategy,
            ..CompileOptions::default()
        };
        // One whose communication runs beside kernels, so that there are two streams.
        let cluster =
            preset(if self.ranks > 1 { "dgx-h100" } else { "cpu" }).context("a preset")?;
        let plan = compile(self.model.graph()?, &options, &cluster, None)?.plan;
        let options = SessionOptions { device: Some(device), replay, ..SessionOptions::default() };
        let mut session = Session::new(&plan, &BTreeMap::new(), options)?;
        let mut losses = Vec::new();
        for step in 0..STEPS {
            let outputs = {
                let feeds = DoctorModel::make_feeds(session.inputs(), step)?;
                session.step(feeds)?.wait()?
            };
            let loss = outputs.get("loss").context("the plan has no loss")?;
            losses.push(f64::from(loss.to_f32()?[0]));
        }
        Ok(losses)
    }
}
