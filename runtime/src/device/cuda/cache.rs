//! Files that are kept from one process to the next, such as compiled kernels, in a folder of the user's, found by a key.
//!
//! What is kept is executed, so it is believed only where nobody else can have written it. The folder and its files belong to
//! this user or to root, and nobody else may write them, which is what a system asks of its programs too. That is asked of the
//! opened folder and of each opened file, so neither can be exchanged in between.
//!
//! A secret in the folder would add nothing: who can write a file there in this user's name can read the secret as well. A folder
//! that travelled from another machine needs none. A digest of key and content shows damage, and that a file stands under its own
//! name.
//!
//! Nothing here is an error of the run: what is not kept, or not believed, is made again and replaced. What was wrong first is
//! said (`notes`).

use std::env;
use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::notes::note_of_cache;

/// The beginning of a file's name, and of its content: another form of the content gets another.
const FORM: &str = "graphc-2-";
/// The longest content that is kept.
const LONGEST: u64 = 64 << 20;
/// Bytes of the digest.
const DIGEST: usize = 32;

/// Reads the content kept under a key, which is part of a file's name: letters, digits, `-` and `.`. `None` where there is none
/// that can be trusted.
pub(super) fn read_content(key: &str) -> Option<Vec<u8>> {
    let path = find_folder()?;
    let folder = match CacheFolder::open(&path) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            note_of_cache(format!("nothing is kept in {}: {error}", path.display()));
            return None;
        }
    };
    folder.read(key)
}

/// Keeps a content under a key, in the place of an older one. Where that fails it is made again next time.
pub(super) fn write_content(key: &str, content: &[u8]) {
    let Some(path) = find_folder() else { return };
    let written = CacheFolder::open_or_make(&path).and_then(|folder| folder.write(key, content));
    if let Err(error) = written {
        note_of_cache(format!("nothing is kept in {}: {error}", path.display()));
    }
}

/// Keeps a content under a key unless one that can be trusted is there already, and returns the one that is there now. So
/// several processes that find out the same have one answer. Where nothing can be kept it is the content.
pub(super) fn write_first(key: &str, content: &[u8]) -> Vec<u8> {
    let Some(path) = find_folder() else { return content.to_vec() };
    let written =
        CacheFolder::open_or_make(&path).and_then(|folder| folder.write_first(key, content));
    written.unwrap_or_else(|error| {
        note_of_cache(format!("nothing is kept in {}: {error}", path.display()));
        content.to_vec()
    })
}

/// Finds the user's folder of kept kernels: `$GRAPHC_CACHE`, or `graphc` in the folder of caches. An empty variable counts
/// as none.
fn find_folder() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // Of others than our own a relative path means nothing (XDG Base Directory Specification).
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    let caches = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    variable("GRAPHC_CACHE").or_else(|| Some(caches()?.join("graphc")))
}

/// A folder in which things are kept.
#[derive(Debug)]
pub(super) struct CacheFolder {
    path: PathBuf,
    opened: File,
}

impl CacheFolder {
    /// Opens the folder at a path, which is made where there is none.
    ///
    /// # Errors
    /// Where it cannot be made, or others may write there.
    pub(super) fn open_or_make(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Self::open(path)
    }

    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        check_owner(&opened.metadata()?)?;
        Ok(Self { path: path.to_owned(), opened })
    }

    /// Reads the content kept under a key.
    pub(super) fn read(&self, key: &str) -> Option<Vec<u8>> {
        let name = format!("{FORM}{key}");
        match self.read_checked(key, &name) {
            Ok(content) => content,
            Err(error) => {
                let folder = self.path.display();
                note_of_cache(format!("`{name}` in {folder} is not used, and made again: {error}"));
                None
            }
        }
    }

    fn read_checked(&self, key: &str, name: &str) -> io::Result<Option<Vec<u8>>> {
        // A pipe is not waited for, and no link followed out of the folder.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(&self.opened, name, OFlags::RDONLY | flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(io::Error::other("it is a link")),
            Err(error) => return Err(error.into()),
        };
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        check_owner(&found)?;
        let mut bytes = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut bytes)?;
        let content = check_digest(key, bytes);
        content.map(Some).ok_or_else(|| io::Error::other("it is damaged"))
    }

    /// Keeps a content, complete or not at all. Whatever has its name is replaced, and not followed.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub(super) fn write(&self, key: &str, content: &[u8]) -> io::Result<()> {
        let name = format!("{FORM}{key}");
        self.write_aside(key, content, |side| {
            Ok(renameat(&self.opened, side, &self.opened, &name)?)
        })
    }

    /// Keeps a content unless something that can be believed is kept under its key: what is kept now.
    ///
    /// # Errors
    /// Where it cannot be written.
    fn write_first(&self, key: &str, content: &[u8]) -> io::Result<Vec<u8>> {
        let name = format!("{FORM}{key}");
        let mut kept = content.to_vec();
        self.write_aside(key, content, |side| {
            match linkat(&self.opened, side, &self.opened, &name, AtFlags::empty()) {
                Err(Errno::EXIST) => {}
                linked => {
                    linked?;
                    return Ok(unlinkat(&self.opened, side, AtFlags::empty())?);
                }
            }
            let Some(before) = self.read(key) else {
                return Ok(renameat(&self.opened, side, &self.opened, &name)?);
            };
            kept = before;
            Ok(unlinkat(&self.opened, side, AtFlags::empty())?)
        })?;
        Ok(kept)
    }

    /// Writes a file under a name that nobody looks for, and has it given its own.
    fn write_aside(
        &self,
        key: &str,
        content: &[u8],
        name: impl FnOnce(&str) -> io::Result<()>,
    ) -> io::Result<()> {
        if content.len() as u64 > LONGEST - (FORM.len() + DIGEST) as u64 {
            return Err(io::Error::other("it is too long to be kept"));
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let side = format!(".{FORM}{:016x}", u64::from_ne_bytes(random));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.opened, &side, flags, Mode::from_raw_mode(0o600))?);
        let parts = [FORM.as_bytes(), &digest_content(key, content), content];
        let written = parts.iter().try_for_each(|part| file.write_all(part));
        let written = written.and_then(|()| name(&side));
        if written.is_err() {
            // What is left of it would only be in the way.
            let _ = unlinkat(&self.opened, &side, AtFlags::empty());
        }
        written
    }
}

/// Checks that only this user, or root, can have written it.
fn check_owner(found: &Metadata) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    if (found.uid() == user || found.uid() == 0) && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it must belong to this user or to root, and nobody else may write it (chown; chmod go-w)",
    ))
}

fn digest_content(key: &str, content: &[u8]) -> [u8; DIGEST] {
    let sum = Sha256::new().chain_update(key).chain_update([0]).chain_update(content);
    sum.finalize().into()
}

/// Checks that the content of a file is what was written under this key, and returns it without its digest.
fn check_digest(key: &str, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let told: [u8; DIGEST] =
        bytes.strip_prefix(FORM.as_bytes())?.first_chunk::<DIGEST>().copied()?;
    let content = bytes.split_off(FORM.len() + DIGEST);
    (digest_content(key, &content) == told).then_some(content)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::notes::take_notes;
    use super::*;

    fn folder() -> (tempfile::TempDir, CacheFolder) {
        let kept = tempfile::tempdir().expect("a folder");
        let folder = CacheFolder::open_or_make(&kept.path().join("cache")).expect("writable");
        (kept, folder)
    }

    fn allow(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("our own");
    }

    #[test]
    fn what_is_kept_is_found_under_its_own_key_alone() {
        let (_kept, folder) = folder();
        assert_eq!(folder.read("a"), None);
        folder.write("a", b"first").expect("writable");
        folder.write("a", b"content").expect("writable");
        assert_eq!(folder.read("a").as_deref(), Some(&b"content"[..]));
        let [of_a, of_b] = ["a", "b"].map(|key| folder.path.join(format!("{FORM}{key}")));
        assert_eq!(std::fs::metadata(&of_a).expect("it is there").mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&folder.path).expect("a folder").count(), 1);
        std::fs::copy(of_a, of_b).expect("writable");
        assert_eq!(folder.read("b"), None, "another's content");
    }

    #[test]
    fn of_several_that_write_the_first_is_right() {
        let (_kept, folder) = folder();
        assert_eq!(folder.write_first("key", b"1").expect("writable"), b"1");
        assert_eq!(folder.write_first("key", b"2").expect("writable"), b"1");
        let path = folder.path.join(format!("{FORM}key"));
        std::fs::write(&path, "junk").expect("writable");
        assert_eq!(folder.write_first("key", b"3").expect("writable"), b"3");
        assert_eq!(folder.read("key").as_deref(), Some(&b"3"[..]));
        assert_eq!(std::fs::read_dir(&folder.path).expect("a folder").count(), 1);
    }

    #[test]
    fn damage_is_found_and_replaced() {
        let (_kept, folder) = folder();
        let path = folder.path.join(format!("{FORM}key"));
        folder.write("key", b"content").expect("writable");
        let whole = std::fs::read(&path).expect("it is there");
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&path, changed).expect("writable");
            assert_eq!(folder.read("key"), None, "byte {at}");
            std::fs::write(&path, &whole[..at]).expect("writable");
            assert_eq!(folder.read("key"), None, "cut off at {at}");
        }
        folder.write("key", b"content").expect("writable");
        assert_eq!(folder.read("key").as_deref(), Some(&b"content"[..]));
    }

    /// None of these is read, nor waited for; all are replaced.
    #[test]
    fn what_is_no_file_of_the_users_own_is_replaced() {
        let (kept, folder) = folder();
        let path = folder.path.join(format!("{FORM}key"));
        let other = kept.path().join("other");
        folder.write("key", b"content").expect("writable");
        std::fs::rename(&path, &other).expect("writable");
        type Plant<'a> = &'a dyn Fn();
        let link = || symlink(&other, &path).expect("writable");
        let pipe = || {
            let kind = rustix::fs::FileType::Fifo;
            let at = rustix::fs::CWD;
            rustix::fs::mknodat(at, &path, kind, Mode::from_raw_mode(0o600), 0).expect("writable");
        };
        let loose = || {
            std::fs::copy(&other, &path).expect("writable");
            allow(&path, 0o620);
        };
        for (name, plant) in [("link", &link as Plant<'_>), ("pipe", &pipe), ("loose", &loose)] {
            plant();
            assert_eq!(folder.read("key"), None, "{name}");
            folder.write("key", b"new").expect("writable");
            assert_eq!(folder.read("key").as_deref(), Some(&b"new"[..]), "{name}");
            std::fs::remove_file(&path).expect("writable");
        }
        assert!(other.exists(), "the link was not followed");
        let said = take_notes();
        assert!(said.iter().any(|note| note.contains("made again")), "{said:?}");
    }

    #[test]
    fn a_folder_that_others_may_write_is_not_used() {
        let (_kept, folder) = folder();
        assert_eq!(std::fs::metadata(&folder.path).expect("made").mode() & 0o777, 0o700);
        for mode in [0o770, 0o707, 0o777] {
            allow(&folder.path, mode);
            let error = CacheFolder::open_or_make(&folder.path).expect_err("others may write it");
            assert!(error.to_string().contains("chmod go-w"), "{error}");
        }
        allow(&folder.path, 0o755);
        CacheFolder::open_or_make(&folder.path).expect("others may only read it");
    }
}
