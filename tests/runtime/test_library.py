import os
import shutil
import threading

import numpy as np
import pytest

from hetero_tvm import host
from hetero_tvm.errors import InputError, LibraryError, UsageError
from hetero_tvm.runtime import load
from hetero_tvm.runtime.cpuid import FEATURES
from tests.runtime.conftest import ROWS, WIDTH, compile_manifest, make_manifest, weights


def sample(seed=1):
    return np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype("float32")


def expected(x):
    return np.maximum(x @ weights(), 0)


@pytest.fixture(scope="module")
def net(mlp):
    return load(mlp)


# --- what can be loaded ----------------------------------------------------------------------


def test_a_folder_means_its_only_library(mlp):
    x = sample()
    np.testing.assert_allclose(load(mlp.parent)(x), expected(x), rtol=1e-4, atol=1e-4)


def test_a_folder_with_several_means_model_so(tmp_path, mlp):
    shutil.copy(mlp, tmp_path / "a.so")
    shutil.copy(mlp, tmp_path / "b.so")
    with pytest.raises(LibraryError, match=r"holds 2 libraries[\s\S]*a\.so[\s\S]*b\.so"):
        load(tmp_path)
    shutil.copy(mlp, tmp_path / "model.so")
    assert load(tmp_path).path.name == "model.so"


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(LibraryError, match="does not exist"):
        load(tmp_path / "no.so")
    with pytest.raises(LibraryError, match="no .so in"):
        load(tmp_path)
    (tmp_path / "text.so").write_text("hello" * 30)
    with pytest.raises(LibraryError, match="not a shared library"):
        load(tmp_path / "text.so")


def test_another_architecture_is_named(tmp_path, mlp):
    data = bytearray(mlp.read_bytes())
    data[18:20] = (243).to_bytes(2, "little")
    (tmp_path / "riscv.so").write_bytes(data)
    with pytest.raises(LibraryError, match="built for riscv64"):
        load(tmp_path / "riscv.so")


def test_a_cpu_without_the_features_is_told_before_loading(tmp_path):
    absent = sorted(set(FEATURES) - host.cpu_features())
    if not absent:
        pytest.skip("this CPU has everything")
    path = compile_manifest(tmp_path, make_manifest(isa=("sse2", absent[0]), cpu="futurecore"))
    with pytest.raises(LibraryError, match=f"built for futurecore[\\s\\S]*missing CPU feature: {absent[0]}"):
        load(path)
    with open("/proc/self/maps") as maps:
        assert str(path) not in maps.read()


def test_another_release_of_tvm_is_refused_with_the_pip_command(tmp_path):
    path = compile_manifest(tmp_path, make_manifest(versions={"tvm": "0.21.0", "tvm_ffi": "0.1.0"}))
    with pytest.raises(LibraryError, match=r"pip install apache-tvm==0\.21\.0"):
        load(path)


def test_a_changed_file_is_refused_on_request(tmp_path, mlp, monkeypatch):
    path = tmp_path / "mlp.so"
    shutil.copy(mlp, path)
    shutil.copy(mlp.with_suffix(".manifest.json"), tmp_path)
    load(path, verify=True)
    # Replaced, not written over: the bytes of a loaded library must stay as they are.
    changed = tmp_path / "changed"
    changed.write_bytes(path.read_bytes() + b"\0")
    changed.replace(path)
    load(path)
    with pytest.raises(LibraryError, match="not the file that was exported"):
        load(path, verify=True)
    monkeypatch.setenv("HETERO_TVM_VERIFY", "1")
    with pytest.raises(LibraryError, match="not the file that was exported"):
        load(path)


def test_a_library_that_replaces_a_loaded_one_is_really_loaded(tmp_path, mlp, wide):
    path = tmp_path / "model.so"
    shutil.copy(mlp, path)
    first = load(path)
    path.unlink()
    shutil.copy(wide, path)
    second = load(path)
    assert second(np.zeros((64, 256), "float32")).sum() == 64 * 256
    np.testing.assert_allclose(first(sample()), expected(sample()), rtol=1e-4, atol=1e-4)


# --- calling ---------------------------------------------------------------------------------


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


def place(values, offset):
    """A copy of ``values`` that starts ``offset`` bytes after a multiple of 64."""
    raw = np.empty(values.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    array = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


def read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(
    "arrange",
    [
        *(lambda x, offset=offset: place(x, offset) for offset in (0, 1, 4, 16, 48)),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[::-1][::-1].copy()[::-1][::-1],
        np.asfortranarray,
        lambda x: np.ascontiguousarray(x.T).T,
        read_only,
        lambda x: np.broadcast_to(x[:1], x.shape),
    ],
)
def test_any_alignment_and_stride(net, wide, arrange):
    x = arrange(sample())
    np.testing.assert_allclose(net(x), expected(np.array(x)), rtol=1e-4, atol=1e-4)
    large = arrange(np.random.default_rng(2).standard_normal((64, 256)).astype("float32"))
    np.testing.assert_array_equal(load(wide)(large), np.array(large) + np.float32(1))


def test_other_array_types(net):
    x = sample()

    class HasArray:
        def __array__(self, dtype=None, copy=None):
            return x

    class HasDLPack:
        def __dlpack__(self, **options):
            return x.__dlpack__(**options)

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    for given in (HasArray(), HasDLPack(), x.tolist(), np.ma.array(x).data):
        np.testing.assert_array_equal(net(given), net(x))


def test_lists_convert_when_their_values_survive(many):
    net = load(many)
    x = [[1] * WIDTH] * ROWS
    ids = [[2.0] * WIDTH] * ROWS
    assert (net(x, ids)[0] == 3).all()
    with pytest.raises(InputError, match="do not fit into int64"):
        net(x, [[0.5] * WIDTH] * ROWS)
    with pytest.raises(InputError, match="do not fit into float32"):
        net([[1e300] * WIDTH] * ROWS, ids)
    with pytest.raises(InputError, match="do not fit into float32"):
        net([[2**24 + 1] * WIDTH] * ROWS, ids)
    with pytest.raises(InputError, match="token_ids"):
        net(x, [["a"] * WIDTH] * ROWS)


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
    with pytest.raises(InputError, match="3 arrays given in order, there are 2 inputs"):
        net(sample(), sample(), sample())
    with pytest.raises(InputError, match="expected float32"):
        net(sample().astype(">f4"), np.zeros((ROWS, WIDTH), "int64"))


def test_results_belong_to_the_caller(many, net):
    """Neither later calls nor the caller's own writing change anything but that array."""
    library = load(many)
    x, ids = sample(), np.zeros((ROWS, WIDTH), "int64")
    first = library(x, ids)
    copies = [np.array(array) for array in first]
    second = library(-x, ids + 1)
    for array, copy in zip(first, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    for array in second:
        assert array.flags.writeable
        array[...] = 0
    np.testing.assert_array_equal(library(x, ids)[2], np.arange(3))
    kept = [net(sample(seed)) for seed in range(8)]
    for seed, result in enumerate(kept):
        np.testing.assert_allclose(result, expected(sample(seed)), rtol=1e-4, atol=1e-4)


def test_inputs_are_not_changed(wide):
    x = place(np.random.default_rng(3).standard_normal((64, 256)).astype("float32"), 0)
    before = x.copy()
    load(wide)(x)[...] = 7
    np.testing.assert_array_equal(x, before)


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


def test_impossible_threads(mlp):
    with pytest.raises(UsageError, match="at least 1"):
        load(mlp, threads=0)
    with pytest.raises(UsageError, match="not available"):
        load(mlp, pin=[100_000])
