"""Plans of graphc, executed by PyTorch: its kernels compute, ``torch.distributed`` communicates.

>>> import graphc_torch                                                  # doctest: +SKIP
>>> plan = graphc_torch.load("plan.json")                                # doctest: +SKIP
>>> print(plan.tensors["layers.0.weight"].sbp, plan.predicted)           # doctest: +SKIP

Start reading with :mod:`graphc_torch.plan`, then :mod:`graphc_torch.session`, then :mod:`graphc_torch.executor`.
"""

from .data import load_tensors, model_weights, save_tensors
from .errors import CheckpointError, FeedError, GraphcError, PlanError, RunError
from .plan import Plan
from .reading import load, parse
from .session import Session

__all__ = [
    "CheckpointError",
    "FeedError",
    "GraphcError",
    "Plan",
    "PlanError",
    "RunError",
    "Session",
    "load",
    "load_tensors",
    "model_weights",
    "parse",
    "save_tensors",
]
