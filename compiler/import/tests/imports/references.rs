//! The references in tests/refs, as PyTorch exports them: each imports, is verified, and has the first loss that PyTorch
//! reached.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use graphc_import::onnx::import_onnx;
use graphc_import::weights::Weights;
use graphc_import::{ImportOptions, Imported, ModelFile, load_model};
use graphc_ir::array::Array;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::evaluate::evaluate_outputs;
use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_ir::text::{parse_graph, print_graph};
use graphc_ir::types::DType;
use graphc_ir::verify::verify_graph;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/refs").join(name)
}

fn import(name: &str, batch: usize) -> Imported {
    let dims = BTreeMap::from([("batch".to_string(), batch)]);
    load_model(&folder(name).join("model.onnx"), &dims, ImportOptions::default()).expect("imports")
}

/// Reads the tensors of a safetensors file, with only the first rows.
fn data(name: &str, rows: usize) -> BTreeMap<String, (DType, Array)> {
    let bytes = std::fs::read(folder(name).join("data.safetensors")).expect("is there");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    let tensor = |entry: &serde_json::Value| {
        let number = |value: &serde_json::Value| value.as_u64().expect("a number") as usize;
        let mut shape: Vec<usize> =
            entry["shape"].as_array().expect("a list").iter().map(number).collect();
        shape[0] = rows;
        let bytes = &bytes[8 + length + number(&entry["data_offsets"][0])..];
        let count = shape.iter().product();
        match entry["dtype"].as_str() {
            Some("F32") => {
                let read = |b: &[u8; 4]| f64::from(f32::from_le_bytes(*b));
                let data = bytes.as_chunks().0.iter().take(count).map(read).collect();
                (DType::F32, Array::new(shape, data))
            }
            _ => {
                let read = |b: &[u8; 8]| i64::from_le_bytes(*b) as f64;
                let data = bytes.as_chunks().0.iter().take(count).map(read).collect();
                (DType::I64, Array::new(shape, data))
            }
        }
    };
    let header = header.as_object().expect("an object");
    header.iter().map(|(name, entry)| (name.clone(), tensor(entry))).collect()
}

fn arrays(weights: &Weights) -> BTreeMap<String, Array> {
    let array = |(name, tensor): (&String, &graphc_import::weights::WeightTensor)| {
        let elements = tensor.elements(name).expect("they are in the file");
        (name.clone(), Array::new(tensor.shape.clone(), elements))
    };
    weights.tensors.iter().map(array).collect()
}

fn with_loss(graph: &Graph, loss: &str, data: &BTreeMap<String, (DType, Array)>) -> Graph {
    let output = graph.outputs[0].value;
    let g = GraphBuilder::from_graph(graph.clone());
    let output = g.tensor(output);
    let target = if loss == "mse" { "target" } else { "labels" };
    let (dtype, array) = &data[target];
    let target = g.input(target, *dtype, array.shape.clone());
    let loss = if loss == "mse" { output.mse(&target) } else { output.cross_entropy(&target) };
    g.output("loss", &loss);
    g.finish().expect("fits")
}

fn first_loss_is_that_of_pytorch(name: &str, batch: usize) {
    let reference = std::fs::read_to_string(folder(name).join("ref.json")).expect("is there");
    let reference: serde_json::Value = serde_json::from_str(&reference).expect("JSON");
    let imported = import(name, batch);
    let data = data(name, batch);
    let loss = reference["args"][1].as_str().expect("--loss and its value come first");
    let graph = with_loss(&imported.graph, loss, &data);
    verify_graph(&graph).expect("is valid");
    let mut feeds = arrays(&imported.weights);
    feeds.extend(data.into_iter().map(|(name, (_, array))| (name, array)));
    let found =
        evaluate_outputs(&graph, &feeds, &Default::default()).expect("evaluates")["loss"].data[0];
    let expected = reference["losses"][0].as_f64().expect("a number");
    assert!((found / expected - 1.0).abs() < 1e-5, "{name}: {found}, PyTorch {expected}");
}

#[test]
fn mlp_has_the_first_loss_of_pytorch() {
    first_loss_is_that_of_pytorch("mlp", 16);
}

#[test]
fn mlp_mse_has_the_first_loss_of_pytorch() {
    first_loss_is_that_of_pytorch("mlp_mse", 20);
}

#[test]
fn gpt_has_the_first_loss_of_pytorch() {
    first_loss_is_that_of_pytorch("gpt", 8);
}

#[test]
fn recurrent_layers_have_the_first_loss_of_pytorch() {
    first_loss_is_that_of_pytorch("lstm", 4);
    first_loss_is_that_of_pytorch("gru", 4);
}

/// A recurrent layer becomes a product and one op for each direction. The exporter transposes to time first and back around each layer.
#[test]
fn a_recurrent_layer_is_a_product_and_one_op_for_each_direction() {
    let graph = import("lstm", 4).graph;
    let count = |name: &str| graph.nodes.iter().filter(|node| node.op.name() == name).count();
    assert_eq!((count("recurrence"), count("matmul"), count("transpose")), (4, 4 + 1, 0));
    let graph = import("gru", 4).graph;
    let count = |name: &str| graph.nodes.iter().filter(|node| node.op.name() == name).count();
    assert_eq!((count("recurrence"), count("matmul"), count("transpose")), (2, 2 + 1, 0));
}

#[test]
fn only_real_compute_remains_of_the_gpt() {
    let graph = import("gpt", 8).graph;
    let count = |name: &str| graph.nodes.iter().filter(|node| node.op.name() == name).count();
    assert_eq!(count("embedding"), 1);
    assert_eq!(count("split"), 2);
    assert_eq!(count("matmul"), 4 * 2 + 2 * 2 + 1);
    assert_eq!(count("variable"), 29, "all of the model's weights, under their names");
    // Four per layer make heads and merge them again: none is left of weights or keys.
    assert_eq!(count("transpose"), 4 * 2);
    assert_eq!(count("cast") + count("expand") + count("concat"), 0);
    assert!(graph.nodes.len() < 110, "{} nodes", graph.nodes.len());
}

#[test]
fn parameters_are_trained_and_weights_keep_their_names_and_shapes() {
    for name in ["mlp", "mlp_mse", "gpt", "lstm", "gru"] {
        let imported = import(name, 4);
        assert!(imported.warnings.is_empty(), "{:?}", imported.warnings);
        assert!(imported.training_warnings.is_empty(), "{:?}", imported.training_warnings);
        assert_eq!(imported.symbols, ["batch"]);
        for node in &imported.graph.nodes {
            let Op::Variable(variable) = &node.op else { continue };
            assert!(variable.trainable, "{}", variable.name);
            assert_eq!(imported.weights.tensors[&variable.name].ty(), variable.ty);
        }
    }
    let weights = import("gpt", 4).weights;
    assert_eq!(weights.tensors["blocks.0.attn.qkv.weight"].shape, [96, 32]);
}

#[test]
fn a_reference_is_the_same_after_printing_and_parsing() {
    for name in ["mlp", "mlp_mse", "gpt", "lstm", "gru", "unet"] {
        let graph = import(name, 4).graph;
        assert_eq!(parse_graph(&print_graph(&graph)).expect("parses"), graph, "{name}");
    }
}

#[test]
fn patterns_freeze_and_train() {
    let dims = BTreeMap::from([("batch".to_string(), 4)]);
    let load = |freeze: &[&str]| {
        let freeze = freeze.iter().map(ToString::to_string).collect();
        let options =
            ImportOptions { freeze, train: vec!["layers.1.*".into()], ..ImportOptions::default() };
        load_model(&folder("mlp").join("model.onnx"), &dims, options)
    };
    let imported = load(&["*"]).expect("imports");
    let trained = imported.graph.nodes.iter().filter_map(|node| match &node.op {
        Op::Variable(variable) if variable.trainable => Some(variable.name.as_str()),
        _ => None,
    });
    assert_eq!(trained.collect::<Vec<_>>(), ["layers.1.weight", "layers.1.bias"]);
    let error = load(&["*", "nothing.*"]).expect_err("there is nothing").to_string();
    assert!(
        error.starts_with("--freeze 'nothing.*' matches no weight: they are `layers.0.bias`, "),
        "{error}"
    );
}

#[test]
fn the_batch_has_to_be_given_and_is_named() {
    let path = folder("mlp").join("model.onnx");
    let symbols = ModelFile::read(&path).and_then(|model| model.symbols()).expect("reads");
    assert_eq!(symbols.batch.as_deref(), Some("batch"));
    let error = load_model(&path, &BTreeMap::new(), ImportOptions::default()).expect_err("unbound");
    assert_eq!(
        error.to_string(),
        "dim 0 of input `input`: the extent `batch` has no value: give it with --batch or --dim batch=VALUE"
    );
}

/// Running statistics keep the share that the model gives: here 0.9, PyTorch's default, and 0.75 written over it.
#[test]
fn batch_norm_keeps_the_share_that_the_model_says() {
    let bytes = std::fs::read(folder("resnet").join("model.onnx")).expect("is there");
    let [default, other] = [0.9f32, 0.75].map(f32::to_le_bytes);
    let mut changed = bytes.clone();
    for at in 0..bytes.len() - 4 {
        if bytes[at..at + 4] == default {
            changed[at..at + 4].copy_from_slice(&other);
        }
    }
    for (bytes, expected) in [(bytes, 0.9), (changed, 0.75)] {
        let dims = BTreeMap::from([("batch".to_string(), 4)]);
        let imported = import_onnx(&bytes, Path::new("models"), &dims, ImportOptions::default());
        let graph = imported.expect("imports").graph;
        let momenta = graph.nodes.iter().filter_map(|node| match &node.op {
            Op::BatchNorm(norm) => Some(norm.momentum.0),
            _ => None,
        });
        assert_eq!(momenta.collect::<Vec<_>>(), [expected; 9]);
    }
}
