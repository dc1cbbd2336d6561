"""Runs one part of the kit, item by item: each in a process group of its own, with a limit, and all within the time of the part.

What an item finds is written at once: lines of JSON to OUT/PART.jsonl, what its commands print to OUT/PART.txt. A part that is cut off
loses the item that it was at, of which what was told by then stands; an item that fails is written down with the end of what it printed, and the next one begins.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import items
from kit import HERE, SMALL, die_with_parent, kill_tree

TAIL = 3000
"""Characters of an item's output that are kept with its result."""
MOST_TEXT = 300_000
"""Bytes of each item's output that are kept: its end."""
GRACE = 5.0
"""Seconds that are kept for the end of the part."""


class Part:
    """A part that runs."""

    def __init__(self, name: str, out: Path, seconds: float, wanted: list[str]) -> None:
        self.name, self.out, self.seconds, self.wanted = name, out, seconds, wanted
        self.begun = time.monotonic()
        self.results = out / f"{name}.jsonl"
        self.text = out / f"{name}.txt"
        self.current: subprocess.Popen[bytes] | None = None
        for path in (self.results, self.text):
            path.write_text("")

    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - GRACE - (time.monotonic() - self.begun)

    def tell(self, **line: Any) -> None:
        """Writes a line of results."""
        with self.results.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def run(self) -> None:
        """Runs all items that are wanted, for which there is time."""
        made = HERE / "kit.json"
        kit = json.loads(made.read_text()) if made.exists() else {}
        now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
        self.tell(part=self.name, begun=now, seconds=self.seconds, small=SMALL, kit=kit)
        for item in items.PARTS[self.name]:
            if self.wanted and item.name not in self.wanted:
                continue
            if self.left() < item.least:
                self.end(item, "skipped", 0.0, f"{self.left():.0f} s are left, and it needs {item.least:.0f}")
                continue
            self.item(item)
        self.tell(part=self.name, ended=True, took=round(time.monotonic() - self.begun, 1))

    def item(self, item: items.Item) -> None:
        """Runs one item in a process of its own."""
        limit = min(item.limit, self.left())
        print(f"{self.name}: {item.name} (at most {limit:.0f} s)", flush=True)
        log = Path(items.scratch()) / "output.txt"
        begun = time.monotonic()
        with log.open("wb") as output:
            command = [sys.executable, str(HERE / "run.py"), "--item", self.name, item.name, str(self.out)]
            environment = dict(os.environ, CARD_LIMIT=f"{limit:.1f}", PYTHONUNBUFFERED="1")
            self.current = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
            try:
                status: int | None = self.current.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            kill(self.current)
        seconds = time.monotonic() - begun
        printed = log.read_bytes()[-MOST_TEXT:].decode(errors="replace")
        with self.text.open("a") as file:
            file.write(f"==== {item.name}, {seconds:.1f} s, status {status}\n{printed}\n")
        how = {None: "timeout", 0: "ok"}.get(status, "failed")
        self.end(item, how, seconds, "" if how == "ok" else printed[-TAIL:], status)

    def end(self, item: items.Item, how: str, seconds: float, tail: str, status: int | None = None) -> None:
        """Writes down how an item has ended."""
        self.tell(item=item.name, ended=how, took=round(seconds, 1), status=status, tail=tail)
        print(f"{self.name}: {item.name}: {how}, {seconds:.1f} s", flush=True)

    def cut_off(self, number: int, _frame: Any) -> None:
        """Somebody ends the part."""
        if self.current is not None:
            kill(self.current)
        self.tell(part=self.name, cut_off=signal.Signals(number).name)
        sys.exit(128 + number)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends what an item has started and left, before its number is given to another process."""
    kill_tree(process.pid)
    process.wait()


def main() -> int:
    """Runs a part, or as the process of an item that item."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--item"]:
        part, name, out = arguments[1:]
        item = next(item for item in items.PARTS[part] if item.name == name)
        return int(bool(item.run(items.Place(part, name, Path(out)))))
    known = {name: [item.name for item in of] for name, of in items.PARTS.items()}
    wanted = arguments[2:]
    if len(arguments) < 2 or arguments[0] not in known or not set(wanted) <= set(known[arguments[0]]):
        print(f"usage: run.sh {'|'.join(known)} OUT [ITEM...]; the items are {known}", file=sys.stderr)
        return 2
    out = Path(arguments[1]).absolute()
    out.mkdir(parents=True, exist_ok=True)
    part = Part(arguments[0], out, float(os.environ.get("CARD_SECONDS", "540")), wanted)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, part.cut_off)
    part.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
