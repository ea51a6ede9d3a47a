import dataclasses

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.architectures import describe
from hetero_tvm.language.families.decoder import Names
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage, quantized
from tests.tiny_llama import CONFIG

A, B = np.random.default_rng(0).standard_normal((2, 4, 32)).astype(np.float32)


class Given:
    """A checkpoint of arrays."""

    config = CONFIG

    def __init__(self, **tensors):
        self.tensors = {name.replace("__", "."): array for name, array in tensors.items()}

    def __contains__(self, name):
        return name in self.tensors

    def matrix(self, name):
        return self.tensors[name]

    array = matrix


def weights(checkpoint, names=None, storage=None):
    decoder = dataclasses.replace(describe(CONFIG)[0], norm_offset=1.0)
    return DecoderWeights(
        decoder, names or Names(prefixes=("model.", "")), checkpoint, storage or Storage("f32")
    )


def test_parts_are_stacked_and_transposed():
    given = weights(Given(model__a__weight=A, b__weight=B))
    np.testing.assert_array_equal(given.matrix(["a", "b"], 8, 32), np.concatenate([A, B]))
    turned = weights(Given(a__weight=A.T), Names(prefixes=("",), transposed=True))
    np.testing.assert_array_equal(turned.matrix(["a"], 4, 32), A)
    with pytest.raises(ModelError, match="expected"):
        given.matrix(["a"], 8, 32)
    with pytest.raises(ModelError, match=r"model\.c\.weight"):
        given.matrix(["c"], 8, 32)


def test_integers_of_the_checkpoint_stay_unless_parts_differ():
    eight = quantized(A, Storage("int8", 32))
    both = Given(a__weight=eight, b__weight=quantized(B, Storage("int8", 32)), c__weight=B)
    whole = weights(both, storage=Storage("f16")).matrix(["a", "b"], 8, 32)
    assert isinstance(whole, QuantizedWeight)
    np.testing.assert_array_equal(whole.q[:4], eight.q)
    mixed = weights(both, storage=Storage("f32")).matrix(["a", "c"], 8, 32)
    np.testing.assert_array_equal(mixed, np.concatenate([eight.dequantized(), B]))


def test_the_matrix_of_logits():
    given = Given(lm_head__weight=A)
    assert weights(given).head() == "lm_head.weight"
    assert weights(Given()).head() is None
    tied = dataclasses.replace(weights(given), decoder=dataclasses.replace(describe(CONFIG)[0], tied=True))
    assert tied.head() is None  # what the file has beside it is not used


def test_biases_and_norms():
    given = weights(Given(a__weight=A, b__weight=B, b__bias=np.arange(4.0), n__weight=np.ones(4)))
    assert given.bias(["a"], 4) is None
    np.testing.assert_array_equal(given.bias(["a", "b"], 8), [0, 0, 0, 0, 0, 1, 2, 3])
    np.testing.assert_array_equal(given.norm("n", 4)[0], 2)
    with pytest.raises(ModelError, match="expected"):
        given.norm("n", 5)


def test_rows_of_a_matrix_that_are_multiplied():
    names = Names(prefixes=("",), factors={"one": ((1, 2.0), (3, 0.5))})
    weights = DecoderWeights(describe(CONFIG)[0], names, Given(one__weight=A, two__weight=B), Storage("f32"))
    np.testing.assert_array_equal(weights.matrix(["one"], 4, 32), A * [[2.0], [0.5], [0.5], [0.5]])
    np.testing.assert_array_equal(weights.matrix(["two"], 4, 32), B)
    wrong = dataclasses.replace(weights, names=dataclasses.replace(names, factors={"one": ((9, 2.0),)}))
    with pytest.raises(ModelError, match="its rows have other factors"):
        wrong.matrix(["one"], 4, 32)
