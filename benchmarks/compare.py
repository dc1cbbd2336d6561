#!/usr/bin/env python3
"""graphc beside PyTorch and onnxruntime, in one run: training of W1 to W5, ResNet-50 and a U-Net, inference of W2 and W4.

  cargo build --release --examples && python3 benchmarks/compare.py [--only W2,W4] [--rounds 3] [--seconds 4] [--mkl mkl_avx512.so]

Needs PyTorch (`pip install torch numpy`), and onnxruntime and onnx for inference. PyTorch runs in the mode that a short trial
finds fastest for the case: eager, fused (one kernel for the optimizer), fused_cl (channels last as well) or compile; `--modes`
narrows the choice. Ranks of graphc run the plan that it chooses by default, or a data-parallel one with `--data`: the same
training, within rounding. Then both are measured in turn, so that load on the machine meets both, and each round has all cases
of a workload. Figures are medians of the rounds, and so are ratios, which are taken within a round. A ratio above 1 says that
graphc is faster; memory is the peak resident set of all processes, and below 1 graphc needs less. Rows of scaling divide a case
of 2 cores by that of 1.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
EXAMPLE = os.path.join(ROOT, "target", "release", "examples", "bench_training")
MODES = ["eager", "fused", "fused_cl", "compile"]
WORKLOADS = ["W1", "W2", "W3", "W4", "R50", "UNET"]
# Threads of a rank, and ranks.
CASES = [(1, 1), (2, 1), (1, 2)]


def last_json(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def graphc(workload, threads, ranks, seconds, *more):
    return last_json([EXAMPLE, "--workload", workload, "--threads", str(threads), "--ranks", str(ranks),
                      "--seconds", str(seconds), *more])


def planned(ranks, a):
    """Options of what ranks do: graphc's own choice, unless data parallelism is asked for."""
    return ["--auto"] if ranks > 1 and not a.data else []


def peer(script, *arguments, env=None):
    return last_json([sys.executable, os.path.join(HERE, "peers", script), *map(str, arguments)], env)


class PyTorch:
    """PyTorch's trainings, in the mode that is fastest for the case."""

    def __init__(self, a):
        self.modes = a.modes.split(",")
        self.env = dict(os.environ)
        if a.mkl:
            self.env["LD_PRELOAD"] = os.path.abspath(a.mkl)

    def measure(self, workload, mode, threads, procs, seconds):
        return peer("torch_bench.py", "--workload", workload, "--mode", mode, "--threads", threads, "--procs", procs,
                    "--seconds", seconds, env=self.env)

    def best_mode(self, workload, threads, procs, seconds):
        if len(self.modes) == 1:
            return self.modes[0]
        # Channels last is for images, and none of DDP's ranks compile at the same time on two cores.
        tried = [m for m in self.modes if not (m == "fused_cl" and workload in ("W1", "W3"))]
        tried = [m for m in tried if not (m == "compile" and procs > 1)] or ["eager"]
        speeds = {m: self.measure(workload, m, threads, procs, seconds)["samples_per_s"] for m in tried}
        return max(speeds, key=speeds.get)


def medians(rounds):
    """The median of each number over the rounds, of graphc and of its peer."""

    def of(side):
        keys = [k for k, v in rounds[0][side].items() if isinstance(v, (int, float))]
        return {k: statistics.median(pair[side][k] for pair in rounds) for k in keys}

    return of(0), of(1)


def speeds(rounds, side):
    return [pair[side]["samples_per_s"] for pair in rounds]


def header():
    print(f"{'case':<34}{'graphc':>10}{'peer':>10}{'ratio':>7}  {'mode':<10}{'outside':>8}"
          f"{'MB':>7}{'peer MB':>9}{'ratio':>7}{'first s':>9}{'peer':>7}")


def show(name, rounds, mode):
    ours, theirs = medians(rounds)
    memory = theirs.get("peak_rss_sum_mb", theirs["peak_rss_mb"])
    ratio = statistics.median(x / y for x, y in zip(speeds(rounds, 0), speeds(rounds, 1)))
    print(f"{name:<34}{ours['samples_per_s']:>10.1f}{theirs['samples_per_s']:>10.1f}{ratio:>7.2f}  {mode:<10}"
          f"{ours['outside_kernels']:>8.3f}{ours['peak_rss_mb']:>7.0f}{memory:>9.0f}{ours['peak_rss_mb'] / memory:>7.2f}"
          f"{ours['start_to_first_step_s']:>9.2f}{theirs['start_to_first_step_s']:>7.2f}", flush=True)


def training(workload, torch, a):
    modes = {case: torch.best_mode(workload, *case, min(1.0, a.seconds)) for case in CASES}
    rounds = {case: [] for case in CASES}
    # All cases in each round: scaling compares what ran within a minute.
    for _ in range(a.rounds):
        for case, mode in modes.items():
            ours = graphc(workload, *case, a.seconds, *planned(case[1], a))
            pair = ours, torch.measure(workload, mode, *case, a.seconds)
            rounds[case].append(pair)
    for (threads, ranks), mode in modes.items():
        show(f"{workload}, {ranks} rank x {threads} thread", rounds[threads, ranks], mode)
    for case, name in [((2, 1), "2 threads over 1"), ((1, 2), "2 ranks over 1")]:
        x, y = (statistics.median(two / one for two, one in zip(speeds(rounds[case], side), speeds(rounds[1, 1], side)))
                for side in (0, 1))
        print(f"{f'{workload}, {name}':<34}{x:>10.2f}{y:>10.2f}{x / y:>7.2f}", flush=True)


def inference(workload, a):
    for threads in (1, 2):
        rounds = [(graphc(workload, threads, 1, a.seconds, "--inference"),
                   peer("onnx_inference.py", "--workload", workload, "--threads", threads, "--seconds", a.seconds))
                  for _ in range(a.rounds)]
        show(f"{workload} inference, {threads} thread", rounds, "ort")


def toy(a):
    for ranks in (1, 2):
        rounds = [(last_json([EXAMPLE, "--workload", "W5", "--ranks", str(ranks)]), peer("toy_ddp.py", "--procs", ranks))
                  for _ in range(a.rounds)]
        ours, theirs = medians(rounds)
        x, y = ours["wall_500_s"] * 1e3, theirs["wall_500_s"] * 1e3
        print(f"{f'W5, {ranks} rank, 500 steps, ms':<34}{x:>10.2f}{y:>10.2f}{y / x:>7.2f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default=",".join(WORKLOADS + ["W5", "inference"]),
                   help="of W1,W2,W3,W4,R50,UNET,W5,inference")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--mkl", help="mkl_avx512.so, preloaded for PyTorch: for processors that are not Intel's")
    p.add_argument("--modes", default=",".join(MODES), help="among which PyTorch's best is looked for")
    p.add_argument("--data", action="store_true", help="data parallelism for graphc's ranks, not its own choice")
    a = p.parse_args()
    only = a.only.split(",")
    if unknown := set(only) - {*WORKLOADS, "W5", "inference"}:
        p.error(f"no {', '.join(sorted(unknown))}")
    if unknown := set(a.modes.split(",")) - set(MODES):
        p.error(f"no mode {', '.join(sorted(unknown))}: modes are {', '.join(MODES)}")
    print("load:", open("/proc/loadavg").read().strip())
    header()
    torch = PyTorch(a)
    for workload in (w for w in WORKLOADS if w in only):
        training(workload, torch, a)
    for workload in ("W2", "W4") if "inference" in only else ():
        inference(workload, a)
    if "W5" in only:
        toy(a)


if __name__ == "__main__":
    main()
