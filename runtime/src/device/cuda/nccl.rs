//! NVIDIA's collectives: the functions of NCCL that are called, and communicators made of them.
//!
//! The library is called through its own handle, because it is found under `libnccl.so.2` alone. Communicators do not block: each
//! call says that it is under way, and the host asks until it is done, so that a job that ends elsewhere ends here too. They are
//! aborted, not destroyed, at their end: that waits for nobody.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::null_mut;
use std::sync::OnceLock;

use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::DType;

use super::driver::Queue;
use super::ended::Ended;
use super::library::{Library, NotFound};

/// The name by which ranks find each other.
pub(crate) type Id = [u8; ID];

const ID: usize = 128;

/// `ncclInProgress`.
const IN_PROGRESS: c_int = 7;
/// `NCCL_VERSION(2, 14, 0)`, from which on there are communicators that do not block.
const VERSION: u32 = 21_400;

type RawComm = *mut c_void;
type CudaStream = *mut c_void;

/// Why a collective failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum NcclError {
    #[error(transparent)]
    NotFound(#[from] NotFound),
    #[error("NCCL lacks {0}: it is older than 2.14")]
    Old(&'static str),
    #[error("NCCL: {what}: {error}")]
    Failed { what: &'static str, error: String },
    /// The job has ended on another rank.
    #[error("the job has ended")]
    Ended,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([c_char; ID]);

/// The first fields of `ncclConfig_t`, as version 2.14 has them; the library takes the others as unset by the size.
#[repr(C)]
struct NcclConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// The library's functions.
struct NcclFunctions {
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init: unsafe extern "C" fn(*mut RawComm, c_int, UniqueId, c_int, *mut NcclConfig) -> c_int,
    abort: unsafe extern "C" fn(RawComm) -> c_int,
    state: unsafe extern "C" fn(RawComm, *mut c_int) -> c_int,
    error_text: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: unsafe extern "C" fn(RawComm) -> *const c_char,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        RawComm,
        CudaStream,
    ) -> c_int,
    reduce_scatter: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        RawComm,
        CudaStream,
    ) -> c_int,
    all_gather: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        RawComm,
        CudaStream,
    ) -> c_int,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, RawComm, CudaStream) -> c_int,
    receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, RawComm, CudaStream) -> c_int,
}

impl NcclFunctions {
    /// Loads the functions, once.
    fn load_once() -> Result<&'static Self, NcclError> {
        static FUNCTIONS: OnceLock<Result<NcclFunctions, NcclError>> = OnceLock::new();
        let functions = FUNCTIONS.get_or_init(Self::load);
        functions.as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, NcclError> {
        let found = Library::Nccl.find()?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type is that of the function in NCCL's header; the library stays open.
                *unsafe { found.opened.get($name.as_bytes()) }.map_err(|_| NcclError::Old($name))?
            };
        }
        Ok(Self {
            unique_id: function!("ncclGetUniqueId"),
            init: function!("ncclCommInitRankConfig"),
            abort: function!("ncclCommAbort"),
            state: function!("ncclCommGetAsyncError"),
            error_text: function!("ncclGetErrorString"),
            last_error: function!("ncclGetLastError"),
            group_start: function!("ncclGroupStart"),
            group_end: function!("ncclGroupEnd"),
            all_reduce: function!("ncclAllReduce"),
            reduce_scatter: function!("ncclReduceScatter"),
            all_gather: function!("ncclAllGather"),
            send: function!("ncclSend"),
            receive: function!("ncclRecv"),
        })
    }

    /// Checks the status of a call: success, or still under way, is no error.
    fn check_status(&self, what: &'static str, status: c_int) -> Result<(), NcclError> {
        match status {
            0 | IN_PROGRESS => Ok(()),
            status => {
                // SAFETY: the library gives a text for every number, which lives as long as it, and null or a text of what was last.
                let [text, last] = unsafe {
                    let last = (self.last_error)(null_mut());
                    let last = if last.is_null() { c"".as_ptr() } else { last };
                    [(self.error_text)(status), last].map(|text| CStr::from_ptr(text))
                };
                let [text, last] = [text, last].map(CStr::to_string_lossy);
                let error = match last.trim() {
                    "" => text.into_owned(),
                    last => format!("{text}: {last}"),
                };
                Err(NcclError::Failed {
                    what,
                    error: format!("{error} (NCCL_DEBUG=WARN says more)"),
                })
            }
        }
    }
}

/// Whether there is NCCL.
pub(crate) fn is_there() -> bool {
    NcclFunctions::load_once().is_ok()
}

/// Makes a name for a new communicator, which its first rank makes and tells the others.
pub(crate) fn new_id() -> Result<Id, NcclError> {
    let functions = NcclFunctions::load_once()?;
    let mut id = UniqueId([0; ID]);
    // SAFETY: it is a place for a name.
    let status = unsafe { (functions.unique_id)(&mut id) };
    functions.check_status("cannot name a communicator", status)?;
    Ok(id.0.map(|byte| byte as u8))
}

/// Some ranks that communicate, each with its device.
#[derive(Debug)]
pub(crate) struct Comm {
    raw: RawComm,
    ended: EndedBox,
}

/// [`Ended`], which has nothing to show.
struct EndedBox(Ended);

impl std::fmt::Debug for EndedBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ended")
    }
}

// SAFETY: a communicator has one owner, which calls it from one thread at a time.
unsafe impl Send for Comm {}

/// One operation of a group, on addresses of the device and counts of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NcclOperation {
    AllReduce {
        from: u64,
        to: u64,
        count: usize,
        kind: ReduceKind,
    },
    /// A reduce-scatter; `count`: the elements that a rank keeps.
    ReduceScatter {
        from: u64,
        to: u64,
        count: usize,
        kind: ReduceKind,
    },
    /// An all-gather; `count`: the elements that a rank gives.
    AllGather {
        from: u64,
        to: u64,
        count: usize,
    },
    Send {
        from: u64,
        count: usize,
        peer: usize,
    },
    Receive {
        to: u64,
        count: usize,
        peer: usize,
    },
}

impl Comm {
    /// Joins the ranks of a name, which all come. This thread's device is the one that the rank has.
    pub(crate) fn join(
        queue: &Queue,
        id: Id,
        (ranks, own): (usize, usize),
        ended: Ended,
    ) -> Result<Self, NcclError> {
        let functions = NcclFunctions::load_once()?;
        let failed = |error: super::driver::Trouble| NcclError::Failed {
            what: "cannot use the device",
            error: error.to_string(),
        };
        queue.make_current().map_err(failed)?;
        let id = UniqueId(id.map(|byte| byte as c_char));
        let mut config = NcclConfig {
            size: size_of::<NcclConfig>(),
            magic: 0xcafe_beef,
            version: VERSION,
            blocking: 0,
        };
        let mut raw = null_mut();
        // SAFETY: all are values, or places that live until the call returns.
        let status =
            unsafe { (functions.init)(&mut raw, ranks as c_int, id, own as c_int, &mut config) };
        functions.check_status("cannot join a communicator", status)?;
        let comm = Self { raw, ended: EndedBox(ended) };
        comm.wait_begun("cannot join a communicator")?;
        Ok(comm)
    }

    /// Begins operations together, on a stream.
    pub(crate) fn run_operations(
        &self,
        queue: &Queue,
        operations: &[(NcclOperation, DType)],
    ) -> Result<(), NcclError> {
        const WHAT: &str = "cannot begin a collective";
        let functions = NcclFunctions::load_once()?;
        // SAFETY: it has no arguments.
        functions.check_status(WHAT, unsafe { (functions.group_start)() })?;
        let begun = operations.iter().try_for_each(|(operation, dtype)| {
            functions.check_status(WHAT, self.begin_operation(functions, queue, *operation, *dtype))
        });
        // SAFETY: as above; a group that was begun ends, whatever happened.
        let closed = functions.check_status(WHAT, unsafe { (functions.group_end)() });
        begun.and(closed)?;
        self.wait_begun(WHAT)
    }

    fn begin_operation(
        &self,
        functions: &NcclFunctions,
        queue: &Queue,
        operation: NcclOperation,
        dtype: DType,
    ) -> c_int {
        let (comm, stream, element) = (self.raw, queue.raw().cast::<c_void>(), element_code(dtype));
        // SAFETY: addresses are of registers and staging memory of so many elements, which are not touched until the stream has
        // come by; the communicator is there.
        unsafe {
            match operation {
                NcclOperation::AllReduce { from, to, count, kind } => (functions.all_reduce)(
                    from as *const c_void,
                    to as *mut c_void,
                    count,
                    element,
                    reduction_code(kind),
                    comm,
                    stream,
                ),
                NcclOperation::ReduceScatter { from, to, count, kind } => (functions
                    .reduce_scatter)(
                    from as *const c_void,
                    to as *mut c_void,
                    count,
                    element,
                    reduction_code(kind),
                    comm,
                    stream,
                ),
                NcclOperation::AllGather { from, to, count } => (functions.all_gather)(
                    from as *const c_void,
                    to as *mut c_void,
                    count,
                    element,
                    comm,
                    stream,
                ),
                NcclOperation::Send { from, count, peer } => {
                    let peer = peer as c_int;
                    (functions.send)(from as *const c_void, count, element, peer, comm, stream)
                }
                NcclOperation::Receive { to, count, peer } => {
                    let peer = peer as c_int;
                    (functions.receive)(to as *mut c_void, count, element, peer, comm, stream)
                }
            }
        }
    }

    /// Waits until what was begun is under way on the device.
    fn wait_begun(&self, what: &'static str) -> Result<(), NcclError> {
        let functions = NcclFunctions::load_once()?;
        loop {
            let mut state = 0;
            // SAFETY: it is a place for a number.
            functions.check_status(what, unsafe { (functions.state)(self.raw, &mut state) })?;
            if state != IN_PROGRESS {
                return functions.check_status(what, state);
            }
            if (self.ended.0)() {
                return Err(NcclError::Ended);
            }
            std::thread::yield_now();
        }
    }
}

impl Comm {
    /// Ends it, with what is under way. It waits for nobody.
    pub(super) fn abort(&mut self) {
        let raw = std::mem::replace(&mut self.raw, null_mut());
        if let (false, Ok(functions)) = (raw.is_null(), NcclFunctions::load_once()) {
            // SAFETY: it was made once, and is ended once.
            unsafe { (functions.abort)(raw) };
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Returns the library's number of an element type; truth values are bytes, and so are floating-point numbers of 8 bits, which are only moved.
fn element_code(dtype: DType) -> c_int {
    match dtype {
        DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::BF16 => 9,
    }
}

/// Returns the library's number of a reduction.
fn reduction_code(kind: ReduceKind) -> c_int {
    match kind {
        ReduceKind::Sum => 0,
        ReduceKind::Max => 2,
        ReduceKind::Min => 3,
    }
}
