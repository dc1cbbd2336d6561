"""The command line: ``graphc_torch train`` and ``graphc_torch profile``, alone or under torchrun."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from .checkpoint import Checkpoint, Saver, changes, complete, incomplete, trained
from .data import Batches, Metrics, load_tensors, model_weights, other_tensors, save_tensors
from .errors import FeedError, GraphcError, PlanError
from .evaluation import Evaluation
from .files import Named, check_distinct
from .json_text import write_line
from .output import say, show
from .plan import Plan, TensorKind
from .profile import profile
from .reading import load
from .schema import GREATEST
from .session import Session

METRICS = ("loss", "samples", "top1", "top5", "grad_norm", "loss_scale", "skipped")
"""Outputs that a line of metrics is made of."""

SCALE = "state.loss_scale"
"""The state that plans have which skip steps whose gradients overflow."""

ADVICE = "lower the learning rate, look for wrong numbers in the data, or go on with --on-nan ignore"
"""What can be done about a training that has gone wrong."""


def entry() -> NoReturn:
    """Runs a command, and ends the process with its exit status.

    It ends at once. To take the groups of a job apart is left to NCCL, which asks for it: older versions of gloo sometimes never end it.
    """
    status = main()
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "nccl":
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; the exit status: 1 where it failed."""
    root = parser()
    given = root.parse_args(arguments)
    wrong = contradiction(given)
    if wrong is not None:
        root.error(wrong)
    try:
        if given.threads:
            torch.set_num_threads(given.threads)
        given.run(given)
    except (GraphcError, OSError) as error:
        say("error", str(error))
        return 1
    except MemoryError:
        say("error", "there is not enough memory: a plan for more ranks needs less on each")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


class Once(argparse.Action):
    """Takes the value of an option that may be given once."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Takes it."""
        seen = namespace.__dict__.setdefault("seen", set())
        if self.dest in seen:
            raise argparse.ArgumentError(self, "it is given more than once")
        seen.add(self.dest)
        setattr(namespace, self.dest, values)


class Switch(Once):
    """An option without a value, which may be given once."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        """An option that is off by default."""
        super().__init__(option_strings, dest, nargs=0, default=False, **options)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Takes it."""
        super().__call__(parser, namespace, True, option_string)


class Parser(argparse.ArgumentParser):
    """A command line, which may have any names in it."""

    def __init__(self, **options: Any) -> None:
        """A command line on which options stand whole, and once."""
        super().__init__(**{**options, "allow_abbrev": False})
        self.register("action", None, Once)

    def error(self, message: str) -> NoReturn:
        """Says what is wrong with it, escaped, and ends with 2, as graphc does."""
        say("error", f"{message}\n\n{self.format_usage().strip()}\n\nFor more information, try '--help'.")
        raise SystemExit(2)


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    root = Parser(prog="graphc_torch", description="Plans of graphc, executed by PyTorch")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="step through a data set")
    _common(train)
    train.set_defaults(run=run_train)
    train.add_argument("--data", type=Path, required=True, help="samples: a safetensors file, a tensor for each input")
    length = train.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=positive, help="steps of the whole training")
    length.add_argument("--epochs", type=positive, help="epochs of the whole training: each takes every sample once, but for part batches")
    train.add_argument("--shuffle", action=Switch, help="shuffle the data, by the seed and the epoch")
    train.add_argument("--eval-data", type=Path, help="samples to evaluate on, after each epoch and at the end; needs --eval-plan")
    train.add_argument("--eval-plan", type=Path, help="a plan of inference with the same loss: compiled without --optimizer")
    train.add_argument("--eval-every", type=positive, help="evaluate after every so many steps")
    train.add_argument("--metrics", type=Path, help="a line of JSON for each step")
    train.add_argument("--measure", choices=["speed"], help="what metrics say besides: samples and seconds of each step")
    train.add_argument("--weights", type=Path, help="where the trained weights go: a safetensors file")
    train.add_argument("--save", type=Path, help="a directory of checkpoints")
    train.add_argument("--save-every", type=positive, help="save after every so many steps, and after the last")
    train.add_argument("--keep", type=positive, help="checkpoints that are kept; default 2")
    train.add_argument("--resume", type=Path, help="a checkpoint, or a directory of which the latest is taken")
    train.add_argument("--on-nan", choices=["stop", "skip", "ignore"], help="where the loss is no finite number; skip is part of plans")
    train.add_argument("--max-skips", type=count, help="steps in a row that may change nothing; default 50, or all with --on-nan ignore")
    measure = commands.add_parser("profile", help="measure the seconds of each actor and collective")
    _common(measure)
    measure.set_defaults(run=run_profile)
    measure.add_argument("-o", "--output", type=Path, required=True, help="where the measurements go")
    measure.add_argument("--steps", type=positive, default=5, help="steps that are measured; default 5")
    return root


def contradiction(given: argparse.Namespace) -> str | None:
    """What options say that makes no sense together."""
    if given.run is not run_train:
        return None
    if given.save is None and (given.save_every is not None or given.keep is not None):
        return "--save-every and --keep need --save: say where checkpoints go"
    if (given.eval_data is None) != (given.eval_plan is None) or (given.eval_every is not None and given.eval_data is None):
        return "--eval-data and --eval-plan need each other, and --eval-every both"
    if given.weights_from is not None and given.resume is not None:
        return "--weights-from cannot be used with --resume: weights come from one of them"
    return None


MOST_THREADS = 1024
"""More threads than any machine has cores; their number is that of each rank."""


def positive(text: str) -> int:
    """A number of at least 1."""
    return _number(text, 1, GREATEST, "write a number of at least 1")


def count(text: str) -> int:
    """A number of at least 0."""
    return _number(text, 0, GREATEST, "write a number of at least 0")


def threads(text: str) -> int:
    """A number of threads."""
    return _number(text, 1, MOST_THREADS, f"write a number from 1 to {MOST_THREADS}")


def _number(text: str, least: int, most: int, advice: str) -> int:
    """A number in digits alone: 64 bits have at most twenty of them."""
    found = int(text) if re.fullmatch(r"\+?[0-9]{1,400}", text) else -1
    if not least <= found <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is none: {advice}")
    return found


def seconds(text: str) -> float:
    """A time above 0, of less than a life."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.0 < found < 1e9 or "_" in text or text != text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is none: write a number of seconds above 0")
    return found


def _common(command: argparse.ArgumentParser) -> None:
    command.add_argument("plan", type=Path, help="a plan that graphc compile has written")
    command.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where ranks compute; default cpu")
    command.add_argument("--weights-from", type=Path, help="weights in the place of the model's: a safetensors file or a checkpoint")
    command.add_argument("--seed", type=count, help="of initial parameters and dropout; default 0, or a resumed checkpoint's")
    command.add_argument("--threads", type=threads, help="threads of this rank")
    command.add_argument("--timeout", type=seconds, default=300.0, help="seconds after which a rank that waits gives up")


def run_train(given: argparse.Namespace) -> None:
    """Trains."""
    read = _inputs(given, ("--data", given.data), ("--eval-data", given.eval_data), ("--eval-plan", given.eval_plan))
    check_distinct(read, [("--metrics", given.metrics), ("--weights", given.weights)])
    plan = load(given.plan)
    if not plan.training:
        raise PlanError(f"{given.plan} is an inference plan: compile with --optimizer")
    if given.max_skips is not None and SCALE not in plan.variables and not plan.options.get("skip_non_finite"):
        raise FeedError("--max-skips: no step of this plan is ever skipped; f16 skips steps whose gradients overflow, --on-nan skip others")
    check_on_nan(given, plan)
    checkpoint = resumed(given)
    session = begun(given, plan, checkpoint, METRICS)
    if checkpoint is not None:
        for change in changes(session, checkpoint.settings) if session.leads else ():
            say("warning", f"since {checkpoint.path} was saved, {change}")
    batches = Batches(load_tensors(given.data), session.inputs, session.samples)
    if given.epochs or given.shuffle:
        batches.in_epochs(session.seed if given.shuffle else None)
    end = length(given, batches, checkpoint)
    saver = Saver(given.save, given.keep or 2, given.on_nan == "ignore") if given.save else None
    if saver is not None:
        saver.check_next(session.steps + 1)
    metrics = Metrics(given.metrics, session.steps if checkpoint else None) if given.metrics and session.leads else None
    evaluation = Evaluation(load(given.eval_plan), session, given.eval_data, given.timeout) if given.eval_data else None
    line = steps(given, session, batches, (end, metrics, saver, evaluation))
    if given.weights is not None:
        names = [name for name, (kind, _, _) in session.variables().items() if kind is TensorKind.PARAMETER]
        weights = {name: session.variable(name) for name in names} | session.aside
        ruined = [name for name in plan.updated_variables() & set(weights) if not bool(weights[name].isfinite().all())]
        if ruined and given.on_nan != "ignore":
            raise FeedError(f"`{min(ruined)}` is not finite in each element after the last step, so no weights are written: {ADVICE}")
        if session.leads:
            save_tensors(given.weights, weights)
    session.barrier()
    if session.leads and metrics is None and line:
        show(write_line(line))


def _inputs(given: argparse.Namespace, *others: Named) -> list[Named]:
    """The files that a command reads."""
    return [("the plan", given.plan), ("--weights-from", given.weights_from), *others]


Ways = tuple[int, Metrics | None, Saver | None, Evaluation | None]
"""How many steps a training has, where what it finds goes, and what evaluates it."""


def steps(given: argparse.Namespace, session: Session, batches: Batches, ways: Ways) -> dict[str, Any]:
    """Takes the steps; the line of metrics of the last."""
    line: dict[str, Any] = {}
    skips, (end, metrics, saver, evaluation) = Skips(given), ways
    every = given.eval_every or (batches.epochs.steps if batches.epochs is not None else end)
    for step in range(session.steps, end):
        begun = time.perf_counter()
        outputs = session.step(batches.feeds(step))
        line = line_of(session.plan, step, outputs)
        if batches.epochs is not None:
            line["epoch"] = step // batches.epochs.steps
        if given.measure == "speed":
            # What the step has computed is known by now, on whatever device.
            line |= {"samples": batches.batch, "seconds": time.perf_counter() - begun}
        last = step + 1 == end
        if evaluation is not None and (last or (step + 1) % every == 0) and math.isfinite(line["loss"]):
            line["eval"] = evaluation.run()
            if session.leads:
                say("note", f"evaluation after {step + 1} steps: {write_line(line['eval'])}")
        if metrics is not None:
            metrics.write(line)
        if given.on_nan != "ignore":
            check_finite(session.plan, line)
        skips.count(line)
        if saver is not None and (last or (given.save_every and (step + 1) % given.save_every == 0)):
            saver.save(session)
    return line


def check_finite(plan: Plan, line: dict[str, Any]) -> None:
    """Judges loss and gradients of a step.

    One of f16 whose gradients overflow is not made and does no harm, as a smaller scale helps the next one; but no scale makes a loss
    finite that is not.
    """
    loss, norm = line["loss"], line.get("grad_norm", 0.0)
    harmless = line.get("skipped") and (math.isfinite(loss) or plan.options.get("skip_non_finite"))
    if not harmless and not (math.isfinite(loss) and math.isfinite(norm)):
        said = f", the norm of its gradients {norm}" if "grad_norm" in line else ""
        raise FeedError(f"the loss of step {line['step']} is {loss}{said}, and weights after it are of no use: {ADVICE}")


class Skips:
    """How many steps in a row have changed nothing."""

    def __init__(self, given: argparse.Namespace) -> None:
        """None so far."""
        ignored = math.inf if given.on_nan == "ignore" else 50
        self.most = ignored if given.max_skips is None else given.max_skips
        self.now = 0

    def count(self, line: dict[str, Any]) -> None:
        """Takes a step into account, and ends a training that only skips."""
        self.now = self.now + 1 if line.get("skipped") else 0
        if self.now > self.most:
            scale = f", as their gradients overflow with a loss scaled by {line['loss_scale']}" if "loss_scale" in line else ""
            said = f"{self.now} steps in a row up to step {line['step']} have changed nothing{scale}"
            raise FeedError(f"{said}, more than --max-skips {self.most} allows: {ADVICE}")


def line_of(plan: Plan, step: int, outputs: dict[str, Tensor]) -> dict[str, Any]:
    """What metrics say of a step."""
    numbers = {name: float(tensor) for name, tensor in outputs.items() if tensor.numel() == 1}
    if "loss" not in numbers:
        raise PlanError("the plan has no output `loss`")
    line: dict[str, Any] = {"step": step, "loss": numbers["loss"]}
    for metric in plan.options.get("metrics", []):
        line[metric] = numbers[metric] / numbers["samples"] if numbers.get("samples") else None
    if plan.options.get("lr_schedule", "constant") != "constant":
        line["lr"] = plan.learning_rate(step)
    line.update({name: numbers[name] for name in ("grad_norm", "loss_scale") if name in numbers})
    if "skipped" in numbers:
        line["skipped"] = numbers["skipped"] != 0.0
    return line


def resumed(given: argparse.Namespace) -> Checkpoint | None:
    """The checkpoint that a training goes on from. A run that saves to the empty directory that it resumes from begins anew."""
    if given.resume is None:
        return None
    alike = given.save is not None and given.save.resolve() == given.resume.resolve()
    if alike and not complete(given.resume) and not (given.resume / "manifest.json").exists():
        return None
    checkpoint = Checkpoint.open(given.resume)
    for step, passed in incomplete(checkpoint.path.parent):
        if step > checkpoint.step and int(os.environ.get("RANK", "0")) == 0:
            say("warning", f"{passed} has no manifest.json and is passed over for {checkpoint.path}")
    if checkpoint.not_finite and given.on_nan != "ignore":
        raise FeedError(
            f"{checkpoint.path} was saved with --on-nan ignore and weights that are not finite, `{checkpoint.not_finite[0]}` first:"
            " go on from an earlier checkpoint, or with --on-nan ignore"
        )
    if given.seed not in (None, checkpoint.seed):
        raise FeedError(f"{checkpoint.path} was trained with seed {checkpoint.seed}: leave --seed out or give that one")
    return checkpoint


def length(given: argparse.Namespace, batches: Batches, checkpoint: Checkpoint | None) -> int:
    """The steps of the whole training, which is not shorter than what it goes on from."""
    said, found = f"--steps {given.steps}", given.steps
    if batches.epochs is not None and given.epochs:
        found = given.epochs * batches.epochs.steps
        said = f"--epochs {given.epochs}, {found} steps"
    if checkpoint is not None and checkpoint.step > found:
        raise FeedError(f"{checkpoint.path} was saved after {checkpoint.step} steps, and {said} (of the whole training) is less")
    return int(found)


def check_on_nan(given: argparse.Namespace, plan: Plan) -> None:
    """Checks that a plan does what is asked for where a loss is no finite number."""
    if given.on_nan == "skip" and not plan.options.get("skip_non_finite"):
        advice = "leave the option out, or compile the model again with it"
        raise PlanError(f"--on-nan skip contradicts {given.plan}, which was compiled without skip: {advice}")


def begun(given: argparse.Namespace, plan: Plan, checkpoint: Checkpoint | None, outputs: Sequence[str] | None) -> Session:
    """A session with the weights and the checkpoint that were given."""
    aside, fixed = other_tensors(plan)
    given_weights = weights_from(given.weights_from, plan, aside, fixed) if given.weights_from else {}
    needed = [name for name, (variable, _) in plan.variables.items() if variable.init.kind == "weights"]
    weights = {} if set(needed) <= set(given_weights) else model_weights(plan)
    if checkpoint is not None:
        weights.update(checkpoint.read(name for name in needed if name not in weights))
    session = Session(
        plan,
        {name: value for name, value in {**weights, **given_weights}.items() if name not in aside},
        given.device,
        seed=checkpoint.seed if checkpoint else given.seed or 0,
        first_step=checkpoint.step if checkpoint else 0,
        outputs=outputs,
        timeout=given.timeout,
    )
    session.aside = {name: given_weights.pop(name, tensor) for name, tensor in aside.items()}
    if checkpoint is not None:
        checkpoint.fill(session)
        return session
    for name, value in given_weights.items():
        session.set_variable(name, value)
    return session


def weights_from(path: Path, plan: Plan, aside: dict[str, Tensor], fixed: dict[str, Tensor]) -> dict[str, Tensor]:
    """The model's own tensors that a file, or a checkpoint, has; it may lack what is not trained."""
    own = [name for name, (variable, _) in plan.variables.items() if variable.role is TensorKind.PARAMETER]
    wanted = [*own, *aside]
    found = Checkpoint.open(path).read([*wanted, *fixed]) if path.is_dir() else load_tensors(path)
    needed = trained(plan)
    missing = [name for name in own if name not in found and name in needed]
    if missing:
        raise FeedError(f"{path} has no `{missing[0]}`: it holds the weights of another model")
    for name, tensor in fixed.items():
        if name in found and not torch.equal(found[name], tensor):
            raise FeedError(
                f"`{name}` of {path} is another than the model's, and what depends on it is computed when the model is read:"
                f" put it into the model first, with graphc export {path} --model MODEL -o NEW.onnx, and compile that"
            )
    return {name: found[name] for name in wanted if name in found}


def run_profile(given: argparse.Namespace) -> None:
    """Measures."""
    check_distinct(_inputs(given), [("--output", given.output)])
    plan = load(given.plan)
    session = begun(given, plan, None, None)
    profile(session, given.steps, given.output)
    session.barrier()
