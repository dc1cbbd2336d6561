//! Copies of rectangles within a card's memory.

use graphc_ir::float8::{E4M3, E5M2, Float8Format};
use graphc_ir::sbp::ReduceKind;
use graphc_ir::shard::Rect;
use graphc_ir::types::DType;
use graphc_kernels::cuda::{Launch, copy_rectangle, prepare_fill};

use super::Cuda;
use super::driver::Loaded;
use crate::rectangles::Move;

/// A copy of one rectangle from one tensor's memory to another's, or its combination with what is there.
pub(crate) enum CardMove {
    /// Bytes that stand side by side on both sides.
    Run { from: usize, to: usize, bytes: usize },
    /// A copy by a kernel.
    Kernel(Loaded),
}

/// A fill of a register with the identity of a reduction.
pub(crate) enum CardFill {
    /// Bytes of 0.
    Clear { bytes: usize },
    /// A fill by a kernel.
    Kernel(Loaded),
}

impl CardFill {
    /// # Errors
    /// Where there is no kernel.
    pub(crate) fn new(
        device: &Cuda,
        dtype: DType,
        elements: usize,
        kind: ReduceKind,
    ) -> Result<Self, String> {
        let call = prepare_fill(dtype, elements, reduction_identity(dtype, kind));
        match call.launches.as_slice() {
            [Launch::Kernel(kernel)] => Ok(Self::Kernel(device.request_kernel(kernel))),
            _ => Ok(Self::Clear { bytes: elements * dtype.size() }),
        }
    }
}

impl CardMove {
    /// Makes the copy of `part`, which lies in both `from` and `to`, all three in the whole tensor's coordinates and not
    /// empty.
    ///
    /// # Errors
    /// Where there is no kernel.
    pub(crate) fn new(
        device: &Cuda,
        dtype: DType,
        (part, from, to): (&Rect, &Rect, &Rect),
        combine: Option<ReduceKind>,
    ) -> Result<Self, String> {
        if let (None, Some((from, to, bytes))) =
            (combine, Self::contiguous_run(dtype, part, from, to))
        {
            return Ok(Self::Run { from, to, bytes });
        }
        let start = |around: &Rect| -> Vec<usize> {
            part.origin.iter().zip(&around.origin).map(|(part, around)| part - around).collect()
        };
        let (from_start, to_start) = (start(from), start(to));
        let (of, into) = (&from.extent, &to.extent);
        let call = copy_rectangle(dtype, of, &from_start, into, &to_start, &part.extent, combine);
        match call.launches.as_slice() {
            [Launch::Kernel(kernel)] => Ok(Self::Kernel(device.request_kernel(kernel))),
            _ => Err("a rectangle that no kernel copies".into()),
        }
    }

    /// Returns where the bytes begin on both sides, and their number, if they are contiguous on both.
    pub(crate) fn contiguous_run(
        dtype: DType,
        part: &Rect,
        from: &Rect,
        to: &Rect,
    ) -> Option<(usize, usize, usize)> {
        Move::new(dtype, part, from, to).as_run()
    }
}

/// Returns the identity of a reduction, as near to it as elements of the type come.
pub(super) fn reduction_identity(dtype: DType, kind: ReduceKind) -> f64 {
    let identity = kind.identity();
    let nearest = |format: Float8Format| {
        identity.clamp(-f64::from(format.greatest()), f64::from(format.greatest()))
    };
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::I64 => identity,
        DType::I32 => identity.clamp(f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::U8 => identity.clamp(0.0, 255.0),
        DType::Bool => f64::from(u8::from(kind == ReduceKind::Min)),
        DType::F8E4M3 => nearest(E4M3),
        DType::F8E5M2 => nearest(E5M2),
    }
}
