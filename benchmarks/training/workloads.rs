//! Workloads to train: the models of `peers/torch_models.py`, with its batches and optimizers.

use anyhow::{Result, bail};
use graphc::ir::random::RandomStream;
use graphc::nn::models::{MobileNetConfig, MobileNetV2, resnet18, resnet50};
use graphc::nn::{
    BatchNorm2d, Conv2d, ConvConfig, ConvTranspose2d, Gpt, GptConfig, Linear, MaxPool2d, Module,
    PoolConfig,
};
use graphc::prelude::*;

/// A graph with what it is trained with.
pub struct Workload {
    /// Ends in `loss`, or in `logits` for inference.
    pub graph: Graph,
    /// None for inference.
    pub optimizer: Option<Optimizer>,
    /// The feeds of steps, which take turns.
    pub feeds: Vec<BTreeMap<String, HostTensor>>,
    /// Samples of a step.
    pub batch: usize,
}

/// A model with the shapes that it is measured at.
struct Case {
    name: &'static str,
    /// The shape of `x`, with the batch.
    input: Vec<usize>,
    /// `x` holds words of a vocabulary of this size instead of numbers.
    words: Option<u64>,
    labels: Vec<usize>,
    classes: u64,
    optimizer: Optimizer,
    model: fn(&GraphBuilder, &Tensor) -> Tensor,
}

/// The workload of that name, its batch multiplied by the ranks.
pub fn workload(name: &str, ranks: usize, inference: bool) -> Result<Workload> {
    let case = case(name, ranks)?;
    let g = GraphBuilder::new(case.name);
    let dtype = if case.words.is_some() { DType::I64 } else { DType::F32 };
    let logits = (case.model)(&g, &g.input("x", dtype, case.input.clone()));
    match inference {
        true => g.output("logits", &logits),
        false => {
            let labels = g.input("labels", DType::I64, case.labels.clone());
            g.output("loss", &logits.cross_entropy(&labels));
        }
    }
    let feeds = (0..4).map(|part| case.feeds(part, inference)).collect::<Result<_>>()?;
    let (batch, optimizer) = (case.input[0], (!inference).then_some(case.optimizer));
    Ok(Workload { graph: g.finish()?, optimizer, feeds, batch })
}

fn case(name: &str, ranks: usize) -> Result<Case> {
    let images = |name, rows: usize, size: usize, [momentum, weight_decay]: [f64; 2], model| {
        let rows = rows * ranks;
        Case {
            name,
            input: vec![rows, 3, size, size],
            words: None,
            labels: vec![rows],
            classes: 10,
            optimizer: Optimizer::Sgd { lr: 0.01, momentum, nesterov: false, weight_decay },
            model,
        }
    };
    Ok(match name {
        "W1" => Case { input: vec![128 * ranks, 784], ..images("W1", 128, 0, [0.9, 0.0], mlp) },
        "W2" => images("W2", 64, 32, [0.9, 1e-5], |g, x| resnet18(g, 10).forward(x)),
        "W3" => gpt_case(8 * ranks),
        "W4" => images("W4", 64, 32, [0.0, 0.0], mobilenet),
        "R50" => images("R50", 8, 224, [0.9, 0.0], |g, x| resnet50(g, 10).forward(x)),
        "UNET" => Case {
            labels: vec![8 * ranks, 128, 128],
            classes: 4,
            ..images("UNET", 8, 128, [0.9, 0.0], unet)
        },
        other => bail!("no workload `{other}`: W1, W2, W3, W4, W5, R50 or UNET"),
    })
}

fn gpt_case(batch: usize) -> Case {
    let (lr, beta1, beta2, eps, weight_decay) = (3e-4, 0.9, 0.999, 1e-8, 0.01);
    Case {
        name: "W3",
        input: vec![batch, 128],
        words: Some(8192),
        labels: vec![batch, 128],
        classes: 8192,
        optimizer: Optimizer::AdamW(AdamOptions { lr, beta1, beta2, eps, weight_decay }),
        model: gpt,
    }
}

impl Case {
    /// Returns one of the batches.
    fn feeds(&self, part: u64, inference: bool) -> Result<BTreeMap<String, HostTensor>> {
        let x = match self.words {
            Some(vocabulary) => integers(&self.input, vocabulary, part)?,
            None => normals(&self.input, part)?,
        };
        let mut feeds = BTreeMap::from([("x".to_string(), x)]);
        if !inference {
            feeds.insert("labels".to_string(), integers(&self.labels, self.classes, part + 10)?);
        }
        Ok(feeds)
    }
}

fn normals(shape: &[usize], key: u64) -> Result<HostTensor> {
    let stream = RandomStream { seed: 1, key, step: 0 };
    let n = shape.iter().product::<usize>() as u64;
    let data: Vec<f32> = (0..n).map(|i| stream.normal(i)).collect();
    Ok(HostTensor::from_f32(shape, &data)?)
}

fn integers(shape: &[usize], below: u64, key: u64) -> Result<HostTensor> {
    let stream = RandomStream { seed: 2, key, step: 0 };
    let n = shape.iter().product::<usize>() as u64;
    let data: Vec<i64> = (0..n).map(|i| (u64::from(stream.words(i)[0]) % below) as i64).collect();
    Ok(HostTensor::from_i64(shape, &data)?)
}

/// 784-2048-2048-10.
fn mlp(g: &GraphBuilder, x: &Tensor) -> Tensor {
    let layer = |index: usize, inputs, outputs, x: &Tensor| {
        Linear::new(g, &format!("layers.{index}"), inputs, outputs).forward(x)
    };
    let x = layer(0, 784, 2048, x).relu();
    let x = layer(1, 2048, 2048, &x).relu();
    layer(2, 2048, 10, &x)
}

/// 4 layers, width 256, 8 heads, 128 tokens, vocabulary 8192.
fn gpt(g: &GraphBuilder, x: &Tensor) -> Tensor {
    let config = GptConfig { layers: 4, width: 256, heads: 8, sequence: 128, vocabulary: 8192 };
    Gpt::new(g, &config).forward(x)
}

/// Makes the model without dropout, as the peers have it.
fn mobilenet(g: &GraphBuilder, x: &Tensor) -> Tensor {
    MobileNetV2::new(g, &MobileNetConfig { dropout: 0.0, ..MobileNetConfig::new(10) }).forward(x)
}

/// Channels of a U-Net's levels (Ronneberger et al., arXiv 1505.04597, with padding and batch norm).
const WIDTHS: [usize; 4] = [32, 64, 128, 256];

/// Logits of 4 classes for each pixel, `[n, h, w, 4]`.
fn unet(g: &GraphBuilder, x: &Tensor) -> Tensor {
    let mut kept = Vec::new();
    let mut x = x.clone();
    let mut channels = 3;
    for (level, width) in WIDTHS.into_iter().enumerate() {
        if level > 0 {
            kept.push(x.clone());
            x = MaxPool2d(PoolConfig::square(2)).forward(&x);
        }
        x = twice(g, &format!("down.{level}"), [channels, width], &x);
        channels = width;
    }
    for (level, width) in WIDTHS.into_iter().enumerate().rev().skip(1) {
        let doubles = ConvConfig { stride: [2; 2], ..ConvConfig::square(2) };
        let up = ConvTranspose2d::new(g, &format!("up.{level}"), [channels, width], doubles);
        let beside = [kept.swap_remove(level), up.forward(&x)];
        let together = g.concat(&beside, 1);
        x = twice(g, &format!("after.{level}"), [2 * width, width], &together);
        channels = width;
    }
    let head = Conv2d::new(g, "head", [channels, 4], ConvConfig::square(1));
    head.forward(&x).transpose(&[0, 2, 3, 1])
}

/// Applies two convolutions of 3x3, each with batch norm and relu.
fn twice(g: &GraphBuilder, name: &str, [inputs, outputs]: [usize; 2], x: &Tensor) -> Tensor {
    let keeps = ConvConfig { padding: [1; 2], bias: false, ..ConvConfig::square(3) };
    let once = |x: &Tensor, index: usize| {
        let channels = [if index == 0 { inputs } else { outputs }, outputs];
        let conv = Conv2d::new(g, &format!("{name}.conv{index}"), channels, keeps);
        let norm = BatchNorm2d::new(g, &format!("{name}.bn{index}"), outputs);
        norm.forward(&conv.forward(x)).relu()
    };
    once(&once(x, 0), 1)
}
