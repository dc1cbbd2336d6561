//! A card as a test needs it, and processes of their own for what ends badly.
#![allow(dead_code, clippy::undocumented_unsafe_blocks)]

use std::ffi::c_void;
use std::process::{Command, Output};

use gpu_double::host;
pub use gpu_double::host::{synchronize, use_device};

/// A stream of the current device.
pub fn stream() -> *mut c_void {
    host::stream(false).expect("a stream")
}

/// A stream of the current device that the default stream waits for.
pub fn blocking_stream() -> *mut c_void {
    host::stream(true).expect("a stream")
}

/// Memory of the current device that nothing has written.
pub fn room(bytes: usize) -> u64 {
    host::allocate(bytes).expect("memory")
}

/// Memory of the current device with values.
pub fn upload<T: Copy>(values: &[T]) -> u64 {
    let address = room(size_of_val(values));
    write(address, values);
    address
}

/// Writes values to the device.
pub fn write<T: Copy>(address: u64, values: &[T]) {
    // Numbers, which have no padding.
    let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
    assert_eq!(host::write(address, bytes), 0);
}

/// Values of the device.
pub fn download<T: Copy + Default>(address: u64, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    let bytes = size_of_val(&values[..]);
    // Numbers, which any bytes are.
    let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), bytes) };
    assert_eq!(host::read(address, bytes), 0);
    values
}

/// What a stream is given from now on is captured.
pub fn begin_capture(stream: *mut c_void) {
    assert_eq!(host::begin_capture(stream), 0);
}

/// What a stream is given by `record`, as a graph that can be launched.
pub fn capture(stream: *mut c_void, record: impl FnOnce()) -> u64 {
    begin_capture(stream);
    record();
    host::end_capture(stream).expect("a graph")
}

/// Launches a graph on a stream.
pub fn launch(executable: u64, stream: *mut c_void) {
    assert_eq!(host::launch(executable, stream), 0);
}

/// The variable that tells a test that it is the process of its own, and which.
const PART: &str = "GPU_DOUBLE_TEST_PART";

/// This process's part of the test, if it is one.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// The test `name` of this executable in a process of its own, as `part`.
pub fn process(name: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(PART, part)
        .env("GPU_DOUBLE_PATIENCE", "1");
    command
}

/// Runs `body` in a process of its own, and gives what that said on standard error; it must end well.
pub fn alone(name: &str, body: impl FnOnce()) -> Option<String> {
    if part().is_some() {
        body();
        return None;
    }
    let output = process(name, "alone").output().expect("a process");
    Some(said(&output))
}

/// What a process said on standard error, which ended well.
pub fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{text}\n{error}", output.status);
    error
}
