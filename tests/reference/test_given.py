"""Inputs that a user gives for a check: read without running anything, refused with all that is wrong."""

import zipfile

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import InputError, UsageError
from hetero_tvm.frontend.signature import Span
from hetero_tvm.reference import run_reference, sample_inputs
from hetero_tvm.reference.given import checked_inputs, read_inputs
from hetero_tvm.runtime.signature import Signature, TensorSpec
from tests.campaign import small_models
from tests.frontend.onnx.helpers import text_model

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
    with pytest.raises(UsageError, match="cannot be read as inputs") as caught:
        read_inputs(path)
    assert "Errno" not in str(caught.value)


def test_text_is_no_pickle(tmp_path):
    path = tmp_path / "inputs.json"
    path.write_text('{"ids": [[1, 2, 3, 4]]}')
    with pytest.raises(UsageError, match='no .npz file, it begins with \'{"ids"') as caught:
        read_inputs(path)
    assert "numpy.savez" in caught.value.hint


def test_an_array_without_a_name_says_so(tmp_path):
    np.save(tmp_path / "in.npy", np.zeros(3))
    with pytest.raises(UsageError, match="in.npy cannot be read as inputs: it is one array without a name"):
        read_inputs(tmp_path / "in.npy")


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


@pytest.mark.parametrize("way", range(4))
def test_damaged_files_are_refused(tmp_path, way):
    """Broken archives, headers that no parser takes, arrays larger than any memory."""
    path, fresh = tmp_path / "inputs.npz", tmp_path / "fresh.npz"
    np.savez(path, ids=np.arange(4).reshape(1, 4))
    with zipfile.ZipFile(path) as archive:
        member = archive.read("ids.npy")
    headers = [
        b"'shape': (1, 4)",
        b"'shape': (1, 4\n",
        b"'shape': (1, 9" + b"9" * 13 + b")",
        b"'shape': (1, -4)",
    ]
    damaged = member[:50] if way == 0 else member.replace(headers[0], headers[way])
    with zipfile.ZipFile(fresh, "w") as archive:
        archive.writestr("ids.npy", damaged)
    with pytest.raises(UsageError, match="cannot be read as inputs: ."):
        read_inputs(fresh)


@pytest.mark.parametrize("arrays", [[np.zeros((1, 4))], 3, "ids", None])
def test_what_has_no_names_is_refused(arrays):
    with pytest.raises(InputError, match="arrays by name"):
        checked_inputs(SIGNATURE, arrays)


@pytest.mark.parametrize(
    "ids",
    [
        np.zeros((1, 4), ">i8"),
        np.zeros((1, 4), [("a", "i8")]),
        np.zeros((1, 4), object),
        [[1, 2], [3]],
        [[1.0, 2, 3, 4]],
        "text",
        None,
        np.zeros((4,), np.int64),
    ],
)
def test_what_is_no_array_of_the_type_is_refused(ids):
    with pytest.raises(InputError) as caught:
        checked_inputs(SIGNATURE, {"ids": ids, "scale": np.float32(1)})
    (problem,) = caught.value.problems
    assert problem.startswith("ids: ")


@pytest.fixture(scope="module")
def open_network():
    """A model of 1 to 6 rows."""
    source = small_models.network(rows=4, width=8)
    for value in (*source.graph.input, *source.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    model = import_model(source, shapes={"x": (Span(1, 6), 8)})
    return build_model(optimize_model(model), use_shipped=False)


def test_any_memory_layout_is_fine():
    model = import_model(small_models.network(rows=4, width=8))
    built = build_model(optimize_model(model), use_shipped=False)
    wide = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    for array in (wide[::2, ::2], wide[::-2, 8:], np.asfortranarray(wide[:4, :8]), wide[:, :4].T):
        (result,) = built.run({"x": array})
        (truth,) = built.run({"x": array.copy(order="C")})
        assert np.array_equal(result, truth) and built.check(inputs={"x": array}).ok


class _Unreadable:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("requires grad")


def test_what_numpy_cannot_read_is_named():
    with pytest.raises(InputError) as caught:
        checked_inputs(SIGNATURE, {"ids": _Unreadable(), "scale": np.float32(1)})
    assert caught.value.problems == ("ids: no array: requires grad",)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({}, "x: missing"),
        ({"y": np.zeros((3, 8), np.float32)}, "y: the model has no such input"),
        ({"x": None}, "x: object scalar, not float32 nx8"),
        ({"x": np.zeros((9, 8), np.float32)}, "x: dimension 0 (n) is 9, outside 1..6"),
    ],
)
def test_a_check_of_open_lengths_refuses_what_does_not_fit(open_network, inputs, problem):
    with pytest.raises(InputError) as caught:
        open_network.check(inputs=inputs)
    assert problem in caught.value.problems


@pytest.mark.parametrize("seed", [-1, "a", None, 1.5])
def test_a_seed_that_is_none_is_refused(open_network, seed):
    with pytest.raises(UsageError, match="seed is a whole number"):
        open_network.check(seed=seed)


def test_a_check_of_open_lengths_takes_any_in_range(open_network):
    for rows in (1, 3, 6):
        assert open_network.check(inputs={"x": np.ones((rows, 8), np.float32)}).ok


@pytest.mark.parametrize("index", [7, -8])
def test_an_index_that_leads_outside_is_told_with_its_operator(index):
    source = text_model(
        "g (float[7, 3] x, int64[2] i) => (float[2, 3] y) { y = Gather(x, i) }", "/tokens/Gather"
    )
    with pytest.raises(InputError, match="/tokens/Gather") as caught:
        run_reference(import_model(source), {"x": np.ones((7, 3), np.float32), "i": np.array([0, index])})
    assert str(index) in str(caught.value)


@pytest.mark.thorough
def test_a_check_takes_them():
    model = import_model("zoo:minilm-l6-tiny")
    built = build_model(optimize_model(model), use_shipped=False)
    inputs = {name: np.zeros_like(array) for name, array in sample_inputs(model).items()}
    assert built.check(inputs=inputs).ok
    with pytest.raises(InputError, match="do not fit the model"):
        built.check(inputs={})
