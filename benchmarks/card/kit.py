"""What all items of the kit share: where things are, programs that are run, results that are told."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SMALL = os.environ.get("CARD_SMALL") == "1"
"""Whether sizes are small: a rehearsal."""
GRAPHC = HERE / "bin/graphc"
STARTED = time.monotonic()
UNKEPT = ("nothing is kept in", "is not used, and made again")
"""What graphc says of a folder of kernels, or a file in it, that it does not believe."""

# graphc believes no folder that others may write.
os.umask(0o077)


class Failed(Exception):
    """Something that was run has failed."""


@dataclass
class Place:
    """Where an item writes what it finds."""

    part: str
    name: str
    out: Path

    def tell(self, **result: Any) -> None:
        """Writes a result."""
        with (self.out / f"{self.part}.jsonl").open("a") as file:
            file.write(json.dumps({"item": self.name, "result": result}) + "\n")
            file.flush()


PLACES: list[Place] = []
"""Where this process, which is that of an item, tells what is nobody's own result."""


def hear(errors: str) -> None:
    """Tells of standard error what changes how results are to be read."""
    for line in dict.fromkeys(errors.splitlines()):
        if any(words in line for words in UNKEPT):
            for place in PLACES:
                place.tell(note=line[-400:])


def left() -> float:
    """Seconds that this item has left."""
    return float(os.environ.get("CARD_LIMIT", "600")) - (time.monotonic() - STARTED)


def scratch() -> str:
    """A folder for what is not kept, the same for all parts."""
    folder = os.environ.get("CARD_SCRATCH")
    if folder is None:
        # A kit that is unpacked where one may not write has its scratch elsewhere.
        folder = str(HERE / "scratch") if os.access(HERE, os.W_OK) else os.path.join(tempfile.gettempdir(), "graphc-card")
        os.environ["CARD_SCRATCH"] = folder
    os.makedirs(folder, exist_ok=True)
    return folder


def environment(**more: str) -> dict[str, str]:
    """The environment of programs: kernels are kept in the scratch folder, beside those that the kit brings."""
    return {**os.environ, "GRAPHC_CACHE": str(kernel_cache()), **more}


def kernel_cache(name: str = "kernels") -> Path:
    """A folder of kernels that graphc believes: it and its files are this user's, and nobody else writes them."""
    cache = Path(scratch()) / name
    if not cache.exists():
        aside = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=scratch()))
        for file in (HERE / "kernels").glob("*"):
            shutil.copyfile(file, aside / file.name)
            (aside / file.name).chmod(0o600)
        try:
            os.replace(aside, cache)
        except OSError:
            # Another process was first.
            shutil.rmtree(aside)
    cache.chmod(0o700)
    return cache


def run(command: Sequence[str | Path], limit: float = 1e9, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a program within a limit of seconds, and within what the item has left. What it prints is printed too."""
    words = [str(word) for word in command]
    print("$ " + " ".join(words), flush=True)
    begun = time.monotonic()
    limit = max(1.0, min(limit, left() - 2))
    process = start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment(**more))
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        out, err = process.communicate()
        err += f"\nkilled after {limit:.0f} s"
    hear(err)
    print(out[-20_000:], err[-20_000:], f"({time.monotonic() - begun:.1f} s, status {process.returncode})", sep="\n", flush=True)
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check and done.returncode != 0:
        raise Failed(f"{Path(words[0]).name} {' '.join(words[1:3])}: status {done.returncode}: {err[-1500:]}")
    return done


def start(words: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
    """Starts a program that ends with this process."""
    return subprocess.Popen([str(word) for word in words], text=True, preexec_fn=die_with_parent, **options)


# It is found here, as a new process should do as little as it can before it becomes its program.
PRCTL = ctypes.CDLL(None, use_errno=True).prctl
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """This process is killed when the one that has started it has ended, however that ends."""
    PRCTL(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def kill_tree(root: int) -> None:
    """Ends a process that this one has started, all that it has started, and its session, if it has one of its own."""
    for _ in range(3):
        doomed = living_tree(root)
        for number in doomed:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not doomed:
            break
        # What was just being started is found now.
        time.sleep(0.02)


def living_tree(root: int) -> list[int]:
    """The numbers of those processes. A session keeps its number while it has any; another process may have that of one that has ended."""
    parents, sessions = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # Behind the name, which may have blanks, stand the state, the parent, the group and the session.
            state, parent, _, session = entry.read_text().rsplit(")", 1)[1].split()[:4]
        except (OSError, IndexError, ValueError):
            continue
        if state != "Z":
            parents[int(entry.parent.name)], sessions[int(entry.parent.name)] = int(parent), int(session)
    found = [number for number, session in sessions.items() if session == root or number == root and parents[number] == os.getpid()]
    for number in found:
        found += [child for child, parent in parents.items() if parent == number and child not in found]
    return found


def sizes(name: str) -> dict[str, Any]:
    """What is known of a model, as `card_models` has written it: its sizes, its batch, how it is trained."""
    return json.loads((HERE / "models/models.json").read_text())[model(name)]


def model(name: str) -> str:
    """The name of a model, or in rehearsals of its small kind."""
    return f"{name}-small" if SMALL else name


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; one that was cut off is left out."""
    lines = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median of values, and their spread: the tenth and ninetieth hundredth."""
    ordered = sorted(values)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return {"median": statistics.median(ordered), "p10": at(0.1), "p90": at(0.9), "count": len(ordered)}


def memory_used() -> int | None:
    """Bytes of the first card's memory that are in use, by the driver's account."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return int(done.stdout.split()[0]) << 20
    except (ValueError, IndexError, OSError, subprocess.TimeoutExpired):
        return None


class MemoryWatch:
    """Follows how much of the card's memory is in use, beyond what was before."""

    def __init__(self) -> None:
        self.before = memory_used()
        self.most = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> MemoryWatch:
        if self.before is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()

    def _follow(self) -> None:
        while not self._ends.wait(0.3):
            self.most = max(self.most, (memory_used() or 0) - (self.before or 0))

    def bytes(self) -> int | None:
        """The most that was in use besides; None where nobody says it."""
        return self.most if self.before is not None else None


def python_has(*modules: str) -> bool:
    """Whether this Python has these modules; none of them is loaded, which may take long."""
    return all(importlib.util.find_spec(module) is not None for module in modules)
