//! Numbers in payloads: `f64` whose JSON form also has the values that JSON lacks.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number; serialized as a number, or as `"inf"`, `"-inf"`, `"nan"`. Two NaNs are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar(pub f64);

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 || self.0.is_nan() && other.0.is_nan()
    }
}

impl Scalar {
    /// Whether it is 0: what payloads leave out.
    pub fn is_zero(&self) -> bool {
        self.0 == 0.0
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
