//! Every ONNX op that is imported computes what ONNX's own reference evaluator computes, and layers, loops, losses and ops of
//! onnxruntime's own what onnxruntime does. The cases, with models and expected outputs, are written by
//! `import_models/make_cases.py`, `make_layer_cases.py` and `make_form_cases.py`.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::Path;

use graphc_compiler::pipeline::{attentions_of, prepare_until};
use graphc_import::onnx::import_onnx;
use graphc_import::{ImportOptions, Imported};
use graphc_ir::array::Array;
use graphc_ir::evaluate::evaluate_outputs;
use graphc_ir::op::Op;
use graphc_ir::text::{parse_graph, print_graph};
use graphc_plan::CompileOptions;
use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataType, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor, ValueInfoProto,
};
use serde_json::Value as Json;

fn cases() -> Vec<Json> {
    ["cases.json", "layer_cases.json", "form_cases.json"].into_iter().flat_map(cases_of).collect()
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

/// Checks that an imported case has its expected outputs, and that its graph is the same after printing and parsing. Returns the first difference as
/// an error.
fn check(case: &Json) -> Result<(), String> {
    let imported = import(case)?;
    let mut feeds = arrays(&case["inputs"]);
    for (name, tensor) in &imported.weights.tensors {
        let elements = tensor.elements(name).map_err(|error| error.to_string())?;
        feeds.insert(name.clone(), Array::new(tensor.shape.clone(), elements));
    }
    let found = evaluate_outputs(&imported.graph, &feeds, &Default::default())
        .map_err(|e| e.to_string())?;
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
    let text = print_graph(&imported.graph);
    match parse_graph(&text) {
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
    let text = print_graph(&imported.graph);
    let table = "%c = variable \"c\" {init={\"table\": \"";
    assert!(text.contains(table) && text.contains("} : f32[9, 9]"), "{text}");
    assert!(imported.weights.tensors.is_empty());
}

/// Imports a graph of ops of this version.
fn import_graph(graph: GraphProto, version: i64) -> Imported {
    let version = OperatorSetIdProto { domain: None, version: Some(version) };
    let model = ModelProto {
        ir_version: Some(10),
        graph: Some(graph),
        opset_import: vec![version],
        ..ModelProto::default()
    };
    let bytes = model.write_buf().expect("is writable");
    import_onnx(&bytes, Path::new(""), &BTreeMap::new(), ImportOptions::default()).expect("imports")
}

/// Imports `x - c` of `x`, f32[4, 20], where the exporter has computed the `c` of this shape.
fn import_difference(shape: &[usize], c: &[f32]) -> Imported {
    let extent = |&extent: &i64| Dimension { dim_value: Some(extent), dim_param: None };
    let tensor = TypeProtoTensor {
        elem_type: Some(DataType::FLOAT),
        shape: Some(TensorShapeProto { dim: [4, 20].iter().map(extent).collect() }),
    };
    let ty = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
    let computed = TensorProto {
        name: Some("onnx::Sub_1".into()),
        dims: shape.iter().map(|&extent| extent as i64).collect(),
        data_type: Some(DataType::FLOAT),
        float_data: c.to_vec(),
        ..TensorProto::default()
    };
    let node = NodeProto {
        op_type: Some("Sub".into()),
        input: ["x", "onnx::Sub_1"].map(String::from).into(),
        output: vec!["y".into()],
        ..NodeProto::default()
    };
    let graph = GraphProto {
        input: vec![ValueInfoProto { name: Some("x".into()), r#type: Some(ty) }],
        output: vec![ValueInfoProto { name: Some("y".into()), r#type: None }],
        node: vec![node],
        initializer: vec![computed],
        ..GraphProto::default()
    };
    import_graph(graph, 18)
}

/// What the exporter has computed for each sample alike is kept once, so that a batch can be cut; what differs keeps its name.
#[test]
fn computed_tensors_that_repeat_are_kept_once() {
    let row: Vec<f32> = (0..20).map(|i| (i as f32).sin()).collect();
    let rows = row.repeat(4);
    let text = print_graph(&import_difference(&[4, 20], &rows).graph);
    assert!(text.contains("f32[1, 20]") && !text.contains("onnx::Sub_1"), "{text}");
    let mask: Vec<f32> = (0..80).map(|i| if i % 21 < 7 { 0.0 } else { -1e4 }).collect();
    let text = print_graph(&import_difference(&[4, 20], &mask).graph);
    assert!(text.contains("table") && !text.contains("onnx::Sub_1"), "{text}");
    let other: Vec<f32> = (0..80).map(|i| (i as f32).cos()).collect();
    let text = print_graph(&import_difference(&[4, 20], &other).graph);
    assert!(text.contains("variable \"onnx::Sub_1\""), "{text}");
}

/// Imports a model of one node `Attention` of version 23 on queries of 4 heads, and keys and values of `shared` heads.
fn attention_of_version_23(shared: i64, integers: &[(&str, i64)], softcap: f32) -> Imported {
    let input = |(name, heads): (&str, i64)| {
        let extent = |&extent: &i64| Dimension { dim_value: Some(extent), dim_param: None };
        let shape = Some(TensorShapeProto { dim: [2, heads, 5, 3].iter().map(extent).collect() });
        let tensor = TypeProtoTensor { elem_type: Some(DataType::FLOAT), shape };
        let ty = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
        ValueInfoProto { name: Some(name.into()), r#type: Some(ty) }
    };
    let named = |name: &str, r#type| AttributeProto {
        name: Some(name.into()),
        r#type: Some(r#type),
        ..AttributeProto::default()
    };
    let integer = |&(name, value): &(&str, i64)| AttributeProto {
        i: Some(value),
        ..named(name, AttributeType::INT)
    };
    let cap = AttributeProto { f: Some(softcap), ..named("softcap", AttributeType::FLOAT) };
    let node = NodeProto {
        name: Some("attention".into()),
        op_type: Some("Attention".into()),
        input: ["q", "k", "v"].map(String::from).into(),
        output: vec!["y".into()],
        attribute: integers.iter().map(integer).chain([cap]).collect(),
        ..NodeProto::default()
    };
    let graph = GraphProto {
        output: vec![ValueInfoProto { name: Some("y".into()), r#type: None }],
        node: vec![node],
        input: [("q", 4), ("k", shared), ("v", shared)].map(input).into(),
        ..GraphProto::default()
    };
    import_graph(graph, 23)
}

#[test]
fn attention_of_version_23_is_one_op() {
    let options = CompileOptions::default();
    for (shared, integers, softcap, causal, window) in [
        (4, &[][..], 0.0, false, None),
        (2, &[("is_causal", 1)], 0.0, true, None),
        (1, &[("right_window_size", 0)], 0.0, true, None),
        (4, &[("is_causal", 1), ("left_window_size", 2)], 0.0, true, Some(3)),
        (4, &[("is_causal", 1)], 30.0, true, None),
        (4, &[("left_window_size", 2), ("right_window_size", 1)], 0.0, false, None),
    ] {
        let imported = attention_of_version_23(shared, integers, softcap);
        let before = imported.graph.clone();
        let after = prepare_until(imported.graph, &options, "attention").expect("fits");
        let found = after.nodes.iter().find_map(|node| match &node.op {
            Op::Attention(op) => Some((*op, after.value(node.operands[1]).ty.shape[2])),
            _ => None,
        });
        let kept = attentions_of(before.clone(), &options).expect("fits").in_parts;
        let (op, heads) = found.unwrap_or_else(|| panic!("{integers:?}: {kept:?}"));
        assert_eq!((op.causal, heads), (causal, shared as usize), "{integers:?}");
        assert_eq!(op.window.map(NonZeroU32::get), window, "{integers:?}");
        assert_eq!(op.soft_cap.is_some(), softcap > 0.0, "{integers:?}");
        assert!(kept.is_empty(), "{kept:?}");
        let numbers = |heads: i64, seed: f64| {
            let count = 30 * heads as usize;
            let data = (0..count).map(|i| (seed + 1.7 * i as f64).sin()).collect();
            Array::new([2, heads as usize, 5, 3], data)
        };
        let heads = [("q", 4, 0.1), ("k", shared, 0.2), ("v", shared, 0.3)];
        let feeds =
            heads.map(|(name, heads, seed)| (name.to_string(), numbers(heads, seed))).into();
        let [a, b] = [&before, &after]
            .map(|graph| evaluate_outputs(graph, &feeds, &Default::default()).expect("is fed"));
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
        assert!(a["y"].data.iter().zip(&b["y"].data).all(near), "{integers:?}");
    }
}
