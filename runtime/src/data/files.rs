//! Files that are whole or not there.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::DataError;

/// Writes a file: beside it first, then renamed, so that it is whole or as it was before. A link stays a link, and
/// what is no file (a device, a pipe) is written to, not replaced.
///
/// # Errors
/// Where it cannot be written; nothing half-written is left.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let fail = |error: std::io::Error| DataError::Write {
        path: path.display().to_string(),
        reason: error.to_string(),
    };
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(fail(std::io::ErrorKind::IsADirectory.into())),
        Ok(found) if !found.is_file() => File::options()
            .write(true)
            .open(path)
            .and_then(|mut f| f.write_all(bytes))
            .map_err(fail),
        _ => replace(&target(path), bytes).map_err(fail),
    }
}

/// Where a path leads: a rename would put a file in the place of a link.
fn target(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let beside = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().inspect_err(|_| {
        // Where even this fails there was no file to begin with.
        let _ = std::fs::remove_file(&beside);
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").expect("it is writable");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        write_file(&link, b"new").expect("it is writable");
        assert!(link.symlink_metadata().expect("it exists").is_symlink());
        assert_eq!(std::fs::read(&file).expect("it exists"), b"new");
    }

    #[test]
    fn a_socket_is_no_file_to_replace() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        write_file(&path, b"text").expect_err("a socket cannot be opened");
        assert!(!path.metadata().expect("it is still there").is_file());
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}
