"""Recurrent nets, resizing, pooling and control flow as PyTorch exports them: graphc runs and trains each as PyTorch does.

    cargo build --release --bin graphc
    python3 benchmarks/exports_recurrent.py [--only lstm gru ...] [--target target/release] [--keep FOLDER]

Exports each model with `torch.onnx.export(dynamo=True, optimize=False)` and a symbolic batch, which is not the first dim of every input:
states lie along the second, and so does a batch of sequences that have time first. A line a model and mesh (mesh 1 in 2 microbatches as well, where there is no batch norm): how far outputs
are from onnxruntime's (wanted: 1e-4 of the greatest), how far the first loss is from PyTorch's (1e-5), and the farthest later loss
from PyTorch's in float64, as a multiple of what PyTorch's own float32 is from it (20). Exits with 1 where one is farther.
"""

import argparse
import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).parent.parent
BATCH, STEPS = 4, 6
OPTIMIZER = {"lr": 0.05, "momentum": 0.9}


class Last(nn.Module):
    """A recurrent layer over a batch of sequences, and classes of its last state."""

    def __init__(self, kind, inputs=6, hidden=16, **options):
        super().__init__()
        self.rnn = getattr(nn, kind)(inputs, hidden, batch_first=True, **options)
        self.head = nn.Linear(hidden * (2 if options.get("bidirectional") else 1), 5)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Tagger(nn.Module):
    """Classes of each step, from an embedding through layers in both directions."""

    def __init__(self, kind):
        super().__init__()
        self.table = nn.Embedding(30, 12)
        self.rnn = getattr(nn, kind)(12, 10, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(20, 7)

    def forward(self, x):
        return self.head(self.rnn(self.table(x))[0])


class Seq2Seq(nn.Module):
    """A decoder that begins with the encoder's last states."""

    def __init__(self, kind="LSTM"):
        super().__init__()
        self.encoder = getattr(nn, kind)(6, 12, batch_first=True)
        self.decoder = getattr(nn, kind)(6, 12, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        _, state = self.encoder(x)
        y, last = self.decoder(x * 0.5, state)
        last = last[0] if isinstance(last, tuple) else last
        return self.head(y[:, 0] + last[-1])


class Cells(nn.Module):
    """A cell that the model's own loop applies."""

    def __init__(self, kind):
        super().__init__()
        self.cell = getattr(nn, kind)(6, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        state = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Ocr(nn.Module):
    """Convolutions whose columns are read by an LSTM, as in text recognition."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d((4, 1)),
        )
        self.rnn = nn.LSTM(32, 12, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 6)

    def forward(self, x):
        y = self.features(x)
        return self.head(self.rnn(y.flatten(1, 2).transpose(1, 2))[0])


class Up(nn.Module):
    """Two convolutions about one resize."""

    def __init__(self, **options):
        super().__init__()
        self.options = options
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x):
        return self.second(F.interpolate(torch.relu(self.first(x)), **self.options))


class Unet(nn.Module):
    """Two levels, up by a bilinear resize."""

    def __init__(self, align_corners=False, mode="bilinear"):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())
        self.a, self.b, self.c = block(3, 8), block(8, 16), block(16, 16)
        self.d, self.e, self.f = block(32, 8), block(16, 8), nn.Conv2d(8, 4, 1)
        options = {} if mode == "nearest" else {"align_corners": align_corners}
        self.up = nn.Upsample(scale_factor=2, mode=mode, **options)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        a = self.a(x)
        b = self.b(self.pool(a))
        c = self.c(self.pool(b))
        d = self.d(torch.cat([self.up(c), b], 1))
        return self.f(self.e(torch.cat([self.up(d), a], 1)))


class Turns(nn.Module):
    """A loop and a branch whose conditions are known when the model is exported."""

    def __init__(self):
        super().__init__()
        self.linear, self.head = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        if not torch.compiler.is_exporting():
            # PyTorch has no gradient of its own loop.
            for _ in range(3):
                x = torch.tanh(self.linear(x))
            return self.head(x * 2)
        from torch._higher_order_ops.while_loop import while_loop

        state = (torch.tensor(0), x)
        _, x = while_loop(lambda turn, y: turn < 3, lambda turn, y: (turn + 1, torch.tanh(self.linear(y))), state)
        x = torch.cond(torch.tensor(True), lambda y: y * 2, lambda y: -y, (x,))
        return self.head(x)


class Given(nn.Module):
    """Layers that begin with a state which is an input, `[layers, batch, hidden]`; gives the last states too."""

    def __init__(self, kind, layers=2, batch_first=True, **options):
        super().__init__()
        self.rnn = getattr(nn, kind)(6, 12, num_layers=layers, batch_first=batch_first, **options)
        self.head = nn.Linear(12 * (2 if options.get("bidirectional") else 1), 5)

    def forward(self, x, h0, c0=None):
        y, last = self.rnn(x, h0 if c0 is None else (h0, c0))
        return self.head(y), *(last if isinstance(last, tuple) else [last])


class StateFirst(Given):
    """The same with the state as the first input."""

    def forward(self, h0, x):
        return super().forward(x, h0)


class Table(nn.Module):
    """An LSTM over what a table, an input without samples, makes of its steps."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(7, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x, table):
        return self.head(self.rnn(x @ table)[0][:, -1])


class Scores(nn.Module):
    """Time before samples, as PyTorch's layers have it by default, and classes of the last step."""

    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = getattr(nn, kind)(6, 12), nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.rnn(x)[0][-1])


def padded(mode):
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, padding_mode=mode), nn.ReLU(), nn.Conv2d(6, 4, 3))


def pooled(pool, places, channels=8):
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), pool, nn.Flatten(), nn.Linear(channels * places, 5)
    )


def googlenet():
    from torchvision.models import GoogLeNet

    return GoogLeNet(num_classes=10, aux_logits=False, init_weights=False, dropout=0.0)


def vgg(size=None):
    from torchvision.models import vgg as module

    cfg = [8, "M", 16, "M", 16, "M"]
    model = module.VGG(module.make_layers(cfg, batch_norm=True), num_classes=10, init_weights=True, dropout=0.0)
    model.classifier = nn.Sequential(nn.Linear(16 * 49, 32), nn.ReLU(), nn.Linear(32, 10))
    return model


def sequences(time=9, inputs=6):
    return lambda n: torch.randn(n, time, inputs)


def images(*shape):
    return lambda n: torch.randn(n, *shape)


def with_states(*shapes, time=9, inputs=6, time_first=False):
    """Sequences, and states of these shapes with samples in the middle."""

    def make(n):
        x = torch.randn(time, n, inputs) if time_first else torch.randn(n, time, inputs)
        return [x, *(torch.randn(layers, n, width) for layers, width in shapes)]

    return make


def tokens(time=7, vocabulary=30):
    return lambda n: torch.randint(vocabulary, (n, time))


MODELS = {
    "lstm": (lambda: Last("LSTM"), sequences()),
    "lstm_100": (lambda: Last("LSTM", 8, 24), sequences(100, 8)),
    "lstm_two_layers": (lambda: Last("LSTM", num_layers=2), sequences()),
    "lstm_bidirectional": (lambda: Last("LSTM", bidirectional=True), sequences()),
    "lstm_no_bias": (lambda: Last("LSTM", bias=False), sequences()),
    "lstm_tagger": (lambda: Tagger("LSTM"), tokens()),
    "lstm_seq2seq": (lambda: Seq2Seq(), sequences()),
    "lstm_cells": (lambda: Cells("LSTMCell"), sequences(5)),
    "lstm_ocr": (Ocr, images(1, 16, 12)),
    "gru": (lambda: Last("GRU"), sequences()),
    "gru_bidirectional": (lambda: Last("GRU", num_layers=2, bidirectional=True), sequences()),
    "gru_tagger": (lambda: Tagger("GRU"), tokens()),
    "gru_seq2seq": (lambda: Seq2Seq("GRU"), sequences()),
    "gru_cells": (lambda: Cells("GRUCell"), sequences(5)),
    "rnn": (lambda: Last("RNN"), sequences()),
    "rnn_relu": (lambda: Last("RNN", nonlinearity="relu"), sequences()),
    "rnn_bidirectional": (lambda: Last("RNN", num_layers=2, bidirectional=True), sequences()),
    "lstm_states": (lambda: Given("LSTM"), with_states((2, 12), (2, 12)), [0, 1, 1], [0, 1, 1]),
    "lstm_states_bidirectional": (
        lambda: Given("LSTM", 1, bidirectional=True), with_states((2, 12), (2, 12)), [0, 1, 1], [0, 1, 1]),
    "gru_state": (lambda: Given("GRU"), with_states((2, 12)), [0, 1], [0, 1]),
    "gru_state_first": (lambda: StateFirst("GRU"), lambda n: with_states((2, 12))(n)[::-1], [1, 0], [0, 1]),
    "rnn_state": (lambda: Given("RNN", 1), with_states((1, 12)), [0, 1], [0, 1]),
    "lstm_time_first": (
        lambda: Given("LSTM", batch_first=False), with_states((2, 12), (2, 12), time_first=True), [1, 1, 1], [1, 1, 1]),
    "gru_time_first": (lambda: Scores("GRU"), with_states(time_first=True), [1], [0]),
    "lstm_table": (Table, lambda n: [torch.randn(n, 9, 6), torch.randn(6, 7)], [0, None], [0]),
    "resize_nearest": (lambda: Up(scale_factor=2, mode="nearest"), images(3, 9, 10)),
    "resize_nearest_size": (lambda: Up(size=(13, 7), mode="nearest"), images(3, 9, 10)),
    "resize_bilinear": (lambda: Up(scale_factor=2, mode="bilinear"), images(3, 9, 10)),
    "resize_bilinear_down": (lambda: Up(scale_factor=0.5, mode="bilinear"), images(3, 9, 10)),
    "resize_bilinear_corners": (lambda: Up(size=(13, 7), mode="bilinear", align_corners=True), images(3, 9, 10)),
    "resize_bilinear_smooth": (lambda: Up(size=(5, 6), mode="bilinear", antialias=True), images(3, 9, 10)),
    "resize_bicubic": (lambda: Up(scale_factor=1.5, mode="bicubic"), images(3, 9, 10)),
    "resize_bicubic_corners": (lambda: Up(size=(17, 8), mode="bicubic", align_corners=True), images(3, 9, 10)),
    "resize_bicubic_smooth": (lambda: Up(size=(5, 6), mode="bicubic", antialias=True), images(3, 9, 10)),
    "unet": (Unet, images(3, 16, 16)),
    "unet_corners": (lambda: Unet(True), images(3, 16, 16)),
    "unet_nearest": (lambda: Unet(mode="nearest"), images(3, 16, 16)),
    "max_pool_ceil": (lambda: pooled(nn.MaxPool2d(3, 2, ceil_mode=True), 25), images(3, 10, 10)),
    "average_pool_ceil": (lambda: pooled(nn.AvgPool2d(3, 2, ceil_mode=True), 25), images(3, 10, 10)),
    "average_pool_ceil_border": (lambda: pooled(nn.AvgPool2d(3, 2, padding=1, ceil_mode=True), 36), images(3, 10, 10)),
    "average_pool_ceil_inside": (
        lambda: pooled(nn.AvgPool2d(3, 2, padding=1, ceil_mode=True, count_include_pad=False), 36), images(3, 10, 10)),
    "adaptive_pool": (lambda: pooled(nn.AdaptiveAvgPool2d((4, 3)), 12), images(3, 10, 11)),
    "adaptive_pool_up": (lambda: pooled(nn.AdaptiveAvgPool2d(7), 49), images(3, 3, 2)),
    "pixel_shuffle": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(2, 4, 3)), images(3, 6, 5)),
    "pad_reflect": (lambda: padded("reflect"), images(3, 8, 9)),
    "pad_edge": (lambda: padded("replicate"), images(3, 8, 9)),
    "pad_wrap": (lambda: padded("circular"), images(3, 8, 9)),
    "turns": (Turns, lambda n: torch.randn(n, 6)),
    "googlenet": (googlenet, images(3, 64, 64)),
    "vgg": (vgg, images(3, 32, 32)),
}


def part(tensors, dims, first, count):
    """Samples of tensors along these dims; what has none is whole."""
    return [x if dim is None else x.narrow(dim, first, count) for x, dim in zip(tensors, dims)]


def first_of(y):
    return y[0] if isinstance(y, tuple) else y


def rows(make):
    """What a model is trained on: steps of one batch each, inputs and classes, and along which dims inputs and outputs have samples."""
    torch.manual_seed(1)
    model, inputs, dims, of_outputs = make if len(make) == 4 else (*make, [0], [0])
    model, x = model(), inputs(BATCH * STEPS)
    x = x if isinstance(x, list) else [x]
    with torch.no_grad():
        y = first_of(copy.deepcopy(model).eval()(*part(x, dims, 0, 2)))
    shape = list(y.shape[:-1] if y.dim() == 3 else [y.shape[0], *y.shape[2:]])
    shape[of_outputs[0]] = BATCH * STEPS
    classes = y.shape[-1] if y.dim() == 3 else y.shape[1]
    return model, x, torch.randint(classes, shape), dims, of_outputs


def losses(model, x, labels, dims, of_outputs):
    """PyTorch's, in the precision of the model."""
    optimizer = torch.optim.SGD(model.train().parameters(), **OPTIMIZER)
    found = []
    for step in range(STEPS):
        y = first_of(model(*part(x, dims, step * BATCH, BATCH)))
        y = y.transpose(1, 2) if y.dim() == 3 else y
        loss = F.cross_entropy(y, labels.narrow(of_outputs[0], step * BATCH, BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return np.array(found)


def export(model, x, dims, path):
    warnings.filterwarnings("ignore")
    batch = torch.export.Dim("batch", min=2, max=4096)
    shapes = tuple({} if dim is None else {dim: batch} for dim in dims)
    program = torch.onnx.export(
        model.eval(), tuple(part(x, dims, 0, BATCH)), dynamo=True, optimize=False, verbose=False, dynamic_shapes=shapes,
        input_names=named("x", x), output_names=["y", "hn", "cn"][:outputs_of(model, part(x, dims, 0, 2))])
    program.save(str(path))


def outputs_of(model, x):
    with torch.no_grad():
        y = model(*x)
    return len(y) if isinstance(y, tuple) else 1


def named(name, tensors):
    return [name] + [f"{name}{at}" for at in range(1, len(tensors))]


def graphc(target, *args):
    run = subprocess.run([target / "graphc", *map(str, args)], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"status {run.returncode}")


def inference(target, folder, mesh, expected):
    files = ["--inputs", folder / "in.safetensors", "--outputs", folder / "out.safetensors", "--batch", BATCH]
    graphc(target, "run", folder / "model.onnx", *files, "--mesh", mesh)
    found = load_file(folder / "out.safetensors")
    far = [np.abs(found[name] - y).max() / max(1.0, np.abs(y).max()) for name, y in expected.items()]
    return float(max(far))


def training(target, folder, mesh, single, double):
    options = [part for name, value in OPTIMIZER.items() for part in (f"--{name}", value)]
    graphc(
        target, "train", folder / "model.onnx", "--data", folder / "data.safetensors", "--batch", BATCH, "--steps", STEPS, "--loss",
        "cross_entropy", "--optimizer", "sgd", *options, "--metrics", folder / "losses.jsonl", *mesh)
    lines = (folder / "losses.jsonl").read_text().splitlines()
    found = np.array([json.loads(line)["loss"] for line in lines])
    own = max(np.abs(single - double).max(), 1e-7)
    return abs(found[0] - single[0]), float(np.abs(found - double)[1:].max() / own)


def normalizes(model):
    """Whether statistics are those of a batch: of microbatches they are others, as in PyTorch."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def check(target, folder, name):
    import onnxruntime

    model, x, labels, dims, of_outputs = rows(MODELS[name])
    if not (folder / "model.onnx").exists():
        export(copy.deepcopy(model), x, dims, folder / "model.onnx")
    data = {key: value.contiguous().numpy() for key, value in zip(named("x", x), x)}
    # More samples than a batch, so that outputs are put together.
    some = part(x, dims, 0, BATCH + BATCH // 2)
    some = {key: value.contiguous().numpy() for key, value in zip(named("x", x), some)}
    save_file(some, folder / "in.safetensors")
    save_file(data | {"labels": labels.numpy()}, folder / "data.safetensors")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    expected = dict(zip((output.name for output in session.get_outputs()), session.run(None, some)))
    single = losses(copy.deepcopy(model), x, labels, dims, of_outputs)
    wide = [value.double() if value.is_floating_point() else value for value in x]
    double = losses(copy.deepcopy(model).double(), wide, labels, dims, of_outputs)
    ok = True
    for mesh in ["1", "2", "2x2"]:
        begun = time.monotonic()
        try:
            far = inference(target, folder, mesh, expected)
            first, later = training(target, folder, ["--mesh", mesh], single, double)
            if mesh == "1" and not normalizes(model):
                # Two microbatches of the same batch: the same losses.
                halves = training(target, folder, ["--microbatches", 2], single, double)
                first, later = max(first, halves[0]), max(later, halves[1])
        except RuntimeError as error:
            print(f"{name:26} {mesh:4} {error}", flush=True)
            return False
        good = far <= 1e-4 and first <= 1e-5 and later <= 20
        seconds = time.monotonic() - begun
        verdict = "" if good else "  MISSED"
        print(f"{name:26} {mesh:4} outputs {far:.1e}  first loss {first:.1e}  later {later:4.1f}  {seconds:.1f} s{verdict}", flush=True)
        ok &= good
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target/release")
    parser.add_argument("--keep", type=pathlib.Path, help="where models and data stay; what was exported there is taken as it is")
    args = parser.parse_args()
    missed = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.only:
            folder = (args.keep or pathlib.Path(scratch)) / name
            folder.mkdir(parents=True, exist_ok=True)
            if not check(args.target, folder, name):
                missed.append(name)
    print(f"{len(args.only) - len(missed)} of {len(args.only)}" + (f"; missed: {' '.join(missed)}" if missed else ""))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
