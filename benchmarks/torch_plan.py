"""A plan of graphc in PyTorch (python/graphc_torch) beside PyTorch's own step, by turns in one process, on one rank.

    cargo run --release --example bench_training -- --workload W1 --plan w1.json
    PYTHONPATH=python python benchmarks/torch_plan.py --workload W1 --plan w1.json [--threads 1] [--rounds 8] [--seconds 1]

Prints a line of JSON: medians of both over all rounds, their ratio, and what an actor costs beside PyTorch's own work (a step of the
same plan whose actions do nothing, and that of actors which only pass through Python).
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import torch_models  # noqa: E402

import graphc_torch  # noqa: E402


def pytorch(workload, fused):
    """PyTorch's own step."""
    torch.manual_seed(0)
    model, data, optimizer_of, _ = torch_models.workload(workload, torch_models.BATCH[workload], fused=fused)
    optimizer, turn = optimizer_of(model.parameters()), 0

    def step():
        nonlocal turn
        x, y = data[turn % len(data)]
        turn += 1
        optimizer.zero_grad(set_to_none=True)
        loss = torch_models.ce(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, data


def planned(path, data):
    """The plan's."""
    plan = graphc_torch.load(path)
    session, turn = graphc_torch.Session(plan, {}, outputs=["loss"]), 0
    names = sorted(session.inputs, key=lambda name: name == "labels")
    feeds = [dict(zip(names, (x.view(session.inputs[names[0]].shape), y.view(session.inputs["labels"].shape)))) for x, y in data]

    def step():
        nonlocal turn
        turn += 1
        return session.step(feeds[turn % len(feeds)])["loss"].item()

    return step, session


def overhead(session):
    """Seconds for each actor of a step in which no action does anything."""
    actions = session.executor.step_of(0)
    nothing = [type(action)(action.actor, action.microbatch, lambda: None) for action in actions]
    kept, session.executor.phases = session.executor.phases, dict.fromkeys(session.executor.phases, nothing)
    clock = session.executor.clock
    begun = perf_counter()
    for _ in range(200):
        session.executor.run()
    seconds = (perf_counter() - begun) / 200
    session.executor.phases, clock.outputs = kept, {}
    return seconds / len(actions), len(actions)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--workload", default="W1")
    p.add_argument("--plan", required=True)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--rounds", type=int, default=8)
    p.add_argument("--seconds", type=float, default=1.0)
    p.add_argument("--fused", action="store_true", help="PyTorch with its fused optimizer")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    own, data = pytorch(a.workload, a.fused)
    ours, session = planned(a.plan, data)
    times = {own: [], ours: []}
    for step in (own, ours):
        for _ in range(3):
            step()
    for _ in range(a.rounds):
        for step, found in times.items():
            end = perf_counter() + a.seconds
            while perf_counter() < end:
                begun = perf_counter()
                step()
                found.append(perf_counter() - begun)
    medians = [statistics.median(times[step]) for step in (own, ours)]
    actor, actors = overhead(session)
    line = {"workload": a.workload, "threads": a.threads, "torch": torch.__version__, "pytorch_ms": medians[0] * 1e3}
    line |= {"graphc_torch_ms": medians[1] * 1e3, "ratio": medians[0] / medians[1], "least_ratio": min(times[own]) / min(times[ours])}
    print(json.dumps(line | {"actors": actors, "overhead_us_per_actor": actor * 1e6}))


if __name__ == "__main__":
    main()
