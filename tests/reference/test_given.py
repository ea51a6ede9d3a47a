"""Inputs that a user gives for a check: read without running anything, refused with all that is wrong."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import InputError, UsageError
from hetero_tvm.reference import sample_inputs
from hetero_tvm.reference.given import checked_inputs, read_inputs
from hetero_tvm.runtime.signature import Signature, TensorSpec

IDS, SCALE = TensorSpec("ids", (1, 4), "int64"), TensorSpec("scale", (), "float32")
SIGNATURE = Signature((IDS, SCALE), (TensorSpec("y", (1,), "float32"),))


def test_a_file_is_read_by_name(tmp_path):
    path = tmp_path / "inputs.npz"
    np.savez(path, ids=np.arange(4).reshape(1, 4), scale=np.float32(2))
    given = checked_inputs(SIGNATURE, read_inputs(path))
    assert given["ids"].tolist() == [[0, 1, 2, 3]] and given["scale"].shape == ()


@pytest.mark.parametrize("content", [b"", b"no zip", None])
def test_files_that_are_none_are_refused(tmp_path, content):
    path = tmp_path / "inputs.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="cannot be read as inputs"):
        read_inputs(path)


def test_pickled_objects_are_never_read(tmp_path):
    path = tmp_path / "inputs.npz"
    np.savez(path, ids=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UsageError, match="allow_pickle"):
        read_inputs(path)


def test_everything_that_is_wrong_is_listed():
    with pytest.raises(InputError) as caught:
        checked_inputs(SIGNATURE, {"ids": np.zeros((1, 5), np.int32), "other": np.zeros(1)})
    assert caught.value.problems == (
        "other: the model has no such input",
        "ids: int32 1x5, not int64 1x4",
        "scale: missing",
    )


def test_a_check_takes_them():
    model = import_model("zoo:minilm-l6-tiny")
    built = build_model(optimize_model(model), use_shipped=False)
    inputs = {name: np.zeros_like(array) for name, array in sample_inputs(model).items()}
    assert built.check(inputs=inputs).ok
    with pytest.raises(InputError, match="do not fit the model"):
        built.check(inputs={})
