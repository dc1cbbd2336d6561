//! The launches of one actor, as data.

use graphc_ir::op::Op;

use super::Shard;

/// The launches of one action, in order; each launch sees what those before it have written.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The launches; none where there is nothing to compute.
    pub launches: Vec<Launch>,
    /// Bytes of memory to work in, which has nothing in it before and keeps nothing after.
    pub scratch: usize,
    /// The numbers that change from step to step and are worked out by the host.
    pub numbers: Numbers,
    /// The meaning of indices among the operands' elements, where kernels check some.
    pub checked: Option<Checked>,
    /// The table in the device's memory for a launch that takes any number of registers; empty where none does.
    pub table: Vec<Entry>,
}

/// A word of 64 bits of a call's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The distance in bytes from [`Argument::Registers`] to the content of a register, which has one address in every step.
    Place(CallRegister),
    /// A number.
    Number(u64),
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub enum Launch {
    /// A kernel in CUDA C++.
    Kernel(Kernel),
    /// Products of matrices.
    Product(MatrixProduct),
    /// Fills memory with bytes of 0.
    Clear {
        /// The memory.
        place: LaunchMemory,
        /// The number of bytes.
        bytes: usize,
    },
    /// Copies the first operand to the first result, unless they are the same memory.
    Copy {
        /// The number of bytes.
        bytes: usize,
    },
}

/// A kernel and how it is launched.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// CUDA C++, complete.
    pub source: String,
    /// The function's name, which is not mangled: it says the op that the kernel is for.
    pub entry: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of shared memory besides what the source declares.
    pub shared: u32,
    /// The arguments, in the order of the function's parameters.
    pub arguments: Vec<Argument>,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// An address, 64 bits.
    Address(LaunchMemory),
    /// The first index of the shard along a dim of the whole tensor, `long long`. It differs between microbatches.
    Origin(CallRegister, usize),
    /// `const Now*`: the step and the job's seed.
    Now,
    /// `const float*`: the call's [`Numbers`] of this step.
    Numbers,
    /// `Fault*`: where a kernel says that it found something wrong; what it was told to be is the next argument.
    Fault,
    /// `unsigned`: which of the device's calls this is, to be handed to `fault`.
    Call,
    /// `unsigned`: this number, e.g. which of several launches of one kernel it is.
    Constant(u32),
    /// `char*`: what places in the call's table are counted from.
    Registers,
    /// `const u64*`: the call's table.
    Table,
}

/// Memory that a launch reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchMemory {
    /// A register's content.
    Slot(CallRegister),
    /// The memory to work in, from this byte on, a multiple of 256.
    Scratch(usize),
}

/// A register of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRegister {
    /// An operand, by its place among them.
    Operand(usize),
    /// A result.
    Result(usize),
}

/// Products `[rows, inner] x [inner, columns]` of matrices of one element type, as many as are listed. Sums are `f32`.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixProduct {
    /// Rows of the result.
    pub rows: usize,
    /// The extent that is summed over.
    pub inner: usize,
    /// Columns of the result.
    pub columns: usize,
    /// The first factor.
    pub a: Matrix,
    /// The second.
    pub b: Matrix,
    /// The result, row-major and dense.
    pub out: Matrix,
    /// The number of products in a row. Each one's matrices lie a stride after those of the one before.
    pub batch: usize,
    /// For each such row, the positions in elements at which the first matrices of both factors and of the result begin.
    pub starts: Vec<[usize; 3]>,
    /// The memory of both factors and of the result.
    pub operands: Operands,
    /// The epilogue of sums, before they are rounded and written.
    pub epilogue: Epilogue,
    /// The launches that compute it where no library does, instead of [`own_product`](super::own_product); empty where nothing is better.
    pub instead: Vec<Launch>,
}

/// The epilogue of a product's sums: a summand of the result's shape, then one for each column, then a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epilogue {
    /// A matrix like the result, row-major and dense; it may be the result's memory.
    pub added: Option<LaunchMemory>,
    /// A vector that is added to each row: it has as many elements as the result has columns.
    pub bias: Option<LaunchMemory>,
    /// The function.
    pub activation: Activation,
    /// A matrix like the result, row-major and dense, whose rows have a multiple of [`Epilogue::KEPT`] elements. GELU writes here what
    /// it is taken of, where that is kept; the gradient of GELU reads that here.
    pub kept: Option<LaunchMemory>,
    /// Sums that come out beside the result, in a vector of its element type. Those of a factor go with no bias and no function, those
    /// of the result with the gradient of GELU alone.
    pub sums: Option<(Summed, LaunchMemory)>,
}

impl Epilogue {
    /// A divisor of the elements of a row of [`Epilogue::kept`].
    pub const KEPT: usize = 8;

    /// The one vector that goes with a product: its bias or its sums.
    pub fn vector(&self) -> Option<LaunchMemory> {
        self.bias.or(self.sums.map(|(_, place)| place))
    }
}

/// A function at the end of a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// x
    #[default]
    None,
    /// max(x, 0)
    Relu,
    /// The tanh form of GELU.
    GeluTanh,
    /// x times the slope of the tanh form of GELU at what is kept.
    GeluTanhGrad,
}

/// The matrix that is summed beside a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summed {
    /// The rows of the result, to a sum for each column.
    Result,
    /// The first factor along the extent that the product sums over, to a sum for each row of the result.
    First,
    /// The second factor along that extent, to a sum for each column of the result.
    Second,
}

/// The storage of the matrices of a factor or of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Whether it is stored column by column, e.g. because it is the transpose of what is stored.
    pub by_columns: bool,
    /// Elements between rows (or columns, where it is stored by columns).
    pub leading: usize,
    /// Elements between the matrices of a batch; 0 where all are the same.
    pub stride: usize,
}

/// The memory of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// The type of the factors' elements.
    pub dtype: graphc_ir::types::DType,
    /// The type of the result's elements: that of the factors, or f32.
    pub made: graphc_ir::types::DType,
    /// The first factor.
    pub a: LaunchMemory,
    /// The second.
    pub b: LaunchMemory,
    /// The result.
    pub out: LaunchMemory,
}

/// The needs of a call from the host in each step: numbers that follow from the step, e.g. a learning rate. Kernels read them from
/// the device's memory, so a launch is the same in every step.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Numbers {
    /// No numbers.
    #[default]
    None,
    /// The numbers of an update.
    Update(Box<Op>),
    /// The same numbers in each step, e.g. weights of an interpolation.
    Table(Vec<f32>),
}

/// The indices that a kernel checks, for the error that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// `label`, `row`.
    pub what: &'static str,
    /// The operand that holds them.
    pub operand: usize,
    /// One past the greatest.
    pub range: usize,
}

/// The table of a launch for several members: the line of each, then of each block which member it is of.
pub(super) fn build_table(lines: Vec<Vec<Entry>>, blocks: &[usize]) -> Vec<Entry> {
    let of_blocks = blocks
        .iter()
        .enumerate()
        .flat_map(|(member, &blocks)| std::iter::repeat_n(Entry::Number(member as u64), blocks));
    lines.into_iter().flatten().chain(of_blocks).collect()
}

impl Call {
    pub(super) fn from_launches(launches: Vec<Launch>) -> Self {
        Self { launches, scratch: 0, numbers: Numbers::None, checked: None, table: Vec::new() }
    }

    /// Copies so many bytes from the operand to the result.
    pub fn copy_bytes(bytes: usize) -> Self {
        Self::from_launches(vec![Launch::Copy { bytes }])
    }

    pub(super) fn empty() -> Self {
        Self::from_launches(Vec::new())
    }
}

impl Launch {
    /// Copies an operand to a result of as many bytes.
    pub(super) fn copy_operand(result: &Shard) -> Self {
        Self::Copy { bytes: result.elements() * result.dtype().size() }
    }

    /// Sets the number of rows of blocks of a kernel's grid.
    pub(super) fn with_rows(mut self, rows: usize) -> Self {
        if let Self::Kernel(kernel) = &mut self {
            kernel.grid[1] = rows as u32;
        }
        self
    }
}

impl Argument {
    pub(super) fn operand(index: usize) -> Self {
        Self::Address(LaunchMemory::Slot(CallRegister::Operand(index)))
    }

    pub(super) fn result(index: usize) -> Self {
        Self::Address(LaunchMemory::Slot(CallRegister::Result(index)))
    }

    pub(super) fn scratch(byte: usize) -> Self {
        Self::Address(LaunchMemory::Scratch(byte))
    }
}
