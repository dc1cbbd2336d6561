//! Prices one kernel by a roofline: its launch, and the longer of computing and of moving bytes.
//!
//! The peak depends on the element type in which an op computes (`Op::compute_dtype`), which for a product is that of its
//! operands. The share of the peak that is reached depends on the kind of arithmetic (`Operation::arithmetic`):
//!
//! - Matrix products reach a share that grows with their FLOPs. Their extents do not count, because the measured rows
//!   at hand cannot tell them apart. Products of many FLOPs are mostly large in every extent. Those thin in one come
//!   with tensor parallelism, whose collectives are in the same measured steps. At equal FLOPs errors show no trend
//!   with the least extent. A thin product takes at least the time of its bytes. Not priced is that it fills tiles
//!   and processors only in part; `graphc calibrate` prints products by shape.
//! - Products with *odd rows* reach `matmul_unaligned` of that share ([`has_odd_rows`]). Odd rows are those of half
//!   precision that are no multiple of 16 bytes as they lie on a rank. Presets leave the share at 1, because public
//!   figures differ with the library's kernels: one product on an H100 loses nothing (number 145 of
//!   meta-pytorch/float8_experimental), another takes 14 instead of 10 ms (number 5134 of PaddlePaddle/models, which
//!   names no card). A cluster file can say it of the card at hand.
//! - Attention is no matrix product of its FLOPs. Between its two products exponentials are computed, and narrow
//!   heads leave the units for products idle. So the device has a share for each direction, which falls with narrow
//!   heads and with few keys (`AttentionShares`). The formula follows the published figures of FlashAttention-2 over
//!   lengths and widths.
//! - Convolutions by windows of several elements reach a share of what a product of their FLOPs reaches (or the largest product, if
//!   that is less), which falls with the number of channels that each gathered element is multiplied for
//!   (`ConvolutionShares`). Gathering writes and reads each element once for each window, so its time over that of the
//!   product is inverse to this number. Convolutions by windows of one element are products.
//! - Elementwise kernels compute at the peak, so their bytes decide. Bytes of all kernels move at `bandwidth_share`
//!   of the bandwidth.

use graphc_ir::op::{Arithmetic, Op};
use graphc_ir::rule::{Choice, DimRule, Rule};
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{Cluster, Device};

/// The work of one application of an op on the busiest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeWork {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes of all operands and results.
    pub bytes: f64,
    /// Whether it is a product with odd rows ([`has_odd_rows`]).
    pub unaligned: bool,
}

/// The number of bytes of which rows must be multiples for products of half precision to reach their full rate: the width of a load of tensor cores
/// (NVIDIA, "Matrix Multiplication Background User's Guide", section 2.2).
pub(crate) const ROW_BYTES: usize = 16;

/// Whether a row of this many elements is of half precision and its bytes are no multiple of [`ROW_BYTES`].
pub(crate) fn is_odd_row((dtype, extent): (DType, usize)) -> bool {
    let is_half = dtype.is_float() && dtype.size() == 2;
    is_half && !(extent * dtype.size()).is_multiple_of(ROW_BYTES)
}

/// Whether an op is a product of matrices, some of which have odd rows ([`is_odd_row`]): one of its two factors or the result. Both iterators have the
/// element type and the last extent of each operand or result, as they are on a rank.
pub(crate) fn has_odd_rows(
    op: &Op,
    operands: impl Iterator<Item = (DType, usize)>,
    results: impl Iterator<Item = (DType, usize)>,
) -> bool {
    matches!(op, Op::MatMul(_)) && operands.take(2).chain(results).any(is_odd_row)
}

impl NodeWork {
    /// Returns the work that is left without `part`, which has the product if there is one.
    pub(crate) fn subtract_part(self, part: Self) -> Self {
        let (flops, bytes) = (self.flops - part.flops, self.bytes - part.bytes);
        Self { flops: flops.max(0.0), bytes: bytes.max(0.0), unaligned: false }
    }
}

/// Returns the work of one action of a node on the busiest rank, and its seconds: the longer of computing and moving bytes, and the launch. `axes`
/// holds one (choice, extent) for time, if the node acts once per microbatch, and for each mesh axis. Ops that are not executed (variables,
/// `to_global`) take no seconds.
pub fn compute_work(
    cluster: &Cluster,
    op: &Op,
    operands: &[&TensorType],
    results: &[&TensorType],
    axes: &[(Choice, usize)],
) -> (NodeWork, f64) {
    let Ok(rule) = op.operation().rule(operands) else { return (NodeWork::default(), 0.0) };
    let work = node_work(op, &rule, operands, results, axes);
    if !op.operation().is_executed() {
        return (work, 0.0);
    }
    let precision = op.compute_dtype(operands, results);
    (work, roofline_seconds(cluster, precision, op.operation().arithmetic(operands), work))
}

/// Returns the work of one action on the rank that holds the largest part.
pub(crate) fn node_work(
    op: &Op,
    rule: &Rule,
    operands: &[&TensorType],
    results: &[&TensorType],
    axes: &[(Choice, usize)],
) -> NodeWork {
    // The operand's bytes under another shape: they stay where they are.
    if matches!(op, Op::Reshape(_)) {
        return NodeWork::default();
    }
    let local = local_rule(rule, axes);
    let bytes = |dims: &[Vec<DimRule>], types: &[&TensorType]| -> f64 {
        let elements = |dims: &Vec<DimRule>| -> f64 {
            dims.iter().map(|dim| local.extent(dim) as f64).product()
        };
        dims.iter().zip(types).map(|(dims, ty)| elements(dims) * ty.dtype.size() as f64).sum()
    };
    let row =
        |(dims, ty): (&Vec<DimRule>, &&TensorType)| Some((ty.dtype, local.extent(dims.last()?)));
    let [of_operands, of_results] = [(&local.operands, operands), (&local.results, results)]
        .map(|(dims, types)| dims.iter().zip(types).filter_map(row));
    NodeWork {
        flops: op.operation().most_flops(rule, &local),
        bytes: bytes(&local.operands, operands) + bytes(&local.results, results),
        unaligned: has_odd_rows(op, of_operands, of_results),
    }
}

/// Returns the rule with the sizes of factors on the rank that holds the largest part.
fn local_rule(rule: &Rule, axes: &[(Choice, usize)]) -> Rule {
    let mut local = rule.clone();
    for &(choice, parts) in axes {
        if let Choice::Factor(factor) = choice {
            let size = &mut local.factors[factor].size;
            *size = size.div_ceil(parts);
        }
    }
    local
}

/// Returns the seconds of a kernel that computes in an element type: the longer of computing and moving bytes, and the launch.
pub(crate) fn roofline_seconds(
    cluster: &Cluster,
    precision: DType,
    arithmetic: Arithmetic,
    work: NodeWork,
) -> f64 {
    let aligned = reached_share(cluster, precision, arithmetic, work.flops);
    let share = if work.unaligned { aligned * cluster.device.matmul_unaligned } else { aligned };
    let compute = work.flops / (peak_flops(cluster, precision) * share);
    let moving =
        traffic_factor(cluster, arithmetic) * work.bytes / cluster.device.reached_bandwidth();
    cluster.device.launch + compute.max(moving)
}

/// Returns the number of times that a kernel moves its bytes.
fn traffic_factor(cluster: &Cluster, arithmetic: Arithmetic) -> f64 {
    match arithmetic {
        Arithmetic::Elementwise => cluster.framework.elementwise_traffic,
        Arithmetic::Products | Arithmetic::Attention(_) | Arithmetic::Convolution(_) => 1.0,
    }
}

/// The least seconds of some work: those of its FLOPs at the peak of the element type that they are computed in, and those of its bytes at the whole
/// bandwidth of the memory. [`roofline_seconds`] is never less than either, because no share of a peak is more than all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LeastSeconds {
    /// The least seconds of computing.
    pub computing: f64,
    /// The least seconds of moving bytes.
    pub moving: f64,
}

/// Returns the least seconds of a kernel of [`roofline_seconds`].
pub(crate) fn least_seconds(
    cluster: &Cluster,
    precision: DType,
    arithmetic: Arithmetic,
    work: NodeWork,
) -> LeastSeconds {
    LeastSeconds {
        computing: work.flops / peak_flops(cluster, precision),
        moving: traffic_factor(cluster, arithmetic) * work.bytes / cluster.device.bandwidth,
    }
}

/// Returns the seconds of a chain of elementwise ops whose work in all is `all`. If there is another op at its head, `head` has the work and the
/// seconds of that; the ops behind it move only what else is read and written.
pub(crate) fn chain_seconds(
    cluster: &Cluster,
    head: Option<(NodeWork, f64)>,
    all: NodeWork,
) -> f64 {
    let elementwise = |work| roofline_seconds(cluster, DType::F32, Arithmetic::Elementwise, work);
    let Some((work, seconds)) = head else { return elementwise(all) };
    seconds + elementwise(all.subtract_part(work)) - cluster.device.launch
}

/// Returns the share of the peak that a kernel of this many FLOPs reaches.
fn reached_share(cluster: &Cluster, precision: DType, arithmetic: Arithmetic, flops: f64) -> f64 {
    match (arithmetic, &cluster.device.attention) {
        (Arithmetic::Elementwise, _) => 1.0,
        (Arithmetic::Attention(shape), Some(shares)) => {
            shares.reached_share(&shape) * cluster.framework.attention
        }
        (Arithmetic::Products | Arithmetic::Attention(_), _) => {
            matmul_efficiency(cluster, precision, flops)
        }
        (Arithmetic::Convolution(shape), _) => {
            let shares = &cluster.device.convolution;
            let share = shares.map_or(1.0, |shares| shares.reached_share(&shape));
            gathered_efficiency(cluster, precision, flops) * share
        }
    }
}

/// Returns the peak FLOPs per second of an element type. A cluster names one type of 8 bits, f8e4m3, for both. If it does
/// not name f16 or f8e4m3, the peak of bf16 is taken for them. For other types that it does not name, it is that of f32,
/// or else the least one named.
pub(crate) fn peak_flops(cluster: &Cluster, dtype: DType) -> f64 {
    let flops = &cluster.device.flops;
    let of = |dtype: DType| flops.get(dtype.name());
    let eight = dtype.is_float8().then(|| of(DType::F8E4M3)).flatten();
    let half = match dtype {
        DType::F16 | DType::F8E4M3 | DType::F8E5M2 => eight.or(of(DType::BF16)),
        _ => None,
    };
    let named = of(dtype).or(half).or_else(|| of(DType::F32));
    named.copied().unwrap_or_else(|| flops.values().copied().fold(f64::INFINITY, f64::min))
}

/// Returns the share of its peak that the product of a convolution of `flops` reaches without the gathering: that of a matmul of as many FLOPs, and no
/// more than the largest reaches.
pub fn gathered_efficiency(cluster: &Cluster, precision: DType, flops: f64) -> f64 {
    let of = |flops| matmul_efficiency(cluster, precision, flops);
    of(flops).min(of(f64::INFINITY))
}

/// Returns the share of its peak that a matmul of `flops` reaches in an element type: interpolated in the logarithm of FLOPs, and constant beyond the
/// ends; 1 if the cluster does not tell.
pub fn matmul_efficiency(cluster: &Cluster, precision: DType, flops: f64) -> f64 {
    let Device { matmul_efficiency, matmul_efficiency_of, .. } = &cluster.device;
    let points = matmul_efficiency_of.get(precision.name()).unwrap_or(matmul_efficiency);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return 1.0 };
    if flops <= first.0 {
        return first.1;
    }
    let between = points.windows(2).find(|pair| flops <= pair[1].0);
    between.map_or(last.1, |pair| {
        let (low, high) = (pair[0], pair[1]);
        let position = (flops.ln() - low.0.ln()) / (high.0.ln() - low.0.ln());
        low.1 + position * (high.1 - low.1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::preset;
    use graphc_ir::ops::{Attention, AttentionGrad, MatMul};
    use graphc_ir::scalar::Scalar;

    #[test]
    fn a_split_matmul_computes_its_part() {
        let op = Op::MatMul(MatMul { transpose_a: false, transpose_b: false });
        let [a, b, c] = [[4, 6], [6, 8], [4, 8]].map(|shape| TensorType::new(DType::F32, shape));
        let rule = op.operation().rule(&[&a, &b]).expect("fits");
        let work = |axes: &[_]| node_work(&op, &rule, &[&a, &b], &[&c], axes);
        let of = |flops, bytes| NodeWork { flops, bytes, unaligned: false };
        assert_eq!(work(&[]), of(384.0, 4.0 * (24.0 + 48.0 + 32.0)));
        let rows = work(&[(Choice::Factor(0), 3)]);
        assert_eq!(rows, of(192.0, 4.0 * (12.0 + 48.0 + 16.0)), "2 of 4");
    }

    /// A product with odd rows takes longer. Its columns are classes: rows of 1016 on one rank and of 1024 on two are aligned; of 1016 on four ranks
    /// they are not, and of 1013 never. In f32 no row is odd.
    #[test]
    fn a_product_with_odd_rows_reaches_its_share() {
        let mut cluster = preset("dgx-h100").expect("a preset");
        (cluster.device.launch, cluster.device.bandwidth) = (0.0, 1e30);
        cluster.device.matmul_efficiency.clear();
        cluster.device.matmul_unaligned = 0.5;
        let op = Op::MatMul(MatMul { transpose_a: false, transpose_b: true });
        let seconds = |dtype, classes, ranks: usize| {
            let [x, w, y] =
                [[64, 32], [classes, 32], [64, classes]].map(|shape| TensorType::new(dtype, shape));
            let axes = [(Choice::Factor(1), ranks)];
            let (work, seconds) = compute_work(&cluster, &op, &[&x, &w], &[&y], &axes);
            seconds * peak_flops(&cluster, dtype) / work.flops
        };
        let ratios = [(1016, 1), (1024, 2), (1016, 4), (1013, 1), (1013, 2)]
            .map(|(classes, ranks)| seconds(DType::BF16, classes, ranks).round());
        assert_eq!(ratios, [1.0, 1.0, 2.0, 2.0, 2.0]);
        assert_eq!(seconds(DType::F32, 1013, 1).round(), 1.0);
        assert_eq!(seconds(DType::F16, 1013, 1).round(), 2.0);
    }

    #[test]
    fn a_product_of_half_precision_has_its_peak() {
        let mut cluster = preset("cpu").expect("a preset");
        cluster.device.flops = [("f32".into(), 1e9), ("bf16".into(), 8e9)].into();
        let peaks = [DType::F32, DType::BF16, DType::F16].map(|dtype| peak_flops(&cluster, dtype));
        assert_eq!(peaks, [1e9, 8e9, 8e9], "f16 is as fast as bf16 where nothing is said of it");
        cluster.device.flops.insert("f16".into(), 4e9);
        assert_eq!(peak_flops(&cluster, DType::F16), 4e9);
        cluster.device.flops = [("f32".into(), 1e9)].into();
        assert_eq!(peak_flops(&cluster, DType::BF16), 1e9);
        // Long enough that bytes and the launch do not matter.
        cluster.device = preset("dgx-h100").expect("a preset").device;
        let op = Op::MatMul(MatMul { transpose_a: false, transpose_b: false });
        let seconds = |dtype| {
            let square = TensorType::new(dtype, [16384, 16384]);
            compute_work(&cluster, &op, &[&square, &square], &[&square], &[]).1
        };
        assert!(seconds(DType::F32) > 5.0 * seconds(DType::BF16));
    }

    /// Returns the seconds of forward and backward attention of 65536 tokens in sequences of a length, on heads of a width.
    fn attention(cluster: &Cluster, length: usize, width: usize) -> [f64; 2] {
        let (causal, scale) = (true, Scalar(1.0));
        let q = TensorType::new(DType::BF16, [65536 / length, length, 2048 / width, width]);
        let l = TensorType::new(DType::F32, [65536 / length, length, 2048 / width]);
        let forward = Op::Attention(Attention::new(causal, scale));
        let backward = Op::AttentionGrad(AttentionGrad::new(causal, scale));
        let of = |op: &Op, operands: &[&TensorType], results: &[&TensorType]| {
            compute_work(cluster, op, operands, results, &[]).1
        };
        [
            of(&forward, &[&q, &q, &q], &[&q, &l]),
            of(&backward, &[&q, &q, &q, &q, &l, &q], &[&q, &q, &q]),
        ]
    }

    #[test]
    fn attention_takes_more_than_products_of_its_flops() {
        let cluster = preset("dgx-h100").expect("a preset");
        let mut plain = cluster.clone();
        plain.device.attention = None;
        let ([forward, backward], products) =
            (attention(&cluster, 16384, 128), attention(&plain, 16384, 128));
        assert!(forward > 1.5 * products[0] && backward > 1.5 * products[1]);
        // 5 products instead of 2, each at a smaller share.
        assert!(backward > 2.5 * forward);
        assert!(attention(&cluster, 16384, 64)[0] > 1.1 * forward, "narrow heads are slower");
        // An eighth of the keys is an eighth of the FLOPs, at a smaller share.
        let [short, _] = attention(&cluster, 2048, 128);
        assert!(short < forward / 4.0 && short > forward / 8.0, "{short} of {forward}");
        let mut slow = cluster.clone();
        slow.framework.attention = 0.5;
        let ratio = attention(&slow, 16384, 128)[0] / forward;
        assert!((1.9..=2.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn what_moves_memory_takes_the_traffic_of_its_framework() {
        let mut cluster = preset("dgx-a100").expect("a preset");
        cluster.device.launch = 0.0;
        let work = NodeWork { flops: 1.0, bytes: 1e9, unaligned: false };
        let seconds =
            |cluster: &Cluster, arithmetic| roofline_seconds(cluster, DType::F32, arithmetic, work);
        let once = 1e9 / (2.039e12 * cluster.device.bandwidth_share);
        assert_eq!(seconds(&cluster, Arithmetic::Elementwise), once);
        cluster.framework.elementwise_traffic = 2.0;
        assert_eq!(seconds(&cluster, Arithmetic::Elementwise), 2.0 * once);
        assert_eq!(
            seconds(&cluster, Arithmetic::Products),
            once,
            "a product reads its operands once"
        );
    }

    #[test]
    fn efficiency_is_interpolated_in_the_logarithm() {
        let mut cluster = preset("cpu").expect("a preset");
        cluster.device.matmul_efficiency = vec![(1e2, 0.2), (1e4, 0.6)];
        let share = |flops| matmul_efficiency(&cluster, DType::F32, flops);
        assert_eq!((share(1.0), share(1e9)), (0.2, 0.6));
        assert!((share(1e3) - 0.4).abs() < 1e-12);
        cluster.device.matmul_efficiency_of = [("bf16".into(), vec![(1e2, 0.1)])].into();
        let share = |dtype| matmul_efficiency(&cluster, dtype, 1e2);
        assert_eq!([DType::F32, DType::F16, DType::BF16].map(share), [0.2, 0.2, 0.1]);
    }
}
