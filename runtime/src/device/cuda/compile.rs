//! Kernels compiled for a card by NVIDIA's compiler library, side by side, and kept: in the process, and on disk (`cache`).
//!
//! What is loaded is the binary for the card, not PTX, which a driver that is older than the compiler would refuse. So a kernel is
//! found again by its source, by what the compiler was told, and by the compiler's version. Kernels that were prepared for another
//! machine are taken whichever compiler made them, as that machine may have another or none: a driver takes the binaries of all
//! compilers of its own major version of CUDA and of older ones (CUDA Compatibility guide, minor version compatibility).

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::nvrtc::{result, sys};
use graphc_host::threads::side_by_side;
use graphc_ir::hex::encode_hex;
use sha2::{Digest, Sha256};

use super::cache::{self, CacheFolder};
use super::library::{Library, NotFound, driver_version};
use super::notes::note_of_cache;

/// A kernel's binary.
#[derive(Clone, Debug)]
pub(super) struct KernelBinary {
    pub(super) bytes: Arc<Vec<u8>>,
    /// Whether it was kept, and not compiled by this process.
    pub(super) was_kept: bool,
}

/// Why a kernel cannot be compiled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum KernelCompileError {
    /// There is no compiler.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// The compiler is older than the card.
    #[error(
        "NVRTC {major}.{minor} does not know the card's architecture, {arch}: install a newer one, `pip install -U nvidia-cuda-nvrtc`"
    )]
    Unknown { arch: Arch, major: i32, minor: i32 },
    /// The compiler refuses a kernel: a fault of graphc.
    #[error(
        "the compiler refuses a kernel of graphc's for {arch}, which is an internal error: {log}"
    )]
    Refused { arch: String, log: String },
    /// A kernel that was compiled for another machine cannot be written.
    #[error("a kernel cannot be written: {reason}")]
    Unkept { reason: String },
}

/// The architecture of a card, e.g. `sm_90`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Checks that the compiler knows it. One that does not say what it knows is asked when it compiles.
    fn check_supported(self) -> Result<(), KernelCompileError> {
        static KNOWN: OnceLock<Vec<i32>> = OnceLock::new();
        let known = KNOWN.get_or_init(|| list_architectures().unwrap_or_default());
        if known.is_empty() || known.contains(&(self.major * 10 + self.minor)) {
            return Ok(());
        }
        let (major, minor) = compiler_version();
        Err(KernelCompileError::Unknown { arch: self, major, minor })
    }
}

/// Lists the architectures that the compiler knows, as numbers such as 90.
fn list_architectures() -> Result<Vec<i32>, result::NvrtcError> {
    let mut count = 0;
    // SAFETY: the first call says for how many numbers there must be places.
    unsafe {
        sys::nvrtcGetNumSupportedArchs(&mut count).result()?;
        let mut known = vec![0; count.max(0) as usize];
        sys::nvrtcGetSupportedArchs(known.as_mut_ptr()).result()?;
        Ok(known)
    }
}

/// The form of the binaries that a driver executes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BinaryForm {
    /// Machine code, as an ELF file.
    Machine,
    /// The output of a driver's own compiler, where the driver is no card's, as that of graphc's tests.
    Own,
}

impl BinaryForm {
    /// Returns the form of the present driver, or, without one, that of cards.
    fn of_driver() -> Self {
        match Library::Driver.find() {
            Ok(driver) if driver.has_function("nvrtcVersion") => Self::Own,
            Ok(_) | Err(_) => Self::Machine,
        }
    }

    fn is_of(self, binary: &[u8]) -> bool {
        binary.starts_with(b"\x7fELF") == (self == Self::Machine)
    }
}

/// Compiles kernels for their architectures, each once, by as many threads as the process may use, and returns their
/// binaries.
pub(super) fn compile_all<'a>(
    kernels: impl IntoIterator<Item = (&'a str, Arch)>,
) -> BTreeMap<(&'a str, Arch), Result<KernelBinary, KernelCompileError>> {
    let mut binaries: BTreeMap<_, _> = kernels.into_iter().map(|kernel| (kernel, None)).collect();
    let order: Vec<(&str, Arch)> = binaries.keys().copied().collect();
    let made = side_by_side(order.len(), |at| find_binary(order[at].0, order[at].1));
    for (place, made) in binaries.values_mut().zip(made) {
        *place = Some(made);
    }
    binaries.into_iter().filter_map(|(kernel, made)| Some((kernel, made?))).collect()
}

/// Binaries of this process, by the kernels' names: each is made by the first that asks, for whom the others wait.
type Kept = Mutex<HashMap<String, Arc<OnceLock<Result<KernelBinary, KernelCompileError>>>>>;

fn kept_binaries() -> &'static Kept {
    static KEPT: OnceLock<Kept> = OnceLock::new();
    KEPT.get_or_init(Mutex::default)
}

/// Finds the binary of a kernel for an architecture: of this process, kept, or compiled.
pub(super) fn find_binary(source: &str, arch: Arch) -> Result<KernelBinary, KernelCompileError> {
    let name = name_kernel(source, arch, None);
    let place = {
        let mut kept = kept_binaries().lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(kept.entry(name).or_default())
    };
    place
        .get_or_init(|| read_kept(source, arch).map_or_else(|| compile_and_keep(source, arch), Ok))
        .clone()
}

/// Compiles a kernel whose binary was kept, and which the driver does not take, and keeps that in its place.
///
/// # Errors
/// Where there is no compiler, or it does not take the source.
pub(super) fn compile_again(source: &str, arch: Arch) -> Result<KernelBinary, KernelCompileError> {
    let binary = compile_and_keep(source, arch)?;
    let mut kept = kept_binaries().lock().unwrap_or_else(PoisonError::into_inner);
    kept.insert(name_kernel(source, arch, None), Arc::new(OnceLock::from(Ok(binary.clone()))));
    Ok(binary)
}

/// Compiles a kernel and keeps it.
fn compile_and_keep(source: &str, arch: Arch) -> Result<KernelBinary, KernelCompileError> {
    let bytes = compile_source(source, arch)?;
    if BinaryForm::of_driver().is_of(&bytes) {
        cache::write_content(&name_kernel(source, arch, Some(compiler_version())), &bytes);
    }
    Ok(KernelBinary { bytes: Arc::new(bytes), was_kept: false })
}

/// Reads a kept kernel: one prepared for this machine, or one that this machine's compiler has made before.
fn read_kept(source: &str, arch: Arch) -> Option<KernelBinary> {
    let driver = driver_version() / 1000;
    let key = name_kernel(source, arch, None);
    let usable = |((major, _), bytes): (Version, Vec<u8>)| match major <= driver {
        true => Some(bytes),
        false => {
            note_of_cache(format!(
                "kernels that NVRTC {major} has prepared are not used, as the driver is for CUDA {driver}"
            ));
            None
        }
    };
    let prepared =
        || cache::read_content(&key).and_then(|content| parse_prepared(&content)).and_then(usable);
    let own = || {
        Library::Nvrtc.find().ok()?;
        cache::read_content(&name_kernel(source, arch, Some(compiler_version())))
    };
    let bytes = prepared().or_else(own).filter(|bytes| BinaryForm::of_driver().is_of(bytes))?;
    Some(KernelBinary { bytes: Arc::new(bytes), was_kept: true })
}

/// A version of the compiler: major and minor.
type Version = (i32, i32);

/// Parses a binary that was prepared: behind the version of its compiler.
fn parse_prepared(content: &[u8]) -> Option<(Version, Vec<u8>)> {
    let (version, bytes) = content.split_first_chunk::<8>()?;
    let (major, minor) = version.split_at(4);
    let [major, minor] = [major, minor].map(|part| part.try_into().map(i32::from_le_bytes));
    Some(((major.ok()?, minor.ok()?), bytes.to_vec()))
}

/// Compiles kernels for a card that need not be there, side by side, and keeps them in a folder, from which machines with whatever
/// compiler take them. Gives how many were not there yet.
///
/// # Errors
/// Where there is no compiler, it does not take a source, or the folder cannot be written.
pub(super) fn prepare_all(
    sources: &[String],
    arch: Arch,
    folder: &CacheFolder,
) -> Result<usize, KernelCompileError> {
    Library::Nvrtc.find()?;
    let (major, minor) = compiler_version();
    let prepare = |source: &str| {
        let key = name_kernel(source, arch, None);
        let there = folder.read(&key).and_then(|content| parse_prepared(&content));
        let is_ours = |bytes: &[u8]| BinaryForm::of_driver().is_of(bytes);
        if there.is_some_and(|(made_by, bytes)| made_by == (major, minor) && is_ours(&bytes)) {
            return Ok(0);
        }
        let bytes = compile_source(source, arch)?;
        let content = [&major.to_le_bytes()[..], &minor.to_le_bytes(), &bytes].concat();
        let kept = |error: io::Error| KernelCompileError::Unkept { reason: error.to_string() };
        folder.write(&key, &content).map_err(kept)?;
        Ok(1)
    };
    side_by_side(sources.len(), |at| prepare(&sources[at])).into_iter().sum()
}

/// Returns the compiler's options. Products and sums are rounded one by one, so that a value has the same bits in whichever kernel
/// it is computed.
fn compiler_options(arch: Arch) -> Vec<String> {
    // What only this generation of cards has, such as products by groups of warps, is behind a letter. A driver with a compiler of its
    // own has none of it.
    let own = match (arch, BinaryForm::of_driver()) {
        (Arch { major: 9, minor: 0 }, BinaryForm::Machine) => "a",
        (_, BinaryForm::Machine | BinaryForm::Own) => "",
    };
    let arch = format!("--gpu-architecture={arch}{own}");
    [&arch, "--fmad=false", "--std=c++17", "-default-device"].map(str::to_owned).to_vec()
}

/// Returns the options by which the compiler of this version takes less time for the same result: no kernel needs textures or what begins with
/// `cuda`, and to declare them takes a quarter of the time of a small kernel (NVRTC's guide, `--minimal`, from 12.4 on).
fn faster_options() -> Vec<String> {
    let is_known = compiler_version() >= (12, 4);
    is_known.then(|| "-minimal".to_owned()).into_iter().collect()
}

/// Returns the compiler's version.
pub(super) fn compiler_version() -> Version {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are places for a number. (The library was found.)
    let asked = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    if asked == sys::nvrtcResult::NVRTC_SUCCESS { (major, minor) } else { (0, 0) }
}

/// Returns the name of a kernel: of what a compiler of this version makes of it, or of what was prepared.
fn name_kernel(source: &str, arch: Arch, version: Option<Version>) -> String {
    let mut sum = Sha256::new();
    let told = compiler_options(arch);
    sum.update(format!("{:?} {version:?} {told:?}\n", BinaryForm::of_driver()));
    sum.update(source);
    let digest = encode_hex(&sum.finalize());
    let kind = if version.is_some() { "kernel" } else { "prepared" };
    format!("{kind}-{digest}")
}

fn compile_source(source: &str, arch: Arch) -> Result<Vec<u8>, KernelCompileError> {
    Library::Nvrtc.find()?;
    arch.check_supported()?;
    let refused = |log: String| KernelCompileError::Refused { arch: arch.to_string(), log };
    let text = CString::new(source).map_err(|_| refused("a byte of 0 in the source".into()))?;
    let program = result::create_program(&text, Some(c"kernel.cu"));
    let program = NvrtcProgram(program.map_err(|error| refused(error.to_string()))?);
    // SAFETY: the program was created just now.
    match unsafe {
        result::compile_program(program.0, &[compiler_options(arch), faster_options()].concat())
    } {
        Ok(()) => program.binary().map_err(|error| refused(error.to_string())),
        Err(_) => Err(refused(program.log())),
    }
}

/// A program of the compiler.
struct NvrtcProgram(sys::nvrtcProgram);

impl NvrtcProgram {
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

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
