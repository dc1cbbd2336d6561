//! Gradient accumulation on the processor: products add the gradients of weights to what earlier microbatches have summed, in one launch.

use graphc::ir::ids::RegisterId;
use graphc::ir::op::Op;
use graphc::ir::plan::{Action, Actor, Program};
use graphc::prelude::*;

const BATCH: usize = 64;
const WIDTH: usize = 256;

/// Two layers with biases, one from `WIDTH` to twice as many, and the mean of squares as loss.
fn layers() -> Graph {
    let g = GraphBuilder::new("layers");
    let x = g.input("x", DType::F32, [BATCH, WIDTH]);
    let [up, down] = [("up", WIDTH, 2 * WIDTH), ("down", 2 * WIDTH, WIDTH)]
        .map(|(name, inner, columns)| nn::Linear::new(&g, name, inner, columns));
    let y = down.forward(&up.forward(&x).tanh());
    g.output("loss", &(&y * &y).mean(&[0, 1], false));
    g.finish().expect("a graph")
}

fn plan(precision: DType, microbatches: usize) -> VerifiedPlan {
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let options = CompileOptions {
        mesh: vec![1],
        microbatches,
        precision: Some(precision),
        optimizer: Some(sgd),
        ..CompileOptions::default()
    };
    compile(layers(), &options, &preset("cpu").expect("a preset"), None).expect("a plan").plan
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
fn train(plan: &VerifiedPlan) -> (Vec<f32>, Vec<[bool; 2]>) {
    let mut session =
        Session::new(plan, &BTreeMap::new(), SessionOptions::default()).expect("a session");
    let data: Vec<f32> = (0..BATCH * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
    let x = HostTensor::from_f32([BATCH, WIDTH], &data).expect("a tensor");
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

#[test]
fn products_are_launched_with_the_sums_of_gradients_that_they_make() {
    for (precision, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 1e-2), (DType::F16, 1e-2)] {
        let (right, none) = train(&plan(precision, 1));
        let (losses, sums) = train(&plan(precision, 4));
        assert!(none.is_empty(), "{precision:?}: {none:?}");
        for (loss, right) in losses.iter().zip(&right) {
            let far = (loss - right).abs();
            assert!(far <= tolerance * right, "{precision:?}: {losses:?}, not {right:?}");
        }
        for &[is_product, joined] in &sums {
            assert_eq!(joined, is_product, "{precision:?}: {sums:?}");
        }
        let products = sums.iter().filter(|[is_product, _]| *is_product).count();
        assert_eq!(products, 2, "{precision:?}: one of each layer, of {sums:?}");
    }
}
