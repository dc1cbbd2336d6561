//! Elements that can be communicated: slices and vectors of the element types, and host tensors. The `unsafe` of this
//! module is here: elements are seen as the bytes that they are.

use graphc_comm::transport::Body;
use graphc_host::tensor::HostTensor;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::copy::copy_part;

/// An IEEE 754 binary16, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F16(pub u16);

/// A bfloat16, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl From<f32> for F16 {
    fn from(value: f32) -> Self {
        Self(f16::from_f32(value).to_bits())
    }
}

impl From<F16> for f32 {
    fn from(value: F16) -> Self {
        f16::from_bits(value.0).to_f32()
    }
}

impl From<f32> for Bf16 {
    fn from(value: f32) -> Self {
        Self(bf16::from_f32(value).to_bits())
    }
}

impl From<Bf16> for f32 {
    fn from(value: Bf16) -> Self {
        bf16::from_bits(value.0).to_f32()
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type whose values are elements of tensors: plain bytes without gaps.
pub trait TensorElement: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// The element type.
    const DTYPE: DType;
}

/// Memory that holds elements of one type.
pub trait ElementBuffer: sealed::Sealed {
    /// Returns the element type.
    fn dtype(&self) -> DType;

    /// Returns the elements as bytes.
    fn as_bytes(&self) -> &[u8];

    /// Returns the elements as bytes, to be written.
    ///
    /// # Safety
    /// What is written are elements: truth values are 0 or 1.
    unsafe fn as_bytes_mut(&mut self) -> &mut [u8];
}

/// Declares element types.
macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl TensorElement for $type {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements!(f32 => F32, F16 => F16, Bf16 => BF16, i64 => I64, i32 => I32, u8 => U8, bool => Bool);

impl<T: TensorElement> sealed::Sealed for [T] {}
impl sealed::Sealed for HostTensor {}

impl<T: TensorElement> ElementBuffer for [T] {
    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn as_bytes(&self) -> &[u8] {
        // SAFETY: elements are initialized bytes without gaps, and bytes need no alignment.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), size_of_val(self)) }
    }

    unsafe fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; what may be written is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), size_of_val(self)) }
    }
}

/// Declares what has its elements in a slice.
macro_rules! slices {
    ([$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> sealed::Sealed for $type {}
        impl<$($generics)*> ElementBuffer for $type {
            fn dtype(&self) -> DType {
                T::DTYPE
            }

            fn as_bytes(&self) -> &[u8] {
                self.as_slice().as_bytes()
            }

            unsafe fn as_bytes_mut(&mut self) -> &mut [u8] {
                // SAFETY: the caller's promise is the same.
                unsafe { self.as_mut_slice().as_bytes_mut() }
            }
        }
    };
}

slices!([T: TensorElement] Vec<T>);
slices!([T: TensorElement, const N: usize] [T; N]);

impl ElementBuffer for HostTensor {
    fn dtype(&self) -> DType {
        HostTensor::dtype(self)
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes()
    }

    unsafe fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

/// Returns a buffer's elements to be written by this module, which writes elements alone ([`write_elements`],
/// [`crate::rectangles::fold_elements`]).
pub(super) fn writable_bytes<B: ElementBuffer + ?Sized>(buffer: &mut B) -> &mut [u8] {
    // SAFETY: `write_elements` makes truth values of what peers send, and folds of truth values are truth values.
    unsafe { buffer.as_bytes_mut() }
}

/// Writes a part of the `whole` bytes that a peer sends, who may be wrong about truth values.
pub(super) fn write_elements(dtype: DType, into: &mut [u8], from: Body<'_>, whole: usize) {
    match from {
        Body::Here(from) => copy_part(into, from, whole),
        Body::There(_, from) => from(into),
    }
    if dtype == DType::Bool {
        into.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
    }
}
