//! The proof that every step ends: the orders of all programs are executed without time.
//!
//! A stream goes on until it must wait: for a register or the other stream of its rank, as the state machine says, or for
//! another rank.
//!
//! A program stands for all of its ranks, and waits for all ranks of other programs for which it could wait. A collective
//! begins when all programs of its mesh have come. A content is there when all senders have sent it. A send waits until
//! all receivers have taken the content that lay in its slot.
//!
//! Each rank waits for some of these only. What may happen stays possible until it happens, so a rank that waits for less
//! is never later. Where this execution ends, all ranks end, in whatever order they come. It takes time in proportion to
//! the actions of all programs, not to ranks.
//!
//! After a step all counts stand as before it, one step on. Two steps are executed, because no actor has filled variables
//! before the second.

use std::collections::BTreeMap;

use graphc_ir::ids::ActorId;

use super::ErrorCollector;
use crate::machine::{ActionId, Blocked, Machine};
use crate::{Action, Plan, Program, Rate};

/// Steps that are executed.
const STEPS: u64 = 2;

/// Waiting programs that are told.
const MOST_TOLD: usize = 16;

/// Checks that all programs do all their steps.
pub(super) fn check_progress(plan: &Plan, errors: &mut ErrorCollector) {
    let waits = Execution::new(plan).run_steps();
    errors.require(waits.is_empty(), "programs", || {
        format!("the plan hangs:\n  {}", waits.join("\n  "))
    });
}

/// The contact of an actor with other ranks.
#[derive(Clone, Copy)]
enum Contact {
    None,
    /// The index of a meeting.
    Meets(usize),
    /// The index of a channel.
    Sends(usize),
    Receives(usize),
}

/// The programs that exchange something, and how often all of them have.
#[derive(Default)]
struct Crowd {
    /// The programs.
    programs: Vec<usize>,
    /// The number of them that have come, by occurrence.
    come: Vec<usize>,
}

impl Crowd {
    /// Counts one that comes; whether it was the last.
    fn count_arrival(&mut self, occurrence: usize) -> bool {
        if self.come.len() <= occurrence {
            self.come.resize(occurrence + 1, 0);
        }
        self.come[occurrence] += 1;
        self.are_there(occurrence)
    }

    fn are_there(&self, occurrence: usize) -> bool {
        self.come.get(occurrence) == Some(&self.programs.len())
    }
}

/// The two sides of a channel.
#[derive(Default)]
struct Sides {
    slots: usize,
    senders: Crowd,
    receivers: Crowd,
}

/// A stream under way.
#[derive(Clone, Copy, Default)]
struct Cursor {
    step: u64,
    /// Index into the order.
    item: usize,
    /// Index into the block.
    actor: usize,
    /// Whether it has come to the meeting that is next.
    came: bool,
}

struct Runner<'a> {
    program: &'a Program,
    machine: Machine,
    contacts: Vec<Contact>,
    cursors: Vec<Cursor>,
    /// Whether it is to be looked at.
    queued: bool,
}

/// The reason why a stream does not go on.
enum StallReason {
    Here(Blocked),
    Meeting(usize),
    Sender(usize),
    Receiver(usize),
}

struct Execution<'a> {
    plan: &'a Plan,
    runners: Vec<Runner<'a>>,
    meetings: Vec<Crowd>,
    channels: Vec<Sides>,
    /// Programs that may go on.
    queue: Vec<usize>,
}

impl<'a> Execution<'a> {
    fn new(plan: &'a Plan) -> Self {
        let sides = plan
            .channels
            .iter()
            .map(|channel| Sides { slots: channel.slots as usize, ..Sides::default() });
        let mut execution = Self {
            plan,
            runners: Vec::new(),
            meetings: Vec::new(),
            channels: sides.collect(),
            queue: (0..plan.programs.len()).rev().collect(),
        };
        let mut meetings = BTreeMap::new();
        for (index, program) in plan.programs.iter().enumerate() {
            let contact = |actor| execution.note_contact(index, actor, &mut meetings);
            let contacts = program.actors.iter().map(|actor| &actor.action).map(contact).collect();
            execution.runners.push(Runner {
                program,
                machine: Machine::new(program, plan.microbatches),
                contacts,
                cursors: vec![Cursor::default(); program.streams.len()],
                queued: true,
            });
        }
        execution
    }

    /// Notes that a program takes part in what an actor does.
    fn note_contact(
        &mut self,
        program: usize,
        action: &Action,
        meetings: &mut BTreeMap<u32, usize>,
    ) -> Contact {
        match action {
            Action::Collective { sequence, .. } => {
                let meeting = *meetings.entry(*sequence).or_insert(self.meetings.len());
                if meeting == self.meetings.len() {
                    self.meetings.push(Crowd::default());
                }
                self.meetings[meeting].programs.push(program);
                Contact::Meets(meeting)
            }
            Action::Send { channel } => {
                self.channels[channel.index()].senders.programs.push(program);
                Contact::Sends(channel.index())
            }
            Action::Receive { channel } => {
                self.channels[channel.index()].receivers.programs.push(program);
                Contact::Receives(channel.index())
            }
            _ => Contact::None,
        }
    }

    /// Executes all steps as far as they go, and says who waits for whom.
    fn run_steps(mut self) -> Vec<String> {
        while let Some(program) = self.queue.pop() {
            self.runners[program].queued = false;
            // What one stream does may be what another waits for.
            while self.advance_all(program) {}
        }
        self.list_stalls()
    }

    /// Takes all streams as far as they go, one after the other; whether any went on.
    fn advance_all(&mut self, program: usize) -> bool {
        let mut goes = false;
        for stream in 0..self.runners[program].cursors.len() {
            goes |= self.advance_stream(program, stream);
        }
        goes
    }

    /// Takes a stream as far as it goes; whether it went on.
    fn advance_stream(&mut self, program: usize, stream: usize) -> bool {
        let mut goes = false;
        while let Some(action) = self.runners[program].next_action(stream) {
            if self.find_stall(program, stream, action).is_some() {
                break;
            }
            goes = true;
            self.finish_action(program, stream, action);
        }
        goes
    }

    /// The wait of an action, if there is one; who comes to a meeting is counted.
    fn find_stall(
        &mut self,
        program: usize,
        stream: usize,
        action: ActionId,
    ) -> Option<StallReason> {
        let runner = &mut self.runners[program];
        if let Some(blocked) = runner.machine.find_blocker(action) {
            return Some(StallReason::Here(blocked));
        }
        let occurrence = count_occurrences(self.plan, runner.program, action);
        match runner.contacts[action.actor.index()] {
            Contact::None => None,
            Contact::Meets(meeting) => {
                let crowd = &mut self.meetings[meeting];
                if !std::mem::replace(&mut runner.cursors[stream].came, true)
                    && crowd.count_arrival(occurrence)
                {
                    let all = crowd.programs.clone();
                    self.wake_programs(&all);
                }
                let there = self.meetings[meeting].are_there(occurrence);
                (!there).then_some(StallReason::Meeting(meeting))
            }
            Contact::Sends(channel) => {
                let sides = &self.channels[channel];
                let freed = occurrence.checked_sub(sides.slots);
                let late = freed.is_some_and(|freed| !sides.receivers.are_there(freed));
                late.then_some(StallReason::Receiver(channel))
            }
            Contact::Receives(channel) => {
                let there = self.channels[channel].senders.are_there(occurrence);
                (!there).then_some(StallReason::Sender(channel))
            }
        }
    }

    fn finish_action(&mut self, program: usize, stream: usize, action: ActionId) {
        let runner = &mut self.runners[program];
        runner.machine.finish_action(action);
        runner.advance_cursor(stream);
        let occurrence = count_occurrences(self.plan, runner.program, action);
        let (own, others) = match runner.contacts[action.actor.index()] {
            Contact::None | Contact::Meets(_) => return,
            Contact::Sends(channel) => {
                let Sides { senders, receivers, .. } = &mut self.channels[channel];
                (senders, receivers)
            }
            Contact::Receives(channel) => {
                let Sides { senders, receivers, .. } = &mut self.channels[channel];
                (receivers, senders)
            }
        };
        if own.count_arrival(occurrence) {
            let woken = others.programs.clone();
            self.wake_programs(&woken);
        }
    }

    fn wake_programs(&mut self, programs: &[usize]) {
        for &program in programs {
            if !std::mem::replace(&mut self.runners[program].queued, true) {
                self.queue.push(program);
            }
        }
    }

    /// A line for each stream that has not done all its steps.
    fn list_stalls(&mut self) -> Vec<String> {
        let ranks = self.describe_ranks();
        let mut lines = Vec::new();
        for program in 0..self.runners.len() {
            for stream in 0..self.runners[program].cursors.len() {
                let Some(action) = self.runners[program].next_action(stream) else { continue };
                if lines.len() == MOST_TOLD {
                    return lines;
                }
                let reason = match self.find_stall(program, stream, action) {
                    Some(wait) => self.describe_stall(program, &wait, &ranks),
                    None => "cannot go on".into(),
                };
                let actor = &self.runners[program].program.actors[action.actor.index()].name;
                let at = format!("microbatch {} of step {}", action.microbatch, action.step);
                lines.push(format!("{}: `{actor}` ({at}) {reason}", ranks[program]));
            }
        }
        lines
    }

    /// Describes the ranks of each program: `rank 3`, or `rank 3 and 7 like it`.
    fn describe_ranks(&self) -> Vec<String> {
        let mut ranks = vec![(0, 0); self.runners.len()];
        for (rank, entry) in self.plan.ranks.iter().enumerate().rev() {
            let (first, count) = &mut ranks[entry.program.index()];
            (*first, *count) = (rank, *count + 1);
        }
        let name = |(first, count): (usize, usize)| match count {
            0 | 1 => format!("rank {first}"),
            _ => format!("rank {first} and {} like it", count - 1),
        };
        ranks.into_iter().map(name).collect()
    }

    fn describe_stall(&self, program: usize, wait: &StallReason, ranks: &[String]) -> String {
        let all = |programs: &[usize]| -> String {
            let others = programs.iter().filter(|&&other| other != program);
            let places: Vec<String> =
                others.take(MOST_TOLD).map(|&other| self.describe_program(other, ranks)).collect();
            if places.is_empty() { "nobody".into() } else { places.join(", ") }
        };
        match wait {
            StallReason::Here(blocked) => {
                let Program { actors, registers, .. } = self.runners[program].program;
                blocked.describe(
                    |actor| &actors[actor.index()].name,
                    |register| &registers[register.index()].name,
                )
            }
            StallReason::Meeting(meeting) => {
                format!("waits for {}", all(&self.meetings[*meeting].programs))
            }
            StallReason::Sender(channel) => {
                let senders = &self.channels[*channel].senders.programs;
                format!("waits for what is sent by {}", all(senders))
            }
            StallReason::Receiver(channel) => {
                let receivers = &self.channels[*channel].receivers.programs;
                format!("waits until its channel has room for what it sends to {}", all(receivers))
            }
        }
    }

    /// Ranks and what they are at.
    fn describe_program(&self, program: usize, ranks: &[String]) -> String {
        let runner = &self.runners[program];
        let name =
            |action: ActionId| format!("`{}`", runner.program.actors[action.actor.index()].name);
        let at: Vec<String> = (0..runner.cursors.len())
            .filter_map(|stream| runner.next_action(stream))
            .map(name)
            .collect();
        match at.as_slice() {
            [] => format!("{}, which has done everything", ranks[program]),
            names => format!("{}, which is at {}", ranks[program], names.join(" and ")),
        }
    }
}

impl Runner<'_> {
    /// The next action of a stream; `None` when it has done all.
    fn next_action(&self, stream: usize) -> Option<ActionId> {
        let Cursor { step, item, actor, .. } = self.cursors[stream];
        let stream = &self.program.streams[stream];
        let item = stream.order.get(item).filter(|_| step < STEPS)?;
        let actor: ActorId = stream.blocks[item.block as usize][actor];
        Some(ActionId { actor, step, microbatch: item.microbatch })
    }

    /// Puts a stream behind its next action.
    fn advance_cursor(&mut self, stream: usize) {
        let cursor = &mut self.cursors[stream];
        let stream = &self.program.streams[stream];
        cursor.came = false;
        cursor.actor += 1;
        let block = stream.order[cursor.item].block as usize;
        if cursor.actor == stream.blocks[block].len() {
            (cursor.actor, cursor.item) = (0, cursor.item + 1);
        }
        if cursor.item == stream.order.len() {
            (cursor.item, cursor.step) = (0, cursor.step + 1);
        }
    }
}

/// The number of times that the action's actor has acted before.
fn count_occurrences(plan: &Plan, program: &Program, action: ActionId) -> usize {
    let before = match program.actors[action.actor.index()].rate {
        Rate::Step => action.step,
        Rate::Microbatch => action.step * plan.microbatches as u64 + u64::from(action.microbatch),
    };
    before as usize
}
