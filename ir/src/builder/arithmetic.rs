//! Methods of [`Tensor`] for sources, elementwise functions, reductions and matrix products, and the operators
//! `+ - * /` on handles and numbers.

use std::ops;

use super::{Axis, GraphBuilder, Tensor};
use crate::op::Op;
use crate::ops::{
    ArgMax, Binary, BinaryFunction, Cast, Constant, Distribution, Full, Iota, MatMul, Random,
    Reduce, ReduceFunction, Unary, UnaryFunction, Where,
};
use crate::types::{DType, TensorType};

impl GraphBuilder {
    /// A small literal; elements row-major.
    #[track_caller]
    pub fn constant(&self, dtype: DType, shape: impl Into<Vec<usize>>, data: &[f64]) -> Tensor {
        let data = data.iter().map(|&value| value.into()).collect();
        self.apply(Op::Constant(Constant { ty: TensorType::new(dtype, shape), data }), &[])
    }

    /// Makes a tensor with one value everywhere.
    #[track_caller]
    pub fn full(&self, dtype: DType, shape: impl Into<Vec<usize>>, value: f64) -> Tensor {
        let full = Full { ty: TensorType::new(dtype, shape), value: value.into() };
        self.apply(Op::Full(full), &[])
    }

    /// The index along a dim.
    #[track_caller]
    pub fn iota(&self, dtype: DType, shape: impl Into<Vec<usize>>, dim: impl Into<Axis>) -> Tensor {
        let ty = TensorType::new(dtype, shape);
        match dim.into().resolve_dim(ty.shape.len()) {
            Some(dim) => self.apply(Op::Iota(Iota { ty, dim }), &[]),
            None => self.fail(format!("{ty} has not so many dims")),
        }
    }

    /// Random numbers, new each step.
    #[track_caller]
    pub fn random(
        &self,
        dtype: DType,
        shape: impl Into<Vec<usize>>,
        distribution: Distribution,
    ) -> Tensor {
        let ty = TensorType::new(dtype, shape);
        self.apply(Op::Random(Random { ty, distribution, key: self.next_key() }), &[])
    }
}

/// Elementwise functions of one operand.
impl Tensor {
    /// An elementwise function.
    #[track_caller]
    pub fn unary(&self, function: UnaryFunction) -> Tensor {
        self.builder.apply(Op::Unary(Unary { function }), &[self])
    }

    /// max(x, 0)
    #[track_caller]
    pub fn relu(&self) -> Tensor {
        self.unary(UnaryFunction::Relu)
    }

    /// x Phi(x), with the error function
    #[track_caller]
    pub fn gelu(&self) -> Tensor {
        self.unary(UnaryFunction::Gelu)
    }

    /// The tanh approximation of GELU
    #[track_caller]
    pub fn gelu_tanh(&self) -> Tensor {
        self.unary(UnaryFunction::GeluTanh)
    }

    /// 1 / (1 + exp(-x))
    #[track_caller]
    pub fn sigmoid(&self) -> Tensor {
        self.unary(UnaryFunction::Sigmoid)
    }

    /// Hyperbolic tangent
    #[track_caller]
    pub fn tanh(&self) -> Tensor {
        self.unary(UnaryFunction::Tanh)
    }

    /// x sigmoid(x)
    #[track_caller]
    pub fn silu(&self) -> Tensor {
        self.unary(UnaryFunction::Silu)
    }

    /// e^x
    #[track_caller]
    pub fn exp(&self) -> Tensor {
        self.unary(UnaryFunction::Exp)
    }

    /// Natural logarithm
    #[track_caller]
    pub fn log(&self) -> Tensor {
        self.unary(UnaryFunction::Log)
    }

    /// Square root
    #[track_caller]
    pub fn sqrt(&self) -> Tensor {
        self.unary(UnaryFunction::Sqrt)
    }

    /// 1 / sqrt(x)
    #[track_caller]
    pub fn rsqrt(&self) -> Tensor {
        self.unary(UnaryFunction::Rsqrt)
    }

    /// Absolute value
    #[track_caller]
    pub fn abs(&self) -> Tensor {
        self.unary(UnaryFunction::Abs)
    }

    /// -x
    #[track_caller]
    pub fn neg(&self) -> Tensor {
        self.unary(UnaryFunction::Neg)
    }

    /// Returns the same numbers, through which no gradient flows.
    #[track_caller]
    pub fn detach(&self) -> Tensor {
        self.unary(UnaryFunction::Detach)
    }

    /// -1, 0 or 1
    #[track_caller]
    pub fn sign(&self) -> Tensor {
        self.unary(UnaryFunction::Sign)
    }

    /// The error function
    #[track_caller]
    pub fn erf(&self) -> Tensor {
        self.unary(UnaryFunction::Erf)
    }

    /// Sine, of radians.
    #[track_caller]
    pub fn sin(&self) -> Tensor {
        self.unary(UnaryFunction::Sin)
    }

    /// Cosine, of radians.
    #[track_caller]
    pub fn cos(&self) -> Tensor {
        self.unary(UnaryFunction::Cos)
    }

    /// The greatest integer that is not greater.
    #[track_caller]
    pub fn floor(&self) -> Tensor {
        self.unary(UnaryFunction::Floor)
    }

    /// The least integer that is not less.
    #[track_caller]
    pub fn ceil(&self) -> Tensor {
        self.unary(UnaryFunction::Ceil)
    }

    /// The nearest integer, of two the even one.
    #[track_caller]
    pub fn round(&self) -> Tensor {
        self.unary(UnaryFunction::Round)
    }

    /// log(1 + e^x)
    #[track_caller]
    pub fn softplus(&self) -> Tensor {
        // (x + |x|) / 2 + log(1 + e^-|x|) neither overflows nor has a kink whose gradient at 0 is not a half.
        let distance = self.abs();
        let positive = self.add(&distance).scale(0.5);
        positive.add(&distance.neg().exp().offset(1.0).log())
    }

    /// x where it is positive, and `slope` times x elsewhere.
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Tensor {
        self.greater(&self.scalar_like(0.0)).select(self, &self.scale(slope))
    }

    /// 1 / x
    #[track_caller]
    pub fn reciprocal(&self) -> Tensor {
        self.unary(UnaryFunction::Reciprocal)
    }

    /// Logical negation, of bool
    #[track_caller]
    pub fn not(&self) -> Tensor {
        self.unary(UnaryFunction::Not)
    }

    /// x * value
    #[track_caller]
    pub fn scale(&self, value: f64) -> Tensor {
        self.unary(UnaryFunction::Scale(value.into()))
    }

    /// x + value
    #[track_caller]
    pub fn offset(&self, value: f64) -> Tensor {
        self.unary(UnaryFunction::Offset(value.into()))
    }

    /// x ^ value
    #[track_caller]
    pub fn pow_scalar(&self, value: f64) -> Tensor {
        self.unary(UnaryFunction::PowScalar(value.into()))
    }

    /// min(max(x, low), high)
    #[track_caller]
    pub fn clip(&self, low: f64, high: f64) -> Tensor {
        self.unary(UnaryFunction::Clip { low: low.into(), high: high.into() })
    }

    /// Casts the values to another element type; the same tensor if it has that type already.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Tensor {
        if self.ty().dtype == dtype {
            return self.clone();
        }
        self.builder.apply(Op::Cast(Cast { dtype }), &[self])
    }

    /// Makes a tensor with one value everywhere, of the same element type and shape.
    #[track_caller]
    pub fn full_like(&self, value: f64) -> Tensor {
        let ty = self.ty();
        self.builder.full(ty.dtype, ty.shape, value)
    }

    /// A number of the same element type, of rank 0.
    #[track_caller]
    pub fn scalar_like(&self, value: f64) -> Tensor {
        self.builder.full(self.ty().dtype, [], value)
    }
}

/// Elementwise functions of two and three operands, broadcast.
impl Tensor {
    /// An elementwise function of two operands.
    #[track_caller]
    pub fn binary(&self, function: BinaryFunction, other: &Tensor) -> Tensor {
        self.builder.apply(Op::Binary(Binary { function }), &[self, other])
    }

    /// a + b
    #[track_caller]
    pub fn add(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::Add, other)
    }

    /// a - b
    #[track_caller]
    pub fn sub(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::Sub, other)
    }

    /// a * b
    #[track_caller]
    pub fn mul(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::Mul, other)
    }

    /// a / b
    #[track_caller]
    pub fn div(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::Div, other)
    }

    /// a ^ b
    #[track_caller]
    pub fn pow(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::Pow, other)
    }

    /// The greater
    #[track_caller]
    pub fn maximum(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::Max, other)
    }

    /// The lesser
    #[track_caller]
    pub fn minimum(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::Min, other)
    }

    /// a == b
    #[track_caller]
    pub fn equal(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::Equal, other)
    }

    /// a != b
    #[track_caller]
    pub fn not_equal(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::NotEqual, other)
    }

    /// a < b
    #[track_caller]
    pub fn less(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::Less, other)
    }

    /// a <= b
    #[track_caller]
    pub fn less_equal(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::LessEqual, other)
    }

    /// a > b
    #[track_caller]
    pub fn greater(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::Greater, other)
    }

    /// a >= b
    #[track_caller]
    pub fn greater_equal(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::GreaterEqual, other)
    }

    /// Computes the logical and, of bool.
    #[track_caller]
    pub fn and(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::And, other)
    }

    /// Computes the logical or, of bool.
    #[track_caller]
    pub fn or(&self, other: &Tensor) -> Tensor {
        self.binary(BinaryFunction::Or, other)
    }

    /// Selects by a condition (bool): `a` where it holds, else `b`.
    #[track_caller]
    pub fn select(&self, a: &Tensor, b: &Tensor) -> Tensor {
        self.builder.apply(Op::Where(Where {}), &[self, a, b])
    }
}

/// Reductions and matrix products.
impl Tensor {
    /// A reduction over dims, in any order.
    #[track_caller]
    pub fn reduce(
        &self,
        function: ReduceFunction,
        axes: &[impl Into<Axis> + Copy],
        keep_dims: bool,
    ) -> Tensor {
        let mut axes = match self.resolve_axes(axes) {
            Ok(axes) => axes,
            Err(inert) => return inert,
        };
        axes.sort_unstable();
        self.builder.apply(Op::Reduce(Reduce { function, axes, keep_dims }), &[self])
    }

    /// The sum over dims.
    #[track_caller]
    pub fn sum(&self, axes: &[impl Into<Axis> + Copy], keep_dims: bool) -> Tensor {
        self.reduce(ReduceFunction::Sum, axes, keep_dims)
    }

    /// The mean over dims.
    #[track_caller]
    pub fn mean(&self, axes: &[impl Into<Axis> + Copy], keep_dims: bool) -> Tensor {
        self.reduce(ReduceFunction::Mean, axes, keep_dims)
    }

    /// The variance over dims, divided by the number of elements, as norms take it. That of a sample is [`Tensor::sample_variance`].
    #[track_caller]
    pub fn variance(&self, axes: &[impl Into<Axis> + Copy], keep_dims: bool) -> Tensor {
        let axes = match self.resolve_axes(axes) {
            Ok(axes) => axes,
            Err(inert) => return inert,
        };
        self.squared_distance(&axes).mean(&axes, keep_dims)
    }

    /// The unbiased variance over dims: divided by one less than the number of elements, as `torch.var` does by default.
    #[track_caller]
    pub fn sample_variance(&self, axes: &[impl Into<Axis> + Copy], keep_dims: bool) -> Tensor {
        let axes = match self.resolve_axes(axes) {
            Ok(axes) => axes,
            Err(inert) => return inert,
        };
        let shape = self.shape();
        let count: usize = axes.iter().filter_map(|&axis| shape.get(axis)).product();
        self.squared_distance(&axes).sum(&axes, keep_dims).scale(1.0 / (count as f64 - 1.0))
    }

    /// The square of the distance of each element from the mean over dims.
    fn squared_distance(&self, axes: &[usize]) -> Tensor {
        let distance = self.sub(&self.mean(axes, true));
        distance.mul(&distance)
    }

    /// The greatest over dims.
    #[track_caller]
    pub fn max(&self, axes: &[impl Into<Axis> + Copy], keep_dims: bool) -> Tensor {
        self.reduce(ReduceFunction::Max, axes, keep_dims)
    }

    /// The least over dims.
    #[track_caller]
    pub fn min(&self, axes: &[impl Into<Axis> + Copy], keep_dims: bool) -> Tensor {
        self.reduce(ReduceFunction::Min, axes, keep_dims)
    }

    /// The greatest size over dims: the maximum of the absolute values.
    #[track_caller]
    pub fn max_abs(&self, axes: &[impl Into<Axis> + Copy], keep_dims: bool) -> Tensor {
        self.reduce(ReduceFunction::MaxAbs, axes, keep_dims)
    }

    /// The sum over what broadcasting repeated: back to a shape that broadcasts to this one.
    #[track_caller]
    pub fn sum_to(&self, shape: &[usize]) -> Tensor {
        let own = self.shape();
        if own == shape || own.len() < shape.len() {
            return self.clone();
        }
        let skip = own.len() - shape.len();
        let repeated = |&dim: &usize| dim < skip || shape[dim - skip] == 1 && own[dim] != 1;
        let axes: Vec<usize> = (0..own.len()).filter(repeated).collect();
        let sum = self.sum(&axes, false);
        if sum.shape() == shape { sum } else { sum.reshape(shape) }
    }

    /// The index of the greatest along a dim.
    #[track_caller]
    pub fn argmax(&self, axis: impl Into<Axis>, keep_dims: bool) -> Tensor {
        match self.resolve_axis(axis) {
            Ok(axis) => self.builder.apply(Op::ArgMax(ArgMax { axis, keep_dims }), &[self]),
            Err(inert) => inert,
        }
    }

    /// `[.., i, k] x [.., k, j] -> [.., i, j]`; leading dims broadcast.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        self.matmul_transposed(other, false, false)
    }

    /// A matrix product whose operands may be given as `[.., k, i]` and `[.., j, k]`.
    #[track_caller]
    pub fn matmul_transposed(
        &self,
        other: &Tensor,
        transpose_a: bool,
        transpose_b: bool,
    ) -> Tensor {
        self.builder.apply(Op::MatMul(MatMul { transpose_a, transpose_b }), &[self, other])
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, |$a:ident, $value:ident| $with_number:expr) => {
        impl ops::$trait<&Tensor> for &Tensor {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                Tensor::$method(self, other)
            }
        }

        impl ops::$trait<Tensor> for &Tensor {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                Tensor::$method(self, &other)
            }
        }

        impl ops::$trait<&Tensor> for Tensor {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                Tensor::$method(&self, other)
            }
        }

        impl ops::$trait<Tensor> for Tensor {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                Tensor::$method(&self, &other)
            }
        }

        impl ops::$trait<f64> for &Tensor {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, $value: f64) -> Tensor {
                let $a = self;
                $with_number
            }
        }

        impl ops::$trait<f64> for Tensor {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, value: f64) -> Tensor {
                ops::$trait::$method(&self, value)
            }
        }
    };
}

operator!(Add, add, |a, value| a.offset(value));
operator!(Sub, sub, |a, value| a.offset(-value));
operator!(Mul, mul, |a, value| a.scale(value));
operator!(Div, div, |a, value| a.scale(1.0 / value));

/// `1.0 - &x`: a number before a tensor.
macro_rules! operator_of_number {
    ($trait:ident, $method:ident, |$value:ident, $a:ident| $result:expr) => {
        impl ops::$trait<&Tensor> for f64 {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, $a: &Tensor) -> Tensor {
                let $value = self;
                $result
            }
        }

        impl ops::$trait<Tensor> for f64 {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, tensor: Tensor) -> Tensor {
                ops::$trait::$method(self, &tensor)
            }
        }
    };
}

operator_of_number!(Add, add, |value, a| a.offset(value));
operator_of_number!(Sub, sub, |value, a| Tensor::neg(a).offset(value));
operator_of_number!(Mul, mul, |value, a| a.scale(value));
operator_of_number!(Div, div, |value, a| a.reciprocal().scale(value));

impl ops::Neg for &Tensor {
    type Output = Tensor;

    #[track_caller]
    fn neg(self) -> Tensor {
        Tensor::neg(self)
    }
}

impl ops::Neg for Tensor {
    type Output = Tensor;

    #[track_caller]
    fn neg(self) -> Tensor {
        Tensor::neg(&self)
    }
}
