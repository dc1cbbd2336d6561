//! Methods of [`Tensor`] for movement of data, normalization, losses and the rest.

use super::Tensor;

impl Tensor {}
