"""Writes resize_places.txt: which element of the operand `Resize` takes for each of the result, by onnxruntime, in all ways to place and
to round. A row has both, the extent, the scale, and the elements. Left out are scales that leave the extent as it is, of which
onnxruntime copies, and of half_pixel_symmetric places that only the last bit of a scale such as 1.7 keeps from being whole or a half.

Run with Python's `onnx`, `numpy` and `onnxruntime`; the test (`ir/src/ops/resize.rs`) needs none of them.
"""

import pathlib
from fractions import Fraction

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

COORDINATES = {
    "asymmetric": "asymmetric",
    "half_pixel": "half_pixel",
    "half_pixel_or_first": "pytorch_half_pixel",
    "half_pixel_symmetric": "half_pixel_symmetric",
    "align_corners": "align_corners",
}
FILTERS = {
    "floor": "floor",
    "ceil": "ceil",
    "nearest_before": "round_prefer_floor",
    "nearest_behind": "round_prefer_ceil",
}
SCALES = [0.15, 0.3, 0.5, 0.6, 0.75, 1.2, 1.3, 1.5, 1.7, 1.9, 2.0, 2.5, 3.0]


def elements(coordinates, rounding, extent, scale):
    node = helper.make_node(
        "Resize", ["x", "", "scales"], ["y"], mode="nearest",
        coordinate_transformation_mode=coordinates, nearest_mode=rounding,
    )
    graph = helper.make_graph(
        [node], "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1, extent])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.array([1, 1, 1, scale], np.float32), "scales")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    x = np.arange(extent, dtype=np.float32).reshape(1, 1, 1, extent)
    return [int(i) for i in session.run(None, {"x": x})[0].reshape(-1)]


def is_rounded(coordinates, extent, scale, count):
    """Whether a scale that no binary number is decides about a place."""
    exact = Fraction(str(scale))
    if coordinates != "half_pixel_symmetric" or exact == Fraction(scale):
        return False
    places = (Fraction(extent, 2) + (i + Fraction(1, 2) - Fraction(count, 2)) / exact for i in range(count))
    return any((2 * place).denominator == 1 for place in places)


rows = []
for ours, coordinates in COORDINATES.items():
    for filter, rounding in FILTERS.items():
        for extent in (7, 9):
            for scale in SCALES:
                found = elements(coordinates, rounding, extent, scale)
                if len(found) != extent and not is_rounded(coordinates, extent, scale, len(found)):
                    rows.append(" ".join(map(str, [ours, filter, extent, scale, *found])))
pathlib.Path(__file__).with_suffix(".txt").write_text("\n".join(rows) + "\n")
