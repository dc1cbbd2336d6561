"""Trainings that are interrupted at random moments lose no step: killed, stopped, suspended, told to end, or with a full disk.

    cargo build --release --bin graphc
    python3 benchmarks/interruptions.py [--seconds 3600] [--seed 0] [--binary target/release/graphc]

Each training runs under `graphc launch` on 2 to 4 processes, over shared memory or TCP, and is started again after whatever has
ended it. When it is done its losses must be those of a training that nobody interrupted, bit for bit and each step once; its folder
must hold whole checkpoints and nothing else, and no process may be left. Prints a line a training, and a table of what was done.
Where this user may mount file systems the disk is a small one of memory, which is filled; elsewhere files have a largest size.
Exits with 1 at the first training that is not as it should be, and says where its folder is.
"""

import argparse
import collections
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
STEPS, HEARTBEAT, DISK = 12000, 4.0, 4 << 20
# A training that is not done after so many seconds hangs.
PATIENCE = 300


class Training:
    """One training in a folder of its own, and what is done to it."""

    def __init__(self, binary, folder, draw):
        self.binary, self.folder, self.draw = binary, folder, draw
        self.world = draw.choice([2, 3, 4])
        self.transport = draw.choice(["auto", "tcp"])
        self.restarts = draw.choice([0, 0, 2])
        self.run = None

    def command(self, folder):
        mlp = ROOT / "tests/refs/mlp"
        own = [self.binary, "train", mlp / "model.onnx", "--data", mlp / "data.safetensors"]
        own += ["--loss", "cross_entropy", "--optimizer", "adam", "--lr", "0.001", "--batch", 12]
        own += ["--mesh", self.world, "--steps", STEPS, "--metrics", folder / "losses.jsonl"]
        saving = ["--save", folder / "saved", "--resume", folder / "saved", "--save-every", 20]
        return [str(part) for part in own + (saving if folder == self.folder else [])]

    def uninterrupted(self):
        """The losses of the training that is left alone, on threads."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            subprocess.run(self.command(folder), check=True, stdout=subprocess.DEVNULL)
            return (folder / "losses.jsonl").read_text()

    def start(self, limit=None):
        """Starts all processes, in a session of their own; `limit`: the largest file that they may write."""

        def prepare():
            if limit:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        launch = [self.binary, "launch", "--standalone", "--nproc-per-node", self.world, "--max-restarts", self.restarts]
        command = [str(part) for part in [*launch, "--", *self.command(self.folder)]]
        environment = os.environ | {"GRAPHC_TRANSPORT": self.transport, "GRAPHC_HEARTBEAT_TIMEOUT": str(HEARTBEAT)}
        with open(self.folder / "errors.txt", "ab") as errors:
            self.run = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=errors, env=environment, start_new_session=True, preexec_fn=prepare
            )

    def ranks(self):
        """The processes of the ranks that run now."""
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.run.pid)], capture_output=True, text=True)
        mine = [int(pid) for pid in listed.stdout.split()]
        return [pid for pid in mine if "train" in command_line(pid)]

    def steps(self):
        losses = self.folder / "losses.jsonl"
        return losses.read_bytes().count(b"\n") if losses.exists() else 0

    def goes_on(self):
        """Lets it go on to a moment drawn in steps, or to one before its first step; whether it has ended meanwhile."""
        if self.draw.random() < 0.25:
            return self.wait(self.draw.uniform(0, 0.3))
        goal, end = self.steps() + self.draw.randrange(STEPS // 4), time.monotonic() + PATIENCE
        while self.steps() < goal and time.monotonic() < end:
            if self.wait(0.005):
                return True
        return False

    def wait(self, seconds):
        """Waits for the end, at most so long; whether it has come."""
        try:
            self.run.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def one_rank(training):
    """A rank, or none where the training has just ended."""
    ranks = training.ranks()
    return [training.draw.choice(ranks)] if ranks else []


def kill_rank(training):
    send(one_rank(training), signal.SIGKILL)


def kill_launcher(training):
    send([training.run.pid], signal.SIGKILL)


def end(training):
    send([training.run.pid], training.draw.choice([signal.SIGTERM, signal.SIGINT]))


def stop_rank(training):
    """One rank falls silent: the others must notice it."""
    victim = one_rank(training)
    send(victim, signal.SIGSTOP)
    training.wait(2.5 * HEARTBEAT + 5)
    send(victim, signal.SIGCONT)


def suspend_all(training):
    """All stand still for longer than a heartbeat's patience, and go on: nobody is to blame."""
    everybody = [*training.ranks(), training.run.pid]
    send(everybody, signal.SIGSTOP)
    time.sleep(training.draw.uniform(0.1, 2 * HEARTBEAT))
    send(everybody, signal.SIGCONT)


def fill_disk(training):
    """Something else takes all of the disk, for a while."""
    ballast = training.folder / "ballast"
    try:
        with open(ballast, "wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
    except OSError:
        pass
    training.wait(training.draw.uniform(0.1, 3))
    ballast.unlink()


INTERRUPTIONS = [kill_rank, kill_rank, kill_launcher, end, stop_rank, suspend_all, fill_disk]


def disturb(training, mounted, counts):
    """Starts the training again and again, each time with one interruption, until it is done."""
    begun = time.monotonic()
    starts = 0
    while True:
        if time.monotonic() - begun > PATIENCE:
            return "it hangs"
        what = training.draw.choice(INTERRUPTIONS) if starts < 6 else None
        limited = what is fill_disk and not mounted
        training.start(training.draw.randrange(1 << 10, 1 << 17) if limited else None)
        starts += 1
        if what:
            ended = training.goes_on()
            counts["already over" if ended and not limited else what.__name__] += 1
            if not ended and not limited:
                what(training)
        if not training.wait(PATIENCE):
            return "it hangs"
        wait_for_orphans(training)
        if training.run.returncode == 0:
            return None
        if what is None:
            return f"nobody disturbed it and it ended with {training.run.returncode}"


def wait_for_orphans(training):
    """Where the launcher was killed its ranks end a moment later."""
    end = time.monotonic() + 30
    while left_over(training) and time.monotonic() < end:
        time.sleep(0.02)


def left_over(training):
    mine = str(training.folder / "losses.jsonl")
    processes = (path for path in pathlib.Path("/proc").iterdir() if path.name.isdigit())
    return [path.name for path in processes if mine in command_line(path.name)]


def fault(training, expected, mounted, counts):
    """What is not as it should be, if anything."""
    if reason := disturb(training, mounted, counts):
        return reason
    if (training.folder / "losses.jsonl").read_text() != expected:
        return "its losses differ from those of a training that was left alone"
    strange = [path.name for path in (training.folder / "saved").iterdir() if not path.name.startswith("step-")]
    if strange:
        return f"left in its folder: {strange}"
    if left := left_over(training):
        return f"processes are left: {left}"
    if "panicked" in (training.folder / "errors.txt").read_text():
        return "a process panicked"
    return None


def mount(folder):
    """A small disk of memory at the folder, where this user may have one."""
    options = ["-t", "tmpfs", "-o", f"size={DISK}", "tmpfs"]
    return subprocess.run(["mount", *options, folder], stderr=subprocess.DEVNULL).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--binary", default=ROOT / "target/release/graphc", type=pathlib.Path)
    args = parser.parse_args()
    end, number, counts = time.monotonic() + args.seconds, 0, collections.Counter()
    while time.monotonic() < end:
        draw = random.Random(f"{args.seed} {number}")
        folder = pathlib.Path(tempfile.mkdtemp(prefix="graphc-interrupted-"))
        mounted = mount(folder)
        training = Training(args.binary.resolve(), folder, draw)
        reason = fault(training, training.uninterrupted(), mounted, counts)
        print(f"{number:4} {training.world} ranks {training.transport:4} {reason or 'the losses of one left alone'}", flush=True)
        if reason:
            sys.exit(f"training {number} of seed {args.seed}: {reason}; its folder: {folder}")
        if mounted:
            subprocess.run(["umount", folder], check=True)
        shutil.rmtree(folder)
        number += 1
    for what, count in counts.most_common():
        print(f"{what.replace('_', ' '):16} {count}")


if __name__ == "__main__":
    main()
