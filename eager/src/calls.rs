//! Calls of operations: finds or makes the plan of a call, compares the call between the ranks, and executes the plan.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use graphc_ir::random::key_of;
use graphc_runtime::{RoutineCall, Routines};

use crate::context::EagerState;
use crate::error::EagerError;
use crate::operation::EagerOperation;
use crate::planning::{OperationPlan, plan_operation};
use crate::plans::{CallKey, PreparedOperation};
use crate::spots::{Spot, Spots};
use crate::tensor::GlobalTensor;

/// Does an operation on one or two operands. `number` tells calls apart whose operands include a number.
///
/// # Errors
/// Returns an error if the operands do not fit each other or the operation, if the ranks call different things, or if the job ends.
pub(crate) fn call_operation(
    operation: EagerOperation,
    operands: &[&GlobalTensor],
    number: u64,
) -> Result<GlobalTensor, EagerError> {
    let eager = operands[0].eager();
    check_operands(&operation, operands)?;
    let number_of = |index: usize| operands.get(index).map(|operand| operand.spot().number);
    let key = CallKey { operation, operands: [number_of(0), number_of(1)] };
    let mut state = eager.lock_state();
    let EagerState { routines, plans, spots, .. } = &mut *state;
    plans.evict_oldest();
    let prepared = match plans.by_call.entry(key) {
        Entry::Occupied(known) => {
            let known = known.into_mut();
            let call = RoutineCall { text: &known.text, digest: known.digest ^ number };
            routines.compare_call(call, &known.ranks)?;
            known
        }
        Entry::Vacant(place) => {
            let operation = &place.key().operation;
            let prepared = prepare_call((routines, spots), operation, operands, number)?;
            place.insert(prepared)
        }
    };
    plans.calls += 1;
    prepared.called = plans.calls;
    let result = Arc::clone(&prepared.result);
    let shards = [0, 1].map(|index| operands.get(index).and_then(|operand| operand.to_local()));
    let local = routines.run(&mut prepared.routine, &shards)?;
    Ok(GlobalTensor::new(eager, result, local))
}

/// Plans an operation and loads the plan, once the ranks agree that they call it.
fn prepare_call(
    (routines, spots): (&mut Routines, &mut Spots),
    operation: &EagerOperation,
    operands: &[&GlobalTensor],
    number: u64,
) -> Result<PreparedOperation, EagerError> {
    let text = describe_call(operation, operands);
    let (digest, ranks) = (key_of(&text), participating_ranks(operation, operands));
    routines.compare_call(RoutineCall { text: &text, digest: digest ^ number }, &ranks)?;
    let operands: Vec<_> = operands.iter().map(|operand| Arc::clone(operand.spot())).collect();
    let of_operands: Vec<&Spot> = operands.iter().map(Arc::as_ref).collect();
    let OperationPlan { plan, result } =
        plan_operation(operation, &of_operands, routines.world_size(), &text)?;
    let routine = routines.load(&plan, &result)?;
    let result = spots.find_spot(&result);
    Ok(PreparedOperation { routine, _operands: operands, result, ranks, text, digest, called: 0 })
}

/// Returns the ranks that take part, in ascending order and each once.
fn participating_ranks(operation: &EagerOperation, operands: &[&GlobalTensor]) -> Vec<u32> {
    let mut ranks = operands[0].placement().ranks.clone();
    if let EagerOperation::ToGlobal(placement, _) = operation {
        ranks.extend(&placement.ranks);
    }
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Checks that operands can meet: they are of one context and on one placement.
fn check_operands(
    operation: &EagerOperation,
    operands: &[&GlobalTensor],
) -> Result<(), EagerError> {
    let [first, other] = operands else { return Ok(()) };
    if !first.eager().is_same_context(other.eager()) {
        return Err(EagerError::Contexts { call: describe_call(operation, operands) });
    }
    let (first, other) = (first.placement(), other.placement());
    if first == other {
        return Ok(());
    }
    let (first, other) = (Box::new(first.clone()), Box::new(other.clone()));
    Err(EagerError::Placements { call: describe_call(operation, operands), first, other })
}

/// Describes a call for people.
fn describe_call(operation: &EagerOperation, operands: &[&GlobalTensor]) -> String {
    let operands: Vec<String> = operands.iter().map(|operand| operand.spot().to_string()).collect();
    format!("{operation} of {}", operands.join(" and "))
}
