//! Models, as ONNX and as text.

use std::collections::BTreeMap;
use std::path::Path;

use graphc::compiler::import::ImportOptions;
use graphc::compiler::import::onnx::{import_onnx, onnx_with_weights};
use graphc::compiler::null_device::simulate;
use graphc::ir::text;
use graphc::ir::verify::verify_graph;
use graphc::prelude::*;

use super::{Outcome, at, read_folder, words};

/// The models that trainings are held against, and small ones.
pub fn onnx_corpus() -> Vec<Vec<u8>> {
    let names =
        ["experts", "gru", "lstm", "mlp", "mlp_mse", "states", "unet", "llama", "gpt", "resnet"];
    let model = |name| std::fs::read(at("tests/refs").join(name).join("model.onnx"));
    let models = names.into_iter().map(|name| model(name).expect("a model of the references"));
    models.chain(read_folder(&at("compiler/import/tests/import_models"))).collect()
}

/// The graphs of filetests, each by itself: for inference and training, before and after passes; and damaged ones.
pub fn gir_corpus() -> Vec<Vec<u8>> {
    let folders = ["compiler/tests/filetests", "ir/tests/text_errors", "tests/known_answers"];
    let files = folders.iter().flat_map(|folder| read_folder(&at(folder)));
    files.flat_map(|file| graphs_of(&String::from_utf8_lossy(&file))).collect()
}

/// The graphs of a text, from `graph` to the brace that stands alone.
fn graphs_of(text: &str) -> Vec<Vec<u8>> {
    let graphs = text.split("graph @").skip(1);
    let whole = graphs.map(|graph| graph.find("\n}").map_or(graph, |end| &graph[..end + 2]));
    whole.map(|graph| format!("graph @{graph}\n").into_bytes()).collect()
}

/// Imports a model, compiles its graph and writes the model again with its weights.
pub fn feed_onnx(input: &[u8], folder: &Path) -> Outcome {
    let dims = BTreeMap::from([("batch".to_string(), 4)]);
    let model = import_onnx(input, folder, &dims, ImportOptions::default()).map_err(words)?;
    verify_graph(&model.graph).expect("what was imported is sound");
    let rewritten = onnx_with_weights(input, &model.weights).map(drop).map_err(words);
    compile_both(&model.graph)?;
    rewritten
}

/// Parses a text, holds that what is written is read as the same, and compiles it.
pub fn feed_gir(input: &[u8]) -> Outcome {
    let text = std::str::from_utf8(input).map_err(words)?;
    let graph = text::parse_graph(text).map_err(words)?;
    let written = text::print_graph(&graph);
    let again = text::parse_graph(&written).expect("what was written is read");
    assert_eq!(text::print_graph(&again), written, "a graph that was written is read as another");
    compile_both(&graph)
}

/// Compiles for inference on one rank, and for training on two; taken where one of them is.
fn compile_both(graph: &Graph) -> Outcome {
    let inference = CompileOptions { mesh: vec![1], ..CompileOptions::default() };
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let training = CompileOptions {
        mesh: vec![2],
        loss: Some(Loss::Mse),
        optimizer: Some(sgd),
        ..CompileOptions::default()
    };
    let [inference, training] = [inference, training].map(|options| compile_with(graph, &options));
    training.or(inference)
}

/// Compiles a graph, and executes the plan without a machine.
fn compile_with(graph: &Graph, options: &CompileOptions) -> Outcome {
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(graph.clone(), options, &cluster, None).map_err(words)?.plan;
    simulate(&plan).expect("a plan that was made runs");
    Ok(())
}
