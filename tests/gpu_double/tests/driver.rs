//! The library as a program opens it: its symbols, NVRTC's container, launches on streams, and the faults that it finds.
//! Each fault needs a process of its own, because errors stay: the test calls itself with the name of what to do.

mod program;

use std::process::Command;

use program::{Cuda, KERNELS};

/// Runs one of the cases in another process; its standard error and whether it succeeded.
fn case(name: &str, seed: u64) -> Option<(bool, String)> {
    let folder = tempfile::tempdir().unwrap();
    let env = gpu_double::install(folder.path())?;
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture"])
        .envs(env.variables)
        .env("GPU_DOUBLE_CASE", name)
        .env("GPU_DOUBLE_SEED", seed.to_string())
        .output()
        .unwrap();
    Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// The case must end well with every order.
fn right(name: &str) {
    for seed in 0..2 {
        if let Some((success, text)) = case(name, seed) {
            assert!(success, "{name} with seed {seed}: {text}");
        }
    }
}

/// The case must be found out, with these words.
fn wrong(name: &str, words: &[&str]) {
    for seed in 0..2 {
        if let Some((success, text)) = case(name, seed) {
            assert!(success, "{name} with seed {seed} goes on: {text}");
            for word in words {
                assert!(
                    text.contains(word),
                    "{name} with seed {seed} does not say `{word}`: {text}"
                );
            }
        }
    }
}

/// Does what the environment says; without it there is nothing to do.
#[test]
fn the_other_process() {
    let Ok(name) = std::env::var("GPU_DOUBLE_CASE") else { return };
    let cuda = Cuda::open();
    let (_, case) = CASES.iter().find(|(known, _)| *known == name).unwrap();
    case(&cuda);
}

/// A case by its name.
type Case = (&'static str, fn(&Cuda));

const CASES: [Case; 15] = [
    ("launch", launch),
    ("events", |cuda| events(cuda, true)),
    ("no_event", |cuda| events(cuda, false)),
    ("graph", graph),
    ("forbidden", forbidden),
    ("pinned", |cuda| pinned(cuda, false)),
    ("pinned_early", |cuda| pinned(cuda, true)),
    ("freed", freed),
    ("outside", outside),
    ("unwritten", unwritten),
    ("machine_code", machine_code),
    ("callback", callback),
    ("other_card", other_card),
    ("written", |cuda| written(cuda, true)),
    ("written_early", |cuda| written(cuda, false)),
];

const ILLEGAL_ADDRESS: i32 = 700;

#[test]
fn a_kernel_is_launched() {
    right("launch");
}

fn launch(cuda: &Cuda) {
    let module = cuda.module(KERNELS);
    let add = cuda.function(module, "add");
    let stream = cuda.stream();
    let x = cuda.upload(stream, &[1.0; 100]);
    let y = cuda.upload(stream, &[2.0; 100]);
    cuda.launch(add, stream, &[x, y, 100]).unwrap();
    assert_eq!(cuda.download(stream, y, 100).unwrap(), [3.0; 100]);
}

#[test]
fn events_order_streams_and_a_missing_one_is_found() {
    right("events");
    wrong("no_event", &["kernel add", "is not ordered after", "of stream"]);
}

fn events(cuda: &Cuda, with: bool) {
    let module = cuda.module(KERNELS);
    let add = cuda.function(module, "add");
    let (one, two) = (cuda.stream(), cuda.stream());
    let x = cuda.upload(one, &[1.0; 64]);
    let y = cuda.upload(one, &[2.0; 64]);
    cuda.synchronize(one).unwrap();
    cuda.launch(add, one, &[x, y, 64]).unwrap();
    if with {
        let event = cuda.event();
        cuda.record(event, one);
        cuda.wait(two, event);
    }
    cuda.launch(add, two, &[x, y, 64]).unwrap();
    if with {
        assert_eq!(cuda.download(two, y, 64).unwrap(), [4.0; 64]);
        return;
    }
    let (first, second) = (cuda.synchronize(one), cuda.synchronize(two));
    assert_eq!(first.and(second), Err(ILLEGAL_ADDRESS));
    assert_eq!(cuda.download(two, y, 64), Err(ILLEGAL_ADDRESS));
}

#[test]
fn graphs_are_captured_over_two_streams_and_replayed() {
    right("graph");
}

fn graph(cuda: &Cuda) {
    let module = cuda.module(KERNELS);
    let add = cuda.function(module, "add");
    let (one, two) = (cuda.stream(), cuda.stream());
    let [x, y, z] = [1.0, 2.0, 3.0].map(|value| cuda.upload(one, &[value; 64]));
    cuda.synchronize(one).unwrap();
    cuda.begin_capture(one).unwrap();
    let (fork, join) = (cuda.event(), cuda.event());
    cuda.record(fork, one);
    cuda.wait(two, fork);
    cuda.launch(add, one, &[x, y, 64]).unwrap();
    cuda.launch(add, two, &[x, z, 64]).unwrap();
    cuda.record(join, two);
    cuda.wait(one, join);
    cuda.launch(add, one, &[y, z, 64]).unwrap();
    let graph = cuda.end_capture(one).unwrap();
    let executable = cuda.instantiate(graph);
    assert_eq!(cuda.nodes(graph), 3);
    for _ in 0..2 {
        cuda.launch_graph(executable, one).unwrap();
    }
    // After one: y 3, z 4 + 3 = 7. After two: y 4, z 8 + 4 = 12.
    assert_eq!(cuda.download(one, y, 64).unwrap(), [4.0; 64]);
    assert_eq!(cuda.download(one, z, 64).unwrap(), [12.0; 64]);
}

#[test]
fn captures_forbid_what_waits() {
    right("forbidden");
}

fn forbidden(cuda: &Cuda) {
    let stream = cuda.stream();
    let x = cuda.upload(stream, &[1.0; 4]);
    cuda.synchronize(stream).unwrap();
    cuda.begin_capture(stream).unwrap();
    assert_eq!(cuda.synchronize(stream), Err(900));
    assert_eq!(cuda.end_capture(stream), Err(901));
    cuda.begin_capture(stream).unwrap();
    assert_eq!(cuda.allocate(64), Err(900));
    assert_eq!(cuda.end_capture(stream), Err(901));
    cuda.begin_capture(stream).unwrap();
    assert_eq!(cuda.download(stream, x, 4), Err(900));
    assert_eq!(cuda.end_capture(stream), Err(901));
    let other = cuda.stream();
    cuda.begin_capture(stream).unwrap();
    let event = cuda.event();
    cuda.record(event, stream);
    cuda.wait(other, event);
    cuda.fill(x, 4, other).unwrap();
    assert_eq!(cuda.end_capture(stream), Err(904));
    assert_eq!(cuda.download(stream, x, 4).unwrap(), [1.0; 4]);
}

#[test]
fn pinned_memory_stays_until_copies_are_known_to_be_done() {
    right("pinned");
    wrong("pinned_early", &["the host program changed or freed", "pinned memory", "a copy of 256"]);
}

fn pinned(cuda: &Cuda, early: bool) {
    let stream = cuda.stream();
    let pinned = cuda.pinned(64);
    let x = cuda.allocate(256).unwrap();
    pinned.fill(5.0);
    cuda.copy_from_pinned(x, pinned, stream).unwrap();
    if early {
        pinned.fill(6.0);
        assert_eq!(cuda.synchronize(stream), Err(ILLEGAL_ADDRESS));
        return;
    }
    cuda.synchronize(stream).unwrap();
    pinned.fill(6.0);
    assert_eq!(cuda.download(stream, x, 64).unwrap(), [5.0; 64]);
}

#[test]
fn a_copy_from_ordinary_memory_is_waited_for() {
    right("written");
    wrong(
        "written_early",
        &["kernel add", "is not ordered after", "a copy of 256 bytes from the host"],
    );
}

fn written(cuda: &Cuda, wait: bool) {
    let module = cuda.module(KERNELS);
    let add = cuda.function(module, "add");
    let stream = cuda.stream();
    let [x, y] = [1.0, 2.0].map(|value| cuda.upload(stream, &[value; 64]));
    cuda.synchronize(stream).unwrap();
    cuda.write(x, &[5.0; 64]).unwrap();
    if !wait {
        // Whichever of the two comes first, the other finds the fault: the copy may be done after the kernel has ended.
        let launched = cuda.launch(add, stream, &[x, y, 64]);
        let kernel = launched.and_then(|()| cuda.synchronize(stream));
        let copy = cuda.synchronize(std::ptr::null_mut());
        assert_eq!(kernel.and(copy), Err(ILLEGAL_ADDRESS));
        return;
    }
    cuda.synchronize(std::ptr::null_mut()).unwrap();
    cuda.launch(add, stream, &[x, y, 64]).unwrap();
    assert_eq!(cuda.download(stream, y, 64).unwrap(), [7.0; 64]);
}

#[test]
fn memory_is_not_freed_under_queued_work() {
    wrong("freed", &["freed", "kernel add"]);
}

fn freed(cuda: &Cuda) {
    let module = cuda.module(KERNELS);
    let add = cuda.function(module, "add");
    let stream = cuda.stream();
    let x = cuda.upload(stream, &[1.0; 64]);
    let y = cuda.upload(stream, &[2.0; 64]);
    cuda.synchronize(stream).unwrap();
    cuda.launch(add, stream, &[x, y, 64]).unwrap();
    let result = cuda.free(x).and_then(|()| cuda.synchronize(stream));
    assert_eq!(result, Err(ILLEGAL_ADDRESS));
}

#[test]
fn accesses_outside_of_allocations_are_named() {
    wrong("outside", &["kernel add", "block [0, 0, 0], thread [", "ld.global", "beyond the end"]);
}

fn outside(cuda: &Cuda) {
    let module = cuda.module(KERNELS);
    let add = cuda.function(module, "add");
    let stream = cuda.stream();
    let x = cuda.upload(stream, &[1.0; 64]);
    let y = cuda.upload(stream, &[2.0; 100]);
    cuda.launch(add, stream, &[x, y, 100]).unwrap();
    assert_eq!(cuda.synchronize(stream), Err(ILLEGAL_ADDRESS));
}

#[test]
fn what_nothing_has_written_is_not_read() {
    wrong("unwritten", &["that nothing has written"]);
}

fn unwritten(cuda: &Cuda) {
    let stream = cuda.stream();
    let x = cuda.allocate(256).unwrap();
    cuda.fill(x, 32, stream).unwrap();
    assert_eq!(cuda.download(stream, x, 64), Err(ILLEGAL_ADDRESS));
}

#[test]
fn machine_code_is_refused() {
    wrong("machine_code", &["neither PTX"]);
}

fn machine_code(cuda: &Cuda) {
    assert_eq!(cuda.load(b"\x7fELF and so on\0"), Err(209));
}

#[test]
fn functions_of_the_host_are_called_in_their_turn() {
    right("callback");
}

fn callback(cuda: &Cuda) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static CALLS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn call(_: *mut std::ffi::c_void) {
        CALLS.fetch_add(1, Ordering::SeqCst);
    }
    let stream = cuda.stream();
    for _ in 0..3 {
        cuda.call_back(stream, call);
    }
    cuda.synchronize(stream).unwrap();
    assert_eq!(CALLS.load(Ordering::SeqCst), 3);
}

#[test]
fn kernels_stay_on_their_card() {
    wrong("other_card", &["from device 1", "is not there"]);
}

fn other_card(cuda: &Cuda) {
    let stream = cuda.stream();
    let x = cuda.upload(stream, &[1.0; 64]);
    cuda.synchronize(stream).unwrap();
    cuda.use_card(1);
    let module = cuda.module(KERNELS);
    let add = cuda.function(module, "add");
    let other = cuda.stream();
    cuda.launch(add, other, &[x, x, 64]).unwrap();
    assert_eq!(cuda.synchronize(other), Err(ILLEGAL_ADDRESS));
}
