//! Plans with a second stream on threads of a CPU: the bits of those with one, whatever the delays.

use graphc::prelude::*;

fn model() -> Graph {
    let g = GraphBuilder::new("model");
    let mut x = g.input("x", DType::F32, [16, 12]);
    for layer in 0..4 {
        let init = Init::Normal { mean: 0.0.into(), std: 0.3.into() };
        x = x.matmul(&g.variable(&format!("w{layer}"), DType::F32, [12, 12], init)).tanh();
    }
    g.output("loss", &(&x * &x).mean(&[0, 1], false));
    g.finish().expect("a graph")
}

fn plan(overlap: bool, options: &CompileOptions) -> VerifiedPlan {
    let mut cluster = preset("cpu").expect("a preset");
    cluster.device.overlap = overlap;
    compile(model(), options, &cluster, None).expect("a plan").plan
}

/// The bits of the losses of some steps.
fn losses(plan: &VerifiedPlan, delays: Option<u64>) -> Vec<u32> {
    losses_of(plan, [16, 12], delays)
}

/// Returns the bits of the losses of a plan whose input has a given shape.
fn losses_of(plan: &VerifiedPlan, shape: [usize; 2], delays: Option<u64>) -> Vec<u32> {
    let data: Vec<f32> =
        (0..shape.iter().product()).map(|i: usize| (i as f32 * 0.37).sin()).collect();
    let x = HostTensor::from_f32(shape, &data).expect("a tensor");
    let feeds = BTreeMap::from([("x".to_string(), x)]);
    let options = SessionOptions { shuffle_delays: delays, ..SessionOptions::default() };
    let mut session = Session::new(plan, &BTreeMap::new(), options).expect("a session");
    let handles: Vec<_> =
        (0..4).map(|_| session.step(feeds.clone()).expect("a step under way")).collect();
    let loss = |handle: graphc::runtime::StepHandle| {
        handle.wait().expect("a step")["loss"].to_f32().expect("a loss")[0].to_bits()
    };
    handles.into_iter().map(loss).collect()
}

#[test]
fn a_second_stream_changes_no_bit() {
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    for strategy in [Strategy::Data, Strategy::Zero1, Strategy::Zero2, Strategy::Zero3] {
        for (mesh, microbatches) in [(vec![2], 1), (vec![3], 2), (vec![2, 2], 2)] {
            let options = CompileOptions {
                mesh,
                microbatches,
                strategy,
                optimizer: Some(sgd),
                ..CompileOptions::default()
            };
            let (one, two) = (plan(false, &options), plan(true, &options));
            assert_eq!([one.programs[0].streams.len(), two.programs[0].streams.len()], [1, 2]);
            let expected = losses(&one, None);
            for delays in [None, Some(3), Some(4)] {
                assert_eq!(losses(&two, delays), expected, "{options:?} {delays:?}");
            }
        }
    }
}

/// A weight in blocks of two axes, which is multiplied in blocks of the same axes the other way round: ranks exchange theirs, for each
/// microbatch anew.
#[test]
fn weights_that_are_exchanged_for_each_microbatch_train_as_on_one_rank() {
    let planned = |mesh: &[usize]| {
        let g = GraphBuilder::new("turned");
        let init = || Init::Normal { mean: 0.0.into(), std: 0.1.into() };
        let x = g.input("x", DType::F32, [12, 64]);
        let h = x.matmul(&g.variable("w", DType::F32, [64, 256], init())).relu();
        let v = g.variable("v", DType::F32, [256, 256], init());
        let mut y = h.matmul(&v);
        if mesh.len() == 2 {
            v.pin("S(0), S(1)".parse().expect("an SBP"));
            y = y.pin("S(1), P(sum)".parse().expect("an SBP"));
        }
        g.output("loss", &(&y * &y).mean(&[0, 1], false));
        let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        let options = CompileOptions {
            mesh: mesh.to_vec(),
            microbatches: 3,
            strategy: if mesh.len() == 2 { Strategy::Zero3 } else { Strategy::Auto },
            optimizer: Some(sgd),
            ..CompileOptions::default()
        };
        let cluster = preset("cpu").expect("a preset");
        compile(g.finish().expect("a graph"), &options, &cluster, None).expect("a plan").plan
    };
    let (one, four) = (planned(&[1]), planned(&[2, 2]));
    assert!(!four.channels.is_empty(), "nothing is exchanged");
    assert!(four.channels.iter().all(|channel| channel.rate == graphc_plan::Rate::Microbatch));
    let [expected, found] = [&one, &four].map(|plan| losses_of(plan, [12, 64], None));
    for (expected, found) in expected.into_iter().zip(found) {
        let [expected, found] = [expected, found].map(f32::from_bits);
        assert!((found - expected).abs() <= 1e-5 * expected, "{found} instead of {expected}");
    }
}
