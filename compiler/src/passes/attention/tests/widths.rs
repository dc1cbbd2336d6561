//! Values that are wider or narrower than keys.

use super::*;

/// A model whose values have a width of their own, on causal scores.
fn model_of_widths(values: usize) -> Graph {
    model(HEADS, |g, p| {
        let weight = g.variable(
            "w",
            DType::F32,
            [WIDTH, values],
            Init::Normal { mean: 0.0.into(), std: 0.6.into() },
        );
        let mask = g.full(DType::F32, [TIME, TIME], -1e9).triu(1);
        let y =
            p.scores().mul(&number(g, SCALE)).add(&mask).softmax(3).matmul(&p.v.matmul(&weight));
        y.sum(&[3], true).expand(&[BATCH, HEADS, TIME, WIDTH])
    })
}

#[test]
fn values_may_have_another_width_than_keys() {
    for values in [WIDTH - 1, WIDTH + 4] {
        let [before, after] = both(model_of_widths(values));
        let node = after.nodes.iter().find(|node| matches!(node.op, Op::Attention(_)));
        let node = node.unwrap_or_else(|| panic!("values of {values} are known"));
        let widths =
            [0, 1, 2].map(|operand: usize| after.value(node.operands[operand]).ty.shape[3]);
        assert_eq!(widths, [values.max(WIDTH); 3]);
        assert!(after.nodes.iter().all(|node| !matches!(node.op, Op::Softmax(_))));
        assert!(ops(&after)[0].causal);
        are_equal("widths", &before, &after);
    }
}
