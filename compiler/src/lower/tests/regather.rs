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

/// Everything whole, but what is kept for the backward pass in parts.
fn sliced(node: &Node, _: &str) -> Option<NdSbp> {
    let sbp = if matches!(node.op, Op::Regather(_)) { Sbp::Split(1) } else { Sbp::Broadcast };
    Some(NdSbp(vec![sbp]))
}

#[test]
fn what_is_kept_in_parts_is_cut_as_soon_as_nothing_else_reads_the_whole() {
    let mut case = Case::new(&[4], 1, 3);
    let g = case.g.clone();
    let w = g.variable("w", DType::F32, [256, 256], Init::Weights);
    let x = g.input("x", DType::F32, [12, 256]);
    let made = x.matmul(&w);
    let later = made.exp().matmul(&w);
    case.mark(&later, Phase::Forward, 0);
    let again = g.apply(Op::Regather(Regather {}), &[&made]);
    let z = later.mul(&again.tanh());
    case.mark(&z, Phase::Backward, 0);
    let (plan, _) = case.compile(sliced);
    assert_eq!(verify_invariants(&plan), Ok(()));
    let program = &plan.programs[0];
    let order = program.streams[0].blocks.iter().flatten();
    let names: Vec<&str> = order
        .map(|actor| program.actors[actor.index()].name.split(' ').next().unwrap_or(""))
        .collect();
    let ops = ["feed", "matmul", "unary", "slice", "matmul", "all_gather", "unary+binary"];
    assert_eq!(names, ops);
}
