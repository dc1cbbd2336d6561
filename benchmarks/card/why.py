"""Part `why`: what kernels reach of a card, and what becomes of ranks that share one, of full memory, and of a process that is killed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import data
from fast import plan, train
from kit import GRAPHC, HERE, SMALL, Failed, Place, environment, json_lines, left, memory_used, model, python_has, run, scratch
from right import compare, machine

__all__ = ["killed_in_a_step", "longest_kernels", "machine", "memcheck", "memory_nearly_full", "plans_in_pytorch", "racecheck", "several_ranks"]

METRICS = {
    "gpu__time_duration.sum": "seconds",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "multiprocessors",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor cores",
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active": "fma",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps",
    "dram__bytes.sum": "bytes",
}
UNITS = {"second": 1.0, "msecond": 1e-3, "usecond": 1e-6, "nsecond": 1e-9, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
SIZES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "KB": 1e3, "MB": 1e6, "GB": 1e9}
TOP = 10


def longest_kernels(place: Place) -> bool:
    """The kernels of a step that take longest, and which share of what the card can do each reaches."""
    if shutil.which("ncu") is None:
        place.tell(absent="ncu")
        return True
    found = False
    for name, launches in (("gpt2", 700), ("resnet50", 700)):
        if left() < 30:
            place.tell(model=name, skipped="no time is left")
            continue
        # Launches are told as they end, so that what was seen is kept where the time is over.
        command = ["ncu", "--clock-control", "none", "--target-processes", "all", "--csv", "--page", "raw", "--launch-count", str(launches)]
        command += ["--metrics", ",".join(METRICS)]
        steps = [GRAPHC, "train", plan(name), "--data", data.of(name), "--steps", "1", "--device", "cuda", "--on-nan", "ignore"]
        done = run([*command, *steps], limit=max(20.0, left() * 0.55), check=False, GRAPHC_REPLAY="0")
        kernels = of_kernels(done.stdout)
        place.tell(model=name, kernels=kernels[:TOP], launches=sum(kernel["launches"] for kernel in kernels), status=done.returncode)
        if not kernels:
            place.tell(model=name, failed=(done.stdout + done.stderr)[-1500:])
        found |= bool(kernels)
    return found


def of_kernels(text: str) -> list[dict[str, object]]:
    """The launches that ncu tells, by kernels: the seconds of all of a kernel's launches, the means of the rest by these seconds."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    if not rows:
        return []
    units, launches = rows[0], rows[1:]
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in launches:
        seconds = number(row, "gpu__time_duration.sum") * UNITS.get(units.get("gpu__time_duration.sum", "nsecond"), 1e-9)
        kernel = sums[row["Kernel Name"].split("(")[0]]
        kernel["launches"] += 1
        kernel["seconds"] += seconds
        for metric, name in METRICS.items():
            if name == "bytes":
                kernel["bytes"] += number(row, metric) * SIZES.get(units.get(metric, "byte"), 1.0)
            elif name != "seconds":
                kernel[name] += number(row, metric) * seconds
    of_each = []
    for name, kernel in sums.items():
        seconds = kernel["seconds"] or 1.0
        shares = {share: kernel[share] / seconds for share in METRICS.values() if share not in ("seconds", "bytes")}
        of_each.append({"kernel": name, "launches": int(kernel["launches"]), "seconds": kernel["seconds"], "bytes": kernel["bytes"], **shares})
    return sorted(of_each, key=lambda kernel: -kernel["seconds"])


def number(row: dict[str, str], name: str) -> float:
    """A number of ncu's, which may have commas."""
    try:
        return float((row.get(name) or "").replace(",", ""))
    except ValueError:
        return 0.0


def several_ranks(place: Place) -> bool:
    """Ranks that share the card, and communicate through the host."""
    meshes = [["--mesh", "2"], ["--mesh", "2x2"], ["--mesh", "2", "--strategy", "zero3"], ["--mesh", "2", "--stages", "2", "--microbatches", "2"]]
    names = ["mlp"] if SMALL else ["mlp", "gpt"]
    alone = {"GPU_DOUBLE_DEVICES": "1"}
    wrong = [name for name in names for mesh in meshes if not compare(place, name, mesh, **alone)]
    return not wrong


def memory_nearly_full(place: Place) -> bool:
    """A plan that just fits into the card's memory runs; one that does not ends in a plain error."""
    card = json.loads(run([GRAPHC, "devices", "--format", "json"]).stdout)["cards"][0]
    in_use = memory_used() or 0
    # Besides the arena there are the context, what kernels work in, and cuBLASLt's memory.
    reserve = 64 << 20 if SMALL else 2 << 30
    room = card["memory_bytes"] - in_use - reserve
    ok = True
    for label, bytes, fits in (("just fits", room, True), ("does not fit", card["memory_bytes"] + (1 << 30), False)):
        done = run_of_bytes(bytes)
        error = done.stderr.strip().splitlines()[-1:] or [""]
        plain = done.returncode == 1 and "panicked" not in done.stderr and error[0] != ""
        right = done.returncode == 0 if fits else plain
        place.tell(plan=label, bytes=bytes, memory=card["memory_bytes"], in_use=in_use, status=done.returncode, error=error[0][:600], right=right)
        ok &= right
    return ok


def run_of_bytes(bytes: int) -> subprocess.CompletedProcess[str]:
    """Runs a plan whose arena has about so many bytes: one large variable, of which the greatest element is asked for."""
    extent = bytes // 4 // 1024
    text = f"""graph @large {{
  %x = input "x" : f32[1]
  %w = variable "w" {{init={{"fill": 2.0}}, trainable=true}} : f32[{extent}, 1024]
  %most = reduce %w {{function="max", axes=[0, 1], keep_dims=false}} : f32[]
  %y = binary %x, %most {{function="add"}} : f32[1]
  return "y" = %y
}}
"""
    folder = Path(scratch())
    (folder / "large.gir").write_text(text)
    data.write(folder / "one.safetensors", {"x": ("F32", [1], b"\0\0\0\0")})
    command = [GRAPHC, "run", folder / "large.gir", "--inputs", folder / "one.safetensors", "--outputs", folder / "out.safetensors"]
    return run([*command, "--device", "cuda", "--memory", "4TiB"], check=False)


def killed_in_a_step(place: Place) -> bool:
    """A training that is killed while it computes leaves a card on which the next one runs, and no memory in use."""
    before = memory_used()
    metrics = Path(scratch()) / "killed.jsonl"
    metrics.unlink(missing_ok=True)
    command = [GRAPHC, "train", plan("gpt2"), "--data", data.of("gpt2"), "--steps", "1000000", "--device", "cuda", "--metrics", metrics, "--on-nan", "ignore"]
    process = subprocess.Popen([str(word) for word in command], env=environment(), start_new_session=True)
    while not json_lines(metrics):
        if process.poll() is not None or left() < 20:
            process.kill()
            raise Failed("the training that was to be killed has not come to its first step")
        time.sleep(0.05)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    steps = len(json_lines(metrics))
    time.sleep(1.0)
    after = memory_used()
    right = compare(place, "mlp", [])
    freed = None if before is None or after is None else after - before < 64 << 20
    place.tell(killed_at_step=steps, usable=right, memory_before=before, memory_after=after, freed=freed)
    return right and freed is not False


def plans_in_pytorch(place: Place) -> bool:
    """The same plan by `graphc_torch` and by graphc: losses, and seconds of a step."""
    if not python_has("torch"):
        place.tell(absent="PyTorch")
        return True
    of, steps = plan("gpt2"), 4 if SMALL else 8
    metrics = Path(scratch()) / "graphc_torch.jsonl"
    command = [sys.executable, "-m", "graphc_torch", "train", of, "--data", data.of("gpt2"), "--steps", str(steps), "--device", "cuda"]
    run([*command, "--measure", "speed", "--metrics", metrics, "--on-nan", "ignore"], PYTHONPATH=str(HERE / "python"))
    theirs = json_lines(metrics)
    own = train("gpt2", of, steps)
    worst = max(abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in zip(theirs, own, strict=True))
    seconds = [min(line["seconds"] for line in lines[1:]) for lines in (theirs, own)]
    # Of bf16, by other kernels.
    place.tell(plan=model("gpt2"), worst=worst, allowed=1e-2, right=worst <= 1e-2, seconds_graphc_torch=seconds[0], seconds_graphc=seconds[1])
    return worst <= 1e-2


def memcheck(place: Place) -> bool:
    """Small trainings under compute-sanitizer: accesses outside of memory."""
    return sanitize(place, "memcheck")


def racecheck(place: Place) -> bool:
    """Small trainings under compute-sanitizer: races in shared memory."""
    return sanitize(place, "racecheck")


def sanitize(place: Place, tool: str) -> bool:
    """Small trainings under a tool of compute-sanitizer."""
    if shutil.which("compute-sanitizer") is None:
        place.tell(absent="compute-sanitizer")
        return True
    well = True
    for name in ("mlp", "gpt", "resnet"):
        if left() < 15:
            place.tell(training=name, skipped="no time is left")
            continue
        folder = HERE / "refs" / name
        own = [str(word) for word in json.loads((folder / "ref.json").read_text())["args"]]
        own[own.index("--steps") + 1] = "2"
        command = ["compute-sanitizer", "--tool", tool, "--print-limit", "5", "--error-exitcode", "9", GRAPHC, "train", folder / "model.onnx"]
        done = run([*command, "--data", folder / "data.safetensors", "--device", "cuda", *own], limit=left() * 0.6, check=False, GRAPHC_REPLAY="0")
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", done.stdout + done.stderr)
        place.tell(training=name, tool=tool, status=done.returncode, summary=summary[-1] if summary else (done.stdout + done.stderr)[-800:])
        well &= done.returncode == 0
    return well
