//! Numbers in payloads: `f64` whose JSON form also has the values that JSON lacks.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number; serialized as a number, or as `"inf"`, `"-inf"`, `"nan"`. Numbers are equal that are written alike: all NaNs
/// are one, and the two zeros are not, because what divides by them is not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar(pub f64);

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.canonical_bits() == other.canonical_bits()
    }
}

impl Eq for Scalar {}

impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canonical_bits().hash(state);
    }
}

impl Scalar {
    /// Whether it is the zero without a sign: what payloads leave out.
    pub fn is_zero(&self) -> bool {
        *self == Self(0.0)
    }

    /// Returns its bits, those of one NaN for all.
    fn canonical_bits(self) -> u64 {
        if self.0.is_nan() { f64::NAN.to_bits() } else { self.0.to_bits() }
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Scalar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = self.0;
        if value.is_nan() {
            serializer.serialize_str("nan")
        } else if value.is_infinite() {
            serializer.serialize_str(if value > 0.0 { "inf" } else { "-inf" })
        } else {
            serializer.serialize_f64(value)
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(f64),
            Name(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(value) => Ok(Self(value)),
            Form::Name(name) => match name.as_str() {
                "inf" => Ok(Self(f64::INFINITY)),
                "-inf" => Ok(Self(f64::NEG_INFINITY)),
                "nan" => Ok(Self(f64::NAN)),
                _ => Err(serde::de::Error::custom(format!("`{name}` is no number"))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn equality_and_hash_are_those_of_the_text() {
        let numbers = [0.0, -0.0, 1.0, -1.0, f64::MIN_POSITIVE, f64::INFINITY, -f64::INFINITY];
        let nans = [f64::NAN, -f64::NAN, f64::from_bits(f64::NAN.to_bits() | 1)];
        let all: Vec<Scalar> = numbers.into_iter().chain(nans).map(Scalar).collect();
        let text = |number: &Scalar| serde_json::to_string(number).expect("a number");
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            assert_eq!(a == b, text(a) == text(b), "{a} and {b}");
        }
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), numbers.len() + 1);
    }
}
