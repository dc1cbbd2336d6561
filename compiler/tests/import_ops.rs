//! Every ONNX op that is imported computes what ONNX's own reference evaluator computes, and layers and loops what onnxruntime
//! does. The cases, with models and expected outputs, are written by `import_models/make_cases.py` and `make_layer_cases.py`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use graphc_compiler::import::onnx::import_onnx;
use graphc_compiler::import::{ImportOptions, Imported};
use graphc_ir::array::Array;
use graphc_ir::evaluate::outputs;
use graphc_ir::text::{parse, print};
use serde_json::Value as Json;

fn cases() -> Vec<Json> {
    ["cases.json", "layer_cases.json"].into_iter().flat_map(cases_of).collect()
}

fn cases_of(file: &str) -> Vec<Json> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import_models").join(file);
    serde_json::from_str(&std::fs::read_to_string(path).expect("is there")).expect("JSON")
}

fn model(case: &Json) -> Vec<u8> {
    let hex = case["model"].as_str().expect("hexadecimal");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn number(value: &Json) -> f64 {
    match value {
        Json::Bool(value) => f64::from(*value),
        Json::String(text) => text.parse().expect("a number"),
        value => value.as_f64().expect("a number"),
    }
}

fn array(tensor: &Json) -> Array {
    let list = |key: &str| tensor[key].as_array().expect("a list").iter();
    let shape: Vec<usize> = list("shape").map(|extent| number(extent) as usize).collect();
    Array::new(shape, list("data").map(number).collect())
}

fn arrays(tensors: &Json) -> BTreeMap<String, Array> {
    let tensors = tensors.as_object().expect("an object");
    tensors.iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect()
}

fn import(case: &Json) -> Result<Imported, String> {
    let options = ImportOptions::default();
    import_onnx(&model(case), Path::new(""), &BTreeMap::new(), options).map_err(|e| e.to_string())
}

/// What is wrong with a case.
fn check(case: &Json) -> Result<(), String> {
    let imported = import(case)?;
    let mut feeds = arrays(&case["inputs"]);
    for (name, tensor) in &imported.weights.tensors {
        let elements = tensor.elements(name).map_err(|error| error.to_string())?;
        feeds.insert(name.clone(), Array::new(tensor.shape.clone(), elements));
    }
    let found = outputs(&imported.graph, &feeds, &Default::default()).map_err(|e| e.to_string())?;
    for output in &imported.graph.outputs {
        let dtype = imported.graph.value(output.value).ty.dtype.name();
        if case["outputs"][&output.name]["dtype"].as_str() != Some(dtype) {
            return Err(format!("{} is {dtype}", output.name));
        }
    }
    for (name, expected) in arrays(&case["outputs"]) {
        let found = &found[&name];
        let close = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= 1e-5 * (1.0 + b.abs());
        if found.shape != expected.shape || !found.data.iter().zip(&expected.data).all(close) {
            return Err(format!("{name} is {found:?}, expected {expected:?}"));
        }
    }
    let text = print(&imported.graph);
    match parse(&text) {
        Ok(again) if again == imported.graph => Ok(()),
        Ok(_) => Err(format!("another graph after printing:\n{text}")),
        Err(errors) => Err(errors.to_string()),
    }
}

#[test]
fn each_op_computes_what_the_reference_does() {
    let cases = cases();
    assert!(cases.len() > 100);
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| check(case).err().map(|error| format!("{}: {error}", case["name"])))
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn ops_of(name: &str) -> BTreeSet<&'static str> {
    let cases = cases();
    let case = cases.iter().find(|case| case["name"] == name).expect("there is such a case");
    import(case).expect("imports").graph.nodes.iter().map(|node| node.op.name()).collect()
}

#[test]
fn shapes_and_literals_are_folded() {
    assert_eq!(ops_of("folded_shapes"), ["input", "reshape"].into());
    assert_eq!(ops_of("constant_output"), ["constant", "full", "input"].into());
    assert_eq!(ops_of("Mul_number"), ["input", "unary"].into());
    assert_eq!(ops_of("constant_of_shape"), ["input", "unary"].into());
}

#[test]
fn a_large_literal_is_a_table_and_no_weight() {
    let cases = cases();
    let case = cases.iter().find(|case| case["name"] == "large_literal").expect("is there");
    let imported = import(case).expect("imports");
    let text = print(&imported.graph);
    let table = "%c = variable \"c\" {init={\"table\": \"";
    assert!(text.contains(table) && text.contains("} : f32[9, 9]"), "{text}");
    assert!(imported.weights.tensors.is_empty());
}
