//! Weights that are gathered again for each microbatch.

use graphc_ir::ops::Regather;

use super::*;

/// A weight in blocks of two axes, multiplied in blocks of the same axes the other way round: half of the ranks exchange theirs.
fn turned(node: &Node, _: &str) -> Option<NdSbp> {
    let sbp = match &node.op {
        Op::Variable(_) | Op::Regather(_) => [Sbp::Split(0), Sbp::Split(1)],
        Op::MatMul(_) => [Sbp::Split(1), Sbp::PARTIAL],
        _ => return None,
    };
    Some(NdSbp(sbp.to_vec()))
}

#[test]
fn what_is_taken_anew_for_each_microbatch_is_sent_for_each() {
    let mut case = Case::new(&[2, 2], 1, 3);
    let g = case.g.clone();
    let w = g.variable("w", DType::F32, [256, 256], Init::Weights);
    let x = g.input("x", DType::F32, [12, 256]);
    let forward = g.apply(Op::Regather(Regather {}), &[&w]);
    let y = x.matmul(&forward).relu();
    case.mark(&y, Phase::Forward, 0);
    let backward = g.apply(Op::Regather(Regather {}), &[&forward]);
    let z = y.matmul(&backward);
    case.mark(&z, Phase::Backward, 0);
    let (plan, _) = case.compile(turned);
    assert_eq!(verify_invariants(&plan), Ok(()));
    // Once before each half.
    assert_eq!(
        plan.channels.iter().map(|channel| channel.rate).collect::<Vec<_>>(),
        [Rate::Microbatch; 2]
    );
    let first = &plan.programs[0];
    let halves: Vec<[usize; 2]> = first.streams[0]
        .blocks
        .iter()
        .map(|block| {
            let actions = || block.iter().map(|actor| &first.actors[actor.index()].action);
            let sends = actions().filter(|action| matches!(action, Action::Send { .. }));
            let receives = actions().filter(|action| matches!(action, Action::Receive { .. }));
            [sends.count(), receives.count()]
        })
        .collect();
    assert_eq!(halves, [[1, 1]; 2]);
}
