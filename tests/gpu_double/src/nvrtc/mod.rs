//! NVIDIA's compiler, opened where it is installed: its functions for tests of this process ([`compile`]), and the same
//! names for programs that open the double ([`exports`]).

pub mod exports;
mod find;
pub mod kept;
mod library;
mod record;
mod resources;

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::LazyLock;

use library::{Library, Program};
pub use record::Record;
pub use resources::{Resources, parse_resources, resources};

/// The environment variable with the compiler's file.
pub const VARIABLE: &str = "GPU_DOUBLE_NVRTC";

/// PTX that NVRTC has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptx(pub String);

static LIBRARY: LazyLock<Option<Library>> =
    LazyLock::new(|| path().and_then(|path| Library::open(&path)));

/// Returns the path of the compiler, if it is installed.
pub fn path() -> Option<PathBuf> {
    find::nvrtc()
}

/// Whether the compiler is installed.
pub fn is_installed() -> bool {
    LIBRARY.is_some()
}

/// Compiles CUDA C++ to PTX for an architecture such as `sm_90`.
///
/// # Errors
/// The compiler's log, or that there is no compiler.
pub fn compile(source: &str, architecture: &str, options: &[&str]) -> Result<Ptx, String> {
    let virtual_one = architecture.replace("sm_", "compute_");
    compile_as(source, &virtual_one, options, CompiledText::Ptx).map(Ptx)
}

/// A text that compiling gives.
#[derive(Clone, Copy, Debug)]
enum CompiledText {
    Ptx,
    /// The compiler's messages.
    Log,
}

/// Compiles for an architecture, `compute_90` for PTX or `sm_90` for machine code, or takes what was kept of that.
fn compile_as(
    source: &str,
    architecture: &str,
    options: &[&str],
    made: CompiledText,
) -> Result<String, String> {
    let library = LIBRARY.as_ref().ok_or("NVRTC is not installed")?;
    let mut all = vec![format!("--gpu-architecture={architecture}")];
    all.extend(options.iter().map(|option| String::from(*option)));
    let folder = std::env::var_os(kept::VARIABLE).map(PathBuf::from);
    let making = kept::Making::new(source, &all, &format!("{made:?}"));
    kept::take_or_make(folder.as_deref(), &making, || compile_now(library, source, &all, made))
}

fn compile_now(
    library: &Library,
    source: &str,
    options: &[String],
    made: CompiledText,
) -> Result<String, String> {
    let text = |text: &str| CString::new(text).map_err(|_| String::from("a zero byte in the text"));
    let all: Result<Vec<CString>, String> = options.iter().map(|option| text(option)).collect();
    let (source, all) = (text(source)?, all?);
    let options: Vec<*const c_char> = all.iter().map(|option| option.as_ptr()).collect();
    let program = Program::new(library, &source).ok_or("NVRTC cannot begin")?;
    match program.compile(&options) {
        0 => Ok(match made {
            CompiledText::Ptx => program.ptx(),
            CompiledText::Log => program.log(),
        }),
        code => Err(format!("NVRTC error {code}: {}", program.log())),
    }
}

/// A result of NVRTC's functions where the compiler is missing (`NVRTC_ERROR_BUILTIN_OPERATION_FAILURE`).
const MISSING: c_int = 7;
