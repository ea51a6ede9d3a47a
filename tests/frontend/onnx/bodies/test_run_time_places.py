"""Slices, pads and selections by values: equal to ONNX's own evaluator."""

import numpy as np

from tests.frontend.onnx.helpers import against_reference, text_model


def ints(*values):
    return np.array(values, np.int64)


def test_slices():
    model = text_model(
        """g (float[4,6] x, int64[2] starts, int64[2] ends, int64[2] axes, int64[2] steps, int64[1] from,
            int64[1] to)
           => (float[3,2] a, float[2,6] b, float[4,2] c) {
          a = Slice (x, starts, ends, axes, steps)
          b = Slice (x, from, to)
          last = Constant <value = int64[1] {-1}> ()
          c = Slice (x, from, to, last)
        }""",
    )
    inputs = {
        "x": np.arange(24, dtype=np.float32).reshape(4, 6),
        "starts": ints(-1, 10),
        "ends": ints(1, 0),
        "axes": ints(-1, 0),
        "steps": ints(-2, -2),
        "from": ints(1),
        "to": ints(3),
    }
    inputs["starts"], inputs["ends"] = ints(4, 3), ints(0, -100)
    inputs["axes"], inputs["steps"] = ints(-1, 0), ints(-2, -1)
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 4
    against_reference(model, inputs)


def test_pads():
    modes = "".join(
        f'{name} = Pad <mode = "{mode}"> (x, pads)\n'
        for name, mode in (("a", "reflect"), ("b", "edge"), ("c", "wrap"))
    )
    model = text_model(
        f"""g (float[3,4] x, int64[4] pads, int64[2] some, float value, int64[1] axis)
           => (float[5,5] a, float[5,5] b, float[5,5] c, float[3,7] d) {{
          {modes}
          d = Pad (x, some, value, axis)
        }}""",
        opset=19,
    )
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    inputs = {"x": x, "pads": ints(2, 1, 0, 0), "some": ints(1, 2), "value": np.float32(9), "axis": ints(-1)}
    against_reference(model, inputs, judge="onnxruntime")


def test_selections():
    model = text_model(
        """g (float[3,4] x, bool[3] rows, bool[5] flat) => (float[2,4] a, float[3] b, int64[2,11] c) {
          a = Compress <axis = 0> (x, rows)
          b = Compress (x, flat)
          c = NonZero (x)
        }""",
    )
    inputs = {
        "x": np.arange(12, dtype=np.float32).reshape(3, 4),
        "rows": np.array([True, False, True]),
        "flat": np.array([False, True, True, False, True]),
    }
    against_reference(model, inputs)
