"""GPT-2 of transformers trained from the built wheel in a bare virtual environment, on several processes, killed and resumed.

    pip wheel . --no-deps -w dist && python3 benchmarks/wheel.py dist/graphc-*.whl [--python BARE/bin/python] [--find-links FOLDER]

Makes a virtual environment, installs the wheel with `[torch]` and transformers there, and runs scripts of `python/examples` in folders
of their own; no variable of the environment leads to this repository. `gpt2.py`, which the README shows and which has at most 15 lines,
runs on 1, 2 and 4 processes: losses of 20 steps and all weights must be within 1e-5 of plain PyTorch's. `gpt2_resumed.py` is started on
2 processes, the last of which is ended by SIGKILL when it begins the 8th step. It goes on from its checkpoint on 4 processes, of which
one is killed at the 13th step, and then on 1: the same losses and weights. `--python` takes an environment that has the wheel already.
Prints a line for each, and exits with 1 where one is apart.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "python/examples"
STEPS, TOLERANCE = 20, 1e-5
# Processes, and the step at which the last of them is killed.
PARTS = [(2, 7), (4, 12), (1, None)]

# The example with PyTorch's own steps in the place of a plan's.
PLAIN = """
import sys, types, torch

class Plain:
    def __init__(self, model, batch, *, optimizer, mesh):
        self.model, self.optimizer, self.state_dict = model, optimizer, model.state_dict

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.model(**batch).loss
        loss.backward()
        self.optimizer.step()
        return loss.detach()

sys.modules["graphc"] = types.SimpleNamespace(parallelize=Plain)
import runpy
runpy.run_path(sys.argv[1], run_name="__main__")
"""

# The example, of which the last process kills itself when it is to begin the step of this number.
KILLED = """
import os, runpy, signal, sys
import graphc

begins, step = 0, graphc.Parallel.step
first, last = int(sys.argv[2]), int(sys.argv[3])

def killed(model, *batches):
    global begins
    if first + begins == last and os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1):
        os.kill(os.getpid(), signal.SIGKILL)
    begins += 1
    return step(model, *batches)

graphc.Parallel.step = killed
runpy.run_path(sys.argv[1], run_name="__main__")
"""

# How far weights of two files are apart at most, and their losses.
APART = """
import json, sys, torch

expected, found = (torch.load(path) for path in sys.argv[1:3])
assert list(expected["model"]) == list(found["model"]), "other names"
weights = max(float((own - found["model"][name]).abs().max()) for name, own in expected["model"].items())
losses = found.get("losses") or [float(line) for line in sys.argv[3:]]
assert len(losses) == len(expected["losses"]), "another number of steps"
print(json.dumps([max(abs(a - b) for a, b in zip(expected["losses"], losses)), weights, losses[0], losses[-1]]))
"""


class Environment:
    """A Python that has the wheel, and folders to run scripts in."""

    def __init__(self, python, folder):
        self.python, self.folder = pathlib.Path(python), folder
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GRAPHC", "VIRTUAL_ENV")}
        self.variables = kept | {"OMP_NUM_THREADS": "1", "PATH": f"{self.python.parent}:/usr/bin:/bin", "PYTHONNOUSERSITE": "1"}

    def run(self, name, *command):
        """What a command prints in the folder of this name, and how it ends."""
        place = self.folder / name
        place.mkdir(exist_ok=True)
        command = [str(part) for part in (self.python, *command)]
        return subprocess.run(command, cwd=place, env=self.variables, capture_output=True, text=True)

    def done(self, name, *command):
        """What a command prints that must end well."""
        found = self.run(name, *command)
        if found.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))} in {self.folder / name} has failed:\n{found.stdout}{found.stderr}")
        return found.stdout


def install(wheel, folder, find_links):
    """A virtual environment that has the wheel, and nothing that was not asked for."""
    subprocess.run([sys.executable, "-m", "venv", folder / "bare"], check=True)
    python = folder / "bare/bin/python"
    found = [f"--find-links={find_links}"] if find_links else []
    subprocess.run([python, "-m", "pip", "install", "-q", *found, f"{wheel}[torch]", "transformers"], check=True)
    return python


def launch(world):
    """The command that starts a script on so many processes."""
    return ["-m", "torch.distributed.run", "--nproc-per-node", world] if world > 1 else []


def check_script():
    """Checks that the example is what the README shows, in at most 15 lines."""
    script = (EXAMPLES / "gpt2.py").read_text()
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for line in script.splitlines() if line.strip()]
    if script not in shown or len(lines) > 15:
        sys.exit(f"python/examples/gpt2.py has {len(lines)} lines, or is not what the README shows")


def killed_and_resumed(environment):
    """The losses of a training that is killed twice, those of the last time that each step was made."""
    place = environment.folder / "killed"
    first = 0
    for world, last in PARTS:
        (environment.folder / "killed").mkdir(exist_ok=True)
        (place / "killed.py").write_text(KILLED)
        arguments = ["killed.py", EXAMPLES / "gpt2_resumed.py", first, -1 if last is None else last]
        found = environment.run("killed", *launch(world), *arguments)
        lines = [json.loads(line) for line in (place / "losses.jsonl").read_text().splitlines()]
        if (found.returncode == 0) != (last is None) or (last is not None and lines[-1]["step"] >= last):
            sys.exit(f"gpt2_resumed.py on {world} processes was not killed before step {last}, but ended so:\n{found.stdout}{found.stderr}")
        print(f"  {world} processes: steps {first} to {lines[-1]['step']}, exit status {found.returncode}", flush=True)
        saved = [int(path.parent.name) for path in (place / "checkpoints").glob("*/.metadata")]
        first = max(saved, default=0)
    by_step = {line["step"]: line["loss"] for line in lines}
    return [by_step[step] for step in range(STEPS)]


def compare(environment, what, name, losses=()):
    """Whether a training has plain PyTorch's losses and weights."""
    command = ["-c", APART, environment.folder / "plain/gpt2.pt", environment.folder / name / "gpt2.pt", *losses]
    apart, weights, first, last = json.loads(environment.done(name, *command))
    same = max(apart, weights) < TOLERANCE
    said = f"losses {first:.6f} .. {last:.6f}, apart {apart:.0e}, weights {weights:.0e}"
    print(f"{what:42} {'same' if same else 'APART'}: {said}", flush=True)
    return same


def main():
    """Installs, trains and compares."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel", nargs="?", type=pathlib.Path, help="the wheel to be installed")
    parser.add_argument("--python", type=pathlib.Path, help="a Python that has the wheel, torch and transformers already")
    parser.add_argument("--find-links", type=pathlib.Path, help="a folder of wheels for pip")
    given = parser.parse_args()
    if (given.wheel is None) == (given.python is None):
        parser.error("give the wheel, or a --python that has it")
    if missing := [path for path in (given.wheel, given.python, given.find_links) if path and not path.exists()]:
        parser.error(f"there is no {missing[0]}: `pip wheel . --no-deps -w dist` makes a wheel in dist/")
    check_script()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="graphc-wheel-"))
    environment = Environment(given.python or install(given.wheel.resolve(), folder, given.find_links), folder)
    ask = "import graphc, torch, transformers; print(graphc.__file__, torch.__version__, transformers.__version__)"
    path, *versions = environment.done("asked", "-c", ask).split()
    if pathlib.Path(path).is_relative_to(ROOT):
        sys.exit(f"{path} is not of the wheel")
    print(f"graphc of {path}, torch {versions[0]}, transformers {versions[1]}", flush=True)
    environment.done("plain", "-c", PLAIN, EXAMPLES / "gpt2.py")
    same = []
    for world in (1, 2, 4):
        environment.done(f"on{world}", *launch(world), EXAMPLES / "gpt2.py")
        same.append(compare(environment, f"gpt2.py on {world} processes", f"on{world}"))
    losses = killed_and_resumed(environment)
    same.append(compare(environment, "gpt2_resumed.py, killed on 2 and on 4", "killed", losses))
    if not all(same):
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
