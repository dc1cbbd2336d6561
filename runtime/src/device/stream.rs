//! Streams and events.

use std::time::{Duration, Instant};

use super::{DeviceLaunch, DeviceMemory, Turn, cpu, cuda};
use crate::error::Cause;
use graphc_comm::memory::{ArenaRange, HostArena};
use graphc_ir::learning_rate::GivenRate;

/// A queue of launches. Each worker has one.
pub(crate) enum DeviceStream {
    /// The worker's own thread, and those that share its kernels' work.
    Cpu(cpu::CpuStream),
    /// A stream of a card.
    Cuda(Box<cuda::CardStream>),
}

/// An event that has come when all launches before it on its stream have ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceEvent {
    /// An event that has come: on a processor launches end before they return.
    Past,
    /// An event of a card.
    Cuda(cuda::CardEvent),
}

/// Launches that were recorded, to be begun all at once.
#[derive(Debug)]
pub(crate) enum DeviceRecording {
    /// A recording of a card.
    Cuda(cuda::CardRecording),
}

/// A stopwatch of the time between two places of a stream.
#[derive(Debug)]
pub(crate) enum DeviceStopwatch {
    /// The clock's time at which it was begun, and what it took once it has ended.
    Cpu(Instant, Duration),
    /// A stopwatch by the events of a card.
    Cuda(cuda::CardStopwatch),
}

impl DeviceStopwatch {
    /// Returns the time that was taken; all launches have ended.
    ///
    /// # Errors
    /// Where the device does not tell.
    pub(crate) fn elapsed(&self) -> Result<Duration, Cause> {
        match self {
            Self::Cpu(_, elapsed) => Ok(*elapsed),
            Self::Cuda(watch) => watch.elapsed(),
        }
    }
}

/// Memory of the host through which one content goes to or from a device, the same in each step.
#[derive(Debug)]
pub(crate) enum Passage {
    /// Pinned memory, which a card reaches.
    Cuda(cuda::Pinned),
}

impl Passage {
    /// Returns the first bytes. No copy may be under way.
    pub(crate) fn content(&self, bytes: usize) -> &[u8] {
        let Self::Cuda(pinned) = self;
        pinned.slice(bytes)
    }

    /// Returns the first bytes to be written, as [`Passage::content`].
    pub(crate) fn content_mut(&mut self, bytes: usize) -> &mut [u8] {
        let Self::Cuda(pinned) = self;
        pinned.slice_mut(bytes)
    }
}

/// The error that no caller causes: streams, launches and memory of one rank are of one device.
const MIXED: &str = "a launch of another device";

impl DeviceStream {
    /// Begins a step: later launches belong to it. The step is counted from 0 of the whole training; `rate` is the learning rate
    /// that is given for it, if one is.
    pub(crate) fn begin_step(&mut self, step: u64, rate: Option<GivenRate>) {
        match self {
            Self::Cpu(stream) => (stream.step, stream.rate) = (step, rate),
            Self::Cuda(stream) => stream.begin_step(step, rate),
        }
    }

    /// Launches what was prepared, on the contents of this turn.
    ///
    /// # Errors
    /// Where the kernel refuses its operands, e.g. an index that is out of range, as far as that is known at once.
    #[inline]
    pub(crate) fn launch(
        &mut self,
        launch: &DeviceLaunch,
        memory: &DeviceMemory,
        turn: Turn,
    ) -> Result<(), Cause> {
        match (self, launch, memory) {
            (Self::Cpu(stream), DeviceLaunch::Cpu(launch), DeviceMemory::Cpu(arena)) => {
                Ok(stream.launch(launch, arena, turn)?)
            }
            (Self::Cuda(stream), DeviceLaunch::Cuda(launch), DeviceMemory::Cuda(memory)) => {
                launch.run(stream, memory, turn)
            }
            _ => Err(Cause::Device(MIXED.to_owned())),
        }
    }

    /// Launches from now on are recorded instead of begun, until [`DeviceStream::end_recording`].
    ///
    /// # Errors
    /// Where the device does not record.
    pub(crate) fn begin_recording(&mut self) -> Result<(), Cause> {
        match self {
            Self::Cpu(_) => Err(Cause::Device(MIXED.to_owned())),
            Self::Cuda(stream) => stream.begin_recording(),
        }
    }

    /// Ends recording and returns the launches that were recorded.
    ///
    /// # Errors
    /// Where something was launched that cannot be recorded.
    pub(crate) fn end_recording(&mut self) -> Result<DeviceRecording, Cause> {
        match self {
            Self::Cpu(_) => Err(Cause::Device(MIXED.to_owned())),
            Self::Cuda(stream) => stream.end_recording().map(DeviceRecording::Cuda),
        }
    }

    /// Begins all that was recorded.
    ///
    /// # Errors
    /// Where the device does not take it.
    pub(crate) fn replay(&mut self, recording: &DeviceRecording) -> Result<(), Cause> {
        match (self, recording) {
            (Self::Cuda(stream), DeviceRecording::Cuda(recording)) => stream.replay(recording),
            (Self::Cpu(_), DeviceRecording::Cuda(_)) => Err(Cause::Device(MIXED.to_owned())),
        }
    }

    /// Records an event behind all launches so far.
    #[inline]
    pub(crate) fn record_event(&mut self) -> DeviceEvent {
        match self {
            Self::Cpu(_) => DeviceEvent::Past,
            Self::Cuda(stream) => {
                stream.record_event().map_or(DeviceEvent::Past, DeviceEvent::Cuda)
            }
        }
    }

    /// Launches from now on begin when an event of another stream of the device has come; the host does not wait.
    pub(crate) fn wait_event(&mut self, event: DeviceEvent) {
        match (self, event) {
            (Self::Cuda(stream), DeviceEvent::Cuda(event)) => stream.wait_event(event),
            (Self::Cpu(_) | Self::Cuda(_), DeviceEvent::Past)
            | (Self::Cpu(_), DeviceEvent::Cuda(_)) => {}
        }
    }

    /// Records an event behind all launches so far, of an action by its place among those of a step. In the next step it
    /// stands for the same place.
    pub(crate) fn record_at(&mut self, place: usize) -> DeviceEvent {
        match self {
            Self::Cpu(_) => DeviceEvent::Past,
            Self::Cuda(stream) => {
                stream.record_at(place).map_or(DeviceEvent::Past, DeviceEvent::Cuda)
            }
        }
    }

    /// Makes a stopwatch of this stream.
    ///
    /// # Errors
    /// Where the device has none.
    pub(crate) fn new_stopwatch(&self) -> Result<DeviceStopwatch, Cause> {
        match self {
            Self::Cpu(_) => Ok(DeviceStopwatch::Cpu(Instant::now(), Duration::ZERO)),
            Self::Cuda(stream) => stream.new_stopwatch().map(DeviceStopwatch::Cuda),
        }
    }

    /// Has a stopwatch begin behind all launches so far.
    ///
    /// # Errors
    /// Where the device does not take it.
    pub(crate) fn begin_stopwatch(&mut self, watch: &mut DeviceStopwatch) -> Result<(), Cause> {
        match (self, watch) {
            (Self::Cpu(_), DeviceStopwatch::Cpu(begun, _)) => *begun = Instant::now(),
            (Self::Cuda(stream), DeviceStopwatch::Cuda(watch)) => stream.begin_stopwatch(watch)?,
            _ => return Err(Cause::Device(MIXED.to_owned())),
        }
        Ok(())
    }

    /// Has it end behind all launches so far.
    ///
    /// # Errors
    /// As [`DeviceStream::begin_stopwatch`].
    pub(crate) fn end_stopwatch(&mut self, watch: &mut DeviceStopwatch) -> Result<(), Cause> {
        match (self, watch) {
            (Self::Cpu(_), DeviceStopwatch::Cpu(begun, elapsed)) => *elapsed = begun.elapsed(),
            (Self::Cuda(stream), DeviceStopwatch::Cuda(watch)) => stream.end_stopwatch(watch)?,
            _ => return Err(Cause::Device(MIXED.to_owned())),
        }
        Ok(())
    }

    /// Allocates memory through which a content of so many bytes goes; `None` where the host reaches the device's
    /// memory itself.
    ///
    /// # Errors
    /// Where there is not so much.
    pub(crate) fn new_passage(&self, bytes: usize) -> Result<Option<Passage>, Cause> {
        match self {
            Self::Cpu(_) => Ok(None),
            Self::Cuda(stream) => Ok(Some(Passage::Cuda(stream.allocate_pinned(bytes)?))),
        }
    }

    /// Begins to copy to a place, on this stream, what lies in a passage. That is left alone until the launches so far
    /// have ended.
    ///
    /// # Errors
    /// Where the device does not take it.
    pub(crate) fn begin_fill(
        &mut self,
        passage: &Passage,
        memory: &DeviceMemory,
        place: ArenaRange,
    ) -> Result<(), Cause> {
        match (self, passage, memory) {
            (Self::Cuda(stream), Passage::Cuda(pinned), DeviceMemory::Cuda(memory)) => {
                stream.begin_fill(pinned, memory, place)
            }
            _ => Err(Cause::Device(MIXED.to_owned())),
        }
    }

    /// Begins to copy from a place to a passage, which has it when the launches so far have ended.
    ///
    /// # Errors
    /// Where the device does not take it.
    pub(crate) fn begin_read(
        &mut self,
        passage: &mut Passage,
        memory: &DeviceMemory,
        place: ArenaRange,
    ) -> Result<(), Cause> {
        match (self, passage, memory) {
            (Self::Cuda(stream), Passage::Cuda(pinned), DeviceMemory::Cuda(memory)) => {
                stream.begin_read(pinned, memory, place)
            }
            _ => Err(Cause::Device(MIXED.to_owned())),
        }
    }

    /// Ends what waits for other ranks, which the end of the job keeps from coming.
    pub(crate) fn abort(&mut self) {
        if let Self::Cuda(stream) = self {
            stream.abort();
        }
    }

    /// Waits until all launches have ended or the job has.
    pub(crate) fn wait_unless_ended(&self) {
        if let Self::Cuda(stream) = self {
            stream.wait_unless_ended();
        }
    }

    /// Waits until all launches so far have ended.
    ///
    /// # Errors
    /// Where one of them has failed.
    pub(crate) fn synchronize(&mut self) -> Result<(), Cause> {
        match self {
            Self::Cpu(_) => Ok(()),
            Self::Cuda(stream) => stream.synchronize(),
        }
    }

    /// Lets `read` see bytes when all launches so far have ended.
    pub(crate) fn read<R>(
        &mut self,
        memory: &DeviceMemory,
        place: ArenaRange,
        read: impl FnOnce(&[u8]) -> R,
    ) -> R {
        match (self, memory) {
            (Self::Cuda(stream), DeviceMemory::Cuda(memory)) => stream.read(memory, place, read),
            _ => memory.read(place, read),
        }
    }

    /// Lets `write` fill bytes, which launches from now on see. All of them are written.
    pub(crate) fn fill<R>(
        &mut self,
        memory: &DeviceMemory,
        place: ArenaRange,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        match (self, memory) {
            (Self::Cuda(stream), DeviceMemory::Cuda(memory)) => stream.fill(memory, place, write),
            _ => memory.write(place, write),
        }
    }

    /// Brings what all launches so far have written in these places to memory that the host and its peers reach in place.
    #[inline]
    pub(crate) fn sync_to_host<'m>(
        &mut self,
        memory: &'m DeviceMemory,
        places: &[ArenaRange],
    ) -> &'m HostArena {
        match (self, memory) {
            (_, DeviceMemory::Cpu(arena)) => arena,
            (Self::Cuda(stream), DeviceMemory::Cuda(memory)) => stream.sync_to_host(memory, places),
            (Self::Cpu(_), DeviceMemory::Cuda(memory)) => memory.image(),
        }
    }

    /// Launches from now on see what the host has written at these places of [`DeviceStream::sync_to_host`].
    #[inline]
    pub(crate) fn sync_from_host(&mut self, memory: &DeviceMemory, places: &[ArenaRange]) {
        if let (Self::Cuda(stream), DeviceMemory::Cuda(memory)) = (self, memory) {
            stream.sync_from_host(memory, places);
        }
    }
}
