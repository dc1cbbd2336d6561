//! SBP signatures: how a logical tensor lies over the axes of a mesh (OneFlow, arXiv 2110.15032, section 3.1).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The operation that joins several values to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReduceKind {
    /// The sum of the values.
    Sum,
    /// The greatest of the values.
    Max,
    /// The least of the values.
    Min,
}

impl ReduceKind {
    /// Returns the value that changes nothing where it is joined to others: 0, -inf, +inf.
    pub fn identity(self) -> f64 {
        match self {
            Self::Sum => 0.0,
            Self::Max => f64::NEG_INFINITY,
            Self::Min => f64::INFINITY,
        }
    }

    /// Joins two values. A NaN stays a NaN.
    pub fn combine(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Sum => a + b,
            _ if a.is_nan() || b.is_nan() => f64::NAN,
            Self::Max => a.max(b),
            Self::Min => a.min(b),
        }
    }

    /// Returns the name, `sum`, `max` or `min`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

/// The layout of a tensor over one mesh axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sbp {
    /// Every rank holds the whole.
    Broadcast,
    /// Each rank holds a range of this dim; the first ranks take the extra elements.
    Split(usize),
    /// Each rank holds a tensor of full shape; the whole is their reduction.
    Partial(ReduceKind),
}

impl Sbp {
    /// A partial sum.
    pub const PARTIAL: Sbp = Sbp::Partial(ReduceKind::Sum);

    /// Returns whether this is a partial value of any kind.
    pub fn is_partial(self) -> bool {
        matches!(self, Self::Partial(_))
    }
}

impl fmt::Display for Sbp {
    /// Writes the SBP as text: `B`, `S(0)`, `P(sum)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broadcast => f.write_str("B"),
            Self::Split(dim) => write!(f, "S({dim})"),
            Self::Partial(kind) => write!(f, "P({})", kind.name()),
        }
    }
}

impl FromStr for Sbp {
    type Err = String;

    /// Reads an SBP from text: `B`, `S(0)`, `P` and `P(sum|max|min)`.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let inside = |prefix: &str| text.strip_prefix(prefix).and_then(|t| t.strip_suffix(')'));
        match text {
            "B" => Ok(Self::Broadcast),
            "P" | "P(sum)" => Ok(Self::PARTIAL),
            "P(max)" => Ok(Self::Partial(ReduceKind::Max)),
            "P(min)" => Ok(Self::Partial(ReduceKind::Min)),
            _ => inside("S(")
                .and_then(|dim| dim.trim().parse().ok())
                .map(Self::Split)
                .ok_or_else(|| format!("`{text}` is no SBP: write B, S(dim) or P(sum|max|min)")),
        }
    }
}

/// The layout of a tensor over a mesh: one SBP for each mesh axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NdSbp(pub Vec<Sbp>);

impl NdSbp {
    /// Makes the layout with the whole tensor on every rank of a mesh of `axes` axes.
    pub fn broadcast(axes: usize) -> Self {
        Self(vec![Sbp::Broadcast; axes])
    }

    /// Returns whether some axis holds partial values.
    pub fn is_partial(&self) -> bool {
        self.0.iter().any(|sbp| sbp.is_partial())
    }
}

impl fmt::Display for NdSbp {
    /// Writes the layout as text, e.g. `S(0), B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (axis, sbp) in self.0.iter().enumerate() {
            write!(f, "{}{sbp}", if axis == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl FromStr for NdSbp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl Serialize for Sbp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sbp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for NdSbp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for NdSbp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self)
    }
}
