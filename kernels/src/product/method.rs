//! How blocks of half precision are multiplied.

use super::Data;

/// What the blocks of a product are brought to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// `f32`, in blocks that stay in the cache.
    Widened,
    /// Pairs of `bf16`, which AVX-512 BF16 multiplies and adds.
    #[cfg(target_arch = "x86_64")]
    Pairs,
}

impl Method {
    /// The fastest for factors and a product of these types. What is `f16`, or is not `bf16` at all, is widened.
    pub fn of(types: [Data<'_>; 3]) -> Self {
        let exact = types.iter().any(|data| matches!(data, Data::Half(_)))
            || types[..2].iter().all(|data| matches!(data, Data::Single(_)));
        if exact { Self::Widened } else { best() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best() -> Method {
    Method::Widened
}

/// Which is the fastest for `bf16` on this processor.
#[cfg(target_arch = "x86_64")]
fn best() -> Method {
    use std::sync::LazyLock;
    static BEST: LazyLock<Method> = LazyLock::new(|| match multiplies_pairs() && !has_matrices() {
        true => Method::Pairs,
        false => Method::Widened,
    });
    *BEST
}

/// Whether the processor has what [`Method::Pairs`] uses.
#[cfg(target_arch = "x86_64")]
pub(super) fn multiplies_pairs() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bf16")
}

/// Whether the processor has AMX for `bf16`. Such processors (Sapphire Rapids and its successors) begin a product of pairs
/// of 512 bits in every other cycle only, but two of `f32` in each: pairs are then half as fast as what is widened.
#[cfg(target_arch = "x86_64")]
fn has_matrices() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    #[allow(unused_unsafe, reason = "safe from Rust 1.91 on")]
    // SAFETY: every processor with AVX-512 has CPUID; leaf 7 is only asked where it exists.
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & 1 << 22 != 0
    }
}
