//! The event loop: streams go on until they wait for another rank or stream.
//!
//! Only communication ties ranks together, and its times depend on times alone, so a rank with one stream runs ahead
//! by itself up to the next communication; streams of one rank meet in its registers and go on event by event.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use graphc_ir::machine::{ActionId, Blocked, Machine};
use graphc_ir::plan::{Action, Plan, Program, Rate};

use super::channels::ChannelState;
use super::rendezvous::{Arrival, Meeting, Rendezvous, bytes, group};
use super::{NullDeviceError, TraceEvent, waits};

/// What came of it.
pub struct Outcome {
    /// Seconds until every rank has finished the first step.
    pub step_seconds: f64,
    /// Seconds that each rank works in the first step.
    pub busy: Vec<f64>,
    /// The greatest number of contents of a microbatch-rate register at once, by rank.
    pub high_water: Vec<u64>,
    /// The greatest number of contents under way at once, by channel.
    pub under_way: Vec<u32>,
    /// What ran when.
    pub trace: Vec<TraceEvent>,
}

/// A plan in execution.
pub struct Engine<'a> {
    pub(super) plan: &'a Plan,
    steps: u64,
    pub(super) ranks: Vec<RankState<'a>>,
    pub(super) channels: Vec<ChannelState>,
    pub(super) meetings: Rendezvous,
    events: BinaryHeap<Reverse<Event>>,
    keep_trace: bool,
    trace: Vec<TraceEvent>,
    step_seconds: f64,
}

/// One rank.
pub struct RankState<'a> {
    pub(super) program: &'a Program,
    machine: Machine,
    pub(super) streams: Vec<StreamState>,
    busy: f64,
}

/// One stream.
pub struct StreamState {
    step: u64,
    item: usize,
    place: usize,
    /// When it is ready for its next action.
    time: f64,
    /// An action that is under way and when it began.
    running: Option<(ActionId, f64)>,
    pub(super) waits: Option<Wait>,
}

/// What a stream waits for.
#[derive(Clone, Debug)]
pub enum Wait {
    /// A register of its rank.
    Register(Blocked),
    /// The others of a collective.
    Meeting(Meeting, Vec<u32>),
    /// A receiver that is late.
    Receiver(u32),
    /// A sender that is late.
    Sender(u32),
}

/// A stream has something to do at a time.
#[derive(PartialEq)]
struct Event {
    time: f64,
    rank: usize,
    stream: usize,
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        let time = self.time.total_cmp(&other.time);
        time.then(self.rank.cmp(&other.rank)).then(self.stream.cmp(&other.stream))
    }
}

impl<'a> Engine<'a> {
    /// All ranks before the first step.
    pub fn new(plan: &'a Plan, steps: u64, unlimited: bool, keep_trace: bool) -> Self {
        let stream = |_: &_| StreamState {
            step: 0,
            item: 0,
            place: 0,
            time: 0.0,
            running: None,
            waits: None,
        };
        let rank = |entry: &graphc_ir::plan::RankEntry| {
            let program = &plan.programs[entry.program.index()];
            let machine = Machine::new(program, plan.microbatches);
            let streams = program.streams.iter().map(stream).collect();
            RankState { program, machine, streams, busy: 0.0 }
        };
        let channel = |channel| ChannelState::new(plan, channel, unlimited);
        Self {
            plan,
            steps,
            ranks: plan.ranks.iter().map(rank).collect(),
            channels: plan.channels.iter().map(channel).collect(),
            meetings: Rendezvous::default(),
            events: BinaryHeap::new(),
            keep_trace,
            trace: Vec::new(),
            step_seconds: 0.0,
        }
    }

    /// Executes all steps.
    pub fn run(mut self) -> Result<Outcome, NullDeviceError> {
        for rank in 0..self.ranks.len() {
            for stream in 0..self.ranks[rank].streams.len() {
                self.events.push(Reverse(Event { time: 0.0, rank, stream }));
            }
        }
        while let Some(Reverse(event)) = self.events.pop() {
            self.wake(event);
        }
        let waits = waits::describe(&self);
        if !waits.is_empty() {
            return Err(NullDeviceError::Hang { waits });
        }
        Ok(self.outcome())
    }

    fn outcome(mut self) -> Outcome {
        let order = |a: &TraceEvent, b: &TraceEvent| {
            a.start.total_cmp(&b.start).then((a.rank, a.stream).cmp(&(b.rank, b.stream)))
        };
        self.trace.sort_by(order);
        Outcome {
            step_seconds: self.step_seconds,
            busy: self.ranks.iter().map(|rank| rank.busy).collect(),
            high_water: self.ranks.iter().map(RankState::high_water).collect(),
            under_way: self.channels.iter().map(ChannelState::under_way).collect(),
            trace: self.trace,
        }
    }

    /// Ends what a stream was at, if anything, and goes on.
    fn wake(&mut self, event: Event) {
        let Event { time, rank, stream } = event;
        let state = &mut self.ranks[rank].streams[stream];
        if let Some((action, start)) = state.running.take() {
            self.finish(rank, stream, action, start, time);
            for other in 0..self.ranks[rank].streams.len() {
                let waiting = &self.ranks[rank].streams[other].waits;
                if other != stream && matches!(waiting, Some(Wait::Register(_))) {
                    self.events.push(Reverse(Event { time, rank, stream: other }));
                }
            }
        } else {
            state.time = state.time.max(time);
        }
        self.go_on(rank, stream);
    }

    fn go_on(&mut self, rank: usize, stream: usize) {
        let alone = self.ranks[rank].streams.len() == 1;
        while let Some(action) = self.next(rank, stream) {
            let state = &mut self.ranks[rank];
            if let Some(blocked) = state.machine.blocked(action) {
                state.streams[stream].waits = Some(Wait::Register(blocked));
                return;
            }
            let (start, end) = match self.begin(rank, stream, action) {
                Ok(times) => times,
                Err(wait) => {
                    self.ranks[rank].streams[stream].waits = wait;
                    return;
                }
            };
            let state = &mut self.ranks[rank].streams[stream];
            state.waits = None;
            if alone {
                self.finish(rank, stream, action, start, end);
            } else {
                state.running = Some((action, start));
                self.events.push(Reverse(Event { time: end, rank, stream }));
                return;
            }
        }
        self.ranks[rank].streams[stream].waits = None;
    }

    /// The next action of a stream; `None` where it has done all steps.
    pub(super) fn next(&self, rank: usize, stream: usize) -> Option<ActionId> {
        let (state, order) =
            (&self.ranks[rank].streams[stream], &self.ranks[rank].program.streams[stream]);
        if state.running.is_some() || state.step >= self.steps {
            return None;
        }
        let item = order.order.get(state.item)?;
        let actor = *order.blocks[item.block as usize].get(state.place)?;
        Some(ActionId { actor, step: state.step, microbatch: item.microbatch })
    }

    /// Begins an action: when it begins and ends, or what it waits for. A rank that has joined a collective waits
    /// for nothing that it could ask again: the last to come ends it for all.
    fn begin(
        &mut self,
        rank: usize,
        stream: usize,
        action: ActionId,
    ) -> Result<(f64, f64), Option<Wait>> {
        let program = self.ranks[rank].program;
        let actor = &program.actors[action.actor.index()];
        let now = self.ranks[rank].streams[stream].time;
        let content = match actor.rate {
            Rate::Step => action.step,
            Rate::Microbatch => {
                action.step * self.plan.microbatches as u64 + u64::from(action.microbatch)
            }
        };
        match actor.action {
            Action::Collective { .. } => Err(self.join(rank, stream, action)),
            Action::Send { channel } => {
                let state = &mut self.channels[channel.index()];
                let time = state
                    .may_send(rank as u32, content, now)
                    .map_err(|receiver| Some(Wait::Receiver(receiver)))?;
                state.send(rank as u32, time);
                self.call_partners(channel.index(), rank, time);
                Ok((time, time + actor.seconds))
            }
            Action::Receive { channel } => {
                let state = &mut self.channels[channel.index()];
                let time = state
                    .may_receive(rank as u32, content, now)
                    .map_err(|sender| Some(Wait::Sender(sender)))?;
                state.receive(rank as u32, time);
                self.call_partners(channel.index(), rank, time);
                Ok((time, time + actor.seconds))
            }
            _ => Ok((now, now + actor.seconds)),
        }
    }

    /// Joins a collective. Whoever comes last ends it for all.
    fn join(&mut self, rank: usize, stream: usize, action: ActionId) -> Option<Wait> {
        let program = self.ranks[rank].program;
        let actor = &program.actors[action.actor.index()];
        let Action::Collective { kind, axis, sequence, .. } = actor.action else { return None };
        let group = group(self.plan, program, actor, rank as u32, axis);
        let meeting = (sequence, group[0], action.step, action.microbatch);
        let state = &self.ranks[rank].streams[stream];
        if matches!(state.waits, Some(Wait::Meeting(..))) {
            return state.waits.clone();
        }
        let bytes = bytes(&self.plan.layouts, program, actor);
        let arrival = Arrival { rank: rank as u32, stream, time: state.time, bytes };
        let met = self.meetings.arrive(self.plan, meeting, &group, (kind, axis), arrival);
        let Some(met) = met else { return Some(Wait::Meeting(meeting, group)) };
        for arrival in met.arrivals {
            let (other, its_stream) = (arrival.rank as usize, arrival.stream);
            let Some(action) = self.next(other, its_stream) else { continue };
            let state = &mut self.ranks[other].streams[its_stream];
            state.running = Some((action, met.start));
            state.waits = None;
            self.events.push(Reverse(Event { time: met.end, rank: other, stream: its_stream }));
        }
        None
    }

    /// Lets ranks look again that wait for what a rank has sent or received.
    fn call_partners(&mut self, channel: usize, rank: usize, time: f64) {
        for partner in self.channels[channel].partners(rank as u32) {
            let partner = partner as usize;
            for (stream, state) in self.ranks[partner].streams.iter().enumerate() {
                if let Some(Wait::Receiver(other) | Wait::Sender(other)) = state.waits
                    && other as usize == rank
                {
                    // It looks at its own time again: what it finds there tells how long it waited.
                    let time = time.min(state.time);
                    self.events.push(Reverse(Event { time, rank: partner, stream }));
                }
            }
        }
    }

    fn finish(&mut self, rank: usize, stream: usize, action: ActionId, start: f64, end: f64) {
        let state = &mut self.ranks[rank];
        state.machine.finish(action);
        let actor = &state.program.actors[action.actor.index()];
        if action.step == 0 {
            self.step_seconds = self.step_seconds.max(end);
            if stream == 0 {
                state.busy += end - start;
            }
        }
        if self.keep_trace {
            self.trace.push(TraceEvent {
                rank: rank as u32,
                stream,
                actor: actor.name.clone(),
                step: action.step,
                microbatch: action.microbatch,
                start,
                end,
            });
        }
        state.streams[stream].advance(state.program, stream, end);
    }
}

impl StreamState {
    /// Moves to the next action.
    fn advance(&mut self, program: &Program, stream: usize, time: f64) {
        let order = &program.streams[stream];
        self.time = time;
        self.place += 1;
        let length =
            |item: usize| order.order.get(item).map(|i| order.blocks[i.block as usize].len());
        while length(self.item).is_some_and(|length| self.place >= length) {
            self.item += 1;
            self.place = 0;
        }
        if self.item >= order.order.len() {
            (self.item, self.place) = (0, 0);
            self.step += 1;
        }
    }
}

impl RankState<'_> {
    fn high_water(&self) -> u64 {
        let registers = self.program.registers.iter().enumerate();
        let microbatch = registers.filter(|(_, register)| register.rate == Rate::Microbatch);
        let id = |(index, _): (usize, _)| graphc_ir::ids::RegisterId::new(index);
        microbatch.map(|register| self.machine.high_water(id(register))).max().unwrap_or(0)
    }
}
