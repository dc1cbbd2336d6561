//! The fields of a model's messages, by their numbers in onnx.proto, and how tensors are written as bytes.

use rten_onnx::onnx::{DataLocation, DataType};

use super::wire::{decode_fields, decode_varint};

/// Fields of a node.
pub(super) const INPUT: u64 = 1;
pub(super) const OUTPUT: u64 = 2;
pub(super) const OP_TYPE: u64 = 4;
/// Fields of a model, its graph and its tensors, by their numbers in onnx.proto.
pub(super) const GRAPH: u64 = 7;
pub(super) const NODE: u64 = 1;
pub(super) const INITIALIZER: u64 = 5;
pub(super) const DIMS: u64 = 1;
pub(super) const DATA_TYPE: u64 = 2;
pub(super) const NAME: u64 = 8;
pub(super) const RAW_DATA: u64 = 9;
pub(super) const DATA_LOCATION: u64 = 14;
pub(super) const TENSOR_METADATA: u64 = 16;
/// The fields of a tensor that hold elements, or say where they are.
pub(super) const CONTENT: [u64; 9] = [4, 5, 6, 7, RAW_DATA, 10, 11, 13, DATA_LOCATION];

/// The header of a tensor: all of its message but the elements.
pub(super) struct TensorHead {
    pub name: String,
    pub dims: Vec<i64>,
    pub data_type: DataType,
    pub external: bool,
}

impl TensorHead {
    pub(super) fn new(name: &str, dims: Vec<i64>, data_type: DataType) -> Self {
        Self { name: name.to_owned(), dims, data_type, external: false }
    }

    /// Writes it as the first fields of a tensor.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &dim in &self.dims {
            put_varint(&mut bytes, DIMS << 3);
            put_varint(&mut bytes, dim as u64);
        }
        put_varint(&mut bytes, DATA_TYPE << 3);
        put_varint(&mut bytes, self.data_type.0 as u64);
        put_field(&mut bytes, NAME, self.name.as_bytes());
        bytes
    }

    pub(super) fn from_tensor(tensor: &[u8]) -> Self {
        let mut head =
            Self { name: String::new(), dims: Vec::new(), data_type: DataType(0), external: false };
        for field in decode_fields(tensor) {
            match field.number {
                NAME => head.name = String::from_utf8_lossy(field.content).into_owned(),
                DIMS => head.dims.extend(decode_numbers(field.content)),
                DATA_TYPE => head.data_type = DataType(last_number(field.content) as i32),
                DATA_LOCATION => {
                    head.external =
                        DataLocation(last_number(field.content) as i32) == DataLocation::EXTERNAL;
                }
                _ => {}
            }
        }
        head
    }
}

/// Appends a field of metadata: a key and its value.
pub(super) fn put_entry(to: &mut Vec<u8>, number: u64, (key, value): (&str, &str)) {
    let mut entry = Vec::new();
    put_field(&mut entry, 1, key.as_bytes());
    put_field(&mut entry, 2, value.as_bytes());
    put_field(to, number, &entry);
}

/// Decodes numbers one after the other: a single one, or a packed run.
fn decode_numbers(content: &[u8]) -> impl Iterator<Item = i64> {
    let mut at = 0;
    std::iter::from_fn(move || decode_varint(content, &mut at).map(|number| number as i64))
}

pub(super) fn last_number(content: &[u8]) -> i64 {
    decode_numbers(content).last().unwrap_or(0)
}

/// Appends a field of bytes.
pub(super) fn put_field(to: &mut Vec<u8>, number: u64, content: &[u8]) {
    put_varint(to, number << 3 | 2);
    put_varint(to, content.len() as u64);
    to.extend_from_slice(content);
}

fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        to.push(value as u8 & 127 | 128);
        value >>= 7;
    }
    to.push(value as u8);
}
