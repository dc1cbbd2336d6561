//! The functions of C for communicators: how they begin and end, and what is asked of them. Whoever calls them from C
//! answers for the pointers.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use std::ffi::{CString, c_char};
use std::sync::{Arc, Mutex, MutexGuard};

use super::group;
use super::init::{Config, UniqueId, blocking};
use super::member::Member;
use super::types::{Code, Refusal, refuse};
use crate::work;

/// The object that `ncclComm_t` points to. Its memory outlives its end, so that a use after it is told.
pub struct Communicator {
    member: Mutex<Option<Arc<Member>>>,
}

/// The addresses of all communicators that were ever made: what is not among them is no communicator. Addresses, as a pointer is only
/// compared.
static MADE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

impl Communicator {
    fn leak(member: Arc<Member>) -> *mut Communicator {
        let communicator = Box::leak(Box::new(Communicator { member: Mutex::new(Some(member)) }));
        let pointer = std::ptr::from_mut(communicator);
        MADE.lock().unwrap_or_else(|poison| poison.into_inner()).push(pointer as usize);
        pointer
    }
}

/// The communicator's place.
fn place(pointer: *mut Communicator) -> Result<&'static Mutex<Option<Arc<Member>>>, Refusal> {
    if !MADE.lock().unwrap_or_else(|poison| poison.into_inner()).contains(&(pointer as usize)) {
        return refuse(Code::InvalidArgument, "no communicator");
    }
    // SAFETY: it was made here and is never freed.
    Ok(unsafe { &(*pointer).member })
}

/// The rank behind a pointer of C.
pub fn find(pointer: *mut Communicator) -> Result<Arc<Member>, Refusal> {
    let member = place(pointer)?.lock().unwrap_or_else(|poison| poison.into_inner()).clone();
    member.map_or_else(|| refuse(Code::InvalidArgument, "the communicator was destroyed"), Ok)
}

/// The last refusal of the process, for who asks without a communicator.
static LAST: Mutex<Option<CString>> = Mutex::new(None);

/// Returns the result code of a function of C. A refusal is said on standard error, kept, and spoils an open group.
pub fn answer(
    name: &str,
    communicator: *mut Communicator,
    action: impl FnOnce() -> Result<Code, Refusal>,
) -> Code {
    action().unwrap_or_else(|refusal| {
        eprintln!("gpu double: {name}: {:?}: {}", refusal.code, refusal.reason);
        if let Ok(member) = find(communicator) {
            member.note(&refusal.reason);
        }
        group::spoil(refusal.code);
        let code = refusal.code;
        *last() = CString::new(refusal.reason).ok();
        code
    })
}

fn last() -> MutexGuard<'static, Option<CString>> {
    LAST.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// A place that a function of C writes to.
fn written<'a, T>(place: *mut T) -> Result<&'a mut T, Refusal> {
    // SAFETY: the caller of the function of C gives null or a place.
    match unsafe { place.as_mut() } {
        Some(place) => Ok(place),
        None => refuse(Code::InvalidArgument, "no place for the result"),
    }
}

const NOBODY: *mut Communicator = std::ptr::null_mut();

/// The version, as 2.28.3.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(version: *mut i32) -> Code {
    answer("ncclGetVersion", NOBODY, || {
        *written(version)? = 22_803;
        Ok(Code::Success)
    })
}

/// An id, by which ranks find each other.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Code {
    answer("ncclGetUniqueId", NOBODY, || {
        *written(id)? = UniqueId::fresh();
        Ok(Code::Success)
    })
}

/// A rank of a communicator on the device that is current; waits for the others.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRank(
    communicator: *mut *mut Communicator,
    ranks: i32,
    id: UniqueId,
    rank: i32,
) -> Code {
    ncclCommInitRankConfig(communicator, ranks, id, rank, std::ptr::null())
}

/// A rank of a communicator; with `blocking` 0 it comes to be beside the caller.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankConfig(
    communicator: *mut *mut Communicator,
    ranks: i32,
    id: UniqueId,
    rank: i32,
    config: *const Config,
) -> Code {
    answer("ncclCommInitRank", NOBODY, || {
        let place = written(communicator)?;
        *place = NOBODY;
        // SAFETY: the caller gives null or a configuration.
        let blocking = blocking(unsafe { config.as_ref() }, true)?;
        if rank < 0 || rank >= ranks {
            return refuse(Code::InvalidArgument, format!("rank {rank} of {ranks}"));
        }
        let name = id.name()?;
        let device = current()?;
        begin(place, Member::new(name, rank as usize, ranks as usize, device, blocking))
    })
}

/// A rank joins, and its pointer is handed out, unless it did not come to be.
fn begin(place: &mut *mut Communicator, member: Member) -> Result<Code, Refusal> {
    let member = Arc::new(member);
    *place = Communicator::leak(member.clone());
    let joined = group::join(&member);
    if joined.is_err() {
        *place = NOBODY;
    }
    joined
}

fn current() -> Result<i32, Refusal> {
    let device = work::current_device();
    device.map_or_else(|| refuse(Code::UnhandledCudaError, "no device is current"), Ok)
}

/// Communicators of one thread for several devices: those of `devices`, or the first ones.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitAll(
    communicators: *mut *mut Communicator,
    count: i32,
    devices: *const i32,
) -> Code {
    answer("ncclCommInitAll", NOBODY, || {
        written(communicators)?;
        if count < 1 {
            return refuse(Code::InvalidArgument, format!("{count} devices"));
        }
        let name = UniqueId::fresh().name()?;
        group::start();
        for rank in 0..count as usize {
            let own = devices.wrapping_add(rank);
            // SAFETY: the caller gives null or `count` numbers.
            let device = unsafe { devices.as_ref().map_or(rank as i32, |_| *own) };
            let member = Member::new(name.clone(), rank, count as usize, device, true);
            // SAFETY: the caller gives `count` places.
            begin(unsafe { &mut *communicators.add(rank) }, member)?;
        }
        group::end().map(|()| Code::Success)
    })
}

/// New communicators of the ranks of the same color, ordered by key; waits for all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommSplit(
    communicator: *mut Communicator,
    color: i32,
    key: i32,
    new: *mut *mut Communicator,
    config: *const Config,
) -> Code {
    answer("ncclCommSplit", communicator, || {
        let member = find(communicator)?;
        member.usable()?;
        let place = written(new)?;
        *place = NOBODY;
        if color < -1 {
            return refuse(Code::InvalidArgument, format!("color {color}"));
        }
        if group::is_open() {
            return refuse(Code::InvalidUsage, "the double splits in no group");
        }
        // SAFETY: the caller gives null or a configuration.
        let blocking = blocking(unsafe { config.as_ref() }, member.blocking)?;
        let Some(found) = member.split(color, key)? else { return Ok(Code::Success) };
        let device = member.device;
        begin(place, Member::new(found.name, found.rank, found.ranks, device, blocking))
    })
}

/// Waits for all operations of a rank, and ends its part.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(communicator: *mut Communicator) -> Code {
    if communicator.is_null() {
        return Code::Success;
    }
    answer("ncclCommFinalize", communicator, || {
        not_in_a_group()?;
        let member = find(communicator)?;
        member.usable()?;
        member.finalize().map(|()| Code::Success)
    })
}

/// Ends a rank, after its operations.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(communicator: *mut Communicator) -> Code {
    if communicator.is_null() {
        return Code::Success;
    }
    answer("ncclCommDestroy", communicator, || {
        not_in_a_group()?;
        find(communicator)?.check_unkept()?;
        find(communicator)?.finalize()?;
        remove(communicator)
    })
}

/// Ends a rank at once; operations that wait end with an error.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(communicator: *mut Communicator) -> Code {
    if communicator.is_null() {
        return Code::Success;
    }
    answer("ncclCommAbort", communicator, || {
        find(communicator)?.check_unkept()?;
        find(communicator)?.abort();
        remove(communicator)
    })
}

fn remove(communicator: *mut Communicator) -> Result<Code, Refusal> {
    *place(communicator)?.lock().unwrap_or_else(|poison| poison.into_inner()) = None;
    Ok(Code::Success)
}

fn not_in_a_group() -> Result<(), Refusal> {
    if group::is_open() {
        return refuse(Code::InvalidUsage, "a communicator ends in no group");
    }
    Ok(())
}

/// Gives the error beside calls, above all that another rank is gone.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(communicator: *mut Communicator, error: *mut i32) -> Code {
    answer("ncclCommGetAsyncError", communicator, || {
        *written(error)? = find(communicator)?.asynchronous() as i32;
        Ok(Code::Success)
    })
}

/// Gives the number of ranks.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommCount(communicator: *mut Communicator, count: *mut i32) -> Code {
    answer("ncclCommCount", communicator, || {
        *written(count)? = find(communicator)?.ranks as i32;
        Ok(Code::Success)
    })
}

/// Gives the number of this rank.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommUserRank(communicator: *mut Communicator, rank: *mut i32) -> Code {
    answer("ncclCommUserRank", communicator, || {
        *written(rank)? = find(communicator)?.rank as i32;
        Ok(Code::Success)
    })
}

/// The device that the rank uses.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommCuDevice(communicator: *mut Communicator, device: *mut i32) -> Code {
    answer("ncclCommCuDevice", communicator, || {
        *written(device)? = find(communicator)?.device;
        Ok(Code::Success)
    })
}

/// A result's meaning.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: i32) -> *const c_char {
    Code::text_of(code).as_ptr()
}

/// The last sentence about a communicator, or of the process where there is none. It is valid until the next one.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(communicator: *mut Communicator) -> *const c_char {
    match find(communicator) {
        Ok(member) => member.last_error(),
        Err(_) => last().as_ref().map_or(c"".as_ptr(), |last| last.as_ptr()),
    }
}

/// Calls are collected from now on.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> Code {
    group::start();
    Code::Success
}

/// The collected calls are made.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> Code {
    answer("ncclGroupEnd", NOBODY, || group::end().map(|()| Code::Success))
}
