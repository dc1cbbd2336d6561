"""Part `why`: what kernels reach of a card, and what becomes of ranks that share one, of full memory, and of a process that is killed."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import data
from fast import plan, train
from kit import GRAPHC, HERE, SMALL, Failed, Place, environment, json_lines, kill_tree, left, memory_used, model, python_has, run, scratch, start
from machine import machine
from right import compare

__all__ = ["killed_in_a_step", "longest_kernels", "machine", "memcheck", "memory_nearly_full", "plans_in_pytorch", "racecheck", "several_ranks"]

METRICS = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "multiprocessors",
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active": "fma",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps",
    "dram__bytes.sum": "bytes",
}
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
"""The share of tensor cores: a version of ncu that does not know it gives nothing at all when it is asked for it too."""
TIME = "gpu__time_duration.sum"
TOP = 10
NAME = 300
"""Characters of a kernel's whole name that are kept."""

Row = tuple[str, dict[str, float | None]]
"""A launch: the whole name of its kernel, and its metrics in base units."""


def longest_kernels(place: Place) -> bool:
    """The kernels of a training of one step that take longest, and which share of what the card can do each reaches."""
    if shutil.which("ncu") is None:
        place.tell(absent="ncu")
        return True
    found = False
    for behind, name in ((1, "gpt2"), (0, "resnet50")):
        if left() < 40:
            place.tell(model=name, skipped="no time is left")
            continue
        # Models that are still to come have as much time as this one.
        kept = left() * behind / (behind + 1)
        found |= Profiled(place, name, kept).look()
    return found


class Profiled:
    """A training of one step under ncu."""

    def __init__(self, place: Place, name: str, kept: float) -> None:
        self.place, self.name, self.kept = place, name, kept
        self.metrics = [*METRICS, TENSOR]

    def left(self) -> float:
        """Seconds that are left to it."""
        return left() - self.kept

    def look(self) -> bool:
        """All launches of the process are timed first, then each kernel is looked at where it takes longest."""
        # Kernels are compiled and algorithms of products chosen before, so that what is timed is a step.
        train(self.name, plan(self.name), 2)
        launches, words = self.profile([TIME], ["--launch-count", "2000"], self.left() * 0.4)
        if not launches:
            self.place.tell(model=self.name, failed=words[-1500:])
            return False
        of_kernels: dict[str, list[float]] = defaultdict(list)
        for kernel, row in launches:
            of_kernels[kernel].append((row[TIME] or 0.0) * 1e-9)
        ordered = sorted(of_kernels.items(), key=lambda kernel: -sum(kernel[1]))
        process = sum(sum(seconds) for seconds in of_kernels.values())
        times = [timed(kernel, seconds) for kernel, seconds in ordered]
        self.place.tell(model=self.name, process=process, launches=len(launches), times=times[:40])
        kernels: list[dict[str, Any]] = []
        for (kernel, seconds), row in zip(ordered[:TOP], times, strict=False):
            if self.left() < 15:
                self.place.tell(model=self.name, kernel=row["kernel"], skipped="no time is left")
                break
            found = self.look_at(kernel, seconds)
            if found is not None:
                kernels.append({**row, **found})
                self.place.tell(model=self.name, process=process, kernels=kernels)
        return bool(kernels)

    def look_at(self, kernel: str, seconds: list[float]) -> dict[str, float | None] | None:
        """What a kernel reaches where it takes longest."""
        longest = seconds.index(max(seconds))
        which = ["--kernel-name-base", "demangled", "--kernel-name", f"regex:^{escaped(kernel)}$", "--launch-skip", str(longest), "--launch-count", "1"]
        seen, words = self.profile(self.metrics, which, 25)
        if not seen and TENSOR in self.metrics:
            without = list(METRICS)
            seen, words = self.profile(without, which, 25)
            # Another kernel might be at fault.
            self.metrics = without if seen else self.metrics
        if not seen:
            self.place.tell(model=self.name, kernel=plain(kernel), failed=words[-600:])
            return None
        row = seen[0][1]
        return {"tensor cores": row.get(TENSOR), **{METRICS[metric]: row[metric] for metric in METRICS}}

    def profile(self, metrics: list[str], which: list[str], limit: float) -> tuple[list[Row], str]:
        """The launches that are asked for, and what ncu has printed."""
        command = ["ncu", "--clock-control", "none", "--target-processes", "all", "--csv", "--page", "raw", "--print-units", "base"]
        step = [GRAPHC, "train", plan(self.name), "--data", data.of(self.name), "--steps", "1", "--device", "cuda", "--on-nan", "ignore"]
        done = run([*command, "--metrics", ",".join(metrics), *which, *step], limit=limit, check=False, GRAPHC_REPLAY="0")
        return launches_of(done.stdout, metrics), done.stdout + done.stderr


def timed(kernel: str, seconds: list[float]) -> dict[str, Any]:
    """How long all launches of a kernel take."""
    return {"kernel": plain(kernel), "name": kernel[:NAME], "launches": len(seconds), "seconds": sum(seconds), "longest": max(seconds)}


def plain(kernel: str) -> str:
    """A kernel's name without types."""
    return re.split(r"[(<]", kernel.removeprefix("void "))[0]


def escaped(name: str) -> str:
    """A name as the regular expression that is only it; one of C++ knows fewer letters with a backslash than Python writes."""
    return re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", name)


def launches_of(text: str, metrics: list[str]) -> list[Row]:
    """What ncu's table says: behind the heads stands a row of units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))[1:]
    return [(row["Kernel Name"], {metric: number(row, metric) for metric in metrics}) for row in rows]


def number(row: dict[str, str], name: str) -> float | None:
    """A number of ncu's, which may have commas."""
    try:
        return float((row.get(name) or "").replace(",", ""))
    except ValueError:
        return None


def several_ranks(place: Place) -> bool:
    """Ranks that share the card, and communicate through the host."""
    meshes = [["--mesh", "2"], ["--mesh", "2x2"], ["--mesh", "2", "--strategy", "zero3"], ["--mesh", "2", "--stages", "2", "--microbatches", "2"]]
    names = ["mlp"] if SMALL else ["mlp", "gpt"]
    wrong = [name for name in names for mesh in meshes if not compare(place, name, mesh)]
    return not wrong


def memory_nearly_full(place: Place) -> bool:
    """A plan that just fits into the card's memory runs; one that does not ends in a plain error."""
    # The double takes long to fill as much as it has.
    little = {"GPU_DOUBLE_MEMORY": "160MiB"} if SMALL else {}
    card = json.loads(run([GRAPHC, "devices", "--format", "json"], **little).stdout)["cards"][0]
    in_use = memory_used() or 0
    # Besides the arena there are the context, what kernels work in, and cuBLASLt's memory.
    reserve = 64 << 20 if SMALL else 2 << 30
    room = card["memory_bytes"] - in_use - reserve
    ok = True
    for label, bytes, fits in (("just fits", room, True), ("does not fit", card["memory_bytes"] + (1 << 30), False)):
        done = run_of_bytes(bytes, **little)
        error = done.stderr.strip().splitlines()[-1:] or [""]
        plain = done.returncode == 1 and "panicked" not in done.stderr and error[0] != ""
        right = done.returncode == 0 if fits else plain
        place.tell(plan=label, bytes=bytes, memory=card["memory_bytes"], in_use=in_use, status=done.returncode, error=error[0][:600], right=right)
        ok &= right
    return ok


def run_of_bytes(bytes: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a plan whose arena has about so many bytes: numbers that the card draws, of which the greatest is asked for."""
    extent = bytes // 4 // 1024
    text = f"""graph @large {{
  %x = input "x" : f32[1]
  %w = random {{distribution={{"uniform": {{"low": 0.0, "high": 1.0}}}}, key=7}} : f32[{extent}, 1024]
  %most = reduce %w {{function="max", axes=[0, 1], keep_dims=false}} : f32[]
  %y = binary %x, %most {{function="add"}} : f32[1]
  return "y" = %y
}}
"""
    folder = Path(scratch())
    (folder / "large.gir").write_text(text)
    data.write(folder / "one.safetensors", {"x": ("F32", [1], b"\0\0\0\0")})
    command = [GRAPHC, "run", folder / "large.gir", "--inputs", folder / "one.safetensors", "--outputs", folder / "out.safetensors"]
    return run([*command, "--device", "cuda", "--memory", "4TiB"], check=False, **environment)


def killed_in_a_step(place: Place) -> bool:
    """A training that is killed while it computes leaves a card on which the next one runs, and no memory in use."""
    before = memory_used()
    metrics = Path(scratch()) / "killed.jsonl"
    metrics.unlink(missing_ok=True)
    command = [GRAPHC, "train", plan("gpt2"), "--data", data.of("gpt2"), "--steps", "1000000", "--device", "cuda", "--metrics", metrics, "--on-nan", "ignore"]
    process = start(command, env=environment(), stdin=subprocess.DEVNULL)
    while not json_lines(metrics):
        if process.poll() is not None or left() < 20:
            kill_tree(process.pid)
            raise Failed("the training that was to be killed has not come to its first step")
        time.sleep(0.05)
    time.sleep(0.2)
    kill_tree(process.pid)
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
    for package in ("torch", "safetensors"):
        if not python_has(package):
            place.tell(absent=f"Python's package {package}")
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
    found = [checked(place, tool, name) for name in ("mlp", "gpt", "resnet")]
    if not any(found):
        place.tell(failed=f"nothing was checked by {tool}")
    return any(found) and False not in found


def checked(place: Place, tool: str, name: str) -> bool | None:
    """Whether a small training is well under a tool; None where there is no time for it."""
    if left() < 15:
        place.tell(training=name, skipped="no time is left")
        return None
    folder = HERE / "refs" / name
    own = [str(word) for word in json.loads((folder / "ref.json").read_text())["args"]]
    own[own.index("--steps") + 1] = "2"
    metrics = Path(scratch()) / f"{tool}.jsonl"
    metrics.unlink(missing_ok=True)
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "5", "--error-exitcode", "9", GRAPHC, "train", folder / "model.onnx"]
    command += ["--data", folder / "data.safetensors", "--device", "cuda", "--metrics", metrics, *own]
    done = run(command, limit=left() * 0.6, check=False, GRAPHC_REPLAY="0")
    words = done.stdout + done.stderr
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", words)
    # A tool that does not get hold of the process has no errors either.
    steps = len(json_lines(metrics))
    was_checked = bool(summary) and steps == 2 and "before first instrumented API call" not in words
    place.tell(training=name, tool=tool, status=done.returncode, steps=steps, checked=was_checked, summary=summary[-1] if summary else words[-800:])
    return done.returncode == 0 and was_checked
