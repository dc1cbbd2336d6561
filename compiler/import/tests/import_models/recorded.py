"""What the scripts beside it share: models of a few nodes, with what onnxruntime makes of them, in the form of cases.json."""

import numpy as np
from onnx import helper, numpy_helper

NAMES = {"float32": "f32", "int64": "i64", "int32": "i32", "uint8": "u8", "bool": "bool", "int8": "i32", "uint32": "i64"}


def i(*values):
    return np.array(values, dtype=np.int64)


def model_of(name, nodes, inputs, constants, outputs, imports, ir_version):
    """A model of nodes; constants become initializers. `imports` has the version of each domain."""
    info = lambda name, a: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
    graph = helper.make_graph(
        nodes,
        name,
        [info(n, a) for n, a in inputs.items()],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def run(model, inputs, outputs, options=None):
    """The outputs of onnxruntime, by name."""
    # Models alone can be made without it.
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return dict(zip(outputs, session.run(list(outputs), inputs)))


def record(name, model, inputs, outputs):
    """A case as its file has it."""
    tensor = lambda a: {
        "dtype": NAMES[a.dtype.name],
        "shape": list(a.shape),
        "data": [float(f"{x:.7g}") if isinstance(x, float) else x for x in a.reshape(-1).tolist()],
    }
    return {
        "name": name,
        "model": model.SerializeToString().hex(),
        "inputs": {n: tensor(a) for n, a in inputs.items()},
        "outputs": {n: tensor(np.asarray(a)) for n, a in outputs.items()},
    }
