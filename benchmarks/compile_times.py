"""CPU seconds of whole `graphc compile`s, and how good the plans are: convolutional networks as PyTorch exports them, and large language models.

    cargo build --release --bin graphc
    python3 benchmarks/compile_times.py [--only mobilenet llama3_8b ..] [--rounds 3] [--beside PATH]

A line a case: what `graphc compile` takes (user time, the least of all rounds, and the least time by the clock), the solver's share of that
run by the clock, the objective, the gap and the step that the null device predicts. `--beside` names a second build of graphc: both run in
turn, a second line is the other's and a third has the ratios; exits with 1 where an objective is worse than the other's. The networks are
those of torchvision on 16 pictures of 64 x 64, exported without optimizing so that batch norms stay. Needs torch, torchvision, onnx and
onnxscript for these, and for LLaMA of other depths what `cargo run --release --example large_models -- DIR LAYERS` has written to the
folder of `--models`.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
MODELS = ROOT / "examples" / "models"
SGD = ["--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.1"]
ADAMW = ["--loss", "cross_entropy", "--optimizer", "adamw", "--lr", "3e-4", "--recompute", "full"]
H100 = ["--cluster", "dgx-h100"]
A100 = ["--cluster", "dgx-a100"]
STAGED = ["--stages", "auto", "--microbatches", "auto"]
ROOMY = ["--memory", "1TiB"]


def exported(name, folder):
    """A network of torchvision on 16 pictures of 64 x 64 as a file of ONNX."""
    import torch
    import torchvision

    path = folder / f"{name}.onnx"
    model = getattr(torchvision.models, name)(num_classes=10).eval()
    torch.onnx.export(model, (torch.randn(16, 3, 64, 64),), str(path), dynamo=True, optimize=False, verbose=False, external_data=False,
                      input_names=["x"], output_names=["y"])
    return path


NETWORKS = {"mobilenet": "mobilenet_v2", "shufflenet": "shufflenet_v2_x1_0", "densenet": "densenet121"}
# Name, model, mesh, options beside those of all.
CASES = [(f"{name} {mesh}", name, mesh, []) for name in NETWORKS for mesh in ["2x2", "2x4"]] + [
    ("llama3_8b 8", "llama3_8b", "8", [*H100, "--batch", "16"]),
    ("llama3_8b 8x8", "llama3_8b", "8x8", [*H100, "--batch", "16"]),
    ("llama3_8b 16x8x8", "llama3_8b", "16x8x8", [*H100, "--batch", "16"]),
    ("llama3_8b 8x8, 128", "llama3_8b", "8x8", [*H100, "--batch", "128"]),
    ("llama3_8b 16x8x8, 2048", "llama3_8b", "16x8x8", [*H100, "--batch", "2048"]),
    ("gpt3_175b staged", "gpt3_175b", "128x8", [*A100, "--batch", "1536", *STAGED]),
    ("gpt3_175b 128x8", "gpt3_175b", "128x8", [*H100, "--batch", "1536"]),
] + [
    (f"{layers} layers {mesh}", f"llama3_8b_{layers}_layers", mesh, [*H100, "--batch", "16", *ROOMY])
    for mesh in ["8", "8x8"] for layers in [8, 32, 128, 512] if mesh == "8" or layers < 512
]


def compiled(graphc, path, mesh, options, folder):
    """User seconds of a compilation, those by the clock, and its report."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.monotonic()
    done = subprocess.run([graphc, "compile", path, "--mesh", mesh, "--format", "json", "-o", folder / "plan.json", *options],
                          capture_output=True, text=True)
    clock = time.monotonic() - start
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if done.returncode:
        sys.exit(f"{path} on {mesh}: {done.stderr}")
    return seconds, clock, json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of cases")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--graphc", default=str(ROOT / "target/release/graphc"))
    parser.add_argument("--beside", help="another build of graphc")
    parser.add_argument("--models", help="a folder that keeps the exported models")
    args = parser.parse_args()
    builds = [args.graphc] + ([args.beside] if args.beside else [])
    failed = False
    print(f"{'case':22} {'user s':>8} {'clock s':>8} {'solver s':>8} {'objective ms':>14} {'gap %':>8} {'predicted ms':>14}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(args.models or scratch)
        for name, model, mesh, options in CASES:
            if args.only and not any(only in name for only in args.only):
                continue
            if model in NETWORKS:
                path = folder / f"{NETWORKS[model]}.onnx"
                path = path if path.exists() else exported(NETWORKS[model], folder)
            else:
                path = next((at for at in [folder / f"{model}.gir", MODELS / f"{model}.gir"] if at.exists()), None)
                if path is None:
                    print(f"{name:22} left out: no {model}.gir in {folder}")
                    continue
            training = SGD if model in NETWORKS else ADAMW
            found = {build: [] for build in builds}
            for _ in range(args.rounds):
                for build in builds:
                    found[build].append(compiled(build, path, mesh, [*training, *options], pathlib.Path(scratch)))
            lines = {}
            for build in builds:
                seconds, _, report = min(found[build], key=lambda one: one[0])
                clock = min(clock for _, clock, _ in found[build])
                planner, step = report["planner"], report["predicted"]["step_seconds"]
                lines[build] = seconds, planner["objective_seconds"], clock
                print(f"{name:22} {seconds:8.2f} {clock:8.2f} {report['seconds']['solve']:8.2f} {1e3 * planner['objective_seconds']:14.6f} "
                      f"{100 * planner['gap']:8.4f} {1e3 * step:14.6f}", flush=True)
            own = lines[args.graphc]
            if args.beside:
                other = lines[args.beside]
                print(f"{'':22} user {own[0] / other[0]:.2f}, clock {own[2] / other[2]:.2f} of the other's, "
                      f"objective {own[1] / other[1]:.6f}", flush=True)
                failed |= own[1] > other[1] * (1 + 1e-6)
    sys.exit(failed)


if __name__ == "__main__":
    main()
