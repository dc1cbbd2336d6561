//! Kernels compiled for the card at hand, by NVIDIA's compiler library, and kept: in the process, and on disk by source, options and
//! the compiler's version.
//!
//! What is loaded is the binary for the card, not PTX, which a driver that is older than the compiler would refuse.

use std::collections::HashMap;
use std::env;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::nvrtc::{result, sys};
use sha2::{Digest, Sha256};

use super::library::{Library, NotFound};

/// What the name of a kept file begins with: another form of the file gets another.
const FORM: &str = "graphc-kernel-1";

/// A kernel's binary.
pub(super) type Binary = Arc<Vec<u8>>;

/// Why a kernel cannot be compiled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum CompileError {
    /// There is no compiler.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// It is older than the card.
    #[error(
        "NVRTC {major}.{minor} does not know the card's architecture, {arch}: install a newer one, `pip install -U nvidia-cuda-nvrtc`"
    )]
    Unknown { arch: Arch, major: i32, minor: i32 },
    /// It does not take a kernel: a fault of graphc.
    #[error(
        "the compiler refuses a kernel of graphc's for {arch}, which is an internal error: {log}"
    )]
    Refused { arch: String, log: String },
}

/// The architecture of a card, e.g. `sm_90`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Arch {
    pub(super) major: i32,
    pub(super) minor: i32,
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

impl Arch {
    /// Whether the compiler knows it. One that does not say what it knows is asked when it compiles.
    fn check(self) -> Result<(), CompileError> {
        static KNOWN: OnceLock<Vec<i32>> = OnceLock::new();
        let known = KNOWN.get_or_init(|| known().unwrap_or_default());
        if known.is_empty() || known.contains(&(self.major * 10 + self.minor)) {
            return Ok(());
        }
        let (major, minor) = version();
        Err(CompileError::Unknown { arch: self, major, minor })
    }
}

/// The architectures that the compiler knows, as numbers such as 90.
fn known() -> Result<Vec<i32>, result::NvrtcError> {
    let mut count = 0;
    // SAFETY: the first call says for how many numbers there must be places.
    unsafe {
        sys::nvrtcGetNumSupportedArchs(&mut count).result()?;
        let mut known = vec![0; count.max(0) as usize];
        sys::nvrtcGetSupportedArchs(known.as_mut_ptr()).result()?;
        Ok(known)
    }
}

/// The binary of a kernel for an architecture.
///
/// # Errors
/// Where there is no compiler, or it does not take the source.
pub(super) fn compile(source: &str, arch: Arch) -> Result<Binary, CompileError> {
    static KEPT: OnceLock<Mutex<HashMap<String, Binary>>> = OnceLock::new();
    let kept = KEPT.get_or_init(Mutex::default);
    Library::Nvrtc.find()?;
    arch.check()?;
    let arch = &arch.to_string();
    let key = key(source, arch);
    if let Some(binary) = kept.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(Arc::clone(binary));
    }
    let binary = Arc::new(match from_disk(&key) {
        Some(binary) => binary,
        None => {
            let binary = compiled(source, arch)?;
            to_disk(&key, &binary);
            binary
        }
    });
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Arc::clone(kept.entry(key).or_insert(binary)))
}

/// What the compiler is told. Products and sums are rounded one by one, so that a value has the same bits in whichever kernel it is
/// computed.
fn options(arch: &str) -> Vec<String> {
    let arch = format!("--gpu-architecture={arch}");
    [&arch, "--fmad=false", "--std=c++17", "-default-device"].map(str::to_owned).to_vec()
}

/// The compiler's version.
pub(super) fn version() -> (i32, i32) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are places for a number. (The library was found.)
    let asked = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    if asked == sys::nvrtcResult::NVRTC_SUCCESS { (major, minor) } else { (0, 0) }
}

fn key(source: &str, arch: &str) -> String {
    let mut sum = Sha256::new();
    sum.update(format!("{:?} {:?}\n", version(), options(arch)));
    sum.update(source);
    sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where binaries are kept: `$GRAPHC_CACHE`, or `graphc` in the user's folder of caches.
fn folder() -> Option<PathBuf> {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let caches = || env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let own = env::var_os("GRAPHC_CACHE").map(PathBuf::from);
    own.or_else(|| caches().map(|caches| caches.join("graphc")))
}

/// What is kept under a key: the binary behind its checksum, so a file that was cut off is none.
fn from_disk(key: &str) -> Option<Vec<u8>> {
    let mut content = std::fs::read(folder()?.join(format!("{FORM}-{key}"))).ok()?;
    let sum: [u8; 32] = content.get(..32)?.try_into().ok()?;
    let binary = content.split_off(32);
    (<[u8; 32]>::from(Sha256::digest(&binary)) == sum).then_some(binary)
}

/// Keeps a binary. Where that fails it is compiled again next time.
fn to_disk(key: &str, binary: &[u8]) {
    let write = |folder: PathBuf| {
        std::fs::create_dir_all(&folder)?;
        let mut file = tempfile::NamedTempFile::new_in(&folder)?;
        file.write_all(&Sha256::digest(binary))?;
        file.write_all(binary)?;
        file.persist(folder.join(format!("{FORM}-{key}"))).map_err(|error| error.error)
    };
    let _ = folder().map(write);
}

fn compiled(source: &str, arch: &str) -> Result<Vec<u8>, CompileError> {
    let refused = |log: String| CompileError::Refused { arch: arch.to_owned(), log };
    let text = CString::new(source).map_err(|_| refused("a byte of 0 in the source".into()))?;
    let program = result::create_program(&text, Some(c"kernel.cu"));
    let program = Program(program.map_err(|error| refused(error.to_string()))?);
    // SAFETY: the program was created just now.
    match unsafe { result::compile_program(program.0, &options(arch)) } {
        Ok(()) => program.binary().map_err(|error| refused(error.to_string())),
        Err(_) => Err(refused(program.log())),
    }
}

/// A program of the compiler.
struct Program(sys::nvrtcProgram);

impl Program {
    fn binary(&self) -> Result<Vec<u8>, result::NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program is there; the size is asked for before the place for the bytes is made.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut bytes).result()?;
            let mut binary = vec![0u8; bytes];
            sys::nvrtcGetCUBIN(self.0, binary.as_mut_ptr().cast::<c_char>()).result()?;
            Ok(binary)
        }
    }

    fn log(&self) -> String {
        // SAFETY: the program is there.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|&byte| byte as u8).collect();
        let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy);
        text.map(std::borrow::Cow::into_owned).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
