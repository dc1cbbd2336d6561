//! The numbers of cuBLASLt's C interface as closed enums: what is not among them is refused.

use half::{bf16, f16};

/// The result of a call, `cublasStatus_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// All is well.
    Success = 0,
    /// No handle, or no device is current.
    NotInitialized = 1,
    /// No memory for a descriptor.
    AllocFailed = 3,
    /// Arguments that are missing, or that contradict each other.
    InvalidValue = 7,
    /// The handle belongs to another device than the one that is current.
    ArchMismatch = 8,
    /// Memory that cannot be reached.
    MappingError = 11,
    /// The stream did not take the work.
    ExecutionFailed = 13,
    /// A defect of the library.
    InternalError = 14,
    /// Arguments that are sound but that no algorithm computes.
    NotSupported = 15,
    /// A licence that is missing.
    LicenseError = 16,
}

impl Status {
    /// The status of a number, if it is one.
    pub fn of(number: i32) -> Option<Status> {
        use Status::*;
        let all = [
            Success,
            NotInitialized,
            AllocFailed,
            InvalidValue,
            ArchMismatch,
            MappingError,
            ExecutionFailed,
            InternalError,
            NotSupported,
            LicenseError,
        ];
        all.into_iter().find(|status| *status as i32 == number)
    }

    /// Returns its name in C and its meaning.
    pub fn texts(self) -> (&'static std::ffi::CStr, &'static std::ffi::CStr) {
        match self {
            Status::Success => (c"CUBLAS_STATUS_SUCCESS", c"success"),
            Status::NotInitialized => (c"CUBLAS_STATUS_NOT_INITIALIZED", c"not initialized"),
            Status::AllocFailed => (c"CUBLAS_STATUS_ALLOC_FAILED", c"allocation failed"),
            Status::InvalidValue => (c"CUBLAS_STATUS_INVALID_VALUE", c"invalid value"),
            Status::ArchMismatch => (c"CUBLAS_STATUS_ARCH_MISMATCH", c"wrong device"),
            Status::MappingError => (c"CUBLAS_STATUS_MAPPING_ERROR", c"memory out of reach"),
            Status::ExecutionFailed => (c"CUBLAS_STATUS_EXECUTION_FAILED", c"launch failed"),
            Status::InternalError => (c"CUBLAS_STATUS_INTERNAL_ERROR", c"internal error"),
            Status::NotSupported => (c"CUBLAS_STATUS_NOT_SUPPORTED", c"not supported"),
            Status::LicenseError => (c"CUBLAS_STATUS_LICENSE_ERROR", c"no licence"),
        }
    }
}

/// The reason that a call is refused: the status that it returns, and a sentence for standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status that the call returns.
    pub status: Status,
    /// The mistake, with the numbers that contradict each other.
    pub reason: String,
}

/// Arguments that contradict each other.
pub fn invalid(reason: impl Into<String>) -> Refusal {
    Refusal { status: Status::InvalidValue, reason: reason.into() }
}

/// Arguments that no algorithm computes.
pub fn unsupported(reason: impl Into<String>) -> Refusal {
    Refusal { status: Status::NotSupported, reason: reason.into() }
}

/// Element types of matrices that the double multiplies, of `cudaDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// `CUDA_R_32F`
    F32,
    /// `CUDA_R_16F`
    F16,
    /// `CUDA_R_16BF`
    Bf16,
}

impl Element {
    /// The type of a number of `cudaDataType_t`.
    pub fn of(number: i32) -> Result<Element, Refusal> {
        match number {
            0 => Ok(Element::F32),
            2 => Ok(Element::F16),
            14 => Ok(Element::Bf16),
            other => Err(unsupported(format!("matrices of cudaDataType_t {other}"))),
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
        }
    }

    /// The value in little-endian bytes.
    pub fn read(self, bytes: &[u8]) -> f32 {
        match self {
            Element::F32 => f32::from_le_bytes(bytes.try_into().expect("4 bytes")),
            Element::F16 => f16::from_le_bytes(bytes.try_into().expect("2 bytes")).to_f32(),
            Element::Bf16 => bf16::from_le_bytes(bytes.try_into().expect("2 bytes")).to_f32(),
        }
    }

    /// Writes a value, rounded to nearest, ties to even.
    pub fn write(self, value: f32, bytes: &mut [u8]) {
        match self {
            Element::F32 => bytes.copy_from_slice(&value.to_le_bytes()),
            Element::F16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Element::Bf16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }
}

/// The precision of products, of `cublasComputeType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compute {
    /// `CUBLAS_COMPUTE_32F`, and the pedantic one: operands as they are, sums in f32.
    F32,
    /// `CUBLAS_COMPUTE_32F_FAST_16F`: f32 operands are rounded to f16.
    FastF16,
    /// `CUBLAS_COMPUTE_32F_FAST_16BF`: f32 operands are rounded to bf16.
    FastBf16,
    /// `CUBLAS_COMPUTE_32F_FAST_TF32`: f32 operands are rounded to 10 bits behind the point.
    FastTf32,
}

impl Compute {
    /// The compute type of a number of `cublasComputeType_t`.
    pub fn of(number: i32) -> Result<Compute, Refusal> {
        match number {
            68 | 69 => Ok(Compute::F32),
            74 => Ok(Compute::FastF16),
            75 => Ok(Compute::FastBf16),
            77 => Ok(Compute::FastTf32),
            other => Err(unsupported(format!("cublasComputeType_t {other}"))),
        }
    }

    /// An operand's value as it is multiplied.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Compute::F32 => value,
            Compute::FastF16 => f16::from_f32(value).to_f32(),
            Compute::FastBf16 => bf16::from_f32(value).to_f32(),
            Compute::FastTf32 => round_to_tf32(value),
        }
    }
}

/// Rounded to 10 bits behind the point, ties away from zero, as `cvt.rna.tf32` does.
fn round_to_tf32(value: f32) -> f32 {
    if !value.is_finite() {
        return value;
    }
    f32::from_bits(value.to_bits().wrapping_add(1 << 12) & !((1 << 13) - 1))
}

/// The operation on a product before it is stored, in parts, of `cublasLtEpilogue_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// The function of each element.
    pub function: Function,
    /// The role of the vector at the bias pointer.
    pub vector: Vector,
    /// Whether the forward function keeps what its gradient needs, or the gradient reads it.
    pub aux: bool,
}

/// The function of an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// The element itself.
    Identity,
    /// The larger of it and zero.
    Relu,
    /// Gelu by tanh.
    Gelu,
    /// The element where the mask of a `Relu` is set, else zero.
    ReluGradient,
    /// The element times the derivative of gelu at the kept input.
    GeluGradient,
}

/// The role of the bias pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vector {
    /// It is not used.
    None,
    /// Read: one summand for each row of D.
    Bias,
    /// Written: the sum of each row of D.
    RowSums,
    /// Written: the sum over k of each row of op(A).
    SumsOfA,
    /// Written: the sum over k of each column of op(B).
    SumsOfB,
}

impl Epilogue {
    /// The epilogue that does nothing.
    pub const NONE: Epilogue =
        Epilogue { function: Function::Identity, vector: Vector::None, aux: false };

    /// The epilogue of a number of `cublasLtEpilogue_t`.
    pub fn of(number: u32) -> Result<Epilogue, Refusal> {
        use Function::*;
        let (function, vector, aux) = match number {
            1 => (Identity, Vector::None, false),
            2 => (Relu, Vector::None, false),
            4 => (Identity, Vector::Bias, false),
            6 => (Relu, Vector::Bias, false),
            32 => (Gelu, Vector::None, false),
            36 => (Gelu, Vector::Bias, false),
            130 => (Relu, Vector::None, true),
            134 => (Relu, Vector::Bias, true),
            136 => (ReluGradient, Vector::None, true),
            152 => (ReluGradient, Vector::RowSums, true),
            160 => (Gelu, Vector::None, true),
            164 => (Gelu, Vector::Bias, true),
            192 => (GeluGradient, Vector::None, true),
            208 => (GeluGradient, Vector::RowSums, true),
            256 => (Identity, Vector::SumsOfA, false),
            512 => (Identity, Vector::SumsOfB, false),
            other => return Err(invalid(format!("{other} is no cublasLtEpilogue_t"))),
        };
        Ok(Epilogue { function, vector, aux })
    }

    /// Returns the name that a product with this epilogue has in the account of what was executed: `product`, `product_gelu_aux_bias`.
    pub fn name(self) -> String {
        let function = match self.function {
            Function::Identity => "",
            Function::Relu => "_relu",
            Function::Gelu => "_gelu",
            Function::ReluGradient => "_drelu",
            Function::GeluGradient => "_dgelu",
        };
        let aux = if self.aux && !self.reads_aux() { "_aux" } else { "" };
        let vector = match self.vector {
            Vector::None => "",
            Vector::Bias => "_bias",
            Vector::RowSums => "_bgrad",
            Vector::SumsOfA => "_bgrada",
            Vector::SumsOfB => "_bgradb",
        };
        format!("product{function}{aux}{vector}")
    }

    /// Whether the aux buffer is a mask of bits.
    pub fn masks(self) -> bool {
        matches!(self.function, Function::Relu | Function::ReluGradient)
    }

    /// Whether the aux buffer is read, not written.
    pub fn reads_aux(self) -> bool {
        matches!(self.function, Function::ReluGradient | Function::GeluGradient)
    }
}

/// The order of the elements of a matrix, of `cublasLtOrder_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Columns one after another.
    Column,
    /// Rows one after another.
    Row,
}

impl Order {
    /// The order of a number of `cublasLtOrder_t`.
    pub fn of(number: i32) -> Result<Order, Refusal> {
        match number {
            0 => Ok(Order::Column),
            1 => Ok(Order::Row),
            other => Err(unsupported(format!("matrices in cublasLtOrder_t {other}"))),
        }
    }
}

/// The memory in which alpha and beta are, of `cublasLtPointerMode_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PointerMode {
    /// In the host's memory, read during the call.
    Host,
    /// In the device's memory, read when the product is computed.
    Device,
}

impl PointerMode {
    /// The pointer mode of a number of `cublasLtPointerMode_t`.
    pub fn of(number: i32) -> Result<PointerMode, Refusal> {
        match number {
            0 => Ok(PointerMode::Host),
            1 => Ok(PointerMode::Device),
            2..=4 => {
                Err(unsupported(format!("cublasLtPointerMode_t {number}, a vector of alphas")))
            }
            other => Err(invalid(format!("{other} is no cublasLtPointerMode_t"))),
        }
    }
}

/// Whether an operand is transposed, of `cublasOperation_t`; conjugation of real numbers is nothing.
pub fn transposed(number: i32) -> Result<bool, Refusal> {
    match number {
        0 => Ok(false),
        1 | 2 => Ok(true),
        other => Err(invalid(format!("{other} is no cublasOperation_t"))),
    }
}
