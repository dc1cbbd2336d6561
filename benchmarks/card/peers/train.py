"""PyTorch's side of a training: `train.py MODEL DATA`. Each line on standard input, `eager 20` or `compile 20`, is answered by a line of
JSON: seconds of each of so many steps, losses, bytes of memory at the peak; `updates 20` by the seconds of updates alone.

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

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import Gpt2, Llama
from torch_models import ResNet50

SMALL = os.environ.get("CARD_SMALL") == "1"
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


def made(name: str) -> tuple[nn.Module, torch.optim.Optimizer, int]:
    """A model, its optimizer, samples of a batch."""
    torch.manual_seed(0)
    fused = {"fused": True} if DEVICE == "cuda" else {}
    if name == "resnet50":
        model: nn.Module = ResNet50(1000).to(DEVICE, memory_format=torch.channels_last)
        return model, torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, **fused), 2 if SMALL else 64
    if name == "llama":
        model, batch = Llama.small() if SMALL else Llama.billion(), 2 if SMALL else 4
    else:
        model, batch = Gpt2.small() if SMALL else Gpt2.published(), 2 if SMALL else 8
    model = model.to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01, **fused), batch


class Training:
    """A model in one mode."""

    def __init__(self, name: str, mode: str, data: dict[str, Tensor]) -> None:
        self.model, self.optimizer, batch = made(name)
        pin = (lambda tensor: tensor.pin_memory()) if DEVICE == "cuda" else (lambda tensor: tensor)
        first = "x" if "x" in data else "tokens"
        self.batches = [(pin(x), pin(y)) for x, y in zip(data[first].split(batch), data["labels"].split(batch), strict=True)]
        self.forward: Callable[[Tensor, Tensor], Tensor] = self.loss
        if mode == "compile":
            self.forward = torch.compile(self.loss)
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

    def measure_here(self, steps: int) -> dict[str, object]:
        """The same without a card, for rehearsals."""
        seconds, last = [], 0.0
        for _ in range(steps):
            begun = time.perf_counter()
            last = float(self.step())
            seconds.append(time.perf_counter() - begun)
        return {"seconds": seconds, "losses": [self.first, last], "memory": None}


def main() -> None:
    """Answers."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    name, data = sys.argv[1], read(Path(sys.argv[2]))
    trainings: dict[str, Training] = {}
    for line in sys.stdin:
        mode, steps = line.split()
        try:
            of = "eager" if mode == "updates" else mode
            if of not in trainings:
                trainings[of] = Training(name, of, data)
            training = trainings[of]
            answer = training.measure_updates(int(steps)) if mode == "updates" else training.measure(int(steps))
        except Exception as error:  # noqa: BLE001: whatever it is, the other modes go on
            answer = {"error": f"{type(error).__name__}: {error}"[:600]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
