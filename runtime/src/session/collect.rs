//! Outputs of a step across processes: who has which part, who wants it, and the thread that takes in what comes from
//! others.
//!
//! Outputs go from the ranks that hold them to those that want them (`SessionOptions::outputs_at`). The thread empties
//! their queues, so steps that nobody waits for do not block.

use std::sync::{Arc, PoisonError};

use crossbeam_channel::Receiver as Requests;
use graphc_comm::JobEnd;
use graphc_comm::transport::{Receiver, Transport, TransportError};
use graphc_ir::shard::Rect;
use graphc_plan::Plan;

use crate::error::RuntimeError;
use crate::rectangles::Move;
use crate::worker::{
    Fetch, OutputsAt, Report, StepState, WorkerRequest, find_fetch, output_readers, output_tag,
};

/// An output's part on another rank.
struct OutputPart {
    output: usize,
    receiver: Box<dyn Receiver>,
    /// The copy of each message of a step into the whole.
    copies: Vec<Move>,
}

/// The collector of the parts of outputs that other ranks have.
pub(super) struct OutputCollector {
    transport: Arc<dyn Transport>,
    parts: Vec<OutputPart>,
}

impl OutputCollector {
    /// # Errors
    /// Where a connection cannot be made.
    pub(super) fn new(
        plan: &Plan,
        names: &[String],
        transport: &Arc<dyn Transport>,
        outputs_at: OutputsAt,
    ) -> Result<Self, RuntimeError> {
        let rank = transport.rank();
        let mut parts = Vec::new();
        for (output, name) in names.iter().enumerate() {
            for holder in 0..plan.world_size as u32 {
                let (readers, messages) = output_readers(plan, holder, name, outputs_at);
                if readers.contains(&rank) {
                    let receiver =
                        transport.open_receiver(output_tag(output), holder, 2 * messages)?;
                    let copies = list_copies(plan, holder, name);
                    parts.push(OutputPart { output, receiver, copies });
                }
            }
        }
        Ok(Self { transport: Arc::clone(transport), parts })
    }

    /// Returns the rank for which it collects.
    pub(super) fn rank(&self) -> u32 {
        self.transport.rank()
    }

    /// Counts the parts of each output that it takes in in a step.
    pub(super) fn count_parts(&self, parts: &mut [usize]) {
        self.parts.iter().for_each(|part| parts[part.output] += part.copies.len());
    }

    /// Whether there is nothing to take in.
    pub(super) fn is_idle(&self) -> bool {
        self.parts.is_empty()
    }

    /// Takes in step after step until the session hangs up.
    pub(super) fn run(mut self, requests: &Requests<WorkerRequest>) {
        let activity =
            self.transport.new_activity("outputs".to_owned(), vec!["collect".to_owned()]);
        for request in requests {
            match request {
                WorkerRequest::Step(step) => {
                    if let Some(activity) = &activity {
                        activity.begin_action(step.index, 0);
                        graphc_comm::enter_activity(Arc::clone(activity));
                    }
                    let result = self.collect_step(&step);
                    if let Some(activity) = &activity {
                        activity.note_idle();
                    }
                    step.finish(result.map_err(|error| self.end_with_error(error)));
                }
                WorkerRequest::Report(to) => {
                    // Where the session is gone nobody wants it.
                    let _ = to.send(Report::default());
                }
            }
        }
    }

    fn collect_step(&mut self, step: &StepState) -> Result<(), TransportError> {
        for part in self.parts.iter_mut().filter(|part| step.fetched[part.output]) {
            for copy in &part.copies {
                let output = &step.outputs[part.output];
                part.receiver.receive(&mut |bytes| {
                    let mut whole = output.lock().unwrap_or_else(PoisonError::into_inner);
                    if !bytes.is_empty() {
                        copy.copy(bytes, whole.bytes_mut());
                    }
                })?;
                step.note_written(part.output);
            }
        }
        Ok(())
    }

    fn end_with_error(&self, error: TransportError) -> RuntimeError {
        if error != TransportError::Ended {
            self.transport.end_job(error.into());
        }
        self.transport.end_reason().unwrap_or(JobEnd::ShutDown).into()
    }
}

fn list_copies(plan: &Plan, holder: u32, output: &str) -> Vec<Move> {
    let Some(Fetch { layout, microbatches }) = find_fetch(plan, holder, output) else {
        return Vec::new();
    };
    let whole = Rect::whole(&layout.shape);
    let copy = |microbatch: u32| {
        let rect = layout.rect(holder, microbatch as usize, plan.microbatches.max(1));
        rect.map(|rect| Move::new(layout.dtype, &rect, &rect, &whole))
    };
    microbatches.into_iter().filter_map(copy).collect()
}
