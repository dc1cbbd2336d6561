//! Masks and biases of all kinds are the op's bias, and soft caps its own.

use std::num::NonZeroU32;

use graphc_ir::scalar::Scalar;

use super::*;

/// Holds that a model is one attention with a bias of this shape that computes and learns the same.
fn is_biased(name: &str, graph: Graph, causal: bool, bias: [usize; 4]) {
    let [before, after] = both(graph);
    let kept: Vec<_> =
        find_sites(&before, &options()).iter().map(|site| site.kept_reason()).collect();
    let node = after.nodes.iter().find(|node| matches!(node.op, Op::Attention(_)));
    let node = node.unwrap_or_else(|| panic!("{name}: {kept:?}"));
    assert_eq!(node.operands.len(), 4, "{name}");
    assert_eq!(after.value(node.operands[3]).ty.shape, bias, "{name}");
    assert_eq!(ops(&after)[0].causal, causal, "{name}");
    are_equal(name, &before, &after);
}

fn softmax_of(p: &Parts, scores: &Tensor) -> Tensor {
    scores.softmax(3).matmul(&p.v)
}

#[test]
fn constants_that_are_no_causal_mask_are_biases() {
    let prefix: Masking = |g, s| {
        let key = g.iota(DType::I64, [1, TIME], 1);
        let past = key.less_equal(&g.iota(DType::I64, [TIME, 1], 0));
        let seen = past.or(&key.less(&g.full(DType::I64, [], 2.0)));
        seen.select(&s, &number(g, f64::NEG_INFINITY))
    };
    let one_ahead: Masking = |g, s| s.add(&g.full(DType::F32, [TIME, TIME], -1e9).triu(2));
    let whole_row: Masking = |g, s| s.add(&g.full(DType::F32, [TIME, TIME], -1e30).triu(0));
    let reversed: Masking = |g, s| s.sub(&g.full(DType::F32, [TIME, TIME], 1e9).tril(-1));
    let weak: Masking = |g, s| s.add(&g.full(DType::F32, [TIME, TIME], -1e4).triu(1));
    let slopes: Masking = |g, s| s.add(&g.iota(DType::F32, [1, TIME], 1));
    let upside_down: Masking =
        |g, s| s.add(&g.full(DType::F32, [TIME, TIME], 1e9).triu(1)).scale(-1.0);
    let masks = [
        ("prefix", prefix),
        ("one ahead", one_ahead),
        ("whole row", whole_row),
        ("reversed", reversed),
        ("weak", weak),
        ("upside down", upside_down),
    ];
    for (name, masked) in masks {
        let form = |g: &GraphBuilder, p: Parts| softmax_of(&p, &masked(g, p.scores().scale(SCALE)));
        is_biased(name, model(HEADS, form), false, [1, 1, TIME, TIME]);
    }
    let form = |g: &GraphBuilder, p: Parts| softmax_of(&p, &slopes(g, p.scores().scale(SCALE)));
    is_biased("slopes", model(HEADS, form), false, [1, 1, 1, TIME]);
}

/// Truth values: whether a query sees a key, in a window before and at its place.
fn near(g: &GraphBuilder, window: i64) -> Tensor {
    g.full(DType::F32, [TIME, TIME], 1.0).tril(0).triu(1 - window).greater(&number(g, 0.5))
}

#[test]
fn windows_are_the_ops_own() {
    let forms: [(&str, Masking); 2] = [
        ("chosen", |g, s| near(g, 2).select(&s, &number(g, -1e9))),
        ("after a causal one", |g, s| {
            let wide = near(g, 3).select(&s, &number(g, f64::NEG_INFINITY));
            let zeros = number(g, 0.0);
            wide.add(&near(g, 2).select(&zeros, &number(g, -1e9))).add(&zeros)
        }),
    ];
    for (name, masked) in forms {
        let form = |g: &GraphBuilder, p: Parts| softmax_of(&p, &masked(g, p.scores().scale(SCALE)));
        let [before, after] = both(model(HEADS, form));
        let found = ops(&after);
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!((found[0].causal, found[0].window), (true, NonZeroU32::new(2)), "{name}");
        are_equal(name, &before, &after);
    }
}

/// Biases as in BLOOM become the op's bias: slopes of each head, on scores whose heads are merged with samples, and a causal mask.
#[test]
fn slopes_of_heads_stand_beside_a_causal_mask() {
    let form = |g: &GraphBuilder, p: Parts| {
        let slopes = g.constant(DType::F32, [HEADS, 1, 1], &[0.5, 0.25, 0.125, 0.0625]);
        let alibi = slopes.mul(&g.iota(DType::F32, [1, 1, TIME], 2));
        let alibi = alibi.reshape(&[1, HEADS, 1, TIME]).expand(&[BATCH, HEADS, 1, TIME]);
        let merged = p.scores().scale(SCALE).reshape(&[BATCH * HEADS, TIME, TIME]);
        let merged = merged.add(&alibi.reshape(&[BATCH * HEADS, 1, TIME]));
        let low = g.full(DType::F32, [TIME, TIME], f32::MIN.into()).triu(1);
        softmax_of(&p, &merged.reshape(&[BATCH, HEADS, TIME, TIME]).add(&low))
    };
    is_biased("slopes", model(HEADS, form), true, [BATCH, HEADS, 1, TIME]);
    let merged = |g: &GraphBuilder, p: Parts| {
        let [q, k] = [&p.q, &p.k].map(|x| x.reshape(&[BATCH * HEADS, TIME, WIDTH]));
        let slopes = g.iota(DType::F32, [BATCH * HEADS, 1, TIME], 2);
        let scores = q.matmul_transposed(&k, false, true).add(&slopes);
        softmax_of(&p, &scores.reshape(&[BATCH, HEADS, TIME, TIME]))
    };
    is_biased("merged", model(HEADS, merged), false, [BATCH, HEADS, 1, TIME]);
}

/// A bias of each head by the distance of key and query, as in T5 and Swin.
fn relative(g: &GraphBuilder) -> Tensor {
    let init = Init::Normal { mean: 0.0.into(), std: 0.6.into() };
    let table = g.variable("table", DType::F32, [2 * TIME - 1, HEADS], init);
    let places = (0..TIME * TIME).map(|i| (i % TIME + TIME - 1 - i / TIME) as f64);
    let places = g.constant(DType::I64, [TIME * TIME], &places.collect::<Vec<_>>());
    table.embedding(&places).reshape(&[TIME, TIME, HEADS]).transpose(&[2, 0, 1])
}

#[test]
fn learned_biases_get_their_gradients() {
    let alone = |g: &GraphBuilder, p: Parts| softmax_of(&p, &p.scores().add(&relative(g)));
    is_biased("relative", model(HEADS, alone), false, [1, HEADS, TIME, TIME]);
    let scaled =
        |g: &GraphBuilder, p: Parts| softmax_of(&p, &relative(g).add(&p.scores()).scale(0.3));
    is_biased("scaled", model(HEADS, scaled), false, [1, HEADS, TIME, TIME]);
    let of_keys = |g: &GraphBuilder, p: Parts| {
        let init = Init::Normal { mean: 0.0.into(), std: 0.6.into() };
        let of_keys = g.variable("keys", DType::F32, [TIME], init);
        softmax_of(&p, &p.scores().add(&of_keys))
    };
    is_biased("of keys", model(HEADS, of_keys), false, [1, 1, 1, TIME]);
    let with_mask = |g: &GraphBuilder, p: Parts| {
        let low = g.full(DType::F32, [1, 1, TIME, TIME], f32::MIN.into()).triu(1);
        softmax_of(&p, &p.scores().add(&relative(g).reshape(&[1, HEADS, TIME, TIME]).add(&low)))
    };
    is_biased("with a mask", model(HEADS, with_mask), true, [1, HEADS, TIME, TIME]);
    let frozen = |g: &GraphBuilder, p: Parts| {
        let init = Init::Normal { mean: 0.0.into(), std: 0.6.into() };
        let ty = TensorType::new(DType::F32, [1, HEADS, TIME, TIME]);
        softmax_of(&p, &p.scores().add(&g.variable_of("frozen", ty, init, false)))
    };
    is_biased("frozen", model(HEADS, frozen), false, [1, HEADS, TIME, TIME]);
    let windows = |g: &GraphBuilder, p: Parts| {
        let mask = g.iota(DType::F32, [BATCH, 1, TIME, TIME], 0).scale(-100.0).triu(1);
        let scores = p.scores().add(&relative(g)).reshape(&[1, BATCH, HEADS, TIME, TIME]);
        softmax_of(&p, &scores.add(&mask).reshape(&[BATCH, HEADS, TIME, TIME]))
    };
    is_biased("shifted windows", model(HEADS, windows), false, [BATCH, HEADS, TIME, TIME]);
}

#[test]
fn masks_of_data_are_biases_where_rows_without_keys_are_known() {
    let extended = |g: &GraphBuilder, p: Parts| {
        let mask = g.input("mask", DType::I64, [BATCH, TIME]).cast(DType::F32);
        let hidden = mask.neg().offset(1.0).scale(f32::MIN.into());
        softmax_of(&p, &p.scores().add(&hidden.reshape(&[BATCH, 1, 1, TIME])))
    };
    is_biased("extended", model(HEADS, extended), false, [BATCH, 1, 1, TIME]);
    let chosen = |g: &GraphBuilder, p: Parts| {
        let seen = g.input("seen", DType::Bool, [BATCH, 1, 1, TIME]);
        softmax_of(&p, &seen.select(&p.scores(), &number(g, f32::MIN.into())))
    };
    is_biased("chosen", model(HEADS, chosen), false, [BATCH, 1, 1, TIME]);
    // The first query of a sample may see no key.
    let beside = |g: &GraphBuilder, p: Parts| {
        let seen = g.input("seen", DType::Bool, [BATCH, 1, 1, TIME]);
        let scores = future(g).select(&number(g, -1e30), &p.scores());
        softmax_of(&p, &seen.select(&scores, &number(g, -1e30)))
    };
    let [_, after] = both(model(HEADS, beside));
    assert!(!ops(&after)[0].causal, "a query without keys weighs those behind it");
}

/// PyTorch's export puts zeros in the place of weights that are no numbers.
fn guarded(g: &GraphBuilder, p: &Parts, scores: &Tensor) -> Tensor {
    let weights = scores.softmax(3);
    let none = weights.not_equal(&weights);
    let scores = none.select(&number(g, 0.0), scores);
    none.select(&number(g, 0.0), &scores.softmax(3)).matmul(&p.v)
}

#[test]
fn masks_that_may_hide_all_keys_need_zeros_for_such_queries() {
    let low = f64::NEG_INFINITY;
    let seen = |g: &GraphBuilder| g.input("seen", DType::Bool, [BATCH, 1, TIME, TIME]);
    let safe = |g: &GraphBuilder, p: Parts| {
        let masked = seen(g).select(&p.scores(), &number(g, low));
        guarded(g, &p, &masked)
    };
    is_biased("safe", model(HEADS, safe), false, [BATCH, 1, TIME, TIME]);
    let with_past = |g: &GraphBuilder, p: Parts| {
        let bias = seen(g).select(&number(g, 0.0), &number(g, low));
        let masked = future(g).select(&number(g, low), &p.scores().add(&bias));
        guarded(g, &p, &masked)
    };
    is_biased("with the past", model(HEADS, with_past), true, [BATCH, 1, TIME, TIME]);
    let unsafe_form =
        |g: &GraphBuilder, p: Parts| softmax_of(&p, &seen(g).select(&p.scores(), &number(g, low)));
    is_kept("not safe", model(HEADS, unsafe_form), Kept::HiddenRows);
    let given = |g: &GraphBuilder, p: Parts| {
        softmax_of(&p, &p.scores().add(&g.input("bias", DType::F32, [TIME, TIME])))
    };
    is_kept("given", model(HEADS, given), Kept::HiddenRows);
    let first = |g: &GraphBuilder, p: Parts| {
        softmax_of(&p, &p.scores().add(&g.full(DType::F32, [TIME, TIME], low).triu(0)))
    };
    is_kept("the first", model(HEADS, first), Kept::HiddenRows);
}

/// Scores of relative positions, as DeBERTa and XLNet have them: products of queries and a table of positions.
#[test]
fn what_products_make_of_activations_is_a_bias() {
    type Source = fn(&Tensor) -> Tensor;
    let relative = |source: Source| {
        move |g: &GraphBuilder, p: Parts| {
            let init = Init::Normal { mean: 0.0.into(), std: 0.6.into() };
            let positions = g.variable("positions", DType::F32, [WIDTH, TIME], init);
            let scores = source(&p.q).matmul(&positions).scale(SCALE);
            softmax_of(&p, &p.scores().scale(SCALE).add(&scores))
        }
    };
    let ordinary: [(&str, Source); 3] =
        [("bounded", Tensor::tanh), ("weights", |q| q.softmax(3)), ("smooth", |q| q.tanh().gelu())];
    for (name, source) in ordinary {
        let graph = model(HEADS, relative(source));
        is_biased(name, graph, false, [BATCH, HEADS, TIME, TIME]);
    }
    // MaxViT and Swin Transformer V2 compute a bias of a table that is not trained.
    let of_table = |g: &GraphBuilder, p: Parts| {
        let normal = Init::Normal { mean: 0.0.into(), std: 0.6.into() };
        let ty = TensorType::new(DType::F32, vec![TIME * TIME, 2]);
        let table = g.variable_of("table", ty, normal.clone(), false);
        let weights = g.variable("weights", DType::F32, [2, HEADS], normal);
        let bias = table.matmul(&weights).reshape(&[TIME, TIME, HEADS]).transpose(&[2, 0, 1]);
        softmax_of(&p, &p.scores().scale(SCALE).add(&bias))
    };
    is_biased("of a table", model(HEADS, of_table), false, [1, HEADS, TIME, TIME]);
    let unknown: [(&str, Source); 3] = [
        ("overflows", |q| q.tanh().exp()),
        ("has a pole", |q| q.tanh().log()),
        ("is divided by what may be 0", |q| q.tanh().div(&q.sigmoid())),
    ];
    for (name, source) in unknown {
        is_kept(name, model(HEADS, relative(source)), Kept::HiddenRows);
    }
    // Which row of a table is taken is no product with weights: it may be a mask.
    let picked = |g: &GraphBuilder, p: Parts| {
        let ty = TensorType::new(DType::F32, vec![TIME, TIME]);
        let normal = Init::Normal { mean: 0.0.into(), std: 0.6.into() };
        let table = g.variable_of("table", ty, normal, false);
        let row =
            g.iota(DType::F32, [TIME, TIME], 0).sub(&g.iota(DType::F32, [TIME, TIME], 1)).relu();
        softmax_of(&p, &p.scores().add(&row.matmul(&table)))
    };
    is_kept("picked", model(HEADS, picked), Kept::HiddenRows);
    let hidden = |g: &GraphBuilder, p: Parts| {
        let seen = g.input("seen", DType::Bool, [BATCH, 1, TIME, TIME]);
        let bias = seen.select(&number(g, 0.0), &number(g, f64::NEG_INFINITY));
        softmax_of(&p, &p.scores().add(&p.scores().tanh()).add(&bias))
    };
    is_kept("hidden beside a product", model(HEADS, hidden), Kept::HiddenRows);
}

/// Swin Transformer V2 multiplies the scores of each head by a number that it learns, and adds a bias then.
#[test]
fn a_scale_for_each_head_multiplies_queries() {
    let scale = |g: &GraphBuilder| {
        let init = Init::Normal { mean: 1.0.into(), std: 0.6.into() };
        g.variable("scale", DType::F32, [HEADS, 1, 1], init).exp()
    };
    let plain = |g: &GraphBuilder, p: Parts| softmax_of(&p, &p.scores().mul(&scale(g)));
    let [before, after] = both(model(HEADS, plain));
    assert_eq!(ops(&after).len(), 1);
    are_equal("plain", &before, &after);
    let biased = |g: &GraphBuilder, p: Parts| {
        let init = Init::Normal { mean: 0.0.into(), std: 0.6.into() };
        let bias = g.variable("bias", DType::F32, [HEADS, TIME, TIME], init);
        softmax_of(&p, &scale(g).mul(&p.scores()).add(&bias))
    };
    is_biased("biased", model(HEADS, biased), false, [1, HEADS, TIME, TIME]);
    // The bias would be multiplied as well.
    let inside = |g: &GraphBuilder, p: Parts| {
        let slopes = g.iota(DType::F32, [1, TIME], 1);
        softmax_of(&p, &p.scores().add(&slopes).mul(&scale(g)))
    };
    is_kept("inside", model(HEADS, inside), Kept::Other("binary"));
    let by_query = |g: &GraphBuilder, p: Parts| {
        let init = Init::Normal { mean: 1.0.into(), std: 0.6.into() };
        softmax_of(&p, &p.scores().mul(&g.variable("scale", DType::F32, [TIME, 1], init)))
    };
    is_kept("by query", model(HEADS, by_query), Kept::Other("binary"));
}

#[test]
fn soft_caps_are_the_ops_own() {
    let capped = |p: &Parts| p.scores().scale(SCALE / 1.5).tanh().scale(1.5);
    let plain = |_: &GraphBuilder, p: Parts| softmax_of(&p, &capped(&p));
    let masked = |g: &GraphBuilder, p: Parts| {
        softmax_of(&p, &future(g).select(&number(g, -1e9), &capped(&p)))
    };
    for (causal, graph) in [(false, model(HEADS, plain)), (true, model(HEADS, masked))] {
        let [before, after] = both(graph);
        let found = ops(&after);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].causal, found[0].soft_cap), (causal, Some(Scalar(1.5))));
        assert!((found[0].scale.0 - SCALE).abs() < 1e-6);
        are_equal("capped", &before, &after);
    }
}
