//! Functions of PyTorch, as its exporters write them, have PyTorch's values and gradients at kinks and near 0. The cases are written by
//! `import_models/make_kink_cases.py`.

use std::collections::BTreeMap;
use std::path::Path;

use graphc_compiler::passes::GRADIENT;
use graphc_compiler::pipeline::prepare_until;
use graphc_import::ImportOptions;
use graphc_import::onnx::import_onnx;
use graphc_ir::array::Array;
use graphc_ir::evaluate::evaluate_outputs;
use graphc_ir::graph::Graph;
use graphc_ir::op::{EvalContext, Op};
use graphc_plan::{CompileOptions, Loss};
use serde_json::Value as Json;

/// The greatest difference, beside the size of a number: PyTorch computes in f32.
const ALLOWED: f64 = 2e-6;

fn bytes(case: &Json) -> Vec<u8> {
    let hex = case["model"].as_str().expect("hexadecimal");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn numbers(case: &Json, key: &str) -> Vec<f64> {
    let list = case[key].as_array().expect("a list").iter();
    list.map(|number| number.as_f64().expect("a number")).collect()
}

/// Evaluates a model, and the gradient of its sum by its weight, at the points.
fn evaluate(case: &Json) -> [Vec<f64>; 2] {
    let options = ImportOptions::default();
    let imported = import_onnx(&bytes(case), Path::new(""), &BTreeMap::new(), options);
    let mut graph = imported.expect("it is imported").graph;
    // The older exporter does not say what is a parameter.
    for node in &mut graph.nodes {
        if let Op::Variable(variable) = &mut node.op {
            variable.trainable |= variable.name == "w";
        }
    }
    let options =
        CompileOptions { loss: Some(Loss::Sum), gradients: true, ..CompileOptions::default() };
    let learning = prepare_until(graph.clone(), &options, "autodiff").expect("differentiated");
    let points = numbers(case, "points");
    let outputs = |graph: &Graph| {
        evaluate_outputs(graph, &feeds_of(graph, &points), &EvalContext::default())
            .expect("it is evaluated")
    };
    let (_, y) = outputs(&graph).pop_first().expect("an output");
    let gradient = outputs(&learning).remove(&format!("{GRADIENT}w")).expect("a gradient");
    [y.data, gradient.data]
}

fn feeds_of(graph: &Graph, points: &[f64]) -> BTreeMap<String, Array> {
    let feed = |op: &Op| match op {
        Op::Variable(variable) if variable.name == "w" => {
            Some((variable.name.clone(), Array::new(vec![points.len()], points.to_vec())))
        }
        Op::Input(input) => {
            Some((input.name.clone(), Array::new(vec![points.len()], vec![0.0; points.len()])))
        }
        _ => None,
    };
    graph.nodes.iter().filter_map(|node| feed(&node.op)).collect()
}

#[test]
fn gradients_at_kinks_are_those_of_pytorch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import_models/kink_cases.json");
    let text = std::fs::read_to_string(path).expect("is there");
    let cases: Vec<Json> = serde_json::from_str(&text).expect("JSON");
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case["name"].as_str().expect("a name");
        let [y, gradient] = evaluate(case);
        let points = numbers(case, "points");
        for (what, found, right) in
            [("value", &y, numbers(case, "y")), ("gradient", &gradient, numbers(case, "gradient"))]
        {
            for ((x, found), right) in points.iter().zip(found).zip(right) {
                // Away from 1 the relative error of what PyTorch itself rounds counts.
                if (found - right).abs() > ALLOWED * right.abs().max(1.0) {
                    wrong.push(format!("{name}: the {what} at {x} is {found}, not {right}"));
                }
            }
        }
    }
    assert!(cases.len() > 40 && wrong.is_empty(), "{wrong:#?}");
}
