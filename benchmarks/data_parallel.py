"""A GPT trained by ``graphc.parallelize`` beside PyTorch's own ways, by turns in the same processes: DDP and FSDP2, or eager steps alone.

    cargo build --release --bin graphc
    GRAPHC=target/release/graphc PYTHONPATH=python torchrun --nproc-per-node 2 benchmarks/data_parallel.py
    GRAPHC=target/release/graphc PYTHONPATH=python python benchmarks/data_parallel.py            # one process beside eager PyTorch

The model is nanoGPT's of 6 layers (width 384, 6 heads, 256 tokens, vocabulary 8,192; AdamW), with as many sequences on each process
as ``--rows`` says. Prints a line of JSON: the median milliseconds of a step of each, and how many times as fast graphc is. Losses of
the first steps are compared, as they must be the same training.
"""

import argparse
import copy
import json
import os
import statistics
import sys
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import graphc

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import torch_models  # noqa: E402


def cross_entropy(logits, batch):
    """The mean over tokens."""
    return torch_models.ce(logits, batch[1])


def optimizer_of(model):
    """AdamW as people use it."""
    return torch.optim.AdamW(model.parameters(), lr=3e-4, eps=1e-6)


def own_step(model):
    """A step of PyTorch's."""
    optimizer = optimizer_of(model)

    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(batch[0]), batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def sharded(model):
    """FSDP2, a shard for each block, as its documentation shows."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def planned_step(model, batch, options):
    """A step of the plan."""
    parallel = graphc.parallelize(model, batch, loss=cross_entropy, optimizer=optimizer_of(model), **options)
    return lambda batch: parallel.step(batch).item()


def ways(model, batch, world, options, only):
    """Steps by the name of their way."""
    made = {"graphc": lambda: planned_step(copy.deepcopy(model), batch, options)}
    if world == 1:
        made["eager"] = lambda: own_step(copy.deepcopy(model))
    else:
        made["ddp"] = lambda: own_step(nn.parallel.DistributedDataParallel(copy.deepcopy(model)))
        made["fsdp2"] = lambda: own_step(sharded(copy.deepcopy(model)))
    return {name: make() for name, make in made.items() if not only or name in only}


def mean_loss(loss, world):
    """The loss of all rows."""
    if world == 1:
        return loss
    found = torch.tensor(loss, dtype=torch.float64)
    dist.all_reduce(found)
    return found.item() / world


def milliseconds(step, batches):
    """How long each of these steps takes, one after the other."""
    found = []
    for batch in batches:
        begun = perf_counter()
        step(batch)
        found.append((perf_counter() - begun) * 1e3)
    return found


def arguments():
    """What the command line says."""
    p = argparse.ArgumentParser()
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--width", type=int, default=384)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--time", type=int, default=256)
    p.add_argument("--vocabulary", type=int, default=8192)
    p.add_argument("--rows", type=int, default=4, help="sequences of each process")
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--steps", type=int, default=5, help="steps of a round")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--mesh", default="auto")
    p.add_argument("--strategy")
    p.add_argument("--cluster")
    p.add_argument("--only", nargs="*")
    return p.parse_args()


def main():
    """Measures, and prints on the first process."""
    a = arguments()
    torch.set_num_threads(a.threads)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if world > 1 else 0
    torch.manual_seed(0)
    model = torch_models.GPT(a.layers, a.width, a.heads, a.time, a.vocabulary)
    generator = torch.Generator().manual_seed(rank)
    made = [torch.randint(a.vocabulary, (2, a.rows, a.time), generator=generator) for _ in range(a.steps)]
    batches = [(tokens, labels) for tokens, labels in made]
    options = {name: getattr(a, name) for name in ("mesh", "strategy", "cluster") if getattr(a, name)}
    steps = ways(model, batches[0], world, options, a.only)
    losses = {name: [step(batch) for batch in batches[:3]] for name, step in steps.items()}
    losses = {name: found if name == "graphc" else [mean_loss(loss, world) for loss in found] for name, found in losses.items()}
    times = {name: [] for name in steps}
    for _ in range(a.rounds):
        for name, step in steps.items():
            times[name] += milliseconds(step, batches)
    if rank == 0:
        medians = {name: statistics.median(found) for name, found in times.items()}
        line = {"ranks": world, "threads": a.threads, "torch": torch.__version__, "ms": {n: round(m, 2) for n, m in medians.items()}}
        if "graphc" in medians:
            own = losses["graphc"]
            apart = [abs(x - y) for found in losses.values() for x, y in zip(found, own, strict=True)]
            line["times_as_fast"] = {n: round(m / medians["graphc"], 3) for n, m in medians.items() if n != "graphc"}
            line["losses_apart"] = max(apart)
        print(json.dumps(line), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
