//! Sums of 16-bit numbers: kept as `f32` until all summands have come, in the order of the ranks, and rounded once at the end.

use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::DType;
use graphc_kernels::widen_halves;

/// Elements that are widened at one time.
const BLOCK: usize = 512;

/// Whether combinations of such elements are kept as `f32`: what is chosen among them needs no rounding.
pub(crate) fn sums_wide(dtype: DType, kind: Option<ReduceKind>) -> bool {
    is_half(dtype) && kind == Some(ReduceKind::Sum)
}

/// Whether elements are floating-point numbers of 16 bits.
pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Replaces each number of `into` by `join` of it and of the 16-bit number in `from`, which has any alignment.
pub(crate) fn join_wide(
    dtype: DType,
    from: &[u8],
    into: &mut [f32],
    join: impl Fn(f32, f32) -> f32,
) {
    let mut block = [0.0; BLOCK];
    for (from, into) in from.chunks(2 * BLOCK).zip(into.chunks_mut(BLOCK)) {
        let block = &mut block[..into.len()];
        widen_halves(dtype, from, block);
        into.iter_mut().zip(block).for_each(|(into, from)| *into = join(*into, *from));
    }
}
