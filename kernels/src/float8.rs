//! What products of numbers of 8 bits share: their numbers as those of bf16, which has them all, and the inverses of their scales, which are powers of two.

use graphc_ir::float8::Float8Format;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::error::KernelError;
use crate::precision::Float;
use crate::view::View;

/// Returns the formats of both factors.
pub(crate) fn formats_of(factors: [&View<'_>; 2]) -> Result<[Float8Format; 2], KernelError> {
    let format = |factor: &View<'_>| {
        factor.dtype.float8_format().ok_or_else(|| KernelError::wrong_dtype::<u8>(factor.dtype))
    };
    Ok([format(factors[0])?, format(factors[1])?])
}

/// Writes numbers of 8 bits to as many places.
pub(crate) fn widen_numbers(format: Float8Format, from: &[u8], to: &mut [bf16]) {
    let wide = |&bits: &u8| bf16::from_f32(format.decode(bits));
    to.iter_mut().zip(from).for_each(|(to, bits)| *to = wide(bits));
}

/// Writes 1 / scale for each size.
pub(crate) fn invert_sizes(
    format: Float8Format,
    sizes: &View<'_>,
    to: &mut [f32],
) -> Result<(), KernelError> {
    match sizes.dtype {
        DType::F32 => invert_scales::<f32>(format, sizes.as_slice()?, to),
        DType::BF16 => invert_scales::<bf16>(format, sizes.as_slice()?, to),
        DType::F16 => invert_scales::<f16>(format, sizes.as_slice()?, to),
        dtype => return Err(KernelError::wrong_dtype::<f32>(dtype)),
    }
    Ok(())
}

fn invert_scales<T: Float>(format: Float8Format, sizes: &[T], to: &mut [f32]) {
    to.iter_mut().zip(sizes).for_each(|(to, size)| *to = 1.0 / format.scale_for(size.value()));
}
