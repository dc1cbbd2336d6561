//! Messages about layers, branches and loops in a form that graphc does not have.

use std::collections::BTreeMap;
use std::path::Path;

use graphc_import::ImportOptions;
use graphc_import::onnx::import_onnx;
use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataType, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor, ValueInfoProto,
};

/// Returns the error of a node that reads the input `x` of `[3, 2, 4]`, weights `w` and `r` of this many gates, and these numbers.
fn error(node: NodeProto, gates: i64, numbers: &[(&str, &[i64], f32)]) -> String {
    let extent = |&extent: &i64| Dimension { dim_value: Some(extent), dim_param: None };
    let shape = Some(TensorShapeProto { dim: [3, 2, 4].iter().map(extent).collect() });
    let tensor = TypeProtoTensor { elem_type: Some(DataType::FLOAT), shape };
    let ty = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
    let input = ValueInfoProto { name: Some("x".into()), r#type: Some(ty) };
    let mut initializer =
        vec![filled("w", &[1, gates * 5, 4], 0.1), filled("r", &[1, gates * 5, 5], 0.1)];
    initializer.extend(numbers.iter().map(|&(name, dims, value)| filled(name, dims, value)));
    let graph = GraphProto {
        output: vec![ValueInfoProto { name: node.output.first().cloned(), r#type: None }],
        node: vec![node],
        initializer,
        input: vec![input],
        ..GraphProto::default()
    };
    let version = OperatorSetIdProto { domain: None, version: Some(20) };
    let model = ModelProto {
        ir_version: Some(9),
        graph: Some(graph),
        opset_import: vec![version],
        ..ModelProto::default()
    };
    let bytes = model.write_buf().expect("is writable");
    import_onnx(&bytes, Path::new(""), &BTreeMap::new(), ImportOptions::default())
        .map_err(|error| error.to_string())
        .expect_err("it is refused")
}

fn filled(name: &str, dims: &[i64], value: f32) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.into(),
        data_type: Some(DataType::FLOAT),
        float_data: vec![value; dims.iter().product::<i64>() as usize],
        ..TensorProto::default()
    }
}

fn node(op: &str, inputs: &[&str], attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        name: Some("layer".into()),
        op_type: Some(op.into()),
        input: inputs.iter().map(ToString::to_string).collect(),
        output: vec!["y".into()],
        attribute,
        ..NodeProto::default()
    }
}

fn number(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::INT),
        i: Some(value),
        ..AttributeProto::default()
    }
}

fn texts(name: &str, values: &[&str]) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::STRINGS),
        strings: values.iter().map(ToString::to_string).collect(),
        ..AttributeProto::default()
    }
}

fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::STRING),
        s: Some(value.into()),
        ..AttributeProto::default()
    }
}

const LAYER: [&str; 3] = ["x", "w", "r"];

#[test]
fn recurrent_layers_of_other_kinds_are_named_as_such() {
    let gru = error(node("GRU", &LAYER, Vec::new()), 3, &[]);
    assert!(gru.starts_with("node `layer` of type GRU: linear_before_reset=0 is not"), "{gru}");
    let lstm = |attribute| error(node("LSTM", &LAYER, vec![attribute]), 4, &[]);
    let tied = lstm(number("input_forget", 1));
    assert!(tied.contains("input_forget=1, which ties two gates, is not supported"), "{tied}");
    let relu = lstm(texts("activations", &["Sigmoid", "Relu", "Tanh"]));
    assert!(relu.contains("the activations Sigmoid, Relu, Tanh are not supported"), "{relu}");
    let clip = lstm(AttributeProto {
        name: Some("clip".into()),
        r#type: Some(AttributeType::FLOAT),
        f: Some(3.0),
        ..AttributeProto::default()
    });
    assert!(clip.contains("the attribute `clip` is not supported"), "{clip}");
    let both = lstm(text("direction", "bidirectional"));
    assert!(both.contains("its operand `W` must be [2, 20, 4], not [1, 20, 4]"), "{both}");
    let peepholes = ["x", "w", "r", "", "", "", "", "p"];
    let said = error(node("LSTM", &peepholes, Vec::new()), 4, &[("p", &[1, 15], 0.0)]);
    assert!(said.contains("peepholes (operand 7, `P`) are not supported"), "{said}");
}

#[test]
fn sequences_of_different_lengths_are_refused() {
    let inputs = ["x", "w", "r", "", "lengths"];
    let said = error(node("RNN", &inputs, Vec::new()), 1, &[("lengths", &[2], 2.0)]);
    assert!(said.contains("different lengths are not supported: one has 2 of 3 steps"), "{said}");
}

#[test]
fn what_a_branch_or_loop_depends_on_must_be_known() {
    let body = |name: &str| AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::GRAPH),
        g: Some(GraphProto::default()),
        ..AttributeProto::default()
    };
    let both = vec![body("then_branch"), body("else_branch")];
    let branch = error(node("If", &["x"], both), 1, &[]);
    let reason = "the condition of a branch must be one truth value, not f32[3, 2, 4]";
    assert_eq!(branch, format!("node `layer` of type If: {reason}"));
    let repeat = error(node("Loop", &["x"], vec![body("body")]), 1, &[]);
    assert!(repeat.contains("the number of turns of a loop must be known"), "{repeat}");
    let goes_on = error(node("Loop", &["", "x"], vec![body("body")]), 1, &[]);
    let reason = "the condition of a loop must be known when the model is imported, but it is computed: give a loop its number of turns";
    assert_eq!(goes_on, format!("node `layer` of type Loop: {reason}"));
    let absent = error(node("If", &["c"], Vec::new()), 1, &[("c", &[], 1.0)]);
    assert!(absent.ends_with("the attribute `then_branch` is missing"), "{absent}");
    let endless = error(node("Loop", &[], vec![body("body")]), 1, &[]);
    assert!(endless.ends_with("its graph takes 0 values, not 2"), "{endless}");
}

#[test]
fn results_whose_shape_depends_on_data_are_refused() {
    for op in ["NonZero", "Unique"] {
        let said = error(node(op, &["x"], Vec::new()), 1, &[]);
        assert!(said.contains("the shape of its result depends on data"), "{said}");
        assert!(said.ends_with("choose with Where or a mask"), "{said}");
    }
}

#[test]
fn resizes_of_other_kinds_are_named_as_such() {
    let resize = |inputs: &[&str], attribute, scale| {
        error(node("Resize", inputs, attribute), 1, &[("s", &[3], scale)])
    };
    let all = ["x", "", "s"];
    let mode = text("coordinate_transformation_mode", "tf_crop_and_resize");
    let crop = resize(&all, vec![mode], 2.0);
    assert!(crop.contains("`tf_crop_and_resize` is not supported: only asymmetric"), "{crop}");
    let policy = resize(&all, vec![text("keep_aspect_ratio_policy", "not_larger")], 2.0);
    assert!(policy.contains("`not_larger` is not supported: only `stretch`"), "{policy}");
    let none = resize(&all, Vec::new(), 0.1);
    assert!(none.contains("it has 3 scales or sizes that do not all fit [3, 2, 4]"), "{none}");
    assert!(resize(&["x"], Vec::new(), 1.0).contains("it needs scales or sizes, and not both"));
}

/// Describes a tensor of floats whose extents are numbers or symbols.
fn floats(name: &str, extents: &[&str]) -> ValueInfoProto {
    let extent = |text: &&str| match text.parse() {
        Ok(number) => Dimension { dim_value: Some(number), dim_param: None },
        Err(_) => Dimension { dim_value: None, dim_param: Some((*text).into()) },
    };
    let shape = Some(TensorShapeProto { dim: extents.iter().map(extent).collect() });
    let tensor = TypeProtoTensor { elem_type: Some(DataType::FLOAT), shape };
    let ty = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
    ValueInfoProto { name: Some(name.into()), r#type: Some(ty) }
}

/// Returns the error of a model of these nodes and inputs, whose file describes the value `a` and outputs `y`.
fn refusal(node: Vec<NodeProto>, input: Vec<ValueInfoProto>) -> String {
    let graph = GraphProto {
        output: vec![ValueInfoProto { name: Some("y".into()), r#type: None }],
        value_info: vec![floats("a", &["4", "3"])],
        node,
        input,
        ..GraphProto::default()
    };
    let version = OperatorSetIdProto { domain: None, version: Some(20) };
    let model = ModelProto {
        ir_version: Some(9),
        graph: Some(graph),
        opset_import: vec![version],
        ..ModelProto::default()
    };
    let bytes = model.write_buf().expect("is writable");
    import_onnx(&bytes, Path::new(""), &BTreeMap::new(), ImportOptions::default())
        .map_err(|error| error.to_string())
        .expect_err("it is refused")
}

#[test]
fn all_forms_that_are_refused_are_named_at_once() {
    let named = |op: &str, input: &str, output: &str, attribute| NodeProto {
        name: Some(format!("node_{output}")),
        output: vec![output.into()],
        ..node(op, &[input], attribute)
    };
    let softmax =
        |input: &str, output: &str| named("Softmax", input, output, vec![number("axis", 7)]);
    let nodes = vec![
        softmax("x", "a"),
        named("Einsum", "a", "b", Vec::new()),
        softmax("a", "c"),
        named("NonMaxSuppression", "x", "d", Vec::new()),
        named("Relu", "d", "e", Vec::new()),
        named("Neg", "c", "y", Vec::new()),
    ];
    assert_eq!(
        refusal(nodes, vec![floats("x", &["4", "3"])]),
        "1 node has an op that is not supported: 1 NonMaxSuppression (node `node_d`)\n\
         3 nodes are in forms that are not supported:\n  \
         `node_a` and 1 more of type Softmax: there is no axis 7 in a tensor of rank 2\n  \
         `node_b` of type Einsum: `` does not name the dims of an operand of rank 2"
    );
}

#[test]
fn all_extents_without_a_value_are_named_at_once() {
    let inputs = vec![floats("x", &["batch_size", "time"]), floats("z", &["time", "width"])];
    assert_eq!(
        refusal(vec![node("Add", &["x", "z"], Vec::new())], inputs),
        "3 extents have no value: `batch_size` (dim 0 of input `x`), `time` (dim 1 of input `x`), `width` (dim 1 of input `z`); \
         give them with --batch VALUE --dim time=VALUE --dim width=VALUE"
    );
}
