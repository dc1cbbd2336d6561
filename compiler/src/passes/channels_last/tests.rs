//! Rewritten graphs compute the same, with the transposes that they need and no other.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::Graph;
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::ops::Window;
use graphc_ir::types::DType;
use graphc_nn::{
    AdaptiveAvgPool2d, BatchNorm2d, Conv1d, Conv2d, ConvConfig, ConvTranspose2d, Linear, MaxPool2d,
    Module, PoolConfig, Upsample,
};
use graphc_plan::{CompileOptions, Optimizer, Pin};
use proptest::prelude::*;

use super::channels_last;
use crate::passes::training_mode::set_mode;
use crate::passes::views::same::{add_weight, assert_same, count_transposes};
use crate::passes::views::{Purpose, rewrite_views};

fn convolution(g: &GraphBuilder, name: &str, channels: [usize; 2], stride: usize) -> Conv2d {
    let square = ConvConfig::square(3);
    let config = ConvConfig { stride: [stride; 2], padding: [1; 2], bias: true, ..square };
    Conv2d::new(g, name, channels, config)
}

/// Convolution, batch norm, pooling, a residual block, a depthwise convolution, and a product of what is left.
fn network(last: [usize; 2]) -> Graph {
    let g = GraphBuilder::new("network");
    let x = g.input("x", DType::F32, [4, 3, 9, 8]);
    let x = convolution(&g, "stem", [3, 4], 1).forward(&x);
    let x = BatchNorm2d::new(&g, "bn", 4).forward(&x).relu().named("stem_out");
    let config = PoolConfig { stride: [2; 2], padding: [1; 2], ..PoolConfig::square(3) };
    let x = MaxPool2d(config).forward(&x);
    let inner =
        BatchNorm2d::new(&g, "bn1", 4).forward(&convolution(&g, "conv1", [4, 4], 1).forward(&x));
    let x = x.add(&inner).relu();
    let depthwise = ConvConfig { groups: 4, padding: [1; 2], ..ConvConfig::square(3) };
    let x = Conv2d::new(&g, "depthwise", [4, 4], depthwise).forward(&x);
    let x = AdaptiveAvgPool2d(last).forward(&x);
    let flat = x.reshape(&[4, 4 * last[0] * last[1]]);
    g.output("y", &Linear::new(&g, "head", flat.shape()[1], 5).forward(&flat));
    g.finish().expect("fits")
}

/// The network as the pass sees it.
fn seen(last: [usize; 2]) -> Graph {
    set_mode(network(last), &CompileOptions::default()).expect("fits")
}

fn found(graph: &Graph, name: &str) -> ValueId {
    graph.find(name).unwrap_or_else(|| panic!("there is no {name}"))
}

fn training(microbatches: usize) -> CompileOptions {
    let optimizer =
        Some(Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 });
    CompileOptions { optimizer, microbatches, ..CompileOptions::default() }
}

#[test]
fn a_network_pays_for_its_first_image_and_for_places_that_are_flattened() {
    for (last, expected) in [([1, 1], 1), ([5, 4], 2)] {
        for microbatches in [1, 2] {
            let options = training(microbatches);
            let graph = set_mode(network(last), &options).expect("fits");
            let rewritten = channels_last(graph.clone(), &options).expect("fits");
            assert_eq!(
                count_transposes(&rewritten),
                expected,
                "{last:?}, {microbatches} microbatches"
            );
            assert_same(&graph, &rewritten);
        }
    }
}

#[test]
fn what_a_channel_has_is_reshaped_and_no_more() {
    let rewritten = channels_last(seen([1, 1]), &CompileOptions::default()).expect("fits");
    for node in &rewritten.nodes {
        let Op::Reshape(_) = node.op else { continue };
        let ty = &rewritten.value(node.results[0]).ty;
        assert!(ty.elements() <= 16, "{node:?} of {ty}");
    }
}

/// An image of one place keeps its channels last until it is flattened: a kernel with a stride leaves it one place, and its elements are then in the
/// same order with channels first or last.
#[test]
fn images_of_one_place_keep_their_channels_last_until_they_are_flattened() {
    let g = GraphBuilder::new("last_stage");
    let x = g.input("x", DType::F32, [4, 3, 2, 2]);
    let x = convolution(&g, "first", [3, 4], 2).forward(&x);
    let x = BatchNorm2d::new(&g, "bn", 4).forward(&x).relu();
    let x = Conv2d::new(&g, "second", [4, 6], ConvConfig::square(1)).forward(&x);
    let x = BatchNorm2d::new(&g, "bn2", 6).forward(&x).relu();
    g.output("y", &Linear::new(&g, "head", 6, 5).forward(&x.reshape(&[4, 6])));
    let graph = set_mode(g.finish().expect("fits"), &training(1)).expect("fits");
    let rewritten = channels_last(graph.clone(), &training(1)).expect("fits");
    assert_same(&graph, &rewritten);
    let of_samples = |node: &&graphc_ir::graph::Node| {
        let ty = &rewritten.value(node.results[0]).ty;
        matches!(node.op, Op::Reshape(_)) && ty.shape.first() == Some(&4) && ty.elements() >= 4 * 4
    };
    let moved: Vec<_> = rewritten.nodes.iter().filter(of_samples).collect();
    assert_eq!(moved.len(), 1, "all but the flattening itself: {moved:?}");
}

#[test]
fn a_tensor_with_other_dims_than_the_models_has_another_name() {
    let rewritten = channels_last(seen([1, 1]), &CompileOptions::default()).expect("fits");
    assert_eq!(rewritten.find("stem_out"), None, "its dims are not those of the model");
    let value = found(&rewritten, "stem_out.channels_last");
    assert_eq!(rewritten.value(value).ty.shape, [4, 9, 8, 4]);
}

#[test]
fn a_pin_is_that_of_the_same_dim() {
    let mut graph = seen([1, 1]);
    let expected = Some("S(3)".parse().expect("an SBP"));
    let pinned = found(&graph, "stem_out");
    graph.values[pinned.index()].pin = Some("S(1)".parse().expect("an SBP"));
    let rewritten = channels_last(graph, &CompileOptions::default()).expect("fits");
    let value = found(&rewritten, "stem_out.channels_last");
    assert_eq!(rewritten.value(value).pin, expected);
    assert_eq!(count_transposes(&rewritten), 1);
    // A pattern that fits the other name too means the dims of the model.
    for (pattern, named) in [("stem_out", true), ("stem*", false)] {
        let pin = Pin { pattern: pattern.into(), sbp: "S(1)".parse().expect("an SBP") };
        let options = CompileOptions { pins: vec![pin], ..CompileOptions::default() };
        let rewritten = channels_last(seen([1, 1]), &options).expect("fits");
        assert_eq!(rewritten.find("stem_out.channels_last").is_some(), named, "{pattern}");
        assert_eq!(count_transposes(&rewritten), 1);
        let count = rewritten.values.iter().filter(|value| value.pin == expected).count();
        assert!(count >= 1, "{pattern}");
    }
}

#[test]
fn a_pin_of_a_dim_that_is_made_of_several_holds_the_value_as_it_was() {
    let g = GraphBuilder::new("flat");
    let x = g.input("x", DType::F32, [2, 1, 6, 6]);
    let x = convolution(&g, "a", [1, 3], 1).forward(&x);
    let x = convolution(&g, "b", [3, 3], 1).forward(&x).reshape(&[2, 108]).named("flat");
    g.output("y", &x.relu());
    let mut graph = g.finish().expect("fits");
    let flat = found(&graph, "flat");
    graph.values[flat.index()].pin = Some("S(1)".parse().expect("an SBP"));
    let rewritten = channels_last(graph.clone(), &CompileOptions::default()).expect("fits");
    let value = rewritten.value(found(&rewritten, "flat"));
    assert_eq!((&value.ty.shape[..], value.pin.is_some()), (&[2, 108][..], true));
    assert_eq!(count_transposes(&rewritten), 1, "of one channel none is needed at the input");
    assert_same(&graph, &rewritten);
}

#[test]
fn a_graph_is_left_alone_where_it_does_not_pay() {
    let g = GraphBuilder::new("alone");
    let x = g.input("x", DType::F32, [2, 4, 6, 6]);
    g.output("y", &convolution(&g, "a", [4, 4], 1).forward(&x));
    let graph = g.finish().expect("fits");
    assert_eq!(channels_last(graph.clone(), &CompileOptions::default()).expect("fits"), graph);
    let g = GraphBuilder::new("none");
    g.output("y", &g.input("x", DType::F32, [2, 4, 6, 6]).transpose(&[0, 2, 3, 1]).exp());
    let graph = g.finish().expect("fits");
    assert_eq!(channels_last(graph.clone(), &CompileOptions::default()).expect("fits"), graph);
}

#[test]
fn images_that_come_and_go_with_their_channels_last_are_moved_nowhere() {
    let g = GraphBuilder::new("last");
    let x = g.input("x", DType::F32, [2, 6, 7, 4]).transpose(&[0, 3, 1, 2]);
    let x = convolution(&g, "a", [4, 6], 2).forward(&x).gelu();
    g.output("y", &x.transpose(&[0, 2, 3, 1]));
    let graph = g.finish().expect("fits");
    let rewritten = channels_last(graph.clone(), &CompileOptions::default()).expect("fits");
    assert_eq!(count_transposes(&rewritten), 0);
    assert_same(&graph, &rewritten);
}

#[test]
fn upsampled_images_meet_others_along_channels() {
    let g = GraphBuilder::new("unet");
    let x = g.input("x", DType::F32, [2, 1, 8, 6]);
    let wide = convolution(&g, "down", [1, 4], 1).forward(&x).relu();
    let narrow = convolution(&g, "low", [4, 6], 2).forward(&wide).relu();
    let both = g.concat(&[Upsample([2, 2]).forward(&narrow), wide], 1);
    let x = convolution(&g, "up", [10, 4], 1).forward(&both);
    let up = ConvConfig { stride: [2; 2], ..ConvConfig::square(2) };
    let x = ConvTranspose2d::new(&g, "transposed", [4, 2], up).forward(&x);
    // Classes of each place, as torch.nn.CrossEntropyLoss takes them.
    g.output("y", &x.transpose(&[0, 2, 3, 1]).reshape(&[2 * 16 * 12, 2]).log_softmax(1));
    let graph = g.finish().expect("fits");
    let rewritten = channels_last(graph.clone(), &CompileOptions::default()).expect("fits");
    assert_eq!(count_transposes(&rewritten), 0);
    assert_same(&graph, &rewritten);
}

#[test]
fn sequences_have_their_channels_last_too() {
    let g = GraphBuilder::new("sequence");
    let x = g.input("x", DType::F32, [2, 3, 9]);
    let config = ConvConfig { padding: [1], ..ConvConfig::square(3) };
    let x = Conv1d::new(&g, "a", [3, 4], config).forward(&x).relu();
    let x = Conv1d::new(&g, "b", [4, 5], config).forward(&x);
    g.output("y", &x.mean(&[2], false));
    let graph = g.finish().expect("fits");
    let rewritten = channels_last(graph.clone(), &CompileOptions::default()).expect("fits");
    assert_eq!(count_transposes(&rewritten), 1);
    assert_same(&graph, &rewritten);
}

/// Applies op number `which` where it fits.
fn step(g: &GraphBuilder, x: &Tensor, y: &Tensor, which: u32, name: &str) -> Tensor {
    let &[n, c, h, w] = &x.shape()[..] else { return x.clone() };
    let border = Window { pads: [1; 4], ..Window::PLAIN };
    let steps = Window { strides: [2, 1], pads: [1, 0, 1, 1], dilations: [1, 1] };
    let per_channel = |name: &str| add_weight(g, name, &[c]).reshape(&[c, 1, 1]);
    match which {
        0 => x.convolution(&add_weight(g, name, &[4, c, 3, 3]), border, 1),
        1 if h > 1 => x.convolution(&add_weight(g, name, &[2, c, 2, 1]), steps, 1),
        2 => x.convolution(&add_weight(g, name, &[c, 1, 3, 3]), border, c),
        3 => x.max_pool([2, 2], steps),
        4 => x.average_pool([3, 3], border, true),
        5 => {
            let [scale, bias] =
                ["scale", "bias"].map(|part| add_weight(g, &format!("{name}.{part}"), &[c]));
            x.batch_norm(
                &scale,
                &bias,
                [&add_weight(g, &format!("{name}.mean"), &[c]), &scale],
                1e-1,
            )
        }
        6 => x.mul(&per_channel(name)).tanh(),
        7 if x.shape() == y.shape() => x.add(y),
        8 if y.shape().len() == 4 && [0, 2, 3].iter().all(|&d| x.shape()[d] == y.shape()[d]) => {
            g.concat(&[x.clone(), y.clone()], 1).slice(1, 0..c.min(3))
        }
        9 if h > 1 => x.slice(2, 1..h),
        10 => x.mul(&x.mean(&[2, 3], true).sigmoid()),
        11 => x.pad(&[0, 1, 0, 1], &[0, 0, 1, 0], 0.5),
        12 => x.transpose(&[0, 2, 3, 1]).softmax(3).transpose(&[0, 3, 1, 2]),
        13 => x.reshape(&[n, c, h * w]).softmax(1).reshape(&[n, c, h, w]),
        14 if h * w < 20 => Upsample([2, 1]).forward(x),
        15 => x.sub(&x.max(&[1], false).reshape(&[n, 1, h, w])),
        16 if c > 1 => {
            let parts = x.split(1, &[1, c - 1]);
            parts[1].mul(&parts[0])
        }
        17 if c.is_multiple_of(2) => {
            let apart = x.reshape(&[n, 2, c / 2, h, w]).transpose(&[0, 2, 1, 3, 4]);
            apart.reshape(&[n, c, h, w])
        }
        18 => x.reshape(&[n, c * h * w]).tanh().reshape(&[n, c, h, w]),
        19 => {
            let config = ConvConfig { stride: [1, 2], bias: false, ..ConvConfig::square(1) };
            ConvTranspose2d::new(g, name, [c, 3], config).forward(x)
        }
        20 => x
            .transpose(&[0, 2, 3, 1])
            .matmul(&add_weight(g, name, &[c, 3]))
            .transpose(&[0, 3, 1, 2]),
        21 => x.mean(&[0, 2], true).add(x),
        _ => x.sigmoid(),
    }
}

proptest! {
    #[test]
    fn whatever_has_its_channels_last_is_computed_the_same(
        steps in prop::collection::vec(0u32..23, 1..12),
        microbatches in 1usize..3,
    ) {
        let g = GraphBuilder::new("random");
        let x = g.input("x", DType::F32, [2, 2, 3, 4]);
        let mut values = vec![x];
        for (index, which) in steps.into_iter().enumerate() {
            let (last, earlier) = (&values[values.len() - 1], &values[index / 2]);
            values.push(step(&g, last, earlier, which, &format!("w{index}")));
        }
        for (index, value) in values.iter().enumerate().skip(1).step_by(4) {
            g.output(&format!("y{index}"), value);
        }
        let last = &values[values.len() - 1];
        g.output("flat", &last.reshape(&[2, last.shape()[1..].iter().product()]).tanh());
        let options = training(microbatches);
        let graph = set_mode(g.finish().expect("fits"), &options).expect("fits");
        assert_same(&graph, &rewrite_views(&graph, &options, Purpose::Images).expect("fits"));
    }
}
