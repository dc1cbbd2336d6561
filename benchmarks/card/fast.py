"""Part `fast`: how fast trainings are, beside PyTorch's in the same run, and how well that was predicted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data
from kit import GRAPHC, HERE, SMALL, Failed, MemoryWatch, Place, environment, json_lines, kill_tree, left, model, python_has, run, scratch, sizes, spread, start
from machine import machine

__all__ = ["attention", "calibrate", "gpt2", "llama", "machine", "padded_vocabulary", "predicted", "profile", "resnet50"]

ROUNDS = 2 if SMALL else 3
STEPS = 3 if SMALL else 20
WARM = 2 if SMALL else 6
"""Steps at the beginning that are not counted: kernels are loaded, launches recorded, clocks rise."""
PROFILED = 28
"""Steps that a profile is made of."""
MODELS = ("gpt2", "resnet50", "llama")


def plan(name: str, cluster: str = "dgx-h100", output: str | None = None) -> Path:
    """The plan of a model in bf16: as the kit brings it, or made here."""
    brought = HERE / "plans" / f"{model(name)}.json"
    if output is None and brought.exists():
        return brought
    made = Path(scratch()) / (output or f"{model(name)}.json")
    options = [*sizes(name)["optimizer"], "--precision", "bf16", "--cluster", cluster]
    run([GRAPHC, "compile", HERE / "models" / f"{model(name)}.gir", *options, "-o", made])
    return made


def train(name: str, of: Path, steps: int, *more: str | Path) -> list[dict[str, Any]]:
    """Trains a plan on the card: the lines of its steps."""
    metrics = Path(scratch()) / f"{name}.metrics.jsonl"
    metrics.unlink(missing_ok=True)
    command = [GRAPHC, "train", of, "--data", data.of(name), "--steps", str(steps), "--device", "cuda"]
    run([*command, "--measure", "speed", "--metrics", metrics, "--on-nan", "ignore", *more])
    lines = json_lines(metrics)
    if len(lines) != steps:
        raise Failed(f"graphc train has told of {len(lines)} steps, not of {steps}")
    return lines


class Peer:
    """PyTorch's side in one mode: a process of its own, which is started when it is first asked."""

    def __init__(self, name: str, mode: str) -> None:
        self.name, self.mode = name, mode
        self.process: subprocess.Popen[str] | None = None

    def ask(self, what: str, steps: int, limit: float) -> dict[str, Any]:
        """Some steps in its mode, or updates alone."""
        try:
            line = self.answer(f"{what} {steps}", limit)
            print(f"PyTorch, {what}: {line[:300].rstrip()}", flush=True)
            answer = json.loads(line) if line else {"error": f"PyTorch has ended in mode {what}, or took more than {limit:.0f} s"}
        except (OSError, ValueError) as error:
            raise Failed(f"PyTorch in mode {what}: {error}") from None
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def answer(self, question: str, limit: float) -> str:
        """A line, or nothing where the process has ended; it is ended where it takes too long."""
        if self.process is None:
            command = [sys.executable, HERE / "peers/train.py", self.name, data.of(self.name)]
            self.process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        timer = threading.Timer(max(1.0, limit), kill_tree, [self.process.pid])
        timer.start()
        try:
            return self.process.stdout.readline()
        finally:
            timer.cancel()

    def close(self) -> None:
        """Ends it."""
        if self.process is not None:
            kill_tree(self.process.pid)
            self.process.wait()


Turn = Callable[[], tuple[list[float], list[float], int | None]]
"""Takes some steps: their seconds, losses, and bytes of memory where they are known."""


class Comparison:
    """A training beside PyTorch's, and what was found of both so far."""

    def __init__(self, place: Place, name: str) -> None:
        self.place, self.name = place, name
        self.unit, self.samples = samples(name)
        self.seconds: dict[str, list[float]] = {}
        self.losses: dict[str, list[float]] = {}
        self.memory: dict[str, int | None] = {}
        self.failed: dict[str, str] = {}
        # The seconds that the products of a step take at the peak of the card's data sheet; of a step they are the share that is used.
        simulated = json.loads(run([GRAPHC, "simulate", plan(name), "--format", "json"]).stdout)
        self.at_peak = (simulated.get("mfu") or 0.0) * simulated["step_seconds"]

    def take(self, side: str, turn: Turn) -> None:
        """A side's turn; what was found is told."""
        try:
            seconds, losses, bytes = turn()
        except Failed as error:
            self.failed[side] = str(error)[-600:]
        else:
            self.seconds.setdefault(side, []).extend(seconds)
            self.losses.setdefault(side, [losses[0], losses[-1]])
            if bytes is not None:
                self.memory[side] = max(self.memory.get(side) or 0, bytes)
        self.tell()

    def tell(self) -> None:
        """Tells what was found so far."""
        sides = {side: self.of(side, seconds) for side, seconds in self.seconds.items() if seconds}
        self.place.tell(model=self.name, unit=self.unit, samples=self.samples, sides=sides, failed=self.failed)

    def of(self, side: str, seconds: list[float]) -> dict[str, Any]:
        """What a side has reached."""
        median = spread(seconds)["median"]
        reached = {"rate": self.samples / median, "mfu": self.at_peak / median}
        return {"seconds": spread(seconds), **reached, "losses": self.losses[side], "memory": self.memory.get(side)}


def samples(name: str) -> tuple[str, int]:
    """What a step's rate counts, and how many of it a step has."""
    own = sizes(name)
    return ("images", own["batch"]) if own["kind"] == "resnet" else ("tokens", own["batch"] * own["time"])


def own_turn(name: str) -> Turn:
    """Steps of graphc; nobody looks at the card meanwhile."""

    def turn() -> tuple[list[float], list[float], int | None]:
        lines = train(name, plan(name), WARM + STEPS)
        return [line["seconds"] for line in lines[WARM:]], [line["loss"] for line in lines], None

    return turn


def turn_of(peer: Peer) -> Turn:
    """Steps of PyTorch, which may take only as long as leaves time for the turns of others behind it."""

    def turn() -> tuple[list[float], list[float], int | None]:
        answer = peer.ask(peer.mode, STEPS, left() * 0.6)
        return answer["seconds"], answer["losses"], answer["memory"]

    return turn


def beside(place: Place, name: str) -> bool:
    """A training beside PyTorch's, taking turns; what was found so far is told after each turn."""
    # Before clocks matter.
    print(plan(name), data.of(name))
    compared = Comparison(place, name)
    peers = [Peer(name, "eager"), Peer(name, "compile")] if python_has("torch") else []
    if not peers:
        compared.failed["PyTorch"] = "PyTorch is not there"
    labels = {"eager": "PyTorch, eager", "compile": "PyTorch, torch.compile"}
    sides = {"graphc": own_turn(name), **{labels[peer.mode]: turn_of(peer) for peer in peers}}
    # Before anybody else has memory of the card.
    watch_memory(compared)
    try:
        for round in range(ROUNDS):
            for side, turn in sides.items():
                if side not in compared.failed and (round == 0 or left() > 25):
                    compared.take(side, turn)
        if peers and name == "gpt2" and labels["eager"] not in compared.failed:
            measure_updates(place, peers[0])
    finally:
        for peer in peers:
            peer.close()
    return "graphc" in compared.seconds


def watch_memory(compared: Comparison) -> None:
    """How much of the card's memory graphc uses, from a short run of which no time is taken."""
    if "graphc" in compared.failed or left() < 25:
        return
    try:
        with MemoryWatch() as watch:
            train(compared.name, plan(compared.name), 3)
    except Failed as error:
        compared.place.tell(model=compared.name, memory_failed=str(error)[-600:])
        return
    compared.memory["graphc"] = watch.bytes()
    compared.tell()


def measure_updates(place: Place, peer: Peer) -> None:
    """PyTorch's updates alone."""
    try:
        place.tell(updates=spread(peer.ask("updates", STEPS, left() - 5)["seconds"]))
    except Failed as error:
        place.tell(updates_failed=str(error)[-600:])


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
    unit, count = samples("gpt2-50304")
    reached = {"seconds": spread(seconds), "rate": count / spread(seconds)["median"]}
    place.tell(model="gpt2-50304", unit=unit, samples=count, sides={"graphc": reached})
    return bool(seconds)


def profile(place: Place) -> bool:
    """Where a step goes, by kinds of ops, beside what is predicted; the arena of GPT-2 beside what the driver says is in use."""
    simulated = json.loads(run([GRAPHC, "simulate", plan("gpt2"), "--format", "json"]).stdout)
    with MemoryWatch() as watch:
        lines = train("gpt2", plan("gpt2"), 3)
    peak = max(simulated.get("peak_memory_bytes") or [0])
    place.tell(memory={"plan": peak, "driver": watch.bytes()}, steps=len(lines))
    for name in MODELS:
        if left() < 12:
            place.tell(model=name, skipped="no time is left")
            continue
        try:
            profile_of(place, name)
        except Failed as failed:
            place.tell(model=name, failed=str(failed)[-600:])
    return True


def profile_of(place: Place, name: str) -> None:
    """Where a step of a model goes."""
    of = plan(name)
    measured = place.out / f"{name}.profile.json"
    train(name, of, 9 if SMALL else PROFILED, "--profile", measured)
    beside = json.loads(run([GRAPHC, "simulate", of, "--measured", measured, "--format", "json"]).stdout)
    place.tell(model=name, kinds=beside.get("measured"), predicted=beside.get("step_seconds"))


def boxes(place: Place) -> dict[str, Path]:
    """The files of this card as it was measured: thoroughly, and quickly."""
    return {"full": place.out / "box.toml", "quick": place.out / "box.quick.toml"}


def calibrate(place: Place) -> bool:
    """This card as a cluster file: first quickly, then as well as the time that is left allows."""
    for how in ("quick",) if SMALL else ("quick", "full"):
        box = boxes(place)[how]
        options = ["--quick"] if how == "quick" else []
        try:
            run([GRAPHC, "calibrate", "--device", "cuda", "--ranks", "1", "-o", box, *options])
        except Failed as error:
            place.tell(calibrate=how, failed=str(error))
            return how == "full"
        place.tell(cluster=box.read_text(), calibrate=how)
    return True


def attention(place: Place) -> bool:
    """Attention beside that of PyTorch, by cuDNN and by FlashAttention, at the shapes that `calibrate` measures and those of the models."""
    if not python_has("torch"):
        place.tell(absent="Python's package torch")
        return True
    done = run([sys.executable, HERE / "peers/attention.py"], check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise Failed(done.stderr[-600:])
    place.tell(attention=lines, own=own_attention(place))
    return True


def own_attention(place: Place) -> dict[str, dict[str, float]]:
    """FLOPs per second of graphc's attention, by shape and direction: as the card was calibrated, and in steps that were profiled."""
    found: dict[str, dict[str, float]] = {}
    box = boxes(place)["full"]
    for line in box.read_text().splitlines() if box.exists() else ():
        match = re.match(r"# attention \w+ +(forward|backward), heads of (\d+), (\d+) keys in the mean +([0-9.]+) GFLOP/s", line)
        if match:
            direction, width, keys, rate = match.groups()
            found.setdefault(f"calibrate, {2 * int(keys)} x {width}", {})[direction] = 1e9 * float(rate)
    for name, label in (("gpt2", "GPT-2, 1024 x 64"), ("llama", "LLaMA, 2048 x 64")):
        profile = place.out / f"{name}.profile.json"
        actors = json.loads(profile.read_text())["programs"][0]["actors"] if profile.exists() else []
        for kind, direction in (("attention", "forward"), ("attention_grad", "backward")):
            own = [actor for actor in actors if actor["kind"] == kind]
            if own:
                found.setdefault(label, {})[direction] = sum(actor["flops"] for actor in own) / sum(actor["seconds"] for actor in own)
    return found


def predicted(place: Place) -> bool:
    """Plans made again for this card: predicted seconds of a step beside measured ones."""
    box = next((box for box in boxes(place).values() if box.exists()), None)
    if box is None:
        raise Failed("this card was not calibrated")
    place.tell(box=box.name)
    for name in MODELS:
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
