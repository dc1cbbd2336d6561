//! Why attention is left in parts.

/// What keeps a softmax between two products from being one op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// A mask or bias that is no constant.
    MaskOfData,
    /// A mask that hides other keys than those behind the query.
    OtherMask,
    /// What is added to the scores is no mask.
    Bias,
    /// A mask of more elements than are computed.
    LargeMask,
    /// Scores are bounded by tanh.
    SoftCap,
    /// Weights are dropped at random.
    Dropout,
    /// Scores or weights are read by others.
    Read,
    /// Somebody asks a layout of the scores or weights.
    Pinned,
    /// Its ops are on several stages or computed in several precisions.
    Apart,
    /// Queries, keys and values have several widths or element types.
    Widths,
    /// Keys or values are shared otherwise than by groups of heads.
    Shared,
    /// Softmax is over another dim than the keys'.
    Axis,
    /// Another op on the scores or weights.
    Other(&'static str),
}

impl Kept {
    /// The reason in the words of a report.
    pub fn reason(self) -> String {
        let known = match self {
            Self::MaskOfData => "a mask or bias that depends on inputs or weights",
            Self::OtherMask => "a mask that is not the causal one",
            Self::Bias => "a bias is added to the scores",
            Self::LargeMask => "a mask that is too large to be looked at",
            Self::SoftCap => "scores are bounded by tanh",
            Self::Dropout => "dropout of the weights",
            Self::Read => "scores or weights are read by others",
            Self::Pinned => "a layout is asked for inside",
            Self::Apart => "its ops are on several stages or in several precisions",
            Self::Widths => "queries, keys and values of several widths or element types",
            Self::Shared => "keys or values are not shared by groups of heads",
            Self::Axis => "softmax over another dim",
            Self::Other(op) => return format!("the op `{op}` within"),
        };
        known.into()
    }
}
