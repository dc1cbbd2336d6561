"""Writes lstm, gru and unet: models of benchmarks/exports_recurrent.py, small, with what PyTorch reached.

    python3 tests/refs/record_layers.py

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
    "unet": (exports.Unet, exports.pictures(3, 8, 8)),
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


def main():
    for name, make in MODELS.items():
        folder = FOLDER / name
        folder.mkdir(exist_ok=True)
        model, x, labels = exports.rows(make)
        exports.export(model, x, folder / "model.onnx")
        without_remarks(folder / "model.onnx")
        save_file({"x": x.numpy(), "labels": labels.numpy()}, folder / "data.safetensors")
        losses = exports.losses(copy.deepcopy(model), x, labels)
        options = [part for key, value in exports.OPTIMIZER.items() for part in (f"--{key}", str(value))]
        args = ["--loss", "cross_entropy", "--optimizer", "sgd", "--steps", str(exports.STEPS), "--batch", str(exports.BATCH)]
        reference = {"args": args + options, "losses": [float(loss) for loss in losses], "relative_tolerance": 1e-5}
        (folder / "ref.json").write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()
