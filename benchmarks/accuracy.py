"""ResNet-18 learns on every mesh, goes on after it was killed, and PyTorch predicts the same with its weights.

    cargo build --release --example resnet18_cifar10 --bin graphc
    python3 benchmarks/accuracy.py [--width 64] [--epochs 3] [--only 1 4 2x2 resume torch]

Trains examples/resnet18_cifar10.rs on the synthetic set of `graphc data synth cifar10` (10,000 images), and prints one line a run.
Exits with 1 where held-out top-1 is below 95 % after the last epoch, where a training that was killed in its second epoch and
went on, on another mesh, ends more than 0.5 % away from the one that was not, or where PyTorch (if it is installed) chooses other classes.
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
TARGET = ROOT / "target/release"
WANTED, NEAR = 0.95, 0.005


def command(args, data, folder, mesh, *extra):
    own = ["--data", data, "--epochs", args.epochs, "--batch", args.batch, "--lr", args.lr, "--width", args.width]
    paths = ["--save", folder / "saved", "--log", folder / "log.jsonl"]
    program = TARGET / "examples/resnet18_cifar10"
    return [str(part) for part in [program, *own, "--mesh", mesh, *paths, *extra]]


def lines(folder):
    log = folder / "log.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def train(args, data, folder, mesh, *extra):
    """Trains to the end; the last line of the log, and the seconds it took."""
    begun = time.monotonic()
    subprocess.run(command(args, data, folder, mesh, *extra), check=True, stdout=subprocess.DEVNULL)
    return lines(folder)[-1], time.monotonic() - begun


def killed(args, data, folder, mesh):
    """Trains until the second epoch has begun."""
    run = subprocess.Popen(command(args, data, folder, mesh), stdout=subprocess.DEVNULL)
    while run.poll() is None and not lines(folder):
        time.sleep(0.5)
    time.sleep(3)
    run.send_signal(signal.SIGKILL)
    if run.wait() != -signal.SIGKILL:
        sys.exit("the training was over before it was killed: take more epochs")


def report(what, line, seconds, ok):
    top1, loss, pace = line["eval"]["top1"], line["loss"], line["samples_per_second_and_rank"]
    verdict = "" if ok else "  MISSED"
    print(f"{what:24} top-1 {top1:.4f}  loss {loss:.4f}  {pace:.0f} samples/s a rank  {seconds:.0f} s{verdict}", flush=True)
    return ok


def predictions(args, data, folder):
    """How many of the held-out images PyTorch puts into the class that graphc does, with the weights that graphc has trained."""
    import torch

    sys.path.insert(0, str(ROOT / "tests/models"))
    import record
    from safetensors.torch import load_file
    from torchvision.models.resnet import BasicBlock

    weights = folder / "weights.safetensors"
    subprocess.run([TARGET / "graphc", "export", folder / "saved/last", "-o", weights], check=True)
    model = record.resnet(BasicBlock, [2, 2, 2, 2], args.width, True)
    missing = model.load_state_dict(load_file(weights), strict=False).missing_keys
    if any(not name.endswith("num_batches_tracked") for name in missing):
        sys.exit(f"PyTorch's model has weights that graphc's has not: {missing}")
    rows = torch.frombuffer(bytearray((data / "test_batch.bin").read_bytes()), dtype=torch.uint8).reshape(-1, 3073)
    x = rows[:, 1:].reshape(-1, 3, 32, 32) / 255
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]))
    model.eval()
    with torch.no_grad():
        classes = torch.cat([model(part).argmax(1) for part in ((x - mean) / std).split(250)])
    return (classes == rows[:, 0]).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--only", nargs="+", default=["1", "4", "2x2", "resume", "torch"])
    args = parser.parse_args()
    ok = True
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        data = scratch / "data"
        subprocess.run([TARGET / "graphc", "data", "synth", "cifar10", data], check=True, stdout=subprocess.DEVNULL)
        last = {}
        for mesh in (only for only in args.only if only[0].isdigit()):
            folder = scratch / mesh
            folder.mkdir()
            last[mesh], seconds = train(args, data, folder, mesh)
            ok &= report(f"mesh {mesh}", last[mesh], seconds, last[mesh]["eval"]["top1"] >= WANTED)
        if "torch" in args.only and last:
            mesh = next(iter(last))
            own, theirs = last[mesh]["eval"]["top1"], predictions(args, data, scratch / mesh)
            print(f"PyTorch with the weights of mesh {mesh}: top-1 {theirs:.4f}, graphc {own:.4f}")
            ok &= abs(own - theirs) < 1e-3
        if "resume" in args.only and last:
            mesh, folder = next(iter(last)), scratch / "resumed"
            folder.mkdir()
            killed(args, data, folder, "2x2")
            line, seconds = train(args, data, folder, "2", "--resume", folder / "saved")
            near = abs(line["eval"]["top1"] - last[mesh]["eval"]["top1"]) <= NEAR
            ok &= report("killed on 2x2, on on 2", line, seconds, near)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
