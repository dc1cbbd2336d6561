"""Trains the reference resnet in PyTorch on the CPU, in float32 and under torch.autocast, and writes the losses.

    pip install torch numpy onnx safetensors
    python tests/refs/resnet/autocast.py

The float32 losses must be those of ref.json: so the model below is the one that was exported.
f16 has no scaling of the loss here: gradients of this model are large enough.

Rounding early in the training grows until its end, so one run says little. `TRIES` runs are recorded for each precision: the first
with the images as they are, the others with images moved at random by less than bf16 rounds them.
"""

import json
from pathlib import Path

import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from safetensors.torch import load_file

HERE = Path(__file__).parent
REFERENCE = json.loads((HERE / "ref.json").read_text())
ARGS = dict(zip(REFERENCE["args"][::2], REFERENCE["args"][1::2]))


TRIES = 16


def conv(w, x, name, stride=1):
    kernel = w[name]
    return F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)


def norm(w, x, name):
    mean, var = w[f"{name}.running_mean"], w[f"{name}.running_var"]
    return F.batch_norm(x, mean, var, w[f"{name}.weight"], w[f"{name}.bias"], training=True)


def block(w, x, name, stride, down):
    y = F.relu(norm(w, conv(w, x, f"{name}.c1.weight", stride), f"{name}.b1"))
    y = norm(w, conv(w, y, f"{name}.c2.weight"), f"{name}.b2")
    short = norm(w, conv(w, x, f"{name}.down.0.weight", stride), f"{name}.down.1") if down else x
    return F.relu(y + short)


def forward(w, x):
    x = F.relu(norm(w, conv(w, x, "stem.weight"), "bn"))
    x = F.max_pool2d(x, 3, 2, 1)
    x = block(w, x, "body.0", 1, False)
    x = block(w, x, "body.1", 2, True)
    x = block(w, x, "body.2", 2, True)
    return F.linear(x.mean((2, 3)), w["fc.weight"], w["fc.bias"])


def train(dtype, seed=0):
    torch.use_deterministic_algorithms(True)
    initial = onnx.load(HERE / "model.onnx").graph.initializer
    w = {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in initial}
    trained = [t.requires_grad_() for n, t in w.items() if n.endswith(("weight", "bias")) and t.is_floating_point()]
    optimizer = torch.optim.SGD(
        trained, lr=float(ARGS["--lr"]), momentum=float(ARGS["--momentum"]), weight_decay=float(ARGS["--weight-decay"])
    )
    data = load_file(HERE / "data.safetensors")
    if seed:
        moved = torch.rand(data["input"].shape, generator=torch.Generator().manual_seed(seed)) - 0.5
        data["input"] = data["input"] * (1 + 2.0**-8 * moved)
    batch, rows = int(ARGS["--batch"]), data["labels"].shape[0]
    losses = []
    for step in range(int(ARGS["--steps"])):
        at = torch.arange(step * batch, (step + 1) * batch) % rows
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(forward(w, data["input"][at]), data["labels"][at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, w


def main():
    exact, _ = train(None)
    assert all(abs(a - b) <= 1e-4 * b for a, b in zip(exact, REFERENCE["losses"])), exact
    found = {"torch": torch.__version__}
    for name, dtype in [("bf16", torch.bfloat16), ("f16", torch.float16)]:
        found[name] = [train(dtype, seed)[0] for seed in range(TRIES)]
    (HERE / "autocast.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
