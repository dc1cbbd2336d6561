//! Keeps the texts that NVRTC has made in files for later runs of the same tests: in the folder that [`VARIABLE`] names, and nowhere without it.
//!
//! A file has what it was made of beside it. Another source, option or compiler is another file.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// The environment variable with the folder.
pub const VARIABLE: &str = "GPU_DOUBLE_KEPT";

/// The origin of a text: the compiler's file, the source and the options, and which of the compiler's texts it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Making {
    compiler: u64,
    source: String,
    options: Vec<String>,
    what: String,
}

impl Making {
    /// Names a text of the compiler that is installed.
    pub fn new(source: &str, options: &[String], what: &str) -> Self {
        static COMPILER: LazyLock<u64> =
            LazyLock::new(|| super::path().map_or(0, |path| hash_file(&path)));
        let (source, what) = (source.to_owned(), what.to_owned());
        Self { compiler: *COMPILER, source, options: options.to_vec(), what }
    }

    /// Returns the file of a folder in which the text is kept.
    pub fn file_in(&self, folder: &Path) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        folder.join(format!("{:016x}.json", hasher.finish()))
    }
}

/// Hashes the size of a large file and 4 KiB of each MiB: the same number for the same file, wherever it lies.
pub fn hash_file(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut read = || -> std::io::Result<()> {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        size.hash(&mut hasher);
        for start in (0..size).step_by(1 << 20) {
            file.seek(SeekFrom::Start(start))?;
            let mut page = Vec::new();
            (&file).take(4096).read_to_end(&mut page)?;
            page.hash(&mut hasher);
        }
        Ok(())
    };
    // Of a file that cannot be read nothing can be made either.
    let _ = read();
    hasher.finish()
}

/// Returns the text that was kept, or makes it and keeps it. What cannot be kept is made again.
///
/// # Errors
/// As `make`, of which no error is kept.
pub fn take_or_make<E>(
    folder: Option<&Path>,
    making: &Making,
    make: impl FnOnce() -> Result<String, E>,
) -> Result<String, E> {
    let Some(folder) = folder else { return make() };
    let path = making.file_in(folder);
    let read = || serde_json::from_slice::<(Making, String)>(&std::fs::read(&path).ok()?).ok();
    if let Some((_, text)) = read().filter(|(of, _)| of == making) {
        return Ok(text);
    }
    let text = make()?;
    if let Ok(bytes) = serde_json::to_vec(&(making, &text)) {
        let own = format!("{}.{:?}", std::process::id(), std::thread::current().id());
        let part = path.with_extension(own);
        let _ = std::fs::create_dir_all(folder);
        let _ = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, &path));
    }
    Ok(text)
}
