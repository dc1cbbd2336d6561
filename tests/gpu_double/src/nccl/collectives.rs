//! The functions of C that move data: checks of their arguments, then one call.

use std::ffi::c_void;

use super::call::{Call, Verb};
use super::exports::{Communicator, answer, find};
use super::group;
use super::member::Member;
use super::operation::Bound;
use super::types::{Code, Element, Reduction, Refusal, refuse};
use crate::work;

/// Buffers, count and type of a call, and where it goes.
#[derive(Clone, Copy)]
struct Arguments {
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
}

/// Makes a call whose verb is known once its arguments are looked at.
fn make(name: &str, arguments: Arguments, verb: impl FnOnce() -> Result<Verb, Refusal>) -> Code {
    answer(name, arguments.communicator, || {
        let member = find(arguments.communicator)?;
        member.usable()?;
        let element = Element::of(arguments.element)?;
        let call = Call { verb: verb()?, count: arguments.count as u64, element };
        let bound = Bound { call, from: arguments.from as u64, to: arguments.to as u64 };
        check(&member, &bound)?;
        check_devices(&member, arguments.stream)?;
        group::call(&member, arguments.stream, bound).map(|()| Code::Success)
    })
}

/// Checks what must hold for a call whatever the other ranks call.
fn check(member: &Member, bound: &Bound) -> Result<(), Refusal> {
    let Bound { call, from, to } = bound;
    if call.verb.names().is_some_and(|rank| rank >= member.ranks) {
        return refuse(
            Code::InvalidArgument,
            format!("{call}, but there are {} ranks", member.ranks),
        );
    }
    if call.verb.reduction().is_some() && !call.element.adds() {
        return refuse(Code::InvalidArgument, format!("{call}: the double only moves this type"));
    }
    let gives = call.gives(member.rank, member.ranks);
    let gets = call.gets(member.rank, member.ranks);
    if (gives > 0 && *from == 0) || (gets > 0 && *to == 0) {
        return refuse(Code::InvalidArgument, format!("{call}: a buffer is null"));
    }
    let to_self =
        matches!(call.verb, Verb::Send { peer } | Verb::Receive { peer } if peer == member.rank);
    if to_self && !group::is_open() {
        return refuse(Code::InvalidUsage, format!("{call} is to itself and in no group"));
    }
    let apart = gives == 0 || gets == 0 || from + gives <= *to || to + gets <= *from;
    let in_place = call.in_place(member.rank).map(|offset| to.wrapping_add_signed(offset));
    if !apart && in_place != Some(*from) {
        let reason =
            format!("{call}: buffers overlap otherwise than an operation in place has them");
        return refuse(Code::InvalidArgument, reason);
    }
    Ok(())
}

/// The stream is of the communicator's device. In no group that device is current, too.
fn check_devices(member: &Member, stream: *mut c_void) -> Result<(), Refusal> {
    let current = work::current_device();
    if !group::is_open() && current != Some(member.device) {
        let reason =
            format!("the communicator is of device {}, current is {current:?}", member.device);
        return refuse(Code::InvalidUsage, reason);
    }
    let device = work::device_of(stream);
    if device != member.device {
        let reason = format!("a stream of device {device} for one of device {}", member.device);
        return refuse(Code::UnhandledCudaError, reason);
    }
    Ok(())
}

/// A root or a peer.
fn rank(number: i32) -> Result<usize, Refusal> {
    let named = || refuse(Code::InvalidArgument, format!("there is no rank {number}"));
    usize::try_from(number).map_or_else(|_| named(), Ok)
}

/// Gives all ranks what all give, reduced.
#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: i32,
    reduction: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> Code {
    let arguments = Arguments { from, to, count, element, communicator, stream };
    make("ncclAllReduce", arguments, || Ok(Verb::AllReduce(Reduction::of(reduction)?)))
}

/// Gives each rank its block of `count` of what all give, reduced.
#[unsafe(no_mangle)]
pub extern "C" fn ncclReduceScatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: i32,
    reduction: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> Code {
    let arguments = Arguments { from, to, count, element, communicator, stream };
    make("ncclReduceScatter", arguments, || Ok(Verb::ReduceScatter(Reduction::of(reduction)?)))
}

/// Gives all ranks the `count` of each.
#[unsafe(no_mangle)]
pub extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> Code {
    let arguments = Arguments { from, to, count, element, communicator, stream };
    make("ncclAllGather", arguments, || Ok(Verb::AllGather))
}

/// Gives all ranks what the root gives.
#[unsafe(no_mangle)]
pub extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: i32,
    root: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> Code {
    let arguments = Arguments { from, to, count, element, communicator, stream };
    make("ncclBroadcast", arguments, || Ok(Verb::Broadcast { root: rank(root)? }))
}

/// Gives all ranks what the root gives, in one buffer.
#[unsafe(no_mangle)]
pub extern "C" fn ncclBcast(
    buffer: *mut c_void,
    count: usize,
    element: i32,
    root: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> Code {
    ncclBroadcast(buffer, buffer, count, element, root, communicator, stream)
}

/// The root gets what all give, reduced.
#[unsafe(no_mangle)]
pub extern "C" fn ncclReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: i32,
    reduction: i32,
    root: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> Code {
    let arguments = Arguments { from, to, count, element, communicator, stream };
    make("ncclReduce", arguments, || {
        Ok(Verb::Reduce { reduction: Reduction::of(reduction)?, root: rank(root)? })
    })
}

/// Rank i gets the i-th block of `count` of each.
#[unsafe(no_mangle)]
pub extern "C" fn ncclAlltoAll(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> Code {
    let arguments = Arguments { from, to, count, element, communicator, stream };
    make("ncclAlltoAll", arguments, || Ok(Verb::AllToAll))
}

/// The root gets the `count` of each.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: i32,
    root: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> Code {
    let arguments = Arguments { from, to, count, element, communicator, stream };
    make("ncclGather", arguments, || Ok(Verb::Gather { root: rank(root)? }))
}

/// Rank i gets the i-th block of `count` of the root.
#[unsafe(no_mangle)]
pub extern "C" fn ncclScatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    element: i32,
    root: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> Code {
    let arguments = Arguments { from, to, count, element, communicator, stream };
    make("ncclScatter", arguments, || Ok(Verb::Scatter { root: rank(root)? }))
}

/// Gives to one rank, which receives as much.
#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(
    from: *const c_void,
    count: usize,
    element: i32,
    peer: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> Code {
    let to = std::ptr::null_mut();
    let arguments = Arguments { from, to, count, element, communicator, stream };
    make("ncclSend", arguments, || Ok(Verb::Send { peer: rank(peer)? }))
}

/// Gets from one rank, which sends as much.
#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(
    to: *mut c_void,
    count: usize,
    element: i32,
    peer: i32,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> Code {
    let from = std::ptr::null();
    let arguments = Arguments { from, to, count, element, communicator, stream };
    make("ncclRecv", arguments, || Ok(Verb::Receive { peer: rank(peer)? }))
}
