//! A folder with the names that programs open, for a test that runs a program on the double.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::nvrtc;

/// The names of NVIDIA's libraries, all of which are the one library.
const NAMES: [&str; 8] = [
    "libcuda.so.1",
    "libcuda.so",
    "libnvrtc.so.13",
    "libnvrtc.so",
    "libcublasLt.so.13",
    "libcublasLt.so",
    "libnccl.so.2",
    "libnccl.so",
];
/// The library as cargo builds it.
const FILE: &str = "libgpu_double.so";

/// The environment variables by which a program finds the double.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Env {
    /// Names and values.
    pub variables: Vec<(&'static str, OsString)>,
}

/// Puts the libraries' names into a folder, each a link to the double. None where NVRTC is not installed, which is said on
/// standard output.
///
/// # Panics
/// The library is not where cargo builds it, or the folder cannot be written.
pub fn install(folder: &Path) -> Option<Env> {
    let Some(compiler) = nvrtc::path() else {
        println!("skipped: NVRTC is not installed");
        return None;
    };
    let library = library().expect("cargo builds libgpu_double.so beside the tests that use it");
    for name in NAMES {
        link(&library, &folder.join(name)).expect("the folder can be written");
    }
    let variables = vec![
        ("LD_LIBRARY_PATH", folder.as_os_str().to_os_string()),
        (nvrtc::VARIABLE, compiler.into_os_string()),
    ];
    Some(Env { variables })
}

fn link(library: &Path, name: &Path) -> io::Result<()> {
    match std::os::unix::fs::symlink(library, name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// The shared library: cargo puts it beside the executables of tests, whose dependency it is, one folder above, or for
/// examples in the folder of dependencies beside theirs.
pub fn library() -> Option<PathBuf> {
    let here = std::env::current_exe().ok()?;
    let folders = here.ancestors().skip(1).take(2);
    let places = folders.flat_map(|folder| [folder.join(FILE), folder.join("deps").join(FILE)]);
    places.into_iter().find(|path| path.is_file())
}
