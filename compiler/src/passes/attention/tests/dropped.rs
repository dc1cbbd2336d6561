//! Dropout of weights is the op's own, and drops the same.

use graphc_ir::ops::DropoutOp;

use super::*;

/// The dropout of the first model of a builder.
fn dropout_of(graph: &Graph) -> Option<DropoutOp> {
    ops(graph).first().expect("is one op").dropout
}

/// Weights between softmax and the product.
type Weights = fn(&GraphBuilder, Tensor) -> Tensor;

const FORMS: [(&str, Weights); 4] = [
    ("dropped", |_, scores| scores.softmax(3).dropout(0.4)),
    ("in another type, and cast back", |_, scores| {
        scores.softmax(3).cast(DType::F32).dropout(0.4).cast(DType::F32)
    }),
    ("with heads among the samples", |_, scores| {
        let weights = scores.softmax(3).reshape(&[BATCH * HEADS, TIME, TIME]);
        weights.dropout(0.4).reshape(&[BATCH, HEADS, TIME, TIME])
    }),
    ("of rows without a key, in the end", |g, scores| {
        let weights = scores.softmax(3);
        let dropped = weights.dropout(0.4);
        weights.not_equal(&weights).select(&number(g, 0.0), &dropped)
    }),
];

#[test]
fn weights_are_dropped_as_by_the_op_of_that_name() {
    for (name, weights) in FORMS {
        for causal in [false, true] {
            let form = |g: &GraphBuilder, p: Parts| {
                let scores = p.scores().scale(SCALE);
                let scores = match causal {
                    true => future(g).select(&number(g, f64::NEG_INFINITY), &scores),
                    false => scores,
                };
                weights(g, scores).matmul(&p.v)
            };
            let graph = model(HEADS, form);
            is_one(name, graph.clone(), causal);
            let dropout = dropout_of(&both(graph)[1]).expect("drops weights");
            assert!(dropout.can_drop() && dropout.probability == 0.4.into(), "{name}");
        }
    }
}

#[test]
fn what_is_added_to_scores_stays_beside_the_dropout() {
    let form = |g: &GraphBuilder, p: Parts| {
        let bias = g.variable("b", DType::F32, [HEADS, TIME, TIME], Init::Fill(0.3.into()));
        p.scores().scale(SCALE).add(&bias).softmax(3).dropout(0.4).matmul(&p.v)
    };
    let [before, after] = both(model(HEADS, form));
    assert!(dropout_of(&after).is_some());
    are_equal("learned", &before, &after);
}

#[test]
fn in_inference_nothing_is_dropped() {
    let form =
        |_: &GraphBuilder, p: Parts| p.scores().scale(SCALE).softmax(3).dropout(0.4).matmul(&p.v);
    let options = CompileOptions::default();
    let graph = set_mode(model(HEADS, form), &options).expect("fits");
    let after = fuse_attention(graph, &options).expect("fits");
    assert_eq!(ops(&after), [Attention::new(false, SCALE.into())]);
}

/// An op that a model has from the start follows the mode as a dropout does.
#[test]
fn the_op_drops_in_training_alone() {
    let dropout = DropoutOp { probability: 0.4.into(), key: 1, training: false };
    let op = Attention { dropout: Some(dropout), ..Attention::new(true, SCALE.into()) };
    let g = GraphBuilder::new("model");
    let x = g.input("x", DType::F32, [BATCH, TIME, HEADS, WIDTH]);
    g.output("y", &g.apply_all(Op::Attention(op), &[&x, &x, &x])[0]);
    let graph = g.finish().expect("fits");
    let drops = |options: &CompileOptions| {
        ops(&set_mode(graph.clone(), options).expect("fits"))[0].weight_dropout().is_some()
    };
    assert!(drops(&options()));
    assert!(!drops(&CompileOptions::default()));
    let kept = keep_eval(&graph).expect("fits");
    assert!(ops(&set_mode(kept, &options()).expect("fits"))[0].weight_dropout().is_none());
}
