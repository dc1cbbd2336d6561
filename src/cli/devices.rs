//! `graphc devices`: what there is to compute on.

use std::fmt::Write;

use anyhow::Result;
use graphc_runtime::cards::{Card, Library, list_cards};
use serde_json::{Value, json};

use super::args::{DevicesArgs, Format};
use super::output::print_escaped;

/// Runs the command.
pub(super) fn run_devices(args: &DevicesArgs) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cards = list_cards();
    print_escaped(&match args.format {
        Format::Text => render_text(cores, &cards),
        Format::Json => format!("{:#}\n", render_json(cores, &cards)),
    })
}

fn render_text(cores: usize, cards: &Result<Vec<Card>, String>) -> String {
    let mut text = format!("cpu: {cores} cores\n");
    // Writing to a string cannot fail.
    let _ = match cards {
        Ok(cards) if cards.is_empty() => writeln!(text, "cuda: the driver finds no card"),
        Ok(cards) => cards.iter().try_for_each(|card| {
            let (gib, (major, minor)) = (card.memory as f64 / (1u64 << 30) as f64, card.capability);
            writeln!(
                text,
                "cuda:{}: {}, {gib:.1} GiB, {} multiprocessors, architecture {major}.{minor}",
                card.ordinal, card.name, card.multiprocessors
            )
        }),
        Err(reason) => writeln!(text, "cuda: none: {reason}"),
    };
    for library in Library::ALL {
        let _ = match library.find() {
            Ok(found) => {
                let version = library.version().map(|version| format!(" ({version})"));
                let path = found.path.display();
                writeln!(text, "{library}: {path}{}", version.unwrap_or_default())
            }
            Err(missing) => writeln!(text, "{missing}"),
        };
    }
    text
}

fn render_json(cores: usize, cards: &Result<Vec<Card>, String>) -> Value {
    let card = |card: &Card| {
        let (major, minor) = card.capability;
        json!({
            "ordinal": card.ordinal,
            "name": card.name,
            "memory_bytes": card.memory,
            "multiprocessors": card.multiprocessors,
            "architecture": format!("{major}.{minor}"),
        })
    };
    let library = |library: Library| match library.find() {
        Ok(found) => {
            let (name, version) = (library.to_string(), library.version());
            json!({ "library": name, "path": found.path, "version": version })
        }
        Err(missing) => json!({ "library": library.to_string(), "missing": missing.to_string() }),
    };
    let (found, reason) = match cards {
        Ok(cards) => (cards.iter().map(card).collect(), Value::Null),
        Err(reason) => (Vec::new(), json!(reason)),
    };
    let libraries: Vec<Value> = Library::ALL.map(library).into();
    json!({ "cores": cores, "cards": found, "no_cards": reason, "libraries": libraries })
}
