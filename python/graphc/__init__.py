"""graphc in Python: plans are made by its command, and read here as plain dataclasses.

>>> import graphc                                                                            # doctest: +SKIP
>>> plan = graphc.compile("model.onnx", batch=32, mesh=(2, 2), loss="cross_entropy", optimizer="adamw")    # doctest: +SKIP
>>> plan.predicted.step_seconds, plan.explain("layers.0.weight").alternatives                # doctest: +SKIP

Nothing here needs PyTorch but :func:`parallelize`, which trains a PyTorch model by a plan of its own.
Start reading with :mod:`graphc.plan`, then :mod:`graphc.parallel`.
"""

from typing import TYPE_CHECKING, Any

from .command import Error, Unplanned
from .plan import Plan, compare, compile, diff, load, report

if TYPE_CHECKING:
    from .parallel import Parallel, parallelize

__all__ = ["Error", "Parallel", "Plan", "Unplanned", "compare", "compile", "diff", "load", "parallelize", "report"]


def __getattr__(name: str) -> Any:
    """What needs PyTorch is imported where it is asked for."""
    if name not in ("Parallel", "parallelize"):
        raise AttributeError(f"module 'graphc' has no attribute {name!r}")
    try:
        from . import parallel
    except ModuleNotFoundError as error:
        raise Error(f"graphc.{name} needs {error.name}: pip install 'graphc[torch]'") from error
    return getattr(parallel, name)
