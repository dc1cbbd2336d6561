"""A PyTorch model trained by a plan: its graph is captured, planned by graphc, and executed by ``graphc_torch``.

:mod:`.capture` makes one graph of ATen's ops of a module and its loss, :mod:`.translate` writes it as graphc's text,
:mod:`.optimizers` reads an optimizer's options, :mod:`.planning` plans on one rank for all, :mod:`.model` steps.
:mod:`.hugging_face` and :mod:`.lightning` are for the trainers of others, which must be installed.
"""

from .model import Parallel, parallelize

__all__ = ["Parallel", "parallelize"]
