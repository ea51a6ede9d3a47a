"""Calls of a library: arguments, errors, threads."""

import os
import threading
from collections import UserDict

import numpy as np
import pytest

from hetero_tvm import host
from hetero_tvm.errors import InputError
from hetero_tvm.runtime import load
from tests.runtime.conftest import ROWS, WIDTH, expected, sample


@pytest.fixture(scope="module")
def net(mlp):
    return load(mlp)


def test_signature_manifest_and_repr(net):
    assert str(net.signature) == "(x: float32[8, 64]) -> (y: float32[8, 64])"
    assert net.manifest.name == "mlp"
    assert net.threads == len(host.available_cores())
    assert "mlp" in repr(net)


def test_by_order_and_by_name(many):
    net = load(many)
    x, ids = sample(), np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)
    for result in (net(x, ids), net(x, token_ids=ids), net(token_ids=ids, x=x)):
        assert isinstance(result, tuple) and len(result) == 5
        np.testing.assert_array_equal(result[0], x + ids.astype("float32"))
        np.testing.assert_array_equal(result[1], x)
        np.testing.assert_array_equal(result[3], x > 0)
        np.testing.assert_allclose(result[4].astype("float32"), x, rtol=1e-2)


def test_arrays_in_one_mapping(many, net):
    """As ONNX Runtime and OpenVINO take them, and as tokenizers give them."""
    x, ids = sample(), np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)
    both = load(many)
    for given in ({"x": x, "token_ids": ids}, UserDict(token_ids=ids, x=x)):
        np.testing.assert_array_equal(both(given)[0], x + ids.astype("float32"))
    np.testing.assert_array_equal(both({"x": x}, token_ids=ids)[1], x)
    np.testing.assert_array_equal(net({"x": x}), net(x))
    with pytest.raises(InputError, match="y: no input has this name"):
        net({"y": x})


def test_the_words_of_onnx_runtime(many, net):
    """A program for an ``InferenceSession`` finds names, shapes and types, and gets a list."""
    both, x = load(many), sample()
    ids = np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)
    assert [(one.name, list(one.shape), one.type) for one in both.get_inputs()] == [
        ("x", [ROWS, WIDTH], "tensor(float)"),
        ("token_ids", [ROWS, WIDTH], "tensor(int64)"),
    ]
    names, expected = [one.name for one in both.get_outputs()], both(x, ids)
    feed = {one.name: array for one, array in zip(both.get_inputs(), (x, ids), strict=True)}
    for asked, picked in ((None, range(5)), ([], range(5)), ([names[3], names[0]], (3, 0))):
        found = both.run(asked, feed)
        assert isinstance(found, list) and len(found) == len(picked)
        for array, place in zip(found, picked, strict=True):
            np.testing.assert_array_equal(array, expected[place])
    np.testing.assert_array_equal(net.run(["y"], {"x": x})[0], net(x))
    with pytest.raises(InputError, match="nothing: no output has this name"):
        both.run(["nothing"], feed)
    with pytest.raises(InputError, match="token_ids: missing"):
        both.run(None, {"x": x})


def test_one_error_lists_every_problem(many):
    net = load(many)
    with pytest.raises(InputError) as caught:
        net(np.zeros((8, 63), "float32"), nonsense=1)
    text = str(caught.value)
    assert "x: the shape is (8, 63), expected (8, 64)" in text
    assert "nonsense: no input has this name" in text
    assert "token_ids: missing" in text
    assert "int64[8, 64]" in text  # what to do: the signature
    with pytest.raises(InputError) as caught:
        net(sample().astype("float64"), sample(), x=sample())
    text = str(caught.value)
    assert "x: given twice" in text
    assert "token_ids: the dtype is float32, expected int64" in text
    assert ".astype('int64')" in text
    with pytest.raises(InputError, match="arrays given in order: 3; inputs: 2"):
        net(sample(), sample(), sample())
    with pytest.raises(InputError, match="expected float32"):
        net(sample().astype(">f4"), np.zeros((ROWS, WIDTH), "int64"))


def test_calls_from_several_threads(mlp):
    net = load(mlp)
    wrong = []

    def work(seed):
        x = sample(seed)
        for _ in range(50):
            if not np.allclose(net(x), expected(x), rtol=1e-4, atol=1e-4):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_the_caller_is_free_after_a_call(mlp):
    before = os.sched_getaffinity(0)
    net = load(mlp, pin=True)
    net(sample())
    assert os.sched_getaffinity(0) == before
    with pytest.raises(InputError):
        net()
    assert os.sched_getaffinity(0) == before
