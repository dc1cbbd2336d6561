//! Plans made by hand that would alias memory, crash or hang are refused before there is a session.

use crate::common::{Builder, by_rows, f32s, tour};
use graphc_ir::ids::LayoutId;
use graphc_ir::op::Op;
use graphc_ir::ops::{Init, SgdUpdate};
use graphc_ir::scalar::Scalar;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Action, BoxingKind, OperandSource, Plan, Rate, StreamItem};

/// Returns the faults of a plan; empty if it has none.
fn errors(plan: Plan) -> String {
    VerifiedPlan::check(plan).err().map_or_else(String::new, |errors| errors.to_string())
}

/// x from rank 0 to rank 1, in microbatches.
fn sent(microbatches: usize) -> Plan {
    let mut builder = Builder::new(2, microbatches);
    let [x, y] = [0, 1]
        .map(|rank| builder.tensor(&by_rows(f32s(&[8, 3], &[rank], "B")), Rate::Microbatch, 1));
    builder.feed("x", x, Rate::Microbatch);
    builder.channel(x, y, Rate::Microbatch, 1);
    builder.fetch("y", y, Rate::Microbatch);
    let mut plan = builder.plan();
    // One microbatch after the other.
    for stream in plan.programs.iter_mut().flat_map(|program| &mut program.streams) {
        stream.order.sort_by_key(|item| (item.microbatch, item.block));
    }
    plan
}

/// An edit, and what the refusal says.
type Edited<'a> = (&'a dyn Fn(&mut Plan), &'a str);

#[test]
fn edits_are_refused_with_their_place() {
    assert_eq!(errors(sent(4)), "");
    let cases: [Edited<'_>; 14] = [
        (&|plan| plan.version = 99, "version: is 99"),
        (&|plan| plan.microbatches = 1 << 32, "microbatches: is 4294967296"),
        (&|plan| plan.layouts[0].shape[0] = 1 << 62, "larger than any memory"),
        (&|plan| plan.layouts[0].shape = vec![0, 1 << 62, 1 << 62], "larger than any memory"),
        (&|plan| plan.channels[0].slots = u32::MAX, "channels[0] `t`: has 4294967295 slots"),
        (&|plan| plan.programs[0].arena_bytes = 1 << 50, "programs[0]: its arena has"),
        (&|plan| plan.programs[0].registers[0].offset = 1 << 40, "registers[0]"),
        (&|plan| plan.programs[0].registers[0].slots = 7, "registers[0]"),
        (&|plan| plan.programs[1].streams[0].blocks.swap(0, 1), "the plan hangs"),
        (&|plan| plan.programs[0].streams[0].order.reverse(), "runs for microbatches"),
        (&|plan| plan.ranks.swap(0, 1), "is not of its layout"),
        (&|plan| plan.programs[1].actors[0].rate = Rate::Step, "receive"),
        (&|plan| plan.programs[0].actors[1].inputs[0].0 = 9, "there is no register r9"),
        (&|plan| std::mem::take(&mut plan.programs[1].streams).truncate(0), "it has no stream"),
    ];
    for (edit, named) in cases {
        let mut plan = sent(4);
        edit(&mut plan);
        let bytes = plan.programs.iter().map(|program| program.arena_bytes);
        plan.predicted.peak_memory_bytes = bytes.collect();
        let found = errors(plan);
        assert!(found.contains(named), "`{named}` is not in: {found}");
    }
}

#[test]
fn the_ends_of_a_channel_cannot_change_places() {
    let mut plan = sent(2);
    let channel = &mut plan.channels[0];
    std::mem::swap(&mut channel.from, &mut channel.to);
    let found = errors(plan);
    assert!(found.contains("does not lie as its channel says"), "{found}");
}

#[test]
fn ranks_that_wait_for_each_other_are_named() {
    let all = f32s(&[4], &[0, 1], "P");
    let sum = f32s(&[4], &[0, 1], "B");
    let mut builder = Builder::new(2, 1);
    for name in ["a", "b"] {
        let [x, y] = [&all, &sum].map(|layout| builder.tensor(layout, Rate::Step, 1));
        builder.feed(name, x, Rate::Step);
        builder.collective(BoxingKind::AllReduce, 0, &[x], &[y], Rate::Step);
        builder.fetch(&format!("{name} out"), y, Rate::Step);
    }
    let mut plan = builder.plan();
    assert_eq!(errors(plan.clone()), "");
    // Rank 1 comes to the second sum first.
    plan.programs[1].streams[0].order.rotate_left(3);
    let found = errors(plan);
    for part in ["hangs", "rank 0: `collective`", "rank 1: `collective`"] {
        assert!(found.contains(part), "{found}");
    }
}

/// A variable that is both operands of its own update would be read while it is written.
#[test]
fn a_variable_is_one_operand_of_its_update() {
    let whole = f32s(&[6], &[0], "B");
    let sgd = SgdUpdate {
        lr: 0.1.into(),
        momentum: Scalar(0.0),
        nesterov: false,
        weight_decay: Scalar(0.0),
        clip: None,
    };
    for (operands, sound) in [([-1, 0], true), ([-1, -1], false), ([0, 0], false)] {
        let operands = operands.map(OperandSource::from).to_vec();
        let mut builder = Builder::new(1, 1);
        let w = builder.variable("w", &whole, Init::Fill(Scalar(1.0)));
        let g = builder.tensor(&whole, Rate::Step, 1);
        builder.feed("g", g, Rate::Step);
        let action = Action::Compute { op: Op::SgdUpdate(sgd.clone()), operands };
        builder.actor("sgd", action, Rate::Step, [&[g], &[], &[w]]);
        let found = errors(builder.plan());
        assert_eq!(found.is_empty(), sound, "{found}");
        assert!(sound || found.contains("`sgd`"), "{found}");
    }
}

/// Of 4 microbatches in 3 slots the first lies in slot 0, then 1, then 2: what shares slot 2 is overwritten at step 2.
#[test]
fn slots_that_rotate_are_looked_at_beyond_two_steps() {
    for overlaps in [false, true] {
        let mut builder = Builder::new(1, 4);
        let part = by_rows(f32s(&[4, 16], &[0], "B"));
        let x = builder.tensor(&part, Rate::Microbatch, 3);
        let y = builder.tensor(&f32s(&[16], &[0], "B"), Rate::Step, 1);
        builder.feed("x", x, Rate::Microbatch);
        builder.fetch("x out", x, Rate::Microbatch);
        builder.feed("y", y, Rate::Step);
        builder.fetch("y out", y, Rate::Step);
        let mut plan = builder.plan();
        let program = &mut plan.programs[0];
        let item = |block, microbatch| StreamItem { block, microbatch };
        let mut order = vec![item(2, 0), item(0, 0), item(1, 0), item(3, 0)];
        order.extend((1..4).flat_map(|microbatch| [item(0, microbatch), item(1, microbatch)]));
        program.streams[0].order = order;
        if overlaps {
            program.registers[1].offset = program.registers[0].offset + 2 * 64;
            program.arena_bytes = 3 * 64;
            plan.predicted.peak_memory_bytes = vec![3 * 64];
        }
        let found = errors(plan);
        assert_eq!(found.contains("fetch y out"), overlaps, "{found}");
        assert_eq!(found.is_empty(), !overlaps, "{found}");
    }
}

#[test]
fn parts_of_one_output_lie_in_one_layout() {
    let mut plan = tour(&[f32s(&[6], &[0, 1], "B")], &[]).plan();
    assert_eq!(errors(plan.clone()), "");
    let mut other = plan.layouts[0].clone();
    other.shape = vec![7];
    plan.layouts.push(other);
    for register in &mut plan.programs[1].registers {
        (register.layout, register.shape) = (LayoutId(1), vec![7]);
    }
    let found = errors(plan);
    assert!(found.contains("input `x` is f32[7] here") && found.contains("output `y`"), "{found}");
}
