import json

import numpy as np
import pytest

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.base import Operand, from_json, strided_view, suffix
from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.normalization import Normalization


def test_bytes_of_operands():
    assert Operand("a", (3, 5), "int64").nbytes == 120
    assert Operand("a", ()).nbytes == 4
    assert Operand("a", (1 << 20, 1 << 20)).nbytes == 4 << 40


def test_weights_are_constants_that_are_read_as_a_whole():
    product = Matmul((4,), k=8, n=16)
    assert product.weight_bytes == 4 * 8 * 16
    table = EmbeddingNorm(lead=(1, 2), n=8, lookups=(Lookup(1000, (1, 2)),), added=(), eps=1e-5)
    assert sum(one.nbytes for one in table.inputs if one.constant) > table.nbytes and table.weight_bytes == 0


def test_json_is_sorted_and_names_the_kind():
    text = Matmul((2, 3), 5, 4, ("bias",)).to_json()
    assert text == '{"epilogue": ["bias"], "k": 4, "kind": "matmul", "lead": [2, 3], "n": 5}'
    again = from_json(text)
    assert again.lead == (2, 3) and again.epilogue == ("bias",)


@pytest.mark.parametrize(
    "op", [Matmul((2,), 3, 4), Attention(1, 2, 3, 4, 5, 0.5, 2), Normalization((2,), 3, 1e-5)], ids=str
)
def test_later_fields_are_written_when_they_are_used_only(op):
    """Records from before such a field existed have the same text, and are read."""
    fields = json.loads(op.to_json())
    assert not {"dtype", "window", "softcap", "trail", "place"} & set(fields)
    assert from_json(json.dumps(fields)) == op


def test_a_dtype_is_part_of_a_label_when_it_is_not_float32():
    assert suffix("float32") == () and suffix("float16") == ("float16",)


def test_strided_views():
    x = np.arange(24).reshape(2, 3, 4)
    turned = strided_view(x, (4, 2, 3), (0, 1, 12, 4))
    assert np.array_equal(turned, x.transpose(2, 0, 1))
    assert np.array_equal(strided_view(x, (2, 2), (5, 0, 1)), [[5, 6], [5, 6]])
    assert np.array_equal(strided_view(x.transpose(2, 0, 1), (3,), (0, 1)), x.transpose(2, 0, 1).ravel()[:3])
