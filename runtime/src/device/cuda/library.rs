//! NVIDIA's libraries: where they are looked for, and what to install where one is missing.
//!
//! graphc is built without them and asks for them as it runs. A library is looked for by its name, as the system does
//! (LD_LIBRARY_PATH among others), then in the usual folders of a toolkit, of containers and of distributions, then in those of
//! Python's packages, where PyTorch brings them along. One that is found by its path is opened by it and stays open, after which it
//! is found by its name as well. One that lacks a function is refused, as the bindings would end the program at the call.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library as Opened;

use super::functions;

/// One of the libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The driver.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Collectives.
    Nccl,
}

/// A library that is open.
#[derive(Debug)]
pub struct Found {
    /// The name or the path by which it was opened.
    pub path: PathBuf,
    /// The open library, kept as long as the process.
    pub(super) opened: Opened,
}

impl Found {
    /// Whether the library has a function.
    pub(super) fn has_function(&self, function: &str) -> bool {
        // SAFETY: the function is looked for and not called.
        unsafe { self.opened.get::<*const ()>(function) }.is_ok()
    }

    /// Finds the file, as far as one of these functions tells in which it is.
    fn locate_file(&self, functions: &[&str]) -> PathBuf {
        let address = |function: &&str| {
            // SAFETY: the function is looked for and not called.
            let found = unsafe { self.opened.get::<*const std::ffi::c_void>(*function) };
            found.ok().map(|found| *found)
        };
        let of_function = functions.iter().find_map(address).and_then(file_of);
        of_function.unwrap_or_else(|| self.path.clone())
    }

    /// Whether a function gives a number and says that all is well.
    ///
    /// # Safety
    /// The function, where there is one of that name, takes a place for a number and returns one.
    unsafe fn read_number(&self, name: &[u8], place: &mut i32) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let function = self.opened.get::<unsafe extern "C" fn(*mut i32) -> i32>(name);
            function.is_ok_and(|function| function(place) == 0)
        }
    }
}

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotFound {
    /// The library was not found anywhere.
    #[error("{library} is not there ({tried}): {advice}")]
    Nowhere {
        /// The library.
        library: Library,
        /// The places where it was looked for.
        tried: String,
        /// The advice what to install.
        advice: &'static str,
    },
    /// The library lacks functions that are called.
    #[error(
        "{library} at {path} ({version}) lacks the function {function}, so it is too old or another one: {advice}"
    )]
    Lacks {
        /// The library.
        library: Library,
        /// Its file.
        path: String,
        /// The version that it reports.
        version: String,
        /// The first function that it lacks.
        function: &'static str,
        /// The advice what to install.
        advice: &'static str,
    },
}

impl Library {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Driver, Self::Nvrtc, Self::CublasLt, Self::Nccl];

    /// Finds the library, which is looked for once.
    ///
    /// # Errors
    /// Where it is nowhere.
    pub fn find(self) -> Result<&'static Found, NotFound> {
        static FOUND: [OnceLock<Result<Found, NotFound>>; 4] = [const { OnceLock::new() }; 4];
        let found = FOUND[self as usize].get_or_init(|| self.check_functions(self.search()?));
        found.as_ref().map_err(Clone::clone)
    }

    /// Returns the library's version, such as `2.28.3`; of the driver, that of the CUDA which it is for. `None` where it is not
    /// there or does not say.
    pub fn version(self) -> Option<String> {
        self.version_of(self.find().ok()?)
    }

    fn version_of(self, found: &Found) -> Option<String> {
        let (mut first, mut second) = (0, 0);
        // SAFETY: the types are those of the functions in NVIDIA's headers, which take places for numbers, or nothing.
        let told = unsafe {
            match self {
                Self::Driver => found.read_number(b"cuDriverGetVersion", &mut first),
                Self::Nccl => found.read_number(b"ncclGetVersion", &mut first),
                Self::Nvrtc => {
                    type Version = unsafe extern "C" fn(*mut i32, *mut i32) -> i32;
                    let function = found.opened.get::<Version>(b"nvrtcVersion");
                    function.is_ok_and(|function| function(&mut first, &mut second) == 0)
                }
                Self::CublasLt => {
                    let function =
                        found.opened.get::<unsafe extern "C" fn() -> usize>(b"cublasLtGetVersion");
                    first = function.map_or(0, |function| function() as i32);
                    first > 0
                }
            }
        };
        told.then(|| match self {
            Self::Driver => format!("CUDA {}.{}", first / 1000, first % 1000 / 10),
            Self::Nvrtc => format!("{first}.{second}"),
            Self::CublasLt | Self::Nccl => {
                format!("{}.{}.{}", first / 10_000, first / 100 % 100, first % 100)
            }
        })
    }

    /// Returns the file names: first the one by which a library is found that a machine has for all programs, then by version. A
    /// driver for CUDA 12 does not take what libraries of CUDA 13 make.
    fn file_names(self) -> &'static [&'static str] {
        let old = matches!(self, Self::Nvrtc | Self::CublasLt) && driver_version() < 13_000;
        match self {
            Self::Driver => &["libcuda.so", "libcuda.so.1"],
            Self::Nvrtc if old => &["libnvrtc.so", "libnvrtc.so.12", "libnvrtc.so.13"],
            Self::Nvrtc => &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"],
            Self::CublasLt if old => &["libcublasLt.so", "libcublasLt.so.12", "libcublasLt.so.13"],
            Self::CublasLt => &["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"],
            Self::Nccl => &["libnccl.so.2", "libnccl.so"],
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Driver => "install NVIDIA's driver for the card",
            Self::Nvrtc => {
                "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` (nvidia-cuda-nvrtc-cu12 for a driver of CUDA 12)"
            }
            Self::CublasLt => {
                "install the CUDA toolkit, or `pip install nvidia-cublas` (nvidia-cublas-cu12 for a driver of CUDA 12)"
            }
            Self::Nccl => "install NCCL 2, or `pip install nvidia-nccl-cu13`",
        }
    }

    /// Returns the functions that are called through bindings, which cannot say that one is missing; those of NCCL are looked for
    /// one by one.
    fn required_functions(self) -> &'static [&'static str] {
        match self {
            Self::Driver => functions::DRIVER,
            Self::Nvrtc => functions::NVRTC,
            Self::CublasLt => functions::CUBLAS_LT,
            Self::Nccl => &[],
        }
    }

    /// Checks that the library has all functions that are called.
    fn check_functions(self, found: Found) -> Result<Found, NotFound> {
        let Some(&function) =
            self.required_functions().iter().find(|function| !found.has_function(function))
        else {
            return Ok(found);
        };
        Err(NotFound::Lacks {
            library: self,
            path: found.locate_file(self.required_functions()).display().to_string(),
            version: self.version_of(&found).unwrap_or_else(|| "it says no version".into()),
            function,
            advice: self.advice(),
        })
    }

    /// Returns the file of the library, where it is there.
    pub(super) fn file_path(self) -> Option<PathBuf> {
        Some(self.find().ok()?.locate_file(self.required_functions()))
    }

    fn search(self) -> Result<Found, NotFound> {
        for name in self.file_names() {
            if let Some(opened) = open_library(OsStr::new(name)) {
                return Ok(Found { path: name.into(), opened });
            }
        }
        let folders = list_library_folders();
        for path in folders.iter().flat_map(|folder| self.file_names().map_in(folder)) {
            if let Some(opened) = path.exists().then(|| self.open_at(&path)).flatten() {
                return Ok(Found { path, opened });
            }
        }
        let tried = format!(
            "looked for {} by name and in {} folders, such as {}",
            self.file_names().join(", "),
            folders.len(),
            folders.first().map_or("none".to_owned(), |folder| folder.display().to_string())
        );
        Err(NotFound::Nowhere { library: self, tried, advice: self.advice() })
    }

    /// Opens a file. The compiler needs a second library of its folder, which it does not find by itself.
    fn open_at(self, path: &Path) -> Option<Opened> {
        if self == Self::Nvrtc {
            for file in path.parent().and_then(|folder| folder.read_dir().ok())?.flatten() {
                if file.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so") {
                    // It stays open as long as the process.
                    std::mem::forget(open_library(file.path().as_os_str()));
                }
            }
        }
        let opened = open_library(path.as_os_str())?;
        // Bindings look for it by name: one that does not say how it is called is not found by them.
        self.file_names()
            .iter()
            .any(|name| open_library(OsStr::new(name)).is_some())
            .then_some(opened)
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => "NVIDIA's driver (libcuda)",
            Self::Nvrtc => "NVIDIA's compiler library (NVRTC)",
            Self::CublasLt => "NVIDIA's library of matrix products (cuBLASLt)",
            Self::Nccl => "NVIDIA's library of collectives (NCCL)",
        })
    }
}

/// The paths of these names in a folder.
trait LibraryNames {
    fn map_in(self, folder: &Path) -> impl Iterator<Item = PathBuf>;
}

impl LibraryNames for &'static [&'static str] {
    fn map_in(self, folder: &Path) -> impl Iterator<Item = PathBuf> {
        self.iter().map(move |name| folder.join(name))
    }
}

/// Returns the file of the library that has this address.
#[cfg(target_os = "linux")]
fn file_of(address: *const std::ffi::c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the place is one for what is told, which holds where the call succeeds; the name lives as long as the library is open.
    let name = unsafe {
        if libc::dladdr(address, found.as_mut_ptr()) == 0 {
            return None;
        }
        let name = found.assume_init().dli_fname;
        (!name.is_null()).then(|| std::ffi::CStr::from_ptr(name))?
    };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Returns the file of the library that has this address, which other systems do not tell.
#[cfg(not(target_os = "linux"))]
fn file_of(_address: *const std::ffi::c_void) -> Option<PathBuf> {
    None
}

fn open_library(name: &OsStr) -> Option<Opened> {
    // SAFETY: opening one of NVIDIA's libraries runs what it does when it is loaded, as for every program that links it.
    unsafe { Opened::new(name) }.ok()
}

/// Returns the version of CUDA that the driver is for, as 1000 times its major number and 10 times its minor; the newest where
/// there is none.
pub(super) fn driver_version() -> i32 {
    let Ok(found) = Library::Driver.find() else { return i32::MAX };
    let mut version = 0;
    // SAFETY: that is the function's type in the driver's header.
    let told = unsafe { found.read_number(b"cuDriverGetVersion", &mut version) };
    if told { version } else { i32::MAX }
}

/// Finds the installations of the Python that is found by name, whose packages may have libraries.
fn find_pythons() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).filter(|folder| folder.join("python3").exists());
    folders.filter_map(|folder| folder.parent().map(Path::to_path_buf)).collect()
}

/// The folders in which NVIDIA's containers, toolkits and distributions put libraries, whether the system's loader
/// looks there or not.
const FOLDERS: [&str; 6] = [
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/cuda/lib64",
    "/usr/lib/wsl/lib",
    #[cfg(target_arch = "x86_64")]
    "/usr/lib/x86_64-linux-gnu",
    #[cfg(not(target_arch = "x86_64"))]
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
];

/// Folders in which toolkits and Python's packages put libraries.
fn list_library_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for toolkit in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os).map(PathBuf::from) {
        folders.extend(["lib64", "lib"].map(|lib| toolkit.join(lib)));
    }
    folders.extend(FOLDERS.map(PathBuf::from));
    let homes = env::var_os("VIRTUAL_ENV").into_iter().chain(env::var_os("CONDA_PREFIX"));
    let mut prefixes: Vec<PathBuf> = homes.map(PathBuf::from).collect();
    prefixes.extend(env::var_os("HOME").map(|home| Path::new(&home).join(".local")));
    // Conda puts them beside its own.
    folders.extend(prefixes.iter().map(|prefix| prefix.join("lib")));
    prefixes.extend(find_pythons());
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    for lib in prefixes.iter().map(|prefix| prefix.join("lib")) {
        for python in list_children(&lib).filter(|path| name_begins(path, "python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let packages = list_children(&python.join(packages).join("nvidia"));
                folders.extend(packages.map(|package| package.join("lib")));
            }
        }
    }
    folders
}

/// Lists the paths in a folder, by name; none where there is no such folder.
fn list_children(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let read = folder.read_dir().into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = read.map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter()
}

fn name_begins(path: &Path, with: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(with))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_containers_and_distributions_are_looked_into() {
        let folders = list_library_folders();
        for folder in ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/local/cuda/lib64"]
        {
            assert!(folders.contains(&PathBuf::from(folder)), "{folder}");
        }
        let of_debian = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
        assert!(folders.contains(&PathBuf::from(of_debian)));
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_install() {
        for library in Library::ALL {
            if let Err(missing) = library.find() {
                let text = missing.to_string();
                assert!(
                    text.contains("install") && text.contains(library.file_names()[0]),
                    "{text}"
                );
            }
        }
    }
}
