"""What a model says of gradients by other means than its ops, while it is captured. A plan derives gradients of the ops alone.

What says the same as the ops is passed over. What says something else would be left out in silence, and so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.grad_mode import inference_mode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointFunction

from ..command import Error

DERIVED = "and a plan derives gradients itself, of the ops: leave it out"

SCALES = (0.3, 1.0, 5.0)
"""Of how large numbers gradients are compared."""

MOST_ELEMENTS = 1 << 28
"""Elements of the largest operands for which they are."""

_APPLIED: ContextVar[bool] = ContextVar("_APPLIED", default=False)

_COMPARED: ContextVar[tuple[Any, ...]] = ContextVar("_COMPARED", default=())
"""Functions whose gradients are being compared: a backward may call its own function."""

DIFFERENCE = 1e-3
"""By how much, of the largest element, gradients may differ that are the same."""


def in_function() -> bool:
    """Whether this is called in a function that has a ``backward`` of its own."""
    return _APPLIED.get()


def check_gradients(model: nn.Module) -> None:
    """Checks that nothing hangs on a model that sees gradients or changes them.

    Raises:
        Error: where something does, with its place.
    """
    for name, part in model.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise Error(f"`{name or type(part).__name__}` has a backward hook, {DERIVED}")
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise Error(f"the parameter `{name}` has a hook on its gradient, {DERIVED}")
    _check_apart(model)


def _check_apart(model: nn.Module) -> None:
    """Checks that no two parameters lie in one memory: whoever changes the one would change the other."""
    held: dict[tuple[str, int], str] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_meta or parameter.numel() == 0 or type(parameter) is not nn.Parameter:
            continue
        other = held.setdefault((str(parameter.device), parameter.data_ptr()), name)
        if other != name:
            raise Error(f"the parameters `{other}` and `{name}` share memory: let them be one parameter, under both names")


@contextmanager
def gradients_as_captured() -> Iterator[None]:
    """Lets functions with a ``backward``, inference mode and autocast mean what they mean to PyTorch, or be refused.

    Raises:
        Error: where this is entered under autocast.
    """
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            raise Error("the model is called under torch.autocast, of which a plan knows nothing: leave it, and give precision='bf16'")
    apply, checked = vars(Function)["apply"], set[Any]()
    entered, left, cast = inference_mode.__enter__, inference_mode.__exit__, torch.autocast.__enter__

    def enter(mode: Any) -> None:
        mode._instead = torch.no_grad() if mode.mode else torch.enable_grad()
        mode._instead.__enter__()

    def leave(mode: Any, *raised: Any) -> None:
        mode._instead.__exit__(*raised)

    Function.apply = classmethod(lambda own, *given, **more: _applied(own, apply.__func__, given, more, checked))  # type: ignore
    inference_mode.__enter__, inference_mode.__exit__ = enter, leave  # type: ignore[method-assign]
    torch.autocast.__enter__ = lambda mode: _cast(mode, cast)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Function.apply = apply  # type: ignore[method-assign]
        inference_mode.__enter__, inference_mode.__exit__ = entered, left  # type: ignore[method-assign]
        torch.autocast.__enter__ = cast  # type: ignore[method-assign]


def _cast(mode: Any, enter: Callable[[Any], Any]) -> Any:
    if mode._enabled:
        raise Error("the model enters torch.autocast, of which a plan knows nothing: leave it out, and give precision='bf16'")
    return enter(mode)


def _applied(own: Any, apply: Any, given: tuple[Any, ...], more: dict[str, Any], checked: set[Any]) -> Any:
    """What a function gives whose ``backward`` a plan does not call.

    Raises:
        Error: where that is not the gradient of what it computes, nor a multiple of the one that it is given.
    """
    if own is CheckpointFunction:
        # What is kept for gradients is the plan's affair.
        found = given[0](*given[2:])
        if _is_learned(found) and not _is_learned(given[2:]):
            said = "torch.utils.checkpoint with use_reentrant=True learns nothing of its weights where no input needs a gradient"
            raise Error(f"{said}, as PyTorch warns: give it use_reentrant=False")
        return found
    if own.__module__.split(".")[0] == "torch" or own in _COMPARED.get():
        return apply(own, *given, **more)
    token = _APPLIED.set(True)
    try:
        return _applied_by_user(own, apply, given, more, checked)
    finally:
        _APPLIED.reset(token)


def _is_learned(found: Any) -> bool:
    return any(isinstance(part, Tensor) and part.requires_grad for part in pytree.tree_leaves(found))


def _applied_by_user(own: Any, apply: Any, given: tuple[Any, ...], more: dict[str, Any], checked: set[Any]) -> Any:
    key = (own, str(pytree.tree_map_only(Tensor, lambda part: (part.dtype, part.shape), (given, more))))
    factor = None if key in checked else _multiple(own, apply, given, more)
    if factor is None:
        checked.add(key)
        return apply(own, *given, **more)
    x = next(part for part in given if isinstance(part, Tensor) and part.is_floating_point())
    return apply(own, *given, **more).detach() + (x - x.detach()) * factor


def _multiple(own: Any, apply: Any, given: tuple[Any, ...], more: dict[str, Any]) -> float | None:
    """``None`` where a function's gradient is that of what it computes, else by how much it multiplies the one that it is given.

    Raises:
        Error: where it does something else.
    """
    found: list[float | None] = []
    token = _COMPARED.set((*_COMPARED.get(), own))
    try:
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            for scale in SCALES:
                found.append(_factor(own, apply, given, more, scale))
    finally:
        _COMPARED.reset(token)
    if any(factor != found[0] for factor in found):
        raise _refused(own, "is not the gradient of its forward")
    return found[0]


def _factor(own: Any, apply: Any, given: tuple[Any, ...], more: dict[str, Any], scale: float, integer: int = 0) -> float | None:
    """The same for numbers of this size, and integers that are all the same: 0, as they may be places, or 1 where nothing is learned."""
    if sum(part.numel() for part in given if isinstance(part, Tensor)) > MOST_ELEMENTS:
        raise _refused(own, "has operands too large for it to be compared with the gradient of its forward")
    leaves = [_drawn(part, scale, integer) if isinstance(part, Tensor) else part for part in given]
    learned = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    try:
        with torch.enable_grad():
            found = _floats(apply(own, *_fresh(leaves), **more))
            upstream = [torch.randn_like(part) for part in found]
            gradients, derived = _gradients(found, learned, upstream), _derived(own, leaves, more, upstream)
    except Exception as error:
        raise _refused(own, f"could not be compared with the gradient of its forward ({type(error).__name__}: {error})") from error
    has_integers = any(isinstance(leaf, Tensor) and _is_integer(leaf) for leaf in leaves)
    if integer == 0 and has_integers and not any(bool(part.any()) for part in (*gradients, *derived)):
        return _factor(own, apply, given, more, scale, 1)
    if all(_is_near(a, b) for a, b in zip(gradients, derived, strict=True)):
        return None
    if len(learned) == len(found) == 1 and found[0].shape == learned[0].shape:
        factor = round(float((gradients[0] * upstream[0]).sum() / upstream[0].square().sum()), 5)
        if _is_near(gradients[0], upstream[0] * factor):
            return factor
    raise _refused(own, "is not the gradient of its forward")


def _derived(own: Any, leaves: list[Any], more: dict[str, Any], upstream: list[Tensor]) -> list[Tensor]:
    """The gradients of what a function's ``forward`` computes. It may write to what it has computed, as PyTorch lets it."""
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]

    def compute(*learned: Tensor) -> list[Tensor]:
        given = list(leaves)
        for place, leaf in zip(places, learned, strict=True):
            given[place] = leaf
        return _floats(own.forward(*([] if _has_setup(own) else [_Context(len(leaves))]), *_fresh(given), **more))

    functions: Any = torch.func
    pull = functions.vjp(functions.functionalize(compute), *(leaves[place].detach() for place in places))[1]
    return list(pull(upstream))


class _Context:
    """What a function's ``forward`` keeps for a ``backward`` that is not called."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _has_setup(own: Any) -> bool:
    return own.setup_context is not Function.setup_context


def _drawn(part: Tensor, scale: float, integer: int) -> Tensor:
    """Numbers of a tensor's type and shape."""
    if _is_integer(part):
        return torch.full(part.shape, integer, dtype=part.dtype)
    drawn = torch.randn(part.shape) * scale
    return drawn > 0 if part.dtype == torch.bool else drawn.to(part.dtype).requires_grad_()


def _is_integer(part: Tensor) -> bool:
    return not part.is_floating_point() and part.dtype != torch.bool


def _fresh(leaves: list[Any]) -> list[Any]:
    """Tensors that may be written to."""
    return [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _floats(found: Any) -> list[Tensor]:
    return [part for part in pytree.tree_leaves(found) if isinstance(part, Tensor) and part.is_floating_point()]


def _gradients(outputs: list[Tensor], learned: list[Tensor], upstream: list[Tensor]) -> list[Tensor]:
    """The gradients of outputs, given those that come from above; 0 where there is none."""
    reached = [(output, given) for output, given in zip(outputs, upstream, strict=True) if output.requires_grad]
    if not reached or not learned:
        return [torch.zeros_like(leaf) for leaf in learned]
    found = torch.autograd.grad([output for output, _ in reached], learned, [given for _, given in reached], allow_unused=True)
    return [torch.zeros_like(leaf) if part is None else part for part, leaf in zip(found, learned, strict=True)]


def _is_near(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach().float(), b.detach().float()
    return a.numel() == 0 or bool((a - b).abs().max() <= DIFFERENCE * b.abs().max())


def _refused(own: Any, why: str) -> Error:
    advice = "write `f(x) + (y - f(x)).detach()`, which has the value y and the gradient of f"
    return Error(f"the backward of {own.__qualname__} {why}, and a plan derives gradients itself, of the ops: {advice}")
