"""Writes layer_cases.json: small models of recurrent layers, resizing, pooling and control flow, inputs, and the outputs of
onnxruntime, which has more of these ops than ONNX's own reference evaluator. In the form of cases.json.

Run with Python's `onnx`, `numpy` and `onnxruntime`; the tests need none of them.
"""

import json
import pathlib

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from recorded import i, model_of, record, run

random = np.random.default_rng(0)
cases = []


def f(*shape, scale=1.0):
    return (random.standard_normal(shape) * scale).astype(np.float32).round(3)


def case(name, nodes, inputs, constants=None, outputs=("y",), opset=20):
    """A model of nodes; constants become initializers."""
    model = model_of(name, nodes, inputs, constants, outputs, {"": opset}, ir_version=9)
    cases.append(record(name, model, inputs, run(model, inputs, outputs)))


def node(op, inputs, outputs=("y",), **attributes):
    return helper.make_node(op, list(inputs), list(outputs), name=f"{op}_0", **attributes)


def recurrent(name, op, gates, direction="forward", bias=True, first=True, layout=0, time=3, **attributes):
    """A layer of two samples, three inputs and a state of two."""
    batch, inputs, width = 2, 3, 2
    directions = 2 if direction == "bidirectional" else 1
    kept = op == "LSTM"
    state = (batch, directions, width) if layout else (directions, batch, width)
    x = f(*((batch, time, inputs) if layout else (time, batch, inputs)))
    constants = {"w": f(directions, gates * width, inputs), "r": f(directions, gates * width, width)}
    names = ["x", "w", "r", "b" if bias else ""]
    if bias:
        constants["b"] = f(directions, 2 * gates * width)
    if first:
        constants["h"] = f(*state)
        names += ["", "h"]
        if kept:
            constants["c"] = f(*state)
            names.append("c")
    outputs = ["y", "last", "kept"] if kept else ["y", "last"]
    layer = node(op, names, outputs, hidden_size=width, direction=direction, layout=layout, **attributes)
    case(name, [layer], {"x": x}, constants, outputs)


for direction in ["forward", "reverse", "bidirectional"]:
    recurrent(f"LSTM_{direction}", "LSTM", 4, direction)
    recurrent(f"GRU_{direction}", "GRU", 3, direction, linear_before_reset=1)
    recurrent(f"RNN_{direction}", "RNN", 1, direction)
recurrent("LSTM_plain", "LSTM", 4, bias=False, first=False)
recurrent("GRU_plain", "GRU", 3, bias=False, first=False, linear_before_reset=1)
recurrent("RNN_relu", "RNN", 1, "bidirectional", activations=["Relu", "Relu"])
recurrent("LSTM_one_step", "LSTM", 4, "bidirectional", time=1)


def resize(name, shape, scales=None, sizes=None, opset=20, **attributes):
    constants = {"scales": np.array(scales or [], dtype=np.float32)}
    names = ["x", "", "scales"]
    if sizes:
        constants, names = {"sizes": i(*sizes)}, ["x", "", "", "sizes"]
    case(name, [node("Resize", names, **attributes)], {"x": f(*shape)}, constants, opset=opset)


for coordinates in ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"]:
    place = {"coordinate_transformation_mode": coordinates}
    resize(f"Resize_linear_{coordinates}", (1, 2, 3, 4), scales=[1, 1, 2, 1.5], mode="linear", **place)
    resize(f"Resize_cubic_{coordinates}", (1, 1, 4, 5), sizes=[1, 1, 7, 3], mode="cubic", **place)
    for nearest in ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]:
        name = f"Resize_{nearest}_{coordinates}"
        resize(name, (1, 1, 3, 5), sizes=[1, 1, 7, 3], mode="nearest", nearest_mode=nearest, **place)
resize("Resize_symmetric", (1, 1, 3, 5), scales=[1, 1, 1.7, 0.7], mode="linear",
       coordinate_transformation_mode="half_pixel_symmetric")
resize("Resize_smooth_linear", (1, 1, 7, 9), sizes=[1, 1, 3, 4], mode="linear", antialias=1)
resize("Resize_smooth_inside", (1, 1, 7, 9), sizes=[1, 1, 3, 4], mode="linear", antialias=1, exclude_outside=1)
resize("Resize_smooth_cubic", (1, 1, 7, 9), sizes=[1, 1, 3, 4], mode="cubic", antialias=1, exclude_outside=1)
resize("Resize_cubic_inside", (1, 1, 4, 5), sizes=[1, 1, 7, 3], mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5)
resize("Resize_axes", (2, 3, 4), scales=[2.0], axes=[1], mode="linear")
resize("Resize_same", (2, 3), scales=[1, 1], mode="linear")
case("Upsample", [node("Upsample", ["x", "s"], mode="linear")], {"x": f(1, 2, 3, 2)},
     {"s": np.array([1, 1, 2, 3], dtype=np.float32)}, opset=9)

x = f(1, 2, 6, 7)
ceil = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
case("MaxPool_ceil", [node("MaxPool", ["x"], **ceil)], {"x": x})
case("MaxPool_ceil_border", [node("MaxPool", ["x"], pads=[1, 1, 1, 1], **ceil)], {"x": x})
case("MaxPool_ceil_line", [node("MaxPool", ["x"], kernel_shape=[2], strides=[3], ceil_mode=1)], {"x": f(1, 2, 7)})
case("AveragePool_ceil", [node("AveragePool", ["x"], **ceil)], {"x": x}, opset=22)
case("AveragePool_ceil_inside", [node("AveragePool", ["x"], pads=[1, 1, 1, 1], **ceil)], {"x": x}, opset=22)

case("Slice_back", [node("Slice", ["x", "s", "e", "a", "p"])], {"x": f(2, 5)},
     {"s": i(-1), "e": i(-9), "a": i(1), "p": i(-2)})
case("Slice_back_all", [node("Slice", ["x", "s", "e", "a", "p"])], {"x": f(3, 4)},
     {"s": i(-1, 2), "e": i(-(2**62), 0), "a": i(0, 1), "p": i(-1, -1)})


for mode in ["reflect", "edge", "wrap"]:
    case(f"Pad_{mode}", [node("Pad", ["x", "p"], mode=mode)], {"x": f(1, 2, 4, 3)}, {"p": i(0, 0, 2, 1, 0, 0, 1, 2)})
for mode in ["DCR", "CRD"]:
    case(f"DepthToSpace_{mode}", [node("DepthToSpace", ["x"], blocksize=2, mode=mode)], {"x": f(2, 8, 2, 3)})
case("SpaceToDepth", [node("SpaceToDepth", ["x"], blocksize=2)], {"x": f(2, 2, 4, 6)})


def info(name, dtype=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, dtype, shape)


def branch(result, op, operand):
    return helper.make_graph([helper.make_node(op, [operand], [result])], result, [], [info(result)])


for truth in [True, False]:
    choice = node("If", ["c"], then_branch=branch("t", "Exp", "x"), else_branch=branch("e", "Neg", "x"))
    case(f"If_{truth}", [choice], {"x": f(2, 3)}, {"c": np.array(truth)})

# A sum that grows by x, at each turn its double; the body reads x from around it.
body = helper.make_graph(
    [
        helper.make_node("Add", ["sum", "x"], ["more"]),
        helper.make_node("Add", ["more", "more"], ["doubled"]),
        helper.make_node("Less", ["turn", "limit"], ["on"]),
    ],
    "body",
    [info("turn", TensorProto.INT64, []), info("before", TensorProto.BOOL, []), info("sum", shape=[2])],
    [info("on", TensorProto.BOOL, []), info("more", shape=[2]), info("doubled", shape=[2])],
    [numpy_helper.from_array(np.array(2, dtype=np.int64), "limit")],
)
begin = {"first": f(2), "n": np.array(3, dtype=np.int64), "c": np.array(True)}
for name, names in [("Loop", ["n", "c", "first"]), ("Loop_while", ["", "c", "first"]), ("Loop_for", ["n", "", "first"])]:
    case(name, [node("Loop", names, ["y", "all"], body=body)], {"x": f(2)}, begin, ("y", "all"))

lines = ",\n".join(json.dumps(case) for case in cases)
(pathlib.Path(__file__).parent / "layer_cases.json").write_text(f"[\n{lines}\n]\n")
print(len(cases), "cases")
