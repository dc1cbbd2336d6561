//! The driver, made safe as far as it can be: what is made is given back, and every call is made in its device's context.
//!
//! What the driver cannot check is whose memory an operation touches when. That is said by the plan, as for the arena of a
//! processor (`graphc_comm::memory`): registers that are alive at one time do not overlap, and who stands behind whom is known, as streams
//! and events. Asynchronous copies hold the memory of the host until they are done, see [`Pinned`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::ended::Ended;
use super::library::{Library, NotFound};

/// Why the driver did not do something.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    /// The call that failed, in words.
    what: &'static str,
    /// The driver's error.
    error: String,
}

impl Trouble {
    /// Returns an error with a text that says all.
    pub(super) fn from_text(error: String) -> Self {
        Self { what: "the device", error }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.error)
    }
}

impl From<Trouble> for String {
    fn from(trouble: Trouble) -> Self {
        trouble.to_string()
    }
}

/// Returns a function that names the driver's errors, e.g. `CUDA_ERROR_OUT_OF_MEMORY (out of memory)`.
pub(super) fn driver_trouble(what: &'static str) -> impl Fn(result::DriverError) -> Trouble {
    move |error| {
        let name = error.error_name().map_or("", |name| name.to_str().unwrap_or_default());
        let text = error.error_string().map_or("", |text| text.to_str().unwrap_or_default());
        Trouble { what, error: format!("{name} ({text})") }
    }
}

/// The properties of a card.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// Its number, from 0.
    pub ordinal: i32,
    /// E.g. `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Major and minor number of its architecture.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: i32,
}

/// Begins with the driver.
///
/// # Errors
/// Where there is none, or it cannot be used.
pub(super) fn init_driver() -> Result<(), DriverMissing> {
    Library::Driver.find()?;
    result::init().map_err(|error| match error.0 {
        sys::CUresult::CUDA_ERROR_STUB_LIBRARY => {
            let file = Library::Driver.file_path().unwrap_or_default().display().to_string();
            DriverMissing::Stub { file }
        }
        _ => DriverMissing::Unusable(driver_trouble("cannot begin with the driver")(error)),
    })
}

/// Why there are no devices.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum DriverMissing {
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// The file that the toolkit has in the driver's place for linkers (`CUDA_ERROR_STUB_LIBRARY`).
    #[error(
        "{file} is no driver but the toolkit's stub, which programs are linked with: take its folder out of LD_LIBRARY_PATH, so that \
         the driver is found, or install NVIDIA's driver for the card"
    )]
    Stub { file: String },
    #[error("{0}")]
    Unusable(Trouble),
}

/// Lists all cards.
///
/// # Errors
/// Where there is no driver.
pub(super) fn list_cards() -> Result<Vec<Card>, DriverMissing> {
    init_driver()?;
    let unusable = |what| move |e| DriverMissing::Unusable(driver_trouble(what)(e));
    let count = result::device::get_count().map_err(unusable("cannot count the devices"))?;
    (0..count).map(|ordinal| describe_card(ordinal).map_err(DriverMissing::Unusable)).collect()
}

fn describe_card(ordinal: i32) -> Result<Card, Trouble> {
    use sys::CUdevice_attribute as Attribute;
    let device = result::device::get(ordinal).map_err(driver_trouble("cannot get a device"))?;
    let attribute = |attribute| {
        // SAFETY: the device is one that the driver gave.
        unsafe { result::device::get_attribute(device, attribute) }
            .map_err(driver_trouble("cannot ask a device what it is"))
    };
    let name =
        result::device::get_name(device).map_err(driver_trouble("cannot ask a device its name"))?;
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device) };
    let memory = memory.map_err(driver_trouble("cannot ask a device its memory"))? as u64;
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    Ok(Card { ordinal, name, memory, capability: (major, minor), multiprocessors })
}

/// Returns the driver's version of CUDA, major and minor.
pub(super) fn cuda_version() -> (i32, i32) {
    let mut version = 0;
    // SAFETY: it is a place for a number. (The library was found.)
    let _ = unsafe { sys::cuDriverGetVersion(&mut version) };
    (version / 1000, version % 1000 / 10)
}

/// The context of a device, which all of this process share and which is kept as long as it: one that is made anew could have the
/// address by which a thread holds on to the old one.
#[derive(Debug)]
pub(super) struct CardContext {
    raw: sys::CUcontext,
    /// The loaded functions, by source and entry.
    functions: Mutex<BTreeMap<(String, String), FunctionPlace>>,
}

// SAFETY: a context may be used from any thread.
unsafe impl Send for CardContext {}
// SAFETY: as for `Send`.
unsafe impl Sync for CardContext {}

impl CardContext {
    /// Returns the context of a card, by its number.
    pub(super) fn of_card(ordinal: i32) -> Result<Arc<Self>, Trouble> {
        static ALL: Mutex<BTreeMap<i32, Arc<CardContext>>> = Mutex::new(BTreeMap::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = all.get(&ordinal) {
            return Ok(Arc::clone(context));
        }
        let device =
            result::device::get(ordinal).map_err(driver_trouble("cannot get the device"))?;
        // SAFETY: the device is one that the driver gave.
        let raw = unsafe { result::primary_ctx::retain(device) };
        let raw = raw.map_err(driver_trouble("cannot use the device"))?;
        let context = Arc::new(Self { raw, functions: Mutex::default() });
        all.insert(ordinal, Arc::clone(&context));
        Ok(context)
    }

    /// Returns the place of a kernel, the same for all who ask for it.
    pub(super) fn function_place(&self, source: &str, entry: &str) -> FunctionPlace {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (source.to_owned(), entry.to_owned());
        functions.entry(key).or_insert_with(|| Box::leak(Box::default()))
    }

    /// Loads a kernel to its place, where it is not there yet.
    pub(super) fn load_to<E>(
        &self,
        place: FunctionPlace,
        load: impl FnOnce() -> Result<KernelFunction, E>,
    ) -> Result<(), E> {
        // One at a time, so none is loaded twice.
        let _functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if place.get().is_none() {
            let _ = place.set(load()?);
        }
        Ok(())
    }

    /// Makes it the one in which this thread's calls are.
    #[inline]
    pub(super) fn make_current(&self) -> Result<(), Trouble> {
        thread_local! {
            static CURRENT: Cell<sys::CUcontext> = const { Cell::new(null_mut()) };
        }
        if CURRENT.get() == self.raw {
            return Ok(());
        }
        // SAFETY: the context is kept as long as this.
        unsafe { result::ctx::set_current(self.raw) }
            .map_err(driver_trouble("cannot use the device"))?;
        CURRENT.set(self.raw);
        Ok(())
    }

    /// Returns the bytes of the device's memory that are free.
    pub(super) fn free_memory(&self) -> Result<u64, Trouble> {
        self.make_current()?;
        let (free, _) =
            result::mem_get_info().map_err(driver_trouble("cannot ask for free memory"))?;
        Ok(free as u64)
    }
}

/// Memory of a device.
#[derive(Debug)]
pub(super) struct CardBuffer {
    context: Arc<CardContext>,
    address: u64,
    bytes: usize,
}

impl CardBuffer {
    /// Allocates so many bytes, without a content yet.
    pub(super) fn new(context: &Arc<CardContext>, bytes: usize) -> Result<Self, Trouble> {
        context.make_current()?;
        let bytes = bytes.max(256);
        // SAFETY: whoever reads a part has written it before, as the plan says.
        let address = unsafe { result::malloc_sync(bytes) };
        let address = address.map_err(driver_trouble("cannot take memory of the device"))?;
        Ok(Self { context: Arc::clone(context), address, bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of a part.
    #[inline]
    pub(super) fn address(&self, offset: usize, bytes: usize) -> u64 {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "a part of a device's memory"
        );
        self.address + offset as u64
    }

    /// Copies a part to the host and waits for it.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Trouble> {
        self.context.make_current()?;
        let address = self.address(offset, into.len());
        // SAFETY: both ends are memory of that size, and the call waits.
        unsafe { result::memcpy_dtoh_sync(into, address) }
            .map_err(driver_trouble("cannot read memory"))
    }

    /// Copies from the host and waits for it. The copy alone may return when its last part is on the way, and the streams of launches do not
    /// wait for the default stream, on which it is.
    pub(super) fn write(&self, offset: usize, from: &[u8]) -> Result<(), Trouble> {
        self.context.make_current()?;
        let address = self.address(offset, from.len());
        // SAFETY: as of `read`; the default stream is always there.
        unsafe {
            result::memcpy_htod_sync(address, from)
                .map_err(driver_trouble("cannot write memory"))?;
            result::stream::synchronize(null_mut()).map_err(driver_trouble("cannot write memory"))
        }
    }

    /// Fills a part with zeros and waits for it.
    pub(super) fn clear(&self, offset: usize, bytes: usize) -> Result<(), Trouble> {
        self.context.make_current()?;
        let address = self.address(offset, bytes);
        // SAFETY: as of `write`.
        unsafe {
            result::memset_d8_sync(address, 0, bytes)
                .map_err(driver_trouble("cannot clear memory"))?;
            result::stream::synchronize(null_mut()).map_err(driver_trouble("cannot clear memory"))
        }
    }
}

impl Drop for CardBuffer {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: it was taken once; who used it has waited, or the job is at its end.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Memory of the host that a device reaches, so copies go on while the host does something else. Who begins a copy keeps it, and
/// touches it again when the copy is done.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Arc<CardContext>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns plain bytes.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(context: &Arc<CardContext>, bytes: usize) -> Result<Self, Trouble> {
        context.make_current()?;
        let bytes = bytes.max(64);
        // SAFETY: it is written below before anything reads it.
        let start = unsafe { result::malloc_host(bytes, 0) };
        let start = start.map_err(driver_trouble("cannot take memory that the device reaches"))?;
        let none = Trouble { what: "cannot take memory", error: "the driver gave none".into() };
        let start = NonNull::new(start.cast::<u8>()).ok_or(none)?;
        // SAFETY: these are the bytes that were taken.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Ok(Self { context: Arc::clone(context), start, bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn slice(&self, bytes: usize) -> &[u8] {
        assert!(bytes <= self.bytes);
        // SAFETY: they are inside, initialized, and no copy is under way, as who began one knows.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), bytes) }
    }

    pub(crate) fn slice_mut(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.bytes);
        // SAFETY: as of `slice`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: it was taken once; the stream that used it has been waited for.
            let _ = unsafe { result::free_host(self.start.as_ptr().cast()) };
        }
    }
}

/// A stream of the device.
#[derive(Debug)]
pub(super) struct Queue {
    context: Arc<CardContext>,
    raw: sys::CUstream,
}

// SAFETY: a stream may be used from any thread, and has one owner.
unsafe impl Send for Queue {}

impl Queue {
    pub(super) fn new(context: &Arc<CardContext>) -> Result<Self, Trouble> {
        context.make_current()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking);
        let raw = raw.map_err(driver_trouble("cannot make a stream"))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    pub(super) fn context(&self) -> &Arc<CardContext> {
        &self.context
    }

    /// Makes the device the one of this thread's calls; every call below stands behind it.
    #[inline]
    pub(super) fn make_current(&self) -> Result<(), Trouble> {
        self.context.make_current()
    }

    /// Returns whether all that was launched has ended.
    pub(super) fn is_idle(&self) -> Result<bool, Trouble> {
        self.make_current()?;
        // SAFETY: the stream is one that the driver gave.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.result().map(|()| true).map_err(driver_trouble("a launch has failed")),
        }
    }

    pub(super) fn launch(
        &self,
        Loaded { function, grid, block, shared }: Loaded,
        arguments: &mut [*mut c_void],
    ) -> Result<(), Trouble> {
        let dims = |[x, y, z]: [u32; 3]| (x, y, z);
        let unloaded = || Trouble::from_text("a kernel is launched before it is loaded".into());
        let function = function.get().ok_or_else(unloaded)?;
        // SAFETY: the function belongs to a module that is kept, and takes these arguments: both come from one prepared kernel,
        // whose addresses are inside the rank's memory.
        let launched = unsafe {
            result::launch_kernel(function.0, dims(grid), dims(block), shared, self.raw, arguments)
        };
        launched.map_err(driver_trouble("cannot launch a kernel"))
    }

    pub(super) fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), Trouble> {
        // SAFETY: both are addresses of parts of buffers of that size.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.raw) }
            .map_err(driver_trouble("cannot copy memory of the device"))
    }

    pub(super) fn clear(&self, address: u64, bytes: usize) -> Result<(), Trouble> {
        self.fill(address, 0, bytes)
    }

    /// Has all bytes of a part be the same.
    pub(super) fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<(), Trouble> {
        // SAFETY: as of `copy`.
        unsafe { result::memset_d8_async(address, byte, bytes, self.raw) }
            .map_err(driver_trouble("cannot clear memory"))
    }

    /// Begins to copy from the host; `from` is left alone until it is done.
    pub(super) fn upload(&self, from: &Pinned, bytes: usize, to: u64) -> Result<(), Trouble> {
        self.make_current()?;
        // SAFETY: `to` is the address of such a part; `from` is kept and not touched, as its owner promises.
        unsafe { result::memcpy_htod_async(to, from.slice(bytes), self.raw) }
            .map_err(driver_trouble("cannot copy to the device"))
    }

    /// Begins to copy to the host.
    pub(super) fn download(
        &self,
        from: u64,
        into: &mut Pinned,
        bytes: usize,
    ) -> Result<(), Trouble> {
        self.make_current()?;
        // SAFETY: as of `upload`.
        unsafe { result::memcpy_dtoh_async(into.slice_mut(bytes), from, self.raw) }
            .map_err(driver_trouble("cannot copy from the device"))
    }

    pub(super) fn record_event(&self, event: sys::CUevent) -> Result<(), Trouble> {
        self.make_current()?;
        // SAFETY: both are the driver's and kept.
        unsafe { result::event::record(event, self.raw) }
            .map_err(driver_trouble("cannot record an event"))
    }

    pub(super) fn wait_event(&self, event: sys::CUevent) -> Result<(), Trouble> {
        self.make_current()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: streams of one rank share their events, which live as long as the device.
        unsafe { result::stream::wait_event(self.raw, event, flags) }
            .map_err(driver_trouble("cannot wait for an event"))
    }
}

/// The longest wait for a stream whose job has ended.
const REST_PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two questions.
const PAUSE: Duration = Duration::from_micros(50);

impl Queue {
    /// Waits until all that was launched has ended, has failed, or the job has.
    pub(super) fn wait_unless_ended(&self, ended: &Ended) {
        while self.is_idle() == Ok(false) && !ended() {
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for what is under way, before what it uses is given back. Where the job has ended it may wait for ranks that do not come,
    /// which `abort` ends.
    pub(super) fn come_to_rest(&self, ended: &Ended, abort: impl FnOnce()) {
        self.wait_unless_ended(ended);
        if self.is_idle() == Ok(false) {
            abort();
        }
        let begun = Instant::now();
        while self.is_idle() == Ok(false) && begun.elapsed() < REST_PATIENCE {
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until all that was launched has ended, which nothing of another rank is part of.
    pub(super) fn finish(&self) -> Result<(), Trouble> {
        while !self.is_idle()? {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Launches of this thread on the stream are recorded from now on.
    pub(super) fn begin_recording(&self) -> Result<(), Trouble> {
        self.make_current()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is one that the driver gave.
        unsafe { result::stream::begin_capture(self.raw, mode) }
            .map_err(driver_trouble("cannot record"))
    }

    pub(super) fn end_recording(&self) -> Result<CardRecording, Trouble> {
        const WHAT: &str =
            "cannot replay what was recorded (GRAPHC_REPLAY=0 in the environment does without)";
        self.make_current()?;
        // SAFETY: the stream is one that the driver gave.
        let graph =
            unsafe { result::stream::end_capture(self.raw) }.map_err(driver_trouble(WHAT))?;
        // SAFETY: the graph was made just now, is used once, and given back.
        unsafe {
            let made = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            let raw = made.map_err(driver_trouble(WHAT))?;
            Ok(CardRecording { context: Arc::clone(&self.context), raw })
        }
    }

    pub(super) fn replay(&self, recording: &CardRecording) -> Result<(), Trouble> {
        self.make_current()?;
        // SAFETY: both are the driver's and kept.
        unsafe { result::graph::launch(recording.raw, self.raw) }
            .map_err(driver_trouble("cannot replay"))
    }
}

/// Launches that were recorded.
#[derive(Debug)]
pub(crate) struct CardRecording {
    context: Arc<CardContext>,
    raw: sys::CUgraphExec,
}

// SAFETY: it has one owner, and may be begun from any thread.
unsafe impl Send for CardRecording {}

impl Drop for CardRecording {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: it was made once.
            let _ = unsafe { result::graph::exec_destroy(self.raw) };
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: it was made once. What is under way ends by itself.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// A kernel that is loaded. Its module is kept as long as the process: kernels are few, and plans come and go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelFunction(sys::CUfunction);

// SAFETY: a function may be launched from any thread.
unsafe impl Send for KernelFunction {}
// SAFETY: as for `Send`.
unsafe impl Sync for KernelFunction {}

/// The place of a kernel, empty until all kernels of a plan are loaded. It stays as long as the process, as the kernel does.
pub(super) type FunctionPlace = &'static OnceLock<KernelFunction>;

/// A kernel and how it is launched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    pub(super) function: FunctionPlace,
    /// Blocks, and threads of each of them.
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    /// Bytes of shared memory besides what the source declares.
    pub(super) shared: u32,
}

impl KernelFunction {
    /// Loads a kernel that was compiled for the device.
    pub(super) fn load(context: &CardContext, binary: &[u8], entry: &str) -> Result<Self, Trouble> {
        context.make_current()?;
        // A text must end in 0, which a binary does not mind.
        let mut image = binary.to_vec();
        image.push(0);
        // SAFETY: the image is what the compiler made.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
        let module = module.map_err(driver_trouble("cannot load a kernel"))?;
        let name = CString::new(entry).unwrap_or_default();
        // SAFETY: the module was loaded just now.
        let function = unsafe { result::module::get_function(module, name) };
        Ok(Self(function.map_err(driver_trouble("cannot find a kernel in what was compiled"))?))
    }

    /// Allows more shared memory than every device has.
    pub(super) fn allow_shared(self, bytes: u32) -> Result<(), Trouble> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to a module that is kept.
        unsafe { result::function::set_function_attribute(self.0, attribute, bytes as i32) }
            .map_err(driver_trouble("cannot have so much shared memory"))
    }
}
