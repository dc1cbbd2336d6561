//! Methods of [`Tensor`] for dims of extent 1, and for elements by their places.

use super::{Axis, GraphBuilder, Tensor};
use crate::op::Op;
use crate::ops::{CumulativeSum, Gather, Scatter, ScatterFunction, ScatterSum, TopK};

impl GraphBuilder {
    /// Tensors of one shape, one after the other along a new dim: before dim `axis` of them, behind all where it is their rank or -1.
    #[track_caller]
    pub fn stack(&self, tensors: &[Tensor], axis: impl Into<Axis>) -> Tensor {
        let axis = axis.into();
        let apart: Vec<Tensor> = tensors.iter().map(|tensor| tensor.unsqueeze(axis)).collect();
        self.concat(&apart, axis)
    }
}

/// Dims of extent 1.
impl Tensor {
    /// A new dim of extent 1, which is then dim `axis`.
    ///
    /// ```
    /// use graphc_ir::builder::GraphBuilder;
    /// use graphc_ir::types::DType;
    ///
    /// let g = GraphBuilder::new("example");
    /// let x = g.input("x", DType::F32, [2, 3]);
    /// assert_eq!(x.unsqueeze(1).shape(), [2, 1, 3]);
    /// assert_eq!(x.unsqueeze(-1).squeeze(-1).shape(), [2, 3]);
    /// assert_eq!(g.stack(&[x.clone(), x], 0).shape(), [2, 2, 3]);
    /// ```
    #[track_caller]
    pub fn unsqueeze(&self, axis: impl Into<Axis>) -> Tensor {
        if self.id.is_none() {
            return self.clone();
        }
        let mut shape = self.shape();
        let given = axis.into();
        match given.resolve_dim(shape.len() + 1).filter(|&axis| axis <= shape.len()) {
            Some(axis) => {
                shape.insert(axis, 1);
                self.reshape(&shape)
            }
            None => self.builder.fail(format!(
                "{} has no place for a dim {given}: a new one is from {} to {}",
                self.ty(),
                -(shape.len() as i64) - 1,
                shape.len()
            )),
        }
    }

    /// Removes a dim, whose extent is 1.
    #[track_caller]
    pub fn squeeze(&self, axis: impl Into<Axis>) -> Tensor {
        let axis = match self.resolve_axis(axis) {
            Ok(axis) => axis,
            Err(inert) => return inert,
        };
        let mut shape = self.shape();
        if shape.get(axis) != Some(&1) {
            return self.builder.fail(format!("{} has no dim {axis} of extent 1", self.ty()));
        }
        shape.remove(axis);
        self.reshape(&shape)
    }
}

/// Elements by their places.
impl Tensor {
    /// Returns the greatest elements of each row along a dim and their places (i64), the best first; of equal ones that of the lower place.
    ///
    /// ```
    /// use graphc_ir::builder::GraphBuilder;
    /// use graphc_ir::types::DType;
    ///
    /// let g = GraphBuilder::new("example");
    /// let (values, places) = g.input("x", DType::F32, [4, 10]).top_k(3, -1);
    /// assert_eq!((values.shape(), places.ty().dtype), (vec![4, 3], DType::I64));
    /// ```
    #[track_caller]
    pub fn top_k(&self, count: usize, axis: impl Into<Axis>) -> (Tensor, Tensor) {
        let axis = match self.resolve_axis(axis) {
            Ok(axis) => axis,
            Err(inert) => return (inert.clone(), inert),
        };
        let last = self.shape().len().saturating_sub(1);
        let mut order: Vec<usize> = (0..=last).collect();
        if axis < last {
            order.swap(axis, last);
        }
        let moved = if axis < last { self.transpose(&order) } else { self.clone() };
        let op = Op::TopK(TopK { count, greatest: true });
        let back = |found: Tensor| if axis < last { found.transpose(&order) } else { found };
        let found: Vec<Tensor> =
            self.builder.apply_all(op, &[&moved]).into_iter().map(back).collect();
        match <[Tensor; 2]>::try_from(found) {
            Ok([values, places]) => (values, places),
            Err(_) => (self.builder.inert_tensor(), self.builder.inert_tensor()),
        }
    }

    /// The sum of all elements along a dim up to each, itself included.
    #[track_caller]
    pub fn cumulative_sum(&self, axis: impl Into<Axis>) -> Tensor {
        match self.resolve_axis(axis) {
            Ok(axis) => {
                let op = CumulativeSum { axis, exclusive: false, reverse: false };
                self.builder.apply(Op::CumulativeSum(op), &[self])
            }
            Err(inert) => inert,
        }
    }

    /// Gathers from `[b.., n, w..]` the elements at places `[b.., m]` (i64) of dim n: `[b.., m, w..]`. The dims of batches are as many as
    /// the places have before their last.
    ///
    /// ```
    /// use graphc_ir::builder::GraphBuilder;
    /// use graphc_ir::types::DType;
    ///
    /// let g = GraphBuilder::new("example");
    /// let (x, places) = (g.input("x", DType::F32, [2, 9, 4]), g.input("places", DType::I64, [2, 3]));
    /// assert_eq!(x.gather(&places).shape(), [2, 3, 4]);
    /// ```
    #[track_caller]
    pub fn gather(&self, places: &Tensor) -> Tensor {
        self.builder.apply(Op::Gather(Gather {}), &[self, places])
    }

    /// `[b.., n, w..]` with `values` `[b.., m, w..]` joined to what is at places `[b.., m]` (i64) of dim n, in their order.
    #[track_caller]
    pub fn scatter(&self, places: &Tensor, values: &Tensor, function: ScatterFunction) -> Tensor {
        self.builder.apply(Op::Scatter(Scatter { function }), &[self, places, values])
    }

    /// `[b.., n, w..]` with `values` `[b.., m, w..]` added at places `[b.., m]` (i64) of dim n.
    #[track_caller]
    pub fn scatter_add(&self, places: &Tensor, values: &Tensor) -> Tensor {
        let dim = places.shape().len().saturating_sub(1);
        let count = self.shape().get(dim).copied().unwrap_or_default();
        let sums = Op::ScatterSum(ScatterSum { places: count });
        self.add(&self.builder.apply(sums, &[places, values]))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::array::Array;
    use crate::evaluate::evaluate_outputs;
    use crate::types::DType;

    /// Evaluates a function of `[[-2, 0.5, 3], [1, 2.5, -4]]`.
    fn of_numbers(function: impl FnOnce(&Tensor) -> Tensor) -> Vec<f64> {
        let g = GraphBuilder::new("values");
        g.output("y", &function(&g.input("x", DType::F32, [2, 3])));
        let x = Array::new([2, 3], vec![-2.0, 0.5, 3.0, 1.0, 2.5, -4.0]);
        let feeds = BTreeMap::from([("x".to_owned(), x)]);
        let graph = g.finish().expect("all fits");
        evaluate_outputs(&graph, &feeds, &Default::default()).expect("all is fed")["y"].data.clone()
    }

    #[test]
    fn values_are_those_of_their_definitions() {
        assert_eq!(of_numbers(Tensor::floor), [-2.0, 0.0, 3.0, 1.0, 2.0, -4.0]);
        assert_eq!(of_numbers(Tensor::ceil), [-2.0, 1.0, 3.0, 1.0, 3.0, -4.0]);
        assert_eq!(of_numbers(Tensor::round), [-2.0, 0.0, 3.0, 1.0, 2.0, -4.0]);
        assert_eq!(of_numbers(|x| x.leaky_relu(0.25)), [-0.5, 0.5, 3.0, 1.0, 2.5, -1.0]);
        assert_eq!(of_numbers(|x| x.cumulative_sum(-1)), [-2.0, -1.5, 1.5, 1.0, 3.5, -0.5]);
        assert_eq!(of_numbers(|x| x.top_k(1, 0).0), [1.0, 2.5, 3.0]);
        assert_eq!(of_numbers(|x| x.top_k(2, -1).1), [2.0, 1.0, 1.0, 0.0]);
        assert_eq!(of_numbers(|x| x.sample_variance(&[0], false)), [4.5, 2.0, 24.5]);
        assert_eq!(of_numbers(|x| x.variance(&[0], true)), [2.25, 1.0, 12.25]);
        let columns = |x: &Tensor| x.builder().stack(&x.split(0, &[1, 1]), -1);
        assert_eq!(of_numbers(columns), [-2.0, 1.0, 0.5, 2.5, 3.0, -4.0]);
        let softplus = of_numbers(Tensor::softplus);
        let expected = [-2.0, 0.5, 3.0, 1.0, 2.5, -4.0].map(|x: f64| x.exp().ln_1p());
        assert!(softplus.iter().zip(expected).all(|(y, e)| (y - e).abs() < 1e-12), "{softplus:?}");
    }

    #[test]
    fn shapes_follow() {
        let g = GraphBuilder::new("places");
        let x = g.input("x", DType::F32, [2, 5, 3]);
        let places = g.input("places", DType::I64, [2, 4]);
        let values = x.gather(&places);
        assert_eq!(values.shape(), [2, 4, 3]);
        assert_eq!(x.scatter(&places, &values, ScatterFunction::Max).shape(), [2, 5, 3]);
        assert_eq!(x.scatter_add(&places, &values).shape(), [2, 5, 3]);
        assert_eq!(x.cumulative_sum(-2).shape(), [2, 5, 3]);
        let (best, at) = x.top_k(2, 1);
        assert_eq!((best.shape(), at.shape()), (vec![2, 2, 3], vec![2, 2, 3]));
        assert_eq!(x.variance(&[-1, 1], false).shape(), [2]);
        assert_eq!(g.stack(&[x.clone(), x.clone()], -1).shape(), [2, 5, 3, 2]);
        g.finish().expect("all fits");
    }

    #[test]
    fn what_does_not_fit_is_reported_once() {
        for (make, said) in [
            (|x: &Tensor| x.squeeze(1), "f32[2, 3] has no dim 1 of extent 1"),
            (
                |x: &Tensor| x.unsqueeze(-4).squeeze(0),
                "f32[2, 3] has no place for a dim -4: a new one is from -3 to 2",
            ),
            (|x: &Tensor| x.top_k(9, -1).1.unsqueeze(0), "there are no 9 of 3 elements"),
        ] as [(fn(&Tensor) -> Tensor, &str); 3]
        {
            let g = GraphBuilder::new("wrong");
            make(&g.input("x", DType::F32, [2, 3]));
            let errors = g.finish().expect_err(said).to_string();
            assert!(errors.contains(said) && errors.lines().count() == 1, "{errors}");
        }
    }
}
