//! Prices padding: the time that it saves against the time that it takes, by the formulas of `cost`.

use graphc_ir::op::{Arithmetic, Op};
use graphc_ir::ops::MatMul;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{Cluster, CompileOptions};

use super::LogitProduct;
use crate::cost::{NodeWork, compute_work, roofline_seconds};

/// Whether a padded product takes less time, with all that padding takes besides. How the planner lays tensors out is
/// not known yet: rows are taken to be shared evenly by the ranks of a stage, and weights to be padded whole by each.
pub(super) fn padding_pays(
    product: &LogitProduct,
    options: &CompileOptions,
    cluster: &Cluster,
) -> bool {
    let LogitProduct { sizes: [rows, columns, inner], padded, dtype, bare, .. } = *product;
    let parts = options.mesh.iter().product::<usize>() / options.stages.max(1);
    let times = options.microbatches.max(1);
    let rows = rows.div_ceil(parts.max(1) * times);
    let backward = options.differentiates_loss();
    let products = |columns| price_products((cluster, dtype), [rows, columns, inner], backward);
    let moved = |bytes: usize| {
        let work = NodeWork { bytes: 2.0 * bytes as f64, ..NodeWork::default() };
        roofline_seconds(cluster, dtype, Arithmetic::Elementwise, work)
    };
    let weight = columns * inner * dtype.size();
    let bare = if bare > 0 { moved(bare / parts.max(1) / times) } else { 0.0 };
    // Once a step: its gradient is cut when microbatches have been summed, in f32.
    let wide = if times > 1 { 2 } else { 1 };
    let once = moved(weight) + if backward { moved(wide * weight) } else { 0.0 };
    let times = times as f64;
    once + times * (products(padded) + bare) < times * products(columns)
}

/// Seconds of a product and, with `backward`, of the gradients of both its factors.
fn price_products(
    (cluster, dtype): (&Cluster, DType),
    [rows, columns, inner]: [usize; 3],
    backward: bool,
) -> f64 {
    let op = |transpose_a, transpose_b| Op::MatMul(MatMul { transpose_a, transpose_b });
    let [x, weight, logits] = [[rows, inner], [inner, columns], [rows, columns]]
        .map(|shape| TensorType::new(dtype, shape));
    let of = |op: Op, a, b, result| compute_work(cluster, &op, &[a, b], &[result], &[]).1;
    let forward = of(op(false, false), &x, &weight, &logits);
    let gradients =
        of(op(false, true), &logits, &weight, &x) + of(op(true, false), &x, &logits, &weight);
    if backward { forward + gradients } else { forward }
}
