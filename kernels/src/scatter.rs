//! Values put at computed places. A rank that holds part of the places takes the values for these.

use graphc_ir::op::Op;
use graphc_ir::ops::ScatterFunction;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::elementwise::Integer;
use crate::error::KernelError;
use crate::gather::GatherPlaces;
use crate::parallel::{RowOutput, over_rows};
use crate::precision::Float;
use crate::view::{Element, View, ViewMut};

/// The kernel of [`Op::Scatter`]; of any element type. Threads share the batches.
pub(crate) fn scatter(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Scatter(op), [x, places, values], [out]) = (op, operands, results) else {
        return Err(KernelError::bad_call("scatter", "takes three operands and gives one result"));
    };
    let dim = places.shape.len().wrapping_sub(1);
    let range = x.global.get(dim).copied().unwrap_or(0);
    let places = GatherPlaces::new("scatter", places, [x.shape, x.origin], range)?;
    if x.shape != out.shape || values.len() != places.len() * places.width {
        return Err(KernelError::bad_call("scatter", format!("values of {:?}", values.shape)));
    }
    let function = op.function;
    let call = ScatterCall { function, x, places, values, out, cx };
    match call.x.dtype {
        DType::F32 => call.scatter_floats::<f32>(),
        DType::F16 => call.scatter_floats::<f16>(),
        DType::BF16 => call.scatter_floats::<bf16>(),
        DType::I64 => call.scatter_integers::<i64>(),
        DType::I32 => call.scatter_integers::<i32>(),
        DType::U8 | DType::Bool => call.scatter_integers::<u8>(),
        dtype @ (DType::F8E4M3 | DType::F8E5M2) => Err(KernelError::wrong_dtype::<f32>(dtype)),
    }
}

struct ScatterCall<'a, 'b, 'c> {
    function: ScatterFunction,
    x: &'a View<'a>,
    places: GatherPlaces<'a>,
    values: &'a View<'a>,
    out: &'a mut ViewMut<'b>,
    cx: &'a mut KernelContext<'c>,
}

impl ScatterCall<'_, '_, '_> {
    fn scatter_floats<T: Float>(self) -> Result<(), KernelError> {
        let join = |join: fn(f32, f32) -> f32| {
            move |there: T, value: T| T::round_from(join(there.value(), value.value()))
        };
        match self.function {
            ScatterFunction::Set => self.scatter_values::<T>(|_, value| value),
            ScatterFunction::Mul => self.scatter_values(join(|there, value| there * value)),
            ScatterFunction::Max => self.scatter_values(join(|there, value| {
                if there > value || there.is_nan() { there } else { value }
            })),
            ScatterFunction::Min => self.scatter_values(join(|there, value| {
                if there < value || there.is_nan() { there } else { value }
            })),
        }
    }

    fn scatter_integers<T: Integer>(self) -> Result<(), KernelError> {
        match self.function {
            ScatterFunction::Set => self.scatter_values::<T>(|_, value| value),
            ScatterFunction::Mul => self.scatter_values(|there: T, value: T| {
                let (there, value): (i64, i64) = (there.into(), value.into());
                T::wrap(there.wrapping_mul(value))
            }),
            ScatterFunction::Max => self.scatter_values(T::max),
            ScatterFunction::Min => self.scatter_values(T::min),
        }
    }

    fn scatter_values<T: Element>(
        self,
        join: impl Fn(T, T) -> T + Send + Sync,
    ) -> Result<(), KernelError> {
        let Self { x, places, values, out, cx, .. } = self;
        let (width, slab) = (places.width, places.extent * places.width);
        let (x, values, out) = (x.as_slice::<T>()?, values.as_slice::<T>()?, out.as_mut_slice()?);
        out.copy_from_slice(x);
        if slab == 0 || places.count == 0 {
            return places.check();
        }
        let batches = out.len() / slab;
        over_rows(cx, [batches, slab], 0, RowOutput::new(out, slab), &|range, mut out, _| {
            for (index, batch) in range.enumerate() {
                let out = out.row(index);
                for position in batch * places.count..(batch + 1) * places.count {
                    let Some(place) = places.place_at(position)? else { continue };
                    let out = &mut out[place * width..][..width];
                    let values = &values[position * width..][..width];
                    out.iter_mut().zip(values).for_each(|(out, &value)| *out = join(*out, value));
                }
            }
            Ok(())
        })
    }
}
