//! Layers of `graphc::nn`, each by itself: the mean of what it makes times numbers, and the gradients of that mean.

use graphc::nn::*;
use graphc::prelude::*;
use serde_json::Value;

use super::{formula, recorded};

/// The prefix of the layer's weights, which PyTorch's have none of.
const LAYER: &str = "layer";

/// Tensors that go in: variables, so that they have gradients.
fn operand(g: &GraphBuilder, name: &str, shape: &[usize]) -> Tensor {
    g.variable(name, DType::F32, shape, Init::Fill(0.0.into()))
}

/// Holds a layer against what is recorded.
fn check(name: &str, layer: impl FnOnce(&GraphBuilder) -> Tensor) {
    let expected = &recorded("layers")[name];
    let shape: Vec<usize> = serde_json::from_value(expected["shape"].clone()).expect("a shape");
    let g = GraphBuilder::new(name);
    let y = layer(&g);
    assert_eq!(y.shape(), shape, "{name}");
    let all: Vec<usize> = (0..shape.len()).collect();
    g.output("loss", &y.mul(&g.input("share", DType::F32, shape.clone())).mean(&all, false));
    let options = CompileOptions { gradients: true, ..CompileOptions::default() };
    let graph = g.finish().unwrap_or_else(|errors| panic!("{name}: {errors}"));
    let plan = compile(graph, &options, &preset("cpu").expect("a preset"), None);
    let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}")).plan;
    let mut session =
        Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("begins");
    for (variable, (_, ty)) in session.variables() {
        let value = formula::weight(own_name(&variable), &ty.shape);
        session.set_variable(&variable, &value).expect("fits");
    }
    let feeds = BTreeMap::from([("share".to_string(), formula::floats("share", &shape, 0.0))]);
    let outputs = session.step(feeds).and_then(|step| step.wait()).expect("computes");
    hold(name, expected, &outputs);
}

fn own_name(variable: &str) -> &str {
    let own = variable.strip_prefix(LAYER).and_then(|rest| rest.strip_prefix('.'));
    own.unwrap_or(variable)
}

fn hold(name: &str, expected: &Value, outputs: &BTreeMap<String, HostTensor>) {
    let norms = expected["gradients"].as_object().expect("an object");
    let trained = outputs
        .iter()
        .filter_map(|(output, value)| Some((own_name(output.strip_prefix("grad.")?), value)));
    let found: BTreeMap<&str, f64> = trained
        .map(|(of, value)| (of, value.to_f64().iter().map(|x| x * x).sum::<f64>().sqrt()))
        .collect();
    let known: Vec<&str> = found.keys().copied().collect();
    let mut wanted: Vec<&str> = norms.keys().map(String::as_str).collect();
    wanted.sort_unstable();
    assert_eq!(known, wanted, "{name}: gradients");
    // What cancels is within rounding of what it is the sum of.
    let near = |found: f64, expected: &Value, what: &str| {
        let expected = expected.as_f64().expect("a number");
        let far = (found - expected).abs();
        assert!(far <= 1e-4 * expected.abs() + 1e-7, "{name}, {what}: {found}, not {expected}");
    };
    near(outputs["loss"].to_f64()[0], &expected["value"], "value");
    for (of, norm) in norms {
        near(found[of.as_str()], norm, of);
    }
}

fn check_module<M: Module>(name: &str, shape: &[usize], layer: impl FnOnce(&GraphBuilder) -> M) {
    check(name, |g| layer(g).forward(&operand(g, "x", shape)));
}

const IMAGE: [usize; 4] = [4, 6, 7, 5];

#[test]
fn convolutions_are_pytorchs() {
    let config =
        ConvConfig { stride: [2], padding: [2], dilation: [2], groups: 2, ..ConvConfig::square(3) };
    check_module("conv1d", &[4, 6, 11], |g| Conv1d::new(g, LAYER, [6, 4], config));
    let config = ConvConfig {
        kernel: [3, 2],
        stride: [2, 1],
        padding: [1, 0],
        dilation: [1, 2],
        groups: 2,
        bias: true,
    };
    check_module("conv2d", &IMAGE, |g| Conv2d::new(g, LAYER, [6, 4], config));
    let config = ConvConfig { stride: [2; 2], padding: [1; 2], groups: 2, ..ConvConfig::square(3) };
    check_module("conv_transpose2d", &IMAGE, |g| ConvTranspose2d {
        output_padding: [1, 0],
        ..ConvTranspose2d::new(g, LAYER, [6, 4], config)
    });
}

#[test]
fn normalizations_are_pytorchs() {
    check_module("batch_norm1d", &[8, 6], |g| BatchNorm1d::new(g, LAYER, 6));
    check_module("batch_norm1d_of_sequences", &[4, 6, 5], |g| BatchNorm1d::new(g, LAYER, 6));
    check_module("batch_norm2d", &IMAGE, |g| BatchNorm2d::new(g, LAYER, 6));
    check_module("group_norm", &IMAGE, |g| GroupNorm::new(g, LAYER, 3, 6));
    check_module("instance_norm", &IMAGE, |_| InstanceNorm::default());
}

#[test]
fn pools_are_pytorchs() {
    let three = PoolConfig { stride: [2; 2], padding: [1; 2], ..PoolConfig::square(3) };
    check_module("max_pool", &IMAGE, |_| MaxPool2d(three));
    let two = PoolConfig { padding: [1; 2], ceil_mode: true, ..PoolConfig::square(2) };
    check_module("max_pool_ceil", &[4, 6, 8, 5], |_| MaxPool2d(two));
    check_module("avg_pool", &IMAGE, |_| AvgPool2d(three));
    let ceil = PoolConfig { ceil_mode: true, ..three };
    check_module("avg_pool_ceil", &[4, 6, 8, 6], |_| AvgPool2d(ceil));
    check_module("adaptive_pool", &IMAGE, |_| AdaptiveAvgPool2d([3, 2]));
    check_module("adaptive_pool_even", &[4, 6, 8, 6], |_| AdaptiveAvgPool2d([2, 3]));
    check_module("upsample", &IMAGE, |_| Upsample([2, 3]));
}

fn attention(name: &str, mask: impl FnOnce(&GraphBuilder, &MultiheadAttention) -> Tensor) {
    check(name, |g| mask(g, &MultiheadAttention::new(g, LAYER, 8, 2)));
}

fn sequence(g: &GraphBuilder) -> Tensor {
    operand(g, "x", &[4, 5, 8])
}

fn memory(g: &GraphBuilder) -> Tensor {
    operand(g, "memory", &[4, 6, 8])
}

/// Returns which keys of the memory are padding.
fn padding(g: &GraphBuilder) -> Tensor {
    let hidden = formula::numbers("padding", 24).into_iter().enumerate();
    let data: Vec<f64> = hidden.map(|(at, x)| f64::from(u8::from(at % 6 > 0 && x < 0.4))).collect();
    g.constant(DType::Bool, [4, 1, 1, 6], &data)
}

#[test]
fn attention_is_pytorchs() {
    attention("attention", |g, layer| layer.forward(&sequence(g)));
    attention("attention_causal", |g, layer| {
        let x = sequence(g);
        layer.attend(&x, &x, &x, Mask::Causal)
    });
    attention("attention_padded", |g, layer| {
        let (x, memory) = (sequence(g), memory(g));
        layer.attend(&x, &memory, &memory, Mask::Of(&padding(g)))
    });
    attention("attention_biased", |g, layer| {
        let (x, memory) = (sequence(g), memory(g));
        let bias = formula::floats("bias", &[5, 6], 0.0).to_f64();
        let bias = g.constant(DType::F32, [5, 6], &bias);
        layer.attend(&x, &memory, &memory, Mask::Of(&bias))
    });
}

/// Attention with dropout has all scores at hand. In evaluation nothing is dropped, and both ways give the same.
#[test]
fn attention_with_dropout_evaluates_as_without() {
    let g = GraphBuilder::new("two ways");
    let layer = MultiheadAttention::new(&g, "attn", 8, 2);
    let x = g.input("x", DType::F32, [4, 5, 8]);
    let attend = |layer: &MultiheadAttention| layer.attend(&x, &x, &x, Mask::Causal);
    g.output("plain", &attend(&layer));
    g.output("dropped", &attend(&MultiheadAttention { dropout: 0.5, ..layer }));
    let graph = g.finish().expect("fits");
    let plan = compile(graph, &CompileOptions::default(), &preset("cpu").expect("a preset"), None);
    let plan = plan.expect("compiles").plan;
    let mut session =
        Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("begins");
    let feeds = BTreeMap::from([("x".to_string(), formula::floats("x", &[4, 5, 8], 0.0))]);
    let outputs = session.step(feeds).and_then(|step| step.wait()).expect("computes");
    let [plain, dropped] = ["plain", "dropped"].map(|name| outputs[name].to_f64());
    super::near(&dropped, &plain, 1e-5, "attention");
}

#[test]
fn transformer_layers_are_pytorchs() {
    let config = TransformerConfig { hidden: 12, dropout: 0.0, ..TransformerConfig::new(8, 2) };
    check_module("encoder", &[4, 5, 8], |g| TransformerEncoderLayer::new(g, LAYER, config));
    let first = TransformerConfig { norm_first: true, gelu: true, ..config };
    check("encoder_norm_first", |g| {
        let layer = TransformerEncoderLayer::new(g, LAYER, first);
        layer.forward_masked(&sequence(g), Mask::Causal)
    });
    check("decoder", |g| {
        let layer = TransformerDecoderLayer::new(g, LAYER, config);
        let masks = [Mask::Causal, Mask::Of(&padding(g))];
        layer.forward_with(&sequence(g), &memory(g), masks)
    });
}

/// Tensors one behind the other, without shapes.
fn flat(g: &GraphBuilder, parts: &[Tensor]) -> Tensor {
    let flat = |part: &Tensor| part.reshape(&[part.shape().iter().product()]);
    g.concat(&parts.iter().map(flat).collect::<Vec<_>>(), 0)
}

#[test]
fn recurrent_layers_are_pytorchs() {
    let config = RnnConfig { layers: 2, bidirectional: true, ..RnnConfig::new(8, 3) };
    check("lstm", |g| {
        let (y, states) = Lstm::new(g, LAYER, config).forward_from(&sequence(g), None);
        let hidden = states.iter().map(|state| state.hidden.clone());
        let cells = states.iter().map(|state| state.cell.clone());
        flat(g, &[y].into_iter().chain(hidden).chain(cells).collect::<Vec<_>>())
    });
    check("lstm_from", |g| {
        let [hidden, cell] = ["h", "c"].map(|name| operand(g, name, &[4, 3]));
        let layer = Lstm::new(g, LAYER, RnnConfig::new(8, 3));
        layer.forward_from(&sequence(g), Some(&[LstmState { hidden, cell }])).0
    });
    check("gru", |g| {
        let (y, states) = Gru::new(g, LAYER, config).forward_from(&sequence(g), None);
        flat(g, &[vec![y], states].concat())
    });
}
