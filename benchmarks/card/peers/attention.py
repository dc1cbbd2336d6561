"""PyTorch's fused attention in bf16 with a causal mask, at the shapes of `graphc calibrate` and of the kit's models: a line of JSON for each.

FLOPs are counted as graphc counts them: two products forward and five backward, of which the mask leaves half. What a backend does not
take is said.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = {
    "calibrate, 512 x 64": (8, 8, 512, 64),
    "calibrate, 4096 x 64": (1, 8, 4096, 64),
    "calibrate, 4096 x 128": (1, 8, 4096, 128),
    "GPT-2, 1024 x 64": (8, 12, 1024, 64),
    "LLaMA, 2048 x 64": (4, 32, 2048, 64),
}
"""Batch, heads, length and width of heads."""
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention": SDPBackend.FLASH_ATTENTION}
CALLS, ROUNDS = 10, 5


def seconds(call: Callable[[], object]) -> float:
    """The median of rounds of calls."""
    for _ in range(3):
        call()
    taken = []
    for _ in range(ROUNDS):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        for _ in range(CALLS):
            call()
        marks[1].record()
        torch.cuda.synchronize()
        taken.append(marks[0].elapsed_time(marks[1]) / 1e3 / CALLS)
    return statistics.median(taken)


def measure(shape: tuple[int, int, int, int], backend: SDPBackend) -> dict[str, float]:
    """Rates forward and backward."""
    batch, heads, length, width = shape
    # As models have them: the heads of a token lie side by side.
    made = lambda: torch.randn(batch, length, heads, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
    q, k, v = made(), made(), made()
    product = 2.0 * batch * heads * length * length * width / 2
    with sdpa_kernel(backend):
        forward = seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    gradient: Tensor = torch.randn_like(out)
    backward = seconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
    return {"forward": 2 * product / forward, "backward": 5 * product / backward, "forward_seconds": forward, "backward_seconds": backward}


def main() -> None:
    """Prints a line for each shape and backend."""
    for name, shape in SHAPES.items():
        for label, backend in BACKENDS.items():
            try:
                found: dict[str, object] = dict(measure(shape, backend))
            except RuntimeError as error:
                found = {"error": str(error)[:200]}
            print(json.dumps({"shape": name, "backend": label, **found}), flush=True)


if __name__ == "__main__":
    main()
