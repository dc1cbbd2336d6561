//! Random numbers that a model draws itself, as exports of models in training mode do. They are others in each step.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, Distribution, Random};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use rten_onnx::onnx::DataType;

use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};
use super::tensor::stored_type;

/// The distribution of random numbers.
#[derive(Clone, Copy)]
pub(super) enum RandomKind {
    Uniform,
    Normal,
}

impl RandomKind {
    fn read_distribution(self, call: NodeCall<'_>) -> Res<Distribution> {
        let number = |name, default| call.float(name, default).map(Scalar);
        Ok(match self {
            Self::Uniform => {
                Distribution::Uniform { low: number("low", 0.0)?, high: number("high", 1.0)? }
            }
            Self::Normal => {
                Distribution::Normal { mean: number("mean", 0.0)?, std: number("scale", 1.0)? }
            }
        })
    }
}

/// Lowers random numbers of a shape that the node gives.
pub(super) fn lower_random_of_shape(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    kind: RandomKind,
) -> Res<Vec<Val>> {
    let given = call.ints("shape")?.unwrap_or_default();
    let shape = super::tensor::check_shape(given)?;
    let ty = TensorType::new(read_dtype(call)?.unwrap_or(DType::F32), shape);
    Ok(vec![draw_numbers(cx, ty, kind.read_distribution(call)?)?])
}

/// Lowers random numbers of the shape of a tensor.
pub(super) fn lower_random_like(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    kind: RandomKind,
) -> Res<Vec<Val>> {
    let own = cx.ty(&cx.operand(call, 0)?)?;
    let ty = TensorType::new(read_dtype(call)?.unwrap_or(own.dtype), own.shape);
    Ok(vec![draw_numbers(cx, ty, kind.read_distribution(call)?)?])
}

/// Lowers draws of 0 or 1; each element is the probability of a 1.
pub(super) fn lower_bernoulli(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let own = cx.ty(&x)?;
    let uniform = Distribution::Uniform { low: Scalar(0.0), high: Scalar(1.0) };
    let drawn = draw_numbers(cx, own.clone(), uniform)?;
    let hit = cx.apply_binary(BinaryFunction::Less, &drawn, &x)?;
    Ok(vec![cx.cast(&hit, read_dtype(call)?.unwrap_or(own.dtype))?])
}

fn draw_numbers(cx: &mut Lowering, ty: TensorType, distribution: Distribution) -> Res<Val> {
    if !ty.dtype.is_float() {
        return fail_with(format!("random numbers are floating-point numbers, not {}", ty.dtype));
    }
    let key = cx.next_key();
    cx.push_source(Op::Random(Random { ty, distribution, key }))
}

/// Returns the element type that the node names.
fn read_dtype(call: NodeCall<'_>) -> Res<Option<DType>> {
    let Some(named) = call.optional_int("dtype")? else { return Ok(None) };
    match stored_type(DataType(i32::try_from(named).unwrap_or(0))) {
        Some(stored) => Ok(Some(stored.dtype)),
        None => fail_with(format!("the element type {named} is not supported")),
    }
}
