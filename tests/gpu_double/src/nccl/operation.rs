//! A rank's part in a call, or in all calls of a group on one communicator, as work on a stream.

use std::sync::Arc;

use super::call::Call;
use super::member::{Answer, Member};
use super::pulse::Wait;
use crate::work::{Access, Poll, Work};

/// A call with its buffers.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The call.
    pub call: Call,
    /// The address of the bytes that it sends.
    pub from: u64,
    /// The address for the bytes that it receives.
    pub to: u64,
}

/// Calls that are made at once. They wait until the operations that the rank called before are done.
pub struct Operation {
    member: Arc<Member>,
    calls: Vec<Bound>,
    name: String,
    ticket: Option<u64>,
    posted: bool,
    /// Whether it is one that a graph keeps.
    kept: bool,
    wait: Option<Wait>,
}

impl Operation {
    /// Calls that get their place in the rank's order when a stream is given them.
    pub fn new(member: &Arc<Member>, calls: Vec<Bound>) -> Operation {
        let texts: Vec<String> = calls.iter().map(|bound| bound.call.to_string()).collect();
        let (member, name) = (member.clone(), format!("nccl {}", texts.join(" and ")));
        member.keep(true);
        Operation { member, calls, name, ticket: None, posted: false, kept: true, wait: None }
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.kept) {
            self.member.keep(false);
        }
        if let Some(ticket) = self.ticket.take() {
            self.member.leave(ticket);
        }
    }

    fn go_on(&mut self, memory: &mut Access<'_>) -> Result<bool, String> {
        let ticket = self.ticket.ok_or("an operation that no stream was given")?;
        if !self.posted {
            let calls = self.calls.iter().map(|bound| bound.call).collect();
            self.posted =
                self.member.post(ticket, calls, || give(&self.member, &self.calls, memory))?;
            return self.wait_for_turn();
        }
        match self.member.answer(ticket) {
            Answer::NotYet => Ok(false),
            Answer::Failed(reason) => Err(reason),
            Answer::Done(bytes) => self.take(memory, &bytes).map(|()| true),
        }
    }

    /// Fails where operations that were called before do not end, as they would not on a device.
    fn wait_for_turn(&mut self) -> Result<bool, String> {
        let too_long = self.wait.get_or_insert_with(Wait::begin).is_too_long();
        if !self.posted && too_long {
            let Member { rank, name, .. } = &*self.member;
            return Err(format!(
                "rank {rank} of communicator {name} waits for a call that it made before this one"
            ));
        }
        Ok(false)
    }

    /// Writes what the calls get.
    fn take(&self, memory: &mut Access<'_>, mut bytes: &[u8]) -> Result<(), String> {
        let Member { rank, ranks, .. } = *self.member;
        for bound in &self.calls {
            let (got, rest) = bytes
                .split_at_checked(bound.call.gets(rank, ranks) as usize)
                .ok_or("an answer is too short")?;
            bytes = rest;
            if !got.is_empty() {
                let target = memory.write(bound.to, got.len());
                target.map_err(|reason| format!("{}: {reason}", bound.call))?.copy_from_slice(got);
            }
        }
        Ok(())
    }
}

/// Reads what the calls give.
fn give(member: &Member, calls: &[Bound], memory: &mut Access<'_>) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    for bound in calls {
        let count = bound.call.gives(member.rank, member.ranks) as usize;
        if count > 0 {
            let read = memory.read(bound.from, count);
            bytes.extend(read.map_err(|reason| format!("{}: {reason}", bound.call))?);
        }
    }
    Ok(bytes)
}

impl Work for Operation {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll(&mut self, memory: &mut Access<'_>) -> Poll {
        match self.go_on(memory) {
            Ok(false) => Poll::NotYet,
            Ok(true) => {
                self.leave();
                Poll::Done
            }
            Err(reason) => {
                self.leave();
                Poll::Failed(reason)
            }
        }
    }

    fn appended(&mut self) {
        self.ticket.get_or_insert_with(|| self.member.enter());
        if std::mem::take(&mut self.kept) {
            self.member.keep(false);
        }
    }

    fn again(&self) -> Box<dyn Work> {
        Box::new(Operation::new(&self.member, self.calls.clone()))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.leave();
    }
}
