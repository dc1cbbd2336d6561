//! Weights in and beside a model's file: their types, extents and bytes are checked, and files lie in the model's folder.

use std::collections::BTreeMap;
use std::path::Path;

use graphc_import::{ImportOptions, load_model};
use rten_onnx::onnx::{DataLocation, DataType, GraphProto, StringStringEntryProto, TensorProto};

use super::errors::{bytes, error, graph, import, node, tensor};

fn with_weight(weight: TensorProto) -> GraphProto {
    let mut graph = graph(vec![node("MatMul", &["x", "w"], "y")]);
    graph.initializer = vec![weight];
    graph
}

#[test]
fn tensors_are_checked() {
    let wrong = |weight: TensorProto| error(with_weight(weight));
    assert_eq!(
        wrong(tensor("w", &[3, 5], vec![0.0; 14])),
        "tensor `w`: it has 14 elements, and f32[3, 5] needs 15"
    );
    assert_eq!(
        wrong(TensorProto {
            raw_data: Some(vec![0; 59].into()),
            ..tensor("w", &[3, 5], Vec::new())
        }),
        "tensor `w`: it has 59 bytes, and f32[3, 5] needs 60"
    );
    assert_eq!(
        wrong(tensor("w", &[3, -5], Vec::new())),
        "tensor `w`: its shape [3, -5] has a negative extent"
    );
    assert_eq!(
        wrong(tensor("w", &[1 << 40, 1 << 40], Vec::new())),
        "tensor `w`: its shape [1099511627776, 1099511627776] has too many elements"
    );
    assert_eq!(
        wrong(TensorProto { data_type: Some(DataType::STRING), ..tensor("w", &[1], Vec::new()) }),
        "tensor `w`: the element type STRING is not supported"
    );
}

fn external(entries: &[(&str, &str)]) -> TensorProto {
    let entry = |&(key, value): &(&str, &str)| StringStringEntryProto {
        key: Some(key.into()),
        value: Some(value.into()),
    };
    TensorProto {
        data_location: Some(DataLocation::EXTERNAL),
        external_data: entries.iter().map(entry).collect(),
        ..tensor("w", &[3, 5], Vec::new())
    }
}

/// A file of weights must be a regular file in the model's folder. Links that lead out of the folder, pipes and devices are refused.
#[cfg(unix)]
#[test]
fn a_file_of_weights_stays_in_the_model_s_folder() {
    let (inside, elsewhere) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (folder, outside) = (inside.path(), elsewhere.path().join("secret"));
    std::fs::write(&outside, [0; 60]).expect("is writable");
    let (model, weights) = (folder.join("m.onnx"), folder.join("w.bin"));
    let graph = with_weight(external(&[("location", "w.bin")]));
    std::fs::write(&model, bytes(graph, 20)).expect("is writable");
    let read = || {
        let dims = BTreeMap::from([("batch".to_string(), 4)]);
        let imported = load_model(&model, &dims, ImportOptions::default()).expect("shapes suffice");
        imported.weights.bytes("w").map_err(|error| error.to_string())
    };
    let link = |to: &Path| {
        let _ = std::fs::remove_file(&weights);
        std::os::unix::fs::symlink(to, &weights).expect("a link");
    };
    link(&outside);
    let error = read().expect_err("leads out");
    assert!(error.contains("secret, which is not in the model's folder"), "{error}");
    link(Path::new("/dev/zero"));
    read().expect_err("leads out");
    std::fs::write(folder.join("real.bin"), [0; 60]).expect("is writable");
    link(Path::new("real.bin"));
    assert_eq!(read().expect("stays").len(), 60);
    std::fs::remove_file(&weights).expect("a link");
    let pipe = std::process::Command::new("mkfifo").arg(&weights).status().expect("mkfifo");
    assert!(pipe.success());
    let error = read().expect_err("a pipe");
    assert!(error.ends_with("it is no file"), "{error}");
}

#[test]
fn an_absent_file_of_weights_is_an_error_once_its_bytes_are_needed() {
    let graph = with_weight(external(&[("location", "w.bin"), ("length", "60")]));
    let imported = import(&bytes(graph, 20)).expect("shapes are enough");
    let error = imported.weights.bytes("w").expect_err("is absent").to_string();
    assert!(
        error.starts_with("the weight `w` is in models/w.bin, which cannot be read"),
        "{error}"
    );
    assert_eq!(
        self::error(with_weight(external(&[("location", "../w.bin")]))),
        "tensor `w`: its file `../w.bin` is not beside the model"
    );
    assert_eq!(
        self::error(with_weight(external(&[("location", "w.bin"), ("length", "61")]))),
        "tensor `w`: it has 61 bytes, and f32[3, 5] needs 60"
    );
}

#[test]
fn weights_are_read_from_other_files_where_they_are() {
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path();
    let values: Vec<u8> = (0..17u8).flat_map(|x| f32::from(x).to_le_bytes()).collect();
    std::fs::write(folder.join("w.bin"), values).expect("is writable");
    let graph = with_weight(external(&[("location", "w.bin"), ("offset", "8")]));
    std::fs::write(folder.join("m.onnx"), bytes(graph, 20)).expect("is writable");
    let imported = load_model(&folder.join("m.onnx"), &BTreeMap::new(), ImportOptions::default());
    let weights = imported.expect("imports").weights;
    let elements = weights.tensors["w"].elements("w").expect("is there");
    assert_eq!(elements, (2..17).map(f64::from).collect::<Vec<_>>());
}
