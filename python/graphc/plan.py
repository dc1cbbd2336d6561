"""Plans: made of a model by graphc, kept as the bytes that it has written, and asked about by its commands."""

from __future__ import annotations

import html
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from . import figures
from .command import Error, options_of, run, run_json
from .decoding import decode

Model = str | PathLike[str]
"""The path of a model, .onnx or .gir, ``hf:DIR``, or a graph in text form, which begins with ``graph @``."""


@dataclass(frozen=True)
class Plan:
    """A plan that graphc has made.

    >>> plan = graphc.load("plan.json")                      # doctest: +SKIP
    >>> print(plan.world_size, plan.predicted.step_seconds)  # doctest: +SKIP
    """

    content: bytes = field(repr=False)
    """The plan's file, byte by byte: graphc's seal holds for nothing else."""

    @cached_property
    def contents(self) -> figures.Contents:
        """What is where in it: tensors, layouts, boxing."""
        with self._file() as path:
            found: figures.Contents = decode(figures.Contents, run_json("inspect", path), "the plan")
        return found

    @property
    def name(self) -> str:
        """The name of its graph."""
        return self.contents.name

    @property
    def world_size(self) -> int:
        """How many ranks it is for."""
        return self.contents.world_size

    @property
    def predicted(self) -> figures.Predicted:
        """What a step will take."""
        return self.contents.predicted

    @cached_property
    def tensors(self) -> dict[str, figures.Tensor]:
        """Where tensors are and how they lie, by name."""
        return {tensor.name: tensor for tensor in self.contents.tensors}

    def explain(self, tensor: str) -> figures.Explanation:
        """Why a tensor lies as it does: other layouts, and what the best plan with each costs.

        Raises:
            Error: where there is no such tensor.
        """
        with self._file() as path:
            found: figures.Explanation = decode(figures.Explanation, run_json("explain", "--", path, tensor), "the explanation")
        return found

    def memory(self) -> figures.Memory:
        """What fills each rank at its peak."""
        with self._file() as path:
            found: figures.Memory = decode(figures.Memory, run_json("explain", path, "--memory"), "the memory")
        return found

    def simulate(self, **options: Any) -> figures.Simulation:
        """A step in modelled time; options are those of ``graphc simulate``, e.g. ``cluster="dgx-h100"``.

        Raises:
            Error: where an option is none.
        """
        with self._file() as path:
            found: figures.Simulation = decode(figures.Simulation, run_json("simulate", path, *options_of(options)), "the simulation")
        return found

    def save(self, path: str | PathLike[str]) -> None:
        """Writes it as graphc would have.

        Raises:
            Error: where it cannot be written.
        """
        try:
            Path(path).write_bytes(self.content)
        except OSError as error:
            raise Error(f"cannot write the plan {path}: {error.strerror}") from error

    def _repr_html_(self) -> str:
        """The page that a notebook shows."""
        page = html.escape(report(self))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 720px; border: 0"></iframe>'

    @contextmanager
    def _file(self) -> Iterator[Path]:
        """A file that holds it, for a command to read."""
        with _file_of(self.content, "plan.json", "the plan") as path:
            yield path


def compile(model: Model, **options: Any) -> Plan:
    """Plans a model; options are those of ``graphc compile``: ``mesh=(2, 2), optimizer="adamw", weight_decay=0.1``.

    Raises:
        Error: where there is no plan, with what graphc says.
    """
    with _model_file(model) as path, tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "plan.json"
        run("compile", *options_of(options), "-o", output, "--", path)
        return Plan(_content(output))


def compare(model: Model, strategies: Sequence[str], **options: Any) -> tuple[figures.Comparison, ...]:
    """Plans a model with each of these strategies, e.g. ``["data", "zero3", "auto"]``.

    Raises:
        Error: where none of them has a plan.
    """
    with _model_file(model) as path:
        found = run_json("compile", path, "--compare", ",".join(strategies), *options_of(options))
    comparisons: tuple[figures.Comparison, ...] = decode(tuple[figures.Comparison, ...], found, "the comparison")
    return comparisons


def load(path: str | PathLike[str]) -> Plan:
    """A plan that was written to a file.

    Raises:
        Error: where it cannot be read, or is no plan.
    """
    plan = Plan(_content(Path(path)))
    try:
        # Whatever it is asked for later is of a plan then.
        _ = plan.contents
    except Error as error:
        raise Error(str(error).replace("the plan", str(path), 1)) from None
    return plan


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise Error(f"cannot read the plan {path}: {error}") from error


def diff(before: Plan, after: Plan) -> figures.Difference:
    """What differs between two plans, and what it costs."""
    with before._file() as first, after._file() as second:
        found: figures.Difference = decode(figures.Difference, run_json("diff", first, second), "the difference")
    return found


def report(*plans: Plan, **options: Any) -> str:
    """A page to look at, of one plan or of two beside each other: one HTML file; options are those of ``graphc report``.

    Raises:
        Error: where there are other than one or two plans.
    """
    with ExitStack() as files, tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "plan.html"
        run("report", *options_of(options), "-o", page, "--", *(files.enter_context(plan._file()) for plan in plans))
        return page.read_text()


@contextmanager
def _model_file(model: Model) -> Iterator[Path]:
    """Where a model lies; what is given as text goes to a file."""
    if not isinstance(model, str) or not model.lstrip().startswith("graph @"):
        yield Path(model)
        return
    with _file_of(model.encode(), "model.gir", "the graph") as path:
        yield path


@contextmanager
def _file_of(content: bytes, name: str, what: str) -> Iterator[Path]:
    """A file for a command to read; errors call it what it is, as nobody has named it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            yield path
        except Error as error:
            raise Error(str(error).replace(str(path), what)) from None
