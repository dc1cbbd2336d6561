//! Models, small: the norms of their gradients, losses of some steps, and the loss in evaluation.

use graphc::models::{
    Gpt2, Gpt2Config, LstmLm, LstmLmConfig, MobileNetConfig, MobileNetV2, ResNet, ResNetConfig,
    VisionTransformer, VitConfig,
};
use graphc::nn::Module;
use graphc::prelude::*;

use super::{Feeds, begin, evaluated, formula, list, near, number, recorded, sgd, step};

/// A small vision transformer.
pub const VIT: VitConfig = VitConfig {
    image: 16,
    patch: 4,
    layers: 2,
    heads: 2,
    width: 24,
    hidden: 48,
    classes: 10,
    dropout: 0.0,
};

/// A small GPT-2.
pub const GPT2: Gpt2Config =
    Gpt2Config { layers: 2, width: 24, heads: 3, sequence: 12, vocabulary: 40, dropout: 0.0 };

/// A small language model of LSTMs.
pub const LSTM_LM: LstmLmConfig =
    LstmLmConfig { vocabulary: 40, width: 12, hidden: 16, layers: 2, dropout: 0.0 };

/// The graph of a model and what it is fed.
struct Case {
    graph: Graph,
    feeds: Feeds,
    loss: Option<Loss>,
    lr: f64,
}

/// Holds a case against what is recorded.
fn check(name: &str, case: &Case) {
    let recorded = recorded(name);
    let Case { graph, feeds, loss, lr } = case;
    let options = CompileOptions { loss: *loss, ..CompileOptions::default() };
    let gradients = CompileOptions { gradients: true, ..options.clone() };
    let outputs = step(&mut begin(graph, &gradients), feeds);
    let norms = recorded["gradients"].as_object().expect("an object");
    let mut far = Vec::new();
    for (parameter, norm) in norms {
        let found = outputs.get(&format!("grad.{parameter}"));
        let found = found.unwrap_or_else(|| panic!("{name}: no gradient of `{parameter}`"));
        let found = found.to_f64().iter().map(|x| x * x).sum::<f64>().sqrt();
        let norm = norm.as_f64().expect("a number");
        // Some are 0 but for rounding: those of shifts that a normalization behind them takes away again.
        if (found - norm).abs() > 1e-3 * norm + 1e-5 {
            far.push(format!("{parameter}: {found} instead of {norm}"));
        }
    }
    assert!(far.is_empty(), "{name}: gradients differ:\n{}", far.join("\n"));
    let trained = outputs.keys().filter(|output| output.starts_with("grad."));
    assert_eq!(trained.count(), norms.len(), "{name}: other parameters");
    let training = CompileOptions { optimizer: sgd(*lr), ..options.clone() };
    let mut session = begin(graph, &training);
    let expected = list(&recorded["losses"]);
    let losses: Vec<f64> =
        expected.iter().map(|_| number(&step(&mut session, feeds), "loss")).collect();
    near(&losses, &expected, 1e-3, &format!("{name}: losses"));
    let mut inference = evaluated(graph, &options, &mut session);
    let loss = number(&step(&mut inference, feeds), "loss");
    let expected = recorded["evaluated"].as_f64().expect("a number");
    near(&[loss], &[expected], 2e-3, &format!("{name}: the loss in evaluation"));
}

/// Holds the losses on several ranks against what is recorded, with as many microbatches as stages: one where a model has batch
/// norm, as statistics are those of a microbatch.
fn check_spread(name: &str, case: &Case, stages: usize) {
    let Case { graph, feeds, loss, lr } = case;
    let expected = list(&recorded(name)["losses"]);
    let training = CompileOptions { optimizer: sgd(*lr), loss: *loss, ..CompileOptions::default() };
    for (mesh, stages) in [(vec![2, 2], stages), (vec![3], 1)] {
        let options = CompileOptions { mesh, stages, microbatches: stages, ..training.clone() };
        let mut session = begin(graph, &options);
        let losses: Vec<f64> =
            expected.iter().map(|_| number(&step(&mut session, feeds), "loss")).collect();
        near(&losses, &expected, 2e-3, &format!("{name} on {:?}", options.mesh));
    }
}

/// The graph of a model of images.
pub fn of_images<M: Module>(
    [batch, size]: [usize; 2],
    model: impl FnOnce(&GraphBuilder) -> M,
) -> Graph {
    let g = GraphBuilder::new("images");
    let x = g.input("x", DType::F32, [batch, 3, size, size]);
    g.output("logits", &model(&g).forward(&x));
    g.finish().expect("fits")
}

/// A model of images in ten classes.
fn images<M: Module>(size: usize, model: impl FnOnce(&GraphBuilder) -> M) -> Case {
    let feeds = [
        ("x", formula::floats("x", &[4, 3, size, size], 0.0)),
        ("labels", formula::classes("labels", &[4], 10)),
    ];
    Case {
        graph: of_images([4, size], model),
        feeds: feeds.map(|(name, value)| (name.to_string(), value)).into(),
        loss: Some(Loss::CrossEntropy),
        lr: 0.01,
    }
}

fn resnet(size: usize, config: ResNetConfig) -> Case {
    images(size, |g| ResNet::new(g, &ResNetConfig { width: 8, ..config }))
}

#[test]
fn resnet18_of_small_images_is_torchvisions() {
    let case = resnet(16, ResNetConfig::resnet18(10).cifar());
    check("resnet18", &case);
    check_spread("resnet18", &case, 1);
}

#[test]
fn a_resnet_with_the_large_stem_is_torchvisions() {
    let config = ResNetConfig { blocks: [1; 4], ..ResNetConfig::resnet18(10) };
    check("resnet18_stem", &resnet(64, config));
}

#[test]
fn bottlenecks_of_resnet50_are_torchvisions() {
    let config = ResNetConfig { blocks: [2, 1, 1, 1], ..ResNetConfig::resnet50(10) };
    check("resnet50", &resnet(16, config.cifar()));
}

#[test]
fn mobilenet_v2_is_torchvisions() {
    let config = MobileNetConfig { width: 0.25, dropout: 0.0, ..MobileNetConfig::new(10) };
    let case = images(16, |g| MobileNetV2::new(g, &config.cifar()));
    check("mobilenet_v2", &Case { lr: 0.0001, ..case });
}

#[test]
fn the_vision_transformer_is_torchvisions() {
    let case = images(16, |g| VisionTransformer::new(g, &VIT));
    check("vit", &case);
    check_spread("vit", &case, 2);
}

/// The graph of a model of texts.
pub fn of_texts<M: Module>(shape: [usize; 2], model: impl FnOnce(&GraphBuilder) -> M) -> Graph {
    let g = GraphBuilder::new("texts");
    let tokens = g.input("tokens", DType::I64, shape);
    g.output("logits", &model(&g).forward(&tokens));
    g.finish().expect("fits")
}

/// A model of texts of 40 tokens.
fn texts<M: Module>(time: usize, lr: f64, model: impl FnOnce(&GraphBuilder) -> M) -> Case {
    let feeds =
        ["tokens", "labels"].map(|name| (name.to_string(), formula::classes(name, &[4, time], 40)));
    let loss = Some(Loss::CrossEntropy);
    Case { graph: of_texts([4, time], model), feeds: feeds.into(), loss, lr }
}

#[test]
fn gpt2_is_pytorchs() {
    let case = texts(8, 0.05, |g| Gpt2::new(g, &GPT2));
    check("gpt2", &case);
    check_spread("gpt2", &case, 2);
}

#[test]
fn the_language_model_of_lstms_is_pytorchs() {
    let case = texts(7, 0.5, |g| LstmLm::new(g, &LSTM_LM));
    check("lstm_lm", &case);
    check_spread("lstm_lm", &case, 2);
}
