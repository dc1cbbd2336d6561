"""Layers of experts, :mod:`graphc.parallel.experts`."""

from __future__ import annotations

from collections.abc import Callable

from .call import Call, Result


def dispatch(call: Call) -> Result:
    """Rows at the places of the experts that they chose: all experts share one block, which has a place for each choice."""
    operands = [call.tensor("x"), call.tensor("chosen")]
    return call.writer.node("dispatch", operands, call.dtype, call.shape, blocks=1, capacity=call.shape[2], experts=int(call["experts"]))


def grouped_matmul(call: Call) -> Result:
    """Places times the matrices of their experts."""
    operands = [call.tensor("x"), call.tensor("matrices"), call.tensor("chosen")]
    return call.writer.node("grouped_matmul", operands, call.dtype, call.shape, transpose_b=bool(call["transposed"]))


def combine(call: Call) -> Result:
    """Rows back from their places, weighed and added up."""
    operands = [call.tensor("y"), call.tensor("chosen"), call.tensor("weights")]
    return call.writer.node("combine", operands, call.dtype, call.shape, experts=int(call["experts"]))


TABLE: dict[str, Callable[[Call], Result]] = {
    "graphc.dispatch.default": dispatch,
    "graphc.grouped_matmul.default": grouped_matmul,
    "graphc.combine.default": combine,
}
