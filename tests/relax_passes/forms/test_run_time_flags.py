"""Hostile indices and divisors on a GPU are clamped, and an error that names the node."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.errors import LibraryError
from hetero_tvm.frontend import import_model
from hetero_tvm.runtime.cuda import cudart
from tests.frontend.onnx.helpers import text_model
from tests.relax_passes.forms.test_run_time_checks import LARGE, OPERATORS, X
from tests.targets.cuda.fixtures import emulated

__all__ = ["emulated"]


def built(text, node="victim"):
    return build_model(optimize_model(import_model(text_model(text, node)), "cuda:sm_80"), use_shipped=False)


def declared(of, extents, name):
    return f"{of}[{', '.join(map(str, extents))}] {name}" if extents else f"{of} {name}"


@pytest.mark.parametrize("name", OPERATORS)
def test_indices(name, emulated):
    operator, shape, result, updates, numpy = OPERATORS[name]
    given = [declared("float", X.shape, "x"), declared("int64", shape, "i")]
    given += [declared("float", updates, "u")] if updates else []
    model = built(f"g ({', '.join(given)}) => ({declared('float', result, 'y')}) {{ y = {operator} }}")
    for value in (3, -4, *LARGE, -1):
        call = {"x": X, "i": np.full(shape, 2, np.int64)}
        call["i"].flat[-1] = value
        if updates:
            call["u"] = -np.ones(updates, np.float32)
        if value in LARGE:
            with pytest.raises(LibraryError, match=r"victim: an index lies outside \[-4, 4\)"):
                model.run(call)
        else:
            np.testing.assert_array_equal(model.run(call)[0], numpy(*call.values()))


TWO = """g (float[4, 3] x, int32[2] i, int64[2] a, int64[2] b) => (float[2, 3] y, int64[2] z) {
    y = Gather(x, i)
    z = Div(a, b) }"""
GOOD = {"x": X, "i": np.array([0, -1], np.int32), "a": np.array([7, -8]), "b": np.array([2, -1])}


def test_libraries_raise_what_is_wrong_and_go_on(tmp_path, emulated):
    net = hetero_tvm.load(built(TWO, "lookup").export(tmp_path))
    assert len(net.manifest.checks) == 2 and len(net.signature.outputs) == 2
    for _ in range(2):
        y, z = net(**GOOD)
        np.testing.assert_array_equal(y, X[[0, 3]])
        assert z.tolist() == [3, 8]
        with pytest.raises(LibraryError, match="lookup: an index lies outside") as caught:
            net(**{**GOOD, "i": np.array([4, 0], np.int32), "b": np.array([0, 1])})
        assert any("division by zero" in problem for problem in caught.value.problems)
    pending = [
        net.submit(**GOOD),
        net.submit(**{**GOOD, "i": np.array([9, 0], np.int32)}),
        net.submit(**GOOD),
    ]
    pending[0].wait()
    with pytest.raises(LibraryError, match="lookup"):
        pending[1].wait()
    pending[2].wait()


def test_tensors_on_the_device_raise_later(tmp_path, emulated):
    net = hetero_tvm.load(built(TWO, "lookup").export(tmp_path))

    def on_device(call):
        tensors = [net._on_gpu(spec) for spec in net.signature.inputs]
        for tensor, spec in zip(tensors, net.signature.inputs, strict=True):
            copy(tensor, call[spec.name])
        return tensors

    results = net.on_device(*on_device(GOOD))
    assert len(results) == 2
    net.raise_pending()
    net.on_device(*on_device({**GOOD, "i": np.array([-5, 0], np.int32)}))
    with pytest.raises(LibraryError, match="lookup: an index lies outside"):
        net.raise_pending()
    net.raise_pending()


def copy(tensor, array):
    array = np.ascontiguousarray(array)
    cudart.copy(0, tensor.data_ptr(), array.ctypes.data, array.nbytes, cudart.TO_DEVICE)
    cudart.synchronize()


def test_constant_indices_need_no_flag(emulated):
    text = "g (float[4, 3] x) => (float[2, 3] y) <int64[2] i = {0, -1}> { y = Gather(x, i) }"
    assert not built(text).optimized.checks
