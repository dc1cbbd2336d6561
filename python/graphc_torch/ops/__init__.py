"""The ops of plans, one function each: what it does once when a plan is loaded, and the action that it gives.

Start with :mod:`graphc_torch.ops.base`. An op is written from its meaning (``evaluate`` and ``rule`` in graphc's ``ir/src/ops``).
"""

from . import elementwise, experts, grouped, image, movement, places, products, recurrence, rows, sources, updates
from .base import HALVES, TABLE, TORCH, UPDATES, Call, Clock, Port, Run, overlap, prepare, same_memory
from .chain import prepare_chain

__all__ = ["HALVES", "TABLE", "TORCH", "UPDATES", "Call", "Clock", "Port", "Run", "overlap", "prepare", "prepare_chain", "same_memory"]

_ROOMS = (elementwise, experts, grouped, movement, image, places, products, recurrence, rows, sources, updates)
