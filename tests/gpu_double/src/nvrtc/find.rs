//! The search for NVRTC: as the environment says, among Python's packages, or where NVIDIA's installers put it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// File names, newest first.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Folders of NVIDIA's installers and of distributions.
const FOLDERS: [&str; 4] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/opt/cuda/lib64",
];

/// The file, or None.
pub fn nvrtc() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(super::VARIABLE) {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    let usual = || FOLDERS.iter().find_map(|folder| in_folder(Path::new(folder)));
    of_python().or_else(usual)
}

fn in_folder(folder: &Path) -> Option<PathBuf> {
    NAMES.iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

/// NVIDIA's packages for Python have a folder for each library, or one for a version.
fn of_python() -> Option<PathBuf> {
    let ask = "import nvidia; print(list(nvidia.__path__)[0])";
    let output = Command::new("python3").args(["-c", ask]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let folder = PathBuf::from(text.trim());
    let parts = ["cu13/lib", "cuda_nvrtc/lib"];
    let found = || parts.iter().find_map(|part| in_folder(&folder.join(part)));
    (output.status.success() && folder.is_dir()).then(found).flatten()
}
