"""Bound calls and given results: no copies where none are needed, and nothing that is freed too early."""

import gc

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.errors import InputError
from hetero_tvm.runtime import load
from tests.frontend.onnx.helpers import text_model
from tests.runtime.conftest import ROWS, WIDTH, expected, sample


def test_a_bound_call_reads_its_own_memory(mlp):
    net = load(mlp)
    first, second = net.bind(), net.bind()
    for seed in range(3):
        a, b = sample(seed), sample(seed + 10)
        first.inputs["x"][...] = a
        second.inputs["x"][...] = b
        np.testing.assert_array_equal(first(), net(a))
        np.testing.assert_array_equal(second(), net(b))
    zeros = expected(np.zeros((ROWS, WIDTH), "float32"))
    np.testing.assert_allclose(net.bind()(), zeros, rtol=1e-4, atol=1e-4)


def test_what_passes_through_is_not_the_bound_memory(many):
    call = load(many).bind()
    x, ids = sample(), np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)
    call.inputs["x"][...], call.inputs["token_ids"][...] = x, ids
    results = call()
    call.inputs["x"][...] = 7
    np.testing.assert_array_equal(results[1], x)
    np.testing.assert_array_equal(results[0], x + ids.astype("float32"))


def test_the_arrays_outlive_the_call_and_the_library(mlp):
    array = load(mlp).bind().inputs["x"]
    gc.collect()
    array[...] = 3
    blocks = [np.full((ROWS, WIDTH), 5, "float32") for _ in range(50)]
    assert array.sum() == 3 * array.size and len(blocks) == 50


def test_results_in_given_arrays(mlp, many):
    net, x = load(mlp), sample()
    y = np.empty((ROWS, WIDTH), "float32")
    assert net(x, out=y) is y
    np.testing.assert_array_equal(y, net(x))
    strided = np.empty((ROWS, 2 * WIDTH), "float32")[:, ::2]
    call = net.bind()
    call.inputs["x"][...] = x
    assert call(out=[strided]) is strided
    np.testing.assert_array_equal(strided, y)
    several = load(many)
    ids = np.ones((ROWS, WIDTH), "int64")
    wanted = several(x, ids)
    out = [np.empty_like(result) for result in wanted]
    for found, result in zip(several(x, ids, out=out), wanted, strict=True):
        np.testing.assert_array_equal(found, result)


def test_arrays_that_do_not_fit_are_listed(mlp, many):
    net, x = load(mlp), sample()
    frozen = np.empty((ROWS, WIDTH), "float32")
    frozen.flags.writeable = False
    for out, text in (
        (np.empty((ROWS, WIDTH)), r"y: float32\[8, 64\] expected, got float64\[8, 64\]"),
        (np.empty((WIDTH, ROWS), "float32"), r"got float32\[64, 8\]"),
        (frozen, "cannot be written"),
        ([], "not 0 of them"),
        ([x, x], "not 2 of them"),
        (7, "not int"),
        ([[1.0]], "an array is needed, not list"),
    ):
        with pytest.raises(InputError, match=text):
            net(x, out=out)
    outputs = [np.empty((1,), "float32")] * 5
    with pytest.raises(InputError) as caught:
        load(many)(x, np.ones((ROWS, WIDTH), "int64"), out=outputs)
    assert len(caught.value.problems) == 5


def test_results_of_open_sizes_in_given_arrays(tmp_path):
    model = text_model("g (float[n, 3] x) => (float[n, 3] y, float[3, n] z) { y = Neg(x) z = Transpose(x) }")
    shapes = {"x": (hetero_tvm.Span(1, 5), 3)}
    built = hetero_tvm.build_model(hetero_tvm.optimize_model(hetero_tvm.import_model(model, shapes=shapes)))
    net = load(built.export(tmp_path / "model.so"))
    x = np.arange(12, dtype="float32").reshape(4, 3)
    y, z = net(x, out=[np.empty_like(x), np.empty((3, 4), "float32")])
    np.testing.assert_array_equal(y, -x)
    np.testing.assert_array_equal(z, x.T)
    kept = np.full((5, 3), 7, "float32")
    with pytest.raises(InputError, match=r"y: float32\[n, 3\] is \[1, 3\] here, got \[5, 3\]"):
        net(x[:1], out=[kept, np.empty((3, 1), "float32")])
    assert (kept == 7).all()
    with pytest.raises(InputError, match="expected"):
        net(x, out=[np.empty((4, 2), "float32"), z])
