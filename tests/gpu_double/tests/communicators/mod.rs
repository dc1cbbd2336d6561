//! Ranks of communicators, and short names for the functions of C.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call of C is as NVIDIA's headers declare it"
)]

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use gpu_double::nccl::collectives::*;
use gpu_double::nccl::exports::*;
use gpu_double::nccl::init::UniqueId;

use super::programs::{room, stream, synchronize, use_device};

pub const F32: i32 = 7;
pub const BF16: i32 = 9;
pub const SUM: i32 = 0;
pub const PRODUCT: i32 = 1;
pub const MAX: i32 = 2;
pub const AVERAGE: i32 = 4;

/// A function of two.
type Join = fn(f32, f32) -> f32;

/// Reductions by number, as functions of two.
pub const REDUCTIONS: [(i32, Join); 5] =
    [(0, |a, b| a + b), (1, |a, b| a * b), (2, f32::max), (3, f32::min), (4, |a, b| a + b)];

pub const UNHANDLED_CUDA_ERROR: i32 = 1;
pub const SYSTEM_ERROR: i32 = 2;
pub const INVALID_ARGUMENT: i32 = 4;
pub const INVALID_USAGE: i32 = 5;
pub const REMOTE_ERROR: i32 = 6;
pub const IN_PROGRESS: i32 = 7;

/// A rank of a communicator with a stream of its device.
#[derive(Clone)]
pub struct Rank {
    pub rank: usize,
    pub ranks: usize,
    pub device: i32,
    pub communicator: *mut Communicator,
    pub stream: *mut c_void,
    /// An address that a test comes back to.
    pub kept: Cell<u64>,
}

pub fn unique_id() -> UniqueId {
    let mut id = UniqueId([0; 128]);
    assert_eq!(ncclGetUniqueId(&mut id) as i32, 0);
    id
}

/// A rank on the device of its number.
pub fn init(id: UniqueId, rank: usize, ranks: usize) -> Rank {
    init_on(id, rank, ranks, rank as i32).expect("a rank")
}

/// A rank on a device, or what its beginning returned.
pub fn init_on(id: UniqueId, rank: usize, ranks: usize, device: i32) -> Result<Rank, i32> {
    use_device(device);
    let mut communicator = null_mut();
    let code = ncclCommInitRank(&mut communicator, ranks as i32, id, rank as i32) as i32;
    if code != 0 {
        return Err(code);
    }
    Ok(Rank { rank, ranks, device, communicator, stream: stream(), kept: Cell::new(0) })
}

/// `size`, `magic`, `version` and `blocking` of an `ncclConfig_t`, and what the library does not look at.
#[repr(C)]
pub struct Config(pub usize, pub u32, pub u32, pub i32, [i32; 20]);

pub fn config(magic: u32, blocking: i32) -> Config {
    Config(size_of::<Config>(), magic, 22_803, blocking, [i32::MIN; 20])
}

pub fn init_config(
    id: UniqueId,
    rank: i32,
    ranks: i32,
    config: &Config,
) -> (i32, *mut Communicator) {
    let mut communicator = null_mut();
    let config = std::ptr::from_ref(config).cast();
    let code = ncclCommInitRankConfig(&mut communicator, ranks, id, rank, config) as i32;
    (code, communicator)
}

pub fn begin_without_blocking(id: UniqueId, rank: usize, ranks: usize) -> Rank {
    use_device(rank as i32);
    let config = config(0xcafe_beef, 0);
    let (code, communicator) = init_config(id, rank as i32, ranks as i32, &config);
    assert_eq!(code, IN_PROGRESS);
    let device = rank as i32;
    Rank { rank, ranks, device, communicator, stream: stream(), kept: Cell::new(0) }
}

/// Makes all ranks of this thread.
pub fn init_all<const N: usize>() -> [Rank; N] {
    use_device(0);
    let mut communicators = [null_mut(); N];
    let code = ncclCommInitAll(communicators.as_mut_ptr(), N as i32, std::ptr::null());
    assert_eq!(code as i32, 0);
    std::array::from_fn(|rank| {
        use_device(rank as i32);
        let (communicator, device) = (communicators[rank], rank as i32);
        Rank { rank, ranks: N, device, communicator, stream: stream(), kept: Cell::new(0) }
    })
}

/// Runs each rank in a thread, on a device of its own.
pub fn on_ranks(ranks: usize, body: impl Fn(&Rank) + Sync) {
    let id = unique_id();
    let body = &body;
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            scope.spawn(move || {
                let me = init(id, rank, ranks);
                body(&me);
                destroy(&me);
            });
        }
    });
}

pub fn destroy(me: &Rank) {
    assert_eq!(ncclCommDestroy(me.communicator) as i32, 0);
}

/// A call was taken, and what is on the stream ends well.
pub fn done(me: &Rank, code: i32) {
    assert_eq!(code, 0);
    assert_eq!(synchronize(me.stream), 0);
}

/// New memory, kept with the rank.
pub fn room_of(me: &Rank, bytes: usize) -> u64 {
    me.kept.set(room(bytes));
    me.kept.get()
}

fn from(address: u64) -> *const c_void {
    address as *const c_void
}

fn to(address: u64) -> *mut c_void {
    address as *mut c_void
}

pub fn all_reduce(a: u64, b: u64, count: usize, element: i32, reduction: i32, me: &Rank) -> i32 {
    ncclAllReduce(from(a), to(b), count, element, reduction, me.communicator, me.stream) as i32
}

pub fn reduce_scatter(a: u64, b: u64, count: usize, me: &Rank) -> i32 {
    ncclReduceScatter(from(a), to(b), count, F32, SUM, me.communicator, me.stream) as i32
}

pub fn all_gather(a: u64, b: u64, count: usize, me: &Rank) -> i32 {
    ncclAllGather(from(a), to(b), count, F32, me.communicator, me.stream) as i32
}

pub fn all_to_all(a: u64, b: u64, count: usize, me: &Rank) -> i32 {
    ncclAlltoAll(from(a), to(b), count, F32, me.communicator, me.stream) as i32
}

pub fn broadcast(a: u64, b: u64, count: usize, root: i32, me: &Rank) -> i32 {
    ncclBroadcast(from(a), to(b), count, F32, root, me.communicator, me.stream) as i32
}

pub fn reduce(a: u64, b: u64, count: usize, root: i32, me: &Rank) -> i32 {
    ncclReduce(from(a), to(b), count, F32, SUM, root, me.communicator, me.stream) as i32
}

pub fn gather(a: u64, b: u64, count: usize, root: i32, me: &Rank) -> i32 {
    ncclGather(from(a), to(b), count, F32, root, me.communicator, me.stream) as i32
}

pub fn scatter(a: u64, b: u64, count: usize, root: i32, me: &Rank) -> i32 {
    ncclScatter(from(a), to(b), count, F32, root, me.communicator, me.stream) as i32
}

pub fn send(a: u64, count: usize, element: i32, peer: i32, me: &Rank) -> i32 {
    ncclSend(from(a), count, element, peer, me.communicator, me.stream) as i32
}

pub fn receive(a: u64, count: usize, element: i32, peer: i32, me: &Rank) -> i32 {
    ncclRecv(to(a), count, element, peer, me.communicator, me.stream) as i32
}

pub fn group_start() -> i32 {
    ncclGroupStart() as i32
}

pub fn group_end() -> i32 {
    ncclGroupEnd() as i32
}

/// The rank's part of a split, if it has one.
pub fn split(me: &Rank, color: i32, key: i32) -> Option<Rank> {
    let mut communicator = null_mut();
    let code = ncclCommSplit(me.communicator, color, key, &mut communicator, std::ptr::null());
    assert_eq!(code as i32, 0);
    (!communicator.is_null()).then(|| {
        let mut part = Rank { communicator, ..me.clone() };
        let (ranks, rank, _) = known(&part);
        (part.rank, part.ranks) = (rank as usize, ranks as usize);
        part
    })
}

/// Ranks, rank and device of a communicator.
pub fn known(me: &Rank) -> (i32, i32, i32) {
    let (mut ranks, mut rank, mut device) = (0, 0, 0);
    assert_eq!(ncclCommCount(me.communicator, &mut ranks) as i32, 0);
    assert_eq!(ncclCommUserRank(me.communicator, &mut rank) as i32, 0);
    assert_eq!(ncclCommCuDevice(me.communicator, &mut device) as i32, 0);
    (ranks, rank, device)
}

pub fn asynchronous(communicator: *mut Communicator) -> i32 {
    let mut code = -1;
    assert_eq!(ncclCommGetAsyncError(communicator, &mut code) as i32, 0);
    code
}

pub fn last_error(me: &Rank) -> String {
    unsafe { CStr::from_ptr(ncclGetLastError(me.communicator)) }.to_string_lossy().into_owned()
}

pub fn version() -> i32 {
    let mut version = 0;
    assert_eq!(ncclGetVersion(&mut version) as i32, 0);
    version
}
