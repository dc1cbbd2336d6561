//! Streams of a card: launches are queued and the host goes on. It waits by asking again and again, so that a job that ends
//! elsewhere ends here too.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use graphc_ir::learning_rate::GivenRate;
use graphc_ir::types::DType;

use super::driver::{Buffer, Loaded, Pinned, Queue, Recording, Trouble};
use super::ended::Ended;
use super::known::found;
use super::mark::Mark;
use super::memory::CardMemory;
use super::moves::{CardFill, CardMove};
use super::nccl::{Comm, Id, Operation};
use super::product::{Described, Factors, Multiplier, Refusal};
use super::{Cuda, Shared};
use crate::error::Cause;
use crate::memory::{Arena, Place};
use crate::transport::TransportError;

/// How often a wait asks at once before it pauses between questions.
const SPINS: usize = 2000;
/// The pause.
const PAUSE: Duration = Duration::from_micros(20);
/// Bytes of the account of faults: `Fault` in the kernels' sources.
const FAULT: usize = 32;
/// Bytes of the step and the seed: `Now` in the kernels' sources.
const NOW: usize = 16;

/// A stream and what its launches work with.
pub(crate) struct Stream {
    pub(super) queue: Queue,
    shared: Arc<Shared>,
    ended: Ended,
    seed: u64,
    step: u64,
    /// The learning rate that was given for it.
    rate: Option<GivenRate>,
    /// The step and the seed, then the account of faults.
    account: Buffer,
    /// What they were when the host last looked.
    seen: Pinned,
    /// Numbers of this step of all calls.
    numbers: Buffer,
    scratch: Buffer,
    workspace: Option<Buffer>,
    staging: Staging,
    /// One for each action of a step, of this step and of the one before, so that none is recorded anew while another stream may
    /// still wait for it.
    marks: [Vec<Mark>; 2],
    recorded: usize,
    /// By the places of actions in a step.
    places: BTreeMap<usize, Mark>,
    /// A worker's calls have no way to fail but the next that has one.
    failed: Option<Trouble>,
    /// By the ranks that they join.
    communicators: BTreeMap<Vec<u32>, Comm>,
    values: Vec<u64>,
    pointers: Vec<*mut c_void>,
}

// SAFETY: the pointers lead into `values` and are made anew for each launch.
unsafe impl Send for Stream {}

/// An event of a stream, which lives as long as the device's streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event(pub(super) cudarc::driver::sys::CUevent);

// SAFETY: events may be waited for from any thread.
unsafe impl Send for Event {}

/// Two events between which launches stand whose time is taken.
#[derive(Debug)]
pub(crate) struct Stopwatch([Mark; 2]);

impl Stopwatch {
    /// The time between both, which have come.
    pub(crate) fn elapsed(&self) -> Result<Duration, Cause> {
        let [begun, ended] = &self.0;
        Ok(begun.until(ended)?)
    }
}

impl Stream {
    pub(super) fn new(device: &Cuda, seed: u64, ended: Ended) -> Result<Self, Trouble> {
        let context = device.context()?;
        let account = Buffer::new(context, NOW + FAULT)?;
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
            numbers: Buffer::new(context, 0)?,
            scratch: Buffer::new(context, 0)?,
            workspace: None,
            staging: Staging::default(),
            marks: [Vec::new(), Vec::new()],
            recorded: 0,
            places: BTreeMap::new(),
            failed: None,
            communicators: BTreeMap::new(),
            values: Vec::new(),
            pointers: Vec::new(),
        })
    }

    /// What is launched from now on belongs to this step, with the learning rate that is given for it, if one is.
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
        let (numbers, scratch) = self.shared.needs(self.step, self.rate);
        if self.scratch.bytes() < scratch || self.numbers.bytes() < numbers.len() {
            self.wait_idle()?;
            let context = Arc::clone(self.queue.context());
            self.scratch = Buffer::new(&context, scratch)?;
            self.numbers = Buffer::new(&context, numbers.len())?;
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

    /// Before launches: what has failed since, and the thread's device.
    #[inline]
    pub(super) fn begin_launches(&mut self) -> Result<(), Cause> {
        self.check()?;
        Ok(self.queue.enter()?)
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
        bases: Factors,
    ) -> Result<Result<(), Refusal>, Cause> {
        let workspace = match self.workspace.take() {
            Some(workspace) => workspace,
            None => Multiplier::workspace(self.queue.context())?,
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
        self.check()?;
        self.queue.enter()?;
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
        self.check()?;
        Ok(self.queue.begin_recording()?)
    }

    /// What was recorded.
    pub(crate) fn end_recording(&mut self) -> Result<Recording, Cause> {
        Ok(self.queue.end_recording()?)
    }

    /// Begins all that was recorded.
    pub(crate) fn replay(&mut self, recording: &Recording) -> Result<(), Cause> {
        self.check()?;
        Ok(self.queue.replay(recording)?)
    }

    /// Fills memory that begins at an address.
    pub(crate) fn fill_with(&mut self, fill: &CardFill, address: u64) -> Result<(), Cause> {
        self.check()?;
        self.queue.enter()?;
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
    pub(crate) fn join(&mut self, ranks: &[u32], own: usize, id: Id) -> Result<(), Cause> {
        let ended = Arc::clone(&self.ended);
        let comm = Comm::join(&self.queue, id, (ranks.len(), own), ended)?;
        self.communicators.insert(ranks.to_vec(), comm);
        Ok(())
    }

    /// Begins operations together, by the communicator of these ranks.
    pub(crate) fn communicate(
        &mut self,
        ranks: &[u32],
        operations: &[(Operation, DType)],
    ) -> Result<(), Cause> {
        self.check()?;
        self.queue.enter()?;
        match self.communicators.get(ranks) {
            Some(comm) => Ok(comm.run(&self.queue, operations)?),
            None => Err(Cause::Device(format!("there is no communicator of ranks {ranks:?}"))),
        }
    }

    /// What asks whether the job has ended.
    pub(super) fn ended(&self) -> Ended {
        Arc::clone(&self.ended)
    }

    /// The event of all launches so far.
    pub(crate) fn record(&mut self) -> Option<Event> {
        match self.try_record() {
            Ok(event) => Some(event),
            Err(trouble) => {
                self.failed.get_or_insert(trouble);
                None
            }
        }
    }

    fn try_record(&mut self) -> Result<Event, Trouble> {
        if self.recorded == self.marks[0].len() {
            self.marks[0].push(Mark::new(self.queue.context())?);
        }
        let mark = &self.marks[0][self.recorded];
        self.recorded += 1;
        self.queue.record(mark.raw())?;
        Ok(Event(mark.raw()))
    }

    /// The event of all launches so far, by the place of an action, which has one event for ever. So another stream has been told to wait
    /// for it before it is recorded anew.
    pub(crate) fn record_at(&mut self, place: usize) -> Option<Event> {
        match self.try_record_at(place) {
            Ok(event) => Some(event),
            Err(trouble) => {
                self.failed.get_or_insert(trouble);
                None
            }
        }
    }

    fn try_record_at(&mut self, place: usize) -> Result<Event, Trouble> {
        let mark = match self.places.entry(place) {
            Entry::Occupied(mark) => mark.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Mark::new(self.queue.context())?),
        };
        self.queue.record(mark.raw())?;
        Ok(Event(mark.raw()))
    }

    pub(crate) fn wait(&mut self, event: Event) {
        if let Err(trouble) = self.queue.wait(event.0) {
            self.failed.get_or_insert(trouble);
        }
    }

    /// A stopwatch of this stream.
    pub(crate) fn stopwatch(&self) -> Result<Stopwatch, Cause> {
        let context = self.queue.context();
        Ok(Stopwatch([Mark::timed(context)?, Mark::timed(context)?]))
    }

    /// Has a stopwatch begin behind all launches so far.
    pub(crate) fn begin(&mut self, watch: &Stopwatch) -> Result<(), Cause> {
        Ok(self.queue.record(watch.0[0].raw())?)
    }

    /// Has it end behind all launches so far.
    pub(crate) fn end(&mut self, watch: &Stopwatch) -> Result<(), Cause> {
        Ok(self.queue.record(watch.0[1].raw())?)
    }

    /// Waits until all launches have ended.
    ///
    /// # Errors
    /// Where one has failed or found something wrong, or the job has ended.
    pub(crate) fn synchronize(&mut self) -> Result<(), Cause> {
        self.check()?;
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

    fn check(&mut self) -> Result<(), Cause> {
        let failed = self.failed.take().or_else(|| self.shared.failed());
        failed.map_or(Ok(()), |trouble| Err(trouble.into()))
    }

    /// What kernels have written to the account of faults.
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
        match self.shared.known(call) {
            Some(known) => {
                let error = Box::new(found(&known, kind, index, position));
                Err(Cause::Found { actor: known.actor.to_string(), error })
            }
            None => Err(Cause::Device("a kernel has written over the account of faults".into())),
        }
    }

    /// Memory of the host that the card reaches.
    pub(crate) fn pinned(&self, bytes: usize) -> Result<Pinned, Cause> {
        Ok(Pinned::new(self.queue.context(), bytes)?)
    }

    /// Begins to copy to a place what lies in memory of the host.
    pub(crate) fn begin_fill(
        &mut self,
        from: &Pinned,
        memory: &CardMemory,
        place: Place,
    ) -> Result<(), Cause> {
        self.check()?;
        Ok(self.queue.upload(from, place.bytes, memory.address(place))?)
    }

    /// Begins to copy from a place to memory of the host.
    pub(crate) fn begin_read(
        &mut self,
        into: &mut Pinned,
        memory: &CardMemory,
        place: Place,
    ) -> Result<(), Cause> {
        self.check()?;
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
    pub(crate) fn rest(&self) {
        self.queue.rest(&self.ended);
    }

    /// Lets `read` see bytes when all launches so far have ended.
    pub(crate) fn read<R>(
        &mut self,
        memory: &CardMemory,
        place: Place,
        read: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let arena = self.host(memory, &[place]);
        read(arena.read(place))
    }

    /// Lets `write` fill bytes, which launches from now on see.
    pub(crate) fn fill<R>(
        &mut self,
        memory: &CardMemory,
        place: Place,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let address = memory.address(place);
        let (result, filled) = self.staging.fill(&self.queue, place.bytes, address, write);
        if let Err(trouble) = filled {
            self.failed.get_or_insert(trouble);
        }
        result
    }

    /// The image on the host, in which these places have what all launches so far have written.
    pub(crate) fn host<'m>(&mut self, memory: &'m CardMemory, places: &[Place]) -> &'m Arena {
        if let Err(cause) = self.bring(memory, places) {
            self.fail(cause);
        }
        &memory.image
    }

    fn bring(&mut self, memory: &CardMemory, places: &[Place]) -> Result<(), Cause> {
        for place in places.iter().filter(|place| place.bytes > 0) {
            let address = memory.address(*place);
            self.staging.begin_download(&self.queue, address, *place)?;
        }
        self.wait_polling()?;
        self.staging.end_downloads(&memory.image);
        Ok(())
    }

    /// Brings what the host has written at these places of the image to the card.
    pub(crate) fn written(&mut self, memory: &CardMemory, places: &[Place]) {
        for place in places.iter().filter(|place| place.bytes > 0) {
            let address = memory.address(*place);
            let content = memory.image.read(*place);
            if let Err(trouble) = self.staging.upload(&self.queue, content, address) {
                self.failed.get_or_insert(trouble);
            }
        }
    }

    fn fail(&mut self, cause: Cause) {
        if let Cause::Device(error) = cause {
            self.failed.get_or_insert(Trouble::told(error));
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

impl Drop for Stream {
    /// Waits for what is under way, which may read and write what goes with the stream.
    fn drop(&mut self) {
        let communicators = &mut self.communicators;
        self.queue.come_to_rest(&self.ended, || communicators.values_mut().for_each(Comm::abort));
    }
}

/// Memory through which copies between host and card go, while neither waits for the other.
#[derive(Default)]
struct Staging {
    /// Copies to the card that may be under way.
    busy: Vec<Pinned>,
    free: Vec<Pinned>,
    /// Copies from the card that are under way, and where they go.
    coming: Vec<(Pinned, Place)>,
}

impl Staging {
    fn take(&mut self, queue: &Queue, bytes: usize) -> Result<Pinned, Trouble> {
        let fits = self.free.iter().enumerate().filter(|(_, pinned)| pinned.bytes() >= bytes);
        match fits.min_by_key(|(_, pinned)| pinned.bytes()).map(|(index, _)| index) {
            Some(index) => Ok(self.free.swap_remove(index)),
            None => Pinned::new(queue.context(), bytes.next_power_of_two()),
        }
    }

    fn upload(&mut self, queue: &Queue, from: &[u8], to: u64) -> Result<(), Trouble> {
        self.fill(queue, from.len(), to, |into| into.copy_from_slice(from)).1
    }

    /// Lets `write` fill memory that is then copied; it is called whatever happens.
    fn fill<R>(
        &mut self,
        queue: &Queue,
        bytes: usize,
        to: u64,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> (R, Result<(), Trouble>) {
        match self.take(queue, bytes) {
            Ok(mut pinned) => {
                let result = write(pinned.slice_mut(bytes));
                let begun = queue.upload(&pinned, bytes, to);
                self.busy.push(pinned);
                (result, begun)
            }
            Err(trouble) => (write(&mut vec![0; bytes]), Err(trouble)),
        }
    }

    fn begin_download(&mut self, queue: &Queue, from: u64, place: Place) -> Result<(), Trouble> {
        let mut pinned = self.take(queue, place.bytes)?;
        let begun = queue.download(from, &mut pinned, place.bytes);
        self.coming.push((pinned, place));
        begun
    }

    /// The stream is idle: what was coming is there.
    fn end_downloads(&mut self, image: &Arena) {
        for (pinned, place) in self.coming.drain(..) {
            image.write(place).copy_from_slice(pinned.slice(place.bytes));
            self.free.push(pinned);
        }
        self.all_done();
    }

    /// The stream is idle.
    fn all_done(&mut self) {
        self.free.append(&mut self.busy);
    }
}
