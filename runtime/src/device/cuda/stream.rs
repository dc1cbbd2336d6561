//! Streams of a card: launches are queued and the host goes on. It waits by asking again and again, so that a job that ends
//! elsewhere ends here too.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use graphc_comm::TransportError;
use graphc_comm::memory::{ArenaRange, HostArena};
use graphc_ir::learning_rate::GivenRate;
use graphc_ir::types::DType;

use super::driver::{CardBuffer, CardRecording, Loaded, Pinned, Queue, Trouble};
use super::ended::Ended;
use super::known::build_kernel_error;
use super::mark::Mark;
use super::memory::CardMemory;
use super::moves::{CardFill, CardMove};
use super::nccl::{Comm, Id, NcclOperation};
use super::product::{Described, Multiplier, ProductAddresses, Refusal};
use super::staging::HostStaging;
use super::{CardShared, Cuda};
use crate::error::Cause;

/// The number of questions that a wait asks at once before it pauses between them.
const SPINS: usize = 2000;
/// The pause.
const PAUSE: Duration = Duration::from_micros(20);
/// Bytes of the account of faults: `Fault` in the kernels' sources.
const FAULT: usize = 32;
/// Bytes of the step and the seed: `Now` in the kernels' sources.
const NOW: usize = 16;

/// A stream and what its launches work with.
pub(crate) struct CardStream {
    pub(super) queue: Queue,
    shared: Arc<CardShared>,
    ended: Ended,
    seed: u64,
    step: u64,
    /// The learning rate that was given for it.
    rate: Option<GivenRate>,
    /// The step and the seed, then the account of faults.
    account: CardBuffer,
    /// The account of faults as the host last read it.
    seen: Pinned,
    /// Numbers of this step of all calls.
    numbers: CardBuffer,
    scratch: CardBuffer,
    workspace: Option<CardBuffer>,
    staging: HostStaging,
    /// One for each action of a step, of this step and of the one before, so that none is recorded anew while another stream may
    /// still wait for it.
    marks: [Vec<Mark>; 2],
    recorded: usize,
    /// The marks by the places of actions in a step.
    places: BTreeMap<usize, Mark>,
    /// A worker's calls have no way to fail but the next that has one.
    failed: Option<Trouble>,
    /// The communicators by the ranks that they join.
    communicators: BTreeMap<Vec<u32>, Comm>,
    values: Vec<u64>,
    pointers: Vec<*mut c_void>,
}

// SAFETY: the pointers lead into `values` and are made anew for each launch.
unsafe impl Send for CardStream {}

/// An event of a stream, which lives as long as the device's streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CardEvent(pub(super) cudarc::driver::sys::CUevent);

// SAFETY: events may be waited for from any thread.
unsafe impl Send for CardEvent {}

/// Two events between which launches stand whose time is taken.
#[derive(Debug)]
pub(crate) struct CardStopwatch([Mark; 2]);

impl CardStopwatch {
    /// Returns the time between both, which have come.
    pub(crate) fn elapsed(&self) -> Result<Duration, Cause> {
        let [begun, ended] = &self.0;
        Ok(begun.elapsed_until(ended)?)
    }
}

impl CardStream {
    pub(super) fn new(device: &Cuda, seed: u64, ended: Ended) -> Result<Self, Trouble> {
        let context = device.context()?;
        let account = CardBuffer::new(context, NOW + FAULT)?;
        account.write(0, &[0; NOW + FAULT])?;
        Ok(Self {
            queue: Queue::new(context)?,
            shared: Arc::clone(&device.shared),
            ended,
            seed,
            step: 0,
            rate: None,
            account,
            seen: Pinned::new(context, FAULT)?,
            numbers: CardBuffer::new(context, 0)?,
            scratch: CardBuffer::new(context, 0)?,
            workspace: None,
            staging: HostStaging::default(),
            marks: [Vec::new(), Vec::new()],
            recorded: 0,
            places: BTreeMap::new(),
            failed: None,
            communicators: BTreeMap::new(),
            values: Vec::new(),
            pointers: Vec::new(),
        })
    }

    /// Begins a step: later launches belong to it, with the learning rate that is given for it, if one is.
    pub(crate) fn begin_step(&mut self, step: u64, rate: Option<GivenRate>) {
        (self.step, self.rate) = (step, rate);
        self.recorded = 0;
        self.marks.swap(0, 1);
        if let Err(trouble) = self.prepare_step() {
            self.failed.get_or_insert(trouble);
        }
    }

    /// Brings what changes from step to step to the card.
    fn prepare_step(&mut self) -> Result<(), Trouble> {
        let (numbers, scratch) = self.shared.step_needs(self.step, self.rate);
        if self.scratch.bytes() < scratch || self.numbers.bytes() < numbers.len() {
            self.wait_idle()?;
            let context = Arc::clone(self.queue.context());
            self.scratch = CardBuffer::new(&context, scratch)?;
            self.numbers = CardBuffer::new(&context, numbers.len())?;
        }
        let now: Vec<u8> = [self.step, self.seed].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let account = self.account.address(0, NOW);
        self.staging.upload(&self.queue, &now, account)?;
        if !numbers.is_empty() {
            let place = self.numbers.address(0, numbers.len());
            self.staging.upload(&self.queue, &numbers, place)?;
        }
        Ok(())
    }

    /// Prepares launches: reports what has failed since, and sets the thread's device.
    #[inline]
    pub(super) fn begin_launches(&mut self) -> Result<(), Cause> {
        self.check_failures()?;
        Ok(self.queue.make_current()?)
    }

    /// Launches a kernel with arguments of 64 bits, of which shorter ones are the lower, that `fill` puts into an empty list.
    #[inline]
    pub(super) fn launch_kernel(
        &mut self,
        kernel: Loaded,
        fill: impl FnOnce(&Self, &mut Vec<u64>),
    ) -> Result<(), Cause> {
        let mut values = std::mem::take(&mut self.values);
        values.clear();
        fill(self, &mut values);
        self.values = values;
        self.pointers.clear();
        let pointers = self.values.iter_mut().map(|value| std::ptr::from_mut(value).cast());
        self.pointers.extend(pointers);
        Ok(self.queue.launch(kernel, &mut self.pointers)?)
    }

    /// Begins a product by one of the library's algorithms, unless the library refuses that.
    pub(super) fn multiply(
        &mut self,
        multiplier: &Multiplier,
        way: (&Described, usize),
        bases: ProductAddresses,
    ) -> Result<Result<(), Refusal>, Cause> {
        let workspace = match self.workspace.take() {
            Some(workspace) => workspace,
            None => Multiplier::allocate_workspace(self.queue.context())?,
        };
        let workspace = self.workspace.insert(workspace);
        Ok(multiplier.multiply(way, bases, &self.queue, workspace))
    }

    pub(crate) fn scratch_address(&self, byte: usize) -> u64 {
        self.scratch.address(byte, 0)
    }

    pub(super) fn now_address(&self) -> u64 {
        self.account.address(0, NOW)
    }

    pub(super) fn fault_address(&self) -> u64 {
        self.account.address(NOW, FAULT)
    }

    pub(super) fn numbers_address(&self, first: usize) -> u64 {
        self.numbers.address(first * 4, 0)
    }

    /// Copies or combines a rectangle between two places whose memory begins at these addresses.
    pub(crate) fn copy_rectangle(
        &mut self,
        copy: &CardMove,
        from: u64,
        to: u64,
    ) -> Result<(), Cause> {
        self.check_failures()?;
        self.queue.make_current()?;
        match copy {
            CardMove::Run { from: start, to: target, bytes } => {
                Ok(self.queue.copy(from + *start as u64, to + *target as u64, *bytes)?)
            }
            CardMove::Kernel(kernel) => {
                let (mut from, mut to) = (from, to);
                let pointers = [&mut from, &mut to].map(|value| std::ptr::from_mut(value).cast());
                Ok(self.queue.launch(*kernel, &mut { pointers })?)
            }
        }
    }

    /// Launches from now on are recorded.
    pub(crate) fn begin_recording(&mut self) -> Result<(), Cause> {
        self.check_failures()?;
        Ok(self.queue.begin_recording()?)
    }

    /// Ends recording and returns the launches that were recorded.
    pub(crate) fn end_recording(&mut self) -> Result<CardRecording, Cause> {
        Ok(self.queue.end_recording()?)
    }

    /// Begins all that was recorded.
    pub(crate) fn replay(&mut self, recording: &CardRecording) -> Result<(), Cause> {
        self.check_failures()?;
        Ok(self.queue.replay(recording)?)
    }

    /// Fills memory that begins at an address.
    pub(crate) fn fill_with(&mut self, fill: &CardFill, address: u64) -> Result<(), Cause> {
        self.check_failures()?;
        self.queue.make_current()?;
        match fill {
            CardFill::Clear { bytes: 0 } => Ok(()),
            CardFill::Clear { bytes } => Ok(self.queue.clear(address, *bytes)?),
            CardFill::Kernel(kernel) => {
                let mut address = address;
                let pointer = std::ptr::from_mut(&mut address).cast();
                Ok(self.queue.launch(*kernel, &mut [pointer])?)
            }
        }
    }

    /// Whether this stream has a communicator of these ranks.
    pub(crate) fn has_communicator(&self, ranks: &[u32]) -> bool {
        self.communicators.contains_key(ranks)
    }

    /// Joins the other ranks of a group, which all come, under a name.
    pub(crate) fn join_group(&mut self, ranks: &[u32], own: usize, id: Id) -> Result<(), Cause> {
        let ended = Arc::clone(&self.ended);
        let comm = Comm::join(&self.queue, id, (ranks.len(), own), ended)?;
        self.communicators.insert(ranks.to_vec(), comm);
        Ok(())
    }

    /// Begins operations together, by the communicator of these ranks.
    pub(crate) fn communicate(
        &mut self,
        ranks: &[u32],
        operations: &[(NcclOperation, DType)],
    ) -> Result<(), Cause> {
        self.check_failures()?;
        self.queue.make_current()?;
        match self.communicators.get(ranks) {
            Some(comm) => Ok(comm.run_operations(&self.queue, operations)?),
            None => Err(Cause::Device(format!("there is no communicator of ranks {ranks:?}"))),
        }
    }

    /// Returns the function that tells whether the job has ended.
    pub(super) fn ended(&self) -> Ended {
        Arc::clone(&self.ended)
    }

    /// Records an event behind all launches so far.
    pub(crate) fn record_event(&mut self) -> Option<CardEvent> {
        match self.try_record() {
            Ok(event) => Some(event),
            Err(trouble) => {
                self.failed.get_or_insert(trouble);
                None
            }
        }
    }

    fn try_record(&mut self) -> Result<CardEvent, Trouble> {
        if self.recorded == self.marks[0].len() {
            self.marks[0].push(Mark::new(self.queue.context())?);
        }
        let mark = &self.marks[0][self.recorded];
        self.recorded += 1;
        self.queue.record_event(mark.raw())?;
        Ok(CardEvent(mark.raw()))
    }

    /// Records an event behind all launches so far, by the place of an action, which has one event for ever. So another stream has
    /// been told to wait for it before it is recorded anew.
    pub(crate) fn record_at(&mut self, place: usize) -> Option<CardEvent> {
        match self.try_record_at(place) {
            Ok(event) => Some(event),
            Err(trouble) => {
                self.failed.get_or_insert(trouble);
                None
            }
        }
    }

    fn try_record_at(&mut self, place: usize) -> Result<CardEvent, Trouble> {
        let mark = match self.places.entry(place) {
            Entry::Occupied(mark) => mark.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Mark::new(self.queue.context())?),
        };
        self.queue.record_event(mark.raw())?;
        Ok(CardEvent(mark.raw()))
    }

    pub(crate) fn wait_event(&mut self, event: CardEvent) {
        if let Err(trouble) = self.queue.wait_event(event.0) {
            self.failed.get_or_insert(trouble);
        }
    }

    /// Makes a stopwatch of this stream.
    pub(crate) fn new_stopwatch(&self) -> Result<CardStopwatch, Cause> {
        let context = self.queue.context();
        Ok(CardStopwatch([Mark::new_timed(context)?, Mark::new_timed(context)?]))
    }

    /// Has a stopwatch begin behind all launches so far.
    pub(crate) fn begin_stopwatch(&mut self, watch: &CardStopwatch) -> Result<(), Cause> {
        Ok(self.queue.record_event(watch.0[0].raw())?)
    }

    /// Has it end behind all launches so far.
    pub(crate) fn end_stopwatch(&mut self, watch: &CardStopwatch) -> Result<(), Cause> {
        Ok(self.queue.record_event(watch.0[1].raw())?)
    }

    /// Waits until all launches have ended.
    ///
    /// # Errors
    /// Where one has failed or found something wrong, or the job has ended.
    pub(crate) fn synchronize(&mut self) -> Result<(), Cause> {
        self.check_failures()?;
        let account = self.fault_address();
        self.queue.download(account, &mut self.seen, FAULT)?;
        self.wait_polling()?;
        self.staging.all_done();
        self.check_account()
    }

    fn wait_polling(&self) -> Result<(), Cause> {
        wait_until_idle(&self.queue, &self.ended)
    }

    fn wait_idle(&mut self) -> Result<(), Trouble> {
        while !self.queue.is_idle()? {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn check_failures(&mut self) -> Result<(), Cause> {
        let failed = self.failed.take().or_else(|| self.shared.first_failure());
        failed.map_or(Ok(()), |trouble| Err(trouble.into()))
    }

    /// Checks the account to which kernels write their faults.
    fn check_account(&self) -> Result<(), Cause> {
        let word = |at: usize| {
            let bytes = &self.seen.slice(FAULT)[at..at + 4];
            u32::from_ne_bytes(bytes.try_into().unwrap_or_default())
        };
        let long = |at: usize| {
            let bytes = &self.seen.slice(FAULT)[at..at + 8];
            u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
        };
        if word(0) == 0 {
            return Ok(());
        }
        let (call, kind, index, position) = (word(4), word(8), long(16) as i64, long(24));
        match self.shared.find_call(call) {
            Some(known) => {
                let error = Box::new(build_kernel_error(&known, kind, index, position));
                Err(Cause::Found { actor: known.actor.to_string(), error })
            }
            None => Err(Cause::Device("a kernel has written over the account of faults".into())),
        }
    }

    /// Allocates memory of the host that the card reaches.
    pub(crate) fn allocate_pinned(&self, bytes: usize) -> Result<Pinned, Cause> {
        Ok(Pinned::new(self.queue.context(), bytes)?)
    }

    /// Begins to copy to a place what lies in memory of the host.
    pub(crate) fn begin_fill(
        &mut self,
        from: &Pinned,
        memory: &CardMemory,
        place: ArenaRange,
    ) -> Result<(), Cause> {
        self.check_failures()?;
        Ok(self.queue.upload(from, place.bytes, memory.address(place))?)
    }

    /// Begins to copy from a place to memory of the host.
    pub(crate) fn begin_read(
        &mut self,
        into: &mut Pinned,
        memory: &CardMemory,
        place: ArenaRange,
    ) -> Result<(), Cause> {
        self.check_failures()?;
        if place.bytes > 0 {
            self.queue.download(memory.address(place), into, place.bytes)?;
        }
        Ok(())
    }

    /// Ends what waits for other ranks.
    pub(crate) fn abort(&mut self) {
        self.communicators.values_mut().for_each(Comm::abort);
    }

    /// Waits until all launches have ended or the job has.
    pub(crate) fn wait_unless_ended(&self) {
        self.queue.wait_unless_ended(&self.ended);
    }

    /// Lets `read` see bytes when all launches so far have ended.
    pub(crate) fn read<R>(
        &mut self,
        memory: &CardMemory,
        place: ArenaRange,
        read: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let arena = self.sync_to_host(memory, &[place]);
        read(arena.read(place))
    }

    /// Lets `write` fill bytes, which launches from now on see.
    pub(crate) fn fill<R>(
        &mut self,
        memory: &CardMemory,
        place: ArenaRange,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let address = memory.address(place);
        let (result, filled) =
            self.staging.fill_and_upload(&self.queue, place.bytes, address, write);
        if let Err(trouble) = filled {
            self.failed.get_or_insert(trouble);
        }
        result
    }

    /// Brings what all launches so far have written in these places to the image on the host, and returns it.
    pub(crate) fn sync_to_host<'m>(
        &mut self,
        memory: &'m CardMemory,
        places: &[ArenaRange],
    ) -> &'m HostArena {
        if let Err(cause) = self.download_places(memory, places) {
            self.record_failure(cause);
        }
        &memory.image
    }

    fn download_places(&mut self, memory: &CardMemory, places: &[ArenaRange]) -> Result<(), Cause> {
        for place in places.iter().filter(|place| place.bytes > 0) {
            let address = memory.address(*place);
            self.staging.begin_download(&self.queue, address, *place)?;
        }
        self.wait_polling()?;
        self.staging.end_downloads(&memory.image);
        Ok(())
    }

    /// Brings what the host has written at these places of the image to the card.
    pub(crate) fn sync_from_host(&mut self, memory: &CardMemory, places: &[ArenaRange]) {
        for place in places.iter().filter(|place| place.bytes > 0) {
            let address = memory.address(*place);
            let content = memory.image.read(*place);
            if let Err(trouble) = self.staging.upload(&self.queue, content, address) {
                self.failed.get_or_insert(trouble);
            }
        }
    }

    fn record_failure(&mut self, cause: Cause) {
        if let Cause::Device(error) = cause {
            self.failed.get_or_insert(Trouble::from_text(error));
        }
    }
}

/// Waits until all that was launched has ended.
///
/// # Errors
/// Where something has failed, or the job has ended.
pub(super) fn wait_until_idle(queue: &Queue, ended: &Ended) -> Result<(), Cause> {
    let mut asked = 0;
    while !queue.is_idle()? {
        asked += 1;
        if asked > SPINS {
            if ended() {
                return Err(TransportError::Ended.into());
            }
            std::thread::sleep(PAUSE);
        } else {
            std::hint::spin_loop();
        }
    }
    Ok(())
}

impl Drop for CardStream {
    /// Waits for what is under way, which may read and write what goes with the stream.
    fn drop(&mut self) {
        let communicators = &mut self.communicators;
        self.queue.come_to_rest(&self.ended, || communicators.values_mut().for_each(Comm::abort));
    }
}
