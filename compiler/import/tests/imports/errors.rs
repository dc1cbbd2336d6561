//! Messages about models that are damaged, do not fit, or need what graphc does not have. No bytes make the importer panic.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use graphc_import::onnx::import_onnx;
use graphc_import::{ImportOptions, Imported, load_model};
use graphc_ir::op::Op;
use proptest::prelude::*;
use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataType, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor, ValueInfoProto,
};

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn reference(name: &str) -> Vec<u8> {
    let path = tests().join("../../../tests/refs").join(name).join("model.onnx");
    std::fs::read(path).expect("is there")
}

pub(super) fn import(bytes: &[u8]) -> Result<Imported, String> {
    let dims = BTreeMap::from([("batch".to_string(), 4)]);
    import_onnx(bytes, Path::new("models"), &dims, ImportOptions::default())
        .map_err(|e| e.to_string())
}

/// Returns the error of a model.
pub(super) fn error(graph: GraphProto) -> String {
    import(&bytes(graph, 20)).expect_err("the model is wrong")
}

pub(super) fn bytes(graph: GraphProto, version: i64) -> Vec<u8> {
    let version = OperatorSetIdProto { domain: None, version: Some(version) };
    let model = ModelProto {
        ir_version: Some(9),
        graph: Some(graph),
        opset_import: vec![version],
        ..ModelProto::default()
    };
    model.write_buf().expect("is writable")
}

fn info(name: &str, shape: &[i64]) -> ValueInfoProto {
    let extent = |&extent: &i64| Dimension { dim_value: Some(extent), dim_param: None };
    let shape = Some(TensorShapeProto { dim: shape.iter().map(extent).collect() });
    let tensor = TypeProtoTensor { elem_type: Some(DataType::FLOAT), shape };
    let ty = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
    ValueInfoProto { name: Some(name.into()), r#type: Some(ty) }
}

pub(super) fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: Some(format!("node_{output}")),
        op_type: Some(op.into()),
        input: inputs.iter().map(ToString::to_string).collect(),
        output: vec![output.into()],
        ..NodeProto::default()
    }
}

pub(super) fn tensor(name: &str, dims: &[i64], data: Vec<f32>) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.into(),
        data_type: Some(DataType::FLOAT),
        float_data: data,
        ..TensorProto::default()
    }
}

/// Makes a graph with the input `x` of `[4, 3]`, the weight `w` of `[3, 5]` and the output `y`.
pub(super) fn graph(nodes: Vec<NodeProto>) -> GraphProto {
    GraphProto {
        node: nodes,
        initializer: vec![tensor("w", &[3, 5], vec![0.5; 15])],
        input: vec![info("x", &[4, 3])],
        output: vec![info("y", &[4, 5])],
        value_info: Vec::new(),
    }
}

#[test]
fn all_unknown_ops_are_named_with_a_node_each_and_what_is_near() {
    assert_eq!(
        error(graph(vec![node("MatMull", &["x", "w"], "y")])),
        "1 node has an op that is not supported: 1 MatMull (node `node_y`; did the exporter mean MatMul?)"
    );
    let mut foreign = node("Fused", &["x", "w"], "f");
    foreign.domain = Some("my.company".into());
    let nodes = vec![
        foreign,
        node("NonMaxSuppression", &["x", "w"], "a"),
        node("NonMaxSuppression", &["a", "f"], "y"),
    ];
    assert_eq!(
        error(graph(nodes)),
        "3 nodes have ops that are not supported: 1 Fused of domain `my.company` (node `node_f`; no op of this domain \
         is supported), 2 NonMaxSuppression (the first is node `node_a`)"
    );
}

#[test]
fn attributes_that_an_op_has_not_are_errors() {
    let attribute = AttributeProto {
        name: Some("axes".into()),
        ints: vec![0],
        r#type: Some(AttributeType::INTS),
        ..AttributeProto::default()
    };
    let mut relu = node("Relu", &["x"], "y");
    relu.attribute = vec![attribute.clone()];
    assert_eq!(
        error(graph(vec![relu])),
        "node `node_y` of type Relu: the attribute `axes` is unknown: the op has none"
    );
    let mut concat = node("Concat", &["x", "x"], "y");
    concat.attribute = vec![attribute];
    assert_eq!(
        error(graph(vec![concat])),
        "node `node_y` of type Concat: the attribute `axes` is unknown: the op has `axis`"
    );
}

#[test]
fn indices_are_integers_within_their_dim() {
    let mut model = graph(vec![node("Gather", &["x", "places"], "y")]);
    model.initializer.push(tensor("places", &[2], vec![0.0, 1.0]));
    assert_eq!(error(model), "node `node_y` of type Gather: indices are integers, not f32");
    let mut model = graph(vec![node("GatherND", &["x", "places"], "y")]);
    model.initializer.push(integers("places", &[1, 2], vec![1, 3]));
    assert_eq!(error(model), "node `node_y` of type GatherND: the index 3 is not in 0..3");
    let mut model = graph(vec![node("Div", &["places", "zero"], "y")]);
    model.initializer.push(integers("places", &[2], vec![1, 3]));
    model.initializer.push(integers("zero", &[], vec![0]));
    assert_eq!(error(model), "node `node_y` of type Div: an integer is divided by 0");
}

fn integers(name: &str, dims: &[i64], data: Vec<i64>) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.into(),
        data_type: Some(DataType::INT64),
        int64_data: data,
        ..TensorProto::default()
    }
}

#[test]
fn shapes_that_do_not_meet_are_named_with_the_node() {
    assert_eq!(
        error(graph(vec![node("MatMul", &["w", "x"], "y")])),
        "node `node_y` of type MatMul: matmul cannot take f32[3, 5], f32[4, 3]: the inner extents 5 and 4 differ"
    );
    let mut reshape = graph(vec![node("Reshape", &["x", "shape"], "y")]);
    let integers = TensorProto {
        name: Some("shape".into()),
        dims: vec![2],
        data_type: Some(DataType::INT64),
        int64_data: vec![5, -1],
        ..TensorProto::default()
    };
    reshape.initializer.push(integers);
    assert_eq!(
        error(reshape),
        "node `node_y` of type Reshape: [4, 3] has 12 elements, which do not fit [5, -1]"
    );
}

#[test]
fn attributes_and_operands_are_checked() {
    let mut softmax = node("Softmax", &["x"], "y");
    let axis = AttributeProto { name: Some("axis".into()), ..AttributeProto::default() };
    softmax.attribute =
        vec![AttributeProto { i: Some(2), r#type: Some(AttributeType::INT), ..axis.clone() }];
    assert_eq!(
        error(graph(vec![softmax.clone()])),
        "node `node_y` of type Softmax: there is no axis 2 in a tensor of rank 2"
    );
    softmax.attribute =
        vec![AttributeProto { f: Some(1.0), r#type: Some(AttributeType::FLOAT), ..axis }];
    assert_eq!(
        error(graph(vec![softmax])),
        "node `node_y` of type Softmax: the attribute `axis` is not an integer"
    );
    assert_eq!(
        error(graph(vec![node("MatMul", &["x"], "y")])),
        "node `node_y` of type MatMul: operand 1 is missing"
    );
    assert_eq!(
        error(graph(vec![node("Reshape", &["x", "x"], "y")])),
        "node `node_y` of type Reshape: the shape must be known when the model is imported, but it is computed"
    );
    let mut two = node("Relu", &["x"], "y");
    two.output.push("z".into());
    assert_eq!(
        error(graph(vec![two, node("Neg", &["z"], "n")])),
        "node `node_y` of type Relu: its result 1, `z`, is not supported"
    );
}

#[test]
fn the_structure_is_checked() {
    assert_eq!(
        error(graph(vec![node("MatMul", &["x", "nothing"], "y")])),
        "the ONNX graph is not valid: node `node_y` of type MatMul reads `nothing`, which is no input, initializer or result"
    );
    assert_eq!(
        error(graph(vec![
            node("Add", &["x", "b"], "a"),
            node("Relu", &["a"], "b"),
            node("Relu", &["b"], "y")
        ])),
        "the ONNX graph is not valid: nodes wait for each other in a cycle: `node_a` -> `node_b` -> `node_a`"
    );
    assert_eq!(
        error(graph(vec![node("Relu", &["x"], "y"), node("Relu", &["x"], "y")])),
        "the ONNX graph is not valid: node `node_y` of type Relu makes `y`, a name that is given twice"
    );
    let mut twice = graph(vec![node("MatMul", &["x", "w"], "y")]);
    twice.initializer.push(tensor("w", &[1], vec![0.0]));
    assert_eq!(error(twice), "the ONNX graph is not valid: two initializers are called `w`");
    assert_eq!(
        error(graph(Vec::new())),
        "the ONNX graph is not valid: nobody makes the output `y`"
    );
    let old = bytes(graph(vec![node("MatMul", &["x", "w"], "y")]), 5);
    assert_eq!(
        import(&old).expect_err("is too old"),
        "the ONNX graph is not valid: its operators are of version 5; graphc reads versions 7 to 28"
    );
}

#[test]
fn operators_must_be_of_a_version_that_is_known() {
    let of = |versions: Vec<OperatorSetIdProto>| {
        let model = ModelProto {
            ir_version: Some(9),
            graph: Some(graph(vec![node("MatMul", &["x", "w"], "y")])),
            opset_import: versions,
            ..ModelProto::default()
        };
        import(&model.write_buf().expect("is writable")).expect_err("is not known")
    };
    let new = of(vec![OperatorSetIdProto { domain: None, version: Some(99) }]);
    assert!(
        new.ends_with("its operators are of version 99; graphc reads versions 7 to 28"),
        "{new}"
    );
    let missing = of(Vec::new());
    assert!(missing.contains("it does not say of which version its operators are"), "{missing}");
}

#[test]
fn operands_and_attributes_that_contradict_are_errors() {
    let ints = |name: &str, ints: &[i64]| AttributeProto {
        name: Some(name.into()),
        ints: ints.into(),
        r#type: Some(AttributeType::INTS),
        ..AttributeProto::default()
    };
    assert_eq!(
        error(graph(vec![node("Relu", &["x", "w"], "y")])),
        "node `node_y` of type Relu: it has 2 operands, and takes 1"
    );
    let mut split = node("Split", &["x"], "a");
    split.output.push("b".into());
    let count = |i| AttributeProto {
        name: Some("num_outputs".into()),
        i: Some(i),
        r#type: Some(AttributeType::INT),
        ..AttributeProto::default()
    };
    split.attribute = vec![count(3)];
    let said = error(graph(vec![split.clone(), node("Relu", &["a"], "y")]));
    assert!(said.ends_with("the attribute `num_outputs` is 3, and it has 2 outputs"), "{said}");
    split.attribute = vec![ints("split", &[1, 1, 2])];
    let said = error(graph(vec![split, node("Relu", &["a"], "y")]));
    assert!(said.ends_with("it splits into 3 parts, and has 2 outputs"), "{said}");
    let mut conv = node("Conv", &["x", "k"], "y");
    conv.attribute = vec![ints("kernel_shape", &[5, 5])];
    let images = GraphProto {
        node: vec![conv],
        initializer: vec![tensor("k", &[2, 1, 3, 3], vec![0.5; 18])],
        input: vec![info("x", &[4, 1, 8, 8])],
        output: vec![info("y", &[4, 2, 6, 6])],
        value_info: Vec::new(),
    };
    let said = error(images);
    assert!(said.ends_with("`kernel_shape` is [5, 5], and its kernels are [3, 3]"), "{said}");
}

#[test]
fn matrices_to_invert_are_square_and_small() {
    let of = |op: &str, domain: Option<&str>, shape: &[i64]| {
        let mut node = node(op, &["x"], "y");
        node.domain = domain.map(Into::into);
        let x = vec![info("x", shape)];
        error(GraphProto { initializer: Vec::new(), input: x, ..graph(vec![node]) })
    };
    for (op, domain, what) in
        [("Inverse", Some("com.microsoft"), "the inverse"), ("Det", None, "the determinant")]
    {
        for (rows, columns) in [(2, 3), (33, 33)] {
            assert_eq!(
                of(op, domain, &[4, rows, columns]),
                format!(
                    "node `node_y` of type {op}: {what} is supported of square matrices of 1 to 32 rows, not of {rows} x {columns}"
                )
            );
        }
        let said = of(op, domain, &[4]);
        assert!(said.ends_with("a matrix has two dims"), "{said}");
    }
}

#[test]
fn nodes_need_not_stand_in_order() {
    let nodes = vec![node("Relu", &["h"], "y"), node("MatMul", &["x", "w"], "h")];
    let imported = import(&bytes(graph(nodes), 20)).expect("is sorted");
    assert_eq!(imported.graph.outputs[0].name, "y");
}

#[test]
fn a_corrupt_file_is_said_to_be_one_and_where() {
    let whole = reference("mlp");
    let found = import(&whole[..whole.len() / 2]).expect_err("is truncated");
    assert!(found.starts_with("the ONNX file is corrupt: byte "), "{found}");
    assert!(found.contains("bytes are left") || found.contains("are left"), "{found}");
    assert_eq!(
        import(b"").expect_err("is empty"),
        "the ONNX file is corrupt: the model: it holds no graph"
    );
    let found = import(b"This is a text, and no model.").expect_err("is no model");
    assert!(found.starts_with("the ONNX file is corrupt: byte 0, in the model: "), "{found}");
    // A graph within a node within a graph, and so on, deeper than any model has them.
    let mut nested = Vec::new();
    for _ in 0..200 {
        for field in [0x32, 0x2a, 0x0a] {
            nested = [[field].as_slice(), &length(nested.len()), &nested].concat();
        }
    }
    let model = [[0x3a].as_slice(), &length(nested.len()), &nested].concat();
    let found = import(&model).expect_err("is too deep");
    assert!(found.ends_with("messages are nested too deeply"), "{found}");
}

fn length(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 127 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[test]
fn no_truncation_makes_it_panic() {
    let whole = reference("mlp_mse");
    for end in 0..whole.len() {
        // Some prefixes end between two fields, and lack only what comes after.
        let _ = import(&whole[..end]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_change_of_bytes_makes_it_panic(
        gpt in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = reference(if gpt { "gpt" } else { "mlp_mse" });
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = import(&bytes);
    }

    #[test]
    fn no_change_of_the_graph_makes_it_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..6usize, any::<i64>()), 1..4),
    ) {
        let mut model = ModelProto::parse_buf(&reference("gpt")).expect("decodes");
        let graph = model.graph.as_mut().expect("has a graph");
        let names: Vec<String> = graph.node.iter().flat_map(|node| node.output.clone()).collect();
        for (at, kind, number) in changes {
            let node = &mut graph.node[at.index(names.len().min(180))];
            let small = number % 40;
            match kind {
                0 => node.input.iter_mut().for_each(|input| *input = names[at.index(names.len())].clone()),
                1 => node.attribute.iter_mut().for_each(|a| a.i = a.i.map(|_| small)),
                2 => node.attribute.iter_mut().for_each(|a| a.ints = a.ints.iter().map(|_| small).collect()),
                3 => node.attribute.iter_mut().for_each(|a| a.i = a.i.map(|_| number)),
                4 => _ = node.input.pop(),
                _ => node.attribute.iter_mut().for_each(|a| a.ints = a.ints.iter().map(|_| number).collect()),
            }
        }
        let _ = import(&model.write_buf().expect("is writable"));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = import(&bytes);
    }
}

fn trained(imported: &Imported) -> Vec<&str> {
    let name = |op: &'_ Op| match op {
        Op::Variable(variable) if variable.trainable => Some(variable.name.clone()),
        _ => None,
    };
    let names: Vec<String> =
        imported.graph.nodes.iter().filter_map(|node| name(&node.op)).collect();
    imported
        .weights
        .tensors
        .keys()
        .map(String::as_str)
        .filter(|n| names.iter().any(|m| m == n))
        .collect()
}

fn model_file(name: &str) -> PathBuf {
    tests().join("import_models").join(name)
}

#[test]
fn what_is_trained_follows_the_metadata_and_the_use() {
    let dims = BTreeMap::from([("batch".to_string(), 4)]);
    let load =
        |name| load_model(&model_file(name), &dims, ImportOptions::default()).expect("imports");
    let marked = load("marked.onnx");
    assert_eq!(trained(&marked), ["renamed", "scale"]);
    let [warning] = marked.training_warnings.as_slice() else {
        panic!("{:?}", marked.training_warnings)
    };
    let guessed = "1 of the weights is not marked, and is trained because an op takes it as its weight: `renamed` (MatMul). ";
    assert!(warning.starts_with(guessed), "{warning}");
    assert_eq!(marked.symbols, ["n"], "and `batch` gives its value");
    let unmarked = load("unmarked.onnx");
    assert_eq!(trained(&unmarked), ["folded", "renamed", "running", "scale"]);
    let guessed = "the model does not mark its parameters: by their use, 4 weights are trained; of these 4 are called neither weight nor bias, as buffers are: `folded`, `renamed`, `running`, `scale`; --train and --freeze decide otherwise";
    assert_eq!(unmarked.training_warnings, [guessed]);
}

#[test]
fn a_weight_that_is_cast_like_data_is_still_a_weight() {
    // As ONNX's converter of versions writes group norms: the type of the data is read, not its numbers.
    let mut graph = graph(vec![
        node("MatMul", &["x", "w"], "h"),
        node("CastLike", &["scale", "h"], "cast"),
        node("Mul", &["h", "cast"], "y"),
    ]);
    graph.initializer.push(tensor("scale", &[5], vec![2.5; 5]));
    let imported = import(&bytes(graph, 20)).expect("imports");
    assert_eq!(trained(&imported), ["scale", "w"]);
}

#[test]
fn one_number_with_a_name_of_pytorch_is_trained_and_a_buffer_of_transformers_is_not() {
    let mut graph = graph(vec![
        node("MatMul", &["x", "w"], "h"),
        node("Mul", &["h", "scale"], "scaled"),
        node("Add", &["scaled", "model.final_logits_bias"], "y"),
    ]);
    graph.initializer.push(tensor("scale", &[], vec![2.5]));
    graph.initializer.push(tensor("model.final_logits_bias", &[1, 5], vec![0.0; 5]));
    let mut model = ModelProto::parse_buf(&bytes(graph, 20)).expect("decodes");
    for (producer, names) in [(None, vec!["w"]), (Some("pytorch".into()), vec!["scale", "w"])] {
        model.producer_name = producer;
        let imported = import(&model.write_buf().expect("is writable")).expect("imports");
        assert_eq!(trained(&imported), names);
    }
}

#[test]
fn a_static_batch_must_be_the_one_that_is_asked_for() {
    let model = bytes(graph(vec![node("MatMul", &["x", "w"], "y")]), 20);
    let dims = BTreeMap::from([("batch".to_string(), 8)]);
    let error = import_onnx(&model, Path::new(""), &dims, ImportOptions::default());
    assert_eq!(
        error.expect_err("is another").to_string(),
        "dim 0 of input `x`: the model has 4, and the batch is 8"
    );
}

#[test]
fn only_floating_point_weights_can_be_trained() {
    let mut graph = graph(vec![node("Gather", &["w", "i"], "y")]);
    let i = TensorProto {
        data_type: Some(DataType::INT64),
        int64_data: vec![1],
        ..tensor("i", &[1], vec![])
    };
    graph.initializer.push(i);
    let options = ImportOptions { train: vec!["i".into()], ..ImportOptions::default() };
    let error = import_onnx(&bytes(graph, 20), Path::new(""), &BTreeMap::new(), options);
    assert_eq!(
        error.expect_err("is an integer").to_string(),
        "`i` cannot be trained: it is i64[1], and only floating-point numbers can be"
    );
}
