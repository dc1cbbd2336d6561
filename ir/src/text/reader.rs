//! Reads values by serde with errors that are data: which field is missing, which variants there are.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value as Json;

/// JSON, to be read into a type.
pub(super) struct JsonReader(pub Json);

/// The reason that JSON is no value of a type.
#[derive(Debug)]
pub(super) enum Fault {
    /// A field that the type has, and the JSON has not.
    Missing(&'static str),
    /// A name that is none of these.
    Variant { found: String, known: &'static [&'static str] },
    /// Anything else.
    Other(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(field) => write!(f, "missing field `{field}`"),
            Self::Variant { found, known } => {
                write!(f, "unknown variant `{found}`, expected one of `{}`", known.join("`, `"))
            }
            Self::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Other(message.to_string())
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::Variant { found: variant.to_owned(), known: expected }
    }
}

impl<'de> Deserializer<'de> for JsonReader {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.0 {
            Json::Null => visitor.visit_unit(),
            Json::Bool(truth) => visitor.visit_bool(truth),
            Json::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => visitor.visit_string(text),
            Json::Array(items) => {
                visitor.visit_seq(SeqDeserializer::new(items.into_iter().map(JsonReader)))
            }
            Json::Object(fields) => {
                let fields = fields.into_iter().map(|(key, value)| (key, JsonReader(value)));
                visitor.visit_map(MapDeserializer::new(fields))
            }
        }
    }

    // An op is told apart by its field `op`, so serde reads all others as whatever they are before it knows their types.
    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Fault> for JsonReader {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
