//! A small GPT whose attention is written in parts, with a dropout of its weights: one op that drops the same on every mesh.

use graphc::prelude::*;
use graphc_ir::op::Op;
use graphc_plan::{Action, Actor};

const WIDTH: usize = 8;
const HEADS: usize = 2;
const TIME: usize = 6;
const BATCH: usize = 8;

/// Attention of heads to those before, by scores, softmax, dropout and a product.
fn attend(g: &GraphBuilder, x: &Tensor, name: &str, dropout: f64) -> Tensor {
    let init = Init::Normal { mean: 0.0.into(), std: 0.5.into() };
    let by_head = |part: &str| {
        let weight =
            g.variable(&format!("{name}.{part}"), DType::F32, [WIDTH, WIDTH], init.clone());
        let projected = x.matmul(&weight).reshape(&[BATCH, TIME, HEADS, WIDTH / HEADS]);
        projected.transpose(&[0, 2, 1, 3])
    };
    let [q, k, v] = ["q", "k", "v"].map(by_head);
    let later = g.full(DType::F32, [TIME, TIME], f64::NEG_INFINITY).triu(1);
    let scores = q.matmul_transposed(&k, false, true).scale(0.5).add(&later);
    let means = scores.softmax(3).dropout(dropout).matmul(&v);
    means.transpose(&[0, 2, 1, 3]).reshape(&[BATCH, TIME, WIDTH])
}

fn gpt(dropout: f64) -> Graph {
    let g = GraphBuilder::new("gpt");
    let mut x = g.input("x", DType::F32, [BATCH, TIME, WIDTH]);
    for layer in 0..2 {
        let name = format!("layers.{layer}");
        x = x.add(&attend(&g, &x, &name, dropout));
        let init = Init::Normal { mean: 0.0.into(), std: 0.3.into() };
        let up = g.variable(&format!("{name}.up"), DType::F32, [WIDTH, 4 * WIDTH], init.clone());
        let down = g.variable(&format!("{name}.down"), DType::F32, [4 * WIDTH, WIDTH], init);
        x = x.add(&x.matmul(&up).gelu().matmul(&down));
    }
    g.output("loss", &(&x * &x).mean(&[0, 1, 2], false));
    g.finish().expect("a graph")
}

fn plan(dropout: f64, options: CompileOptions) -> VerifiedPlan {
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let options = CompileOptions { optimizer: Some(sgd), ..options };
    let cluster = preset("cpu").expect("a preset");
    compile(gpt(dropout), &options, &cluster, None).expect("a plan").plan
}

fn losses(plan: &VerifiedPlan) -> Vec<f32> {
    let data: Vec<f32> =
        (0..BATCH * TIME * WIDTH).map(|i: usize| (i as f32 * 0.37).sin()).collect();
    let x = HostTensor::from_f32([BATCH, TIME, WIDTH], &data).expect("a tensor");
    let feeds = BTreeMap::from([("x".to_string(), x)]);
    let mut session =
        Session::new(plan, &BTreeMap::new(), SessionOptions::default()).expect("a session");
    let step = |_| {
        let handle = session.step(feeds.clone()).expect("a step under way");
        handle.wait().expect("a step")["loss"].to_f32().expect("a loss")[0]
    };
    (0..5).map(step).collect()
}

/// Counts the attention ops of a plan that drop weights, forward and backward.
fn count_dropping(plan: &VerifiedPlan) -> usize {
    let drops = |actor: &&Actor| match &actor.action {
        Action::Compute { op: Op::Attention(op), .. } => op.weight_dropout().is_some(),
        Action::Compute { op: Op::AttentionGrad(op), .. } => {
            op.forward().weight_dropout().is_some()
        }
        _ => false,
    };
    plan.programs.iter().flat_map(|program| &program.actors).filter(drops).count()
}

#[test]
fn a_gpt_that_drops_weights_trains_alike_on_every_mesh() {
    let one = plan(0.3, CompileOptions::default());
    assert_eq!(count_dropping(&one), 4);
    let expected = losses(&one);
    assert_ne!(expected, losses(&plan(0.0, CompileOptions::default())), "nothing is dropped");
    let mesh = |mesh: &[usize]| CompileOptions { mesh: mesh.to_vec(), ..CompileOptions::default() };
    let (data, sharded) = (Strategy::Data, Strategy::Zero3);
    for options in [
        CompileOptions { strategy: data, ..mesh(&[2]) },
        CompileOptions { strategy: sharded, ..mesh(&[2]) },
        CompileOptions { strategy: sharded, ..mesh(&[2, 2]) },
        CompileOptions { stages: 2, microbatches: 4, ..mesh(&[2]) },
        CompileOptions { microbatches: 2, ..mesh(&[2, 2]) },
        CompileOptions { recompute: Recompute::Full, ..mesh(&[1]) },
        CompileOptions { recompute: Recompute::Selective, microbatches: 2, ..mesh(&[1]) },
    ] {
        let plan = plan(0.3, options.clone());
        assert!(count_dropping(&plan) >= 4, "{options:?}");
        for (found, expected) in losses(&plan).iter().zip(&expected) {
            let near = (found - expected).abs() <= 1e-5 * expected;
            assert!(near, "{options:?}: {found} instead of {expected}");
        }
    }
}

#[test]
fn a_dropout_of_weights_takes_no_memory() {
    let bytes = |dropout| plan(dropout, CompileOptions::default()).programs[0].arena_bytes;
    assert_eq!(bytes(0.3), bytes(0.0));
}
