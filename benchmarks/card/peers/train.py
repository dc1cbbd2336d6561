"""PyTorch's side of a training: `train.py MODEL DATA`. Each line on standard input, `eager 20` or `compile 20`, is answered by a line of
JSON: seconds of each of so many steps, losses, bytes of memory at the peak; `updates 20` by the seconds of updates alone, `parameters 0` by
how many numbers are trained. What PyTorch itself prints goes to standard error.

The best that PyTorch has is taken: autocast to bf16, fused attention and fused AdamW, images channels last, TF32 where numbers stay f32,
and no look at a loss before the last step. Batches come from pinned memory.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import made

SMALL = os.environ.get("CARD_SMALL") == "1"
COMPILER = os.environ.get("CARD_COMPILER", "inductor")
"""What `torch.compile` compiles with: a rehearsal may be where there is no C++ compiler."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WARM = 2 if SMALL else 6
"""Steps of a mode that are not counted, before its first ones."""


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    types = {"I64": torch.int64, "F32": torch.float32}
    tensors = {}
    for name, entry in json.loads(content[8 : 8 + length]).items():
        first, last = (8 + length + at for at in entry["data_offsets"])
        flat = torch.frombuffer(bytearray(content[first:last]), dtype=types[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def optimizer(model: nn.Module, options: list[str]) -> torch.optim.Optimizer:
    """The optimizer that graphc is told of by these options."""
    told = dict(zip(options[::2], options[1::2], strict=True))
    number = lambda name: float(told.get(name, "0"))
    fused = {"fused": True} if DEVICE == "cuda" else {}
    if told["--optimizer"] == "sgd":
        return torch.optim.SGD(model.parameters(), lr=number("--lr"), momentum=number("--momentum"), **fused)
    return torch.optim.AdamW(model.parameters(), lr=number("--lr"), weight_decay=number("--weight-decay"), **fused)


class Training:
    """A model in one mode."""

    def __init__(self, sizes: dict[str, Any], mode: str, data: dict[str, Tensor]) -> None:
        torch.manual_seed(0)
        layout = torch.channels_last if sizes["kind"] == "resnet" else torch.contiguous_format
        self.model = made(sizes).to(device=DEVICE, memory_format=layout)
        self.optimizer = optimizer(self.model, sizes["optimizer"])
        batch = sizes["batch"]
        pin = (lambda tensor: tensor.pin_memory()) if DEVICE == "cuda" else (lambda tensor: tensor)
        first = "x" if "x" in data else "tokens"
        self.batches = [(pin(x), pin(y)) for x, y in zip(data[first].split(batch), data["labels"].split(batch), strict=True)]
        self.forward: Callable[[Tensor, Tensor], Tensor] = self.loss
        if mode == "compile":
            self.forward = torch.compile(self.loss, backend=COMPILER)
        self.step_count = 0

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """The mean cross entropy."""
        logits = self.model(x)
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten())

    def step(self) -> Tensor:
        """One step; its loss, on the device."""
        x, labels = self.batches[self.step_count % len(self.batches)]
        self.step_count += 1
        x, labels = x.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = self.forward(x, labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def measure_updates(self, steps: int) -> dict[str, object]:
        """Updates alone, by the same gradients."""
        x, labels = (tensor.to(DEVICE) for tensor in self.batches[0])
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = self.loss(x, labels)
        loss.backward()
        self.optimizer.step()
        seconds = []
        for _ in range(steps):
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            begun = time.perf_counter()
            self.optimizer.step()
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
        self.optimizer.zero_grad(set_to_none=True)
        return {"seconds": seconds}

    def measure(self, steps: int) -> dict[str, object]:
        """Steps, of which the card tells when each has ended."""
        if self.step_count == 0:
            self.first = float(self.step())
            for _ in range(WARM - 1):
                self.step()
        if DEVICE != "cuda":
            return self.measure_here(steps)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        others = torch.cuda.memory_allocated() - self.bytes()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        marks[0].record()
        for mark in marks[1:]:
            loss = self.step()
            mark.record()
        last = float(loss)
        seconds = [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:], strict=False)]
        memory = torch.cuda.max_memory_allocated() - others
        # Others have their turn.
        torch.cuda.empty_cache()
        return {"seconds": seconds, "losses": [self.first, last], "memory": memory}

    def bytes(self) -> int:
        """What the weights and the optimizer's states take."""
        states = [value for state in self.optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
        return sum(tensor.nbytes for tensor in [*self.model.parameters(), *states])

    def count(self) -> dict[str, object]:
        """How many numbers are trained."""
        return {"parameters": sum(weight.numel() for weight in self.model.parameters())}

    def measure_here(self, steps: int) -> dict[str, object]:
        """The same without a card, for rehearsals."""
        seconds, last = [], 0.0
        for _ in range(steps):
            begun = time.perf_counter()
            last = float(self.step())
            seconds.append(time.perf_counter() - begun)
        return {"seconds": seconds, "losses": [self.first, last], "memory": None}


def answer(training: Training, mode: str, steps: int) -> dict[str, object]:
    """What is asked for."""
    match mode:
        case "updates":
            return training.measure_updates(steps)
        case "parameters":
            return training.count()
        case "eager" | "compile":
            return training.measure(steps)
        case _:
            raise ValueError(f"nothing is known of {mode}")


def main() -> None:
    """Answers, on a standard output on which nobody else writes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    name, data = sys.argv[1], read(Path(sys.argv[2]))
    sizes = json.loads((Path(__file__).resolve().parent.parent / "models/models.json").read_text())[f"{name}-small" if SMALL else name]
    trainings: dict[str, Training] = {}
    for line in sys.stdin:
        mode, steps = line.split()
        try:
            of = "compile" if mode == "compile" else "eager"
            if of not in trainings:
                trainings[of] = Training(sizes, of, data)
            said = answer(trainings[of], mode, int(steps))
        except Exception as error:  # Whatever it is, the other modes go on
            said = {"error": f"{type(error).__name__}: {error}"[:600]}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
