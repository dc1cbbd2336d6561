//! The file by which processes meet: where rank 0 listens, and a secret that it has drawn.
//!
//! The file has mode 0600, so only processes of this user can come in. It is written under a fresh name and renamed, and
//! believed only where nobody else can have written it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use graphc_ir::hex::encode_hex;
use rustix::fs::OFlags;

/// The longest file: two addresses, of which one has the name of a host, and a secret.
const LONGEST: u64 = 4096;
/// The text before the secret, on the last line.
const SECRET: &str = "secret ";

/// The content of the file.
#[derive(Debug, PartialEq)]
pub(super) struct FileInvitation {
    /// The addresses where rank 0 may be reached.
    pub(super) addresses: Vec<String>,
    /// The secret that it wants to be shown, after the token that the user has given.
    pub(super) secret: String,
}

impl FileInvitation {
    /// Makes an invitation to come to `at`, with a fresh secret.
    pub(super) fn new(at: SocketAddr) -> io::Result<Self> {
        let name = rustix::system::uname();
        let host = name.nodename().to_string_lossy();
        let addresses = match at.ip().is_unspecified() {
            true => vec![format!("127.0.0.1:{}", at.port()), format!("{host}:{}", at.port())],
            false => vec![at.to_string()],
        };
        Ok(Self { addresses, secret: random_secret()? })
    }
}

fn random_secret() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(encode_hex(&bytes))
}

/// Writes the file, complete or not at all. The file of a job before is replaced, and so is a link, which is not followed.
///
/// # Errors
/// Where it cannot be written, or something else would be lost.
pub(super) fn write_invitation(path: &Path, invitation: &FileInvitation) -> io::Result<()> {
    check_place(path)?;
    let name = path.file_name().ok_or_else(|| io::Error::other("it is no name of a file"))?;
    let side = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), random_secret()?));
    // New, so that no link is followed.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&side)?;
    let FileInvitation { addresses, secret } = invitation;
    let text = format!("{}\n{SECRET}{secret}\n", addresses.join("\n"));
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&side, path));
    if written.is_err() {
        // What is left of it would only be in the way.
        let _ = std::fs::remove_file(&side);
    }
    written
}

/// Checks that nothing is lost where the file is replaced.
fn check_place(path: &Path) -> io::Result<()> {
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let is_told = || {
        let text = read_text(open_invitation(path)?)?;
        io::Result::Ok(found.len() == 0 || parse_invitation(&text).is_some())
    };
    if found.is_symlink() || found.is_file() && is_told().unwrap_or(false) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "there is something else, which no job has left and which would be lost: have the ranks meet at a file that is not there",
    ))
}

/// Removes the file at the end of the job, unless another job has replaced it.
pub(super) fn remove_invitation(path: &Path, token: &str) {
    if read_invitation(path).is_ok_and(|found| token.ends_with(&found.secret)) {
        // Gone already is as good.
        let _ = std::fs::remove_file(path);
    }
}

/// Reads it.
///
/// # Errors
/// Where there is none yet, or somebody else may have written or read it.
pub(super) fn read_invitation(path: &Path) -> io::Result<FileInvitation> {
    let file = open_invitation(path)?;
    check_owner(path, &file)?;
    let nonsense = || io::Error::other(format!("{} is not how a job meets", path.display()));
    parse_invitation(&read_text(file)?).ok_or_else(nonsense)
}

/// Opens it. A link is not followed, and a pipe not waited for.
fn open_invitation(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

fn read_text(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// Parses the content of a complete file.
fn parse_invitation(text: &str) -> Option<FileInvitation> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let secret = lines.pop()?.strip_prefix(SECRET)?.to_owned();
    let is_whole = !secret.is_empty() && text.ends_with('\n');
    is_whole.then_some(FileInvitation { addresses: lines, secret })
}

/// Checks that only this user can have written and read the file.
fn check_owner(path: &Path, file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if found.is_file() && own && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let reason = format!(
        "{} is not of rank 0: it must be a file of this user that nobody else can read or write",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn invitation() -> FileInvitation {
        FileInvitation::new("127.0.0.1:4242".parse().expect("an address")).expect("random bytes")
    }

    #[test]
    fn what_is_written_is_read_and_nobody_else_can_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("meeting");
        let written = invitation();
        write_invitation(&path, &written).expect("writable");
        assert_eq!(read_invitation(&path).expect("it is there"), written);
        assert_eq!(written.addresses, ["127.0.0.1:4242"]);
        assert_ne!(written.secret, invitation().secret);
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_planted_link_is_replaced_and_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, target] = ["meeting", "target"].map(|name| folder.path().join(name));
        symlink(&target, &path).expect("a link");
        write_invitation(&path, &invitation()).expect("writable");
        assert!(!target.exists());
        assert!(path.symlink_metadata().expect("it is there").is_file());
        let link = folder.path().join("link");
        symlink(&path, &link).expect("a link");
        read_invitation(&link).expect_err("a link is not followed");
    }

    #[test]
    fn what_no_job_has_left_is_neither_replaced_nor_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("meeting");
        for own in ["notes", "secret of mine", "\nsecret x", &"x\n".repeat(9000)] {
            std::fs::write(&path, own).expect("writable");
            let error = write_invitation(&path, &invitation()).expect_err("a file of the user's");
            assert!(error.to_string().contains("a file that is not there"), "{error}");
            remove_invitation(&path, "x");
            assert_eq!(std::fs::read_to_string(&path).expect("it is there"), own);
        }
        std::fs::write(&path, "").expect("writable");
        let [first, second] = [invitation(), invitation()];
        write_invitation(&path, &first).expect("nothing was in it");
        write_invitation(&path, &second).expect("a job has left it");
        remove_invitation(&path, &first.secret);
        assert_eq!(read_invitation(&path).expect("another job's"), second);
        remove_invitation(&path, &format!("token{}", second.secret));
        assert!(!path.exists());
    }

    #[test]
    fn what_others_may_have_written_or_read_is_not_believed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("meeting");
        write_invitation(&path, &invitation()).expect("writable");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("our own");
        let error = read_invitation(&path).expect_err("others can read it");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("nobody else can read"), "{error}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("our own");
        for nonsense in ["", "127.0.0.1:1\n", "127.0.0.1:1\nsecret \n", "x\nsecret ab"] {
            std::fs::write(&path, nonsense).expect("writable");
            read_invitation(&path).expect_err("incomplete");
        }
    }
}
