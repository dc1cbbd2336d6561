#!/usr/bin/env python3
"""graphc's collectives beside gloo's and MPI's, between processes of this host, in one run.

  cargo build --release --bins --examples && python3 benchmarks/collectives.py [--rounds 3] [--procs 2,4] [--seconds 0.5]

gloo needs PyTorch, MPI `mpicc` and `mpirun`; what is missing is left out. Each figure is the median of the rounds, which
alternate. Prints microseconds per call and the peers' time over graphc's (above 1: graphc is faster).
"""
import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
RELEASE = os.path.join(os.path.dirname(HERE), "target", "release")
OPS = "all_reduce,broadcast,reduce,all_gather,gather,scatter,reduce_scatter,all_to_all,send_recv,barrier"


def lines(command):
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    run = subprocess.run(command, capture_output=True, text=True, env=env)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{run.stderr}")
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def peers(a, folder):
    """How each program is started, by name."""
    options = ["--ops", a.ops, "--sizes", a.sizes, "--seconds", str(a.seconds)]
    graphc = [os.path.join(RELEASE, "graphc"), "launch", "--standalone", "--nproc-per-node"]
    bench = os.path.join(RELEASE, "examples", "bench_collectives")
    found = {"graphc": lambda n: graphc + [str(n), "--", bench] + options}
    if importlib.util.find_spec("torch"):
        script = os.path.join(HERE, "peers", "gloo_collectives.py")
        found["gloo"] = lambda n: [sys.executable, script, "--procs", str(n)] + options
    if shutil.which("mpicc") and shutil.which("mpirun"):
        program = os.path.join(folder, "mpi_collectives")
        subprocess.run(["mpicc", "-O2", os.path.join(HERE, "peers", "mpi_collectives.c"), "-o", program], check=True)
        mpi = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n"]
        found["mpi"] = lambda n: mpi + [str(n), program, a.sizes, a.ops, str(a.seconds)]
    return found


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--procs", default="2,4")
    p.add_argument("--seconds", type=float, default=0.5)
    p.add_argument("--ops", default=OPS)
    p.add_argument("--sizes", default="4096,1048576,67108864")
    a = p.parse_args()
    print("load:", open("/proc/loadavg").read().strip())
    with tempfile.TemporaryDirectory() as folder:
        programs = peers(a, folder)
        others = [name for name in programs if name != "graphc"]
        print("| op | bytes | processes | graphc, us |" + "".join(f" {name}, us | {name} / graphc |" for name in others))
        print("|---|---|---|---|" + "---|---|" * len(others), flush=True)
        for n in [int(n) for n in a.procs.split(",")]:
            table = {}
            for _ in range(a.rounds):
                for name, command in programs.items():
                    for row in lines(command(n)):
                        table.setdefault((row["op"], row["bytes"]), {}).setdefault(name, []).append(row["seconds"])
            for (op, size), times in table.items():
                middle = {name: statistics.median(rows) * 1e6 for name, rows in times.items()}
                ours = middle["graphc"]
                cells = "".join(f" {middle[name]:.1f} | {middle[name] / ours:.2f} |" if name in middle else " | |"
                                for name in others)
                print(f"| {op} | {size} | {n} | {ours:.1f} |{cells}", flush=True)


if __name__ == "__main__":
    main()
