//! Products of experts in 8 bits: losses are those of both recipes, on every mesh and wherever experts are.

use graphc::ir::ops::ExpertPlaces;
use graphc::prelude::*;

use super::float8::{check_losses, options, wave};
use super::{Feeds, begin, number, step};

/// The losses of PyTorch 2.11 on a processor, where each expert multiplies the rows of the tokens that chose it: numbers of `torch.float8_e4m3fn` in f32, each
/// place and each output feature of an expert with a scale of its own, and each expert's matrix with one in the backward pass. Gradients of weights and the scores
/// are products of bf16; SGD with a rate of 0.2.
const LOSSES: [f64; 10] = [
    3.465786, 3.456398, 3.446686, 3.43401, 3.415602, 3.387061, 3.346391, 3.291917, 3.217611,
    3.122122,
];

/// The same with one scale for all places and one for each expert's matrix, f8e5m2 for gradients of places, and gradients of experts in 8 bits too.
const LOSSES_OF_TENSORWISE: [f64; 10] = [
    3.465786, 3.456119, 3.446326, 3.433928, 3.415537, 3.386821, 3.346344, 3.292331, 3.219631,
    3.12545,
];

/// The same with all products in bf16.
const LOSSES_OF_BF16: [f64; 10] = [
    3.465637, 3.458124, 3.450316, 3.440543, 3.427175, 3.408224, 3.381325, 3.343197, 3.289452,
    3.217414,
];

const GROUPS: usize = 2;
const TOKENS: usize = 16;
const EXPERTS: usize = 4;

/// The weights, with their extents and how fast their elements vary.
const WEIGHTS: [(&str, &[usize], f64); 3] = [
    ("up", &[EXPERTS, 64, 128], 0.71),
    ("down", &[EXPERTS, 128, 64], 1.13),
    ("scores", &[64, 32], 0.53),
];

/// A network whose experts share so many blocks of places; tokens come with the expert that they chose.
fn network(blocks: usize) -> Graph {
    let g = GraphBuilder::new("experts in 8 bits");
    let x = g.input("x", DType::F32, [GROUPS, TOKENS, 64]);
    let chosen = g.input("chosen", DType::I64, [GROUPS, TOKENS, 1]);
    let weights = WEIGHTS
        .map(|(name, extents, _)| g.variable(name, DType::F32, extents, Init::Fill(0.0.into())));
    let [up, down, scores] = &weights;
    let places = ExpertPlaces { experts: EXPERTS, blocks, capacity: TOKENS };
    let taken = x.dispatch_to(&chosen, places).grouped_matmul(up, &chosen, false).relu();
    let given = taken.grouped_matmul(down, &chosen, false).combine_from(&chosen, places, None);
    g.output("logits", &given.matmul(scores));
    g.finish().expect("fits")
}

fn feeds() -> Feeds {
    let numbers = |of: fn(i64) -> i64, shape: &[usize]| {
        let all: Vec<i64> = (0..(GROUPS * TOKENS) as i64).map(of).collect();
        HostTensor::from_i64(shape, &all).expect("as many")
    };
    [
        ("x", wave(&[GROUPS, TOKENS, 64], 0.37, 1.0)),
        ("chosen", numbers(|at| at * 5 % 7 % 4, &[GROUPS, TOKENS, 1])),
        ("labels", numbers(|at| at * 7 % 32, &[GROUPS, TOKENS])),
    ]
    .map(|(name, tensor)| (name.to_owned(), tensor))
    .into()
}

fn train(blocks: usize, options: &CompileOptions) -> Vec<f64> {
    let mut session = begin(&network(blocks), options);
    for (name, extents, rate) in WEIGHTS {
        session.set_variable(name, &wave(extents, rate, 0.15)).expect("fits");
    }
    (0..LOSSES.len()).map(|_| number(&step(&mut session, &feeds()), "loss")).collect()
}

/// Trains twice, and checks the losses.
fn check(blocks: usize, options: &CompileOptions) {
    let found = train(blocks, options);
    let losses = match options.float8_recipe {
        Float8Recipe::Tensorwise => LOSSES_OF_TENSORWISE,
        Float8Recipe::Rowwise => LOSSES,
    };
    check_losses(&found, [&losses, &LOSSES_OF_BF16], options);
    assert_eq!(found, train(blocks, options), "the same bits again");
}

#[test]
fn experts_have_the_losses_of_both_recipes() {
    for float8_recipe in [Float8Recipe::Rowwise, Float8Recipe::Tensorwise] {
        let options = CompileOptions { float8_recipe, ..options() };
        check(1, &options);
        for (mesh, strategy) in
            [(vec![2], Strategy::Data), (vec![2], Strategy::Zero3), (vec![2, 2], Strategy::Auto)]
        {
            check(1, &CompileOptions { mesh: mesh.clone(), strategy, ..options.clone() });
            check(4, &CompileOptions { mesh, strategy, ..options.clone() });
        }
        let stages = CompileOptions { mesh: vec![2], stages: 2, microbatches: 2, ..options };
        check(2, &CompileOptions { recompute: Recompute::Full, ..stages });
    }
}

#[test]
fn experts_that_are_pinned_apart_have_them_too() {
    for float8_recipe in [Float8Recipe::Rowwise, Float8Recipe::Tensorwise] {
        let sbp: NdSbp = "S(0)".parse().expect("an SBP");
        let pins = ["up", "down"].map(|name| Pin { pattern: name.into(), sbp: sbp.clone() });
        let options = CompileOptions { float8_recipe, mesh: vec![2], ..options() };
        check(4, &CompileOptions { pins: pins.to_vec(), ..options });
    }
}
