"""Makes one section of Markdown of what the parts of the kit have found: `table.py OUT... [--into docs/gpu.md]`.

OUT are folders that `run.sh` has filled; what is missing is said as missing. With `--into` the section stands in that file
between `<!-- card -->` and `<!-- /card -->`, in place of what was found on a card of the same name before, but never that of a rehearsal,
whose figures are of no card.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kit import json_lines

PARTS = {"right": "Right?", "fast": "Fast?", "why": "Why?"}
TIMED = 20
"""Kernels of which times are shown where nothing else of them is known."""
MARKS = ["<!-- card -->\n", "<!-- /card -->"]
HEADING = "## On a card: "
"""The heading of a section, before the card's name."""


class Found:
    """What a part has written."""

    def __init__(self, name: str, lines: list[dict[str, Any]]) -> None:
        self.name, self.lines = name, lines
        self.head = lines[0] if lines else {}
        self.is_whole = any(line.get("ended") is True for line in lines)

    def results(self, item: str) -> list[dict[str, Any]]:
        """What an item has told."""
        return [line["result"] for line in self.lines if line.get("item") == item and "result" in line]

    def all(self, item: str, key: str) -> list[dict[str, Any]]:
        """What an item has told that has this key."""
        return [result for result in self.results(item) if key in result]

    def one(self, item: str, key: str) -> Any:
        """The last that an item has told under a key."""
        told = self.all(item, key)
        return told[-1][key] if told else None

    def ends(self) -> list[dict[str, Any]]:
        """How items have ended."""
        return [line for line in self.lines if "item" in line and "ended" in line]


def read(folders: Iterable[Path]) -> dict[str, Found]:
    """The parts that are in folders; a line that was cut off is left out. A part of which several folders have items is one: of an item that
    several have the last counts."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        for name in PARTS:
            path = folder / f"{name}.jsonl"
            if path.exists():
                lines.setdefault(name, []).extend(json_lines(path))
    return {name: Found(name, lines[name]) for name in PARTS if name in lines}


def table(heads: list[str], rows: list[list[object]]) -> str:
    """A table, or nothing."""
    if not rows:
        return ""
    cells = [heads, ["---"] * len(heads), *([shown(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells) + "\n\n"


def shown(cell: object) -> str:
    """A cell's text."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "**no**"
    if isinstance(cell, float):
        return number(cell)
    return str(cell).replace("|", "\\|").replace("\n", " ")[:240]


def number(value: float) -> str:
    """Three digits, as a person writes them."""
    if value != value or abs(value) > 1e99:
        return "none"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.3g}"


def milliseconds(spread: dict[str, float] | None) -> str | None:
    """A median and its spread, in ms."""
    if not spread:
        return None
    return f"{number(spread['median'] * 1e3)} ({number(spread['p10'] * 1e3)} to {number(spread['p90'] * 1e3)})"


def percent(share: float | None) -> str | None:
    """A share in hundredths."""
    return f"{share * 100:.0f} %" if share is not None and share > 0 else None


def hundredths(value: float | None) -> str | None:
    """Hundredths, as ncu says them."""
    return None if value is None else f"{value:.0f} %"


def gigabytes(value: float | None) -> str | None:
    """Bytes in GB."""
    return None if value is None else f"{value / 1e9:.2f}"


def section(found: dict[str, Found]) -> str:
    """All of it."""
    text = machine(found)
    for name, title in PARTS.items():
        text += f"### {title}\n\n"
        part = found.get(name)
        if part is None:
            text += f"This part is missing (`./run.sh {name} OUT`).\n\n"
            continue
        text += {"right": right, "fast": fast, "why": why}[name](part) + ends(part)
    return text.rstrip() + "\n"


def machine(found: dict[str, Found]) -> str:
    """The heading: when, where, with what."""
    parts = list(found.values())
    if not parts:
        return "Nothing was found.\n\n"
    head = parts[0].head
    day = head.get("begun", "?").split(" ")[0]
    tools = next((part.one("machine", "tools") for part in parts if part.one("machine", "tools")), {})
    python = next((part.one("machine", "python") for part in parts if part.one("machine", "python")), {})
    devices = found["right"].one("devices", "devices") if "right" in found else None
    card = tools.get("nvidia-smi", "no nvidia-smi")
    name = card.split(",")[0]
    if devices and devices.get("cards"):
        first = devices["cards"][0]
        name = first["name"]
        card = f"{first['name']}, {first['memory_bytes'] / 2**30:.1f} GiB, {first['multiprocessors']} multiprocessors, architecture {first['architecture']}"
    kit = head.get("kit", {})
    heading = f"{HEADING}{name}"
    text = f"{heading}\n\n{card}; {day}; {kit.get('version', 'graphc')} at {kit.get('commit', '?')}"
    text += f"; `benchmarks/card/run.sh` {', '.join(part.name for part in parts)}.\n\n"
    if is_rehearsal(found):
        text = text.replace(heading, "## A rehearsal\n\n**Not of a card: small sizes on the double. No figure here says anything of speed.**")
    rows: list[list[object]] = [["driver, memory, clocks, power, MIG", tools.get("nvidia-smi")]]
    for library in (devices or {}).get("libraries", []):
        rows.append([library["library"], library.get("version") or library.get("missing") or "no version"])
    if isinstance(python, dict):
        rows.append(["Python", ", ".join(f"{name} {version}" for name, version in python.items())])
    rows += [[name, tools[name].split("\n")[-1]] for name in ("nvcc", "ncu", "compute-sanitizer", "system") if name in tools]
    return text + table(["what", "found"], rows)


def is_rehearsal(found: dict[str, Found]) -> bool:
    """Whether any part ran with small sizes."""
    return any(part.head.get("small") for part in found.values())


def right(part: Found) -> str:
    """Whether a card computes what is right."""
    text = ""
    summary = part.one("kernels", "kernels")
    if summary:
        text += f"Kernels: {summary['right']} trials right, {summary['wrong']} not"
        left_out = summary["left_out"]
        text += f"; not tried for want of time: {', '.join(left_out)}" if left_out else ""
        untried = summary.get("untried")
        text += f"; ops without a trial: {', '.join(untried)}.\n\n" if untried else ".\n\n"
        rows = [
            [line.get("trial"), line["verdict"], line.get("share"), line.get("at"), line.get("found"), line.get("right"), why_wrong(line)]
            for line in summary["worst"][:40]
        ]
        text += table(["trial that is not right", "verdict", "error, as a share of what is allowed", "at", "found", "right", "besides"], rows)
        rows = [[line["trial"], line["share"]] for line in summary["nearest_to_wrong"][:8]]
        text += table(["nearest to what is not allowed", "share of it"], rows)
    rows = []
    for item in ("first steps", "references"):
        for result in part.all(item, "right"):
            rows.append([result["training"], result["right"], result.get("worst"), result.get("allowed"), result.get("error")])
    text += table(["training", "losses right", "greatest relative difference", "allowed", "error"], rows)
    rows = [[r["training"], r["replayed_as_launched"], r["two_runs_alike"]] for r in part.all("replay", "training")]
    text += table(["training", "replayed steps have the bits of launched ones", "two runs have the same bits"], rows)
    doctor = part.one("doctor", "doctor")
    rows = [["ok" if line["ok"] else "**WRONG**", line["what"], line["result"]] for line in doctor or []]
    return text + table(["doctor", "what", "result"], rows)


def why_wrong(line: dict[str, Any]) -> str:
    """What a trial shows besides numbers."""
    words = [line.get("error", "")]
    words += ["a second run has other bits"] if line.get("repeats") is False else []
    if "in_place" in line:
        other = line["in_place"]
        words.append(f"in the memory of operands {other['elements']} elements differ by at most {number(other['most'])}: {number(other['share'])} of what is allowed")
    return "; ".join(word for word in words if word)


def fast(part: Found) -> str:
    """How fast trainings are."""
    text, rows = "", []
    for item in ("gpt2", "resnet50", "llama", "padded vocabulary"):
        told = part.all(item, "sides")
        if not told:
            continue
        last = told[-1]
        graphc = last["sides"].get("graphc", {}).get("rate")
        for side, of in last["sides"].items():
            ratio = graphc / of["rate"] if graphc and side != "graphc" else None
            losses = " to ".join(number(loss) for loss in of.get("losses") or [])
            rows.append([last["model"], side, milliseconds(of["seconds"]), f"{of['rate']:,.0f} {last['unit']}/s", ratio, percent(of.get("mfu")), gigabytes(of.get("memory")), losses])
        rows += [[last["model"], side, f"failed: {error}", None, None, None, None, None] for side, error in (last.get("failed") or {}).items()]
    text += table(["training", "side", "step, ms (10 % to 90 %)", "rate", "graphc's rate as a multiple", "of the peak", "memory, GB", "losses"], rows)
    if rows:
        text += "Of the peak: the products of a step at the rate of the data sheet, as a share of the step. Memory is what the driver says is in use for graphc, and the most that was allocated at a time for PyTorch.\n\n"
    rows = []
    for result in part.all("predicted", "model"):
        measured = result.get("measured")
        ratio = measured["median"] / result["predicted"] if measured and result.get("predicted") else None
        predicted = result["predicted"] * 1e3 if result.get("predicted") else result.get("failed") or result.get("skipped")
        rows.append([result["model"], predicted, milliseconds(measured), ratio])
    box = part.one("predicted", "box") or "box.toml"
    text += table([f"plan made for this card as it was measured ({box})", "predicted step, ms", "measured, ms", "measured/predicted"], rows)
    profiles = {result["model"]: result["kinds"] for result in part.all("profile", "kinds") if result["kinds"]}
    text += "".join(kinds_of(model, kinds) for model, kinds in profiles.items())
    updates = part.one("gpt2", "updates")
    if updates:
        own = [kind["measured_seconds"] * 1e3 for kind in profiles.get("gpt2", {}).get("kinds", []) if kind["kind"].startswith("adam")]
        text += f"AdamW of GPT-2 alone: PyTorch, fused, {milliseconds(updates)} ms; graphc, in a step, {number(sum(own)) if own else '-'} ms.\n\n"
    memory = part.one("profile", "memory")
    if memory:
        text += f"Memory of GPT-2: the plan has {gigabytes(memory['plan']) or '-'} GB, the driver says {gigabytes(memory['driver']) or '-'} GB.\n\n"
    text += attention(part)
    cluster = part.one("calibrate", "cluster")
    return text + (f"```toml\n{cluster.strip()}\n```\n\n" if cluster else "")


def attention(part: Found) -> str:
    """Attention beside PyTorch's."""
    own = part.one("attention", "own") or {}
    rows: list[list[object]] = []
    for line in part.one("attention", "attention") or []:
        theirs = [line.get(direction) for direction in ("forward", "backward")]
        ours = [own.get(line["shape"], {}).get(direction) for direction in ("forward", "backward")]
        rates = [rate and rate / 1e12 for rate in (ours[0], theirs[0], ours[1], theirs[1])]
        shares = [percent(a / b) if a and b else None for a, b in zip(ours, theirs, strict=True)]
        rows.append([line["shape"], line["backend"], *rates[:2], shares[0], *rates[2:], shares[1], line.get("error")])
    heads = ["attention, bf16, causal: length x heads' width", "beside", "forward, TFLOP/s: graphc", "it", "share"]
    return table([*heads, "backward, TFLOP/s: graphc", "it", "share", "failed"], rows)


def kinds_of(model: str, kinds: dict[str, Any]) -> str:
    """Where a step of a model goes."""
    every = sorted(kinds["kinds"], key=lambda kind: -kind["measured_seconds"])
    rows: list[list[object]] = []
    for kind in every[:24]:
        ratio = kind["measured_seconds"] / kind["predicted_seconds"] if kind["predicted_seconds"] else None
        rows.append([kind["kind"], kind["actions"], kind["predicted_seconds"] * 1e3, kind["measured_seconds"] * 1e3, ratio, kind.get("limit"), percent(kind.get("measured_share"))])
    return table([f"{model}, by kind of op", "actions", "predicted, ms", "measured, ms", "ratio", "bound by", "reached of it"], rows)


def why(part: Found) -> str:
    """What kernels reach, and what becomes of ranks, full memory and killed processes."""
    text = ""
    shares = ["memory", "multiprocessors", "tensor cores", "fma", "warps"]
    last = {result["model"]: result for result in part.all("longest kernels", "kernels")}
    for result in part.all("longest kernels", "times"):
        if result["model"] not in last:
            rows = [[kernel["kernel"], kernel["launches"], kernel["seconds"] * 1e3, kernel["longest"] * 1e3] for kernel in result["times"][:TIMED]]
            text += table([f"{result['model']}: kernel", "launches of the process", "all, ms", "longest, ms"], rows)
    for result in last.values():
        rows = [
            [
                kernel["kernel"],
                kernel["launches"],
                kernel["seconds"] * 1e3,
                percent(kernel["seconds"] / result["process"]),
                kernel["longest"] * 1e3,
                *(hundredths(kernel.get(share)) for share in shares),
                gigabytes(kernel.get("bytes")),
            ]
            for kernel in result["kernels"]
        ]
        heads = [f"{result['model']}: kernel", "launches of the process", "all, ms", "of all kernels", "longest, ms", "bandwidth", "multiprocessors", "tensor cores", "fma", "warps", "moved by it, GB"]
        text += table(heads, rows)
    rows = [[r["training"], r["right"], r.get("worst"), r.get("allowed"), r.get("error")] for r in part.all("several ranks", "training")]
    text += table(["ranks that share the card", "losses right", "greatest relative difference", "allowed", "error"], rows)
    rows = [[r["plan"], gigabytes(r["bytes"]), gigabytes(r["memory"]), r["right"], r.get("error")] for r in part.all("memory nearly full", "plan")]
    text += table(["memory", "plan, GB", "card, GB", "as it should be", "error"], rows)
    for result in part.all("killed in a step", "killed_at_step"):
        text += f"Killed at step {result['killed_at_step']}: the card is usable afterwards: {shown(result['usable'])}; memory is free again: {shown(result['freed'])}.\n\n"
    rows = [[r["plan"], r["right"], r["worst"], r["seconds_graphc_torch"] * 1e3, r["seconds_graphc"] * 1e3] for r in part.all("plans in pytorch", "plan")]
    text += table(["plan in PyTorch", "losses right", "greatest relative difference", "graphc_torch, ms", "graphc, ms"], rows)
    rows = [[r["tool"], r["training"], r["checked"], r["summary"]] for item in ("memcheck", "racecheck") for r in part.all(item, "tool")]
    return text + table(["compute-sanitizer", "training", "checked", "summary"], rows)


def ends(part: Found) -> str:
    """What did not end well, what is not there, what was left out."""
    rows: list[list[object]] = []
    for line in part.ends():
        if line["ended"] != "ok":
            told = [result["failed"] for result in part.all(line["item"], "failed") if isinstance(result["failed"], str)]
            tail = (told[-1:] or [line.get("tail", "").strip().split("\n")[-1]])[0]
            rows.append([line["item"], line["ended"], line["took"], tail])
    absent = [f"{line['item']}: {line['result']['absent']} is not there" for line in part.lines if "absent" in line.get("result", {})]
    text = table([f"items of part `{part.name}` that did not end well", "how", "s", "because"], rows)
    text += table([f"left out or failed inside items of part `{part.name}`", "what", "how", "because"], inside(part))
    text += f"Not there: {'; '.join(absent)}.\n\n" if absent else ""
    notes = dict.fromkeys(line["result"]["note"] for line in part.lines if "note" in line.get("result", {}))
    text += "".join(f"**{shown(note)}**\n\n" for note in notes)
    return text if part.is_whole else text + f"Part `{part.name}` was cut off.\n\n"


def inside(part: Found) -> list[list[object]]:
    """What an item has left out or seen fail, however it has ended itself."""
    rows: list[list[object]] = []
    for line in part.lines:
        result = line.get("result", {})
        what = " ".join(str(result[key]) for key in ("model", "training", "kernel", "calibrate") if key in result) or None
        for how in ("skipped", "failed", "memory_failed", "updates_failed"):
            if isinstance(result.get(how), str):
                rows.append([line["item"], what, how.replace("_", " "), result[how].strip().split("\n")[-1]])
    return rows


def put(into: Path, text: str) -> None:
    """Puts the section between the marks of a file, where each card has one; a new card's goes first."""
    before, rest = into.read_text().split(MARKS[0], 1)
    held, after = rest.split(MARKS[1], 1)
    sections = {part.split("\n", 1)[0]: part.rstrip() for part in held.split(HEADING)[1:]}
    new = text.removeprefix(HEADING)
    name = new.split("\n", 1)[0]
    others = "".join(f"{HEADING}{part}\n\n" for part in ({name: new.rstrip()} | sections | {name: new.rstrip()}).values())
    into.write_text(f"{before}{MARKS[0]}\n{others}{MARKS[1]}{after}")


def main() -> int:
    """Prints the section, or puts it into a file."""
    words = sys.argv[1:]
    into = None
    if "--into" in words:
        at = words.index("--into")
        into, words = Path(words[at + 1]), words[:at] + words[at + 2 :]
    if not words:
        print("usage: table.py OUT... [--into FILE]", file=sys.stderr)
        return 2
    found = read(Path(word) for word in words)
    if into is None:
        print(section(found), end="")
        return 0
    if is_rehearsal(found) or not found:
        print("a rehearsal stands in no document: its figures are of no card", file=sys.stderr)
        return 1
    put(into, section(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
