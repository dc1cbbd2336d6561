//! Runs the state machine once for each program with one or two streams, without time.
//!
//! On a rank with one stream, whether its actors may act does not depend on time, because only the order of the stream fills and frees its registers.
//! With two streams the machine follows one of the orders that the streams' knowledge of each other allows ([`graphc_plan::streams`]). If the machine
//! holds back no action in that order, it holds back none in any.

use graphc_ir::ids::RegisterId;
use graphc_plan::machine::{ActionId, Machine};
use graphc_plan::{Plan, Program, Rate};

use graphc_plan::streams::Known;

/// Executes the order of each program with one or two streams for some steps, and returns its greatest number of contents of a microbatch-rate
/// register; 0 for programs with more streams. `None` if an actor of any program may not act in its turn.
pub(super) fn follow_programs(plan: &Plan, steps: u64) -> Option<Vec<u64>> {
    let follow = |program| match Known::from_program(program) {
        Some(known) => follow_both(plan, program, &known, steps),
        None => follow_program(plan, program, steps),
    };
    plan.programs.iter().map(follow).collect()
}

fn follow_program(plan: &Plan, program: &Program, steps: u64) -> Option<u64> {
    let [stream] = program.streams.as_slice() else { return Some(0) };
    let mut machine = Machine::new(program, plan.microbatches);
    for step in 0..steps {
        for item in &stream.order {
            for &actor in &stream.blocks[item.block as usize] {
                run_action(&mut machine, ActionId { actor, step, microbatch: item.microbatch })?;
            }
        }
    }
    Some(high_water(program, &machine))
}

fn follow_both(plan: &Plan, program: &Program, known: &Known, steps: u64) -> Option<u64> {
    let mut machine = Machine::new(program, plan.microbatches);
    for step in 0..steps {
        for (actor, microbatch) in known.one_order()? {
            run_action(&mut machine, ActionId { actor, step, microbatch })?;
        }
    }
    Some(high_water(program, &machine))
}

fn run_action(machine: &mut Machine, action: ActionId) -> Option<()> {
    if machine.find_blocker(action).is_some() {
        return None;
    }
    machine.finish_action(action);
    Some(())
}

/// Returns the greatest number of contents of a microbatch-rate register that existed at once.
pub(super) fn high_water(program: &Program, machine: &Machine) -> u64 {
    let registers = program.registers.iter().enumerate();
    let microbatch = registers.filter(|(_, register)| register.rate == Rate::Microbatch);
    microbatch.map(|(index, _)| machine.high_water(RegisterId::new(index))).max().unwrap_or(0)
}
