//! Groups: calls between `ncclGroupStart` and `ncclGroupEnd` of a thread are made at once, at the end.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

use super::init;
use super::member::Member;
use super::operation::{Bound, Operation};
use super::types::{Code, Refusal, refuse};
use crate::work;

/// The calls that a thread has begun and not ended.
#[derive(Default)]
struct Group {
    depth: usize,
    joins: Vec<Arc<Member>>,
    calls: Vec<(Arc<Member>, *mut c_void, Bound)>,
    refused: Option<Code>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Whether the thread is between start and end.
pub fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

/// Begins a group, or one within it.
pub fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Ends a group; the outermost end does what was called.
pub fn end() -> Result<(), Refusal> {
    let group = GROUP.with_borrow_mut(|group| match group.depth {
        0 => refuse(Code::InvalidUsage, "ncclGroupEnd without ncclGroupStart"),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })?;
    let Some(group) = group else { return Ok(()) };
    if let Some(code) = group.refused {
        return refuse(code, "a call of the group was refused, so none is made");
    }
    join_all(group.joins)?;
    submit_all(group.calls)
}

/// A call of an open group was refused: so is the group.
pub fn spoil(code: Code) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.refused.get_or_insert(code);
        }
    });
}

/// Brings a rank to its communicator: now, in the group, or beside the caller if it does not block.
pub fn join(member: &Arc<Member>) -> Result<Code, Refusal> {
    if is_open() {
        GROUP.with_borrow_mut(|group| group.joins.push(member.clone()));
        return Ok(Code::Success);
    }
    if member.blocking {
        return init::join(member).map(|()| Code::Success);
    }
    let member = member.clone();
    std::thread::spawn(move || init::join(&member));
    Ok(Code::InProgress)
}

/// Ranks of one thread join at the same time.
fn join_all(members: Vec<Arc<Member>>) -> Result<(), Refusal> {
    let threads: Vec<_> = members
        .into_iter()
        .map(|member| (member.blocking, std::thread::spawn(move || init::join(&member))))
        .collect();
    let mut result = Ok(());
    for (_, thread) in threads.into_iter().filter(|(blocking, _)| *blocking) {
        let joined =
            thread.join().unwrap_or_else(|_| refuse(Code::InternalError, "a rank panicked"));
        result = result.and(joined);
    }
    result
}

/// Makes a call on a stream: now, or in the group.
pub fn call(member: &Arc<Member>, stream: *mut c_void, bound: Bound) -> Result<(), Refusal> {
    if is_open() {
        GROUP.with_borrow_mut(|group| group.calls.push((member.clone(), stream, bound)));
        return Ok(());
    }
    submit(member, stream, vec![bound])
}

/// Submits one operation for each communicator, in the order in which they were first called.
fn submit_all(mut calls: Vec<(Arc<Member>, *mut c_void, Bound)>) -> Result<(), Refusal> {
    while let Some((member, stream, _)) = calls.first().cloned() {
        let (mine, others): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|(other, ..)| Arc::ptr_eq(other, &member));
        if mine.iter().any(|(_, other, _)| *other != stream) {
            let reason = "calls of one communicator in a group are on several streams";
            return refuse(Code::InvalidUsage, reason);
        }
        submit(&member, stream, mine.into_iter().map(|(.., bound)| bound).collect())?;
        calls = others;
    }
    Ok(())
}

fn submit(member: &Arc<Member>, stream: *mut c_void, calls: Vec<Bound>) -> Result<(), Refusal> {
    match work::submit(stream, Box::new(Operation::new(member, calls))) {
        0 => Ok(()),
        error => refuse(Code::UnhandledCudaError, format!("the stream refuses work: {error}")),
    }
}
