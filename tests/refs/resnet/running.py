"""Writes the running statistics that the reference resnet has in PyTorch after its steps, in float32.

    python tests/refs/resnet/running.py
"""

import json
from pathlib import Path

from autocast import REFERENCE, train


def main():
    losses, weights = train(None)
    assert all(abs(a - b) <= 1e-4 * b for a, b in zip(losses, REFERENCE["losses"])), losses
    running = {name: value.tolist() for name, value in weights.items() if ".running_" in name}
    short = {name: [float(f"{x:.7g}") for x in values] for name, values in running.items()}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(values)}" for name, values in short.items())
    (Path(__file__).parent / "running.json").write_text("{\n" + lines + "\n}\n")


main()
