use std::collections::BTreeMap;

use graphc_ir::array::Array;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::evaluate::evaluate_outputs;
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_plan::{CrossEntropyForm, Loss, Metric};

use super::*;
use crate::cluster::preset;
use crate::pipeline::{prepare_until, prepare_until_for};

const CLASSES: usize = 101;

/// Machines that multiply odd rows at half the rate, and slowly enough that small products count.
fn machines() -> Cluster {
    let mut cluster = preset("cpu").expect("a preset");
    cluster.device.flops = [("f32".into(), 1e8)].into();
    cluster.device.matmul_unaligned = 0.5;
    cluster
}

fn options() -> CompileOptions {
    CompileOptions {
        precision: Some(DType::BF16),
        loss: Some(Loss::CrossEntropy),
        gradients: true,
        metrics: vec![Metric::Top1],
        fetch: vec!["*".into()],
        ..CompileOptions::default()
    }
}

/// Logits of 2 sequences of 4 tokens by what `head` makes of states of width 16.
fn model(head: impl Fn(&GraphBuilder, &Tensor, &Tensor) -> Tensor) -> Graph {
    let g = GraphBuilder::new("model");
    let init = Init::Normal { mean: 0.0.into(), std: 0.5.into() };
    let table = g.variable("table", DType::F32, [CLASSES, 16], init);
    let states = table.embedding(&g.input("tokens", DType::I64, [2, 4])).tanh();
    g.output("logits", &head(&g, &states, &table).named("logits"));
    g.finish().expect("fits")
}

/// A table of tokens that is the head, too.
fn tied() -> Graph {
    model(|_, states, table| states.matmul_transposed(table, false, true))
}

/// A head with weights of its own, `[width, classes]`, and a bias.
fn with_bias() -> Graph {
    model(|g, states, _| {
        let init = || Init::Normal { mean: 0.0.into(), std: 0.5.into() };
        let weight = g.variable("head", DType::F32, [16, CLASSES], init());
        states.matmul(&weight).add(&g.variable("bias", DType::F32, [CLASSES], init()))
    })
}

/// A transposed view of the table, and logits between bounds.
fn bounded() -> Graph {
    model(|_, states, table| {
        let flat = states.reshape(&[8, 16]).matmul(&table.transpose(&[1, 0]));
        flat.reshape(&[2, 4, CLASSES]).scale(0.5).tanh().scale(2.0)
    })
}

fn feeds() -> BTreeMap<String, Array> {
    let tokens = Array::from_fn([2, 4], |at| ((at[0] * 4 + at[1]) * 29 % CLASSES) as f64);
    let labels = Array::new([2, 4], vec![0., 100., -100., 7., 99., 50., -100., 3.]);
    [("tokens", tokens), ("labels", labels)].map(|(name, feed)| (name.into(), feed)).into()
}

/// Returns the graph after a pass with padding, and without.
fn both(graph: Graph, options: &CompileOptions, pass: &str) -> [Graph; 2] {
    let padded = prepare_until_for(graph.clone(), options, &machines(), pass).expect("fits");
    [padded, prepare_until(graph, options, pass).expect("fits")]
}

fn columns(graph: &Graph) -> Vec<usize> {
    let products = graph.nodes.iter().filter(|node| matches!(node.op, Op::MatMul(_)));
    products
        .map(|node| graph.value(node.results[0]).ty.shape.last().copied().unwrap_or(0))
        .collect()
}

#[test]
fn losses_gradients_metrics_and_logits_are_those_without_padding() {
    for (name, graph) in [("tied", tied()), ("bias", with_bias()), ("bounded", bounded())] {
        for (form, smoothing) in [(CrossEntropyForm::Whole, 0.1), (CrossEntropyForm::Parts, 0.1)] {
            let options = CompileOptions {
                cross_entropy: form,
                label_smoothing: smoothing,
                mesh: vec![2],
                ..options()
            };
            let [padded, bare] = both(graph.clone(), &options, "simplify");
            assert!(columns(&padded).contains(&128) && !columns(&bare).contains(&128), "{name}");
            let [found, expected] =
                [padded, bare].map(|graph| evaluate_outputs(&graph, &feeds(), &Default::default()));
            let (found, expected) = (found.expect("is fed"), expected.expect("is fed"));
            assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
            assert!(found.len() > 4, "loss, metrics, logits, gradients");
            for (output, expected) in &expected {
                let found = &found[output];
                assert_eq!(found.shape, expected.shape, "{name}: {output}");
                let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
                assert!(found.data.iter().zip(&expected.data).all(near), "{name}: {output}");
            }
        }
    }
}

#[test]
fn padding_has_a_gradient_of_zero() {
    let [padded, _] = both(tied(), &options(), "autodiff");
    let mut padded = padded;
    let producer = |graph: &Graph, wanted: fn(&Op) -> bool| {
        graph.nodes.iter().find(|node| wanted(&node.op)).expect("there is one").results[0]
    };
    let gradient = producer(&padded, |op| matches!(op, Op::CrossEntropyGrad(_)));
    let output = graphc_ir::graph::Output { name: "of_logits".into(), value: gradient };
    padded.outputs.push(output);
    let found = evaluate_outputs(&padded, &feeds(), &Default::default()).expect("is fed");
    let rows: Vec<&[f64]> = found["of_logits"].data.chunks(128).collect();
    assert_eq!(rows.len(), 8);
    assert!(rows.iter().all(|row| row[CLASSES..].iter().all(|&x| x == 0.0)));
    assert!(rows.iter().any(|row| row[CLASSES - 1] != 0.0));
}

#[test]
fn a_tied_table_stays_one_variable_and_is_padded_in_half_precision() {
    let [padded, bare] = both(tied(), &options(), "padding");
    let variables = |graph: &Graph| -> Vec<String> {
        let nodes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Variable(_)));
        nodes.map(|node| graph.value(node.results[0]).ty.to_string()).collect()
    };
    assert_eq!(
        (variables(&padded), variables(&padded)),
        (vec!["f32[101, 16]".into()], variables(&bare))
    );
    let of = |name: &str| padded.value(padded.find(name).expect(name)).ty.to_string();
    assert_eq!(of("table.padded"), "bf16[128, 16]");
    assert_eq!(of("logits.padded"), "bf16[2, 4, 128]");
    // As an output they are of f32, and without padding.
    let output = &padded.outputs[0];
    let ty = padded.value(output.value).ty.to_string();
    assert_eq!((output.name.as_str(), ty.as_str()), ("logits", "f32[2, 4, 101]"));
}

#[test]
fn nothing_is_padded_where_it_does_not_pay() {
    let padded = |graph: Graph, options: &CompileOptions, cluster: &Cluster| {
        let after = prepare_until_for(graph, options, cluster, "padding").expect("fits");
        after.nodes.iter().any(|node| matches!(node.op, Op::Pad(_)))
    };
    let machines = machines();
    assert!(padded(tied(), &options(), &machines));
    // Rows of f32 lie as they like, and processors load them so.
    let single = CompileOptions { precision: None, ..options() };
    assert!(!padded(tied(), &single, &machines));
    assert!(!padded(tied(), &options(), &preset("cpu").expect("a preset")));
    // A launch takes longer than all products.
    let mut slow = machines.clone();
    slow.device.launch = 1.0;
    assert!(!padded(tied(), &options(), &slow));
    // Memory is what takes time.
    let mut narrow = machines.clone();
    narrow.device.bandwidth = 1e6;
    let inference = CompileOptions { precision: Some(DType::BF16), ..CompileOptions::default() };
    assert!(!padded(tied(), &inference, &narrow) && padded(tied(), &inference, &machines));
}

#[test]
fn padded_classes_divide_evenly_among_ranks() {
    let of = |ranks| padded_extent(50257, ranks);
    assert_eq!([1, 2, 8].map(of), [50304; 3]);
    assert_eq!([3, 16, 64].map(of), [50304, 50304, 50688]);
    // More than a 64th would be lost.
    assert_eq!([padded_extent(50257, 512), padded_extent(1013, 512)], [50304, 1024]);
}
