//! Tensors as text: numbers in brackets, a pair for each dim, of long dims the ends alone.

use std::fmt::{self, Display, Formatter};

use graphc_ir::types::{DType, row_major_strides};

use crate::tensor::{HostTensor, read_element};

/// Elements up to which all are shown.
const ALL: usize = 1000;
/// The number of elements that are shown at each end of a dim of longer tensors.
const ENDS: usize = 3;

impl Display for HostTensor {
    /// `[[1, 2.5], [3, 4]]`; an alternate form (`{:#}`) has a line for each row.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ends = if self.shape().iter().product::<usize>() > ALL { ENDS } else { usize::MAX / 2 };
        ShownTensor { tensor: self, strides: row_major_strides(self.shape()), ends }
            .write_dim(0, 0, f)
    }
}

impl fmt::Debug for HostTensor {
    /// `f32[2, 2] [[1, 2.5], [3, 4]]`
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {self}", self.ty())
    }
}

struct ShownTensor<'a> {
    tensor: &'a HostTensor,
    strides: Vec<usize>,
    ends: usize,
}

impl ShownTensor<'_> {
    /// Writes the part that begins at element `at` and has the dims from `dim` on.
    fn write_dim(&self, dim: usize, at: usize, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(&extent) = self.tensor.shape().get(dim) else { return self.write_number(at, f) };
        f.write_str("[")?;
        let mut first = true;
        for index in (0..extent).filter(|&i| i <= self.ends || i + self.ends >= extent) {
            if !std::mem::take(&mut first) {
                self.write_separator(dim, f)?;
            }
            match index == self.ends && index + self.ends < extent {
                true => f.write_str("..")?,
                false => self.write_dim(dim + 1, at + index * self.strides[dim], f)?,
            }
        }
        f.write_str("]")
    }

    /// Writes the separator between two parts of a dim.
    fn write_separator(&self, dim: usize, f: &mut Formatter<'_>) -> fmt::Result {
        let inner = self.tensor.shape().len() - dim - 1;
        match f.alternate() && inner > 0 {
            true => write!(f, ",{}{:width$}", "\n".repeat(inner), "", width = dim + 1),
            false => f.write_str(", "),
        }
    }

    fn write_number(&self, at: usize, f: &mut Formatter<'_>) -> fmt::Result {
        let dtype = self.tensor.dtype();
        let size = dtype.size();
        let bytes = &self.tensor.bytes()[at * size..(at + 1) * size];
        match dtype {
            DType::I64 => {
                write!(f, "{}", bytes.first_chunk().map_or(0, |b| i64::from_ne_bytes(*b)))
            }
            DType::Bool => write!(f, "{}", bytes[0] != 0),
            DType::F32
            | DType::F16
            | DType::BF16
            | DType::I32
            | DType::U8
            | DType::F8E4M3
            | DType::F8E5M2 => {
                let number = read_element(dtype, bytes);
                match dtype.holds_floats() {
                    true => write!(f, "{}", number as f32),
                    false => write!(f, "{number}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_in_brackets() {
        let show = |shape: &[usize], data: &[f64]| {
            HostTensor::from_f64(DType::F32, shape, data).expect("it fits").to_string()
        };
        assert_eq!(show(&[], &[0.1]), "0.1");
        assert_eq!(show(&[2, 2], &[1.0, 2.5, -3.0, 4.0]), "[[1, 2.5], [-3, 4]]");
        assert_eq!(show(&[2, 0], &[]), "[[], []]");
        let rows = HostTensor::from_i64([2, 2], &[1, 2, 3, i64::MAX]).expect("it fits");
        assert_eq!(format!("{rows:#}"), "[[1, 2],\n [3, 9223372036854775807]]");
        assert_eq!(format!("{rows:?}"), "i64[2, 2] [[1, 2], [3, 9223372036854775807]]");
    }

    #[test]
    fn of_long_dims_the_ends_are_shown() {
        let data: Vec<f64> = (0..2000).map(f64::from).collect();
        let long = HostTensor::from_f64(DType::I32, [2000], &data).expect("it fits");
        assert_eq!(long.to_string(), "[0, 1, 2, .., 1997, 1998, 1999]");
    }
}
