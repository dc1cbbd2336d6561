"""graphc in Python: plans are made by its command, and read here as plain dataclasses.

>>> import graphc                                                                            # doctest: +SKIP
>>> plan = graphc.compile("model.onnx", batch=32, mesh=(2, 2), loss="cross_entropy", optimizer="adamw")    # doctest: +SKIP
>>> plan.predicted.step_seconds, plan.explain("layers.0.weight").alternatives                # doctest: +SKIP

Nothing here needs PyTorch. Start reading with :mod:`graphc.plan`.
"""

from .command import Error
from .plan import Plan, compare, compile, diff, load, report

__all__ = ["Error", "Plan", "compare", "compile", "diff", "load", "report"]
