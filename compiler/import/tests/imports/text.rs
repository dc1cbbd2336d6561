//! Models as text. Their weights come from the file beside them, and an error shows the line that does not fit.

use std::collections::BTreeMap;
use std::path::Path;

use graphc_import::{ImportOptions, Imported, load_model};
use graphc_ir::op::Op;

/// Lists the variables that are trained.
fn trained(imported: &Imported) -> Vec<&str> {
    let nodes = imported.graph.nodes.iter();
    let names = nodes.filter_map(|node| match &node.op {
        Op::Variable(variable) if variable.trainable => Some(variable.name.as_str()),
        _ => None,
    });
    names.collect()
}

const TEXT: &str = "graph @g {
  %x = input \"x\" : f32[rows, 3]
  %w = variable \"w\" {init=\"weights\", trainable=true} : f32[3, 2]
  %b = variable \"b\" {init={\"fill\": 0}, trainable=true} : f32[2]
  %y = matmul %x, %w
  %z = binary %y, %b {function=\"add\"}
  return \"z\" = %z
}
";

fn safetensors(header: &str, values: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

#[test]
fn a_text_model_takes_its_weights_from_the_file_beside_it() {
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path();
    let path = folder.join("m.gir");
    std::fs::write(&path, TEXT).expect("is writable");
    let dims = BTreeMap::from([("batch".to_string(), 4)]);
    let options = || ImportOptions { freeze: vec!["b".into()], ..ImportOptions::default() };

    let imported = load_model(&path, &dims, options()).expect("shapes are enough");
    assert_eq!(imported.symbols, ["rows"]);
    assert_eq!(imported.graph.values[0].ty.shape, [4, 3]);
    assert_eq!(trained(&imported), ["w"]);
    let error = imported.weights.bytes("w").expect_err("is absent").to_string();
    assert!(error.contains("m.safetensors"), "{error}");

    let weights = folder.join("m.safetensors");
    let header = r#"{"w":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},"b":{"dtype":"F32","shape":[2],"data_offsets":[24,32]}}"#;
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    std::fs::write(&weights, safetensors(header, &values)).expect("is writable");
    let imported = load_model(&path, &dims, options()).expect("imports");
    assert_eq!(imported.weights.tensors["b"].elements("b").expect("is there"), [7.0, 8.0]);

    std::fs::write(&weights, safetensors(&header.replace("[3,2]", "[2,3]"), &values))
        .expect("is writable");
    let error = load_model(&path, &dims, options()).expect_err("does not fit").to_string();
    assert!(error.starts_with("the weight `w` is f32[2, 3] in "), "{error}");
    std::fs::write(&weights, b"12").expect("is writable");
    let error = load_model(&path, &dims, options()).expect_err("is corrupt").to_string();
    assert!(error.ends_with("is no safetensors file: it is shorter than its header"), "{error}");
}

#[test]
fn a_text_model_that_does_not_fit_shows_its_line() {
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path();
    let path = folder.join("m.gir");
    std::fs::write(&path, TEXT.replace("[3, 2]", "[4, 2]")).expect("is writable");
    let dims = BTreeMap::from([("batch".to_string(), 5)]);
    let error = load_model(&path, &dims, ImportOptions::default()).expect_err("does not fit");
    let expected = "m.gir:
error: matmul cannot take f32[5, 3], f32[4, 2]: the inner extents 3 and 4 differ
 --> line 5, column 8
  |
5 |   %y = matmul %x, %w
  |        ^^^^^^";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn a_text_model_without_outputs_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gir");
    std::fs::write(&path, TEXT.replace("  return \"z\" = %z\n", "")).expect("is writable");
    let dims = BTreeMap::from([("batch".to_string(), 4)]);
    let error = load_model(&path, &dims, ImportOptions::default()).expect_err("gives nothing");
    assert!(
        error.to_string().ends_with("m.gir has no outputs, so there is nothing to compute"),
        "{error}"
    );
}

#[test]
fn what_is_no_model_is_said_to_be_none() {
    let load = |path: &str| {
        let error = load_model(Path::new(path), &BTreeMap::new(), ImportOptions::default());
        error.expect_err("is no model").to_string()
    };
    let expected = "m.pt is no model: the name of a model ends in .onnx or .gir, or is hf:DIR with a folder that transformers \
                    has saved";
    assert_eq!(load("m.pt"), expected);
    assert!(load("absent.onnx").starts_with("cannot read the model absent.onnx: "));
    assert!(load("absent.gir").starts_with("cannot read the model absent.gir: "));
}

#[test]
fn a_header_that_claims_more_than_any_has_is_not_read() {
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path();
    let path = folder.join("m.gir");
    std::fs::write(&path, TEXT).expect("is writable");
    // A sparse file that is as long as its header claims: 4 TB.
    let weights = std::fs::File::create(folder.join("m.safetensors")).expect("is writable");
    std::io::Write::write_all(&mut &weights, &(1u64 << 42).to_le_bytes()).expect("is writable");
    weights.set_len((1 << 42) + 8).expect("sparse");
    let dims = BTreeMap::from([("batch".to_string(), 5)]);
    let error = load_model(&path, &dims, ImportOptions::default()).expect_err("too long");
    assert!(error.to_string().ends_with("is too long"), "{error}");
}
