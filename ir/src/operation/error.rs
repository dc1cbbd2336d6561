//! Reasons why an op does not take its operands, or does not compute.

use crate::types::TensorType;

/// The reason that an op cannot be applied or evaluated.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// A wrong number of operands.
    #[error("{op} takes {expected}, not {found}")]
    Arity {
        /// The op.
        op: &'static str,
        /// The operands that it takes, e.g. `2 operands`.
        expected: &'static str,
        /// The number of operands that there are.
        found: usize,
    },
    /// Element types that do not fit.
    #[error("{op} cannot take {}: {reason}", join_types(.operands))]
    DTypes {
        /// The op.
        op: &'static str,
        /// The operands.
        operands: Vec<TensorType>,
        /// The reason.
        reason: String,
    },
    /// Floating-point numbers of 8 bits where no op takes or gives them.
    #[error(
        "{op} has no tensors of f8e4m3: such numbers are made by casts or `round_float8`, moved, and multiplied as matrices; use a wider type and cast it"
    )]
    Float8 {
        /// The op.
        op: &'static str,
    },
    /// Shapes that do not fit each other or the payload.
    #[error("{op} cannot take {}: {reason}", join_types(.operands))]
    Shapes {
        /// The op.
        op: &'static str,
        /// The operands.
        operands: Vec<TensorType>,
        /// The reason.
        reason: String,
    },
    /// A source whose content comes from outside: a feed or a weights file.
    #[error("{op} `{name}` has no value: it must be fed")]
    NoValue {
        /// The op.
        op: &'static str,
        /// The name of the input or variable.
        name: String,
    },
    /// An op of a program's own, which no rule says how to compute.
    #[error(
        "custom `{name}` is an op of a program's own: a session with its kernel alone computes it"
    )]
    Custom {
        /// Its name.
        name: String,
    },
    /// An integer divided by 0.
    #[error("{op}: an integer is divided by 0")]
    DivisionByZero {
        /// The op.
        op: &'static str,
    },
    /// An index out of range.
    #[error(
        "{what} {index} at position {position:?} is out of range: {op} takes 0 to {}",
        range.saturating_sub(1)
    )]
    Index {
        /// The op.
        op: &'static str,
        /// `label`, `row`.
        what: &'static str,
        /// The index.
        index: i64,
        /// One past the greatest.
        range: usize,
        /// The position of the index in its whole tensor.
        position: Vec<usize>,
    },
}

crate::readable_debug!(OpError);

fn join_types(types: &[TensorType]) -> String {
    types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ")
}

/// Checks the number of operands.
///
/// # Errors
/// Returns an error if it is not `count`.
pub(crate) fn check_arity(
    op: &'static str,
    operands: &[&TensorType],
    count: usize,
    expected: &'static str,
) -> Result<(), OpError> {
    if operands.len() == count {
        return Ok(());
    }
    Err(OpError::Arity { op, expected, found: operands.len() })
}

/// An error of shapes.
pub fn shape_error(
    op: &'static str,
    operands: &[&TensorType],
    reason: impl Into<String>,
) -> OpError {
    OpError::Shapes {
        op,
        operands: operands.iter().map(|&t| t.clone()).collect(),
        reason: reason.into(),
    }
}

/// An error of element types.
pub(crate) fn dtype_error(
    op: &'static str,
    operands: &[&TensorType],
    reason: impl Into<String>,
) -> OpError {
    OpError::DTypes {
        op,
        operands: operands.iter().map(|&t| t.clone()).collect(),
        reason: reason.into(),
    }
}
