"""Kernel descriptions in few words."""

import numpy as np


def tensor(tensor_name, shape, dtype="float32", **more):
    return {
        "tensor_name": tensor_name,
        "shape": list(shape),
        "data_type": dtype,
        "format": "DefaultFormat",
        **more,
    }


def operator(kind, inputs, output, body=None, **attributes):
    """One operator; each input in a list of its own, as AKG writes them."""
    attr = [{"name": name, "value": value, "data_type": "listInt"} for name, value in attributes.items()]
    made = {
        "name": kind,
        "input_desc": [[one] for one in inputs],
        "output_desc": [output],
        "attr": attr or None,
    }
    return made if body is None else {**made, "body": body}


def description(inputs, operators, outputs, name="Fused_kernel"):
    return {
        "composite": True,
        "op": name,
        "platform": "AKG",
        "process": "cpu",
        "input_desc": [[one] for one in inputs],
        "op_desc": operators,
        "output_desc": outputs,
    }


def layer_norm(rows=12, width=64):
    """LayerNorm without its affine part, in ten operators, as MindSpore expands it."""
    x, row = tensor("x", (rows, width)), (rows, 1)
    scale = tensor("count", (1,), value=1.0 / width)
    epsilon = tensor("epsilon", (1,), value=1e-5)
    return description(
        [x],
        [
            operator("ReduceSum", [x], tensor("sum", row), axis=[-1], keep_dims=True),
            operator("Mul", [tensor("sum", row), scale], tensor("mean", row)),
            operator("Sub", [x, tensor("mean", row)], tensor("centered", (rows, width))),
            operator("Square", [tensor("centered", (rows, width))], tensor("squares", (rows, width))),
            operator(
                "ReduceSum",
                [tensor("squares", (rows, width))],
                tensor("total", row),
                axis=[1],
                keep_dims=True,
            ),
            operator("Mul", [tensor("total", row), scale], tensor("variance", row)),
            operator("Add", [tensor("variance", row), epsilon], tensor("shifted", row)),
            operator("Rsqrt", [tensor("shifted", row)], tensor("factor", row)),
            operator(
                "Mul", [tensor("centered", (rows, width)), tensor("factor", row)], tensor("y", (rows, width))
            ),
        ],
        [tensor("y", (rows, width))],
        "Fused_LayerNorm",
    )


def single(kind, shapes, out, dtype="float32", to=None, body=None, **attributes):
    """A description of one operator over inputs of some shapes."""
    dtypes = dtype if isinstance(dtype, (list, tuple)) else [dtype] * len(shapes)
    inputs = [
        tensor(f"in{i}", shape, one, name="xyzw"[i])
        for i, (shape, one) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    output = tensor("out", out, to or dtypes[0])
    return description(inputs, [operator(kind, inputs, output, body, **attributes)], [output], f"one_{kind}")


def draw(model, low=0.5, high=2.0):
    """Fresh inputs by name: floats between two bounds, small integers, booleans."""
    rng = np.random.default_rng()
    made = {}
    for spec in model.signature.inputs:
        kind = np.dtype(spec.dtype).kind
        drawn = rng.uniform(low, high, spec.shape) if kind == "f" else rng.integers(0, 2, spec.shape)
        made[spec.name] = np.asarray(drawn).astype(spec.dtype)
    return made
