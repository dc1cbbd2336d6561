//! Feeds and fetches: actors by which tensors go in and out of a step.

use std::ops::Range;
use std::sync::PoisonError;
use std::time::Duration;

use graphc_comm::memory::ArenaRange;
use graphc_comm::transport::{Sender, TransportError};
use graphc_ir::sbp::Sbp;
use graphc_ir::shard::Rect;
use graphc_plan::Layout;

use super::step::StepState;
use crate::copy::copy_in_parts;
use crate::device::{DeviceMemory, DeviceStream, Passage, Port, Turn};
use crate::error::Cause;
use crate::rectangles::Move;

/// Ranges of samples, ascending, none touching another.
pub(crate) type Rows = Vec<Range<usize>>;

/// The rows of an input that ranks feed.
#[derive(Clone, Debug)]
pub(crate) struct Fed {
    /// The dim that counts samples.
    pub(crate) dim: usize,
    pub(crate) rows: Rows,
}

/// Copies a rank's part of what the user feeds: the whole tensor, or the rows alone that the ranks of this process read.
pub(crate) struct FeedWork {
    /// Index among the plan's inputs.
    input: usize,
    output: Port,
    /// The copies out of the whole tensor, per microbatch.
    copies: Vec<Move>,
    /// The copies out of this process's rows, per microbatch.
    from_rows: Vec<Move>,
    passages: Passages,
    /// The step whose content lies in each passage.
    staged: Vec<Option<u64>>,
    /// The number of steps that have passages of their own, one after the other.
    turns: usize,
}

/// Memory of the host through which contents go, where the host does not reach the device's own.
#[derive(Default)]
struct Passages(Vec<Option<Passage>>);

impl Passages {
    /// Makes as many for contents of a place's size as there are not yet; they are kept.
    fn make_passages(
        &mut self,
        count: usize,
        stream: &DeviceStream,
        place: ArenaRange,
    ) -> Result<(), Cause> {
        while self.0.len() < count {
            self.0.push(stream.new_passage(place.bytes)?);
        }
        Ok(())
    }

    /// Finds a passage that was made; `None` where the host reaches the device's memory.
    fn find_passage(&mut self, at: usize) -> Option<&mut Passage> {
        self.0.get_mut(at).and_then(Option::as_mut)
    }
}

impl FeedWork {
    /// Prepares a feed; `rows`: those that this process reads, this rank's among them; none where no dim counts
    /// samples.
    pub(crate) fn new(input: usize, output: Port, rows: Option<&Fed>) -> Self {
        let whole = Rect::whole(output.global_shape());
        let copy =
            |m: usize, held: &Rect| Move::new(output.dtype, output.rect(m), held, output.rect(m));
        let copies = (0..output.count_variants()).map(|m| copy(m, &whole)).collect();
        let from_rows = (0..output.count_variants())
            .map(|m| {
                copy(
                    m,
                    &rows.map_or(whole.clone(), |rows| packed_rect(rows, output.rect(m), &whole)),
                )
            })
            .collect();
        let (passages, staged) = (Passages::default(), Vec::new());
        Self { input, output, copies, from_rows, passages, staged, turns: 1 }
    }

    /// Has every other step go through passages of its own, so that the next one's content may be put there while this one's is
    /// read.
    pub(crate) fn alternate_passages(&mut self) {
        self.turns = 2;
    }

    /// Returns the index of the passage of a turn.
    fn passage_of(&self, turn: Turn) -> usize {
        let step = (turn.step % self.turns as u64) as usize;
        step * turn.microbatches as usize + turn.microbatch
    }

    /// Returns the register of this rank's part.
    pub(crate) fn port(&self) -> &Port {
        &self.output
    }

    /// Returns the index among the plan's inputs, and the register of this rank's part.
    pub(crate) fn into_port(self) -> (usize, Port) {
        (self.input, self.output)
    }

    /// Copies the part, and where the host does not reach the device's memory begins the copy that goes on from there.
    pub(crate) fn run(
        &mut self,
        stream: &mut DeviceStream,
        memory: &DeviceMemory,
        turn: Turn,
        step: &StepState,
    ) -> Result<(), Cause> {
        let place = self.output.content_range(turn);
        if place.bytes == 0 {
            return Ok(());
        }
        self.passages.make_passages(self.turns * turn.microbatches as usize, stream, place)?;
        self.stage_feed(turn, step);
        match self.passages.find_passage(self.passage_of(turn)) {
            Some(passage) => stream.begin_fill(passage, memory, place),
            None => {
                stream.fill(memory, place, |target| self.copy_feed(target, turn, step));
                Ok(())
            }
        }
    }

    /// Puts the step's content where the copy that was begun, or recorded, takes it from, unless it lies there already.
    pub(crate) fn stage_feed(&mut self, turn: Turn, step: &StepState) {
        let (at, bytes) = (self.passage_of(turn), self.output.content_range(turn).bytes);
        self.staged.resize(self.passages.0.len(), None);
        let mut passages = std::mem::take(&mut self.passages);
        if let Some(passage) = passages.find_passage(at)
            && self.staged[at] != Some(turn.step)
        {
            self.copy_for_device(passage.content_mut(bytes), turn, step);
            self.staged[at] = Some(turn.step);
        }
        self.passages = passages;
    }

    fn copy_feed(&self, target: &mut [u8], turn: Turn, step: &StepState) {
        let (fed, copy) = self.find_feed(turn, step);
        copy.copy(fed, target);
    }

    /// Copies as `copy_feed`, to memory that a device reads.
    fn copy_for_device(&self, target: &mut [u8], turn: Turn, step: &StepState) {
        let (fed, copy) = self.find_feed(turn, step);
        match copy.as_run() {
            Some((from, to, run)) => {
                copy_in_parts(&mut target[to..to + run], &fed[from..from + run])
            }
            None => copy.copy(fed, target),
        }
    }

    /// Returns the bytes that are fed, and the copy of this rank's part of them.
    fn find_feed<'a>(&'a self, turn: Turn, step: &'a StepState) -> (&'a [u8], &'a Move) {
        let fed = &step.feeds[self.input];
        let whole = fed.shape() == self.output.global_shape();
        let copies = if whole { &self.copies } else { &self.from_rows };
        (fed.bytes(), &copies[turn.microbatch % copies.len()])
    }
}

/// Returns where a tensor that consists of `rows` alone would lie in the whole one if `part` were at its place: as the
/// rows of the part follow each other in it too, that is all that a copy has to know.
fn packed_rect(fed: &Fed, part: &Rect, whole: &Rect) -> Rect {
    let (dim, rows) = (fed.dim, &fed.rows);
    let first = part.origin[dim];
    let before = rows.iter().map(|range| range.end.min(first).saturating_sub(range.start)).sum();
    let mut held = whole.clone();
    held.origin[dim] = first.saturating_sub(before);
    held.extent[dim] = rows.iter().map(|range| range.len()).sum();
    held
}

/// Gives a rank's part of an output to the user.
pub(crate) struct FetchWork {
    /// Index among the plan's outputs.
    output: usize,
    input: Port,
    /// The copies; empty where another rank gives the same.
    copies: Vec<Move>,
    /// The senders to the processes that lack it.
    senders: Vec<Box<dyn Sender>>,
    passages: Passages,
}

impl FetchWork {
    /// Prepares a fetch; `replicas`: whether it is given even where a rank before gives the same, because that is
    /// another process.
    ///
    /// # Errors
    /// Where the layout is partial.
    pub(crate) fn new(
        output: usize,
        input: Port,
        (layout, rank, replicas): (&Layout, u32, bool),
        senders: Vec<Box<dyn Sender>>,
    ) -> Result<Self, String> {
        if layout.sbp.is_partial() {
            return Err("a fetch of partial values".into());
        }
        let coordinates = layout.coordinates(rank).unwrap_or_default();
        let mut axes = layout.sbp.0.iter().zip(coordinates);
        let replica = axes.any(|(sbp, coordinate)| *sbp == Sbp::Broadcast && coordinate > 0);
        let whole = Rect::whole(input.global_shape());
        let copy = |m: usize| Move::new(input.dtype, input.rect(m), input.rect(m), &whole);
        let variants = if replica && !replicas { 0 } else { input.count_variants() };
        let copies = (0..variants).map(copy).collect();
        Ok(Self { output, input, copies, senders, passages: Passages::default() })
    }

    /// Returns the register of this rank's part.
    pub(crate) fn port(&self) -> &Port {
        &self.input
    }

    /// Returns the register of this rank's part.
    pub(crate) fn into_port(self) -> Port {
        self.input
    }

    /// Returns the output of which it writes a part; `None` where it writes nothing.
    pub(crate) fn output(&self) -> Option<usize> {
        (!self.copies.is_empty()).then_some(self.output)
    }

    /// Gives it, or where the host does not reach the device's memory begins the copy of what [`FetchWork::deliver_fetch`]
    /// gives. Returns how long it has waited.
    pub(crate) fn run(
        &mut self,
        stream: &mut DeviceStream,
        memory: &DeviceMemory,
        turn: Turn,
        step: &StepState,
    ) -> Result<Duration, Cause> {
        if self.copies.is_empty() || !step.fetched[self.output] {
            return Ok(Duration::ZERO);
        }
        let place = self.input.content_range(turn);
        self.passages.make_passages(turn.microbatch + 1, stream, place)?;
        if let Some(passage) = self.passages.find_passage(turn.microbatch) {
            stream.begin_read(passage, memory, place)?;
            return Ok(Duration::ZERO);
        }
        Ok(stream.read(memory, place, |content| self.give_output(content, turn, step))?)
    }

    /// Gives what was copied from a device, all launches of which have ended. Returns how long it has waited.
    pub(crate) fn deliver_fetch(
        &mut self,
        turn: Turn,
        step: &StepState,
    ) -> Result<Duration, TransportError> {
        if !step.fetched[self.output] {
            return Ok(Duration::ZERO);
        }
        let mut passages = std::mem::take(&mut self.passages);
        let delivered = match passages.find_passage(turn.microbatch) {
            Some(passage) => {
                self.give_output(passage.content(self.input.content_range(turn).bytes), turn, step)
            }
            None => Ok(Duration::ZERO),
        };
        self.passages = passages;
        delivered
    }

    fn give_output(
        &mut self,
        content: &[u8],
        turn: Turn,
        step: &StepState,
    ) -> Result<Duration, TransportError> {
        let mut waited = Duration::ZERO;
        let copy = &self.copies[turn.microbatch % self.copies.len()];
        for sender in &mut self.senders {
            waited +=
                sender.send(content.len(), &mut |message| message.copy_from_slice(content))?;
        }
        let mut whole = step.outputs[self.output].lock().unwrap_or_else(PoisonError::into_inner);
        if !content.is_empty() {
            copy.copy(content, whole.bytes_mut());
        }
        drop(whole);
        step.note_written(self.output);
        Ok(waited)
    }
}
