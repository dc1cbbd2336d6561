"""Writes lstm, gru, unet and states: models of benchmarks/exports_recurrent.py, small, with what PyTorch reached.

    python3 tests/refs/record_layers.py [NAME ...]

What the exporter says of nodes, such as lines of Python, is left out: it is ten times the rest. Its marks of parameters stay.
"""

import copy
import json
import pathlib
import sys

import numpy as np
import onnx
import torch
from safetensors.numpy import save_file

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent.parent / "benchmarks"))
import exports_recurrent as exports  # noqa: E402

MODELS = {
    "lstm": (lambda: exports.Tagger("LSTM"), exports.tokens()),
    "gru": (lambda: exports.Seq2Seq("GRU"), exports.sequences()),
    "unet": (exports.Unet, exports.images(3, 8, 8)),
    # Samples along the second dim of all: sequences that have time first, states of layers, and classes of each step.
    "states": exports.MODELS["lstm_time_first"],
}


def without_remarks(path):
    model = onnx.load(path)
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    weights = {weight.name for weight in model.graph.initializer}
    marked = [value for value in model.graph.value_info if value.name in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(marked)
    del model.functions[:]
    onnx.save(model, path)


def record(name, make):
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    model, x, labels, dims, of_outputs = exports.rows(make)
    exports.export(model, x, dims, folder / "model.onnx")
    without_remarks(folder / "model.onnx")
    data = {key: value.contiguous().numpy() for key, value in zip(exports.named("x", x), x)}
    save_file(data | {"labels": labels.numpy()}, folder / "data.safetensors")
    losses = exports.losses(copy.deepcopy(model), x, labels, dims, of_outputs)
    options = [part for key, value in exports.OPTIMIZER.items() for part in (f"--{key}", str(value))]
    args = ["--loss", "cross_entropy", "--optimizer", "sgd", "--steps", str(exports.STEPS), "--batch", str(exports.BATCH)]
    reference = {"args": args + options, "losses": [float(loss) for loss in losses], "relative_tolerance": 1e-5}
    (folder / "ref.json").write_text(json.dumps(reference, indent=1) + "\n")


def main():
    for name in sys.argv[1:] or MODELS:
        record(name, MODELS[name])


if __name__ == "__main__":
    main()
