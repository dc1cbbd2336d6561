"""Part `fast`: how fast trainings are, beside PyTorch's in the same run, and how well that was predicted."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import data
from kit import GRAPHC, HERE, SMALL, Failed, MemoryWatch, Place, environment, json_lines, left, model, python_has, run, scratch, spread
from right import machine

__all__ = ["calibrate", "gpt2", "llama", "machine", "padded_vocabulary", "predicted", "profile", "resnet50"]

ROUNDS = 2 if SMALL else 3
STEPS = 3 if SMALL else 20
WARM = 2 if SMALL else 6
"""Steps at the beginning that are not counted: kernels are loaded, launches recorded, clocks rise."""
PROFILED = 28
"""Steps that a profile is made of."""
SAMPLES = {"gpt2": ("tokens", 8 * 1024), "gpt2-50304": ("tokens", 8 * 1024), "llama": ("tokens", 4 * 2048), "resnet50": ("images", 64)}
SMALL_SAMPLES = {"gpt2": 128, "gpt2-50304": 128, "llama": 128, "resnet50": 2}
OPTIMIZERS = {
    "resnet50": ["--optimizer", "sgd", "--lr", "0.001", "--momentum", "0.9"],
    "adamw": ["--optimizer", "adamw", "--lr", "0.0003", "--weight-decay", "0.01"],
}


def plan(name: str, cluster: str = "dgx-h100", output: str | None = None) -> Path:
    """The plan of a model in bf16: as the kit brings it, or made here."""
    brought = HERE / "plans" / f"{model(name)}.json"
    if output is None and brought.exists():
        return brought
    made = Path(scratch()) / (output or f"{model(name)}.json")
    options = [*OPTIMIZERS.get(name, OPTIMIZERS["adamw"]), "--precision", "bf16", "--cluster", cluster]
    run([GRAPHC, "compile", HERE / "models" / f"{model(name)}.gir", *options, "-o", made])
    return made


def train(name: str, of: Path, steps: int, *more: str | Path) -> list[dict[str, Any]]:
    """Trains a plan on the card: the lines of its steps."""
    metrics = Path(scratch()) / f"{name}.metrics.jsonl"
    metrics.unlink(missing_ok=True)
    command = [GRAPHC, "train", of, "--data", data.of(name), "--steps", str(steps), "--device", "cuda"]
    run([*command, "--measure", "speed", "--metrics", metrics, "--on-nan", "ignore", *more])
    return json_lines(metrics)


class Peer:
    """PyTorch's side: one process, which trains in the mode that it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, mode: str, steps: int, limit: float) -> dict[str, Any]:
        """Some steps in a mode."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{mode} {steps}\n")
        self.process.stdin.flush()
        timer = threading.Timer(max(1.0, limit), self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        print(f"PyTorch, {mode}: {line[:300]}", flush=True)
        if not line:
            raise Failed(f"PyTorch has ended in mode {mode}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer


@contextmanager
def peer(name: str) -> Iterator[Peer | None]:
    """PyTorch's side of a model; none where there is no PyTorch."""
    if not python_has("torch"):
        yield None
        return
    command = [sys.executable, str(HERE / "peers/train.py"), name, str(data.of(name))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        yield Peer(process)
    finally:
        process.kill()
        process.wait()


def beside(place: Place, name: str) -> bool:
    """A training beside PyTorch's, taking turns; what was found so far is told after each turn."""
    unit, samples = SAMPLES[name]
    samples = SMALL_SAMPLES[name] if SMALL else samples
    found: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {}
    memory: dict[str, int | None] = {}
    failed: dict[str, str] = {}

    # The seconds that the products of a step take at the peak of the card's data sheet; of a step they are the share that is used.
    simulated = json.loads(run([GRAPHC, "simulate", plan(name), "--format", "json"]).stdout)
    at_peak = (simulated.get("mfu") or 0.0) * simulated["step_seconds"]

    def of(side: str, seconds: list[float]) -> dict[str, Any]:
        median = spread(seconds)["median"]
        return {"seconds": spread(seconds), "rate": samples / median, "mfu": at_peak / median, "losses": losses[side], "memory": memory.get(side)}

    def tell() -> None:
        sides = {side: of(side, seconds) for side, seconds in found.items() if seconds}
        place.tell(model=name, unit=unit, samples=samples, sides=sides, failed=failed)

    def graphc(_: Peer | None) -> tuple[list[float], list[float], int | None]:
        with MemoryWatch() as watch:
            lines = train(name, plan(name), WARM + STEPS)
        return [line["seconds"] for line in lines[WARM:]], [line["loss"] for line in lines], watch.bytes()

    def torch(mode: str) -> Any:
        def turn(peer: Peer | None) -> tuple[list[float], list[float], int | None]:
            assert peer is not None
            answer = peer.ask(mode, STEPS, left() - 10)
            return answer["seconds"], answer["losses"], answer["memory"]

        return turn

    # Before clocks matter.
    prepare = plan(name), data.of(name)
    print(prepare)
    with peer(name) as other:
        sides = {"graphc": graphc}
        if other is None:
            failed["PyTorch"] = "PyTorch is not there"
        else:
            sides |= {"PyTorch, eager": torch("eager"), "PyTorch, torch.compile": torch("compile")}
        for round in range(ROUNDS):
            for side, turn in sides.items():
                if side in failed or (round > 0 and left() < 25):
                    continue
                try:
                    seconds, of_losses, bytes = turn(other)
                except Failed as error:
                    failed[side] = str(error)[-600:]
                    tell()
                    continue
                found.setdefault(side, []).extend(seconds)
                losses.setdefault(side, [of_losses[0], of_losses[-1]])
                memory[side] = max(memory.get(side) or 0, bytes) if bytes is not None else memory.get(side)
                tell()
        if other is not None and name == "gpt2" and "PyTorch, eager" not in failed:
            updates = other.ask("updates", STEPS, left() - 5)
            place.tell(updates=spread(updates["seconds"]))
    return "graphc" in found


def gpt2(place: Place) -> bool:
    """GPT-2 124M, 8 x 1024 tokens, bf16, AdamW."""
    return beside(place, "gpt2")


def resnet50(place: Place) -> bool:
    """ResNet-50, 64 images of 224 x 224, bf16, SGD with momentum."""
    return beside(place, "resnet50")


def llama(place: Place) -> bool:
    """A LLaMA of 1.1 billion weights, 4 x 2048 tokens, bf16, AdamW."""
    return beside(place, "llama")


def padded_vocabulary(place: Place) -> bool:
    """GPT-2 with 50304 tokens in place of 50257."""
    lines = train("gpt2-50304", plan("gpt2-50304"), WARM + STEPS)
    seconds = [line["seconds"] for line in lines[WARM:]]
    samples = SMALL_SAMPLES["gpt2"] if SMALL else SAMPLES["gpt2"][1]
    place.tell(model="gpt2-50304", unit="tokens", samples=samples, sides={"graphc": {"seconds": spread(seconds), "rate": samples / spread(seconds)["median"]}})
    return bool(seconds)


def profile(place: Place) -> bool:
    """Where a step of GPT-2 goes, by kinds of ops, beside what is predicted; the arena beside what the driver says is in use."""
    of = plan("gpt2")
    simulated = json.loads(run([GRAPHC, "simulate", of, "--format", "json"]).stdout)
    with MemoryWatch() as watch:
        lines = train("gpt2", of, 3)
    peak = max(simulated.get("peak_memory_bytes") or [0])
    place.tell(memory={"plan": peak, "driver": watch.bytes()}, steps=len(lines))
    measured = place.out / "gpt2.profile.json"
    train("gpt2", of, 9 if SMALL else PROFILED, "--profile", measured)
    beside = json.loads(run([GRAPHC, "simulate", of, "--measured", measured, "--format", "json"]).stdout)
    place.tell(kinds=beside.get("measured"), predicted=simulated.get("step_seconds"))
    return True


def calibrate(place: Place) -> bool:
    """This card as a cluster file."""
    box = place.out / "box.toml"
    options = ["--quick"] if SMALL else []
    run([GRAPHC, "calibrate", "--device", "cuda", "--ranks", "1", "-o", box, *options])
    place.tell(cluster=box.read_text())
    return True


def predicted(place: Place) -> bool:
    """Plans made again for this card: predicted seconds of a step beside measured ones."""
    box = place.out / "box.toml"
    if not box.exists():
        raise Failed("this card was not calibrated")
    for name in ("gpt2", "resnet50", "llama"):
        if left() < 12:
            place.tell(model=name, skipped="no time is left")
            continue
        try:
            of = plan(name, str(box), f"{model(name)}.here.json")
            simulated = json.loads(run([GRAPHC, "simulate", of, "--format", "json"]).stdout)
            lines = train(name, of, WARM + STEPS // 2 + 1)
            seconds = [line["seconds"] for line in lines[WARM:]]
        except Failed as error:
            place.tell(model=name, failed=str(error))
            continue
        place.tell(model=name, predicted=simulated.get("step_seconds"), measured=spread(seconds))
    return True
