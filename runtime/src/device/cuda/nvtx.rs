//! Ranges that tell a profiler which actor launches what: NVTX, as NVIDIA's tools read it.
//!
//! NVTX has no library: it is headers alone. A tool names a library of its own in the environment. A program opens that and calls
//! `InitializeInjectionNvtx2` with a function that gives tables. The tool puts its functions into the places to which the tables
//! lead (`nvtx3/nvtxDetail/nvtxInit.h` and `nvtxTypes.h` of NVIDIA/NVTX, Apache 2.0 with LLVM exception).
//!
//! There are tables of places for all modules of the interface, because tools refuse a program that lacks one. Two places are
//! used, those that begin and end a range of a thread. Without a tool nothing is opened, and a launch asks one option.

use std::env;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::size_of;
use std::ptr::null;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use graphc_ir::ids::ActorId;
use libloading::Library;

/// The variable that names a tool's library.
const VARIABLE: &str = "NVTX_INJECTION64_PATH";
/// The version of the interface: that of the header.
const NVTX_VERSION: u32 = 3;
/// The numbers by which tools ask for tables: that of functions that give tables of places, and that of the version.
const CALLBACKS: u32 = 1;
const VERSION: u32 = 3;
/// Functions of each module, by the modules' numbers: `NVTX_CBID_*_SIZE`, which counts from one behind the invalid 0. The first module is the one
/// whose functions are used.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const CORE: usize = 1;
/// The places of `nvtxRangePushA` and `nvtxRangePop` in that module.
const PUSH: usize = 9;
const POP: usize = 11;
/// Places of a table: as many as the largest module has, and one that ends it.
const PLACES: usize = 17;

/// The addresses of a tool's functions, 0 where it has none: memory that it writes when it is called to begin.
static FUNCTIONS: [[AtomicUsize; PLACES]; SIZES.len()] =
    [const { [const { AtomicUsize::new(0) }; PLACES] }; SIZES.len()];

type Table = [Option<&'static AtomicUsize>; PLACES];

/// Returns a table of functions' places: an array of pointers, that of 0 and those behind the last are null.
fn function_table(module: usize) -> &'static Table {
    static TABLES: OnceLock<[Table; SIZES.len()]> = OnceLock::new();
    let of = |module: usize| -> Table {
        let place = |at: usize| (at > 0 && at < SIZES[module]).then(|| &FUNCTIONS[module][at]);
        std::array::from_fn(place)
    };
    &TABLES.get_or_init(|| std::array::from_fn(of))[module]
}

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    give_table: unsafe extern "C" fn(c_int, *mut *const Table, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct Version {
    size: usize,
    version: u32,
    reserved: u32,
    set_version_of_tool: extern "C" fn(u32),
}

extern "C" fn give_export_table(id: u32) -> *const c_void {
    static OF_CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), give_table };
    static OF_VERSION: Version = Version {
        size: size_of::<Version>(),
        version: NVTX_VERSION,
        reserved: 0,
        set_version_of_tool,
    };
    match id {
        CALLBACKS => std::ptr::from_ref(&OF_CALLBACKS).cast(),
        VERSION => std::ptr::from_ref(&OF_VERSION).cast(),
        _ => null(),
    }
}

/// Gives a module's table and how many functions it has; 0 where there is no such module.
unsafe extern "C" fn give_table(
    module: c_int,
    place: *mut *const Table,
    size: *mut c_uint,
) -> c_int {
    let Some(module) = usize::try_from(module).ok().filter(|m| (1..SIZES.len()).contains(m)) else {
        return 0;
    };
    // SAFETY: places of the tool for a pointer and a number, which may be null.
    unsafe {
        if let Some(place) = place.as_mut() {
            *place = function_table(module);
        }
        if let Some(size) = size.as_mut() {
            *size = SIZES[module] as c_uint;
        }
    }
    1
}

/// Takes a tool's version: none is known that would have to be treated differently.
extern "C" fn set_version_of_tool(_: u32) {}

/// The functions of the tool that looks on.
#[derive(Debug)]
struct Tool {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

/// Finds the tool, if one has said in the environment that it is there; it is asked once and stays as long as the
/// process.
fn find_tool() -> Option<&'static Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    TOOL.get_or_init(attach_tool).as_ref()
}

fn attach_tool() -> Option<Tool> {
    let path = env::var_os(VARIABLE)?;
    // SAFETY: the library is a tool's, which whoever has started the program wants to be opened; its function takes what the header has it take.
    let began = unsafe {
        let library = Library::new(path).ok()?;
        let begin = library
            .get::<unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int>(
                b"InitializeInjectionNvtx2\0",
            )
            .ok()?;
        let began = begin(give_export_table) != 0;
        // Its functions are called from now on.
        std::mem::forget(library);
        began
    };
    let function = |at: usize| FUNCTIONS[CORE][at].load(Ordering::Acquire);
    let (push, pop) = (function(PUSH), function(POP));
    if !began || push == 0 || pop == 0 {
        return None;
    }
    // SAFETY: the tool has put these functions there, of the types that the interface gives these places.
    unsafe {
        Some(Tool {
            push: std::mem::transmute::<usize, unsafe extern "C" fn(*const c_char) -> c_int>(push),
            pop: std::mem::transmute::<usize, unsafe extern "C" fn() -> c_int>(pop),
        })
    }
}

/// The ranges of a rank's actors, where a tool looks on.
#[derive(Debug, Default)]
pub(crate) struct ActorRanges(Option<(&'static Tool, Vec<Option<CString>>)>);

impl ActorRanges {
    /// Ranges of these names, which are asked for where a tool looks on; none for those without.
    pub(crate) fn from_names(names: impl FnOnce() -> Vec<Option<String>>) -> Self {
        let named = |name: Option<String>| name.and_then(|name| CString::new(name).ok());
        Self(find_tool().map(|tool| (tool, names().into_iter().map(named).collect())))
    }

    /// Begins that of an actor, which ends when it is dropped.
    #[inline]
    pub(crate) fn begin_actor(&self, actor: ActorId) -> Option<Range> {
        let (tool, names) = self.0.as_ref()?;
        let name = names.get(actor.index())?.as_ref()?;
        // SAFETY: a function of the tool, and a text that ends in 0.
        unsafe { (tool.push)(name.as_ptr()) };
        Some(Range(tool))
    }
}

/// A range of this thread that has begun.
pub(crate) struct Range(&'static Tool);

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: a function of the tool.
        unsafe { (self.0.pop)() };
    }
}
