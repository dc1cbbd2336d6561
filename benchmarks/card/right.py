"""Part `right`: whether a card computes what is right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from kit import GRAPHC, HERE, SMALL, Failed, Place, environment, json_lines, left, run, scratch

TOOLS = {
    "nvidia-smi": ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,mig.mode.current", "--format=csv,noheader"],
    "cuda": ["nvidia-smi", "--version"],
    "nvcc": ["nvcc", "--version"],
    "ncu": ["ncu", "--version"],
    "compute-sanitizer": ["compute-sanitizer", "--version"],
    "system": ["uname", "-srm"],
    "processor": ["sh", "-c", "grep -m1 'model name' /proc/cpuinfo; nproc; grep MemTotal /proc/meminfo"],
}
PYTHON = """
import importlib, json, platform
found = {"python": platform.python_version()}
for name in ["torch", "triton", "transformers", "torchvision", "timm", "numpy"]:
    try:
        found[name] = importlib.import_module(name).__version__
    except Exception as error:
        found[name] = f"not there ({type(error).__name__})"
try:
    import torch
    found["torch.cuda"] = torch.version.cuda
    found["torch sees"] = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no card"
    found["cudnn"] = torch.backends.cudnn.version()
except Exception:
    pass
print(json.dumps(found))
"""

LOOSE = {"resnet": 20.0}
"""How many times the tolerance of a reference is allowed where it is not 2: an element that is within rounding of a kink may take the
other side of it."""


def machine(place: Place) -> None:
    """What machine this is: card, driver, tools, Python's packages."""
    found = {}
    for name, command in TOOLS.items():
        found[name] = said(command)
    print(found)
    place.tell(tools=found)
    words = subprocess.run(["python3", "-c", PYTHON], capture_output=True, text=True, timeout=50)
    place.tell(python=json.loads(words.stdout) if words.returncode == 0 else words.stderr[-500:])


def said(command: list[str]) -> str:
    """What a tool prints, or that it is not there."""
    if shutil.which(command[0]) is None:
        return "not there"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return "no answer"
    return (done.stdout + done.stderr).strip()[:600]


def devices(place: Place) -> bool:
    """What graphc finds: cards and libraries."""
    found = json.loads(run([GRAPHC, "devices", "--format", "json"]).stdout)
    place.tell(devices=found)
    return bool(found["cards"])


def reference(name: str) -> dict[str, object]:
    """What PyTorch reached."""
    return json.loads((HERE / "refs" / name / "ref.json").read_text())


def train(name: str, extra: list[str], steps: int | None = None, **environment: str) -> tuple[list[float], str]:
    """The losses of a reference's training on the card, and its metrics as text."""
    folder = HERE / "refs" / name
    own = [str(word) for word in reference(name)["args"]]
    if steps is not None and "--steps" in own:
        at = own.index("--steps")
        own[at + 1] = str(steps)
    metrics = Path(scratch()) / f"{name}.jsonl"
    metrics.unlink(missing_ok=True)
    command = [GRAPHC, "train", folder / "model.onnx", "--data", folder / "data.safetensors", "--device", "cuda", "--metrics", metrics]
    run([*command, *own, *extra], **environment)
    return [line["loss"] for line in json_lines(metrics)], metrics.read_text()


def compare(place: Place, name: str, extra: list[str], tolerance: float | None = None, steps: int | None = None, **environment: str) -> bool:
    """Trains a reference, and holds its losses against those that PyTorch reached."""
    record = reference(name)
    room = tolerance or LOOSE.get(name, 2.0) * float(record["relative_tolerance"])
    label = " ".join([name, *extra])
    try:
        losses, _ = train(name, extra, steps, **environment)
    except Failed as failed:
        place.tell(training=label, right=False, error=str(failed))
        return False
    expected = list(record["losses"])[: steps or None]
    worst = max((abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=False)), default=float("inf"))
    ok = len(losses) == len(expected) and worst <= room
    place.tell(training=label, right=ok, worst=worst, allowed=room, losses=losses[:3] + losses[-1:])
    return ok


def first_steps(place: Place) -> bool:
    """The smallest training, whose kernels are few: what fails here fails everywhere."""
    return compare(place, "mlp", [])


def kernels(place: Place) -> bool:
    """Every kernel against its op's evaluation, at small sizes and at real ones."""
    cores = os.cpu_count() or 1
    if SMALL:
        options = ["--few", "--groups", os.environ.get("CARD_GROUPS", "rows,losses,products with ends,rectangles"), "--jobs", str(min(cores, 2))]
    else:
        options = ["--jobs", str(max(1, min(12, cores - 2)))]
    program = HERE / "bin/card_kernels"
    lines = place.out / "kernels.jsonl"
    patience = 100
    with lines.open("w") as output:
        seconds = max(5, int(left() - 10))
        command = [str(program), *options, "--seconds", str(seconds), "--patience", str(patience)]
        print("$", *command, flush=True)
        status = subprocess.run(command, stdout=output, env=environment(), check=False).returncode
    summary = [line["summary"] for line in json_lines(lines) if "summary" in line]
    place.tell(kernels=summary[-1] if summary else None, status=status, cores=cores)
    return status == 0 and bool(summary)


def references(place: Place) -> bool:
    """The reference trainings, beside the losses that PyTorch reached on a processor."""
    names = ["mlp_mse", "gpt", "resnet"] if SMALL else ["mlp_mse", "gpt", "resnet", "llama", "experts", "lstm", "gru", "unet"]
    steps = 2 if SMALL else None
    wrong = [name for name in names if not compare(place, name, [], steps=steps)]
    if not SMALL:
        for precision, tolerance in (("bf16", 5e-3), ("f16", 1e-3)):
            wrong += [precision] if not compare(place, "gpt", ["--precision", precision], tolerance) else []
    return not wrong


def replay(place: Place) -> bool:
    """A step that is replayed has the bits of one that is launched, and two runs have the same."""
    right = True
    for name in ["gpt"] if SMALL else ["gpt", "resnet", "lstm", "experts"]:
        steps = 4 if SMALL else None
        found = {how: train(name, [], steps, GRAPHC_REPLAY=value)[1] for how, value in (("replayed", "1"), ("launched", "0"))}
        again = train(name, [], steps)[1]
        same, repeats = found["replayed"] == found["launched"], again == found["replayed"]
        place.tell(training=name, replayed_as_launched=same, two_runs_alike=repeats, right=same and repeats)
        right &= same and repeats
    return right


def doctor(place: Place) -> bool:
    """`graphc doctor`: small models of every kind beside the processor, and speeds."""
    options = ["--quick"] if SMALL else []
    done = run([GRAPHC, "doctor", "--format", "json", *options], check=False)
    try:
        lines = json.loads(done.stdout)
    except ValueError:
        raise Failed(done.stderr[-1500:]) from None
    place.tell(doctor=lines)
    return done.returncode == 0

