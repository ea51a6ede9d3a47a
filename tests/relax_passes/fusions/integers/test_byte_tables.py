"""Functions of one quantised tensor become tables of 256 bytes, the same to the last bit."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.ops.integers.byte_table import ByteTable
from hetero_tvm.relax_passes.fusions.integers import byte_tables
from hetero_tvm.relax_passes.fusions.integers.byte_tables import TabulateBytes
from tests.relax_passes.compiled import module_of, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, kernel

BYTES = np.arange(256, dtype=np.uint8).view(np.int8).reshape(1, 4, 8, 8)
RULE = TabulateBytes(lambda op: True)


def real(x, scale=0.05, zero=3, dtype="int8"):
    return op.dequantize(x, constant(scale), constant(zero, dtype), axis=0)


def whole(y, scale=0.03, zero=-20, dtype="int8"):
    return op.quantize(y, constant(scale), constant(zero, dtype), axis=0, out_dtype=dtype)


def silu(x):
    y = real(x)
    gate = real(whole(op.sigmoid(y), 1 / 256, -128), 1 / 256, -128)
    return whole(op.multiply(y, gate))


FUNCTIONS = {
    "sigmoid": lambda x: whole(op.sigmoid(real(x)), 1 / 256, -128),
    "SiLU": silu,
    "bounds": lambda x: whole(op.clip(op.nn.relu(real(x)), 0.0, 6.0), 6 / 255, 0, "uint8"),
    "other steps": lambda x: whole(real(x)),
    "GELU": lambda x: whole(
        op.multiply(
            op.multiply(real(x), constant(0.5)),
            op.add(op.erf(op.divide(real(x), constant(np.sqrt(2)))), constant(1.0)),
        )
    ),
    "slopes": lambda x: whole(op.nn.leakyrelu(real(x), 0.1)),
    "softplus": lambda x: whole(op.nn.softplus(real(x))),
    "a choice": lambda x: whole(op.where(op.greater(real(x), constant(1.0)), real(x), constant(0.25))),
    "quantised twice": lambda x: whole(op.tanh(real(whole(op.exp(real(x)), 0.1, 0), 0.1, 0)), 1 / 127, 0),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_bytes_stay(function):
    build = FUNCTIONS[function]
    after, report = rewritten(build, [BYTES], [RULE])
    assert report.fusions == {"byte_table": 1}
    text = str(after["main"])
    assert "quantize" not in text
    found, wanted = (result(mod, [BYTES]) for mod in (after, module_of(build, BYTES)))
    # TVM's polynomials are off by an ulp where a value lies between two steps: no such value is here.
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: whole(op.add(real(x), real(op.add(x, constant(1, "int8"))))),  # of two tensors
        lambda x: whole(op.multiply(real(x), constant(np.ones((1, 4, 1, 1))))),  # another factor by channel
        lambda x: whole(op.nn.max_pool2d(real(x), (2, 2))),  # of neighbours
        lambda x: whole(op.log(real(x))),  # NaN is no byte
        lambda x: op.quantize(
            real(x), constant(np.full(4, 0.1)), constant(np.zeros(4), "int8"), axis=1, out_dtype="int8"
        ),
    ],
    ids=["two tensors", "channels", "neighbours", "NaN", "steps by channel"],
)
def test_what_is_no_function_of_one_byte_stays(build):
    after, report = rewritten(build, [BYTES], [RULE])
    assert report.fusions == {}
    assert "quantize" in str(after["main"])


def test_a_part_that_others_read_stays_a_table_of_its_own():
    def build(x):
        inner = whole(op.sigmoid(real(x)), 1 / 256, -128)
        outer = whole(op.multiply(real(x), real(inner, 1 / 256, -128)))
        return op.add(op.astype(inner, "int32"), op.astype(outer, "int32"))

    after, report = rewritten(build, [BYTES], [RULE])
    assert report.fusions == {"byte_table": 2}
    np.testing.assert_array_equal(result(after, [BYTES]), result(module_of(build, BYTES), [BYTES]))


def test_a_stream_of_sums_is_not_walked_back_at_every_one(monkeypatch):
    """Each sum reads the one before and any earlier one: the ways back are more than can be tried."""
    looked = []
    value = byte_tables.scalar_value
    monkeypatch.setattr(byte_tables, "scalar_value", lambda *args: looked.append(1) or value(*args))
    random = np.random.default_rng(0)

    def build(x):
        stream = [x]
        for n in range(45):
            earlier = stream[random.integers(len(stream))]
            stream.append(whole(op.add(real(stream[-1]), real(earlier)), 0.03 + 0.001 * n, 3))
        return stream[-1]

    rewritten(build, [BYTES], [TabulateBytes(lambda op: False)])
    assert len(looked) < 45 * 260


def test_a_target_without_the_kernel_keeps_the_operators():
    after, report = rewritten(silu, [BYTES], [TabulateBytes(lambda op: False)])
    assert report.fusions == {} and "sigmoid" in str(after["main"])


class TestTabulateBytes(Rewrite):
    rule = RULE
    inputs = {"x": ("uint8", 2, 3)}

    def before(self, x):
        return whole(op.nn.relu(real(x, 0.5, 128, "uint8")), 0.5, 0, "int8")

    def expected(self, x):
        table = np.clip(np.arange(256) - 128, 0, 127).astype(np.int8)
        return kernel(ByteTable((2, 3), "uint8", "int8"), x, relax.const(table))
