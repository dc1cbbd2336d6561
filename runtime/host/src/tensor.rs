//! Tensors in the memory of the host: what goes into a session and comes out of it.

use std::sync::Arc;

use graphc_ir::float8::{E4M3, E5M2};
use graphc_ir::types::{DType, TensorType};
use half::{bf16, f16};

/// A whole tensor: row-major elements in the machine's byte order. Clones share the elements until one is written.
#[derive(Clone, PartialEq)]
pub struct HostTensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Arc<Vec<u8>>,
}

/// A tensor that is not what its type says.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// More or fewer elements than the shape has.
    #[error("{ty} has {} elements, {} bytes, but {found} bytes are given", ty.elements(), ty.bytes())]
    Size {
        /// The type.
        ty: TensorType,
        /// Bytes given.
        found: usize,
    },
    /// Elements of another type than asked for.
    #[error("a tensor of {found} where {expected} is needed")]
    DType {
        /// The element type that was asked for.
        expected: DType,
        /// The element type of the tensor.
        found: DType,
    },
    /// Shards that do not fit their layout.
    #[error("the shards do not fit the layout: {0}")]
    Layout(String),
}

graphc_ir::readable_debug!(TensorError);

impl HostTensor {
    /// Makes a tensor of these bytes.
    ///
    /// # Errors
    /// Where their number is not that of the type.
    pub fn new(
        dtype: DType,
        shape: impl Into<Vec<usize>>,
        bytes: Vec<u8>,
    ) -> Result<Self, TensorError> {
        let shape = shape.into();
        let ty = TensorType { dtype, shape };
        if ty.bytes() != bytes.len() {
            return Err(TensorError::Size { ty, found: bytes.len() });
        }
        Ok(Self { dtype, shape: ty.shape, bytes: Arc::new(bytes) })
    }

    /// Makes a tensor of zeros.
    pub fn zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        let shape = shape.into();
        let bytes = vec![0; shape.iter().product::<usize>() * dtype.size()];
        Self { dtype, shape, bytes: Arc::new(bytes) }
    }

    /// Makes a tensor of `f32`.
    ///
    /// # Errors
    /// Where the number of elements is not that of the shape.
    pub fn from_f32(shape: impl Into<Vec<usize>>, data: &[f32]) -> Result<Self, TensorError> {
        Self::new(DType::F32, shape, data.iter().flat_map(|x| x.to_ne_bytes()).collect())
    }

    /// Makes a tensor of `i64`.
    ///
    /// # Errors
    /// Where the number of elements is not that of the shape.
    pub fn from_i64(shape: impl Into<Vec<usize>>, data: &[i64]) -> Result<Self, TensorError> {
        Self::new(DType::I64, shape, data.iter().flat_map(|x| x.to_ne_bytes()).collect())
    }

    /// Makes a tensor of any element type, each number rounded to it once (integers: towards zero).
    ///
    /// # Errors
    /// Where the number of elements is not that of the shape.
    pub fn from_f64(
        dtype: DType,
        shape: impl Into<Vec<usize>>,
        data: &[f64],
    ) -> Result<Self, TensorError> {
        let mut bytes = vec![0; data.len() * dtype.size()];
        for (element, &number) in bytes.chunks_exact_mut(dtype.size()).zip(data) {
            write_element(dtype, number, element);
        }
        Self::new(dtype, shape, bytes)
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the extent of each dim.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the elements as bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.bytes).as_mut_slice()
    }

    /// Whether no element is infinite or no number.
    pub fn is_finite(&self) -> bool {
        is_finite(self.dtype(), self.bytes())
    }

    /// Returns element type and shape.
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.shape.clone() }
    }

    /// Returns the elements of a tensor of `f32`.
    ///
    /// # Errors
    /// Where the element type is another.
    pub fn to_f32(&self) -> Result<Vec<f32>, TensorError> {
        self.expect_dtype(DType::F32)?;
        Ok(iter_words(&self.bytes).map(f32::from_ne_bytes).collect())
    }

    /// Returns the elements of a tensor of `i64`.
    ///
    /// # Errors
    /// Where the element type is another.
    pub fn to_i64(&self) -> Result<Vec<i64>, TensorError> {
        self.expect_dtype(DType::I64)?;
        Ok(iter_words(&self.bytes).map(i64::from_ne_bytes).collect())
    }

    /// Returns the elements of any element type as `f64` (integers beyond 2^53 are rounded).
    pub fn to_f64(&self) -> Vec<f64> {
        self.bytes.chunks_exact(self.dtype.size()).map(|e| read_element(self.dtype, e)).collect()
    }

    fn expect_dtype(&self, expected: DType) -> Result<(), TensorError> {
        if self.dtype == expected {
            return Ok(());
        }
        Err(TensorError::DType { expected, found: self.dtype })
    }
}

/// Returns the elements of `N` bytes each.
fn iter_words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

/// Whether no element of a type is infinite or no number: of its bytes, in the order of the machine. Integers are finite.
pub fn is_finite(dtype: DType, bytes: &[u8]) -> bool {
    match dtype {
        DType::F32 => {
            let exponent = |element: &[u8; 4]| u32::from_ne_bytes(*element) & 0x7f80_0000;
            bytes.as_chunks::<4>().0.iter().all(|element| exponent(element) != 0x7f80_0000)
        }
        DType::BF16 => are_finite_halves(bytes, 0x7f80),
        DType::F16 => are_finite_halves(bytes, 0x7c00),
        _ => true,
    }
}

/// Whether the exponent of no element has all bits of its mask.
fn are_finite_halves(bytes: &[u8], exponent: u16) -> bool {
    let bits = |element: &[u8; 2]| u16::from_ne_bytes(*element) & exponent;
    bytes.as_chunks::<2>().0.iter().all(|element| bits(element) != exponent)
}

/// Reads one element as a number. `element` has the size of the element type.
pub(crate) fn read_element(dtype: DType, element: &[u8]) -> f64 {
    let mut word = [0; 8];
    word[..element.len()].copy_from_slice(element);
    let [a, b, c, d, ..] = word;
    match dtype {
        DType::F32 => f64::from(f32::from_ne_bytes([a, b, c, d])),
        DType::F16 => f16::from_ne_bytes([a, b]).to_f64(),
        DType::BF16 => bf16::from_ne_bytes([a, b]).to_f64(),
        DType::I64 => i64::from_ne_bytes(word) as f64,
        DType::I32 => f64::from(i32::from_ne_bytes([a, b, c, d])),
        DType::U8 | DType::Bool => f64::from(a),
        DType::F8E4M3 => E4M3.decode(a).into(),
        DType::F8E5M2 => E5M2.decode(a).into(),
    }
}

/// Writes a number as one element. `element` has the size of the element type.
pub fn write_element(dtype: DType, number: f64, element: &mut [u8]) {
    match dtype {
        DType::F32 => element.copy_from_slice(&(number as f32).to_ne_bytes()),
        DType::F16 => element.copy_from_slice(&f16::from_f64(number).to_ne_bytes()),
        DType::BF16 => element.copy_from_slice(&bf16::from_f64(number).to_ne_bytes()),
        DType::I64 => element.copy_from_slice(&(number as i64).to_ne_bytes()),
        DType::I32 => element.copy_from_slice(&(number as i32).to_ne_bytes()),
        DType::U8 => element.copy_from_slice(&[number as u8]),
        DType::Bool => element.copy_from_slice(&[u8::from(number != 0.0)]),
        DType::F8E4M3 => element.copy_from_slice(&[E4M3.encode(number as f32)]),
        DType::F8E5M2 => element.copy_from_slice(&[E5M2.encode(number as f32)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_every_element_type() {
        for dtype in DType::ALL {
            let tensor = HostTensor::from_f64(dtype, [3], &[0.0, 1.0, 1.0]).expect("3 elements");
            assert_eq!(tensor.to_f64(), [0.0, 1.0, 1.0], "{dtype}");
        }
    }

    #[test]
    fn a_clone_keeps_its_elements_when_the_other_is_written() {
        let mut tensor = HostTensor::from_f32([2], &[1.0, 2.0]).expect("2 elements");
        let clone = tensor.clone();
        assert_eq!(clone.bytes().as_ptr(), tensor.bytes().as_ptr());
        tensor.bytes_mut().fill(0);
        assert_eq!((clone.to_f64(), tensor.to_f64()), (vec![1.0, 2.0], vec![0.0, 0.0]));
    }

    #[test]
    fn a_wrong_number_of_elements_is_an_error() {
        let error = HostTensor::from_f32([2, 2], &[1.0]).expect_err("1 is not 4");
        assert_eq!(error.to_string(), "f32[2, 2] has 4 elements, 16 bytes, but 4 bytes are given");
    }
}
