//! The reasons to leave attention in parts.

use crate::passes::joined::Held;

/// A reason why a softmax between two products cannot become one op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// The user asks for attention in parts.
    Asked,
    /// A mask or bias that fits no scores, or a choice between scores and something that is not low.
    MaskOfData,
    /// A mask of something that is no matrix of scores.
    OtherMask,
    /// A summand of the scores that is too large for a bias, and too small for a mask.
    Bias,
    /// A mask that may leave a query no key, so that its weights are no numbers.
    HiddenRows,
    /// A bound of the scores by tanh that bounds a summand of theirs as well.
    SoftCap,
    /// Weights that are dropped twice.
    Dropout,
    /// Scores or weights that other nodes read.
    Read,
    /// A layout that the user asks for scores or weights.
    Pinned,
    /// Ops on several stages or in several precisions.
    Apart,
    /// Queries, keys and values of different element types.
    ElementTypes,
    /// Keys or values that heads share otherwise than by groups.
    Shared,
    /// A softmax over another dim than that of keys.
    Axis,
    /// Another op on the scores or weights.
    Other(&'static str),
}

impl Kept {
    /// Returns the reason in the words of a report.
    pub fn reason(self) -> String {
        let known = match self {
            Self::Asked => "`--keep-attention` keeps it",
            Self::MaskOfData => "a mask or bias of another form",
            Self::OtherMask => "a mask of another form",
            Self::Bias => "a bias between what is common and what hides keys",
            Self::HiddenRows => "a mask that may hide all keys of a query",
            Self::SoftCap => "scores are bounded by tanh after a mask or a bias, or twice",
            Self::Dropout => "weights are dropped twice",
            Self::Read => "scores or weights are read by others",
            Self::Pinned => Held::Pinned.reason(),
            Self::Apart => Held::Apart.reason(),
            Self::ElementTypes => "queries, keys and values of several element types",
            Self::Shared => "keys or values are not shared by groups of heads",
            Self::Axis => "softmax over another dim",
            Self::Other(op) => return format!("the op `{op}` within"),
        };
        known.into()
    }
}

impl From<Held> for Kept {
    fn from(held: Held) -> Self {
        match held {
            Held::Read => Self::Read,
            Held::Pinned => Self::Pinned,
            Held::Apart => Self::Apart,
        }
    }
}
