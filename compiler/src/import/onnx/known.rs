//! Values that are known when a model is imported: literals, shapes, and what is computed from them.

use graphc_ir::array::Array;
use graphc_ir::op::{EvalContext, Op, OpError, Operand, Region};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

/// As many elements a known value may have that is not one number everywhere: what is larger is computed by the graph.
pub(super) const MOST_KNOWN: usize = 64;

/// A known value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    /// Element type and shape.
    pub ty: TensorType,
    pub elements: Elements,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Elements {
    /// One number everywhere.
    Splat(f64),
    /// Row-major.
    Dense(Vec<f64>),
}

impl Known {
    /// A value of these elements, rounded to the element type. There must be as many as the shape says.
    pub fn new(ty: TensorType, elements: Vec<f64>) -> Self {
        let elements: Vec<f64> = elements.into_iter().map(|x| round(ty.dtype, x)).collect();
        let bits = |x: &f64| x.to_bits();
        let elements = match elements.as_slice() {
            [] => Elements::Splat(0.0),
            [first, rest @ ..] if rest.iter().all(|x| bits(x) == bits(first)) => {
                Elements::Splat(*first)
            }
            _ => Elements::Dense(elements),
        };
        Self { ty, elements }
    }

    /// One number everywhere.
    pub fn splat(ty: TensorType, value: f64) -> Self {
        let value = round(ty.dtype, value);
        Self { ty, elements: Elements::Splat(value) }
    }

    /// A list of integers.
    pub fn integers(values: &[i64]) -> Self {
        let elements = values.iter().map(|&value| value as f64).collect();
        Self::new(TensorType::new(DType::I64, [values.len()]), elements)
    }

    /// One integer, of shape `[]`.
    pub fn integer(value: i64) -> Self {
        Self::splat(TensorType::new(DType::I64, []), value as f64)
    }

    /// One truth value, of shape `[]`.
    pub fn truth(value: bool) -> Self {
        Self::splat(TensorType::new(DType::Bool, []), f64::from(u8::from(value)))
    }

    /// All elements, row-major.
    pub fn elements(&self) -> Vec<f64> {
        match &self.elements {
            Elements::Splat(value) => vec![*value; self.ty.elements()],
            Elements::Dense(elements) => elements.clone(),
        }
    }

    /// The number that it is everywhere, if it is.
    pub fn as_splat(&self) -> Option<f64> {
        match self.elements {
            Elements::Splat(value) => Some(value),
            Elements::Dense(_) => None,
        }
    }

    /// The elements as they stand in a constant.
    pub fn scalars(&self) -> Vec<Scalar> {
        self.elements().into_iter().map(Scalar).collect()
    }

    fn array(&self) -> Array {
        Array::new(self.ty.shape.clone(), self.elements())
    }
}

/// The value that an element type holds of a number.
fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => f64::from(x as f32),
        DType::I64 => (x as i64) as f64,
        DType::I32 => f64::from(x as i32),
        DType::U8 => f64::from(x as u8),
        DType::Bool => f64::from(x != 0.0),
    }
}

/// The results of an op on known values; `None` where they are too large to be known.
///
/// # Errors
/// Where the op does not take such operands.
pub(super) fn fold(op: &Op, operands: &[Known]) -> Result<Option<Vec<Known>>, OpError> {
    let types: Vec<&TensorType> = operands.iter().map(|known| &known.ty).collect();
    let results = op.infer(&types)?;
    if operands.iter().all(|known| known.as_splat().is_some()) && keeps_splats(op) {
        let scalar = |known: &Known| Known {
            ty: TensorType::new(known.ty.dtype, []),
            elements: known.elements.clone(),
        };
        let value = match op {
            Op::Unary(_) | Op::Binary(_) | Op::Where(_) | Op::Cast(_) => {
                let operands: Vec<Known> = operands.iter().map(scalar).collect();
                let ty = TensorType::new(results[0].dtype, []);
                evaluate(op, &operands, &[ty])?[0].data[0]
            }
            _ => operands.first().and_then(Known::as_splat).unwrap_or(0.0),
        };
        return Ok(Some(results.into_iter().map(|ty| Known::splat(ty, value)).collect()));
    }
    let small = |ty: &TensorType| ty.elements() <= MOST_KNOWN;
    if !results.iter().all(small) || operands.iter().any(|known| known.ty.elements() > 1 << 16) {
        return Ok(None);
    }
    let arrays = evaluate(op, operands, &results)?;
    Ok(Some(results.into_iter().zip(arrays).map(|(ty, a)| Known::new(ty, a.data)).collect()))
}

/// Whether the op makes one number everywhere of one number everywhere.
fn keeps_splats(op: &Op) -> bool {
    let elementwise = matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Where(_) | Op::Cast(_));
    let moves = matches!(
        op,
        Op::Reshape(_) | Op::Expand(_) | Op::Transpose(_) | Op::Slice(_) | Op::Split(_)
    );
    elementwise || moves
}

fn evaluate(op: &Op, operands: &[Known], results: &[TensorType]) -> Result<Vec<Array>, OpError> {
    let arrays: Vec<(Array, Region)> =
        operands.iter().map(|known| (known.array(), Region::whole(&known.ty))).collect();
    let operands: Vec<Operand<'_>> =
        arrays.iter().map(|(array, region)| Operand { array, region }).collect();
    let regions: Vec<Region> = results.iter().map(Region::whole).collect();
    op.operation().evaluate(&operands, &regions, &EvalContext::default())
}
