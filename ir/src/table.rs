//! Contents that plans carry: tables that an import computes, of shapes and numbers of the model alone.
//!
//! A table is a variable whose content stands in the plan. So a plan computes the same on either engine, and whatever it is
//! resumed from. No file of weights holds tables, because another extent of an input gives another table.

use std::fmt;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::float8::{E4M3, E5M2};
use crate::types::DType;

/// Elements row-major, little-endian, bool as one byte 0 or 1. Serialized as Base64 (RFC 4648, section 4).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Table(Arc<[u8]>);

impl Table {
    /// A table of these bytes.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A table is long: its size stands for it.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({} bytes)", self.0.len())
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode_base64(&self.0))
    }
}

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = decode_base64(&text).ok_or_else(|| D::Error::custom("a table is no Base64"))?;
        Ok(Self(bytes.into()))
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as Base64: three bytes are four digits, and what the last group lacks is `=`.
pub fn encode_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let number = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(number >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let (groups, rest) = text.as_bytes().as_chunks::<4>();
    let mut bytes = Vec::with_capacity(groups.len() * 3);
    for (index, group) in groups.iter().enumerate() {
        let filled = group.iter().rposition(|&digit| digit != b'=').map_or(0, |last| last + 1);
        if filled < 2 || (filled < 4 && index + 1 < groups.len()) {
            return None;
        }
        let digits = group[..filled].iter().map(|&digit| digit_value(digit));
        let number = digits.collect::<Option<Vec<u32>>>()?;
        let number = number.iter().fold(0, |all, digit| all << 6 | digit) << (6 * (4 - filled));
        bytes.extend(&number.to_be_bytes()[1..filled]);
    }
    rest.is_empty().then_some(bytes)
}

fn digit_value(digit: u8) -> Option<u32> {
    Some(match digit {
        b'A'..=b'Z' => u32::from(digit - b'A'),
        b'a'..=b'z' => u32::from(digit - b'a') + 26,
        b'0'..=b'9' => u32::from(digit - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

/// The numbers that bytes of an element type are.
pub fn decode_numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn map_chunks<const N: usize>(bytes: &[u8], element: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|&chunk| element(chunk)).collect()
    }
    match dtype {
        DType::F32 => map_chunks(bytes, |b| f32::from_le_bytes(b).into()),
        DType::F16 => map_chunks(bytes, |b| half_to_f64(u16::from_le_bytes(b))),
        DType::BF16 => {
            map_chunks(bytes, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16).into())
        }
        DType::I64 => map_chunks(bytes, |b| i64::from_le_bytes(b) as f64),
        DType::I32 => map_chunks(bytes, |b| i32::from_le_bytes(b).into()),
        DType::U8 | DType::Bool => map_chunks(bytes, |[b]| b.into()),
        DType::F8E4M3 => map_chunks(bytes, |[b]| E4M3.decode(b).into()),
        DType::F8E5M2 => map_chunks(bytes, |[b]| E5M2.decode(b).into()),
    }
}

/// The value of an IEEE 754 binary16.
fn half_to_f64(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    match exponent {
        0 => sign * fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_read() {
        let values = [0x3c00, 0xc000, 0x7bff, 0x0001, 0x7c00].map(half_to_f64);
        assert_eq!(values, [1.0, -2.0, 65504.0, 2f64.powi(-24), f64::INFINITY]);
        assert!(half_to_f64(0x7e00).is_nan());
    }

    /// The test vectors of RFC 4648, section 10.
    #[test]
    fn tables_are_written_in_base64_and_read_again() {
        let vectors = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (length, expected) in vectors.into_iter().enumerate() {
            let plain = &b"foobar"[..length];
            assert_eq!(encode_base64(plain), expected);
            assert_eq!(decode_base64(expected).as_deref(), Some(plain));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode_base64(&encode_base64(&all)), Some(all));
    }

    #[test]
    fn text_that_is_no_table_is_refused() {
        for wrong in ["Zg", "Z===", "Zg==Zg==", "Zm 9", "Zm9v!"] {
            assert_eq!(decode_base64(wrong), None, "{wrong}");
        }
    }
}
