//! Files that importers read: files, and of a size that makes sense.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::{Path, PathBuf};

/// Bytes of the longest model file. ONNX files end at 2 GiB, as protobuf does; larger weights lie in other files beside them.
pub(super) const LONGEST_MODEL: u64 = 1 << 31;

/// Opens a regular file to be read. Anything else (a device, a pipe, a folder) is an error: to open a pipe waits for a writer, and a device may have
/// no end.
pub(super) fn open_file(path: &Path) -> Result<File> {
    let plain = |found: std::fs::Metadata| match found.is_file() {
        true => Ok(()),
        false if found.is_dir() => Err(Error::new(ErrorKind::IsADirectory, "it is a folder")),
        false => Err(Error::new(ErrorKind::InvalidInput, "it is no file")),
    };
    // Asked before it is opened, as opening may wait, and of what was opened, which may be another by now.
    plain(std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    plain(file.metadata()?)?;
    Ok(file)
}

/// Reads the content of a file. More than `most` bytes are an error.
pub(super) fn read_file(path: &Path, most: u64) -> Result<Vec<u8>> {
    let file = open_file(path)?;
    let size = file.metadata()?.len();
    if size > most {
        let text = format!("it has {size} bytes, and at most {most} make sense");
        return Err(Error::new(ErrorKind::FileTooLarge, text));
    }
    let mut bytes = allocate_zeros(0, size)?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns `length` zeros in a vector with memory for at least `room` bytes. It is an error if there is no memory for them.
pub(super) fn allocate_zeros(length: usize, room: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let room = usize::try_from(room).map_err(Error::other)?;
    bytes.try_reserve_exact(length.max(room))?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// Resolves the links of a path, and refuses a file outside `folder`. A model must not make its reader open files elsewhere.
pub(super) fn resolve_in_folder(folder: &Path, path: &Path) -> Result<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let (folder, found) = (folder.canonicalize()?, path.canonicalize()?);
    if found.starts_with(folder) {
        return Ok(found);
    }
    let text = format!("it leads to {}, which is not in the model's folder", found.display());
    Err(Error::new(ErrorKind::InvalidInput, text))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_or_too_long_is_not_read() {
        let endless = read_file(Path::new("/dev/zero"), 9).expect_err("a device").to_string();
        assert_eq!(endless, "it is no file");
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let long = read_file(&own, 3).expect_err("it is longer").to_string();
        assert!(long.ends_with("at most 3 make sense"), "{long}");
        allocate_zeros(0, 1 << 50).expect_err("no machine has a PiB");
    }
}
