"""Libraries on a GPU: results that stay there, streams, and what is refused; on the emulated GPU."""

import numpy as np
import pytest

from hetero_tvm._bootstrap import import_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import InputError, LibraryError
from hetero_tvm.reference import sample_inputs
from hetero_tvm.runtime import load
from tests.targets.cuda.conftest import emulated  # noqa: F401

tvm = import_tvm()


@pytest.fixture
def net(emulated, tmp_path):  # noqa: F811
    plan = optimize_model(import_model("zoo:minilm-l6-tiny"), target="cuda:sm_80")
    return load(build_model(plan, logs=tmp_path / "logs", use_shipped=False).export(tmp_path))


def on_gpu(arrays):
    return [tvm.runtime.tensor(array, tvm.cuda(0)) for array in arrays]


def test_results_on_the_device_equal_those_of_a_plain_call(net):
    model = import_model("zoo:minilm-l6-tiny")
    for seed in range(2):
        arrays = list(sample_inputs(model, seed).values())
        expected = net(*arrays).copy()
        for stream in (None, 0):
            (result,) = net.on_device(*on_gpu(arrays), stream=stream)
            assert result.device.dlpack_device_type() == 2
            host = tvm.runtime.empty(tuple(result.shape), str(result.dtype))
            tvm.get_global_func("runtime.TVMTensorCopyFromTo")(result, host)
            np.testing.assert_array_equal(host.numpy(), expected)


def test_everything_wrong_with_device_tensors_is_listed(net):
    arrays = list(sample_inputs(import_model("zoo:minilm-l6-tiny"), 0).values())
    here = tvm.runtime.tensor(arrays[0])  # not on the GPU
    short, wrong = on_gpu([arrays[1][:, :5], arrays[2].astype("int32")])
    with pytest.raises(InputError) as caught:
        net.on_device(here, short, wrong)
    text = "\n".join(caught.value.problems)
    assert "not on cuda:0" in text and "the shape is (1, 5)" in text and "the dtype is int32" in text
    with pytest.raises(InputError, match="wrong inputs") as caught:
        net.on_device(*on_gpu(arrays[:2]))
    assert "2 tensors given" in caught.value.problems
    with pytest.raises(InputError, match="no DLPack tensor"):
        net.on_device("x", "y", "z")


def test_a_device_that_is_not_there(net):
    with pytest.raises(LibraryError, match="there is no GPU 3, only 1"):
        load(net.path, device=3)
    assert "emulation" in repr(net) and net.arch == "sm_80"
