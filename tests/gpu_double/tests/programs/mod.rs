//! A card by the driver's functions of C, and processes of their own for what ends badly.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call of C is as NVIDIA's headers declare it"
)]

use std::ffi::c_void;
use std::process::{Command, Output};

// The functions of C are the double's.
use gpu_double as _;

unsafe extern "C" {
    fn cuInit(flags: u32) -> i32;
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) -> i32;
    fn cuCtxSetCurrent(context: u64) -> i32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> i32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> i32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> i32;
    fn cuStreamCreate(stream: *mut *mut c_void, flags: u32) -> i32;
    fn cuStreamSynchronize(stream: *mut c_void) -> i32;
    fn cuStreamBeginCapture_v2(stream: *mut c_void, mode: i32) -> i32;
    fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> i32;
    fn cuGraphDestroy(graph: *mut c_void) -> i32;
    fn cuGraphExecDestroy(executable: *mut c_void) -> i32;
    fn cuGraphInstantiateWithFlags(exec: *mut *mut c_void, graph: *mut c_void, flags: u64) -> i32;
    fn cuGraphLaunch(exec: *mut c_void, stream: *mut c_void) -> i32;
}

/// The calling thread uses a device.
pub fn use_device(device: i32) {
    let mut context = 0;
    unsafe {
        assert_eq!(cuInit(0), 0);
        assert_eq!(cuDevicePrimaryCtxRetain(&mut context, device), 0);
        assert_eq!(cuCtxSetCurrent(context), 0);
    }
}

/// A stream of the current device.
pub fn stream() -> *mut c_void {
    stream_of(1)
}

/// A stream of the current device that the default stream waits for.
pub fn blocking_stream() -> *mut c_void {
    stream_of(0)
}

fn stream_of(flags: u32) -> *mut c_void {
    let mut stream = std::ptr::null_mut();
    assert_eq!(unsafe { cuStreamCreate(&mut stream, flags) }, 0);
    stream
}

/// Waits for a stream; a `CUresult`.
pub fn synchronize(stream: *mut c_void) -> i32 {
    unsafe { cuStreamSynchronize(stream) }
}

/// Memory of the current device that nothing has written.
pub fn room(bytes: usize) -> u64 {
    let mut address = 0;
    assert_eq!(unsafe { cuMemAlloc_v2(&mut address, bytes) }, 0);
    address
}

/// Memory of the current device with values.
pub fn upload<T: Copy>(values: &[T]) -> u64 {
    let address = room(size_of_val(values));
    write(address, values);
    address
}

/// Writes values to the device.
pub fn write<T: Copy>(address: u64, values: &[T]) {
    let bytes = size_of_val(values);
    assert_eq!(unsafe { cuMemcpyHtoD_v2(address, values.as_ptr().cast(), bytes) }, 0);
    assert_eq!(unsafe { cuStreamSynchronize(std::ptr::null_mut()) }, 0);
}

/// Values of the device.
pub fn download<T: Copy + Default>(address: u64, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    let bytes = size_of_val(&values[..]);
    assert_eq!(unsafe { cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), address, bytes) }, 0);
    values
}

/// Begins to capture the operations that a stream is given.
pub fn begin_capture(stream: *mut c_void) {
    assert_eq!(unsafe { cuStreamBeginCapture_v2(stream, 1) }, 0);
}

/// Captures the operations that `record` gives a stream, as a graph that can be launched.
pub fn capture(stream: *mut c_void, record: impl FnOnce()) -> *mut c_void {
    let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
    begin_capture(stream);
    record();
    unsafe {
        assert_eq!(cuStreamEndCapture(stream, &mut graph), 0);
        assert_eq!(cuGraphInstantiateWithFlags(&mut executable, graph, 0), 0);
        assert_eq!(cuGraphDestroy(graph), 0);
    }
    executable
}

/// Launches a graph on a stream.
pub fn launch(executable: *mut c_void, stream: *mut c_void) {
    assert_eq!(unsafe { cuGraphLaunch(executable, stream) }, 0);
}

/// A graph ends.
pub fn end_graph(executable: *mut c_void) {
    assert_eq!(unsafe { cuGraphExecDestroy(executable) }, 0);
}

/// The variable that tells a test that it is the process of its own, and which.
const PART: &str = "GPU_DOUBLE_TEST_PART";

/// Returns this process's part of the test, if it is one.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// The test `name` of this executable in a process of its own, as `part`.
pub fn process(name: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(PART, part);
    command
}

/// Seconds that a process alone has for who does not come.
const PATIENCE: &str = "2";

/// Runs `body` in a process of its own, which has little patience, and gives what that said on standard error; it must
/// end well.
pub fn alone(name: &str, body: impl FnOnce()) -> Option<String> {
    if part().is_some() {
        body();
        return None;
    }
    let output =
        process(name, "alone").env("GPU_DOUBLE_PATIENCE", PATIENCE).output().expect("a process");
    Some(said(&output))
}

/// Returns the standard error of a process that has ended well.
pub fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{text}\n{error}", output.status);
    error
}
