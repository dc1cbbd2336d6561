//! Streams: queues of operations, what each operation waits for, and what comes before it.

use std::collections::VecDeque;

use super::capture::Member;
use super::{Machine, Place, Task};
use crate::account;
use crate::code::Code;
use crate::memory::Clock;

/// Kind of the handles of streams.
const STREAM: u64 = 0x5;

/// An operation that waits for its turn.
pub(super) struct Operation {
    pub number: u32,
    pub tick: u32,
    /// Operations of other streams, by stream and tick.
    pub waits: Vec<(u32, u32)>,
    pub clock: Clock,
    pub task: Task,
}

/// One queue.
pub(super) struct Stream {
    pub handle: u64,
    pub device: i32,
    /// Whether the default stream waits for it, and it for the default stream.
    pub blocking: bool,
    /// Appended so far, and done.
    pub tick: u32,
    pub done: u32,
    /// Modelled nanoseconds of all that it has done.
    pub time: u64,
    pub queue: VecDeque<Operation>,
    /// The operations that come before the next one.
    pub clock: Clock,
    pub waits: Vec<(u32, u32)>,
    pub capture: Option<Member>,
    pub alive: bool,
}

impl Stream {
    fn new(handle: u64, device: i32, blocking: bool) -> Stream {
        Stream {
            handle,
            device,
            blocking,
            tick: 0,
            done: 0,
            time: 0,
            queue: VecDeque::new(),
            clock: Clock::default(),
            waits: Vec::new(),
            capture: None,
            alive: true,
        }
    }

    /// Drops all operations after a fault: nothing is executed any more.
    pub fn abandon(&mut self) {
        self.queue.clear();
        self.done = self.tick;
    }
}

impl Machine {
    /// A new stream of a card, by its handle.
    pub fn create_stream(&mut self, device: i32, blocking: bool) -> u64 {
        let handle = self.handle(STREAM);
        self.streams.push(Stream::new(handle, device, blocking));
        handle
    }

    /// A stream that no handle names: a branch of a graph that is launched.
    pub(super) fn hidden_stream(&mut self, device: i32) -> u32 {
        self.streams.push(Stream::new(0, device, false));
        (self.streams.len() - 1) as u32
    }

    /// The stream of a handle; 0 and 1 are the default stream of the thread's card.
    pub fn stream(&mut self, handle: u64, device: Option<i32>) -> Result<u32, Code> {
        if handle > 2 {
            let found = self.streams.iter().position(|s| s.handle == handle && s.alive);
            return found.map(|at| at as u32).ok_or(Code::InvalidHandle);
        }
        let device = device.ok_or(Code::InvalidContext)?;
        if let Some(stream) = self.defaults.get(&device) {
            return Ok(*stream);
        }
        self.streams.push(Stream::new(handle, device, true));
        let stream = (self.streams.len() - 1) as u32;
        self.defaults.insert(device, stream);
        Ok(stream)
    }

    /// The card of a stream.
    pub fn device_of(&self, stream: u32) -> i32 {
        self.streams[stream as usize].device
    }

    /// A stream ends; what it was given is still done.
    pub fn destroy_stream(&mut self, stream: u32) {
        self.streams[stream as usize].alive = false;
    }

    /// Appends an operation to a stream, or to what is captured there.
    pub fn append(&mut self, stream: u32, task: Task, name: String) -> Result<(), Code> {
        account::given();
        if account::is_empty() {
            return Ok(());
        }
        if self.streams[stream as usize].capture.is_some() {
            return self.record(stream, task, name);
        }
        self.wait_for_default(stream)?;
        self.push(stream, task, name);
        Ok(())
    }

    /// Appends an operation that will be executed.
    pub(super) fn push(&mut self, stream: u32, mut task: Task, name: String) {
        if account::is_empty() {
            return;
        }
        crate::work::advance();
        if let Task::Work(work) = &mut task {
            work.appended();
        }
        let host = self.host.clone();
        let chosen = &mut self.streams[stream as usize];
        chosen.clock.join(&host);
        chosen.tick += 1;
        let (tick, clock) = (chosen.tick, chosen.clock.clone());
        chosen.clock.advance(stream, tick);
        let waits = std::mem::take(&mut chosen.waits);
        let number = self.space.operations().add(stream, tick, name);
        self.pledge(&task, stream, tick);
        let operation = Operation { number, tick, waits, clock, task };
        self.streams[stream as usize].queue.push_back(operation);
    }

    /// Lets all that a stream does next come after an operation of another one, and after what came before that.
    pub(super) fn follow(&mut self, stream: u32, place: &Place) {
        let chosen = &mut self.streams[stream as usize];
        chosen.clock.join(&place.clock);
        chosen.clock.advance(place.stream, place.tick);
        if place.stream != stream && place.tick > 0 {
            chosen.waits.push((place.stream, place.tick));
        }
    }

    /// The default stream waits for all blocking streams of its card, and they for it.
    fn wait_for_default(&mut self, stream: u32) -> Result<(), Code> {
        let chosen = &self.streams[stream as usize];
        if !chosen.blocking {
            return Ok(());
        }
        let device = chosen.device;
        let default = self.defaults.get(&device).copied();
        let others: Vec<u32> = match default {
            Some(default) if default == stream => self.blocking_streams(device),
            Some(default) => vec![default],
            None => Vec::new(),
        };
        for other in others.into_iter().filter(|other| *other != stream) {
            if self.streams[other as usize].capture.is_some() {
                return Err(Code::CaptureImplicit);
            }
            let last = self.last(other);
            self.follow(stream, &last);
        }
        Ok(())
    }

    fn blocking_streams(&self, device: i32) -> Vec<u32> {
        let streams = (0..).zip(&self.streams);
        let blocking = streams.filter(|(_, s)| s.device == device && s.blocking);
        blocking.map(|(number, _)| number).collect()
    }

    /// The place that a stream has come to with all that it was given.
    pub(super) fn last(&self, stream: u32) -> Place {
        let chosen = &self.streams[stream as usize];
        Place { stream, tick: chosen.tick, clock: chosen.clock.clone() }
    }

    /// Returns the places that a synchronization with a stream waits for: its operations, and those that the next one would wait for.
    pub fn end_of(&self, stream: u32) -> Result<Vec<Place>, Code> {
        let chosen = &self.streams[stream as usize];
        if chosen.capture.is_some() {
            return Err(Code::CaptureUnsupported);
        }
        let waits = chosen.waits.iter();
        let waits = waits.map(|&(stream, tick)| Place { stream, tick, clock: Clock::default() });
        Ok(waits.chain([self.last(stream)]).collect())
    }

    /// Returns the places that a synchronization with a card waits for.
    pub fn ends_of_device(&self, device: i32) -> Result<Vec<Place>, Code> {
        let streams = (0..).zip(&self.streams).filter(|(_, stream)| stream.device == device);
        let ends: Result<Vec<_>, Code> = streams.map(|(number, _)| self.end_of(number)).collect();
        Ok(ends?.into_iter().flatten().collect())
    }

    /// Whether the streams have come to all of some places.
    pub fn all_done(&self, places: &[Place]) -> bool {
        places.iter().all(|place| self.streams[place.stream as usize].done >= place.tick)
    }
}
