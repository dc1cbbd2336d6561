//! The header of a safetensors file: which tensors it holds and where. Their bytes are not read here.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use graphc_ir::types::DType;
use serde::Deserialize;

use super::file;
use super::weights::{WeightData, WeightTensor, WeightsError};

/// Bytes of the longest header, as the safetensors library limits it.
const LONGEST_HEADER: u64 = 100_000_000;

/// Reads the tensors of a file; `None` if there is no such file.
///
/// # Errors
/// Returns an error if the file cannot be read or is damaged.
pub(super) fn read_tensors(
    path: &Path,
) -> Result<Option<BTreeMap<String, WeightTensor>>, WeightsError> {
    let corrupt = |reason: String| WeightsError::Corrupt { path: path.into(), reason };
    let mut file = match file::open_file(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(corrupt(error.to_string())),
    };
    let size = file.metadata().map_err(|error| corrupt(error.to_string()))?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|_| corrupt("it is shorter than its header".into()))?;
    let length = u64::from_le_bytes(length);
    if length > size.saturating_sub(8) {
        return Err(corrupt("it is shorter than its header".into()));
    }
    if length > LONGEST_HEADER {
        return Err(corrupt(format!("its header of {length} bytes is too long")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(|error| corrupt(error.to_string()))?;
    let entries: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&header).map_err(|error| corrupt(error.to_string()))?;
    let start = 8 + length;
    entries
        .into_iter()
        .filter(|(name, _)| name != "__metadata__")
        .map(|(name, entry)| match parse_entry(path, entry, start, size) {
            Ok(tensor) => Ok((name, tensor)),
            Err(reason) => Err(corrupt(format!("tensor `{name}`: {reason}"))),
        })
        .collect::<Result<_, _>>()
        .map(Some)
}

#[derive(Deserialize)]
struct SafetensorsEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

fn parse_entry(
    path: &Path,
    entry: serde_json::Value,
    start: u64,
    size: u64,
) -> Result<WeightTensor, String> {
    let entry: SafetensorsEntry =
        serde_json::from_value(entry).map_err(|error| error.to_string())?;
    let dtype: DType = entry.dtype.to_lowercase().parse()?;
    let bytes =
        entry.shape.iter().try_fold(dtype.size(), |bytes, &extent| bytes.checked_mul(extent));
    let (from, to) = entry.data_offsets;
    let end = start.checked_add(to).filter(|&end| from <= to && end <= size);
    if end.is_none() || bytes.map(|bytes| bytes as u64) != Some(to - from) {
        return Err(format!("its bytes {from}..{to} do not fit its shape or the file"));
    }
    let data = WeightData::File { path: path.into(), offset: start + from, folder: None };
    Ok(WeightTensor { dtype, shape: entry.shape, data })
}
