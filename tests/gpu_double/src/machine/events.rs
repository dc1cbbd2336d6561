//! Events: places in streams that others wait for.

use super::{Machine, Place, Task};
use crate::account;
use crate::code::Code;
use crate::memory::Clock;

/// Kind of the handles of events.
const EVENT: u64 = 0xE;

/// One event, as it was recorded last.
#[derive(Clone, Default)]
pub(super) struct Event {
    /// The place where it was recorded.
    pub place: Option<Place>,
    /// Or where in a capture it was recorded: number of the capture, and what came before there.
    pub captured: Option<(u64, Clock)>,
    /// Modelled time of its stream at which it was reached, if it measures times.
    pub reached: Option<u64>,
    pub timed: bool,
}

impl Machine {
    /// A new event, by its handle.
    pub fn create_event(&mut self, timed: bool) -> u64 {
        let handle = self.handle(EVENT);
        self.events.insert(handle, Event { timed, ..Event::default() });
        handle
    }

    /// An event ends; streams that wait for it do so all the same.
    pub fn destroy_event(&mut self, event: u64) -> Result<(), Code> {
        self.events.remove(&event).map(|_| ()).ok_or(Code::InvalidHandle)
    }

    /// An event stands for all that a stream was given so far.
    pub fn record_event(&mut self, event: u64, stream: u32) -> Result<(), Code> {
        let timed = self.event(event)?.timed;
        if let Some(place) = self.place_in_capture(stream)? {
            self.events.insert(event, Event { captured: Some(place), timed, ..Event::default() });
            return Ok(());
        }
        self.append(stream, Task::Reach(event), String::from("an event"))?;
        let place = Some(self.last(stream));
        self.events.insert(event, Event { place, timed, ..Event::default() });
        Ok(())
    }

    /// Lets all that a stream is given next wait for an event.
    pub fn wait_event(&mut self, stream: u32, event: u64) -> Result<(), Code> {
        account::given();
        let event = self.event(event)?.clone();
        if let Some((capture, clock)) = event.captured {
            return self.join_capture(stream, capture, &clock);
        }
        if self.streams[stream as usize].capture.is_some() {
            return Err(self.invalidate(stream, Code::CaptureIsolation));
        }
        if let Some(place) = event.place {
            self.follow(stream, &place);
        }
        Ok(())
    }

    /// Returns the places that a synchronization with an event waits for.
    pub fn place_of_event(&self, event: u64) -> Result<Vec<Place>, Code> {
        let event = self.event(event)?;
        if event.captured.is_some() {
            return Err(Code::CapturedEvent);
        }
        Ok(event.place.iter().cloned().collect())
    }

    /// Milliseconds of modelled time between two events that were reached. Each stream has a time of its own, so what
    /// other streams do meanwhile does not change it.
    pub fn elapsed(&self, from: u64, to: u64) -> Result<f32, Code> {
        let (from, to) = (self.event(from)?, self.event(to)?);
        if !from.timed || !to.timed || from.place.is_none() || to.place.is_none() {
            return Err(Code::InvalidHandle);
        }
        match (from.reached, to.reached) {
            (Some(from), Some(to)) => Ok((to as f64 - from as f64) as f32 / 1e6),
            _ => Err(Code::NotReady),
        }
    }

    /// Notes that a stream has come to an event, unless it was recorded anew meanwhile.
    pub(super) fn reach(&mut self, event: u64, stream: u32, tick: u32) {
        let now = self.streams[stream as usize].time;
        if let Some(event) = self.events.get_mut(&event)
            && event.place.as_ref().is_some_and(|at| (at.stream, at.tick) == (stream, tick))
        {
            event.reached = Some(now);
        }
    }

    fn event(&self, event: u64) -> Result<&Event, Code> {
        self.events.get(&event).ok_or(Code::InvalidHandle)
    }
}
