//! State that steps update: running statistics are PyTorch's after 50 steps, on every mesh and for every number of
//! microbatches; what a graph says of its own states happens.

use graphc::ir::types::TensorType;
use graphc::nn::{BatchNorm2d, Conv2d, ConvConfig, Linear, Module};
use graphc::prelude::*;

use super::{Feeds, begin, evaluated, formula, list, near, number, recorded, sgd, step};

const STEPS: usize = 50;

fn network() -> Graph {
    network_of(8)
}

/// Batch norms of two momenta, one of which is applied twice.
pub fn network_of(batch: usize) -> Graph {
    let g = GraphBuilder::new("statistics");
    let config = |kernel, stride, padding| ConvConfig {
        stride: [stride; 2],
        padding: [padding; 2],
        bias: false,
        ..ConvConfig::square(kernel)
    };
    let conv1 = Conv2d::new(&g, "conv1", [3, 8], config(3, 1, 1));
    let bn1 = BatchNorm2d::new(&g, "bn1", 8);
    let conv2 = Conv2d::new(&g, "conv2", [8, 8], config(3, 2, 1));
    let bn2 = BatchNorm2d { momentum: 0.3, ..BatchNorm2d::new(&g, "bn2", 8) };
    let conv3 = Conv2d::new(&g, "conv3", [8, 8], config(1, 1, 0));
    let fc = Linear::new(&g, "fc", 8, 4);
    let x = g.input("x", DType::F32, [batch, 3, 8, 8]);
    let x = bn1.forward(&conv1.forward(&x)).tanh();
    let x = bn2.forward(&conv2.forward(&x)).tanh();
    let x = bn2.forward(&conv3.forward(&x)).tanh();
    g.output("logits", &fc.forward(&x.mean(&[2, 3], false)));
    g.finish().expect("fits")
}

/// Rows `8 step ..` of 40, wrapping.
pub fn feeds(step: usize) -> Feeds {
    let part = |all: &HostTensor| {
        let shape = [&[8], &all.shape()[1..]].concat();
        let row = all.bytes().len() / 40;
        let at = step * 8 % 40;
        let bytes = all.bytes()[at * row..(at + 8) * row].to_vec();
        HostTensor::new(all.dtype(), shape, bytes).expect("eight rows")
    };
    let x = part(&formula::floats("x", &[40, 3, 8, 8], 0.5));
    let labels = part(&formula::classes("labels", &[40], 4));
    BTreeMap::from([("x".to_string(), x), ("labels".to_string(), labels)])
}

fn training() -> CompileOptions {
    let loss = Some(Loss::CrossEntropy);
    CompileOptions { loss, optimizer: sgd(0.05), ..CompileOptions::default() }
}

fn statistics(session: &mut Session) -> BTreeMap<String, Vec<f64>> {
    let names = ["bn1.running_mean", "bn1.running_var", "bn2.running_mean", "bn2.running_var"];
    names.map(|name| (name.to_string(), session.variable(name).expect("is there").to_f64())).into()
}

/// Trains with PyTorch's weights and batches; running statistics, and what they make of a batch in evaluation.
fn check(options: &CompileOptions) {
    let what = format!(
        "{:?} stages {} microbatches {} {:?} {:?}",
        options.mesh, options.stages, options.microbatches, options.strategy, options.recompute
    );
    let recorded = recorded("statistics")[options.microbatches.to_string()].clone();
    let mut session = begin(&network(), options);
    let losses: Vec<f64> =
        (0..STEPS).map(|at| number(&step(&mut session, &feeds(at)), "loss")).collect();
    near(&losses, &list(&recorded["losses"]), 1e-3, &what);
    for (name, found) in statistics(&mut session) {
        near(&found, &list(&recorded["running"][&name]), 1e-3, &format!("{what}: {name}"));
    }
    let inference = CompileOptions { mesh: vec![2], ..CompileOptions::default() };
    let mut inference = evaluated(&network(), &inference, &mut session);
    let mut feeds = feeds(0);
    feeds.remove("labels");
    let before = statistics(&mut inference);
    let logits = step(&mut inference, &feeds)["logits"].to_f64();
    near(&logits, &list(&recorded["logits"]), 1e-2, &format!("{what}: in evaluation"));
    assert_eq!(statistics(&mut inference), before, "{what}: evaluation changes nothing");
}

#[test]
fn running_statistics_are_pytorchs_on_every_mesh() {
    for mesh in [vec![1], vec![3], vec![4], vec![2, 2]] {
        check(&CompileOptions { mesh, ..training() });
    }
    check(&CompileOptions { mesh: vec![2], stages: 2, ..training() });
}

#[test]
fn each_microbatch_is_taken_in_as_by_pytorch() {
    let parts = CompileOptions { microbatches: 2, ..training() };
    check(&parts);
    for mesh in [vec![2], vec![2, 2]] {
        check(&CompileOptions { mesh: mesh.clone(), ..parts.clone() });
        check(&CompileOptions { mesh, stages: 2, ..parts.clone() });
    }
    let interleaved = Schedule::Interleaved { chunks: 2 };
    check(&CompileOptions { mesh: vec![2], stages: 2, schedule: interleaved, ..parts });
}

#[test]
fn every_strategy_takes_them_in() {
    use Strategy::{Data, Megatron, Zero1, Zero2, Zero3};
    for strategy in [Data, Zero1, Zero2, Zero3, Megatron] {
        check(&CompileOptions { mesh: vec![2], strategy, ..training() });
        check(&CompileOptions { mesh: vec![2], strategy, microbatches: 2, ..training() });
    }
}

#[test]
fn what_is_computed_again_is_taken_in_once() {
    let full = CompileOptions { recompute: Recompute::Full, ..training() };
    check(&full);
    check(&CompileOptions { mesh: vec![2], stages: 2, microbatches: 2, ..full });
}

/// Running statistics take in forward passes without an optimizer as well, as data parallelism has them.
#[test]
fn gradients_alone_take_them_in() {
    let optimizer = None;
    let options = CompileOptions { gradients: true, optimizer, ..training() };
    let (mut one, mut other) = (begin(&network(), &options), begin(&network(), &training()));
    step(&mut one, &feeds(0));
    step(&mut other, &feeds(0));
    assert_eq!(statistics(&mut one), statistics(&mut other));
}

/// Steps of f16 that overflow are not made, but their forward passes were.
#[test]
fn half_precision_takes_them_in_even_where_no_step_is_made() {
    let expected = {
        let mut session = begin(&network(), &training());
        step(&mut session, &feeds(0));
        statistics(&mut session)
    };
    for (precision, tolerance) in [(DType::BF16, 2e-2), (DType::F16, 3e-3)] {
        let options = CompileOptions { precision: Some(precision), ..training() };
        let mut session = begin(&network(), &options);
        step(&mut session, &feeds(0));
        for (name, found) in statistics(&mut session) {
            near(&found, &expected[&name], tolerance, &format!("{precision}: {name}"));
        }
    }
    // A weight that is no number in f16 makes no step, but the first layer's statistics are as they were.
    let options = CompileOptions { precision: Some(DType::F16), ..training() };
    let mut session = begin(&network(), &options);
    let large = HostTensor::from_f32([4, 8], &[1e30; 32]).expect("fits");
    session.set_variable("fc.weight", &large).expect("fits");
    let outputs = step(&mut session, &feeds(0));
    assert_eq!(number(&outputs, "skipped"), 1.0);
    let kept = session.variable("fc.weight").expect("is there");
    assert_eq!(kept.to_f32().expect("f32"), [1e30; 32]);
    for (name, found) in statistics(&mut session) {
        near(&found, &expected[&name], 3e-3, &format!("skipped: {name}"));
    }
}

/// Averages are what a loop by hand makes of the weights after each step, however these and their states lie.
#[test]
fn averages_of_weights_follow_each_step() {
    let decay = 0.75;
    let averaged = |options: CompileOptions| {
        let mut session = begin(&network(), &CompileOptions { ema: Some(decay), ..options });
        let mut by_hand: Vec<f64> = Vec::new();
        for at in 0..4 {
            step(&mut session, &feeds(at));
            let weights = session.variable("conv1.weight").expect("is there").to_f64();
            by_hand = match at {
                0 => weights,
                _ => by_hand
                    .iter()
                    .zip(weights)
                    .map(|(average, new)| decay * average + (1.0 - decay) * new)
                    .collect(),
            };
        }
        let average = session.variable("state.ema.conv1.weight").expect("is there").to_f64();
        (average, by_hand)
    };
    use Strategy::{Auto, Data, Megatron, Zero1, Zero3};
    for strategy in [Auto, Data, Zero1, Zero3, Megatron] {
        let mesh = if strategy == Auto { vec![1] } else { vec![2] };
        let (found, expected) = averaged(CompileOptions { mesh, strategy, ..training() });
        near(&found, &expected, 1e-6, &format!("{strategy:?}"));
    }
    let staged = CompileOptions { mesh: vec![2, 2], stages: 2, microbatches: 2, ..training() };
    let (found, expected) = averaged(staged.clone());
    near(&found, &expected, 1e-6, "stages");
    // The first step in f16 is made or not: the average begins as the weights in either case.
    let half = CompileOptions { precision: Some(DType::F16), ..staged };
    let (found, expected) = averaged(half);
    near(&found, &expected, 1e-6, "f16");
}

/// Counts samples and steps, and keeps a moving average, on several ranks and for several microbatches.
#[test]
fn states_of_the_users_own_follow() {
    let g = GraphBuilder::new("states");
    let x = g.input("x", DType::F32, [4, 3]);
    let w = g.variable("w", DType::F32, [3, 2], Init::Fill(0.5.into()));
    let state = |name: &str, dtype, shape: &[usize]| {
        g.variable_of(name, TensorType::new(dtype, shape), Init::Fill(0.0.into()), false)
    };
    let (mean, seen) = (state("mean", DType::F32, &[3]), state("seen", DType::F32, &[]));
    mean.blend_after_step(0.5, 0.25, &x.mean(&[0], false));
    seen.after_step(&seen.add(&x.full_like(1.0).sum(&[0, 1], false)));
    let steps = state("steps", DType::I64, &[2]);
    steps.after_step(&steps.add(&steps.full_like(1.0)));
    g.output("y", &x.matmul(&w).add(&seen.scale(0.0)));
    let graph = g.finish().expect("fits");
    let rows: Vec<f32> = (0..12).map(|at| at as f32).collect();
    let rows = HostTensor::from_f32([4, 3], &rows).expect("fits");
    let feeds = BTreeMap::from([("x".to_string(), rows)]);
    for (mesh, stages, microbatches) in [(1, 1, 1), (2, 1, 2), (2, 2, 4), (4, 1, 1)] {
        let (loss, mesh) = (Some(Loss::Sum), vec![mesh]);
        let options = CompileOptions { mesh, stages, microbatches, loss, ..training() };
        let plan = compile(graph.clone(), &options, &preset("cpu").expect("a preset"), None);
        let plan = plan.expect("compiles").plan;
        let mut session =
            Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("begins");
        step(&mut session, &feeds);
        step(&mut session, &feeds);
        let mut of = |name: &str| session.variable(name).expect("is there").to_f64();
        // The means of the columns are 4.5, 5.5 and 6.5.
        assert_eq!(of("mean"), [4.5, 5.5, 6.5].map(|mean| mean * 0.25 * 1.5), "{options:?}");
        assert_eq!(of("seen"), [24.0], "{options:?}");
        assert_eq!(of("steps"), [2.0, 2.0], "{options:?}");
    }
}

#[test]
fn what_cannot_be_a_state_is_said() {
    let refused = |build: fn(&GraphBuilder, &Tensor, &Tensor), expected: &str| {
        let g = GraphBuilder::new("wrong");
        let x = g.input("x", DType::F32, [4, 3]);
        let w = g.variable("w", DType::F32, [3], Init::Fill(0.5.into()));
        build(&g, &x, &w);
        g.output("y", &x.mul(&w));
        let options = CompileOptions { loss: Some(Loss::Sum), ..training() };
        let cpu = preset("cpu").expect("a preset");
        let error = match g.finish() {
            Err(error) => error.to_string(),
            Ok(graph) => compile(graph, &options, &cpu, None).expect_err(expected).to_string(),
        };
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("running.rs"), "{error}");
    };
    refused(|_, x, _| x.after_step(x), "it updates x, which is no variable");
    refused(|_, x, w| w.after_step(&x.mean(&[0], false)), "w is updated already");
    let twice = |g: &GraphBuilder, x: &Tensor, _: &Tensor| {
        let ty = TensorType::new(DType::F32, [3]);
        let state = g.variable_of("state", ty, Init::Fill(0.0.into()), false);
        state.after_step(&x.mean(&[0], false));
        state.after_step(&x.mean(&[0], false));
    };
    refused(twice, "state is updated already");
    refused(|_, x, w| w.after_step(x), "their shapes differ");
}
