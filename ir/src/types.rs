//! Element types and tensor types.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::float8::{E4M3, E5M2, Float8Format};

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    BF16,
    /// The 8-bit number E4M3 without infinities ([`crate::float8`]). Only operands of products are of this type, see
    /// `compiler/src/passes/float8`.
    F8E4M3,
    /// The 8-bit number E5M2 ([`crate::float8`]), for gradients.
    F8E5M2,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 8-bit integer.
    U8,
    /// A truth value in one byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 9] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::I64,
        Self::I32,
        Self::U8,
        Self::Bool,
        Self::F8E4M3,
        Self::F8E5M2,
    ];

    /// Returns the size of one element, in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::U8 | Self::Bool | Self::F8E4M3 | Self::F8E5M2 => 1,
        }
    }

    /// Returns whether elements are floating-point numbers that arithmetic takes: all but those of 8 bits.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Returns whether elements are floating-point numbers, those of 8 bits too.
    pub fn holds_floats(self) -> bool {
        self.is_float() || self.is_float8()
    }

    /// Returns whether elements are floating-point numbers of 8 bits.
    pub fn is_float8(self) -> bool {
        self.float8_format().is_some()
    }

    /// Returns the format of elements that are floating-point numbers of 8 bits.
    pub fn float8_format(self) -> Option<Float8Format> {
        match self {
            Self::F8E4M3 => Some(E4M3),
            Self::F8E5M2 => Some(E5M2),
            _ => None,
        }
    }

    /// Returns whether arithmetic takes such elements: all but truth values and floating-point numbers of 8 bits.
    pub fn is_numeric(self) -> bool {
        self != Self::Bool && !self.is_float8()
    }

    /// Returns the name of the type in the text format, e.g. `f32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U8 => "u8",
            Self::Bool => "bool",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name() == text)
            .ok_or_else(|| format!("`{text}` is no element type"))
    }
}

/// Element type and extents of a tensor. Extents count elements; a dim may be 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The extent of each dim, outermost first.
    pub shape: Vec<usize>,
}

impl TensorType {
    /// Makes a tensor type.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self { dtype, shape: shape.into() }
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the size of all elements, in bytes.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }
}

impl fmt::Display for TensorType {
    /// Writes the type as text, e.g. `f32[4, 8]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// The dim of a fed or fetched tensor that counts samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Samples {
    /// The first dim; a scalar has none.
    #[default]
    First,
    /// This dim, e.g. 1 of states `[layers, samples, width]`.
    Dim(usize),
    /// No dim: the whole tensor belongs to every step, e.g. a table.
    Whole,
}

impl Samples {
    /// Returns the value that says that this dim counts samples.
    pub fn along_dim(dim: usize) -> Self {
        if dim == 0 { Self::First } else { Self::Dim(dim) }
    }

    /// Returns the dim that counts samples in a tensor of this rank; `None` where it has none.
    pub fn dim(self, rank: usize) -> Option<usize> {
        match self {
            Self::First => (rank > 0).then_some(0),
            Self::Dim(dim) => (dim < rank).then_some(dim),
            Self::Whole => None,
        }
    }

    /// Returns the number of samples of a tensor of this shape; `None` where no dim counts them.
    pub fn count_samples(self, shape: &[usize]) -> Option<usize> {
        self.dim(shape.len()).map(|dim| shape[dim])
    }

    /// Returns whether the first dim counts samples, which a file need not say.
    pub fn is_first(&self) -> bool {
        *self == Self::First
    }
}

/// Returns the row-major strides of a shape, in elements.
pub fn row_major_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    strides
}

/// Returns the row-major position of an index in a shape.
pub(crate) fn row_major_position(index: impl Iterator<Item = usize>, shape: &[usize]) -> usize {
    let mut extents = shape.iter();
    let position =
        index.zip(extents.by_ref()).fold(0, |position, (i, extent)| position * extent + i);
    // Of an index of the first dims: the position of the first element there.
    position * extents.product::<usize>()
}

/// The binary units of memory, largest first.
const UNITS: [(&str, u64); 4] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Writes bytes of memory by two decimals in the largest unit up to GiB of which there is at least one: `1.50 MiB`.
pub fn format_bytes(bytes: u64) -> String {
    write_in_unit(bytes, 2, &UNITS[1..])
}

/// Writes bytes of memory by one decimal in the largest unit up to TiB of which there is at least one, as tables do: `1.5 MiB`.
pub fn format_bytes_briefly(bytes: u64) -> String {
    write_in_unit(bytes, 1, &UNITS)
}

fn write_in_unit(bytes: u64, decimals: usize, units: &[(&str, u64)]) -> String {
    let unit = units.iter().find(|(_, unit)| bytes >= *unit);
    unit.map_or(format!("{bytes} B"), |(name, unit)| {
        format!("{:.decimals$} {name}", bytes as f64 / *unit as f64)
    })
}
