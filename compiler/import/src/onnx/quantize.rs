//! Quantization, as models have it that were trained for it or are to be: what is quantized and read as numbers again.
//!
//! A quantized tensor has an integer type, through which no gradient goes. So the import remembers of each the same numbers as
//! floating-point ones with the straight-through gradient (Bengio et al., arXiv 1308.3432): that of x / scale within the range of the
//! type, and 0 outside. What reads quantized numbers again takes these.

use graphc_ir::op::Op;
use graphc_ir::ops::{Binary, BinaryFunction, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;
use rten_onnx::onnx::DataType;

use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with, resolve_axis};

/// round(x / scale) + zero point, within the range of the type.
pub(super) fn lower_quantize(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    if call.int("block_size", 0)? != 0 {
        return fail_with(
            "block_size is not supported: a scale must be of the tensor or of a channel",
        );
    }
    let target = QuantizedType::from_call(cx, call)?;
    let shape = cx.shape(&x)?;
    let scale = of_channels(cx, call, 1, &shape)?;
    let scale = cx.cast(&scale, cx.ty(&x)?.dtype)?;
    let level = apply_exact(cx, BinaryFunction::Div, &x, &scale)?;
    let mut rounded = cx.apply_unary(UnaryFunction::Round, &level)?;
    if let Some(zero) = zero_point(cx, call, &shape)? {
        let zero = cx.cast(&zero, cx.ty(&x)?.dtype)?;
        rounded = cx.apply_binary(BinaryFunction::Add, &rounded, &zero)?;
    }
    let (low, high) = (Scalar(target.low), Scalar(target.high));
    let clipped = cx.apply_unary(UnaryFunction::Clip { low, high }, &rounded)?;
    let quantized = cx.cast(&clipped, target.dtype)?;
    if let Val::Tensor(id) = quantized {
        let through = straight_through(cx, &level, &rounded, &clipped)?;
        cx.quantized.insert(id, through);
    }
    Ok(vec![quantized])
}

/// (x - zero point) scale.
pub(super) fn lower_dequantize(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    if call.int("block_size", 0)? != 0 {
        return fail_with(
            "block_size is not supported: a scale must be of the tensor or of a channel",
        );
    }
    let shape = cx.shape(&x)?;
    let scale = of_channels(cx, call, 1, &shape)?;
    let dtype = cx.ty(&scale)?.dtype;
    let through = match x {
        Val::Tensor(id) => cx.quantized.get(&id).cloned(),
        _ => None,
    };
    let mut level = cx.cast(&through.unwrap_or(x), dtype)?;
    if let Some(zero) = zero_point(cx, call, &shape)? {
        let zero = cx.cast(&zero, dtype)?;
        level = cx.apply_binary(BinaryFunction::Sub, &level, &zero)?;
    }
    Ok(vec![cx.apply_binary(BinaryFunction::Mul, &level, &scale)?])
}

/// An integer type, and its range.
struct QuantizedType {
    dtype: DType,
    low: f64,
    high: f64,
}

impl QuantizedType {
    /// Reads the type: that of the zero point, or the one that the node names, or UINT8.
    fn from_call(cx: &Lowering, call: NodeCall<'_>) -> Res<Self> {
        let named = call.int("output_dtype", 0)?;
        let given = call.proto.input.get(2).and_then(|name| cx.element_types.get(name).copied());
        let has_zero = cx.optional_operand(call, 2)?.is_some();
        let data_type = match (given, named) {
            (Some(given), _) => given,
            (None, 0) if has_zero => {
                return fail_with(
                    "the file does not say the element type of its zero point: name it by output_dtype",
                );
            }
            (None, 0) => DataType::UINT8,
            (None, named) => DataType(i32::try_from(named).unwrap_or(0)),
        };
        let (dtype, low, high) = match data_type {
            DataType::UINT8 => (DType::U8, 0.0, 255.0),
            DataType::INT8 => (DType::I32, -128.0, 127.0),
            DataType::UINT16 => (DType::I32, 0.0, 65535.0),
            DataType::INT16 => (DType::I32, -32768.0, 32767.0),
            other => {
                return fail_with(format!(
                    "to quantize to {other} is not supported: only int8, uint8, int16 and uint16"
                ));
            }
        };
        Ok(Self { dtype, low, high })
    }
}

/// A scale or zero point: one number, or one for each channel, along the node's axis.
fn of_channels(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    position: usize,
    shape: &[usize],
) -> Res<Val> {
    let value = cx.operand(call, position)?;
    let count = cx.ty(&value)?.elements();
    match cx.shape(&value)?.len() {
        0 => Ok(value),
        1 if count == 1 => cx.reshape(&value, &[]),
        1 => {
            let dim = resolve_axis(call.int("axis", 1)?, shape.len())?;
            let mut apart = vec![1; shape.len() - dim];
            apart[0] = count;
            cx.reshape(&value, &apart)
        }
        _ => fail_with(format!("operand {position} must be a number or one of each channel")),
    }
}

/// The zero point, where there is one and it is not 0.
fn zero_point(cx: &mut Lowering, call: NodeCall<'_>, shape: &[usize]) -> Res<Option<Val>> {
    let Some(zero) = cx.optional_operand(call, 2)? else { return Ok(None) };
    if cx.known_splat(&zero) == Some(0.0) {
        return Ok(None);
    }
    of_channels(cx, call, 2, shape).map(Some)
}

/// The numbers of `clipped`, with the gradient of `level` where nothing was cut off.
fn straight_through(cx: &mut Lowering, level: &Val, rounded: &Val, clipped: &Val) -> Res<Val> {
    let held = cx.apply_unary(UnaryFunction::Detach, level)?;
    let none = cx.apply_binary(BinaryFunction::Sub, level, &held)?;
    let fixed = cx.apply_unary(UnaryFunction::Detach, clipped)?;
    let moving = cx.apply_binary(BinaryFunction::Add, &fixed, &none)?;
    let inside = cx.apply_binary(BinaryFunction::Equal, rounded, clipped)?;
    cx.apply(Op::Where(Where {}), &[inside, moving, fixed])
}

/// An op as it is, where a factor in its place would round otherwise.
fn apply_exact(cx: &mut Lowering, function: BinaryFunction, a: &Val, b: &Val) -> Res<Val> {
    cx.apply(Op::Binary(Binary { function }), &[a.clone(), b.clone()])
}
