//! Cases of attention and of positions.

use graphc_ir::op::Op;
use graphc_ir::ops::{Attention, AttentionGrad, Rotary};

use super::{Case, floats};

pub fn cases() -> Vec<Case> {
    [attention(), rotary()].into_iter().flatten().collect()
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
        let gradient = || Op::AttentionGrad(AttentionGrad { causal, scale });
        vec![
            Case { op: Op::Attention(Attention { causal, scale }), operands: forward, complete },
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
                let op = Op::Rotary(Rotary { base: 100.0.into(), interleaved, inverse });
                Case { op, operands: vec![floats(shape)], complete }
            },
        )
    };
    shapes.into_iter().flat_map(of).collect()
}
