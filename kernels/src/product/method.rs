//! The choice of how blocks of half precision are multiplied.
//!
//! Only `bf16` has instructions of its own; `f16` is widened. A processor with AMX never multiplies pairs by AVX-512 BF16. It
//! begins such an instruction in every other cycle only, but two of `f32` in each. Both kinds of instructions take subnormal
//! numbers for 0.

use super::Data;
use super::task::Method;

impl Method {
    /// The fastest for factors and a product of these types. What is `f16`, or is not `bf16` at all, is widened.
    pub(super) fn fastest_for(types: [Data<'_>; 3]) -> Self {
        let exact = types.iter().any(|data| matches!(data, Data::Half(_)))
            || types[..2].iter().all(|data| matches!(data, Data::Single(_)));
        if exact { Self::Widened } else { best_method() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best_method() -> Method {
    Method::Widened
}

/// Returns the fastest method for `bf16` on this processor.
#[cfg(target_arch = "x86_64")]
fn best_method() -> Method {
    use super::{matrices, pairs};
    match (matrices::is_available(), pairs::are_multiplied() && !matrices::has_amx()) {
        (true, _) => Method::Matrices,
        (_, true) => Method::Pairs,
        _ => Method::Widened,
    }
}
