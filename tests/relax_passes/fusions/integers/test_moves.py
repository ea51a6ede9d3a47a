"""Moves between quantisers work on bytes; quantisers that undo each other go."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.fusions.integers.moves import SinkDequantizers
from tests.relax_passes.compiled import module_of, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite

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
    ],
    ids=["scale", "zero point", "type", "two scales"],
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
