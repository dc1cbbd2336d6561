//! Chains of elementwise ops by the ops' own evaluation, one after the other.

use graphc_ir::array::Array;
use graphc_ir::op::{EvalContext, Op, Operand, Region};
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{FusedArg, FusedOp, FusedStep};

use crate::common::{Case, Memory};

/// Numbers as memory of a type holds them, after they went through f32, in which kernels compute.
pub fn rounded(dtype: DType, values: &[f64]) -> Vec<f64> {
    let in_f32: Vec<f64> = values.iter().map(|&x| f64::from(x as f32)).collect();
    Memory::of(dtype, &in_f32).values()
}

/// The elements of an operand, spread over a shape.
fn spread(values: &[f64], from: &[usize], to: &[usize]) -> Vec<f64> {
    let strides = graphc_ir::types::row_major_strides(from);
    let skip = to.len() - from.len();
    let place = |mut index: usize| {
        let mut place = 0;
        for dim in (0..to.len()).rev() {
            if dim >= skip && from[dim - skip] > 1 {
                place += index % to[dim] * strides[dim - skip];
            }
            index /= to[dim];
        }
        place
    };
    (0..to.iter().product()).map(|index| values[place(index)]).collect()
}

/// The value of each step, by the ops' own evaluation; of sums also that of the amounts that are summed.
pub fn evaluated(
    fused: &FusedOp,
    case: &Case,
    shape: &[usize],
) -> Vec<(DType, Vec<f64>, Vec<f64>)> {
    let operand = |index: usize| {
        let (of, memory) = &case.operands[index];
        (of.dtype, spread(&memory.values(), &of.rect.extent, shape))
    };
    let mut values: Vec<(DType, Vec<f64>, Vec<f64>)> = Vec::new();
    for FusedStep { op, args } in &fused.steps {
        let args: Vec<(DType, Vec<f64>)> = args
            .iter()
            .map(|arg| match *arg {
                FusedArg::Operand(index) => operand(index),
                FusedArg::Step(step) => (values[step].0, values[step].1.clone()),
            })
            .collect();
        let types: Vec<TensorType> = args.iter().map(|arg| TensorType::new(arg.0, shape)).collect();
        let result = op.infer_types(&types.iter().collect::<Vec<_>>()).expect("it fits").remove(0);
        let regions: Vec<Region> = types.iter().map(Region::whole).collect();
        let evaluate = |of: &dyn Fn(f64) -> f64| {
            let array = |arg: &(DType, Vec<f64>)| {
                Array::new(shape.to_vec(), arg.1.iter().map(|&x| of(x)).collect())
            };
            let arrays: Vec<Array> = args.iter().map(array).collect();
            let pairs = arrays.iter().zip(&regions);
            let operands: Vec<_> = pairs.map(|(array, region)| Operand { array, region }).collect();
            let cx = EvalContext::default();
            let made = op.operation().evaluate(&operands, &[Region::whole(&result)], &cx);
            made.expect("a value").remove(0).data
        };
        let amounts = match op {
            Op::Reduce(_) => evaluate(&f64::abs),
            _ => Vec::new(),
        };
        values.push((result.dtype, rounded(result.dtype, &evaluate(&|x| x)), amounts));
    }
    values
}
