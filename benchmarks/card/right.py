"""Part `right`: whether a card computes what is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kit import GRAPHC, HERE, SMALL, Failed, Place, environment, hear, json_lines, kernel_cache, left, python_has, run, scratch, start
from machine import tell_tools, versions

PYTHON = """
import json, torch
sees = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no card"
print(json.dumps({"torch.cuda": torch.version.cuda, "torch sees": sees, "cudnn": torch.backends.cudnn.version()}))
"""
"""What only PyTorch itself says."""

LOOSE = {"resnet": 20.0}
"""How many times the tolerance of a reference is allowed where it is not 2: an element that is within rounding of a kink may take the
other side of it."""


def machine(place: Place) -> None:
    """What machine this is: card, driver, tools, Python's packages; PyTorch is loaded, and says what it sees."""
    tell_tools(place)
    python = versions()
    place.tell(python=python)
    try:
        words = run([sys.executable, "-c", PYTHON], limit=45)
    except Failed as failed:
        python["torch sees"] = str(failed)[-200:] if python_has("torch") else "nothing, as it is not there"
    else:
        python |= json.loads(words.stdout)
    place.tell(python=python)


def devices(place: Place) -> bool:
    """What graphc finds: cards and libraries."""
    found = json.loads(run([GRAPHC, "devices", "--format", "json"]).stdout)
    place.tell(devices=found)
    return bool(found["cards"])


def reference(name: str) -> dict[str, Any]:
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
    options += ["--threads", str(max(1, cores // int(options[-1])))]
    lines = place.out / "kernels.jsonl"
    with lines.open("w") as output:
        seconds = max(5, int(left() - 10))
        command = [str(HERE / "bin/card_kernels"), *options, "--seconds", str(seconds), "--patience", "100"]
        print("$", *command, flush=True)
        # Kernels of single calls are in nobody's way in a folder of their own.
        own = environment(GRAPHC_CACHE=str(kernel_cache("kernels of calls")))
        process = start(command, stdout=output, stderr=subprocess.PIPE, env=own)
        _, errors = process.communicate()
    hear(errors)
    print(errors[-20_000:], flush=True)
    summary = [line["summary"] for line in json_lines(lines) if "summary" in line]
    place.tell(kernels=summary[-1] if summary else None, status=process.returncode, cores=cores)
    return process.returncode == 0 and bool(summary)


def reference_names() -> list[str]:
    """The reference trainings, the cheapest first."""
    folders = [path.parent for path in (HERE / "refs").glob("*/ref.json")]
    size = lambda folder: (folder / "model.onnx").stat().st_size * len(reference(folder.name)["losses"])
    return [folder.name for folder in sorted(folders, key=lambda folder: (size(folder), folder.name))]


def references(place: Place) -> bool:
    """The reference trainings, beside the losses that PyTorch reached on a processor."""
    wrong = []
    for name in ["mlp_mse", "gpt", "resnet"] if SMALL else reference_names():
        if left() < 8:
            place.tell(training=name, skipped="no time is left")
            continue
        wrong += [] if compare(place, name, [], steps=2 if SMALL else None) else [name]
    if not SMALL:
        for precision, tolerance in (("bf16", 5e-3), ("f16", 1e-3)):
            wrong += [] if compare(place, "gpt", ["--precision", precision], tolerance) else [precision]
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

