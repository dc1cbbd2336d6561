//! Follows the two streams of a rank leg by leg, without a state machine.
//!
//! The actions of the other stream for which a stream waits follow from the program ([`graphc_plan::streams`]). So blocks are also cut into legs at
//! these waits. A leg begins when a certain number of the other's legs has ended. A stream continues without an event until it needs something that
//! has not happened yet.

use graphc_plan::Program;

use super::legs::Leg;
use graphc_plan::streams::Known;

/// Whether a leg ends behind an action, by stream, block and position.
pub(super) type Cuts = [Vec<Vec<bool>>; 2];

/// Finds the positions at which the blocks of two streams are cut: before each action that waits for the other stream, and behind each action that
/// the other waits for.
pub(super) fn find_cuts(program: &Program, known: &Known) -> Cuts {
    let mut cuts = [0, 1].map(|stream| {
        let blocks = program.streams[stream].blocks.iter();
        blocks.map(|block| vec![false; block.len()]).collect::<Vec<_>>()
    });
    let places = [0, 1].map(|stream| action_places(program, stream));
    for stream in [0, 1] {
        let mut before = 0;
        for (action, &ended) in known.of_other[stream].iter().enumerate() {
            if ended > before {
                let (block, place) = places[stream][action];
                if place > 0 {
                    cuts[stream][block][place - 1] = true;
                }
                let (block, place) = places[1 - stream][ended as usize - 1];
                cuts[1 - stream][block][place] = true;
                before = ended;
            }
        }
    }
    cuts
}

/// Lists the block of each action of a stream, and its position there.
fn action_places(program: &Program, stream: usize) -> Vec<(usize, usize)> {
    let stream = &program.streams[stream];
    let of = |block: usize| (0..stream.blocks[block].len()).map(move |place| (block, place));
    stream.order.iter().flat_map(|item| of(item.block as usize)).collect()
}

/// The progress of the two streams of a rank, leg by leg.
pub(super) struct Pace {
    /// The number of the other's legs that must have ended when a leg begins, by stream and leg of a step.
    needs: [Vec<u32>; 2],
    /// The time when each leg of the step has ended, by stream.
    ends: [Vec<f64>; 2],
    /// The number of steps that have ended, by stream.
    steps: [u64; 2],
    /// The time when both streams had ended the previous step.
    begins: f64,
}

impl Pace {
    /// Makes the state before the first step, of streams whose blocks are cut into these legs.
    pub(super) fn new(program: &Program, known: &Known, legs: [&[Vec<Leg>]; 2]) -> Self {
        // By stream and leg: how many actions have ended with it.
        let until = [0, 1].map(|stream| {
            let mut actions = 0;
            let mut until: Vec<u32> = Vec::new();
            for item in &program.streams[stream].order {
                for leg in &legs[stream][item.block as usize] {
                    actions += leg.places.1 - leg.places.0;
                    until.push(actions as u32);
                }
            }
            until
        });
        let needs = [0, 1].map(|stream| {
            let need = |&actions: &u32| {
                let ended = known.count_ended(stream, actions as usize - 1);
                until[1 - stream].partition_point(|&until| until < ended) as u32
                    + u32::from(ended > 0)
            };
            until[stream].iter().map(need).collect()
        });
        Self { needs, ends: [Vec::new(), Vec::new()], steps: [0; 2], begins: 0.0 }
    }

    /// Returns the time when all legs have ended that the next leg of a stream needs, or `None` if they have not yet.
    pub(super) fn ready_time(&self, stream: usize) -> Option<f64> {
        let other = 1 - stream;
        if self.steps[stream] > self.steps[other] {
            return None;
        }
        let Some(last) =
            (self.needs[stream].get(self.ends[stream].len()).copied().unwrap_or(0)).checked_sub(1)
        else {
            return Some(self.begins);
        };
        self.ends[other].get(last as usize).map(|end| end.max(self.begins))
    }

    /// Records that a leg of a stream has ended.
    pub(super) fn end_leg(&mut self, stream: usize, time: f64) {
        self.ends[stream].push(time);
        if self.ends[stream].len() < self.needs[stream].len() {
            return;
        }
        self.steps[stream] += 1;
        if self.steps[stream] == self.steps[1 - stream] {
            let last = self.ends.iter().filter_map(|ends| ends.last());
            self.begins = last.fold(self.begins, |latest, &end| latest.max(end));
            self.ends.iter_mut().for_each(Vec::clear);
        }
    }
}
