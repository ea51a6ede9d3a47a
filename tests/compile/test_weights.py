"""Constants apart from the executable: in this process, in a library, after unloading."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import api
from hetero_tvm.compile import weights
from hetero_tvm.host import native
from hetero_tvm.runtime import elf
from tests.frontend.onnx.helpers import loop_of_shared_constants, text_model

WIDTH = 128


@pytest.fixture(scope="module")
def source():
    """Two layers with equal weights, a third with others, and a constant that is returned as it is."""
    model = text_model(f"""
        g (float[4,{WIDTH}] x) => (float[4,{WIDTH}] y, float[{WIDTH},{WIDTH}] kept) {{
            a = MatMul(x, w) b = Relu(a) c = MatMul(b, same) d = Relu(c) y = MatMul(d, other)
            e = ReduceMean<keepdims = 0>(x) kept = Add(e, other)
        }}""")
    from onnx import numpy_helper

    rng = np.random.default_rng(0)
    w, other = (rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 11 for _ in range(2))
    for name, array in (("w", w), ("same", w), ("other", other)):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.fixture(scope="module")
def built(source, tmp_path_factory):
    optimized = api.optimize_model(api.import_model(source))
    return api.build_model(optimized, logs=tmp_path_factory.mktemp("logs"), use_shipped=False)


@pytest.fixture
def x():
    return np.random.default_rng(1).standard_normal((4, WIDTH)).astype(np.float32)


def expected(source, x):
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(source).run(None, {"x": x})


def same(results, truth):
    for result, value in zip(results, truth, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-5)


def test_weights_are_stored_once(built):
    size, pieces = built.weights.segment()
    assert len(b"".join(bytes(piece) for piece in pieces)) == size
    assert 2 * 4 * WIDTH * WIDTH <= size < 4 * 4 * WIDTH * WIDTH  # 'other' may be packed and plain


@pytest.mark.thorough
def test_a_model_runs_before_and_after_its_export(built, source, x, tmp_path):
    same(built.run({"x": x}), expected(source, x))
    path = built.export(tmp_path)
    same(built.run({"x": x}), expected(source, x))
    same(hetero_tvm.load(path)(x), expected(source, x))
    assert built.export(tmp_path / "again").stat().st_size == path.stat().st_size


_KEPT = """
import sys, numpy as np, onnx, hetero_tvm
model = hetero_tvm.import_model(onnx.load(sys.argv[1]))
hetero_tvm.errors.kept = hetero_tvm.build_model(hetero_tvm.optimize_model(model), use_shipped=False)
hetero_tvm.errors.kept.run({"x": np.ones((4, %d), "float32")})
"""


@pytest.mark.thorough
def test_a_model_that_a_module_keeps_lives_to_the_end_of_the_process(source, tmp_path):
    """Its stand-ins freed the memory of constants once more, which ended the process by a signal."""
    path = tmp_path / "model.onnx"
    path.write_bytes(source.SerializeToString())
    ended = subprocess.run([sys.executable, "-c", _KEPT % WIDTH, path], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_stand_ins_are_their_own_when_the_process_ends(built, source, x):
    for _ in range(2):
        same(built.run({"x": x}), expected(source, x))
        assert built.weights._replaced
        weights._take_all_back()
        assert not built.weights._replaced


@pytest.mark.thorough
def test_calls_while_a_model_is_exported(built, source, x, tmp_path):
    """Calls of threads shared a stack of registers, and an export took constants from those that ran."""
    truth, size, faults, done = expected(source, x), built.export(tmp_path / "alone"), [], threading.Event()

    def call():
        while not done.is_set():
            try:
                same(built.run({"x": x}), truth)
            except Exception as error:
                faults.append(error)
                return

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    for number in range(3):
        path = built.export(tmp_path / str(number))
        assert path.stat().st_size == size.stat().st_size
    done.set()
    for caller in callers:
        caller.join()
    assert not faults
    same(hetero_tvm.load(path)(x), truth)


@pytest.mark.thorough
def test_builds_of_one_process_have_equal_code_and_constants(built, source, x, tmp_path):
    """Stand-ins named the build that they came from."""
    other = api.build_model(api.optimize_model(api.import_model(source)), logs=tmp_path, use_shipped=False)
    same(other.run({"x": x}), expected(source, x))
    files = [one.export(tmp_path / str(n)).read_bytes() for n, one in enumerate((built, other))]
    for name in (b".text", b".rodata", b".data"):
        places = [elf.section(data, name) for data in files]
        one, two = (data[at : at + size] for data, (at, size) in zip(files, places, strict=True))
        assert one == two, name


def test_models_that_live_together_keep_their_own_weights(source, x, tmp_path):
    import onnx
    from onnx import numpy_helper

    negative = onnx.ModelProto()
    negative.CopyFrom(source)
    for tensor in negative.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), tensor.name))
    models = [source, negative]
    libraries = [api.build_model(api.optimize_model(api.import_model(m)), logs=tmp_path) for m in models]
    for _ in range(2):
        for model, library in zip(models, libraries, strict=True):
            same(library.run({"x": x}), expected(model, x))


@pytest.mark.thorough
def test_libraries_of_one_file_and_those_loaded_again(built, source, x, tmp_path):
    path = built.export(tmp_path)
    for _ in range(3):
        first, second = hetero_tvm.load(path), hetero_tvm.load(path)
        same(first(x), expected(source, x))
        del first
        gc.collect()
        same(second(x), expected(source, x))
        del second
        gc.collect()


def test_damage_in_the_constants_is_found(built, tmp_path):
    from hetero_tvm.errors import LibraryError
    from hetero_tvm.runtime import elf

    path = built.export(tmp_path)
    data = bytearray(path.read_bytes())
    start, size = elf.section(bytes(data), b".hetero_data")
    data[start + size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(LibraryError, match="damaged"):
        hetero_tvm.load(path)


@pytest.mark.thorough
def test_odd_names_of_folders(built, source, x, tmp_path):
    path = built.export(tmp_path / "a b'\"$x;\nü" / "m 1.so")
    same(hetero_tvm.load(path)(x), expected(source, x))


@pytest.mark.thorough
@pytest.mark.parametrize("images", [1, hetero_tvm.Span(1, 8)])
def test_transformed_filters_are_stored_plain(images, tmp_path):
    """Winograd's method makes 4 times the numbers, which the library computes when it is loaded."""
    from onnx import numpy_helper

    model = text_model("""
        g (float[n,128,14,14] x) => (float[n,128,14,14] y) {
            a = Conv<pads=[1,1,1,1]>(x, v) b = Relu(a) y = Conv<pads=[1,1,1,1]>(b, w)
        }""")
    rng = np.random.default_rng(0)
    for name in "vw":
        filters = rng.standard_normal((128, 128, 3, 3)).astype(np.float32) / 34
        model.graph.initializer.append(numpy_helper.from_array(filters, name))
    optimized = api.optimize_model(api.import_model(model, shapes={"x": (images, 128, 14, 14)}))
    built = api.build_model(optimized, logs=tmp_path, use_shipped=False)
    if "winograd" not in str([choice.point for choice in built.choices.values()]):
        pytest.skip("this machine's defaults compute 3x3 filters directly")
    path = built.export(tmp_path)
    if not native.sanitizer_options():  # which take a share of the file
        assert path.stat().st_size < 1.1 * model.ByteSize() + 200_000
    x = rng.standard_normal((1, 128, 14, 14)).astype(np.float32)
    found = hetero_tvm.load(path)(x)
    same([found], expected(model, x))
    np.testing.assert_array_equal(found, built.run({"x": x})[0])


@pytest.mark.thorough
def test_constants_without_elements_keep_their_shapes(tmp_path):
    """The last one lies in the segment too: outside, it was taken for a number of another, at each call."""
    model = text_model("""
        g (float[2,3] x) => (float[2,0,3] first, float[0,3] last, float[2,3] y) {
            n = Constant<value_ints = [2, 0, 3]>() first = ConstantOfShape(n)
            m = Constant<value_ints = [0, 3]>() last = ConstantOfShape(m) y = Relu(x)
        }""")
    built = api.build_model(api.optimize_model(api.import_model(model)), use_shipped=False)
    net = hetero_tvm.load(built.export(tmp_path / "empty.so"))
    for _ in range(3):
        assert [result.shape for result in net(np.ones((2, 3), np.float32))] == [(2, 0, 3), (0, 3), (2, 3)]


@pytest.mark.thorough
def test_a_loop_has_its_constants_where_it_shares_one_with_what_is_around_it(tmp_path):
    """A loop is a function of its own, called when its caller has got the constants of both."""
    width = 32
    model = loop_of_shared_constants(width)
    x = np.random.default_rng(1).standard_normal((width, width)).astype(np.float32)
    optimized = api.optimize_model(api.import_model(model))
    built = api.build_model(optimized, logs=tmp_path / "logs", use_shipped=False)
    same(built.run({"x": x}), expected(model, x))
    same([hetero_tvm.load(built.export(tmp_path / "m.so"))(x)], expected(model, x))
