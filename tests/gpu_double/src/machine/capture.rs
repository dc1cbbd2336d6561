//! Captures: while a stream captures, what it is given is noted instead of executed, and so is what other streams are
//! given after they waited for one of its events.

use super::graphs::Node;
use super::{Machine, Task};
use crate::code::Code;
use crate::memory::Clock;

/// Kind of the handles of captures.
const CAPTURE: u64 = 0xC;

/// The calls that a capture forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Those of all threads that may be unsafe.
    Global,
    /// Those of the capturing thread.
    ThreadLocal,
    /// Only those on the capturing streams.
    Relaxed,
}

/// A stream's part in a capture: which, and its branch there.
#[derive(Clone, Copy)]
pub(super) struct Member {
    pub capture: u64,
    pub branch: u32,
}

/// The operations that are captured.
pub(super) struct Capture {
    origin: u32,
    mode: CaptureMode,
    thread: std::thread::ThreadId,
    nodes: Vec<Node>,
    branches: Vec<Branch>,
    broken: bool,
}

/// One stream of a capture: how many nodes it has, and what comes before its next one.
struct Branch {
    stream: u32,
    tick: u32,
    clock: Clock,
}

impl Machine {
    /// Begins to capture the operations that a stream is given from now on.
    pub fn begin_capture(&mut self, stream: u32, mode: CaptureMode) -> Result<(), Code> {
        let chosen = &self.streams[stream as usize];
        if chosen.capture.is_some() || chosen.handle <= 2 {
            return Err(Code::CaptureUnsupported);
        }
        let handle = self.handle(CAPTURE);
        let thread = std::thread::current().id();
        let branch = Branch { stream, tick: 0, clock: Clock::default() };
        let (nodes, branches) = (Vec::new(), vec![branch]);
        let capture = Capture { origin: stream, mode, thread, nodes, branches, broken: false };
        self.captures.insert(handle, capture);
        self.streams[stream as usize].capture = Some(Member { capture: handle, branch: 0 });
        Ok(())
    }

    /// Ends the capture that began in a stream; its graph, by handle.
    pub fn end_capture(&mut self, stream: u32) -> Result<u64, Code> {
        let member = self.streams[stream as usize].capture.ok_or(Code::InvalidValue)?;
        let capture = &self.captures[&member.capture];
        if capture.origin != stream {
            return Err(self.invalidate(stream, Code::CaptureUnmatched));
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(Code::CaptureWrongThread);
        }
        let capture = self.captures.remove(&member.capture).expect("streams name live captures");
        for branch in &capture.branches {
            self.streams[branch.stream as usize].capture = None;
        }
        if capture.broken {
            return Err(Code::CaptureInvalidated);
        }
        capture.check_joined()?;
        Ok(self.add_graph(capture.nodes, capture.branches.len()))
    }

    /// Whether a stream captures: None, or the capture's handle and whether it was broken by a forbidden call.
    pub fn capture_of(&self, stream: u32) -> Option<(u64, bool)> {
        let member = self.streams[stream as usize].capture?;
        Some((member.capture, self.captures[&member.capture].broken))
    }

    /// A call that waits, allocates or uses the default stream: refused while a capture forbids it, which breaks the capture.
    pub fn unsafe_call(&mut self) -> Result<(), Code> {
        let here = std::thread::current().id();
        let forbids = |capture: &Capture| match capture.mode {
            CaptureMode::Global => true,
            CaptureMode::ThreadLocal => capture.thread == here,
            CaptureMode::Relaxed => false,
        };
        let mut refused = false;
        for capture in self.captures.values_mut().filter(|capture| forbids(capture)) {
            capture.broken = true;
            refused = true;
        }
        if refused { Err(Code::CaptureUnsupported) } else { Ok(()) }
    }

    /// Breaks the capture of a stream, for a reason that the call returns.
    pub(super) fn invalidate(&mut self, stream: u32, code: Code) -> Code {
        if let Some(member) = self.streams[stream as usize].capture
            && let Some(capture) = self.captures.get_mut(&member.capture)
        {
            capture.broken = true;
        }
        code
    }

    /// A call on a stream that captures, which no capture allows.
    pub fn forbidden_on(&mut self, stream: u32) -> Result<(), Code> {
        match self.streams[stream as usize].capture {
            Some(_) => Err(self.invalidate(stream, Code::CaptureUnsupported)),
            None => Ok(()),
        }
    }

    /// Notes an operation of a capturing stream.
    pub(super) fn record(&mut self, stream: u32, task: Task, name: String) -> Result<(), Code> {
        let member = self.streams[stream as usize].capture.ok_or(Code::InvalidValue)?;
        let capture = self.captures.get_mut(&member.capture).ok_or(Code::InvalidValue)?;
        if capture.broken {
            return Err(Code::CaptureInvalidated);
        }
        let branch = &mut capture.branches[member.branch as usize];
        let clock = branch.clock.clone();
        branch.tick += 1;
        branch.clock.advance(member.branch, branch.tick);
        capture.nodes.push(Node { branch: member.branch, clock, task, name });
        Ok(())
    }

    /// The capture of a stream, and what comes before its next operation there; None where it does not capture.
    pub(super) fn place_in_capture(&self, stream: u32) -> Result<Option<(u64, Clock)>, Code> {
        let Some(member) = self.streams[stream as usize].capture else { return Ok(None) };
        let capture = &self.captures[&member.capture];
        if capture.broken {
            return Err(Code::CaptureInvalidated);
        }
        Ok(Some((member.capture, capture.branches[member.branch as usize].clock.clone())))
    }

    /// A stream waits for an event of a capture, and so takes part in it.
    pub(super) fn join_capture(
        &mut self,
        stream: u32,
        handle: u64,
        clock: &Clock,
    ) -> Result<(), Code> {
        let own = self.streams[stream as usize].capture;
        if own.is_some_and(|own| own.capture != handle) {
            return Err(self.invalidate(stream, Code::CaptureMerge));
        }
        let capture = self.captures.get_mut(&handle).ok_or(Code::CapturedEvent)?;
        let branch = own.map_or(capture.branches.len() as u32, |own| own.branch);
        if own.is_none() {
            capture.branches.push(Branch { stream, tick: 0, clock: Clock::default() });
            self.streams[stream as usize].capture = Some(Member { capture: handle, branch });
        }
        capture.branches[branch as usize].clock.join(clock);
        Ok(())
    }
}

impl Capture {
    /// Checks that all that other streams captured comes before the end of the stream in which the capture began.
    fn check_joined(&self) -> Result<(), Code> {
        let end = &self.branches[0].clock;
        let joined = (0..).zip(&self.branches).all(|(number, b)| end.covers(number, b.tick));
        if joined { Ok(()) } else { Err(Code::CaptureUnjoined) }
    }
}
