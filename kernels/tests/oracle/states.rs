//! The kernel of states that steps update against its oracle, for every element type.

use crate::common::{Case, Random, ordinary};
use graphc_ir::op::Op;
use graphc_ir::ops::Blend;
use graphc_ir::types::{DType, TensorType};

#[test]
fn states_decay_are_replaced_or_counted_up() {
    for seed in 0..30 {
        let random = &mut Random::new(seed);
        let shape = random.shape(2);
        let pair = |dtype| vec![TensorType::new(dtype, shape.clone()); 2];
        let blend = |decay: f64, rate: f64| Op::Blend(Blend::with_decay(decay, rate));
        for (decay, rate) in [(0.9, 0.1), (0.0, 1.0), (1.0, -2.0)] {
            Case::random(blend(decay, rate), &pair(DType::F32), random, &mut ordinary).check(1e-6);
            guarded(blend(decay, rate), &pair(DType::F32), random);
        }
        // What is replaced is not read: it may be no number.
        let fill = &mut |random: &mut Random, i: usize, dtype: DType| match i {
            0 => f64::NAN,
            i => ordinary(random, i, dtype),
        };
        Case::random(blend(0.0, 0.5), &pair(DType::F32), random, fill).check(1e-6);
        for dtype in [DType::I64, DType::I32, DType::U8, DType::Bool] {
            let types = pair(dtype);
            let fill = &mut |random: &mut Random, _: usize, dtype: DType| {
                random.below(if dtype == DType::Bool { 2 } else { 200 }) as f64
            };
            Case::random(blend(0.0, 1.0), &types, random, fill).check(0.0);
            if dtype != DType::Bool {
                Case::random(blend(1.0, 1.0), &types, random, fill).check(0.0);
            }
            guarded(blend(0.0, 1.0), &types, random);
        }
    }
}

/// Checks an op with the scalars of steps that may be left out: a factor of 0 or 1, and the number of the update, for an average that
/// starts too.
fn guarded(op: Op, types: &[TensorType], random: &mut Random) {
    let scalar = TensorType::new(DType::F32, []);
    for (scalars, starts) in [(1, false), (2, false), (2, true)] {
        let Op::Blend(blend) = op else { panic!("a blend") };
        let op = Op::Blend(Blend { starts, ..blend });
        let types = [types, &vec![scalar.clone(); scalars]].concat();
        let fill = &mut |random: &mut Random, i: usize, dtype: DType| match (i, dtype) {
            (2, _) => random.below(2) as f64,
            (3, _) => random.below(3) as f64 + 1.0,
            (_, DType::F32) => ordinary(random, i, dtype),
            (..) => random.below(2) as f64,
        };
        Case::random(op, &types, random, fill).check(1e-6);
    }
}
