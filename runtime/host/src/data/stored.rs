//! Element types that files have and graphc lacks: they are read as a type that graphc has.

use graphc_ir::types::DType;
use safetensors::tensor::Dtype;

/// The elements of a tensor in a file, and the type that they are read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredElements {
    stored: Dtype,
    /// The type of the elements that are read.
    pub dtype: DType,
}

impl StoredElements {
    /// Returns how elements of a file are read: as they are where graphc has the type, narrow integers as wider ones of the same value, and
    /// binary64 rounded to binary32. It is `None` where there is no such type, e.g. for complex numbers.
    pub(super) fn of_file(stored: Dtype) -> Option<Self> {
        let dtype = match stored {
            Dtype::F32 | Dtype::F64 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::I64 | Dtype::U32 => DType::I64,
            Dtype::I32 | Dtype::I16 | Dtype::U16 | Dtype::I8 => DType::I32,
            Dtype::U8 => DType::U8,
            Dtype::BOOL => DType::Bool,
            _ => return None,
        };
        Some(Self { stored, dtype })
    }

    /// Whether the bytes of a file are those that are read.
    pub(super) fn are_same(self) -> bool {
        super::file_dtype(self.dtype) == self.stored
    }

    /// Returns the size of one element in the file, in bytes.
    pub(super) fn size(self) -> usize {
        match self.stored {
            Dtype::F64 => 8,
            Dtype::U32 => 4,
            Dtype::I16 | Dtype::U16 => 2,
            Dtype::I8 => 1,
            _ => self.dtype.size(),
        }
    }

    /// Converts elements of a file to as many of the type that is read.
    pub(super) fn convert(self, from: &[u8], into: &mut [u8]) {
        match self.stored {
            Dtype::F64 => {
                each(from, into, |bytes| (f64::from_le_bytes(bytes) as f32).to_le_bytes())
            }
            Dtype::U32 => {
                each(from, into, |bytes| i64::from(u32::from_le_bytes(bytes)).to_le_bytes())
            }
            Dtype::I16 => {
                each(from, into, |bytes| i32::from(i16::from_le_bytes(bytes)).to_le_bytes())
            }
            Dtype::U16 => {
                each(from, into, |bytes| i32::from(u16::from_le_bytes(bytes)).to_le_bytes())
            }
            Dtype::I8 => {
                each(from, into, |bytes| i32::from(i8::from_le_bytes(bytes)).to_le_bytes())
            }
            _ => into.copy_from_slice(from),
        }
    }
}

fn each<const N: usize, const M: usize>(
    from: &[u8],
    into: &mut [u8],
    convert: impl Fn([u8; N]) -> [u8; M],
) {
    for (from, into) in from.as_chunks().0.iter().zip(into.as_chunks_mut().0) {
        *into = convert(*from);
    }
}
