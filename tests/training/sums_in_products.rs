//! Gradient accumulation on the processor: products add the gradients of weights to what earlier microbatches have summed, in one launch.

use graphc::ir::ids::RegisterId;
use graphc::ir::op::Op;
use graphc::plan::{Action, Actor, Program};
use graphc::prelude::*;

const BATCH: usize = 64;

/// Two layers with biases, a weight of its own for either half of what they give, and the mean of squares as loss.
fn layers(width: usize) -> Graph {
    let g = GraphBuilder::new("layers");
    let x = g.input("x", DType::F32, [BATCH, width]);
    let [up, down] = [("up", width, 2 * width), ("down", 2 * width, width)]
        .map(|(name, inner, columns)| nn::Linear::new(&g, name, inner, columns));
    let halves = down.forward(&up.forward(&x).tanh()).reshape(&[BATCH, 2, width / 2]);
    let init = Init::Normal { mean: 0.0.into(), std: 0.2.into() };
    let weights = g.variable("halves", DType::F32, [2, width / 2, width / 2], init);
    let y = halves.transpose(&[1, 0, 2]).matmul(&weights);
    g.output("loss", &(&y * &y).mean(&[0, 1, 2], false));
    g.finish().expect("a graph")
}

fn plan(width: usize, precision: DType, microbatches: usize) -> VerifiedPlan {
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let options = CompileOptions {
        mesh: vec![1],
        microbatches,
        precision: Some(precision),
        optimizer: Some(sgd),
        ..CompileOptions::default()
    };
    let cluster = preset("cpu").expect("a preset");
    compile(layers(width), &options, &cluster, None).expect("a plan").plan
}

/// The actor that makes the register, past a cast of it.
fn find_maker(program: &Program, register: RegisterId) -> usize {
    let makes = |actor: &Actor| actor.outputs.contains(&register);
    let index = program.actors.iter().position(makes).expect("a register is filled");
    match &program.actors[index] {
        cast if matches!(cast.action, Action::Compute { op: Op::Cast(_), .. }) => {
            find_maker(program, cast.inputs[0])
        }
        _ => index,
    }
}

/// The sums over microbatches, each with the actor that makes what is summed.
fn list_sums(program: &Program) -> Vec<(usize, usize)> {
    let actors = program.actors.iter().enumerate();
    let sums = actors.filter(|(_, actor)| matches!(actor.action, Action::Accumulate));
    sums.map(|(index, sum)| (index, find_maker(program, sum.inputs[0]))).collect()
}

/// Returns the losses of three steps, and per sum over microbatches whether a product makes its summand, and whether both are one launch.
fn train(plan: &VerifiedPlan, width: usize) -> (Vec<f32>, Vec<[bool; 2]>) {
    let mut session =
        Session::new(plan, &BTreeMap::new(), SessionOptions::default()).expect("a session");
    let data: Vec<f32> = (0..BATCH * width).map(|i| (i as f32 * 0.37).sin()).collect();
    let x = HostTensor::from_f32([BATCH, width], &data).expect("a tensor");
    let feeds = BTreeMap::from([("x".to_owned(), x)]);
    let loss = |_| {
        let step = session.step(feeds.clone()).expect("a step under way").wait().expect("a step");
        step["loss"].to_f32().expect("a loss")[0]
    };
    let losses = (0..3).map(loss).collect();
    let statistics = session.statistics().expect("statistics");
    let launched = |actor: usize| {
        let with = statistics.ranks[0].actors[actor].joined;
        with.map_or(actor, |launched| launched.index())
    };
    let program = plan.program_of(0);
    let of = |&(sum, maker): &(usize, usize)| {
        let action = &program.actors[maker].action;
        let is_product = matches!(action, Action::Compute { op: Op::MatMul(_), .. });
        [is_product, launched(sum) == launched(maker)]
    };
    (losses, list_sums(program).iter().map(of).collect())
}

/// Checks that of the sums of what the three products make so many are launched with them and no others, and that losses are those of one
/// microbatch.
fn check(width: usize, (precision, tolerance): (DType, f32), count: usize) {
    let (right, none) = train(&plan(width, precision, 1), width);
    let (losses, sums) = train(&plan(width, precision, 4), width);
    let what = format!("{width} {precision:?}");
    assert!(none.is_empty(), "{what}: {none:?}");
    for (loss, right) in losses.iter().zip(&right) {
        assert!((loss - right).abs() <= tolerance * right, "{what}: {losses:?}, not {right:?}");
    }
    let products = sums.iter().filter(|[is_product, _]| *is_product).count();
    assert_eq!(products, 3, "{what}: one of each weight, of {sums:?}");
    assert!(sums.iter().all(|&[is_product, joined]| is_product || !joined), "{what}: {sums:?}");
    assert_eq!(sums.iter().filter(|[_, joined]| *joined).count(), count, "{what}: {sums:?}");
}

#[test]
fn products_are_launched_with_the_sums_of_gradients_that_they_make() {
    for width in [8, 256] {
        check(width, (DType::F32, 1e-5), 3);
    }
    // Of half precision those of both layers, where they are large.
    for precision in [DType::BF16, DType::F16] {
        check(8, (precision, 1e-2), 0);
        check(256, (precision, 1e-2), 2);
    }
}
