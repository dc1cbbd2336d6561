//! The text of kernels: macros in front of a file of CUDA C++, and expressions of positions.

use std::fmt::Write;

use graphc_ir::float8::{E4M3, E5M2};
use graphc_ir::types::DType;

use super::Shard;
use super::call::{Argument, CallRegister, Kernel, Launch};

/// The text that all kernels begin with.
const COMMON: &str = include_str!("cu/common.cuh");

/// The text about floating-point numbers of 8 bits, for kernels that name them.
const FLOAT8: &str = include_str!("cu/float8.cuh");

/// The source of one kernel: macros, then the file that uses them.
#[derive(Clone, Debug)]
pub(super) struct KernelSource {
    macros: String,
    body: String,
}

impl KernelSource {
    pub(super) fn new(body: impl Into<String>) -> Self {
        Self { macros: String::new(), body: body.into() }
    }

    /// `#define NAME value`.
    pub(super) fn define(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        // Writing to a string cannot fail.
        let _ = writeln!(self.macros, "#define {name} {value}");
        self
    }

    /// Appends more text to the file.
    pub(super) fn followed_by(mut self, body: &str) -> Self {
        self.body = format!("{}\n{body}", self.body);
        self
    }

    /// Macros for both dims of an image, `NAME_H` and `NAME_W`.
    pub(super) fn define_pair(self, name: &str, [height, width]: [usize; 2]) -> Self {
        self.define(&format!("{name}_H"), height).define(&format!("{name}_W"), width)
    }

    /// A macro for an element type.
    pub(super) fn define_element(self, name: &str, dtype: DType) -> Self {
        self.define(name, element_type(dtype))
    }

    /// A macro that is 1 or 0.
    pub(super) fn define_flag(self, name: &str, value: bool) -> Self {
        self.define(name, u8::from(value))
    }

    /// The macro `INDEX`, the type of positions among so many elements.
    pub(super) fn define_index(self, elements: usize) -> Self {
        // A block's threads beyond the end have positions too.
        self.define("INDEX", index_type(elements + (1 << 14)))
    }

    /// A macro for a number of 64 bits with the bits that it has.
    pub(super) fn define_double(self, name: &str, value: f64) -> Self {
        self.define(name, f64_literal(value))
    }

    /// A macro for a number with the bits that it has.
    pub(super) fn define_number(self, name: &str, value: f32) -> Self {
        self.define(name, f32_literal(value))
    }

    pub(super) fn text(self) -> String {
        let names_float8 = |text: &str| {
            ["e4m3_t", "e5m2_t", "float8_scale"].iter().any(|name| text.contains(name))
        };
        let float8 =
            if names_float8(&self.macros) || names_float8(&self.body) { FLOAT8 } else { "" };
        format!("{COMMON}\n{float8}{}\n{}", self.macros, self.body)
    }
}

impl Launch {
    /// A kernel of blocks of `threads` threads along one dim.
    pub(super) fn kernel(
        source: KernelSource,
        entry: &'static str,
        blocks: usize,
        threads: usize,
        arguments: Vec<Argument>,
    ) -> Self {
        let grid = [blocks as u32, 1, 1];
        let block = [threads as u32, 1, 1];
        let (source, entry) = (source.text(), entry.to_owned());
        Self::Kernel(Kernel { source, entry, grid, block, shared: 0, arguments })
    }
}

/// The C++ type of an element in memory.
pub(super) fn element_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F16 => "half_t",
        DType::BF16 => "bfloat_t",
        DType::I64 => "i64",
        DType::I32 => "int",
        DType::U8 => "u8",
        DType::Bool => "bool_t",
        DType::F8E4M3 => "e4m3_t",
        DType::F8E5M2 => "e5m2_t",
    }
}

/// An `f32` with all its bits, whatever it is.
pub(super) fn f32_literal(value: f32) -> String {
    format!("__uint_as_float({:#010x}u)", value.to_bits())
}

/// An `f64` with all its bits, whatever it is.
pub(super) fn f64_literal(value: f64) -> String {
    format!("__longlong_as_double((long long){:#018x}ull)", value.to_bits())
}

/// The unsigned type of so many bytes, in which elements are moved whatever they are: a power of two up to 16.
pub(super) fn word_type(bytes: usize) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        8 => "u64",
        _ => "Vec<u32, 4>",
    }
}

/// An element as memory has it: its bits, in the low ones of 64.
pub(super) fn element_bits(dtype: DType, value: f64) -> u64 {
    match dtype {
        DType::F32 => (value as f32).to_bits().into(),
        DType::F16 => half::f16::from_f64(value).to_bits().into(),
        DType::BF16 => half::bf16::from_f64(value).to_bits().into(),
        DType::I64 => value as i64 as u64,
        DType::I32 => (value as i64 as u32).into(),
        DType::U8 => (value as i64 as u8).into(),
        DType::Bool => u64::from(value != 0.0),
        DType::F8E4M3 => E4M3.encode(value as f32).into(),
        DType::F8E5M2 => E5M2.encode(value as f32).into(),
    }
}

/// The type that positions among so many elements are computed in.
pub(super) fn index_type(elements: usize) -> &'static str {
    if elements < 1 << 31 { "u32" } else { "u64" }
}

/// Returns the C++ expression of the position of the element with a row-major `index` over `extents`, where each dim has the given stride
/// (0 where it repeats). It is a sum of quotients and remainders by constants.
pub(super) fn position_expression(extents: &[usize], strides: &[usize], index: &str) -> String {
    let mut terms = Vec::new();
    let runs = join_runs(extents, strides);
    let whole: usize = runs.iter().map(|run| run.0).product();
    let mut inner = 1;
    for &(extent, stride) in runs.iter().rev() {
        let mut term = match inner {
            1 => index.to_owned(),
            _ => format!("({index}) / {inner}"),
        };
        if inner * extent < whole {
            term = format!("({term}) % {extent}");
        }
        match stride {
            0 => {}
            1 => terms.push(format!("({term})")),
            _ => terms.push(format!("({term}) * {stride}")),
        }
        inner *= extent;
    }
    if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
}

/// The widest access, in elements of `size` bytes, up to 16 bytes, that divides all of these numbers of elements.
pub(super) fn access_width(size: usize, divides: impl IntoIterator<Item = usize> + Clone) -> usize {
    let mut width = 16 / size;
    while width > 1 && !divides.clone().into_iter().all(|number| number.is_multiple_of(width)) {
        width /= 2;
    }
    width
}

/// The position of a shard's elements in the whole tensor.
pub(super) struct Whole {
    /// The parameters for the dims of which a shard has a part, each behind a comma.
    pub(super) parameters: String,
    /// The arguments for them.
    pub(super) arguments: Vec<Argument>,
    /// The row-major position in the whole of element `i`, `u64`.
    pub(super) position: String,
}

impl Whole {
    pub(super) fn from_shard(slot: CallRegister, shard: &Shard) -> Self {
        let strides = graphc_ir::types::row_major_strides(&shard.global);
        let mut position = format!("(u64)({})", position_expression(shard.shape(), &strides, "i"));
        let (mut parameters, mut arguments) = (String::new(), Vec::new());
        for (dim, stride) in strides.iter().enumerate() {
            if shard.shape()[dim] != shard.global[dim] {
                // Writing to a string cannot fail.
                let _ = write!(parameters, ", i64 origin{dim}");
                let _ = write!(position, " + (u64)origin{dim} * {stride}ull");
                arguments.push(Argument::Origin(slot, dim));
            }
        }
        Self { parameters, arguments, position }
    }
}

/// Dims joined where one position after the other has one stride: (extent, stride) of each run.
pub(super) fn join_runs(extents: &[usize], strides: &[usize]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (&extent, &stride) in extents.iter().zip(strides).filter(|&(&extent, _)| extent != 1) {
        match runs.last_mut() {
            Some(last) if last.1 == stride * extent => *last = (last.0 * extent, stride),
            _ => runs.push((extent, stride)),
        }
    }
    runs
}

/// The stride of each dim of `to` in an operand that broadcasts to it; 0 where it repeats.
pub(super) fn broadcast_strides(operand: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let skip = to.len().checked_sub(operand.len())?;
    let mut strides = vec![0; to.len()];
    let mut stride = 1;
    for dim in (0..operand.len()).rev() {
        match operand[dim] {
            extent if extent == to[skip + dim] => strides[skip + dim] = stride,
            1 => {}
            _ => return None,
        }
        stride *= operand[dim];
    }
    Some(strides)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of an expression of positions, by trying it in Rust.
    fn brute(extents: &[usize], strides: &[usize], index: usize) -> usize {
        let mut rest = index;
        let mut position = 0;
        for (&extent, &stride) in extents.iter().zip(strides).rev() {
            position += rest % extent * stride;
            rest /= extent;
        }
        position
    }

    #[test]
    fn dims_that_follow_each_other_are_one_run() {
        assert_eq!(join_runs(&[2, 3, 4], &[12, 4, 1]), [(24, 1)]);
        assert_eq!(join_runs(&[2, 3, 4], &[0, 0, 1]), [(6, 0), (4, 1)]);
        assert_eq!(join_runs(&[2, 1, 4], &[4, 0, 1]), [(8, 1)]);
        assert_eq!(position_expression(&[2, 3, 4], &[0, 0, 1], "i"), "((i) % 4)");
        assert_eq!(position_expression(&[2, 3, 4], &[1, 0, 0], "i"), "((i) / 12)");
        assert_eq!(position_expression(&[5], &[0], "i"), "0");
    }

    #[test]
    fn runs_have_the_positions_of_their_dims() {
        let cases: [(&[usize], &[usize]); 4] = [
            (&[2, 3, 4], &[12, 4, 1]),
            (&[2, 3, 4], &[4, 0, 1]),
            (&[3, 1, 5], &[5, 7, 1]),
            (&[4, 3], &[1, 4]),
        ];
        for (extents, strides) in cases {
            let joined: (Vec<usize>, Vec<usize>) = join_runs(extents, strides).into_iter().unzip();
            for index in 0..extents.iter().product() {
                assert_eq!(
                    brute(&joined.0, &joined.1, index),
                    brute(extents, strides, index),
                    "{extents:?} {strides:?}"
                );
            }
        }
    }
}
