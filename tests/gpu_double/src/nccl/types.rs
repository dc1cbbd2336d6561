//! The numbers of NCCL's C interface as closed enums.

use std::ffi::CStr;

use serde::{Deserialize, Serialize};

/// The result of a call, `ncclResult_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// All is well.
    Success = 0,
    /// The driver refuses something.
    UnhandledCudaError = 1,
    /// Nobody answers.
    SystemError = 2,
    /// A defect of the library.
    InternalError = 3,
    /// An argument that cannot be.
    InvalidArgument = 4,
    /// Arguments that are sound, in the wrong place.
    InvalidUsage = 5,
    /// Another rank is gone.
    RemoteError = 6,
    /// Not done yet.
    InProgress = 7,
}

impl Code {
    /// Returns its meaning.
    pub fn text(self) -> &'static CStr {
        match self {
            Code::Success => c"no error",
            Code::UnhandledCudaError => c"unhandled cuda error",
            Code::SystemError => c"unhandled system error",
            Code::InternalError => c"internal error",
            Code::InvalidArgument => c"invalid argument",
            Code::InvalidUsage => c"invalid usage",
            Code::RemoteError => c"remote process exited or there was a network error",
            Code::InProgress => c"NCCL operation in progress",
        }
    }

    /// The meaning of any number.
    pub fn text_of(number: i32) -> &'static CStr {
        use Code::*;
        let all = [
            Success,
            UnhandledCudaError,
            SystemError,
            InternalError,
            InvalidArgument,
            InvalidUsage,
            RemoteError,
            InProgress,
        ];
        let known = all.into_iter().find(|code| *code as i32 == number);
        known.map_or(c"unknown result code", Code::text)
    }
}

/// The reason that a call is refused: the code that it returns, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The code that the call returns.
    pub code: Code,
    /// The mistake.
    pub reason: String,
}

/// A refusal.
pub fn refuse<T>(code: Code, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, reason: reason.into() })
}

/// Types of elements, `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Element {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
    F8E4m3,
    F8E5m2,
}

impl Element {
    /// The type of a number.
    pub fn of(number: i32) -> Result<Element, Refusal> {
        use Element::*;
        let all = [I8, U8, I32, U32, I64, U64, F16, F32, F64, Bf16, F8E4m3, F8E5m2];
        match usize::try_from(number).ok().and_then(|number| all.get(number)) {
            Some(element) => Ok(*element),
            None => refuse(Code::InvalidArgument, format!("{number} is no ncclDataType_t")),
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        use Element::*;
        match self {
            I8 | U8 | F8E4m3 | F8E5m2 => 1,
            F16 | Bf16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 => 8,
        }
    }

    /// Whether the double can add such elements; it only moves those of 8 bits.
    pub fn adds(self) -> bool {
        !matches!(self, Element::F8E4m3 | Element::F8E5m2)
    }
}

/// The operation that joins elements of ranks, `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Reduction {
    Sum,
    Product,
    Max,
    Min,
    Average,
}

impl Reduction {
    /// The reduction of a number.
    pub fn of(number: i32) -> Result<Reduction, Refusal> {
        use Reduction::*;
        let all = [Sum, Product, Max, Min, Average];
        match usize::try_from(number).ok().and_then(|number| all.get(number)) {
            Some(reduction) => Ok(*reduction),
            None => refuse(Code::InvalidArgument, format!("{number} is no ncclRedOp_t")),
        }
    }
}
