//! Reading of files that are files, and writing of files that are whole or not there.
//!
//! What is no file is refused, as opening a pipe waits and a device has no end. A file is written beside its place, under
//! a random name that is made exclusively, and renamed. `compiler/import/src/file.rs` reads files by the same rules;
//! neither module knows the other.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::HostFileError;

/// Opens a file to be read. What is none (a device, a pipe, a folder) is an error: to open a pipe waits for a writer, and a
/// device may have no end.
///
/// # Errors
/// Where there is no such file, or it cannot be read.
pub fn open_file(path: &Path) -> std::io::Result<File> {
    let plain = |found: std::fs::Metadata| match found.is_file() {
        true => Ok(()),
        false if found.is_dir() => {
            Err(std::io::Error::new(ErrorKind::IsADirectory, "it is a folder"))
        }
        false => Err(std::io::Error::new(ErrorKind::InvalidInput, "it is no file")),
    };
    // Asked before it is opened, as opening may wait, and of what was opened, which may be another by now.
    plain(std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    plain(file.metadata()?)?;
    Ok(file)
}

/// Makes a folder, and those above it, where they are not there.
///
/// # Errors
/// Where it cannot be made, or a file has its name.
pub fn make_folder(path: &Path) -> std::io::Result<()> {
    let is_taken = path.exists() && !path.is_dir();
    if is_taken {
        let text = "it is a file, and a folder is needed: choose another name";
        return Err(std::io::Error::new(ErrorKind::NotADirectory, text));
    }
    std::fs::create_dir_all(path)
}

/// Reads the content of a file that has at most so many bytes: what its format may have at most.
///
/// # Errors
/// Where it cannot be read, is no file, is longer, or there is no memory for it.
pub fn read_file(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let file = open_file(path)?;
    let too_long = |bytes: u64| {
        let text = format!("it has {bytes} bytes, and at most {most} make sense");
        Err(std::io::Error::new(ErrorKind::FileTooLarge, text))
    };
    let size = file.metadata()?.len();
    if size > most {
        return too_long(size);
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(size).map_err(std::io::Error::other)?)?;
    // Some files of the system have a size of 0 and a content; others grow.
    let read = file.take(most.saturating_add(1)).read_to_end(&mut bytes)? as u64;
    if read > most { too_long(read) } else { Ok(bytes) }
}

/// Writes a file: beside it first, then renamed, so that it is whole or as it was before. A link stays a link, and
/// what is no file (a device, a pipe) is written to, not replaced.
///
/// # Errors
/// Where it cannot be written; nothing half-written is left.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), HostFileError> {
    write_with(path, |file| file.write_all(bytes))
}

/// Writes as [`write_file`] bytes that come one after another, too many to be in memory at once: a buffer lies between
/// them and the file.
///
/// # Errors
/// Where it cannot be written; nothing half-written is left.
pub fn write_with(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), HostFileError> {
    let fail = |error: std::io::Error| write_error(path, &error);
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(fail(ErrorKind::IsADirectory.into())),
        Ok(found) if !found.is_file() => File::options()
            .write(true)
            .open(path)
            .and_then(|file| write_buffered(&file, content))
            .map_err(fail),
        _ => replace_file(&resolve_link(path), content).map_err(fail),
    }
}

/// Checks that a file can be written, before the work is done whose result it is to hold. What is there stays as it is.
///
/// # Errors
/// Where it cannot be written.
pub fn check_writable(path: &Path) -> Result<(), HostFileError> {
    let checked: std::io::Result<()> = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => Ok(()),
        _ => create_beside(&resolve_link(path)).map(drop),
    };
    checked.map_err(|error| write_error(path, &error))
}

/// Appends bytes to a file that is open, all of them or none.
///
/// # Errors
/// Where they cannot be written.
pub(super) fn append_whole(
    file: &mut File,
    path: &Path,
    bytes: &[u8],
) -> Result<(), HostFileError> {
    let before = file.metadata().ok().filter(|found| found.is_file());
    file.write_all(bytes).map_err(|error| {
        if let Some(before) = before {
            // Where even this fails a reader finds an end that was cut off.
            let _ = file.set_len(before.len());
        }
        write_error(path, &error)
    })
}

/// The error of a file that cannot be written.
pub(super) fn write_error(path: &Path, reason: &impl ToString) -> HostFileError {
    HostFileError::Write { path: path.display().to_string(), reason: reason.to_string() }
}

fn write_buffered(
    file: &File,
    content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut buffer = BufWriter::new(file);
    content(&mut buffer)?;
    buffer.flush()
}

/// Follows the links of a path: a rename would put a file in the place of a link.
fn resolve_link(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Creates a file beside another. Its name is random and new: nobody can have put a link there that leads bytes elsewhere. Dropped, it is
/// removed.
fn create_beside(path: &Path) -> std::io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut name = path.file_name().ok_or(ErrorKind::InvalidFilename)?.to_owned();
    name.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&name).suffix(".part");
    // As for any new file: what the user's mask leaves.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let folder = folder.unwrap_or(Path::new("."));
    builder.tempfile_in(folder).map_err(|error| without_name(folder, error))
}

/// Replaces a file by one that is written beside it.
fn replace_file(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let beside = create_beside(path)?;
    write_buffered(beside.as_file(), content)?;
    beside.as_file().sync_all()?;
    beside.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Returns the error that no file can be made in a folder, without the name that it would have had for a moment.
fn without_name(folder: &Path, error: std::io::Error) -> std::io::Error {
    if !folder.is_dir() {
        let reason = format!("there is no folder {}", folder.display());
        return std::io::Error::new(ErrorKind::NotFound, reason);
    }
    // The name stands at the end of the text alone.
    match error.to_string().split_once(" at path ") {
        Some((reason, _)) => std::io::Error::new(error.kind(), reason),
        None => error,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").expect("it is writable");
        symlink(&file, &link).expect("a link");
        write_file(&link, b"new").expect("it is writable");
        assert!(link.symlink_metadata().expect("it exists").is_symlink());
        assert_eq!(std::fs::read(&file).expect("it exists"), b"new");
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named_and_not_what_would_stand_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = write_file(&folder.path().join("none/file"), b"text").expect_err("no folder");
        let expected = format!("there is no folder {}/none", folder.path().display());
        assert!(error.to_string().ends_with(&expected), "{error}");
        let error =
            write_file(Path::new("/proc/file"), b"text").expect_err("no file is made there");
        let error = error.to_string();
        assert!(error.contains("/proc/file: ") && !error.contains(".part"), "{error}");
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

    #[test]
    fn a_planted_link_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let [file, victim] = ["plan.json", "victim"].map(|name| folder.path().join(name));
        std::fs::write(&victim, "precious").expect("it is writable");
        // The name that was used before: it follows from that of the file and the process.
        let planted = format!("plan.json.{}.part", std::process::id());
        symlink(&victim, folder.path().join(planted)).expect("a link");
        write_file(&file, b"plan").expect("it is writable");
        assert_eq!(std::fs::read(&file).expect("it exists"), b"plan");
        assert_eq!(std::fs::read(&victim).expect("it exists"), b"precious");
        assert!(!file.symlink_metadata().expect("it exists").is_symlink());
    }

    #[test]
    fn a_folder_with_the_name_of_a_file_is_refused_as_such() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("plan.json");
        std::fs::write(&path, "text").expect("it is writable");
        let said = make_folder(&path).expect_err("a file").to_string();
        assert_eq!(said, "it is a file, and a folder is needed: choose another name");
        assert_eq!(open_file(folder.path()).expect_err("a folder").to_string(), "it is a folder");
        make_folder(&folder.path().join("new/deep")).expect("it is made");
        make_folder(&folder.path().join("new")).expect("it is there");
    }

    #[test]
    fn a_new_file_is_one_that_others_may_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let [ours, theirs] = ["ours", "theirs"].map(|name| folder.path().join(name));
        write_file(&ours, b"text").expect("it is writable");
        std::fs::write(&theirs, b"text").expect("it is writable");
        let mode = |path: &Path| path.metadata().expect("it exists").permissions().mode();
        assert_eq!(mode(&ours), mode(&theirs));
    }

    #[test]
    fn what_is_no_file_or_too_long_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("text");
        std::fs::write(&path, "four").expect("it is writable");
        assert_eq!(read_file(&path, 4).expect("it is short"), b"four");
        let long = read_file(&path, 3).expect_err("it is longer").to_string();
        assert_eq!(long, "it has 4 bytes, and at most 3 make sense");
        let endless = read_file(Path::new("/dev/zero"), 1 << 40).expect_err("a device");
        assert_eq!(endless.to_string(), "it is no file");
        open_file(folder.path()).expect_err("a folder");
        // A sparse file: more than any machine has memory for.
        File::options().write(true).open(&path).and_then(|f| f.set_len(1 << 42)).expect("sparse");
        read_file(&path, u64::MAX).expect_err("there is no such memory");
    }
}
