"""Writes cases.json: small models of one or a few ONNX ops, inputs, and the outputs of ONNX's own reference evaluator;
and marked.onnx and unmarked.onnx, with and without metadata that tells parameters from buffers.

Run with Python's `onnx` and `numpy`; the tests need neither.
"""

import json
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from recorded import i, model_of

random = np.random.default_rng(0)
cases = []


def f(*shape):
    return (random.standard_normal(shape) * 1.5).astype(np.float32)


def case(name, nodes, inputs, constants=None, outputs=("y",), opset=20, domains=()):
    """A model of `nodes` (op, inputs, outputs, attributes); constants become initializers."""
    made = [helper.make_node(op, ins, outs, name=f"{op}_{n}", **attrs) for n, (op, ins, outs, attrs) in enumerate(nodes)]
    imports = {"": opset, **dict.fromkeys(domains, 1)}
    model = model_of(name, made, inputs, constants, outputs, imports, ir_version=9)
    found = ReferenceEvaluator(model).run(list(outputs), inputs)
    add(name, model, inputs, dict(zip(outputs, found)))


def add(name, model, inputs, outputs):
    tensor = lambda a: {
        "dtype": {"float32": "f32", "int64": "i64", "int32": "i32", "bool": "bool"}[a.dtype.name],
        "shape": list(a.shape),
        "data": [str(x) if isinstance(x, float) and not np.isfinite(x) else x for x in a.reshape(-1).tolist()],
    }
    cases.append({
        "name": name,
        "model": model.SerializeToString().hex(),
        "inputs": {n: tensor(a) for n, a in inputs.items()},
        "outputs": {n: tensor(np.asarray(a)) for n, a in outputs.items()},
    })


def one(op, inputs, constants=None, opset=20, name=None, count=1, **attrs):
    names = list(inputs) + list(constants or {})
    outputs = ["y"] if count == 1 else [f"y{n}" for n in range(count)]
    case(name or op, [(op, names, outputs, attrs)], inputs, constants, outputs, opset)


x = f(2, 3)
for op in ["Abs", "Erf", "Exp", "Neg", "Relu", "Sigmoid", "Sign", "Softplus", "Softsign", "Tanh", "HardSwish", "Mish", "Selu"]:
    one(op, {"x": x}, opset=22)
for op in ["Log", "Sqrt", "Reciprocal"]:
    one(op, {"x": np.abs(x) + 0.5})
one("Gelu", {"x": x})
one("Gelu", {"x": x}, name="Gelu_tanh", approximate="tanh")
one("LeakyRelu", {"x": x}, alpha=0.2)
one("Elu", {"x": x}, alpha=0.7)
one("Celu", {"x": x}, alpha=0.7)
one("HardSigmoid", {"x": x}, alpha=0.3, beta=0.4)
one("ThresholdedRelu", {"x": x}, alpha=0.5)
one("PRelu", {"x": x}, {"slope": f(3)})
one("Not", {"x": x > 0})
for op in ["Add", "Sub", "Mul", "Div", "Max", "Min"]:
    one(op, {"a": x, "b": f(3)})
for op in ["Add", "Sub", "Mul", "Div", "Pow"]:
    case(f"{op}_number", [("Constant", [], ["c"], {"value_float": 3.0}), (op, ["x", "c"], ["y"], {})], {"x": x})
for op in ["Add", "Sub", "Mul", "Div"]:
    case(f"number_{op}", [("Constant", [], ["c"], {"value_float": 2.0}), (op, ["c", "x"], ["y"], {})], {"x": x})
one("Pow", {"a": np.abs(x), "b": f(3)})
one("Pow", {"a": np.abs(x)}, {"b": i(2)}, name="Pow_integer")
for op in ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]:
    one(op, {"a": i(1, 2, 3), "b": i(3, 2, 1)})
for op in ["And", "Or", "Xor"]:
    one(op, {"a": np.array([True, True, False]), "b": np.array([True, False, False])})
one("Sum", {"a": x, "b": f(3), "c": f(2, 1)})
one("Mean", {"a": x, "b": f(3), "c": f(2, 1)})
one("Where", {"c": x > 0, "a": x, "b": f(3)})
one("Clip", {"x": x}, {"low": np.float32(-0.5), "high": np.float32(1)})
case("Clip_high", [("Clip", ["x", "", "high"], ["y"], {})], {"x": x}, {"high": np.float32(0.3)})
one("Clip", {"x": x}, opset=7, name="Clip_old", min=-0.2, max=0.4)
one("Cast", {"x": x}, to=TensorProto.INT64)
one("CastLike", {"x": i(1, 2), "like": x})

for op in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"]:
    one(op, {"x": f(2, 3, 4)}, {"axes": i(-1, 0)}, keepdims=0)
    one(op, {"x": f(2, 3)}, name=f"{op}_all")
one("ReduceSum", {"x": x}, name="ReduceSum_none", noop_with_empty_axes=1)
one("ReduceMean", {"x": f(2, 3, 4)}, opset=11, name="ReduceMean_old", axes=[1], keepdims=1)
one("ArgMax", {"x": f(3, 4)}, axis=1, keepdims=0)
one("ArgMin", {"x": f(3, 4)}, axis=0)
one("GlobalAveragePool", {"x": f(2, 3, 4, 5)})

one("Reshape", {"x": f(2, 3, 4)}, {"shape": i(0, -1)})
one("Flatten", {"x": f(2, 3, 4)}, axis=2)
one("Flatten", {"x": f(2, 3)}, name="Flatten_all", axis=0)
one("Transpose", {"x": f(2, 3, 4)}, perm=[2, 0, 1])
one("Transpose", {"x": f(2, 3)}, name="Transpose_reversed")
one("Slice", {"x": f(5, 6)}, {"starts": i(-3, 1), "ends": i(2**62, -1), "axes": i(0, 1), "steps": i(1, 2)})
one("Slice", {"x": f(5, 6)}, opset=9, name="Slice_old", starts=[1], ends=[3], axes=[1])
one("Concat", {"a": f(2, 3), "b": f(2, 1)}, axis=-1)
one("Split", {"x": f(2, 5)}, {"split": i(2, 3)}, count=2, axis=1)
one("Split", {"x": f(2, 5)}, name="Split_equal", count=3, axis=1, num_outputs=3)
one("Expand", {"x": f(3, 1)}, {"shape": i(2, 1, 4)})
one("Tile", {"x": f(2, 3)}, {"repeats": i(2, 3)})
one("Pad", {"x": f(2, 3)}, {"pads": i(1, 0, 0, 2), "value": np.float32(0.5)})
one("Squeeze", {"x": f(1, 3, 1)}, {"axes": i(0)})
one("Squeeze", {"x": f(1, 3, 1)}, name="Squeeze_all")
one("Unsqueeze", {"x": f(3)}, {"axes": i(0, -1)})
one("Unsqueeze", {"x": f(3)}, opset=11, name="Unsqueeze_old", axes=[0, 2])
one("Trilu", {"x": f(4, 4)}, {"k": np.int64(1)}, upper=1)
one("Trilu", {"x": f(3, 4)}, name="Trilu_lower", upper=0)
case("Gather_table", [("Gather", ["table", "rows"], ["y"], {})], {"rows": i(2, 0, 3)}, {"table": f(4, 5)})
case("Gather_line", [("Gather", ["table", "rows"], ["y"], {})], {"rows": i(2, 0, 3)}, {"table": f(4)})
case("Gather_blocks", [("Gather", ["table", "rows"], ["y"], {})], {"rows": np.array([[2, 0]])}, {"table": f(4, 2, 3)})
one("Gather", {"x": f(3, 4)}, {"i": np.int64(-1)}, axis=1, name="Gather_one")
one("Gather", {"x": f(3, 4)}, {"i": np.array([[1, 2], [0, 3]])}, axis=1, name="Gather_places")
one("OneHot", {"i": i(1, 0, 2)}, {"depth": np.int64(4), "values": np.array([-1, 2], dtype=np.float32)})
case("Range_long", [("Range", ["s", "e", "d"], ["r"], {}), ("Mul", ["r", "x"], ["y"], {})], {"x": f(1)},
     {"s": np.float32(3), "e": np.float32(203), "d": np.float32(2)})
one("Identity", {"x": x})
one("Dropout", {"x": x})

one("Softmax", {"x": f(2, 3, 4)}, axis=1)
one("LogSoftmax", {"x": f(2, 3, 4)})
one("LayerNormalization", {"x": f(2, 3, 4)}, {"scale": f(4), "bias": f(4)}, epsilon=1e-3)
one("LayerNormalization", {"x": f(2, 3, 4)}, {"scale": f(3, 4)}, name="LayerNormalization_two", axis=1, count=3)
one("RMSNormalization", {"x": f(2, 4)}, {"scale": f(4)}, opset=23, epsilon=1e-3)

one("MatMul", {"a": f(2, 3, 4), "b": f(4, 5)})
one("MatMul", {"a": f(2, 1, 3, 4), "b": f(5, 4, 2)}, name="MatMul_broadcast")
one("MatMul", {"a": f(4), "b": f(2, 4, 3)}, name="MatMul_row")
one("MatMul", {"a": f(2, 3, 4), "b": f(4)}, name="MatMul_column")
one("MatMul", {"a": f(4), "b": f(4)}, name="MatMul_dot")
one("Gemm", {"a": f(3, 2), "b": f(4, 3), "c": f(4)}, transA=1, transB=1, alpha=0.5, beta=2.0)
one("Gemm", {"a": f(2, 3), "b": f(3, 4)}, name="Gemm_without_bias")
case("MatMul_transposed", [("Transpose", ["b"], ["t"], {"perm": [0, 2, 1]}), ("MatMul", ["a", "t"], ["y"], {})],
     {"a": f(2, 3, 4), "b": f(2, 5, 4)})

case("sequence", [
    ("Constant", [], ["c"], {"value_int": 2}), ("Constant", [], ["p"], {"value_int": -1}),
    ("SplitToSequence", ["x", "c"], ["s"], {"axis": 1}), ("SequenceAt", ["s", "p"], ["y"], {}),
], {"x": f(2, 5)})
case("sequence_of_rows", [
    ("Constant", [], ["p"], {"value_int": 1}),
    ("SplitToSequence", ["x"], ["s"], {"keepdims": 0}), ("SequenceAt", ["s", "p"], ["y"], {}),
], {"x": f(3, 2)})
case("stack", [
    ("SequenceConstruct", ["a", "b"], ["s"], {}), ("ConcatFromSequence", ["s"], ["y"], {"axis": 1, "new_axis": 1}),
], {"a": f(2, 3), "b": f(2, 3)})
case("folded_shapes", [
    ("Shape", ["x"], ["s"], {}), ("Constant", [], ["zero"], {"value_int": 0}),
    ("Gather", ["s", "zero"], ["n"], {}), ("Constant", [], ["axes"], {"value_ints": [0]}),
    ("Unsqueeze", ["n", "axes"], ["n1"], {}), ("Constant", [], ["rest"], {"value_ints": [-1, 2]}),
    ("Concat", ["n1", "rest"], ["shape"], {"axis": 0}), ("Reshape", ["x", "shape"], ["y"], {}),
], {"x": f(3, 8)})
case("causal_mask_by_ranges", [
    ("Shape", ["x"], ["s"], {"start": 1, "end": 2}), ("Squeeze", ["s"], ["n"], {}),
    ("Constant", [], ["zero"], {"value_int": 0}), ("Constant", [], ["step"], {"value_int": 1}),
    ("Range", ["zero", "n", "step"], ["r"], {}), ("Constant", [], ["a0"], {"value_ints": [0]}),
    ("Constant", [], ["a1"], {"value_ints": [1]}), ("Unsqueeze", ["r", "a0"], ["row"], {}),
    ("Unsqueeze", ["r", "a1"], ["column"], {}), ("LessOrEqual", ["row", "column"], ["mask"], {}),
    ("Constant", [], ["low"], {"value_float": -1e9}), ("Where", ["mask", "x", "low"], ["y"], {}),
], {"x": f(10, 10)})
case("constant_of_shape", [
    ("Shape", ["x"], ["s"], {}),
    ("ConstantOfShape", ["s"], ["c"], {"value": helper.make_tensor("v", TensorProto.FLOAT, [1], [1.5])}),
    ("Add", ["x", "c"], ["y"], {}),
], {"x": x})
case("constant_output", [("Shape", ["x"], ["y"], {}), ("Size", ["x"], ["z"], {})], {"x": x}, outputs=("y", "z"))
case("large_literal", [
    ("Constant", [], ["c"], {"value": numpy_helper.from_array(f(9, 9), "c")}), ("Add", ["x", "c"], ["y"], {}),
], {"x": f(9, 9)})
case("integers", [
    ("Constant", [], ["two"], {"value_int": 2}), ("Div", ["x", "two"], ["d"], {}), ("Add", ["d", "x"], ["y"], {}),
], {"x": i(7, 8, 9)})

# What PyTorch writes: a parameter and a buffer that are marked, a weight and another number that are not.
made = [
    helper.make_node("MatMul", ["x", "renamed"], ["h"], name="MatMul_0"),
    helper.make_node("Mul", ["h", "scale"], ["s"], name="Mul_1"),
    helper.make_node("Add", ["s", "running"], ["t"], name="Add_2"),
    helper.make_node("Add", ["t", "folded"], ["y"], name="Add_3"),
]
tensors = {"renamed": f(3, 4), "scale": f(4), "running": f(4), "folded": f(4)}
values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in tensors.items()}
for name, kind in [("scale", "PARAMETER"), ("running", "BUFFER")]:
    helper.set_metadata_props(values[name], {"pkg.torch.export.graph_signature.InputSpec.kind": kind})
graph = helper.make_graph(
    made, "marked",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
    [helper.make_empty_tensor_value_info("y")],
    [numpy_helper.from_array(a, n) for n, a in tensors.items()],
    value_info=list(values.values()),
)
folder = pathlib.Path(__file__).parent
imports = [helper.make_opsetid("", 20)]
onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), folder / "marked.onnx")
for value in graph.value_info:
    del value.metadata_props[:]
onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), folder / "unmarked.onnx")

# Images.
x = f(2, 4, 6, 5)
one("Conv", {"x": x}, {"w": f(3, 4, 3, 2), "b": f(3)}, pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2])
one("Conv", {"x": x}, {"w": f(6, 2, 1, 1)}, name="Conv_groups", group=2)
one("Conv", {"x": x}, {"w": f(2, 4, 3, 3)}, name="Conv_same", auto_pad="SAME_UPPER", strides=[2, 2])
one("Conv", {"x": x}, {"w": f(4, 1, 3, 3)}, name="Conv_depthwise", group=4, auto_pad="SAME_LOWER", kernel_shape=[3, 3])
one("MaxPool", {"x": x}, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
one("MaxPool", {"x": x}, name="MaxPool_plain", kernel_shape=[2, 3])
one("AveragePool", {"x": x}, kernel_shape=[2, 2], strides=[2, 2], pads=[1, 0, 1, 0])
one("AveragePool", {"x": x}, name="AveragePool_border", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
statistics = {"s": f(4), "b": f(4), "m": f(4), "v": np.abs(f(4)) + 0.5}
one("BatchNormalization", {"x": x}, statistics, epsilon=1e-3)
one("BatchNormalization", {"x": f(3, 4)}, statistics, name="BatchNormalization_vectors")
one("ConvTranspose", {"x": x}, {"w": f(4, 3, 3, 2), "b": f(3)}, pads=[1, 0, 0, 1], strides=[2, 3], output_padding=[1, 2])
one("ConvTranspose", {"x": x}, {"w": f(4, 2, 2, 2)}, name="ConvTranspose_dilated", dilations=[2, 1])
line = f(2, 4, 7)
one("Conv", {"x": line}, {"w": f(6, 2, 3), "b": f(6)}, name="Conv_line", group=2, pads=[2, 1], strides=[2])
one("ConvTranspose", {"x": line}, {"w": f(4, 3, 3)}, name="ConvTranspose_line", strides=[2], output_padding=[1])
one("MaxPool", {"x": line}, name="MaxPool_line", kernel_shape=[3], strides=[2], pads=[1, 1])
one("AveragePool", {"x": line}, name="AveragePool_line", kernel_shape=[2], strides=[2])
one("BatchNormalization", {"x": line}, statistics, name="BatchNormalization_line")
one("InstanceNormalization", {"x": x}, {"s": f(4), "b": f(4)}, epsilon=1e-3)
one("GroupNormalization", {"x": x}, {"s": f(4), "b": f(4)}, opset=21, num_groups=2)
one("GlobalMaxPool", {"x": x})

# Sums of products.
one("Einsum", {"a": f(2, 3), "b": f(3, 4)}, equation="ij,jk->ik")
one("Einsum", {"a": f(2, 3, 4), "b": f(3, 4, 5)}, name="Einsum_heads", equation="bhd, hde -> bhe")
one("Einsum", {"a": f(2, 4), "b": f(3, 4, 5)}, name="Einsum_experts", equation="bd,edh->beh")
one("Einsum", {"a": f(2, 3, 4), "b": f(2, 5, 4)}, name="Einsum_scores", equation="...qd,...kd->...qk")
one("Einsum", {"a": f(2, 3, 4)}, name="Einsum_sum", equation="abc->ca")
one("Einsum", {"a": f(3), "b": f(4)}, name="Einsum_outer", equation="i,j->ji")
one("Einsum", {"a": f(3, 2), "b": f(2, 3)}, name="Einsum_implied", equation="ba,ac")
one("Einsum", {"a": f(2, 3), "b": f(3, 4), "c": f(4, 5)}, name="Einsum_three", equation="ij,jk,kl->li")

# Places: known ones, and ones that come with the data.
places = np.array([[[0, 2], [1, -1]]], dtype=np.int64)
one("Gather", {"x": f(3, 4), "i": i(-1, 0, 2)}, name="Gather_computed")
one("Gather", {"x": f(2, 4, 3), "i": np.array([[1, -2], [0, 3]])}, name="Gather_computed_inner", axis=1)
one("Gather", {"x": i(5, 6, 7), "i": np.array([[1, -1]])}, name="Gather_integers")
one("Gather", {"x": f(40, 2)}, {"i": np.arange(80)[::-1].copy() // 2}, name="Gather_many_places")
one("GatherElements", {"x": f(2, 4)}, {"i": np.array([[1, -1, 0], [0, 3, 2]])}, axis=1)
one("GatherElements", {"x": f(3, 1, 2), "i": np.array([[[2, 0]], [[-1, 1]]])}, name="GatherElements_computed", axis=0)
one("GatherND", {"x": f(2, 3, 4)}, {"i": places})
one("GatherND", {"x": f(2, 3, 4), "i": places}, name="GatherND_computed")
one("GatherND", {"x": f(2, 3, 4), "i": np.array([[2], [-3]])}, name="GatherND_batch", batch_dims=1)
one("GatherND", {"x": np.array([[True, False], [False, True]]), "i": np.array([[1, 1], [0, 1]])}, name="GatherND_truth")
rows = [
    ("Range", ["zero", "n", "step"], ["r"], {}), ("Unsqueeze", ["r", "last"], ["a"], {}), ("Unsqueeze", ["p", "last"], ["b"], {}),
    ("Concat", ["a", "b"], ["places"], {"axis": -1}),
]
numbers = {"zero": np.int64(0), "n": np.int64(3), "step": np.int64(1), "last": i(-1)}
case("GatherND_of_rows", [*rows, ("GatherND", ["x", "places"], ["y"], {})], {"x": f(3, 4, 2), "p": i(3, 0, -2)}, numbers)
case("ScatterND_of_rows", [*rows, ("ScatterND", ["x", "places", "u"], ["y"], {})],
     {"x": f(3, 4, 2), "p": i(3, 0, 1), "u": f(3, 2)}, numbers)
for reduction in ["none", "add", "mul", "max", "min"]:
    case(f"ScatterND_{reduction}", [("ScatterND", ["x", "i", "u"], ["y"], {"reduction": reduction})],
         {"x": f(4, 3), "i": np.array([[2], [0], [3]]), "u": f(3, 3)})
    case(f"ScatterElements_{reduction}", [("ScatterElements", ["x", "i", "u"], ["y"], {"reduction": reduction, "axis": 1})],
         {"x": f(3, 4), "i": np.array([[1, -1], [0, 3]]), "u": f(2, 2)})
case("ScatterND_integers", [("ScatterND", ["x", "i", "u"], ["y"], {"reduction": "add"})],
     {"x": i(1, 2, 3), "i": np.array([[2], [2]]), "u": i(10, 20)})
case("ScatterND_slab", [("ScatterND", ["x", "i", "u"], ["y"], {})], {"x": f(5, 2), "u": f(2, 2)}, {"i": np.array([[1], [2]])})
for name, greatest in [("TopK", 1), ("TopK_least", 0)]:
    one("TopK", {"x": f(3, 5)}, {"k": i(2)}, name=name, count=2, largest=greatest)
one("TopK", {"x": f(4, 3)}, {"k": i(4)}, name="TopK_sorts", count=2, axis=0)
for exclusive, reverse in [(0, 0), (1, 0), (0, 1), (1, 1)]:
    one("CumSum", {"x": f(2, 4)}, {"axis": np.int64(-1)}, name=f"CumSum_{exclusive}{reverse}", exclusive=exclusive, reverse=reverse)
one("CumSum", {"x": i(3, -1, 4)}, {"axis": np.int64(0)}, name="CumSum_integers")

# What masks and positions are made of.
x = f(3, 4)
for op in ["Sin", "Cos", "Floor", "Ceil", "Round"]:
    one(op, {"x": x})
one("IsNaN", {"x": np.array([1, np.nan, np.inf], dtype=np.float32)})
one("Mod", {"a": i(7, -7, 7, -7), "b": i(3, 3, -3, -3)})
one("Mod", {"a": i(7, -7, 7, -7), "b": i(3, 3, -3, -3)}, name="Mod_c", fmod=1)
one("Slice", {"x": f(5, 6)}, {"starts": i(-1, 4), "ends": i(-(2**62), 0), "axes": i(0, 1), "steps": i(-1, -2)}, name="Slice_backward")
one("Clip", {"x": x}, {"low": np.float32(1), "high": np.float32(-1)}, name="Clip_crossed")
one("Clip", {"x": x, "low": np.float32(1), "high": np.float32(-1)}, name="Clip_crossed_computed")
one("OneHot", {"i": i(-1, 0, -4, 4)}, {"depth": np.int64(4), "values": np.array([0, 1], dtype=np.float32)}, name="OneHot_negative")
case("padding_mask", [
    ("Range", ["zero", "n", "step"], ["t"], {}), ("Range", ["zero", "b", "step"], ["r"], {}),
    ("Unsqueeze", ["r", "a123"], ["row"], {}), ("Unsqueeze", ["t", "a012"], ["key"], {}), ("Unsqueeze", ["t", "a013"], ["query"], {}),
    ("Max", ["row", "key"], ["both"], {}), ("Shape", ["both"], ["s"], {}), ("Expand", ["row", "s"], ["rows"], {}),
    ("Expand", ["key", "s"], ["keys"], {}), ("Unsqueeze", ["rows", "last"], ["r5"], {}), ("Unsqueeze", ["keys", "last"], ["k5"], {}),
    ("Concat", ["r5", "k5"], ["places"], {"axis": -1}), ("GatherND", ["mask", "places"], ["kept"], {}),
    ("LessOrEqual", ["key", "query"], ["causal"], {}), ("And", ["causal", "kept"], ["seen"], {}),
    ("Where", ["seen", "x", "low"], ["y"], {}),
], {"mask": np.random.default_rng(1).random((2, 9)) < 0.7, "x": f(2, 1, 9, 9)}, {
    **numbers, "n": np.int64(9), "b": np.int64(2), "a123": i(1, 2, 3), "a012": i(0, 1, 2), "a013": i(0, 1, 3), "low": np.float32(-1e4),
})

# Attention and positions of version 23.
q, k = f(2, 4, 5, 6), f(2, 2, 7, 6)
one("Attention", {"q": q, "k": k, "v": f(2, 2, 7, 3)}, opset=23, is_causal=1)
one("Attention", {"q": f(2, 5, 12), "k": f(2, 5, 6), "v": f(2, 5, 6)}, opset=23, name="Attention_flat", q_num_heads=4, kv_num_heads=2,
    scale=0.3)
one("Attention", {"q": q, "k": q, "v": q, "m": np.random.default_rng(2).random((5, 5)) < 0.6}, opset=23, name="Attention_masked")
one("Attention", {"q": q, "k": q, "v": q, "m": f(2, 1, 5, 5)}, opset=23, name="Attention_bias", softcap=2.0)
case("Attention_past", [("Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "keys", "values"], {"is_causal": 1})],
     {"q": q, "k": q, "v": q, "pk": f(2, 4, 3, 6), "pv": f(2, 4, 3, 6)}, outputs=("y", "keys", "values"), opset=23)
one("RotaryEmbedding", {"x": f(2, 3, 4, 6)}, {"c": f(2, 4, 3), "s": f(2, 4, 3)}, opset=23)
one("RotaryEmbedding", {"x": f(2, 4, 18), "c": f(10, 2), "s": f(10, 2), "p": np.array([[0, 1, 2, 9], [3, 3, 4, 5]])}, opset=23,
    name="RotaryEmbedding_positions", num_heads=3, rotary_embedding_dim=4, interleaved=1)

one("ReduceLogSumExp", {"x": f(2, 3, 4) * 40}, {"axes": i(-1, 0)}, keepdims=0)
one("ReduceLogSumExp", {"x": f(2, 3)}, name="ReduceLogSumExp_all")
case("ReduceProd_sizes", [("Shape", ["x"], ["s"], {}), ("ReduceProd", ["s"], ["n"], {"keepdims": 0}),
     ("Cast", ["n"], ["c"], {"to": TensorProto.FLOAT}), ("Div", ["x", "c"], ["y"], {})], {"x": f(2, 3)})

for op in ["Tan", "Sinh", "Cosh"]:
    one(op, {"x": f(2, 3)})
one("Atanh", {"x": np.array([-0.9, -1e-3, 0.0, 0.5], np.float32)})
one("Acosh", {"x": np.array([1.0, 1.5, 40.0], np.float32)})
infinite = np.array([-np.inf, 0.0, np.inf, np.nan], np.float32)
one("IsInf", {"x": infinite}, opset=20)
one("IsInf", {"x": infinite}, opset=20, name="IsInf_positive", detect_negative=0)
one("IsInf", {"x": infinite}, opset=20, name="IsInf_negative", detect_positive=0)
for op in ["BitwiseAnd", "BitwiseOr", "BitwiseXor"]:
    case(f"{op}_booleans", [("Greater", ["x", "n"], ["a"], {}), ("Less", ["x", "m"], ["b"], {}), (op, ["a", "b"], ["y"], {})], {"x": f(2, 5)},
         {"n": np.float32(-0.5), "m": np.float32(0.5)})
case("BitwiseNot_booleans", [("Greater", ["x", "n"], ["a"], {}), ("BitwiseNot", ["a"], ["y"], {})], {"x": f(2, 3)}, {"n": np.float32(0)})

sizes = np.array([1e-20, 1e-6, 1e-3, 0.1, 0.4, 0.7, 0.76, 0.999, 1.0], np.float32)
inside = np.concatenate([-sizes, np.zeros(1, np.float32), sizes])
outside = np.concatenate([inside, np.array([-3e38, -7.5, 1.001, 2.5, 1e4, 3e38], np.float32)])
for op, at in [("Asin", inside), ("Acos", inside), ("Atan", outside), ("Asinh", outside)]:
    one(op, {"x": at})
one("ReduceProd", {"x": f(2, 3, 5)}, {"axes": i(-1, 0)}, keepdims=0)
one("ReduceProd", {"x": f(2, 3)}, name="ReduceProd_all")
one("ReduceProd", {"x": f(4, 7)}, {"axes": i(1)}, name="ReduceProd_kept")

# Places of each sample's own, as the older exporter writes `x[rows, places]`: samples and what is looked up in them are one dim.
flat = [("Flatten", ["x"], ["flat"], {"axis": 2}), ("Add", ["p", "starts"], ["places"], {}), ("Gather", ["flat", "places"], ["y"], {})]
case("Gather_of_rows", flat, {"x": f(3, 4, 2), "p": i(3, 0, 2)}, {"starts": i(0, 4, 8)})
case("Gather_of_rows_in_others", flat, {"x": f(3, 4, 2), "p": i(3, 0, 2)}, {"starts": i(0, 3, 6)})
rows = [("Reshape", ["x", "shape"], ["flat"], {}), ("Add", ["starts", "p"], ["places"], {}), ("Gather", ["flat", "places"], ["y"], {})]
case("Gather_of_rows_several", rows, {"x": f(2, 5), "p": np.array([[3, 0, 4], [2, 2, 1]])}, {"shape": i(10), "starts": np.array([[0], [5]])})
everywhere = np.arange(3)[:, None]
for reduction in ["none", "add", "mul", "max", "min"]:
    case(f"ScatterND_everywhere_{reduction}", [("ScatterND", ["x", "i", "u"], ["y"], {"reduction": reduction})], {"x": f(3, 2), "u": f(3, 2)},
         {"i": everywhere})
# Several values for each place: of those that are set the last one stays.
twice = np.broadcast_to(everywhere[:, None], (3, 2, 1)).copy()
for reduction in ["none", "add", "mul", "max", "min"]:
    case(f"ScatterND_twice_{reduction}", [("ScatterND", ["x", "i", "u"], ["y"], {"reduction": reduction})], {"x": f(3, 2), "u": f(3, 2, 2)}, {"i": twice})

lines = ",\n".join(json.dumps(case) for case in cases)
(folder / "cases.json").write_text(f"[\n{lines}\n]\n")
print(len(cases), "cases")
