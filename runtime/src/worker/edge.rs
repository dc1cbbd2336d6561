//! Where tensors go in and out of a step, and copies that stay on one rank.

use std::sync::PoisonError;
use std::time::Duration;

use graphc_ir::plan::Layout;
use graphc_ir::sbp::{ReduceKind, Sbp};
use graphc_ir::shard::Rect;

use super::port::{Port, Turn};
use super::step::StepState;
use crate::memory::Arena;
use crate::rectangles::{Move, fill_identity, masked};
use crate::transport::{Sender, TransportError};

/// Copies a rank's part of what the user feeds.
pub(crate) struct FeedWork {
    /// Index among the plan's inputs.
    input: usize,
    output: Port,
    copies: Vec<Move>,
}

impl FeedWork {
    pub(crate) fn new(input: usize, output: Port) -> Self {
        let whole = Rect::whole(output.global());
        let copy = |m: usize| Move::new(output.dtype, output.rect(m), &whole, output.rect(m));
        let copies = (0..output.variants()).map(copy).collect();
        Self { input, output, copies }
    }

    pub(crate) fn run(&self, arena: &Arena, turn: Turn, step: &StepState) {
        let copy = &self.copies[turn.microbatch % self.copies.len()];
        let target = arena.write(self.output.place(turn));
        if !target.is_empty() {
            copy.copy(step.feeds[self.input].bytes(), target);
        }
    }
}

/// Gives a rank's part of an output to the user.
pub(crate) struct FetchWork {
    /// Index among the plan's outputs.
    output: usize,
    input: Port,
    /// Empty where another rank gives the same.
    copies: Vec<Move>,
    /// To the processes that lack it.
    senders: Vec<Box<dyn Sender>>,
}

impl FetchWork {
    /// `replicas`: whether it is given even where a rank before gives the same, because that is another process.
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
        let whole = Rect::whole(input.global());
        let copy = |m: usize| Move::new(input.dtype, input.rect(m), input.rect(m), &whole);
        let variants = if replica && !replicas { 0 } else { input.variants() };
        let copies = (0..variants).map(copy).collect();
        Ok(Self { output, input, copies, senders })
    }

    /// The output of which it writes a part; `None` where it writes nothing.
    pub(crate) fn output(&self) -> Option<usize> {
        (!self.copies.is_empty()).then_some(self.output)
    }

    /// Returns how long it has waited.
    pub(crate) fn run(
        &mut self,
        arena: &Arena,
        turn: Turn,
        step: &StepState,
    ) -> Result<Duration, TransportError> {
        let mut waited = Duration::ZERO;
        if self.copies.is_empty() {
            return Ok(waited);
        }
        let copy = &self.copies[turn.microbatch % self.copies.len()];
        let content = arena.read(self.input.place(turn));
        for sender in &mut self.senders {
            waited +=
                sender.send(content.len(), &mut |message| message.copy_from_slice(content))?;
        }
        let mut whole = step.outputs[self.output].lock().unwrap_or_else(PoisonError::into_inner);
        if !content.is_empty() {
            copy.copy(content, whole.bytes_mut());
        }
        drop(whole);
        step.written(self.output);
        Ok(waited)
    }
}

/// A slice or a mask: what a rank keeps of what it has.
pub(crate) struct LocalWork {
    input: Port,
    output: Port,
    identity: Option<ReduceKind>,
    copies: Vec<Move>,
}

impl LocalWork {
    /// # Errors
    /// Where the rank does not have what it is to keep.
    pub(crate) fn new(
        input: Port,
        output: Port,
        layouts: (&Layout, &Layout),
        rank: u32,
    ) -> Result<Self, String> {
        let (from, to) = layouts;
        let variants = input.variants().max(output.variants());
        let mut copies = Vec::new();
        for microbatch in 0..variants {
            let (held, kept) = (input.rect(microbatch), output.rect(microbatch));
            let inside = kept.elements() == 0 || held.intersect(kept).as_ref() == Some(kept);
            if !inside {
                return Err(format!("rank {rank} keeps {kept:?} of {held:?}"));
            }
            copies.push(Move::new(output.dtype, kept, held_around(held, kept), kept));
        }
        // Axes that are partial before as well keep each rank's value.
        let fresh = from.sbp.0.iter().zip(&to.sbp.0).map(|(before, after)| match before {
            Sbp::Partial(_) => Sbp::Broadcast,
            _ => *after,
        });
        let mut made = to.clone();
        made.sbp.0 = fresh.collect();
        Ok(Self { input, output, identity: masked(&made, rank), copies })
    }

    pub(crate) fn run(&self, arena: &Arena, turn: Turn) {
        let target = arena.write(self.output.place(turn));
        match self.identity {
            Some(kind) => fill_identity(self.output.dtype, kind, target),
            None if target.is_empty() => {}
            None => {
                let copy = &self.copies[turn.microbatch % self.copies.len()];
                copy.copy(arena.read(self.input.place(turn)), target);
            }
        }
    }
}

/// The rectangle that offsets are counted from: an empty part may lie outside of what is held.
fn held_around<'a>(held: &'a Rect, kept: &'a Rect) -> &'a Rect {
    if kept.elements() == 0 { kept } else { held }
}
