"""States whose next content a chain of elementwise ops has made already: the chain writes it, and their own update has nothing to do.

Optimizers that are composed of ops compute what an average becomes, to go along it, and update the average by an op of its own. Both are
the same arithmetic, so it is made once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .order import Action
from .plan import Actor, Compute, FusedArg, FusedOp, FusedStep, Plan, Program, Rate, scalar


@dataclass(slots=True)
class Averages:
    """What chains write besides their own results, by their actors, and which actors have nothing left to do."""

    written: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By actor the steps of its chain that are the next contents of states, with the states' registers."""
    done: set[int] = field(default_factory=set)


def find_averages(plan: Plan, program: Program, order: Sequence[Action]) -> Averages:
    """The states that chains may write, of a program whose actions come in this order, one after the other."""
    found, chain = Averages(), -1
    touched: set[int] = set()
    for action in order:
        actor = program.actors[action.actor]
        if isinstance(actor.action.does, FusedOp) and actor.rate is Rate.STEP:
            chain, touched = action.actor, set()
            continue
        if not _is_update(actor):
            chain = -1
        if chain < 0:
            continue
        step = _step_of(program.actors[chain], actor)
        if step is not None and _is_alike(plan, program, actor) and not touched & {*actor.updates}:
            found.written.setdefault(chain, []).append((step, actor.updates[0]))
            found.done.add(action.actor)
        touched |= {*actor.updates, *actor.inputs}
    return found


def _is_update(actor: Actor) -> bool:
    """Whether an actor only leaves something in what lives from step to step."""
    return isinstance(actor.action.does, Compute) and actor.rate is Rate.STEP and bool(actor.updates) and not actor.outputs


def _is_alike(plan: Plan, program: Program, actor: Actor) -> bool:
    """Whether what an update reads has the shape and the type of what it updates."""
    registers = [program.registers[index] for index in (*actor.updates, *actor.inputs)]
    return len({(register.shape, plan.layouts[register.layout].dtype) for register in registers}) == 1


def _step_of(chain: Actor, actor: Actor) -> int | None:
    """The step of a chain that gives what a blend leaves in its state; none where there is none."""
    does, fused = actor.action.does, chain.action.does
    assert isinstance(does, Compute) and isinstance(fused, FusedOp), "the one is an update, the other a chain"
    if does.op.name != "blend" or does.operands != (-1, 0) or bool(does.op.get("starts", False)):
        return None
    decay, rate = does.op.number("decay"), does.op.number("rate")
    state, new = list(_places(chain, fused, actor.updates[0])), list(_places(chain, fused, actor.inputs[0]))
    if decay == 0.0:
        return next((arg.step for arg in new if arg.step is not None), None) if rate == 1.0 else None
    for index, step in enumerate(fused.steps):
        if step.op.name == "binary" and step.op["function"] == "add":
            a, b = step.args
            ways = ((a, b), (b, a))
            if any(_is_scaled(fused, one, state, decay) and _is_scaled(fused, other, new, rate) for one, other in ways):
                return index
    return None


def _places(chain: Actor, fused: FusedOp, register: int) -> Iterator[FusedArg]:
    """As what a chain has a register: its operands, and the steps that it gives."""
    yield from (FusedArg(operand=index, step=None) for index, other in enumerate(chain.inputs) if other == register)
    yield from (FusedArg(operand=None, step=step) for step, other in zip(fused.outputs, chain.outputs, strict=True) if other == register)


def _is_scaled(fused: FusedOp, arg: FusedArg, of: Sequence[FusedArg], factor: float) -> bool:
    """Whether a value is one of these times a number."""
    if factor == 1.0 and arg in of:
        return True
    step = None if arg.step is None else fused.steps[arg.step]
    return step is not None and step.args[0] in of and _scale_of(step) == factor


def _scale_of(step: FusedStep) -> float | None:
    function = step.op["function"] if step.op.name == "unary" else None
    return scalar(function["scale"]) if isinstance(function, dict) and "scale" in function else None
