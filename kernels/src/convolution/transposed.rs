//! Convolution of pictures `[n, h, w, c]` by way of `[n, c, h, w]`: pictures are brought to it, and those of the result back.

use graphc_ir::op::Op;
use graphc_ir::ops::Transpose;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::{Kernel, KernelContext};
use crate::error::KernelError;
use crate::movement::movement;
use crate::view::{Element, View, ViewMut};

/// Which dim of `[n, h, w, c]` each of `[n, c, h, w]` is, and the other way.
const TO_FIRST: [usize; 4] = [0, 3, 1, 2];
const TO_LAST: [usize; 4] = [0, 2, 3, 1];
/// Of a kernel.
const AS_IT_IS: [usize; 4] = [0, 1, 2, 3];

/// The same op of pictures `[n, c, h, w]`, where it is one of pictures `[n, h, w, c]`.
pub(super) fn channels_first(op: &Op) -> Option<Op> {
    let mut op = op.clone();
    let last = match &mut op {
        Op::Convolution(op) => &mut op.channels_last,
        Op::ConvolutionInputGrad(op) => &mut op.channels_last,
        Op::ConvolutionKernelGrad(op) => &mut op.channels_last,
        _ => return None,
    };
    std::mem::take(last).then_some(op)
}

/// Which dims of both operands are brought to the front, and which of the result go back.
fn orders(op: &Op) -> ([[usize; 4]; 2], [usize; 4]) {
    match op {
        Op::ConvolutionInputGrad(_) => ([AS_IT_IS, TO_FIRST], TO_LAST),
        Op::ConvolutionKernelGrad(_) => ([TO_FIRST, TO_FIRST], AS_IT_IS),
        _ => ([TO_FIRST, AS_IT_IS], TO_LAST),
    }
}

/// A shard in memory of its own.
struct Shard<T> {
    dtype: DType,
    dims: [[usize; 4]; 3],
    data: Vec<T>,
}

impl<T: Element> Shard<T> {
    /// Room for a shard with its dims in this order.
    fn new(
        op: &Op,
        dtype: DType,
        of: [&[usize]; 3],
        order: [usize; 4],
    ) -> Result<Self, KernelError> {
        if of.iter().any(|extents| extents.len() != 4) {
            return Err(KernelError::call(op.name(), "operands of other rank than 4"));
        }
        let dims = of.map(|extents| order.map(|dim| extents[dim]));
        Ok(Self { dtype, dims, data: vec![T::default(); dims[0].iter().product()] })
    }

    /// A copy with its dims in this order.
    fn permuted(
        op: &Op,
        of: &View<'_>,
        order: [usize; 4],
        cx: &mut KernelContext<'_>,
    ) -> Result<Self, KernelError> {
        let mut shard = Self::new(op, of.dtype, [of.shape, of.global, of.origin], order)?;
        permute(of, &mut shard.view_mut(), order, cx)?;
        Ok(shard)
    }

    fn view(&self) -> View<'_> {
        let [shape, global, origin] = &self.dims;
        View::from_slice(self.dtype, shape, global, origin, &self.data)
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        let [shape, global, origin] = &self.dims;
        ViewMut::from_slice(self.dtype, shape, global, origin, &mut self.data)
    }
}

/// Calls a kernel for pictures `[n, c, h, w]` with pictures `[n, h, w, c]`.
pub(super) fn call(
    kernel: (Kernel, &Op),
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    match operands.first().map(|first| first.dtype) {
        Some(DType::BF16) => call_of::<bf16>(kernel, operands, results, cx),
        Some(DType::F16) => call_of::<f16>(kernel, operands, results, cx),
        _ => call_of::<f32>(kernel, operands, results, cx),
    }
}

fn call_of<T: Element>(
    (kernel, op): (Kernel, &Op),
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([a, b], [y]) = (operands, results) else {
        return Err(KernelError::call(op.name(), "takes two operands and gives one result"));
    };
    let (forth, back) = orders(op);
    let mut inverse = [0; 4];
    back.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
    let mut result = Shard::<T>::new(op, y.dtype, [y.shape, y.global, y.origin], inverse)?;
    let first = Shard::<T>::permuted(op, a, forth[0], cx)?;
    let second = Shard::<T>::permuted(op, b, forth[1], cx)?;
    kernel(op, &[first.view(), second.view()], &mut [result.view_mut()], cx)?;
    permute(&result.view(), y, back, cx)
}

fn permute(
    from: &View<'_>,
    to: &mut ViewMut<'_>,
    order: [usize; 4],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let op = Op::Transpose(Transpose { permutation: order.to_vec() });
    movement(&op, &[*from], std::slice::from_mut(to), cx)
}
