//! Cases of attention and of positions.

use std::num::NonZeroU32;

use graphc_ir::op::Op;
use graphc_ir::ops::{Attention, AttentionBias, AttentionGrad, DropoutOp, Rotary};

use super::{Case, floats};

pub fn cases() -> Vec<Case> {
    [attention(), other_scores(), rotary(), dropped_weights(), zigzags()]
        .into_iter()
        .flatten()
        .collect()
}

/// Batch, queries, keys, heads, heads of keys and values, width.
struct Extents(usize, usize, usize, usize, usize, usize);

impl Extents {
    fn cases(&self, causal: bool, complete: bool) -> Vec<Case> {
        let &Extents(batch, queries, keys, heads, shared, width) = self;
        let scale = 0.7.into();
        let query = || floats(&[batch, queries, heads, width]);
        let key = || floats(&[batch, keys, shared, width]);
        let row = || floats(&[batch, queries, heads]);
        let forward = vec![query(), key(), key()];
        let backward = || vec![query(), key(), key(), query(), row(), query()];
        let with_row = [backward(), vec![row()]].into_iter().flatten().collect();
        let gradient = || Op::AttentionGrad(AttentionGrad::new(causal, scale));
        vec![
            Case { op: Op::Attention(Attention::new(causal, scale)), operands: forward, complete },
            Case { op: gradient(), operands: backward(), complete },
            Case::new(gradient(), with_row),
        ]
    }
}

/// Few dims of more than one element in each case that is tried for completeness, as all layouts of six operands and
/// three results are tried; always two keys, because a query that sees one key alone averages nothing.
fn attention() -> Vec<Case> {
    let complete = [
        (Extents(2, 1, 2, 1, 1, 1), false),
        (Extents(1, 2, 2, 1, 1, 1), true),
        (Extents(1, 1, 2, 2, 2, 1), false),
        (Extents(1, 1, 2, 2, 1, 1), false),
        (Extents(1, 1, 2, 1, 1, 2), false),
    ];
    let others = [
        (Extents(2, 4, 4, 4, 2, 3), true),
        (Extents(3, 3, 5, 3, 3, 2), false),
        (Extents(1, 5, 5, 4, 1, 2), true),
        (Extents(2, 4, 2, 8, 4, 1), false),
        (Extents(0, 2, 2, 2, 1, 2), true),
    ];
    let complete = complete.iter().flat_map(|(extents, causal)| extents.cases(*causal, true));
    complete
        .chain(others.iter().flat_map(|(extents, causal)| extents.cases(*causal, false)))
        .collect()
}

/// Scores with a bias, a window and a soft cap.
fn other_scores() -> Vec<Case> {
    let plain = Attention::new(false, 0.7.into());
    let causal = Attention::new(true, 0.7.into());
    let near = Attention { window: NonZeroU32::new(2), ..causal };
    let capped = |op: Attention| Attention { soft_cap: Some(1.5.into()), ..op };
    let with_bias = [
        (Extents(1, 1, 2, 2, 1, 1), plain, [1, 2, 1, 2], true),
        (Extents(2, 1, 2, 1, 1, 1), plain, [1, 1, 1, 2], true),
        (Extents(2, 2, 3, 4, 2, 2), plain, [1, 4, 2, 3], false),
        (Extents(2, 3, 3, 4, 2, 2), causal, [2, 1, 1, 3], false),
        (Extents(3, 2, 2, 2, 2, 1), capped(plain), [3, 2, 2, 2], false),
        (Extents(2, 5, 5, 2, 1, 2), capped(near), [1, 1, 5, 5], false),
        (Extents(1, 4, 2, 2, 2, 2), plain, [1, 1, 4, 1], false),
    ];
    let without = [
        (Extents(2, 5, 5, 2, 1, 2), near),
        (Extents(1, 6, 6, 1, 1, 1), Attention { window: NonZeroU32::new(1), ..causal }),
        (Extents(2, 3, 4, 2, 2, 2), capped(plain)),
    ];
    let without = without.iter().flat_map(|(extents, op)| extents.of(*op, None, false));
    let with = with_bias
        .iter()
        .flat_map(|(extents, op, bias, complete)| extents.of(*op, Some(*bias), *complete));
    without.chain(with).collect()
}

/// Weights that are dropped.
fn dropped_weights() -> Vec<Case> {
    let dropped = |causal: bool, key: u64| {
        let dropout = DropoutOp { probability: 0.4.into(), key, training: true };
        Attention { dropout: Some(dropout), ..Attention::new(causal, 0.7.into()) }
    };
    let near = Attention { window: NonZeroU32::new(3), ..dropped(true, 7) };
    let capped = Attention { soft_cap: Some(1.5.into()), ..dropped(false, 8) };
    let cases = [
        (Extents(2, 1, 2, 1, 1, 1), dropped(false, 2), None, true),
        (Extents(1, 1, 2, 2, 2, 1), dropped(false, 3), None, true),
        (Extents(1, 2, 2, 1, 1, 1), dropped(true, 4), None, true),
        (Extents(2, 4, 4, 4, 2, 3), dropped(true, 5), None, false),
        (Extents(2, 4, 6, 4, 2, 2), dropped(false, 6), Some([2, 1, 4, 6]), false),
        (Extents(2, 6, 6, 2, 1, 2), near, None, false),
        (Extents(3, 2, 4, 2, 2, 1), capped, Some([1, 2, 1, 4]), false),
    ];
    cases
        .iter()
        .flat_map(|(extents, op, bias, complete)| extents.of(*op, *bias, *complete))
        .collect()
}

/// Sequences whose early and late chunks lie beside each other.
fn zigzags() -> Vec<Case> {
    let pairs = NonZeroU32::new(2);
    let op = Attention { zigzag: pairs, ..Attention::new(true, 0.7.into()) };
    let near = Attention { window: NonZeroU32::new(3), ..op };
    let cases = [
        (Extents(1, 4, 4, 1, 1, 1), op, true),
        (Extents(2, 8, 8, 4, 2, 2), op, false),
        (Extents(2, 8, 8, 2, 1, 2), near, false),
    ];
    let of_attention =
        cases.iter().flat_map(|(extents, op, complete)| extents.of(*op, None, *complete));
    let rotary = Rotary { base: 100.0.into(), interleaved: true, inverse: false, zigzag: pairs };
    let of_rotary = [
        Case { op: Op::Rotary(rotary), operands: vec![floats(&[4, 1, 2])], complete: true },
        Case::new(Op::Rotary(rotary), vec![floats(&[2, 8, 2, 4])]),
    ];
    of_attention.chain(of_rotary).collect()
}

impl Extents {
    fn of(&self, op: Attention, bias: Option<[usize; 4]>, complete: bool) -> Vec<Case> {
        let &Extents(batch, queries, keys, heads, shared, width) = self;
        let query = || floats(&[batch, queries, heads, width]);
        let key = || floats(&[batch, keys, shared, width]);
        let row = || floats(&[batch, queries, heads]);
        let added = || bias.map(|bias| floats(&bias));
        let forward = vec![query(), key(), key()].into_iter().chain(added()).collect();
        let mut cases = vec![Case { op: Op::Attention(op), operands: forward, complete }];
        let whole = bias.is_some_and(|bias| bias[2..] == [queries, keys]);
        let uses = match bias {
            None => vec![AttentionBias::None],
            Some(_) if whole => vec![AttentionBias::Added, AttentionBias::Learned],
            Some(_) => vec![AttentionBias::Added],
        };
        for (bias, with_row) in uses.into_iter().flat_map(|bias| [(bias, false), (bias, true)]) {
            let rows = with_row.then(row);
            let operands = vec![query(), key(), key(), query(), row(), query()];
            let operands = operands.into_iter().chain(rows).chain(added()).collect();
            cases.push(Case::new(
                Op::AttentionGrad(AttentionGrad::from_attention(op, bias)),
                operands,
            ));
        }
        cases
    }
}

fn rotary() -> Vec<Case> {
    let shapes: [(&[usize], bool); 4] = [
        (&[2, 4, 2, 4], true),
        (&[3, 2, 6], false),
        (&[2, 5, 3, 2], false),
        (&[0, 3, 1, 2], false),
    ];
    let of = |(shape, complete): (&[usize], bool)| {
        [(false, false), (true, false), (false, true), (true, true)].map(
            |(interleaved, inverse)| {
                let op =
                    Op::Rotary(Rotary { base: 100.0.into(), interleaved, inverse, zigzag: None });
                Case { op, operands: vec![floats(shape)], complete }
            },
        )
    };
    shapes.into_iter().flat_map(of).collect()
}
