//! Dims by their number, from the first or from the last.

use std::fmt;

use super::Tensor;

/// A dim of a tensor, from 0; below 0 it is counted from the last, which is -1.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let x = g.input("x", DType::F32, [2, 3, 5]);
/// assert_eq!(x.sum(&[-1, 0], false).shape(), [3]);
/// assert_eq!(x.slice(-2, 0..1).shape(), [2, 1, 5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// An axis counted from the first.
    At(usize),
    /// An axis counted from the end; the last is 1.
    FromEnd(usize),
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(dim) => write!(f, "{dim}"),
            Self::FromEnd(distance) => write!(f, "-{distance}"),
        }
    }
}

impl From<usize> for Axis {
    fn from(dim: usize) -> Self {
        Self::At(dim)
    }
}

impl From<i64> for Axis {
    fn from(dim: i64) -> Self {
        let distance = usize::try_from(dim.unsigned_abs()).unwrap_or(usize::MAX);
        if dim < 0 { Self::FromEnd(distance) } else { Self::At(distance) }
    }
}

impl From<i32> for Axis {
    fn from(dim: i32) -> Self {
        i64::from(dim).into()
    }
}

impl Axis {
    /// The number of the dim from the first, of a tensor of so many dims; none where there are fewer.
    pub(crate) fn resolve_dim(self, rank: usize) -> Option<usize> {
        match self {
            Self::At(dim) => Some(dim),
            Self::FromEnd(distance) => rank.checked_sub(distance),
        }
    }
}

impl Tensor {
    /// The number of a dim from the first. `Err`: what an op on a dim that is not there gives, with the error kept where there is none yet.
    #[track_caller]
    pub(super) fn resolve_axis(&self, axis: impl Into<Axis>) -> Result<usize, Tensor> {
        let axis = axis.into();
        let Some(id) = self.id else { return Err(self.clone()) };
        let rank = self.builder.0.borrow().graph.value(id).ty.shape.len();
        match (axis, axis.resolve_dim(rank)) {
            (_, Some(dim)) => Ok(dim),
            // A closure would have another caller.
            (Axis::At(distance) | Axis::FromEnd(distance), None) => {
                Err(self.builder.fail(format!("{} has no dim -{distance}", self.ty())))
            }
        }
    }

    /// The numbers of dims from the first.
    #[track_caller]
    pub(super) fn resolve_axes<A: Into<Axis> + Copy>(
        &self,
        axes: &[A],
    ) -> Result<Vec<usize>, Tensor> {
        let mut found = Vec::with_capacity(axes.len());
        for &axis in axes {
            found.push(self.resolve_axis(axis)?);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use crate::builder::GraphBuilder;
    use crate::types::DType;

    #[test]
    fn a_dim_may_be_counted_from_the_last() {
        let g = GraphBuilder::new("axes");
        let x = g.input("x", DType::F32, [2, 3, 5]);
        assert_eq!(x.softmax(-1).id().map(|_| x.shape()), Some(vec![2, 3, 5]));
        assert_eq!(x.mean(&[-1, -2], true).shape(), [2, 1, 1]);
        assert_eq!(x.max(&[-1, 0], false).shape(), [3]);
        assert_eq!(x.argmax(-1, false).shape(), [2, 3]);
        assert_eq!(x.split(-1, &[2, 3])[1].shape(), [2, 3, 3]);
        assert_eq!(g.concat(&[x.clone(), x.clone()], -2).shape(), [2, 6, 5]);
        assert_eq!(x.transpose(&[-1, 0, 1]).shape(), [5, 2, 3]);
        assert_eq!(g.iota(DType::I64, [4, 2], -1).shape(), [4, 2]);
        g.finish().expect("all fits");
    }

    #[test]
    fn a_dim_that_is_not_there_is_reported_once_at_the_callers_line() {
        let g = GraphBuilder::new("axes");
        let x = g.input("x", DType::F32, [2, 3]);
        let line = line!() + 1;
        let _ = x.sum(&[-3], false).softmax(-1).slice(-9, 0..1);
        let errors = g.finish().expect_err("there are 2 dims").to_string();
        assert!(
            errors.contains(&format!("axis.rs:{line}"))
                && errors.ends_with("f32[2, 3] has no dim -3"),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}
