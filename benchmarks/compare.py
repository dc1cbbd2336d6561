#!/usr/bin/env python3
"""graphc beside PyTorch, in one run: training throughput of W1 and W3 and the data-parallel toy W5.

  cargo build --release --examples && python3 benchmarks/compare.py [--rounds 3] [--seconds 4] [--mkl mkl_avx512.so]

Needs PyTorch (`pip install torch numpy`). Each figure is the median of the rounds; runs alternate, so that load on the
machine meets both. Prints the load first, then a table of ratios (above 1: graphc is faster).
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


def last_json(command, env=None):
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


def graphc(workload, threads, ranks, seconds):
    return last_json([EXAMPLE, "--workload", workload, "--threads", str(threads), "--ranks", str(ranks),
                      "--seconds", str(seconds)])


def torch(workload, mode, threads, procs, seconds, mkl):
    env = dict(os.environ)
    if mkl:
        env["LD_PRELOAD"] = os.path.abspath(mkl)
    script = os.path.join(HERE, "peers", "torch_bench.py")
    return last_json([sys.executable, script, "--workload", workload, "--mode", mode, "--threads", str(threads),
                      "--procs", str(procs), "--seconds", str(seconds)], env)


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--mkl", help="mkl_avx512.so, preloaded for PyTorch's best row")
    p.add_argument("--modes", default="eager", help="eager,fused")
    a = p.parse_args()
    print("load:", open("/proc/loadavg").read().strip())
    print(f"{'case':<28}{'graphc':>12}{'PyTorch':>12}{'ratio':>8}  {'outside kernels':>16}{'RSS MB':>8}{'first s':>8}")
    for workload in ["W1", "W3"]:
        for threads, ranks in [(1, 1), (2, 1), (1, 2)]:
            for mode in a.modes.split(","):
                ours, theirs = [], []
                for _ in range(a.rounds):
                    ours.append(graphc(workload, threads, ranks, a.seconds))
                    theirs.append(torch(workload, mode, threads, ranks, a.seconds, a.mkl))
                x, y = median(ours, "samples_per_s"), median(theirs, "samples_per_s")
                name = f"{workload} {ranks} rank x {threads} thread {mode}"
                print(f"{name:<28}{x:>12.1f}{y:>12.1f}{x / y:>8.2f}  {median(ours, 'outside_kernels'):>16.3f}"
                      f"{median(ours, 'peak_rss_mb'):>8.0f}{median(ours, 'start_to_first_step_s'):>8.2f}", flush=True)
    for ranks in [1, 2]:
        ours = [last_json([EXAMPLE, "--workload", "W5", "--ranks", str(ranks)]) for _ in range(a.rounds)]
        theirs = [last_json([sys.executable, os.path.join(HERE, "peers", "toy_ddp.py"), "--procs", str(ranks)])
                  for _ in range(a.rounds)]
        x, y = median(ours, "wall_500_s") * 1e3, median(theirs, "wall_500_s") * 1e3
        print(f"{'W5 %d ranks, 500 steps, ms' % ranks:<28}{x:>12.2f}{y:>12.2f}{y / x:>8.2f}")


if __name__ == "__main__":
    main()
