//! Reads the tensors in the files of a folder: one file, or several with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde::Deserialize;

use super::super::weights::WeightTensor;
use super::super::{ImportError, file, safetensors};

/// The name of the file of a model that has all its weights in one file.
pub(super) const SINGLE: &str = "model.safetensors";

/// The name of the index, which says in which file each tensor is.
const INDEX: &str = "model.safetensors.index.json";

/// Bytes of the longest index.
const LONGEST: u64 = 1 << 27;

/// The endings of files of weights that are not read, and of safetensors files under other names.
const UNREAD: [&str; 7] = ["bin", "pt", "pth", "h5", "msgpack", "gguf", "safetensors"];

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Reads the tensors of a folder; `None` if it has no weights.
///
/// # Errors
/// Returns an error if a file is damaged, or the index names a file that is missing.
pub(super) fn read_tensors(
    folder: &Path,
) -> Result<Option<BTreeMap<String, WeightTensor>>, ImportError> {
    if let Some(tensors) = safetensors::read_tensors(&folder.join(SINGLE))? {
        return Ok(Some(tensors));
    }
    let path = folder.join(INDEX);
    if !path.exists() {
        return Ok(None);
    }
    let fault = |reason: String| ImportError::Read { path: path.clone(), reason };
    let bytes = file::read_file(&path, LONGEST).map_err(|error| fault(error.to_string()))?;
    let index: Index = serde_json::from_slice(&bytes).map_err(|error| fault(error.to_string()))?;
    let mut tensors = BTreeMap::new();
    for name in index.weight_map.values().collect::<BTreeSet<_>>() {
        if !is_plain(name) {
            return Err(fault(format!("`{name}` is no name of a file beside it")));
        }
        let found = safetensors::read_tensors(&folder.join(name))?;
        let missing = || fault(format!("it names the file `{name}`, which is not there"));
        tensors.extend(found.ok_or_else(missing)?);
    }
    Ok(Some(tensors))
}

/// Returns the name of a file in a folder that holds weights in a format that is not read, if there is one.
pub(super) fn find_unread_weights(folder: &Path) -> Option<String> {
    let is_one = |name: &String| {
        let ending = name.rsplit_once('.').map(|(_, ending)| ending);
        ending.is_some_and(|ending| UNREAD.contains(&ending)) && name != "training_args.bin"
    };
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(is_one).min()
}

/// Whether a name is that of a file in the same folder.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
}
