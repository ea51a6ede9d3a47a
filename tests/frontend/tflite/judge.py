"""Our translation beside LiteRT, on one file."""

import numpy as np
import onnx

from hetero_tvm.frontend.onnx.graph.detach import detached
from hetero_tvm.frontend.tflite.load import read_program
from hetero_tvm.frontend.tflite.run import LitertFile
from hetero_tvm.frontend.tflite.translation import to_onnx
from hetero_tvm.reference.running import run_double


def drawn(program, seed=0, low=-100, high=100):
    """Random inputs by name: floats are normal, quantised numbers and others in a range."""
    random = np.random.default_rng(seed)
    main = program.graphs[0]
    found = {}
    for name, number in zip(program.inputs, main.inputs, strict=True):
        tensor = main.tensors[number]
        if tensor.dtype == "bool":
            found[name] = random.integers(0, 2, tensor.shape).astype(bool)
        elif tensor.dtype.startswith("float"):
            found[name] = random.standard_normal(tensor.shape).astype(tensor.dtype)
        else:
            bottom = 0 if tensor.dtype == "uint8" else low
            found[name] = random.integers(bottom, high, tensor.shape).astype(tensor.dtype)
    return found


def both(data, low=-100, high=100):
    """Outputs of LiteRT, and of the translation in float64."""
    program = read_program(data, "a test")
    model = to_onnx(program)
    onnx.checker.check_model(model, full_check=True)
    inputs = drawn(program, low=low, high=high)
    shapes = [x.shape for x in inputs.values()]
    theirs = LitertFile(data, program, shapes, model, False).run(inputs)
    names = [value.name for value in model.graph.output]
    ours = run_double(detached(model), inputs, names)
    return theirs, [ours[name] for name in names]


def assert_same(data, low=-100, high=100, steps=1):
    """Floats to the rounding of float32, quantised numbers within one step, all others exactly."""
    for theirs, ours in zip(*both(data, low, high), strict=True):
        assert theirs.shape == ours.shape
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)
        else:
            apart = np.abs(theirs.astype(np.int64) - ours.astype(np.int64)).max(initial=0)
            assert apart <= (steps if theirs.dtype in (np.int8, np.uint8, np.int16) else 0)
