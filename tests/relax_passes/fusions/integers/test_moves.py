"""Moves between quantisers work on bytes; quantisers that undo each other go."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.fusions.integers.moves import QuantizeParts, SinkDequantizers, SplitBytes
from tests.relax_passes.compiled import module_of, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, bind

BYTES = np.random.default_rng(0).integers(0, 256, (1, 6, 8, 7)).astype("uint8")


def real(x, scale=0.5, zero=3):
    return op.dequantize(x, constant(scale), constant(zero, "uint8"), axis=0)


def whole(y, scale=0.5, zero=3):
    return op.quantize(y, constant(scale), constant(zero, "uint8"), axis=0, out_dtype="uint8")


MOVES = {
    "pooling": lambda x: op.nn.max_pool2d(real(x), (3, 3), (2, 2), (1, 1)),
    "a transpose and a reshape": lambda x: op.reshape(op.permute_dims(real(x), [0, 2, 3, 1]), (8, 42)),
    "a part": lambda x: op.strided_slice(real(x), [1], [1], [4]),
    "side by side": lambda x: op.concat([real(x), real(x)], 1),
    "a stack": lambda x: op.stack([real(x), real(x)], 1),
    "reflections": lambda x: op.nn.pad(real(x), [0, 0, 0, 0, 2, 1, 1, 3], "reflect"),
    "zeros around": lambda x: op.nn.pad(real(x), [0, 0, 1, 0, 2, 1, 0, 3], "constant", 0.0),
    "a step around": lambda x: op.nn.pad(real(x), [0, 0, 1, 0, 2, 1, 0, 3], "constant", -1.5),
    "copies": lambda x: op.tile(real(x), [2, 1, 1, 3]),
    "one many times": lambda x: op.broadcast_to(op.strided_slice(real(x), [1], [1], [2]), (4, 6, 8, 7)),
    "the other way round": lambda x: op.flip(real(x), 2),
    "picked elements": lambda x: op.gather_elements(
        real(x), constant(np.arange(7)[None, None, None] % 3, "int64"), 1
    ),
    "the largest": lambda x: op.max(real(x), [2], keepdims=True),
    "the smallest": lambda x: op.min(real(x), [1, 3]),
    "the larger of two": lambda x: op.maximum(real(x), op.flip(real(x), 3)),
}


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(move, id=name, marks=() if name == "pooling" else pytest.mark.exhaustive)
        for name, move in MOVES.items()
    ],
)
def test_the_numbers_stay(move):
    def build(x):
        return whole(move(x))

    after, _ = rewritten(build, [BYTES], [SinkDequantizers()])
    assert "quantize" not in str(after["main"])
    np.testing.assert_array_equal(result(after, [BYTES]), result(module_of(build, BYTES), [BYTES]))


@pytest.mark.parametrize(
    "build",
    [
        lambda x: whole(real(x, scale=0.25)),
        lambda x: whole(real(x, zero=4)),
        lambda x: op.quantize(real(x), constant(0.5), constant(3, "int8"), axis=0, out_dtype="int8"),
        lambda x: whole(op.concat([real(x), real(x, zero=9)], 1)),
        lambda x: whole(op.nn.pad(real(x), [0, 0, 0, 0, 1, 1, 1, 1], "constant", 0.3)),
        lambda x: whole(op.nn.pad(real(x), [0, 0, 0, 0, 1, 1, 1, 1], "constant", 1000.0)),
        lambda x: whole(op.max(real(x, scale=-0.5), [1]), scale=-0.5),
    ],
    ids=["scale", "zero point", "type", "two scales", "between steps", "beyond them", "falling steps"],
)
def test_other_steps_stay(build):
    after, _ = rewritten(build, [BYTES], [SinkDequantizers()])
    text = str(after["main"])
    assert "R.quantize" in text and "R.dequantize" in text


class TestSinkDequantizers(Rewrite):
    rule = SinkDequantizers()
    inputs = {"x": ("uint8", 1, 2, 4, 4)}

    def before(self, x):
        return op.add(op.nn.max_pool2d(real(x), (2, 2), (2, 2)), constant(1.0))

    def expected(self, x):
        return op.add(real(op.nn.max_pool2d(x, (2, 2), (2, 2))), relax.const(1.0))


@pytest.mark.parametrize("scales", [(0.5, 0.5), (0.5, 0.25), (0.1, 0.7)])
def test_parts_of_other_steps_move_as_bytes(scales):
    def build(x):
        return whole(op.concat([real(x, scale=scale) for scale in scales], 1))

    after, _ = rewritten(build, [BYTES], [QuantizeParts(), SinkDequantizers()])
    assert str(after["main"]).count("R.quantize") == sum(scale != 0.5 for scale in scales)
    np.testing.assert_array_equal(result(after, [BYTES]), result(module_of(build, BYTES), [BYTES]))


def test_a_nearest_resize_is_a_move_and_others_are_not():
    def build(method):
        return lambda x: whole(op.image.resize2d(real(x), (13, 9), layout="NCHW", method=method))

    after, _ = rewritten(build("nearest_neighbor"), [BYTES], [SinkDequantizers()])
    assert "quantize" not in str(after["main"])
    np.testing.assert_array_equal(
        result(after, [BYTES]), result(module_of(build("nearest_neighbor"), BYTES), [BYTES])
    )
    after, _ = rewritten(build("linear"), [BYTES], [SinkDequantizers()])
    assert "quantize" in str(after["main"])


class TestSplitBytes(Rewrite):
    rule = SplitBytes()
    inputs = {"x": ("uint8", 2, 6)}

    def before(self, x):
        parts = bind(op.split(real(x), 2, 1))
        return op.exp(relax.TupleGetItem(parts, 0)), op.negative(relax.TupleGetItem(parts, 1))

    def expected(self, x):
        parts = bind(op.split(x, 2, 1))
        first = bind(op.exp(bind(real(bind(relax.TupleGetItem(parts, 0))))))
        return first, op.negative(bind(real(bind(relax.TupleGetItem(parts, 1)))))


class TestQuantizeParts(Rewrite):
    rule = QuantizeParts()
    inputs = {"x": ("uint8", 2, 3), "y": ("uint8", 2, 5)}

    def before(self, x, y):
        return whole(op.concat([bind(real(x, 0.25)), bind(real(y))], 1))

    def expected(self, x, y):
        first, second = bind(real(x, 0.25)), bind(real(y))
        return op.concat([bind(whole(first)), bind(whole(second))], 1)
