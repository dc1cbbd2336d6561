//! The training graphs of the models in tests/refs, evaluated step by step by the oracle, reach PyTorch's losses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use graphc_compiler::pipeline::prepare_graph;
use graphc_import::{ImportOptions, load_model};
use graphc_ir::array::Array;
use graphc_ir::evaluate::evaluate_graph;
use graphc_ir::graph::Graph;
use graphc_ir::op::{EvalContext, Op};
use graphc_ir::types::DType;
use graphc_plan::{AdamOptions, CompileOptions, Loss, Optimizer};
use serde_json::Value;

use super::models::Feeds;
use super::rounded::evaluate_rounded;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/refs").join(name)
}

/// Reads all rows of the data file.
fn data(name: &str) -> Feeds {
    let bytes = std::fs::read(folder(name).join("data.safetensors")).expect("is there");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    let number = |value: &Value| value.as_u64().expect("a number") as usize;
    let tensor = |entry: &Value| {
        let shape: Vec<usize> =
            entry["shape"].as_array().expect("a list").iter().map(number).collect();
        let bytes = &bytes[8 + length + number(&entry["data_offsets"][0])..];
        let count = shape.iter().product();
        let data = match entry["dtype"].as_str() {
            Some("F32") => {
                let read = |b: &[u8; 4]| f64::from(f32::from_le_bytes(*b));
                bytes.as_chunks().0.iter().take(count).map(read).collect()
            }
            _ => {
                let read = |b: &[u8; 8]| i64::from_le_bytes(*b) as f64;
                bytes.as_chunks().0.iter().take(count).map(read).collect()
            }
        };
        Array::new(shape, data)
    };
    let header = header.as_object().expect("an object");
    header.iter().map(|(name, entry)| (name.clone(), tensor(entry))).collect()
}

/// Takes rows `[step * batch, (step + 1) * batch)`, wrapping around.
fn rows(whole: &Array, step: usize, batch: usize) -> Array {
    let (count, size) = (whole.shape[0], whole.data.len() / whole.shape[0]);
    let row = |i: usize| (step * batch + i) % count;
    let data = (0..batch).flat_map(|i| whole.data[row(i) * size..][..size].iter().copied());
    let shape = [&[batch], &whole.shape[1..]].concat();
    Array::new(shape, data.collect())
}

/// Makes the options that the arguments of a reference ask for.
fn options(arguments: &BTreeMap<String, String>) -> CompileOptions {
    let text = |name: &str| arguments.get(name).map(String::as_str);
    let number = |name: &str, default: f64| {
        text(name).map_or(default, |value| value.parse().expect("a number"))
    };
    let (lr, decay) = (number("--lr", 0.001), |default| number("--weight-decay", default));
    let optimizer = match text("--optimizer") {
        Some("adamw") => Optimizer::AdamW(AdamOptions {
            lr,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: decay(0.01),
        }),
        _ => Optimizer::Sgd {
            lr,
            momentum: number("--momentum", 0.0),
            nesterov: false,
            weight_decay: decay(0.0),
        },
    };
    let loss = if text("--loss") == Some("mse") { Loss::Mse } else { Loss::CrossEntropy };
    CompileOptions { loss: Some(loss), optimizer: Some(optimizer), ..CompileOptions::default() }
}

fn check(name: &str, adjust: impl Fn(CompileOptions) -> CompileOptions) {
    let exact = |graph: &Graph, feeds: &Feeds, cx: &EvalContext| {
        evaluate_graph(graph, feeds, cx).unwrap_or_else(|error| panic!("{error}"))
    };
    let far = distance(name, adjust, exact);
    assert!(far <= 1e-5, "{name}: {far:e} from PyTorch's losses");
}

/// Returns the greatest relative distance of a step's loss from PyTorch's in float32.
fn distance(
    name: &str,
    adjust: impl Fn(CompileOptions) -> CompileOptions,
    evaluate: impl Fn(&Graph, &Feeds, &EvalContext) -> Vec<Array>,
) -> f64 {
    let mut far: f64 = 0.0;
    let reference = std::fs::read_to_string(folder(name).join("ref.json")).expect("is there");
    let reference: Value = serde_json::from_str(&reference).expect("JSON");
    let words: Vec<String> = serde_json::from_value(reference["args"].clone()).expect("words");
    let arguments: BTreeMap<String, String> =
        words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    let data = data(name);
    let all = data.values().next().expect("a tensor").shape[0];
    let batch = arguments.get("--batch").map_or(all, |batch| batch.parse().expect("a number"));
    let dims = BTreeMap::from([("batch".to_string(), batch)]);
    let imported = load_model(&folder(name).join("model.onnx"), &dims, ImportOptions::default());
    let imported = imported.expect("imports");

    let decisions = prepare_graph(imported.graph, &adjust(options(&arguments))).expect("fits");
    let graph = decisions.graph();
    let loss = decisions.training.loss.expect("it trains");
    let mut fed = Feeds::new();
    for (name, tensor) in &imported.weights.tensors {
        let elements = tensor.elements(name).expect("they are in the file");
        fed.insert(name.clone(), Array::new(tensor.shape.clone(), elements));
    }
    let losses: Vec<f64> = serde_json::from_value(reference["losses"].clone()).expect("losses");
    for (step, expected) in losses.into_iter().enumerate() {
        for (name, whole) in &data {
            fed.insert(name.clone(), rows(whole, step, batch));
        }
        let cx = EvalContext { seed: 0, step: step as u64 };
        let values = evaluate(graph, &fed, &cx);
        let found = values[loss.index()].data[0];
        assert!(found.is_finite(), "{name}, step {step}: {found}");
        far = far.max((found - expected).abs() / expected.abs());
        for node in &graph.nodes {
            for &(result, operand) in node.op.operation().updates() {
                let Op::Variable(variable) = &graph.producer(node.operands[operand]).op else {
                    panic!("an update of no variable");
                };
                fed.insert(variable.name.clone(), values[node.results[result].index()].clone());
            }
        }
    }
    far
}

/// Sets two stages of two ranks and two microbatches: classes may be split, and gradients are accumulated.
fn cut(options: CompileOptions) -> CompileOptions {
    CompileOptions { mesh: vec![2, 2], stages: 2, microbatches: 2, ..options }
}

#[test]
fn the_mlp_reaches_pytorchs_losses() {
    check("mlp", |options| options);
    check("mlp", cut);
}

#[test]
fn the_mlp_of_squared_errors_reaches_pytorchs_losses() {
    check("mlp_mse", |options| options);
    check("mlp_mse", cut);
}

#[test]
fn the_gpt_reaches_pytorchs_losses() {
    check("gpt", |options| options);
    check("gpt", cut);
}

/// Casts, and a scale of the loss, change no loss, because the oracle does not round.
#[test]
fn casts_and_the_scale_of_the_loss_change_no_loss() {
    for dtype in [DType::BF16, DType::F16] {
        let precise = |options| CompileOptions { precision: Some(dtype), ..options };
        check("gpt", precise);
        check("gpt", |options| precise(cut(options)));
        check("mlp", |options| precise(cut(options)));
    }
}

/// Losses stay within 2 % of float32's when values are rounded to half precision wherever the graph has it.
#[test]
fn rounded_to_half_precision_losses_stay_near() {
    for dtype in [DType::BF16, DType::F16] {
        let precise = |options| CompileOptions { precision: Some(dtype), ..options };
        let far = distance("gpt", precise, evaluate_rounded);
        assert!(far <= 0.02, "{dtype}: {far}");
        assert!(far > 1e-5, "{dtype}: nothing is rounded");
    }
}
