//! Tests that each event of a page's timeline names what it makes, reads and changes, and what streams wait for.

use graphc::plan::{Action, Plan, read_plan};
use serde_json::{Value, json};

use super::support::reference;
use super::{block, compiled, page, reference_plan};

const PIPELINE: [&str; 6] = ["--mesh", "2x2", "--stages", "2", "--microbatches", "4"];

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

fn index(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no index")) as usize
}

/// The reference gpt in two stages, and its page.
fn pipeline() -> (Plan, Value) {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &PIPELINE);
    let shown = block(&page(folder.path(), &[&file], &["--explain", "0"]))["plans"][0].clone();
    let plan = read_plan(&std::fs::read_to_string(&file).expect("a plan")).expect("a plan");
    (plan, shown)
}

/// The name of a register of a page: that of the tensor in it, or its own.
fn register_name(shown: &Value, program: usize, register: &Value) -> String {
    let row = &shown["timeline"]["registers"][program][index(register)];
    let name = match row[0].as_u64() {
        Some(tensor) => &shown["places"]["tensors"][tensor as usize][0],
        None => &row[1],
    };
    name.as_str().expect("a name").to_owned()
}

#[test]
fn each_event_names_what_it_makes_reads_and_changes() {
    let (plan, shown) = pipeline();
    let mut intermediate = 0;
    for (number, program) in plan.programs.iter().enumerate() {
        for (actor, row) in program.actors.iter().zip(list(&shown["timeline"]["actors"][number])) {
            let registers = [&actor.outputs, &actor.inputs, &actor.updates];
            for (ids, numbers) in registers.into_iter().zip(list(&row[5])) {
                let mut wanted: Vec<&str> =
                    ids.iter().map(|id| program.registers[id.index()].name.as_str()).collect();
                let found = list(numbers).iter().map(|one| register_name(&shown, number, one));
                let mut found: Vec<String> = found.collect();
                wanted.sort_unstable();
                wanted.dedup();
                found.sort_unstable();
                found.dedup();
                assert_eq!(found, wanted, "{row}");
            }
        }
        for (register, row) in
            program.registers.iter().zip(list(&shown["timeline"]["registers"][number]))
        {
            let layout = &plan.layouts[register.layout.index()];
            let ty = &shown["places"]["types"][index(&row[2])];
            assert_eq!(*ty, json!([layout.dtype.name(), layout.dtype.size(), layout.shape]));
            assert_eq!(shown["places"]["layouts"][index(&row[3])], layout.sbp.to_string());
            let bytes = register.shape.iter().product::<usize>() * layout.dtype.size();
            assert_eq!(index(&row[4]), bytes, "{}", register.name);
            intermediate += usize::from(row[0].is_null());
        }
    }
    assert!(intermediate > 20, "the backward pass has tensors that the plan does not list");
}

#[test]
fn parameters_are_changed_by_updates_and_made_by_nothing() {
    let (_, shown) = pipeline();
    let weight = "blocks.1.up.weight".to_owned();
    let doings = list(&shown["timeline"]["doings"]);
    let (mut updates, mut readers) = (0, 0);
    for row in list(&shown["timeline"]["actors"][1]) {
        let has = |which: usize| {
            let mut registers = list(&row[5][which]).iter();
            registers.any(|one| register_name(&shown, 1, one) == weight)
        };
        let doing = &doings[index(&row[1])];
        // A slice and a gather make copies of parts of it, of the same name.
        let copies = doing == "communication" || row[0] == "slice blocks.1.up.weight";
        assert!(!has(0) || copies, "{row} makes a parameter");
        assert!(!has(2) || doing == "update", "{row} changes a parameter");
        updates += usize::from(has(2));
        readers += usize::from(has(1));
    }
    assert_eq!(updates, 1);
    assert!(readers > 0, "the forward pass reads it");
}

#[test]
fn streams_say_what_they_wait_for() {
    let (plan, shown) = pipeline();
    let rows = list(&shown["timeline"]["rows"]);
    let mut received = 0;
    for row in rows {
        let program = &plan.programs[index(&row["program"])];
        for wait in row["waits"].as_array().expect("streams").iter().flat_map(list) {
            let actor = &program.actors[index(&wait["actor"])];
            let Action::Receive { channel } = &actor.action else { continue };
            received += 1;
            let channel = &plan.channels[channel.index()];
            assert_eq!(wait["tensor"], channel.tensor);
            for run in list(&wait["ranks"]) {
                let from = &plan.layouts[channel.from.index()].ranks;
                assert!(from.contains(&(index(&run[0]) as u32)), "{wait} is not of {from:?}");
            }
        }
    }
    assert!(received >= 2, "both stages wait for each other");
}

#[test]
fn classes_name_all_their_ranks() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let three = ["--batch", "8", "--loss", "cross_entropy", "--optimizer", "adamw", "--mesh", "3"];
    let model = reference("gpt").join("model.onnx");
    let uneven = compiled(folder.path(), &model, "uneven.json", &three);
    let even = reference_plan(folder.path(), "gpt", "even.json", &PIPELINE);
    for (file, count) in [(uneven, 3), (even, 4)] {
        let shown = block(&page(folder.path(), &[&file], &["--explain", "0"]))["plans"][0].clone();
        let ranks = |of: &Value| -> Vec<usize> {
            let run = |run: &Value| {
                let [first, count, step] = [0, 1, 2].map(|at| index(&run[at]));
                (0..count).map(move |at| first + at * step)
            };
            list(of).iter().flat_map(run).collect()
        };
        for classes in [&shown["timeline"]["rows"], &shown["costs"]["classes"]] {
            let mut all: Vec<usize> =
                list(classes).iter().flat_map(|one| ranks(&one["of"])).collect();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
            for one in list(classes) {
                assert_eq!(ranks(&one["of"]).len(), index(&one["ranks"]));
            }
        }
        let programs = list(&shown["memory"]["programs"]).iter();
        let all: usize = programs.map(|one| ranks(&one["ranks"]).len()).sum();
        assert_eq!(all, count);
    }
}

#[test]
fn what_is_received_has_as_many_bytes_as_what_is_sent() {
    let (_, shown) = pipeline();
    let sum = |kind: &str| -> f64 {
        let classes = list(&shown["costs"]["classes"]).iter();
        let rows = classes.flat_map(|one| {
            list(&one["communication"]).iter().map(|row| (one["ranks"].as_f64(), row.clone()))
        });
        let of_kind = rows.filter(|(_, row)| row[1] == kind);
        of_kind.map(|(ranks, row)| ranks.expect("a number") * row[3].as_f64().expect("bytes")).sum()
    };
    assert!(sum("send") > 0.0);
    assert_eq!(sum("receive"), sum("send"));
}
