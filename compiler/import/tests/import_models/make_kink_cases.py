"""Writes kink_cases.json: functions of PyTorch as both of its exporters write them, and their gradients at kinks, where a function has no
derivative and each has the one that PyTorch gives it; besides values near 0, where a sum with 1 would lose them.

Run with Python's `torch`, `onnx` and `onnxscript`; the tests need none of them.
"""

import contextlib
import io
import json
import pathlib
import tempfile

import onnx
import torch
import torch.nn.functional as F
from torch import nn

POINTS = [-6.0, -3.0, -1.0, -0.5, -0.01, 0.0, 0.01, 0.5, 1.0, 3.0, 6.0, 20.0]
FUNCTIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardtanh_of_other_bounds": lambda x: F.hardtanh(x, -0.5, 3.0),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_from_below": lambda x: x.clamp(min=0),
    "clamp_from_above": lambda x: x.clamp(max=0.5),
    "clamp_by_tensors": lambda x: torch.clamp(x, torch.full_like(x, -0.5), torch.linspace(-6, 20, 12)),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.25])),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "softplus": F.softplus,
    "mish": F.mish,
    "softsign": F.softsign,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "abs": torch.abs,
}
# The older exporter writes these as others with other gradients, and says no more.
PLAIN_IS_ANOTHER = {"hardtanh", "hardtanh_of_other_bounds", "clamp_by_tensors"}


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(POINTS))
        self.function = function

    def forward(self, x):
        return self.function(self.w + x)


def exported(model, dynamo):
    """The model's bytes, without what the import does not read."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = str(pathlib.Path(folder) / "model.onnx")
        options = {"dynamo": True, "optimize": False} if dynamo else {"dynamo": False}
        torch.onnx.export(model, (torch.zeros(12),), path, **options)
        proto = onnx.load(path)
    for node in proto.graph.node:
        kept = [entry for entry in node.metadata_props if entry.key.endswith("fx_node")]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        node.doc_string = ""
    del proto.metadata_props[:]
    return proto.SerializeToString()


def main():
    cases = []
    for name, function in FUNCTIONS.items():
        model = Model(function)
        y = model(torch.zeros(12))
        y.sum().backward()
        for dynamo in (True, False):
            if not dynamo and name in PLAIN_IS_ANOTHER:
                continue
            exporter = "dynamo" if dynamo else "plain"
            outputs = {"y": y.tolist(), "gradient": model.w.grad.tolist()}
            cases.append({"name": f"{name}, {exporter}", "model": exported(model, dynamo).hex(), "points": POINTS, **outputs})
    path = pathlib.Path(__file__).with_name("kink_cases.json")
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
