//! Files that are whole or not there.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::DataError;

/// Writes a file: beside it first, then renamed, so that it is whole or as it was before.
///
/// # Errors
/// Where it cannot be written; nothing half-written is left.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let beside = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|error: std::io::Error| {
        // Where even this fails there was no file to begin with.
        let _ = std::fs::remove_file(&beside);
        DataError::Write { path: path.display().to_string(), reason: error.to_string() }
    })
}
