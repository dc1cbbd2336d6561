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
    let data: Vec<f32> = (0..192).map(|i| (i as f32 * 0.37).sin()).collect();
    let x = HostTensor::from_f32([16, 12], &data).expect("a tensor");
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
