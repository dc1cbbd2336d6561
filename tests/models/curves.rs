//! Losses of 100 steps beside PyTorch's, from equal weights and batches, with a schedule, warm-up and clipping.

use graphc::ir::learning_rate::LrSchedule;
use graphc::models::{Gpt2, LstmLm, ResNet, ResNetConfig, VisionTransformer};
use graphc::prelude::*;

use super::networks::{GPT2, LSTM_LM, VIT, of_images, of_texts};
use super::{Feeds, begin, formula, list, near, number, recorded, step};

/// A model, how it is trained, and all rows of its inputs by their names.
struct Case {
    name: &'static str,
    graph: Graph,
    optimizer: Optimizer,
    batch: usize,
    data: [(&'static str, HostTensor); 2],
}

impl Case {
    /// The rows of a step: one batch after the other, beginning again at the end.
    fn rows(&self, step: usize) -> Feeds {
        let part = |all: &HostTensor| {
            let count = all.shape()[0];
            let row = all.bytes().len() / count;
            let at = |i| (step * self.batch + i) % count * row;
            let bytes = (0..self.batch).flat_map(|i| all.bytes()[at(i)..][..row].to_vec());
            let shape = [&[self.batch], &all.shape()[1..]].concat();
            HostTensor::new(all.dtype(), shape, bytes.collect()).expect("whole rows")
        };
        self.data.iter().map(|(name, all)| (name.to_string(), part(all))).collect()
    }

    /// Holds the losses on a mesh against what is recorded.
    fn check(&self, mesh: &[usize]) {
        let recorded = &recorded("curves")[self.name];
        let noise = recorded["noise"].as_f64().expect("a number");
        // Where rounding takes PyTorch's own curve farther than a thousandth, no other curve can be held to that.
        let tolerance = f64::max(1e-3, 2.0 * noise);
        let expected = list(&recorded["losses"]);
        let mut session = begin(&self.graph, &self.training(mesh));
        let mut loss = |at| number(&step(&mut session, &self.rows(at)), "loss");
        let losses: Vec<f64> = (0..expected.len()).map(&mut loss).collect();
        near(&losses, &expected, tolerance, &format!("{} on {mesh:?}", self.name));
    }

    fn training(&self, mesh: &[usize]) -> CompileOptions {
        let lr_schedule: LrSchedule = "warmup:10 cosine:100".parse().expect("a schedule");
        CompileOptions {
            mesh: mesh.to_vec(),
            loss: Some(Loss::CrossEntropy),
            optimizer: Some(self.optimizer),
            lr_schedule,
            clip_norm: Some(1.0),
            ..CompileOptions::default()
        }
    }
}

fn adamw(lr: f64) -> Optimizer {
    let (beta1, beta2, eps, weight_decay) = (0.9, 0.999, 1e-8, 0.01);
    Optimizer::AdamW(AdamOptions { lr, beta1, beta2, eps, weight_decay })
}

/// Images of ten classes that can be told apart.
fn images() -> [(&'static str, HostTensor); 2] {
    let labels = formula::classes("labels", &[48], 10);
    let patterns = formula::floats("patterns", &[10, 3, 16, 16], 0.0).to_f32().expect("floats");
    let mut x = formula::floats("x", &[48, 3, 16, 16], 0.0).to_f32().expect("floats");
    let size = patterns.len() / 10;
    for (x, class) in x.chunks_mut(size).zip(labels.to_i64().expect("classes")) {
        let pattern = &patterns[class as usize * size..][..size];
        x.iter_mut().zip(pattern).for_each(|(x, pattern)| *x += pattern);
    }
    [("x", HostTensor::from_f32([48, 3, 16, 16], &x).expect("fits")), ("labels", labels)]
}

fn texts(time: usize) -> [(&'static str, HostTensor); 2] {
    ["tokens", "labels"].map(|name| (name, formula::classes(name, &[40, time], 40)))
}

#[test]
fn resnet18() {
    let config = ResNetConfig { width: 8, ..ResNetConfig::resnet18(10).cifar() };
    let graph = of_images([16, 16], |g| ResNet::new(g, &config));
    let (lr, momentum, weight_decay) = (0.002, 0.9, 5e-4);
    let optimizer = Optimizer::Sgd { lr, momentum, nesterov: false, weight_decay };
    let case = Case { name: "resnet18", graph, optimizer, batch: 16, data: images() };
    case.check(&[1]);
    case.check(&[2]);
}

#[test]
fn vit() {
    let graph = of_images([8, 16], |g| VisionTransformer::new(g, &VIT));
    let case = Case { name: "vit", graph, optimizer: adamw(2e-3), batch: 8, data: images() };
    case.check(&[1]);
    case.check(&[2, 2]);
}

#[test]
fn gpt2() {
    let graph = of_texts([8, 8], |g| Gpt2::new(g, &GPT2));
    let case = Case { name: "gpt2", graph, optimizer: adamw(3e-3), batch: 8, data: texts(8) };
    case.check(&[1]);
    case.check(&[2, 2]);
}

#[test]
fn lstm_lm() {
    let graph = of_texts([8, 7], |g| LstmLm::new(g, &LSTM_LM));
    let case = Case { name: "lstm_lm", graph, optimizer: adamw(1e-2), batch: 8, data: texts(7) };
    case.check(&[1]);
    case.check(&[2, 2]);
}
