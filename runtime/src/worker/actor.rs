//! One physical op with everything that it needs, and its execution.

use std::time::Duration;

use graphc_ir::sbp::ReduceKind;
use graphc_kernels::{KernelContext, Prepared, View, ViewMut};

use super::channel::{ReceiveWork, SendWork};
use super::edge::{FeedWork, FetchWork, LocalWork};
use super::port::{Port, Turn};
use super::step::StepState;
use crate::collectives::{Buffers, Lists, Stage};
use crate::error::Cause;
use crate::memory::{Arena, Place};
use crate::rectangles::combine;
use crate::transport::{Group, TransportError};

/// What an actor does, ready to run.
pub(crate) enum Work {
    Kernel(KernelWork),
    Collective(Box<CollectiveWork>),
    Local(LocalWork),
    Send(SendWork),
    Receive(ReceiveWork),
    Accumulate(CopyWork),
    Assign(CopyWork),
    Feed(FeedWork),
    Fetch(FetchWork),
}

/// A call of a kernel, prepared when the plan was loaded, and the registers of its operands and results.
pub(crate) struct KernelWork {
    pub(crate) prepared: Prepared,
    pub(crate) operands: Vec<Port>,
    pub(crate) results: Vec<Port>,
}

/// A register copied or added into another.
pub(crate) struct CopyWork {
    pub(crate) input: Port,
    pub(crate) output: Port,
}

/// A collective of one rank.
pub(crate) struct CollectiveWork {
    pub(crate) group: Box<dyn Group>,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    /// Per microbatch, or one for all: its stages.
    pub(crate) variants: Vec<Vec<Stage>>,
    pub(crate) staging: Vec<Vec<u8>>,
    pub(crate) wide: Vec<Vec<f32>>,
    pub(crate) packed: Vec<u8>,
    pub(crate) input_places: Vec<Place>,
    pub(crate) output_places: Vec<Place>,
}

/// What an action works with besides the actor: all of one worker, none of it allocated per action.
pub(crate) struct Bench<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) cx: KernelContext<'a>,
    pub(crate) views: Vec<View<'static>>,
    pub(crate) results: Vec<ViewMut<'static>>,
    pub(crate) lists: Lists,
}

impl Work {
    /// Whether it computes, for the account of time.
    pub(crate) fn is_kernel(&self) -> bool {
        matches!(self, Self::Kernel(_) | Self::Accumulate(_) | Self::Assign(_))
    }

    /// Executes one action. Returns how long it has waited.
    pub(crate) fn run(
        &mut self,
        bench: &mut Bench<'_>,
        turn: Turn,
        step: &StepState,
    ) -> Result<Duration, Cause> {
        match self {
            Self::Kernel(work) => bench.launch(work, turn)?,
            Self::Collective(work) => return Ok(work.run(bench, turn)?),
            Self::Local(work) => work.run(bench.arena, turn),
            Self::Send(work) => return Ok(work.run(bench.arena, turn)?),
            Self::Receive(work) => return Ok(work.run(bench.arena, turn)?),
            Self::Accumulate(work) => work.run(bench.arena, turn, turn.microbatch > 0),
            Self::Assign(work) => work.run(bench.arena, turn, false),
            Self::Feed(work) => work.run(bench.arena, turn, step),
            Self::Fetch(work) => return Ok(work.run(bench.arena, turn, step)?),
        }
        Ok(Duration::ZERO)
    }
}

impl Bench<'_> {
    fn launch(&mut self, work: &KernelWork, turn: Turn) -> Result<(), Cause> {
        let KernelWork { prepared, operands, results } = work;
        let (arena, microbatch) = (self.arena, turn.microbatch);
        let mut views: Vec<View<'_>> = std::mem::take(&mut self.views);
        let mut places: Vec<ViewMut<'_>> = std::mem::take(&mut self.results);
        views.extend(operands.iter().map(|p| arena.view(p.place(turn), p.shape(microbatch))));
        places.extend(results.iter().map(|p| arena.view_mut(p.place(turn), p.shape(microbatch))));
        let result = prepared.launch(&views, &mut places, &mut self.cx);
        // Emptied, the lists outlive what they pointed to; the standard library keeps their memory.
        views.clear();
        places.clear();
        self.views = views.into_iter().map(|_| unreachable!("the list is empty")).collect();
        self.results = places.into_iter().map(|_| unreachable!("the list is empty")).collect();
        Ok(result?)
    }
}

impl CopyWork {
    fn run(&self, arena: &Arena, turn: Turn, add: bool) {
        let (from, to) = (self.input.place(turn), self.output.place(turn));
        if from == to {
            return; // shared memory: it is there already
        }
        let (from, to) = (arena.read(from), arena.write(to));
        if add {
            combine(self.output.dtype, ReduceKind::Sum, to, from);
        } else {
            to.copy_from_slice(from);
        }
    }
}

impl CollectiveWork {
    fn run(&mut self, bench: &mut Bench<'_>, turn: Turn) -> Result<Duration, TransportError> {
        let places = |ports: &[Port], places: &mut Vec<Place>| {
            places.clear();
            places.extend(ports.iter().map(|port| port.place(turn)));
        };
        places(&self.inputs, &mut self.input_places);
        places(&self.outputs, &mut self.output_places);
        let mut buffers = Buffers {
            arena: bench.arena,
            inputs: &self.input_places,
            outputs: &self.output_places,
            staging: &mut self.staging,
            wide: &mut self.wide,
            packed: &mut self.packed,
        };
        let stages = &self.variants[turn.microbatch % self.variants.len()];
        let mut waited = Duration::ZERO;
        for stage in stages {
            waited += stage.run(&mut *self.group, &mut buffers, &mut bench.lists)?;
        }
        Ok(waited)
    }
}
