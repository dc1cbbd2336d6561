"""Writes form_cases.json: small models of ops that graphc composes of others, inputs, and the outputs of onnxruntime: losses, control flow,
quantization, volumes, integers, and the ops into which onnxruntime joins layers (com.microsoft). In the form of cases.json.

Run with Python's `onnx`, `numpy` and `onnxruntime`; the tests need none of them.
"""

import json
import pathlib

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from recorded import i, model_of, record, run

random = np.random.default_rng(0)
cases = []


def f(*shape, scale=1.0):
    return (random.standard_normal(shape) * scale).astype(np.float32).round(3)


def case(name, nodes, inputs, constants=None, outputs=("y",), opset=20, found=None):
    """A model of nodes; constants become initializers. Where onnxruntime lacks a form, what is to be found is given."""
    model = model_of(name, nodes, inputs, constants, outputs, {"": opset, "com.microsoft": 1}, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    cases.append(record(name, model, inputs, found or run(model, inputs, outputs, options)))


def node(op, inputs, outputs=("y",), domain="", **attributes):
    return helper.make_node(op, list(inputs), list(outputs), name=f"{op}_{outputs[0]}", domain=domain, **attributes)


def one(op, inputs, constants=None, name=None, opset=20, outputs=("y",), **attributes):
    names = list(inputs) + list(constants or {})
    case(name or op, [node(op, names, outputs, **attributes)], inputs, constants, outputs, opset)


def fused(op, operands, inputs, constants=None, name=None, outputs=("y",), **attributes):
    """A node of onnxruntime's own; operands are names, empty where one is left out."""
    case(name or op, [node(op, operands, outputs, "com.microsoft", **attributes)], inputs, constants,
         [output for output in outputs if output])


# Losses.
labels = np.array([[2, 0, -100], [1, 1, 3]], dtype=np.int64)
one("SoftmaxCrossEntropyLoss", {"x": f(3, 5), "labels": i(4, 0, 2)}, outputs=("y", "log"))
one("SoftmaxCrossEntropyLoss", {"x": f(2, 4, 3), "labels": labels}, name="SoftmaxCrossEntropyLoss_ignored",
    ignore_index=-100)
for reduction in ["none", "sum", "mean"]:
    one("SoftmaxCrossEntropyLoss", {"x": f(2, 4, 3), "labels": np.abs(labels) % 100}, {"w": np.abs(f(4)) + 0.1},
        name=f"SoftmaxCrossEntropyLoss_{reduction}", reduction=reduction, ignore_index=0)
    one("NegativeLogLikelihoodLoss", {"x": f(3, 5), "labels": i(4, 0, 2)}, {"w": np.abs(f(5)) + 0.1},
        name=f"NegativeLogLikelihoodLoss_{reduction}", reduction=reduction)

# Small forms.
one("EyeLike", {"x": f(3, 5)}, k=1)
one("EyeLike", {"x": f(3, 3)}, name="EyeLike_integer", dtype=TensorProto.INT64)
for equation in ["btt->bt", "bii->b", "tbt->bt"]:
    shape = (3, 2, 3) if equation == "tbt->bt" else (2, 3, 3)
    one("Einsum", {"x": f(*shape)}, name=f"Einsum_{equation}", equation=equation)
one("Mod", {"a": f(3, 5, scale=4), "b": np.abs(f(5)) + 0.3}, name="Mod_float", fmod=1)
one("Mod", {"a": f(3, 5, scale=4)}, {"b": np.float32(-0.7)}, name="Mod_float_number", fmod=1)
one("GroupNormalization", {"x": f(4, 6)}, {"scale": f(6), "bias": f(6)}, name="GroupNormalization_rows", opset=21,
    num_groups=3)
a, b = random.integers(-99, 99, (2, 3, 4))
for dtype in [np.int32, np.int64]:
    for op in ["BitwiseAnd", "BitwiseOr", "BitwiseXor"]:
        one(op, {"a": a.astype(dtype), "b": b.astype(dtype)}, name=f"{op}_{np.dtype(dtype).name}")
one("BitwiseNot", {"a": a.astype(np.int32)}, name="BitwiseNot_int32")
bytes_ = random.integers(0, 255, (3, 4)).astype(np.uint8)
one("BitwiseNot", {"a": bytes_}, name="BitwiseNot_uint8")
for direction in ["LEFT", "RIGHT"]:
    one("BitShift", {"a": bytes_}, {"n": np.array([1, 3, 0, 5], dtype=np.uint8)}, name=f"BitShift_{direction}",
        direction=direction)
one("ReduceProd", {"x": np.zeros((2, 0), dtype=np.float32)}, {"axes": i(1)}, name="ReduceProd_of_nothing")
case("Dropout_unread_mask", [node("Dropout", ["x", "ratio", "training"], ["y", "mask"])], {"x": f(2, 3)},
     {"ratio": np.float32(0.3), "training": np.array(False)})
case("MaxPool_unread_places", [node("MaxPool", ["x"], ["y", "places"], kernel_shape=[2, 2])], {"x": f(1, 2, 4, 4)})

# Control flow and sequences.
info = lambda name, a: helper.make_tensor_value_info(name, a, None)
branch = lambda op: helper.make_graph([node(op, ["x"], [f"{op}_x"])], op, [], [info(f"{op}_x", TensorProto.FLOAT)])
choice = [node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Greater", ["sum", "zero"], ["positive"]),
          node("If", ["positive"], then_branch=branch("Exp"), else_branch=branch("Neg"))]
for name, sign in [("If_yes", 1), ("If_no", -1)]:
    case(name, choice, {"x": sign * np.abs(f(2, 3))}, {"zero": np.float32(0)})
floats = TensorProto.FLOAT
body = helper.make_graph(
    [node("Mul", ["state", "w"], ["scaled"]), node("Add", ["scaled", "step"], ["next"]),
     node("Mul", ["next", "step"], ["made"])],
    "body", [info("state", floats), info("step", floats)], [info("next", floats), info("made", floats)])
case("Scan", [node("Scan", ["first", "x"], ["last", "all"], body=body, num_scan_inputs=1)],
     {"first": f(2), "x": f(4, 2)}, {"w": f(2)}, ["last", "all"])
case("Scan_other_way",
     [node("Scan", ["first", "x"], ["last", "all"], body=body, num_scan_inputs=1, scan_input_axes=[1],
           scan_input_directions=[1], scan_output_axes=[1], scan_output_directions=[1])],
     {"first": f(2), "x": f(2, 4)}, {"w": f(2)}, ["last", "all"])
case("sequences",
     [node("SequenceEmpty", [], ["none"]), node("SequenceInsert", ["none", "a"], ["one"]),
      node("SequenceInsert", ["one", "b", "zero"], ["two"]), node("SequenceLength", ["two"], ["length"]),
      node("ConcatFromSequence", ["two"], ["joined"], axis=1), node("SequenceErase", ["two", "zero"], ["left"]),
      node("ConcatFromSequence", ["left"], ["rest"], axis=1, new_axis=1)],
     {"a": f(2, 3), "b": f(2, 1)}, {"zero": np.int64(0)}, ["length", "joined", "rest"])

# Quantization.
def quantized(name, shape, scale, zero, **attributes):
    operands = {"scale": np.array(scale, dtype=np.float32)}
    operands |= {} if zero is None else {"zero": zero}
    case(name, [node("QuantizeLinear", ["x", *operands], ["q"], **attributes),
                node("DequantizeLinear", ["q", *operands], **attributes)],
         {"x": f(*shape, scale=3)}, operands, ["q", "y"], opset=21)


quantized("Quantize_uint8", (3, 5), 0.05, np.uint8(120))
quantized("Quantize_int8", (3, 5), 0.02, np.int8(-3))
quantized("Quantize_without_zero", (3, 5), 0.01, None)
quantized("Quantize_channels", (2, 3, 4), [0.02, 0.05, 0.01], np.array([0, 3, -4], dtype=np.int8), axis=1)

# Volumes.
for name, attributes in [
    ("plain", {}),
    ("strided", {"strides": [2, 1, 2], "pads": [1, 0, 2, 1, 1, 0]}),
    ("dilated", {"dilations": [2, 1, 2], "pads": [1, 1, 1, 1, 1, 1]}),
    ("same", {"auto_pad": "SAME_UPPER", "strides": [2, 2, 2]}),
]:
    one("Conv", {"x": f(2, 2, 5, 4, 6)}, {"w": f(3, 2, 2, 3, 2), "b": f(3)}, name=f"Conv_volume_{name}", **attributes)
one("Conv", {"x": f(1, 4, 3, 3, 3)}, {"w": f(4, 2, 2, 2, 2)}, name="Conv_volume_groups", group=2)
one("ConvTranspose", {"x": f(2, 2, 3, 2, 3)}, {"w": f(2, 3, 2, 3, 2), "b": f(3)}, name="ConvTranspose_volume")
one("ConvTranspose", {"x": f(1, 2, 3, 2, 3)}, {"w": f(2, 3, 3, 3, 2)}, name="ConvTranspose_volume_strided",
    strides=[2, 3, 2], pads=[1, 0, 1, 1, 1, 0], output_padding=[1, 1, 0], dilations=[1, 1, 2])
for op in ["MaxPool", "AveragePool"]:
    one(op, {"x": f(2, 2, 5, 4, 6)}, name=f"{op}_volume", kernel_shape=[2, 3, 2])
    one(op, {"x": f(1, 2, 5, 5, 6)}, name=f"{op}_volume_strided", kernel_shape=[3, 2, 2], strides=[2, 2, 3],
        pads=[1, 0, 1, 1, 1, 0], ceil_mode=1)
one("AveragePool", {"x": f(1, 2, 4, 4, 4)}, name="AveragePool_volume_border", kernel_shape=[3, 3, 3],
    pads=[1, 1, 1, 1, 1, 1], count_include_pad=1)
one("BatchNormalization", {"x": f(2, 3, 2, 2, 2)},
    {"s": f(3), "b": f(3), "m": f(3), "v": np.abs(f(3)) + 0.5}, name="BatchNormalization_volume")

# Places, transforms and norms.
for mode in ["linear", "nearest"]:
    for padding in ["zeros", "border", "reflection"]:
        aligned = int(padding != "border")
        one("GridSample", {"x": f(2, 2, 3, 4), "grid": f(2, 3, 2, 2)}, name=f"GridSample_{mode}_{padding}", mode=mode,
            padding_mode=padding, align_corners=aligned)
one("GridSample", {"x": f(1, 1, 3, 4), "grid": f(1, 2, 2, 2)}, name="GridSample_reflection_apart",
    padding_mode="reflection")
for aligned in [0, 1]:
    one("AffineGrid", {"maps": f(2, 2, 3)}, {"size": i(2, 1, 3, 4)}, name=f"AffineGrid_{aligned}", align_corners=aligned)
one("Col2Im", {"x": f(2, 12, 12)}, {"image": i(4, 5), "block": i(2, 2)})
one("Col2Im", {"x": f(1, 6, 8)}, {"image": i(4, 5), "block": i(2, 3)}, name="Col2Im_strided", strides=[1, 2],
    pads=[1, 1, 1, 0], dilations=[2, 1])
one("DFT", {"x": f(2, 6, 1)}, {"n": np.int64(6), "axis": np.int64(1)})
one("DFT", {"x": f(2, 6, 3, 2)}, {"n": np.int64(5), "axis": np.int64(1)}, name="DFT_cut")
one("DFT", {"x": f(5, 2)}, {"n": np.int64(7), "axis": np.int64(0)}, name="DFT_inverse", inverse=1)
one("DFT", {"x": f(2, 6, 1)}, name="DFT_half", opset=17, onesided=1)
one("STFT", {"x": f(2, 12, 1)}, {"step": np.int64(3), "window": f(4)})
case("STFT_frames", [node("HannWindow", ["size"], ["window"]), node("STFT", ["x", "step", "window", "size"], onesided=0)],
     {"x": f(1, 11, 1)}, {"step": np.int64(2), "size": np.int64(5)})
for op in ["HammingWindow", "BlackmanWindow", "HannWindow"]:
    case(op, [node(op, ["size"], ["window"], periodic=0), node("Mul", ["x", "window"])], {"x": f(5)},
         {"size": np.int64(5)})
for rows in [1, 2, 5]:
    one("Det", {"x": f(3, rows, rows)}, name=f"Det_{rows}")
one("Det", {"x": np.array([[0, 2, 0], [3, 0, 0], [0, 0, -1]], dtype=np.float32)}, name="Det_turned")
one("LRN", {"x": f(2, 5, 3, 2)}, size=3, alpha=0.2, beta=0.6, bias=1.5)
for p in [1, 2]:
    one("LpNormalization", {"x": f(3, 4)}, name=f"LpNormalization_{p}", p=p, axis=0)
one("Hardmax", {"x": f(3, 4)}, axis=0)
one("Shrink", {"x": f(3, 4)}, lambd=0.4, bias=0.1)
one("ReduceLogSum", {"x": np.abs(f(3, 4)) + 0.1}, {"axes": i(1)})
case("NonZero_known", [node("NonZero", ["mask"], ["places"]), node("Transpose", ["places"], ["rows"]),
                       node("GatherND", ["x", "rows"])], {"x": f(2, 3)},
     {"mask": np.array([[True, False, True], [False, True, True]])})
one("Compress", {"x": f(3, 4)}, {"held": np.array([True, False, True])}, axis=1)

# What onnxruntime joins.
x, skip = f(2, 3, 4), f(2, 3, 4)
gamma = {"g": f(4)}
fused("SkipLayerNormalization", ["x", "skip", "g", "b", "bias"], {"x": x, "skip": skip},
      gamma | {"b": f(4), "bias": f(4)}, outputs=("y", "", "", "sum"), epsilon=1e-5)
fused("SkipLayerNormalization", ["x", "skip", "g"], {"x": x, "skip": skip}, gamma, name="SkipLayerNormalization_plain")
fused("SkipSimplifiedLayerNormalization", ["x", "skip", "g", "bias"], {"x": x, "skip": skip},
      gamma | {"bias": f(4)}, outputs=("y", "", "", "sum"), epsilon=1e-5)
ids = np.array([[1, 0, 3], [2, 2, 1]], dtype=np.int32)
fused("EmbedLayerNormalization", ["ids", "segments", "words", "places", "kinds", "g", "b"],
      {"ids": ids, "segments": ids % 2}, {"words": f(4, 4), "places": f(6, 4), "kinds": f(2, 4)} | gamma | {"b": f(4)},
      outputs=("y", "lengths"), epsilon=1e-5)
fused("EmbedLayerNormalization", ["ids", "", "words", "places", "", "g", "b", "mask"],
      {"ids": ids, "mask": np.array([[1, 1, 0], [1, 1, 1]], dtype=np.int32)},
      {"words": f(4, 4), "places": f(6, 4)} | gamma | {"b": f(4)}, name="EmbedLayerNormalization_mask",
      outputs=("y", "lengths"), epsilon=1e-5)
fused("FusedMatMul", ["a", "b"], {"a": f(2, 4, 3), "b": f(2, 5, 4)}, transA=1, transB=1, alpha=0.5)
for activation, numbers in [("Relu", None), ("LeakyRelu", [0.3]), ("Clip", [-0.5, 0.5])]:
    more = {} if numbers is None else {"activation_params": numbers}
    fused("FusedConv", ["x", "w", "b", "z"], {"x": f(1, 2, 4, 4), "z": f(1, 3, 3, 3)}, {"w": f(3, 2, 2, 2), "b": f(3)},
          name=f"FusedConv_{activation}", activation=activation, **more)
fused("FusedGemm", ["a", "b", "c"], {"a": f(2, 3)}, {"b": f(3, 4), "c": f(4)}, activation="Tanh", alpha=0.5)
fused("FastGelu", ["x", "b"], {"x": x}, {"b": f(4)})
fused("BiasGelu", ["x", "b"], {"x": x}, {"b": f(4)})
fused("Gelu", ["x"], {"x": x}, name="Gelu_joined")
fused("QuickGelu", ["x"], {"x": x}, alpha=1.5)
angles = np.outer(np.arange(8), [1.0, 0.3]).astype(np.float32)
tables = {"cos": np.cos(angles).round(5), "sin": np.sin(angles).round(5)}
positions = np.array([[0, 1, 2], [3, 1, 5]], dtype=np.int64)
for interleaved in [0, 1]:
    fused("RotaryEmbedding", ["x", "p", "cos", "sin"], {"x": f(2, 3, 8), "p": positions}, tables,
          name=f"RotaryEmbedding_joined_{interleaved}", interleaved=interleaved)
fused("RotaryEmbedding", ["x", "p", "cos", "sin"], {"x": f(2, 2, 3, 4)}, tables | {"p": i(2)},
      name="RotaryEmbedding_joined_heads")
for name, mask in [("plain", None), ("mask", np.array([[1, 1, 0], [1, 1, 1]], dtype=np.int32)),
                   ("lengths", np.array([2, 3], dtype=np.int32))]:
    inputs = {"x": f(2, 3, 4)} | ({} if mask is None else {"mask": mask})
    fused("Attention", ["x", "w", "b", *([] if mask is None else ["mask"])], inputs, {"w": f(4, 12), "b": f(12)},
          name=f"Attention_joined_{name}", num_heads=2)
fused("Attention", ["x", "w", "b"], {"x": f(2, 3, 4)}, {"w": f(4, 12), "b": f(12)}, name="Attention_joined_causal",
      num_heads=2, unidirectional=1)
q, k, v = f(2, 3, 4), f(2, 5, 4), f(2, 5, 4)
fused("MultiHeadAttention", ["q", "k", "v"], {"q": q, "k": k, "v": v}, num_heads=2)
fused("MultiHeadAttention", ["q", "k", "v", "b", "mask", "bias"],
      {"q": q, "k": k, "v": v, "mask": np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], dtype=np.int32), "bias": f(1, 2, 3, 5)},
      {"b": f(12)}, name="MultiHeadAttention_masked", num_heads=2, scale=0.3)
# Packed is what lies side by side: onnxruntime has this on cards alone.
apart = {name: f(2, 3, 8) for name in "qkv"}
fused("MultiHeadAttention", ["q", "k", "v"], apart, name="MultiHeadAttention_apart", num_heads=2)
together = np.stack([x.reshape(2, 3, 2, 4) for x in apart.values()], axis=3)
same = {"y": np.array(cases[-1]["outputs"]["y"]["data"], dtype=np.float32).reshape(2, 3, 8)}
packed = node("MultiHeadAttention", ["q"], domain="com.microsoft", num_heads=2)
case("MultiHeadAttention_packed", [packed], {"q": together}, found=same)
fused("MultiHeadAttention", ["q", "k", "v", "", "", "", "pk", "pv"],
      {"q": q, "k": q, "v": q, "pk": f(2, 2, 2, 2), "pv": f(2, 2, 2, 2)}, name="MultiHeadAttention_past",
      outputs=("y", "keys", "values"), num_heads=2)
lengths = {"last": np.array([2, 2], dtype=np.int32), "total": np.array([3], dtype=np.int32)}
wide = {"q": f(2, 3, 32), "k": f(2, 3, 16), "v": f(2, 3, 16)}
angles = np.outer(np.arange(4), [1.0, 0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1]).astype(np.float32)
tables = {"cos": np.cos(angles).round(5), "sin": np.sin(angles).round(5)}
fused("GroupQueryAttention", ["q", "k", "v", "", "", "last", "total"], wide, lengths, outputs=("y", "keys", "values"),
      num_heads=4, kv_num_heads=2)
fused("GroupQueryAttention", ["q", "k", "v", "", "", "last", "total", "cos", "sin"], wide, lengths | tables,
      name="GroupQueryAttention_turned", outputs=("y", "keys", "values"), num_heads=2, kv_num_heads=1, do_rotary=1,
      local_window_size=2)
fused("GroupQueryAttention", ["q", "", "", "", "", "last", "total", "cos", "sin"], {"q": f(2, 3, 64)}, lengths | tables,
      name="GroupQueryAttention_packed", outputs=("y", "keys", "values"), num_heads=2, kv_num_heads=1, do_rotary=1)

# Keys within lengths, which onnxruntime has in its own ops alone.
q, k, v = f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 4)
scores = np.einsum("bhqw,bhkw->bhqk", q, k) / 2
scores = np.where(np.arange(5) < np.array([3, 5]).reshape(2, 1, 1, 1), scores, -np.inf)
weights = np.exp(scores - scores.max(-1, keepdims=True))
means = (weights / weights.sum(-1, keepdims=True)) @ v
operands = ["q", "k", "v", "", "", "", "lengths"]
case("Attention_lengths", [node("Attention", operands)], {"q": q, "k": k, "v": v, "lengths": i(3, 5)}, opset=24,
     found={"y": means.astype(np.float32)})

# Cubic convolution of images, and volumes at computed places.
for padding in ["zeros", "border", "reflection"]:
    for aligned in [0, 1]:
        one("GridSample", {"x": f(2, 2, 5, 6), "grid": f(2, 3, 4, 2)}, name=f"GridSample_cubic_{padding}_{aligned}", mode="cubic",
            padding_mode=padding, align_corners=aligned)
    for mode in ["linear", "nearest"]:
        one("GridSample", {"x": f(2, 2, 3, 4, 5), "grid": f(2, 2, 3, 2, 3)}, name=f"GridSample_volume_{mode}_{padding}", mode=mode,
            padding_mode=padding, align_corners=int(padding == "border"))

# Of equal elements those of the lowest places.
ties = np.array([[1, 3, 3, 2, 3, 1], [2, 2, 2, 2, 2, 2]], dtype=np.float32)
for largest in [0, 1]:
    one("TopK", {"x": ties}, {"k": i(4)}, name=f"TopK_ties_{largest}", outputs=("y", "places"), largest=largest)

# Known places that are the same in each part of a dim: rows of each sample, and windows that overlap; and those of parts that lie inside others.
steps = np.arange(4)
strided = lambda *strides: sum(np.ix_(*[range(count) for count in (4, 3, 4, 2)])[at] * stride for at, stride in enumerate(strides))
for name, places in {"rows": steps[:, None] * 6, "some": (steps[:, None] * 6 + [4, 1, 4]).reshape(2, 6), "windows": strided(24, 6, 2, 1) % 96,
                     "inside": strided(2, 16, 8, 1), "turned": np.arange(96).reshape(8, 12).T}.items():
    x = f(24, 3) if name in ("rows", "some") else f(96)
    one("Gather", {"x": x}, {"places": places.astype(np.int64)}, name=f"Gather_of_each_{name}")
    one("Gather", {"x": np.stack([x, -x])}, {"places": places.astype(np.int64)}, name=f"Gather_of_each_{name}_behind", axis=1)

# Inverses, as torch.inverse is exported by PyTorch's older exporter.
for rows in [1, 2, 5]:
    fused("Inverse", ["x"], {"x": f(3, rows, rows)}, name=f"Inverse_{rows}")
fused("Inverse", ["x"], {"x": np.array([[0, 2, 0], [4, 0, 0], [0, 0, -1]], dtype=np.float32)}, name="Inverse_turned")

folder = pathlib.Path(__file__).parent
lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
(folder / "form_cases.json").write_text(f"[\n{lines}\n]\n")
print(len(cases), "cases")
