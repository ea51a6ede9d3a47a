"""Operands of ONNX Runtime's operators that it refuses: so do we, where plain nodes would broadcast them."""

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import add_weight, contrib_model, run_onnxruntime, text_model

RANDOM = np.random.default_rng(0)
CACHE = ((2, 1, 32), (2, 1, 16), (2, 1, 16), (2, 2, 5, 8), (2, 2, 5, 8))
HEADS = {"num_heads": 4, "kv_num_heads": 2}


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def refused_by_both(kind, values, attributes, given=(0,)):
    model, inputs = contrib_model(kind, values, attributes, given=given)
    with pytest.raises(Exception, match=kind):
        run_onnxruntime(model, inputs)
    with pytest.raises(ModelError, match=kind):
        import_onnx(model)


@pytest.mark.parametrize(
    "kind, shapes, attributes",
    [
        ("Attention", ((2, 3, 8), (8, 24), (1,)), {"num_heads": 2}),
        ("Attention", ((2, 3, 8), (8, 24), (24,), None, None, (2, 2, 1, 3)), {"num_heads": 2}),
        ("MultiHeadAttention", ((2, 3, 8), (1, 4, 8), (2, 4, 8)), {"num_heads": 2}),
        ("MultiHeadAttention", ((2, 3, 8), (2, 4, 8), (2, 4, 8), (25,)), {"num_heads": 2}),
        ("MultiHeadAttention", ((2, 3, 8), (2, 4, 8), (2, 4, 8), None, None, (2, 2, 3, 1)), {"num_heads": 2}),
        ("SkipLayerNormalization", ((2, 3, 8), (2, 3, 1), (8,)), {}),
        ("SkipLayerNormalization", ((2, 3, 8), (2, 3, 8), (1,)), {}),
        ("SkipSimplifiedLayerNormalization", ((2, 1, 8), (2, 3, 8), (8,)), {}),
        ("BiasGelu", ((2, 3, 8), (1,)), {}),
        ("FastGelu", ((2, 3, 1), (8,)), {}),
        ("CDist", ((3, 1), (5, 4)), {}),
        ("FusedConv", ((1, 4, 5, 5), (8, 4, 3, 3), (8,), (1, 8, 1, 3)), {"activation": "Relu"}),
        ("FusedConv", ((1, 4, 5, 5), (8, 4, 3, 3), (1,)), {"activation": "Relu"}),
        ("MoE", ((6, 8), (1, 4), (4, 16, 8), None, (4, 8, 16)), {"activation_type": "relu"}),
        ("MoE", ((6, 8), (6, 4), (1, 16, 8), None, (4, 8, 16)), {"activation_type": "relu"}),
        ("GatedRMSNorm", ((2, 3, 8), (4,), (2, 3, 1)), {}),
        ("UnfoldTensor", ((2, 2),), {"size": 3}),
        ("Inverse", ((2, 3, 1),), {}),
    ],
)
def test_operands_that_would_spread_are_refused(kind, shapes, attributes):
    values = [None if shape is None else floats(*shape) for shape in shapes]
    refused_by_both(kind, values, attributes)


def test_tables_of_whole_heads():
    places = RANDOM.integers(0, 9, (2, 3))
    values = [floats(2, 3, 16), places, floats(10, 2), floats(10, 2)]
    refused_by_both("RotaryEmbedding", values, {"num_heads": 2})


@pytest.mark.parametrize("index, shape", [(0, (1, 1, 32)), (3, (1, 2, 5, 8)), (11, (1,)), (10, (2, 4, 2, 6))])
def test_grouped_queries(index, shape):
    lengths, total = np.full(2, 5, np.int32), np.array(6, np.int32)
    values = [*map(lambda s: floats(*s), CACHE), lengths, total, *[None] * 5]
    values[index] = floats(*shape)
    refused_by_both("GroupQueryAttention", values, HEADS, given=range(7))


@pytest.mark.parametrize(
    "index, shape", [(1, (6, 2, 8)), (1, (5, 3, 8)), (2, (5, 3)), (3, (5, 2)), (5, (1,))]
)
def test_weights_of_few_bits(index, shape):
    values = [floats(3, 32), RANDOM.integers(0, 255, (5, 2, 8)).astype(np.uint8), floats(5, 2),
              RANDOM.integers(0, 255, (5, 1)).astype(np.uint8), None, floats(5)]  # fmt: skip
    values[index] = RANDOM.integers(0, 9, shape).astype(values[index].dtype)
    refused_by_both("MatMulNBits", values, {"K": 32, "N": 5, "bits": 4, "block_size": 16})


def test_stale_shapes_of_inner_tensors_are_no_reason():
    source = text_model(
        """g (float[2,3,8] x) => (float[2,3,8] y) <float[1,5,8] t> {
             t = Neg(x) y = com.microsoft.SkipLayerNormalization(t, x, w) }""",
        extra=', "com.microsoft": 1',
    )
    import_onnx(add_weight(source, "w", np.ones(8, np.float32)))
