"""What a model does with the ``data`` of its tensors while it is captured: PyTorch's graphs do not see that others are put in its place."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..command import Error

GIVEN: Any = Tensor.data.__get__  # type: ignore[attr-defined]
"""What gives a tensor's data, by its name alone."""

PUT: Any = Tensor.data.__set__  # type: ignore[attr-defined]
"""What puts another tensor in the place of a tensor's data."""


def data_of(x: Tensor) -> Tensor:
    """The same numbers, of which nothing is learned: where nothing is in any case they are the tensor's own, and may be written to."""
    return x.detach() if x.requires_grad else x.view_as(x)


def replace_data_(x: Tensor, value: Tensor) -> None:
    """Writes to a tensor what is put in the place of its data.

    Raises:
        Error: where its gradient would be that of what it was, or it becomes another kind of tensor.
    """
    if _is_the_same(x, value):
        return
    if x.shape != value.shape or x.dtype != value.dtype:
        was, now = (f"{part.dtype}{list(part.shape)}" for part in (x, value))
        raise Error(f"the model puts {now} in the place of the data of a tensor that is {was}: let both be alike")
    if not x.requires_grad:
        x.copy_(value.detach())
    elif x.is_leaf:
        raise Error("the model puts other numbers into a parameter, which the optimizer changes: compute with a changed copy of it")
    else:
        raise Error("the model puts other numbers into a tensor (`x.data = ..`) whose gradient stays as it was: compute a new tensor")


def _is_the_same(x: Tensor, value: Tensor) -> bool:
    """Whether a tensor is a view of all of another, as what was converted to the type that it has."""
    alike = (x.shape, x.dtype, x.stride(), x.storage_offset()) == (value.shape, value.dtype, value.stride(), value.storage_offset())
    return alike and x.untyped_storage()._cdata == value.untyped_storage()._cdata
