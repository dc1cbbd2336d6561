//! The event loop. Each stream goes on until it waits for another rank or stream.
//!
//! One rank of each class is executed. Only communication ties ranks together, and its times depend on times alone.
//! So a rank with one stream runs ahead by itself up to the next meeting with another class. Streams of one rank meet
//! in its registers and go on event by event.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use graphc_ir::ids::ActorId;
use graphc_plan::machine::{ActionId, Blocked, Machine};
use graphc_plan::streams::Known;
use graphc_plan::{Action, Plan, Program, Rate};

use super::channels::ChannelState;
use super::classes::Classes;
use super::exchanges::Exchanges;
use super::inbound::InboundLinks;
use super::legs::{Cuts, Cutter, Leg, StreamClock};
use super::pace::{self, Pace};
use super::rendezvous::{Arrival, Meeting, Rendezvous, moved_bytes};
use super::{Detail, NullDeviceError, Run, TraceEvent};

mod waits;

/// The outcome of an execution.
pub(super) struct Outcome {
    /// Seconds until every rank has finished the first step, including what communication beside kernels costs the ranks.
    pub step_seconds: f64,
    /// The seconds of the first step on ranks of each class.
    pub spent: Vec<Spent>,
    /// The greatest number of contents of a microbatch-rate register at once, by class. It is counted only where state machines ran.
    pub high_water: Vec<u64>,
    /// The greatest number of contents under way at once, by channel.
    pub under_way: Vec<u32>,
    /// The trace of all actions.
    pub trace: Vec<TraceEvent>,
}

/// Seconds of the first step on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    /// Seconds for which stream 0 works, including communication on it.
    pub busy: f64,
    /// Seconds of kernels.
    pub compute: f64,
    /// Seconds of collectives, sends and receives, without waiting for others.
    pub communication: f64,
    /// Seconds of communication while stream 0 computes.
    pub overlapped: f64,
    /// Seconds of communication while stream 0 communicates.
    pub doubled: f64,
}

impl Spent {
    /// Charges the share of overlapped communication that is not hidden after all, and returns its seconds.
    fn pay_interference(&mut self, share: f64) -> f64 {
        let paid = share * self.overlapped;
        self.overlapped -= paid;
        self.busy += paid;
        paid
    }
}

/// A plan in execution.
pub(super) struct Engine<'a> {
    pub(super) plan: &'a Plan,
    steps: u64,
    pub(super) classes: &'a Classes,
    pub(super) ranks: Vec<RankState<'a>>,
    channels: Vec<ChannelState>,
    pub(super) meetings: Rendezvous,
    events: BinaryHeap<Reverse<StreamEvent>>,
    keep_trace: bool,
    trace: Vec<TraceEvent>,
    step_seconds: f64,
}

/// The state of one rank, which stands for all of its class.
pub(super) struct RankState<'a> {
    pub(super) program: &'a Program,
    /// The state machine that says when actors may act. `None` if the order alone decides, which was checked before.
    machine: Option<Machine>,
    pub(super) streams: Vec<StreamState>,
    /// The progress of two streams. `None` if a machine runs.
    pace: Option<Pace>,
    /// The links over which it receives.
    inbound: InboundLinks,
    spent: Spent,
    /// The times when streams worked in the first step, if the rank has several.
    worked: Worked,
}

/// The times when the streams of a rank worked: first those of stream 0, then those of all others; of each, first kernels, then communication.
type Worked = [[Vec<(f64, f64)>; 2]; 2];

/// The state of one stream.
pub(super) struct StreamState {
    legs: Vec<Vec<Leg>>,
    step: u64,
    item: usize,
    leg: usize,
    /// The time when it is ready for its next action.
    clock: StreamClock,
    /// Whether it has done the local part of its current leg.
    worked: bool,
    /// The action that is under way.
    running: Option<RunningAction>,
    pub(super) waits: Option<StreamWait>,
}

/// An action that is under way.
#[derive(Clone, Copy)]
struct RunningAction {
    /// The time when it began.
    start: f64,
    /// The time when it ends.
    end: f64,
}

/// What becomes of a leg that begins.
enum LegStart {
    /// It goes on until it ends.
    Runs(RunningAction),
    /// It has joined a collective as the last one, which has ended it for all.
    Joined,
    /// It waits for others.
    Waits(StreamWait),
}

/// The event that a stream waits for.
#[derive(Clone, Debug)]
pub(super) enum StreamWait {
    /// A register of its rank.
    Register(Blocked),
    /// The other stream of its rank.
    Stream,
    /// The other classes of a collective.
    Meeting(Meeting, Vec<usize>),
    /// A receiver that is late.
    Receiver(usize),
    /// A sender that is late.
    Sender(usize),
}

/// A time at which a stream has something to do.
#[derive(PartialEq)]
struct StreamEvent {
    time: f64,
    rank: usize,
    stream: usize,
}

impl Eq for StreamEvent {}

impl PartialOrd for StreamEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for StreamEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        let time = self.time.total_cmp(&other.time);
        time.then(self.rank.cmp(&other.rank)).then(self.stream.cmp(&other.stream))
    }
}

impl<'a> Engine<'a> {
    /// Makes the state of one rank of each class before the first step.
    pub(super) fn new(
        plan: &'a Plan,
        classes: &'a Classes,
        exchanges: &Exchanges,
        run: Run,
    ) -> Self {
        let mut meetings = Rendezvous::default();
        let mut ranks = Vec::new();
        for (class, &rank) in classes.first.iter().enumerate() {
            let program = plan.program_of(rank);
            let quick = run.detail == Detail::Legs && program.streams.len() <= 2;
            let known = Known::from_program(program).filter(|_| quick);
            let cuts = known.as_ref().map(|known| pace::find_cuts(program, known));
            // A host that takes its time leaves gaps between kernels.
            let dense = quick && (known.is_none() || plan.cluster.host_keeps_up());
            let stream = |(index, stream): (usize, &graphc_plan::Stream)| {
                let cuts = match &cuts {
                    _ if !dense => Cuts::Actions,
                    Some(cuts) => Cuts::Behind(&cuts[index]),
                    None => Cuts::Meetings,
                };
                let cutter = Cutter { plan, classes, cuts };
                StreamState::new(cutter.cut_blocks(&mut meetings, class, program, &stream.blocks))
            };
            let streams: Vec<StreamState> =
                program.streams.iter().enumerate().map(stream).collect();
            let machine = (!quick).then(|| Machine::new(program, plan.microbatches));
            let pace =
                known.map(|known| Pace::new(program, &known, [&streams[0].legs, &streams[1].legs]));
            let (inbound, spent, worked) = Default::default();
            ranks.push(RankState { program, machine, streams, pace, inbound, spent, worked });
        }
        let channel = |(index, channel)| {
            ChannelState::new(channel, exchanges.of_channel(index), classes, run.unlimited)
        };
        Self {
            plan,
            steps: run.steps,
            classes,
            ranks,
            channels: plan.channels.iter().enumerate().map(channel).collect(),
            meetings,
            events: BinaryHeap::new(),
            keep_trace: run.trace,
            trace: Vec::new(),
            step_seconds: 0.0,
        }
    }

    /// Executes all steps.
    pub(super) fn run(mut self) -> Result<Outcome, NullDeviceError> {
        for rank in 0..self.ranks.len() {
            for stream in 0..self.ranks[rank].streams.len() {
                self.events.push(Reverse(StreamEvent { time: 0.0, rank, stream }));
            }
        }
        while let Some(Reverse(event)) = self.events.pop() {
            self.wake_stream(event);
        }
        let waits = waits::describe_waits(&self);
        if !waits.is_empty() {
            return Err(NullDeviceError::Hang { waits });
        }
        Ok(self.into_outcome())
    }

    fn into_outcome(mut self) -> Outcome {
        let order = |a: &TraceEvent, b: &TraceEvent| {
            a.start.total_cmp(&b.start).then((a.rank, a.stream).cmp(&(b.rank, b.stream)))
        };
        self.trace.sort_by(order);
        let mut spent: Vec<Spent> = self.ranks.iter().map(RankState::count_spent).collect();
        let share = self.plan.cluster.framework.interference;
        let paid = spent.iter_mut().map(|spent| spent.pay_interference(share)).fold(0.0, f64::max);
        Outcome {
            step_seconds: self.step_seconds + paid,
            spent,
            high_water: self.ranks.iter().map(RankState::high_water).collect(),
            under_way: self.channels.iter().map(ChannelState::under_way).collect(),
            trace: self.trace,
        }
    }

    /// Ends the action that a stream has under way, if any, and continues the stream.
    fn wake_stream(&mut self, event: StreamEvent) {
        let StreamEvent { time, rank, stream } = event;
        let state = &mut self.ranks[rank].streams[stream];
        if let Some(running) = state.running {
            if time < running.end {
                // Called for what it no longer waits for.
                return;
            }
            state.running = None;
            self.finish_leg(rank, stream, running);
            self.wake_other_streams(time, rank, stream);
        } else {
            state.clock.device = state.clock.device.max(time);
        }
        self.go_on(rank, stream);
    }

    /// Wakes the other streams of a rank that wait for something a stream has done by `time`.
    fn wake_other_streams(&mut self, time: f64, rank: usize, stream: usize) {
        for (other, state) in self.ranks[rank].streams.iter().enumerate() {
            let time = match state.waits {
                Some(StreamWait::Register(_)) => time,
                // It knows itself when that was.
                Some(StreamWait::Stream) => state.clock.device,
                _ => continue,
            };
            if other != stream {
                self.events.push(Reverse(StreamEvent { time, rank, stream: other }));
            }
        }
    }

    fn go_on(&mut self, rank: usize, stream: usize) {
        let by_event = self.ranks[rank].machine.is_some() && self.ranks[rank].streams.len() > 1;
        while let Some(action) = self.next_action(rank, stream) {
            let state = &mut self.ranks[rank];
            if let Some(pace) = state.pace.as_ref().filter(|_| !state.streams[stream].worked) {
                let Some(ready) = pace.ready_time(stream) else {
                    state.streams[stream].waits = Some(StreamWait::Stream);
                    return;
                };
                let clock = &mut state.streams[stream].clock;
                clock.device = clock.device.max(ready);
            }
            if let Some(blocked) = state.machine.as_ref().and_then(|m| m.find_blocker(action)) {
                state.streams[stream].waits = Some(StreamWait::Register(blocked));
                return;
            }
            let begun = self.begin_leg(rank, stream, action);
            let state = &mut self.ranks[rank].streams[stream];
            let running = match begun {
                LegStart::Runs(running) => running,
                LegStart::Joined => {
                    state.waits = None;
                    return;
                }
                LegStart::Waits(wait) => {
                    state.waits = Some(wait);
                    return;
                }
            };
            state.waits = None;
            if !by_event {
                self.finish_leg(rank, stream, running);
                self.wake_other_streams(running.end, rank, stream);
            } else {
                state.running = Some(running);
                let time = running.end;
                self.events.push(Reverse(StreamEvent { time, rank, stream }));
                return;
            }
        }
        self.ranks[rank].streams[stream].waits = None;
    }

    /// Returns the next action of a stream, which is the last of its leg. `None` if it has done all steps.
    pub(super) fn next_action(&self, rank: usize, stream: usize) -> Option<ActionId> {
        let state = &self.ranks[rank].streams[stream];
        if state.running.is_some() || state.step >= self.steps {
            return None;
        }
        let order = &self.ranks[rank].program.streams[stream];
        let item = order.order.get(state.item)?;
        let leg = state.legs[item.block as usize].get(state.leg)?;
        let actor = *order.blocks[item.block as usize].get(leg.places.1 - 1)?;
        Some(ActionId { actor, step: state.step, microbatch: item.microbatch })
    }

    /// Does the local part of a leg and begins the meeting at its end.
    fn begin_leg(&mut self, rank: usize, stream: usize, action: ActionId) -> LegStart {
        let dispatch = self.plan.cluster.dispatch_seconds();
        let program = self.ranks[rank].program;
        let ready = self.ranks[rank].streams[stream].clock.device;
        let (meets, took) = self.run_local_part(rank, stream, action);
        let clock = &mut self.ranks[rank].streams[stream].clock;
        let Some(actor) = meets else {
            let (start, end) = (ready.max(clock.device - took), clock.device);
            return LegStart::Runs(RunningAction { start, end });
        };
        let now = clock.device.max(clock.host + dispatch);
        let actor = &program.actors[actor.index()];
        let content = match actor.rate {
            Rate::Step => action.step,
            Rate::Microbatch => {
                action.step * self.plan.microbatches as u64 + u64::from(action.microbatch)
            }
        };
        match actor.action {
            Action::Send { channel } => {
                let state = &mut self.channels[channel.index()];
                let time = match state.may_send(rank, content, now) {
                    Ok(time) => time,
                    Err(receiver) => return LegStart::Waits(StreamWait::Receiver(receiver)),
                };
                state.send(rank, time);
                self.wake_partners(channel.index(), rank, time);
                LegStart::Runs(RunningAction { start: time, end: time + actor.seconds })
            }
            Action::Receive { channel } => {
                let links = &mut self.ranks[rank].inbound;
                let time = match self.channels[channel.index()].receive(rank, content, now, links) {
                    Ok(time) => time,
                    Err(sender) => return LegStart::Waits(StreamWait::Sender(sender)),
                };
                self.wake_partners(channel.index(), rank, time);
                LegStart::Runs(RunningAction { start: time, end: time + actor.seconds })
            }
            _ => self.join_collective(rank, stream, action, now),
        }
    }

    /// Does the local part of a leg, unless it is done. Returns the action that meets other ranks, if the leg has one, and the seconds of the other
    /// actions.
    fn run_local_part(
        &mut self,
        rank: usize,
        stream: usize,
        action: ActionId,
    ) -> (Option<ActorId>, f64) {
        let state = &mut self.ranks[rank];
        let item = state.program.streams[stream].order[state.streams[stream].item];
        let stream = &mut state.streams[stream];
        let leg = &stream.legs[item.block as usize][stream.leg];
        if !std::mem::replace(&mut stream.worked, true) {
            stream.clock = leg.work.clock_after(stream.clock);
            if action.step == 0 {
                state.spent.compute += leg.work.compute;
                state.spent.communication += leg.work.communication;
            }
        }
        (leg.meets, leg.work.compute + leg.work.communication)
    }

    /// Joins a collective. The last class to come ends it for all.
    fn join_collective(
        &mut self,
        rank: usize,
        stream: usize,
        action: ActionId,
        now: f64,
    ) -> LegStart {
        let program = self.ranks[rank].program;
        let actor = &program.actors[action.actor.index()];
        let Action::Collective { kind, axis, sequence, .. } = actor.action else {
            return LegStart::Joined;
        };
        let state = &self.ranks[rank].streams[stream];
        if let Some(wait @ StreamWait::Meeting(..)) = &state.waits {
            return LegStart::Waits(wait.clone());
        }
        let party = self.meetings.find_party(self.plan, self.classes, rank, (program, actor, axis));
        let meeting = (sequence, party.classes[0], action.step, action.microbatch);
        let bytes = moved_bytes(&self.plan.layouts, program, actor);
        let arrival = Arrival { class: rank, stream, time: now, bytes };
        let met = self.meetings.arrive(self.plan, meeting, &party, kind, arrival);
        let Some(met) = met else {
            return LegStart::Waits(StreamWait::Meeting(meeting, party.classes.clone()));
        };
        for arrival in met.arrivals {
            let (other, its_stream) = (arrival.class, arrival.stream);
            if self.next_action(other, its_stream).is_none() {
                continue;
            }
            let state = &mut self.ranks[other].streams[its_stream];
            state.running = Some(RunningAction { start: met.start, end: met.end });
            state.waits = None;
            self.events.push(Reverse(StreamEvent {
                time: met.end,
                rank: other,
                stream: its_stream,
            }));
        }
        LegStart::Joined
    }

    /// Wakes the ranks that wait for something a rank has sent or received.
    fn wake_partners(&mut self, channel: usize, rank: usize, time: f64) {
        for partner in self.channels[channel].partners(rank) {
            for (stream, state) in self.ranks[partner].streams.iter().enumerate() {
                if let Some(StreamWait::Receiver(other) | StreamWait::Sender(other)) = state.waits
                    && other == rank
                {
                    // It looks at its own time again: what it finds there tells how long it waited.
                    let time = time.min(state.clock.device);
                    self.events.push(Reverse(StreamEvent { time, rank: partner, stream }));
                }
            }
        }
    }

    fn finish_leg(&mut self, rank: usize, stream: usize, running: RunningAction) {
        let end = running.end;
        let (step, microbatch) = self.step_and_microbatch(rank, stream);
        let state = &mut self.ranks[rank];
        if let Some(pace) = &mut state.pace {
            pace.end_leg(stream, end);
        }
        let program = state.program;
        let item = program.streams[stream].order[state.streams[stream].item];
        let leg = &state.streams[stream].legs[item.block as usize][state.streams[stream].leg];
        let actor = program.streams[stream].blocks[item.block as usize][leg.places.1 - 1];
        let (meets, work) = (leg.meets, leg.work);
        if let Some(machine) = &mut state.machine {
            machine.finish_action(ActionId { actor, step, microbatch });
        }
        if step == 0 {
            self.step_seconds = self.step_seconds.max(end);
            let took = end - running.start;
            if stream == 0 {
                let local = work.compute + work.communication;
                state.spent.busy += if meets.is_some() { local + took } else { local };
            }
            if meets.is_some() {
                state.spent.communication += took;
            }
            if state.streams.len() > 1 {
                let communicates = meets.is_some() || work.communication > 0.0;
                let list = &mut state.worked[stream.min(1)][usize::from(communicates)];
                list.push((running.start, end));
            }
        }
        if self.keep_trace {
            let (rank, start) = (self.classes.first[rank], running.start);
            self.trace.push(TraceEvent { rank, stream, actor, step, microbatch, start, end });
        }
        self.ranks[rank].advance(stream, end, self.plan.cluster.dispatch_seconds());
    }

    /// Returns the step and the microbatch that a stream is at.
    fn step_and_microbatch(&self, rank: usize, stream: usize) -> (u64, u32) {
        let state = &self.ranks[rank];
        let order = &state.program.streams[stream].order;
        let item = state.streams[stream].item;
        (state.streams[stream].step, order.get(item).map_or(0, |item| item.microbatch))
    }
}

/// Returns the seconds for which two things went on at the same time. The intervals of each are in ascending order and disjoint.
fn overlap_seconds(a: &[(f64, f64)], b: &[(f64, f64)]) -> f64 {
    let (mut i, mut j, mut seconds) = (0, 0, 0.0);
    while i < a.len() && j < b.len() {
        seconds += (a[i].1.min(b[j].1) - a[i].0.max(b[j].0)).max(0.0);
        if a[i].1 < b[j].1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    seconds
}

impl StreamState {
    fn new(legs: Vec<Vec<Leg>>) -> Self {
        Self {
            legs,
            step: 0,
            item: 0,
            leg: 0,
            clock: StreamClock::default(),
            worked: false,
            running: None,
            waits: None,
        }
    }
}

impl RankState<'_> {
    /// Moves a stream to its next leg.
    fn advance(&mut self, stream: usize, time: f64, dispatch: f64) {
        let order = &self.program.streams[stream].order;
        let state = &mut self.streams[stream];
        let item = order[state.item];
        let leg = &state.legs[item.block as usize][state.leg];
        state.clock.device = time;
        if let Some(actor) = leg.meets {
            state.clock.host += dispatch;
            // The host waits for what it receives; all else it leaves to the device.
            if matches!(self.program.actors[actor.index()].action, Action::Receive { .. }) {
                state.clock.host = state.clock.host.max(time);
            }
        }
        state.worked = false;
        state.leg += 1;
        let length =
            |item: usize| order.get(item).map(|item| state.legs[item.block as usize].len());
        while length(state.item).is_some_and(|length| state.leg >= length) {
            state.item += 1;
            state.leg = 0;
        }
        if state.item >= order.len() {
            (state.item, state.leg) = (0, 0);
            state.step += 1;
        }
    }

    fn count_spent(&self) -> Spent {
        let [first, others] = &self.worked;
        let together =
            |other: &[(f64, f64)]| first.each_ref().map(|list| overlap_seconds(list, other));
        let [kernels, communication] = others.each_ref().map(|list| together(list));
        let seconds =
            |list: &[(f64, f64)]| list.iter().map(|(start, end)| end - start).sum::<f64>();
        let of_others: f64 = others.iter().map(|list| seconds(list)).sum();
        let meanwhile: f64 = kernels.iter().chain(&communication).sum();
        Spent {
            busy: self.spent.busy + of_others - meanwhile,
            compute: self.spent.compute - kernels[0],
            overlapped: communication[0],
            doubled: communication[1],
            ..self.spent
        }
    }

    fn high_water(&self) -> u64 {
        // Of up to two streams the order tells it.
        let many = self.program.streams.len() > 2;
        let Some(machine) = self.machine.as_ref().filter(|_| many) else { return 0 };
        super::order::high_water(self.program, machine)
    }
}
