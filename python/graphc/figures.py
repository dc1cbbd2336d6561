"""What graphc says of plans: one frozen dataclass for each thing that it prints as JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Planner:
    """How a plan was found."""

    status: str
    """``optimal`` where it is proven that there is none better, else ``gap``."""
    gap: float
    """The share of the objective that the bound leaves open."""
    objective_seconds: float
    bound_seconds: float


@dataclass(frozen=True)
class Predicted:
    """What a step will take."""

    step_seconds: float
    bubble_fraction: float
    peak_memory_bytes: tuple[int, ...]
    """Of a rank of each stage."""


@dataclass(frozen=True)
class Tensor:
    """Where a tensor is, and how it lies there."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    ranks: tuple[int | tuple[int, ...], ...]
    hierarchy: tuple[int, ...]
    sbp: tuple[str, ...]
    """One SBP for each mesh axis: ``S(0)``, ``B``, ``P(sum)``."""
    stage: int | None


@dataclass(frozen=True)
class Boxing:
    """A tensor that is brought from one layout to another."""

    tensor: str
    kind: str
    axis: int | None
    bytes: int
    rate: str


@dataclass(frozen=True)
class Contents:
    """What is where in a plan."""

    name: str
    world_size: int
    mesh: tuple[int, ...]
    stages: int
    microbatches: int
    planner: Planner
    predicted: Predicted
    tensors: tuple[Tensor, ...]
    boxing: tuple[Boxing, ...]


@dataclass(frozen=True)
class Alternative:
    """Another layout of a tensor."""

    sbp: tuple[str, ...]
    objective_seconds: float | None
    """Of the best plan with it; ``None`` where there is none."""
    changes: tuple[str, ...] | None
    """Tensors that lie in other layouts there."""
    error: str | None
    """Why there is no plan with it."""


@dataclass(frozen=True)
class Explanation:
    """Why a tensor lies as it does."""

    objective_seconds: float
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True)
class Peak:
    """What fills the memory of a program's ranks at their peak."""

    bytes: int
    actor: str
    """The actor that runs then."""
    kinds: dict[str, int]
    largest: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Memory:
    """The peak of each program."""

    programs: tuple[Peak, ...]


@dataclass(frozen=True)
class StageTime:
    """What a stage's ranks do in a step."""

    stage: int
    ranks: int
    busy_seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True)
class Simulation:
    """A step in modelled time."""

    cluster: str
    framework: str
    step_seconds: float
    bubble_fraction: float
    compute_fraction: float
    communication_fraction: float
    waiting_fraction: float
    overlap_fraction: float
    mfu: float | None
    memory_bytes: int
    peak_memory_bytes: tuple[int, ...]
    stages: tuple[StageTime, ...]


@dataclass(frozen=True)
class Number:
    """A figure of two plans."""

    before: float | None
    after: float | None


@dataclass(frozen=True)
class Words:
    """Something of two plans, in words."""

    before: str | None
    after: str | None


@dataclass(frozen=True)
class Difference:
    """What differs between two plans."""

    inputs: dict[str, Words]
    """What they were compiled of: models, options."""
    figures: dict[str, Number]
    collectives: dict[str, Number]
    tensors: dict[str, Words]
    """Layouts."""


@dataclass(frozen=True)
class Comparison:
    """What a strategy comes to."""

    strategy: str
    planner: Planner | None
    predicted: Predicted | None
    seconds: float | None
    error: str | None
    """Why there is no plan."""
