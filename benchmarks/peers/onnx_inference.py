"""Inference of a workload's model by onnxruntime: exported by torch.onnx, same batch, one JSON line.

  onnx_inference.py --workload W2 --threads 1 [--seconds 4]

Needs PyTorch and onnxruntime (`pip install torch onnx onnxruntime`).
"""
import argparse
import multiprocessing as mp
import os
import tempfile

from common import emit, measure, row


def export(name, path, batches):
    """Writes the model, in the form for inference, and the batches. A process of its own, for memory's sake."""
    import numpy as np
    import torch
    import torch_models as tm

    torch.manual_seed(0)
    model, data, _, _ = tm.workload(name)
    model.eval()
    torch.onnx.export(model, (data[0][0],), path, input_names=["x"], output_names=["logits"], dynamo=False)
    np.savez(batches, *(x.numpy() for x, _ in data))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--workload", default="W2")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--seconds", type=float, default=4.0)
    p.add_argument("--out")
    a = p.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    import numpy as np
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        path, batches = os.path.join(folder, "model.onnx"), os.path.join(folder, "batches.npz")
        child = mp.get_context("spawn").Process(target=export, args=(a.workload, path, batches))
        child.start()
        child.join()
        if child.exitcode:
            raise SystemExit(1)
        data = list(np.load(batches).values())
        options = ort.SessionOptions()
        options.intra_op_num_threads = a.threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    i = 0

    def step():
        nonlocal i
        i += 1
        return session.run(None, {"x": data[i % len(data)]})[0].flat[0]

    m = measure(step, a.seconds)
    emit(row(a.workload, "onnxruntime " + ort.__version__, "inference", a.threads, 1, len(data[0]), m), a.out)


if __name__ == "__main__":
    main()
