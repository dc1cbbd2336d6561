//! Says who waits for whom in a plan that hangs.

use graphc_ir::machine::Blocked;

use super::engine::{Engine, Wait};

/// One line for each stream that has not done all its steps.
pub fn describe(engine: &Engine<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for (rank, state) in engine.ranks.iter().enumerate() {
        for stream in 0..state.streams.len() {
            if let Some(action) = engine.next(rank, stream) {
                let actor = &state.program.actors[action.actor.index()];
                let reason = match &state.streams[stream].waits {
                    Some(wait) => reason(engine, rank, wait),
                    None => "cannot go on".into(),
                };
                let at = format!("microbatch {} of step {}", action.microbatch, action.step);
                lines.push(format!("rank {rank}: `{}` ({at}) {reason}", actor.name));
            }
        }
    }
    lines
}

fn reason(engine: &Engine<'_>, rank: usize, wait: &Wait) -> String {
    let program = engine.ranks[rank].program;
    match wait {
        Wait::Register(Blocked::Empty { register, producer }) => {
            let register = &program.registers[register.index()].name;
            match producer {
                Some(producer) => {
                    let producer = &program.actors[producer.index()].name;
                    format!("waits for `{register}`, which `{producer}` fills later")
                }
                None => format!("waits for `{register}`, which nobody fills"),
            }
        }
        Wait::Register(Blocked::Full { register, reader }) => {
            let register = &program.registers[register.index()].name;
            let reader = &program.actors[reader.index()].name;
            format!("waits for a free slot of `{register}`, which `{reader}` has yet to read")
        }
        Wait::Meeting(meeting, group) => {
            let present = engine.meetings.present(*meeting);
            let absent = group.iter().filter(|rank| !present.contains(rank));
            let absent: Vec<String> = absent.map(|&rank| place(engine, rank)).collect();
            format!("waits for {}", absent.join(", "))
        }
        Wait::Receiver(rank) => {
            format!(
                "waits until its channel has room for what it sends to {}",
                place(engine, *rank)
            )
        }
        Wait::Sender(rank) => format!("waits for what is sent by {}", place(engine, *rank)),
    }
}

/// A rank and what it is at.
fn place(engine: &Engine<'_>, rank: u32) -> String {
    let Some(state) = engine.ranks.get(rank as usize) else { return format!("rank {rank}") };
    let actions = (0..state.streams.len()).filter_map(|stream| engine.next(rank as usize, stream));
    let names: Vec<String> = actions
        .map(|action| format!("`{}`", state.program.actors[action.actor.index()].name))
        .collect();
    match names.as_slice() {
        [] => format!("rank {rank}, which has done everything"),
        names => format!("rank {rank}, which is at {}", names.join(" and ")),
    }
}
