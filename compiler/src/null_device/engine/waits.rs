//! Describes the waits of a plan that hangs.

use super::{Engine, StreamWait};

/// Returns one line for each stream that has not done all its steps.
pub(super) fn describe_waits(engine: &Engine<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for (class, state) in engine.ranks.iter().enumerate() {
        for stream in 0..state.streams.len() {
            if let Some(action) = engine.next_action(class, stream) {
                let actor = &state.program.actors[action.actor.index()];
                let reason = match &state.streams[stream].waits {
                    Some(wait) => wait_reason(engine, class, wait),
                    None => "cannot go on".into(),
                };
                let at = format!("microbatch {} of step {}", action.microbatch, action.step);
                lines.push(format!(
                    "{}: `{}` ({at}) {reason}",
                    class_name(engine, class),
                    actor.name
                ));
            }
        }
    }
    lines
}

fn wait_reason(engine: &Engine<'_>, class: usize, wait: &StreamWait) -> String {
    let program = engine.ranks[class].program;
    match wait {
        StreamWait::Register(blocked) => blocked.describe(
            |actor| &program.actors[actor.index()].name,
            |register| &program.registers[register.index()].name,
        ),
        StreamWait::Stream => "waits for the other stream".into(),
        StreamWait::Meeting(meeting, party) => {
            let present = engine.meetings.present_classes(*meeting);
            let absent = party.iter().filter(|class| !present.contains(class));
            let absent: Vec<String> = absent.map(|&class| describe_class(engine, class)).collect();
            format!("waits for {}", absent.join(", "))
        }
        StreamWait::Receiver(class) => {
            format!(
                "waits until its channel has room for what it sends to {}",
                describe_class(engine, *class)
            )
        }
        StreamWait::Sender(class) => {
            format!("waits for what is sent by {}", describe_class(engine, *class))
        }
    }
}

/// Returns the name of a class: `rank 3`, or `rank 3 and 7 like it`.
fn class_name(engine: &Engine<'_>, class: usize) -> String {
    let rank = engine.classes.first[class];
    match engine.classes.size[class] {
        1 => format!("rank {rank}"),
        size => format!("rank {rank} and {} like it", size - 1),
    }
}

/// Describes ranks by their next actions.
fn describe_class(engine: &Engine<'_>, class: usize) -> String {
    let actions = engine.ranks[class].streams.iter().enumerate();
    let actions = actions.filter_map(|(stream, _)| engine.next_action(class, stream));
    let names: Vec<String> = actions
        .map(|action| {
            format!("`{}`", engine.ranks[class].program.actors[action.actor.index()].name)
        })
        .collect();
    let rank = class_name(engine, class);
    match names.as_slice() {
        [] => format!("{rank}, which has done everything"),
        names => format!("{rank}, which is at {}", names.join(" and ")),
    }
}
