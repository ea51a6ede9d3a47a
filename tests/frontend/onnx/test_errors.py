"""Broken, hostile and unsupported files: one clear error each, never a traceback from below."""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm import zoo
from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend import import_model, import_onnx
from tests.frontend.onnx.helpers import add_weight, text_model


@pytest.fixture(scope="module")
def stored():
    return zoo.build("mobilenetv2-tiny").SerializeToString()


# ---- files ---------------------------------------------------------------------------------


def test_missing_file_names_a_near_one(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(ModelError, match="There is no model file") as caught:
        import_model(tmp_path / "modle.onnx")
    assert "Did you mean" in str(caught.value) and "model.onnx" in str(caught.value)


def test_folder_and_empty_file(tmp_path):
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ModelError, match="is a folder, not an ONNX file") as caught:
        import_model(tmp_path)
    assert "Name the file: model.onnx." in str(caught.value)
    with pytest.raises(ModelError, match="is empty"):
        import_model(tmp_path / "model.onnx")


def test_files_beyond_protobuf_are_refused_without_reading(tmp_path):
    path = tmp_path / "huge.onnx"
    with path.open("wb") as stream:
        stream.truncate(3 << 30)  # sparse: takes no room
    with pytest.raises(ModelError, match="cannot be larger than 2 GiB"):
        import_model(path)


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        b"hello world",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"\x08\x07",
        b"\x3a" * 500,
        b"\xff" * 64,
    ],
)
def test_other_bytes(tmp_path, data):
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError):
        import_model(path)


def test_truncated_files(tmp_path, stored):
    path = tmp_path / "model.onnx"
    for length in np.linspace(1, len(stored) - 1, 25).astype(int):
        path.write_bytes(stored[:length])
        with pytest.raises(ModelError):
            import_model(path)


def test_garbled_files_give_a_model_error_or_a_model(tmp_path, stored):
    path = tmp_path / "model.onnx"
    generator = np.random.default_rng(0)
    for _ in range(40):
        data = bytearray(stored)
        for place in generator.integers(0, len(data), 4):
            data[place] = generator.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            import_model(path)  # a flipped bit of a weight is still a model
        except ModelError:
            pass


def test_garbled_structure(tmp_path, stored):
    """The same on the graph alone, where each byte matters."""
    model = onnx.ModelProto.FromString(stored)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(array), tensor.name))
    data = model.SerializeToString()
    start = data.index(b"/features")
    generator = np.random.default_rng(1)
    path = tmp_path / "model.onnx"
    for _ in range(40):
        changed = bytearray(data)
        for place in generator.integers(start, min(start + 6000, len(data)), 3):
            changed[place] = generator.integers(0, 256)
        path.write_bytes(bytes(changed))
        try:
            import_model(path)
        except ModelError:
            pass


# ---- external data -------------------------------------------------------------------------


@pytest.fixture
def external(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(
        zoo.build("resnet50-tiny"),
        path,
        save_as_external_data=True,
        location="net.onnx.data",
        size_threshold=0,
    )
    return path


def _relocate(path, change):
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = change(entry.key, entry.value)
    path.write_bytes(model.SerializeToString())


def test_external_data_is_loaded(external):
    model = import_model(external)
    stored = {t.name: t for t in import_model("zoo:resnet50-tiny").onnx_model.graph.initializer}
    assert all(t.raw_data == stored[t.name].raw_data for t in model.onnx_model.graph.initializer)


def test_missing_external_data(external):
    (external.parent / "net.onnx.data").unlink()
    with pytest.raises(ModelError, match="external files that cannot be used") as caught:
        import_model(external)
    assert "'net.onnx.data' is missing" in str(caught.value)
    assert str(external.parent) in str(caught.value)
    assert "more" in str(caught.value)


def test_short_external_data(external):
    data = external.parent / "net.onnx.data"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ModelError, match="but 'net.onnx.data' has 1000 bytes"):
        import_model(external)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "a/../../secret", "", "..", "."])
def test_external_data_outside_the_folder(external, location):
    (external.parent.parent / "secret").write_bytes(b"x" * 100000)
    _relocate(external, lambda key, value: location if key == "location" else value)
    with pytest.raises(ModelError, match="refused|is missing"):
        import_model(external)


def test_link_out_of_the_folder_is_refused(external, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "data"
    os.replace(external.parent / "net.onnx.data", elsewhere)
    (external.parent / "net.onnx.data").symlink_to(elsewhere)
    with pytest.raises(ModelError, match="outside the folder of the model; refused"):
        import_model(external)


def test_download_caches_link_model_and_data_into_one_folder(external, tmp_path_factory):
    blobs, snapshot = tmp_path_factory.mktemp("blobs"), tmp_path_factory.mktemp("snapshot")
    for name, blob in (("net.onnx", "1f"), ("net.onnx.data", "2e")):
        os.replace(external.parent / name, blobs / blob)
        (snapshot / name).symlink_to(blobs / blob)
    assert import_model(snapshot / "net.onnx").signature.outputs[0].shape == (1, 10)


@pytest.mark.parametrize(
    "bad", [("offset", "-8"), ("length", "-1"), ("length", "x"), ("offset", str(1 << 62))]
)
def test_bad_external_ranges(external, bad):
    _relocate(external, lambda key, value: bad[1] if key == bad[0] else value)
    with pytest.raises(ModelError):
        import_model(external)


def test_model_in_memory_with_external_data(external):
    with pytest.raises(ModelError, match="refers to external data") as caught:
        import_onnx(onnx.load(external, load_external_data=False))
    assert "onnx.load(path)" in str(caught.value)


# ---- graphs --------------------------------------------------------------------------------


def test_all_unsupported_operators_are_listed_with_counts_and_names():
    source = text_model(
        "g (float[2] x) => (float[2] y) "
        "{ a = acme.Magic(x) b = acme.Magic(a) c = Fancy(b) d = Det(c) y = Exp(d) }",
        "/one", "/two", "", "/det",
        extra=', "acme": 1',
    )  # fmt: skip
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_onnx(source)
    assert caught.value.problems == (
        "acme::Magic: 2 nodes (/one, /two)",
        "Det: 1 node (/det)",
        "Fancy: 1 node (Fancy_c)",
    )
    assert "3 operators that have no importer" in str(caught.value)


def test_onnx_operators_without_converter_are_listed():
    source = text_model("g (float[2,2] x) => (float y) { y = Det(x) }")
    with pytest.raises(UnsupportedOperatorError, match=r"Det: 1 node \(Det_y\)"):
        import_onnx(source)


def test_unsupported_operators_on_constants_do_not_matter():
    source = text_model("g (float[2] x) => (float[2] y) { d = Det(w) y = Mul(x, d) }")
    add_weight(source, "w", np.eye(2, dtype=np.float32))
    assert import_onnx(source).signature.outputs[0].shape == (2,)


def test_cycles_are_named():
    source = text_model("g (float[2] x) => (float[2] y) { a = Add(x, c) b = Exp(a) c = Tanh(b) y = Exp(x) }")
    with pytest.raises(ModelError, match="has a cycle") as caught:
        import_onnx(source)
    assert "'Add_a' (Add)" in str(caught.value)


def test_missing_and_doubled_tensors_are_all_named():
    source = text_model("g (float[2] x) => (float[2] y, float[2] z) { a = Add(x, k) a = Exp(m) y = Tanh(a) }")
    with pytest.raises(ModelError, match="graph is broken") as caught:
        import_onnx(source)
    text = str(caught.value)
    assert "reads tensor 'k', which nothing makes" in text and "reads tensor 'm'" in text
    assert "tensor 'a' has two origins" in text
    assert "nothing makes the graph output 'z'" in text


def test_contradicting_shapes_name_the_node():
    with pytest.raises(ModelError, match="contradict each other.*node name: /bad"):
        import_onnx(text_model("g (float[2] x, float[3] z) => (float[2] y) { y = Add(x, z) }", "/bad"))


def test_invalid_attributes_and_types():
    with pytest.raises(ModelError, match="not valid ONNX.*sideways"):
        import_onnx(text_model("g (float[2] x) => (float[2] y) { y = Softmax<sideways = 1>(x) }"))
    with pytest.raises(ModelError, match="holds strings"):
        import_onnx(text_model("g (string[2] x) => (string[2] y) { y = Identity(x) }"))
    with pytest.raises(ModelError, match="is not a tensor"):
        import_onnx(text_model("g (seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }"))


def test_tvm_failures_name_the_node():
    source = text_model("g (float[2,3] x) => (int64[2,?] y) { y = NonZero(x) }", "/find")
    with pytest.raises(ModelError, match="'/find'"):
        import_onnx(source)
    model = import_model("zoo:minilm-l6-tiny")  # the importer works after a failure
    assert model.signature.outputs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.dims.append(7), "it has"),
        (lambda t: t.dims.__setitem__(0, -1), r"it has the shape \[-1"),
        (lambda t: setattr(t, "data_type", 999), "data type 999 is unknown"),
        (lambda t: setattr(t, "data_type", TensorProto.DOUBLE), "bytes, it has"),
        (lambda t: setattr(t, "raw_data", b""), "it has 0"),
        (lambda t: t.dims.__setitem__(0, 1 << 60), "needs"),
        (lambda t: setattr(t, "name", ""), "it has no name"),
    ],
)
def test_damaged_weights(change, message):
    source = add_weight(
        text_model("g (float[2,3] x) => (float[2,4] y) { y = MatMul(x, w) }"),
        "w",
        np.ones((3, 4), np.float32),
    )
    change(source.graph.initializer[0])
    with pytest.raises(ModelError, match=message):
        import_onnx(source)


def test_versions_and_empty_graphs():
    source = text_model("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    source.ir_version = 1
    with pytest.raises(ModelError, match="IR version is 1"):
        import_onnx(source)
    with pytest.raises(ModelError):
        import_onnx(onnx.ModelProto())
    no_output = helper.make_model(helper.make_graph([], "g", [], []))
    with pytest.raises(ModelError, match="no outputs"):
        import_onnx(no_output)


def test_recursive_functions():
    source = text_model(
        "g (float[2] x) => (float[2] y) { y = my.f(x) }\n"
        '<domain: "my", opset_import: ["" : 17, "my" : 1]> f (a) => (b) { c = my.f(a) b = Add(c, a) }',
        extra=', "my": 1',
    )
    with pytest.raises(ModelError, match="recursive"):
        import_onnx(source)
